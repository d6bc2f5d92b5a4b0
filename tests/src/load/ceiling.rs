//! The ceiling: what the same servers do with the same commands in the same batches, where nobody decides anything.
//!
//! Ends are pulled and pass through the steps that the processor asks its servers for, each step a worker with one command
//! under way: two counts, the segments, the upsert with the reading of what is stored then, the notification, the mark, the
//! acknowledgement. The summary is the same for all, so no text is read; heartbeats, retries and orders of keys are not there.

use std::{env, sync::OnceLock, time::Duration};

use async_nats::{
    Client, HeaderMap, Request,
    header::{NATS_EXPECTED_STREAM, NATS_MESSAGE_ID},
    jetstream::{self, consumer::pull, publish::PublishAck},
};
use futures::{
    TryStreamExt,
    stream::{FuturesUnordered, StreamExt},
};
use mongodb::{
    Collection, Database,
    bson::{Bson, RawArrayBuf, RawDocumentBuf, doc, rawdoc},
};
use tokio::sync::mpsc;
use transcript_client::mongodb::{MOST_MEMBERS, Mark};
use transcript_core::{
    Notified, TranscriptVersion, WallTime,
    contract::{
        Announcement, Notification, PROCESSED_SUBJECT, SEGMENTS_COLLECTION, SESSION_ENDED_SUBJECT,
        SUMMARIES_COLLECTION, TRANSCRIPTION_STREAM,
    },
    event::SessionEnded,
    ids::Session,
    summary::{Limits, Summarizer, Summary},
};
use transcript_processor::service::mongodb::statement;

use super::{LoadTestError, consumer_of_others, environment};

/// Longer than any load test, since nothing says that a call is worked on.
const ACK_WAIT: Duration = Duration::from_secs(600);
/// More ends than are ever used in one.
const ACK_PENDING: i64 = 1_000_000;

/// Ends that are asked for at once: as many as the processor has in hand.
const PULLED: usize = 4096;

/// An end on its way through the steps.
#[derive(Debug)]
struct End {
    reply: String,
    session: Session,
    segments: u64,
    /// Where the notification is in the stream.
    sequence: u64,
}

/// Works ends off until it is killed, on the servers that the environment names as for a peer.
///
/// # Errors
///
/// A server is not there or refuses something.
pub async fn run() -> Result<(), LoadTestError> {
    let client = async_nats::connect(env::var("NATS_URL")?).await?;
    let mongodb = mongodb::Client::with_uri_str(env::var("MONGODB_URI")?).await?;
    let steps = Steps { database: mongodb.database(&env::var("MONGODB_DATABASE")?), client: client.clone() };
    let [count, count_again, load, save, announce, mark, acknowledge] = std::array::from_fn(|_| steps.clone());
    let queues: [_; 7] = std::array::from_fn(|_| mpsc::unbounded_channel());
    let (senders, [pulled, counted, settled, loaded, saved, announced, marked]) = unzip(queues);
    let [to_count, to_settle, to_load, to_save, to_announce, to_mark, to_acknowledge] = senders;
    // The first that ends is the one that failed.
    tokio::select! {
        failed = pull(jetstream::new(client), to_count) => failed,
        failed = spawned(batches(pulled, to_settle, async move |ends| count.count(ends).await)) => failed,
        failed = spawned(batches(counted, to_load, async move |ends| count_again.count(ends).await)) => failed,
        failed = spawned(batches(settled, to_save, async move |ends| load.load(ends).await)) => failed,
        failed = spawned(batches(loaded, to_announce, async move |ends| save.save(ends).await)) => failed,
        failed = spawned(pipelined(saved, Some(to_mark), move |end| announce.clone().announce(end))) => failed,
        failed = spawned(batches(announced, to_acknowledge, async move |ends| mark.mark(ends).await)) => failed,
        failed = spawned(pipelined(marked, None, move |end| acknowledge.clone().acknowledge(end))) => failed,
    }
}

type Queue = (mpsc::UnboundedSender<End>, mpsc::UnboundedReceiver<End>);

