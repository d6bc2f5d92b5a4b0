//! What clients say and what they are told, whatever the dialect in which they say it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// What a client says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ClientFrame {
    /// A piece of speech.
    Segment(ClientSegment),
    /// Tell me when everything that I sent is stored: [`ServerFrame::Saved`].
    Finalize,
    /// The same, and close the connection then.
    CloseStream,
    /// The same, and end the session once nobody is connected, without a delay. It is the request of a service that
    /// delivers without sockets.
    EndSession,
    /// I am alive.
    KeepAlive,
}

/// A piece of speech, as a client delivers it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientSegment {
    /// The client's own id. The same id in the same [epoch](crate::EpochId) replaces the text; a segment without one is never a
    /// repetition. What is stored last stays: a text that a client sent on a connection that it gave up can arrive after the
    /// one that it sent on the next. A client that cannot bear that names another epoch after a reconnect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Arc<str>>,
    /// Who speaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speaker: Option<Arc<str>>,
    /// What was said.
    pub text: Arc<str>,
    /// Start, in milliseconds of the epoch's clock, which starts when the epoch's first connection opens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ms: Option<i64>,
    /// End, in milliseconds of the same clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_ms: Option<i64>,
    /// Whether the text is final. An interim text is not stored.
    pub finality: Finality,
}

/// Whether an engine may still change a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Finality {
    /// It may.
    Interim,
    /// It will not, or says so under the same id.
    Final,
}

/// What a client is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum ServerFrame {
    /// The session is open in the store, and counts this connection.
    Ready,
    /// The segment is stored.
    Ack {
        /// The client's id of it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<Arc<str>>,
        /// Its place in the session: of the first text, where this one replaced it.
        index: u64,
    },
    /// A segment or the connection is refused.
    Error {
        /// The client's id of the segment, where one is refused.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<Arc<str>>,
        /// Why; without a word of the call.
        reason: String,
        /// Whether the same can succeed later, on this connection or another one.
        retryable: bool,
    },
    /// Everything that this connection sent before its request is stored, or was refused.
    Saved {
        /// How many segments of this connection are stored.
        count: u64,
    },
}

/// Why a WebSocket is closed, as RFC 6455, section 7.4, and its registry of status codes number it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CloseCode {
    /// The client asked for it (1000).
    Normal,
    /// A limit is exceeded, and will be exceeded again (1008).
    Policy,
    /// The store refuses the session (1011).
    Internal,
    /// The transcriber restarts; connect again, elsewhere (1012).
    Restart,
    /// Too much is connected; try again later (1013).
    TryAgainLater,
}

impl CloseCode {
    /// The number on the wire.
    #[must_use]
    pub fn number(self) -> u16 {
        match self {
            Self::Normal => 1000,
            Self::Policy => 1008,
            Self::Internal => 1011,
            Self::Restart => 1012,
            Self::TryAgainLater => 1013,
        }
    }
}
