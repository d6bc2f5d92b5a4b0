//! The settings of `play`.

use std::time::Duration;

use clap::Args;

use super::{CuesArg, SourceArgs, parse};
use crate::secret::SecretFile;

/// The settings of `play`.
#[derive(Debug, Clone, Args)]
pub struct PlayArgs {
    /// Which files, and how they are read.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Whether captions are joined
    #[arg(long, value_enum, value_name = "HOW", default_value_t = CuesArg::Join, help_heading = "Reading")]
    pub cues: CuesArg,
    /// How fast to play, 0 to 10000: 1 as spoken, 2 twice as fast, 0 all at once
    #[arg(long, value_name = "FACTOR", default_value = "0", value_parser = parse::speed)]
    pub speed: f64,
    /// How many of the last segments of each call are saved only after its end was published
    #[arg(long, value_name = "N", default_value = "0")]
    pub late: usize,
    /// How long after the end of the call those are saved, 0s to 24h
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = parse::duration("0s", "24h"))]
    pub late_by: Duration,
    /// How many of the last segments of each call are published and counted, but never saved
    #[arg(long, value_name = "N", default_value = "0")]
    pub lose: usize,
    /// Publish the end of each call twice
    #[arg(long)]
    pub repeat_end: bool,
    /// Deliver the segments to this transcriber, one WebSocket for each speaker: it stores and publishes them, and ends the
    /// calls. Neither NATS nor MongoDB is connected to
    #[arg(
        long, value_name = "ws://HOST:PORT", conflicts_with_all = ["late", "lose", "repeat_end"],
        value_parser = parse::websocket
    )]
    pub via: Option<String>,
    /// File whose first line is the token for that transcriber
    #[arg(long, value_name = "FILE", requires = "via")]
    pub token_file: Option<SecretFile>,
    /// Print one JSON object a call
    #[arg(long)]
    pub json: bool,
}
