//! The simulator itself: the same worlds everywhere, past failures, the canary.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use transcript_core::EffectKind;
use transcript_sim::{
    Plan, Recording,
    explore::{self, Until},
    plan::{Action, Call, EffectPattern, Fault, Moment, Options, Trigger},
};

/// The digests of some seeds' traces. They change whenever the product, the models or the drawing of plans do, and never
/// with the build or the machine.
const DIGESTS: [(u64, &str); 4] =
    [(1, "98f8fa0f9437aca8"), (7, "777207c60e5ed8af"), (42, "6754bcce26318296"), (1_000, "3ec21e6780e041b7")];

fn trace(plan: &Plan) -> (String, String) {
    let outcome = plan.run(Recording::On);
    (outcome.digest().expect("it was recorded"), outcome.trace.expect("it was recorded"))
}

fn one_call(faults: Vec<Fault>) -> Plan {
    let calls = vec![Call::short("c", "s", 1_000)];
    Plan {
        seed: 0,
        processors: 1,
        options: Options::quick(),
        calls,
        faults,
        chores: vec![],
        heals_at_ms: None,
        bug: None,
    }
}

#[test]
fn a_seed_gives_the_same_bytes_in_every_build() {
    let now: Vec<(u64, String)> = DIGESTS.iter().map(|(seed, _)| (*seed, trace(&Plan::of_seed(*seed)).0)).collect();
    let pinned: Vec<(u64, String)> = DIGESTS.iter().map(|(seed, digest)| (*seed, (*digest).to_owned())).collect();
    assert_eq!(now, pinned);
}

#[test]
fn a_seed_gives_the_same_bytes_twice() {
    for seed in 0..50 {
        let plan = Plan::of_seed(seed);
        assert_eq!(plan, Plan::of_seed(seed));
        assert_eq!(trace(&plan), trace(&plan), "seed {seed}");
    }
}

#[test]
fn two_processes_print_the_same_bytes() {
    let print = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_transcript-sim"))
            .args(["run", "--seed", "42"])
            .args(arguments)
            .output()
            .expect("the program runs");
        let timings = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && timings.contains(" worlds a second"), "{timings}");
        String::from_utf8(output.stdout).expect("it prints text")
    };
    assert_eq!(print(&[]), print(&[]));
    let said = print(&["--json"]);
    assert_eq!(said, print(&["--json"]));
    let said: serde_json::Value = serde_json::from_str(&said).expect("one JSON object");
    assert_eq!(said["digest"], trace(&Plan::of_seed(42)).0);
}

#[test]
fn a_plan_survives_being_written_down() {
    for seed in 0..200 {
        let plan = Plan::of_seed(seed);
        let written = serde_json::to_string(&plan).expect("a plan is JSON");
        assert_eq!(serde_json::from_str::<Plan>(&written).expect("and readable"), plan);
    }
}

#[test]
fn a_call_survives_a_kill_at_each_stop_point() {
    for kind in [
        EffectPattern::Of(EffectKind::Count),
        EffectPattern::Of(EffectKind::Load),
        EffectPattern::Of(EffectKind::Save),
        EffectPattern::Of(EffectKind::Publish),
        EffectPattern::Of(EffectKind::Mark),
        EffectPattern::Of(EffectKind::Acknowledge),
    ] {
        for moment in [Moment::Before, Moment::After] {
            let when = Trigger::Effect { processor: 0, kind, nth: 1, moment };
            let plan = one_call(vec![Fault { when, what: Action::Kill { processor: 0, outage_ms: 130_000 } }]);
            let outcome = plan.run(Recording::Off);
            assert_eq!(outcome.violation, None, "{plan}");
            assert_eq!((outcome.stats.summaries, outcome.stats.notifications), (1, 1), "{plan}");
            // Nobody waits for a processor that has nothing left to do.
            let done = kind == EffectPattern::Of(EffectKind::Acknowledge) && moment == Moment::After;
            assert!(done || outcome.stats.virtual_us > 130_000_000, "the outage took place: {plan}");
        }
    }
}

#[test]
fn five_kills_exhaust_a_call_and_are_told_apart_from_a_loss() {
    let kill = |nth| Fault {
        when: Trigger::Effect { processor: 0, kind: EffectPattern::Of(EffectKind::Count), nth, moment: Moment::Before },
        what: Action::Kill { processor: 0, outage_ms: 7_000 },
    };
    let outcome = one_call((1..=5).map(kill).collect()).run(Recording::Off);
    assert_eq!(outcome.violation, None);
    let stats = outcome.stats;
    assert_eq!((stats.exhausted, stats.deliveries, stats.summaries), (1, 5, 0));
    assert_eq!((stats.dead_letters, stats.missing), (1, 0), "the one that starts again hears of it");
}

#[test]
fn small_worlds_keep_every_promise() {
    for family in explore::families().iter().filter(|family| family.worlds_at_least() < 1_000) {
        let found = family.run(2, &|_| ());
        if let Some(failure) = found.failure {
            panic!("{}: {:?}\n{}", family.name, failure.violation, failure.plan);
        }
        assert!(found.worlds >= 25, "{}: {}", family.name, found.worlds);
    }
}

#[test]
fn drawn_worlds_keep_every_promise() {
    let found = explore::search(0, 2, &Until::Seeds(600), &|_| ());
    if let Some(failure) = found.failure {
        panic!("{:?}\n{}", failure.violation, failure.plan);
    }
    assert_eq!(found.worlds, 600);
}

#[test]
fn what_a_search_finds_does_not_depend_on_threads() {
    let count = |threads| {
        let found = explore::search(50, threads, &Until::Seeds(200), &|_| ());
        (found.worlds, found.virtual_us, found.exhausted)
    };
    assert_eq!(count(1), count(3));
}

/// The plans of a folder of `fixtures/`, by file name.
fn kept(folder: &str) -> Vec<(String, Plan)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(folder);
    let files = fs::read_dir(folder).expect("the fixtures are there").map(|entry| entry.expect("a directory").path());
    let plans = files.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    let read = |path: PathBuf| {
        let plan = serde_json::from_slice(&fs::read(&path).expect("a file")).expect("a plan");
        (path.display().to_string(), plan)
    };
    plans.map(read).collect()
}

#[test]
fn past_failures_are_mended() {
    let plans = kept("seeds");
    for (file, plan) in &plans {
        let outcome = plan.run(Recording::Off);
        assert_eq!((outcome.violation, outcome.stats.exhausted), (None, 0), "{file}");
    }
    assert!(plans.len() >= 6, "{}", plans.len());
}
