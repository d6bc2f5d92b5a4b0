//! Tests the tester: planted bugs are found, and a found one makes the command fail.

use std::process::Command;

use transcript_core::EffectKind;
use transcript_sim::{
    Bug, Plan, Recording,
    explore::hunt,
    plan::{Action, Call, EffectPattern, End, EndPayload, Fault, Moment, Options, SegmentSaved, Server, Trigger},
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
        Bug::RepeatsTakeRoom,
        Bug::ConsumerChangeIgnored,
        Bug::AdvisoryBelieved,
        Bug::LateRequestSent,
        Bug::OneMarkIsEnough,
        Bug::MarksNotRead,
        Bug::EditNotNoticed,
        Bug::AskedAgainIgnored,
    ];
    for bug in Bug::ALL.into_iter().filter(|bug| !slow.contains(bug)) {
        // Some plan of it is small: the first one that is found may be one that nothing can be left out of alone.
        let small = |searches| hunt(bug, searches).shrunk.filter(|shrunk| shrunk.plan.events() <= 10);
        let shrunk = small(1).or_else(|| small(5)).unwrap_or_else(|| panic!("{bug} was found in no small plan"));
        assert_eq!(shrunk.plan.run(Recording::Off).violation, Some(shrunk.violation), "{bug}");
        let mended = Plan { bug: None, ..shrunk.plan };
        assert_eq!(mended.run(Recording::Off).violation, None, "without {bug}: {mended}");
    }
}

