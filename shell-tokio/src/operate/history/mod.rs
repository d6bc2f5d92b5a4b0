//! What the stream holds, read in its order up to a place, and messages that are put into it again.
//!
//! # A message that no client can take
//!
//! A publisher can store a message whose header block breaks the connection of every client that a consumer hands it to,
//! or that looks like a status of the server. Reading goes past it: a consumer hands out what it can, and where nothing
//! comes the next message is read by itself, as [`raw`] describes. After such a message the next ones are read in that way
//! too, because it is seldom alone.

mod raw;

use std::{error::Error, ops::RangeInclusive, pin::Pin, sync::atomic::Ordering, time::Duration};

use async_nats::{
    HeaderMap,
    datetime::{DateTime, from_nanos},
    header::{NATS_EXPECTED_STREAM, NATS_MESSAGE_ID},
    jetstream::{
        Context, ErrorCode,
        consumer::{
            self, DeliverPolicy,
            pull::{Ordered, OrderedConfig},
        },
        context::{ConsumerInfoErrorKind, GetStreamErrorKind},
        stream::Stream,
    },
};
use bytes::Bytes;
use futures::StreamExt;
use thiserror::Error;
use tokio::time::timeout;
use transcript_core::{
    WallTime,
    contract::{
        ATTEMPTS_HEADER, CONSUMER, DEAD_LETTER_SUBJECT, DISCARDED_SUBJECT, DeadLetter, PROCESSOR_HEADER, REASON_HEADER,
        REDRIVE_OF_HEADER, SESSION_ENDED_SUBJECT, STREAM_SEQUENCE_HEADER, TIME_HEADER, TRANSCRIPTION_STREAM,
        discard_id,
    },
};

use crate::service::clock::Clock;

use self::raw::Wanted;
pub use self::raw::{Flaw, RawMessage};

/// How long a message is waited for before the connection is looked at.
const SLICE: Duration = Duration::from_millis(200);
/// After so many slices without a message the next message is read by itself.
const QUIET_SLICES: u32 = 10;
/// How often that finds a message that the consumer should have handed out before the reading is given up.
const LOOKS: u32 = 15;
/// How many messages are read by themselves after one that no client can take from a consumer.
const BY_THEMSELVES: u32 = 256;

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
    Raw(Vec<(String, String)>),
}

impl Record {
    /// The first value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        match &self.headers {
            Headers::Parsed(headers) => headers.as_ref()?.get(name).map(|value| value.as_str()),
            Headers::Raw(headers) => headers.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str()),
        }
    }
}

