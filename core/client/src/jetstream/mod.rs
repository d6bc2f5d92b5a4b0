//! The client of NATS JetStream: what the core asks for becomes frames, and what the server sends becomes inputs of the core.
//!
//! [`JetStream`] is told what happened ([`Input`], with the [`Time`]) and is asked what to do
//! ([`Output`]) until it has nothing more to say; then it says until when to wait and for what.
//!
//! What a shell must do, and nothing else:
//!
//! - subscribe once to an inbox subject with a wildcard at its end, and to [`advisories`], for as long as the process runs;
//! - hand over each message that comes, and say when the connection is lost and made anew;
//! - write the frames in their order, and say how many have been written;
//! - give the core what is [told](Output::Tell) to it.
//!
//! ```
//! use std::time::Duration;
//! use transcript_client::jetstream::{Address, Input, JetStream, Message, Output, Settings};
//! use transcript_core::{Time, WallTime};
//!
//! let mut client = JetStream::new(Settings::default());
//! client.handle(Time::ZERO, Input::Connected { max_payload: 1 << 20, failed_attempts: 0 });
//! client.handle(Time::ZERO, Input::Allow { deliveries: 10 });
//! let (mut frames, mut told) = (vec![], vec![]);
//! loop {
//!     match client.poll_output() {
//!         Output::Send(frame) => frames.push(frame),
//!         Output::Tell(input) => told.push(input),
//!         Output::SetUp { .. } | Output::Note(_) => {}
//!         Output::Wait(_) => break,
//!     }
//! }
//! // The consumer is looked at, and messages are asked for.
//! assert_eq!(frames.len(), 2);
//! client.handle(Time::ZERO, Input::Received(Message {
//!     to: Address::Published,
//!     reply: Some("$JS.ACK.TRANSCRIPTION.transcript-processor.1.7.7.1700000000000000000.0".into()),
//!     status: None,
//!     headers: vec![],
//!     payload: b"{}".to_vec(),
//!     received_at: WallTime::from_millis(1_700_000_000_001),
//! }));
//! assert!(matches!(client.poll_output(), Output::Tell(transcript_core::Input::Delivered(_))));
//! ```

mod client;
mod consumer;
mod delivery;
pub mod error;
mod frame;
mod publication;
mod pull;
pub mod raw;
mod search;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use transcript_core::{
    Effect, SpanIds, Time,
    contract::{CONSUMER, TRANSCRIPTION_STREAM},
    ids::EffectId,
};

pub use self::{
    client::JetStream,
    frame::{Address, Frame, Headers, Message, Status, header, trace_context},
    publication::RAW_HEADERS_HEADER,
};

/// What can happen to the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// There is a connection, and the subscriptions are made before anything that is sent from now on.
    Connected {
        /// The largest message that the server takes, in bytes.
        max_payload: usize,
        /// How many attempts to connect failed since the connection before this one was lost.
        failed_attempts: u32,
    },
    /// The connection is over.
    Disconnected,
    /// So many more frames were written, in their order.
    Written {
        /// The number of frames.
        frames: u64,
    },
    /// A message came.
    Received(Message),
    /// The core asks for an effect.
    Perform {
        /// Names the effect in its report. A job has one effect at a time: a new one replaces the one before it.
        id: EffectId,
        /// The effect. Those of the store are none of the client's business and ignored.
        effect: Effect,
    },
    /// The core says that a delivery is still worked on.
    InProgress {
        /// The delivery's reply subject.
        reply: Arc<str>,
    },
    /// How many deliveries the core has taken and wants, all together since the start.
    Allow {
        /// The number of deliveries.
        deliveries: u64,
    },
    /// Take no more messages, and [say](transcript_core::Input::DeliveriesStopped) when none can come any more.
    StopDeliveries,
    /// Time has passed; nothing else has happened.
    Woken,
}

/// What the client has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Write this frame.
    Send(Frame),
    /// Give this to the core.
    Tell(transcript_core::Input),
    /// The consumer or the stream is missing, or is not as it must be: set them up.
    SetUp {
        /// What is wrong.
        problem: String,
    },
    /// For the log.
    Note(Note),
    /// Nothing more to do until something happens, or until the wake-up.
    Wait(Option<WakeUp>),
}

