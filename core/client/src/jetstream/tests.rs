//! The client and a server that is played by hand.

use std::{sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use transcript_core::{
    Acknowledgement, Effect, Input as CoreInput, Report, Time, WallTime,
    contract::{
        Announcement, DEAD_LETTER_SUBJECT, DeadLetter, Notification, PROCESSED_SUBJECT, SEGMENT_SUBJECT,
        trace_context::TraceContext,
    },
    event::SessionEnded,
    ids::{EffectId, Session},
};

use super::*;

const REPLY: &str = "$JS.ACK.TRANSCRIPTION.transcript-processor.1.7.7.1700000000000000000.0";

/// A client, and what it has said.
struct Bench {
    client: JetStream,
    now: Time,
    frames: Vec<Frame>,
    told: Vec<CoreInput>,
    notes: Vec<Note>,
    problems: Vec<String>,
    wake_up: Option<WakeUp>,
}

impl Bench {
    /// A client that is connected, and has looked at its consumer and asked for `deliveries` messages.
    fn new(deliveries: u64) -> Self {
        Self::with(deliveries, Settings::default())
    }

    fn with(deliveries: u64, settings: Settings) -> Self {
        let client = JetStream::new(settings);
        let (frames, told, notes, problems) = (vec![], vec![], vec![], vec![]);
        let mut bench = Self { client, now: Time::ZERO, frames, told, notes, problems, wake_up: None };
        bench.handle(Input::Allow { deliveries });
        bench.connect(0);
        bench
    }

    fn connect(&mut self, failed_attempts: u32) {
        self.handle(Input::Connected { max_payload: 1 << 20, failed_attempts });
    }

    fn handle(&mut self, input: Input) {
        self.client.handle(self.now, input);
        loop {
            match self.client.poll_output() {
                Output::Send(frame) => {
                    self.frames.push(frame);
                    self.client.handle(self.now, Input::Written { frames: 1 });
                }
                Output::Tell(input) => self.told.push(input),
                Output::Note(note) => self.notes.push(note),
                Output::SetUp { problem } => self.problems.push(problem),
                Output::Wait(wake_up) => {
                    self.wake_up = wake_up;
                    return;
                }
            }
        }
    }

    /// Answers the last look at the consumer: nothing is under way but what was handed over between these two places.
    fn looked(&mut self, floor: u64, delivered: u64) {
        self.answer("CONSUMER.INFO", &info(floor, delivered, ""));
    }

    fn pass(&mut self, span: Duration) {
        self.now = self.now.after(span);
        self.handle(Input::Woken);
    }

    /// The last frame whose subject contains this.
    fn sent(&self, subject: &str) -> &Frame {
        self.frames.iter().rev().find(|frame| frame.subject.contains(subject)).expect("it was sent")
    }

    fn count(&self, subject: &str) -> usize {
        self.frames.iter().filter(|frame| frame.subject.contains(subject)).count()
    }

    fn receive(&mut self, token: u64, reply: Option<&str>, status: Option<(u16, &str)>, payload: &[u8]) {
        let status = status.map(|(code, description)| Status { code, description: description.to_owned().into() });
        let (to, reply, payload) = (Address::Inbox(token), reply.map(Arc::from), payload.to_vec());
        let received_at = WallTime::from_millis(1);
        self.handle(Input::Received(Message { to, reply, status, headers: vec![], payload, received_at }));
    }

    /// Hands the message at this place over.
    fn deliver(&mut self, place: u64) {
        let reply = format!("$JS.ACK.TRANSCRIPTION.transcript-processor.1.{place}.{place}.0.0");
        self.receive(0, Some(&reply), None, b"{}");
    }

    /// Answers the last request to such a subject.
    fn answer(&mut self, subject: &str, payload: &str) {
        let token = self.sent(subject).reply.expect("an answer is wanted");
        self.receive(token, None, None, payload.as_bytes());
    }

    /// Answers the last read of the stream with a message.
    fn answer_read(&mut self, subject: &str, headers: &str, payload: &str) {
        let [hdrs, data] = [headers, payload].map(|text| BASE64_STANDARD.encode(text));
        let message = format!(
            r#"{{"message":{{"subject":"{subject}","seq":3,"hdrs":"{hdrs}","data":"{data}","time":"2026-11-30T12:00:00Z"}}}}"#
        );
        self.answer("MSG.GET", &message);
    }

    fn perform(&mut self, effect: Effect) -> EffectId {
        let id = effect_id(1, 1);
        self.handle(Input::Perform { id, effect });
        id
    }

    fn report(&self) -> &Report {
        match self.told.last() {
            Some(CoreInput::Reported { report, .. }) => report,
            other => panic!("{other:?}"),
        }
    }
}

fn effect_id(job: u64, number: u32) -> EffectId {
    serde_json::from_value(serde_json::json!({ "job": job, "number": number })).expect("an id")
}

fn session() -> Session {
    Session::new("c", "s").expect("ids are valid")
}

fn notification(segments: u64) -> Notification {
    Notification { session: session(), segments, complete: true, revision: None, edits: 0 }
}

fn publish() -> Effect {
    let announcement = Announcement::Processed;
    Effect::Publish { key: session().key(), announcement, notification: notification(4), trace_context: None }
}

fn ack(sequence: u64) -> Effect {
    let reply = format!("$JS.ACK.TRANSCRIPTION.transcript-processor.1.{sequence}.{sequence}.0.0").into();
    Effect::Acknowledge { reply, key: None, acknowledgement: Acknowledgement::Ack }
}

fn message_id(frame: &Frame) -> Option<&str> {
    header(&frame.headers, "Nats-Msg-Id")
}

fn info(floor: u64, delivered: u64, more: &str) -> String {
    format!(
        r#"{{"config":{{"ack_policy":"explicit","ack_wait":6000000000,"max_deliver":5,
        "filter_subject":"transcription.session-ended"{more}}},
        "delivered":{{"stream_seq":{delivered}}},"ack_floor":{{"stream_seq":{floor}}}}}"#
    )
}

