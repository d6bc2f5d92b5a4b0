//! `cargo transcriber-load`: what the transcriber takes through sockets, on real servers that are started for it.
//!
//! The memory of idle connections, of connections that stop in the middle of a frame, and of sessions that are opened and
//! abandoned; acknowledged segments a second; the time until an acknowledgement at half of that; and the latter two of a loop
//! written by hand, which inserts and publishes one segment after the other.

use std::{
    error::Error,
    io::{self, Write},
    net::SocketAddr,
    time::Duration,
};

use clap::Parser;
use mongodb::bson::{Document, doc};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{Instant, interval, timeout},
};
use transcript_tests::{
    load::Usage,
    transcriber::{Client, RunningTranscriber, TranscriberError},
    transcriber_by_hand,
    wait::wait_until,
    world::TestWorld,
};
use transcript_transcriber::document::SESSIONS_COLLECTION;

/// Segments of one socket that may wait for their acknowledgement where as much is sent as is taken.
const WINDOW: usize = 32;
/// Connections that are opened at the same time.
const OPENED_AT_ONCE: usize = 64;
/// How much of a frame is sent by a client that stops in the middle of it: nearly all of the largest one.
const PART_OF_FRAME: usize = 60 << 10;
/// How long anything may take that goes on by itself.
const LONG: Duration = Duration::from_secs(600);

/// Load tests the transcriber: idle connections, throughput, latency at half load, beside a loop written by hand
#[derive(Debug, Parser)]
#[command(name = "cargo transcriber-load", max_term_width = 120)]
struct Options {
    /// Idle connections
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    idle: usize,
    /// Connections that stop in the middle of a frame
    #[arg(long, value_name = "N", default_value_t = 1000)]
    stalled: usize,
    /// Sessions that are opened and abandoned without a word
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    abandoned: usize,
    /// Sessions that segments are sent to, one socket each
    #[arg(long, value_name = "N", default_value_t = 100)]
    sessions: usize,
    /// How long each load lasts, in seconds
    #[arg(long, value_name = "N", default_value_t = 10)]
    seconds: u64,
}

/// What a load gave.
#[derive(Debug, Default)]
struct Measured {
    /// How long each acknowledgement took.
    latencies: Vec<Duration>,
    /// How long the load lasted.
    lasted: Duration,
}

impl Measured {
    fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.lasted.as_secs_f64()
    }

    fn quantile(&mut self, of: f64) -> Duration {
        self.latencies.sort_unstable();
        let place = (self.latencies.len().saturating_sub(1)) as f64 * of;
        self.latencies.get(place as usize).copied().unwrap_or_default()
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let world = TestWorld::start_with_own_mongod().await?;
    world.create_streams().await?;
    let mut out = io::stdout().lock();
    if options.idle > 0 {
        writeln!(out, "{}", idle(&world, options.idle).await?)?;
    }
    if options.stalled > 0 {
        writeln!(out, "{}", stalled(&world, options.stalled).await?)?;
    }
    if options.abandoned > 0 {
        writeln!(out, "{}", abandoned(&world, options.abandoned).await?)?;
    }
    if options.sessions == 0 {
        return Ok(());
    }
    let command =
        world.processor("transcriber").arguments(["--max-frame-rate", "100000", "--max-session-connections", "2"]);
    let transcriber = RunningTranscriber::start(command).await?;
    writeln!(out, "{}", load("transcriber", transcriber.address, &options).await?)?;
    transcriber.process.terminate().await?;
    let by_hand = transcriber_by_hand::start(world.database().clone(), world.jetstream.clone()).await?;
    writeln!(out, "{}", load("by hand", by_hand, &options).await?)?;
    Ok(())
}

