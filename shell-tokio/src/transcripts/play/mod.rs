//! `play`: acts as the transcriber. Saves and publishes the segments of recorded transcripts and ends their calls, at once
//! or as they were spoken, and on request as a transcriber does on a bad day.

mod file;
mod timeline;

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use async_nats::jetstream::{
    Context,
    context::{GetStreamError, GetStreamErrorKind},
};
use futures::StreamExt;
use mongodb::{
    Database,
    bson::{Document, doc, serialize_to_document},
};
use thiserror::Error;
use tokio::time::Instant;
use transcript_client::mongodb::error_codes;
use transcript_core::{
    contract::{SEGMENTS_COLLECTION, TRANSCRIPTION_STREAM},
    ids::Session,
};
use transcript_publishing::{PublishError, Publisher, SegmentMessage, SessionEnded};

pub use self::file::{BadLine, Transcript};
use self::timeline::{Action, Mishaps, Step, timeline};
use crate::cli::PlayArgs;

/// Most documents in one update command; together with [`BATCH_BYTES`] it keeps a command below MongoDB's bound of 48 MB.
const BATCH_DOCUMENTS: usize = 1000;
const BATCH_BYTES: usize = 8 * 1024 * 1024;
/// MongoDB's answer where two upserts of one `_id` met; the next one finds the document and replaces it.
const DUPLICATE_KEY: i32 = 11000;
/// How often such an upsert is done again.
const UPSERT_ROUNDS: usize = 5;

/// Plays the files one after another and hands what became of each session to `each`, when its file is played.
///
/// Playing a file twice is harmless: segments replace themselves, and repeated messages are known by their ids.
///
/// # Errors
///
/// A file with a bad line is not played at all, nor are those after it. Everything else can leave a file played in part;
/// playing it again completes it.
pub async fn play(
    js: &Context,
    db: &Database,
    args: &PlayArgs,
    mut each: impl FnMut(&PlayedSession) -> io::Result<()>,
) -> Result<(), PlayError> {
    if let Err(e) = js.get_stream(TRANSCRIPTION_STREAM).await {
        return Err(if is_not_found(&e) { PlayError::NoStream } else { PlayError::Stream(e) });
    }
    let player = Player { publisher: Publisher::new(js.clone()), db: db.clone() };
    for path in &args.files {
        for played in player.play(path, args).await? {
            each(&played).map_err(PlayError::Output)?;
        }
    }
    Ok(())
}

/// What became of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlayedSession {
    /// The session.
    pub session: Session,
    /// Segments in the store, late ones included.
    pub saved: usize,
    /// Segments that were published.
    pub published: usize,
    /// Segments that the end of the call announced.
    pub announced: u64,
    /// Segments that were saved after the end of the call was published.
    pub late: usize,
    /// Segments that were never saved.
    pub lost: usize,
}

impl fmt::Display for PlayedSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { session, saved, published, announced, late, lost } = self;
        write!(
            f,
            "{} {} saved={saved} published={published} announced={announced} late={late} lost={lost}",
            crate::transcripts::show::harmless(&session.conversation_id),
            crate::transcripts::show::harmless(&session.session_id),
        )
    }
}

