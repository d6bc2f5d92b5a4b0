//! Plans drawn from a seed: each draws its own mix of everything, some of them no fault at all.

use crate::{
    plan::{
        Action, Call, Chore, Direction, EffectPattern, End, EndPayload, Fault, Moment, Options, Plan, SegmentSaved,
        SegmentWrites, Server, StoreFault, Task, Trigger, Verdict,
    },
    rng::Rng,
};
use transcript_core::EffectKind;

/// How long faults may begin.
const HOSTILE_MS: u64 = 60_000;
/// When everything is mended.
const HEALS_AT_MS: u64 = 600_000;
/// When it is where the operator has something to do afterwards.
const HEALS_SOON_AT_MS: u64 = 200_000;
/// The shorter of the two windows: one that can be waited for.
const SHORT_WINDOW_MS: u64 = 600_000;
/// One that is over before a process that stood still wakes up.
const SHORTEST_WINDOW_MS: u64 = 120_000;
/// A standstill over which the broker closes the connection, and a short window is over.
const LONGER_THAN_PINGS_MS: u64 = 300_000;
const TEXTS: [&str; 6] = ["Hello there.", "Shall we begin?", "", "Is it late?\nIt is.", "one two three four", "¿Qué?"];
const SPEAKERS: [Option<&str>; 4] = [Some("Ada"), Some("Grace"), Some("$x.y"), None];
const MALFORMED: [&str; 5] = [
    "",
    "not json",
    "[]",
    r#"{"conversationId":"c","sessionId":"","publishedSegments":1}"#,
    r#"{"conversationId":"c","sessionId":"s","publishedSegments":-1}"#,
];

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let mut rng = Rng::split(seed, 10);
        let processors = rng.pick(&[1, 1, 2, 2, 3]);
        let options = options(&mut rng, processors);
        let mut calls = calls(&mut Rng::split(seed, 11));
        let mut rng = Rng::split(seed, 14);
        for call in &mut calls {
            if rng.chance(8) {
                call.verdict = rng.pick(&[Verdict::Refused, Verdict::RefusesCommand]);
            }
        }
        let mut rng = Rng::split(seed, 16);
        for call in &mut calls {
            if rng.chance(50) {
                put_on_the_session_clock(&mut rng, call);
            }
            if rng.chance(15) {
                change_a_segment(&mut rng, call);
            }
        }
        let chores = chores(&mut Rng::split(seed, 15), &options);
        let faults = faults(&mut Rng::split(seed, 12), processors, &options);
        let processors = usize::try_from(processors).expect("a handful");
        let heals_at_ms = Some(if chores.is_empty() { HEALS_AT_MS } else { HEALS_SOON_AT_MS });
        Self { seed, processors, options, calls, faults, chores, heals_at_ms, bug: None }
    }

    /// A plan of many calls and a given number of faults, to see how large a world can be.
    #[must_use]
    pub fn large(seed: u64, calls: usize, processors: usize, faults: usize) -> Self {
        let mut rng = Rng::split(seed, 13);
        let options = Options { max_in_flight: 4096, page_size: 1000, ..Options::quick() };
        let span = u64::try_from(calls).unwrap_or(u64::MAX) * 20;
        let calls = (0..calls).map(|number| Call {
            session: format!("s{number}"),
            conversation: format!("c{number}"),
            ..one_call(&mut rng, number, span)
        });
        let calls = calls.collect();
        let count = u64::try_from(processors).unwrap_or(1);
        let faults = (0..faults).map(|_| Fault {
            when: Trigger::AtMs(rng.between(1_000, span)),
            what: Drawn::any(&mut rng).action(&mut rng, count, &options),
        });
        let faults = faults.filter(|fault| !is_tied(&fault.what)).collect();
        Self {
            seed,
            processors,
            options: options.clone(),
            calls,
            faults,
            chores: vec![],
            heals_at_ms: Some(span * 2),
            bug: None,
        }
    }
}

