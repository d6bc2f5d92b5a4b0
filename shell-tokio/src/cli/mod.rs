//! The command line: every setting, its environment variable, its default and its bounds.

mod parse;
mod source;
mod transcriber;

use std::{ffi::OsString, path::PathBuf, time::Duration};

use bytesize::ByteSize;
use clap::{
    Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum,
    builder::{BoolishValueParser, NonEmptyStringValueParser},
    error::ErrorKind,
    parser::ValueSource,
};
use transcript_core::{
    WallTime,
    ids::{IdError, Session},
};

pub use self::{
    source::{CuesArg, LabelsArg, SourceArgs},
    transcriber::{TranscriberAccess, TranscriberArgs, TranscriberEnds, TranscriberLimits},
};
use crate::secret::{MongodbUri, NatsUrls, Secret, SecretFile};

const SERVERS: &str = "Servers";
const LOGGING: &str = "Logging";
const STREAM: &str = "Stream and consumer";
const JOBS: &str = "Jobs";
const ANNOUNCE: &str = "Announcements";
const RECORD: &str = "Traces";

/// Turns the transcript of every ended call into one summary and one notification.
///
/// Every setting can be given as an environment variable; the command line wins. Durations are written like 500ms, 6s
/// or 24h. Exit codes: 0 done, 1 failed, 2 wrong usage or settings.
#[derive(Debug, Parser)]
#[command(name = "transcript-processor", version, propagate_version = true, max_term_width = 120)]
pub struct Cli {
    /// Where NATS is, and how to be let in.
    #[command(flatten)]
    pub nats: NatsArgs,
    /// Where MongoDB is.
    #[command(flatten)]
    pub mongodb: MongodbArgs,
    /// How long a first connection is tried for.
    #[arg(
        long, env = "TRANSCRIPT_CONNECT_TIMEOUT", value_name = "DURATION", default_value = "10s", global = true,
        help_heading = SERVERS, value_parser = parse::duration("100ms", "1h"),
        help = "How long to try to reach NATS and MongoDB at the start, 100ms to 1h"
    )]
    pub connect_timeout: Duration,
    /// How long a login may stay refused.
    #[arg(
        long, env = "TRANSCRIPT_LOGIN_TIMEOUT", value_name = "DURATION", default_value = "2m", global = true,
        help_heading = SERVERS, value_parser = parse::duration("1s", "1d"),
        help = "How long NATS or MongoDB may go on refusing a login while run runs, 1s to 1d; then it drains and ends with \
                exit code 1, so that it is started again with the credentials that hold then"
    )]
    pub login_timeout: Duration,
    /// What is logged, and how.
    #[command(flatten)]
    pub log: LogArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Reads the command line and the environment, and checks the settings one by one and against each other.
    ///
    /// # Errors
    ///
    /// Wrong usage, a setting out of its bounds, or settings that contradict each other. Asking for help or for the
    /// version is such an "error" too, as it is for clap.
    pub fn read(args: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let matches = Self::command().try_get_matches_from(args)?;
        let mut cli = Self::from_arg_matches(&matches)?;
        let given = matches.subcommand().and_then(|(_, given)| given.value_source("nats-url"));
        cli.nats.is_named = given.is_some_and(|source| source != ValueSource::DefaultValue);
        match cli.check() {
            Ok(()) => Ok(cli),
            Err(reason) => Err(Self::command().error(ErrorKind::ValueValidation, reason)),
        }
    }

    fn check(&self) -> Result<(), String> {
        self.nats.check()?;
        self.mongodb.check()?;
        match &self.command {
            Command::Run(args) => args.check(),
            Command::Transcriber(args) => args.check(),
            Command::DeadLetters(args) => args.check(),
            Command::Play(args) => args.source.check(),
            Command::Convert(args) => args.source.check(),
            Command::Setup(_) | Command::Audit(_) | Command::Replay(_) | Command::Trace(_) => Ok(()),
            Command::Timeline(args) => args.drawing().map(drop),
            Command::Show(args) => args.session().map(drop).map_err(|e| e.to_string()),
        }
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Process calls until told to stop (SIGTERM or SIGINT)
    Run(Box<RunArgs>),
    /// Take segments from WebSockets and requests, store and publish them, and end each call once nobody is connected to it
    ///
    /// Without --nats-url or NATS_URL segments are stored and acknowledged, and nothing is published.
    Transcriber(Box<TranscriberArgs>),
    /// Create the streams, the consumer and the index, repair what keeps processors from working, and say what was changed
    ///
    /// Of what exists only that is changed which is asked for by an option or its environment variable, or which keeps
    /// processors from working. Where the value of an option that is not given differs from the default, that is said.
    Setup(SetupArgs),
    /// Act as the transcriber: save and publish the segments of transcripts, then end their calls
    Play(PlayArgs),
    /// Print transcripts of other formats as our own lines; connects to no server
    ///
    /// Nothing is printed of a broken file, nor of those beside it: exit code 1, and the message names the line.
    Convert(ConvertArgs),
    /// Show the stored summary of a call
    Show(ShowArgs),
    /// List, show, redrive or discard the calls that were given up
    ///
    /// A call that cannot be processed is kept in the stream, on transcription.dead-letter, with the reason. Nothing else is
    /// written about it: what became of it is read from the stream and from the stored summaries. Exit code 1 where
    /// something was not done for one of the dead letters.
    DeadLetters(DeadLettersArgs),
    /// Hold the stream against the store: whether every call that ended is summarised once and announced once
    ///
    /// Names the calls that are missing (ended, and neither summarised nor under way nor given up), the summaries that were
    /// never announced, the calls that were announced more than once, those of which more segments are stored than their
    /// summary counts, the summaries whose mark names a message that does not announce the call, the dead letters that nobody
    /// took care of, and ends that can never be processed and of which nothing was kept. Exit code 0 where there are none of
    /// these, 1 where there are or where that could not be found out. Incomplete calls are named too, and are no problem. It
    /// can be run at any time, beside running processors.
    Audit(AuditArgs),
    /// Feed recorded traces to the state machine again, and compare what it says; connects to no server
    ///
    /// Exit code 0 where it says the same, 1 where it does not: the first difference is printed with what led to it, 2 where a
    /// trace cannot be read. A last line that is cut off, as a killed process leaves one, is only warned of.
    Replay(ReplayArgs),
    /// Say what is in recorded traces, cut the trace of one call out, or count; connects to no server
    ///
    /// Without an option it lists the files. Exit code 1 where there is no such call, 2 where a trace cannot be read.
    Trace(TraceArgs),
    /// Draw recorded traces: who said what to whom, and when; connects to no server
    ///
    /// Of a whole run the calls are drawn to which most has happened, and the drawing says what it left out. Exit code 1
    /// where there is no such call, 2 where a trace cannot be read.
    Timeline(TimelineArgs),
}

