//! Small worlds, all of them: every point of a run, and every fault that can happen there.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::Found;
use crate::{
    plan::{
        Action, Call, EffectPattern, End, EndPayload, Fault, Moment, Options, Plan, SegmentSaved, Server, StoreFault,
        Trigger, Verdict,
    },
    world::{Points, Recording},
};
use transcript_core::EffectKind;

/// The window of worlds in which two processes die: longer than every outage but the one that is meant to outlast it.
const SHORT_WINDOW_MS: u64 = 600_000;
const DAY_MS: u64 = 86_400_000;
const MOMENTS: [Moment; 2] = [Moment::Before, Moment::After];

/// A set of worlds: one healthy plan, and everything of one kind that can happen to it.
#[derive(Debug, Clone)]
pub struct Family {
    /// What it is.
    pub name: &'static str,
    healthy: Plan,
    firsts: Vec<Fault>,
    /// The outages of a second kill at every point after the first fault; none for worlds with one fault.
    seconds: Vec<u64>,
}

/// All families, the cheap ones first.
#[must_use]
pub fn families() -> Vec<Family> {
    let one = healthy(1, 1, DAY_MS);
    let two = healthy(2, 2, DAY_MS);
    let (one_short, two_short) = (healthy(1, 1, SHORT_WINDOW_MS), healthy(2, 2, SHORT_WINDOW_MS));
    let (refused, stale, once, used_up) = (refused(), stale(), announced_once(), used_up());
    let again = asked_again();
    let family = |name, healthy: &Plan, firsts| Family { name, healthy: healthy.clone(), firsts, seconds: vec![] };
    vec![
        family("a kill, one session, one processor", &one, kills(&one, &outages(&one))),
        family("a kill, two sessions, two processors", &two, kills(&two, &outages(&two))),
        family("a lost answer or failed command, one and one", &one, answers(&one)),
        family("a lost answer or failed command, two and two", &two, answers(&two)),
        family("a message arrives twice, one and one", &one, duplicates(&one)),
        family("a message arrives twice, two and two", &two, duplicates(&two)),
        family("a freeze, two sessions, two processors", &two, freezes(&two)),
        family("a server restarts, one and one", &one, servers(&one)),
        family("a server restarts, two and two", &two, servers(&two)),
        family("a connection breaks, two and two", &two, connections(&two)),
        family("a rollout, two and two", &two, rollouts(&two)),
        family("a kill, a refused document, one and one", &refused, kills(&refused, &outages(&refused))),
        family("a kill, a stale summary, two and two", &stale, kills(&stale, &outages(&stale))),
        family("a kill, a call asked for again, one and one", &again, kills(&again, &outages(&again))),
        family("a kill, announced once, one and one", &once, kills(&once, &outages(&once))),
        family("a kill, deliveries used up, one and two", &used_up, kills(&used_up, &outages(&used_up))),
        family("a freeze, deliveries used up, one and two", &used_up, freezes(&used_up)),
        Family {
            name: "two kills, one session, one processor",
            firsts: kills(&one_short, &outages(&one_short)),
            seconds: outages(&one_short),
            healthy: one_short,
        },
        Family {
            name: "two kills, two sessions, two processors",
            firsts: kills(&two_short, &outages(&two_short)),
            seconds: outages(&two_short),
            healthy: two_short,
        },
    ]
}

impl Family {
    /// How many worlds it has without those of a second fault.
    #[must_use]
    pub fn worlds_at_least(&self) -> usize {
        if self.has_pairs() { usize::MAX } else { self.firsts.len() }
    }

    /// Whether a second fault follows the first.
    #[must_use]
    pub fn has_pairs(&self) -> bool {
        !self.seconds.is_empty()
    }

    /// Runs all its worlds on so many threads; `tell` hears how many have run, from any of them.
    ///
    /// # Panics
    ///
    /// Where a thread panicked, which is a fault of the simulator.
    #[must_use]
    pub fn run(&self, threads: usize, tell: &(dyn Fn(u64) + Sync)) -> Found {
        let next = AtomicUsize::new(0);
        let found: Mutex<BTreeMap<usize, Found>> = Mutex::default();
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| {
                    while let place = next.fetch_add(1, Ordering::Relaxed)
                        && let Some(first) = self.firsts.get(place)
                    {
                        let here = self.run_with(first);
                        tell(here.worlds);
                        found.lock().expect("no thread panicked").insert(place, here);
                    }
                });
            }
        });
        let mut all = Found::default();
        for found in found.into_inner().expect("no thread panicked").into_values() {
            all.add(found);
        }
        all
    }

    /// One fault, and then every second one after it.
    fn run_with(&self, first: &Fault) -> Found {
        let mut found = Found::default();
        let mut plan = self.healthy.clone();
        plan.faults.push(first.clone());
        let outcome = plan.run(Recording::Off);
        let whole = found.enter(&plan, &outcome);
        if let Some(passed) = outcome.stats.at_first_fault.filter(|_| whole && !self.seconds.is_empty()) {
            for second in kills_between(&plan, &passed, &outcome.stats.points, &self.seconds) {
                plan.faults.push(second);
                found.enter(&plan, &plan.run(Recording::Off));
                plan.faults.pop();
            }
        }
        found
    }
}