/// Opens a connection for each of so many sessions, some at the same time.
async fn open_all(
    address: SocketAddr,
    prefix: &'static str,
    connections: usize,
    mut opened: impl FnMut(Client) -> Result<(), TranscriberError>,
) -> Result<(), Box<dyn Error>> {
    let mut opening = JoinSet::new();
    for number in 0..connections {
        opening.spawn(async move {
            let mut client = Client::connect(address, prefix, &format!("{prefix}-{number}"), "", &[]).await?;
            client.until("ready").await?;
            Ok::<_, TranscriberError>(client)
        });
        if opening.len() >= OPENED_AT_ONCE
            && let Some(client) = opening.join_next().await
        {
            opened(client??)?;
        }
    }
    while let Some(client) = opening.join_next().await {
        opened(client??)?;
    }
    Ok(())
}

async fn idle(world: &TestWorld, connections: usize) -> Result<String, Box<dyn Error>> {
    let transcriber = RunningTranscriber::start(world.processor("transcriber")).await?;
    let before = Usage::of(transcriber.process.pid())?.resident;
    let begun = Instant::now();
    let mut clients = Vec::new();
    open_all(transcriber.address, "idle", connections, |client| {
        clients.push(client);
        Ok(())
    })
    .await?;
    let opened = begun.elapsed();
    let after = Usage::of(transcriber.process.pid())?.resident;
    let each = after.saturating_sub(before) / u64::try_from(connections)?;
    drop(clients);
    transcriber.process.terminate().await?;
    Ok(format!(
        "{connections} idle connections, a session each, opened in {opened:.1?}: {} MiB before, {} MiB with them, {each} bytes each",
        before >> 20,
        after >> 20
    ))
}

