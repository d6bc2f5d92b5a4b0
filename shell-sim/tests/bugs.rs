//! Tests the tester: planted bugs are found, and a found one makes the command fail.

use std::process::Command;

use transcript_sim::{
    Bug, Plan, Recording,
    explore::hunt,
    plan::{Action, Call, Fault, Kind, Moment, Options, Trigger},
};

#[test]
fn planted_bugs_are_found_and_shrunk() {
    // Those that take hundreds of seeds are left to `transcript-sim bugs`.
    let slow = [
        Bug::WindowOfTwoMinutes,
        Bug::SaveGoesBackwards,
        Bug::AnySuccessIsEvidence,
        Bug::MarkNotReadAgain,
        Bug::DifferenceNotAnnounced,
        Bug::RefusedDeadLetterCounts,
    ];
    for bug in Bug::ALL.into_iter().filter(|bug| !slow.contains(bug)) {
        let hunted = hunt(bug, 1);
        let shrunk = hunted.shrunk.unwrap_or_else(|| panic!("{bug} was not found"));
        assert!(shrunk.plan.events() <= 15, "{bug}: {}", shrunk.plan);
        assert_eq!(shrunk.plan.run(Recording::Off).violation, Some(shrunk.violation), "{bug}");
        let mended = Plan { bug: None, ..shrunk.plan };
        assert_eq!(mended.run(Recording::Off).violation, None, "without {bug}: {mended}");
    }
}

fn short_window() -> Plan {
    let when = Trigger::Effect { processor: 0, kind: Kind::Mark, nth: 1, moment: Moment::Before };
    Plan {
        seed: 0,
        processors: 1,
        options: Options::quick(),
        calls: vec![Call::short("c", "s", 1_000)],
        faults: vec![Fault { when, what: Action::Kill { processor: 0, outage_ms: 130_000 } }],
        chores: vec![],
        heals_at_ms: None,
        bug: Some(Bug::WindowOfTwoMinutes),
    }
}

#[test]
fn a_window_of_two_minutes_and_an_outage_of_130_s_announce_twice() {
    let violation = short_window().run(Recording::Off).violation.expect("it is announced twice");
    assert_eq!(violation.property, "OneNotificationPerKeyWithinTheWindow");
    assert_eq!(Plan { bug: None, ..short_window() }.run(Recording::Off).violation, None);
}

/// The canary: if this passes with another code, nothing that the command says can be trusted.
#[test]
fn a_broken_promise_makes_the_command_fail() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("plan.json");
    std::fs::write(&file, serde_json::to_vec(&short_window()).expect("a plan is JSON")).expect("a file");
    let run = |plan: &std::path::Path| {
        Command::new(env!("CARGO_BIN_EXE_transcript-sim"))
            .args(["run", "--plan"])
            .arg(plan)
            .arg("--out")
            .arg(dir.path().join("out"))
            .output()
            .expect("the program runs")
    };
    let output = run(&file);
    let said = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in ["BROKEN: OneNotificationPerKeyWithinTheWindow", "the shrunk plan:", "repeat with: cargo run", "drawn:"]
    {
        assert!(said.contains(part), "{part} is missing in {said}");
    }
    let kept = dir.path().join("out/run-0.plan.json");
    assert_eq!(run(&kept).status.code(), Some(1), "the kept plan breaks it again");

    // It draws itself, and leaves its trace.
    let page = dir.path().join("out/run-0.plan.html");
    assert!(said.contains(&format!("look at it: {}", page.display())), "{said}");
    let page = std::fs::read_to_string(page).expect("the page");
    for part in ["<svg", "processor 0", "broken: OneNotificationPerKeyWithinTheWindow"] {
        assert!(page.contains(part), "{part} is missing in the page");
    }
    let trace = std::fs::read(dir.path().join("out/run-0.trace.jsonl")).expect("the trace");
    let shrunk: Plan = serde_json::from_slice(&std::fs::read(&kept).expect("the plan")).expect("a plan");
    assert_eq!(trace, shrunk.record(Recording::Off).1);

    std::fs::write(&file, serde_json::to_vec(&Plan { bug: None, ..short_window() }).expect("JSON")).expect("a file");
    assert_eq!(run(&file).status.code(), Some(0), "and without the bug nothing is broken");
}
