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
    /// The most bytes of one page.
    pub max_page_bytes: u64,
    /// The bytes of text above which no job but the oldest asks for another page: what summaries under way hold, and what is
    /// reserved for the pages asked for.
    ///
    /// With it, a process of `transcript-processor` takes at most 160 MiB, twice these bytes, and 2 KiB for each job. Whatever
    /// the shape of the calls, the 160 MiB hold what is read and written at a time, once as bytes and once as documents: eight
    /// [pages](Self::max_page_bytes), a command of small calls (8 MiB), one of summaries (16 MiB), two pull requests (4 MiB
    /// each), and the program itself. One segment that is larger than a page comes on top.
    pub max_bytes_in_flight: u64,
    /// The consumer's `max_deliver`: a job of the last delivery is not given back, since nobody would get it again.
    pub max_deliver: u64,
    /// How long one step of a job is tried again, while its server serves others, before the job is given back. While the
    /// server serves nobody, there is no end to it. Where it is shorter than twice the longest pause between two retries, an
    /// outage of about that length is not told from a failure of a job that had failed before the outage began.
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
    /// How long a shell waits for a server's answer to one request before the request has failed. The core waits longer for
    /// the report: see [`Settings::answer_timeout`].
    #[serde(with = "micros")]
    pub request_timeout: Duration,
    /// The stream's duplicate window: for so long, a notification that is published twice is stored once.
    #[serde(with = "micros")]
    pub duplicate_window: Duration,
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
            max_page_bytes: 4 << 20,
            max_bytes_in_flight: 32 << 20,
            max_deliver: 5,
            retry_timeout: Duration::from_secs(600),
            nak_delay: Duration::from_secs(30),
            retry_base: Duration::from_millis(100),
            retry_cap: Duration::from_secs(5),
            request_timeout: Duration::from_secs(10),
            duplicate_window: Duration::from_secs(24 * 60 * 60),
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

    /// How long a report is waited for before its effect counts as failed: ten times the
    /// [request timeout](Self::request_timeout).
    ///
    /// The one rule about time that a shell must keep: it reports each effect within this time, and begins none later. An
    /// effect takes at most four requests, one after the other (read, write, write again, read back; or four reads), so that it can wait
    /// for six request timeouts until others are done. What was not begun by then is dropped: the core has asked anew.
    #[must_use]
    pub fn answer_timeout(&self) -> Duration {
        self.request_timeout * 10
    }

    /// How old the news may be that a summary is not announced, when its notification is asked for: half of the duplicate
    /// window, less the time that the effect may take. The other half is for the time between the notification and the mark
    /// of another processor. A window too short for all that is taken as it is.
    pub(crate) fn mark_is_fresh_for(&self) -> Duration {
        (self.duplicate_window.saturating_sub(self.answer_timeout()) / 2).max(self.request_timeout)
    }

    /// How long a message that used up its deliveries is left to a job in another process that may still work on it: all its
    /// quiet periods, and two of the longest pauses between two retries. JetStream counts the deliveries that its own outages
    /// cost as well, and nobody but that process knows that the job lives.
    #[must_use]
    pub fn others_finish_within(&self) -> Duration {
        self.quiet_period.saturating_mul(self.settle_rounds).saturating_add(self.retry_cap.saturating_mul(2))
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
            ("request timeout", self.request_timeout),
        ];
        let numbers = [
            ("settle rounds", u64::from(self.settle_rounds)),
            ("max in flight", u64::try_from(self.max_in_flight).unwrap_or(u64::MAX)),
            ("page size", u64::from(self.page_size)),
            ("max page bytes", self.max_page_bytes),
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