#[test]
fn a_message_with_an_acknowledgement_subject_is_a_message_whatever_its_status_line_says() {
    let mut bench = Bench::new(5);
    let pull = bench.sent("MSG.NEXT").reply.expect("a pull request is answered");
    for status in [(503, ""), (409, "Consumer Deleted"), (404, "No Messages")] {
        bench.receive(pull, Some(REPLY), Some(status), b"{}");
    }
    assert_eq!(bench.told.iter().filter(|it| matches!(it, CoreInput::Delivered(_))).count(), 3);
    assert_eq!(bench.count("MSG.NEXT"), 1, "the request goes on");
    for _ in 0..2 {
        bench.receive(pull, Some(REPLY), None, b"{}");
    }
    bench.handle(Input::Allow { deliveries: 6 });
    assert_eq!(bench.count("MSG.NEXT"), 2, "it has brought all that was asked for");
}

const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn trace() -> Option<Arc<TraceContext>> {
    TraceContext::of_headers([("traceparent", TRACEPARENT), ("tracestate", "a=1")].into_iter()).map(Arc::new)
}

/// The trace that a frame belongs to, as its headers have it.
fn trace_headers(frame: &Frame) -> [Option<&str>; 2] {
    ["traceparent", "tracestate"].map(|name| header(&frame.headers, name))
}

#[test]
fn the_trace_of_an_end_comes_with_its_delivery() {
    let mut bench = Bench::new(5);
    let headers = vec![("Traceparent".into(), TRACEPARENT.to_owned()), ("tracestate".into(), "a=1".to_owned())];
    let (to, reply, payload) = (Address::Published, Some(REPLY.into()), b"{}".to_vec());
    let received_at = WallTime::from_millis(1);
    bench.handle(Input::Received(Message { to, reply, status: None, headers, payload, received_at }));
    let Some(CoreInput::Delivered(delivery)) = bench.told.last() else { panic!("{:?}", bench.told) };
    assert_eq!(delivery.trace_context, trace());
}

