//! What a job asks for.

use std::sync::Arc;

use super::{Job, News, Phase, loading::Loading};
use crate::{
    contract::{Announcement, Notification},
    ids::EffectId,
    output::{Effect, Timer},
    settings::Settings,
    time::Time,
};

/// What a page may bring for each segment that was counted, up to the most that any page may bring.
const SEGMENT_BYTES: u64 = 4 << 10;

impl Job {
    /// Asks for the effect of the phase. Whatever the job waited for before, it waits for this one's report now.
    pub(crate) fn ask(&mut self, now: Time, settings: &Settings) -> Option<(EffectId, Effect)> {
        let effect = self.effect(settings)?;
        (self.asked, self.asked_at) = (self.asked + 1, now);
        self.awaited = Some(self.asked);
        self.timers.clear(Timer::Settle);
        self.timers.clear(Timer::Retry);
        self.timers.set(Timer::Answer, now.after(settings.answer_timeout()));
        if self.gives_back() {
            // A heartbeat would override the delay of the nak: nats-server, consumer.go, progressUpdate.
            self.timers.clear(Timer::Heartbeat);
        }
        Some((EffectId { job: self.id, number: self.asked }, effect))
    }

    fn effect(&self, settings: &Settings) -> Option<Effect> {
        match &self.phase {
            Phase::Over | Phase::Queued { .. } | Phase::Quiet { .. } => None,
            Phase::Counting { call, .. } => Some(Effect::Count { session_id: Arc::clone(&call.session.session_id) }),
            Phase::Loading { call, loading } => Some(Effect::Load {
                session_id: Arc::clone(&call.session.session_id),
                order: loading.order,
                after: loading.after.clone(),
                limit: settings.page_size,
                max_bytes: page_bytes(loading, settings),
                counted: loading.counted,
            }),
            Phase::Saving { summary, .. } => Some(Effect::Save { summary: Arc::clone(summary) }),
            Phase::Checking { .. } => Some(Effect::Check { key: self.key.clone()? }),
            Phase::Publishing { call, announcement, news: News { stored, .. } } => Some(Effect::Publish {
                key: self.key.clone()?,
                announcement: *announcement,
                notification: Notification {
                    session: call.session.clone(),
                    segments: stored.segments,
                    complete: stored.complete,
                    edits: stored.edits,
                    revision: matches!(announcement, Announcement::Revised { .. }).then_some(stored.revision),
                },
                trace_context: self.trace_context.clone(),
            }),
            Phase::Marking { announcement, told, notified, .. } => Some(Effect::Mark {
                key: self.key.clone()?,
                announcement: *announcement,
                segments: told.segments,
                edits: told.edits,
                notified: *notified,
            }),
            Phase::DeadLettering { dead_letter } => Some(Effect::DeadLetter { dead_letter: Arc::clone(dead_letter) }),
            Phase::Republishing { call } => {
                Some(Effect::Republish { stream_sequence: self.stream_sequence, ended: call.clone() })
            }
            Phase::Acknowledging { acknowledgement } => Some(Effect::Acknowledge {
                reply: self.reply.clone()?,
                key: self.key.clone(),
                acknowledgement: acknowledgement.clone(),
            }),
        }
    }
}

/// What the next page may bring.
pub(super) fn page_bytes(loading: &Loading, settings: &Settings) -> u64 {
    let expected = loading.counted.clamp(1, settings.page_size.into()).saturating_mul(SEGMENT_BYTES);
    expected.min(settings.max_page_bytes).max(loading.needs.unwrap_or(0))
}
