//! Any order, repetition and loss of reports: what the core promises whatever the world does.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use proptest::prelude::*;
use transcript_core::{
    Acknowledgement, Cursor, Delivery, Effect, Exhausted, Failure, FailureKind, Input, Notified, Output, Page, Payload,
    Processor, Report, Settings, StaleSummary, Stored, Time, WallTime,
    ids::{EffectId, JobId, Session},
    summary::Segment,
};

/// One thing that the world does.
#[derive(Debug, Clone)]
enum Step {
    Deliver {
        session: u8,
        age_ms: u16,
        malformed: bool,
    },
    /// Hands one of the messages over again: the newest for 0.
    Redeliver {
        back: usize,
    },
    /// Says of one of the messages that it used up its deliveries.
    Exhaust {
        back: usize,
    },
    Outgrow {
        session: u8,
    },
    /// Reports one of the effects ever asked for: the newest for 0, the one before it for 1, and so on.
    Report {
        back: usize,
        what: ReportPick,
    },
    /// Lets the time pass to the next wake-up, so many times.
    Wake(u8),
    Quiet,
    Resume,
    Drain,
}

#[derive(Debug, Clone, Copy)]
enum ReportPick {
    Success { variant: u8 },
    AnotherKind,
    Failure(FailureKind),
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop::sample::select(vec![
        FailureKind::Unreachable,
        FailureKind::TimedOut,
        FailureKind::Busy,
        FailureKind::Denied,
        FailureKind::Rejected,
        FailureKind::Missing,
    ]);
    let what = prop_oneof![
        8 => (0..4_u8).prop_map(|variant| ReportPick::Success { variant }),
        1 => Just(ReportPick::AnotherKind),
        3 => kind.prop_map(ReportPick::Failure),
    ];
    prop_oneof![
        4 => (0..3_u8, 0..4000_u16, prop::bool::weighted(0.1))
            .prop_map(|(session, age_ms, malformed)| Step::Deliver { session, age_ms, malformed }),
        2 => (0..4_usize).prop_map(|back| Step::Redeliver { back }),
        1 => prop_oneof![
            (0..4_usize).prop_map(|back| Step::Exhaust { back }),
            (0..3_u8).prop_map(|session| Step::Outgrow { session }),
        ],
        20 => (prop_oneof![8 => 0..4_usize, 1 => 0..40_usize], what).prop_map(|(back, what)| Step::Report { back, what }),
        8 => (1..4_u8).prop_map(Step::Wake),
        1 => prop::bool::ANY.prop_map(|quiet| if quiet { Step::Quiet } else { Step::Resume }),
        1 => prop::bool::weighted(0.1).prop_map(|drain| if drain { Step::Drain } else { Step::Wake(40) }),
    ]
}

fn settings() -> Settings {
    Settings {
        quiet_period: Duration::from_millis(500),
        settle_rounds: 3,
        ack_wait: Duration::from_secs(3),
        max_in_flight: 4,
        page_size: 2,
        retry_timeout: Duration::from_secs(20),
        request_timeout: Duration::from_millis(400),
        grace: Duration::from_secs(15),
        max_deliver: 3,
        max_bytes_in_flight: 9000,
        revise: true,
        ..Settings::default()
    }
}

/// What the checker knows of a job from what was said about it.
#[derive(Debug, Default)]
struct JobHistory {
    session: String,
    /// The effect last asked for, when, and whether a report for it was handed in.
    last: Option<(EffectId, Time, bool)>,
    saved: bool,
    announced: bool,
    marked: bool,
    dead_lettered: bool,
    republished: bool,
    /// It has said its last word.
    over: bool,
    /// It says no last word: it may be over once its last effect was reported.
    without_delivery: bool,
}