/// Where NATS is, and how to be let in.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = SERVERS)]
pub struct NatsArgs {
    /// NATS server, nats://HOST:PORT or tls://USER:PASSWORD@HOST:PORT; several of one cluster are separated by commas. Where
    /// one says tls://, every connection requires TLS, also to servers that the cluster advertises
    #[arg(
        id = "nats-url",
        long,
        env = "NATS_URL",
        hide_env_values = true,
        value_name = "URL",
        default_value = "nats://127.0.0.1:4222",
        global = true
    )]
    pub url: NatsUrls,
    /// Whether the server was named, on the command line or by the environment.
    #[arg(skip)]
    pub is_named: bool,
    /// NATS credentials file (JWT and seed), read again before each connection
    #[arg(id = "nats-creds", long, env = "NATS_CREDS", hide_env_values = true, value_name = "FILE", global = true)]
    pub creds: Option<SecretFile>,
    /// File with the seed of a NATS nkey, read again before each connection
    #[arg(id = "nats-nkey", long, env = "NATS_NKEY", hide_env_values = true, value_name = "FILE", global = true)]
    pub nkey: Option<SecretFile>,
    /// NATS user
    #[arg(
        id = "nats-user", long, env = "NATS_USER", value_name = "NAME", global = true,
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub user: Option<String>,
    /// NATS password; better given by environment than by command line, which every user of a machine can read
    #[arg(
        id = "nats-password",
        long,
        env = "NATS_PASSWORD",
        hide_env_values = true,
        value_name = "PASSWORD",
        allow_hyphen_values = true,
        global = true
    )]
    pub password: Option<Secret>,
    /// File with the NATS password, read again before each connection, so that it can be replaced while this runs
    #[arg(
        id = "nats-password-file",
        long,
        env = "NATS_PASSWORD_FILE",
        hide_env_values = true,
        value_name = "FILE",
        global = true
    )]
    pub password_file: Option<SecretFile>,
    /// File with the certificates (PEM) that a NATS server's certificate is checked against, instead of the system's;
    /// requires TLS, and is read again before each connection
    #[arg(id = "nats-tls-ca", long, env = "NATS_TLS_CA", hide_env_values = true, value_name = "FILE", global = true)]
    pub tls_ca: Option<SecretFile>,
    /// File with the certificate (PEM) to show to NATS; requires TLS
    #[arg(
        id = "nats-tls-cert",
        long,
        env = "NATS_TLS_CERT",
        hide_env_values = true,
        value_name = "FILE",
        global = true
    )]
    pub tls_cert: Option<SecretFile>,
    /// File with the private key (PEM) of --nats-tls-cert
    #[arg(id = "nats-tls-key", long, env = "NATS_TLS_KEY", hide_env_values = true, value_name = "FILE", global = true)]
    pub tls_key: Option<SecretFile>,
    /// Never talk to NATS without TLS
    #[arg(id = "nats-require-tls", long, env = "NATS_REQUIRE_TLS", global = true, value_parser = BoolishValueParser::new())]
    pub require_tls: bool,
    /// JetStream domain that holds the streams, where it is not that of the NATS server; a leaf node often has its own
    #[arg(
        id = "js-domain", long, env = "NATS_JS_DOMAIN", value_name = "DOMAIN", global = true,
        value_parser = parse::subject_token
    )]
    pub js_domain: Option<String>,
    /// Prefix of JetStream's API, where an account imports it under another one than $JS.API
    #[arg(
        id = "js-api-prefix", long, env = "NATS_JS_API_PREFIX", value_name = "SUBJECT", global = true,
        conflicts_with = "js-domain", value_parser = parse::subject
    )]
    pub js_api_prefix: Option<String>,
    /// Begin TLS before the NATS server has said anything, as a server with handshake_first wants it
    #[arg(id = "nats-tls-first", long, env = "NATS_TLS_FIRST", global = true, value_parser = BoolishValueParser::new())]
    pub tls_first: bool,
}

