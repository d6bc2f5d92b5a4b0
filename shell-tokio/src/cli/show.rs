//! The settings of `show`.

use clap::Args;
use transcript_core::ids::Session;

use super::{Given, Options};

/// The settings of `show`.
#[derive(Debug, Clone, Args)]
pub struct ShowArgs {
    /// The call.
    #[command(flatten)]
    pub call: CallArgs,
    /// Print the call's segments in its order, and not its summary
    #[arg(long)]
    pub transcript: bool,
    /// Print the document as it is stored (relaxed extended JSON); with --transcript, one segment a line
    #[arg(long)]
    pub json: bool,
}

impl Options for ShowArgs {
    fn check(&self, _given: &mut Given<'_>) -> Result<(), String> {
        self.call.session().map(drop)
    }
}

/// The settings of `reprocess`.
#[derive(Debug, Clone, Args)]
pub struct ReprocessArgs {
    /// The call.
    #[command(flatten)]
    pub call: CallArgs,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

impl Options for ReprocessArgs {
    fn check(&self, _given: &mut Given<'_>) -> Result<(), String> {
        self.call.session().map(drop)
    }
}

/// A call.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct CallArgs {
    /// The call: its key, as summaries, audits and logs print it, or its conversationId and its sessionId
    #[arg(value_name = "CALL", required = true, num_args = 1..=2)]
    pub call: Vec<String>,
}

impl CallArgs {
    /// The call that is asked for.
    ///
    /// # Errors
    ///
    /// An id that cannot be one, or a text that is no key.
    pub fn session(&self) -> Result<Session, String> {
        match self.call.as_slice() {
            [key] => Session::of_key(key).map_err(|error| format!("{key:?} is no key of a call: {error}")),
            [conversation, session] => Session::new(conversation, session).map_err(|error| error.to_string()),
            _ => Err("a call is its key, or its conversationId and its sessionId".to_owned()),
        }
    }
}
