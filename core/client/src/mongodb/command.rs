//! What is asked of MongoDB, and what it answers, without a byte of BSON.

use std::{collections::BTreeMap, fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use transcript_core::{
    Stored, Tally,
    ids::Key,
    summary::{Order, Segment, Summary},
};

use super::{client::Mark, failure::CommandError};

/// Ties a reply to its command; never used again by the same client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommandId(pub(super) u64);

/// One thing to ask the server for. A command can take several round trips.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Count the segments of sessions: [`Reply::Counted`].
    Count {
        /// The sessions, each named once.
        sessions: Vec<Arc<str>>,
    },
    /// Read all segments of sessions, session by session in the order of their ids: [`Reply::Small`].
    LoadSmall {
        /// The sessions, each named once, in the order of their ids.
        calls: Vec<SmallCall>,
        /// How many segments are read at most, of all sessions together.
        max_segments: u64,
        /// How many bytes of documents are kept at most, of all sessions together; one session is kept whatever its size.
        max_bytes: u64,
    },
    /// Count the segments of a session, and those without a start on the session's clock: [`Reply::Tallied`].
    Tally {
        /// The session.
        session_id: Arc<str>,
    },
    /// Read some segments of a session: [`Reply::Page`].
    Page {
        /// The session.
        session_id: Arc<str>,
        /// By which field. By start, only the segments with a start on the session's clock are read.
        order: Order,
        /// Which segments.
        place: Place,
        /// What is left out among the numbers.
        numbers: IndexedNumbers,
        /// How many segments are read at most; at least one.
        limit: u32,
        /// How many bytes of documents are read at most. A page ends before the segment that does not fit.
        max_bytes: u64,
    },
    /// Store summaries, each unless one is stored that is [ahead of it](Stored::is_ahead_of): [`Reply::Written`].
    Save {
        /// The summaries.
        summaries: Vec<Arc<Summary>>,
        /// What becomes of one that is not stored yet.
        missing: Missing,
    },
    /// Read what is stored of summaries: [`Reply::ReadBack`].
    ReadBack {
        /// Their keys, each named once.
        keys: Vec<Key>,
    },
    /// Mark summaries as announced, each unless it is, or is not there: [`Reply::Written`].
    Mark {
        /// The marks.
        marks: Vec<Mark>,
    },
}

/// A session that is read as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmallCall {
    /// The session.
    pub session_id: Arc<str>,
    /// How many bytes of documents are kept at most. Where there are more, reading stops with this session.
    pub max_bytes: u64,
}

/// Whether a summary that is not stored yet is inserted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// It is (`upsert: true`).
    Insert,
    /// It is not.
    Leave,
}

/// Which segments a page is of. The field of the page's [order](Order) has numbers: a number is a whole number of 64 bits, or
/// the whole part of a double within their range; everything else is none. The other one of index and start is the second
/// field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Place {
    /// Segments whose number is greater than this one, or any number, in the order of their numbers alone.
    After(Option<i64>),
    /// Segments of one number, in the order of the second field and `_id`.
    Within {
        /// The number.
        number: i64,
        /// Behind which segment; `None` for the first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<SortKey>,
    },
    /// Segments without a number, in the order of the second field and `_id`. By start there are none.
    Rest {
        /// Behind which segment; `None` for the first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<SortKey>,
    },
}

/// Where a segment stands among those of its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SortKey {
    /// Its second field: [`Segment::start_ms`] by index, [`Segment::index`] by start; a missing one sorts last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second: Option<i64>,
    /// Its `_id`.
    pub id: StoredId,
}

/// An `_id`, so that it can be sent back to the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StoredId {
    /// A text.
    Text(String),
    /// Anything else: the BSON type and the value, in hexadecimal digits.
    Bson(String),
}

/// What the pages of a call have met so far where MongoDB's index has numbers.
///
/// By start, only numbers are ever met: a segment without a number is none that is read by start. By index, arrays and
/// decimals are no index here, but stand among the numbers of MongoDB's index. As long as none was met, what has
/// no index is found through MongoDB's index. Afterwards each query leaves them out, and all segments of the call are looked
/// at to find what has no index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum IndexedNumbers {
    /// Nothing but numbers.
    Numbers,
    /// Arrays or decimals among them.
    Others,
}

