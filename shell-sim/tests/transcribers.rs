//! The transcriber keeps its promises in simulated worlds, and the simulator finds what is planted.

use transcript_sim::transcribers::{Bug, Plan, exhaustive, hunt, search};

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[test]
fn every_fault_at_every_point_of_a_small_world_breaks_no_promise() {
    let found = exhaustive(threads());
    assert!(found.failure.is_none(), "{:#?}", found.failure);
    assert!(found.worlds > 1_000 && found.faults > 1_000, "{found:?}");
}

#[test]
fn drawn_worlds_break_no_promise() {
    let found = search(0, 1_000, threads());
    assert!(found.failure.is_none(), "{:#?}", found.failure);
    assert!(found.acknowledged > 1_000 && found.ends > 500, "{found:?}");
}

#[test]
fn planted_bugs_are_found_and_shrunk() {
    for bug in Bug::ALL {
        let (seeds, failure) = hunt(bug, 0).unwrap_or_else(|| panic!("{bug} was not found"));
        assert!(failure.plan.size() <= 20, "{bug} after {seeds} seeds: {}", failure.plan);
        assert_eq!(failure.plan.run(false).violation, Some(failure.violation), "{bug}");
    }
}

#[test]
fn the_same_plan_gives_the_same_world() {
    for seed in 0..20 {
        let plan = Plan::of_seed(seed);
        assert_eq!(plan.run(true), plan.run(true), "seed {seed}");
    }
}
