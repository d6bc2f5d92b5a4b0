//! The settings of `dead-letters`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Given, Online, Options, servers::AnyCommand};

/// The settings of `dead-letters`.
#[derive(Debug, Clone, Args)]
pub struct DeadLettersArgs {
    /// What to do with them.
    #[command(subcommand)]
    pub command: DeadLettersCommand,
}

/// What to do with dead letters.
#[derive(Debug, Clone, Subcommand)]
pub enum DeadLettersCommand {
    /// List them: place in the stream, when and why each was given up, and what became of it
    ///
    /// What became of it is open, redriven or settled. "now N" stands where it was redriven and given up again as dead letter N.
    #[command(after_help = "Examples:
  transcript-processor dead-letters list
  transcript-processor dead-letters list --json")]
    List(Box<Online<ListArgs>>),
    /// Show one, with the message that could not be processed
    #[command(after_help = "Examples:
  transcript-processor dead-letters show 149
  transcript-processor dead-letters show 149 --json")]
    Show(Box<Online<ShowDeadLetterArgs>>),
    /// Publish the end of the call again, which counts its attempts anew; harmless to repeat
    ///
    /// Exit code 1 where this was not done for one of them.
    #[command(after_help = "Examples:
  transcript-processor dead-letters redrive --all
  transcript-processor dead-letters redrive 149 153
  transcript-processor dead-letters redrive 149 --payload end.json")]
    Redrive(Box<Online<RedriveArgs>>),
    /// Remove dead letters for good: their calls are not processed any more, and `audit` does not miss them
    ///
    /// Exit code 1 where this was not done for one of them.
    #[command(after_help = "Examples:
  transcript-processor dead-letters discard 149")]
    Discard(Box<Online<DiscardArgs>>),
}

/// The settings of `dead-letters list`.
#[derive(Debug, Clone, Args)]
pub struct ListArgs {
    /// Print an array of JSON objects
    #[arg(long)]
    pub json: bool,
}

/// The settings of `dead-letters show`.
#[derive(Debug, Clone, Args)]
pub struct ShowDeadLetterArgs {
    /// Place of the dead letter in the stream, as `list` shows it
    #[arg(value_name = "SEQ", value_parser = clap::value_parser!(u64).range(1..))]
    pub sequence: u64,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

/// The settings of `dead-letters redrive`.
#[derive(Debug, Clone, Args)]
pub struct RedriveArgs {
    /// Places of the dead letters in the stream, as `list` shows them; or --all
    #[arg(value_name = "SEQ", conflicts_with = "all", value_parser = clap::value_parser!(u64).range(1..))]
    pub sequences: Vec<u64>,
    /// All that are open: neither settled nor redriven
    #[arg(long)]
    pub all: bool,
    /// File with what the end should have said, {"conversationId","sessionId","publishedSegments"}, or - for stdin: it is
    /// published in the place of a message that can never be processed
    #[arg(long, value_name = "FILE", conflicts_with = "all")]
    pub payload: Option<PathBuf>,
    /// Print an array of JSON objects
    #[arg(long)]
    pub json: bool,
}

/// The settings of `dead-letters discard`.
#[derive(Debug, Clone, Args)]
pub struct DiscardArgs {
    /// Places of the dead letters in the stream, as `list` shows them
    #[arg(value_name = "SEQ", required = true, value_parser = clap::value_parser!(u64).range(1..))]
    pub sequences: Vec<u64>,
    /// Print an array of JSON objects
    #[arg(long)]
    pub json: bool,
}

/// Which dead letters are redriven.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// Those at these places of the stream.
    These(Vec<u64>),
    /// Those that are open.
    AllOpen,
}

impl DeadLettersCommand {
    pub(super) fn any(&self) -> &dyn AnyCommand {
        match self {
            Self::List(online) => &**online,
            Self::Show(online) => &**online,
            Self::Redrive(online) => &**online,
            Self::Discard(online) => &**online,
        }
    }
}

impl Options for ListArgs {}
impl Options for ShowDeadLetterArgs {}
impl Options for DiscardArgs {}

impl Options for RedriveArgs {
    fn check(&self, _given: &mut Given<'_>) -> Result<(), String> {
        match (&self.payload, self.sequences.as_slice()) {
            (None, []) if !self.all => {
                Err("say which dead letters: their places SEQ …, or --all that are open".to_owned())
            }
            (Some(_), [] | [_, _, ..]) => Err("--payload is for one dead letter: give one SEQ".to_owned()),
            (None, _) | (Some(_), [_]) => Ok(()),
        }
    }
}

impl RedriveArgs {
    /// Which dead letters are meant.
    #[must_use]
    pub fn which(&self) -> Which {
        if self.all { Which::AllOpen } else { Which::These(self.sequences.clone()) }
    }
}
