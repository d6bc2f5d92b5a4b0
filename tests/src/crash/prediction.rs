//! What the simulator predicts for a crash.

use std::process::Stdio;

use serde::Deserialize;
use tokio::process::Command;

use super::{Crash, CrashError, table};
use crate::cargo::{self, Version};

/// The table that `transcript-sim --json table` prints.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Predictions {
    rows: Vec<Prediction>,
}

/// A line of it. Times are written as this table writes them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Prediction {
    stop: String,
    window: String,
    outage: String,
    #[serde(flatten)]
    counts: table::Counts,
}

impl Predictions {
    /// Asks the simulator; `None` where this workspace has none.
    ///
    /// # Errors
    ///
    /// It cannot be built or run, or does not print a table.
    pub async fn of_simulator() -> Result<Option<Self>, CrashError> {
        let Some(simulator) = cargo::simulator().await? else { return Ok(None) };
        let output = Command::new(simulator).args(["--json", "table"]).stdin(Stdio::null()).output().await?;
        if !output.status.success() {
            return Err(format!("transcript-sim: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        Ok(Some(Self::read(&output.stdout)?))
    }

    /// Reads what it printed.
    ///
    /// # Errors
    ///
    /// It is no such table.
    pub fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }

    /// What is predicted for this crash. The simulator knows the product only.
    #[must_use]
    pub fn of(&self, crash: &Crash) -> Option<table::Counts> {
        let this = |row: &&Prediction| {
            row.stop == crash.stop.name()
                && row.window == table::short(crash.times.window)
                && row.outage == table::short(crash.outage)
        };
        self.rows.iter().find(this).filter(|_| crash.version == Version::Product).map(|row| row.counts)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::crash::{StopPoint, Times};

    #[test]
    fn a_crash_is_found_in_what_the_simulator_prints() {
        let json = br#"{"command": "table", "rows": [
            {"stop": "wait", "window": "24 h", "outage": "0 s", "summaries": 1, "notifications": 1, "recoverySeconds": 7.1},
            {"stop": "after-notify", "window": "2 min", "outage": "130 s", "summaries": 1, "notifications": 2, "broken": null}
        ]}"#;
        let predictions = Predictions::read(json).unwrap();
        let crash = |version, stop, window, outage| Crash {
            version,
            stop,
            times: Times::production().window(Duration::from_secs(window)),
            outage: Duration::from_secs(outage),
        };
        let of = |crash| predictions.of(&crash).map(|counts| (counts.summaries, counts.notifications));
        assert_eq!(of(crash(Version::Product, StopPoint::Wait, 86_400, 0)), Some((1, 1)));
        assert_eq!(of(crash(Version::Product, StopPoint::AfterNotify, 120, 130)), Some((1, 2)));
        assert_eq!(of(crash(Version::Product, StopPoint::AfterNotify, 86_400, 130)), None);
        assert_eq!(of(crash(Version::First, StopPoint::Wait, 86_400, 0)), None);
    }
}
