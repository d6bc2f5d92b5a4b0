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
    TranscriptVersion, WallTime,
    ids::{Key, Session},
};

/// One finished segment as the store holds it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Whether the start is on the clock that all segments of the session share. It says nothing without a start.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_session_clock: bool,
    /// How often it was changed since it was stored first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub edits: u64,
}

impl Segment {
    /// Its start on the session's clock, in milliseconds; `None` where it has none that is known to be on that clock.
    #[must_use]
    pub fn session_start(&self) -> Option<i64> {
        self.start_ms.filter(|_| self.on_session_clock)
    }
}

/// The order in which the segments of a call are read. A field that is missing sorts last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Order {
    /// By index, then start, then `_id`.
    Index,
    /// By start, then index, then `_id`.
    Start,
}

impl Order {
    /// The order of a call of exactly these segments: by start where the start of each one is on the session's clock. Starts
    /// of different clocks cannot be compared: a single segment without that puts the whole call in the order of indexes.
    #[must_use]
    pub fn of<'a>(segments: impl IntoIterator<Item = &'a Segment>) -> Self {
        let mut segments = segments.into_iter().peekable();
        let is_by_start = segments.peek().is_some() && segments.all(|segment| segment.session_start().is_some());
        if is_by_start { Self::Start } else { Self::Index }
    }

    /// Compares two segments of a call that has this order.
    ///
    /// The `_id` is compared by its bytes, as MongoDB's default collation does.
    #[must_use]
    pub fn compare(self, a: &Segment, b: &Segment) -> Ordering {
        self.compare_places(a, b).then_with(|| a.id.cmp(&b.id))
    }

    /// Compares everything but the `_id`, which only MongoDB knows how to compare where it is no text.
    #[must_use]
    pub fn compare_places(self, a: &Segment, b: &Segment) -> Ordering {
        let index = missing_last(a.index, b.index);
        let start = missing_last(a.start_ms, b.start_ms);
        match self {
            Self::Index => index.then(start),
            Self::Start => start.then(index),
        }
    }
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
    /// How often the segments were changed, all together; absent where none was.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub edits: u64,
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

impl Summary {
    /// Which version of the session's segments it is of.
    #[must_use]
    pub fn version(&self) -> TranscriptVersion {
        TranscriptVersion { segments: self.segments, edits: self.edits }
    }
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
        Segment { id: id.into(), index, start_ms, ..Segment::default() }
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
        shuffled.sort_by(|a, b| Order::Index.compare(a, b));
        assert_eq!(shuffled, ordered);
    }

    #[test]
    fn a_call_by_start_is_ordered_by_start_then_index_then_id() {
        let ordered = [
            segment("z", Some(9), Some(-5)),
            segment("y", Some(1), Some(7)),
            segment("b", Some(2), Some(7)),
            segment("c", Some(2), Some(7)),
            segment("a", None, Some(7)),
            segment("x", Some(0), Some(8)),
        ];
        let mut shuffled = ordered.clone();
        shuffled.reverse();
        shuffled.swap(1, 4);
        shuffled.sort_by(|a, b| Order::Start.compare(a, b));
        assert_eq!(shuffled, ordered);
    }

    #[test]
    fn a_call_is_by_start_where_each_start_is_on_the_sessions_clock() {
        let marked = |start_ms| Segment { on_session_clock: true, ..segment("a", Some(1), start_ms) };
        assert_eq!(Order::of(&[marked(Some(3)), marked(Some(0))]), Order::Start);
        assert_eq!(Order::of(&[]), Order::Index);
        assert_eq!(Order::of(&[marked(Some(3)), segment("b", Some(2), Some(4))]), Order::Index, "one is unmarked");
        assert_eq!(Order::of(&[marked(Some(3)), marked(None)]), Order::Index, "a mark without a start says nothing");
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
