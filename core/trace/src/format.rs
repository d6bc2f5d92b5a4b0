//! The lines of a trace.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use transcript_core::{
    Input, Output, Server, Settings, Time, WallTime,
    ids::{JobId, Session},
};

/// The format's version, which every header names.
pub const FORMAT: u32 = 2;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// A part of a processor or of an observer begins.
    Header(Box<Header>),
    /// It goes on.
    Entry(Box<Entry>),
    /// A part of a transcriber begins.
    TranscriberHeader(Box<TranscriberHeader>),
    /// It goes on.
    TranscriberEntry(Box<TranscriberEntry>),
}

/// An entry of a transcriber.
pub type TranscriberEntry = Entry<transcript_transcriber::Input, transcript_transcriber::Output>;

/// The first line of a part of a processor or of an observer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// [`FORMAT`] of the program that wrote it.
    #[serde(rename = "transcriptTrace")]
    pub format: u32,
    /// The program that wrote it, and its version.
    pub program: String,
    /// The servers' versions, where they are known.
    #[serde(default, skip_serializing_if = "Servers::is_empty")]
    pub servers: Servers,
    /// The processor's name; `None` for what an observer noted, who has no core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor: Option<Arc<str>>,
    /// When the processor started: time 0 of its entries, by its clock.
    pub started_at: WallTime,
    /// Whether the call's words are in it.
    pub content: Content,
    /// The core's settings.
    pub settings: Settings,
    /// For how long the broker keeps a pull request of the processor, in microseconds; `None` where the trace does not say it.
    /// A drain lasts until the last request is over.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "optional_micros")]
    pub pull_expires: Option<Duration>,
    /// The file that this one goes on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continues: Option<Continues>,
    /// The session that it was cut down to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Session>,
    /// What it shows, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
}

/// The first line of a part of a transcriber.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TranscriberHeader {
    /// [`FORMAT`] of the program that wrote it.
    #[serde(rename = "transcriptTrace")]
    pub format: u32,
    /// The program that wrote it, and its version.
    pub program: String,
    /// The servers' versions, where they are known.
    #[serde(default, skip_serializing_if = "Servers::is_empty")]
    pub servers: Servers,
    /// The transcriber's name. A header that has one is a transcriber's.
    pub transcriber: Arc<str>,
    /// When the transcriber started: time 0 of its entries, by its clock.
    pub started_at: WallTime,
    /// Whether the call's words are in it.
    pub content: Content,
    /// The settings of its state machine.
    pub settings: transcript_transcriber::Settings,
    /// The file that this one goes on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continues: Option<Continues>,
    /// What it shows, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
}

/// Versions of the servers, as they give them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Servers {
    /// nats-server's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nats: Option<String>,
    /// mongod's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mongodb: Option<String>,
}

impl Servers {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Whether the words of the calls are in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Content {
    /// Placeholders of the same shape stand for them.
    Redacted,
    /// They are.
    Kept,
}

/// Where a part goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Continues {
    /// The name of the file before it.
    pub file: String,
    /// The number of that file's last entry.
    pub entries: u64,
    /// The last job that had begun by then; none of a transcriber.
    pub last_job: Option<JobId>,
}

/// A line of a part but its first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry<I = Input, O = Output> {
    /// Its number in the part, from 1.
    pub n: u64,
    /// When: since the start of the process. `None` for an output, which belongs to the input before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    /// The job that took the input; none of a transcriber.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// What was said.
    #[serde(flatten)]
    pub said: Said<I, O>,
}

/// What an entry says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Said<I = Input, O = Output> {
    /// To the state machine.
    In(I),
    /// By the state machine.
    Out(O),
    /// Something is missing.
    LeftOut(LeftOut),
    /// By somebody else.
    Note(Note),
}

/// Something that is missing from a trace. The jobs named are not told any further: their reports and outputs are not
/// there either.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeftOut {
    /// How many inputs are not there because the recorder could not keep up, or could not write.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub inputs: u64,
    /// The jobs whose account ends here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<JobId>,
    /// Why.
    pub why: String,
}

/// Something that no core saw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Note {
    /// A transcriber stored segments of a session.
    #[serde(rename_all = "camelCase")]
    Stored {
        /// The session.
        session_id: Arc<str>,
        /// How many more there are now.
        segments: u64,
    },
    /// The process was killed.
    Killed,
    /// The process stood still.
    #[serde(rename_all = "camelCase")]
    Frozen {
        /// Until then.
        until: Time,
    },
    /// A server was away.
    #[serde(rename_all = "camelCase")]
    Away {
        /// Which one.
        server: Server,
        /// Until then; `None` where it did not come back.
        until: Option<Time>,
    },
    /// Anything else, in words.
    Remark(String),
}

/// A duration on the wire, where there is one: whole microseconds.
mod optional_micros {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        duration.map(|span| u64::try_from(span.as_micros()).unwrap_or(u64::MAX)).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_micros))
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}
