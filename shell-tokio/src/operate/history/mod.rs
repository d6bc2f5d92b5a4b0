//! What the stream holds, read in its order up to a place, and messages that are put into it again.
//!
//! # A message that no client can take
//!
//! A publisher can store a message whose header block breaks the connection of every client that a consumer hands it to,
//! or that looks like a status of the server. Reading goes past it: a consumer hands out what it can, and where nothing
//! comes the next message is read by itself, as `raw` describes. After such a message the next ones are read in that way
//! too, because it is seldom alone.

mod raw;
mod reader;

use std::{error::Error, ops::RangeInclusive};

use async_nats::{
    HeaderMap,
    datetime::DateTime,
    header::{NATS_EXPECTED_STREAM, NATS_MESSAGE_ID},
    jetstream::{
        Context, ErrorCode, consumer,
        context::{ConsumerInfoErrorKind, GetStreamErrorKind},
        stream::{self, Stream},
    },
};
use bytes::Bytes;
use thiserror::Error;
pub use transcript_client::jetstream::raw::{Flaw, RawMessage};
use transcript_client::jetstream::{self, raw::Which};
use transcript_core::{
    WallTime,
    contract::{
        ATTEMPTS_HEADER, CONSUMER, DEAD_LETTER_SUBJECT, DISCARDED_SUBJECT, DeadLetter, PROCESSOR_HEADER, REASON_HEADER,
        REDRIVE_OF_HEADER, SESSION_ENDED_SUBJECT, STREAM_SEQUENCE_HEADER, TIME_HEADER, TRANSCRIPTION_STREAM,
        discard_id,
    },
};

pub use self::reader::Reader;
use crate::service::clock::Clock;

/// The stream of the transcripts.
#[derive(Debug, Clone)]
pub struct History {
    js: Context,
    stream: Stream<()>,
}

/// Which part of the stream is read.
#[derive(Debug, Clone)]
pub struct Reading {
    /// The subjects; no two of them may overlap.
    pub subjects: Vec<String>,
    /// Where it starts.
    pub start: Start,
    /// The last place that is read.
    pub through: u64,
    /// What is read of each message.
    pub parts: Parts,
}

/// Where a reading starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With the first message.
    First,
    /// With the first message that was stored at this moment or later.
    At(WallTime),
    /// With the first message behind this place.
    Behind(u64),
}

/// What is read of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parts {
    /// Everything.
    Whole,
    /// Everything but the payload.
    Headers,
}

/// A message of the stream.
#[derive(Debug)]
pub struct Record {
    /// Its place.
    pub sequence: u64,
    /// When it was stored.
    pub stored_at: WallTime,
    /// Its subject.
    pub subject: String,
    /// The payload; empty where only the headers are read.
    pub payload: Bytes,
    /// Why no client can take it from a consumer.
    pub flaw: Option<Flaw>,
    headers: Headers,
}

#[derive(Debug)]
enum Headers {
    Parsed(Option<HeaderMap>),
    Raw(jetstream::Headers),
}

impl Record {
    /// The first value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        match &self.headers {
            Headers::Parsed(headers) => headers.as_ref()?.get(name).map(|value| value.as_str()),
            Headers::Raw(headers) => jetstream::header(headers, name),
        }
    }
}

impl From<RawMessage> for Record {
    fn from(message: RawMessage) -> Self {
        Self {
            sequence: message.sequence,
            stored_at: message.stored_at,
            flaw: message.flaw(),
            headers: Headers::Raw(message.headers()),
            subject: message.subject,
            payload: message.payload.into(),
        }
    }
}

/// What the stream made of an end that was published again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Republished {
    /// Its place; that of the first one where this one was a duplicate.
    pub sequence: u64,
    /// Whether it was published within the duplicate window before.
    pub before: bool,
}

/// Why the stream could not be read or written to.
#[derive(Debug, Error)]
pub enum HistoryError {
    /// There is none.
    #[error("there is no stream {TRANSCRIPTION_STREAM}: create it with `transcript-processor setup`")]
    NoStream,
    /// JetStream did not do what it was asked.
    #[error("JetStream did not {action}: check the server and this user's permissions, then repeat the command")]
    Request {
        /// What was asked for.
        action: &'static str,
        /// Why.
        source: Box<dyn Error + Send + Sync>,
    },
    /// Messages that are in the stream do not come.
    #[error(
        "the stream {TRANSCRIPTION_STREAM} gives no message behind {last} although it has some: repeat the command"
    )]
    Silent {
        /// The last message that came.
        last: u64,
    },
}

