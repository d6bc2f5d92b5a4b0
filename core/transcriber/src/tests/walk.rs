//! Walks through everything that can happen, with answers that are drawn: what no real store says together, too.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use transcript_core::{Failure, FailureKind, ids::Key};

use super::*;

/// Draws from bytes that a property gives, so that a failing walk can be made shorter; or from a seed.
pub(super) struct Choices {
    bytes: Vec<u8>,
    next: usize,
    seed: u64,
}

impl Choices {
    fn below(&mut self, most: usize) -> usize {
        let byte = self.bytes.get(self.next).copied();
        self.next += 1;
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let drawn = byte.map_or(self.seed >> 33, u64::from);
        usize::try_from(drawn).unwrap_or(0) % most
    }

    fn is_over(&self, steps: usize) -> bool {
        if self.bytes.is_empty() { steps > 250 } else { self.next >= self.bytes.len() }
    }
}

/// What a walk knows of its world.
#[derive(Default)]
struct Walk {
    /// Effects that are not reported, by session and server.
    asked: Vec<(EffectId, Effect)>,
    open: BTreeMap<ConnectionId, u64>,
    connections: u64,
    /// What the last save of each session stored.
    stored: BTreeMap<Key, BTreeSet<u64>>,
    counted: BTreeMap<Key, BTreeSet<u64>>,
    joined: BTreeSet<Key>,
    of: BTreeMap<ConnectionId, Key>,
    wake_at: Option<Time>,
    is_stopped: bool,
}

/// One walk; gives the edges that its sessions took.
pub(super) fn walk(seed: u64, bytes: Vec<u8>) -> BTreeSet<(State, &'static str, State)> {
    let mut choices = Choices { bytes, next: 0, seed };
    let stream = [StreamState::Available, StreamState::Away, StreamState::Absent][choices.below(3)];
    let settings = Settings {
        max_batch_segments: 2,
        max_connections: 4,
        max_session_connections: 3,
        max_connection_bytes: 900,
        max_session_bytes: 1_500,
        max_bytes: 2_000,
        ..Settings::new("t", "f00", stream)
    };
    let mut transcriber = Transcriber::new(settings).expect("the settings can work");
    let (mut walk, mut now, mut steps) = (Walk::default(), Time::ZERO, 0);
    walk.listen(&mut transcriber);
    while !choices.is_over(steps) && !walk.is_stopped {
        steps += 1;
        let input = walk.next(&mut choices, &mut now);
        now = now.after(Duration::from_millis(choices.below(40) as u64));
        transcriber.handle(now, input);
        walk.listen(&mut transcriber);
        assert!(walk.wake_at.is_none_or(|at| at > now), "it wants to be woken at {:?}, at {now:?}", walk.wake_at);
    }
    transcriber.edges
}

impl Walk {
    fn next(&mut self, choices: &mut Choices, now: &mut Time) -> Input {
        match choices.below(16) {
            0 | 1 => self.open(choices),
            2..=4 => self.frame(choices),
            5 => self.close(choices),
            6 => Input::Stream([StreamState::Away, StreamState::Available, StreamState::Available][choices.below(3)]),
            7 if choices.below(20) == 0 => Input::Shutdown,
            7..=9 => {
                *now = self.wake_at.map_or(*now, |at| at.max(*now));
                Input::Woken
            }
            _ => self.report(choices).unwrap_or(Input::Woken),
        }
    }

    fn open(&mut self, choices: &mut Choices) -> Input {
        self.connections += 1;
        let connection = ConnectionId(self.connections);
        let session = Session::new("c", ["s", "t"][choices.below(2)]).expect("the ids are short");
        let name = [None, Some("a"), Some("b")][choices.below(3)];
        let transport = [Transport::Socket, Transport::Socket, Transport::Post][choices.below(3)];
        self.open.insert(connection, 0);
        self.of.insert(connection, session.key());
        let (client, epoch) = (name.map(Arc::from), [None, Some("1".into())][choices.below(2)].clone());
        Input::Opened(Opening { connection, session, client, epoch, transport })
    }

    fn frame(&mut self, choices: &mut Choices) -> Input {
        let frame = match choices.below(8) {
            0 => ClientFrame::Finalize,
            1 => ClientFrame::CloseStream,
            2 if choices.below(2) == 0 => ClientFrame::EndSession,
            2 => ClientFrame::KeepAlive,
            3 => interim("not yet"),
            4 => said(Some(["1", "2"][choices.below(2)]), "with an id"),
            _ => said(None, "without an id"),
        };
        Input::Frame { connection: self.any(choices), frame }
    }

