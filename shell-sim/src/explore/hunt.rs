//! Tests the tester: how many seeds it takes to find each planted bug.

use serde::Serialize;

use super::{Failure, shrink};
use crate::{bug::Bug, plan::Plan, world::Recording};

/// The most seeds of one search.
pub(crate) const SEEDS: u64 = 20_000;
/// How far the searches' seeds are apart.
const APART: u64 = 1_000_000;

/// How a planted bug was found.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Hunted {
    /// The bug.
    pub bug: Bug,
    /// The seeds that each search took; one more than it was let where it found nothing.
    pub seeds: Vec<u64>,
    /// The smallest of the searches' finds, each shrunk.
    pub shrunk: Option<Failure>,
}

impl Hunted {
    /// Whether every search found it.
    #[must_use]
    pub fn is_found(&self) -> bool {
        self.shrunk.is_some() && self.seeds.iter().all(|seeds| *seeds <= SEEDS)
    }

    /// The median of the seeds.
    #[must_use]
    pub fn median(&self) -> u64 {
        let mut sorted = self.seeds.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or(0)
    }
}

/// Searches for a planted bug as often as said, each time from other seeds.
#[must_use]
pub fn hunt(bug: Bug, searches: u64) -> Hunted {
    let mut hunted = Hunted { bug, seeds: vec![], shrunk: None };
    for search in 0..searches {
        let mut taken = SEEDS + 1;
        for number in 0..SEEDS {
            let plan = Plan { bug: Some(bug), ..Plan::of_seed(search * APART + number) };
            // What is broken without the bug as well says nothing about it.
            let broken = plan.run(Recording::Off).violation.filter(|_| is_kept_without_the_bug(&plan));
            if let Some(violation) = broken {
                taken = number + 1;
                let (plan, violation) = shrink(&plan, &violation);
                if hunted.shrunk.as_ref().is_none_or(|smallest| plan.events() < smallest.plan.events()) {
                    hunted.shrunk = Some(Failure { plan, violation });
                }
                break;
            }
        }
        hunted.seeds.push(taken);
    }
    hunted
}

/// Whether the plan keeps every promise with the bug taken out.
pub(super) fn is_kept_without_the_bug(plan: &Plan) -> bool {
    Plan { bug: None, ..plan.clone() }.run(Recording::Off).violation.is_none()
}
