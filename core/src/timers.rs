//! The deadlines of one job, one for each [`Timer`].

use crate::{output::Timer, time::Time};

const TIMERS: [Timer; 4] = [Timer::Heartbeat, Timer::Settle, Timer::Retry, Timer::Answer];

/// A job's deadlines.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    deadlines: [Option<Time>; TIMERS.len()],
}

impl Timers {
    pub(crate) fn set(&mut self, timer: Timer, at: Time) {
        if let Some(slot) = self.slot(timer) {
            *slot = Some(at);
        }
    }

    pub(crate) fn clear(&mut self, timer: Timer) {
        if let Some(slot) = self.slot(timer) {
            *slot = None;
        }
    }

    pub(crate) fn is_set(&self, timer: Timer) -> bool {
        self.deadline(timer).is_some()
    }

    /// The earliest deadline and its timer.
    pub(crate) fn next(&self) -> Option<(Time, Timer)> {
        TIMERS.iter().zip(self.deadlines).filter_map(|(timer, at)| Some((at?, *timer))).min()
    }

    /// Takes the first timer that is due at `now`.
    pub(crate) fn take_due(&mut self, now: Time) -> Option<Timer> {
        let (_, timer) = self.next().filter(|(at, _)| *at <= now)?;
        self.clear(timer);
        Some(timer)
    }

    pub(crate) fn deadline(&self, timer: Timer) -> Option<Time> {
        TIMERS.iter().zip(self.deadlines).find(|(t, _)| **t == timer)?.1
    }

    fn slot(&mut self, timer: Timer) -> Option<&mut Option<Time>> {
        let place = TIMERS.iter().position(|t| *t == timer)?;
        self.deadlines.get_mut(place)
    }
}