impl From<RawMessage> for Record {
    fn from(message: RawMessage) -> Self {
        Self {
            sequence: message.sequence,
            stored_at: message.stored_at,
            flaw: message.flaw(),
            headers: Headers::Raw(message.headers().collect()),
            subject: message.subject,
            payload: message.payload,
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
        let last = if let Start::Behind(sequence) = reading.start { sequence } else { 0 };
        let feed = self.feed(&reading, last).await?;
        let (expected, last) = (feed.expected, last.max(feed.start));
        Ok(Reader {
            history: self,
            over: expected == 0 || reading.through <= last,
            ahead: Vec::new(),
            by_themselves: 0,
            looks: 0,
            reading,
            feed: Some(feed),
            last,
            expected,
        })
    }

    /// A consumer for what is to be read behind `last`.
    async fn feed(&self, reading: &Reading, last: u64) -> Result<Feed, HistoryError> {
        let action = "give out its messages";
        let deliver_policy = match reading.start {
            Start::At(moment) if last == 0 => {
                let nanos = i128::from(moment.as_millis()) * 1_000_000;
                let start_time = from_nanos(nanos).map_err(|source| HistoryError::Request { action, source })?;
                DeliverPolicy::ByStartTime { start_time }
            }
            Start::First if last == 0 => DeliverPolicy::All,
            Start::First | Start::At(_) | Start::Behind(_) => {
                DeliverPolicy::ByStartSequence { start_sequence: last.saturating_add(1) }
            }
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
        let (name, expected, start) = (info.name.clone(), info.num_pending, info.delivered.stream_sequence);
        let connects = self.connects();
        let messages = consumer.messages().await.map_err(refused(action))?;
        Ok(Feed { name, expected, start, connects, messages: Box::pin(messages) })
    }

    /// How often the client has connected.
    fn connects(&self) -> u64 {
        self.js.client().statistics().connects.load(Ordering::Relaxed)
    }

    /// One message; `None` where there is none, or none any more.
    ///
    /// # Errors
    ///
    /// JetStream does not answer.
    pub async fn message(&self, sequence: u64) -> Result<Option<RawMessage>, HistoryError> {
        raw::get(&self.js, Wanted::At(sequence)).await
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
        let payload = message.payload.slice(..message.payload.len().min(self.room()));
        self.store(DEAD_LETTER_SUBJECT, headers, payload).await.map(drop)
    }

    async fn publish(
        &self,
        subject: &'static str,
        (header, place): (&'static str, u64),
        id: String,
        payload: Bytes,
    ) -> Result<Republished, HistoryError> {
        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_ID, id);
        headers.insert(NATS_EXPECTED_STREAM, TRANSCRIPTION_STREAM);
        headers.insert(header, place.to_string());
        self.store(subject, headers, payload).await
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

/// A reading under way.
pub struct Reader<'a> {
    history: &'a History,
    reading: Reading,
    /// Where the messages come from; nothing while they are read by themselves.
    feed: Option<Feed>,
    /// How many more are read by themselves.
    by_themselves: u32,
    /// The next message of each subject, where it is known; the inner nothing says that there is none.
    ahead: Vec<Option<Option<RawMessage>>>,
    /// How often the feed has been silent although there were messages, without one in between.
    looks: u32,
    last: u64,
    over: bool,
    expected: u64,
}

/// A consumer that hands the messages over.
struct Feed {
    name: String,
    expected: u64,
    /// The place behind which it begins. A new consumer tells it as that of the last message that it has handed over.
    start: u64,
    /// How often the client had connected when it began.
    connects: u64,
    messages: Pin<Box<Ordered>>,
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
        while !self.over {
            if self.by_themselves > 0 {
                return self.next_by_itself().await;
            }
            if self.feed.is_none() {
                self.feed = Some(self.history.feed(&self.reading, self.last).await?);
            }
            match self.from_feed().await? {
                Some(record) => return Ok(Some(record)),
                None if self.over => {}
                None => self.look().await?,
            }
        }
        Ok(None)
    }

    /// The next message that the consumer hands over; `None` where it hands over none for a while, or cannot.
    async fn from_feed(&mut self) -> Result<Option<Record>, HistoryError> {
        let Some(feed) = &mut self.feed else { return Ok(None) };
        let mut slices = 0;
        while slices < QUIET_SLICES {
            let message = match timeout(SLICE, feed.messages.next()).await {
                Ok(Some(Ok(message))) => message,
                // It may be a message that the client took for a status of the server.
                Ok(Some(Err(error))) => {
                    tracing::debug!(%error, "a reading of the stream was interrupted");
                    return Ok(None);
                }
                Ok(None) => return Ok(None),
                Err(_elapsed) if self.history.connects() != feed.connects => return Ok(None),
                Err(_elapsed) => {
                    slices += 1;
                    continue;
                }
            };
            let info = message.info().map_err(|source| HistoryError::Request { action: "number a message", source })?;
            let (sequence, stored_at) = (info.stream_sequence, wall_time(info.published));
            self.over = info.pending == 0 || sequence >= self.reading.through;
            // The client, where it has to make its consumer anew before the first message came, starts with the first
            // message of the stream (async-nats 0.51, `recreate_consumer_stream`).
            if self.reading.wants(sequence, stored_at, self.last) {
                (self.last, self.looks) = (sequence, 0);
                let message = message.message;
                return Ok(Some(Record {
                    sequence,
                    stored_at,
                    subject: message.subject.to_string(),
                    payload: message.payload,
                    flaw: None,
                    headers: Headers::Parsed(message.headers),
                }));
            }
            if self.over {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Finds out why the consumer hands nothing over: there is nothing more, or the next message is one that it cannot hand
    /// over, or it has to be asked again.
    async fn look(&mut self) -> Result<(), HistoryError> {
        self.end_feed().await;
        match self.peek().await? {
            // Those that it was about to give out may have been removed meanwhile.
            None => self.over = true,
            Some(flaw) if flaw.is_some() => self.by_themselves = BY_THEMSELVES,
            Some(_) => {
                self.looks += 1;
                if self.looks > LOOKS {
                    return Err(HistoryError::Silent { last: self.last });
                }
            }
        }
        Ok(())
    }

    async fn next_by_itself(&mut self) -> Result<Option<Record>, HistoryError> {
        let Some(flaw) = self.peek().await? else {
            self.over = true;
            return Ok(None);
        };
        self.by_themselves = if flaw.is_some() { BY_THEMSELVES } else { self.by_themselves - 1 };
        let message = self.nearest().and_then(|place| self.ahead.get_mut(place)?.take().flatten());
        self.last = message.as_ref().map_or(self.last, |message| message.sequence);
        self.looks = 0;
        if self.by_themselves == 0 {
            self.ahead.clear();
        }
        Ok(message.map(Record::from))
    }

    /// The flaw of the next message; the outer nothing says that there is no message.
    async fn peek(&mut self) -> Result<Option<Option<Flaw>>, HistoryError> {
        self.ahead.resize(self.reading.subjects.len(), None);
        for (subject, ahead) in self.reading.subjects.iter().zip(&mut self.ahead) {
            let mut behind = self.last;
            while ahead.as_ref().is_none_or(|known| known.as_ref().is_some_and(|next| next.sequence <= behind)) {
                let next = raw::get(&self.history.js, Wanted::From(behind.saturating_add(1), subject)).await?;
                // A reading from a moment on passes over what is older.
                if let (Some(next), Start::At(moment)) = (&next, self.reading.start)
                    && next.stored_at < moment
                {
                    behind = next.sequence;
                    continue;
                }
                *ahead = Some(next);
            }
        }
        let next = self.nearest().and_then(|place| self.ahead.get(place)?.as_ref()?.as_ref());
        Ok(next.filter(|next| next.sequence <= self.reading.through).map(RawMessage::flaw))
    }

    /// Which subject has the message that comes first.
    fn nearest(&self) -> Option<usize> {
        let known = self.ahead.iter().enumerate();
        let places = known.filter_map(|(place, ahead)| Some((ahead.as_ref()?.as_ref()?.sequence, place)));
        places.min().map(|(_, place)| place)
    }

    /// Ends the reading. JetStream forgets it by itself within a minute, where it is not told.
    pub async fn finish(mut self) {
        self.end_feed().await;
    }

    async fn end_feed(&mut self) {
        let Some(Feed { name, messages, .. }) = self.feed.take() else { return };
        drop(messages);
        if let Err(error) = self.history.stream.delete_consumer(&name).await {
            tracing::debug!(%error, "the consumer of a reading is left to expire");
        }
    }
}

impl Reading {
    fn wants(&self, sequence: u64, stored_at: WallTime, last: u64) -> bool {
        let started = match self.start {
            Start::At(moment) => stored_at >= moment,
            Start::First | Start::Behind(_) => true,
        };
        started && sequence > last && sequence <= self.through
    }
}

fn wall_time(time: DateTime) -> WallTime {
    let millis = time.unix_timestamp_nanos() / 1_000_000;
    WallTime::from_millis(i64::try_from(millis).unwrap_or(0))
}
