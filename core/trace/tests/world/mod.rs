//! A world for one core: calls, servers that answer after a moment, and time that jumps from one thing to the next.

// Each test file uses a part of it.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "a module that several tests share")]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use transcript_core::{
    Delivery, Effect, Failure, FailureKind, Input, Output, Page, Payload, Processor, Report, Server, Settings, Stored,
    Time, WallTime,
    ids::{JobId, Session},
    summary::{Order, Segment, Summary},
};
use transcript_trace::{Content, FORMAT, Header, Recorder, Servers};

/// When time 0 was.
pub const START: WallTime = WallTime::from_millis(1_764_400_000_000);

#[derive(Debug, Clone)]
pub struct Call {
    pub session: Session,
    pub published: u64,
    pub ends_at: Time,
    /// The segments, and when they are stored.
    pub segments: Vec<(Time, Segment)>,
}

/// What is recorded: one input, with the time and the job that took it.
pub type RecordedInput = (Time, Option<JobId>, Input);

pub struct TracedWorld {
    core: Processor,
    calls: Vec<Call>,
    stored: BTreeMap<String, Stored>,
    sequence: u64,
    /// What happens, and when.
    due: BTreeMap<(Time, u64), Input>,
    happened: u64,
    /// The store answers nothing but failures for that time.
    pub store_away: Option<(Time, Time)>,
    pub told: Vec<RecordedInput>,
}

pub fn ms(millis: u64) -> Time {
    Time::from_micros(millis * 1000)
}

pub fn session(name: &str) -> Session {
    Session::new("c", name).expect("a test's id is valid")
}

pub fn segment(session: &str, index: i64, speaker: &str, text: &str) -> Segment {
    Segment {
        id: format!("{session}:{index}"),
        index: Some(index),
        speaker: (!speaker.is_empty()).then(|| speaker.to_owned()),
        text: text.to_owned(),
        start_ms: Some(index * 1000),
        end_ms: Some(index * 1000 + 900),
        ..Segment::default()
    }
}

/// A call of three speakers whose last segment comes late.
pub fn call(name: &str, ends_at: Time) -> Call {
    let texts = ["Good morning, everybody.", "Can you hear me?", "Yes, quite well — go on.", "Then let us begin."];
    let mut segments: Vec<_> = (0_i64..)
        .zip(texts)
        .map(|(index, text)| (Time::ZERO, segment(name, index, ["Anna", "Björn", ""][index as usize % 3], text)))
        .collect();
    segments[3].0 = ends_at.after(Duration::from_millis(2_700));
    Call { session: session(name), published: 4, ends_at, segments }
}

pub fn header(content: Content, settings: &Settings) -> Header {
    Header {
        format: FORMAT,
        program: format!("transcript-processor {}", env!("CARGO_PKG_VERSION")),
        servers: Servers::default(),
        processor: Some("a".into()),
        started_at: START,
        content,
        settings: settings.clone(),
        pull_expires: None,
        continues: None,
        session: None,
        about: None,
    }
}

pub fn core(settings: &Settings) -> Processor {
    Processor::new(settings.clone()).expect("a test's settings can work")
}

/// The trace of what a core was told.
pub fn record(content: Content, settings: &Settings, told: &[RecordedInput]) -> Vec<u8> {
    let mut recorder =
        Recorder::new(vec![], header(content, settings), core(settings)).expect("a vector takes everything");
    for (at, job, input) in told {
        recorder.record(*at, *job, input.clone()).expect("a vector takes everything");
    }
    assert_eq!(recorder.mismatches(), 0, "the second core goes the same way");
    std::mem::take(recorder.get_mut())
}

/// Everything that a core is told until nothing more happens.
pub fn play(settings: &Settings, calls: &[Call]) -> Vec<RecordedInput> {
    let mut world = TracedWorld::new(core(settings), calls);
    world.run();
    world.told
}

impl TracedWorld {
    pub fn new(core: Processor, calls: &[Call]) -> Self {
        let mut world = Self {
            core,
            calls: calls.to_vec(),
            stored: BTreeMap::new(),
            sequence: 0,
            due: BTreeMap::new(),
            happened: 0,
            store_away: None,
            told: vec![],
        };
        for call in calls {
            world.sequence += 1;
            let sequence = world.sequence;
            let payload = serde_json::json!({
                "conversationId": call.session.conversation_id,
                "sessionId": call.session.session_id,
                "publishedSegments": call.published,
            });
            let at = call.ends_at.after(Duration::from_millis(2));
            let wall = START.after(at.since(Time::ZERO));
            let delivery = Delivery {
                stream_sequence: sequence,
                attempt: 1,
                stored_at: wall,
                received_at: wall,
                reply: format!("reply.{sequence}").into(),
                redrive_of: None,
                trace_context: None,
                payload: Payload(serde_json::to_vec(&payload).expect("a value is JSON")),
            };
            world.later(at, Input::Delivered(delivery));
        }
        world
    }

