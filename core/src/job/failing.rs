//! What becomes of a job whose effect failed, and how it is given back.

use std::{sync::Arc, time::Duration};

use super::{Around, Job, Next, Phase, Question};
use crate::{
    contract::DeadLetter,
    event::SessionEnded,
    failure::{Failure, FailureKind, Remedy, classify},
    output::{Acknowledgement, Timer},
    settings::Settings,
    time::Time,
};

impl Job {
    pub(super) fn failed(&mut self, phase: Phase, failure: &Failure, around: Around<'_>) -> (Phase, Next) {
        let Around { now, served, settings, planted } = around;
        let since = *self.failing_since.get_or_insert(now);
        let silence = settings.longest_silence();
        let alone_for = phase.service().and_then(|of| served.failing_alone_for(of, since, now, silence, planted));
        let tried_enough = alone_for.is_some_and(|span| span >= settings.retry_timeout);
        let remedy = classify(failure.kind);
        if (remedy == Remedy::TryAgain && !tried_enough) || self.must_go_on(&phase, failure.kind) {
            let pause = pause(self.stream_sequence, self.retries, settings);
            self.retries += 1;
            return (phase, Next::Wait(Timer::Retry, now.after(pause)));
        }
        self.retries = 0;
        self.failing_since = None;
        match phase {
            Phase::Acknowledging { .. } | Phase::Over => (Phase::Over, Next::End),
            Phase::Republishing { .. } => {
                self.finished(Acknowledgement::Nak { delay: Duration::ZERO, reason: failure.to_string() })
            }
            Phase::DeadLettering { dead_letter } => {
                self.finished(Acknowledgement::Term { reason: dead_letter.reason.clone() })
            }
            // It is announced: that it cannot be marked must not become a second announcement.
            Phase::Marking { news, .. } => self.done_with(news),
            Phase::Checking { call, question: Question::Covered } => self.settle(call),
            Phase::Checking { question: Question::Announced { dead_letter, .. }, .. } => {
                (Phase::DeadLettering { dead_letter }, Next::Ask)
            }
            Phase::Queued { call }
            | Phase::Quiet { call, .. }
            | Phase::Counting { call, .. }
            | Phase::Loading { call, .. }
            | Phase::Saving { call, .. }
            | Phase::Checking { call, question: Question::News { .. } }
            | Phase::Publishing { call, .. } => match remedy {
                Remedy::TryAgain => self.given_up(call, failure, around),
                Remedy::DeadLetter => self.dead_letter(now, call, failure.to_string()),
            },
        }
    }

    /// What is tried without end: a dead letter, since without it the call would be lost; a mark, unless it is refused; and
    /// to publish an end again that JetStream hands over no more.
    fn must_go_on(&self, phase: &Phase, failure: FailureKind) -> bool {
        match phase {
            Phase::DeadLettering { .. } => failure != FailureKind::Missing,
            Phase::Marking { .. } => classify(failure) == Remedy::TryAgain,
            Phase::Republishing { .. } => self.exhausted,
            Phase::Over
            | Phase::Queued { .. }
            | Phase::Quiet { .. }
            | Phase::Counting { .. }
            | Phase::Loading { .. }
            | Phase::Saving { .. }
            | Phase::Checking { .. }
            | Phase::Publishing { .. }
            | Phase::Acknowledging { .. } => false,
        }
    }

    /// The retry timeout is over while others succeed. JetStream may have handed the message over so often meanwhile that a
    /// nak would be the end of it: then it is published again.
    fn given_up(&self, call: SessionEnded, failure: &Failure, around: Around<'_>) -> (Phase, Next) {
        let Around { now, settings, .. } = around;
        if self.reply.is_none() || self.began_as >= settings.max_deliver {
            self.dead_letter(now, call, failure.to_string())
        } else if self.exhausted || self.attempt >= settings.max_deliver {
            (Phase::Republishing { call }, Next::Ask)
        } else {
            self.finished(Acknowledgement::Nak { delay: settings.nak_delay, reason: failure.to_string() })
        }
    }

    /// A draining processor gives the job back. A nak costs an attempt, and a row of rollouts must not use them up: where
    /// they are few the end is published again, and counts from the beginning.
    pub(super) fn given_back(&self, call: SessionEnded, settings: &Settings) -> (Phase, Next) {
        if self.reply.is_some() && (self.exhausted || are_few(self.attempt, settings)) {
            (Phase::Republishing { call }, Next::Ask)
        } else {
            self.finished(Acknowledgement::drained())
        }
    }

    /// No attempt will end otherwise: the message is kept for people.
    pub(super) fn dead_letter(&self, now: Time, call: SessionEnded, reason: String) -> (Phase, Next) {
        if self.reply.is_none() {
            return (Phase::Over, Next::End);
        }
        let Self { stream_sequence, attempt: attempts, .. } = *self;
        let dead_letter = DeadLetter { stream_sequence, attempts, reason, at: self.wall(now), ended: Some(call) };
        (Phase::DeadLettering { dead_letter: Arc::new(dead_letter) }, Next::Ask)
    }
}

/// Whether the job should not cost its message another attempt: it is not the first, or there are no more than three.
pub(super) fn are_few(attempt: u64, settings: &Settings) -> bool {
    attempt > 1 || settings.max_deliver <= 3
}

/// The pause before a retry: doubled each time up to the cap, and between half and all of that, so that many jobs that
/// failed together do not come back together. Derived from the job, not drawn: the same job pauses the same way.
fn pause(stream_sequence: u64, retries: u32, settings: &Settings) -> Duration {
    let full =
        settings.retry_base.saturating_mul(1_u32.checked_shl(retries).unwrap_or(u32::MAX)).min(settings.retry_cap);
    let part = mix(stream_sequence ^ (u64::from(retries) << 48)) % 1024;
    full / 2 + full / 2 * u32::try_from(part).unwrap_or(0) / 1024
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(seed: u64) -> u64 {
    let a = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let b = (a ^ (a >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let c = (b ^ (b >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    c ^ (c >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_cap_and_differ_between_jobs() {
        let settings = Settings::default();
        for retries in 0..40 {
            let full = Duration::from_millis(100 << retries.min(6)).min(settings.retry_cap);
            for sequence in 0..50 {
                let pause = pause(sequence, retries, &settings);
                assert!(pause >= full / 2 && pause <= full, "{retries}: {pause:?} of {full:?}");
            }
        }
        assert_ne!(pause(1, 3, &settings), pause(2, 3, &settings));
        assert_eq!(pause(1, 3, &settings), pause(1, 3, &settings));
    }
}
