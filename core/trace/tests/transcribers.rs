//! Traces of transcribers: they replay, without the words too, and say where something is missing.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use transcript_core::{Time, WallTime, ids::Session};
use transcript_trace::{
    Content, Count, FORMAT, Line, Reader, Servers, Span, TranscriberHeader, TranscriberRecorder, is_recorded,
    replay::{Difference, Problem, Replayed, replay},
    stats::Stats,
};
use transcript_transcriber::{
    ClientFrame, ClientSegment, Closure, ConnectionId, Departure, Effect, Finality, Input, InstanceId, Joined, Opening,
    Orphan, Output, Report, SavedSegment, Settings, Source, StreamState, TakenOver, Transcriber,
    document::{SessionState, StoredSegment, Transport},
};

/// What nobody may find in a trace without words.
const WORDS: [&str; 5] = ["Grüezi mitenand", "Björn", "half-said", "play Ana", "play%3A Tom"];

fn settings() -> Settings {
    Settings { max_batch_segments: 2, ..Settings::new("t1", "f00", StreamState::Available) }
}

fn header(content: Content) -> TranscriberHeader {
    TranscriberHeader {
        format: FORMAT,
        program: format!("transcript-processor {}", env!("CARGO_PKG_VERSION")),
        servers: Servers::default(),
        transcriber: "t1".into(),
        started_at: WallTime::from_millis(1_764_400_000_000),
        content,
        settings: settings(),
        continues: None,
        about: None,
    }
}

/// A state machine, servers that answer within a millisecond, and who writes all of it down.
struct World {
    machine: Transcriber,
    now: Time,
    due: VecDeque<Input>,
    recorder: TranscriberRecorder<Vec<u8>>,
    told: Option<Input>,
    orphans: Vec<Orphan>,
    index: u64,
}

impl World {
    fn new(content: Content) -> Self {
        Self::with(content, "a secret")
    }

    fn with(content: Content, secret: &str) -> Self {
        let recorder = TranscriberRecorder::new(vec![], header(content), secret).expect("a vector takes everything");
        let machine = Transcriber::new(settings()).expect("the settings can work");
        let orphans = vec![Orphan { session: session(9), instance: InstanceId::new("dead", "bad", 1) }];
        let mut world =
            Self { machine, now: Time::ZERO, due: VecDeque::new(), recorder, told: None, orphans, index: 0 };
        world.listen();
        world
    }

    /// Hands an input over, and everything that comes of it at once.
    fn tell(&mut self, input: Input) {
        self.due.push_back(input);
        while let Some(input) = self.due.pop_front() {
            self.now = self.now.after(Duration::from_millis(1));
            self.told = Some(input.clone());
            self.machine.handle(self.now, input);
            self.listen();
        }
    }

    fn listen(&mut self) {
        let mut said = vec![];
        loop {
            let output = self.machine.poll_output();
            if let Output::Perform { id, effect } = &output {
                let report = self.perform(effect);
                self.due.push_back(Input::Reported { effect: *id, report });
            }
            let is_last = matches!(output, Output::Wait(_) | Output::Stopped);
            said.extend(Some(output).filter(is_recorded));
            if is_last {
                break;
            }
        }
        self.recorder.record(self.now, self.told.take(), said).expect("a vector takes everything");
    }

    fn perform(&mut self, effect: &Effect) -> Report {
        let joined = Joined { next_index: 0, age: Duration::from_secs(1), epochs: vec![] };
        match effect {
            Effect::OpenLease { .. } | Effect::RenewLease { .. } => Report::LeaseHeld,
            Effect::ReleaseLease { .. } => Report::LeaseReleased,
            Effect::FindOrphans { .. } => Report::Orphans(std::mem::take(&mut self.orphans)),
            Effect::Join { epochs, .. } => Report::Joined(Joined {
                epochs: (0..).zip(epochs).map(|(place, _)| Some(1000 * place)).collect(),
                ..joined
            }),
            Effect::Reserve { segments, .. } => {
                let first_index = self.index;
                self.index += segments.len() as u64;
                Report::Reserved { first_index, write: 1 }
            }
            Effect::Save { segments, .. } => {
                Report::Saved(segments.iter().map(|one| SavedSegment::Stored { index: one.index }).collect())
            }
            Effect::Leave { .. } => Report::Left(Departure::Ending { generation: 1, pending: pending() }),
            Effect::Count { .. } => Report::Counted { segments: self.index, edits: 0 },
            Effect::Finish { .. } => Report::Finished,
            Effect::TakeOver { .. } => Report::TakenOver(TakenOver {
                joined,
                state: SessionState::Open,
                generation: 0,
                transport: Transport::Socket,
                pending: pending(),
            }),
            Effect::PublishSegments { .. } => Report::SegmentsPublished,
            Effect::PublishEnd { .. } => Report::EndPublished { stream_sequence: 7 },
        }
    }