/// Clients that stop in the middle of a frame, and read nothing.
async fn stalled(world: &TestWorld, connections: usize) -> Result<String, Box<dyn Error>> {
    let command = world.processor("transcriber").arguments(["--silence-timeout", "20s"]);
    let transcriber = RunningTranscriber::start(command).await?;
    let before = Usage::of(transcriber.process.pid())?.resident;
    let mut streams = Vec::new();
    for number in 0..connections {
        let mut stream = TcpStream::connect(transcriber.address).await?;
        let upgrade = format!(
            "GET /v1/conversations/stalled/sessions/{number} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n\
             Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        stream.write_all(upgrade.as_bytes()).await?;
        // A masked text frame of 64 KiB (RFC 6455, section 5.2), and only a part of what it announces.
        let mut frame = vec![0x81, 0xFF, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        frame.resize(frame.len() + PART_OF_FRAME, b' ');
        stream.write_all(&frame).await?;
        streams.push(stream);
    }
    let peak = Usage::of(transcriber.process.pid())?.peak;
    let begun = Instant::now();
    let mut closing: JoinSet<_> = streams
        .into_iter()
        .map(|mut stream| async move {
            let mut rest = Vec::new();
            timeout(LONG, stream.read_to_end(&mut rest)).await.is_ok()
        })
        .collect();
    let mut closed = 0;
    while let Some(ended) = closing.join_next().await {
        closed += usize::from(ended?);
    }
    let lasted = begun.elapsed();
    let after = Usage::of(transcriber.process.pid())?.resident;
    transcriber.process.terminate().await?;
    Ok(format!(
        "{connections} connections that stop after 60 of the 64 KiB of a frame: {} MiB before, {} MiB at most; {closed} closed \
         by the transcriber after {lasted:.1?} (--silence-timeout 20s), {} MiB then",
        before >> 20,
        peak >> 20,
        after >> 20
    ))
}

/// Sessions that are opened, and whose connection breaks off as soon as they are ready.
async fn abandoned(world: &TestWorld, sessions: usize) -> Result<String, Box<dyn Error>> {
    let command = world.processor("transcriber").arguments(["--end-after-break", "20s", "--end-after-silence", "30s"]);
    let transcriber = RunningTranscriber::start(command).await?;
    let before = Usage::of(transcriber.process.pid())?.resident;
    let begun = Instant::now();
    open_all(transcriber.address, "abandoned", sessions, Client::break_off).await?;
    let opened = begun.elapsed();
    let documents = world.database().collection::<Document>(SESSIONS_COLLECTION);
    let ended = wait_until("all of them have ended", LONG, || async {
        let ended = doc! { "conversationId": "abandoned", "state": "ended" };
        match documents.count_documents(ended).await {
            Ok(count) if usize::try_from(count) == Ok(sessions) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    ended.await?;
    let lasted = begun.elapsed() - opened;
    let usage = Usage::of(transcriber.process.pid())?;
    let stats = world.database().run_command(doc! { "collStats": SESSIONS_COLLECTION }).await?;
    let number = |field| stats.get_i32(field).map(i64::from).or_else(|_| stats.get_i64(field)).unwrap_or_default();
    transcriber.process.terminate().await?;
    Ok(format!(
        "{sessions} sessions opened and abandoned in {opened:.1?}, all ended {lasted:.1?} later (30 s of silence are waited for): \
         {} MiB before, {} MiB at most, {} MiB then; a document of {} bytes each, {} MiB of files with all others, {} MiB of indexes",
        before >> 20,
        usage.peak >> 20,
        usage.resident >> 20,
        number("avgObjSize"),
        number("storageSize") >> 20,
        number("totalIndexSize") >> 20
    ))
}

/// As much as is taken, and then half of it.
async fn load(name: &str, address: SocketAddr, options: &Options) -> Result<String, Box<dyn Error>> {
    let lasts = Duration::from_secs(options.seconds);
    let run = |pause: Option<Duration>, prefix: &'static str| async move {
        let mut sockets = JoinSet::new();
        let begun = Instant::now();
        for number in 0..options.sessions {
            sockets.spawn(socket(address, format!("{prefix}-{number}"), pause, lasts));
        }
        let mut measured = Measured::default();
        while let Some(latencies) = sockets.join_next().await {
            measured.latencies.extend(latencies??);
        }
        measured.lasted = begun.elapsed();
        Ok::<_, Box<dyn Error>>(measured)
    };
    let most = run(None, "most").await?;
    let pause = Duration::from_secs_f64(options.sessions as f64 / (most.rate() / 2.0));
    let mut half = run(Some(pause), "half").await?;
    Ok(format!(
        "{name}: {:.0} segments/s over {} sockets; at {:.0}/s: median {:.1?}, 99 % {:.1?}",
        most.rate(),
        options.sessions,
        half.rate(),
        half.quantile(0.5),
        half.quantile(0.99)
    ))
}

/// Sends segments with a pause between them, or as many as the window lets through, and gives the time that each took.
async fn socket(
    address: SocketAddr,
    session: String,
    pause: Option<Duration>,
    lasts: Duration,
) -> Result<Vec<Duration>, TranscriberError> {
    let mut client = Client::connect(address, "load", &session, "", &[]).await?;
    client.until("ready").await?;
    let mut sent = Vec::new();
    let mut latencies = Vec::new();
    let begun = Instant::now();
    let mut ticks = interval(pause.unwrap_or(Duration::from_secs(3600)));
    ticks.tick().await;
    while begun.elapsed() < lasts || latencies.len() < sent.len() {
        let ends = begun.elapsed() >= lasts;
        let has_room = sent.len() - latencies.len() < WINDOW;
        if pause.is_none() && has_room && !ends {
            say(&mut client, &mut sent).await?;
            continue;
        }
        tokio::select! {
            _ = ticks.tick(), if pause.is_some() && !ends => say(&mut client, &mut sent).await?,
            frame = client.next() => {
                let frame = frame?;
                let number = frame["id"].as_str().and_then(|id| id.parse::<usize>().ok());
                if let Some(at) = number.and_then(|number| sent.get(number)) {
                    latencies.push(Instant::elapsed(at));
                }
            }
        }
    }
    drop(client);
    Ok(latencies)
}

async fn say(client: &mut Client, sent: &mut Vec<Instant>) -> Result<(), TranscriberError> {
    let id = sent.len().to_string();
    sent.push(Instant::now());
    client.send(&json!({ "id": id, "speaker": "Ana M.", "text": "This is what was said, and it is as long as most.", "startMs": 1 })).await
}
