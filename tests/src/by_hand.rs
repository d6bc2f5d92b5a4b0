//! Streams and stores built by hand: what processors leave behind, without a processor.

use std::time::Duration;

use async_nats::{HeaderMap, header::NATS_MESSAGE_ID, jetstream::consumer::PullConsumer};
use futures::{StreamExt, TryStreamExt};
use mongodb::bson::{DateTime, Document, doc};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};
use transcript_core::{
    WallTime,
    contract::{
        ATTEMPTS_HEADER, Announcement, CONSUMER, DEAD_LETTER_SUBJECT, DeadLetter, Notification, PROCESSOR_HEADER,
        REASON_HEADER, SEGMENT_SUBJECT, STREAM_SEQUENCE_HEADER, SUMMARIES_COLLECTION, TIME_HEADER,
        TRANSCRIPTION_STREAM,
    },
    ids::Session,
};

use crate::{wait::wait_until, world::TestWorld};

/// What goes wrong here is for the test to tell.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Whether a summary says that it was announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// It does not.
    Missing,
    /// It does, and does not say by which message.
    There,
    /// It names the message at this place of the stream.
    At(i64),
}

/// Publishes with headers and gives the place in the stream.
///
/// # Errors
///
/// The server did not store it.
pub async fn publish(world: &TestWorld, subject: &str, headers: HeaderMap, payload: Vec<u8>) -> Outcome<u64> {
    let stored = world.jetstream.publish_with_headers(subject.to_owned(), headers, payload.into()).await?;
    Ok(stored.await?.sequence)
}

/// Publishes a message with any bytes as its header block, which no client would send, and gives its place in the stream.
///
/// # Errors
///
/// The server did not store it.
pub async fn publish_block(world: &TestWorld, subject: &str, block: &[u8], payload: &[u8]) -> Outcome<u64> {
    let address = world.nats.url().trim_start_matches("nats://").to_owned();
    let mut server = BufReader::new(TcpStream::connect(address).await?);
    let options = r#"{"verbose":false,"pedantic":false,"headers":true,"no_responders":true}"#;
    let mut bytes = format!("CONNECT {options}\r\nSUB reply 1\r\n").into_bytes();
    bytes.extend(format!("HPUB {subject} reply {} {}\r\n", block.len(), block.len() + payload.len()).into_bytes());
    bytes.extend([block, payload, b"\r\n"].concat());
    server.write_all(&bytes).await?;
    let mut line = String::new();
    while server.read_line(&mut line).await? > 0 {
        if let Some(ack) = line.strip_prefix('{') {
            let ack: serde_json::Value = serde_json::from_str(&format!("{{{ack}"))?;
            return ack["seq"].as_u64().ok_or_else(|| line.clone().into());
        }
        if line.starts_with("-ERR") {
            break;
        }
        line.clear();
    }
    Err(format!("the message was not stored: {line}").into())
}

/// Publishes one id again and again until the stream takes it a second time: by then it has forgotten every id before it.
///
/// # Errors
///
/// The server does not answer, or still knows the id after that time.
///
/// # Panics
///
/// The stream knew the id already.
pub async fn publish_until_forgotten(world: &TestWorld, within: Duration) -> Outcome<()> {
    let publish = async || {
        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_ID, "the last one");
        let sent = world.jetstream.publish_with_headers(SEGMENT_SUBJECT, headers, "{}".into()).await?;
        Ok::<_, Box<dyn std::error::Error>>(sent.await?.duplicate)
    };
    assert!(!publish().await?, "the id is new");
    wait_until("the duplicate window is over", within, || async {
        match publish().await.map_err(|error| error.to_string())? {
            false => Ok(()),
            true => Err("the id is still known".to_owned()),
        }
    })
    .await?;
    Ok(())
}

/// Publishes a dead letter as a processor does.
///
/// # Errors
///
/// The server did not store it.
pub async fn dead_letter(world: &TestWorld, about: u64, reason: &str, payload: Vec<u8>) -> Outcome<u64> {
    let at = WallTime::from_millis(1_795_980_423_000);
    let dead_letter = DeadLetter { stream_sequence: about, attempts: 5, reason: reason.to_owned(), at, ended: None };
    let mut headers = HeaderMap::new();
    headers.insert(NATS_MESSAGE_ID, dead_letter.message_id());
    headers.insert(STREAM_SEQUENCE_HEADER, about.to_string());
    headers.insert(ATTEMPTS_HEADER, dead_letter.attempts.to_string());
    headers.insert(REASON_HEADER, reason);
    headers.insert(TIME_HEADER, at.as_millis().to_string());
    headers.insert(PROCESSOR_HEADER, "host/12");
    publish(world, DEAD_LETTER_SUBJECT, headers, payload).await
}

/// Publishes a notification as a processor does, but with an id of the caller's.
///
/// # Errors
///
/// The server did not store it.
pub async fn announce(world: &TestWorld, session: &Session, announcement: Announcement, id: &str) -> Outcome<u64> {
    let notification = Notification { session: session.clone(), segments: 1, complete: true, revision: None, edits: 0 };
    let mut headers = HeaderMap::new();
    headers.insert(NATS_MESSAGE_ID, id);
    publish(world, &announcement.subject(&session.key()), headers, serde_json::to_vec(&notification)?).await
}

/// The document of a summary.
#[must_use]
pub fn summary(session: &Session, segments: i64, mark: Mark) -> Document {
    let mut document = doc! {
        "_id": session.key().as_str(), "conversationId": &*session.conversation_id, "sessionId": &*session.session_id,
        "segments": segments, "publishedSegments": segments, "complete": true, "words": 0_i64, "speakers": [],
        "longestTurns": [], "questions": [], "updatedAt": DateTime::from_millis(0),
    };
    match mark {
        Mark::Missing => {}
        Mark::There => {
            document.insert("notified", doc! { "at": DateTime::from_millis(0) });
        }
        Mark::At(place) => {
            document.insert("notified", doc! { "streamSequence": place, "at": DateTime::from_millis(0) });
        }
    }
    document
}

/// Stores summaries.
///
/// # Errors
///
/// The store does not take them.
pub async fn store(world: &TestWorld, summaries: Vec<Document>) -> Outcome<()> {
    world.database().collection::<Document>(SUMMARIES_COLLECTION).insert_many(summaries).ordered(false).await?;
    Ok(())
}

/// Has the processors' consumer hand out this many ends, acknowledges them, and waits until the server has said so.
///
/// # Errors
///
/// The server does not answer, or has fewer.
pub async fn acknowledge(world: &TestWorld, ends: usize) -> Outcome<()> {
    for message in deliver(world, ends).await? {
        let reply = message.reply.clone().ok_or("a delivery has a reply subject")?;
        world.client.request(reply, "+ACK".into()).await?;
    }
    Ok(())
}

/// Has the processors' consumer hand out this many ends.
///
/// # Errors
///
/// The server does not answer, or has fewer.
pub async fn deliver(world: &TestWorld, ends: usize) -> Outcome<Vec<async_nats::jetstream::Message>> {
    let consumer: PullConsumer = world.jetstream.get_consumer_from_stream(CONSUMER, TRANSCRIPTION_STREAM).await?;
    let messages = consumer.fetch().max_messages(ends).messages().await?;
    let messages: Vec<_> = messages.take(ends).try_collect().await.map_err(|error| error.to_string())?;
    if messages.len() == ends { Ok(messages) } else { Err(format!("only {} ends", messages.len()).into()) }
}
