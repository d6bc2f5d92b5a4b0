//! The settings of `transcriber`.

#![allow(rustdoc::bare_urls, reason = "the texts are those of --help, where a link is written as it is")]

use std::{net::SocketAddr, time::Duration};

use bytesize::ByteSize;
use clap::{Args, builder::NonEmptyStringValueParser};

use super::{Given, Options, RecordArgs, TranscriberHttpArgs, parse, servers::SERVERS};
use crate::{secret::SecretFile, transcriber::access::Origin};

const ACCESS: &str = "Access";
const LIMITS: &str = "Limits";
const ENDS: &str = "Ends of sessions";

/// The settings of `transcriber`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct TranscriberArgs {
    /// Address and port to listen on; port 0 for a free one. Without tokens only a loopback address is taken
    #[arg(long, env = "TRANSCRIPT_LISTEN", value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8090")]
    pub listen: SocketAddr,
    /// Name of this transcriber in logs and in the session documents; the machine's name and the process's number if not given
    #[arg(long, env = "TRANSCRIPT_NAME", value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub name: Option<String>,
    /// How long NATS or MongoDB may refuse a login, 1s to 1d. Then it ends with exit code 1, so that it is started again with
    /// the credentials that hold then
    #[arg(
        long, env = "TRANSCRIPT_LOGIN_TIMEOUT", value_name = "DURATION", default_value = "2m", help_heading = SERVERS,
        value_parser = parse::duration("1s", "1d")
    )]
    pub login_timeout: Duration,
    /// Who may connect.
    #[command(flatten)]
    pub access: TranscriberAccess,
    /// How much one client, one session and all together may take.
    #[command(flatten)]
    pub limits: TranscriberLimits,
    /// When a session is over.
    #[command(flatten)]
    pub ends: TranscriberEnds,
    /// How it is looked at.
    #[command(flatten)]
    pub http: TranscriberHttpArgs,
    /// What is recorded, and where.
    #[command(flatten)]
    pub record: RecordArgs,
}

impl Options for TranscriberArgs {
    fn login_timeout(&self) -> Option<Duration> {
        Some(self.login_timeout)
    }

    fn check(&self, given: &mut Given<'_>) -> Result<(), String> {
        if self.http.address.is_none() {
            given.has_no_effect_without("http-token-file", "http")?;
        }
        let has_tokens = self.access.token_file.is_some() || self.access.token_key_file.is_some();
        if !has_tokens && !self.listen.ip().is_loopback() {
            return Err(format!(
                "--listen {} can be reached from other machines, and nobody would need a token: give --token-file or \
                 --token-key-file, or listen on a loopback address such as 127.0.0.1",
                self.listen
            ));
        }
        self.record.check(given)
    }
}

/// Who may connect.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = ACCESS)]
pub struct TranscriberAccess {
    /// File with secrets, one a line, of at least 16 bytes: a client gives one of them as its token. Read at the start
    #[arg(
        long,
        env = "TRANSCRIPT_TOKEN_FILE",
        hide_env_values = true,
        value_name = "FILE",
        conflicts_with = "token_key_file"
    )]
    pub token_file: Option<SecretFile>,
    /// File with the key of signed tokens (JWT): the secret of HS256, of at least 32 bytes, or an Ed25519 public key (PEM) for
    /// EdDSA. Tokens must have exp; conversationId and sessionId bind them. Read at the start
    #[arg(long, env = "TRANSCRIPT_TOKEN_KEY_FILE", value_name = "FILE")]
    pub token_key_file: Option<SecretFile>,
    /// Audience (aud) that signed tokens must have
    #[arg(
        long, env = "TRANSCRIPT_TOKEN_AUDIENCE", value_name = "NAME", requires = "token_key_file",
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub token_audience: Option<String>,
    /// File with secrets of a Recall.ai workspace (whsec_...), one a line: whoever sends frames of the dialect recall must sign with
    /// one of them, and needs no token. Read at the start
    #[arg(long, env = "TRANSCRIPT_RECALL_SECRET_FILE", hide_env_values = true, value_name = "FILE")]
    pub recall_secret_file: Option<SecretFile>,
    /// File with auth tokens of a Twilio account, one a line: whoever opens a WebSocket of the dialect conversationrelay must sign
    /// with one of them, and needs no token. Needs --public-url. Read at the start
    #[arg(
        long,
        env = "TRANSCRIPT_TWILIO_TOKEN_FILE",
        hide_env_values = true,
        value_name = "FILE",
        requires = "public_url"
    )]
    pub twilio_token_file: Option<SecretFile>,
    /// What clients outside write before /v1, such as wss://transcriber.example: Twilio signs it
    #[arg(long, env = "TRANSCRIPT_PUBLIC_URL", value_name = "URL", value_parser = parse::public_url)]
    pub public_url: Option<String>,
    /// Origin whose web pages may connect, such as https://app.example, or * for any; several are separated by commas. Without
    /// it no web page may. Clients that are no web pages send no origin, and are not affected
    #[arg(long, env = "TRANSCRIPT_ALLOW_ORIGIN", value_name = "ORIGIN", value_delimiter = ',')]
    pub allow_origin: Vec<Origin>,
}