    fn close(&mut self, choices: &mut Choices) -> Input {
        let connection = self.any(choices);
        self.open.remove(&connection);
        Input::Closed { connection, closure: [Closure::Clean, Closure::Broken][choices.below(2)] }
    }

    fn any(&self, choices: &mut Choices) -> ConnectionId {
        let place = choices.below(self.open.len().max(1));
        self.open.keys().nth(place).copied().unwrap_or(ConnectionId(0))
    }

    fn report(&mut self, choices: &mut Choices) -> Option<Input> {
        if self.asked.is_empty() {
            return None;
        }
        let (id, effect) = self.asked.remove(choices.below(self.asked.len()));
        let kind = match choices.below(20) {
            0 => Some(FailureKind::Busy),
            1 => Some(FailureKind::TimedOut),
            2 => Some(FailureKind::Rejected),
            _ => None,
        };
        let failed = kind.map(|kind| Report::Failed(Failure { kind, detail: "drawn".into() }));
        let report = failed.unwrap_or_else(|| self.answer(choices, &effect));
        Some(Input::Reported { effect: id, report })
    }

    fn answer(&mut self, choices: &mut Choices, effect: &Effect) -> Report {
        let is_rare = choices.below(8) == 0;
        let joined =
            Joined { next_index: choices.below(3) as u64, age: Duration::from_secs(1), epochs: vec![Some(7); 4] };
        match effect {
            Effect::OpenLease { .. } => Report::LeaseHeld,
            Effect::RenewLease { .. } if is_rare => Report::LeaseLost,
            Effect::RenewLease { .. } => Report::LeaseHeld,
            Effect::ReleaseLease { .. } => Report::LeaseReleased,
            Effect::FindOrphans { .. } => Report::Orphans(orphans(choices)),
            Effect::Join { session, .. } => {
                self.joined.insert(session.key());
                Report::Joined(joined)
            }
            Effect::Reserve { .. } | Effect::Leave { .. } | Effect::Finish { .. } | Effect::TakeOver { .. }
                if is_rare =>
            {
                Report::Gone
            }
            Effect::Reserve { .. } => Report::Reserved { first_index: choices.below(9) as u64, write: 1 },
            Effect::Save { session, segments } => {
                let outcomes: Vec<_> = segments.iter().map(|segment| outcome(choices, segment.index)).collect();
                let stored = outcomes.iter().filter_map(|outcome| match outcome {
                    SavedSegment::Stored { index } => Some(*index),
                    SavedSegment::IndexTaken { .. } | SavedSegment::Refused { .. } => None,
                });
                self.stored.entry(session.key()).or_default().extend(stored);
                Report::Saved(outcomes)
            }
            Effect::Leave { session, .. } => {
                let departure = match choices.below(4) {
                    0 => Departure::Others,
                    1 => Departure::Silent,
                    2 => Departure::Ending { generation: 1, pending: pending() },
                    _ => Departure::Ending { generation: 1, pending: vec![] },
                };
                if departure != Departure::Silent {
                    self.joined.remove(&session.key());
                }
                Report::Left(departure)
            }
            Effect::Count { session } => {
                let segments = choices.below(9) as u64;
                self.counted.entry(session.key()).or_default().insert(segments);
                Report::Counted { segments, edits: 0 }
            }
            Effect::Finish { session, .. } if choices.below(3) == 0 => {
                self.joined.insert(session.key());
                Report::Reopened
            }
            Effect::Finish { .. } => Report::Finished,
            Effect::TakeOver { session, .. } => {
                // An instance that serves a session is not listed in one that ends.
                let can_end = !self.joined.contains(&session.key());
                let state = if can_end && choices.below(2) == 0 { SessionState::Ending } else { SessionState::Open };
                match state {
                    SessionState::Open => self.joined.insert(session.key()),
                    SessionState::Ending | SessionState::Ended => self.joined.remove(&session.key()),
                };
                let transport = [Transport::Post, Transport::Socket][choices.below(2)];
                let pending = if choices.below(2) == 0 { pending() } else { vec![] };
                Report::TakenOver(TakenOver { joined, state, generation: 1, transport, pending })
            }
            Effect::PublishSegments { .. } => Report::SegmentsPublished,
            Effect::PublishEnd { .. } => Report::EndPublished { stream_sequence: 1 },
        }
    }

