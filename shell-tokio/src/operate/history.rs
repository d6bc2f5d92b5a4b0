//! What the stream holds, read in its order up to a place, and messages that are put into it again.

use std::{error::Error, pin::Pin, time::Duration};

use async_nats::{
    HeaderMap, Message,
    datetime::from_nanos,
    header::{NATS_EXPECTED_STREAM, NATS_MESSAGE_ID},
    jetstream::{
        Context, ErrorCode,
        consumer::{
            self, DeliverPolicy,
            pull::{Ordered, OrderedConfig},
        },
        context::{ConsumerInfoErrorKind, GetStreamErrorKind},
        message::StreamMessage,
        stream::{LastRawMessageErrorKind, RawMessageError, Stream},
    },
};
use bytes::Bytes;
use futures::StreamExt;
use thiserror::Error;
use tokio::time::timeout;
use transcript_core::{
    WallTime,
    contract::{
        CONSUMER, DISCARDED_SUBJECT, REDRIVE_OF_HEADER, SESSION_ENDED_SUBJECT, STREAM_SEQUENCE_HEADER,
        TRANSCRIPTION_STREAM, discard_id,
    },
};

/// After so long without a message it is looked whether there is one to wait for.
const QUIET: Duration = Duration::from_secs(2);
/// How often that is looked for in vain before the reading is given up.
const LOOKS: u32 = 15;

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
    /// The message.
    pub message: Message,
}

impl Record {
    /// The first value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.message.headers.as_ref()?.get(name).map(|value| value.as_str())
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

    /// Starts to read.
    ///
    /// # Errors
    ///
    /// JetStream does not answer, or refuses the consumer that the reading needs.
    pub async fn read(&self, reading: Reading) -> Result<Reader<'_>, HistoryError> {
        let action = "give out its messages";
        let deliver_policy = match reading.start {
            Start::First => DeliverPolicy::All,
            Start::At(moment) => {
                let nanos = i128::from(moment.as_millis()) * 1_000_000;
                let start_time = from_nanos(nanos).map_err(|source| HistoryError::Request { action, source })?;
                DeliverPolicy::ByStartTime { start_time }
            }
            Start::Behind(sequence) => DeliverPolicy::ByStartSequence { start_sequence: sequence.saturating_add(1) },
        };
        let config = OrderedConfig {
            description: Some("reads the stream for transcript-processor".to_owned()),
            filter_subjects: reading.subjects.clone(),
            headers_only: reading.parts == Parts::Headers,
            deliver_policy,
            ..OrderedConfig::default()
        };
        let consumer = self.stream.create_consumer(config).await.map_err(refused(action))?;
        let info = consumer.cached_info();
        let (name, expected) = (info.name.clone(), info.num_pending);
        let messages = consumer.messages().await.map_err(refused(action))?;
        let last = if let Start::Behind(sequence) = reading.start { sequence } else { 0 };
        Ok(Reader {
            history: self,
            over: expected == 0 || reading.through <= last,
            reading,
            name,
            messages: Box::pin(messages),
            last,
            expected,
        })
    }

    /// One message; `None` where there is none, or none any more.
    ///
    /// # Errors
    ///
    /// JetStream does not answer.
    pub async fn message(&self, sequence: u64) -> Result<Option<StreamMessage>, HistoryError> {
        found(self.stream.get_raw_message(sequence).await)
    }

    /// Publishes an end again, made from the message at the place `source`; 0 where there is none. It is known again by
    /// `id` within the stream's duplicate window.
    ///
    /// # Errors
    ///
    /// JetStream refuses it or does not answer; it may have been stored all the same, which repeating it tells.
    pub async fn republish(&self, source: u64, id: String, payload: Bytes) -> Result<Republished, HistoryError> {
        self.publish(SESSION_ENDED_SUBJECT, (REDRIVE_OF_HEADER, source), id, payload).await
    }

    /// Publishes the record that the dead letter `dead_letter` about the end at `about` was discarded.
    ///
    /// # Errors
    ///
    /// See [`History::republish`].
    pub async fn record_discard(&self, dead_letter: u64, about: u64, payload: Bytes) -> Result<(), HistoryError> {
        let header = (STREAM_SEQUENCE_HEADER, about);
        self.publish(DISCARDED_SUBJECT, header, discard_id(dead_letter), payload).await.map(drop)
    }

    async fn publish(
        &self,
        subject: &'static str,
        (header, place): (&'static str, u64),
        id: String,
        payload: Bytes,
    ) -> Result<Republished, HistoryError> {
        let action = "take the message";
        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_ID, id);
        headers.insert(NATS_EXPECTED_STREAM, TRANSCRIPTION_STREAM);
        headers.insert(header, place.to_string());
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

/// A reading under way.
pub struct Reader<'a> {
    history: &'a History,
    reading: Reading,
    name: String,
    messages: Pin<Box<Ordered>>,
    last: u64,
    over: bool,
    expected: u64,
}

