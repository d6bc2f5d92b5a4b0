//! Runs of a real core in a world of a few lines, recorded as traces.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use transcript_core::{
    Delivery, Effect, Failure, FailureKind, Input, Output, Page, Payload, Processor, Report, Server, Settings, Stored,
    Time, WallTime,
    ids::{EffectId, Key},
    summary::Segment,
};

use transcript_trace::{Content, FORMAT, Header, LeftOut, Note, Recorder, Servers};

/// When the first processor starts.
pub(super) const START: i64 = 1_764_400_000_000;

/// How long a server takes to answer.
const LATENCY: Duration = Duration::from_millis(2);

/// A processor, a world that answers it, and the trace of both.
pub(super) struct Play {
    recorder: Recorder<Vec<u8>>,
    core: Processor,
    started: i64,
    now: Time,
    /// Answers on the way.
    answers: VecDeque<(Time, EffectId, Report)>,
    world: PlayWorld,
}

/// What is stored, and what does not work.
#[derive(Debug, Clone, Default)]
pub(super) struct PlayWorld {
    pub(super) segments: u64,
    stored: BTreeMap<Key, Stored>,
    sequence: u64,
    /// Until then the store cannot be reached.
    pub(super) store_away_until: Option<Time>,
    /// Effects whose words begin like this are never answered.
    pub(super) unanswered: Option<&'static str>,
    /// Effects whose words begin like this are refused.
    pub(super) refused: Option<&'static str>,
}

pub(super) fn header(name: &str, started: i64, settings: Settings) -> Header {
    Header {
        format: FORMAT,
        program: "transcript-processor 0.1.0".to_owned(),
        servers: Servers::default(),
        processor: Some(name.into()),
        started_at: WallTime::from_millis(started),
        content: Content::Redacted,
        settings,
        pull_expires: None,
        continues: None,
        session: None,
        about: None,
    }
}

impl Play {
    pub(super) fn new(name: &str) -> Self {
        Self::with(name, START, &Settings::default(), PlayWorld::default(), vec![])
    }

    pub(super) fn with(name: &str, started: i64, settings: &Settings, world: PlayWorld, trace: Vec<u8>) -> Self {
        let core = || Processor::new(settings.clone()).expect("settings can work");
        let recorder =
            Recorder::new(trace, header(name, started, settings.clone()), core()).expect("a vector takes all");
        Self { recorder, core: core(), started, now: Time::ZERO, answers: VecDeque::new(), world }
    }

    pub(super) fn world(&mut self) -> &mut PlayWorld {
        &mut self.world
    }

    /// The process is killed; another one starts a while later, in the same world.
    pub(super) fn killed(mut self, name: &str, pause: Duration) -> Self {
        self.note(Note::Killed);
        self.followed_by(name, pause)
    }

    /// Another processor starts, and this one is told no more.
    pub(super) fn followed_by(mut self, name: &str, pause: Duration) -> Self {
        let started = WallTime::from_millis(self.started).after(self.now.since(Time::ZERO) + pause).as_millis();
        let trace = std::mem::take(self.recorder.get_mut());
        Self::with(name, started, &Settings::default(), self.world, trace)
    }

    pub(super) fn trace(mut self) -> Vec<u8> {
        std::mem::take(self.recorder.get_mut())
    }

    pub(super) fn note(&mut self, note: Note) -> &mut Self {
        self.recorder.note(self.now, note).expect("a vector takes all");
        self
    }

    pub(super) fn store(&mut self, session: &str, segments: u64) -> &mut Self {
        self.world.segments += segments;
        self.note(Note::Stored { session_id: session.into(), segments })
    }

    pub(super) fn lost(&mut self, inputs: u64) -> &mut Self {
        self.recorder.lost(self.now, inputs, "the disk was full").expect("a vector takes all");
        self
    }

    pub(super) fn left_out(&mut self, left_out: LeftOut) -> &mut Self {
        self.recorder.left_out(self.now, left_out).expect("a vector takes all");
        self
    }

    pub(super) fn deliver(&mut self, sequence: u64, attempt: u64, session: (&str, &str)) -> &mut Self {
        let published = self.world.segments;
        let payload = serde_json::json!({
            "conversationId": session.0, "sessionId": session.1, "publishedSegments": published
        });
        self.deliver_payload(sequence, attempt, payload.to_string().as_bytes())
    }

