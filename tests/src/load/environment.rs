//! An environment: servers of their own, calls that have ended on them, and what the stream says of each.
//!
//! All times are those at which the server stored the messages, so that nothing is measured by somebody who is busy himself.

use std::{collections::BTreeMap, time::Duration};

use async_nats::jetstream::{self, consumer::pull::OrderedConfig};
use futures::{StreamExt, TryStreamExt, stream};
use mongodb::{
    Collection,
    bson::{Document, doc},
};
use serde::Deserialize;
use serde_json::{Value, json};
use transcript_core::{
    contract::{CONSUMER, PROCESSED_SUBJECT, SESSION_ENDED_SUBJECT, SUMMARIES_COLLECTION, TRANSCRIPTION_STREAM},
    summary::Segment,
};

use super::LoadTestError;
use crate::{wait::wait_until, world::TestWorld};

/// The words that are spoken.
const WORDS: [&str; 21] = [
    "so", "the", "plan", "for", "the", "quarter", "is", "to", "ship", "the", "summary", "page", "first", "and", "then",
    "look", "at", "the", "search", "box", "again",
];
/// Segments that are inserted by one command.
const INSERTED: usize = 5_000;
/// Ends of which the stream has not yet said that it has them.
const PUBLISHED: usize = 1_000;
/// The harness's mongod is small, for tests. A server that is load-tested has the cache and the oplog that one needs.
const CACHE: &str = "cache_size=1GB";
const OPLOG_MEGABYTES: f64 = 990.0;
/// How long anything on the way to a load test may take.
const WITHIN: Duration = Duration::from_secs(60);

/// A call to be stored and ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The session's id; that of the conversation is made from it.
    pub session: String,
    /// Segments.
    pub segments: usize,
}

/// Servers of their own.
#[derive(Debug)]
pub struct LoadEnvironment {
    /// Both servers.
    pub world: TestWorld,
}

/// What the stream says of one session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SessionTimes {
    /// When the end was stored, in nanoseconds since the Unix epoch.
    pub ended: Option<i128>,
    /// When the first notification was.
    pub announced: Option<i128>,
    /// How many notifications there are.
    pub notifications: usize,
}

impl SessionTimes {
    /// From the end to the notification.
    #[must_use]
    pub fn latency(&self) -> Option<Duration> {
        let nanos = self.announced?.checked_sub(self.ended?)?;
        u64::try_from(nanos).ok().map(Duration::from_nanos)
    }
}

/// What is stored of the sessions that were counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// Summaries.
    pub summaries: u64,
    /// Those of fewer segments than were published.
    pub incomplete: u64,
}

impl LoadEnvironment {
    /// New servers, with everything that the processor sets up on them.
    ///
    /// # Errors
    ///
    /// A server does not start or refuses something.
    pub async fn start() -> Result<Self, LoadTestError> {
        let world = TestWorld::start_with_own_mongod().await?;
        let admin = world.database().client().database("admin");
        admin.run_command(doc! { "setParameter": 1, "wiredTigerEngineRuntimeConfig": CACHE }).await?;
        admin.run_command(doc! { "replSetResizeOplog": 1, "size": OPLOG_MEGABYTES }).await?;
        world.processor("setup").run(WITHIN).await?;
        Ok(Self { world })
    }

    /// The versions of nats-server and mongod.
    ///
    /// # Errors
    ///
    /// mongod does not answer.
    pub async fn versions(&self) -> Result<(String, String), LoadTestError> {
        let mongod = self.world.database().run_command(doc! { "buildInfo": 1 }).await?;
        Ok((self.world.client.server_info().version, mongod.get_str("version")?.to_owned()))
    }

    /// Takes away the product's own consumer, for somebody who brings another.
    ///
    /// # Errors
    ///
    /// The server refuses it.
    pub async fn remove_consumer(&self) -> Result<(), LoadTestError> {
        self.stream().await?.delete_consumer(CONSUMER).await?;
        Ok(())
    }

    /// Stores the calls' segments.
    ///
    /// # Errors
    ///
    /// The store refuses one.
    pub async fn store(&self, calls: &[Call]) -> Result<(), LoadTestError> {
        let segments = self.world.segments();
        let all = calls.iter().flat_map(|call| (0..call.segments).map(|index| document(&call.session, index)));
        let batches = stream::iter(all).chunks(INSERTED);
        let inserted = batches.map(|batch| async { segments.insert_many(batch).ordered(false).await.map(drop) });
        Ok(inserted.buffer_unordered(2).try_collect().await?)
    }

    /// Ends the calls, in this order, without waiting for one before the next.
    ///
    /// # Errors
    ///
    /// The stream does not take one.
    pub async fn end(&self, calls: &[Call]) -> Result<(), LoadTestError> {
        let published = stream::iter(calls).map(|call| async move {
            let payload = json!({
                "conversationId": conversation(&call.session), "sessionId": call.session, "publishedSegments": call.segments,
            });
            let sent = self.world.jetstream.publish(SESSION_ENDED_SUBJECT, payload.to_string().into()).await?;
            sent.await.map(drop).map_err(LoadTestError::from)
        });
        published.buffer_unordered(PUBLISHED).try_collect().await
    }

