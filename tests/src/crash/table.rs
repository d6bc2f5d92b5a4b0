//! The crash table: every stop point, several times, with the product's settings, and what was promised and predicted.

use std::{fmt::Write, time::Duration};

use futures::{StreamExt, stream};
use serde::{Deserialize, Serialize};

use super::{Crash, CrashError, Observed, StopPoint, Times};
use crate::cargo::Version;

/// An outage longer than [`SHORT_WINDOW`].
const LONG_OUTAGE: Duration = Duration::from_secs(130);
/// JetStream's own default for the duplicate window.
const SHORT_WINDOW: Duration = Duration::from_secs(120);
/// What a recovery may take beyond the times that it must take.
const ALLOWANCE: Duration = Duration::from_millis(500);

/// A row: a crash, tried several times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// What is tried.
    pub crash: Crash,
    /// How often.
    pub runs: usize,
    /// What must come of it, every time.
    pub promised: Counts,
}

/// How often a call was stored and announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Summaries in the store.
    pub summaries: u64,
    /// Notifications in the stream.
    pub notifications: u64,
}

/// All rows, each tried `runs` times, those with a long outage at most three times.
#[must_use]
pub fn rows(runs: usize) -> Vec<Row> {
    let times = Times::production();
    let row = |version, stop, times, outage, runs, promised: (u64, u64)| Row {
        crash: Crash { version, stop, times, outage },
        runs,
        promised: Counts { summaries: promised.0, notifications: promised.1 },
    };
    let product = StopPoint::ALL.map(|stop| row(Version::Product, stop, times, Duration::ZERO, runs, (1, 1)));
    let long = [(times.window(SHORT_WINDOW), (1, 2)), (times, (1, 1))].map(|(times, promised)| {
        row(Version::Product, StopPoint::AfterNotify, times, LONG_OUTAGE, runs.min(3), promised)
    });
    // What the project exists to mend.
    let first = [(StopPoint::AfterStore, (2, 1)), (StopPoint::AfterNotify, (2, 2))]
        .map(|(stop, promised)| row(Version::First, stop, times, Duration::ZERO, runs, promised));
    [&product[..], &long, &first].concat()
}

/// Runs the rows, `jobs` runs at the same time and beside them all those that are mostly an outage. Tells of every run.
pub async fn measure(
    rows: &[Row],
    jobs: usize,
    mut tell: impl FnMut(&Row, &Result<Observed, CrashError>),
) -> Vec<Measured> {
    let runs = |wanted: fn(&Row) -> bool| {
        let places = rows.iter().enumerate().filter(move |(_, row)| wanted(row));
        let runs = places.flat_map(|(place, row)| std::iter::repeat_n((place, row.crash), row.runs));
        runs.map(|(place, crash)| async move { (place, crash.run().await) }).collect::<Vec<_>>()
    };
    let long = runs(|row| !row.crash.outage.is_zero());
    let short = runs(|row| row.crash.outage.is_zero());
    let all_long = long.len().max(1);
    let mut ended = stream::select(
        stream::iter(long).buffer_unordered(all_long),
        stream::iter(short).buffer_unordered(jobs.max(1)),
    );
    let mut measured: Vec<_> = rows.iter().map(|row| Measured { row: *row, runs: vec![], failures: vec![] }).collect();
    while let Some((place, outcome)) = ended.next().await {
        tell(&rows[place], &outcome);
        match outcome {
            Ok(observed) => measured[place].runs.push(observed),
            Err(error) => measured[place].failures.push(error.to_string()),
        }
    }
    measured
}

/// A row and what came of its runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured {
    /// The row.
    pub row: Row,
    /// The runs that came to an end.
    pub runs: Vec<Observed>,
    /// What the others failed with.
    pub failures: Vec<String>,
}

impl Measured {
    /// What is not as it was promised, or as the simulator predicts.
    #[must_use]
    pub fn problems(&self, predicted: Option<Counts>) -> Vec<String> {
        let name = self.row.crash.to_string();
        let mut problems: Vec<String> = self.failures.clone();
        for (whose, counts) in [("promised", Some(self.row.promised)), ("predicted", predicted)] {
            let Some(counts) = counts else { continue };
            let other = self.runs.iter().filter(|run| run.counts() != counts).count();
            if other > 0 {
                let expected = format!("{} summaries and {} notifications", counts.summaries, counts.notifications);
                problems.push(format!("{name}: not the {whose} {expected} in {other} of {} runs", self.runs.len()));
            }
        }
        if let Some(beyond) = self.median_beyond_what_must_be().filter(|beyond| *beyond > ALLOWANCE) {
            problems.push(format!("{name}: recovery took {beyond:?} more than it must"));
        }
        problems
    }

