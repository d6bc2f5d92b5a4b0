//! A reading under way: from a consumer while that hands messages over, and one message at a time past those that no client can
//! take.

use std::{pin::Pin, sync::atomic::Ordering, time::Duration};

use async_nats::{
    datetime::from_nanos,
    jetstream::consumer::{
        DeliverPolicy,
        pull::{Ordered, OrderedConfig},
    },
};
use futures::StreamExt;
use tokio::time::timeout;
use transcript_core::WallTime;

use super::{
    Flaw, Headers, History, HistoryError, Parts, RawMessage, Reading, Record, Start, Which, raw, refused, wall_time,
};

/// How long a message is waited for before the connection is looked at.
const SLICE: Duration = Duration::from_millis(200);
/// After so many slices without a message the next message is read by itself.
const QUIET_SLICES: u32 = 10;
/// How often that finds a message that the consumer should have handed out before the reading is given up.
const LOOKS: u32 = 15;
/// How many messages are read by themselves after one that no client can take from a consumer.
const BY_THEMSELVES: u32 = 256;

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

/// A consumer that hands the messages over. JetStream forgets it half a minute after the last request (async-nats 0.51,
/// `OrderedConfig`), so that who reads needs no permission to delete consumers.
struct Feed {
    expected: u64,
    /// The place behind which it begins. A new consumer tells it as that of the last message that it has handed over.
    start: u64,
    /// How often the client had connected when it began.
    connects: u64,
    messages: Pin<Box<Ordered>>,
}

impl History {
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
        let (expected, start) = (info.num_pending, info.delivered.stream_sequence);
        let connects = self.connects();
        let messages = consumer.messages().await.map_err(refused(action))?;
        Ok(Feed { expected, start, connects, messages: Box::pin(messages) })
    }

    /// How often the client has connected.
    fn connects(&self) -> u64 {
        self.js.client().statistics().connects.load(Ordering::Relaxed)
    }
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
            match self.next_of_feed().await? {
                Some(record) => return Ok(Some(record)),
                None if self.over => {}
                None => self.look().await?,
            }
        }
        Ok(None)
    }

    /// The next message that the consumer hands over; `None` where it hands over none for a while, or cannot.
    async fn next_of_feed(&mut self) -> Result<Option<Record>, HistoryError> {
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
        self.feed = None;
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
                let which = Which::NextOf(behind.saturating_add(1), subject.clone());
                let next = raw::get(&self.history.js, &which).await?;
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
