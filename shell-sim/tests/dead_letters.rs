//! What must hold past five attempts and past the window, each with the remedy, and broken without it.

use transcript_core::EffectKind;
use transcript_sim::{
    Bug, Outcome, Plan, Recording,
    plan::{
        Action, Call, Chore, EffectPattern, End, EndPayload, Fault, Moment, Options, SegmentSaved, Server, Task,
        Trigger, Verdict,
    },
};

const WINDOW_MS: u64 = 600_000;

fn plan(calls: usize, faults: Vec<Fault>) -> Plan {
    Plan {
        seed: 0,
        processors: 1,
        options: Options { window_ms: WINDOW_MS, ..Options::quick() },
        calls: (0..calls).map(|number| Call::short("c", &format!("s{number}"), 1_000)).collect(),
        faults,
        chores: vec![],
        heals_at_ms: None,
        bug: None,
    }
}

fn at(at_ms: u64, what: Action) -> Fault {
    Fault { when: Trigger::AtMs(at_ms), what }
}

fn before(processor: usize, kind: EffectPattern, nth: u64, what: Action) -> Fault {
    Fault { when: Trigger::Effect { processor, kind, nth, moment: Moment::Before }, what }
}

/// Runs a plan that keeps every promise.
fn kept(plan: &Plan) -> Outcome {
    let outcome = plan.run(Recording::On);
    assert_eq!(outcome.violation, None, "{plan}\n{}", outcome.trace.unwrap_or_default());
    outcome
}

/// The promise that the plan breaks with a remedy taken out.
fn broken(plan: &Plan, bug: Bug) -> String {
    let outcome = Plan { bug: Some(bug), ..plan.clone() }.run(Recording::Off);
    outcome.violation.unwrap_or_else(|| panic!("{bug} breaks nothing: {plan}")).property
}

/// Whoever takes the first call up dies of it, five times.
fn five_kills(processors: usize) -> Vec<Fault> {
    let kill = |processor| Action::Kill { processor, outage_ms: 7_000 };
    let each = |processor| {
        (1..=5).map(move |nth| before(processor, EffectPattern::Of(EffectKind::Count), nth, kill(processor)))
    };
    (0..processors).flat_map(each).take(5).collect()
}

#[test]
fn five_kills_make_a_dead_letter_and_a_redrive_ends_it() {
    let plan = Plan { chores: vec![Chore { at_ms: 90_000, what: Task::Redrive }], ..plan(1, five_kills(1)) };
    let stats = kept(&plan).stats;
    assert_eq!((stats.exhausted, stats.dead_letters, stats.missing), (1, 1, 0));
    assert_eq!((stats.summaries, stats.notifications), (1, 1));
    assert_eq!(broken(&plan, Bug::ExhaustedIgnored), "EverySessionEndsOnceFaultsStop");
}

#[test]
fn a_redrive_twice_is_one_redrive() {
    let redrive = |at_ms| Chore { at_ms, what: Task::Redrive };
    let plan = Plan { chores: vec![redrive(90_000), redrive(90_000), redrive(95_000)], ..plan(1, five_kills(1)) };
    let stats = kept(&plan).stats;
    assert_eq!((stats.deliveries, stats.summaries, stats.notifications, stats.dead_letters), (6, 1, 1, 1));
}

#[test]
fn what_nobody_hears_is_missing_and_told_apart() {
    // The broker has not seen that its first connection is over, and tells that one too.
    let silent = Action::Sever { processor: 0, server: Server::Broker, span_ms: 0, server_notices_ms: 240_000 };
    let when = Trigger::Effect { processor: 0, kind: EffectPattern::Any, nth: 1, moment: Moment::After };
    let kill = |nth| before(0, EffectPattern::Of(EffectKind::Mark), nth, Action::Kill { processor: 0, outage_ms: 0 });
    let mut ghost = plan(2, vec![Fault { when, what: silent }, kill(1), kill(3), kill(4), kill(5), kill(6)]);
    ghost.calls[0].ends[0].at_ms = 900;
    ghost.calls[1].ends[0].at_ms = 0;
    let stats = kept(&ghost).stats;
    assert_eq!((stats.exhausted, stats.missing, stats.dead_letters), (1, 0, 1));

    // Who hears of it is killed over the dead letter.
    let mut faults = five_kills(1);
    faults.push(before(
        0,
        EffectPattern::Of(EffectKind::DeadLetter),
        1,
        Action::Kill { processor: 0, outage_ms: 1_000 },
    ));
    let stats = kept(&plan(1, faults)).stats;
    assert_eq!((stats.exhausted, stats.missing, stats.dead_letters), (1, 1, 0));
}

#[test]
fn a_refused_document_is_a_dead_letter_and_its_redrive_one_more() {
    let mut plan = plan(3, vec![]);
    plan.calls[1].verdict = Verdict::Refused;
    plan.chores = [20_000, 30_000].map(|at_ms| Chore { at_ms, what: Task::Redrive }).to_vec();
    let stats = kept(&plan).stats;
    assert_eq!((stats.summaries, stats.notifications), (2, 2));
    assert_eq!(stats.dead_letters, 3, "the first one, and one for each dead letter that was redriven");
    assert_eq!(broken(&plan, Bug::NoDeadLetter), "OnlyTheImpossibleIsTerminated");
}

#[test]
fn a_consumer_set_back_past_the_window_announces_nothing() {
    let reset = Chore { at_ms: WINDOW_MS + 60_000, what: Task::ResetConsumer };
    let plan = Plan { chores: vec![reset], ..plan(20, vec![]) };
    let stats = kept(&plan).stats;
    assert_eq!((stats.deliveries, stats.summaries, stats.notifications), (40, 20, 20));
    assert_eq!(broken(&plan, Bug::MarkIgnored), "AMarkedSummaryIsNotAnnouncedAgain");
}

