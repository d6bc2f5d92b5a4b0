//! The summary of a call, folded segment by segment.
//!
//! | word | meaning |
//! |---|---|
//! | word | what stands between two Unicode word boundaries and has a letter or a digit |
//! | blank | a text of whitespace and default-ignorable characters only; it counts as a segment and as nothing else |
//! | turn | consecutive segments of one named speaker, trimmed and joined by one space; without a name, each alone |
//! | question | a line that, trimmed, ends in a question mark of any script, closing quotes and brackets aside |
//!
//! Labels are compared exactly as given: `""`, `"$set"` and `"a.b"` are names like any other.

mod question;
mod shape;
mod speakers;
mod summarizer;
mod text;
mod turns;
mod words;

#[cfg(test)]
mod model;

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

pub use self::{shape::shape, summarizer::Summarizer};
use crate::{
    WallTime,
    ids::{Key, Session},
};

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
    /// How often an operator had asked for the call to be processed again when this was built; absent for none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reprocess: u64,
    /// `segments >= published_segments`: judged on the segments that were loaded.
    pub complete: bool,
    /// Words of all segments.
    pub words: u64,
    /// Segments of which the text or the label is not valid UTF-8, or is no text at all; absent where there are none. What
    /// can be read of them is in the summary.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub damaged: u64,
    /// Most words first, then by first appearance.
    pub speakers: Vec<Speaker>,
    /// At most three, by words, ties to the earlier turn; none without words.
    pub longest_turns: Vec<Turn>,
    /// In the order of the call.
    pub questions: Vec<Question>,
    /// What was left out to keep the document within its bounds; absent where nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<Cut>,
    /// When this summary was built.
    pub updated_at: WallTime,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What one speaker contributed; a speaker of whom there are only blank segments is not listed.
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

/// Consecutive segments of one named speaker, or one segment that names nobody. Blank segments belong to no turn and break
/// none.
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

/// One line that asks something: it ends in a question mark of any script, closing quotes and brackets aside.
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
    /// Segments, blank ones aside, whose speaker label was shortened.
    pub labels: u64,
    /// Segments, blank ones aside, of speakers beyond the list's length: counted in `words`, in no speaker's entry.
    pub speakers: u64,
    /// Listed turns whose text was shortened.
    pub turns: u64,
    /// Listed questions whose text was shortened.
    pub question_texts: u64,
    /// Questions beyond the list's length.
    pub questions: u64,
}

/// Bounds that keep a summary, as the BSON it is stored as, under MongoDB's 16 MiB whatever the call.
///
/// Texts are cut on a character boundary. A list ends before the first entry that would break one of its bounds, so what
/// is listed is always what came first. `label_bytes` also bounds what speakers are told apart by: two labels that agree
/// that far are one speaker's.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(id: &str, index: Option<i64>, start_ms: Option<i64>) -> Segment {
        Segment { id: id.into(), index, speaker: None, text: String::new(), start_ms, end_ms: None }
    }

    #[test]
    fn a_call_is_ordered_by_index_then_start_then_id_missing_ones_last() {
        let ordered = [
            segment("z", Some(-1), None),
            segment("y", Some(2), Some(-5)),
            segment("b", Some(2), Some(7)),
            segment("c", Some(2), Some(7)),
            segment("a", Some(2), None),
            segment("x", Some(10), Some(1)),
            segment("s:10", None, Some(3)),
            segment("s:9", None, Some(3)),
            segment("A", None, None),
            segment("a", None, None),
        ];
        let mut shuffled = ordered.clone();
        shuffled.reverse();
        shuffled.swap(1, 6);
        shuffled.sort_by(order);
        assert_eq!(shuffled, ordered);
    }

    #[test]
    fn a_summary_says_what_was_cut() {
        let cut = Cut { labels: 1, speakers: 2, turns: 3, question_texts: 4, questions: 5 };
        let json = r#"{"labels":1,"speakers":2,"turns":3,"questionTexts":4,"questions":5}"#;
        assert_eq!(serde_json::to_string(&cut).unwrap(), json);
    }

    #[test]
    fn a_segment_needs_no_more_than_an_id_and_a_text() {
        let read: Segment = serde_json::from_str(r#"{"_id": "s:1", "text": "a", "speaker": null, "more": 1}"#).unwrap();
        assert_eq!(read, Segment { text: "a".into(), ..segment("s:1", None, None) });
    }
}
