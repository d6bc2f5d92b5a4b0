//! What the transcriber says to what happens, one case at a time.

mod walk;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use transcript_core::{Time, ids::Session};

use crate::{
    document::{SessionState, StoredSegment, Transport},
    *,
};

/// A transcriber whose store and stream do what they are asked to, unless a test says otherwise.
struct Bench {
    transcriber: Transcriber,
    now: Time,
    asked: VecDeque<(EffectId, Effect)>,
    sent: Vec<(u64, ServerFrame)>,
    closed: Vec<(u64, CloseCode)>,
    read: Vec<(u64, Reading)>,
    wake_up: Option<WakeUp>,
    is_stopped: bool,
    next_index: u64,
}

impl Bench {
    fn new() -> Self {
        Self::with(Settings::new("t", "f00", StreamState::Available))
    }

    fn with(settings: Settings) -> Self {
        let mut bench = Self {
            transcriber: Transcriber::new(settings).expect("the settings can work"),
            now: Time::ZERO,
            asked: VecDeque::new(),
            sent: vec![],
            closed: vec![],
            read: vec![],
            wake_up: None,
            is_stopped: false,
            next_index: 0,
        };
        bench.listen();
        bench.serve(EffectKind::OpenLease);
        bench
    }

    fn handle(&mut self, input: Input) -> &mut Self {
        self.transcriber.handle(self.now, input);
        self.listen();
        self
    }

    fn listen(&mut self) {
        loop {
            match self.transcriber.poll_output() {
                Output::Perform { id, effect } => self.asked.push_back((id, effect)),
                Output::Send { connection, frame } => self.sent.push((connection.0, frame)),
                Output::Close { connection, code, .. } => self.closed.push((connection.0, code)),
                Output::Read { connection, reading } => self.read.push((connection.0, reading)),
                Output::Notice(_) => {}
                Output::Wait(wake_up) => return self.wake_up = wake_up,
                Output::Stopped => return self.is_stopped = true,
            }
        }
    }

    fn open(&mut self, connection: u64) -> &mut Self {
        self.open_as(connection, None, Transport::Socket)
    }

    fn open_as(&mut self, connection: u64, client: Option<&str>, transport: Transport) -> &mut Self {
        let session = Session::new("c", "s").expect("the ids are short");
        let (client, epoch) = (client.map(Arc::from), client.map(|_| Arc::from("1")));
        self.handle(Input::Opened(Opening { connection: ConnectionId(connection), session, client, epoch, transport }))
    }

    fn say(&mut self, connection: u64, frame: ClientFrame) -> &mut Self {
        self.handle(Input::Frame { connection: ConnectionId(connection), frame })
    }

    fn close(&mut self, connection: u64, closure: Closure) -> &mut Self {
        self.handle(Input::Closed { connection: ConnectionId(connection), closure })
    }

    fn pass(&mut self, seconds: u64) -> &mut Self {
        self.now = self.now.after(Duration::from_secs(seconds));
        self.handle(Input::Woken)
    }

    /// Takes the effect of a kind that is asked for.
    #[track_caller]
    fn take(&mut self, kind: EffectKind) -> (EffectId, Effect) {
        let place = self.asked.iter().position(|(_, effect)| effect.kind() == kind);
        let asked = place.and_then(|place| self.asked.remove(place));
        asked.unwrap_or_else(|| panic!("{kind} is not asked for, only {:?}", self.asked))
    }

    #[track_caller]
    fn report(&mut self, kind: EffectKind, report: Report) -> &mut Self {
        let (effect, _) = self.take(kind);
        self.handle(Input::Reported { effect, report })
    }