    /// Hears what the transcriber says, and checks it.
    fn listen(&mut self, transcriber: &mut Transcriber) {
        for _ in 0..10_000 {
            match transcriber.poll_output() {
                Output::Perform { id, effect } => {
                    let is_same = |other: &Effect| {
                        other.session() == effect.session()
                            && other.kind().server() == effect.kind().server()
                            && (effect.session().is_some() || is_search(other) == is_search(&effect))
                    };
                    // What was given up is asked for again while the first one is under way.
                    self.asked.retain(|(_, other)| !is_same(other));
                    if let Effect::PublishEnd { ended, .. } = &effect {
                        let counted = self.counted.get(&ended.session.key());
                        assert!(
                            counted.is_some_and(|counted| counted.contains(&ended.published_segments)),
                            "{ended:?}"
                        );
                    }
                    self.asked.push((id, effect));
                }
                Output::Send { connection, frame } => self.hear(connection, &frame),
                Output::Close { connection, reason, .. } => {
                    assert!(reason.len() <= 123, "{reason}");
                    // It is said to be closed later, or never: both are handled alike.
                    self.open.remove(&connection);
                }
                Output::Read { .. } | Output::Notice(_) => {}
                Output::Wait(wake_up) => {
                    self.wake_at = wake_up.map(|wake_up| wake_up.at);
                    return;
                }
                Output::Stopped => {
                    self.is_stopped = true;
                    self.wake_at = None;
                    return;
                }
            }
        }
        panic!("it does not come to rest");
    }

    fn hear(&mut self, connection: ConnectionId, frame: &ServerFrame) {
        let key = self.of.get(&connection).expect("a connection that was opened");
        match frame {
            ServerFrame::Ready => {
                assert!(self.joined.contains(key), "{connection} is ready before its session is open");
            }
            ServerFrame::Ack { index, .. } => {
                let stored = self.stored.get(key).is_some_and(|stored| stored.contains(index));
                assert!(stored, "{connection} is told of index {index}, which is not stored");
                *self.open.entry(connection).or_default() += 1;
            }
            ServerFrame::Saved { count } => assert_eq!(self.open.get(&connection).copied().unwrap_or(0), *count),
            ServerFrame::Error { .. } => {}
        }
    }
}

fn is_search(effect: &Effect) -> bool {
    effect.kind() == EffectKind::FindOrphans
}

fn outcome(choices: &mut Choices, index: u64) -> SavedSegment {
    match choices.below(10) {
        0 => SavedSegment::IndexTaken { highest: index + 2 },
        1 => SavedSegment::Refused { reason: "drawn".into() },
        2 => SavedSegment::Stored { index: index / 2 },
        _ => SavedSegment::Stored { index },
    }
}

fn orphans(choices: &mut Choices) -> Vec<Orphan> {
    let session = Session::new("c", ["s", "t", "u"][choices.below(3)]).expect("the ids are short");
    let instance = [InstanceId::new("other", "f01", 1), InstanceId::new("t", "f00", 1)][choices.below(2)].clone();
    if choices.below(2) == 0 { vec![] } else { vec![Orphan { session, instance }] }
}

fn pending() -> Vec<StoredSegment> {
    let unnamed = Unnamed { nonce: "f01", connection: ConnectionId(1), number: 1 };
    let epoch = EpochId::of_connection(None, "f01", ConnectionId(1));
    vec![StoredSegment {
        index: 3,
        source: Source::new(&epoch, Err(unnamed)),
        write: 2,
        speaker: None,
        text: "left behind".into(),
        start_ms: None,
        end_ms: None,
        on_session_clock: false,
    }]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    /// Every acknowledgement follows the report that its segment is stored, the count of every end is one that was reported,
    /// no session has two effects under way at one server, and the machine comes to rest after every input.
    #[test]
    fn it_says_only_what_was_reported(bytes in proptest::collection::vec(any::<u8>(), 1..600)) {
        walk(0, bytes);
    }
}

/// Every row of the table in `session/mod.rs` is taken by some walk, and no edge is taken that has no row.
#[test]
fn the_table_of_transitions_is_the_truth() {
    let taken: BTreeSet<_> = (0..1_500).flat_map(|seed| walk(seed, vec![])).collect();
    let name =
        |state: State| serde_json::to_value(state).expect("a state is JSON").as_str().expect("a name").to_owned();
    let taken: BTreeSet<String> =
        taken.into_iter().map(|(from, what, to)| format!("{} | {what} | {}", name(from), name(to))).collect();
    let table: BTreeSet<String> = include_str!("../session/mod.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! | ")?.rsplit_once(" |")?.0.rsplit_once(" |"))
        .map(|(edge, _)| edge.to_owned())
        .filter(|edge| !edge.starts_with("from") && !edge.starts_with("--"))
        .collect();
    assert!(table.len() > 40, "the table was read: {table:?}");
    let difference: Vec<_> = table.symmetric_difference(&taken).collect();
    assert!(difference.is_empty(), "in the table or taken, not both: {difference:#?}");
}