#[test]
fn a_purge_a_restart_and_all_ends_again_announce_nothing() {
    let purge = Chore { at_ms: 60_000, what: Task::PurgeAndRestart };
    let again = Chore { at_ms: 61_000, what: Task::PublishAgain };
    for announce_once in [false, true] {
        let mut plan = Plan { chores: vec![purge, again], ..plan(20, vec![]) };
        plan.options.announce_once = announce_once;
        let stats = kept(&plan).stats;
        assert_eq!((stats.deliveries, stats.summaries, stats.notifications), (40, 20, 20));
        assert_eq!(broken(&plan, Bug::MarkIgnored), "AMarkedSummaryIsNotAnnouncedAgain");
    }
}

#[test]
fn an_end_published_again_past_the_window_announces_nothing() {
    let end = End { at_ms: WINDOW_MS + 60_000, payload: EndPayload::Announces(1) };
    let mut plan = plan(1, vec![]);
    plan.calls[0].ends.push(end);
    let stats = kept(&plan).stats;
    assert_eq!((stats.deliveries, stats.notifications), (2, 1));
    assert_eq!(broken(&plan, Bug::MarkIgnored), "AMarkedSummaryIsNotAnnouncedAgain");
}

/// What remains: a death between the publication and the mark, and an outage beyond the window.
#[test]
fn the_gap_is_closed_where_each_notification_has_its_subject() {
    let kill = Action::Kill { processor: 0, outage_ms: WINDOW_MS + 60_000 };
    for (announce_once, notifications) in [(false, 2), (true, 1)] {
        let mut plan = plan(1, vec![before(0, EffectPattern::Of(EffectKind::Mark), 1, kill.clone())]);
        plan.options.announce_once = announce_once;
        assert_eq!(kept(&plan).stats.notifications, notifications, "{plan}");
    }
}

#[test]
fn mongodb_down_for_90_s_costs_no_attempt() {
    let down = Action::StopServer { server: Server::Store, outage_ms: 90_000 };
    let mut plan = plan(50, vec![at(1_500, down)]);
    plan.options = Options { retry_timeout_ms: 60_000, max_in_flight: 64, ..plan.options };
    let stats = kept(&plan).stats;
    assert_eq!((stats.deliveries, stats.summaries, stats.notifications, stats.dead_letters), (50, 50, 50, 0));
    assert_eq!(broken(&plan, Bug::GivesUpInOutages), "EveryRedeliveryHasACause");
}

#[test]
fn an_hour_without_mongodb_costs_no_attempt() {
    let down = Action::StopServer { server: Server::Store, outage_ms: 3_600_000 };
    let stats = kept(&plan(1, vec![at(1_500, down)])).stats;
    assert_eq!((stats.deliveries, stats.summaries, stats.notifications, stats.dead_letters), (1, 1, 1, 0));
}

/// A message of ten rollouts in a row, each of which meets it before it is saved.
#[test]
fn ten_rollouts_make_no_dead_letter() {
    let rollout = |number: u64| at(1_500 + 1_000 * number, Action::Rollout { processor: 0, outage_ms: 100 });
    let plan = plan(10, (0..10).map(rollout).collect());
    let stats = kept(&plan).stats;
    assert_eq!((stats.summaries, stats.notifications, stats.exhausted, stats.dead_letters), (10, 10, 0, 0));
    assert!(stats.deliveries >= 80, "the rollouts met them: {stats:?}");
    assert_eq!(broken(&plan, Bug::DrainBurnsAttempts), "ADrainGivesBackFirstDeliveriesOnly");
}

#[test]
fn a_segment_after_the_summary_makes_a_revision_where_that_is_asked_for() {
    let late = |at_ms, index| SegmentSaved { at_ms, index, text: "Yes.".into(), ..SegmentSaved::default() };
    for (revise, revisions) in [(false, 0), (true, 2)] {
        let mut plan = plan(1, vec![]);
        plan.options.revise = revise;
        plan.calls[0].segments.extend([late(12_000, 1), late(40_000, 2)]);
        // Something is to be waited for without a watch, too.
        plan.calls[0].ends.push(End { at_ms: 70_000, payload: EndPayload::Announces(1) });
        let mut outcome = kept(&plan);
        assert_eq!((outcome.stats.notifications, outcome.stats.revisions), (1, revisions));
        assert!(outcome.trace.take().expect("it was recorded").contains("c:s0 has 3 segment(s)"), "{plan}");
    }
}

#[test]
fn a_kill_at_each_point_of_a_revision_costs_no_announcement_and_makes_none_twice() {
    for kind in [
        EffectPattern::Of(EffectKind::Count),
        EffectPattern::Of(EffectKind::Load),
        EffectPattern::Of(EffectKind::Save),
        EffectPattern::Of(EffectKind::Publish),
        EffectPattern::Of(EffectKind::Mark),
    ] {
        for moment in [Moment::Before, Moment::After] {
            for outage_ms in [0, 7_000, 130_000] {
                let nth = if kind == EffectPattern::Of(EffectKind::Count) { 3 } else { 2 };
                let when = Trigger::Effect { processor: 0, kind, nth, moment };
                let kill = Fault { when, what: Action::Kill { processor: 0, outage_ms } };
                let mut plan = plan(1, vec![kill]);
                plan.options.revise = true;
                let late = SegmentSaved { at_ms: 12_000, index: 1, text: "Yes.".into(), ..SegmentSaved::default() };
                plan.calls[0].segments.push(late);
                let stats = kept(&plan).stats;
                assert_eq!((stats.notifications, stats.revisions), (1, 1), "{plan}");
                assert!(!stats.faults_us.is_empty(), "the kill took place: {plan}");
            }
        }
    }
}
