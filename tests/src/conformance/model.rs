//! A script against the model, in virtual time.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jetstream_model::{
    AckBody, AckSubject, AdvisoryKind, Answer, ApiCall, Broker, ClientId, ConsumerAction, ConsumerConfig, Event,
    Headers, Inbox, Input, Message, Pull, PurgeScope, Request, StatusHeaders, StreamConfig, Tuning, WhenEmpty,
};

use super::{Action, BrokerEvent, ConsumerPlan, Record, Script, Step, Stop, script::RESTART_MS};

/// How late timers and steps may be without a difference, in milliseconds.
pub const MARGIN_MS: u64 = 110;

/// Steps start one second after the stream was made, at the start of a second of the wall clock.
const ORIGIN: Duration = Duration::from_secs(1);
const EPOCH_MILLIS: i64 = 1_700_000_000_000;
const CONTROL: u64 = 0;

/// What the script leaves to chance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Variation {
    /// How late the model's timers are.
    pub timer_lag: Duration,
    /// How late every other step is.
    pub step_lag: Duration,
    /// How much a kill loses.
    pub kill_lag: Duration,
}

/// What the model does under every loss that a kill may cause.
#[must_use]
pub fn runs(script: &Script, stream: &str) -> Vec<Record> {
    let losses = if script.restarts() { 0..=13 } else { 0..=0 };
    losses
        .map(|tens| {
            run(script, stream, Variation { kill_lag: Duration::from_millis(tens * 10), ..Variation::default() })
        })
        .collect()
}

/// Whether the model does the same when its timers or the steps are late.
#[must_use]
pub fn is_robust(script: &Script) -> bool {
    let late = Duration::from_millis(MARGIN_MS);
    let half = Duration::from_millis(MARGIN_MS / 2);
    let record = |timer_lag, step_lag| run(script, "S", Variation { timer_lag, step_lag, kill_lag: Duration::ZERO });
    let on_time = record(Duration::ZERO, Duration::ZERO);
    [(late, Duration::ZERO), (half, Duration::ZERO), (Duration::ZERO, late), (Duration::ZERO, half), (half, half)]
        .into_iter()
        .all(|(timers, steps)| record(timers, steps).same_events(&on_time))
}

/// Runs the script with a stream of that name.
#[must_use]
pub fn run(script: &Script, stream: &str, variation: Variation) -> Record {
    let mut bench = Bench::new(script, stream, variation);
    let (steps, end) = script.schedule();
    let mut earliest = 0;
    for (number, (at, step)) in steps.into_iter().enumerate() {
        let lag = if number % 2 == 1 { variation.step_lag } else { Duration::ZERO };
        let due = (at + u64::try_from(lag.as_millis()).unwrap_or(0)).max(earliest);
        earliest = due + 1;
        bench.until(due);
        bench.step(number, step);
    }
    bench.until(end);
    bench.record
}

struct Bench<'s> {
    broker: Broker,
    now: Duration,
    stream: Arc<str>,
    script: &'s Script,
    variation: Variation,
    deliveries: BTreeMap<u64, Vec<AckSubject>>,
    record: Record,
}

impl<'s> Bench<'s> {
    fn new(script: &'s Script, stream: &str, variation: Variation) -> Self {
        let lag = variation.timer_lag;
        let mut bench = Self {
            broker: Broker::new(EPOCH_MILLIS, Tuning { purge_lag: lag, check_lag: lag, age_lag: lag }),
            now: Duration::ZERO,
            stream: stream.into(),
            script,
            variation,
            deliveries: BTreeMap::new(),
            record: Record::default(),
        };
        bench.connect();
        bench.call(0, ApiCall::CreateStream(bench.stream_config(script.window_ms)));
        let create = bench.create(&script.consumer, ConsumerAction::Create);
        bench.call(0, create);
        while bench.broker.poll(bench.now).is_some() {}
        bench
    }

    fn connect(&mut self) {
        for client in [CONTROL, 1, 2] {
            self.broker.handle(self.now, Input::Connect(ClientId(client)));
        }
    }

    fn stream_config(&self, window_ms: u64) -> StreamConfig {
        let duplicate_window = Duration::from_millis(window_ms);
        StreamConfig { duplicate_window, ..StreamConfig::new(&self.stream, &[&format!("{}.>", self.stream)]) }
    }