impl NatsArgs {
    /// The prefix of JetStream's API.
    #[must_use]
    pub fn js_api_prefix(&self) -> String {
        match (&self.js_domain, &self.js_api_prefix) {
            (Some(domain), _) => format!("$JS.{domain}.API"),
            (None, Some(prefix)) => prefix.clone(),
            (None, None) => "$JS.API".to_owned(),
        }
    }

    fn check(&self) -> Result<(), String> {
        let bad_url = |e| format!("--nats-url {}: {e}", self.url);
        self.url.servers().map_err(bad_url)?;
        let ways = [
            ("a user or token in --nats-url", self.url.login().map_err(bad_url)?.is_some()),
            ("--nats-creds", self.creds.is_some()),
            ("--nats-nkey", self.nkey.is_some()),
            ("--nats-user", self.user.is_some()),
        ];
        let given: Vec<_> = ways.into_iter().filter(|(_, given)| *given).map(|(flag, _)| flag).collect();
        if given.len() > 1 {
            return Err(format!("{} exclude each other: give one of them", given.join(" and ")));
        }
        let password = match (&self.password, &self.password_file) {
            (Some(_), Some(_)) => {
                return Err("--nats-password and --nats-password-file exclude each other: give one of them".to_owned());
            }
            (None, Some(_)) => ("--nats-password-file", true),
            (Some(_), None) => ("--nats-password", true),
            (None, None) => ("--nats-password or --nats-password-file", false),
        };
        both_or_none(("--nats-user", self.user.is_some()), password)?;
        both_or_none(("--nats-tls-cert", self.tls_cert.is_some()), ("--nats-tls-key", self.tls_key.is_some()))
    }
}

