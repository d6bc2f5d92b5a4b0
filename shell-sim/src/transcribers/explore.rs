//! Looking for broken promises: drawn worlds, and every fault at every point of a small one.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use serde::Serialize;

use super::{
    bug::Bug,
    plan::{Fault, Moment, Plan, Trouble, When},
    watch::Violation,
    world::Outcome,
};

/// The most seeds that a hunt for a planted bug takes.
const HUNT_SEEDS: u64 = 5_000;

/// A plan that breaks a promise.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// The plan.
    pub plan: Plan,
    /// The promise, and how it is broken.
    pub violation: Violation,
}

/// What was run, and what was found.
#[derive(Debug, Default, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Found {
    /// Worlds run.
    pub worlds: u64,
    /// Their time together, in microseconds of theirs.
    pub virtual_us: u64,
    /// Segments acknowledged.
    pub acknowledged: u64,
    /// Ends in the stream.
    pub ends: u64,
    /// Faults that struck.
    pub faults: u64,
    /// The first failure in the order of the worlds.
    pub failure: Option<Failure>,
}

impl Found {
    /// Enters a world that was run; says whether its promises were kept.
    fn enter(&mut self, plan: &Plan, outcome: Outcome) -> bool {
        self.worlds += 1;
        self.virtual_us += outcome.stats.virtual_us;
        self.acknowledged += outcome.stats.acknowledged;
        self.ends += outcome.stats.ends;
        self.faults += outcome.stats.faults;
        let is_kept = outcome.violation.is_none();
        if let (Some(violation), None) = (outcome.violation, &self.failure) {
            self.failure = Some(Failure { plan: plan.clone(), violation });
        }
        is_kept
    }

    fn add(&mut self, other: Self) {
        self.worlds += other.worlds;
        self.virtual_us += other.virtual_us;
        self.acknowledged += other.acknowledged;
        self.ends += other.ends;
        self.faults += other.faults;
        self.failure = self.failure.take().or(other.failure);
    }
}

/// Plays the plans of `count` seeds from `first` on, until one breaks a promise. What it found is the failure of the lowest seed.
///
/// # Panics
///
/// Where a thread panicked, which is a fault of the simulator or of the transcriber.
#[must_use]
pub fn search(first: u64, count: u64, threads: usize) -> Found {
    play(count, threads, |number| Plan::of_seed(first.saturating_add(number)))
}

/// Plays the [small world](Plan::small) with every fault at every point of every effect.
///
/// # Panics
///
/// As [`search`].
#[must_use]
pub fn exhaustive(threads: usize) -> Found {
    let small = Plan::small();
    let effects = small.run(false).stats.effects;
    let mut faults = vec![];
    for ((instance, kind), count) in effects {
        for nth in 1..=count {
            for moment in [Moment::Asked, Moment::Before, Moment::After, Moment::Reported] {
                let when = When::Effect { instance, kind, nth, moment };
                let kills = [10, 1_000, 40_000].map(|outage_ms| Trouble::Kill { instance, outage_ms });
                let freezes = [5_000, 30_000].map(|span_ms| Trouble::Freeze { instance, span_ms });
                let others = [Trouble::Restart { instance, outage_ms: 1_000 }, Trouble::StoreAway { span_ms: 3_000 }];
                let all = kills.into_iter().chain(freezes).chain(others);
                faults.extend(all.map(|what| Fault { when, what }));
            }
            let when = When::Effect { instance, kind, nth, moment: Moment::Asked };
            let lost = [
                Trouble::LoseRequest,
                Trouble::LoseAnswer,
                Trouble::Delay { late_ms: 3_000 },
                Trouble::Delay { late_ms: 20_000 },
            ];
            faults.extend(lost.map(|what| Fault { when, what }));
        }
    }
    let plan_of = |number: u64| {
        let fault = usize::try_from(number).ok().and_then(|place| faults.get(place));
        Plan { faults: fault.into_iter().copied().collect(), ..small.clone() }
    };
    play(faults.len() as u64, threads, plan_of)
}

/// Searches for a planted bug from a first seed on; gives how many seeds it took, and the find, shrunk.
#[must_use]
pub fn hunt(bug: Bug, first: u64) -> Option<(u64, Failure)> {
    (0..HUNT_SEEDS).find_map(|number| {
        let plan = Plan { bug: Some(bug), ..Plan::of_seed(first + number) };
        let violation = plan.run(false).violation?;
        is_kept_without_the_bug(&plan).then(|| (number + 1, shrink(&plan, &violation)))
    })
}

/// The smallest plan that it can find which breaks the same promise: without faults, clients and acts that it does not need.
#[must_use]
pub fn shrink(plan: &Plan, violation: &Violation) -> Failure {
    let mut best = Failure { plan: plan.clone(), violation: violation.clone() };
    loop {
        let size = best.plan.size();
        for candidate in smaller(&best.plan) {
            let broken = candidate.run(false).violation.filter(|found| found.property == best.violation.property);
            if let Some(violation) = broken
                && (candidate.bug.is_none() || is_kept_without_the_bug(&candidate))
            {
                best = Failure { plan: candidate, violation };
                break;
            }
        }
        if best.plan.size() == size {
            return best;
        }
    }
}

/// The plan without one of its parts.
fn smaller(plan: &Plan) -> Vec<Plan> {
    let mut all = vec![];
    let mut without = |change: &dyn Fn(&mut Plan)| {
        let mut smaller = plan.clone();
        change(&mut smaller);
        all.push(smaller);
    };
    for place in 0..plan.faults.len() {
        without(&|plan| {
            plan.faults.remove(place);
        });
    }
    for place in 0..plan.clients.len() {
        without(&|plan| {
            plan.clients.remove(place);
        });
    }
    for (client, planned) in plan.clients.iter().enumerate() {
        // The last act is how the client goes.
        for place in 0..planned.acts.len().saturating_sub(1) {
            without(&|plan| {
                if let Some(client) = plan.clients.get_mut(client) {
                    client.acts.remove(place);
                }
            });
        }
    }
    all
}

fn is_kept_without_the_bug(plan: &Plan) -> bool {
    Plan { bug: None, ..plan.clone() }.run(false).violation.is_none()
}

/// Plays plans on many threads. Which thread ran which world changes nothing.
fn play(count: u64, threads: usize, plan_of: impl Fn(u64) -> Plan + Sync) -> Found {
    let (next, failed) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
    let found: Mutex<BTreeMap<u64, Found>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                let mut own = Found::default();
                let mut last = u64::MAX;
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count || number > failed.load(Ordering::Relaxed) {
                        break;
                    }
                    let plan = plan_of(number);
                    if !own.enter(&plan, plan.run(false)) {
                        failed.fetch_min(number, Ordering::Relaxed);
                        last = number;
                        break;
                    }
                }
                let mut found = found.lock().expect("no thread panicked");
                match found.entry(last) {
                    std::collections::btree_map::Entry::Vacant(place) => drop(place.insert(own)),
                    std::collections::btree_map::Entry::Occupied(mut place) => place.get_mut().add(own),
                }
            });
        }
    });
    let mut all = Found::default();
    found.into_inner().expect("no thread panicked").into_values().for_each(|found| all.add(found));
    all
}
