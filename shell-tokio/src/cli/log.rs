//! What is logged, and how.

use clap::{Args, ValueEnum};

use super::parse;

/// What a service logs where nobody says otherwise.
const OF_A_SERVICE: &str = "info";
/// What any other command logs: what it is asked for goes to stdout.
const OF_A_COMMAND: &str = "warn";

/// What is logged, and how. Logs go to stderr.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Logging")]
pub struct LogArgs {
    /// How log lines are written
    #[arg(id = "log-format", long, env = "TRANSCRIPT_LOG_FORMAT", value_name = "FORMAT", default_value = "plain")]
    pub format: LogFormat,
    /// What is logged: a level (error, warn, info, debug, trace), or target=level pairs separated by commas. Not given: info
    /// for run and transcriber, warn for other commands
    #[arg(id = "log", long, env = "TRANSCRIPT_LOG", value_name = "FILTER", value_parser = parse::log_filter)]
    filter: Option<String>,
}

impl LogArgs {
    /// What is logged, in the words of `tracing-subscriber`'s `EnvFilter`.
    #[must_use]
    pub fn filter(&self) -> &str {
        self.filter.as_deref().unwrap_or(OF_A_COMMAND)
    }

    /// The same where nobody says what is logged, but as much as a service logs.
    #[must_use]
    pub fn of_a_service(mut self) -> Self {
        self.filter.get_or_insert_with(|| OF_A_SERVICE.to_owned());
        self
    }
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Plain,
    /// One JSON object a line.
    Json,
}
