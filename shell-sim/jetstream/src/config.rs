//! What streams and consumers are told to be, and the server's checks and defaults.

use std::{sync::Arc, time::Duration};

use super::{message::ApiError, subject};

/// The window of a stream that names none.
pub const DEFAULT_DUPLICATE_WINDOW: Duration = Duration::from_secs(120);

const SHORTEST_WINDOW: Duration = Duration::from_millis(100);

/// A stream: limits retention, file storage, one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamConfig {
    /// Its name.
    pub name: Arc<str>,
    /// The subjects it captures.
    pub subjects: Vec<Arc<str>>,
    /// How long a message id is remembered; zero asks for the default.
    pub duplicate_window: Duration,
    /// How long messages are kept; `None` for ever.
    pub max_age: Option<Duration>,
    /// How many messages are kept.
    pub max_msgs: Option<u64>,
    /// How many bytes are kept: those of subject, headers and payload, and 30 or 34 more a message.
    pub max_bytes: Option<u64>,
    /// What goes when there is too much.
    pub discard: Discard,
    /// The most bytes of headers and payload of a message.
    pub max_msg_size: Option<u64>,
    /// Whether nothing may be stored or removed any more.
    pub sealed: bool,
}

/// What goes when a stream has too much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discard {
    /// The oldest messages.
    Old,
    /// The new one.
    New,
}

impl StreamConfig {
    /// A stream without limits and with the default window.
    #[must_use]
    pub fn new(name: &str, subjects: &[&str]) -> Self {
        Self {
            name: name.into(),
            subjects: subjects.iter().map(|subject| (*subject).into()).collect(),
            duplicate_window: Duration::ZERO,
            max_age: None,
            max_msgs: None,
            max_bytes: None,
            discard: Discard::Old,
            max_msg_size: None,
            sealed: false,
        }
    }

    pub(super) fn captures(&self, subject: &str) -> bool {
        self.subjects.iter().any(|pattern| subject::matches(pattern, subject))
    }

    /// Fills the defaults in and checks the rest, as the server's `checkStreamCfg` does.
    pub(super) fn checked(mut self) -> Result<Self, ApiError> {
        let age = self.max_age.filter(|age| !age.is_zero());
        self.max_age = age;
        if self.duplicate_window.is_zero() {
            self.duplicate_window = age.map_or(DEFAULT_DUPLICATE_WINDOW, |age| age.min(DEFAULT_DUPLICATE_WINDOW));
        }
        if self.duplicate_window < SHORTEST_WINDOW {
            return Err(ApiError::invalid_stream("duplicates window needs to be >= 100ms"));
        }
        if age.is_some_and(|age| self.duplicate_window > age) {
            return Err(ApiError::invalid_stream("duplicates window can not be larger then max age"));
        }
        if self.subjects.is_empty() {
            self.subjects.push(self.name.clone());
        }
        Ok(self)
    }
}

/// A durable pull consumer with explicit acks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerConfig {
    /// Its durable name.
    pub name: Arc<str>,
    /// Which subjects it gets; all where empty.
    pub filters: Vec<Arc<str>>,
    /// Where it starts.
    pub deliver: DeliverPolicy,
    /// How long a delivery may stay unacknowledged.
    pub ack_wait: Duration,
    /// The waits of the first, second, … delivery, the last one for all later ones; empty for `ack_wait` always.
    pub backoff: Vec<Duration>,
    /// How often a message is delivered; `None` without end.
    pub max_deliver: Option<u64>,
    /// How many deliveries may be unacknowledged before new messages wait; `None` for any number.
    pub max_ack_pending: Option<u64>,
    /// How many pull requests may wait.
    pub max_waiting: u64,
    /// The largest batch of a pull request.
    pub max_batch: Option<u64>,
    /// The longest wait of a pull request.
    pub max_expires: Option<Duration>,
    /// The most bytes of a pull request.
    pub max_bytes: Option<u64>,
    /// Whether deliveries carry the size of the payload in a header, `Nats-Msg-Size`, instead of the payload.
    pub headers_only: bool,
    /// Nothing is delivered before this moment, in nanoseconds since the Unix epoch.
    pub pause_until_nanos: Option<i64>,
    /// The groups that requests must name one of, and how it is used.
    pub priority: Option<PriorityGroups>,
}

