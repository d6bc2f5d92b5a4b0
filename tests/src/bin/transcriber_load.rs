//! `cargo transcriber-load`: what the transcriber takes through sockets, on real servers that are started for it.
//!
//! The memory of idle connections; acknowledged segments a second; the time until an acknowledgement at half of that; and the
//! latter two of a loop written by hand, which inserts and publishes one segment after the other.

use std::{
    error::Error,
    io::{self, Write},
    net::SocketAddr,
    time::Duration,
};

use clap::Parser;
use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{Instant, interval},
};
use transcript_tests::{
    load::Usage,
    transcriber::{Client, RunningTranscriber, TranscriberError},
    transcriber_by_hand,
    world::TestWorld,
};

/// Segments of one socket that may wait for their acknowledgement where as much is sent as is taken.
const WINDOW: usize = 32;

/// Load tests the transcriber: idle connections, throughput, latency at half load, beside a loop written by hand
#[derive(Debug, Parser)]
#[command(name = "cargo transcriber-load", max_term_width = 120)]
struct Options {
    /// Idle connections
    #[arg(long, value_name = "N", default_value_t = 9000)]
    idle: usize,
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
    let command =
        world.processor("transcriber").arguments(["--max-frame-rate", "100000", "--max-session-connections", "2"]);
    let transcriber = RunningTranscriber::start(command).await?;
    writeln!(out, "{}", load("transcriber", transcriber.address, &options).await?)?;
    transcriber.process.terminate().await?;
    let by_hand = transcriber_by_hand::start(world.database().clone(), world.jetstream.clone()).await?;
    writeln!(out, "{}", load("by hand", by_hand, &options).await?)?;
    Ok(())
}

async fn idle(world: &TestWorld, connections: usize) -> Result<String, Box<dyn Error>> {
    let transcriber = RunningTranscriber::start(world.processor("transcriber")).await?;
    let before = Usage::of(transcriber.process.pid())?.resident;
    let begun = Instant::now();
    let mut opening = JoinSet::new();
    let mut clients = Vec::new();
    for number in 0..connections {
        let address = transcriber.address;
        opening.spawn(async move {
            let mut client = Client::connect(address, "idle", &format!("session-{number}"), "", &[]).await?;
            client.until("ready").await?;
            Ok::<_, TranscriberError>(client)
        });
        if opening.len() >= 64
            && let Some(client) = opening.join_next().await
        {
            clients.push(client??);
        }
    }
    while let Some(client) = opening.join_next().await {
        clients.push(client??);
    }
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
        let window = sent.len() - latencies.len() < WINDOW;
        let sends = !ends && if pause.is_some() { false } else { window };
        if sends {
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