impl Reader<'_> {
    /// How many messages there were to read when it started, those behind the last place included.
    #[must_use]
    pub fn expected(&self) -> u64 {
        self.expected
    }

    /// The next message; `None` behind the last.
    ///
    /// # Errors
    ///
    /// JetStream does not answer, or gives no more messages although it has them.
    pub async fn next(&mut self) -> Result<Option<Record>, HistoryError> {
        let mut looks = 0;
        while !self.over {
            match timeout(QUIET, self.messages.next()).await {
                Ok(Some(Ok(message))) => {
                    let info = message
                        .info()
                        .map_err(|source| HistoryError::Request { action: "number a message", source })?;
                    let sequence = info.stream_sequence;
                    let millis = info.published.unix_timestamp_nanos() / 1_000_000;
                    let stored_at = WallTime::from_millis(i64::try_from(millis).unwrap_or(0));
                    self.over = info.pending == 0 || sequence >= self.reading.through;
                    if self.is_wanted(sequence, stored_at) {
                        self.last = sequence;
                        return Ok(Some(Record { sequence, stored_at, message: message.message }));
                    }
                }
                Ok(Some(Err(error))) => return Err(refused("give out its messages")(error)),
                Ok(None) => return Err(HistoryError::Silent { last: self.last }),
                Err(_elapsed) => {
                    // Those that it was about to give out may have been removed meanwhile.
                    self.over = !self.is_more().await?;
                    looks += 1;
                    if looks > LOOKS {
                        return Err(HistoryError::Silent { last: self.last });
                    }
                }
            }
        }
        Ok(None)
    }

    /// Ends the reading. JetStream forgets it by itself within a minute, where it is not told.
    pub async fn finish(self) {
        if let Err(error) = self.history.stream.delete_consumer(&self.name).await {
            tracing::debug!(%error, "the consumer of a reading is left to expire");
        }
    }

    /// The client, where it has to make its consumer anew before the first message came, starts with the first message of
    /// the stream (async-nats 0.51, `recreate_consumer_stream`).
    fn is_wanted(&self, sequence: u64, stored_at: WallTime) -> bool {
        let started = match self.reading.start {
            Start::At(moment) => stored_at >= moment,
            Start::First | Start::Behind(_) => true,
        };
        started && sequence > self.last && sequence <= self.reading.through
    }

    async fn is_more(&self) -> Result<bool, HistoryError> {
        let behind = self.last.saturating_add(1);
        for subject in &self.reading.subjects {
            let next = found(self.history.stream.get_first_raw_message_by_subject(subject, behind).await)?;
            if next.is_some_and(|message| message.sequence <= self.reading.through) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The client tells only some of the server's answers "no message found" as such.
pub(crate) fn if_there(
    message: Result<StreamMessage, RawMessageError>,
) -> Result<Option<StreamMessage>, RawMessageError> {
    match message {
        Ok(message) => Ok(Some(message)),
        Err(error) => match error.kind() {
            LastRawMessageErrorKind::NoMessageFound => Ok(None),
            LastRawMessageErrorKind::JetStream(answer) if answer.error_code() == ErrorCode::NO_MESSAGE_FOUND => {
                Ok(None)
            }
            LastRawMessageErrorKind::JetStream(_)
            | LastRawMessageErrorKind::InvalidSubject
            | LastRawMessageErrorKind::Other => Err(error),
        },
    }
}

fn found(message: Result<StreamMessage, RawMessageError>) -> Result<Option<StreamMessage>, HistoryError> {
    if_there(message).map_err(refused("give a message"))
}
