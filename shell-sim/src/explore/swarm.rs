//! Larger worlds, drawn.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use super::Found;
use crate::{plan::Plan, world::Recording};

/// When a search ends, unless it finds something.
pub enum Until<'a> {
    /// After so many seeds.
    Seeds(u64),
    /// When this says so; it is asked before every seed.
    Over(&'a (dyn Fn() -> bool + Sync)),
}

/// Plays the plans of the seeds from `first` on, until one breaks a promise or it is told to end. What it found is the
/// failure of the lowest seed.
///
/// # Panics
///
/// Where a thread panicked, which is a fault of the simulator.
#[must_use]
pub fn search(first: u64, threads: usize, until: &Until<'_>, tell: &(dyn Fn(u64) + Sync)) -> Found {
    let next = AtomicU64::new(first);
    let failed = AtomicU64::new(u64::MAX);
    let found: Mutex<BTreeMap<u64, Found>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                let mut own = Found::default();
                let mut last = first;
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let over = match until {
                        Until::Seeds(count) => seed - first >= *count,
                        Until::Over(over) => over(),
                    };
                    if over || seed > failed.load(Ordering::Relaxed) {
                        break;
                    }
                    last = seed;
                    let plan = Plan::of_seed(seed);
                    if !own.enter(&plan, &plan.run(Recording::Off)) {
                        failed.fetch_min(seed, Ordering::Relaxed);
                        break;
                    }
                    tell(1);
                }
                found.lock().expect("no thread panicked").insert(last, own);
            });
        }
    });
    let mut all = Found::default();
    let mut failures = vec![];
    for (seed, mut found) in found.into_inner().expect("no thread panicked") {
        failures.extend(found.failure.take().map(|failure| (seed, failure)));
        all.add(found);
    }
    all.failure = failures.into_iter().min_by_key(|(seed, _)| *seed).map(|(_, failure)| failure);
    all
}
