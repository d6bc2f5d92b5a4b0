//! A call that was really taken is killed at each point of its trace.

use std::collections::BTreeMap;

use transcript_core::{
    Cursor, Delivery, Effect, EffectKind, Failure, FailureKind, Input, Notified, Output, Page, Payload, Processor,
    Report, Settings, Stored, Time, WallTime, ids::JobId, summary::Segment,
};
use transcript_sim::{
    Bug, Plan, Recording,
    crashes::{self, Crash, Unfit, everywhere, everywhere_with},
    plan::{Action, Call, EffectPattern, Fault, Moment, Options, Server, Trigger, Verdict},
};
use transcript_trace::{
    Content, FORMAT, Header, Reader, Recorder, Servers,
    cut::{Wanted, cut},
};

const STARTED_MS: i64 = 1_764_400_000_123;
const MILLIS: u64 = 1_000;

/// A processor in production: a core that is recorded, with servers that answer after 4 ms.
struct Production {
    core: Processor,
    recorder: Recorder<Vec<u8>>,
    due: BTreeMap<(u64, u64), Input>,
    pushed: u64,
    /// When each session's segments were stored, in milliseconds since the start.
    stored_ms: BTreeMap<&'static str, Vec<u64>>,
    /// While the store is away, in milliseconds.
    away_ms: std::ops::Range<u64>,
    refused: bool,
}

impl Production {
    fn new(settings: &Settings) -> Self {
        let header = Header {
            format: FORMAT,
            program: "transcript-processor 0.1.0".to_owned(),
            servers: Servers { nats: Some("2.15.0".to_owned()), mongodb: Some("6.0.27".to_owned()) },
            processor: Some("host-1".into()),
            started_at: WallTime::from_millis(STARTED_MS),
            content: Content::Redacted,
            settings: settings.clone(),
            pull_expires: None,
            continues: None,
            session: None,
            about: None,
        };
        let core = || Processor::new(settings.clone()).expect("the settings can work");
        let recorder = Recorder::new(vec![], header, core()).expect("in memory");
        let (due, stored_ms) = (BTreeMap::new(), BTreeMap::new());
        Self { core: core(), recorder, due, pushed: 0, stored_ms, away_ms: 0..0, refused: false }
    }

    fn segments(&mut self, session: &'static str, stored_ms: &[u64]) {
        self.stored_ms.insert(session, stored_ms.to_vec());
    }