/// Where MongoDB is.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = SERVERS)]
pub struct MongodbArgs {
    /// MongoDB connection string
    #[arg(
        id = "mongodb-uri",
        long,
        env = "MONGODB_URI",
        hide_env_values = true,
        value_name = "URI",
        default_value = "mongodb://127.0.0.1:27017",
        global = true
    )]
    pub uri: MongodbUri,
    /// File with the MongoDB password of the user in --mongodb-uri, read at the start
    #[arg(
        id = "mongodb-password-file",
        long,
        env = "MONGODB_PASSWORD_FILE",
        hide_env_values = true,
        value_name = "FILE",
        global = true
    )]
    pub password_file: Option<SecretFile>,
    /// MongoDB database that holds segments and summaries
    #[arg(
        id = "mongodb-database", long, env = "MONGODB_DATABASE", value_name = "NAME", default_value = "transcripts",
        global = true, value_parser = parse::database_name
    )]
    pub database: String,
}

impl MongodbArgs {
    fn check(&self) -> Result<(), String> {
        self.uri.check().map_err(|e| format!("--mongodb-uri {}: {e}", self.uri))?;
        match (self.password_file.is_some(), self.uri.credentials()) {
            (true, (false, _)) => Err("--mongodb-password-file is given without a user in --mongodb-uri".to_owned()),
            (true, (true, true)) => {
                Err("--mongodb-password-file and a password in --mongodb-uri exclude each other: give one of them"
                    .to_owned())
            }
            (true, (true, false)) | (false, _) => Ok(()),
        }
    }
}

/// What is logged, and how. Logs go to stderr.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = LOGGING)]
pub struct LogArgs {
    /// How log lines are written
    #[arg(
        id = "log-format",
        long,
        env = "TRANSCRIPT_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "plain",
        global = true
    )]
    pub format: LogFormat,
    /// What is logged: a level (error, warn, info, debug, trace), or target=level pairs separated by commas
    #[arg(
        id = "log", long, env = "TRANSCRIPT_LOG", value_name = "FILTER", default_value = "info", global = true,
        value_parser = parse::log_filter
    )]
    pub filter: String,
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Plain,
    /// One JSON object a line.
    Json,
}

/// What the streams and the consumer have to be like, as far as it is asked for. What is not asked for stays as it is; what
/// does not exist yet is made with the values of [`StreamValues::default`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = STREAM)]
pub struct StreamSettings {
    /// How long the stream knows a message id again, 100ms to 365d; a notification is not repeated within it. Not given: as the
    /// stream has it, 24h for a new one
    #[arg(
        long, env = "TRANSCRIPT_DUPLICATE_WINDOW", value_name = "DURATION",
        value_parser = parse::duration("100ms", "365d")
    )]
    pub duplicate_window: Option<Duration>,
    /// On how many servers of a NATS cluster the streams are kept: 1, 3 or 5. Not given: as the streams have it, 1 for new ones
    #[arg(long, env = "TRANSCRIPT_REPLICAS", value_name = "N", value_parser = parse::replicas)]
    pub replicas: Option<u8>,
    /// How long after its processor's last sign of life a call is given to another, 300ms to 1h. All processors share it. Not
    /// given: as the consumer has it, 6s for a new one
    #[arg(
        long, env = "TRANSCRIPT_ACK_WAIT", value_name = "DURATION",
        value_parser = parse::duration("300ms", "1h")
    )]
    pub ack_wait: Option<Duration>,
    /// How many times a call is handed out at most, 1 to 1000. All processors share it. Not given: as the consumer has it, 5
    /// for a new one
    #[arg(
        long, env = "TRANSCRIPT_MAX_DELIVER", value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=1000)
    )]
    pub max_deliver: Option<u16>,
    /// How many calls all processors together may have in hand, 1 to 10000000. Not given: as the consumer has it, 65536 for a
    /// new one
    #[arg(
        long, env = "TRANSCRIPT_MAX_ACK_PENDING", value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=10_000_000)
    )]
    pub max_ack_pending: Option<u32>,
}

/// What the streams and the consumer are like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamValues {
    /// How long the stream knows a message id again.
    pub duplicate_window: Duration,
    /// On how many servers the stream is kept.
    pub replicas: u64,
    /// How long the consumer waits for a sign of life.
    pub ack_wait: Duration,
    /// How often the consumer hands a call out at most.
    pub max_deliver: u64,
    /// How many calls the consumer has handed out at most without an acknowledgement; `u64::MAX` where there is no limit.
    pub max_ack_pending: u64,
}

