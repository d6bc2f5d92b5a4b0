//! One giant call among many small ones: how much later the small ones are announced for it.
//!
//! Rounds with and without it alternate on one processor, so that whatever else the machine does meets both.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::{Call, LOOK, LoadEnvironment, LoadTestError, MARGIN, Runner, SessionTimes, ready, redelivered, start};
use crate::process_guard::GuardedProcess;

/// Segments of a small call.
const SMALL: usize = 12;

/// Rounds over small calls, every other one with a giant one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GiantRace {
    /// What it is called in the table.
    pub name: String,
    /// Small calls that end at once.
    pub sessions: usize,
    /// Segments of the giant one, which ends first.
    pub segments: usize,
    /// The quiet period.
    pub quiet: Duration,
    /// Rounds of each kind.
    pub rounds: usize,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GiantOutcome {
    /// The load test's name.
    pub name: String,
    /// Small calls.
    pub sessions: usize,
    /// Segments of the giant one.
    pub segments: usize,
    /// The quiet period, in seconds.
    pub quiet_seconds: f64,
    /// The small calls' median time from end to notification in each round without the giant one, in seconds.
    pub without: Vec<f64>,
    /// The same in each round with it.
    pub with: Vec<f64>,
    /// The giant call's own time in each round.
    pub giant: Vec<f64>,
    /// Deliveries beyond one a message.
    pub redelivered: i64,
}

impl GiantOutcome {
    /// The median with the giant call by the median without: 1.0 where nobody notices it.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        median(&self.with) / median(&self.without)
    }

    /// What the product may not do, however fast it is.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let wrong = self.redelivered != 0;
        wrong.then(|| format!("{}: {} redeliveries", self.name, self.redelivered)).into_iter().collect()
    }
}

impl GiantRace {
    /// Runs it, and tells how far it is.
    ///
    /// # Errors
    ///
    /// A server does not start, or the processor ends or does not come to an end.
    pub async fn run(&self, tell: &dyn Fn(&str)) -> Result<GiantOutcome, LoadTestError> {
        let tell = |what: &str| tell(&format!("{}: {what}", self.name));
        tell("the servers start");
        let environment = LoadEnvironment::start().await?;
        let worker = start(&Runner::Product, &environment, self.quiet, &[]).await?;
        ready(&worker).await?;
        let mut ended = 0;
        // The first one warms up.
        for round in 0..=self.rounds {
            let mut kinds = [RoundKind::Without, RoundKind::With];
            if !round.is_multiple_of(2) {
                kinds.reverse();
            }
            for kind in kinds {
                let calls = self.calls(kind, round);
                tell(&format!("round {round} of {}, {kind:?} the giant call", self.rounds));
                environment.store(&calls).await?;
                environment.end(&calls).await?;
                ended += calls.len();
                all_announced(&environment, &worker, ended).await?;
                environment.acknowledged().await?;
            }
        }
        let delivered = environment.consumers().await?.iter().map(|info| info.delivered.consumer_sequence).sum();
        let told = environment.told().await?;
        let rounds = 1..=self.rounds;
        Ok(GiantOutcome {
            name: self.name.clone(),
            sessions: self.sessions,
            segments: self.segments,
            quiet_seconds: self.quiet.as_secs_f64(),
            without: rounds.clone().map(|round| of_small(&told, RoundKind::Without, round)).collect(),
            with: rounds.clone().map(|round| of_small(&told, RoundKind::With, round)).collect(),
            giant: rounds.filter_map(|round| Some(told.get(&giant(round))?.latency()?.as_secs_f64())).collect(),
            redelivered: redelivered(delivered, ended),
        })
    }

    fn calls(&self, kind: RoundKind, round: usize) -> Vec<Call> {
        let giant = Call { session: giant(round), segments: self.segments };
        let small = (0..self.sessions).map(|n| Call { session: format!("{}{n}", small(kind, round)), segments: SMALL });
        (kind == RoundKind::With).then_some(giant).into_iter().chain(small).collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RoundKind {
    Without,
    With,
}

fn giant(round: usize) -> String {
    format!("giant-{round}")
}

/// What the ids of a round's small calls begin with.
fn small(kind: RoundKind, round: usize) -> String {
    format!("{kind:?}-{round}-")
}

fn of_small(told: &BTreeMap<String, SessionTimes>, kind: RoundKind, round: usize) -> f64 {
    let begin = small(kind, round);
    let of_round = told.range(begin.clone()..).take_while(|(session, _)| session.starts_with(&begin));
    let latencies: Vec<f64> = of_round.filter_map(|(_, told)| told.latency()).map(|time| time.as_secs_f64()).collect();
    median(&latencies)
}

/// The median; nothing has one of zero.
#[must_use]
pub fn median(all: &[f64]) -> f64 {
    let mut all = all.to_vec();
    all.sort_unstable_by(f64::total_cmp);
    let (Some(lower), Some(upper)) = (all.get(all.len().saturating_sub(1) / 2), all.get(all.len() / 2)) else {
        return 0.0;
    };
    f64::midpoint(*lower, *upper)
}

async fn all_announced(
    environment: &LoadEnvironment,
    worker: &GuardedProcess,
    wanted: usize,
) -> Result<(), LoadTestError> {
    let announced = async {
        while environment.announced().await? < wanted as u64 {
            if worker.exit().is_some() {
                return Err(LoadTestError::from(format!("the processor ended; its log:\n{}", worker.log_tail())));
            }
            sleep(LOOK).await;
        }
        Ok(())
    };
    let in_time = tokio::time::timeout(MARGIN, announced).await;
    in_time.map_err(|_| format!("not all calls were announced within {MARGIN:?}"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_of_medians() {
        let outcome = GiantOutcome {
            name: "giant".into(),
            sessions: 3,
            segments: 100,
            quiet_seconds: 0.0,
            without: vec![1.0, 9.0, 2.0],
            with: vec![2.0, 4.0],
            giant: vec![],
            redelivered: 0,
        };
        assert!((outcome.ratio() - 1.5).abs() < 1e-9, "{}", outcome.ratio());
        assert!(median(&[]).abs() < 1e-9);
    }

    #[test]
    fn a_round_is_told_from_the_others() {
        let at =
            |seconds: i128| SessionTimes { ended: Some(0), announced: Some(seconds * 1_000_000_000), notifications: 1 };
        let told = BTreeMap::from([
            ("With-1-0".to_owned(), at(3)),
            ("With-10-0".to_owned(), at(50)),
            ("Without-1-0".to_owned(), at(70)),
        ]);
        assert!((of_small(&told, RoundKind::With, 1) - 3.0).abs() < 1e-9);
    }
}
