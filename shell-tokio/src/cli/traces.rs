//! The settings of the commands that read traces.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum, builder::NonEmptyStringValueParser};
use transcript_core::ids::Session;
use transcript_trace::cut::Wanted;

/// The settings of `replay`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct ReplayArgs {
    /// Traces.
    #[command(flatten)]
    pub traces: TracePaths,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The settings of `trace`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct TraceArgs {
    /// Traces.
    #[command(flatten)]
    pub traces: TracePaths,
    /// The call to cut out.
    #[command(flatten)]
    pub call: TracedCallArgs,
    /// Where the cut goes, instead of stdout; an existing file is replaced, and the new one is for its owner only
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Show distributions: settle rounds, late segments, attempts, the time of each phase, and how jobs ended
    #[arg(long, conflicts_with_all = ["call", "session", "output"])]
    pub stats: bool,
    /// List the calls: when each was delivered first, how often, and what became of it
    #[arg(long, conflicts_with_all = ["call", "session", "output", "stats"])]
    pub calls: bool,
    /// Print JSON: an array of the files; with --stats one object; with --calls one object a call. A cut is JSON anyway
    #[arg(long, conflicts_with_all = ["call", "session"])]
    pub json: bool,
}

/// The settings of `timeline`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct TimelineArgs {
    /// Traces.
    #[command(flatten)]
    pub traces: TracePaths,
    /// The only call to draw.
    #[command(flatten)]
    pub call: TracedCallArgs,
    /// Where the drawing goes, instead of stdout; an existing file is replaced, and the new one is for its owner only
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// What to draw. Not given: what the ending of --output says (.html, .svg, .mmd, .txt), text on stdout
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Drawing>,
    /// The same as --format mermaid
    #[arg(long, conflicts_with = "format", conflicts_with = "output")]
    pub mermaid: bool,
}

/// A call in traces.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[group(skip)]
pub struct TracedCallArgs {
    /// Only this call, by its key as audits, logs and `trace --calls` print it
    #[arg(long, value_name = "KEY", conflicts_with_all = ["session", "conversation"])]
    pub call: Option<String>,
    /// Only this session
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub session: Option<String>,
    /// Only where it is a session of this conversation
    #[arg(long, value_name = "ID", requires = "session", value_parser = NonEmptyStringValueParser::new())]
    pub conversation: Option<String>,
}

impl TracedCallArgs {
    /// The call that is asked for; `None` where that is every one.
    ///
    /// # Errors
    ///
    /// A text that is no key.
    pub fn wanted(&self) -> Result<Option<Wanted>, String> {
        if let Some(key) = &self.call {
            let session =
                Session::of_key(key).map_err(|error| format!("--call {key:?} is no key of a call: {error}"))?;
            return Ok(Some(Wanted {
                session_id: session.session_id.to_string(),
                conversation_id: Some(session.conversation_id.to_string()),
            }));
        }
        let conversation_id = self.conversation.clone();
        Ok(self.session.clone().map(|session_id| Wanted { session_id, conversation_id }))
    }
}

impl TraceArgs {
    pub(super) fn check(&self) -> Result<(), String> {
        match (self.call.wanted()?, &self.output) {
            (None, Some(_)) => {
                Err("--output is for a call that is cut out: give --call or --session with it".to_owned())
            }
            (None, None) | (Some(_), _) => Ok(()),
        }
    }
}

/// What a timeline is drawn as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Drawing {
    /// A page that needs no network
    Html,
    /// A drawing
    Svg,
    /// A Mermaid diagram, for a chat
    Mermaid,
    /// Sentences
    Text,
}

impl TimelineArgs {
    /// What is asked for.
    ///
    /// # Errors
    ///
    /// A file whose name does not end in one of the known ways.
    pub fn drawing(&self) -> Result<Drawing, String> {
        match (self.format, &self.output) {
            (Some(format), _) => Ok(format),
            (None, None) if self.mermaid => Ok(Drawing::Mermaid),
            (None, None) => Ok(Drawing::Text),
            (None, Some(path)) => by_ending(path).ok_or_else(|| {
                format!("--output {}: must end in .html, .svg, .mmd or .txt, or give --format", path.display())
            }),
        }
    }
}

fn by_ending(path: &Path) -> Option<Drawing> {
    match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "html" | "htm" => Some(Drawing::Html),
        "svg" => Some(Drawing::Svg),
        "mmd" | "mermaid" => Some(Drawing::Mermaid),
        "txt" => Some(Drawing::Text),
        _ => None,
    }
}

/// Traces to be read.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct TracePaths {
    /// Files, directories (all their *.jsonl, in the order in which their processors started), or - for stdin
    #[arg(id = "trace", value_name = "TRACE", required = true)]
    pub paths: Vec<PathBuf>,
}