    /// Does what is asked for, as a store does which nobody else uses.
    #[track_caller]
    fn serve(&mut self, kind: EffectKind) -> &mut Self {
        let (id, effect) = self.take(kind);
        let report = match effect {
            Effect::OpenLease { .. } | Effect::RenewLease { .. } => Report::LeaseHeld,
            Effect::ReleaseLease { .. } => Report::LeaseReleased,
            Effect::FindOrphans { .. } => Report::Orphans(vec![]),
            Effect::Join { epochs, .. } => Report::Joined(Joined {
                next_index: self.next_index,
                age: Duration::from_secs(100),
                epochs: epochs.iter().map(|_| Some(5_000)).collect(),
            }),
            Effect::Reserve { segments, .. } => {
                let first_index = self.next_index;
                self.next_index += segments.len() as u64;
                Report::Reserved { first_index, write: 1 }
            }
            Effect::Save { segments, .. } => {
                Report::Saved(segments.iter().map(|segment| SavedSegment::Stored { index: segment.index }).collect())
            }
            Effect::Leave { .. } => Report::Left(Departure::Ending { generation: 1, pending: vec![] }),
            Effect::Count { .. } => Report::Counted { segments: self.next_index, edits: 0 },
            Effect::Finish { .. } => Report::Finished,
            Effect::TakeOver { .. } => Report::Gone,
            Effect::PublishSegments { .. } => Report::SegmentsPublished,
            Effect::PublishEnd { .. } => Report::EndPublished { stream_sequence: 9 },
        };
        self.handle(Input::Reported { effect: id, report })
    }

    fn serve_all(&mut self, kinds: &[EffectKind]) -> &mut Self {
        for kind in kinds {
            self.serve(*kind);
        }
        self
    }

    fn kinds(&self) -> Vec<EffectKind> {
        let kinds = self.asked.iter().map(|(_, effect)| effect.kind());
        kinds.filter(|kind| *kind >= EffectKind::Join).collect()
    }

    /// A session with one connection that is ready.
    fn serving() -> Self {
        let mut bench = Self::new();
        bench.open(1).serve(EffectKind::Join);
        bench
    }
}

fn said(id: Option<&str>, text: &str) -> ClientFrame {
    segment(id, text, Finality::Final)
}

fn interim(text: &str) -> ClientFrame {
    segment(None, text, Finality::Interim)
}

fn segment(id: Option<&str>, text: &str, finality: Finality) -> ClientFrame {
    let (start_ms, end_ms) = (Some(1_000), Some(2_000));
    ClientFrame::Segment(ClientSegment {
        id: id.map(Arc::from),
        speaker: None,
        text: text.into(),
        start_ms,
        end_ms,
        finality,
    })
}

fn ack(id: Option<&str>, index: u64) -> ServerFrame {
    ServerFrame::Ack { id: id.map(Arc::from), index }
}

use EffectKind::{Count, Finish, Join, Leave, PublishEnd, PublishSegments, Reserve, Save};

#[test]
fn a_segment_is_acknowledged_once_it_is_stored() {
    let mut bench = Bench::serving();
    assert_eq!(bench.sent, [(1, ServerFrame::Ready)]);
    bench.say(1, said(Some("a"), "one")).serve(Reserve);
    assert_eq!(bench.sent.len(), 1, "a reserved index is no stored segment");
    bench.serve(Save);
    assert_eq!(bench.sent.last(), Some(&(1, ack(Some("a"), 0))));
    assert_eq!(bench.kinds(), [PublishSegments]);
}

#[test]
fn what_comes_while_a_batch_is_stored_is_the_next_batch() {
    let mut bench = Bench::serving();
    bench.say(1, said(None, "one")).say(1, said(None, "two")).say(1, interim("three"));
    let (_, effect) = bench.asked.iter().find(|(_, effect)| effect.kind() == Reserve).cloned().expect("a batch");
    assert!(matches!(&effect, Effect::Reserve { segments, .. } if segments.len() == 1), "{effect:?}");
    bench.serve_all(&[Reserve, Save]);
    bench.serve_all(&[Reserve, Save]);
    assert_eq!(bench.sent.split_off(1), [(1, ack(None, 0)), (1, ack(None, 1))]);
    assert_eq!(bench.transcriber.counters().interim, 1);
}