impl Default for StreamValues {
    fn default() -> Self {
        Self {
            duplicate_window: Duration::from_secs(24 * 60 * 60),
            replicas: 1,
            ack_wait: Duration::from_secs(6),
            max_deliver: 5,
            max_ack_pending: 65_536,
        }
    }
}

impl StreamSettings {
    /// What is asked for, and `values` for the rest.
    #[must_use]
    pub fn or(&self, values: StreamValues) -> StreamValues {
        StreamValues {
            duplicate_window: self.duplicate_window.unwrap_or(values.duplicate_window),
            replicas: self.replicas.map_or(values.replicas, u64::from),
            ack_wait: self.ack_wait.unwrap_or(values.ack_wait),
            max_deliver: self.max_deliver.map_or(values.max_deliver, u64::from),
            max_ack_pending: self.max_ack_pending.map_or(values.max_ack_pending, u64::from),
        }
    }
}

/// The settings of `setup`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct SetupArgs {
    /// What the streams and the consumer have to be like.
    #[command(flatten)]
    pub stream: StreamSettings,
    /// End a pause of the consumer, during which no call is handed out
    #[arg(long)]
    pub resume: bool,
}

/// The settings of `run`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct RunArgs {
    /// What the streams and the consumer have to be like.
    #[command(flatten)]
    pub stream: StreamSettings,
    /// How jobs are done.
    #[command(flatten)]
    pub jobs: RunSettings,
    /// What is announced, and how often.
    #[command(flatten)]
    pub announce: AnnounceSettings,
    /// What is recorded, and where.
    #[command(flatten)]
    pub record: RecordArgs,
    /// Name of this processor in dead letters and logs; the machine's name and the process's number if not given
    #[arg(
        long, env = "TRANSCRIPT_NAME", value_name = "NAME", help_heading = JOBS,
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub name: Option<String>,
}

impl RunArgs {
    fn check(&self) -> Result<(), String> {
        let in_flight = self.jobs.max_in_flight;
        if let Some(pending) = self.stream.max_ack_pending.filter(|pending| *pending < in_flight) {
            return Err(format!(
                "--max-ack-pending {pending} is less than --max-in-flight {in_flight}: \
                 the consumer would never hand out as many calls as this processor may have in hand; \
                 raise the one or lower the other"
            ));
        }
        let (base, cap) = (self.jobs.retry_base, self.jobs.retry_cap);
        if base > cap {
            return Err(format!(
                "--retry-base {} is more than --retry-cap {}: the first pause cannot be longer than the longest",
                humantime::format_duration(base),
                humantime::format_duration(cap)
            ));
        }
        let (size, keep) = (self.record.max_size, self.record.keep);
        if keep.as_u64() / 2 < size.as_u64() {
            return Err(format!(
                "--record-keep {keep} is less than twice --record-max-size {size}: \
                 no trace would be kept beside the one that is written; raise the one or lower the other"
            ));
        }
        Ok(())
    }
}

