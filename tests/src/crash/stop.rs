//! The points at which the processor is stopped, and how each is reached.

use std::fmt;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use transcript_core::contract::{PROCESSED_SUBJECT, SEGMENTS_COLLECTION, SUMMARIES_COLLECTION};

use super::{CrashError, count_notifications, count_summaries};
use crate::{
    calls::Call,
    proxy::{Fate, Mongo, MongoProxy, MongoTraffic, Nats, NatsProxy, NatsTraffic, Rule},
    world::TestWorld,
};

/// Where in its job the processor is killed, in the order of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopPoint {
    /// Nowhere: a healthy run.
    None,
    /// While it waits for late segments: it has counted once.
    Wait,
    /// The summary is on its way to the store, and does not arrive.
    BeforeStore,
    /// The summary is stored; the notification is on its way, and does not arrive.
    AfterStore,
    /// The notification is in the stream, and its answer does not arrive: neither mark nor acknowledgement.
    AfterNotify,
    /// The summary is marked; the acknowledgement does not arrive.
    AfterMark,
    /// The acknowledgement has arrived.
    AfterAck,
}

impl StopPoint {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::None,
        Self::Wait,
        Self::BeforeStore,
        Self::AfterStore,
        Self::AfterNotify,
        Self::AfterMark,
        Self::AfterAck,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Wait => "wait",
            Self::BeforeStore => "before-store",
            Self::AfterStore => "after-store",
            Self::AfterNotify => "after-notify",
            Self::AfterMark => "after-mark",
            Self::AfterAck => "after-ack",
        }
    }
}

impl fmt::Display for StopPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What keeps the processor from going on beyond the point; ends when it is dropped.
pub(crate) struct Fault {
    _nats: Option<Rule<Nats>>,
    _mongo: Option<Rule<Mongo>>,
}

impl Fault {
    pub(crate) fn arm(stop: StopPoint, nats: &NatsProxy, mongo: &MongoProxy) -> Self {
        let notification = NatsTraffic::to(PROCESSED_SUBJECT);
        let nats = match stop {
            StopPoint::None | StopPoint::Wait | StopPoint::BeforeStore | StopPoint::AfterAck => None,
            StopPoint::AfterStore => Some(nats.hold(notification)),
            StopPoint::AfterNotify => Some(nats.discard(notification.answer())),
            StopPoint::AfterMark => Some(nats.discard(NatsTraffic::Ack)),
        };
        let save = MongoTraffic::command("update", SUMMARIES_COLLECTION);
        let mongo = (stop == StopPoint::BeforeStore).then(|| mongo.hold(save));
        Self { _nats: nats, _mongo: mongo }
    }
}

/// Returns once the servers have seen that the processor is there. All that they see after `beginning` must be of one job.
pub(crate) async fn reach(stop: StopPoint, nats: &NatsProxy, mongo: &MongoProxy, beginning: Instant) {
    let notification = NatsTraffic::to(PROCESSED_SUBJECT);
    match stop {
        StopPoint::None | StopPoint::AfterAck => {
            nats.seen(&NatsTraffic::Ack.answer(), Fate::Passed, beginning).await;
        }
        StopPoint::Wait => {
            let counted = MongoTraffic::command("aggregate", SEGMENTS_COLLECTION).answer();
            mongo.seen(&counted, Fate::Passed, beginning).await;
        }
        StopPoint::BeforeStore => drop(mongo.held().await),
        StopPoint::AfterStore => drop(nats.held().await),
        StopPoint::AfterNotify => {
            nats.seen(&notification.answer(), Fate::Discarded, beginning).await;
        }
        StopPoint::AfterMark => {
            nats.seen(&NatsTraffic::Ack, Fate::Discarded, beginning).await;
        }
    }
}

/// Whether the processor was killed where it was meant to be, by what the servers hold now.
pub(crate) async fn check(stop: StopPoint, world: &TestWorld, call: &Call) -> Result<(), CrashError> {
    let summaries = count_summaries(world, call).await?;
    let notifications = count_notifications(world, call).await?;
    let stored = world.summary(&call.session.key()).await?;
    let marked = stored.is_some_and(|summary| summary.contains_key("notified"));
    let unacknowledged = world.consumer().await?.num_ack_pending;
    let found = (summaries, notifications, marked, unacknowledged);
    let expected = match stop {
        StopPoint::Wait | StopPoint::BeforeStore => (0, 0, false, 1),
        StopPoint::AfterStore => (1, 0, false, 1),
        StopPoint::AfterNotify => (1, 1, false, 1),
        StopPoint::AfterMark => (1, 1, true, 1),
        StopPoint::None | StopPoint::AfterAck => (1, 1, true, 0),
    };
    if found == expected {
        Ok(())
    } else {
        Err(format!(
            "killed at another point than {stop}: summaries, notifications, marked, unacknowledged are {found:?} \
             instead of {expected:?}"
        )
        .into())
    }
}
