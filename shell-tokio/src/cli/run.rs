//! The settings of `run`.

use std::{path::PathBuf, time::Duration};

use bytesize::ByteSize;
use clap::{
    Args,
    builder::{BoolishValueParser, NonEmptyStringValueParser},
};

use super::{Given, HttpArgs, Options, StreamSettings, parse, servers::SERVERS};

const JOBS: &str = "Jobs";
const ANNOUNCE: &str = "Announcements";
const RECORD: &str = "Traces";

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
    /// How it is looked at.
    #[command(flatten)]
    pub http: HttpArgs,
    /// Name of this processor in dead letters and logs; the machine's name and the process's number if not given
    #[arg(
        long, env = "TRANSCRIPT_NAME", value_name = "NAME", help_heading = JOBS,
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub name: Option<String>,
    /// How long NATS or MongoDB may refuse a login while run runs, 1s to 1d. Then it drains and ends with exit code 1, so that
    /// it is started again with the credentials that hold then
    #[arg(
        long, env = "TRANSCRIPT_LOGIN_TIMEOUT", value_name = "DURATION", default_value = "2m", help_heading = SERVERS,
        value_parser = parse::duration("1s", "1d")
    )]
    pub login_timeout: Duration,
}

impl Options for RunArgs {
    fn login_timeout(&self) -> Option<Duration> {
        Some(self.login_timeout)
    }

    fn check(&self, given: &mut Given<'_>) -> Result<(), String> {
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
        if !self.announce.revise {
            given.has_no_effect_without("revise-every", "revise")?;
            given.has_no_effect_without("revise-within", "revise")?;
        }
        if self.http.address.is_none() {
            given.has_no_effect_without("http-token-file", "http")?;
            given.has_no_effect_without("metrics-of-the-broker", "http")?;
            given.has_no_effect_without("page-content", "http")?;
        }
        self.record.check(given)
    }
}

impl RecordArgs {
    pub(super) fn check(&self, given: &mut Given<'_>) -> Result<(), String> {
        let (size, keep) = (self.max_size, self.keep);
        if keep.as_u64() / 2 < size.as_u64() {
            return Err(format!(
                "--record-keep {keep} is less than twice --record-max-size {size}: \
                 no trace would be kept beside the one that is written; raise the one or lower the other"
            ));
        }
        if self.directory.is_none() {
            for id in ["record-content", "record-max-size", "record-max-age", "record-keep"] {
                given.has_no_effect_without(id, "record")?;
            }
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
        value_parser = parse::size("64MiB", "1MiB", "1TiB")
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
        id = "revise-every", long, env = "TRANSCRIPT_REVISE_EVERY", value_name = "DURATION", default_value = "30s",
        value_parser = parse::duration("100ms", "1h")
    )]
    pub revise_every: Duration,
    /// How long after its last change a summary is looked after, 1s to 365d
    #[arg(
        id = "revise-within", long, env = "TRANSCRIPT_REVISE_WITHIN", value_name = "DURATION", default_value = "1h",
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
        value_parser = parse::size("64MiB", "1MiB", "1TiB")
    )]
    pub max_size: ByteSize,
    /// Begin another file when a trace's is older, 1s to 365d
    #[arg(
        id = "record-max-age", long, env = "TRANSCRIPT_RECORD_MAX_AGE", value_name = "DURATION", default_value = "1h",
        value_parser = parse::duration("1s", "365d")
    )]
    pub max_age: Duration,
    /// What all traces in the directory may take together, 1MiB to 1TiB: those that were written to longest ago are removed,
    /// whoever wrote them, unless somebody still does
    #[arg(
        id = "record-keep", long, env = "TRANSCRIPT_RECORD_KEEP", value_name = "SIZE", default_value = "1GiB",
        value_parser = parse::size("64MiB", "1MiB", "1TiB")
    )]
    pub keep: ByteSize,
}