/// How jobs are done.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(next_help_heading = JOBS)]
pub struct RunSettings {
    /// How long to wait between two counts of a call's segments, 0s to 1h
    #[arg(
        long, env = "TRANSCRIPT_QUIET_PERIOD", value_name = "DURATION", default_value = "2s",
        value_parser = parse::duration("0s", "1h")
    )]
    pub quiet_period: Duration,
    /// How many counts at most before a call is summed up although its segments still arrive, 1 to 1000
    #[arg(
        long, env = "TRANSCRIPT_SETTLE_ROUNDS", value_name = "N", default_value = "5",
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    pub settle_rounds: u32,
    /// How many calls this processor has in hand at most, 1 to 1000000
    #[arg(
        long, env = "TRANSCRIPT_MAX_IN_FLIGHT", value_name = "N", default_value = "16384",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    pub max_in_flight: u32,
    /// How many segments of a call are loaded at a time, 1 to 100000
    #[arg(
        long, env = "TRANSCRIPT_PAGE_SIZE", value_name = "N", default_value = "1000",
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    pub page_size: u32,
    /// How many bytes of text calls that are being summed up may take together, 1MiB to 1TiB; above it only one call at a
    /// time goes on
    #[arg(
        long, env = "TRANSCRIPT_MAX_BYTES_IN_FLIGHT", value_name = "SIZE", default_value = "32MiB",
        value_parser = parse::size
    )]
    pub max_bytes_in_flight: ByteSize,
    /// How long a failing step is tried again, while its server serves other calls, before the call is given back, 0s to
    /// 24h; while the server serves none, there is no end to it
    #[arg(
        long, env = "TRANSCRIPT_RETRY_TIMEOUT", value_name = "DURATION", default_value = "10m",
        value_parser = parse::duration("0s", "24h")
    )]
    pub retry_timeout: Duration,
    /// How long a call that is given back rests before it is handed out again, 0s to 1h
    #[arg(
        long, env = "TRANSCRIPT_NAK_DELAY", value_name = "DURATION", default_value = "30s",
        value_parser = parse::duration("0s", "1h")
    )]
    pub nak_delay: Duration,
    /// Pause before a failed step is tried again for the first time, 1ms to 1m; each next one is twice as long
    #[arg(
        long, env = "TRANSCRIPT_RETRY_BASE", value_name = "DURATION", default_value = "100ms",
        value_parser = parse::duration("1ms", "1m")
    )]
    pub retry_base: Duration,
    /// Longest pause between two tries, 1ms to 1h
    #[arg(
        long, env = "TRANSCRIPT_RETRY_CAP", value_name = "DURATION", default_value = "5s",
        value_parser = parse::duration("1ms", "1h")
    )]
    pub retry_cap: Duration,
    /// How long an answer of MongoDB or NATS is waited for before the step counts as failed, 100ms to 10m
    #[arg(
        long, env = "TRANSCRIPT_REQUEST_TIMEOUT", value_name = "DURATION", default_value = "10s",
        value_parser = parse::duration("100ms", "10m")
    )]
    pub request_timeout: Duration,
    /// How long calls in hand may take to be finished once told to stop, 0s to 10m
    #[arg(
        long, env = "TRANSCRIPT_GRACE", value_name = "DURATION", default_value = "20s",
        value_parser = parse::duration("0s", "10m")
    )]
    pub grace: Duration,
}

/// What is announced, and how often.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(next_help_heading = ANNOUNCE)]
pub struct AnnounceSettings {
    /// Announce each call on a subject of its own, transcript.processed.KEY, which the stream takes once for as long as it
    /// keeps the message; subscribers then listen to transcript.processed.*
    #[arg(long, env = "TRANSCRIPT_ANNOUNCE_ONCE", value_parser = BoolishValueParser::new())]
    pub announce_once: bool,
    /// Replace a summary when segments arrive after it was stored, and announce that on transcript.revised
    #[arg(long, env = "TRANSCRIPT_REVISE", value_parser = BoolishValueParser::new())]
    pub revise: bool,
    /// How often to look for such segments, 100ms to 1h
    #[arg(
        long, env = "TRANSCRIPT_REVISE_EVERY", value_name = "DURATION", default_value = "30s",
        value_parser = parse::duration("100ms", "1h")
    )]
    pub revise_every: Duration,
    /// How long after its last change a summary is looked after, 1s to 365d
    #[arg(
        long, env = "TRANSCRIPT_REVISE_WITHIN", value_name = "DURATION", default_value = "1h",
        value_parser = parse::duration("1s", "365d")
    )]
    pub revise_within: Duration,
}

/// What is recorded, and where.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(next_help_heading = RECORD)]
pub struct RecordArgs {
    /// Write a trace of everything that is decided into this directory, without a word of the calls; `replay`, `trace` and
    /// `timeline` read it
    #[arg(id = "record", long, env = "TRANSCRIPT_RECORD", value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Keep the words of the calls in the trace
    #[arg(id = "record-content", long, env = "TRANSCRIPT_RECORD_CONTENT", value_parser = BoolishValueParser::new())]
    pub content: bool,
    /// Begin another file when a trace's is larger, 1MiB to 1TiB
    #[arg(
        id = "record-max-size", long, env = "TRANSCRIPT_RECORD_MAX_SIZE", value_name = "SIZE", default_value = "64MiB",
        value_parser = parse::size
    )]
    pub max_size: ByteSize,
    /// Begin another file when a trace's is older, 1s to 365d
    #[arg(
        id = "record-max-age", long, env = "TRANSCRIPT_RECORD_MAX_AGE", value_name = "DURATION", default_value = "1h",
        value_parser = parse::duration("1s", "365d")
    )]
    pub max_age: Duration,
    /// What all traces in the directory may take together, 1MiB to 1TiB: those that were written to longest ago are removed,
    /// whichever processor wrote them, unless one still does
    #[arg(
        id = "record-keep", long, env = "TRANSCRIPT_RECORD_KEEP", value_name = "SIZE", default_value = "1GiB",
        value_parser = parse::size
    )]
    pub keep: ByteSize,
}

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
    /// Deliver the segments to this transcriber, one WebSocket for each speaker: it stores and publishes them, and ends the calls.
    /// Neither NATS nor MongoDB is connected to
    #[arg(long, value_name = "ws://HOST:PORT", conflicts_with_all = ["late", "lose", "repeat_end"], value_parser = parse::websocket)]
    pub via: Option<String>,
    /// File whose first line is the token for that transcriber
    #[arg(long, value_name = "FILE", requires = "via")]
    pub token_file: Option<SecretFile>,
}

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