/// What the server answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// How many segments each session has, in the order in which they were named.
    Counted(Vec<u64>),
    /// The segments of small calls.
    Small {
        /// What was read, in the order in which it was read. A session without a segment is not there.
        sessions: Vec<SmallRead>,
        /// Whether that is all.
        end: SmallEnd,
    },
    /// How many segments a session has.
    Tallied(Tally),
    /// A page.
    Page(PageRead),
    /// What became of writes.
    Written(WriteErrors),
    /// The summaries that are stored, by key.
    ReadBack(BTreeMap<String, Stored>),
    /// The command failed as a whole.
    Failed(CommandError),
}

/// The segments of one small call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmallRead {
    /// The session.
    pub session_id: String,
    /// Its segments in any order; fewer than there are where `bytes` is beyond the call's bound.
    pub documents: Vec<Document>,
    /// The size of its documents as far as they were read, in bytes.
    pub bytes: u64,
}

/// Whether small calls were read to their end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SmallEnd {
    /// Nothing is left.
    All,
    /// A bound of the command was met: the last session may be cut short, and sessions behind it were not reached.
    Stopped,
}

/// Some segments of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PageRead {
    /// In the order that was asked for.
    pub documents: Vec<Document>,
    /// Whether a bound was met before the last segment of the place.
    pub more: bool,
    /// How many bytes the next segment takes, where it alone is larger than the page may be.
    pub needs: Option<u64>,
    /// Whether there was an array or a decimal where an index was expected. The page is then worth nothing.
    pub others: bool,
}

/// A segment as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// What it says.
    pub segment: Segment,
    /// Its `_id`.
    pub id: DocumentId,
    /// Whether the text or the label was not valid UTF-8, or no text at all.
    pub damaged: bool,
}

/// The `_id` of a segment, as MongoDB orders it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DocumentId {
    /// A text, which [`Segment::id`] has.
    Text,
    /// Anything else.
    Other(Box<OtherId>),
}

/// An `_id` that is no valid text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherId {
    /// Compares as MongoDB does: first the place of its type in MongoDB's order of types, then the value.
    pub order: Vec<u8>,
    /// The BSON type and the value.
    pub bson: Vec<u8>,
}

/// The place of texts in the order of types that [`OtherId::order`] uses.
pub const TEXT_ORDER: u8 = 3;

/// What a reply says of the single writes of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WriteErrors {
    /// The writes that failed.
    pub members: Vec<WriteError>,
    /// The code of the `writeConcernError`, if there is one: nobody knows whether the writes will last.
    pub concern: Option<i32>,
}

/// Why a single write failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteError {
    /// Which one, counted from 0.
    pub place: usize,
    /// The server's code.
    pub code: i32,
    /// The unique index that refused it, where the error names one.
    pub index: Option<String>,
}

impl Command {
    /// What it is.
    #[must_use]
    pub fn kind(&self) -> CommandKind {
        match self {
            Self::Count { .. } => CommandKind::Count,
            Self::LoadSmall { .. } => CommandKind::LoadSmall,
            Self::Tally { .. } => CommandKind::Tally,
            Self::Page { .. } => CommandKind::Page,
            Self::Save { .. } => CommandKind::Save,
            Self::ReadBack { .. } => CommandKind::ReadBack,
            Self::Mark { .. } => CommandKind::Mark,
        }
    }
}

/// The kinds of commands, in the order of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CommandKind {
    /// [`Command::Count`].
    Count,
    /// [`Command::LoadSmall`].
    LoadSmall,
    /// [`Command::Tally`].
    Tally,
    /// [`Command::Page`].
    Page,
    /// [`Command::Save`].
    Save,
    /// [`Command::ReadBack`].
    ReadBack,
    /// [`Command::Mark`].
    Mark,
}

impl CommandKind {
    /// Whether it changes documents.
    #[must_use]
    pub fn writes(self) -> bool {
        match self {
            Self::Save | Self::Mark => true,
            Self::Count | Self::LoadSmall | Self::Tally | Self::Page | Self::ReadBack => false,
        }
    }
}

impl fmt::Display for CommandKind {
    /// What could not be done, for a sentence.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Count => "count segments",
            Self::LoadSmall | Self::Tally | Self::Page => "read segments",
            Self::Save => "save summaries",
            Self::ReadBack => "read summaries",
            Self::Mark => "mark summaries",
        })
    }
}
