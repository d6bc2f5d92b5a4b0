//! The one place where this shell reads a clock.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use transcript_core::{Time, WallTime};

/// The time since the start, and the calendar.
///
/// The time goes on while the machine is suspended, or its virtual machine is paused and told so: what was read before that is
/// old afterwards. [`Instant`] stands still meanwhile, since it is `CLOCK_MONOTONIC` on Linux; the clock here is
/// `CLOCK_BOOTTIME` (clock_gettime(2)). Where there is no such clock it is [`Instant`] all the same.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    started: Instant,
    /// The machine's uptime at the start, where it is known with the time in suspension.
    uptime: Option<Duration>,
}

impl Clock {
    /// A clock that starts now.
    #[must_use]
    pub fn start() -> Self {
        Self { started: instant(), uptime: uptime() }
    }

    /// The time since the start; it never goes back.
    #[must_use]
    pub fn now(&self) -> Time {
        Time::ZERO.after(self.elapsed())
    }

    /// When the clock will say `time`, if the machine is not suspended until then.
    #[must_use]
    pub fn at(&self, time: Time) -> Instant {
        instant() + time.since(self.now())
    }

    /// The start by the machine's calendar as it is now.
    #[must_use]
    pub fn started_at(&self) -> WallTime {
        let since = i64::try_from(self.elapsed().as_millis()).unwrap_or(i64::MAX);
        WallTime::from_millis(self.wall().as_millis().saturating_sub(since))
    }

    /// The moment by the machine's calendar.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    pub fn wall(&self) -> WallTime {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        WallTime::from_millis(0).after(since_epoch)
    }

    fn elapsed(&self) -> Duration {
        match (self.uptime, uptime()) {
            (Some(before), Some(now)) => now.saturating_sub(before),
            (Some(_) | None, _) => self.started.elapsed(),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the one place")]
fn instant() -> Instant {
    Instant::now()
}

/// The time since the machine was started, that in suspension included.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn uptime() -> Option<Duration> {
    use nix::time::{ClockId, clock_gettime};

    clock_gettime(ClockId::CLOCK_BOOTTIME).ok().map(Duration::from)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn uptime() -> Option<Duration> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_in_suspension_counts() {
        let Some(uptime) = uptime() else { return };
        let Some(earlier) = uptime.checked_sub(Duration::from_secs(3600)) else { return };
        // An hour ago by the machine's uptime, and just now by the clock that stands still in suspension.
        let clock = Clock { started: instant(), uptime: Some(earlier) };
        assert!(clock.now() >= Time::ZERO.after(Duration::from_secs(3600)));
        let soon = clock.now().after(Duration::from_secs(5));
        assert!(clock.at(soon) <= instant() + Duration::from_secs(5), "it sleeps no longer than until then");
    }

    #[test]
    fn without_such_a_clock_the_other_one_counts() {
        let clock = Clock { started: instant() - Duration::from_secs(60), uptime: None };
        assert!(clock.now() >= Time::ZERO.after(Duration::from_secs(60)));
    }
}
