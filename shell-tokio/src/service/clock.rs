//! The one place where this shell reads a clock.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use transcript_core::{Time, WallTime};

/// The time since the start, and the calendar.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    started: Instant,
}

impl Clock {
    /// A clock that starts now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    pub fn start() -> Self {
        Self { started: Instant::now() }
    }

    /// The time since the start; it never goes back.
    #[must_use]
    pub fn now(&self) -> Time {
        Time::ZERO.after(self.started.elapsed())
    }

    /// When the clock will say `time`.
    #[must_use]
    pub fn at(&self, time: Time) -> Instant {
        self.started + Duration::from_micros(time.as_micros())
    }

    /// The start by the machine's calendar as it is now.
    #[must_use]
    pub fn started_at(&self) -> WallTime {
        let since = i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX);
        WallTime::from_millis(self.wall().as_millis().saturating_sub(since))
    }

    /// The moment by the machine's calendar.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    pub fn wall(&self) -> WallTime {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        WallTime::from_millis(0).after(since_epoch)
    }
}