fn short_window() -> Plan {
    let when =
        Trigger::Effect { processor: 0, kind: EffectPattern::Of(EffectKind::Mark), nth: 1, moment: Moment::Before };
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

/// A plan for a bug, the promise that it breaks, and no promise that is broken without it.
fn breaks(bug: Bug, property: &str, plan: &Plan) {
    let violation = Plan { bug: Some(bug), ..plan.clone() }.run(Recording::Off).violation;
    let violation = violation.unwrap_or_else(|| panic!("{bug} is not found: {plan}"));
    assert_eq!(violation.property, property, "{bug}: {}", violation.what);
    assert_eq!(plan.run(Recording::Off).violation, None, "without {bug}: {plan}");
}

fn at(at_ms: u64, what: Action) -> Fault {
    Fault { when: Trigger::AtMs(at_ms), what }
}

/// One end is published four times, and the one of another call comes half a second later.
#[test]
fn repeated_ends_that_take_room_delay_another_call() {
    let mut repeated = Call::short("c", "repeated", 5_000);
    let end = repeated.ends[0].clone();
    repeated.ends.extend(vec![end; 3]);
    let options = Options { max_in_flight: 3, ..Options::quick() };
    let calls = vec![repeated, Call::short("c", "other", 5_500)];
    let plan = Plan { options, calls, faults: vec![], bug: None, ..short_window() };
    breaks(Bug::RepeatsTakeRoom, "RepeatsDelayNoOtherCall", &plan);
}

/// MongoDB takes no writes for as long as it takes to look at the consumer again.
#[test]
fn a_consumer_that_is_changed_while_a_call_is_in_hand_is_followed() {
    let faults =
        vec![at(500, Action::SetAckWait { ack_wait_ms: 4_000 }), at(2_000, Action::FailWrites { span_ms: 100_000 })];
    let plan = Plan { faults, bug: None, ..short_window() };
    breaks(Bug::ConsumerChangeIgnored, "HeartbeatWhileAlive", &plan);
}

/// MongoDB takes no writes while NATS is restarted as often as a message is delivered.
#[test]
fn an_advisory_about_a_call_in_hand_makes_no_dead_letter() {
    // Away for longer than the ack wait.
    let restart = |at_ms| at(at_ms, Action::KillServer { server: Server::Broker, outage_ms: 7_000, lag_ms: 0 });
    let faults = vec![at(1_500, Action::FailWrites { span_ms: 30_000 }), restart(8_000), restart(18_000)];
    let options = Options { max_deliver: 2, ..Options::quick() };
    let plan = Plan { options, faults, bug: None, ..short_window() };
    breaks(Bug::AdvisoryBelieved, "ADeadLetterWaitsForACallInHand", &plan);
    let stats = plan.run(Recording::Off).stats;
    assert_eq!((stats.notifications, stats.dead_letters), (1, 0));
}

#[test]
fn what_is_given_back_too_soon_comes_back() {
    let faults = vec![at(1_500, Action::Rollout { processor: 0, outage_ms: 1_000 })];
    let plan = Plan { faults, bug: None, ..short_window() };
    breaks(Bug::GivesBackTooSoon, "NobodyGetsBackWhatItGaveBack", &plan);
}

/// Somebody corrects a call after its summary was announced, and asks for it again.
#[test]
fn a_request_to_process_a_call_again_is_no_end_like_another() {
    let mut call = Call::short("c", "s", 1_000);
    let corrected = SegmentSaved { at_ms: 12_000, text: "As corrected.".to_owned(), ..call.segments[0].clone() };
    call.segments.push(corrected);
    let payload = EndPayload::AsksAgain { announces: 1, request: 1 };
    call.ends.push(End { at_ms: 13_000, payload });
    let plan = Plan { calls: vec![call], faults: vec![], bug: None, ..short_window() };
    breaks(Bug::AskedAgainIgnored, "ARequestIsAnsweredByARevision", &plan);
    assert_eq!(plan.run(Recording::Off).stats.revisions, 1);
}

/// The connection dies under a notification, and its process stands still until another one has announced the call and the
/// stream has forgotten that.
#[test]
fn what_was_asked_for_before_a_standstill_is_not_sent_after_it() {
    let when =
        Trigger::Effect { processor: 0, kind: EffectPattern::Of(EffectKind::Publish), nth: 1, moment: Moment::Before };
    let server = Server::Broker;
    let severed = Action::Sever { processor: 0, server, span_ms: 0, server_notices_ms: 1_000 };
    let stands = Action::Freeze { processor: 0, span_ms: 300_000 };
    let faults = vec![Fault { when, what: severed }, Fault { when, what: stands }];
    let options = Options { window_ms: 120_000, ..Options::quick() };
    let plan = Plan { options, processors: 2, faults, bug: None, ..short_window() };
    breaks(Bug::LateRequestSent, "AMarkedSummaryIsNotAnnouncedAgain", &plan);
}

/// A call in pages of two, whose segments start in the opposite order of their indexes; those of `unmarked` indexes are not on
/// the session's clock.
fn overlapping(unmarked: &[i64]) -> Plan {
    let segments = (0..3).map(|index| SegmentSaved {
        index,
        text: format!("{index}?"),
        session_start_ms: Some(9_000 - index * 1_000).filter(|_| !unmarked.contains(&index)),
        ..SegmentSaved::default()
    });
    let ends = vec![End { at_ms: 1_000, payload: EndPayload::Announces(3) }];
    let call = Call { segments: segments.collect(), ends, ..Call::short("c", "s", 1_000) };
    Plan { calls: vec![call], faults: vec![], bug: None, ..short_window() }
}

#[test]
fn a_call_whose_starts_are_on_the_sessions_clock_is_summed_up_by_start() {
    breaks(Bug::MarksNotRead, "SummaryIsInTheOrderOfTheCall", &overlapping(&[]));
}

#[test]
fn a_segment_without_a_start_is_summed_up_with_the_others() {
    breaks(Bug::OneMarkIsEnough, "WhatCameInTheQuietPeriodIsCounted", &overlapping(&[1]));
}

/// A segment is changed half a minute after its call was announced.
#[test]
fn a_change_after_the_summary_is_noticed() {
    let mut plan = overlapping(&[]);
    plan.options.revise = true;
    let changed = SegmentSaved { at_ms: 30_000, edits: 1, text: "No.".to_owned(), ..plan.calls[0].segments[1].clone() };
    plan.calls[0].segments.push(changed);
    breaks(Bug::EditNotNoticed, "EveryStaleSummaryIsRevised", &plan);
    let stats = plan.run(Recording::Off).stats;
    assert_eq!((stats.notifications, stats.revisions), (1, 1));
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
