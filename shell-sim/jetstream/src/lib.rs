//! JetStream as it is: one nats-server 2.15.1, file storage, one replica, limits retention, durable pull consumers with explicit acks.
//!
//! [`Broker::handle`] is the one way in, [`Broker::poll`] the one way out; what is not due yet is due at
//! [`Broker::next_deadline`]. Nothing here reads a clock or draws a number: lateness comes from [`Tuning`], and how much a
//! kill loses from [`Input::Kill`].
//!
//! # What it does to its users, and why the real server may
//!
//! Numbers are the sections of the facts that the project gathered; each was read in the server's source (`server/` of
//! nats-server), and what the conformance tests compare was seen on the server itself.
//!
//! | behaviour | fact |
//! |---|---|
//! | a message id is forgotten at a purge, which is late by up to 50 ms and the timer's lag, never early; a duplicate does not refresh it; it counts for all subjects of the stream, whatever the payload | A1.1–A1.5 |
//! | ids of deleted and purged messages are remembered until a restart, which takes them from what is stored | A1.8 |
//! | after a restart the purge starts with a whole window, so that an id may outlive its window by up to one more | `stream.go: rebuildDedupe`, `storeMsgIdLocked` |
//! | a consumer whose filters are removed while the server runs is deaf until a restart: new messages are neither counted nor delivered until something else wakes it, removed ones are not noticed | `stream.go: swapSigSubs` asks for `nil` and gets an empty list; seen on 2.15.1 |
//! | one message purged by its subject is terminated like a deleted one, several are not | `filestore.go: PurgeEx`, seen on 2.15.1 |
//! | the answer to an update shows the consumer before it makes use of more room | seen on 2.15.1 |
//! | a kill loses every id of a stream whose last message was deleted, those of stored messages too | seen on 2.15.1; not after SIGTERM, nor where another message was deleted |
//! | the first create or update of a consumer after a start is answered with what the consumer was at the start, the old configuration included | `consumer.go: initialInfo`, seen on 2.15.1 |
//! | a shorter window forgets at once, a longer one brings nothing back before a restart; a window of 0 is 2 min | A1.6, A1.7 |
//! | expected sequences are checked before the id, and what is refused is not remembered | A1.9, A1.10 |
//! | the ack wait runs from hand-over; the first check is 1 ms late, the lag comes on top | A2.1–A2.3 |
//! | what has expired waits in a queue until somebody pulls, goes before anything new, and passes the limit of unacknowledged messages | A2.4, A6 |
//! | a progress report of any delivery starts the wait again, without end, but takes nothing out of the queue | A2.5 |
//! | an ack of any delivery settles the message, also one that was given up, and takes it out of the queue | A4 |
//! | a nak of a superseded delivery redelivers at once; one with a delay keeps its place among the unacknowledged | A4 |
//! | a term tells its advisory also where the message had been acknowledged | A4 |
//! | an ack of a sequence that the consumer has not delivered, as after a kill, is dropped without an answer | A4, A8 |
//! | the last delivery of several is given up only when a pull comes; a single one by the timer | A5.1 |
//! | what is given up stays in the stream, is reported as redelivered, and holds the reported ack floor until the next ack | A5.3, A4 |
//! | a raised limit revives nothing; one lowered below the deliveries of a message is noticed by the timer, or by a nak and a pull, and told with the deliveries there were | A5.5, A5.6, seen on 2.15.1 |
//! | a backoff replaces the ack wait, and bends the delay of a nak | A3 |
//! | one message for each waiting request in turn; full queues answer 409, or nothing where the request has a heartbeat | A6 |
//! | a kill forgets up to 100 ms of acks and deliveries, confirmed or not; forgotten deliveries come again as the first | A8 |
//! | a restart dates deliveries in whole seconds, so that they come up to 1 s early, and by the time their message was stored unless progress was reported: an old message comes again at once | A8, `consumer.go: deliverMsg` |
//! | a restart forgets the queue of redeliveries and all waiting pulls; a graceful stop tells these 409, but of several with one inbox only the last; a kill tells nothing | A8, `jetstream.go: signalPullConsumers` |
//! | a pull that nobody listens to turns the queue of redeliveries by one | `consumer.go: loopAndGatherMsgs`, seen on 2.15.1 |
//! | advisories are core messages: lost where nobody listens; of a queue group one member gets them, here each in its turn, there any | A5.2, `client.go: processMsgResults` |
//!
//! # What it leaves out
//!
//! A graceful stop takes the real server 50 ms and more, in which requests that were told 409 can still get heartbeats and
//! messages; here it takes no time.
//! Clusters, push consumers, other retentions and ack policies, priority groups, pauses, message TTLs, schedules, batches,
//! inactive thresholds; loss of the page cache at a power cut; the server's own notice of a failed write to a client.

mod ack;
mod advisory;
mod again;
mod api;
mod clients;
mod config;
mod consumer;
mod delivery;
mod duplicates;
mod headers;
mod log;
mod message;
mod pull;
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
    config::{
        ConsumerConfig, DEFAULT_DUPLICATE_WINDOW, DeliverPolicy, Discard, PriorityGroups, PriorityPolicy, StreamConfig,
    },
    headers::Headers,
    message::{
        Answer, ApiCall, ApiError, ApiKind, ClientId, ConsumerAction, ConsumerInfo, Delivery, Event, Inbox, Input,
        Message, Pause, PubAck, PurgeScope, Request, Room, SequencePair, Status, StatusHeaders, StoredMessage,
        StreamInfo, Which,
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

/// One nats-server with JetStream.
#[derive(Debug, Clone)]
pub struct Broker {
    epoch_millis: i64,
    tuning: Tuning,
    up: bool,
    streams: BTreeMap<Arc<str>, Stream>,
    clients: Clients,
    room: Room,
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
            advised: 0,
            due: None,
            out: VecDeque::new(),
        }
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
        self.with(now, |streams, ctx| {
            let listeners = ctx.clients.listeners(subject);
            let heard = !listeners.is_empty();
            for to in listeners {
                let (subject, headers, payload) = (subject.clone(), headers.clone(), payload.clone());
                ctx.send(to, Message::Core { subject, headers, payload });
            }
            let answer = match streams.values_mut().find(|stream| stream.config.captures(subject)) {
                Some(stream) => stream.publish(subject, headers.clone(), payload.clone(), ctx).map_or_else(
                    |error| Message::PublishRefused { stream: stream.config.name.clone(), error },
                    Message::PubAck,
                ),
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
