//! The watch over summaries of the last while: whether more segments are stored than they were made of, or were changed since.

use std::time::Duration;

use futures::TryStreamExt;
use mongodb::{
    Database,
    bson::{DateTime, RawDocument, RawDocumentBuf, doc},
};
use tokio::{
    sync::mpsc,
    time::{MissedTickBehavior, interval},
};
use transcript_client::mongodb::CommandError;
use transcript_core::{Input, StaleSummary, WallTime, ids::Session};

use super::{reply, socket::Socket};
use crate::service::clock::Clock;

/// The most sessions that are counted in one command.
const BATCH: usize = 1000;

/// Looks again and again, and tells of every summary that is behind.
#[derive(Debug)]
pub struct Watch {
    socket: Socket,
    inputs: mpsc::UnboundedSender<Input>,
    clock: Clock,
    /// How often.
    every: Duration,
    /// How long after its last change a summary is looked at.
    reach: Duration,
}

impl Watch {
    /// A watch that tells `inputs` every so often about the summaries that changed within `reach`.
    #[must_use]
    pub fn new(
        database: &Database,
        inputs: mpsc::UnboundedSender<Input>,
        request_timeout: Duration,
        clock: Clock,
        every: Duration,
        reach: Duration,
    ) -> Self {
        let socket = Socket::new(database, request_timeout);
        Self { socket, inputs, clock, every, reach }
    }

    /// Looks until nobody takes what it finds any more.
    pub async fn run(self) {
        let mut ticks = interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.inputs.is_closed() {
            ticks.tick().await;
            if let Err(error) = self.look().await {
                tracing::warn!("cannot look for stale summaries: {error}");
            }
        }
    }

    async fn look(&self) -> Result<(), CommandError> {
        let now = self.clock.wall();
        let reach = i64::try_from(self.reach.as_millis()).unwrap_or(i64::MAX);
        let since = DateTime::from_millis(now.as_millis().saturating_sub(reach));
        let fields = doc! {
            "conversationId": 1, "sessionId": 1, "segments": 1, "edits": 1, "publishedSegments": 1, "notified": 1,
            "revision": 1, "revised.revision": 1,
        };
        let watched = doc! { "updatedAt": { "$gte": since }, "notified": { "$exists": true } };
        let find = async { self.socket.summaries().find(watched).projection(fields).await };
        let summaries = self.socket.answer(find).await?;
        let mut batches = summaries.try_chunks(BATCH);
        loop {
            let batch = self.socket.answer(async { batches.try_next().await.map_err(|error| error.1) }).await?;
            let Some(batch) = batch else { return Ok(()) };
            self.tell(&batch, now).await?;
        }
    }

    async fn tell(&self, batch: &[RawDocumentBuf], now: WallTime) -> Result<(), CommandError> {
        let sessions = batch.iter().filter_map(|summary| summary.get_str("sessionId").ok());
        let versions = self.socket.versions(sessions).await?;
        for summary in batch {
            let Some(session) = session(summary) else { continue };
            let stored = reply::stored(summary);
            let version = versions.get(&*session.session_id).copied().unwrap_or_default();
            if stored.is_stale_with(version) || stored.unannounced_revision().is_some() {
                let published_segments = reply::number(summary.get("publishedSegments").ok().flatten());
                // The driver loop is gone once the processor has drained; another one will find it.
                drop(self.inputs.send(Input::Stale(StaleSummary { session, published_segments, received_at: now })));
            }
        }
        Ok(())
    }
}

/// The session of a summary; `None` for a document that somebody else wrote, of which the `_id` is not the key.
pub(crate) fn session(summary: &RawDocument) -> Option<Session> {
    let session = Session::new(summary.get_str("conversationId").ok()?, summary.get_str("sessionId").ok()?).ok()?;
    (session.key().as_str() == summary.get_str("_id").ok()?).then_some(session)
}