    /// How many notifications the stream has.
    ///
    /// # Errors
    ///
    /// The server does not answer.
    pub async fn announced(&self) -> Result<u64, LoadTestError> {
        let subject = format!("STREAM.INFO.{TRANSCRIPTION_STREAM}");
        let asked = json!({ "subjects_filter": PROCESSED_SUBJECT });
        let info: Value = self.world.jetstream.request(subject, &asked).await?;
        Ok(info["state"]["subjects"][PROCESSED_SUBJECT].as_u64().unwrap_or(0))
    }

    /// Everybody's consumers of ends.
    ///
    /// # Errors
    ///
    /// The server does not answer.
    pub async fn consumers(&self) -> Result<Vec<jetstream::consumer::Info>, LoadTestError> {
        let all: Vec<jetstream::consumer::Info> = self.stream().await?.consumers().try_collect().await?;
        Ok(all.into_iter().filter(|consumer| consumer.config.filter_subject == SESSION_ENDED_SUBJECT).collect())
    }

    /// Waits until every end is acknowledged.
    ///
    /// # Errors
    ///
    /// One was not in time.
    pub async fn acknowledged(&self) -> Result<(), LoadTestError> {
        wait_until("all ends are acknowledged", WITHIN, || async {
            let consumers = self.consumers().await.map_err(|error| error.to_string())?;
            let left: u64 =
                consumers.iter().map(|consumer| consumer.num_pending + consumer.num_ack_pending as u64).sum();
            if left == 0 { Ok(()) } else { Err(format!("{left} are not")) }
        })
        .await?;
        Ok(())
    }

    /// What the stream says of every session.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub async fn told(&self) -> Result<BTreeMap<String, SessionTimes>, LoadTestError> {
        let stream = self.stream().await?;
        let config = OrderedConfig {
            filter_subjects: vec![SESSION_ENDED_SUBJECT.to_owned(), PROCESSED_SUBJECT.to_owned()],
            ..OrderedConfig::default()
        };
        let mut consumer = stream.create_consumer(config).await?;
        let mut left = consumer.info().await?.num_pending;
        let mut messages = consumer.messages().await?;
        let mut told: BTreeMap<String, SessionTimes> = BTreeMap::new();
        while left > 0 {
            let message = messages.try_next().await?.ok_or("the stream's messages ended early")?;
            let info = message.info().map_err(|error| error.to_string())?;
            left = info.pending;
            let stored = info.published.unix_timestamp_nanos();
            let Named { session_id } = serde_json::from_slice(&message.payload)?;
            let told = told.entry(session_id).or_default();
            if message.subject.as_str() == PROCESSED_SUBJECT {
                told.announced.get_or_insert(stored);
                told.notifications += 1;
            } else {
                told.ended.get_or_insert(stored);
            }
        }
        Ok(told)
    }

    /// What is stored of all sessions but those whose id begins with `except`.
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub async fn stored(&self, except: char) -> Result<Stored, LoadTestError> {
        let summaries: Collection<Document> = self.world.database().collection(SUMMARIES_COLLECTION);
        let counted = doc! { "$not": { "$regex": format!("^c-{except}") } };
        Ok(Stored {
            summaries: summaries.count_documents(doc! { "_id": &counted }).await?,
            incomplete: summaries.count_documents(doc! { "_id": counted, "complete": { "$ne": true } }).await?,
        })
    }

    async fn stream(&self) -> Result<jetstream::stream::Stream, LoadTestError> {
        Ok(self.world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?)
    }
}

/// The conversation of a session.
pub(super) fn conversation(session: &str) -> String {
    format!("c-{session}")
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Named {
    session_id: String,
}

/// A segment of some 15 words; every fourth asks.
pub(super) fn spoken(session: &str, index: usize) -> Segment {
    let place = i64::try_from(index).unwrap_or(i64::MAX);
    let mut text = WORDS[index % 7..].join(" ");
    text.push(if index.is_multiple_of(4) { '?' } else { '.' });
    Segment {
        id: format!("{session}:{index}"),
        index: Some(place),
        speaker: Some(format!("p{}", index % 3)),
        text,
        start_ms: Some(place * 4000),
        end_ms: Some(place * 4000 + 3500),
        ..Segment::default()
    }
}

/// The segment as it is stored.
fn document(session: &str, index: usize) -> Document {
    let Segment { id, index, speaker, text, start_ms, end_ms, .. } = spoken(session, index);
    doc! {
        "_id": id,
        "conversationId": conversation(session),
        "sessionId": session,
        "index": index,
        "speaker": speaker,
        "text": text,
        "startMs": start_ms,
        "endMs": end_ms,
    }
}