fn options(rng: &mut Rng, processors: u64) -> Options {
    let skewed = rng.chance(10);
    Options {
        quiet_period_ms: rng.pick(&[2_000, 2_000, 500]),
        settle_rounds: rng.pick(&[5, 5, 2]),
        ack_wait_ms: rng.pick(&[6_000, 6_000, 3_000]),
        max_deliver: rng.pick(&[5, 5, 3]),
        max_ack_pending: None,
        max_in_flight: rng.pick(&[1, 2, 8, 64]),
        page_size: rng.pick(&[1, 2, 3, 1_000]),
        retry_timeout_ms: rng.pick(&[600_000, 600_000, 60_000, 10_000]),
        retry_cap_ms: None,
        request_timeout_ms: rng.pick(&[7_500, 7_500, 2_000]),
        window_ms: rng.pick(&[86_400_000, 86_400_000, SHORT_WINDOW_MS, SHORTEST_WINDOW_MS]),
        delay_us: rng.pick(&[150, 2_000, 20_000]),
        jitter_us: rng.pick(&[0, 1_000, 50_000, 200_000]),
        skews_ms: if skewed {
            (0..processors).map(|_| i64::try_from(rng.between(0, 6_000)).unwrap_or(0) - 3_000).collect()
        } else {
            vec![]
        },
        timer_lag_ms: rng.pick(&[0, 0, 100, 1_000]),
        segment_writes: rng.pick(&[SegmentWrites::Journaled, SegmentWrites::Unjournaled]),
        announce_once: rng.chance(25),
        revise: rng.chance(30),
        max_bytes_in_flight: rng.pick(&[None, None, Some(1), Some(10_000)]),
        pull_expires_ms: None,
    }
}

fn calls(rng: &mut Rng) -> Vec<Call> {
    let count = rng.pick(&[1, 1, 2, 3, 5, 8]);
    let mut calls: Vec<Call> = (0..count).map(|number| one_call(rng, number, 10_000)).collect();
    if rng.chance(20) {
        end_together(&mut calls);
    }
    calls
}

/// Gives the segments starts of one clock, in another order than that of the indexes, and some the same; seldom one has none.
fn put_on_the_session_clock(rng: &mut Rng, call: &mut Call) {
    let starts: Vec<Option<i64>> = (0..8)
        .map(|_| {
            let start = i64::try_from(rng.between(0, 4)).unwrap_or(0) * 1_000;
            (!rng.chance(6)).then_some(start)
        })
        .collect();
    for segment in &mut call.segments {
        let start = usize::try_from(segment.index).ok().and_then(|index| starts.get(index));
        segment.session_start_ms = start.copied().flatten();
    }
}

/// Somebody changes a segment some time after its last save: before the end of its call, or long after it.
fn change_a_segment(rng: &mut Rng, call: &mut Call) {
    let Some(index) = call.segments.iter().map(|segment| segment.index).max() else { return };
    let saves = call.segments.iter().filter(|segment| segment.index == index);
    let Some(last) = saves.max_by_key(|segment| segment.at_ms).cloned() else { return };
    let text = rng.pick(&["Never mind.", "one two three four five?", ""]).to_owned();
    let session_start_ms = last.session_start_ms.filter(|_| !rng.chance(10)).map(|start| rng.pick(&[0, start, 4_000]));
    let at_ms = last.at_ms + rng.pick(&[1, 500, 3_000, 30_000]);
    call.segments.push(SegmentSaved { at_ms, text, session_start_ms, edits: 1, ..last });
}

/// All calls end at the time of the last one, so that what is asked for them goes into the same commands.
fn end_together(calls: &mut [Call]) {
    let ends_at = |call: &Call| call.ends.first().map_or(0, |end| end.at_ms);
    let last = calls.iter().map(ends_at).max().unwrap_or(0);
    for call in calls {
        let later = last - ends_at(call);
        call.segments.iter_mut().for_each(|segment| segment.at_ms += later);
        call.ends.iter_mut().for_each(|end| end.at_ms += later);
    }
}