#[test]
fn finalize_waits_for_what_came_before_it() {
    let mut bench = Bench::serving();
    bench.say(1, said(None, "one")).say(1, ClientFrame::Finalize).say(1, said(None, "two"));
    bench.serve_all(&[Reserve, Save]);
    assert_eq!(bench.sent.last(), Some(&(1, ServerFrame::Saved { count: 1 })));
    bench.say(1, ClientFrame::CloseStream).say(1, said(None, "three"));
    bench.serve_all(&[Reserve, Save]);
    assert_eq!(bench.sent.last(), Some(&(1, ServerFrame::Saved { count: 2 })));
    assert_eq!(bench.closed, [(1, CloseCode::Normal)]);
    assert_eq!(bench.transcriber.counters().received, 2, "nothing is taken after the client has closed its side");
}

#[test]
fn a_session_ends_after_its_delay_and_in_order() {
    let mut bench = Bench::serving();
    bench.say(1, said(None, "one")).close(1, Closure::Clean).serve_all(&[Reserve, Save, PublishSegments]);
    assert_eq!(bench.kinds(), []);
    bench.pass(1);
    assert_eq!(bench.kinds(), []);
    bench.pass(1).serve_all(&[Leave, Count]);
    let (id, effect) = bench.take(PublishEnd);
    let Effect::PublishEnd { ended, message_id } = effect else { panic!("{effect:?}") };
    assert_eq!((ended.published_segments, &*message_id), (1, "c:s%end1"));
    bench.handle(Input::Reported { effect: id, report: Report::EndPublished { stream_sequence: 9 } }).serve(Finish);
    assert_eq!((bench.transcriber.sessions(), bench.transcriber.bytes()), (0, 0));
}

#[test]
fn a_broken_connection_is_waited_for_longer_and_a_return_goes_on() {
    let mut bench = Bench::serving();
    bench.say(1, said(None, "one")).serve_all(&[Reserve, Save, PublishSegments]).close(1, Closure::Broken).pass(19);
    assert_eq!(bench.kinds(), []);
    bench.open(2);
    assert_eq!(bench.sent.last(), Some(&(2, ServerFrame::Ready)), "the session goes on without a word to the store");
    bench.pass(100).close(2, Closure::Clean).pass(2);
    assert_eq!(bench.kinds(), [Leave]);
}

#[test]
fn the_last_close_does_not_forget_a_client_that_broke() {
    let mut bench = Bench::serving();
    bench.open(2).close(1, Closure::Broken).pass(5).close(2, Closure::Clean).pass(14);
    assert_eq!(bench.kinds(), []);
    bench.pass(1);
    assert_eq!(bench.kinds(), [Leave]);
}

#[test]
fn a_broken_socket_that_was_replaced_is_not_waited_for() {
    let mut bench = Bench::new();
    bench.open_as(1, Some("a"), Transport::Socket).serve(Join);
    bench.open_as(2, Some("a"), Transport::Socket).close(1, Closure::Broken).close(2, Closure::Clean).pass(2);
    assert_eq!(bench.kinds(), [Leave]);
}

#[test]
fn silence_is_waited_for_unless_others_spoke() {
    let mut bench = Bench::serving();
    bench.close(1, Closure::Clean).pass(2);
    let (_, effect) = bench.asked.back().cloned().expect("a leave");
    assert!(matches!(effect, Effect::Leave { silence: Silence::Waits, .. }), "{effect:?}");
    bench.report(Leave, Report::Left(Departure::Silent)).pass(297);
    assert_eq!(bench.kinds(), []);
    bench.pass(1);
    let (_, effect) = bench.take(Leave);
    assert!(matches!(effect, Effect::Leave { silence: Silence::Ends, .. }), "{effect:?}");
}

#[test]
fn a_client_that_speaks_after_the_store_was_asked_ends_a_silence() {
    let mut bench = Bench::new();
    bench.open(1).serve(Join).close(1, Closure::Clean).pass(2);
    bench.open(2).report(Leave, Report::Left(Departure::Silent)).say(2, said(None, "one"));
    bench.serve_all(&[Reserve, Save, PublishSegments]);
    bench.close(2, Closure::Clean).pass(2);
    assert_eq!(bench.kinds(), [Leave]);
}

