//! The last eight hours, minute by minute: how many calls ended how, and how long they took. It is kept in the process, and a
//! start forgets it; Prometheus remembers longer.

use std::{collections::VecDeque, time::Duration};

use serde::Serialize;
use transcript_core::{Counters, WallTime};

/// The time between two entries.
pub const MINUTE: Duration = Duration::from_secs(60);
/// How many minutes are kept: eight hours.
const MINUTES: usize = 8 * 60;

/// The last hours.
#[derive(Debug, Clone, Default)]
pub struct Recent {
    minutes: VecDeque<Minute>,
    last: Totals,
}

/// What happened between two looks, about a minute apart.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Minute {
    /// When it was over, in milliseconds since the Unix epoch.
    pub at: WallTime,
    /// Calls announced with all of their segments.
    pub complete: u64,
    /// Calls announced although segments were missing.
    pub incomplete: u64,
    /// Calls given up.
    pub dead_lettered: u64,
    /// From the end of a call to its notification, on average, in seconds; `None` where no call was announced.
    pub seconds: Option<f64>,
}

/// The counters that it is made of.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    complete: u64,
    incomplete: u64,
    dead_lettered: u64,
    notified: u64,
    took: Duration,
}

impl Recent {
    /// Takes the counters as they are now.
    pub fn note(&mut self, now: WallTime, counters: &Counters) {
        let totals = Totals {
            complete: counters.complete,
            incomplete: counters.incomplete,
            dead_lettered: counters.dead_lettered,
            notified: counters.notification.count(),
            took: counters.notification.sum(),
        };
        let last = std::mem::replace(&mut self.last, totals);
        let notified = totals.notified.saturating_sub(last.notified);
        let took = totals.took.saturating_sub(last.took);
        let seconds = u32::try_from(notified).ok().filter(|notified| *notified > 0);
        self.minutes.push_back(Minute {
            at: now,
            complete: totals.complete.saturating_sub(last.complete),
            incomplete: totals.incomplete.saturating_sub(last.incomplete),
            dead_lettered: totals.dead_lettered.saturating_sub(last.dead_lettered),
            seconds: seconds.map(|notified| (took / notified).as_secs_f64()),
        });
        if self.minutes.len() > MINUTES {
            self.minutes.pop_front();
        }
    }

    /// The minutes, oldest first.
    pub fn minutes(&self) -> impl Iterator<Item = &Minute> {
        self.minutes.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_hours_of_differences_are_kept() {
        let mut recent = Recent::default();
        for minute in 1..=600 {
            let mut counters = Counters::default();
            (counters.complete, counters.incomplete) = (3 * minute, minute);
            recent.note(WallTime::from_millis(i64::try_from(minute).unwrap()), &counters);
        }
        let minutes: Vec<&Minute> = recent.minutes().collect();
        assert_eq!(minutes.len(), MINUTES);
        assert!(minutes.iter().all(|minute| (minute.complete, minute.incomplete) == (3, 1)));
        assert_eq!(minutes.last().map(|minute| minute.at), Some(WallTime::from_millis(600)));
    }
}
