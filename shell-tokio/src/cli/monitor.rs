//! The arguments of what shows how processors stand, and of what holds them up.

use std::{net::SocketAddr, time::Duration};

use clap::{
    Args,
    builder::{BoolishValueParser, NonEmptyStringValueParser},
};

use super::{Options, parse};
use crate::secret::SecretFile;

/// How a running processor is looked at over HTTP.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(next_help_heading = "Monitoring")]
pub struct HttpArgs {
    /// Serve health, readiness, metrics and a status page at this address, such as 127.0.0.1:9464; port 0 is a free one, which
    /// the log names. Not given: none of it is served
    #[arg(id = "http", long, env = "TRANSCRIPT_HTTP", value_name = "ADDRESS")]
    pub address: Option<SocketAddr>,
    /// File with a token, read at the start, that requests must have as "Authorization: Bearer TOKEN"; /healthz and /readyz
    /// need none
    #[arg(id = "http-token-file", long, env = "TRANSCRIPT_HTTP_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<SecretFile>,
    /// Show on the page what was said in calls that are looked up: their summaries and transcripts; not given: only numbers
    #[arg(id = "page-content", long, env = "TRANSCRIPT_PAGE_CONTENT", value_parser = BoolishValueParser::new())]
    pub content: bool,
    /// Have the numbers of the stream and the consumer among the metrics too, under the names of the NATS exporter: only
    /// where there is no exporter, or they count twice
    #[arg(
        id = "metrics-of-the-broker", long, env = "TRANSCRIPT_METRICS_OF_THE_BROKER",
        value_parser = BoolishValueParser::new()
    )]
    pub broker: bool,
}

/// How a running transcriber is looked at over HTTP.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Monitoring")]
pub struct TranscriberHttpArgs {
    /// Serve health, readiness and metrics at this address, such as 127.0.0.1:9465; port 0 is a free one, which the log
    /// names. Not given: none of it is served
    #[arg(id = "http", long, env = "TRANSCRIPT_HTTP", value_name = "ADDRESS")]
    pub address: Option<SocketAddr>,
    /// File with a token, read at the start, that requests of /metrics must have as "Authorization: Bearer TOKEN"
    #[arg(id = "http-token-file", long, env = "TRANSCRIPT_HTTP_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<SecretFile>,
}

/// The settings of `status`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct StatusArgs {
    /// Ask the running processor that listens there (its --http); not given: ask NATS and MongoDB themselves
    #[arg(id = "from", long, env = "TRANSCRIPT_STATUS_FROM", value_name = "HOST:PORT")]
    pub from: Option<String>,
    /// File with the token of that processor
    #[arg(id = "token-file", long, env = "TRANSCRIPT_HTTP_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<SecretFile>,
    /// Show it again and again until interrupted
    #[arg(long)]
    pub watch: bool,
    /// How often, with --watch, 1s to 1h
    #[arg(
        long, value_name = "DURATION", default_value = "2s", requires = "watch", value_parser = parse::duration("1s", "1h")
    )]
    pub every: Duration,
    /// Print one JSON object; with --watch, one a line
    #[arg(long)]
    pub json: bool,
}

impl Options for StatusArgs {
    /// A process that is asked knows its servers.
    fn connects(&self) -> bool {
        self.from.is_none()
    }
}

/// The settings of `pause`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct PauseArgs {
    /// For how long, 1s to 30d; `resume` ends it sooner
    #[arg(long = "for", value_name = "DURATION", value_parser = parse::duration("1s", "30d"))]
    pub lasts: Duration,
}

impl Options for PauseArgs {}

/// The settings of `quiet`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct QuietArgs {
    /// The processor (its --name), as `status` lists it
    #[arg(value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub name: String,
    /// Have it take calls again
    #[arg(long)]
    pub off: bool,
}

impl Options for QuietArgs {}

/// The settings of `resume`: none of its own.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct ResumeArgs {}

impl Options for ResumeArgs {}