    fn create(&self, plan: &ConsumerPlan, action: ConsumerAction) -> ApiCall {
        let config = ConsumerConfig {
            filters: plan.filter.iter().map(|filter| self.subject(filter)).collect(),
            ack_wait: Duration::from_millis(plan.ack_wait_ms),
            backoff: plan.backoff_ms.iter().map(|ms| Duration::from_millis(*ms)).collect(),
            max_deliver: plan.max_deliver,
            max_ack_pending: plan.max_ack_pending,
            max_waiting: plan.max_waiting,
            max_batch: plan.max_batch,
            ..ConsumerConfig::durable("c")
        };
        ApiCall::CreateConsumer { stream: self.stream.clone(), config, action }
    }

    fn subject(&self, rest: &str) -> Arc<str> {
        format!("{}.{rest}", self.stream).into()
    }

    /// The inbox for the answer to a step.
    fn inbox(number: usize) -> Inbox {
        Inbox { client: ClientId(CONTROL), token: u64::try_from(number).unwrap_or(u64::MAX) }
    }

    fn call(&mut self, number: usize, call: ApiCall) {
        self.request(Request::Api { reply: Self::inbox(number), call: Box::new(call) });
    }

    fn request(&mut self, request: Request) {
        self.broker.handle(self.now, Input::Request(request));
    }

    /// Jumps from deadline to deadline until `at` milliseconds after the script's start.
    fn until(&mut self, at: u64) {
        let end = ORIGIN + Duration::from_millis(at);
        while let Some(due) = self.broker.next_deadline().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.drain();
        }
        self.now = end;
    }

    fn step(&mut self, number: usize, step: &Step) {
        let stream = self.stream.clone();
        match step {
            Step::Wait { .. } => {}
            Step::Publish { subject, id, expected } => self.request(Request::Publish {
                reply: Some(Self::inbox(number)),
                subject: self.subject(subject),
                headers: headers(id.as_deref(), *expected),
                payload: b"{}"[..].into(),
            }),
            Step::Pull { .. } => self.pull(step),
            Step::Ack { sequence, delivery, body } => {
                let subject = delivery.checked_sub(1).and_then(|nth| self.deliveries.get(sequence)?.get(nth)).cloned();
                if let Some(subject) = subject {
                    let (body, reply) = (AckBody::parse(body.as_bytes()), Some(Self::inbox(number)));
                    self.request(Request::Ack { subject, body, reply });
                }
            }
            Step::DeleteMessage { sequence } => {
                self.call(number, ApiCall::DeleteMessage { stream, sequence: *sequence });
            }
            Step::Purge { subject } => {
                let scope = subject.as_ref().map_or(PurgeScope::All, |rest| PurgeScope::Subject(self.subject(rest)));
                self.call(number, ApiCall::Purge { stream, scope });
            }
            Step::SetWindow { ms } => self.call(number, ApiCall::UpdateStream(self.stream_config(*ms))),
            Step::Consumer { action, plan } => {
                let action = match action {
                    Action::Create => ConsumerAction::Create,
                    Action::Update => ConsumerAction::Update,
                    Action::Either => ConsumerAction::CreateOrUpdate,
                };
                self.call(number, self.create(plan, action));
            }
            Step::DeleteConsumer => self.call(number, ApiCall::DeleteConsumer { stream, consumer: "c".into() }),
            Step::Reset { sequence } => {
                let sequence = Some(*sequence);
                self.call(number, ApiCall::ResetConsumer { stream, consumer: "c".into(), sequence });
            }
            Step::Info => self.call(number, ApiCall::ConsumerInfo { stream, consumer: "c".into() }),
            Step::Unsubscribe { client } => {
                let inbox = Inbox { client: ClientId(*client), token: 0 };
                self.broker.handle(self.now, Input::Unsubscribe(inbox));
            }
            Step::Restart { stop, down_ms } => self.restart(*stop, *down_ms),
        }
        self.drain();
    }

    fn pull(&mut self, step: &Step) {
        if let Step::Pull { client, batch, expires_ms, no_wait, heartbeat_ms, max_bytes } = step {
            let span = |ms: u64| (ms > 0).then(|| Duration::from_millis(ms));
            let pull = Pull {
                batch: *batch,
                expires: span(*expires_ms),
                when_empty: if *no_wait { WhenEmpty::Answer } else { WhenEmpty::Wait },
                heartbeat: span(*heartbeat_ms),
                max_bytes: (*max_bytes > 0).then_some(*max_bytes),
                ..Pull::no_wait(*batch)
            };
            let reply = Inbox { client: ClientId(*client), token: 0 };
            self.request(Request::Pull { stream: self.stream.clone(), consumer: "c".into(), reply, pull });
        }
    }

    fn restart(&mut self, stop: Stop, down_ms: u64) {
        let stop = match stop {
            Stop::Terminate => Input::Terminate,
            Stop::Kill => Input::Kill { lag: self.variation.kill_lag },
        };
        self.broker.handle(self.now, stop);
        self.drain();
        let back = self.now + Duration::from_millis(down_ms + RESTART_MS / 8);
        self.now = back;
        self.broker.handle(self.now, Input::Start);
        // What the server tells while it starts, nobody hears.
        while self.broker.poll(self.now).is_some() {}
        self.connect();
    }

    fn drain(&mut self) {
        let at_ms = u64::try_from(self.now.saturating_sub(ORIGIN).as_millis()).unwrap_or(u64::MAX);
        while let Some(event) = self.broker.poll(self.now) {
            match event {
                Event::Send { to, message } => self.sent(at_ms, to, message),
                Event::Closed(_) => {}
                Event::Advisory(advisory) => {
                    let (kind, reason) = match advisory.kind {
                        AdvisoryKind::MaxDeliveries => ("MAX_DELIVERIES", String::new()),
                        AdvisoryKind::Naked { .. } => ("MSG_NAKED", String::new()),
                        AdvisoryKind::Terminated { reason, .. } => ("MSG_TERMINATED", reason.to_string()),
                        AdvisoryKind::Pause(_) | AdvisoryKind::Created | AdvisoryKind::Deleted => continue,
                    };
                    let (sequence, deliveries) = (advisory.stream_seq, advisory.deliveries);
                    let seen = BrokerEvent::Advisory { kind: kind.to_owned(), sequence, deliveries, reason };
                    self.record.see(format!("advisories {kind}"), at_ms, seen);
                }
            }
        }
    }

    fn sent(&mut self, at_ms: u64, to: Inbox, message: Message) {
        if let Message::Delivery(delivery) = &message {
            self.deliveries.entry(delivery.reply.stream_seq).or_default().push(delivery.reply.clone());
        }
        let lane = match to.client.0 {
            CONTROL => lane_of_step(self.script, usize::try_from(to.token).unwrap_or(usize::MAX)),
            client => format!("client {client}"),
        };
        self.record.see(lane, at_ms, seen(message));
    }
}