#[test]
fn a_zero_delay_ends_at_once() {
    let zero = Duration::ZERO;
    let settings = Settings::new("t", "f00", StreamState::Available);
    let mut bench =
        Bench::with(Settings { end_after_close: zero, end_after_break: zero, end_after_silence: zero, ..settings });
    bench.open(1).serve(Join).close(1, Closure::Clean);
    let (_, effect) = bench.take(Leave);
    assert!(matches!(effect, Effect::Leave { silence: Silence::Ends, .. }), "{effect:?}");
}

#[test]
fn requests_end_by_a_request_or_after_an_idle_time() {
    let mut bench = Bench::new();
    bench.open_as(1, None, Transport::Post).say(1, said(Some("a"), "one")).say(1, ClientFrame::CloseStream);
    bench.serve_all(&[Join, Reserve, Save, PublishSegments]);
    assert_eq!(bench.closed, [(1, CloseCode::Normal)]);
    bench.pass(299);
    assert_eq!(bench.kinds(), []);
    bench.open_as(2, None, Transport::Post).say(2, ClientFrame::EndSession);
    let (_, effect) = bench.take(Leave);
    assert!(matches!(effect, Effect::Leave { idle_others: IdleOthers::Removed, .. }), "{effect:?}");
}

#[test]
fn a_client_that_comes_during_an_end_opens_the_session_again() {
    for done in [&[][..], &[Leave], &[Leave, Count]] {
        let mut bench = Bench::serving();
        bench.close(1, Closure::Broken).pass(300).serve_all(done).open(2);
        if done.len() < 2 {
            assert!(!bench.kinds().contains(&Join), "one effect at a time");
            bench.serve(if done.is_empty() { Leave } else { Count });
        }
        assert!(bench.sent.iter().all(|(connection, _)| *connection == 1));
        bench.serve(Join);
        assert_eq!(bench.sent.last(), Some(&(2, ServerFrame::Ready)));
        assert_eq!(bench.transcriber.counters().reopened, 1);
    }
}

#[test]
fn a_lost_lease_makes_another_instance_of_it() {
    let mut bench = Bench::serving();
    bench.say(1, said(None, "one")).pass(4);
    let (reserve, _) = bench.take(Reserve);
    bench.report(EffectKind::RenewLease, Report::LeaseLost);
    assert_eq!(bench.transcriber.instance().as_str(), "t.f00.2");
    // The batch was not taken: its entry is a successor's.
    bench.handle(Input::Reported { effect: reserve, report: Report::Gone });
    assert_eq!(bench.kinds(), [], "nothing is joined without a lease");
    bench.serve_all(&[EffectKind::OpenLease, Join, Reserve, Save]);
    assert_eq!(bench.sent.last(), Some(&(1, ack(None, 0))));
}

#[test]
fn an_entry_of_a_dead_instance_is_taken_its_batch_stored_and_its_session_ended() {
    for (state, delay) in [(SessionState::Open, 20), (SessionState::Ending, 0)] {
        let mut bench = Bench::new();
        let session = Session::new("c", "s").expect("the ids are short");
        let orphan = Orphan { session, instance: InstanceId::new("other", "f01", 1) };
        bench.report(EffectKind::FindOrphans, Report::Orphans(vec![orphan]));
        let joined = Joined { next_index: 1, age: Duration::from_secs(9), epochs: vec![] };
        let unnamed = Unnamed { nonce: "f01", connection: ConnectionId(1), number: 1 };
        let pending = StoredSegment {
            index: 0,
            source: Source::new(&EpochId::of_requests("bot"), Err(unnamed)),
            write: 1,
            speaker: None,
            text: "one".into(),
            start_ms: None,
            end_ms: None,
            on_session_clock: false,
        };
        let transport = Transport::Socket;
        let taken = TakenOver { joined, state, generation: 3, transport, pending: vec![pending] };
        bench.report(EffectKind::TakeOver, Report::TakenOver(taken)).serve_all(&[Save, PublishSegments]);
        if delay > 0 {
            assert_eq!(bench.kinds(), [], "its clients may come");
            bench.pass(delay).serve(Leave);
        }
        bench.serve_all(&[Count, PublishEnd, Finish]);
        assert_eq!(bench.transcriber.counters().taken_over, 1);
    }
}

