//! Every trap of the broker, in virtual time.

mod acks;
mod delivery;
mod duplicates;
mod limits;
mod restart;
mod wire;

use std::time::Duration;

use super::*;

const CLIENT: ClientId = ClientId(1);

/// A broker with the stream `S` of `s.>`, the durable consumer `c`, one client, and a clock that jumps.
struct Bench {
    broker: Broker,
    now: Duration,
    seen: Vec<(Duration, Inbox, Message)>,
    advisories: Vec<(Duration, Advisory)>,
    delivered: Vec<(Duration, Inbox, AckSubject)>,
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn as_millis(at: Duration) -> u64 {
    u64::try_from(at.as_millis()).expect("a short test")
}

fn inbox(token: u64) -> Inbox {
    Inbox { client: CLIENT, token }
}

/// An ack wait of one second, three deliveries.
fn consumer() -> ConsumerConfig {
    ConsumerConfig { ack_wait: millis(1_000), max_deliver: Some(3), ..ConsumerConfig::durable("c") }
}

fn stream(window: u64) -> StreamConfig {
    StreamConfig { duplicate_window: millis(window), ..StreamConfig::new("S", &["s.>"]) }
}

impl Bench {
    fn new(stream: StreamConfig, consumer: ConsumerConfig) -> Self {
        let broker = Broker::new(1_700_000_000_000, Tuning::default());
        let (seen, advisories, delivered) = (Vec::new(), Vec::new(), Vec::new());
        let mut bench = Self { broker, now: Duration::ZERO, seen, advisories, delivered };
        bench.input(Input::Connect(CLIENT));
        assert!(matches!(bench.call(ApiCall::CreateStream(stream)), Message::Answer { .. }));
        let (stream, action) = ("S".into(), ConsumerAction::Create);
        assert!(matches!(
            bench.call(ApiCall::CreateConsumer { stream, config: consumer, action }),
            Message::Answer { .. }
        ));
        bench
    }

    fn with(consumer: ConsumerConfig) -> Self {
        Self::new(stream(1_000), consumer)
    }

    fn input(&mut self, input: Input) {
        self.broker.handle(self.now, input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(event) = self.broker.poll(self.now) {
            match event {
                Event::Send { to, message } => {
                    if let Message::Delivery(delivery) = &message {
                        self.delivered.push((self.now, to, delivery.reply.clone()));
                    }
                    self.seen.push((self.now, to, message));
                }
                Event::Closed(client) => assert_eq!(client, CLIENT),
                Event::Advisory(advisory) => self.advisories.push((self.now, advisory)),
            }
        }
    }

    /// Jumps from timer to timer until `at` milliseconds after the start.
    fn until(&mut self, at: u64) {
        let end = millis(at);
        while let Some(due) = self.broker.next_deadline().filter(|due| *due <= end) {
            assert!(due > self.now || self.broker.poll(due).is_some(), "a deadline that does not move at {due:?}");
            self.now = self.now.max(due);
            self.drain();
            assert!(self.broker.next_deadline().is_none_or(|next| next > self.now), "busy at {:?}", self.now);
        }
        self.now = end;
    }

    fn answer(&mut self, token: u64) -> Message {
        let found = self.seen.iter().rposition(|(_, to, _)| to.token == token).expect("an answer");
        self.seen.remove(found).2
    }

    fn call(&mut self, call: ApiCall) -> Message {
        self.input(Input::Request(Request::Api { reply: inbox(900), call: Box::new(call) }));
        self.answer(900)
    }

    fn info(&mut self) -> ConsumerInfo {
        let answer = self.call(ApiCall::ConsumerInfo { stream: "S".into(), consumer: "c".into() });
        let Message::Answer { answer: Answer::Consumer(info), .. } = answer else { panic!("not an info: {answer:?}") };
        *info
    }

    fn update(&mut self, config: ConsumerConfig) {
        let (stream, action) = ("S".into(), ConsumerAction::Update);
        let answer = self.call(ApiCall::CreateConsumer { stream, config, action });
        assert!(matches!(answer, Message::Answer { .. }), "{answer:?}");
    }

    fn publish_with(&mut self, subject: &str, headers: Headers) -> Message {
        let (subject, payload) = (subject.into(), b"{}"[..].into());
        self.input(Input::Request(Request::Publish { reply: Some(inbox(901)), subject, headers, payload }));
        self.answer(901)
    }

    /// Publishes under an id: the sequence, and whether it was a duplicate.
    fn publish_id(&mut self, subject: &str, id: &str) -> (u64, bool) {
        let answer = self.publish_with(subject, Headers::id(id));
        let Message::PubAck(ack) = answer else { panic!("not taken: {answer:?}") };
        (ack.sequence, ack.duplicate)
    }

    fn publish(&mut self, count: usize) {
        for _ in 0..count {
            assert!(matches!(self.publish_with("s.a", Headers::default()), Message::PubAck(_)));
        }
    }

    fn pull_as(&mut self, reply: Inbox, pull: Pull) {
        let (stream, consumer) = ("S".into(), "c".into());
        self.input(Input::Request(Request::Pull { stream, consumer, reply, pull }));
    }

    /// A pull that waits for a minute.
    fn pull(&mut self, batch: u64) {
        self.pull_as(inbox(1), Pull::waiting(batch, Duration::from_secs(60)));
    }

    /// Says something to a delivery, counted from the first, without asking for an answer.
    fn say(&mut self, delivery: usize, body: &str) {
        let subject = self.delivered[delivery].2.clone();
        self.input(Input::Request(Request::Ack { subject, body: AckBody::parse(body.as_bytes()), reply: None }));
    }

    /// The same, and whether it was answered.
    fn ask(&mut self, delivery: usize, body: &str) -> Option<Message> {
        let subject = self.delivered[delivery].2.clone();
        let (body, reply) = (AckBody::parse(body.as_bytes()), Some(inbox(902)));
        self.input(Input::Request(Request::Ack { subject, body, reply }));
        let found = self.seen.iter().position(|(_, to, _)| to.token == 902)?;
        Some(self.seen.remove(found).2)
    }

    /// All deliveries so far: millisecond, stream sequence, attempt.
    fn deliveries(&self) -> Vec<(u64, u64, u64)> {
        self.delivered.iter().map(|(at, _, reply)| (as_millis(*at), reply.stream_seq, reply.deliveries)).collect()
    }

    /// All advisories so far: millisecond, kind, stream sequence, deliveries.
    fn told(&self) -> Vec<(u64, AdvisoryKind, u64, u64)> {
        self.advisories
            .iter()
            .filter(|(_, told)| told.stream_seq > 0)
            .map(|(at, told)| (as_millis(*at), told.kind.clone(), told.stream_seq, told.deliveries))
            .collect()
    }

    fn statuses(&self, token: u64) -> Vec<(u64, u16, String)> {
        let to_token = self.seen.iter().filter(|(_, to, _)| to.token == token);
        to_token
            .filter_map(|(at, _, message)| {
                let Message::Status(status) = message else { return None };
                Some((as_millis(*at), status.code, status.text.to_string()))
            })
            .collect()
    }

    fn restart(&mut self, stop: Input) {
        self.input(stop);
        self.input(Input::Start);
        self.input(Input::Connect(CLIENT));
    }
}