fn healthy(calls: usize, processors: usize, window_ms: u64) -> Plan {
    let call = |number: usize| {
        let mut call = Call::short(&format!("c{number}"), &format!("s{number}"), 1_000);
        let late = SegmentSaved {
            at_ms: 2_500,
            index: 1,
            speaker: Some("Grace".into()),
            text: "Let us.".into(),
            ..SegmentSaved::default()
        };
        call.segments.push(late);
        call
    };
    Plan {
        seed: 0,
        processors,
        options: Options { window_ms, page_size: 1, max_in_flight: 1, ..Options::quick() },
        calls: (0..calls).map(call).collect(),
        faults: vec![],
        chores: vec![],
        heals_at_ms: None,
        bug: None,
    }
}

/// A call whose summary MongoDB refuses.
fn refused() -> Plan {
    let mut plan = healthy(1, 1, DAY_MS);
    plan.calls.iter_mut().for_each(|call| call.verdict = Verdict::Refused);
    plan
}

/// Two calls, each with a segment that comes after the summary, which is then replaced.
fn stale() -> Plan {
    let mut plan = healthy(2, 2, SHORT_WINDOW_MS);
    plan.options.revise = true;
    for call in &mut plan.calls {
        call.segments.push(SegmentSaved { at_ms: 12_000, index: 2, text: "Yes.".into(), ..SegmentSaved::default() });
    }
    plan
}

/// A call that somebody corrects and asks for again.
fn asked_again() -> Plan {
    let mut plan = healthy(1, 1, SHORT_WINDOW_MS);
    for call in &mut plan.calls {
        call.segments.push(SegmentSaved { at_ms: 12_000, text: "As corrected.".into(), ..SegmentSaved::default() });
        call.ends.push(End { at_ms: 13_000, payload: EndPayload::AsksAgain { announces: 1, request: 1 } });
    }
    plan
}

/// A call whose notification has a subject of its own.
fn announced_once() -> Plan {
    let mut plan = healthy(1, 1, SHORT_WINDOW_MS);
    plan.options.announce_once = true;
    plan
}

/// Whoever takes the call dies of it, until no delivery is left.
fn used_up() -> Plan {
    let mut plan = healthy(1, 2, SHORT_WINDOW_MS);
    plan.options.max_deliver = 2;
    let outage_ms = plan.options.ack_wait_ms + 100;
    for processor in 0..plan.processors {
        for nth in 1..=plan.options.max_deliver {
            let when =
                Trigger::Effect { processor, kind: EffectPattern::Of(EffectKind::Count), nth, moment: Moment::Before };
            plan.faults.push(Fault { when, what: Action::Kill { processor, outage_ms } });
        }
    }
    plan
}

fn outages(plan: &Plan) -> Vec<u64> {
    let Options { ack_wait_ms, window_ms, .. } = plan.options;
    vec![0, ack_wait_ms - 100, ack_wait_ms + 100, 130_000, window_ms + 1_000]
}

/// Every point of the healthy run, with the processors that a fault there can be about.
fn points(plan: &Plan) -> Vec<(Trigger, Vec<usize>)> {
    let outcome = plan.run(Recording::Off);
    points_between(plan, &Points { effects: vec![], arrivals: [0; 2] }, &outcome.stats.points)
}

fn points_between(plan: &Plan, from: &Points, to: &Points) -> Vec<(Trigger, Vec<usize>)> {
    let mut points = vec![];
    for processor in 0..plan.processors {
        let kind = EffectPattern::Any;
        for nth in from.effects(processor, kind) + 1..=to.effects(processor, kind) {
            let triggers = MOMENTS.map(|moment| Trigger::Effect { processor, kind, nth, moment });
            points.extend(triggers.map(|trigger| (trigger, vec![processor])));
        }
    }
    for server in [Server::Broker, Server::Store] {
        for nth in from.arrivals(server) + 1..=to.arrivals(server) {
            let triggers = MOMENTS.map(|moment| Trigger::Arrival { server, nth, moment });
            points.extend(triggers.map(|trigger| (trigger, (0..plan.processors).collect())));
        }
    }
    points
}