/// The settings of `show`.
#[derive(Debug, Clone, Args)]
pub struct ShowArgs {
    /// conversationId of the call
    pub conversation: String,
    /// sessionId of the call
    pub session: String,
    /// Print the document as it is stored (relaxed extended JSON)
    #[arg(long)]
    pub json: bool,
}

impl ShowArgs {
    /// The call that is asked for.
    ///
    /// # Errors
    ///
    /// An id that cannot be one.
    pub fn session(&self) -> Result<Session, IdError> {
        Session::new(&self.conversation, &self.session)
    }
}

/// The settings of `dead-letters`.
#[derive(Debug, Clone, Args)]
pub struct DeadLettersArgs {
    /// What to do with them.
    #[command(subcommand)]
    pub command: DeadLettersCommand,
}

impl DeadLettersArgs {
    #[expect(clippy::wildcard_enum_match_arm, reason = "only one of them has settings that depend on each other")]
    fn check(&self) -> Result<(), String> {
        match &self.command {
            DeadLettersCommand::Redrive { sequences, payload: Some(_), .. } if sequences.len() != 1 => {
                Err("--payload is for one dead letter: give one SEQ".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// What to do with dead letters.
#[derive(Debug, Clone, Subcommand)]
pub enum DeadLettersCommand {
    /// One line for each: its place in the stream, when and why it was given up, and what became of it (open, redriven,
    /// settled; "now N" where it was redriven and given up again as dead letter N)
    List {
        /// Print an array of JSON objects
        #[arg(long)]
        json: bool,
    },
    /// Everything about one, with the message that could not be processed
    Show {
        /// Place of the dead letter in the stream, as `list` shows it
        #[arg(value_name = "SEQ", value_parser = clap::value_parser!(u64).range(1..))]
        sequence: u64,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Publish the end of the call again, which counts its attempts anew; harmless to repeat
    Redrive {
        /// Places of the dead letters in the stream, as `list` shows them
        #[arg(
            value_name = "SEQ", required_unless_present = "all", conflicts_with = "all",
            value_parser = clap::value_parser!(u64).range(1..)
        )]
        sequences: Vec<u64>,
        /// All that are open: neither settled nor redriven
        #[arg(long)]
        all: bool,
        /// File with what the end should have said, {"conversationId","sessionId","publishedSegments"}, or - for stdin: it is
        /// published in the place of a message that can never be processed
        #[arg(long, value_name = "FILE", conflicts_with = "all")]
        payload: Option<PathBuf>,
        /// Print an array of JSON objects
        #[arg(long)]
        json: bool,
    },
    /// Remove dead letters from the stream for good: their calls are not processed any more, and `audit` does not miss them
    Discard {
        /// Places of the dead letters in the stream, as `list` shows them
        #[arg(value_name = "SEQ", required = true, value_parser = clap::value_parser!(u64).range(1..))]
        sequences: Vec<u64>,
        /// Print an array of JSON objects
        #[arg(long)]
        json: bool,
    },
}

/// Which dead letters are redriven.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// Those at these places of the stream.
    These(Vec<u64>),
    /// Those that are open.
    AllOpen,
}

/// The settings of `audit`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct AuditArgs {
    /// Look only at what was stored in the stream since then: a time span that ends now, such as 24h, or a moment such as
    /// 2026-11-29T08:00:00Z. A call whose end was published again counts by its latest end; notifications from before
    /// are not seen, nor summaries whose end is no longer in the stream
    #[arg(long, value_name = "DURATION|TIMESTAMP", value_parser = parse::since)]
    pub since: Option<Since>,
    /// Publish the ends of the missing, the never announced and the stale calls again, for a running processor; correct
    /// marks that name a message which does not announce the call; keep ends that can never be processed as dead letters.
    /// Harmless to repeat
    #[arg(long)]
    pub repair: bool,
    /// Name all incomplete calls, not only the first ones
    #[arg(long)]
    pub incomplete: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The settings of `replay`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct ReplayArgs {
    /// Traces.
    #[command(flatten)]
    pub traces: TracePaths,
}

/// The settings of `trace`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct TraceArgs {
    /// Traces.
    #[command(flatten)]
    pub traces: TracePaths,
    /// Cut out what concerns this session: a trace that replays
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub session: Option<String>,
    /// Only where it is a session of this conversation
    #[arg(long, value_name = "ID", requires = "session", value_parser = NonEmptyStringValueParser::new())]
    pub conversation: Option<String>,
    /// Where the cut goes, instead of stdout
    #[arg(short, long, value_name = "FILE", requires = "session")]
    pub output: Option<PathBuf>,
    /// Show distributions: settle rounds, late segments, attempts, the time of each phase, and how jobs ended
    #[arg(long, conflicts_with_all = ["session", "output"])]
    pub stats: bool,
    /// List the calls: when each was delivered first, how often, and what became of it
    #[arg(long, conflicts_with_all = ["session", "output", "stats"])]
    pub calls: bool,
}

/// The settings of `timeline`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct TimelineArgs {
    /// Traces.
    #[command(flatten)]
    pub traces: TracePaths,
    /// Only this session
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub session: Option<String>,
    /// Only where it is a session of this conversation
    #[arg(long, value_name = "ID", requires = "session", value_parser = NonEmptyStringValueParser::new())]
    pub conversation: Option<String>,
    /// Where the drawing goes; its ending says what it is: .html (a page that needs no network), .svg, .mmd (Mermaid), .txt
    #[arg(short, long, value_name = "FILE", required_unless_present = "mermaid")]
    pub output: Option<PathBuf>,
    /// Write a Mermaid diagram to stdout, for a chat
    #[arg(long, conflicts_with = "output")]
    pub mermaid: bool,
}

/// What a timeline is drawn as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drawing {
    /// A page.
    Html,
    /// A drawing.
    Svg,
    /// Mermaid's text.
    Mermaid,
    /// Sentences.
    Text,
}