fn unzip<const N: usize>(queues: [Queue; N]) -> ([mpsc::UnboundedSender<End>; N], [mpsc::UnboundedReceiver<End>; N]) {
    let mut receivers = vec![];
    let senders = queues.map(|(sender, receiver)| {
        receivers.push(receiver);
        sender
    });
    (senders, receivers.try_into().unwrap_or_else(|_| unreachable!("there is one for each sender")))
}

async fn spawned(step: impl Future<Output = Result<(), LoadTestError>> + Send + 'static) -> Result<(), LoadTestError> {
    tokio::spawn(step).await?
}

/// Carries out one command after the other, each for all ends that wait.
async fn batches(
    mut waiting: mpsc::UnboundedReceiver<End>,
    done: mpsc::UnboundedSender<End>,
    step: impl AsyncFn(Vec<End>) -> Result<Vec<End>, LoadTestError>,
) -> Result<(), LoadTestError> {
    let mut batch = vec![];
    while waiting.recv_many(&mut batch, MOST_MEMBERS).await > 0 {
        for end in step(std::mem::take(&mut batch)).await? {
            done.send(end)?;
        }
    }
    Ok(())
}

/// Sends a request for each end at once, and takes the answers as they come.
async fn pipelined<P: Future<Output = Result<End, LoadTestError>>>(
    mut waiting: mpsc::UnboundedReceiver<End>,
    done: Option<mpsc::UnboundedSender<End>>,
    step: impl Fn(End) -> P,
) -> Result<(), LoadTestError> {
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some(end) = waiting.recv() => under_way.push(step(end)),
            Some(answered) = under_way.next() => {
                let end = answered?;
                if let Some(done) = &done {
                    done.send(end)?;
                }
            }
            else => return Ok(()),
        }
    }
}

async fn pull(jetstream: jetstream::Context, pulled: mpsc::UnboundedSender<End>) -> Result<(), LoadTestError> {
    let stream = jetstream.get_stream(TRANSCRIPTION_STREAM).await?;
    let config = pull::Config {
        durable_name: Some(consumer_of_others()),
        filter_subject: SESSION_ENDED_SUBJECT.to_owned(),
        ack_wait: ACK_WAIT,
        max_ack_pending: ACK_PENDING,
        ..pull::Config::default()
    };
    let consumer = stream.create_consumer(config).await?;
    let mut messages = consumer.stream().max_messages_per_batch(PULLED).messages().await?;
    while let Some(message) = messages.try_next().await? {
        let SessionEnded { session, published_segments, .. } = SessionEnded::parse(&message.payload)?;
        let reply = message.reply.as_deref().unwrap_or_default().to_owned();
        pulled.send(End { reply, session, segments: published_segments, sequence: 0 })?;
    }
    Ok(())
}

/// The commands.
#[derive(Debug, Clone)]
struct Steps {
    database: Database,
    client: Client,
}

impl Steps {
    async fn count(&self, ends: Vec<End>) -> Result<Vec<End>, LoadTestError> {
        let pipeline = [
            doc! { "$match": { "sessionId": { "$in": sessions(&ends) } } },
            doc! { "$group": { "_id": "$sessionId", "segments": { "$sum": 1 } } },
        ];
        let segments: Collection<RawDocumentBuf> = self.database.collection(SEGMENTS_COLLECTION);
        let groups: Vec<RawDocumentBuf> = segments.aggregate(pipeline).with_type().await?.try_collect().await?;
        if groups.len() == ends.len() { Ok(ends) } else { Err("a session has no segments".into()) }
    }