fn kills(plan: &Plan, outages: &[u64]) -> Vec<Fault> {
    kills_at(&points(plan), outages)
}

fn kills_between(plan: &Plan, from: &Points, to: &Points, outages: &[u64]) -> Vec<Fault> {
    kills_at(&points_between(plan, from, to), outages)
}

fn kills_at(points: &[(Trigger, Vec<usize>)], outages: &[u64]) -> Vec<Fault> {
    each(points, |processor| {
        outages.iter().map(|outage_ms| Action::Kill { processor, outage_ms: *outage_ms }).collect()
    })
}

/// Each of the actions at each point, for each processor that it can be about.
fn each(points: &[(Trigger, Vec<usize>)], actions: impl Fn(usize) -> Vec<Action>) -> Vec<Fault> {
    let mut faults = vec![];
    for (when, processors) in points {
        for processor in processors {
            faults.extend(actions(*processor).into_iter().map(|what| Fault { when: *when, what }));
        }
    }
    faults
}

/// Every arrival whose answer is lost, every command that fails, and every effect whose report is lost.
fn answers(plan: &Plan) -> Vec<Fault> {
    let store = [
        Action::FailBefore(StoreFault::NotPrimary),
        Action::FailAfter(StoreFault::TimedOut),
        Action::Race,
        Action::Slow { span_ms: 5_000 },
        Action::Slow { span_ms: 40_000 },
    ];
    let mut faults = vec![];
    for (when, _) in points(plan) {
        match when {
            Trigger::Arrival { server, moment: Moment::Before, .. } => {
                faults.push(Fault { when, what: Action::LoseAnswer });
                if server == Server::Store {
                    faults.extend(store.iter().map(|what| Fault { when, what: what.clone() }));
                }
            }
            Trigger::Effect { moment: Moment::Before, .. } => faults.push(Fault { when, what: Action::LoseReport }),
            Trigger::Arrival { .. } | Trigger::Effect { .. } | Trigger::AtMs(_) => {}
        }
    }
    faults
}

/// Every arrival at NATS, once more: at once, soon, and when the message is out for somebody else.
fn duplicates(plan: &Plan) -> Vec<Fault> {
    let mut faults = vec![];
    for (when, _) in points(plan) {
        if matches!(when, Trigger::Arrival { server: Server::Broker, moment: Moment::Before, .. }) {
            let spans = [0, 10, 1_000, plan.options.ack_wait_ms + 100];
            faults.extend(spans.map(|after_ms| Fault { when, what: Action::Duplicate { after_ms } }));
        }
    }
    faults
}

fn freezes(plan: &Plan) -> Vec<Fault> {
    let wait = plan.options.ack_wait_ms;
    let spans = [wait + 100, wait * 3, 130_000, 300_000];
    each(&points(plan), |processor| spans.map(|span_ms| Action::Freeze { processor, span_ms }).to_vec())
}

fn rollouts(plan: &Plan) -> Vec<Fault> {
    let outages = [0, 1_000, plan.options.ack_wait_ms + 100];
    each(&points(plan), |processor| outages.map(|outage_ms| Action::Rollout { processor, outage_ms }).to_vec())
}

fn servers(plan: &Plan) -> Vec<Fault> {
    let wait = plan.options.ack_wait_ms;
    let mut actions = vec![Action::StepDown { span_ms: 1_000 }, Action::StepDown { span_ms: 30_000 }];
    for server in [Server::Broker, Server::Store] {
        for outage_ms in [0, 1_000, wait + 100, 30_000] {
            actions.push(Action::StopServer { server, outage_ms });
            actions.extend([0, 50, 100].map(|lag_ms| Action::KillServer { server, outage_ms, lag_ms }));
        }
    }
    points(plan)
        .iter()
        .flat_map(|(when, _)| actions.iter().map(|what| Fault { when: *when, what: what.clone() }))
        .collect()
}

fn connections(plan: &Plan) -> Vec<Fault> {
    let wait = plan.options.ack_wait_ms;
    each(&points(plan), |processor| {
        let mut actions = vec![];
        for server in [Server::Broker, Server::Store] {
            actions.push(Action::Reset { processor, server });
            for span_ms in [0, wait + 100, 30_000] {
                let server_notices_ms = 10_000;
                actions.push(Action::Sever { processor, server, span_ms, server_notices_ms });
                for direction in [crate::plan::Direction::Up, crate::plan::Direction::Down] {
                    actions.push(Action::FreezeLink { processor, server, direction, span_ms: span_ms + 1_000 });
                }
            }
        }
        actions
    })
}
