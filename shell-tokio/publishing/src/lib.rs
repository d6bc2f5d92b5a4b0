//! For applications that publish to the transcript processor: segments, the ends of calls, and recordings.
//!
//! ```no_run
//! use transcript_publishing::{Publisher, SegmentMessage, Session, SessionEnded};
//!
//! # async fn publish() -> Result<(), Box<dyn std::error::Error>> {
//! let client = async_nats::connect("nats://localhost:4222").await?;
//! let publisher = Publisher::new(async_nats::jetstream::new(client));
//! let session = Session::new("room-7", "monday")?;
//!
//! publisher.segment(&SegmentMessage::new(session.clone(), 0, "Shall we begin?")).await?;
//! publisher.session_ended(&SessionEnded { session, published_segments: 1, reprocess: 0 }).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Every publish waits for the stream's acknowledgement. **After a failure, publish the same message again.** A repeated
//! segment has the same `Nats-Msg-Id`, so the stream stores it once within its duplicate window. A repeated end of a call
//! changes nothing: the processor finds the summary that it has stored. A recording's event has no id and is stored again.
//!
//! An application that must not wait, nor fail where NATS is away, logs the events of its recordings with
//! [`RecordingEvents`], which publishes them beside it.
//!
//! The publisher of segments also stores them in MongoDB, from where the processor reads them, *before* it publishes the end
//! of the call. This package does not do that.
//!
//! The programs in `examples/` run against a local nats-server: `cargo run -p transcript-publishing --example publish_call`.

mod recording_events;

use std::{collections::VecDeque, str::FromStr};

use async_nats::{
    HeaderMap, HeaderValue,
    header::NATS_MESSAGE_ID,
    jetstream::{
        Context,
        context::{PublishAckFuture, PublishError as JetStreamError, PublishErrorKind},
    },
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;
use transcript_contract::{SEGMENT_SUBJECT, SESSION_ENDED_SUBJECT};
pub use transcript_contract::{
    WallTime,
    event::SessionEnded,
    ids::{IdError, Session},
};

pub use self::recording_events::{DropReason, RecordingCounts, RecordingEvents};

/// The longest name of a recording's event, in bytes. nats-server takes subjects of a line of 4096 bytes.
pub const MAX_EVENT_BYTES: usize = 256;
/// How many published messages may wait for their acknowledgement at the same time.
const MAX_UNACKNOWLEDGED: usize = 1024;

/// Publishes messages of the data contract and waits until the stream has them.
#[derive(Debug, Clone)]
pub struct Publisher {
    js: Context,
}

impl Publisher {
    /// A publisher that uses the connection of `js`.
    #[must_use]
    pub fn new(js: Context) -> Self {
        Self { js }
    }

    /// Publishes one segment, with the id `<sessionId>:<index>`.
    ///
    /// # Errors
    ///
    /// See [`PublishError`].
    pub async fn segment(&self, segment: &SegmentMessage) -> Result<Published, PublishError> {
        acknowledged(self.send_segment(segment).await?).await
    }

    /// Publishes segments in their order, without waiting for one before the next is sent; at most 1024 wait for their
    /// acknowledgement at a time. What was published is given in the same order.
    ///
    /// # Errors
    ///
    /// The first failure, see [`PublishError`]. Which of the others arrived is then unknown; publishing all of them again is
    /// harmless.
    pub async fn segments<'a>(
        &self,
        segments: impl IntoIterator<Item = &'a SegmentMessage>,
    ) -> Result<Vec<Published>, PublishError> {
        let mut published = Vec::new();
        let mut waiting = VecDeque::new();
        for segment in segments {
            if waiting.len() == MAX_UNACKNOWLEDGED
                && let Some(oldest) = waiting.pop_front()
            {
                published.push(acknowledged(oldest).await?);
            }
            waiting.push_back(self.send_segment(segment).await?);
        }
        for ack in waiting {
            published.push(acknowledged(ack).await?);
        }
        Ok(published)
    }

    /// Publishes that a call is over.
    ///
    /// # Errors
    ///
    /// See [`PublishError`].
    pub async fn session_ended(&self, ended: &SessionEnded) -> Result<Published, PublishError> {
        let payload = to_json(ended)?;
        acknowledged(self.send(SESSION_ENDED_SUBJECT.to_owned(), HeaderMap::new(), payload).await?).await
    }

    /// Publishes `recording.<event>`, as it happened at `at`; a `ts` in the data takes the place of that time.
    ///
    /// # Errors
    ///
    /// An event that cannot be part of a subject, and see [`PublishError`].
    pub async fn recording(
        &self,
        event: &str,
        at: WallTime,
        data: Map<String, Value>,
    ) -> Result<Published, PublishError> {
        let subject = recording_subject(event)?;
        let payload = to_json(&RecordingEvent::new(at, data))?;
        acknowledged(self.send(subject, HeaderMap::new(), payload).await?).await
    }

    async fn send_segment(&self, segment: &SegmentMessage) -> Result<PublishAckFuture, PublishError> {
        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_ID, header_value(&segment.id())?);
        self.send(SEGMENT_SUBJECT.to_owned(), headers, to_json(segment)?).await
    }

    async fn send(
        &self,
        subject: String,
        headers: HeaderMap,
        payload: Bytes,
    ) -> Result<PublishAckFuture, PublishError> {
        self.js.publish_with_headers(subject, headers, payload).await.map_err(PublishError::from_jetstream)
    }
}