/// A world around a processor, with the promises checked after every step.
struct CheckedProcessor {
    processor: Processor,
    now: Time,
    /// Every message, with its payload and how often it was handed over, from the first.
    messages: Vec<(String, u64)>,
    delivered: u64,
    /// When each delivery was last known to be worked on.
    alive: BTreeMap<String, Time>,
    given_back: BTreeSet<String>,
    /// The calls that are stored, announced and marked.
    done: BTreeSet<String>,
    wake_up: Option<transcript_core::WakeUp>,
    draining: bool,
    drained: bool,
    asked: Vec<(EffectId, Effect)>,
    seen: BTreeMap<JobId, JobHistory>,
    trace: String,
}

impl CheckedProcessor {
    fn new() -> Self {
        Self {
            processor: Processor::new(settings()).expect("settings can work"),
            now: Time::ZERO,
            messages: vec![],
            delivered: 0,
            alive: BTreeMap::new(),
            given_back: BTreeSet::new(),
            done: BTreeSet::new(),
            wake_up: None,
            draining: false,
            drained: false,
            asked: vec![],
            seen: BTreeMap::new(),
            trace: String::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Deliver { session, age_ms, malformed } => self.deliver(*session, *age_ms, *malformed),
            Step::Redeliver { back } => {
                if let Some(place) = self.messages.len().checked_sub(back + 1) {
                    self.hand_over(place, 4000);
                }
            }
            Step::Exhaust { back } => {
                if let Some(place) = self.messages.len().checked_sub(back + 1) {
                    let stream_sequence = u64::try_from(place).expect("it is small") + 1;
                    let received_at = WallTime::from_millis(1_000_000);
                    let payload =
                        self.messages.get(place).filter(|_| place % 2 == 0).map(|(payload, _)| payload.clone());
                    let payload = payload.map(|payload| Payload(payload.into_bytes()));
                    self.handle(Input::Exhausted(Exhausted { stream_sequence, attempts: 3, received_at, payload }));
                }
            }
            Step::Outgrow { session } => {
                let session = Session::new("c", &session.to_string()).expect("ids are valid");
                let received_at = WallTime::from_millis(1_000_000);
                let before: BTreeSet<JobId> = self.seen.keys().copied().collect();
                self.handle(Input::Stale(StaleSummary { session, published_segments: 2, received_at }));
                // It is taken up only where no other job is in its way, and asks at once.
                for (_, seen) in self.seen.iter_mut().filter(|(id, _)| !before.contains(id)) {
                    seen.without_delivery = true;
                }
            }
            Step::Report { back, what } => {
                let Some((id, effect)) = self.asked.iter().rev().nth(*back).cloned() else { return };
                self.report(id, report(&effect, *what));
            }
            Step::Wake(times) => (0..*times).for_each(|_| self.wake()),
            Step::Quiet => self.handle(Input::Quiet),
            Step::Resume => self.handle(Input::Resume),
            Step::Drain => {
                self.draining = true;
                self.handle(Input::Drain);
            }
        }
    }

