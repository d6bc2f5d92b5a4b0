//! The summary of a call, folded segment by segment.

mod question;
mod summarizer;
mod text;
mod words;

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

pub use self::summarizer::Summarizer;
use crate::{ids::Key, ids::Session, time::WallTime};

/// One finished segment as the store holds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Segment {
    /// The `_id` of the document.
    #[serde(rename = "_id")]
    pub id: String,
    /// The place in the call; segments without one come last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<i64>,
    /// Who speaks, exactly as labelled; `None` where the segment names nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speaker: Option<String>,
    /// What was said.
    pub text: String,
    /// Start, in milliseconds since the call's start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ms: Option<i64>,
    /// End, in milliseconds since the call's start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_ms: Option<i64>,
}

/// The order of a call: by index, then start, then `_id`; a missing field sorts last.
///
/// The `_id` is compared by its bytes, as MongoDB's default collation does.
#[must_use]
pub fn order(a: &Segment, b: &Segment) -> Ordering {
    missing_last(a.index, b.index).then_with(|| missing_last(a.start_ms, b.start_ms)).then_with(|| a.id.cmp(&b.id))
}

fn missing_last(a: Option<i64>, b: Option<i64>) -> Ordering {
    a.is_none().cmp(&b.is_none()).then(a.cmp(&b))
}

/// The document in `transcriptsummaries`, without the mark that it was announced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// The session's key.
    #[serde(rename = "_id")]
    pub key: Key,
    /// The session.
    #[serde(flatten)]
    pub session: Session,
    /// How many segments were loaded, blank ones included.
    pub segments: u64,
    /// How many segments the end of the call announced.
    pub published_segments: u64,
    /// `segments >= published_segments`.
    pub complete: bool,
    /// Words of all segments.
    pub words: u64,
    /// Most words first, then by first appearance.
    pub speakers: Vec<Speaker>,
    /// At most three, by words, ties to the earlier turn.
    pub longest_turns: Vec<Turn>,
    /// In the order of the call.
    pub questions: Vec<Question>,
    /// What was left out to keep the document within its bounds; absent where nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<Cut>,
    /// When this summary was built.
    pub updated_at: WallTime,
}

/// What one speaker contributed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Speaker {
    /// The label; `None` gathers the segments that name nobody.
    pub speaker: Option<String>,
    /// Words in all of the speaker's segments.
    pub words: u64,
    /// Turns.
    pub turns: u64,
    /// Questions, those included that [`Cut`] says are not listed.
    pub questions: u64,
}

/// Consecutive segments of one speaker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Turn {
    /// The label; `None` where the segment names nobody.
    pub speaker: Option<String>,
    /// Words of the whole turn, also where its text was cut.
    pub words: u64,
    /// The segments' texts, trimmed and joined by one space.
    pub text: String,
    /// Index of the first segment.
    pub index: Option<i64>,
    /// Start of the first segment, in milliseconds since the call's start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ms: Option<i64>,
    /// End of the last segment, in milliseconds since the call's start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_ms: Option<i64>,
}

/// One line that asks something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Question {
    /// The label; `None` where the segment names nobody.
    pub speaker: Option<String>,
    /// The line, trimmed.
    pub text: String,
    /// Index of its segment.
    pub index: Option<i64>,
    /// Start of its segment, in milliseconds since the call's start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ms: Option<i64>,
}

/// What was left out of a summary; see [`Limits`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cut {
    /// Segments whose speaker label was shortened.
    pub labels: u64,
    /// Segments of speakers beyond the list's length: counted in `words`, in no speaker's entry.
    pub speakers: u64,
    /// Listed turns whose text was shortened.
    pub turns: u64,
    /// Listed questions whose text was shortened.
    pub question_texts: u64,
    /// Questions beyond the list's length.
    pub questions: u64,
}

/// Bounds that keep a summary under MongoDB's 16 MiB whatever the call. Texts are cut on a character boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// Longest speaker label, in bytes.
    pub label_bytes: usize,
    /// Most speakers listed: those that appear first.
    pub speakers: usize,
    /// Most bytes of all listed speakers' labels together.
    pub speakers_bytes: usize,
    /// Longest text of a turn, in bytes.
    pub turn_bytes: usize,
    /// Longest text of a question, in bytes.
    pub question_bytes: usize,
    /// Most questions listed: the first ones.
    pub questions: usize,
    /// Most bytes of all listed questions' texts and labels together.
    pub questions_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        const KIB: usize = 1024;
        Self {
            label_bytes: 8 * KIB,
            speakers: 2_000,
            speakers_bytes: 3 * KIB * KIB,
            turn_bytes: 256 * KIB,
            question_bytes: 16 * KIB,
            questions: 10_000,
            questions_bytes: 6 * KIB * KIB,
        }
    }
}
