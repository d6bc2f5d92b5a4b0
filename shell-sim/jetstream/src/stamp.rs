//! The broker's own clock reading.

use std::time::Duration;

/// Microseconds since the Unix epoch on the broker's clock. Signed, because a delayed nak dates a delivery back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stamp(i64);

impl Stamp {
    /// The stamp of a moment of the virtual clock, whose zero is `epoch_millis` milliseconds after the Unix epoch.
    pub(super) fn new(epoch_millis: i64, now: Duration) -> Self {
        Self(epoch_millis.saturating_mul(1_000)).after(now)
    }

    /// The virtual clock at this stamp; zero where the stamp is earlier.
    pub(super) fn time(self, epoch_millis: i64) -> Duration {
        self.since(Self(epoch_millis.saturating_mul(1_000)))
    }

    pub(super) fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(micros(span)))
    }

    pub(super) fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(micros(span)))
    }

    /// The time from `earlier` to this stamp; zero where `earlier` is later.
    pub(super) fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// This stamp moved by as much as `to` is from `from`, either way.
    pub(super) fn shifted(self, from: Self, to: Self) -> Self {
        Self(self.0.saturating_add(to.0.saturating_sub(from.0)))
    }

    /// The start of the second that holds this stamp: the resolution of a consumer's file.
    pub(super) fn whole_seconds(self) -> Self {
        Self(self.0 - self.0.rem_euclid(1_000_000))
    }

    /// The stamp of a moment in nanoseconds since the Unix epoch, or just after it.
    pub(super) fn from_nanos(nanos: i64) -> Self {
        Self(nanos.div_euclid(1_000) + i64::from(nanos.rem_euclid(1_000) > 0))
    }

    pub(super) fn nanos(self) -> i64 {
        self.0.saturating_mul(1_000)
    }
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}