fn refused<E: Error + Send + Sync + 'static>(action: &'static str) -> impl FnOnce(E) -> HistoryError {
    move |source| HistoryError::Request { action, source: Box::new(source) }
}

impl History {
    /// The stream, if it is there.
    ///
    /// # Errors
    ///
    /// There is none, or JetStream does not answer.
    #[expect(clippy::wildcard_enum_match_arm, reason = "the client's enum grows, and one variant is asked about")]
    pub async fn open(js: &Context) -> Result<Self, HistoryError> {
        let found = js.get_stream(TRANSCRIPTION_STREAM).await.map_err(|error| match error.kind() {
            GetStreamErrorKind::JetStream(answer) if answer.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                HistoryError::NoStream
            }
            _ => refused("describe the stream")(error),
        });
        found?;
        let stream = js.get_stream_no_info(TRANSCRIPTION_STREAM).await.map_err(refused("give access to the stream"))?;
        Ok(Self { js: js.clone(), stream })
    }

    /// The place of the stream's last message, also where that was removed.
    ///
    /// # Errors
    ///
    /// JetStream does not answer.
    pub async fn last_sequence(&self) -> Result<u64, HistoryError> {
        let info = self.stream.get_info().await.map_err(refused("describe the stream"))?;
        Ok(info.state.last_sequence)
    }

    /// The places of the first message that the stream still holds and of its last one.
    ///
    /// # Errors
    ///
    /// JetStream does not answer.
    pub async fn kept(&self) -> Result<RangeInclusive<u64>, HistoryError> {
        let info = self.stream.get_info().await.map_err(refused("describe the stream"))?;
        Ok(info.state.first_sequence..=info.state.last_sequence)
    }

    /// What the stream is set to, and what it holds.
    ///
    /// # Errors
    ///
    /// JetStream does not answer.
    pub async fn info(&self) -> Result<stream::Info, HistoryError> {
        self.stream.get_info().await.map_err(refused("describe the stream"))
    }

    /// The first message of this subject behind a place; `None` where there is none.
    ///
    /// # Errors
    ///
    /// JetStream does not answer.
    pub async fn next(&self, behind: u64, subject: &str) -> Result<Option<RawMessage>, HistoryError> {
        raw::get(&self.js, &Which::NextOf(behind.saturating_add(1), subject.to_owned())).await
    }

    /// The last message of this subject; `None` where there is none.
    ///
    /// # Errors
    ///
    /// JetStream does not answer.
    pub async fn last(&self, subject: &str) -> Result<Option<RawMessage>, HistoryError> {
        raw::get(&self.js, &Which::LastOf(subject.to_owned())).await
    }

    /// The state of the consumer that all processors share; `None` where there is none.
    ///
    /// # Errors
    ///
    /// JetStream does not answer.
    pub async fn consumer(&self) -> Result<Option<consumer::Info>, HistoryError> {
        match self.stream.consumer_info(CONSUMER).await {
            Ok(info) => Ok(Some(info)),
            Err(error) if error.kind() == ConsumerInfoErrorKind::NotFound => Ok(None),
            Err(error) => Err(refused("describe the consumer")(error)),
        }
    }

    /// One message; `None` where there is none, or none any more.
    ///
    /// # Errors
    ///
    /// JetStream does not answer.
    pub async fn message(&self, sequence: u64) -> Result<Option<RawMessage>, HistoryError> {
        raw::get(&self.js, &Which::Sequence(sequence)).await
    }

    /// Publishes an end again, made from the message at the place `source`, to whose trace it belongs; 0 where there is
    /// none. It is known again by `id` within the stream's duplicate window.
    ///
    /// # Errors
    ///
    /// JetStream refuses it or does not answer; it may have been stored all the same, which repeating it tells.
    pub async fn republish(&self, source: u64, id: String, payload: Bytes) -> Result<Republished, HistoryError> {
        let original = if source > 0 { self.message(source).await? } else { None };
        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_ID, id);
        headers.insert(NATS_EXPECTED_STREAM, TRANSCRIPTION_STREAM);
        headers.insert(REDRIVE_OF_HEADER, source.to_string());
        carry_trace(&mut headers, original.as_ref());
        self.store(SESSION_ENDED_SUBJECT, headers, payload).await
    }

    /// Publishes an end that is made from no other message. It is known again by `id` within the stream's duplicate window.
    ///
    /// # Errors
    ///
    /// See [`History::republish`].
    pub async fn publish_end(&self, id: String, payload: Bytes) -> Result<Republished, HistoryError> {
        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_ID, id);
        headers.insert(NATS_EXPECTED_STREAM, TRANSCRIPTION_STREAM);
        self.store(SESSION_ENDED_SUBJECT, headers, payload).await
    }

    /// Publishes the record that the dead letter `dead_letter` about the end at `about` was discarded.
    ///
    /// # Errors
    ///
    /// See [`History::republish`].
    pub async fn record_discard(&self, dead_letter: u64, about: u64, payload: Bytes) -> Result<(), HistoryError> {
        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_ID, discard_id(dead_letter));
        headers.insert(NATS_EXPECTED_STREAM, TRANSCRIPTION_STREAM);
        headers.insert(STREAM_SEQUENCE_HEADER, about.to_string());
        self.store(DISCARDED_SUBJECT, headers, payload).await.map(drop)
    }

    /// Keeps the end at this place, which can never be processed, as a dead letter; nothing happens where it is kept already
    /// within the duplicate window, or is gone.
    ///
    /// # Errors
    ///
    /// See [`History::republish`].
    pub async fn keep_as_dead_letter(&self, place: u64, reason: &str) -> Result<(), HistoryError> {
        let Some(message) = self.message(place).await? else { return Ok(()) };
        let at = Clock::start().wall();
        let dead_letter =
            DeadLetter { stream_sequence: place, attempts: 1, reason: reason.to_owned(), at, ended: None };
        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_ID, dead_letter.message_id());
        headers.insert(NATS_EXPECTED_STREAM, TRANSCRIPTION_STREAM);
        headers.insert(STREAM_SEQUENCE_HEADER, place.to_string());
        headers.insert(ATTEMPTS_HEADER, dead_letter.attempts.to_string());
        headers.insert(REASON_HEADER, dead_letter.reason);
        headers.insert(TIME_HEADER, at.as_millis().to_string());
        headers.insert(PROCESSOR_HEADER, "audit --repair");
        carry_trace(&mut headers, Some(&message));
        let payload = Bytes::from(message.payload);
        let payload = payload.slice(..payload.len().min(self.room()));
        self.store(DEAD_LETTER_SUBJECT, headers, payload).await.map(drop)
    }

    async fn store(
        &self,
        subject: &'static str,
        headers: HeaderMap,
        payload: Bytes,
    ) -> Result<Republished, HistoryError> {
        let action = "take the message";
        let sent = self.js.publish_with_headers(subject, headers, payload).await;
        let ack = sent.map_err(refused(action))?.await.map_err(refused(action))?;
        Ok(Republished { sequence: ack.sequence, before: ack.duplicate })
    }

    /// The largest payload that the server takes together with some headers.
    #[must_use]
    pub fn room(&self) -> usize {
        const HEADERS: usize = 4096;
        self.js.client().server_info().max_payload.saturating_sub(HEADERS)
    }

    /// Removes one message.
    ///
    /// # Errors
    ///
    /// JetStream refuses it or does not answer.
    pub async fn remove(&self, sequence: u64) -> Result<(), HistoryError> {
        self.stream.delete_message(sequence).await.map(drop).map_err(refused("remove the message"))
    }
}

/// What is made from a message belongs to its trace.
fn carry_trace(headers: &mut HeaderMap, original: Option<&RawMessage>) {
    let Some(context) = original.and_then(|message| jetstream::trace_context(&message.headers())) else { return };
    for (name, value) in context.headers() {
        headers.insert(&*name, value);
    }
}

fn wall_time(time: DateTime) -> WallTime {
    let millis = time.unix_timestamp_nanos() / 1_000_000;
    WallTime::from_millis(i64::try_from(millis).unwrap_or(0))
}