    /// By how much the median recovery of [`StopPoint::Wait`] was longer than what is left of the ack wait at the restart
    /// and one quiet period: the count after the redelivery is followed by that, the one before it is over by then.
    #[must_use]
    pub fn median_beyond_what_must_be(&self) -> Option<Duration> {
        let Times { ack_wait, quiet_period, .. } = self.row.crash.times;
        let beyond = self.runs.iter().filter_map(|run| {
            let must = ack_wait.saturating_sub(run.silent_for?) + quiet_period;
            Some(run.notified_after?.saturating_sub(must))
        });
        (self.row.crash.stop == StopPoint::Wait).then(|| median(beyond.collect())).flatten()
    }
}

impl Observed {
    /// How often the call was stored and announced.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts { summaries: self.summaries, notifications: self.notifications }
    }
}

/// The whole table, with what it was measured on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// The day, as `2026-01-31`.
    pub date: String,
    /// The version of nats-server.
    pub nats_server: String,
    /// The version of mongod.
    pub mongod: String,
    /// What the simulator predicts for each row, and what came of it.
    pub rows: Vec<(Option<Counts>, Measured)>,
}

impl Table {
    /// Everything that is not as it should be; nothing where all is well.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        self.rows.iter().flat_map(|(predicted, measured)| measured.problems(*predicted)).collect()
    }

    /// The table as Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let Times { quiet_period, ack_wait, .. } = Times::production();
        let mut page = format!(
            "Measured on {} with nats-server {} and mongod {}; quiet period {}, ack wait {}.\n\n\
             | stopped at | down | window | runs | summaries | notifications | predicted | redeliveries | \
             restart to notification | restart to ack |\n|---|---|---|---|---|---|---|---|---|---|\n",
            self.date,
            self.nats_server,
            self.mongod,
            short(quiet_period),
            short(ack_wait),
        );
        for (predicted, measured) in &self.rows {
            line(&mut page, measured, *predicted).expect("a string takes everything");
        }
        page.push_str(
            "\nTimes are minimum / median / maximum. *Predicted* is what the simulator expects as summaries / \
             notifications. A time is missing where that was done before the crash.\n",
        );
        for beyond in self.rows.iter().filter_map(|(_, measured)| measured.median_beyond_what_must_be()) {
            let text = "The median recovery after `wait` took this much longer than the rest of the ack wait and one quiet period:";
            writeln!(page, "{text} {} ms.", beyond.as_millis()).expect("a string takes everything");
        }
        page
    }

    /// The table as JSON, with every single run; times are in milliseconds.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|(predicted, measured)| {
                let Crash { version, stop, times, outage } = measured.row.crash;
                let runs: Vec<_> = measured
                    .runs
                    .iter()
                    .map(|run| {
                        serde_json::json!({
                            "summaries": run.summaries,
                            "notifications": run.notifications,
                            "redeliveries": run.redeliveries,
                            "notifiedAfterMs": run.notified_after.map(millis),
                            "acknowledgedAfterMs": run.acknowledged_after.map(millis),
                            "silentForMs": run.silent_for.map(millis),
                        })
                    })
                    .collect();
                serde_json::json!({
                    "version": version,
                    "row": stop,
                    "outageMs": millis(outage),
                    "windowMs": millis(times.window),
                    "promised": measured.row.promised,
                    "predicted": predicted,
                    "runs": runs,
                    "failures": measured.failures,
                })
            })
            .collect();
        serde_json::json!({
            "date": self.date, "natsServer": self.nats_server, "mongod": self.mongod, "rows": rows,
        })
    }
}

