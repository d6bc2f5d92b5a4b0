//! What `audit` and `dead-letters` find in messages that no client can take, in marks that are wrong, and in ends that can
//! never be processed, on real servers.

use std::time::Duration;

use mongodb::bson::doc;
use serde_json::{Value, json};
use transcript_core::{
    contract::{Announcement, DEAD_LETTER_SUBJECT, PROCESSED_SUBJECT, SESSION_ENDED_SUBJECT, TRANSCRIPTION_STREAM},
    ids::Session,
};
use transcript_tests::{
    by_hand::{self, Mark},
    calls::Call,
    process_guard::Exit,
    processor::Processor,
    wait::wait_until,
    world::TestWorld,
};

type TestResult = Result<(), Box<dyn std::error::Error>>;
type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

const SOON: Duration = Duration::from_secs(90);
/// Header blocks that nats-server stores, and that async-nats cannot parse or takes for a status of the server.
const BLOCKS: [&[u8]; 9] = [
    b"NATS/1.0\r\nX:\xff\r\n\r\n",
    b"NATS/1.0\r\nno colon\r\n\r\n",
    b"NATS/1.0\r\nwhite space: x\r\n\r\n",
    b"NATS/1.0 503\n\n",
    b"NATS/1.0 404 No Messages\n\n",
    b"NATS/1.0 409 Consumer Deleted\n\n",
    b"NATS/1.0 100 Idle Heartbeat\n\n",
    b"NATS/1.0 none\n\n",
    b"NATS/2.0\r\n\r\n",
];

async fn world() -> Fallible<TestWorld> {
    let world = TestWorld::start().await?;
    world.processor("setup").run(SOON).await?;
    Ok(world)
}

fn session(session_id: &str) -> Session {
    Session::new("room", session_id).expect("the ids are valid")
}

fn ended(session_id: &str) -> Vec<u8> {
    json!({ "conversationId": "room", "sessionId": session_id, "publishedSegments": 1 }).to_string().into_bytes()
}

/// Runs a command and gives how it ended, what it printed, and what it logged.
async fn command(world: &TestWorld, name: &str, line: &str) -> Fallible<(Exit, String, String)> {
    let command = world.processor(name).arguments(line.split_whitespace()).start().await?;
    Ok((command.wait(SOON).await?, command.output(), command.logs()))
}

async fn told(world: &TestWorld, name: &str, line: &str) -> Fallible<(Exit, Value)> {
    let (exit, output, logs) = command(world, name, &format!("{line} --json")).await?;
    Ok((exit, serde_json::from_str(&output).map_err(|error| format!("{error}: {output}{logs}"))?))
}

async fn processor(world: &TestWorld) -> Fallible<Processor> {
    let processor = world.processor("run").arguments(["--quiet-period", "50ms", "--ack-wait", "3s"]).start().await?;
    wait_until("the processor is ready", SOON, || async {
        if processor.logs().contains("ready") { Ok(()) } else { Err(processor.logs()) }
    })
    .await?;
    Ok(processor)
}

/// Has the consumer's floor pass everything that is in the stream, as a processor does that terminates what it cannot use.
async fn terminate_all(world: &TestWorld) -> TestResult {
    let consumer = world.consumer().await?;
    for number in 0..consumer.num_pending {
        // The sequence is all that JetStream looks at; a request without a subscription costs no parsing.
        let _asked = number;
    }
    let last = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?.cached_info().state.last_sequence;
    let reset = json!({ "seq": last + 1 });
    let subject = format!("$JS.API.CONSUMER.RESET.{TRANSCRIPTION_STREAM}.transcript-processor");
    world.client.request(subject, reset.to_string().into()).await?;
    Ok(())
}