    pub fn later(&mut self, at: Time, input: Input) {
        self.happened += 1;
        self.due.insert((at, self.happened), input);
    }

    pub fn run(&mut self) {
        let mut wake_up = None;
        loop {
            let next = self.due.keys().next().map(|(at, _)| *at);
            let (now, input) = match (next, wake_up) {
                (None, None) => return,
                (Some(next), wake_up) if wake_up.is_none_or(|wake_up| next <= wake_up) => {
                    (next, self.due.pop_first().expect("it is there").1)
                }
                (_, Some(wake_up)) => (wake_up, Input::Woken),
                (Some(_), None) => unreachable!("the guard of the arm before takes it"),
            };
            let job = self.core.handle(now, input.clone());
            self.told.push((now, job, input));
            wake_up = loop {
                match self.core.poll_output() {
                    Output::Perform { id, effect } => {
                        let report = self.perform(now, &effect);
                        self.later(now.after(Duration::from_millis(3)), Input::Reported { effect: id, report });
                    }
                    Output::InProgress { .. } | Output::Notice(_) => {}
                    Output::StopDeliveries => self.later(now, Input::DeliveriesStopped),
                    Output::Wait(wake_up) => break wake_up.map(|wake_up| wake_up.at),
                    Output::Drained => return,
                }
            };
        }
    }

    fn segments(&self, session: &str, now: Time) -> Vec<Segment> {
        let call = self.calls.iter().find(|call| *call.session.session_id == *session);
        let stored = call.into_iter().flat_map(|call| &call.segments).filter(|(at, _)| *at <= now);
        let mut segments: Vec<Segment> = stored.map(|(_, segment)| segment.clone()).collect();
        let order = Order::of(&segments);
        segments.sort_by(|a, b| order.compare(a, b));
        segments
    }

    fn perform(&mut self, now: Time, effect: &Effect) -> Report {
        let is_stores = effect.kind().server() == Server::Mongodb;
        if is_stores && self.store_away.is_some_and(|(from, until)| (from..until).contains(&now)) {
            return Report::Failed(Failure {
                kind: FailureKind::Unreachable,
                detail: "MongoDB: connection refused".into(),
            });
        }
        match effect {
            Effect::Count { session_id } => Report::Counted { segments: self.segments(session_id, now).len() as u64 },
            Effect::Load { session_id, after, limit, .. } => {
                self.page(session_id, after.as_ref().map(|at| at.0.as_str()), *limit, now)
            }
            Effect::Save { summary } => self.save(summary),
            Effect::Check { key } => Report::Checked(self.stored.get(key.as_str()).copied()),
            Effect::Publish { notification, .. } => {
                Report::Published { stream_sequence: self.next(), segments: notification.segments, edits: 0 }
            }
            Effect::Mark { key, notified, .. } => {
                if let Some(stored) = self.stored.get_mut(key.as_str()) {
                    stored.notified = Some(*notified);
                }
                Report::Marked
            }
            Effect::DeadLetter { .. } => Report::DeadLettered { stream_sequence: self.next() },
            Effect::Republish { .. } => Report::Republished { stream_sequence: self.next() },
            Effect::Acknowledge { .. } => Report::Acknowledged,
        }
    }

    fn page(&self, session: &str, after: Option<&str>, limit: u32, now: Time) -> Report {
        let from: usize = after.map_or(0, |after| after.parse().expect("this world's cursor"));
        let all = self.segments(session, now);
        let until = (from + limit as usize).min(all.len());
        let next = (until < all.len()).then(|| transcript_core::Cursor(until.to_string()));
        Report::Loaded(Page { segments: all[from..until].to_vec(), next, ..Page::default() })
    }

    fn save(&mut self, summary: &Summary) -> Report {
        let new = Stored {
            segments: summary.segments,
            complete: summary.complete,
            notified: None,
            revision: 1,
            revised: None,
            edits: 0,
            reprocess: 0,
        };
        Report::Saved(*self.stored.entry(summary.key.to_string()).or_insert(new))
    }

    fn next(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }
}

/// The words of three letters or more; what JSON escapes are no letters.
pub fn words(text: &str) -> BTreeSet<String> {
    let text = ["\\n", "\\r", "\\t"].iter().fold(text.to_owned(), |text, escape| text.replace(escape, " "));
    let words = text
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| word.chars().filter(|c| c.is_alphabetic()).count() >= 3);
    words.map(str::to_lowercase).collect()
}
