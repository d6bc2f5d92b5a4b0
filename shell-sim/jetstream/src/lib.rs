//! A model of NATS JetStream for tests, in virtual time and without I/O: what goes in is a message or a fault, what comes out
//! is what nats-server 2.15.1 sends, and between two inputs nothing happens that [`Broker::next_deadline`] does not announce.
//!
//! ```
//! use std::time::Duration;
//!
//! use jetstream_model::{
//!     AckBody, ApiCall, Broker, ClientId, ConsumerAction, ConsumerConfig, Event, Headers, Inbox, Input, Message, Pull,
//!     Request, StreamConfig, Tuning,
//! };
//!
//! let mut broker = Broker::new(1_700_000_000_000, Tuning::default());
//! let client = ClientId(1);
//! let inbox = |token| Inbox { client, token };
//! let api = |call| Input::Request(Request::Api { reply: inbox(0), call: Box::new(call) });
//! let config = ConsumerConfig { ack_wait: Duration::from_secs(6), ..ConsumerConfig::durable("worker") };
//! let publish = Request::Publish {
//!     reply: None,
//!     subject: "jobs.1".into(),
//!     headers: Headers::id("1"),
//!     payload: b"work"[..].into(),
//! };
//! let pull = Pull::waiting(1, Duration::from_secs(30));
//! for input in [
//!     Input::Connect(client),
//!     api(ApiCall::CreateStream(StreamConfig::new("JOBS", &["jobs.>"]))),
//!     api(ApiCall::CreateConsumer { stream: "JOBS".into(), config, action: ConsumerAction::Create }),
//!     Input::Request(publish),
//!     Input::Request(Request::Pull { stream: "JOBS".into(), consumer: "worker".into(), reply: inbox(1), pull }),
//! ] {
//!     broker.handle(Duration::ZERO, input);
//! }
//!
//! let (mut now, mut attempts) = (Duration::ZERO, 0);
//! while attempts < 2 {
//!     while let Some(event) = broker.poll(now) {
//!         let Event::Send { to, message: Message::Delivery(delivery) } = event else { continue };
//!         attempts = delivery.reply.deliveries;
//!         if attempts == 1 {
//!             // The first worker dies; another one pulls.
//!             let pull = Pull::waiting(1, Duration::from_secs(30));
//!             let (stream, consumer) = ("JOBS".into(), "worker".into());
//!             broker.handle(now, Input::Request(Request::Pull { stream, consumer, reply: to, pull }));
//!         } else {
//!             let request = Request::Ack { subject: delivery.reply, body: AckBody::Ack, reply: None };
//!             broker.handle(now, Input::Request(request));
//!         }
//!     }
//!     match broker.next_deadline() {
//!         Some(deadline) if attempts < 2 => now = deadline,
//!         _ => break,
//!     }
//! }
//! assert_eq!((attempts, now), (2, Duration::from_millis(6_001)));
//! assert_eq!(broker.unsettled("JOBS", "worker"), 0);
//! ```
//!
//! What a harness does, and nothing else:
//!
//! 1. Hand every message and fault to [`Broker::handle`], with the time of the virtual clock, which never goes back.
//! 2. After each input, take events from [`Broker::poll`] until there is none.
//! 3. Let the clock jump to [`Broker::next_deadline`] or to the harness's own next event, whichever is first, and poll again.
//!
//! The same inputs give the same events. Nothing here reads a clock or draws a number: how late timers are is in [`Tuning`],
//! how much a kill loses in [`Input::Kill`], how much may be stored in [`Room`]. A clone of a broker goes its own way.
//!
//! [`wire`] puts the protocol around it, for clients that speak subjects, header blocks and JSON. The README lists every
//! behaviour with its source and the case that holds it against the real server. An example, `naive_consumer`, tests a
//! small worker for lost and repeated work.
//!
//! # Not modelled
//!
//! - Clusters, push consumers, other retentions and acknowledgement policies, ephemeral consumers, inactive thresholds,
//!   message TTLs, schedules, counters, batches, rollups, mirrors and sources.
//! - Priority groups beyond refused requests.
//! - Descriptions and metadata of streams and consumers: they are taken and not told again. One filter in a list comes back as
//!   a single filter.
//! - A graceful stop takes the real server 50 ms and more, in which requests that were told 409 can still get heartbeats and
//!   messages. Here it takes no time.
//! - Loss of the page cache at a power cut, and the server's own notice of a failed write to a client.
//!
//! What the protocol can ask for and this model does not have is refused with code 501, never silently taken.