/// Why a transcript was not played, or not to its end.
#[derive(Debug, Error)]
pub enum PlayError {
    /// The streams are not there.
    #[error("there is no stream {TRANSCRIPTION_STREAM}: create it with `transcript-processor setup`")]
    NoStream,
    /// The stream cannot be asked for.
    #[error("cannot ask for the stream {TRANSCRIPTION_STREAM}; `transcript-processor setup` tells what is wrong")]
    Stream(#[source] GetStreamError),
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file has no line of a call.
    #[error("{}: no call in it", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A line of the file is none of a transcript.
    #[error("{}:{}", path.display(), line.number)]
    BadLine {
        /// The file.
        path: PathBuf,
        /// The first bad line.
        #[source]
        line: BadLine,
    },
    /// A segment cannot be written as a document.
    #[error("cannot write a segment as a document")]
    Document(#[from] mongodb::bson::error::Error),
    /// MongoDB did not save segments.
    #[error("cannot save segments in {SEGMENTS_COLLECTION}")]
    Save(#[from] mongodb::error::Error),
    /// MongoDB saved some segments, and refused others.
    #[error("MongoDB refused to save {refused} segments: {first}")]
    Refused {
        /// How many.
        refused: usize,
        /// The reason given for the first.
        first: String,
    },
    /// A message was not published.
    #[error("cannot publish")]
    Publish(#[from] PublishError),
    /// The outcome cannot be printed.
    #[error("cannot print what was played")]
    Output(#[source] io::Error),
}

struct Player {
    publisher: Publisher,
    db: Database,
}

impl Player {
    async fn play(&self, path: &Path, args: &PlayArgs) -> Result<Vec<PlayedSession>, PlayError> {
        let text = tokio::fs::read_to_string(path)
            .await
            .map_err(|source| PlayError::Read { path: path.to_owned(), source })?;
        let transcript = Transcript::parse(&text).map_err(|line| PlayError::BadLine { path: path.to_owned(), line })?;
        if transcript.sessions.is_empty() {
            return Err(PlayError::Empty { path: path.to_owned() });
        }
        let mishaps = Mishaps { late: args.late, late_by: args.late_by, lose: args.lose };
        let (steps, played) = timeline(&transcript, args.speed, mishaps);
        let start = Instant::now();
        for steps in steps.chunk_by(|a, b| a.due == b.due && a.action.is_like(&b.action)) {
            if let Some(first) = steps.first() {
                tokio::time::sleep_until(start + first.due).await;
            }
            self.act(steps, args.repeat_end).await?;
        }
        Ok(played)
    }

    /// Does steps of one kind together.
    async fn act(&self, steps: &[Step<'_>], repeat_end: bool) -> Result<(), PlayError> {
        let mut to_save = Vec::new();
        let mut to_publish = Vec::new();
        let mut ended = Vec::new();
        for step in steps {
            match &step.action {
                Action::Segment { segment, saved } => {
                    to_publish.push(*segment);
                    to_save.extend(saved.then_some(*segment));
                }
                Action::LateSave(segment) => to_save.push(*segment),
                Action::End(end) => ended.push(end),
            }
        }
        self.save(&to_save).await?;
        self.publisher.segments(to_publish).await?;
        self.end(&ended).await?;
        if repeat_end {
            self.end(&ended).await?;
        }
        Ok(())
    }

    async fn end(&self, ended: &[&SessionEnded]) -> Result<(), PlayError> {
        const AT_ONCE: usize = 256;
        let mut publishing =
            futures::stream::iter(ended.iter().copied()).map(|end| self.publisher.session_ended(end)).buffered(AT_ONCE);
        while let Some(published) = publishing.next().await {
            published?;
        }
        Ok(())
    }

    async fn save(&self, segments: &[&SegmentMessage]) -> Result<(), PlayError> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        for segment in segments {
            let size = segment.text.len() + segment.speaker.as_ref().map_or(0, String::len);
            if batch.len() == BATCH_DOCUMENTS || bytes + size > BATCH_BYTES {
                self.upsert(std::mem::take(&mut batch)).await?;
                bytes = 0;
            }
            bytes += size;
            batch.push(upsert_of(segment)?);
        }
        self.upsert(batch).await
    }

    async fn upsert(&self, mut batch: Vec<Document>) -> Result<(), PlayError> {
        for _ in 0..UPSERT_ROUNDS {
            if batch.is_empty() {
                return Ok(());
            }
            let command = doc! {
                "update": SEGMENTS_COLLECTION,
                "updates": batch.clone(),
                "ordered": false,
                "writeConcern": { "w": "majority", "j": true },
            };
            let answer = self.db.run_command(command).await?;
            batch = to_repeat(&answer, batch)?;
        }
        if batch.is_empty() { Ok(()) } else { Err(refused(batch.len(), "other writers kept getting in between")) }
    }
}

/// The upserts that met another of the same `_id`; any other refusal is an error.
fn to_repeat(answer: &Document, batch: Vec<Document>) -> Result<Vec<Document>, PlayError> {
    let errors: Vec<&Document> =
        answer.get_array("writeErrors").into_iter().flatten().filter_map(|error| error.as_document()).collect();
    if let Some(error) = errors.iter().find(|error| error.get_i32("code").ok() != Some(DUPLICATE_KEY)) {
        return Err(refused(errors.len(), &reason(error)));
    }
    if let Ok(error) = answer.get_document("writeConcernError") {
        return Err(refused(batch.len(), &reason(error)));
    }
    let places: std::collections::BTreeSet<usize> = errors
        .iter()
        .filter_map(|error| error.get_i32("index").ok())
        .filter_map(|place| usize::try_from(place).ok())
        .collect();
    Ok(batch.into_iter().enumerate().filter(|(place, _)| places.contains(place)).map(|(_, upsert)| upsert).collect())
}

/// Why, without the server's text, which can quote what it refuses.
fn reason(error: &Document) -> String {
    error.get_i32("code").map_or_else(|_| "no code is given".to_owned(), error_codes::describe)
}

fn refused(refused: usize, first: &str) -> PlayError {
    PlayError::Refused { refused, first: first.to_owned() }
}

fn upsert_of(segment: &SegmentMessage) -> Result<Document, PlayError> {
    let mut document = doc! { "_id": segment.id() };
    document.extend(serialize_to_document(segment)?);
    Ok(doc! { "q": { "_id": segment.id() }, "u": document, "upsert": true })
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the client's enum grows, and one variant is asked about")]
fn is_not_found(error: &GetStreamError) -> bool {
    match error.kind() {
        GetStreamErrorKind::JetStream(e) => e.error_code() == async_nats::jetstream::ErrorCode::STREAM_NOT_FOUND,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment() -> SegmentMessage {
        SegmentMessage {
            session: Session::new("c", "s").unwrap(),
            index: 3,
            speaker: None,
            text: "Hi".into(),
            start_ms: Some(1),
            end_ms: None,
        }
    }

    #[test]
    fn a_segments_document_is_that_of_the_contract() {
        let upsert = upsert_of(&segment()).unwrap();
        assert_eq!(
            upsert,
            doc! {
                "q": { "_id": "s:3" },
                "u": { "_id": "s:3", "conversationId": "c", "sessionId": "s", "index": 3_i64, "text": "Hi", "startMs": 1_i64 },
                "upsert": true,
            }
        );
    }

    #[test]
    fn only_upserts_that_met_another_are_repeated() {
        let batch = vec![doc! { "n": 0 }, doc! { "n": 1 }, doc! { "n": 2 }];
        assert_eq!(to_repeat(&doc! { "ok": 1 }, batch.clone()).unwrap(), [] as [Document; 0]);
        let met = doc! { "writeErrors": [{ "index": 1, "code": 11000, "errmsg": "E11000" }] };
        assert_eq!(to_repeat(&met, batch.clone()).unwrap(), [doc! { "n": 1 }]);
        let bad =
            doc! { "writeErrors": [{ "index": 0, "code": 11000 }, { "index": 1, "code": 121, "errmsg": "invalid" }] };
        assert_eq!(
            to_repeat(&bad, batch.clone()).unwrap_err().to_string(),
            format!("MongoDB refused to save 2 segments: {}", error_codes::describe(121))
        );
        let unsure = doc! { "writeConcernError": { "code": 64, "errmsg": "waiting for replication timed out" } };
        assert!(to_repeat(&unsure, batch).is_err());
    }
}