    fn end(&mut self, sequence: u64, session: &str, stored_ms: u64, delivered_ms: u64) {
        let announced = self.stored_ms.get(session).map_or(0, Vec::len);
        let text = format!(r#"{{"conversationId":"c","sessionId":"{session}","publishedSegments":{announced}}}"#);
        let wall = |ms: u64| WallTime::from_millis(STARTED_MS + i64::try_from(ms).expect("small"));
        let delivery = Delivery {
            stream_sequence: sequence,
            attempt: 1,
            stored_at: wall(stored_ms),
            received_at: wall(delivered_ms),
            reply: format!("$JS.ACK.TRANSCRIPTION.transcript-processor.1.{sequence}.1.0.0").into(),
            redrive_of: None,
            trace_context: None,
            payload: Payload(text.into_bytes()),
        };
        self.push(delivered_ms * MILLIS + 77, Input::Delivered(delivery));
    }

    fn push(&mut self, at: u64, input: Input) {
        self.pushed += 1;
        self.due.insert((at, self.pushed), input);
    }

    /// Goes on until nothing is left to do.
    fn run(mut self) -> Vec<u8> {
        let mut wake_up = None;
        loop {
            // A timer of the real shell is a little late.
            let woken = wake_up.map(|wake_up: transcript_core::WakeUp| wake_up.at.as_micros() + 300);
            let next = self.due.first_key_value().map(|((at, _), _)| *at);
            let (at, input) = match (next, woken) {
                (None, None) => break,
                (Some(next), woken) if woken.is_none_or(|woken| next <= woken) => {
                    let ((at, _), input) = self.due.pop_first().expect("it is there");
                    (at, input)
                }
                (_, woken) => (woken.expect("one of them"), Input::Woken),
            };
            let now = Time::from_micros(at);
            let job: Option<JobId> = self.core.handle(now, input.clone());
            self.recorder.record(now, job, input).expect("in memory");
            wake_up = loop {
                match self.core.poll_output() {
                    Output::Perform { id, effect } => {
                        let report = self.report(at / MILLIS, &effect);
                        self.push(at + 4_000, Input::Reported { effect: id, report });
                    }
                    Output::InProgress { .. } | Output::Notice(_) => {}
                    Output::Wait(wake_up) => break wake_up,
                    Output::StopDeliveries | Output::Drained => unreachable!("nobody drains it"),
                }
            };
        }
        self.recorder.get_mut().clone()
    }

    fn there(&self, session: &str, now_ms: u64) -> Vec<Segment> {
        let stored = self.stored_ms.get(session).into_iter().flatten().filter(|at| **at <= now_ms);
        let segments = stored.zip(0..).map(|(_, index)| Segment {
            id: format!("{session}:{index}"),
            index: Some(index),
            speaker: Some(["Ada", "Grace"][usize::from(index % 2 == 1)].to_owned()),
            text: format!("Shall we taste oil number {index}?"),
            start_ms: Some(index * 1_000),
            end_ms: None,
            ..Segment::default()
        });
        segments.collect()
    }

    fn report(&self, now_ms: u64, effect: &Effect) -> Report {
        let of_store = effect.kind().server() == transcript_core::Server::Mongodb;
        let failed = |kind| Report::Failed(Failure { kind, detail: "as it is".to_owned() });
        if of_store && self.away_ms.contains(&now_ms) {
            return failed(FailureKind::Busy);
        }
        match effect {
            Effect::Count { session_id } => Report::Counted { segments: self.there(session_id, now_ms).len() as u64 },
            Effect::Load { session_id, after, limit, counted, .. } => {
                let from: usize = after.as_ref().map_or(0, |Cursor(place)| place.parse().expect("a place"));
                let limit = usize::try_from(*limit).expect("small");
                let all = self.there(session_id, now_ms);
                // Behind the segments with an index a page looks for those without one.
                let is_paged = usize::try_from(*counted).expect("small") > limit && from < all.len();
                let next = is_paged.then(|| Cursor((from + limit).min(all.len()).to_string()));
                Report::Loaded(Page {
                    segments: all.into_iter().skip(from).take(limit).collect(),
                    next,
                    ..Page::default()
                })
            }
            Effect::Save { .. } if self.refused => failed(FailureKind::Rejected),
            Effect::Save { summary } => Report::Saved(Stored {
                segments: summary.segments,
                complete: summary.complete,
                notified: None,
                revision: 1,
                revised: None,
                edits: 0,
                reprocess: 0,
            }),
            Effect::Check { .. } => Report::Checked(None),
            Effect::Publish { notification, .. } => {
                Report::Published { stream_sequence: 99, segments: notification.segments, edits: 0 }
            }
            Effect::Mark { notified: Notified { .. }, .. } => Report::Marked,
            Effect::DeadLetter { .. } => Report::DeadLettered { stream_sequence: 98 },
            Effect::Republish { .. } => Report::Republished { stream_sequence: 97 },
            Effect::Acknowledge { .. } => Report::Acknowledged,
        }
    }
}

fn settings() -> Settings {
    Settings { page_size: 2, ..Settings::default() }
}

/// Two calls at a time; one has a segment that comes late, in the second quiet period.
fn two_calls() -> Vec<u8> {
    let mut production = Production::new(&settings());
    production.segments("s", &[10, 20, 7_500]);
    production.segments("other", &[10]);
    production.end(7, "s", 5_000, 5_003);
    production.end(8, "other", 5_900, 5_902);
    production.run()
}

fn wanted(session_id: &str) -> Wanted {
    Wanted { session_id: session_id.to_owned(), conversation_id: None }
}

fn crash(trace: &[u8], session: &str) -> crashes::Report {
    everywhere(Reader::new(trace), Some(&wanted(session))).expect("the trace has the session")
}

fn killed(report: &crashes::Report) -> Vec<&str> {
    report.crashes.iter().map(|crash| crash.killed.as_str()).collect()
}

#[test]
fn a_call_of_production_is_killed_at_each_of_its_points() {
    let report = crash(&two_calls(), "s");
    assert!(report.is_kept(), "{report}");
    assert_eq!(report.otherwise, Vec::<String>::new());
    assert_eq!(
        killed(&report),
        [
            "in the wait of 1.997 s before count 1",
            "after delivery, before count 1 was asked",
            "after count 1 was asked, before its answer",
            "in the wait of 2.000 s before count 2",
            "after count 1, before count 2 was asked",
            "after count 2 was asked, before its answer",
            "in the wait of 2.000 s before count 3",
            "after count 2, before count 3 was asked",
            "after count 3 was asked, before its answer",
            "after count 3, before load 1 was asked",
            "after load 1 was asked, before its answer",
            "after load 1, before load 2 was asked",
            "after load 2 was asked, before its answer",
            "after load 2, before load 3 was asked",
            "after load 3 was asked, before its answer",
            "after load 3, before save was asked",
            "after save was asked, before its answer",
            "after save, before publish was asked",
            "after publish was asked, before its answer",
            "after publish, before mark was asked",
            "after mark was asked, before its answer",
            "after mark, before ack was asked",
            "after ack was asked, before its answer",
        ]
    );
    for Crash { killed, came, .. } in &report.crashes {
        let came = came.as_ref().unwrap_or_else(|| panic!("never: {killed}"));
        assert_eq!((came.summaries, came.notifications), (1, 1), "{killed}");
        // What was sent before a kill arrives.
        let done = killed == "after ack was asked, before its answer";
        assert_eq!(came.deliveries, if done { 1 } else { 2 }, "{killed}");
        let recovery = came.recovery_us.expect("it was settled after the kill");
        assert_eq!(recovery > 1_000_000, !done, "{killed}: {recovery}");
        assert!(recovery < 10_500_000, "the ack wait, and another settling: {killed}: {recovery}");
    }
}

#[test]
fn the_rebuilt_call_is_that_of_the_trace() {
    let plan = crash(&two_calls(), "s").plan;
    let [call] = plan.calls.as_slice() else { panic!("one call") };
    assert_eq!((call.conversation.as_str(), call.session.as_str()), ("c", "s"));
    let [end] = call.ends.as_slice() else { panic!("one end") };
    assert_eq!(end.at_ms, 1_000);
    // The first two were there at the first count; the third is stored just before the count that saw it.
    let stored: Vec<u64> = call.segments.iter().map(|segment| segment.at_ms).collect();
    assert_eq!(&stored[..2], [0, 0]);
    assert!((4_980..5_010).contains(&stored[2]), "{stored:?}");
    assert!(call.segments.iter().all(|segment| segment.text.ends_with('?') && !segment.text.contains("oil")));
    assert_eq!((plan.options.page_size, plan.options.delay_us), (2, 2_000));
    assert_eq!((plan.processors, plan.faults.as_slice()), (2, &[][..]));
}

#[test]
fn a_trace_that_was_cut_tells_the_same() {
    let whole = two_calls();
    let mut alone = vec![];
    cut(Reader::new(whole.as_slice()), &wanted("s"), &mut alone).expect("it is in the trace");
    let report = everywhere(Reader::new(alone.as_slice()), None).expect("one session");
    let before = crash(&whole, "s");
    assert_eq!(report.plan, before.plan);
    assert_eq!(killed(&report), killed(&before));
}

#[test]
fn a_trace_that_breaks_off_is_taken_as_far_as_it_goes() {
    let mut production = Production::new(&settings());
    production.segments("s", &[10]);
    production.end(7, "s", 5_000, 5_003);
    let mut whole = production.run();
    let until = whole.windows(9).position(|part| part == b"\"publish\"").expect("it is published");
    whole.truncate(until);
    let report = everywhere(Reader::new(whole.as_slice()), None).expect("one session");
    assert_eq!(killed(&report).last(), Some(&"after save was asked, before its answer"));
    assert!(report.is_kept() && report.crashes.iter().all(|crash| crash.came.is_some()), "{report}");
}

#[test]
fn an_end_that_waited_is_taken_up_when_it_was() {
    let mut production = Production::new(&settings());
    production.segments("s", &[0]);
    production.end(7, "s", 1_000, 41_000);
    let report = everywhere(Reader::new(production.run().as_slice()), None).expect("one session");
    assert_eq!(report.otherwise, Vec::<String>::new());
    let first = report.crashes.first().expect("a point");
    assert_eq!(first.killed, "after delivery, before count 1 was asked", "it was old: it counts at once");
    let late = |processor| Fault { when: Trigger::AtMs(0), what: Action::Kill { processor, outage_ms: 41_000 } };
    assert_eq!(report.plan.faults, [late(0), late(1)]);
    assert!(report.is_kept(), "{report}");
}

#[test]
fn a_server_that_was_away_is_away_again() {
    let mut production = Production::new(&settings());
    production.segments("s", &[0]);
    production.away_ms = 6_000..9_500;
    production.end(7, "s", 5_000, 5_003);
    let report = everywhere(Reader::new(production.run().as_slice()), None).expect("one session");
    let [Fault { when: Trigger::AtMs(from), what: Action::StepDown { span_ms } }] = report.plan.faults.as_slice()
    else {
        panic!("{:?}", report.plan.faults)
    };
    // It failed first when the count was asked for, and no more at the try after it was back.
    assert!((2_990..3_010).contains(from), "{from}");
    assert!((2_400..5_600).contains(span_ms), "{span_ms}");
    assert!(report.is_kept() && report.otherwise.is_empty(), "{report}");
    assert!(report.crashes.iter().any(|crash| crash.killed.starts_with("after count 1 failed (busy), before count 2")));
}

#[test]
fn a_summary_that_was_refused_is_refused_again() {
    let mut production = Production::new(&settings());
    production.segments("s", &[0]);
    production.refused = true;
    production.end(7, "s", 5_000, 5_003);
    let report = everywhere(Reader::new(production.run().as_slice()), None).expect("one session");
    assert_eq!(report.plan.calls[0].verdict, Verdict::Refused);
    assert!(report.is_kept() && report.otherwise.is_empty(), "{report}");
    assert!(killed(&report).contains(&"after save failed (rejected), before dead letter was asked"));
    assert!(report.crashes.iter().all(|crash| crash.came.as_ref().is_some_and(|came| came.dead_letters == 1)));
}

/// A call whose process is killed between save and publish, as the simulator writes it down.
fn killed_once(outage_ms: u64) -> Vec<u8> {
    let when =
        Trigger::Effect { processor: 0, kind: EffectPattern::Of(EffectKind::Publish), nth: 1, moment: Moment::Before };
    let plan = Plan {
        seed: 0,
        processors: 1,
        options: Options::quick(),
        calls: vec![Call::short("c", "s", 1_000)],
        faults: vec![Fault { when, what: Action::Kill { processor: 0, outage_ms } }],
        chores: vec![],
        heals_at_ms: None,
        bug: None,
    };
    plan.record(Recording::Off).1
}

#[test]
fn a_process_that_was_killed_is_killed_again() {
    let trace = killed_once(130_000);
    let report = everywhere(Reader::new(trace.as_slice()), None).expect("one session");
    let [Fault { what: Action::Kill { processor: 0, outage_ms: 130_000 }, .. }] = report.plan.faults.as_slice() else {
        panic!("{:?}", report.plan.faults)
    };
    assert_eq!(report.rebuilt.deliveries, 2);
    assert!(report.is_kept(), "{report}");
    // Both processes' points are there, and a kill in the second one makes a third delivery.
    let deliveries = |crash: &Crash| crash.came.as_ref().map(|came| (crash.part, came.deliveries));
    let seen: Vec<(u64, u64)> = report.crashes.iter().filter_map(deliveries).collect();
    assert!(seen.contains(&(1, 2)) && seen.contains(&(2, 3)), "{seen:?}\n{report}");
}

#[test]
fn a_freeze_and_a_rollout_of_the_trace_happen_again() {
    let of = |what| {
        let plan = Plan {
            seed: 0,
            processors: 2,
            options: Options::quick(),
            calls: vec![Call::short("c", "s", 1_000)],
            faults: vec![Fault { when: Trigger::AtMs(2_000), what }],
            chores: vec![],
            heals_at_ms: None,
            bug: None,
        };
        let trace = plan.record(Recording::Off).1;
        let report = everywhere(Reader::new(trace.as_slice()), None).expect("one session");
        assert!(report.is_kept() && report.otherwise.is_empty(), "{report}");
        assert_eq!(report.rebuilt.deliveries, 2);
        report.plan.faults
    };
    // Its last word before was at the delivery; the next heartbeat is late by the freeze.
    let [Fault { when: Trigger::AtMs(at), what: Action::Freeze { processor: 0, span_ms } }] =
        of(Action::Freeze { processor: 0, span_ms: 20_000 })[..]
    else {
        panic!("not the freeze")
    };
    assert!((1_000..=2_000).contains(&at) && (21_900..=22_100).contains(&(at + span_ms)), "{at} {span_ms}");
    let rollout = Action::Rollout { processor: 0, outage_ms: 1_000 };
    assert_eq!(of(rollout.clone()), [Fault { when: Trigger::AtMs(2_000), what: rollout }]);
}

#[test]
fn planted_bugs_are_found() {
    let trace = two_calls();
    let with = |bug| everywhere_with(Reader::new(trace.as_slice()), Some(&wanted("s")), Some(bug)).expect("a session");
    let broken = |report: &crashes::Report| -> Vec<(String, String)> {
        let found = report.broken().filter_map(|crash| {
            let violation = crash.came.as_ref()?.violation.as_ref()?;
            Some((crash.killed.clone(), violation.property.clone()))
        });
        found.collect()
    };
    // The acknowledgement goes out before the notification: whoever is killed between them takes it along.
    let report = with(Bug::AckBeforePublish);
    let found = broken(&report);
    assert!(!report.is_kept());
    let property = "AckOnlyAfterSummaryAndNotification".to_owned();
    assert!(found.contains(&("after publish was asked, before its answer".to_owned(), property)), "{found:?}");

    // A mark that nobody looks at matters only to who is killed behind it.
    let report = with(Bug::MarkIgnored);
    assert_eq!(report.rebuilt.violation, None, "without a kill nothing is seen of it");
    let points: Vec<String> = broken(&report).into_iter().map(|(killed, _)| killed).collect();
    assert_eq!(points, ["after mark was asked, before its answer", "after mark, before ack was asked"], "{report}");

    for crash in report.broken() {
        let plan = crash.plan.as_ref().expect("its plan");
        let again = plan.run(Recording::Off).violation;
        assert_eq!(again, crash.came.as_ref().and_then(|came| came.violation.clone()), "its plan shows it");
        assert_eq!(Plan { bug: None, ..plan.clone() }.run(Recording::Off).violation, None);
    }
    let text = report.to_string();
    for part in
        ["BROKEN at 2 of 23 points.", "BROKEN: AMarkedSummaryIsNotAnnouncedAgain", "A plan that shows it:", "Kill {"]
    {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
}

#[test]
fn the_table_is_narrow_whatever_the_ids() {
    let long = "\"<script>".repeat(28);
    let plan = Plan {
        seed: 0,
        processors: 2,
        options: Options::quick(),
        calls: vec![Call::short(&long, &long, 1_000)],
        faults: vec![Fault {
            when: Trigger::AtMs(2_000),
            what: Action::KillServer { server: Server::Broker, outage_ms: 20_000, lag_ms: 50 },
        }],
        chores: vec![],
        heals_at_ms: None,
        bug: None,
    };
    let trace = plan.record(Recording::Off).1;
    for bug in [None, Some(Bug::AckBeforePublish)] {
        let report = everywhere_with(Reader::new(trace.as_slice()), None, bug).expect("one session");
        let text = report.to_string();
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
        assert!(text.contains("recovery") && text.lines().count() > 15, "{text}");
    }
}

/// Whatever was drawn to go wrong, the call that is made of the trace keeps every promise, killed once more.
#[test]
fn traces_of_drawn_worlds_are_rebuilt() {
    let (mut reached, mut never, mut sessions) = (0, 0, 0);
    for seed in 0..12 {
        let plan = Plan::of_seed(seed);
        let trace = plan.record(Recording::Off).1;
        for call in &plan.calls {
            let only = Wanted { session_id: call.session.clone(), conversation_id: Some(call.conversation.clone()) };
            let report = match everywhere(Reader::new(trace.as_slice()), Some(&only)) {
                Ok(report) => report,
                Err(Unfit::Nothing { .. }) => continue,
                Err(other) => panic!("seed {seed}: {other}"),
            };
            assert!(report.is_kept(), "seed {seed}: {report}");
            sessions += 1;
            let came = report.crashes.iter().filter(|crash| crash.came.is_some()).count();
            reached += came;
            never += report.crashes.len() - came;
        }
    }
    assert!(sessions > 15 && reached > 4 * never, "{sessions} sessions, {reached} points, {never} not reached");
}

#[test]
fn absurd_numbers_of_a_trace_are_bounded() {
    let mut production = Production::new(&settings());
    let payload = br#"{"conversationId":"c","sessionId":"s","publishedSegments":9007199254740991}"#;
    production.end(7, "s", 5_000, 5_003);
    for input in production.due.values_mut() {
        if let Input::Delivered(delivery) = input {
            (delivery.payload, delivery.stored_at) = (Payload(payload.to_vec()), WallTime::from_millis(i64::MAX));
        }
    }
    let mut trace = production.run();
    let until = trace.windows(7).position(|part| part == b"\"count\"").expect("it is counted");
    trace.truncate(until);
    let report = everywhere(Reader::new(trace.as_slice()), None).expect("one session");
    assert_eq!(report.plan.calls[0].segments.len() as u64, crashes::MOST_SEGMENTS);
    assert!(report.otherwise.iter().any(|what| what.starts_with("9007199254740991 segments are more")), "{report}");

    let zero = String::from_utf8(two_calls()).expect("text").replace("\"ackWait\":6000000", "\"ackWait\":900");
    let unfit = everywhere(Reader::new(zero.as_bytes()), Some(&wanted("s"))).expect_err("less than a millisecond");
    assert!(matches!(unfit, Unfit::Settings(_)), "{unfit}");
}

#[test]
fn a_trace_without_the_call_says_so() {
    let trace = two_calls();
    let unfit = |session: Option<&str>| {
        everywhere(Reader::new(trace.as_slice()), session.map(wanted).as_ref())
            .expect_err("it cannot be done")
            .to_string()
    };
    assert_eq!(unfit(Some("nobody")), "the trace has no call of session \"nobody\"");
    assert!(
        unfit(None).starts_with("the trace has more than one session: say which (\"s\" of \"c\", \"other\" of \"c\"")
    );
    let nothing = everywhere(Reader::new(&b"{}\n"[..]), None).expect_err("no trace");
    assert!(matches!(nothing, Unfit::Read(_)), "{nothing}");
}