mod ack;
mod advisory;
mod again;
mod api;
mod call;
mod clients;
mod config;
mod consumer;
mod duplicates;
mod headers;
mod log;
mod message;
mod pull;
mod removal;
mod saved;
mod stamp;
mod stream;
mod subject;
#[cfg(test)]
mod tests;
mod waiting;
pub mod wire;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

pub use self::{
    ack::{AckBody, AckSubject, NotAnAckSubject},
    advisory::{Advisory, AdvisoryKind},
    call::{ApiCall, ApiKind, ConsumerAction, PurgeScope, Which},
    config::{
        ConsumerConfig, DEFAULT_DUPLICATE_WINDOW, DeliverPolicy, Discard, PriorityGroups, PriorityPolicy, StreamConfig,
    },
    headers::Headers,
    message::{
        Answer, ApiError, ClientId, ConsumerInfo, Delivery, Event, Inbox, Input, Message, Pause, PubAck, Request, Room,
        SequencePair, Status, StatusHeaders, StoredMessage, StreamInfo,
    },
    pull::{PriorityRequest, Pull, WhenEmpty},
    subject::matches,
};
use self::{clients::Clients, message::Context, stamp::Stamp, stream::Stream};

/// How late the broker's timers are. Each value counts when a timer is set, so that a simulator may draw them anew before every step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tuning {
    /// How late ids are purged beyond the server's own granularity.
    pub purge_lag: Duration,
    /// How late deliveries are checked for their ack wait. Under load, with more than 1,024 deliveries out, the real server
    /// puts the check off by 100 ms at a time (A2.3).
    pub check_lag: Duration,
    /// How late old messages are removed beyond the server's own granularity.
    pub age_lag: Duration,
}

/// What a stream does with a status in the first line of the header block of a message, which any publisher can write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusLines {
    /// It is removed: nats-server 2.14 and later, for what is stored from then on.
    Removed,
    /// It is stored and delivered: nats-server before 2.14.
    Kept,
}

/// One nats-server with JetStream.
#[derive(Debug, Clone)]
pub struct Broker {
    epoch_millis: i64,
    tuning: Tuning,
    up: bool,
    streams: BTreeMap<Arc<str>, Stream>,
    clients: Clients,
    room: Room,
    status_lines: StatusLines,
    advised: u64,
    /// When the first timer of a stream fires.
    due: Option<Stamp>,
    out: VecDeque<Event>,
}

impl Broker {
    /// A running server without streams, whose clock shows `epoch` at the start of the world.
    #[must_use]
    pub fn new(epoch_millis: i64, tuning: Tuning) -> Self {
        let (streams, clients) = (BTreeMap::new(), Clients::default());
        Self {
            epoch_millis,
            tuning,
            up: true,
            streams,
            clients,
            room: Room::default(),
            status_lines: StatusLines::Removed,
            advised: 0,
            due: None,
            out: VecDeque::new(),
        }
    }

    /// The same server, which keeps the status lines of stored messages or does not.
    #[must_use]
    pub fn with_status_lines(self, status_lines: StatusLines) -> Self {
        Self { status_lines, ..self }
    }

    /// Changes the lateness of the timers that are set from now on.
    pub fn tune(&mut self, tuning: Tuning) {
        self.tuning = tuning;
    }

    /// Whether the server runs, so that clients can connect.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Whether the broker takes the client for connected.
    #[must_use]
    pub fn is_connected(&self, client: ClientId) -> bool {
        self.clients.is_connected(client)
    }