    pub(super) fn deliver_payload(&mut self, sequence: u64, attempt: u64, payload: &[u8]) -> &mut Self {
        let received_at = WallTime::from_millis(self.started).after(self.now.since(Time::ZERO));
        let age = i64::try_from(attempt - 1).expect("attempts are few") * 6000 + 1;
        self.handle(Input::Delivered(Delivery {
            stream_sequence: sequence,
            attempt,
            stored_at: WallTime::from_millis(received_at.as_millis() - age),
            received_at,
            reply: format!("$JS.ACK.{sequence}.{attempt}").into(),
            redrive_of: None,
            trace_context: None,
            payload: Payload(payload.to_vec()),
        }))
    }

    pub(super) fn handle(&mut self, input: Input) -> &mut Self {
        let job = self.core.handle(self.now, input.clone());
        self.recorder.record(self.now, job, input).expect("a vector takes all");
        while let output @ (Output::Perform { .. }
        | Output::InProgress { .. }
        | Output::StopDeliveries
        | Output::Notice(_)) = self.core.poll_output()
        {
            if let Output::Perform { id, effect } = output
                && let Some(report) = self.world.answer(&effect, self.now)
            {
                self.answers.push_back((self.now.after(LATENCY), id, report));
            }
        }
        self
    }

    /// Time passes, and what is due happens.
    pub(super) fn sleep(&mut self, span: Duration) -> &mut Self {
        let until = self.now.after(span);
        while let Some(at) = self.next().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            let has_come = self.answers.front().is_some_and(|(at, ..)| *at <= self.now);
            match has_come.then(|| self.answers.pop_front()).flatten() {
                Some((_, effect, report)) => self.handle(Input::Reported { effect, report }),
                None => self.handle(Input::Woken),
            };
        }
        self.now = until;
        self
    }

    /// Time passes, and nothing happens: the process stands still.
    pub(super) fn freeze(&mut self, span: Duration) -> &mut Self {
        self.now = self.now.after(span);
        self.handle(Input::Woken)
    }

    fn next(&mut self) -> Option<Time> {
        let wake_up = match self.core.poll_output() {
            Output::Wait(wake_up) => wake_up.map(|wake_up| wake_up.at),
            Output::Perform { .. }
            | Output::InProgress { .. }
            | Output::StopDeliveries
            | Output::Notice(_)
            | Output::Drained => None,
        };
        wake_up.into_iter().chain(self.answers.front().map(|(at, ..)| *at)).min()
    }
}

impl PlayWorld {
    fn answer(&mut self, effect: &Effect, now: Time) -> Option<Report> {
        let words = effect.to_string();
        if self.unanswered.is_some_and(|these| words.starts_with(these)) {
            return None;
        }
        if self.refused.is_some_and(|these| words.starts_with(these)) {
            let detail = "as the test wants".to_owned();
            return Some(Report::Failed(Failure { kind: FailureKind::Rejected, detail }));
        }
        let is_stores = effect.kind().server() == Server::Mongodb;
        if is_stores && self.store_away_until.is_some_and(|until| now < until) {
            let detail = "connection refused".to_owned();
            return Some(Report::Failed(Failure { kind: FailureKind::Unreachable, detail }));
        }
        Some(self.done(effect))
    }

    fn done(&mut self, effect: &Effect) -> Report {
        self.sequence += 1;
        let stream_sequence = 1000 + self.sequence;
        match effect {
            Effect::Count { .. } => Report::Counted { segments: self.segments },
            Effect::Load { .. } => {
                let segments = (0..self.segments).map(|index| segment(index.cast_signed())).collect();
                Report::Loaded(Page { segments, ..Page::default() })
            }
            Effect::Save { summary } => {
                let notified = self.stored.get(&summary.key).and_then(|stored| stored.notified);
                let (segments, complete) = (summary.segments, summary.complete);
                let stored =
                    Stored { segments, complete, notified, revision: 1, revised: None, edits: 0, reprocess: 0 };
                self.stored.insert(summary.key.clone(), stored);
                Report::Saved(stored)
            }
            Effect::Check { key } => Report::Checked(self.stored.get(key).copied()),
            Effect::Publish { notification, .. } => {
                Report::Published { stream_sequence, segments: notification.segments, edits: 0 }
            }
            Effect::Mark { key, notified, .. } => {
                if let Some(stored) = self.stored.get_mut(key) {
                    stored.notified = Some(*notified);
                }
                Report::Marked
            }
            Effect::DeadLetter { .. } => Report::DeadLettered { stream_sequence },
            Effect::Republish { .. } => Report::Republished { stream_sequence },
            Effect::Acknowledge { .. } => Report::Acknowledged,
        }
    }
}

