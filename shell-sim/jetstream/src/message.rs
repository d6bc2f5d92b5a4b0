//! What goes into the broker and what comes out: its protocol without the bytes.

use std::{borrow::Cow, collections::VecDeque, sync::Arc, time::Duration};

use super::{
    ack::{AckBody, AckSubject},
    advisory::Advisory,
    call::{ApiCall, ApiKind},
    config::{ConsumerConfig, StreamConfig},
    headers::Headers,
    pull::Pull,
};

/// A connection to the broker. A client that connects again under its id takes its inboxes up again, as NATS clients do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// A reply subject of a client. Every inbox of a connected client has interest until [`Input::Unsubscribe`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Inbox {
    /// Whose inbox.
    pub client: ClientId,
    /// Which of the client's inboxes.
    pub token: u64,
}

/// Everything that can happen to the broker.
#[derive(Debug, Clone)]
pub enum Input {
    /// A connection is accepted; nothing happens while the broker is down.
    Connect(ClientId),
    /// The broker sees a connection end. A connection that is dead but not yet seen so still counts as connected.
    Disconnect(ClientId),
    /// A core subscription, or an inbox that was unsubscribed before.
    Subscribe {
        /// Where messages go.
        to: Inbox,
        /// What is listened to, wildcards included; `None` revives the inbox itself.
        subject: Option<Arc<str>>,
        /// The queue group: each message goes to one of its members.
        group: Option<Arc<str>>,
    },
    /// An inbox, or a core subscription to it, ends.
    Unsubscribe(Inbox),
    /// A message from a client.
    Request(Request),
    /// The room for messages changes, as when a disk fills up or an operator gives an account more.
    Limit(Room),
    /// SIGTERM: waiting pulls are told, the consumers' exact state is written, connections close.
    Terminate,
    /// SIGKILL: connections close, and the consumers keep only what had been written `lag` ago.
    Kill {
        /// How old the written state of the consumers is. The real server writes at most every 100 ms, so that 0 to 100 ms
        /// are likely; with what a write takes, somewhat more is possible. No more than 150 ms are lost.
        lag: Duration,
    },
    /// The server starts again on what it had stored.
    Start,
}

/// How much may be stored. Unlimited by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    /// Bytes on the whole server: `max_file_store`. Publishes are refused with 10023 once more are stored, and streams that
    /// reserve more with 10047.
    pub server_bytes: Option<u64>,
    /// Bytes of the account. A publish that would exceed it is refused with 10002, a stream that reserves more with 10047.
    pub account_bytes: Option<u64>,
}

/// A message from a client. Whoever wants no answer gives no `reply`.
#[derive(Debug, Clone)]
pub enum Request {
    /// A message to a subject, which a stream may capture.
    Publish {
        /// Where the acknowledgement goes.
        reply: Option<Inbox>,
        /// The literal subject.
        subject: Arc<str>,
        /// Headers.
        headers: Headers,
        /// Payload.
        payload: Arc<[u8]>,
    },
    /// `$JS.API.CONSUMER.MSG.NEXT`.
    Pull {
        /// The stream.
        stream: Arc<str>,
        /// The durable consumer.
        consumer: Arc<str>,
        /// Where messages and statuses go.
        reply: Inbox,
        /// What is asked for.
        pull: Pull,
    },
    /// The same, with a body that the server cannot read: answered with status 400.
    UnreadablePull {
        /// The stream.
        stream: Arc<str>,
        /// The durable consumer.
        consumer: Arc<str>,
        /// Where the status goes.
        reply: Inbox,
        /// What is wrong.
        why: Arc<str>,
    },
    /// A message to the reply subject of a delivery.
    Ack {
        /// The reply subject.
        subject: AckSubject,
        /// What it says.
        body: AckBody,
        /// Where the confirmation of a double ack goes.
        reply: Option<Inbox>,
    },
    /// A call of the management API.
    Api {
        /// Where the answer goes.
        reply: Inbox,
        /// The call.
        call: Box<ApiCall>,
    },
}

pub(super) fn decimal_digits(value: u64) -> usize {
    value.checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// A message as a stream holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMessage {
    /// The subject it was published to.
    pub subject: Arc<str>,
    /// Its place in the stream.
    pub sequence: u64,
    /// Its headers.
    pub headers: Headers,
    /// Its payload.
    pub payload: Arc<[u8]>,
    /// When it was stored, by the broker's clock, in nanoseconds since the Unix epoch.
    pub stored_at_nanos: i64,
}

/// What leaves the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A message to a client that is connected.
    Send {
        /// The inbox.
        to: Inbox,
        /// The message.
        message: Message,
    },
    /// The broker closed a connection, because it stopped.
    Closed(ClientId),
    /// Something that the broker tells whoever listens, for the eyes of the world's checks: subscribers get it as a message.
    Advisory(Advisory),
}

/// A message to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// A message of a stream, for a pull request.
    Delivery(Delivery),
    /// The end of a pull request, or a sign of life.
    Status(Status),
    /// A publish was taken.
    PubAck(PubAck),
    /// A double ack was taken, or needed nothing.
    AckConfirmed,
    /// Status 503: nobody listens to the subject.
    NoResponders {
        /// The subject.
        subject: Arc<str>,
    },
    /// A publish was refused.
    PublishRefused {
        /// The stream that captures the subject.
        stream: Arc<str>,
        /// Why.
        error: ApiError,
    },
    /// The answer to a call of the management API.
    Answer {
        /// The call.
        call: ApiKind,
        /// The answer.
        answer: Answer,
    },
    /// A call of the management API was refused.
    Refused {
        /// The call.
        call: ApiKind,
        /// Why.
        error: ApiError,
    },
    /// A message for a core subscription.
    Core {
        /// The subject.
        subject: Arc<str>,
        /// The headers.
        headers: Headers,
        /// The payload.
        payload: Arc<[u8]>,
    },
}

