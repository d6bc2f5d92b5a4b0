//! `play`: acts as the transcriber. Saves and publishes the segments of recorded transcripts and ends their calls, at once
//! or as they were spoken, and on request as a transcriber does on a bad day.

mod timeline;
pub mod via;

use std::{fmt, io, path::PathBuf};

use async_nats::jetstream::{
    Context,
    context::{GetStreamError, GetStreamErrorKind},
};
use futures::StreamExt;
use mongodb::{
    Database,
    bson::{Document, doc, serialize_to_document},
};
use serde::Serialize;
use thiserror::Error;
use tokio::time::Instant;
use transcript_client::mongodb::error_codes;
use transcript_core::{
    contract::{SEGMENTS_COLLECTION, TRANSCRIPTION_STREAM},
    ids::Session,
};
use transcript_publishing::{PublishError, Publisher, SegmentMessage, SessionEnded};

use self::timeline::{Action, Mishaps, Step, timeline};
use crate::{
    cli::PlayArgs,
    terminal::harmless,
    transcripts::source::{Transcript, shown},
};

/// Most documents in one update command; together with [`BATCH_BYTES`] it keeps a command below MongoDB's bound of 48 MB.
const BATCH_DOCUMENTS: usize = 1000;
const BATCH_BYTES: usize = 8 * 1024 * 1024;
/// MongoDB's answer where two upserts of one `_id` met; the next one finds the document and replaces it.
const DUPLICATE_KEY: i32 = 11000;
/// How often such an upsert is done again.
const UPSERT_ROUNDS: usize = 5;

/// Whether the mishaps that are asked for can happen to every call that somebody spoke in.
///
/// # Errors
///
/// A call with fewer segments than are to be late and lost.
pub fn check(transcripts: &[Transcript], args: &PlayArgs) -> Result<(), PlayError> {
    let wanted = args.late.saturating_add(args.lose);
    for transcript in transcripts {
        for (told, segments) in transcript.sessions.iter().zip(transcript.by_session()) {
            if !segments.is_empty() && segments.len() < wanted {
                let session = told.session.session_id.to_string();
                let (late, lose) = (args.late, args.lose);
                return Err(PlayError::TooFew {
                    path: transcript.path.clone(),
                    session,
                    segments: segments.len(),
                    late,
                    lose,
                });
            }
        }
    }
    Ok(())
}

/// Plays transcripts one after another and hands what became of each session to `each`, when its transcript is played.
///
/// Playing a transcript twice is harmless: segments replace themselves, and repeated messages are known by their ids.
///
/// # Errors
///
/// Nothing is played where the stream is missing, or a segment is larger than the servers take. Everything else can leave a
/// transcript played in part; playing it again completes it.
pub async fn play(
    js: &Context,
    db: &Database,
    args: &PlayArgs,
    transcripts: &[Transcript],
    mut each: impl FnMut(&PlayedSession) -> io::Result<()>,
) -> Result<(), PlayError> {
    let stream = js
        .get_stream(TRANSCRIPTION_STREAM)
        .await
        .map_err(|e| if is_not_found(&e) { PlayError::NoStream } else { PlayError::Stream(e) })?;
    let limit = largest_message(js, stream.cached_info().config.max_message_size);
    transcripts.iter().try_for_each(|transcript| check_sizes(transcript, limit))?;
    let player = Player { publisher: Publisher::new(js.clone()), db: db.clone() };
    for transcript in transcripts {
        for played in player.play(transcript, args).await? {
            each(&played).map_err(PlayError::Output)?;
        }
    }
    Ok(())
}

/// What a message may have of headers and payload together, in bytes: the server's bound, or the stream's where it is lower.
fn largest_message(js: &Context, of_the_stream: i32) -> usize {
    let of_the_server = js.client().max_payload();
    // The stream has no bound of its own where it says zero or less.
    match usize::try_from(of_the_stream) {
        Ok(bound) if bound > 0 => bound.min(of_the_server),
        Ok(_) | Err(_) => of_the_server,
    }
}

/// A segment that would be stored and could not be published is refused before anything is stored.
fn check_sizes(transcript: &Transcript, limit: usize) -> Result<(), PlayError> {
    for segment in &transcript.segments {
        let size = segment.message.message_size()?;
        if size > limit {
            let (path, line) = (transcript.path.clone(), segment.line);
            return Err(PlayError::TooLarge { path, line, size, limit });
        }
    }
    Ok(())
}

/// What became of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlayedSession {
    /// The session.
    #[serde(flatten)]
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
            harmless(&session.conversation_id),
            harmless(&session.session_id),
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
    /// A call has too few segments for what is to go wrong.
    #[error(
        "{}: session {session:?} has {segments} segments, too few for --late {late} and --lose {lose} together",
        shown(path)
    )]
    TooFew {
        /// The file.
        path: PathBuf,
        /// The session.
        session: String,
        /// How many it has.
        segments: usize,
        /// How many are to be saved late.
        late: usize,
        /// How many are never to be saved.
        lose: usize,
    },
    /// A segment is larger than what can be published.
    #[error(
        "{}: line {line}: the segment makes a message of {size} bytes, and the stream takes {limit}; shorten it, or raise \
         max_payload of the NATS servers",
        shown(path)
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// Bytes of the message.
        size: usize,
        /// Bytes that a message may have.
        limit: usize,
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
    async fn play(&self, transcript: &Transcript, args: &PlayArgs) -> Result<Vec<PlayedSession>, PlayError> {
        let mishaps = Mishaps { late: args.late, late_by: args.late_by, lose: args.lose };
        let (steps, played) = timeline(transcript, args.speed, mishaps);
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
