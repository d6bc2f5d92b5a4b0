//! What an operator can turn.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{micros, summary::Limits};

/// The processor's settings. Durations are recorded in microseconds.
///
/// A setting that a record does not name is as before there was that setting, which is therefore its default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Settings {
    /// How long the segment count has to stay the same before the call is taken to be settled.
    #[serde(with = "micros")]
    pub quiet_period: Duration,
    /// The most counts before the call is taken as it is.
    pub settle_rounds: u32,
    /// The consumer's ack wait: a heartbeat goes out every third of it.
    #[serde(with = "micros")]
    pub ack_wait: Duration,
    /// The most jobs that [`Processor::room`](crate::Processor::room) asks for.
    pub max_in_flight: usize,
    /// The most segments of one page.
    pub page_size: u32,
    /// The bytes of text above which no job but the oldest asks for another page: what summaries under way hold, and what is
    /// reserved for the pages asked for.
    pub max_bytes_in_flight: u64,
    /// The consumer's `max_deliver`: a job of the last delivery is not given back, since nobody would get it again.
    pub max_deliver: u64,
    /// How long one step of a job is tried again, while its server serves others, before the job is given back. While the
    /// server serves nobody, there is no end to it.
    #[serde(with = "micros")]
    pub retry_timeout: Duration,
    /// How long JetStream keeps back a job that was given back because its retry timeout was over.
    #[serde(with = "micros")]
    pub nak_delay: Duration,
    /// The pause before the first retry; doubled for each one after it.
    #[serde(with = "micros")]
    pub retry_base: Duration,
    /// The longest pause between two retries.
    #[serde(with = "micros")]
    pub retry_cap: Duration,
    /// How long a report is waited for before its effect counts as failed. Longer than any time-out of the shell.
    #[serde(with = "micros")]
    pub answer_timeout: Duration,
    /// How long jobs that have begun to save may go on once the processor drains; they are given back then, for which they
    /// have a second more.
    #[serde(with = "micros")]
    pub grace: Duration,
    /// Whether each notification has a subject of its own: [`Announcement::ProcessedOnce`](crate::contract::Announcement).
    pub announce_once: bool,
    /// Whether a summary that replaced an announced one is announced too.
    pub revise: bool,
    /// The bounds of a summary.
    pub limits: Limits,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            quiet_period: Duration::from_secs(2),
            settle_rounds: 5,
            ack_wait: Duration::from_secs(6),
            max_in_flight: 16_384,
            page_size: 1000,
            max_bytes_in_flight: 32 << 20,
            max_deliver: 5,
            retry_timeout: Duration::from_secs(600),
            nak_delay: Duration::from_secs(30),
            retry_base: Duration::from_millis(100),
            retry_cap: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(30),
            grace: Duration::from_secs(20),
            announce_once: false,
            revise: false,
            limits: Limits::default(),
        }
    }
}

impl Settings {
    /// The time between two heartbeats of a job.
    #[must_use]
    pub fn heartbeat_interval(&self) -> Duration {
        self.ack_wait / 3
    }

    /// How long a server may serve nobody before that counts as an outage.
    pub(crate) fn longest_silence(&self) -> Duration {
        (self.retry_timeout / 2).max(self.retry_cap)
    }

    /// Checks that the settings can work at all; tighter bounds are the shell's.
    ///
    /// # Errors
    ///
    /// The first setting that is zero and must not be.
    pub fn check(&self) -> Result<(), SettingsError> {
        let durations = [
            ("ack wait", self.heartbeat_interval()),
            ("retry base", self.retry_base),
            ("retry cap", self.retry_cap),
            ("answer timeout", self.answer_timeout),
        ];
        let numbers = [
            ("settle rounds", u64::from(self.settle_rounds)),
            ("max in flight", u64::try_from(self.max_in_flight).unwrap_or(u64::MAX)),
            ("page size", u64::from(self.page_size)),
        ];
        let too_short = durations.into_iter().find(|(_, value)| value.as_micros() == 0).map(|(name, _)| name);
        let zero = numbers.into_iter().find(|(_, value)| *value == 0).map(|(name, _)| name);
        too_short.or(zero).map_or(Ok(()), |name| Err(SettingsError { name }))
    }
}

/// A setting that is zero and must not be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{name} must not be zero")]
pub struct SettingsError {
    /// The setting.
    pub name: &'static str,
}