fn line(page: &mut String, measured: &Measured, predicted: Option<Counts>) -> std::fmt::Result {
    let Crash { version, stop, times, outage } = measured.row.crash;
    let version = if version == Version::First { "first version, " } else { "" };
    let of_runs = |value: fn(&Observed) -> u64| spread(measured.runs.iter().map(value));
    let times_of = |value: fn(&Observed) -> Option<Duration>| {
        let mut all: Vec<_> = measured.runs.iter().filter_map(value).collect();
        all.sort_unstable();
        match (all.first(), median(all.clone()), all.last()) {
            (Some(min), Some(median), Some(max)) => {
                format!("{} / {} / {} s", seconds(*min), seconds(median), seconds(*max))
            }
            _ => "-".to_owned(),
        }
    };
    writeln!(
        page,
        "| {version}`{stop}` | {} | {} | {}{} | {} | {} | {} | {} | {} | {} |",
        short(outage),
        short(times.window),
        measured.runs.len(),
        if measured.failures.is_empty() { String::new() } else { format!(" + {} failed", measured.failures.len()) },
        of_runs(|run| run.summaries),
        of_runs(|run| run.notifications),
        predicted.map_or_else(|| "-".to_owned(), |counts| format!("{} / {}", counts.summaries, counts.notifications)),
        of_runs(|run| run.redeliveries),
        times_of(|run| run.notified_after),
        times_of(|run| run.acknowledged_after),
    )
}

/// The one value that all have, or the least and the greatest.
fn spread(values: impl Iterator<Item = u64> + Clone) -> String {
    match (values.clone().min(), values.max()) {
        (Some(min), Some(max)) if min == max => min.to_string(),
        (Some(min), Some(max)) => format!("{min} to {max}"),
        _ => "-".to_owned(),
    }
}

fn median(mut all: Vec<Duration>) -> Option<Duration> {
    all.sort_unstable();
    let upper = *all.get(all.len() / 2)?;
    let lower = *all.get((all.len() - 1) / 2)?;
    Some((lower + upper) / 2)
}

fn seconds(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64())
}

pub(super) fn short(time: Duration) -> String {
    match time.as_secs() {
        hours if hours % 3600 == 0 && hours > 0 => format!("{} h", hours / 3600),
        minutes if minutes % 60 == 0 && minutes > 0 => format!("{} min", minutes / 60),
        _ => format!("{} s", time.as_secs_f64()),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(summaries: u64, notified_after: u64) -> Observed {
        Observed {
            summaries,
            notifications: 1,
            redeliveries: 1,
            notified_after: Some(Duration::from_millis(notified_after)),
            acknowledged_after: None,
            silent_for: Some(Duration::from_secs(1)),
        }
    }

    fn wait_row(runs: Vec<Observed>) -> Measured {
        let row = rows(10).into_iter().find(|row| row.crash.stop == StopPoint::Wait).unwrap();
        Measured { row, runs, failures: vec![] }
    }

    #[test]
    fn what_was_not_promised_or_predicted_is_a_problem() {
        let promised = Some(Counts { summaries: 1, notifications: 1 });
        assert_eq!(wait_row(vec![run(1, 7_100), run(1, 7_300)]).problems(promised), Vec::<String>::new());
        assert_eq!(wait_row(vec![run(1, 7_100), run(2, 7_100)]).problems(promised).len(), 2, "promised and predicted");
        assert_eq!(wait_row(vec![run(1, 7_100)]).problems(Some(Counts { summaries: 1, notifications: 2 })).len(), 1);
        // 6 s of ack wait less 1 s without a sign of life, and 2 s of quiet, make 7 s.
        assert_eq!(wait_row(vec![run(1, 7_600), run(1, 7_550), run(1, 7_100)]).problems(promised).len(), 1, "too slow");
        assert_eq!(wait_row(vec![run(1, 7_600), run(1, 7_100), run(1, 7_100)]).problems(promised).len(), 0);
    }

    #[test]
    fn the_page_has_a_line_a_row() {
        let rows = vec![(None, wait_row(vec![run(1, 7_100), run(2, 7_300)]))];
        let table = Table { date: "2026-01-31".into(), nats_server: "2".into(), mongod: "8".into(), rows };
        let page = table.markdown();
        let line = "| `wait` | 0 s | 24 h | 2 | 1 to 2 | 1 | - | 1 | 7.1 / 7.2 / 7.3 s | - |";
        assert!(page.lines().any(|other| other == line), "{page}");
        assert_eq!(table.json()["rows"][0]["runs"][1]["notifiedAfterMs"], 7_300);
    }
}
