//! Looking for broken promises: exhaustively in small worlds, by drawing in larger ones.
//!
//! Worlds are independent of each other, so that they run on as many threads as there are; which thread ran which world
//! changes nothing.

mod exhaustive;
mod hunt;
mod shrink;
mod swarm;

use serde::Serialize;

pub use self::{
    exhaustive::{Family, families},
    hunt::{Hunted, hunt},
    shrink::shrink,
    swarm::{Until, search},
};
use crate::{plan::Plan, world::Violation};

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
    /// Ends whose attempts were all burnt by faults.
    pub exhausted: u64,
    /// Those of them that nobody heard of, so that only an audit finds them.
    pub missing: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// The first failure in the order of the worlds.
    pub failure: Option<Failure>,
}

impl Found {
    /// Enters a world that was run; says whether its promises were kept.
    pub fn enter(&mut self, plan: &Plan, outcome: &crate::world::Outcome) -> bool {
        self.worlds += 1;
        self.virtual_us += outcome.stats.virtual_us;
        self.exhausted += outcome.stats.exhausted;
        self.missing += outcome.stats.missing;
        self.dead_letters += outcome.stats.dead_letters;
        if let Some(violation) = &outcome.violation {
            self.failure.get_or_insert_with(|| Failure { plan: plan.clone(), violation: violation.clone() });
        }
        outcome.violation.is_none()
    }

    /// Adds what was found in later worlds.
    pub fn add(&mut self, later: Self) {
        self.worlds += later.worlds;
        self.virtual_us += later.virtual_us;
        self.exhausted += later.exhausted;
        self.missing += later.missing;
        self.dead_letters += later.dead_letters;
        if self.failure.is_none() {
            self.failure = later.failure;
        }
    }
}