fn headers(id: Option<&str>, expected: Option<u64>) -> Headers {
    let headers = id.map_or_else(Headers::default, Headers::id);
    match expected {
        Some(sequence) => headers.with("Nats-Expected-Last-Subject-Sequence", sequence.to_string()),
        None => headers,
    }
}

/// The lane for the answer to a step, with the step's own words.
pub(super) fn lane_of_step(script: &Script, number: usize) -> String {
    let (steps, _) = script.schedule();
    let words = steps.get(number).map(|(_, step)| format!("{step:?}")).unwrap_or_default();
    format!("step {number:02} {words}")
}

fn seen(message: Message) -> BrokerEvent {
    match message {
        Message::Delivery(delivery) => BrokerEvent::Delivered {
            sequence: delivery.reply.stream_seq,
            attempt: delivery.reply.deliveries,
            consumer_seq: delivery.reply.consumer_seq,
            pending: delivery.reply.pending,
        },
        Message::Status(status) => BrokerEvent::Status {
            code: status.code,
            text: status.text.to_string(),
            headers: match status.headers {
                StatusHeaders::None => String::new(),
                StatusHeaders::Pending { messages, bytes } => format!("pending {messages} messages {bytes} bytes"),
                StatusHeaders::Last { consumer, stream } => format!("last {consumer} of consumer {stream} of stream"),
            },
        },
        Message::PubAck(ack) => BrokerEvent::PubAck { sequence: ack.sequence, duplicate: ack.duplicate },
        Message::AckConfirmed => BrokerEvent::Confirmed,
        Message::NoResponders { .. } => BrokerEvent::NoResponders,
        Message::PublishRefused { error, .. } | Message::Refused { error, .. } => {
            BrokerEvent::Refused(u64::from(error.err_code))
        }
        Message::Answer { answer: Answer::Consumer(info), .. } => BrokerEvent::Info {
            delivered: (info.delivered.consumer, info.delivered.stream),
            floor: (info.ack_floor.consumer, info.ack_floor.stream),
            ack_pending: info.num_ack_pending,
            redelivered: info.num_redelivered,
            waiting: info.num_waiting,
            pending: info.num_pending,
        },
        Message::Answer { answer: Answer::Purged(count), .. } => BrokerEvent::Purged(count),
        Message::Answer {
            answer: Answer::Stream(_) | Answer::Created(_) | Answer::Message(_) | Answer::Deleted | Answer::Paused(_),
            ..
        }
        | Message::Core { .. } => BrokerEvent::Answered,
    }
}
