//! The protocol around the model.

use super::*;
use crate::wire::{ClientLimits, Connection, Frame, Received, Unparsable, Violation};

/// A client that speaks the protocol, with one subscription to its inboxes.
struct Client {
    broker: Broker,
    connection: Connection,
    received: Vec<(u64, Received)>,
}

impl Client {
    fn new() -> Self {
        let broker = Broker::new(1_700_000_000_000, Tuning::default());
        let mut client = Self {
            broker,
            connection: Connection::new(CLIENT, ClientLimits { max_payload: 1_000, max_pending: 2_000 }),
            received: Vec::new(),
        };
        client.broker.handle(Duration::ZERO, Input::Connect(CLIENT));
        client.subscribe(1, "_INBOX.me.*");
        client
    }

    /// A client on a server with the stream `S` and the consumer `c`.
    fn with_consumer() -> Self {
        let mut client = Self::new();
        client.ask("$JS.API.STREAM.CREATE.S", r#"{"name":"S","subjects":["s.>"]}"#);
        let config = r#"{"durable_name":"c","ack_policy":"explicit","deliver_policy":"all"}"#;
        client.ask("$JS.API.CONSUMER.CREATE.S.c", &format!(r#"{{"stream_name":"S","config":{config},"action":""}}"#));
        client
    }

    fn frame(&mut self, frame: Frame) {
        let mut inputs = Vec::new();
        self.connection.send(frame, &mut inputs).expect("a small message");
        for input in inputs {
            self.broker.handle(Duration::ZERO, input);
        }
        while let Some(event) = self.broker.poll(Duration::ZERO) {
            let read = self.received.len();
            if let Event::Send { to, message } = event {
                self.connection.receive(to, message, &mut self.received).expect("a fast client");
                for (sid, message) in self.received.iter().skip(read) {
                    self.connection.written(*sid, message);
                }
            }
        }
    }

    fn subscribe(&mut self, sid: u64, subject: &str) {
        self.frame(Frame::Subscribe { sid, subject: subject.into(), group: None });
    }

    fn publish(&mut self, subject: &str, reply: Option<&str>, headers: Headers, payload: &str) {
        let payload = payload.as_bytes().into();
        self.frame(Frame::Publish { subject: subject.into(), reply: reply.map(Into::into), headers, payload });
    }

    /// The payload of the answer to a request.
    fn ask(&mut self, subject: &str, body: &str) -> String {
        self.ask_with(subject, Headers::default(), body)
    }

    fn ask_with(&mut self, subject: &str, headers: Headers, body: &str) -> String {
        self.publish(subject, Some("_INBOX.me.answer"), headers, body);
        let (sid, received) = self.received.pop().expect("an answer");
        assert_eq!((sid, received.subject.as_deref()), (1, Some("_INBOX.me.answer")));
        String::from_utf8(received.payload.to_vec()).expect("text")
    }
}

#[test]
fn publishes_are_acknowledged_in_the_bytes_of_the_server() {
    let mut client = Client::with_consumer();
    let id = || Headers::from_pairs([("Nats-Msg-Id", "x")]);
    assert_eq!(client.ask_with("s.a", id(), "{}"), r#"{"stream":"S","seq":1}"#);
    assert_eq!(client.ask_with("s.a", id(), "{}"), r#"{"stream":"S","seq":1,"duplicate": true}"#);
    let wrong = client.ask_with("s.a", Headers::from_pairs([("Nats-Expected-Last-Sequence", "7")]), "");
    let error = r#"{"code":400,"err_code":10071,"description":"wrong last sequence: 1"}"#;
    assert_eq!(wrong, format!(r#"{{"error":{error},"stream":"S","seq":0}}"#));
    client.publish("nowhere", Some("_INBOX.me.n"), Headers::default(), "");
    let (_, received) = client.received.pop().expect("an answer");
    assert_eq!(received.status.map(|status| status.code), Some(503));
    assert_eq!(received.headers.get("Nats-Subject").as_deref(), Some("nowhere"));
}

#[test]
fn a_delivery_shows_its_subject_and_where_it_is_acknowledged() {
    let mut client = Client::with_consumer();
    client.publish("s.a", None, Headers::default().with("A", "1"), "hello");
    client.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", Some("_INBOX.me.pull"), Headers::default(), r#"{"batch":2}"#);
    let (sid, delivery) = client.received.pop().expect("a delivery");
    assert_eq!((sid, delivery.subject.as_deref(), &*delivery.payload), (1, Some("s.a"), &b"hello"[..]));
    let reply = delivery.reply.expect("where to acknowledge");
    assert_eq!(&*reply, "$JS.ACK.S.c.1.1.1.1700000000000000000.0");
    assert_eq!(client.ask(&reply, "+ACK"), "");
    let info = client.ask("$JS.API.CONSUMER.INFO.S.c", "");
    let last = r#""last_active":"2023-11-14T22:13:20Z""#;
    assert!(info.contains(&format!(r#""ack_floor":{{"consumer_seq":1,"stream_seq":1,{last}}}"#)), "{info}");
    client.frame(Frame::Unsubscribe { sid: 1 });
    client.publish("s.a", None, Headers::default(), "");
    client.subscribe(1, "_INBOX.me.*");
    let info = client.ask("$JS.API.CONSUMER.INFO.S.c", "");
    assert!(info.contains(r#""num_ack_pending":0,"num_redelivered":0,"num_waiting":0,"num_pending":1"#), "{info}");
    client.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", Some("_INBOX.me.pull"), Headers::default(), "{");
    let (_, refused) = client.received.pop().expect("a status");
    assert_eq!(refused.status.map(|status| status.code), Some(400));
}

#[test]
fn a_block_that_cannot_be_parsed_is_stored_delivered_and_read_as_it_is() {
    let mut client = Client::with_consumer();
    let block: &[u8] = b"NATS/1.0\r\nno colon \xff\r\n\r\n";
    assert_eq!(client.ask_with("s.a", Headers::raw(block), "{}"), r#"{"stream":"S","seq":1}"#);
    let stored = client.ask("$JS.API.STREAM.MSG.GET.S", r#"{"seq":1}"#);
    let expected = concat!(
        r#"{"type":"io.nats.jetstream.api.v1.stream_msg_get_response","message":{"subject":"s.a","seq":1,"#,
        r#""hdrs":"TkFUUy8xLjANCm5vIGNvbG9uIP8NCg0K","data":"e30=","time":"2023-11-14T22:13:20Z"}}"#
    );
    assert_eq!(stored, expected);
    let missing = client.ask("$JS.API.STREAM.MSG.GET.S", r#"{"last_by_subj":"s.b"}"#);
    assert!(
        missing.ends_with(r#""error":{"code":404,"err_code":10037,"description":"no message found"}}"#),
        "{missing}"
    );
    client.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", Some("_INBOX.me.pull"), Headers::default(), "1");
    let (_, delivery) = client.received.pop().expect("a delivery");
    assert_eq!(*delivery.headers.to_bytes(), *block);
    assert_eq!(delivery.parsed(), Err(Unparsable::NotUtf8));
}

#[test]
fn a_status_that_a_publisher_made_up_is_kept_by_older_servers_only() {
    for (status_lines, status) in [(StatusLines::Kept, Some((503, "Forged".to_owned()))), (StatusLines::Removed, None)]
    {
        let mut client = Client::with_consumer();
        client.broker = client.broker.with_status_lines(status_lines);
        client.ask_with("s.a", Headers::raw(&b"NATS/1.0 503 Forged\r\n\r\n"[..]), "{}");
        client.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", Some("_INBOX.me.pull"), Headers::default(), "1");
        let (_, forged) = client.received.pop().expect("a delivery");
        let forged = forged.parsed().expect("a block that can be parsed");
        assert_eq!(forged.status.map(|status| (status.code, status.text.to_string())), status);
        assert!(forged.reply.is_some(), "a message that can be acknowledged is none of the server's statuses");
    }
}

#[test]
fn calls_that_cannot_be_read_are_refused() {
    let mut client = Client::with_consumer();
    for (subject, body, code) in [
        ("$JS.API.STREAM.MSG.GET.S", "", 10_003),
        ("$JS.API.STREAM.MSG.GET.S", "{}", 10_003),
        ("$JS.API.STREAM.MSG.GET.S", r#"{"sequence":1}"#, 10_025),
        ("$JS.API.STREAM.MSG.GET.T", r#"{"seq":1}"#, 10_059),
        ("$JS.API.CONSUMER.INFO.S.d", "", 10_014),
    ] {
        let answer = client.ask(subject, body);
        assert!(answer.contains(&format!(r#""err_code":{code},"#)), "{subject} {body}: {answer}");
    }
}

#[test]
fn a_reply_subject_without_a_subscription_has_no_interest() {
    let mut client = Client::with_consumer();
    client.publish("s.a", None, Headers::default(), "");
    client.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", Some("elsewhere.1"), Headers::default(), "1");
    let info = client.ask("$JS.API.CONSUMER.INFO.S.c", "");
    assert!(info.contains(r#""num_waiting":0,"num_pending":1"#), "{info}");
    client.subscribe(2, "elsewhere.>");
    client.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", Some("elsewhere.1"), Headers::default(), "1");
    let (sid, delivery) = client.received.pop().expect("a delivery");
    assert_eq!((sid, delivery.subject.as_deref()), (2, Some("s.a")));
    client.publish("elsewhere.said", None, Headers::default(), "hello");
    assert_eq!(
        client.received.pop().map(|(sid, received)| (sid, received.payload.to_vec())),
        Some((2, b"hello".to_vec()))
    );
}

#[test]
fn a_message_that_is_too_large_and_a_client_that_does_not_read_end_the_connection() {
    let mut client = Client::with_consumer();
    let too_large = Frame::Publish {
        subject: "s.a".into(),
        reply: None,
        headers: Headers::default().with("A", "1"),
        payload: vec![0; 983].into(),
    };
    assert_eq!(client.connection.send(too_large, &mut Vec::new()), Err(Violation::MaxPayload));
    client.publish("s.a", None, Headers::default().with("A", "1"), &"x".repeat(982));
    let pull = Frame::Publish {
        subject: "$JS.API.CONSUMER.MSG.NEXT.S.c".into(),
        reply: Some("_INBOX.me.pull".into()),
        headers: Headers::default(),
        payload: b"3"[..].into(),
    };
    client.publish("s.a", None, Headers::default(), &"x".repeat(990));
    client.publish("s.a", None, Headers::default(), "");
    let mut inputs = Vec::new();
    client.connection.send(pull, &mut inputs).expect("a small message");
    inputs.into_iter().for_each(|input| client.broker.handle(Duration::ZERO, input));
    let mut outcomes = Vec::new();
    while let Some(Event::Send { to, message }) = client.broker.poll(Duration::ZERO) {
        outcomes.push(client.connection.receive(to, message, &mut client.received));
    }
    assert_eq!(outcomes, [Ok(()), Err(Violation::SlowConsumer), Err(Violation::SlowConsumer)]);
}
