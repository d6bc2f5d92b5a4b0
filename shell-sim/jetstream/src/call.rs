//! Calls of the management API.

use std::sync::Arc;

use super::{
    config::{ConsumerConfig, StreamConfig},
    message::ApiError,
};

/// A call of the management API.
#[derive(Debug, Clone)]
pub enum ApiCall {
    /// `STREAM.CREATE`.
    CreateStream(StreamConfig),
    /// `STREAM.UPDATE`.
    UpdateStream(StreamConfig),
    /// `STREAM.DELETE`.
    DeleteStream(Arc<str>),
    /// `STREAM.INFO`.
    StreamInfo(Arc<str>),
    /// `STREAM.PURGE`.
    Purge {
        /// The stream.
        stream: Arc<str>,
        /// What is purged.
        scope: PurgeScope,
    },
    /// `STREAM.MSG.GET`.
    GetMessage {
        /// The stream.
        stream: Arc<str>,
        /// Which message.
        which: Which,
    },
    /// `STREAM.MSG.DELETE`.
    DeleteMessage {
        /// The stream.
        stream: Arc<str>,
        /// The sequence of the message.
        sequence: u64,
    },
    /// `CONSUMER.CREATE`.
    CreateConsumer {
        /// The stream.
        stream: Arc<str>,
        /// What the consumer shall be.
        config: ConsumerConfig,
        /// What to do where it exists, or not.
        action: ConsumerAction,
    },
    /// `CONSUMER.DELETE`.
    DeleteConsumer {
        /// The stream.
        stream: Arc<str>,
        /// The consumer.
        consumer: Arc<str>,
    },
    /// `CONSUMER.INFO`.
    ConsumerInfo {
        /// The stream.
        stream: Arc<str>,
        /// The consumer.
        consumer: Arc<str>,
    },
    /// `CONSUMER.RESET`: the whole consumer goes back to a stream sequence, or to its ack floor.
    ResetConsumer {
        /// The stream.
        stream: Arc<str>,
        /// The consumer.
        consumer: Arc<str>,
        /// The next stream sequence to deliver.
        sequence: Option<u64>,
    },
    /// `CONSUMER.PAUSE`.
    PauseConsumer {
        /// The stream.
        stream: Arc<str>,
        /// The consumer.
        consumer: Arc<str>,
        /// Until when, in nanoseconds since the Unix epoch; `None` ends a pause.
        until_nanos: Option<i64>,
    },
    /// A call that the server refuses without looking at what it is about.
    Unreadable {
        /// Which call.
        kind: ApiKind,
        /// Why.
        error: ApiError,
    },
}

/// Which call of the management API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiKind {
    /// `STREAM.CREATE`.
    CreateStream,
    /// `STREAM.UPDATE`.
    UpdateStream,
    /// `STREAM.DELETE`.
    DeleteStream,
    /// `STREAM.INFO`.
    StreamInfo,
    /// `STREAM.PURGE`.
    Purge,
    /// `STREAM.MSG.GET`.
    GetMessage,
    /// `STREAM.MSG.DELETE`.
    DeleteMessage,
    /// `CONSUMER.CREATE`.
    CreateConsumer,
    /// `CONSUMER.DELETE`.
    DeleteConsumer,
    /// `CONSUMER.INFO`.
    ConsumerInfo,
    /// `CONSUMER.RESET`.
    ResetConsumer,
    /// `CONSUMER.PAUSE`.
    PauseConsumer,
}

impl ApiCall {
    /// Which call it is.
    #[must_use]
    pub fn kind(&self) -> ApiKind {
        match self {
            Self::CreateStream(_) => ApiKind::CreateStream,
            Self::UpdateStream(_) => ApiKind::UpdateStream,
            Self::DeleteStream(_) => ApiKind::DeleteStream,
            Self::StreamInfo(_) => ApiKind::StreamInfo,
            Self::Purge { .. } => ApiKind::Purge,
            Self::GetMessage { .. } => ApiKind::GetMessage,
            Self::DeleteMessage { .. } => ApiKind::DeleteMessage,
            Self::CreateConsumer { .. } => ApiKind::CreateConsumer,
            Self::DeleteConsumer { .. } => ApiKind::DeleteConsumer,
            Self::ConsumerInfo { .. } => ApiKind::ConsumerInfo,
            Self::ResetConsumer { .. } => ApiKind::ResetConsumer,
            Self::PauseConsumer { .. } => ApiKind::PauseConsumer,
            Self::Unreadable { kind, .. } => *kind,
        }
    }
}

/// Which messages a purge removes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PurgeScope {
    /// All.
    All,
    /// Those whose subject matches.
    Subject(Arc<str>),
    /// Those before the sequence.
    Before(u64),
}

/// Which stored message is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// The one with the sequence.
    Sequence(u64),
    /// The last one of the literal subject.
    LastOf(Arc<str>),
    /// The first one from the sequence on whose subject matches.
    NextOf(u64, Arc<str>),
}

/// What a consumer's creation does where the consumer exists, or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConsumerAction {
    /// Create or update.
    CreateOrUpdate,
    /// Create; an existing one must be the same.
    Create,
    /// Update; it must exist.
    Update,
}
