//! `cargo transcriber-storm`: calls through sockets while everything breaks, on real servers that are started for it.
//!
//! Ends with code 1 where anything is not as promised.

use std::{
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use clap::Parser;
use transcript_tests::transcriber_storm::StormPlan;

/// Kills transcribers and servers and swallows traffic while calls go on, and checks what is stored and announced
#[derive(Debug, Parser)]
#[command(name = "cargo transcriber-storm", max_term_width = 120)]
struct Options {
    /// Calls
    #[arg(long, value_name = "N", default_value_t = 500)]
    sessions: usize,
    /// Sockets of a call, which close at random
    #[arg(long, value_name = "N", default_value_t = 4)]
    sockets: usize,
    /// Segments of a socket
    #[arg(long, value_name = "N", default_value_t = 8)]
    segments: usize,
    /// How long the calls last, in seconds
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// Transcribers
    #[arg(long, value_name = "N", default_value_t = 2)]
    transcribers: usize,
    /// How often each transcriber is killed
    #[arg(long, value_name = "N", default_value_t = 5)]
    kills: usize,
    /// How long NATS is away, in seconds; 0 for not at all
    #[arg(long, value_name = "N", default_value_t = 10)]
    nats_away: u64,
    /// How often mongod is killed
    #[arg(long, value_name = "N", default_value_t = 1)]
    mongod_kills: usize,
    /// How often the network swallows what the connections of one transcriber send, without closing them
    #[arg(long, value_name = "N", default_value_t = 3)]
    swallows: usize,
    /// Repeats the instants of another run [default: a random one, which is printed]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    let plan = StormPlan {
        sessions: options.sessions,
        sockets: options.sockets,
        segments: options.segments,
        lasts: Duration::from_secs(options.seconds),
        transcribers: options.transcribers.max(1),
        kills: options.kills,
        nats_away: (options.nats_away > 0).then(|| Duration::from_secs(options.nats_away)),
        mongod_kills: options.mongod_kills,
        swallows: options.swallows,
        seed: options.seed.unwrap_or_else(|| fastrand::u64(..)),
    };
    let mut out = io::stdout().lock();
    // A closed pipe is no reason to end otherwise than the storm did.
    writeln!(out, "{plan:?}").ok();
    match plan.run().await {
        Ok(report) => {
            writeln!(out, "{report}").ok();
            ExitCode::SUCCESS
        }
        Err(error) => {
            writeln!(out, "not as promised: {error}\nrepeat it with --seed {}", plan.seed).ok();
            ExitCode::FAILURE
        }
    }
}
