//! Events of recordings on a real nats-server: in the order of the log, through outages, and on the command line.

use std::{
    error::Error,
    fs, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_nats::ConnectOptions;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing_subscriber::fmt::MakeWriter;
use transcript_core::contract::RECORDING_STREAM;
use transcript_publishing::{DropReason, RecordingEvents};
use transcript_tests::{
    by_hand, process_guard::Exit, processor::ProcessorCommand, servers::NatsServer, wait::wait_until, world::TestWorld,
};

type TestResult = Result<(), Box<dyn Error>>;

const LONG: Duration = Duration::from_secs(90);
const RECORDING: [&str; 7] =
    ["recording-confirmed", "track.started", "track.ended", "stop-requested", "stopped", "uploaded", "stored"];
/// What may wait, by the library's documentation.
const BUFFERED: u64 = 4096;

#[tokio::test]
async fn the_events_of_a_recording_are_on_the_stream_in_the_order_of_the_log() -> TestResult {
    let world = TestWorld::start().await?;
    world.create_streams().await?;
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().without_time().with_ansi(false).with_writer(log.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let events = RecordingEvents::connect(&world.nats.url(), ConnectOptions::new());
    for event in RECORDING {
        events.log(event, json!({ "recording": "monday" }));
    }
    events.log("deleted", json!({ "recording": "tuesday", "reason": "never-started" }));
    assert_eq!(events.flush(LONG).await, 0);

    let stored = stored(&world).await?;
    let logged: Vec<(String, String)> = log.events();
    assert_eq!(stored, logged);
    let names: Vec<_> = stored.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, [&RECORDING[..], &["deleted"]].concat());
    let counts = events.close(LONG).await;
    assert_eq!((counts.logged, counts.published, counts.dropped()), (8, 8, 0));
    Ok(())
}

#[tokio::test]
async fn a_million_events_in_an_outage_are_counted_and_later_ones_are_stored_in_order() -> TestResult {
    const CALLS: u64 = 1_000_000;
    let mut world = TestWorld::start().await?;
    world.create_streams().await?;
    let events = RecordingEvents::connect(&world.nats.url(), ConnectOptions::new());
    events.log("first", ());
    assert_eq!(events.flush(LONG).await, 0);
    world.nats.process().kill().await?;

    let memory = resident_bytes()?;
    let begun = Instant::now();
    for number in 0..CALLS {
        events.log("stored", Numbered { number });
    }
    let a_call = begun.elapsed() / u32::try_from(CALLS)?;
    let grown = resident_bytes()?.saturating_sub(memory);
    eprintln!("a call of log took {a_call:?}; {CALLS} of them took {grown} bytes of memory");
    assert!(a_call < Duration::from_micros(200), "a call took {a_call:?}");
    assert!(grown < 64 << 20, "memory grew by {grown} bytes");
    let counts = events.counts();
    assert_eq!((counts.logged, counts.waiting), (CALLS + 1, BUFFERED));
    assert_eq!(counts.dropped, [(DropReason::BufferFull, CALLS - BUFFERED)].into());

    world.nats.start_again().await?;
    assert_eq!(events.flush(LONG).await, 0);
    events.log("later", ());
    events.log("latest", ());
    assert_eq!(events.flush(LONG).await, 0);
    let counts = events.close(LONG).await;
    assert_eq!((counts.logged, counts.published, counts.waiting), (CALLS + 3, BUFFERED + 3, 0));
    assert_eq!(counts.dropped(), CALLS - BUFFERED);

    let stored = stored(&world).await?;
    let numbers: Vec<u64> = stored
        .iter()
        .filter(|(name, _)| name == "stored")
        .map(|(_, data)| Ok(serde_json::from_str::<Value>(data)?["number"].as_u64().ok_or("no number")?))
        .collect::<Result<_, Box<dyn Error>>>()?;
    assert_eq!(numbers, (0..BUFFERED).collect::<Vec<_>>());
    let others: Vec<_> = stored.iter().map(|(name, _)| name.as_str()).filter(|name| *name != "stored").collect();
    assert_eq!(others, ["first", "later", "latest"]);
    Ok(())
}

/// Kills the server while events are published. A sent event whose acknowledgement was lost is sent again under its id.
#[tokio::test]
async fn events_that_are_under_way_when_the_server_is_killed_are_stored_once_and_in_order() -> TestResult {
    const EVENTS: u64 = 1500;
    let mut world = TestWorld::start().await?;
    world.create_streams().await?;
    let events = RecordingEvents::connect(&world.nats.url(), ConnectOptions::new());
    for number in 0..EVENTS {
        events.log("stored", Numbered { number });
        if number % 500 == 499 {
            let before = events.counts().published;
            wait_until("some more are published", LONG, || async {
                let published = events.counts().published;
                if published > before { Ok(()) } else { Err(published) }
            })
            .await?;
            world.nats.start_again().await?;
        }
    }
    assert_eq!(events.flush(LONG).await, 0);
    let numbers: Vec<u64> = stored(&world)
        .await?
        .iter()
        .map(|(_, data)| Ok(serde_json::from_str::<Value>(data)?["number"].as_u64().ok_or("no number")?))
        .collect::<Result<_, Box<dyn Error>>>()?;
    assert_eq!(numbers, (0..EVENTS).collect::<Vec<_>>());
    Ok(())
}

#[tokio::test]
async fn events_wait_for_a_stream_and_one_that_is_too_large_holds_up_none() -> TestResult {
    let nats = NatsServer::start().await?;
    let events = RecordingEvents::connect(&nats.url(), ConnectOptions::new());
    events.log("stored", json!({ "number": 0 }));
    events.log("huge", json!({ "text": "x".repeat(2 << 20) }));
    events.log("deleted", ());
    assert_eq!(events.flush(Duration::from_millis(500)).await, 3);
    let jetstream = async_nats::jetstream::new(nats.client().await?);
    let config = async_nats::jetstream::stream::Config {
        name: RECORDING_STREAM.to_owned(),
        subjects: vec!["recording.>".to_owned()],
        ..Default::default()
    };
    let stream = jetstream.create_stream(config).await?;
    assert_eq!(events.flush(LONG).await, 0);
    let counts = events.counts();
    assert_eq!((counts.published, counts.dropped), (2, [(DropReason::TooLarge, 1)].into()));
    assert_eq!(stream.get_info().await?.state.messages, 2);
    Ok(())
}

#[tokio::test]
async fn a_shell_publishes_an_event_and_needs_no_mongodb() -> TestResult {
    let world = TestWorld::start().await?;
    let recording = || ProcessorCommand::new("recording").environment("NATS_URL", world.nats.url());
    let without_mongodb = || recording().environment("MONGODB_URI", "mongodb://127.0.0.1:1");

    let refused = without_mongodb().arguments(["stored", "file=a.webm"]).start().await?;
    assert_eq!(refused.wait(LONG).await?, Exit::Code(1));
    assert!(refused.logs().contains("create the streams with `transcript-processor setup`"), "{}", refused.logs());
    let wrong = without_mongodb().arguments(["stored", "file"]).start().await?;
    assert_eq!(wrong.wait(LONG).await?, Exit::Code(2));

    world.create_streams().await?;
    let written = without_mongodb().arguments(["stored", "file=a.webm", "bytes=7", "ts=5"]).run(LONG).await?;
    assert_eq!(written, "recording.stored is message 1 of RECORDING\n");
    let (name, data) = stored(&world).await?.remove(0);
    assert_eq!(
        (name.as_str(), serde_json::from_str::<Value>(&data)?),
        ("stored", json!({ "file": "a.webm", "bytes": 7, "ts": 5 }))
    );
    Ok(())
}

#[tokio::test]
async fn watching_shows_all_events_goes_on_through_a_restart_and_no_message_breaks_it() -> TestResult {
    let mut world = TestWorld::start().await?;
    world.create_streams().await?;
    world.publish("recording.recording-confirmed", br#"{"ts":5}"#.to_vec()).await?;
    let watch = |arguments: &[&'static str]| {
        let command = ProcessorCommand::new("recording").argument("watch").arguments(arguments.iter().copied());
        command.environment("NATS_URL", world.nats.url())
    };
    let plain = watch(&[]).start().await?;
    let failures = watch(&["--failures", "--json"]).start().await?;
    plain.printed("1970-01-01T00:00:00.005Z  recording-confirmed", LONG).await?;

    world.publish("recording.stored", b"\x1b[2J no object".to_vec()).await?;
    // The client drops the connection on which a consumer hands it such a message.
    by_hand::publish_block(&world, "recording.x", b"NATS/1.0\r\nno colon\r\n\r\n", b"{}").await?;
    plain.printed("stored                \u{fffd}[2J no object", LONG).await?;
    world.nats.start_again().await?;
    world.publish("recording.deleted", br#"{"reason":"never-started","ts":9}"#.to_vec()).await?;
    plain.printed(r#"1970-01-01T00:00:00.009Z  deleted               {"reason":"never-started"}"#, LONG).await?;
    failures.printed("never-started", LONG).await?;
    let line: Value = serde_json::from_str(&failures.output())?;
    assert_eq!((&line["sequence"], &line["event"]), (&json!(4), &json!("deleted")));
    assert_eq!(line["data"], json!({ "reason": "never-started", "ts": 9 }));
    assert_eq!(plain.output().lines().count(), 4);
    Ok(())
}

#[derive(serde::Serialize)]
struct Numbered {
    number: u64,
}

/// The events on the stream, each with its JSON.
async fn stored(world: &TestWorld) -> Result<Vec<(String, String)>, Box<dyn Error>> {
    let stream = world.jetstream.get_stream(RECORDING_STREAM).await?;
    let mut stored = Vec::new();
    for sequence in 1..=stream.cached_info().state.last_sequence {
        let message = stream.get_raw_message(sequence).await?;
        let name = message.subject.strip_prefix("recording.").ok_or("no recording")?.to_owned();
        stored.push((name, String::from_utf8(message.payload.to_vec())?));
    }
    Ok(stored)
}

/// The memory that this process has, by Linux.
fn resident_bytes() -> Result<u64, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

/// What this thread has logged.
#[derive(Debug, Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The events, each with its JSON.
    fn events(&self) -> Vec<(String, String)> {
        let text = String::from_utf8_lossy(&self.bytes()).into_owned();
        let event = |line: &str| {
            let (json, name) = line.split_once("RECORDING_EVENT ")?.1.rsplit_once(" event=")?;
            Some((name.trim_matches('"').to_owned(), json.to_owned()))
        };
        text.lines().filter_map(event).collect()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