fn one_call(rng: &mut Rng, number: usize, span_ms: u64) -> Call {
    let starts = rng.between(0, span_ms);
    let ends_at = starts + rng.between(0, 8_000);
    let mut segments = vec![];
    for index in 0..rng.pick(&[0, 1, 1, 2, 3, 6]) {
        let late = rng.chance(25);
        let at_ms = if late { ends_at + rng.between(0, 4_000) } else { rng.between(starts, ends_at) };
        let saved = SegmentSaved {
            at_ms,
            index,
            speaker: rng.pick(&SPEAKERS).map(str::to_owned),
            text: rng.pick(&TEXTS).to_owned(),
            session_start_ms: None,
            edits: 0,
        };
        if rng.chance(15) {
            segments.push(SegmentSaved { at_ms: at_ms + rng.between(0, 3_000), ..saved.clone() });
        }
        segments.push(saved);
    }
    let stored = segments.iter().map(|segment| segment.index).collect::<std::collections::BTreeSet<_>>().len();
    let announced = u64::try_from(stored).unwrap_or(0) + if rng.chance(20) { rng.between(1, 3) } else { 0 };
    let end = End { at_ms: ends_at, payload: EndPayload::Announces(announced) };
    let mut ends = vec![end.clone()];
    // Told by its time, so that nothing else is drawn otherwise.
    let claims = ends_at % 16 == 5;
    if rng.chance(25) {
        ends.push(End { at_ms: ends_at + rng.pick(&[0, 1, 1_000, 4_000, 15_000]), ..end });
    }
    if let ([end], true) = (ends.as_mut_slice(), claims) {
        end.payload = EndPayload::Claims(announced);
    }
    // Told by its time as well: somebody corrects the first segment, and asks for the call again.
    if ends_at % 8 == 3 {
        if let Some(first) = segments.first().cloned() {
            let corrected = "As corrected: shall we?".to_owned();
            segments.push(SegmentSaved { at_ms: ends_at + 18_000, text: corrected, ..first });
        }
        let payload = EndPayload::AsksAgain { announces: announced, request: 1 };
        ends.push(End { at_ms: ends_at + 20_000, payload });
    }
    if rng.chance(8) {
        ends.push(End { at_ms: ends_at, payload: EndPayload::Malformed(rng.pick(&MALFORMED).to_owned()) });
    }
    let (conversation, session) = match number % 2 {
        _ if !rng.chance(10) => (format!("c{number}"), format!("s{number}")),
        0 => ("a:b".to_owned(), format!("c{number}")),
        _ => ("a".to_owned(), format!("b:c{}", number - 1)),
    };
    Call { conversation, session, segments, ends, verdict: Verdict::Taken }
}

/// What the operator does by hand: seldom while faults go on, more often when everything is mended, at last beyond the
/// window.
fn chores(rng: &mut Rng, options: &Options) -> Vec<Chore> {
    let mut chores = vec![];
    if rng.chance(10) {
        let what = rng.pick(&[Task::Redrive, Task::ResetConsumer, Task::PublishAgain]);
        chores.push(Chore { at_ms: rng.between(0, HOSTILE_MS), what });
    }
    let mut at_ms = HEALS_SOON_AT_MS + 60_000;
    if rng.chance(15) {
        chores.push(Chore { at_ms, what: Task::Redrive });
    }
    if rng.chance(15) {
        if options.window_ms == SHORT_WINDOW_MS && rng.chance(50) {
            at_ms += SHORT_WINDOW_MS;
        }
        match rng.between(0, 2) {
            0 => chores.push(Chore { at_ms, what: Task::ResetConsumer }),
            1 => chores.push(Chore { at_ms, what: Task::PublishAgain }),
            _ => {
                chores.push(Chore { at_ms, what: Task::PurgeAndRestart });
                chores.push(Chore { at_ms: at_ms + 1_000, what: Task::PublishAgain });
            }
        }
    }
    chores
}

/// The kinds of faults that a swarm mixes.
#[derive(Debug, Clone, Copy)]
enum Drawn {
    Kill,
    Freeze,
    Rollout,
    Broker,
    Store,
    StepDown,
    FailWrites,
    Reset,
    Sever,
    FreezeLink,
    LoseAnswer,
    FailStore,
    Slow,
    LoseReport,
    ChangeSettings,
    Duplicate,
}

impl Drawn {
    const ALL: [Self; 16] = [
        Self::Kill,
        Self::Freeze,
        Self::Rollout,
        Self::Broker,
        Self::Store,
        Self::StepDown,
        Self::FailWrites,
        Self::Reset,
        Self::Sever,
        Self::FreezeLink,
        Self::LoseAnswer,
        Self::FailStore,
        Self::Slow,
        Self::LoseReport,
        Self::ChangeSettings,
        Self::Duplicate,
    ];

    fn any(rng: &mut Rng) -> Self {
        rng.pick(&Self::ALL)
    }