    /// Takes one input in. What was due by `now` happens before it. While the server is down, everything but a start is lost.
    /// A request counts even when its client has gone since: it was on its way. Its answer is lost.
    pub fn handle(&mut self, now: Duration, input: Input) {
        self.fire(now);
        match input {
            Input::Connect(client) if self.up => self.clients.connect(client),
            Input::Subscribe { to, subject, group } => self.clients.subscribe(to, subject, group),
            Input::Unsubscribe(inbox) => self.clients.unsubscribe(inbox),
            Input::Disconnect(client) => self.clients.disconnect(client),
            Input::Request(request) if self.up => self.request(now, request),
            Input::Connect(_) | Input::Request(_) => {}
            Input::Limit(room) => self.room = room,
            Input::Terminate => self.terminate(now),
            Input::Kill { lag } => self.kill(now, lag),
            Input::Start => self.start(now),
        }
    }

    /// The next thing that leaves the broker, after everything that was due by `now` has happened.
    pub fn poll(&mut self, now: Duration) -> Option<Event> {
        if self.out.is_empty() {
            self.fire(now);
        }
        self.out.pop_front()
    }

    /// When something happens by itself; `None` where nothing will without an input.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        self.due.filter(|_| self.up).map(|due| due.time(self.epoch_millis))
    }

    /// The last sequence of a stream, for the eyes of the world's checks; zero where there is none.
    #[must_use]
    pub fn last_sequence(&self, stream: &str) -> u64 {
        self.streams.get(stream).map_or(0, Stream::last_sequence)
    }

    /// The messages of a consumer that are neither acknowledged nor given up, for the eyes of the world's checks.
    #[must_use]
    pub fn unsettled(&self, stream: &str, consumer: &str) -> u64 {
        self.streams.get(stream).map_or(0, |stream| stream.unsettled(consumer))
    }

    fn fire(&mut self, now: Duration) {
        let stamp = Stamp::new(self.epoch_millis, now);
        if self.up && self.due.is_some_and(|due| due <= stamp) {
            let tuning = self.tuning;
            self.with(now, |streams, ctx| {
                for stream in streams.values_mut() {
                    stream.fire(&tuning, ctx);
                }
            });
        }
    }

    fn request(&mut self, now: Duration, request: Request) {
        match request {
            Request::Publish { reply, subject, headers, payload } => {
                self.publish(now, reply, &subject, &headers, &payload);
            }
            Request::Pull { stream, consumer, reply, pull } => self.with(now, |streams, ctx| {
                match streams.get_mut(&stream).and_then(|stream| stream.consumer(&consumer)) {
                    Some((consumer, log)) => {
                        consumer.pull(reply, &pull, ctx);
                        consumer.pump_if_awake(log, ctx);
                    }
                    None => {
                        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}").into();
                        ctx.send(reply, Message::NoResponders { subject });
                    }
                }
            }),
            Request::UnreadablePull { stream, consumer, reply, why } => self.with(now, |streams, ctx| {
                match streams.get_mut(&stream).and_then(|stream| stream.consumer(&consumer)) {
                    Some(_) => consumer::refuse_pull(reply, &why, ctx),
                    None => {
                        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}").into();
                        ctx.send(reply, Message::NoResponders { subject });
                    }
                }
            }),
            Request::Ack { subject, body, reply } => self.with(now, |streams, ctx| {
                match streams.get_mut(&subject.stream).and_then(|stream| stream.consumer(&subject.consumer)) {
                    Some((consumer, log)) => consumer.acknowledge(&subject, body, reply, log, ctx),
                    None => {
                        if let Some(reply) = reply {
                            let subject = subject.to_string().into();
                            ctx.send(reply, Message::NoResponders { subject });
                        }
                    }
                }
            }),
            Request::Api { reply, call } => {
                let kind = call.kind();
                if let ApiCall::ResetConsumer { stream, consumer, .. } = &*call
                    && !self.streams.get(stream).is_some_and(|stream| stream.has_consumer(consumer))
                {
                    // Each consumer listens to this call itself: where there is none, nobody answers.
                    return;
                }
                let message = match self.call(now, *call) {
                    Ok(answer) => Message::Answer { call: kind, answer },
                    Err(error) => Message::Refused { call: kind, error },
                };
                self.with(now, |_, ctx| ctx.send(reply, message));
            }
        }
    }

    fn publish(
        &mut self,
        now: Duration,
        reply: Option<Inbox>,
        subject: &Arc<str>,
        headers: &Headers,
        payload: &Arc<[u8]>,
    ) {
        let status_lines = self.status_lines;
        self.with(now, |streams, ctx| {
            let listeners = ctx.clients.listeners(subject);
            let heard = !listeners.is_empty();
            for to in listeners {
                let (subject, headers, payload) = (subject.clone(), headers.clone(), payload.clone());
                ctx.send(to, Message::Core { subject, headers, payload });
            }
            let answer = match streams.values_mut().find(|stream| stream.config.captures(subject)) {
                Some(stream) => {
                    let headers = match status_lines {
                        StatusLines::Removed => headers.clone().without_status(),
                        StatusLines::Kept => headers.clone(),
                    };
                    match stream.publish(subject, headers, payload.clone(), ctx) {
                        Ok(ack) => Message::PubAck(ack),
                        Err(error) => Message::PublishRefused { stream: stream.config.name.clone(), error },
                    }
                }
                None if heard => return,
                None => Message::NoResponders { subject: subject.clone() },
            };
            if let Some(reply) = reply {
                ctx.send(reply, answer);
            }
        });
    }

    fn call(&mut self, now: Duration, call: ApiCall) -> Result<Answer, ApiError> {
        self.with(now, |streams, ctx| api::answer(streams, call, ctx))
    }

    fn terminate(&mut self, now: Duration) {
        if self.up {
            self.with(now, |streams, ctx| streams.values_mut().for_each(|stream| stream.stopped(ctx)));
            self.close();
        }
    }

    fn kill(&mut self, now: Duration, lag: Duration) {
        if self.up {
            let until = Stamp::new(self.epoch_millis, now).before(lag);
            self.streams.values_mut().for_each(|stream| stream.killed(until));
            self.close();
        }
    }

    fn close(&mut self) {
        self.up = false;
        self.out.extend(self.clients.close_all().map(Event::Closed));
    }

    fn start(&mut self, now: Duration) {
        if !self.up {
            self.up = true;
            let tuning = self.tuning;
            self.with(now, |streams, ctx| streams.values_mut().for_each(|stream| stream.recover(&tuning, ctx)));
        }
    }

    /// Runs `act` on the streams, and then tells the advisories it gave rise to.
    fn with<R>(
        &mut self,
        now: Duration,
        act: impl FnOnce(&mut BTreeMap<Arc<str>, Stream>, &mut Context<'_>) -> R,
    ) -> R {
        let mut advisories = Vec::new();
        let (now_stamp, check_lag) = (Stamp::new(self.epoch_millis, now), self.tuning.check_lag);
        let is_limited = self.room != Room::default();
        let stored_bytes = if is_limited { self.streams.values().map(Stream::bytes).sum() } else { 0 };
        let mut ctx = Context {
            now: now_stamp,
            check_lag,
            room: self.room,
            stored_bytes,
            clients: &self.clients,
            out: &mut self.out,
            advisories: &mut advisories,
        };
        let result = act(&mut self.streams, &mut ctx);
        self.due = self.streams.values().filter_map(Stream::due).min();
        for advisory in advisories {
            self.advised += 1;
            let subject: Arc<str> = advisory.subject().into();
            let payload = advisory.payload(self.advised, now_stamp);
            self.out.push_back(Event::Advisory(advisory));
            self.publish(now, None, &subject, &Headers::default(), &payload);
        }
        result
    }
}
