//! Transcripts of calls, as files and as documents.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use thiserror::Error;
use transcript_core::ids::{IdError, Session};
use transcript_publishing::SegmentMessage;

use crate::cargo;

/// A call: its session and its segments in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The session.
    pub session: Session,
    /// The segments, as a transcript's file has them line by line; a silent call has none.
    pub segments: Vec<SegmentMessage>,
}

impl Call {
    /// A call in which `segments` are said by two speakers in turn.
    ///
    /// # Errors
    ///
    /// An id is none.
    pub fn of(conversation_id: &str, session_id: &str, segments: u32) -> Result<Self, IdError> {
        let session = Session::new(conversation_id, session_id)?;
        let segments = (0..segments).map(|number| SegmentMessage {
            session: session.clone(),
            index: number.into(),
            speaker: Some(if number % 2 == 0 { "Ana M." } else { "Tom O'Neil" }.to_owned()),
            text: format!("This is what was said as number {number}."),
            start_ms: Some(i64::from(number) * 2_000),
            end_ms: Some(i64::from(number) * 2_000 + 1_500),
        });
        Ok(Self { session: session.clone(), segments: segments.collect() })
    }

    /// Reads a file of `fixtures/transcripts/`: one segment a line. A silent call's file is the one line
    /// `{"conversationId", "sessionId", "publishedSegments": 0}`.
    ///
    /// # Errors
    ///
    /// The file cannot be read, has a line of another form, or has lines of several sessions, or none.
    pub fn read(file: &Path) -> Result<Self, CallError> {
        let wrong = |line: usize, problem: String| CallError::Line { file: file.to_owned(), line: line + 1, problem };
        let text = fs::read_to_string(file).map_err(|source| CallError::Read { file: file.to_owned(), source })?;
        let mut segments = Vec::<SegmentMessage>::new();
        for (number, line) in text.lines().enumerate() {
            if let (0, Ok(Silent { session, published_segments: 0 })) = (number, serde_json::from_str(line)) {
                return Ok(Self { session, segments });
            }
            let segment: SegmentMessage =
                serde_json::from_str(line).map_err(|error| wrong(number, error.to_string()))?;
            if segments.first().is_some_and(|first| first.session != segment.session) {
                return Err(wrong(number, "the line is of another session than the first".to_owned()));
            }
            segments.push(segment);
        }
        let session = segments.first().map(|first| first.session.clone());
        Ok(Self { session: session.ok_or_else(|| wrong(0, "the file is empty".to_owned()))?, segments })
    }
}

/// A file of `fixtures/`, by its path in there.
#[must_use]
pub fn fixture(path: &str) -> PathBuf {
    cargo::workspace().join("fixtures").join(path)
}

/// Why a file is no call.
#[derive(Debug, Error)]
pub enum CallError {
    /// The file cannot be read.
    #[error("{} cannot be read", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line is none of a call.
    #[error("{}:{line}: {problem}", file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Silent {
    #[serde(flatten)]
    session: Session,
    published_segments: u64,
}