    fn action(self, rng: &mut Rng, processors: u64, options: &Options) -> Action {
        let processor = usize::try_from(rng.between(0, processors - 1)).unwrap_or(0);
        let wait = options.ack_wait_ms;
        let server = rng.pick(&[Server::Broker, Server::Store]);
        match self {
            Self::Kill => Action::Kill {
                processor,
                outage_ms: rng.pick(&[0, 50, 1_000, wait - 100, wait + 100, 30_000, 130_000]),
            },
            Self::Freeze => Action::Freeze {
                processor,
                span_ms: rng.pick(&[500, wait + 100, wait * 3, 130_000, LONGER_THAN_PINGS_MS]),
            },
            Self::Rollout => Action::Rollout { processor, outage_ms: rng.pick(&[0, 1_000, wait]) },
            Self::Broker => {
                let outage_ms = rng.pick(&[0, 100, 1_000, wait + 100, 30_000]);
                if rng.chance(50) {
                    Action::KillServer { server: Server::Broker, outage_ms, lag_ms: rng.between(0, 100) }
                } else {
                    Action::StopServer { server: Server::Broker, outage_ms }
                }
            }
            Self::Store => {
                let outage_ms = rng.pick(&[0, 100, 1_000, 20_000, 90_000]);
                if rng.chance(50) {
                    Action::KillServer { server: Server::Store, outage_ms, lag_ms: rng.between(0, 100) }
                } else {
                    Action::StopServer { server: Server::Store, outage_ms }
                }
            }
            Self::StepDown => Action::StepDown { span_ms: rng.pick(&[100, 1_000, 12_000]) },
            Self::FailWrites => Action::FailWrites { span_ms: rng.pick(&[100, 1_000, 20_000, 90_000]) },
            Self::Reset => Action::Reset { processor, server },
            Self::Sever => Action::Sever {
                processor,
                server,
                span_ms: rng.pick(&[0, 1_000, 20_000]),
                server_notices_ms: rng.pick(&[1_000, 10_000, 240_000]),
            },
            Self::FreezeLink => Action::FreezeLink {
                processor,
                server,
                direction: rng.pick(&[Direction::Up, Direction::Down]),
                span_ms: rng.pick(&[500, 2_000, wait + 100, 20_000]),
            },
            Self::LoseAnswer => Action::LoseAnswer,
            Self::FailStore => {
                let fault = rng.pick(&[
                    StoreFault::NotPrimary,
                    StoreFault::WriteConflict,
                    StoreFault::TimedOut,
                    StoreFault::Unauthorized,
                ]);
                match rng.between(0, 5) {
                    0 => Action::FailBefore(fault),
                    1 => Action::FailAfter(fault),
                    2 => Action::FailMember(fault),
                    3 => Action::FailConcern { rolled_back: rng.chance(50) },
                    4 => Action::Garble,
                    _ => Action::Race,
                }
            }
            Self::Slow => Action::Slow { span_ms: rng.pick(&[100, 1_000, 5_000, 40_000]) },
            Self::LoseReport => Action::LoseReport,
            Self::ChangeSettings => change_of_settings(rng),
            Self::Duplicate => Action::Duplicate { after_ms: rng.pick(&[0, 10, 1_000, wait + 100]) },
        }
    }
}

fn change_of_settings(rng: &mut Rng) -> Action {
    match rng.between(0, 4) {
        0 => Action::SetAckWait { ack_wait_ms: rng.pick(&[4_000, 9_000, 30_000]) },
        1 => Action::SetMaxDeliver { max_deliver: rng.pick(&[2, 3, 5, 10]) },
        2 => Action::SetMaxAckPending { max_ack_pending: rng.pick(&[Some(1), Some(2), Some(8), None]) },
        3 => Action::LengthenWindow { window_ms: rng.pick(&[90_000_000, 172_800_000]) },
        _ => Action::SetProcessors {
            quiet_period_ms: rng.pick(&[100, 500, 2_000, 5_000]),
            page_size: rng.pick(&[1, 2, 1_000]),
            max_in_flight: rng.pick(&[1, 2, 8, 64]),
        },
    }
}

