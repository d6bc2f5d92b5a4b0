//! What happens in a world, as its checks and its trace see it.

use std::{fmt, sync::Arc, time::Duration};

use jetstream_model::{AckBody, StoredMessage};
use transcript_core::{
    Delivery, Effect, Report, Time, WakeUp,
    contract::{Announcement, Notification},
    ids::{EffectId, Key},
    summary::Segment,
};

use crate::{
    plan::{Fault, Task},
    store::Document,
};

/// Something that happened.
#[derive(Debug)]
pub(crate) enum Observation<'a> {
    /// A processor started; each of its jobs owes a heartbeat that often.
    Started { processor: usize, heartbeat: Duration },
    /// A processor learnt what the consumer is set to: from now on each of its jobs owes a heartbeat that often.
    ConsumerLearnt { processor: usize, heartbeat: Duration },
    /// A processor is no more: killed, or drained and gone.
    Ended { processor: usize, how: Ending },
    /// A processor goes on after it was frozen.
    Thawed { processor: usize },
    /// A planned fault happens.
    Fault(&'a Fault),
    /// The operator does something by hand.
    Chore(Task),
    /// A fault, on one processor or on all, is effective for a while.
    Disturbed { processor: Option<usize>, from: Time, until: Time, cause: Cause },
    /// A transcriber saved a segment.
    SegmentStored { session: &'a Arc<str>, segment: &'a Segment },
    /// A kill of the store lost a segment that was saved.
    SegmentLost { session: &'a Arc<str>, id: &'a str },
    /// The end of a call is in the stream.
    EndStored { call: usize, end: usize, sequence: u64 },
    /// The operator has published the end of a call again from a copy.
    EndRestored { call: usize, end: usize, sequence: u64 },
    /// An end was made from another message of the stream: by a draining processor, or by the operator from a dead letter.
    EndRedriven { message: &'a StoredMessage, of: u64 },
    /// The broker handed a message over.
    Sent { processor: usize, sequence: u64, attempt: u64, fate: Fate },
    /// A message came to a processor's client.
    Arrived { processor: usize, reply: &'a Arc<str> },
    /// A processor's core took a message.
    Delivered { processor: usize, delivery: &'a Delivery },
    /// A core asked for an effect.
    Asked { processor: usize, id: EffectId, effect: &'a Effect },
    /// A core said that a delivery is worked on.
    InProgress { processor: usize, reply: &'a Arc<str> },
    /// A core learnt what became of an effect.
    Reported { processor: usize, id: EffectId, report: &'a Report },
    /// A core took no notice of the report that it was told last: it had given up waiting for it.
    Ignored { processor: usize, id: EffectId },
    /// A core has said everything: where it stands.
    Waits { processor: usize, jobs: usize, bytes: u64, overflowed: u64, served: Option<WakeUp>, next: Option<WakeUp> },
    /// A summary was saved, or a stored one kept.
    Saved { key: &'a Key, before: Option<&'a Document>, after: &'a Document },
    /// A stored summary has a mark.
    Marked { key: &'a Key, announcement: Announcement, revision: u64 },
    /// A notification of a summary, or of one that replaced it, is in the stream.
    NotificationStored { sequence: u64, announcement: Announcement, notification: &'a Notification },
    /// A dead letter about a message is in the stream.
    DeadLetterStored { message: &'a StoredMessage, of: u64 },
    /// An acknowledgement of any kind came to the broker.
    AckArrived { sequence: u64, body: &'a AckBody },
    /// The broker will not deliver a message again.
    GivenUp { sequence: u64 },
    /// The broker told a processor that it will not.
    AdvisorySent { processor: usize, sequence: u64, fate: Fate },
    /// A processor's core heard that it will not.
    Heard { processor: usize, sequence: u64 },
    /// A processor's core heard that a summary is stale.
    StaleSummary { processor: usize, key: &'a Key },
}

/// What a disturbance can explain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Something broke on the way between the broker and the processor, or the processor itself: it can cost a delivery.
    Fault,
    /// A rollout: it can cost a delivery, and must not cost all.
    Rollout,
    /// The store serves nobody: by itself it costs no delivery.
    Outage,
}

/// Whether what was sent arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    UnderWay,
    Lost,
}

/// How a processor came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Killed,
    Drained,
}

impl fmt::Display for Observation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { processor, .. } => write!(f, "processor {processor}: started"),
            Self::ConsumerLearnt { processor, heartbeat } => {
                write!(f, "processor {processor}: learns that a heartbeat is due every {heartbeat:?}")
            }
            Self::Ended { processor, how: Ending::Killed } => write!(f, "processor {processor}: killed"),
            Self::Ended { processor, how: Ending::Drained } => write!(f, "processor {processor}: drained"),
            Self::Thawed { processor } => write!(f, "processor {processor}: thawed"),
            Self::Fault(fault) => write!(f, "fault: {fault}"),
            Self::Chore(task) => write!(f, "operator: {task:?}"),
            Self::Disturbed { processor, until, cause, .. } => {
                let until = Clock(*until);
                let by = match cause {
                    Cause::Fault => "disturbed",
                    Cause::Rollout => "disturbed by its rollout",
                    Cause::Outage => "without a store",
                };
                match processor {
                    Some(processor) => write!(f, "processor {processor}: {by} until {until}"),
                    None => write!(f, "everybody {by} until {until}"),
                }
            }
            Self::SegmentStored { session, segment } => {
                write!(f, "transcriber: segment {:?} of {session:?} stored", segment.id)
            }
            Self::SegmentLost { session, id } => write!(f, "store: segment {id:?} of {session:?} is lost"),
            Self::EndStored { call, end, sequence } => {
                write!(f, "transcriber: end {end} of call {call} stored as {sequence}")
            }
            Self::EndRestored { call, end, sequence } => {
                write!(f, "operator: end {end} of call {call} stored again as {sequence}")
            }
            Self::EndRedriven { message, of } => write!(f, "broker: {of} is stored again as {}", message.sequence),
            Self::Sent { processor, sequence, attempt, fate } => {
                write!(f, "broker: {sequence} to processor {processor}, attempt {attempt}, {fate:?}")
            }
            Self::Arrived { processor, reply } => write!(f, "processor {processor}: arrived {reply}"),
            Self::Delivered { processor, delivery } => {
                write!(f, "processor {processor}: delivered {}, attempt {}", delivery.stream_sequence, delivery.attempt)
            }
            Self::Asked { processor, id, effect } => write!(f, "processor {processor}: {id} {effect}"),
            Self::InProgress { processor, reply } => write!(f, "processor {processor}: in progress {reply}"),
            Self::Reported { processor, id, report } => write!(f, "processor {processor}: {id} {report}"),
            Self::Ignored { processor, id } => write!(f, "processor {processor}: {id} comes too late"),
            Self::Waits { processor, jobs, next, .. } => {
                let wake_up = next.map(|next| format!(" until {} ({:?})", Clock(next.at), next.timer));
                write!(f, "processor {processor}: waits with {jobs} job(s){}", wake_up.unwrap_or_default())
            }
            Self::Saved { key, before, after } => write!(
                f,
                "store: {key} has {} segment(s), complete {}, words {}, had {:?}",
                after.summary.segments,
                after.summary.complete,
                after.summary.words,
                before.map(|before| before.summary.segments)
            ),
            Self::Marked { key, announcement: Announcement::Revised { revision }, .. } => {
                write!(f, "store: {key} has the mark of revision {revision}")
            }
            Self::Marked { key, .. } => write!(f, "store: {key} has its mark"),
            Self::NotificationStored { sequence, announcement: Announcement::Revised { revision }, notification } => {
                write!(f, "broker: revision {revision} of {} stored as {sequence}", notification.session.key())
            }
            Self::NotificationStored { sequence, notification, .. } => {
                write!(f, "broker: notification of {} stored as {sequence}", notification.session.key())
            }
            Self::DeadLetterStored { message, of } => {
                write!(f, "broker: dead letter about {of} stored as {}", message.sequence)
            }
            Self::AckArrived { sequence, body } => write!(f, "broker: {body:?} for {sequence}"),
            Self::GivenUp { sequence } => write!(f, "broker: {sequence} is given up"),
            Self::AdvisorySent { processor, sequence, fate } => {
                write!(f, "broker: tells processor {processor} that {sequence} is given up, {fate:?}")
            }
            Self::Heard { processor, sequence } => {
                write!(f, "processor {processor}: hears that {sequence} is given up")
            }
            Self::StaleSummary { processor, key } => write!(f, "processor {processor}: hears that {key} is stale"),
        }
    }
}

/// A time of the world in seconds.
pub(crate) struct Clock(pub(crate) Time);

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        write!(f, "{}.{:06} s", micros / 1_000_000, micros % 1_000_000)
    }
}