/// How much one client, one session and all together may take.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(next_help_heading = LIMITS)]
pub struct TranscriberLimits {
    /// Largest frame of a WebSocket, 1KiB to 512KiB; the body of a POST may have 16 times as much
    #[arg(
        long, env = "TRANSCRIPT_MAX_FRAME", value_name = "SIZE", default_value = "64KiB",
        value_parser = parse::size("64KiB", "1KiB", "512KiB")
    )]
    pub max_frame: ByteSize,
    /// Frames a second that are read of one WebSocket, 1 to 100000; faster clients are held back
    #[arg(
        long, env = "TRANSCRIPT_MAX_FRAME_RATE", value_name = "N", default_value = "500",
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    pub max_frame_rate: u32,
    /// Segments that are stored of one session, 1 to 10000000
    #[arg(
        long, env = "TRANSCRIPT_MAX_SEGMENTS", value_name = "N", default_value = "1000000",
        value_parser = clap::value_parser!(u64).range(1..=10_000_000)
    )]
    pub max_segments: u64,
    /// WebSockets of one session at this transcriber, 1 to 10000
    #[arg(
        long, env = "TRANSCRIPT_MAX_SESSION_CONNECTIONS", value_name = "N", default_value = "200",
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    pub max_session_connections: u32,
    /// Connections in total, 1 to 1000000
    #[arg(
        long, env = "TRANSCRIPT_MAX_CONNECTIONS", value_name = "N", default_value = "20000",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    pub max_connections: u32,
    /// Sessions that are served at the same time, those included that nobody is connected to and that wait for their end, 1 to
    /// 10000000
    #[arg(
        long, env = "TRANSCRIPT_MAX_SESSIONS", value_name = "N", default_value = "100000",
        value_parser = clap::value_parser!(u32).range(1..=10_000_000)
    )]
    pub max_sessions: u32,
    /// How long segments that were received may take to be stored once told to stop, 0s to 10m
    #[arg(
        long, env = "TRANSCRIPT_GRACE", value_name = "DURATION", default_value = "20s",
        value_parser = parse::duration("0s", "10m")
    )]
    pub grace: Duration,
    /// How long an answer of MongoDB or NATS is waited for before it counts as failed, 100ms to 10m
    #[arg(
        long, env = "TRANSCRIPT_REQUEST_TIMEOUT", value_name = "DURATION", default_value = "10s",
        value_parser = parse::duration("100ms", "10m")
    )]
    pub request_timeout: Duration,
    /// How long a client may take for the header of a request, 100ms to 10m
    #[arg(
        long, env = "TRANSCRIPT_HEADER_TIMEOUT", value_name = "DURATION", default_value = "10s",
        value_parser = parse::duration("100ms", "10m")
    )]
    pub header_timeout: Duration,
    /// How long nothing may come from a WebSocket, not even an answer to a ping, before its connection counts as broken,
    /// 1s to 1h; three pings are sent in that time
    #[arg(
        long, env = "TRANSCRIPT_SILENCE_TIMEOUT", value_name = "DURATION", default_value = "30s",
        value_parser = parse::duration("1s", "1h")
    )]
    pub silence_timeout: Duration,
}

/// When a session is over.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(next_help_heading = ENDS)]
pub struct TranscriberEnds {
    /// How long a session waits for another connection after its last one was closed cleanly, 0s to 1h
    #[arg(
        long, env = "TRANSCRIPT_END_AFTER_CLOSE", value_name = "DURATION", default_value = "2s",
        value_parser = parse::duration("0s", "1h")
    )]
    pub end_after_close: Duration,
    /// How long a session waits for another connection after its last one broke, 0s to 1h
    #[arg(
        long, env = "TRANSCRIPT_END_AFTER_BREAK", value_name = "DURATION", default_value = "20s",
        value_parser = parse::duration("0s", "1h")
    )]
    pub end_after_break: Duration,
    /// How long a session in which nobody ever said anything waits for another connection, 0s to 1d
    #[arg(
        long, env = "TRANSCRIPT_END_AFTER_SILENCE", value_name = "DURATION", default_value = "5m",
        value_parser = parse::duration("0s", "1d")
    )]
    pub end_after_silence: Duration,
    /// How long a session that is fed by requests alone waits for the next one, 0s to 1d
    #[arg(
        long, env = "TRANSCRIPT_END_AFTER_IDLE", value_name = "DURATION", default_value = "5m",
        value_parser = parse::duration("0s", "1d")
    )]
    pub end_after_idle: Duration,
    /// How long this transcriber keeps its sessions without a sign of life before another one takes them over, 1s to 10m
    #[arg(
        long, env = "TRANSCRIPT_LEASE", value_name = "DURATION", default_value = "10s",
        value_parser = parse::duration("1s", "10m")
    )]
    pub lease: Duration,
}