/// Priority groups of a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PriorityGroups {
    /// What the groups are for.
    pub policy: PriorityPolicy,
    /// Their names.
    pub groups: Vec<Arc<str>>,
    /// How long a client stays pinned without a request; zero for the default of two minutes.
    pub timeout: Duration,
}

/// What priority groups are for. This model refuses requests as each of them does, and then serves all requests alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PriorityPolicy {
    /// A request can wait until much is pending.
    Overflow,
    /// One client gets everything.
    PinnedClient,
    /// Requests have priorities.
    Prioritized,
}

/// Where a consumer starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliverPolicy {
    /// With the first message stored.
    All,
    /// With the next message published.
    New,
    /// With the last message stored that it gets.
    Last,
    /// With the stream sequence.
    FromSequence(u64),
}

impl ConsumerConfig {
    /// A consumer with the server's defaults: 30 s of ack wait, deliveries without end, 1,000 unacknowledged, 512 waiting.
    #[must_use]
    pub fn durable(name: &str) -> Self {
        Self {
            name: name.into(),
            filters: Vec::new(),
            deliver: DeliverPolicy::All,
            ack_wait: Duration::from_secs(30),
            backoff: Vec::new(),
            max_deliver: None,
            max_ack_pending: Some(1_000),
            max_waiting: 512,
            max_batch: None,
            max_expires: None,
            max_bytes: None,
            headers_only: false,
            pause_until_nanos: None,
            priority: None,
        }
    }

    pub(super) fn takes(&self, subject: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|pattern| subject::matches(pattern, subject))
    }

    /// Fills the defaults in and checks the rest, as the server's `setConsumerConfigDefaults` and `checkConsumerCfg` do.
    pub(super) fn checked(mut self) -> Result<Self, ApiError> {
        if let Some(first) = self.backoff.first() {
            self.ack_wait = *first;
        }
        if self.ack_wait.is_zero() {
            self.ack_wait = Duration::from_secs(30);
        }
        if self.max_waiting == 0 {
            self.max_waiting = 512;
        }
        let steps = u64::try_from(self.backoff.len()).unwrap_or(u64::MAX);
        if self.max_deliver.is_some_and(|most| steps > most) {
            return Err(ApiError::new(400, 10_116, "max deliver is required to be > length of backoff values"));
        }
        Ok(self)
    }

    /// Why this consumer cannot become `next`: what the server's `checkNewConsumerConfig` refuses.
    pub(super) fn refuses(&self, next: &Self) -> Option<ApiError> {
        if self.deliver != next.deliver {
            return Some(ApiError::consumer("deliver policy can not be updated"));
        }
        (self.max_waiting != next.max_waiting).then(|| ApiError::consumer("max waiting can not be updated"))
    }

    /// The wait of a delivery that was redelivered `times` before it.
    pub(super) fn wait_after(&self, times: u64) -> Duration {
        let step = usize::try_from(times).unwrap_or(usize::MAX);
        self.backoff.get(step).or(self.backoff.last()).copied().unwrap_or(self.ack_wait)
    }
}

impl ApiError {
    pub(super) fn new(code: u16, err_code: u16, description: impl Into<String>) -> Self {
        Self { code, err_code, description: description.into() }
    }

    pub(super) fn invalid_stream(description: &str) -> Self {
        Self::new(500, 10_052, description)
    }

    fn consumer(description: &str) -> Self {
        Self::new(500, 10_012, description)
    }

    pub(super) fn sealed() -> Self {
        Self::new(400, 10_109, "invalid operation on sealed stream")
    }

    pub(super) fn stream_not_found() -> Self {
        Self::new(404, 10_059, "stream not found")
    }

    pub(super) fn consumer_not_found() -> Self {
        Self::new(404, 10_014, "consumer not found")
    }

    pub(super) fn wrong_last_sequence(last: u64) -> Self {
        Self::new(400, 10_071, format!("wrong last sequence: {last}"))
    }

    pub(super) fn no_message() -> Self {
        Self::new(404, 10_037, "no message found")
    }
}
