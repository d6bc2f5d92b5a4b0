//! What an operator can turn.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use transcript_core::micros;

use crate::input::StreamState;

/// The transcriber's settings. Durations are recorded in microseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// The name of this transcriber, for people. Two that run at the same time may share one.
    pub name: Arc<str>,
    /// What makes this start different from every other one: at least 64 random bits, written without `.`, `%` and `:`.
    pub nonce: Arc<str>,
    /// The stream's state at the start.
    pub stream: StreamState,
    /// How long after a clean close of the last socket a session ends.
    #[serde(with = "micros")]
    pub end_after_close: Duration,
    /// How long after a broken close of the last socket a session ends; also how long a successor waits for the clients of a dead
    /// instance.
    #[serde(with = "micros")]
    pub end_after_break: Duration,
    /// How long after the last close a session ends in which nobody ever said anything.
    #[serde(with = "micros")]
    pub end_after_silence: Duration,
    /// How long after its last request a session ends that was delivered to by requests alone.
    #[serde(with = "micros")]
    pub end_after_idle: Duration,
    /// How long an instance that does not renew its lease is waited for. It is renewed every third of it.
    #[serde(with = "micros")]
    pub lease: Duration,
    /// The pause between two looks for entries of dead instances.
    #[serde(with = "micros")]
    pub orphans_interval: Duration,
    /// The most entries that one look brings.
    pub orphans_limit: u32,
    /// The most connections of this instance.
    pub max_connections: usize,
    /// The most sessions that this instance serves, those that wait for their end included. Sessions of a dead instance are taken
    /// over beyond it.
    #[serde(default = "max_sessions")]
    pub max_sessions: usize,
    /// The most connections of one session on this instance.
    pub max_session_connections: usize,
    /// The most segments of one session, judged by its next index.
    pub max_session_segments: u64,
    /// The most segments of one batch.
    pub max_batch_segments: usize,
    /// The most bytes of text of one batch; a larger segment is a batch of its own.
    pub max_batch_bytes: usize,
    /// The most bytes of text of one segment, its speaker included.
    pub max_segment_bytes: usize,
    /// The most bytes that one connection may have waiting to be stored before it is not read any more.
    pub max_connection_bytes: usize,
    /// The most bytes that one session may have waiting, to be stored or to be published, before its connections are not read any more.
    pub max_session_bytes: usize,
    /// The same of all sessions together.
    pub max_bytes: usize,
    /// The pause before the first retry; doubled for each one after it.
    #[serde(with = "micros")]
    pub retry_base: Duration,
    /// The longest pause between two retries.
    #[serde(with = "micros")]
    pub retry_cap: Duration,
    /// How long a shell waits for a server's answer to one request before the request has failed.
    #[serde(with = "micros")]
    pub request_timeout: Duration,
    /// How long a shutdown waits until everything that was received is stored, and begun ends are done.
    #[serde(with = "micros")]
    pub grace: Duration,
}

impl Settings {
    /// The defaults, for an instance of this name and nonce.
    #[must_use]
    pub fn new(name: &str, nonce: &str, stream: StreamState) -> Self {
        Self {
            name: name.into(),
            nonce: nonce.into(),
            stream,
            end_after_close: Duration::from_secs(2),
            end_after_break: Duration::from_secs(20),
            end_after_silence: Duration::from_secs(300),
            end_after_idle: Duration::from_secs(300),
            lease: Duration::from_secs(10),
            orphans_interval: Duration::from_secs(5),
            orphans_limit: 1000,
            max_connections: 20_000,
            max_sessions: max_sessions(),
            max_session_connections: 200,
            max_session_segments: 1_000_000,
            max_batch_segments: 100,
            max_batch_bytes: 256 << 10,
            max_segment_bytes: 64 << 10,
            max_connection_bytes: 256 << 10,
            max_session_bytes: 1 << 20,
            max_bytes: 256 << 20,
            retry_base: Duration::from_millis(100),
            retry_cap: Duration::from_secs(5),
            request_timeout: Duration::from_secs(10),
            grace: Duration::from_secs(20),
        }
    }

    /// The time between two renewals of the lease.
    #[must_use]
    pub fn renew_interval(&self) -> Duration {
        self.lease / 3
    }

    /// How long a report is waited for before its effect counts as failed. A shell reports each effect within this time, and begins
    /// none later.
    #[must_use]
    pub fn answer_timeout(&self) -> Duration {
        self.request_timeout * 10
    }

    /// Checks that the settings can work at all; tighter bounds are the shell's.
    ///
    /// # Errors
    ///
    /// The first setting that is zero or empty and must not be.
    pub fn check(&self) -> Result<(), SettingsError> {
        let durations = [
            ("lease", self.renew_interval()),
            ("orphans interval", self.orphans_interval),
            ("retry base", self.retry_base),
            ("retry cap", self.retry_cap),
            ("request timeout", self.request_timeout),
        ];
        let sizes = [
            ("name", self.name.len()),
            ("nonce", self.nonce.len()),
            ("orphans limit", usize::try_from(self.orphans_limit).unwrap_or(usize::MAX)),
            ("max connections", self.max_connections),
            ("max sessions", self.max_sessions),
            ("max session connections", self.max_session_connections),
            ("max session segments", usize::try_from(self.max_session_segments).unwrap_or(usize::MAX)),
            ("max batch segments", self.max_batch_segments),
            ("max segment bytes", self.max_segment_bytes),
            ("max connection bytes", self.max_connection_bytes),
            ("max session bytes", self.max_session_bytes),
            ("max bytes", self.max_bytes),
        ];
        let too_short = durations.into_iter().find(|(_, value)| value.as_micros() == 0).map(|(name, _)| name);
        let zero = sizes.into_iter().find(|(_, value)| *value == 0).map(|(name, _)| name);
        too_short.or(zero).map_or(Ok(()), |name| Err(SettingsError { name }))
    }
}

/// The default, also for settings that were recorded without it.
fn max_sessions() -> usize {
    100_000
}

/// A setting that is zero or empty and must not be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{name} must not be zero or empty")]
pub struct SettingsError {
    /// The setting.
    pub name: &'static str,
}
