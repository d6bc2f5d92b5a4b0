//! What a fault or a setting does in a world, each seen in the trace or the numbers of a small plan.

use transcript_core::EffectKind;
use transcript_sim::{
    Outcome, Plan, Recording,
    plan::{Action, Call, EffectPattern, Fault, Moment, Options, SegmentWrites, Server, Trigger},
};

fn plan(options: Options, faults: Vec<Fault>) -> Plan {
    let calls = vec![Call::short("c", "s", 1_000)];
    Plan { seed: 0, processors: 1, options, calls, faults, chores: vec![], heals_at_ms: None, bug: None }
}

fn at(at_ms: u64, what: Action) -> Fault {
    Fault { when: Trigger::AtMs(at_ms), what }
}

fn before(kind: EffectPattern, nth: u64, what: Action) -> Fault {
    Fault { when: Trigger::Effect { processor: 0, kind, nth, moment: Moment::Before }, what }
}

fn kill(outage_ms: u64) -> Action {
    Action::Kill { processor: 0, outage_ms }
}

/// Runs a plan that keeps every promise.
fn run(plan: &Plan) -> (Outcome, String) {
    let mut outcome = plan.run(Recording::On);
    assert_eq!(outcome.violation, None, "{plan}");
    let trace = outcome.trace.take().expect("it was recorded");
    (outcome, trace)
}

#[test]
fn a_segment_without_a_journal_can_be_lost_and_then_it_never_was_there() {
    let lost = Action::KillServer { server: Server::Store, outage_ms: 0, lag_ms: 100 };
    for (segment_writes, lines) in [
        (SegmentWrites::Unjournaled, [r#"store: segment "s:0" of "s" is lost"#, "has 0 segment(s), complete false"]),
        (SegmentWrites::Journaled, [r#"transcriber: segment "s:0" of "s" stored"#, "has 1 segment(s), complete true"]),
    ] {
        let options = Options { segment_writes, ..Options::quick() };
        let (outcome, trace) = run(&plan(options, vec![at(50, lost.clone())]));
        assert_eq!((outcome.stats.summaries, outcome.stats.notifications), (1, 1));
        assert!(lines.iter().all(|line| trace.contains(line)), "{segment_writes:?}\n{trace}");
    }
}

#[test]
fn a_message_that_arrives_twice_changes_nothing() {
    // Requests to pull are arrivals too; those are not sent twice.
    for after_ms in [0, 1_000, 6_100] {
        let twice = |nth| {
            let when = Trigger::Arrival { server: Server::Broker, nth, moment: Moment::Before };
            Fault { when, what: Action::Duplicate { after_ms } }
        };
        let (outcome, trace) = run(&plan(Options::quick(), (1..=8).map(twice).collect()));
        assert_eq!((outcome.stats.deliveries, outcome.stats.notifications), (1, 1));
        // One that would come later than the end of everything is not waited for.
        let acks = trace.matches("broker: Ack for 1").count();
        assert_eq!(acks, if after_ms == 0 { 2 } else { 1 }, "{trace}");
    }
}

#[test]
fn a_lowered_limit_of_deliveries_counts_at_once() {
    let kills = |limit: Option<u64>| {
        let lowered = limit.map(|max_deliver| at(500, Action::SetMaxDeliver { max_deliver }));
        let kills = (1..=4).map(|nth| before(EffectPattern::Of(EffectKind::Count), nth, kill(7_000)));
        run(&plan(Options::quick(), lowered.into_iter().chain(kills).collect())).0.stats
    };
    assert_eq!((kills(None).exhausted, kills(None).deliveries), (0, 5));
    assert_eq!((kills(Some(2)).exhausted, kills(Some(2)).deliveries), (1, 2));
}

#[test]
fn a_window_is_lengthened_for_what_is_remembered() {
    let options = Options { window_ms: 120_000, ..Options::quick() };
    let dies = before(EffectPattern::Of(EffectKind::Mark), 1, kill(130_000));
    let short = run(&plan(options.clone(), vec![dies.clone()])).0.stats;
    assert_eq!(short.notifications, 2, "more than the promised window apart");
    let longer = at(60_000, Action::LengthenWindow { window_ms: 86_400_000 });
    assert_eq!(run(&plan(options, vec![dies, longer])).0.stats.notifications, 1);
}

#[test]
fn processors_learn_their_settings_when_they_start() {
    let settings = Action::SetProcessors { quiet_period_ms: 8_000, page_size: 1, max_in_flight: 1 };
    let counted_at = |faults| {
        let (_, trace) = run(&plan(Options::quick(), faults));
        let count = trace.lines().find(|line| line.contains("count the segments")).expect("the segments are counted");
        count.split('.').next().expect("a time").to_owned()
    };
    assert_eq!(counted_at(vec![at(500, settings.clone())]), "3", "the one that runs goes on as it was");
    assert_eq!(counted_at(vec![at(500, settings), at(600, kill(100))]), "9", "the next one does not");
}

#[test]
fn only_so_many_deliveries_are_out() {
    let calls = (0..3).map(|number| Call::short("c", &format!("s{number}"), 1_000)).collect();
    let limited = Action::SetMaxAckPending { max_ack_pending: Some(1) };
    let together = Plan { calls, ..plan(Options::quick(), vec![]) };
    let one_by_one = Plan { faults: vec![at(500, limited)], ..together.clone() };
    let most = |plan: &Plan| {
        let (outcome, trace) = run(plan);
        assert_eq!(outcome.stats.notifications, 3);
        (1..=3).rfind(|jobs| trace.contains(&format!("waits with {jobs} job(s)")))
    };
    assert_eq!((most(&together), most(&one_by_one)), (Some(3), Some(1)));
}

#[test]
fn late_timers_deliver_late_and_never_early() {
    let again = |timer_lag_ms, seed| {
        let options = Options { timer_lag_ms, ..Options::quick() };
        let plan = Plan { seed, ..plan(options, vec![before(EffectPattern::Of(EffectKind::Count), 1, kill(1_000))]) };
        run(&plan).0.stats.settled_us
    };
    let (punctual, late): (u64, Vec<u64>) = (again(0, 0), (0..20).map(|seed| again(1_000, seed)).collect());
    assert!(late.iter().all(|at| (punctual..=punctual + 1_001_000).contains(at)), "{punctual} {late:?}");
    assert!(late.iter().any(|at| at - punctual > 200_000), "{punctual} {late:?}");
}