    fn deliver(&mut self, session: u8, age_ms: u16, malformed: bool) {
        let text = if malformed {
            "{}".to_owned()
        } else {
            format!(r#"{{"conversationId":"c","sessionId":"{session}","publishedSegments":2}}"#)
        };
        self.messages.push((text, 0));
        self.hand_over(self.messages.len() - 1, age_ms);
    }

    fn hand_over(&mut self, place: usize, age_ms: u16) {
        // The shell asks for no more than there is room for; a few may still be on the way when it drains.
        let most = settings().max_in_flight;
        if (self.processor.room() == 0 && !self.draining) || self.processor.in_flight() >= 4 * most {
            return;
        }
        let (payload, attempts) = self.messages.get_mut(place).expect("there is such a message");
        *attempts += 1;
        self.delivered += 1;
        let reply = format!("reply.{place}.{attempts}");
        let delivery = Delivery {
            stream_sequence: u64::try_from(place).expect("it is small") + 1,
            attempt: *attempts,
            stored_at: WallTime::from_millis(1_000_000),
            received_at: WallTime::from_millis(1_000_000 + i64::from(age_ms)),
            reply: reply.as_str().into(),
            redrive_of: (place % 5 == 4).then_some(1),
            trace_context: None,
            payload: Payload(payload.clone().into_bytes()),
        };
        self.alive.insert(reply, self.now);
        self.handle(Input::Delivered(delivery));
    }

    fn report(&mut self, effect: EffectId, report: Report) {
        let asked = self.asked.iter().rev().find(|(id, _)| *id == effect).map(|(_, asked)| asked.clone());
        let seen = self.seen.get_mut(&effect.job).expect("the job asked");
        let mut is_awaited = false;
        if let Some((last, _, reported)) = &mut seen.last
            && *last == effect
        {
            is_awaited = !std::mem::replace(reported, true);
        }
        let is_marked = match &report {
            Report::Saved(stored) | Report::Checked(Some(stored)) => stored.notified.is_some(),
            Report::Marked => true,
            Report::Counted { .. }
            | Report::Loaded(_)
            | Report::Checked(None)
            | Report::Published { .. }
            | Report::DeadLettered { .. }
            | Report::Republished { .. }
            | Report::Acknowledged
            | Report::Failed(_) => false,
        };
        if is_awaited
            && is_marked
            && let Some(Effect::Mark { key, .. } | Effect::Check { key }) = &asked
        {
            self.done.insert(key.as_str().to_owned());
        }
        if is_awaited
            && is_marked
            && let Some(Effect::Save { summary }) = &asked
        {
            self.done.insert(summary.key.as_str().to_owned());
        }
        match &report {
            Report::Saved(stored) | Report::Checked(Some(stored)) => {
                seen.saved = true;
                seen.announced |= stored.notified.is_some();
                seen.marked |= stored.notified.is_some();
            }
            Report::Published { .. } => seen.announced = true,
            Report::Marked => seen.marked = true,
            Report::DeadLettered { .. } => seen.dead_lettered = true,
            Report::Republished { .. } => seen.republished = true,
            // It cannot be marked, but it is announced.
            Report::Failed(failure) => {
                let is_refused = matches!(failure.kind, FailureKind::Rejected | FailureKind::Missing);
                seen.marked |= seen.announced && is_refused;
                // There is nothing to keep.
                let asked_for_one = matches!(asked, Some(Effect::DeadLetter { .. }));
                seen.dead_lettered |= asked_for_one && failure.kind == FailureKind::Missing;
            }
            Report::Counted { .. } | Report::Loaded(_) | Report::Checked(None) | Report::Acknowledged => {}
        }
        self.handle(Input::Reported { effect, report });
    }

    fn wake(&mut self) {
        if let Some(wake_up) = self.wake_up {
            self.now = wake_up.at;
            self.handle(Input::Woken);
        }
    }

    fn handle(&mut self, input: Input) {
        let recorded = serde_json::to_string(&input).expect("an input is serialisable");
        assert_eq!(serde_json::from_str::<Input>(&recorded).expect("and readable"), input);
        self.trace.push_str(&recorded);
        let before = self.processor.in_flight();
        self.processor.handle(self.now, input);
        let mut said = 0;
        let mut stop = false;
        loop {
            let output = self.processor.poll_output();
            let recorded = serde_json::to_string(&output).expect("an output is serialisable");
            assert_eq!(serde_json::from_str::<Output>(&recorded).expect("and readable"), output);
            self.trace.push_str(&recorded);
            said += 1;
            assert!(said <= 4 * (before + 2), "it never comes to an end");
            match output {
                Output::Perform { id, effect } => self.perform(id, effect),
                Output::InProgress { reply } => self.heartbeat(&reply),
                Output::StopDeliveries => stop = true,
                Output::Notice(_) => {}
                Output::Wait(wake_up) => {
                    self.wake_up = wake_up;
                    break;
                }
                Output::Drained => {
                    assert!(self.draining && self.processor.in_flight() == 0);
                    self.drained = true;
                    self.wake_up = None;
                    break;
                }
            }
        }
        if stop {
            self.handle(Input::DeliveriesStopped);
        }
        let (jobs, bytes) = (self.processor.in_flight(), self.processor.bytes_in_flight());
        assert!(jobs > 0 || bytes == 0, "{bytes} bytes are held for nobody");
        assert!(bytes <= 9000 + 2 * 8192, "{bytes} bytes: one page too many was asked for");
        assert!(self.processor.in_flight() <= 4 * settings().max_in_flight + self.messages.len(), "jobs are bounded");
        if self.processor.in_flight() > 0 {
            let wake_up = self.wake_up.expect("a job is left without a deadline");
            assert!(wake_up.at > self.now, "a deadline that was served did not move");
        }
    }

    fn perform(&mut self, id: EffectId, effect: Effect) {
        let timeout = settings().answer_timeout();
        let session = match &effect {
            Effect::Count { session_id } | Effect::Load { session_id, .. } => session_id.to_string(),
            Effect::Save { summary } => summary.session.session_id.to_string(),
            Effect::Publish { notification, .. } => notification.session.session_id.to_string(),
            Effect::Mark { key, .. } => key.as_str().trim_start_matches("c:").to_owned(),
            // To look at a summary is in nobody's way.
            Effect::Check { .. }
            | Effect::DeadLetter { .. }
            | Effect::Republish { .. }
            | Effect::Acknowledge { .. } => String::new(),
        };
        let others_run = |(job, other): (&JobId, &JobHistory)| {
            let told = |(_, at, reported): (_, Time, bool)| reported || self.now >= at.after(timeout);
            let may_be_over = other.without_delivery && other.last.is_none_or(told);
            *job != id.job && other.session == session && !other.over && !may_be_over
        };
        assert!(session.is_empty() || !self.seen.iter().any(others_run), "two jobs of one key run at once");
        let seen = self.seen.entry(id.job).or_default();
        // When the grace time is over, a message whose deliveries are used up becomes a dead letter without an answer.
        let hurried = matches!(effect, Effect::Acknowledge { .. } | Effect::Republish { .. })
            || (self.draining && matches!(effect, Effect::DeadLetter { .. }));
        if let Some((_, at, reported)) = seen.last {
            let given_up = self.now >= at.after(timeout) || hurried;
            assert!(reported || given_up, "two effects of one job at a time");
        }
        if seen.session.is_empty() {
            seen.session = session;
        }
        match &effect {
            Effect::Acknowledge { reply, key, acknowledgement } => {
                seen.over = true;
                let key = key.as_ref().map(|key| key.as_str().to_owned());
                let is_done = seen.saved && seen.announced && seen.marked;
                if is_done {
                    self.done.extend(key.clone());
                }
                match acknowledgement {
                    Acknowledgement::Ack => assert!(
                        seen.republished || key.is_some_and(|key| self.done.contains(&key)),
                        "acknowledged too early: {seen:?}"
                    ),
                    Acknowledgement::Nak { .. } => drop(self.given_back.insert(reply.to_string())),
                    Acknowledgement::Term { .. } => {
                        assert!(
                            seen.dead_lettered || seen.session.is_empty(),
                            "terminated without a dead letter: {seen:?}"
                        );
                    }
                }
            }
            Effect::Publish { .. } => assert!(seen.saved, "announced before it was stored"),
            Effect::Mark { .. } => assert!(seen.announced, "marked before it was announced"),
            Effect::DeadLetter { .. } | Effect::Republish { .. } => seen.over = true,
            Effect::Count { .. } | Effect::Load { .. } | Effect::Check { .. } | Effect::Save { .. } => {}
        }
        seen.last = Some((id, self.now, false));
        self.asked.push((id, effect));
    }

    fn heartbeat(&mut self, reply: &str) {
        assert!(!self.given_back.contains(reply), "a heartbeat after a nak overrides its delay");
        let last = self.alive.insert(reply.to_owned(), self.now).expect("a reply subject of this world");
        let silent = self.now.since(last);
        assert!(silent <= settings().ack_wait, "silent for {silent:?}");
    }

    /// Everything goes well from now on: every job must come to its end.
    fn heal(&mut self) {
        for _ in 0..400 {
            while let Some(at) = self.asked.iter().rposition(|(id, _)| {
                self.seen.get(&id.job).and_then(|seen| seen.last).is_some_and(|(last, _, told)| last == *id && !told)
            }) {
                let (id, effect) = self.asked.get(at).cloned().expect("it was found");
                self.report(id, report(&effect, ReportPick::Success { variant: 0 }));
            }
            if self.processor.in_flight() == 0 {
                return;
            }
            self.wake();
        }
        panic!("jobs are left: {:?}", self.processor.states());
    }
}

fn report(effect: &Effect, what: ReportPick) -> Report {
    match what {
        ReportPick::Failure(kind) => Report::Failed(Failure { kind, detail: String::new() }),
        ReportPick::AnotherKind => match effect {
            Effect::Mark { .. } => Report::Acknowledged,
            Effect::Count { .. }
            | Effect::Load { .. }
            | Effect::Save { .. }
            | Effect::Check { .. }
            | Effect::Publish { .. }
            | Effect::DeadLetter { .. }
            | Effect::Republish { .. }
            | Effect::Acknowledge { .. } => Report::Marked,
        },
        ReportPick::Success { variant } => match effect {
            Effect::Count { .. } => Report::Counted { segments: u64::from(variant) },
            Effect::Load { .. } => Report::Loaded(Page {
                segments: (0..variant).map(|n| segment(i64::from(n))).collect(),
                next: (variant == 3).then(|| Cursor("next".into())),
                ..Page::default()
            }),
            Effect::Save { .. } => Report::Saved(Stored {
                segments: u64::from(variant),
                complete: true,
                notified: (variant == 3).then_some(Notified { stream_sequence: 1, at: WallTime::from_millis(0) }),
                revision: u64::from(variant.max(1)),
                revised: None,
                edits: 0,
                reprocess: 0,
            }),
            Effect::Check { .. } => Report::Checked((variant > 0).then(|| Stored {
                segments: 2,
                complete: variant > 1,
                notified: (variant == 3).then_some(Notified { stream_sequence: 1, at: WallTime::from_millis(0) }),
                revision: 1,
                revised: None,
                edits: 0,
                reprocess: 0,
            })),
            // An earlier run may have announced less; nobody but this one announces revisions.
            Effect::Publish { notification: ours, .. } => Report::Published {
                stream_sequence: u64::from(variant),
                segments: if ours.revision.is_some() { ours.segments } else { ours.segments.min(variant.into()) },
                edits: ours.edits,
            },
            Effect::Mark { .. } => Report::Marked,
            Effect::DeadLetter { .. } => Report::DeadLettered { stream_sequence: u64::from(variant) },
            Effect::Republish { .. } => Report::Republished { stream_sequence: u64::from(variant) },
            Effect::Acknowledge { .. } => Report::Acknowledged,
        },
    }
}

fn segment(index: i64) -> Segment {
    let text = "Is it?".to_owned();
    Segment {
        id: index.to_string(),
        index: Some(index),
        speaker: None,
        text,
        start_ms: None,
        end_ms: None,
        ..Segment::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_world_does(steps in prop::collection::vec(step(), 1..120)) {
        let run = || {
            let mut world = CheckedProcessor::new();
            for step in &steps {
                world.step(step);
            }
            world.heal();
            assert_eq!(world.drained, world.draining);
            world
        };
        let world = run();
        let counters = world.processor.counters();
        prop_assert_eq!(counters.delivered, world.delivered, "every delivery was taken");
        prop_assert_eq!(world.trace, run().trace, "the same inputs give the same outputs");
    }

    #[test]
    fn no_payload_makes_it_panic(payload in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut processor = Processor::new(settings()).expect("settings can work");
        processor.handle(Time::ZERO, Input::Delivered(Delivery {
            stream_sequence: 1,
            attempt: u64::MAX,
            stored_at: WallTime::from_millis(i64::MAX),
            received_at: WallTime::from_millis(i64::MIN),
            reply: "".into(),
            redrive_of: None,
            trace_context: None,
            payload: Payload(payload),
        }));
        prop_assert_eq!(processor.in_flight(), 1);
    }
}
