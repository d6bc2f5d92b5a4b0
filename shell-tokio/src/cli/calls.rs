//! The arguments of `calls`.

use clap::{Args, builder::NonEmptyStringValueParser};

use super::{Since, parse};
use crate::operate::calls::CallState;

/// The settings of `calls`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct CallsArgs {
    /// Only calls that ended since then: a time span that ends now, such as 24h, or a moment such as 2026-11-29T08:00:00Z
    #[arg(long, value_name = "DURATION|TIMESTAMP", default_value = "24h", value_parser = parse::since)]
    pub since: Since,
    /// Only calls in this state; can be given several times
    #[arg(long = "state", value_name = "STATE", value_enum)]
    pub states: Vec<CallState>,
    /// Only incomplete calls: short for --state incomplete
    #[arg(long, conflicts_with = "states")]
    pub incomplete: bool,
    /// Only calls of this conversation
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub conversation: Option<String>,
    /// Only calls that were given up for a reason with this text in it
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub reason: Option<String>,
    /// Go on until interrupted: print each call once it is complete, incomplete or given up
    #[arg(long)]
    pub follow: bool,
    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,
}
