//! A worker with the faults that the project began with: an insert under a new `_id` for each run of a job, and a
//! notification without a message id. The crash table shows what they cost.
//!
//! For the rest it does what is right: it counts until two counts agree, says that it is at work, and stores, announces and
//! acknowledges in this order. It works on one call at a time, and fails where a server does.

use std::{
    env,
    io::{self, Write},
    time::Duration,
};

use async_nats::{
    Client, Request,
    jetstream::{self, AckKind, Message, consumer::PullConsumer},
};
use futures::TryStreamExt;
use mongodb::{
    Collection, Database,
    bson::{self, DateTime, Document, doc},
};
use transcript_core::{
    WallTime,
    contract::{
        CONSUMER, Notification, PROCESSED_SUBJECT, SEGMENTS_COLLECTION, SUMMARIES_COLLECTION, TRANSCRIPTION_STREAM,
    },
    event::SessionEnded,
    summary::{Limits, Segment, Summarizer, Summary},
};

use super::CrashError;

/// Works until it is killed, on the servers that `NATS_URL`, `MONGODB_URI` and `MONGODB_DATABASE` name, which are set up.
///
/// # Errors
///
/// A server is not there or refuses something.
pub async fn run(quiet_period: Duration) -> Result<(), CrashError> {
    let client = async_nats::connect(env::var("NATS_URL")?).await?;
    let mongodb = mongodb::Client::with_uri_str(env::var("MONGODB_URI")?).await?;
    let worker = Worker { database: mongodb.database(&env::var("MONGODB_DATABASE")?), client, quiet_period };
    let stream = jetstream::new(worker.client.clone()).get_stream(TRANSCRIPTION_STREAM).await?;
    let consumer: PullConsumer = stream.get_consumer(CONSUMER).await?;
    let mut messages = consumer.stream().max_messages_per_batch(1).messages().await?;
    // What the harness waits for.
    writeln!(io::stderr(), "the first version is ready for calls")?;
    while let Some(message) = messages.try_next().await? {
        worker.process(&message).await?;
    }
    Ok(())
}

struct Worker {
    client: Client,
    database: Database,
    quiet_period: Duration,
}

impl Worker {
    async fn process(&self, message: &Message) -> Result<(), CrashError> {
        let ended = SessionEnded::parse(&message.payload)?;
        self.settle(message, &ended).await?;
        let summary = self.summary(&ended).await?;
        self.insert(&summary).await?;
        self.announce(&summary).await?;
        let reply = message.reply.clone().ok_or("a delivery has a subject for its acknowledgement")?;
        self.client.send_request(reply, Request::new().payload("+ACK".into())).await?;
        Ok(())
    }

    /// Counts until two counts agree. The first quiet period runs from when the end was stored.
    async fn settle(&self, message: &Message, ended: &SessionEnded) -> Result<(), CrashError> {
        let stored_at = message.info()?.published.unix_timestamp_nanos() / 1_000_000;
        let age = u64::try_from(i128::from(DateTime::now().timestamp_millis()) - stored_at).unwrap_or(0);
        tokio::time::sleep(self.quiet_period.saturating_sub(Duration::from_millis(age))).await;
        let mut before = self.count(ended).await?;
        loop {
            message.ack_with(AckKind::Progress).await?;
            tokio::time::sleep(self.quiet_period).await;
            let now = self.count(ended).await?;
            if now == before {
                return Ok(());
            }
            before = now;
        }
    }

    async fn count(&self, ended: &SessionEnded) -> Result<u64, CrashError> {
        let of_session = doc! { "sessionId": &*ended.session.session_id };
        Ok(self.segments().count_documents(of_session).await?)
    }

    async fn summary(&self, ended: &SessionEnded) -> Result<Summary, CrashError> {
        let of_session = doc! { "sessionId": &*ended.session.session_id };
        let mut found = self.segments().find(of_session).sort(doc! { "index": 1 }).await?;
        let mut summarizer = Summarizer::new(Limits::default());
        while let Some(document) = found.try_next().await? {
            summarizer.push(&bson::deserialize_from_document::<Segment>(document)?);
        }
        let now = WallTime::from_millis(DateTime::now().timestamp_millis());
        Ok(summarizer.finish(&ended.session, ended.published_segments, now))
    }

    /// The first fault: whoever runs the job again inserts another summary.
    async fn insert(&self, summary: &Summary) -> Result<(), CrashError> {
        let mut document = bson::serialize_to_document(summary)?;
        // The driver gives it a new one.
        document.remove("_id");
        self.database.collection::<Document>(SUMMARIES_COLLECTION).insert_one(document).await?;
        Ok(())
    }

    /// The second fault: the stream cannot know a notification again that has no id.
    async fn announce(&self, summary: &Summary) -> Result<(), CrashError> {
        let Summary { session, segments, complete, .. } = summary.clone();
        let notification = Notification { session, segments, complete, revision: None, edits: 0 };
        let payload = serde_json::to_vec(&notification)?.into();
        let answer = self.client.send_request(PROCESSED_SUBJECT, Request::new().payload(payload)).await?;
        serde_json::from_slice::<jetstream::publish::PublishAck>(&answer.payload)?;
        Ok(())
    }

    fn segments(&self) -> Collection<Document> {
        self.database.collection(SEGMENTS_COLLECTION)
    }
}
