//! Transcripts in files, one JSON object a line.

use std::collections::{BTreeMap, btree_map::Entry};

use serde::Deserialize;
use thiserror::Error;
use transcript_core::{
    event::MAX_COUNT,
    ids::{IdError, Session},
};

use transcript_publishing::{PublishError, SegmentMessage};
use transcript_trace::json_error;

/// The sessions of one file, in the order in which they appear in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transcript {
    pub(super) sessions: Vec<TranscriptSession>,
    /// In the order of the file, each with the place of its session among [`Self::sessions`].
    pub(super) segments: Vec<(usize, SegmentMessage)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TranscriptSession {
    pub session: Session,
    /// What the file says that the end announces; otherwise it is the number of the session's segments.
    pub announced: Option<u64>,
}

impl Transcript {
    /// Reads a whole file. Empty lines are left out, and so are fields that the contract does not know.
    ///
    /// # Errors
    ///
    /// The first line that is neither a segment nor an announcement.
    pub fn parse(text: &str) -> Result<Self, BadLine> {
        let mut reader = Reader::default();
        for (line, number) in text.lines().zip(1..) {
            if !line.trim().is_empty() {
                reader.take(line, number).map_err(|reason| BadLine { number, reason })?;
            }
        }
        Ok(reader.transcript)
    }
}

/// A line that is neither a segment nor an announcement.
#[derive(Debug, Error)]
#[error("{reason}")]
pub struct BadLine {
    /// Counted from 1.
    pub number: usize,
    reason: Reason,
}

