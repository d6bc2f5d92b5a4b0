//! What the frames of speech engines say.
//!
//! A *dialect* is a pure function from the text of a frame to a [`Frame`]. Nothing in it is trusted: any text gives a frame or
//! a [`Problem`], and no reason of a problem repeats a word of the text.
//!
//! ```
//! use transcript_dialects::{Dialect, Frame};
//!
//! let frame = Dialect::Deepgram.read(r#"{"type":"Results","is_final":true,
//!     "channel":{"alternatives":[{"transcript":"Good morning."}]},"start":1.5,"duration":0.9}"#);
//! let Ok(Frame::Final(utterances)) = frame else { panic!("{frame:?}") };
//! assert_eq!(utterances[0].text, "Good morning.");
//! assert_eq!(utterances[0].start_ms, Some(1500));
//! ```

mod assemblyai;
mod conversationrelay;
mod deepgram;
mod field;
mod jigasi;
mod livekit;
mod native;
mod recall;

use std::{fmt, str::FromStr};

use serde_json::{Map, Value};
use thiserror::Error;

/// The longest id of an utterance, in bytes of UTF-8.
pub const MAX_ID_BYTES: usize = 256;
/// The longest name of a speaker, in bytes of UTF-8.
pub const MAX_SPEAKER_BYTES: usize = 1024;

/// Whose frames are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Dialect {
    /// Our own frames.
    #[default]
    Native,
    /// Deepgram's results, with a WebSocket as `callback`.
    Deepgram,
    /// Recall.ai's real-time endpoints.
    Recall,
    /// Conversation Relay of Twilio and Telnyx.
    ConversationRelay,
    /// AssemblyAI's streaming API, version 3, forwarded by an application.
    AssemblyAi,
    /// LiveKit's text streams of the topic `lk.transcription`, forwarded by an agent.
    LiveKit,
    /// Jigasi's POST requests.
    Jigasi,
}

/// What a frame says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Text that will be replaced; it is not stored.
    Interim,
    /// Text that is stored: at least one utterance, in the order in which it was said.
    Final(Vec<Utterance>),
    /// The connection shall stay open.
    KeepAlive,
    /// The sender wants to know when everything before this frame is stored.
    Finalize,
    /// The sender is done: like [`Frame::Finalize`], and then the connection is closed.
    End,
    /// It says nothing that matters here.
    Ignored,
}

/// Something that was said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Utterance {
    /// What the engine calls it; a later utterance of the same connection and id replaces it.
    pub id: Option<String>,
    /// Who speaks.
    pub speaker: Option<String>,
    /// What was said.
    pub text: String,
    /// Start on the engine's clock, in milliseconds.
    pub start_ms: Option<i64>,
    /// End on the engine's clock, in milliseconds.
    pub end_ms: Option<i64>,
}

/// Why a frame cannot be read. It holds no word of the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Problem {
    /// No JSON, or JSON that is nested too deep, or holds a number that is too large.
    #[error("the frame is not JSON that can be read: line {line}, column {column}")]
    Json {
        /// The line, from 1.
        line: usize,
        /// The column, in bytes, from 1; 0 before the first one.
        column: usize,
    },
    /// JSON, but no object.
    #[error("the frame is not a JSON object")]
    NoObject,
    /// A field that must be there is missing or null.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A field holds something of the wrong kind.
    #[error("{field} must be {expected}")]
    Kind {
        /// The field.
        field: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// A field is longer than it may be.
    #[error("{field} is longer than {most} bytes")]
    TooLong {
        /// The field.
        field: &'static str,
        /// The limit.
        most: usize,
    },
    /// `type` names no frame of the dialect.
    #[error("type is none of {0}")]
    UnknownType(&'static str),
}

impl Dialect {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Native,
        Self::Deepgram,
        Self::Recall,
        Self::ConversationRelay,
        Self::AssemblyAi,
        Self::LiveKit,
        Self::Jigasi,
    ];

    /// The name, as `?dialect=` has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Deepgram => "deepgram",
            Self::Recall => "recall",
            Self::ConversationRelay => "conversationrelay",
            Self::AssemblyAi => "assemblyai",
            Self::LiveKit => "livekit",
            Self::Jigasi => "jigasi",
        }
    }

    /// What one frame says.
    ///
    /// # Errors
    ///
    /// See [`Problem`].
    pub fn read(self, frame: &str) -> Result<Frame, Problem> {
        self.read_value(&parse(frame)?)
    }

    /// What each frame of a request says: its body is one frame or a list of frames.
    ///
    /// # Errors
    ///
    /// The body is no JSON. A frame of a list that cannot be read affects no other one.
    pub fn read_all(self, body: &str) -> Result<Vec<Result<Frame, Problem>>, Problem> {
        match parse(body)? {
            Value::Array(frames) => Ok(frames.iter().map(|frame| self.read_value(frame)).collect()),
            frame @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_)) => {
                Ok(vec![self.read_value(&frame)])
            }
        }
    }

    /// Whether the other side wants to be told what is stored. Conversation Relay does not: Twilio takes every frame that it does not
    /// know for a fault of the call (error 64107). It is told errors all the same, because its log is where people look for them.
    #[must_use]
    pub fn wants_receipts(self) -> bool {
        match self {
            Self::ConversationRelay => false,
            Self::Native | Self::Deepgram | Self::Recall | Self::AssemblyAi | Self::LiveKit | Self::Jigasi => true,
        }
    }

    fn read_value(self, frame: &Value) -> Result<Frame, Problem> {
        let frame = frame.as_object().ok_or(Problem::NoObject)?;
        self.reader()(frame)
    }

    fn reader(self) -> fn(&Map<String, Value>) -> Result<Frame, Problem> {
        match self {
            Self::Native => native::read,
            Self::Deepgram => deepgram::read,
            Self::Recall => recall::read,
            Self::ConversationRelay => conversationrelay::read,
            Self::AssemblyAi => assemblyai::read,
            Self::LiveKit => livekit::read,
            Self::Jigasi => jigasi::read,
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is none of a dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the dialect must be native, deepgram, recall, conversationrelay, assemblyai, livekit or jigasi")]
pub struct UnknownDialect;

impl FromStr for Dialect {
    type Err = UnknownDialect;

    fn from_str(name: &str) -> Result<Self, UnknownDialect> {
        Self::ALL.into_iter().find(|dialect| dialect.name() == name).ok_or(UnknownDialect)
    }
}

impl Frame {
    /// One final utterance; nothing where its text is blank, as engines send it for silence.
    fn said(utterance: Utterance) -> Self {
        if utterance.text.trim().is_empty() { Self::Ignored } else { Self::Final(vec![utterance]) }
    }
}

fn parse(text: &str) -> Result<Value, Problem> {
    serde_json::from_str(text).map_err(|error| Problem::Json { line: error.line(), column: error.column() })
}