    fn pass(&mut self, span: Duration) {
        self.now = self.now.after(span);
        self.tell(Input::Woken);
    }

    /// Two clients are there before the session is, so that one join asks for the epochs of both.
    fn open(&mut self, connection: u64, number: u32) {
        for (more, client) in [(0, "play Ana"), (100, "play: Tom"), (200, "play Zoe")] {
            self.due.push_back(Self::opened(connection + more, number, client));
        }
        self.tell(Input::Woken);
    }

    fn opened(connection: u64, number: u32, client: &str) -> Input {
        Input::Opened(Opening {
            connection: ConnectionId(connection),
            session: session(number),
            client: Some(client.into()),
            epoch: Some("epoch-1".into()),
            transport: Transport::Socket,
        })
    }

    fn say(&mut self, connection: u64, text: &str, finality: Finality) {
        let segment = ClientSegment {
            id: Some("1".into()),
            speaker: Some("Björn".into()),
            text: text.into(),
            start_ms: Some(10),
            end_ms: None,
            finality,
        };
        self.tell(Input::Frame { connection: ConnectionId(connection), frame: ClientFrame::Segment(segment) });
    }

    /// Two calls; one client goes cleanly, the other one does not. Then it shuts down.
    fn run(mut self) -> Vec<u8> {
        self.calls();
        self.shut_down()
    }

    fn calls(&mut self) {
        self.open(1, 1);
        self.open(2, 2);
        self.say(1, "half-said", Finality::Interim);
        self.say(1, "Grüezi mitenand, who is there?", Finality::Final);
        self.say(2, "Grüezi mitenand.", Finality::Final);
        self.say(102, "Grüezi mitenand.", Finality::Final);
        for more in [101, 201, 102, 202] {
            self.tell(Input::Closed { connection: ConnectionId(more), closure: Closure::Clean });
        }
        self.tell(Input::Closed { connection: ConnectionId(1), closure: Closure::Clean });
        self.tell(Input::Frame { connection: ConnectionId(2), frame: ClientFrame::Finalize });
        self.tell(Input::Closed { connection: ConnectionId(2), closure: Closure::Broken });
        self.pass(Duration::from_secs(3));
        self.pass(Duration::from_secs(20));
    }

    fn shut_down(mut self) -> Vec<u8> {
        self.tell(Input::Shutdown);
        std::mem::take(self.recorder.get_mut())
    }
}

fn session(number: u32) -> Session {
    Session::new("c", &format!("s{number}")).expect("the ids are short")
}

/// A batch that another instance had not stored.
fn pending() -> Vec<StoredSegment> {
    let source: Source = serde_json::from_value("play%3A Tom:e:1".into()).expect("a source is a text");
    let segment = StoredSegment {
        index: 3,
        source,
        write: 1,
        speaker: Some(Arc::from("Björn")),
        text: "Grüezi mitenand from the dead.".into(),
        start_ms: None,
        end_ms: None,
        on_session_clock: false,
    };
    vec![segment]
}

fn replayed(trace: &[u8]) -> Result<Replayed, Problem> {
    replay(Reader::new(trace), |_| panic!("there is no processor in it"))
}

fn difference(trace: &str) -> Difference {
    match replayed(trace.as_bytes()).expect_err("the trace is not what the state machine does") {
        Problem::Difference(difference) => *difference,
        other @ (Problem::Read(_) | Problem::Settings { .. } | Problem::TranscriberSettings { .. }) => {
            panic!("{other}")
        }
    }
}

fn text(trace: &[u8]) -> &str {
    std::str::from_utf8(trace).expect("JSON is UTF-8")
}

