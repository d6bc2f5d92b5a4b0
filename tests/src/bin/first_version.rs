//! The worker of the crash table's rows *first version*: see [`transcript_tests::crash::first_version`].

use std::time::Duration;

use clap::Parser;
use transcript_tests::crash::{CrashError, first_version};

/// A worker with the faults that the project began with, for the crash table
#[derive(Debug, Parser)]
#[command(name = "first_version")]
enum Command {
    /// Work until killed; NATS_URL, MONGODB_URI and MONGODB_DATABASE name the servers
    Run {
        /// How long the segment count must stay the same, in milliseconds
        #[arg(long, value_name = "MS")]
        quiet_period_ms: u64,
    },
}

#[tokio::main]
async fn main() -> Result<(), CrashError> {
    let Command::Run { quiet_period_ms } = Command::parse();
    first_version::run(Duration::from_millis(quiet_period_ms)).await
}