/// The payload of `transcription.segment`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SegmentMessage {
    /// The call.
    #[serde(flatten)]
    pub session: Session,
    /// The place in the call, counted from 0.
    pub index: u64,
    /// Who speaks.
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

impl SegmentMessage {
    /// A segment of which neither speaker nor times are known.
    #[must_use]
    pub fn new(session: Session, index: u64, text: impl Into<String>) -> Self {
        Self { session, index, speaker: None, text: text.into(), start_ms: None, end_ms: None }
    }

    /// `<sessionId>:<index>`: the segment's `Nats-Msg-Id`, and the `_id` of its document.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}:{}", self.session.session_id, self.index)
    }

    /// Checks that the segment's id can be a message id.
    ///
    /// # Errors
    ///
    /// [`PublishError::Id`]: then [`Publisher::segment`] would fail in the same way.
    pub fn check_id(&self) -> Result<(), PublishError> {
        header_value(&self.id()).map(drop)
    }

    /// How many bytes its message has, headers included: a server's `max_payload` bounds it.
    ///
    /// # Errors
    ///
    /// [`PublishError::Json`]: then [`Publisher::segment`] would fail in the same way.
    pub fn message_size(&self) -> Result<usize, PublishError> {
        // `NATS/1.0`, one header line, and an empty line, each ended by CRLF.
        const AROUND_ID: usize = "NATS/1.0\r\nNats-Msg-Id: \r\n\r\n".len();
        Ok(to_json(self)?.len() + AROUND_ID + self.id().len())
    }
}

/// The payload of `recording.<event>`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct RecordingEvent(Map<String, Value>);

impl RecordingEvent {
    /// `{ts, …data}`, with `ts` in milliseconds since the Unix epoch; a `ts` in the data takes the place of `at`.
    #[must_use]
    pub fn new(at: WallTime, mut data: Map<String, Value>) -> Self {
        data.entry("ts").or_insert_with(|| at.as_millis().into());
        Self(data)
    }
}

/// What the stream made of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// The message's place in the stream; that of the first one if this is a duplicate.
    pub sequence: u64,
    /// Whether the stream had a message of the same id within its duplicate window, and so did not store this one.
    pub duplicate: bool,
}

