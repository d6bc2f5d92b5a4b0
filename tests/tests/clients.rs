//! Clients in other languages publish a call and its recording, and read that the call is processed.

use std::{error::Error, fs, path::Path, time::Duration};

use serde_json::{Value, json};
use transcript_core::{
    contract::{RECORDING_STREAM, TRANSCRIPTION_STREAM},
    event::SessionEnded,
};
use transcript_tests::{
    calls::{Call, fixture},
    clients::{Client, Language},
    process_guard::Exit,
    world::TestWorld,
};

type TestResult = Result<(), Box<dyn Error>>;

const LONG: Duration = Duration::from_secs(90);
const FILE: &str = "transcripts/olive-oil.ndjson";
const EVENTS: [&str; 7] =
    ["recording-confirmed", "track-started", "track-ended", "stop-requested", "stopped", "uploaded", "stored"];

#[tokio::test]
async fn a_client_in_node_publishes_a_call_and_reads_that_it_is_processed() -> TestResult {
    publishes_a_call_and_reads_that_it_is_processed(Language::Node, "clients/node/call.mjs").await
}

#[tokio::test]
async fn a_client_in_python_publishes_a_call_and_reads_that_it_is_processed() -> TestResult {
    publishes_a_call_and_reads_that_it_is_processed(Language::Python, "clients/python/call.py").await
}

async fn publishes_a_call_and_reads_that_it_is_processed(language: Language, program: &str) -> TestResult {
    let client = match Client::of_program(language, &fs::read_to_string(fixture(program))?) {
        Ok(client) => client,
        Err(error) => {
            eprintln!("skipped: the client in {language:?} cannot run here: {error}");
            return Ok(());
        }
    };
    makes_the_keys_of_the_contract(&client).await?;

    let world = TestWorld::start().await?;
    world.processor("setup").run(LONG).await?;
    let processor = world.processor("run").arguments(["--quiet-period", "100ms"]).start().await?;
    let call = Call::read(&fixture(FILE))?;
    world.insert_segments(&call.segments).await?;
    let segments = call.segments.len() as u64;
    let expected = json!({ "key": call.session.key().as_str(), "segments": segments, "complete": true });

    let url = world.nats.url();
    for round in 1..=2 {
        let written = client.run(&url, &[&fixture(FILE)], "publish").await?;
        assert_eq!(serde_json::from_str::<Value>(&written)?, expected);
        let transcription = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?;
        // Published again, the segments are known by their ids: only the end is new, and the one notification stays.
        assert_eq!(transcription.cached_info().state.messages, segments + round + 1);
        let first = transcription.get_raw_message(1).await?;
        assert_eq!(first.headers.get("Nats-Msg-Id").map(|id| id.as_str()), Some(call.segments[0].id().as_str()));
        assert_eq!(serde_json::from_slice::<Value>(&first.payload)?, serde_json::to_value(&call.segments[0])?);
    }
    assert_eq!(world.notifications().await?.len(), 1);
    assert!(world.summary(&call.session.key()).await?.is_some());

    let recording = world.jetstream.get_stream(RECORDING_STREAM).await?;
    for (place, event) in (1..).zip(EVENTS.iter().chain(&EVENTS)) {
        let stored = recording.get_raw_message(place).await?;
        assert_eq!(stored.subject.as_str(), format!("recording.{event}"));
        let data: Value = serde_json::from_slice(&stored.payload)?;
        assert!(data["ts"].is_u64() && data["sessionId"] == json!(call.session.session_id), "{data}");
    }
    assert_eq!(processor.terminate().await?, Exit::Code(0));
    Ok(())
}

async fn makes_the_keys_of_the_contract(client: &Client) -> TestResult {
    let mut files = fs::read_dir(fixture("messages/accepted"))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()?;
    let directory = tempfile::tempdir()?;
    let hardest = directory.path().join("hardest.json");
    fs::write(&hardest, json!({ "conversationId": "  a%:\0\u{7f}é", "sessionId": " :%25" }).to_string())?;
    files.push(hardest);
    let written = client.run("", &files.iter().map(Path::new).collect::<Vec<_>>(), "key").await?;
    let keys: Vec<String> = written.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let mut expected = Vec::new();
    for file in &files {
        let mut ended: Value = serde_json::from_slice(&fs::read(file)?)?;
        ended["publishedSegments"] = json!(0);
        expected.push(SessionEnded::parse(ended.to_string().as_bytes())?.session.key().to_string());
    }
    assert_eq!(keys, expected);
    Ok(())
}
