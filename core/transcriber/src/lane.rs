//! A row of effects that come one after the other: one is asked for, and the next one waits for its report.

use std::time::Duration;

use transcript_core::Time;

use crate::{
    ids::EffectId,
    output::{Timer, WakeUp},
    settings::Settings,
};

/// Where a row of effects stands.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    asked: Option<(EffectId, Time)>,
    retry_at: Option<Time>,
    retries: u32,
}

impl Lane {
    /// Whether nothing is under way and nothing waits to be tried again.
    pub(crate) fn is_free(&self) -> bool {
        self.asked.is_none() && self.retry_at.is_none()
    }

    /// Whether an effect is under way.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// An effect was asked for, and is waited for until `answer_by`.
    pub(crate) fn ask(&mut self, id: EffectId, answer_by: Time) {
        self.asked = Some((id, answer_by));
        self.retry_at = None;
    }

    /// An effect was reported; nothing changes where it is not the one that was asked for last.
    pub(crate) fn reported(&mut self, id: EffectId) {
        self.asked = self.asked.filter(|(asked, _)| *asked != id);
    }

    /// The effect succeeded.
    pub(crate) fn succeeded(&mut self) {
        self.retries = 0;
    }

    /// The effect failed and is to be tried again.
    pub(crate) fn failed(&mut self, now: Time, settings: &Settings, salt: u64) {
        let doubled = settings.retry_base.saturating_mul(1_u32.checked_shl(self.retries.min(31)).unwrap_or(u32::MAX));
        let pause = doubled.min(settings.retry_cap);
        self.retries = self.retries.saturating_add(1);
        self.retry_at = Some(now.after(jittered(pause, salt.wrapping_add(u64::from(self.retries)))));
    }

    /// What was to be tried again is not wanted any more.
    pub(crate) fn forget_retry(&mut self) {
        self.retry_at = None;
    }

    /// When it has to be looked at, and why.
    pub(crate) fn wake_up(&self) -> Option<WakeUp> {
        let answer = self.asked.map(|(_, at)| WakeUp { at, timer: Timer::Answer });
        answer.or(self.retry_at.map(|at| WakeUp { at, timer: Timer::Retry }))
    }

    /// Takes the effect that nobody reported in time.
    pub(crate) fn take_unanswered(&mut self, now: Time) -> Option<EffectId> {
        let (id, _) = self.asked.filter(|(_, by)| *by <= now)?;
        self.asked = None;
        Some(id)
    }

    /// Ends the pause before a retry, if it is over.
    pub(crate) fn end_pause(&mut self, now: Time) {
        self.retry_at = self.retry_at.filter(|at| *at > now);
    }
}

/// Up to a quarter less, so that what failed together is not tried again together. It is derived and not drawn.
fn jittered(pause: Duration, salt: u64) -> Duration {
    let spread = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
    pause - pause.mul_f64(0.25) * u32::try_from(spread).unwrap_or(0) / 256
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::StreamState;

    #[test]
    fn pauses_double_up_to_the_cap() {
        let settings = Settings::new("t", "f00", StreamState::Absent);
        let mut lane = Lane::default();
        let mut last = Duration::ZERO;
        for round in 0..40 {
            lane.failed(Time::ZERO, &settings, 7);
            let pause = lane.wake_up().expect("a retry is set").at.since(Time::ZERO);
            assert!(pause <= settings.retry_cap && pause >= settings.retry_base.mul_f64(0.75), "{round}: {pause:?}");
            assert!(pause >= last.mul_f64(0.75), "{round}: {pause:?} after {last:?}");
            last = pause;
        }
        assert!(last >= settings.retry_cap.mul_f64(0.75));
    }

    #[test]
    fn only_the_last_effect_is_reported() {
        let mut lane = Lane::default();
        lane.ask(EffectId(3), Time::from_micros(10));
        lane.reported(EffectId(2));
        assert!(lane.is_asked());
        assert_eq!(lane.take_unanswered(Time::from_micros(9)), None);
        assert_eq!(lane.take_unanswered(Time::from_micros(10)), Some(EffectId(3)));
        assert!(lane.is_free());
        lane.ask(EffectId(4), Time::ZERO);
        lane.reported(EffectId(4));
        assert!(lane.is_free());
    }
}