impl TimelineArgs {
    /// What is asked for.
    ///
    /// # Errors
    ///
    /// A file whose name does not end in one of the known ways.
    pub fn drawing(&self) -> Result<Drawing, String> {
        let Some(path) = &self.output else { return Ok(Drawing::Mermaid) };
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("html" | "htm") => Ok(Drawing::Html),
            Some("svg") => Ok(Drawing::Svg),
            Some("mmd" | "mermaid") => Ok(Drawing::Mermaid),
            Some("txt") => Ok(Drawing::Text),
            Some(_) | None => Err(format!("--output {}: must end in .html, .svg, .mmd or .txt", path.display())),
        }
    }
}

/// Traces to be read.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct TracePaths {
    /// Files, directories (all their *.jsonl, in the order in which their processors started), or - for stdin
    #[arg(id = "trace", value_name = "TRACE", required = true)]
    pub paths: Vec<PathBuf>,
}

/// From when on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// So long before now.
    Ago(Duration),
    /// From this moment on.
    At(WallTime),
}

impl Since {
    /// The moment that is meant at `now`.
    #[must_use]
    pub fn moment(self, now: WallTime) -> WallTime {
        match self {
            Self::Ago(span) => {
                let millis = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
                WallTime::from_millis(now.as_millis().saturating_sub(millis).max(0))
            }
            Self::At(moment) => moment,
        }
    }
}

fn both_or_none(one: (&str, bool), other: (&str, bool)) -> Result<(), String> {
    match (one, other) {
        ((given, true), (missing, false)) | ((missing, false), (given, true)) => {
            Err(format!("{given} is given without {missing}: give both or none"))
        }
        ((_, true), (_, true)) | ((_, false), (_, false)) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