fn segment(index: i64) -> Segment {
    Segment {
        id: format!("s:{index}"),
        index: Some(index),
        speaker: Some("Ada".to_owned()),
        text: "Shall we begin?".to_owned(),
        start_ms: None,
        end_ms: None,
        ..Segment::default()
    }
}

pub(super) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A call in which all goes well.
pub(super) fn plain() -> Vec<u8> {
    let mut play = Play::new("a");
    play.store("s", 3).sleep(seconds(1)).store("s", 9).sleep(seconds(1));
    play.deliver(7, 1, ("c", "s")).sleep(seconds(30));
    play.trace()
}

/// The store is away for a while, so that effects are tried again.
pub(super) fn outage() -> Vec<u8> {
    let mut play = Play::new("a");
    play.world().segments = 4;
    play.world().store_away_until = Some(Time::from_micros(40_000_000));
    play.deliver(7, 1, ("c", "s")).sleep(seconds(60));
    play.trace()
}

/// One processor is killed behind its save, another one takes the call over, and the first one starts again.
pub(super) fn kill() -> Vec<u8> {
    let mut play = Play::new("a");
    play.world().segments = 4;
    play.world().unanswered = Some("publish");
    play.deliver(7, 1, ("c", "s")).sleep(seconds(5));
    let mut play = play.killed("b", seconds(6));
    play.world().unanswered = None;
    play.deliver(7, 2, ("c", "s")).sleep(seconds(5));
    let mut play = play.followed_by("a", seconds(1));
    play.deliver(8, 1, ("c", "t")).sleep(seconds(5));
    play.trace()
}

/// Segments come so late that the call takes all its rounds.
pub(super) fn heartbeats() -> Vec<u8> {
    let settings = Settings { quiet_period: seconds(30), ..Settings::default() };
    let mut play = Play::with("a", START, &settings, PlayWorld::default(), vec![]);
    play.store("s", 1).deliver(7, 1, ("c", "s")).sleep(seconds(35));
    play.store("s", 1).sleep(seconds(12)).store("s", 2).sleep(seconds(120));
    play.trace()
}

/// Ids that would like to be something else.
pub(super) const HOSTILE: [(&str, &str); 3] = [
    ("<script>alert(1)</script>", "\"'/><!-- ]]> &amp; ;#%%\n\0\u{1b}[31m"),
    ("\u{202E}evil\u{2066}", "end\nend;#\nabc\u{FFFE}שלום"),
    ("会議会議会議会議会議会議会議会議会議会議会議会議会議会議会議会議会議会議会議会議会議会議会議会議会議会議", "💥"),
];

pub(super) fn hostile() -> Vec<u8> {
    let mut play = Play::new("</text><script>");
    for (sequence, session) in (1..).zip(HOSTILE) {
        play.deliver(sequence, 1, session);
    }
    play.deliver_payload(9, 1, b"<b>no JSON</b>").note(Note::Remark("</svg>\u{0}".to_owned()));
    play.sleep(seconds(20));
    play.trace()
}

/// A run of many calls, with a little of everything.
pub(super) fn many(calls: u64) -> Vec<u8> {
    let mut play = Play::new("a");
    for number in 0..calls {
        play.world().segments = 2;
        play.world().refused = (number == calls * 9 / 10).then_some("save");
        let session = format!("s{number}");
        play.deliver(number + 1, 1, ("c", &session)).sleep(Duration::from_millis(5));
    }
    play.world().refused = None;
    play.sleep(seconds(60));
    play.trace()
}

/// Two processors that die one after the other, often, while the store comes and goes.
pub(super) fn restarts() -> Vec<u8> {
    let mut play = Play::new("processor-7d9f6c5b8-x2k4q");
    play.world().segments = 4;
    play.world().unanswered = Some("save");
    for attempt in 1..5 {
        play.world().store_away_until = (attempt == 3).then_some(Time::from_micros(9_000_000));
        play.deliver(7, attempt, ("c", "s")).sleep(seconds(5));
        if attempt == 2 {
            play.freeze(seconds(8)).lost(3);
        }
        let name = ["processor-7d9f6c5b8-x2k4q", "b"][usize::try_from(attempt % 2).expect("it is small")];
        play = play.killed(name, seconds(6));
    }
    play.world().unanswered = None;
    play.deliver(7, 5, ("c", "s")).sleep(seconds(30)).handle(Input::Drain);
    play.trace()
}