#[derive(Debug, Error)]
enum Reason {
    #[error("{}", without_place(.0))]
    Json(serde_json::Error),
    #[error("{0}")]
    Id(#[from] IdError),
    #[error("{0}")]
    MessageId(#[from] PublishError),
    #[error("neither a segment (with index and text) nor an announcement (with publishedSegments)")]
    Neither,
    #[error("index {0} is too large")]
    IndexTooLarge(u64),
    #[error("index {index} of session {session:?} is on line {before} already")]
    Repeated { index: u64, session: String, before: usize },
    #[error("publishedSegments {0} is more than {MAX_COUNT}, which every processor refuses")]
    AnnouncedTooMany(u64),
    #[error("publishedSegments of session {session:?} is on line {before} already")]
    AnnouncedTwice { session: String, before: usize },
}

/// A file's error is told with the file's line; the place within the line is all that JSON adds.
fn without_place(error: &serde_json::Error) -> String {
    let text = json_error(error);
    match text.rsplit_once(" at line 1 column ") {
        Some((what, column)) => format!("{what} (column {column})"),
        None => text,
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    conversation_id: String,
    session_id: String,
    index: Option<u64>,
    speaker: Option<String>,
    text: Option<String>,
    start_ms: Option<i64>,
    end_ms: Option<i64>,
    published_segments: Option<u64>,
}

#[derive(Default)]
struct Reader {
    transcript: Transcript,
    places: BTreeMap<Session, usize>,
    /// Where each segment stands; the session's id alone names it, whatever the conversation.
    lines: BTreeMap<(std::sync::Arc<str>, u64), usize>,
    announcements: BTreeMap<Session, usize>,
}

impl Reader {
    fn take(&mut self, line: &str, number: usize) -> Result<(), Reason> {
        let line: Line = serde_json::from_str(line).map_err(Reason::Json)?;
        let session = Session::new(&line.conversation_id, &line.session_id)?;
        match (line.index, line.text, line.published_segments) {
            (Some(index), Some(text), _) => {
                let Line { speaker, start_ms, end_ms, .. } = line;
                self.segment(SegmentMessage { session, index, speaker, text, start_ms, end_ms }, number)
            }
            (None, None, Some(announced)) => self.announcement(session, announced, number),
            (None, _, _) | (_, None, _) => Err(Reason::Neither),
        }
    }

    fn segment(&mut self, segment: SegmentMessage, number: usize) -> Result<(), Reason> {
        if i64::try_from(segment.index).is_err() {
            return Err(Reason::IndexTooLarge(segment.index));
        }
        segment.check_id()?;
        match self.lines.entry((segment.session.session_id.clone(), segment.index)) {
            Entry::Occupied(before) => {
                return Err(Reason::Repeated {
                    index: segment.index,
                    session: segment.session.session_id.to_string(),
                    before: *before.get(),
                });
            }
            Entry::Vacant(free) => free.insert(number),
        };
        let place = self.place(&segment.session);
        self.transcript.segments.push((place, segment));
        Ok(())
    }

    fn announcement(&mut self, session: Session, announced: u64, number: usize) -> Result<(), Reason> {
        if announced > MAX_COUNT {
            return Err(Reason::AnnouncedTooMany(announced));
        }
        let place = self.place(&session);
        match self.announcements.entry(session) {
            Entry::Occupied(before) => {
                return Err(Reason::AnnouncedTwice {
                    session: before.key().session_id.to_string(),
                    before: *before.get(),
                });
            }
            Entry::Vacant(free) => free.insert(number),
        };
        if let Some(played) = self.transcript.sessions.get_mut(place) {
            played.announced = Some(announced);
        }
        Ok(())
    }

    fn place(&mut self, session: &Session) -> usize {
        *self.places.entry(session.clone()).or_insert_with(|| {
            self.transcript.sessions.push(TranscriptSession { session: session.clone(), announced: None });
            self.transcript.sessions.len() - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> (usize, String) {
        let bad = Transcript::parse(text).unwrap_err();
        (bad.number, bad.to_string())
    }

    #[test]
    fn sessions_may_be_interleaved_and_announced() {
        let transcript = Transcript::parse(concat!(
            r#"{"conversationId":"c","sessionId":"a","index":0,"text":"x","speaker":"A","startMs":1,"endMs":2,"more":[]}"#,
            "\n\n",
            r#"{"conversationId":"c","sessionId":"b","index":0,"text":"y"}"#,
            "\r\n",
            r#"{"conversationId":"c","sessionId":"a","index":1,"text":""}"#,
            "\n",
            r#"{"conversationId":"c","sessionId":"silent","publishedSegments":0}"#,
        ))
        .unwrap();
        let sessions: Vec<_> = transcript.sessions.iter().map(|s| (&*s.session.session_id, s.announced)).collect();
        assert_eq!(sessions, [("a", None), ("b", None), ("silent", Some(0))]);
        let segments: Vec<_> = transcript.segments.iter().map(|(place, s)| (*place, s.id())).collect();
        assert_eq!(segments, [(0, "a:0".into()), (1, "b:0".into()), (0, "a:1".into())]);
        assert_eq!(transcript.segments[0].1.end_ms, Some(2));
    }

    #[test]
    fn a_bad_line_is_named_with_its_reason() {
        let good = r#"{"conversationId":"c","sessionId":"s","index":0,"text":"hush"}"#;
        let too_many = r#"{"conversationId":"c","sessionId":"s","publishedSegments":9007199254740992}"#;
        let refused = "publishedSegments 9007199254740992 is more than 9007199254740991, which every processor refuses";
        assert_eq!(refusal(too_many), (1, refused.into()));
        for (bad, reason) in [
            ("hush", "expected value (column 1)"),
            (r#"{"sessionId":"s","index":1,"text":"hush"}"#, "missing field `conversationId` (column 41)"),
            (r#"{"conversationId":"c","sessionId":"","index":1,"text":"hush"}"#, "sessionId is empty"),
            (
                r#"{"conversationId":"c","sessionId":"s","index":-1,"text":"hush"}"#,
                "a value is not of its type: u64 is expected (column 48)",
            ),
            (
                r#"{"conversationId":"c","sessionId":"s","index":9223372036854775808,"text":"hush"}"#,
                "index 9223372036854775808 is too large",
            ),
            (
                r#"{"conversationId":"c","sessionId":"s","index":1}"#,
                "neither a segment (with index and text) nor an announcement (with publishedSegments)",
            ),
            (
                r#"{"conversationId":"d","sessionId":"s","index":0,"text":"hush"}"#,
                "index 0 of session \"s\" is on line 1 already",
            ),
            (
                r#"{"conversationId":"c","sessionId":" s","index":0,"text":"hush"}"#,
                "\" s:0\" cannot be a message id: it begins with a space or holds a control character",
            ),
        ] {
            assert_eq!(refusal(&format!("{good}\n{bad}\n")), (2, reason.to_owned()));
        }
        let end = r#"{"conversationId":"c","sessionId":"s","publishedSegments":1}"#;
        assert_eq!(refusal(&format!("{end}\n{end}")).1, "publishedSegments of session \"s\" is on line 1 already");
    }
}
