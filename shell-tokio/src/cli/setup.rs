//! The settings of `setup`.

use clap::{Args, builder::BoolishValueParser};

use super::{Options, StreamSettings};

/// The settings of `setup`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct SetupArgs {
    /// What the streams and the consumer have to be like.
    #[command(flatten)]
    pub stream: StreamSettings,
    /// End a pause of the consumer, during which no call is handed out
    #[arg(long)]
    pub resume: bool,
    /// Also create the index that `run --revise` needs
    #[arg(long, env = "TRANSCRIPT_REVISE", value_parser = BoolishValueParser::new())]
    pub revise: bool,
    /// Print one JSON object: {"changes","kept","warnings"}, lists of sentences
    #[arg(long)]
    pub json: bool,
}

impl Options for SetupArgs {}
