//! How a job begins.

use std::{sync::Arc, time::Duration};

use super::{Job, Phase, Question, Weight, failing::are_few};
use crate::{
    WallTime,
    contract::DeadLetter,
    event::SessionEnded,
    ids::{JobId, Key},
    input::{Delivery, Exhausted, StaleSummary},
    output::{Acknowledgement, Timer},
    settings::Settings,
    time::Time,
    timers::Timers,
};

impl Job {
    /// A job about the call that ended, which waits until it is the first of its key.
    pub(crate) fn new(
        id: JobId,
        now: Time,
        delivery: &Delivery,
        key: Key,
        call: SessionEnded,
        settings: &Settings,
    ) -> Self {
        let age = delivery.received_at.since(delivery.stored_at);
        Self {
            key: Some(key),
            ended_at: now.before(age),
            settles_at: now.after(settings.quiet_period.saturating_sub(age)),
            ..Self::delivered(id, now, delivery, Phase::Queued { call }, settings)
        }
    }

    /// The same, where this processor was done with the call at that time.
    pub(crate) fn after(self, loaded_at: Time) -> Self {
        Self { is_repeat: self.ended_at <= loaded_at, ..self }
    }

    /// A job about a payload that can never be processed: it becomes a dead letter with the reason.
    pub(crate) fn rejected(id: JobId, now: Time, delivery: &Delivery, reason: String, settings: &Settings) -> Self {
        let dead_letter = DeadLetter {
            stream_sequence: delivery.stream_sequence,
            attempts: delivery.attempt,
            reason,
            at: delivery.received_at,
            ended: None,
        };
        Self::delivered(id, now, delivery, Phase::DeadLettering { dead_letter: Arc::new(dead_letter) }, settings)
    }

    /// A job about a call that came while the processor drains.
    pub(crate) fn handed_on(
        id: JobId,
        now: Time,
        delivery: &Delivery,
        call: SessionEnded,
        settings: &Settings,
    ) -> Self {
        let phase = if are_few(delivery.attempt, settings) {
            Phase::Republishing { call }
        } else {
            Phase::Acknowledging { acknowledgement: Acknowledgement::drained() }
        };
        Self::delivered(id, now, delivery, phase, settings)
    }

    /// A job about a message that used up its deliveries. It becomes a dead letter, unless its call is announced.
    pub(crate) fn exhausted(id: JobId, now: Time, exhausted: &Exhausted) -> Self {
        let Exhausted { stream_sequence, attempts, received_at, payload } = exhausted;
        let reason = format!("handed over {attempts} times, and each time its process died or was cut off");
        let (stream_sequence, attempts, at) = (*stream_sequence, *attempts, *received_at);
        let letter = |ended| Arc::new(DeadLetter { stream_sequence, attempts, reason, at, ended });
        let ended = payload.as_ref().and_then(|payload| SessionEnded::parse(&payload.0).ok());
        let (key, phase) = match ended {
            Some(call) => {
                let question = Question::Announced { dead_letter: letter(Some(call.clone())), until: None };
                (Some(call.session.key()), Phase::Checking { call, question })
            }
            None => (None, Phase::DeadLettering { dead_letter: letter(None) }),
        };
        Self { key, stream_sequence, attempt: attempts, began_as: attempts, ..Self::in_phase(id, now, at, phase) }
    }

    /// A job about a session whose summary is behind its segments, which waits until it is the first of its key.
    pub(crate) fn stale(id: JobId, now: Time, key: Key, stale: StaleSummary) -> Self {
        let StaleSummary { session, published_segments, received_at } = stale;
        let phase = Phase::Queued { call: SessionEnded { session, published_segments, reprocess: 0 } };
        Self { key: Some(key), ..Self::in_phase(id, now, received_at, phase) }
    }

    fn delivered(id: JobId, now: Time, delivery: &Delivery, phase: Phase, settings: &Settings) -> Self {
        let mut job = Self::in_phase(id, now, delivery.received_at, phase);
        job.stream_sequence = delivery.stream_sequence;
        job.attempt = delivery.attempt;
        job.began_as = delivery.attempt;
        job.reply = Some(Arc::clone(&delivery.reply));
        job.trace_context = delivery.trace_context.clone();
        job.age = delivery.received_at.since(delivery.stored_at);
        job.timers.set(Timer::Heartbeat, now.after(settings.heartbeat_interval()));
        job
    }

    fn in_phase(id: JobId, now: Time, received_at: WallTime, phase: Phase) -> Self {
        Self {
            id,
            stream_sequence: 0,
            attempt: 0,
            began_as: 0,
            exhausted: false,
            reply: None,
            trace_context: None,
            key: None,
            delivered: now,
            received_at,
            age: Duration::ZERO,
            settled: None,
            ended_at: now,
            settles_at: now,
            is_repeat: false,
            phase,
            asked: 0,
            asked_at: now,
            awaited: None,
            retries: 0,
            failing_since: None,
            outcome: None,
            timers: Timers::default(),
            scheduled: None,
            key_digest: 0,
            weighed: Weight::default(),
        }
    }
}