#[test]
fn sessions_replay_with_and_without_their_words() {
    for content in [Content::Redacted, Content::Kept] {
        let trace = World::new(content).run();
        let replayed = replayed(&trace).expect("it replays");
        assert!(replayed.outputs > 40, "{replayed:?}");
        assert_eq!((replayed.parts, replayed.uncompared), (1, 0));
        let has_words = WORDS.map(|words| text(&trace).contains(words));
        assert_eq!(has_words, [content == Content::Kept; 5], "{content:?}");
        assert!(text(&trace).contains("epoch-1") && text(&trace).contains("\"stopped\""));
    }
}

#[test]
fn pseudonyms_of_any_order_replay() {
    for secret in 0..8 {
        let trace = World::with(Content::Redacted, &secret.to_string()).run();
        let replayed = replayed(&trace).unwrap_or_else(|problem| panic!("{secret}: {problem}"));
        assert_eq!(replayed.uncompared, 0);
    }
}

#[test]
fn a_changed_output_is_found_and_named() {
    let trace = World::new(Content::Redacted).run();
    let changed = text(&trace).replacen(r#""publishedSegments":"#, r#""publishedSegments":1"#, 1);
    let difference = difference(&changed);
    assert_eq!((difference.processor, difference.transcriber.as_deref()), (None, Some("t1")));
    assert!(difference.trace.contains("publish end c:"), "{}", difference.trace);
    assert!(difference.trace.contains("effect.publishEnd.ended.publishedSegments"), "{}", difference.trace);
    assert!(difference.led.iter().all(|led| led.words.contains("c:s")), "{:?}", difference.led);
    let gone: Vec<&str> = text(&trace).lines().filter(|line| !line.contains(r#""finish":"#)).collect();
    assert!(replayed((gone.join("\n") + "\n").as_bytes()).is_err(), "a line that is missing is noticed");
}

#[test]
fn behind_a_gap_nothing_is_compared_and_the_trace_says_so() {
    let mut world = World::new(Content::Redacted);
    world.open(1, 1);
    world.recorder.lost(world.now, 5, "the recorder could not keep up").expect("a vector takes everything");
    world.say(1, "Grüezi mitenand.", Finality::Final);
    let replayed = replayed(&world.shut_down()).expect("it replays as far as it can");
    assert_eq!(replayed.left_out, 5);
    assert!(replayed.uncompared > 5, "{replayed:?}");
    assert!(replayed.to_string().contains("entries of transcribers were not compared"), "{replayed}");
}

#[test]
fn a_trace_goes_on_in_another_file() {
    let mut world = World::new(Content::Redacted);
    world.open(1, 1);
    let first = world.recorder.go_on(vec![], "t1-1.jsonl").expect("a vector takes everything");
    world.calls();
    let second = world.shut_down();
    let both = [first, second.clone()].concat();
    let whole = replayed(&both).expect("it replays");
    assert_eq!((whole.parts, whole.uncompared), (2, 0));
    let alone = replayed(&second).expect("there is nothing to compare it with");
    assert_eq!((alone.outputs, alone.uncompared), (0, alone.entries));
    assert!(matches!(Reader::new(&*second).next(), Some(Ok(Line::TranscriberHeader(_)))));
}

#[test]
fn what_a_trace_tells_is_counted() {
    let trace = World::new(Content::Redacted).run();
    let stats = Stats::read(Reader::new(&*trace)).expect("the trace is whole");
    let told = stats.transcribers();
    let counts = [Count::Opened, Count::Broken, Count::Received, Count::Ended, Count::TakenOver, Count::Failed];
    assert_eq!(counts.map(|what| told.count(what)), [6, 1, 3, 3, 1, 0]);
    // Once for the first client, and once for the epochs of the others.
    assert_eq!(told.times(Span::Joining).map(|times| times.len()), Some(4));
    let ending = told.times(Span::Ending).expect("sessions ended").max();
    assert!((20_000_000..24_000_000).contains(&ending), "{ending}");
    let shown = stats.to_string();
    assert!(shown.starts_with("transcribers: ") && shown.lines().all(|line| line.len() <= 80), "{shown}");
    let json = serde_json::to_value(&stats).expect("it is JSON");
    assert_eq!(json["transcribers"]["counts"]["sessions ended"], 3);
}