/// Why a message was not published, or is not known to be.
#[derive(Debug, Error)]
pub enum PublishError {
    /// No stream takes the subject.
    #[error("no stream takes the message: create the streams with `transcript-processor setup`")]
    NoStream(#[source] JetStreamError),
    /// The id would not arrive as it is: nats-server drops spaces before a header's value, and a control character can end
    /// it.
    #[error("{0:?} cannot be a message id: it begins with a space or holds a control character")]
    Id(String),
    /// The name of the recording's event cannot be part of a subject.
    #[error(
        "{0:?} cannot be an event: it must be one or more words joined by dots, without spaces, `*` and `>`, of at most \
         {MAX_EVENT_BYTES} bytes"
    )]
    Event(String),
    /// The payload cannot be written as JSON.
    #[error("the message cannot be written as JSON")]
    Json(#[from] serde_json::Error),
    /// The server refused the message, or did not answer in time; after a silence it may have been stored all the same.
    #[error("the message was not acknowledged")]
    NotAcknowledged(#[source] JetStreamError),
}

impl PublishError {
    fn from_jetstream(error: JetStreamError) -> Self {
        match error.kind() {
            PublishErrorKind::StreamNotFound => Self::NoStream(error),
            PublishErrorKind::WrongLastMessageId
            | PublishErrorKind::WrongLastSequence
            | PublishErrorKind::TimedOut
            | PublishErrorKind::BrokenPipe
            | PublishErrorKind::MaxAckPending
            | PublishErrorKind::MaxPayloadExceeded
            | PublishErrorKind::Other => Self::NotAcknowledged(error),
        }
    }
}

async fn acknowledged(ack: PublishAckFuture) -> Result<Published, PublishError> {
    let ack = ack.await.map_err(PublishError::from_jetstream)?;
    Ok(Published { sequence: ack.sequence, duplicate: ack.duplicate })
}

fn to_json(payload: &impl Serialize) -> Result<Bytes, PublishError> {
    Ok(serde_json::to_vec(payload)?.into())
}

/// Checks an id as [`PublishError::Id`] says.
fn header_value(id: &str) -> Result<HeaderValue, PublishError> {
    if id.starts_with(' ') || id.contains(|c: char| c.is_ascii_control()) {
        return Err(PublishError::Id(id.to_owned()));
    }
    HeaderValue::from_str(id).map_err(|_| PublishError::Id(id.to_owned()))
}

fn recording_subject(event: &str) -> Result<String, PublishError> {
    let is_word = |word: &str| {
        !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || c.is_control() || matches!(c, '*' | '>'))
    };
    if event.len() <= MAX_EVENT_BYTES && event.split('.').all(is_word) {
        Ok(format!("recording.{event}"))
    } else {
        Err(PublishError::Event(event.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn session() -> Session {
        Session::new("c", "s").unwrap()
    }

    #[test]
    fn messages_are_those_of_the_contract() {
        let mut segment = SegmentMessage::new(session(), 7, "Hi");
        assert_eq!(json!(segment), json!({ "conversationId": "c", "sessionId": "s", "index": 7, "text": "Hi" }));
        (segment.speaker, segment.start_ms, segment.end_ms) = (Some("A".into()), Some(1), Some(2));
        assert_eq!(
            json!(segment),
            json!({
                "conversationId": "c", "sessionId": "s", "index": 7, "speaker": "A", "text": "Hi", "startMs": 1, "endMs": 2,
            })
        );
        assert_eq!(segment.id(), "s:7");
        assert_eq!(
            json!(SessionEnded { session: session(), published_segments: 3, reprocess: 0 }),
            json!({ "conversationId": "c", "sessionId": "s", "publishedSegments": 3 })
        );
    }

    #[test]
    fn a_recordings_data_can_override_its_time() {
        let event = |data: Value| {
            let Value::Object(data) = data else { panic!("{data}") };
            let written = to_json(&RecordingEvent::new(WallTime::from_millis(5), data)).unwrap();
            serde_json::from_slice::<Value>(&written).unwrap()
        };
        assert_eq!(event(json!({ "url": "x" })), json!({ "ts": 5, "url": "x" }));
        assert_eq!(event(json!({ "ts": 9, "url": "x" })), json!({ "ts": 9, "url": "x" }));
    }

    #[test]
    fn an_id_that_a_header_would_change_is_refused() {
        assert_eq!(header_value("a b:1").unwrap().as_str(), "a b:1");
        for id in [" a:1", "a\r\nX: y:1", "a\0:1"] {
            assert!(matches!(header_value(id), Err(PublishError::Id(refused)) if refused == id), "{id:?}");
        }
    }

    #[test]
    fn an_event_must_fit_into_a_subject() {
        assert_eq!(recording_subject("track.started").unwrap(), "recording.track.started");
        assert!(recording_subject(&"a".repeat(MAX_EVENT_BYTES)).is_ok());
        let long = "a".repeat(MAX_EVENT_BYTES + 1);
        for event in ["", "a b", "a..b", ".a", "*", ">", "a.\n", &long] {
            assert!(
                matches!(recording_subject(event), Err(PublishError::Event(refused)) if refused == event),
                "{event:?}"
            );
        }
    }
}