#[test]
fn a_notification_is_of_the_trace_of_its_end_also_when_it_is_tried_again() {
    let mut bench = Bench::new(0);
    let (key, announcement) = (session().key(), Announcement::Revised { revision: 2 });
    let effect = Effect::Publish { key, announcement, notification: notification(4), trace_context: trace() };
    bench.perform(effect.clone());
    let expected = [Some(TRACEPARENT), Some("a=1")];
    assert_eq!(trace_headers(bench.sent("transcript.revised")), expected);
    bench.answer("transcript.revised", r#"{"error":{"code":503,"err_code":10008,"description":"x"}}"#);
    bench.handle(Input::Perform { id: effect_id(1, 2), effect });
    assert_eq!(bench.count("transcript.revised"), 2);
    assert_eq!(trace_headers(bench.sent("transcript.revised")), expected);
    bench.perform(publish());
    assert_eq!(trace_headers(bench.sent(PROCESSED_SUBJECT)), [None, None], "an end without one");
}

#[test]
fn where_spans_are_told_a_notification_names_the_one_that_sent_it() {
    let spans = transcript_core::SpanIds::new(7);
    let mut bench = Bench::with(0, Settings { spans: Some(spans), ..Settings::default() });
    let (key, announcement) = (session().key(), Announcement::Processed);
    let effect = Effect::Publish { key, announcement, notification: notification(4), trace_context: trace() };
    let id = bench.perform(effect);
    let sent_by = spans.of_announcement(id.job, announcement, trace().as_deref()).to_string();
    assert!(sent_by.starts_with(&TRACEPARENT[..36]) && sent_by != TRACEPARENT, "{sent_by}");
    assert_eq!(trace_headers(bench.sent(PROCESSED_SUBJECT)), [Some(&*sent_by), Some("a=1")]);
    bench.perform(publish());
    let [of_its_own, _] = trace_headers(bench.sent(PROCESSED_SUBJECT));
    assert_eq!(of_its_own, Some(&*spans.of_announcement(id.job, announcement, None).to_string()));
}

#[test]
fn what_is_made_from_a_message_is_of_its_trace() {
    let mut bench = Bench::new(0);
    let headers = format!("NATS/1.0\r\nTraceparent: {TRACEPARENT}\r\ntracestate: a=1\r\n\r\n");
    let ended = SessionEnded { session: session(), published_segments: 1, reprocess: 0 };
    for (effect, subject) in [
        (Effect::Republish { stream_sequence: 7, ended }, "transcription.session-ended"),
        (Effect::DeadLetter { dead_letter: Arc::new(dead_letter("no JSON")) }, DEAD_LETTER_SUBJECT),
    ] {
        bench.perform(effect);
        bench.answer_read("transcription.session-ended", &headers, "the end");
        assert_eq!(trace_headers(bench.sent(subject)), [Some(TRACEPARENT), Some("a=1")], "{subject}");
        bench.answer(subject, r#"{"seq":9}"#);
    }
}

fn dead_letter(reason: &str) -> DeadLetter {
    let (reason, at) = (reason.to_owned(), WallTime::from_millis(5));
    DeadLetter { stream_sequence: 7, attempts: 5, reason, at, ended: None }
}

#[test]
fn a_duplicate_counts_where_it_is_this_announcement() {
    let mut bench = Bench::new(0);
    bench.perform(publish());
    bench.answer(PROCESSED_SUBJECT, r#"{"stream":"TRANSCRIPTION","seq":3,"duplicate":true}"#);
    let earlier = serde_json::to_string(&notification(2)).expect("it is JSON");
    bench.answer_read(PROCESSED_SUBJECT, "", &earlier);
    assert_eq!(*bench.report(), Report::Published { stream_sequence: 3, segments: 2, edits: 0 });
    assert_eq!(bench.count(PROCESSED_SUBJECT), 1);
}

#[test]
fn a_duplicate_of_another_message_is_published_under_other_ids() {
    let mut bench = Bench::new(0);
    bench.perform(publish());
    let other = serde_json::json!({ "conversationId": "c", "sessionId": "t", "segments": 1, "complete": true });
    for (id, subject) in [("c:s", SEGMENT_SUBJECT), ("c:s%n", PROCESSED_SUBJECT)] {
        assert_eq!(message_id(bench.sent(PROCESSED_SUBJECT)), Some(id));
        bench.answer(PROCESSED_SUBJECT, r#"{"seq":3,"duplicate":true}"#);
        bench.answer_read(subject, "", &other.to_string());
    }
    assert_eq!(message_id(bench.sent(PROCESSED_SUBJECT)), Some("c:s%n2"));
    bench.answer(PROCESSED_SUBJECT, r#"{"seq":9}"#);
    assert_eq!(*bench.report(), Report::Published { stream_sequence: 9, segments: 4, edits: 0 });
}

#[test]
fn an_occupied_subject_is_looked_at() {
    let mut bench = Bench::new(0);
    let announcement = Announcement::ProcessedOnce;
    bench.perform(Effect::Publish {
        key: session().key(),
        announcement,
        notification: notification(4),
        trace_context: None,
    });
    let expected = |bench: &Bench| {
        header(&bench.sent("transcript.processed.c:s").headers, "Nats-Expected-Last-Subject-Sequence")
            .map(str::to_owned)
    };
    assert_eq!(expected(&bench).as_deref(), Some("0"));
    bench.answer("transcript.processed.c:s", r#"{"error":{"code":400,"err_code":10071,"description":"x"}}"#);
    bench.answer_read("transcript.processed.c:s", "", "rubbish");
    assert_eq!(expected(&bench).as_deref(), Some("3"), "whoever wrote there comes before");
    bench.answer("transcript.processed.c:s", r#"{"seq":9}"#);
    assert_eq!(*bench.report(), Report::Published { stream_sequence: 9, segments: 4, edits: 0 });
}

#[test]
fn the_dead_letter_of_another_message_is_not_this_one() {
    let mut bench = Bench::new(0);
    bench.perform(Effect::DeadLetter { dead_letter: dead_letter("a\r\nNats-Msg-Id: x").into() });
    bench.answer_read("transcription.session-ended", "", "the end");
    let sent = bench.sent(DEAD_LETTER_SUBJECT);
    assert_eq!((message_id(sent), sent.payload.as_slice()), (Some("dead-letter-7"), b"the end".as_slice()));
    assert_eq!(header(&sent.headers, "Transcript-Reason"), Some("a  Nats-Msg-Id: x"));
    bench.answer(DEAD_LETTER_SUBJECT, r#"{"seq":3,"duplicate":true}"#);
    bench.answer_read(DEAD_LETTER_SUBJECT, "NATS/1.0\r\nTranscript-Stream-Sequence: 8\r\n\r\n", "");
    assert_eq!(message_id(bench.sent(DEAD_LETTER_SUBJECT)), Some("dead-letter-7%n"));
    bench.answer(DEAD_LETTER_SUBJECT, r#"{"seq":3,"duplicate":true}"#);
    bench.answer_read(DEAD_LETTER_SUBJECT, "NATS/1.0\r\nTranscript-Stream-Sequence: 7\r\n\r\n", "");
    assert_eq!(*bench.report(), Report::DeadLettered { stream_sequence: 3 });
}

#[test]
fn an_outage_keeps_one_request_for_each_job_and_sends_it_once_afterwards() {
    let mut bench = Bench::new(0);
    bench.looked(0, 10_000);
    for job in 1..=10_000 {
        bench.handle(Input::Perform { id: effect_id(job, 1), effect: ack(job) });
    }
    assert_eq!(bench.count("$JS.ACK"), 10_000);
    bench.handle(Input::Disconnected);
    let before = bench.client.pending();
    // The core asks again and again for what nobody reports, and tells that its jobs are alive.
    for number in 2..20 {
        for job in 1..=10_000 {
            bench.handle(Input::Perform { id: effect_id(job, number), effect: ack(job) });
            bench.handle(Input::InProgress { reply: REPLY.into() });
        }
        bench.pass(Duration::from_secs(50));
    }
    assert!(bench.client.pending() <= before, "{} of {before}", bench.client.pending());
    assert_eq!(bench.count("$JS.ACK"), 10_000, "nothing is sent without a connection");
    bench.connect(30);
    bench.looked(0, 10_000);
    assert_eq!(bench.count("$JS.ACK"), 20_000, "one request for each");
    assert_eq!(bench.wake_up.map(|it| it.timer), Some(Timer::Answer));
}

/// A server that was killed drops an acknowledgement of a delivery that it has forgotten, and hands the message over again.
#[test]
fn a_delivery_that_the_server_has_forgotten_is_acknowledged_once() {
    let mut bench = Bench::new(10);
    bench.looked(0, 0);
    for place in 1..=3 {
        bench.deliver(place);
    }
    bench.handle(Input::Disconnected);
    for job in 1..=3 {
        bench.handle(Input::Perform { id: effect_id(job, 1), effect: ack(job) });
    }
    bench.connect(3);
    assert_eq!(bench.count("$JS.ACK"), 0, "nobody knows yet which deliveries the server knows");
    bench.looked(0, 1);
    assert_eq!((bench.count("$JS.ACK"), bench.count(".1.1.1.")), (1, 1), "it has forgotten the others");
    bench.deliver(2);
    assert_eq!(bench.count("$JS.ACK"), 2, "it knows this one again");
    // Another process was given the last one: so the consumer shows.
    bench.pass(Settings::default().consumer_every);
    bench.looked(0, 3);
    assert_eq!(bench.count("$JS.ACK"), 3);
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.count("$JS.ACK"), 3, "each was acknowledged once");
}

#[test]
fn acknowledgements_do_not_wait_for_a_consumer_that_cannot_be_looked_at() {
    let mut bench = Bench::new(0);
    bench.perform(ack(7));
    assert_eq!(bench.count("$JS.ACK"), 0);
    bench.pass(Settings::default().request_timeout);
    assert_eq!(bench.count("$JS.ACK"), 1);
}

/// The core asks anew before the server has said anything.
#[test]
fn an_acknowledgement_that_is_held_and_asked_for_again_is_sent_once() {
    let mut bench = Bench::new(0);
    for number in 1..=2 {
        bench.handle(Input::Perform { id: effect_id(1, number), effect: ack(7) });
    }
    bench.looked(0, 7);
    assert_eq!(bench.count("$JS.ACK"), 1);
    bench.answer("$JS.ACK", "");
    let id = effect_id(1, 2);
    assert!(
        matches!(bench.told.last(), Some(CoreInput::Reported { effect, report: Report::Acknowledged }) if *effect == id)
    );
}

#[test]
fn a_time_out_runs_from_when_the_request_is_sent() {
    let mut bench = Bench::new(0);
    bench.handle(Input::Disconnected);
    bench.perform(publish());
    bench.pass(Duration::from_secs(60));
    assert_eq!(bench.told, []);
    bench.connect(1);
    bench.pass(Duration::from_secs(9));
    assert_eq!(bench.told, []);
    bench.pass(Duration::from_secs(2));
    assert!(bench.report().to_string().contains("timed out"), "{}", bench.report());
}

/// A machine that was suspended, or a process that was stopped: the first thing that it sees may be a new connection.
#[test]
fn what_was_asked_for_too_long_ago_is_not_sent() {
    let settings = Settings::default();
    for (away, sent) in [(settings.sends_within, 2), (settings.sends_within + Duration::from_micros(1), 1)] {
        let mut bench = Bench::new(0);
        bench.perform(publish());
        bench.handle(Input::Disconnected);
        bench.now = bench.now.after(away);
        bench.connect(3);
        assert_eq!(bench.count(PROCESSED_SUBJECT), sent, "after {away:?}");
        if sent == 1 {
            let Report::Failed(failure) = bench.report() else { panic!("{:?}", bench.told) };
            assert_eq!(failure.kind, transcript_core::FailureKind::TimedOut);
        }
    }
}

/// The rule of [`transcript_core::Settings::answer_timeout`].
#[test]
fn the_last_request_of_an_effect_is_over_when_the_core_asks_anew() {
    for request_timeout in [Duration::from_millis(10), Duration::from_secs(10), Duration::from_secs(77)] {
        let core = transcript_core::Settings { request_timeout, ..transcript_core::Settings::default() };
        let settings = Settings::with_request_timeout(request_timeout);
        assert!(settings.sends_within + settings.request_timeout <= core.answer_timeout());
    }
    assert_eq!(Settings::default(), Settings::with_request_timeout(Settings::default().request_timeout));
}

#[test]
fn no_more_is_given_to_be_written_than_may_wait() {
    let mut client = JetStream::new(Settings { max_unwritten: 10, ..Settings::default() });
    client.handle(Time::ZERO, Input::Connected { max_payload: 1 << 20, failed_attempts: 0 });
    for job in 1..=50 {
        client.handle(Time::ZERO, Input::Perform { id: effect_id(job, 1), effect: publish() });
    }
    let sent = |client: &mut JetStream| {
        std::iter::from_fn(|| Some(client.poll_output())).take_while(|it| matches!(it, Output::Send(_))).count()
    };
    assert_eq!(sent(&mut client), 10);
    client.handle(Time::ZERO, Input::Written { frames: 4 });
    assert_eq!(sent(&mut client), 4);
}

#[test]
fn pulls_are_forgotten_with_their_connection_and_asked_anew() {
    let mut bench = Bench::new(5);
    bench.handle(Input::Disconnected);
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.count("MSG.NEXT"), 1);
    bench.connect(3);
    assert_eq!(bench.count("MSG.NEXT"), 2);
    assert_eq!(bench.notes, [], "a server that was away is why the connection was lost");
}

#[test]
fn after_a_connection_that_broke_over_a_message_that_is_found_kept_and_terminated() {
    let mut bench = Bench::new(5);
    bench.answer("CONSUMER.INFO", &info(0, 0, ""));
    bench.handle(Input::Disconnected);
    bench.connect(0);
    assert_eq!(bench.count("MSG.NEXT"), 1, "nothing is pulled meanwhile");
    bench.answer("CONSUMER.INFO", &info(2, 3, ""));
    let block = BASE64_STANDARD.encode(b"NATS/1.0\r\nX:\xff\r\n\r\n");
    let data = BASE64_STANDARD.encode("bad");
    bench.answer(
        "MSG.GET",
        &format!(
            r#"{{"message":{{"subject":"transcription.session-ended","seq":3,"hdrs":"{block}","data":"{data}","time":"2026-11-30T12:00:00Z"}}}}"#
        ),
    );
    let sent = bench.sent(DEAD_LETTER_SUBJECT);
    assert_eq!(
        (header(&sent.headers, "Transcript-Stream-Sequence"), sent.payload.as_slice()),
        (Some("3"), b"bad".as_slice())
    );
    assert_eq!(header(&sent.headers, RAW_HEADERS_HEADER), Some(block.as_str()));
    // It is not terminated before it is kept, and kept back from everybody meanwhile.
    bench.answer(DEAD_LETTER_SUBJECT, r#"{"error":{"code":400,"err_code":10002}}"#);
    let composed = "$JS.ACK.TRANSCRIPTION.transcript-processor.1.3.";
    assert_eq!(bench.sent(composed).payload, b"+WPI");
    bench.pass(Duration::from_secs(1));
    bench.answer(DEAD_LETTER_SUBJECT, r#"{"seq":9}"#);
    assert!(bench.sent(composed).payload.starts_with(b"+TERM"));
    assert_eq!(bench.count("MSG.NEXT"), 1);
    bench.answer(composed, "");
    assert_eq!(bench.count("MSG.NEXT"), 2, "now messages are pulled again");
    assert!(bench.notes.contains(&Note::UndeliverableKept { stream_sequence: 3 }), "{:?}", bench.notes);
}

#[test]
fn a_consumer_that_was_changed_or_deleted_is_told() {
    let mut bench = Bench::new(5);
    bench.answer("CONSUMER.INFO", &info(0, 0, ""));
    assert!(matches!(bench.told.last(), Some(CoreInput::Consumer(_))), "{:?}", bench.told);
    let pull = bench.sent("MSG.NEXT").reply.expect("a pull request is answered");
    bench.receive(pull, None, Some((409, "Exceeded MaxRequestBatch of 2")), b"");
    bench.answer("CONSUMER.INFO", &info(0, 0, r#","max_batch":2"#));
    assert!(bench.problems.iter().any(|it| it.contains("max_batch")), "{:?}", bench.problems);
    bench.pass(Duration::from_secs(1));
    let body = String::from_utf8_lossy(&bench.sent("MSG.NEXT").payload).into_owned();
    assert!(body.contains(r#""batch":2"#), "messages come meanwhile: {body}");
    let pull = bench.sent("MSG.NEXT").reply.expect("a pull request is answered");
    bench.receive(pull, None, Some((409, "Consumer Deleted")), b"");
    bench.answer("CONSUMER.INFO", r#"{"error":{"code":404,"err_code":10014}}"#);
    assert!(bench.problems.iter().any(|it| it.contains("missing")), "{:?}", bench.problems);
}

#[test]
fn a_payload_that_was_kept_back_is_read_from_the_stream() {
    let mut bench = Bench::new(5);
    let to = Address::Published;
    let headers = vec![("Nats-Msg-Size".into(), "9".to_owned())];
    let received_at = WallTime::from_millis(1);
    let message = Message { to, reply: Some(REPLY.into()), status: None, headers, payload: vec![], received_at };
    bench.handle(Input::Received(message));
    assert_eq!(bench.told, []);
    bench.answer_read("transcription.session-ended", "", "the end");
    assert!(
        matches!(bench.told.last(), Some(CoreInput::Delivered(it)) if it.payload.0 == b"the end" && it.stream_sequence == 7),
        "{:?}",
        bench.told
    );
}

#[test]
fn deliveries_have_stopped_when_each_request_has_ended() {
    let mut bench = Bench::new(5);
    bench.handle(Input::StopDeliveries);
    assert_eq!(bench.told, []);
    let pull = bench.sent("MSG.NEXT").reply.expect("a pull request is answered");
    bench.receive(pull, Some(REPLY), None, b"{}");
    bench.receive(pull, None, Some((408, "Request Timeout")), b"");
    assert!(
        matches!(bench.told.as_slice(), [CoreInput::Delivered(_), CoreInput::DeliveriesStopped]),
        "{:?}",
        bench.told
    );
    bench.pass(Duration::from_secs(5));
    assert_eq!(bench.count("MSG.NEXT"), 1);
}

#[test]
fn what_used_up_its_deliveries_is_read_before_the_core_is_told() {
    let mut bench = Bench::new(0);
    let advisory = |payload: &str| {
        Input::Received(Message {
            to: Address::Advisories,
            reply: None,
            status: None,
            headers: vec![],
            payload: payload.as_bytes().to_vec(),
            received_at: WallTime::from_millis(1),
        })
    };
    bench.handle(advisory(r#"{"stream_seq":3,"deliveries":5}"#));
    bench.handle(advisory("rubbish"));
    assert_eq!(bench.notes, [Note::UnreadableAdvisory]);
    bench.answer("MSG.GET", r#"{"error":{"code":503,"err_code":10008}}"#);
    assert_eq!(bench.told, []);
    bench.pass(Duration::from_secs(1));
    bench.answer_read("transcription.session-ended", "", "the end");
    assert!(
        matches!(bench.told.last(), Some(CoreInput::Exhausted(it)) if it.stream_sequence == 3 && it.payload.is_some()),
        "{:?}",
        bench.told
    );
}