#[test]
fn without_a_stream_nothing_is_published_and_the_session_ends() {
    let mut bench = Bench::with(Settings::new("t", "f00", StreamState::Absent));
    bench.open(1).serve(Join).say(1, said(None, "one")).serve_all(&[Reserve, Save]);
    bench.close(1, Closure::Clean).pass(2).serve_all(&[Leave, Count]);
    let (_, effect) = bench.take(Finish);
    assert!(matches!(effect, Effect::Finish { saved: 1, published: None, .. }), "{effect:?}");
}

#[test]
fn while_the_stream_is_away_segments_are_stored_and_the_end_waits_for_them() {
    let mut bench = Bench::serving();
    bench.handle(Input::Stream(StreamState::Away)).say(1, said(None, "one")).serve_all(&[Reserve, Save]);
    assert_eq!(bench.sent.last(), Some(&(1, ack(None, 0))));
    bench.close(1, Closure::Clean).pass(60);
    assert_eq!(bench.kinds(), []);
    bench.handle(Input::Stream(StreamState::Available)).serve(PublishSegments).serve(Leave);
}

#[test]
fn who_sends_faster_than_the_store_takes_is_not_read() {
    let settings = Settings::new("t", "f00", StreamState::Available);
    let mut bench = Bench::with(Settings { max_connection_bytes: 1_000, ..settings });
    bench.open(1).serve(Join);
    for _ in 0..4 {
        bench.say(1, said(None, "some words"));
    }
    assert_eq!(bench.read, [(1, Reading::Paused)]);
    bench.serve_all(&[Reserve, Save, Reserve, Save]);
    assert_eq!(bench.read, [(1, Reading::Paused), (1, Reading::Resumed)]);
}

#[test]
fn limits_are_refused_with_their_reason() {
    let settings = Settings::new("t", "f00", StreamState::Available);
    let mut bench = Bench::with(Settings {
        max_session_connections: 1,
        max_segment_bytes: 10,
        max_session_segments: 1,
        ..settings
    });
    bench.open(1).serve(Join).open(2);
    assert_eq!(bench.closed, [(2, CloseCode::TryAgainLater)]);
    bench.say(1, said(None, "more than ten bytes")).say(1, said(None, "one")).say(1, said(None, "two"));
    let refused = bench.sent.iter().filter(|(_, frame)| matches!(frame, ServerFrame::Error { .. })).count();
    assert_eq!((refused, bench.transcriber.counters().refused_segments), (3, 2));
}

#[test]
fn sessions_are_limited_those_that_wait_for_their_end_included() {
    let settings = Settings::new("t", "f00", StreamState::Available);
    let mut bench = Bench::with(Settings { max_sessions: 1, ..settings });
    let open = |bench: &mut Bench, connection, session| {
        let session = Session::new("c", session).expect("the ids are short");
        let (connection, transport) = (ConnectionId(connection), Transport::Socket);
        bench.handle(Input::Opened(Opening { connection, session, client: None, epoch: None, transport }));
    };
    bench.open(1).serve(Join).close(1, Closure::Clean);
    open(&mut bench, 2, "another");
    assert_eq!(bench.closed, [(2, CloseCode::TryAgainLater)]);
    assert!(matches!(bench.sent.last(), Some((2, ServerFrame::Error { retryable: true, .. }))), "{:?}", bench.sent);
    // The session that is there takes another connection, and once it is over another session has its place.
    bench.open(3).close(3, Closure::Clean).pass(300);
    bench.serve(Leave).serve(Count).serve(PublishEnd).serve(Finish);
    open(&mut bench, 4, "another");
    assert_eq!(bench.closed, [(2, CloseCode::TryAgainLater)]);
    bench.take(Join);
}

