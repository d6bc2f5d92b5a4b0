//! Messages that try to pass for something else, on real servers: a header block that no client can parse, a status line in a
//! message, and ids that belong to others.

use std::{collections::BTreeSet, time::Duration};

use async_nats::{HeaderMap, jetstream};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use transcript_client::jetstream::{
    RAW_HEADERS_HEADER,
    raw::{self, RawMessage, Which},
};
use transcript_core::{
    contract::{
        CONSUMER, DEAD_LETTER_SUBJECT, PROCESSED_SUBJECT, SESSION_ENDED_SUBJECT, STREAM_SEQUENCE_HEADER,
        TRANSCRIPTION_STREAM,
    },
    ids::Session,
};
use transcript_tests::{
    processor::{Processor, ProcessorCommand},
    wait::wait_until,
    world::TestWorld,
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(120);
/// Short times, for tests that are not about them.
const SHORT: [&str; 6] = ["--quiet-period", "100ms", "--ack-wait", "3s", "--max-deliver", "3"];

async fn started(command: &ProcessorCommand) -> Result<Processor, Box<dyn std::error::Error>> {
    let processor = command.start().await?;
    wait_until("the processor is ready", LONG, || async {
        if processor.logs().contains("ready") { Ok(()) } else { Err(processor.logs()) }
    })
    .await?;
    Ok(processor)
}

fn session(number: usize) -> Session {
    Session::new("conversation", &format!("call-{number}")).expect("ids are valid")
}

fn end(session: &Session) -> Vec<u8> {
    let Session { conversation_id, session_id } = session;
    json!({ "conversationId": conversation_id, "sessionId": session_id, "publishedSegments": 0 }).to_string().into()
}

/// Publishes over a bare socket, past everything that a client checks.
async fn publish_raw(world: &TestWorld, subject: &str, header_block: &[u8], payload: &[u8]) -> Outcome {
    let mut stream = TcpStream::connect(world.nats.process().address()).await?;
    let total = header_block.len() + payload.len();
    let mut bytes = b"CONNECT {\"verbose\":false,\"headers\":true}\r\n".to_vec();
    bytes.extend(format!("HPUB {subject} {} {total}\r\n", header_block.len()).into_bytes());
    bytes.extend_from_slice(header_block);
    bytes.extend_from_slice(payload);
    bytes.extend_from_slice(b"\r\nPING\r\n");
    stream.write_all(&bytes).await?;
    let mut answer = vec![];
    while !answer.windows(4).any(|it| it == b"PONG") {
        let mut read = [0; 4096];
        let count = stream.read(&mut read).await?;
        assert!(count > 0, "{}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(read.get(..count).unwrap_or_default());
    }
    Ok(())
}

/// A message of the stream, read in a form that no message can break.
async fn raw_message(client: &async_nats::Client, which: Which) -> Result<RawMessage, Box<dyn std::error::Error>> {
    let subject = raw::subject("$JS.API", TRANSCRIPTION_STREAM);
    let answer = client.request(subject, which.body().into()).await?;
    RawMessage::read(&answer.payload).map_err(|error| format!("{error:?}").into())
}

/// Waits until these calls are announced.
async fn announced(world: &TestWorld, processor: &Processor, calls: usize) -> Outcome {
    let expected: BTreeSet<Session> = (0..calls).map(session).collect();
    wait_until(format!("{calls} calls are announced"), LONG, || async {
        let all = world.notifications().await.map_err(|error| error.to_string())?;
        let sessions: BTreeSet<Session> = all.iter().map(|it| it.notification.session.clone()).collect();
        let missing = expected.difference(&sessions).count();
        if missing == 0 { Ok(()) } else { Err(format!("{missing} are missing: {}", processor.logs())) }
    })
    .await?;
    assert_eq!(world.notifications().await?.len(), calls, "each call is announced once");
    Ok(())
}

async fn dead_letters(world: &TestWorld) -> Result<Vec<RawMessage>, Box<dyn std::error::Error>> {
    let client = world.nats.client().await?;
    let (mut all, mut next) = (vec![], 1);
    while let Ok(message) = raw_message(&client, Which::NextOf(next, DEAD_LETTER_SUBJECT.to_owned())).await {
        next = message.sequence + 1;
        all.push(message);
    }
    Ok(all)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_no_client_can_parse_becomes_a_dead_letter_and_costs_the_others_one_redelivery() -> Outcome {
    let world = TestWorld::start().await?;
    // Whatever is delivered a second time and comes to nothing again becomes a dead letter.
    let arguments = ["--ack-wait", "3s", "--max-deliver", "2", "--quiet-period", "100ms"];
    world.processor("setup").arguments(&arguments[..4]).run(LONG).await?;
    let block = b"NATS/1.0\r\nX:\xff\r\n\r\n";
    publish_raw(&world, SESSION_ENDED_SUBJECT, block, b"{\"bad\":true}").await?;
    for number in 0..50 {
        world.publish(SESSION_ENDED_SUBJECT, end(&session(number))).await?;
    }
    publish_raw(&world, SESSION_ENDED_SUBJECT, b"NATS/1.0\r\nno colon\r\n\r\n", b"second").await?;
    let processor = started(&world.processor("run").arguments(arguments)).await?;
    announced(&world, &processor, 50).await?;
    wait_until("nothing is left", LONG, || async {
        let consumer = world.consumer().await.map_err(|error| error.to_string())?;
        let left = consumer.num_pending + u64::try_from(consumer.num_ack_pending).unwrap_or(0);
        if left == 0 { Ok(()) } else { Err(format!("{consumer:?}: {}", processor.logs())) }
    })
    .await?;
    let kept = dead_letters(&world).await?;
    let of: Vec<_> = kept.iter().map(|it| it.header(STREAM_SEQUENCE_HEADER)).collect();
    assert_eq!(of, [Some("1".to_owned()), Some("52".to_owned())]);
    let first = kept.first().expect("there are two");
    assert_eq!(first.payload, b"{\"bad\":true}");
    let original = raw_message(&world.nats.client().await?, Which::Sequence(1)).await?;
    assert_eq!(original.header_block, block);
    assert_eq!(first.header(RAW_HEADERS_HEADER), Some(original.header_block_in_base64()));
    processor.terminate().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_line_in_a_message_does_not_pass_for_the_servers_word() -> Outcome {
    let world = TestWorld::start().await?;
    world.processor("setup").arguments(SHORT.iter().skip(2)).run(LONG).await?;
    for (place, status) in ["503", "404", "409 Consumer Deleted", "408 Request Timeout"].iter().enumerate() {
        let block = format!("NATS/1.0 {status}\n\n");
        publish_raw(&world, SESSION_ENDED_SUBJECT, block.as_bytes(), &end(&session(place))).await?;
    }
    for number in 4..54 {
        world.publish(SESSION_ENDED_SUBJECT, end(&session(number))).await?;
    }
    let processor = started(&world.processor("run").arguments(SHORT)).await?;
    announced(&world, &processor, 54).await?;
    assert_eq!(dead_letters(&world).await?, []);
    processor.terminate().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_belongs_to_another_message_does_not_count_as_the_notification() -> Outcome {
    let world = TestWorld::start().await?;
    world.create_streams().await?;
    let js = jetstream::new(world.nats.client().await?);
    let call = session(0);
    // The end itself has the id, and so has something else under the next one.
    for (id, payload) in [(call.key().to_string(), end(&call)), (format!("{}%n", call.key()), end(&session(1)))] {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", id);
        js.publish_with_headers(SESSION_ENDED_SUBJECT, headers, payload.into()).await?.await?;
    }
    let processor = started(&world.processor("run").arguments(SHORT)).await?;
    announced(&world, &processor, 2).await?;
    let summary = world.summary(&call.key()).await?.ok_or("no summary")?;
    let place = summary.get_document("notified")?.get_i64("streamSequence")?;
    let named = raw_message(&world.nats.client().await?, Which::Sequence(place.unsigned_abs())).await?;
    assert_eq!(named.subject, PROCESSED_SUBJECT, "the mark names the notification");
    assert_eq!(world.consumer().await?.name, CONSUMER);
    processor.terminate().await?;
    Ok(())
}