/// What an operator may want to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// JetStream ended a pull request for a reason of its own.
    PullRefused {
        /// The status.
        status: String,
    },
    /// The server did not say that a pull request is over.
    PullSilent,
    /// An advisory cannot be read.
    UnreadableAdvisory,
    /// Too many messages used up their deliveries at once: this one is left to the audit.
    AdvisoryDropped,
    /// The consumer cannot be looked at.
    ConsumerUnknown {
        /// Why.
        why: String,
    },
    /// The connection was lost while messages were asked for: those under way are read, and nothing is pulled meanwhile.
    SearchBegun,
    /// It has ended.
    SearchEnded,
    /// The stream cannot be read: messages are pulled again without an answer.
    SearchGivenUp,
    /// A message that no client can be given was found.
    Undeliverable {
        /// Its place in the stream.
        stream_sequence: u64,
    },
    /// It is kept as a dead letter and terminated.
    UndeliverableKept {
        /// Its place in the stream.
        stream_sequence: u64,
    },
    /// It could not be kept or terminated yet, and is tried again.
    UndeliverableFailed {
        /// Its place in the stream.
        stream_sequence: u64,
        /// Why.
        why: String,
    },
    /// A message came without its payload, which could not be read from the stream: it is left to redelivery.
    PayloadMissing {
        /// Its place in the stream.
        stream_sequence: u64,
    },
}

/// Until when the client can wait, and what for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WakeUp {
    /// When to tell it [`Input::Woken`] at the latest.
    pub at: Time,
    /// What is due then.
    pub timer: Timer,
}

/// The waits of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// A request has not been answered.
    Answer,
    /// The server has not said that a pull request is over.
    PullSilent,
    /// The pause after a refused pull request ends.
    PullPause,
    /// The consumer is looked at again.
    Consumer,
    /// A request that failed, and that no effect of the core asks for, is repeated.
    Again,
}

/// How the client asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The stream.
    pub stream: Arc<str>,
    /// The consumer.
    pub consumer: Arc<str>,
    /// What the subjects of JetStream's API begin with.
    pub api_prefix: Arc<str>,
    /// The name of the processor, for dead letters.
    pub name: Arc<str>,
    /// How long an answer may take, from when the frame was given to be written.
    pub request_timeout: Duration,
    /// How long after it was asked for an effect is still worth a request. A notification that is sent later, because the
    /// process or its machine stood still, could be one of a call that others have announced and the stream has forgotten.
    pub sends_within: Duration,
    /// How long the server keeps a pull request.
    ///
    /// A request outlives a connection that broke without a word, and until it expires the server hands every other message
    /// to it, for nobody. A message that is lost so comes back after the ack wait.
    pub pull_expires: Duration,
    /// How much later than that the server's word of it may come.
    pub pull_margin: Duration,
    /// The most messages of one pull request.
    pub max_batch: u64,
    /// The most bytes of one pull request. nats-server cuts a client off that lets 64 MiB pile up (`max_pending`).
    pub max_bytes: u64,
    /// The most frames that are given to be written and are not.
    pub max_unwritten: u64,
    /// How often the consumer is looked at.
    pub consumer_every: Duration,
    /// The numbers of the process's spans: a notification names the one that sent it. `None` where no spans are told: then
    /// the trace of its end goes on as it came.
    pub spans: Option<SpanIds>,
}

/// The default of [`Settings::request_timeout`].
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// For how many request timeouts an effect is worth a request: with that request's own, as long as the core
/// [waits](transcript_core::Settings::answer_timeout).
const SENDS_WITHIN: u32 = 9;

impl Settings {
    /// The defaults, with requests that may take so long.
    #[must_use]
    pub fn with_request_timeout(request_timeout: Duration) -> Self {
        Self { request_timeout, sends_within: request_timeout.saturating_mul(SENDS_WITHIN), ..Self::default() }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            stream: TRANSCRIPTION_STREAM.into(),
            consumer: CONSUMER.into(),
            api_prefix: "$JS.API".into(),
            name: "unknown".into(),
            request_timeout: REQUEST_TIMEOUT,
            sends_within: REQUEST_TIMEOUT * SENDS_WITHIN,
            pull_expires: Duration::from_secs(1),
            pull_margin: Duration::from_millis(1500),
            max_batch: 4096,
            max_bytes: 4 << 20,
            max_unwritten: 1024,
            consumer_every: Duration::from_secs(10),
            spans: None,
        }
    }
}

/// The subject on which JetStream says, once and to whoever listens, that a message has used up its deliveries. Every process
/// listens for itself: one of a queue group that stands still would keep the word from the others. For more than one delivery
/// the server notices only when a pull request waits (nats-server, `server/consumer.go`: `hasMaxDeliveries`,
/// `notifyDeliveryExceeded`). What nobody heard is found by the audit.
#[must_use]
pub fn advisories(settings: &Settings) -> String {
    format!("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{}.{}", settings.stream, settings.consumer)
}