#[test]
fn times_are_put_onto_the_clock_of_the_session() {
    let mut bench = Bench::serving();
    // The session was 100 s old when it was joined; this connection opens 7 s later.
    bench.pass(7).open(2).say(2, said(None, "one"));
    let (_, effect) = bench.take(Reserve);
    let Effect::Reserve { segments, .. } = effect else { panic!("{effect:?}") };
    let [segment] = segments.as_slice() else { panic!("{segments:?}") };
    assert_eq!((segment.start_ms, segment.end_ms, segment.on_session_clock), (Some(108_000), Some(109_000), true));
    // A client that names its epoch: the document knows when that began.
    let mut bench = Bench::new();
    bench.open_as(1, Some("a"), Transport::Socket).serve(Join).say(1, said(None, "one"));
    let (_, effect) = bench.take(Reserve);
    let Effect::Reserve { segments, .. } = effect else { panic!("{effect:?}") };
    assert_eq!(segments.first().and_then(|segment| segment.start_ms), Some(6_000));
    // Nobody knows which clock the times of a request are of.
    let mut bench = Bench::new();
    bench.open_as(1, None, Transport::Post).serve(Join).say(1, said(None, "one"));
    let (_, effect) = bench.take(Reserve);
    let Effect::Reserve { segments, .. } = effect else { panic!("{effect:?}") };
    let [segment] = segments.as_slice() else { panic!("{segments:?}") };
    assert_eq!((segment.start_ms, segment.on_session_clock), (Some(1_000), false));
}

#[test]
fn an_index_that_is_taken_is_left_to_whoever_has_it() {
    let mut bench = Bench::serving();
    bench.say(1, said(None, "one")).serve(Reserve);
    bench.report(Save, Report::Saved(vec![SavedSegment::IndexTaken { highest: 41 }]));
    let (_, effect) = bench.take(Reserve);
    assert!(matches!(effect, Effect::Reserve { from: 42, .. }), "{effect:?}");
}

#[test]
fn a_shutdown_stores_what_was_read_and_hands_the_session_over() {
    let mut bench = Bench::serving();
    bench.say(1, said(None, "one")).handle(Input::Shutdown);
    assert_eq!(bench.read, [(1, Reading::Paused)]);
    bench.serve_all(&[Reserve, Save]);
    assert_eq!(bench.closed, []);
    bench.serve(PublishSegments);
    assert_eq!(bench.closed, [(1, CloseCode::Restart)]);
    assert_eq!(bench.transcriber.counters().unstored, 0);
    bench.open(2);
    assert_eq!(bench.closed.last(), Some(&(2, CloseCode::Restart)));
    assert!(!bench.is_stopped, "its lease expires first, so that others need not wait");
    bench.serve(EffectKind::ReleaseLease);
    assert!(bench.is_stopped);
}

#[test]
fn a_shutdown_does_not_wait_longer_than_its_grace() {
    let mut bench = Bench::serving();
    bench.say(1, said(None, "one")).handle(Input::Shutdown).pass(20);
    assert_eq!(bench.closed, [(1, CloseCode::Restart)]);
    assert!(bench.sent.iter().all(|(_, frame)| *frame == ServerFrame::Ready), "nothing is acknowledged");
    assert_eq!(bench.transcriber.counters().unstored, 1);
}

#[test]
fn a_join_that_arrives_after_it_was_given_up_is_found() {
    let mut bench = Bench::new();
    bench.serve(EffectKind::FindOrphans).open(1);
    let timed_out = transcript_core::Failure { kind: transcript_core::FailureKind::TimedOut, detail: String::new() };
    bench.report(Join, Report::Failed(timed_out)).pass(1).serve(Join);
    bench.close(1, Closure::Clean).pass(2).report(Leave, Report::Left(Departure::Others)).pass(5);
    let (id, effect) = bench.take(EffectKind::FindOrphans);
    let own = bench.transcriber.instance().clone();
    assert!(matches!(&effect, Effect::FindOrphans { own: Some(instance), .. } if *instance == own), "{effect:?}");
    let session = Session::new("c", "s").expect("the ids are short");
    let orphans = Report::Orphans(vec![Orphan { session, instance: own }]);
    bench
        .handle(Input::Reported { effect: id, report: orphans })
        .pass(20)
        .serve_all(&[Leave, Count, PublishEnd, Finish]);
}