    async fn load(&self, ends: Vec<End>) -> Result<Vec<End>, LoadTestError> {
        let expected: u64 = ends.iter().map(|end| end.segments).sum();
        let segments: Collection<RawDocumentBuf> = self.database.collection(SEGMENTS_COLLECTION);
        let find = segments.find(doc! { "sessionId": { "$in": sessions(&ends), "$not": { "$type": "array" } } });
        let find = find.sort(doc! { "sessionId": 1, "index": 1 }).limit(i64::try_from(expected)? + 1000);
        let fields = doc! { "sessionId": 1, "index": 1, "speaker": 1, "text": 1, "startMs": 1, "endMs": 1 };
        let mut found = find.projection(fields).batch_size(10_000).await?;
        let mut loaded = 0;
        while found.advance().await? {
            loaded += 1;
        }
        if loaded == expected { Ok(ends) } else { Err(format!("{loaded} of {expected} segments").into()) }
    }

    async fn save(&self, ends: Vec<End>) -> Result<Vec<End>, LoadTestError> {
        let statement = |end: &End| statement::save(&summary(end)).map_err(|error| error.to_string());
        self.update(ends.iter().map(statement).collect::<Result<_, _>>()?).await?;
        let keys: Vec<Bson> = ends.iter().map(|end| Bson::from(end.session.key().as_str())).collect();
        let fields = doc! { "segments": 1, "complete": 1, "notified": 1, "revision": 1, "revised.revision": 1 };
        let summaries: Collection<RawDocumentBuf> = self.database.collection(SUMMARIES_COLLECTION);
        let find = summaries.find(doc! { "_id": { "$in": keys } }).projection(fields);
        let stored: Vec<RawDocumentBuf> = find.await?.try_collect().await?;
        if stored.len() == ends.len() { Ok(ends) } else { Err("a summary is not stored".into()) }
    }

    async fn announce(self, mut end: End) -> Result<End, LoadTestError> {
        let notification = Notification {
            session: end.session.clone(),
            segments: end.segments,
            complete: true,
            revision: None,
            edits: 0,
        };
        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_ID, end.session.key().as_str());
        headers.insert(NATS_EXPECTED_STREAM, TRANSCRIPTION_STREAM);
        let request = Request::new().payload(serde_json::to_vec(&notification)?.into()).headers(headers);
        let answer = self.client.send_request(PROCESSED_SUBJECT, request).await?;
        end.sequence = serde_json::from_slice::<PublishAck>(&answer.payload)?.sequence;
        Ok(end)
    }

    async fn mark(&self, ends: Vec<End>) -> Result<Vec<End>, LoadTestError> {
        let mark = |end: &End| {
            let notified = Notified { stream_sequence: end.sequence, at: WallTime::from_millis(0) };
            let announcement = Announcement::Processed;
            statement::mark(&Mark {
                key: end.session.key(),
                announcement,
                announced: TranscriptVersion { segments: u64::MAX, edits: 0 },
                notified,
            })
        };
        self.update(ends.iter().map(mark).collect()).await?;
        Ok(ends)
    }

    async fn acknowledge(self, end: End) -> Result<End, LoadTestError> {
        self.client.send_request(end.reply.clone(), Request::new().payload("+ACK".into())).await?;
        Ok(end)
    }

    async fn update(&self, updates: RawArrayBuf) -> Result<(), LoadTestError> {
        let command = rawdoc! {
            "update": SUMMARIES_COLLECTION,
            "updates": updates,
            "ordered": false,
            "writeConcern": { "w": "majority", "j": true, "wtimeout": 10_000 },
        };
        let reply = self.database.run_raw_command(command).await?;
        if reply.contains_key("writeErrors") { Err(format!("an update failed: {reply}").into()) } else { Ok(()) }
    }
}

fn sessions(ends: &[End]) -> Vec<Bson> {
    ends.iter().map(|end| Bson::from(&*end.session.session_id)).collect()
}

/// The same for every call, but for its session: as large as one of a call of twelve segments is.
fn summary(end: &End) -> Summary {
    static SAME: OnceLock<Summary> = OnceLock::new();
    let same = SAME.get_or_init(|| {
        let mut summarizer = Summarizer::new(Limits::default());
        (0..12).for_each(|index| summarizer.push(&environment::spoken(&end.session.session_id, index)));
        summarizer.finish(&end.session, end.segments, WallTime::from_millis(0))
    });
    Summary { key: end.session.key(), session: end.session.clone(), ..same.clone() }
}
