//! The settings of `convert`.

use clap::Args;

use super::{CuesArg, SourceArgs};

/// The settings of `convert`.
#[derive(Debug, Clone, Args)]
pub struct ConvertArgs {
    /// Which files, and how they are read.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Whether captions are joined
    #[arg(long, value_enum, value_name = "HOW", default_value_t = CuesArg::Keep, help_heading = "Reading")]
    pub cues: CuesArg,
}
