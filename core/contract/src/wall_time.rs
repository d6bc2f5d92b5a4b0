//! The wall clock's time, which is data only.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A moment of the world's calendar, in milliseconds since the Unix epoch. It is data: no deadline is ever computed from two
/// readings of a wall clock of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WallTime(i64);

impl WallTime {
    /// `millis` milliseconds after the Unix epoch.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// This moment and `span` more.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(span.as_millis()).unwrap_or(i64::MAX)))
    }

    /// The time from `earlier` to this moment; zero where `earlier` is later, as it is when two machines' clocks differ.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}