/// A message of a stream on its way to a pull request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The message.
    pub message: Arc<StoredMessage>,
    /// The reply subject, which says the attempt and the sequences.
    pub reply: AckSubject,
}

/// A publish was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PubAck {
    /// The stream that holds the message.
    pub stream: Arc<str>,
    /// The sequence of the message: of the first one where it is a duplicate.
    pub sequence: u64,
    /// Whether the id was remembered, so that nothing was stored.
    pub duplicate: bool,
}

/// A status message of a pull request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The code: 100, 400, 404, 408 or 409.
    pub code: u16,
    /// What it says.
    pub text: Cow<'static, str>,
    /// What the headers say.
    pub headers: StatusHeaders,
}

/// The headers of a status message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusHeaders {
    /// None.
    None,
    /// `Nats-Pending-Messages` and `Nats-Pending-Bytes`: what the request had left.
    Pending {
        /// Messages left.
        messages: u64,
        /// Bytes left; zero where the request named no limit.
        bytes: u64,
    },
    /// `Nats-Last-Consumer` and `Nats-Last-Stream`.
    Last {
        /// The last consumer sequence delivered.
        consumer: u64,
        /// The last stream sequence looked at.
        stream: u64,
    },
}

/// The error of an API answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// The HTTP-like code.
    pub code: u16,
    /// The server's own code.
    pub err_code: u16,
    /// What it says.
    pub description: String,
}

/// The answer to a call of the management API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A stream as it is now.
    Stream(Box<StreamInfo>),
    /// A new stream.
    Created(Box<StreamInfo>),
    /// A consumer as it is now.
    Consumer(Box<ConsumerInfo>),
    /// A stored message.
    Message(Arc<StoredMessage>),
    /// How many messages were purged.
    Purged(u64),
    /// What was to be deleted is.
    Deleted,
    /// A consumer is paused, or no longer.
    Paused(Pause),
}

/// A consumer's pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// Until when, in nanoseconds since the Unix epoch.
    pub until_nanos: Option<i64>,
    /// How much of it is left; `None` where it is over.
    pub left: Option<Duration>,
}

/// A stream as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamInfo {
    /// Its configuration, defaults filled in.
    pub config: StreamConfig,
    /// Messages stored.
    pub messages: u64,
    /// Bytes stored, as the server's file store counts them.
    pub bytes: u64,
    /// The first sequence stored; one more than the last where none is; zero where none ever was.
    pub first_seq: u64,
    /// The last sequence given.
    pub last_seq: u64,
    /// Messages removed between the first and the last one.
    pub num_deleted: u64,
    /// Subjects of the messages stored.
    pub num_subjects: u64,
    /// Consumers.
    pub consumers: usize,
    /// When it was made, in nanoseconds since the Unix epoch.
    pub created_nanos: i64,
    /// When the first message was stored.
    pub first_nanos: Option<i64>,
    /// When the last message was stored.
    pub last_nanos: Option<i64>,
    /// When it said so.
    pub now_nanos: i64,
}

/// A consumer as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerInfo {
    /// Its stream.
    pub stream: Arc<str>,
    /// Its configuration, defaults filled in.
    pub config: ConsumerConfig,
    /// The last sequences delivered.
    pub delivered: SequencePair,
    /// Up to where all are acknowledged, as the consumer's store has it.
    pub ack_floor: SequencePair,
    /// Delivered, and neither acknowledged nor given up.
    pub num_ack_pending: u64,
    /// Messages that were delivered more than once and never acknowledged.
    pub num_redelivered: u64,
    /// Pull requests waiting.
    pub num_waiting: u64,
    /// Messages not yet delivered.
    pub num_pending: u64,
    /// How much of its pause is left; `None` where it is not paused.
    pub pause_left: Option<Duration>,
    /// When it was made, in nanoseconds since the Unix epoch.
    pub created_nanos: i64,
    /// When something was last delivered or put off, since the server started.
    pub last_delivered_nanos: Option<i64>,
    /// When something was last acknowledged, since the server started.
    pub last_acked_nanos: Option<i64>,
    /// When it said so.
    pub now_nanos: i64,
}

/// A place in the deliveries of a consumer and in its stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SequencePair {
    /// In the deliveries.
    pub consumer: u64,
    /// In the stream.
    pub stream: u64,
}

/// What the broker's parts share while they handle one input.
pub(super) struct Context<'a> {
    pub(super) now: super::stamp::Stamp,
    pub(super) check_lag: Duration,
    pub(super) room: Room,
    /// The bytes of all streams, where there is a limit to them.
    pub(super) stored_bytes: u64,
    pub(super) clients: &'a super::clients::Clients,
    pub(super) out: &'a mut VecDeque<Event>,
    pub(super) advisories: &'a mut Vec<Advisory>,
}

impl Context<'_> {
    pub(super) fn send(&mut self, to: Inbox, message: Message) {
        if self.clients.has_interest(to) {
            self.out.push_back(Event::Send { to, message });
        }
    }

    pub(super) fn status(&mut self, to: Inbox, code: u16, text: impl Into<Cow<'static, str>>, headers: StatusHeaders) {
        self.send(to, Message::Status(Status { code, text: text.into(), headers }));
    }
}