/// Whether the action is about the very thing that triggers it.
fn is_tied(action: &Action) -> bool {
    match action {
        Action::LoseAnswer
        | Action::FailBefore(_)
        | Action::FailAfter(_)
        | Action::Race
        | Action::FailMember(_)
        | Action::FailConcern { .. }
        | Action::Garble
        | Action::Slow { .. }
        | Action::LoseReport
        | Action::Duplicate { .. } => true,
        Action::Kill { .. }
        | Action::Freeze { .. }
        | Action::Rollout { .. }
        | Action::KillServer { .. }
        | Action::StopServer { .. }
        | Action::StepDown { .. }
        | Action::FailWrites { .. }
        | Action::Reset { .. }
        | Action::Sever { .. }
        | Action::FreezeLink { .. }
        | Action::SetAckWait { .. }
        | Action::SetMaxDeliver { .. }
        | Action::SetMaxAckPending { .. }
        | Action::LengthenWindow { .. }
        | Action::SetProcessors { .. } => false,
    }
}

fn faults(rng: &mut Rng, processors: u64, options: &Options) -> Vec<Fault> {
    if rng.chance(10) {
        return vec![];
    }
    let mut mix: Vec<Drawn> = Drawn::ALL.into_iter().filter(|_| rng.chance(30)).collect();
    if mix.is_empty() {
        mix.push(Drawn::Kill);
    }
    let count = rng.pick(&[1, 1, 2, 3, 5, 8]);
    let fault = |rng: &mut Rng| {
        let drawn = rng.pick(&mix);
        let what = drawn.action(rng, processors, options);
        Fault { when: trigger(rng, drawn, processors), what }
    };
    let mut faults: Vec<Fault> = (0..count).map(|_| fault(rng)).collect();
    if rng.chance(6) {
        faults.extend(crash_loop(rng, processors, options));
    }
    faults
}

/// Whoever takes the call up dies of it, as often as it is delivered.
fn crash_loop(rng: &mut Rng, processors: u64, options: &Options) -> Vec<Fault> {
    let kind = rng.pick(&[
        EffectPattern::Of(EffectKind::Count),
        EffectPattern::Of(EffectKind::Load),
        EffectPattern::Of(EffectKind::Save),
        EffectPattern::Of(EffectKind::Mark),
    ]);
    let outage_ms = options.ack_wait_ms + 100;
    let mut faults = vec![];
    for processor in 0..usize::try_from(processors).unwrap_or(0) {
        for nth in 1..=options.max_deliver {
            let when = Trigger::Effect { processor, kind, nth, moment: Moment::Before };
            faults.push(Fault { when, what: Action::Kill { processor, outage_ms } });
        }
    }
    faults
}

/// Most faults come while something is under way.
fn trigger(rng: &mut Rng, drawn: Drawn, processors: u64) -> Trigger {
    let processor = usize::try_from(rng.between(0, processors - 1)).unwrap_or(0);
    let moment = rng.pick(&[Moment::Before, Moment::After]);
    let near = rng.pick(&[3, 8, 20, 60]);
    let nth = rng.between(1, near);
    match drawn {
        Drawn::LoseReport => Trigger::Effect { processor, kind: EffectPattern::Any, nth, moment: Moment::Before },
        Drawn::LoseAnswer => {
            let server = rng.pick(&[Server::Broker, Server::Store]);
            Trigger::Arrival { server, nth, moment: Moment::Before }
        }
        Drawn::Duplicate => Trigger::Arrival { server: Server::Broker, nth, moment: Moment::Before },
        Drawn::FailStore | Drawn::Slow => Trigger::Arrival { server: Server::Store, nth, moment: Moment::Before },
        Drawn::Kill
        | Drawn::Freeze
        | Drawn::Rollout
        | Drawn::Broker
        | Drawn::Store
        | Drawn::StepDown
        | Drawn::FailWrites
        | Drawn::Reset
        | Drawn::Sever
        | Drawn::FreezeLink
        | Drawn::ChangeSettings => match rng.between(0, 9) {
            0..=3 => Trigger::AtMs(rng.between(0, HOSTILE_MS)),
            4..=7 => {
                let kind = rng.pick(&EffectPattern::all().collect::<Vec<_>>());
                let nth = if kind == EffectPattern::Any { nth } else { rng.between(1, 4) };
                Trigger::Effect { processor, kind, nth, moment }
            }
            _ => Trigger::Arrival { server: rng.pick(&[Server::Broker, Server::Store]), nth, moment },
        },
    }
}
