//! What can go wrong with an effect, sorted by what must be done about it.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{input::Report, time::Time};

/// An effect that failed, or whose outcome is not known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What happened, as far as the shell can tell.
    pub kind: FailureKind,
    /// The words of the server or driver, for people; never a word of the call.
    pub detail: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.detail)
    }
}

/// What happened to an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FailureKind {
    /// The server could not be reached, or nobody answers there.
    Unreachable,
    /// No answer in time: the effect may have happened or may still happen.
    TimedOut,
    /// The server answered that it cannot do it now: an election, a write conflict, a duplicate id still in process.
    Busy,
    /// The server refused the credentials or the permission; an operator can mend that while jobs wait.
    Denied,
    /// The server refused this very document or message, and will refuse it again.
    Rejected,
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreachable => "unreachable",
            Self::TimedOut => "timed out",
            Self::Busy => "busy",
            Self::Denied => "denied",
            Self::Rejected => "rejected",
        })
    }
}

/// What must be done about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// Ask for the same effect again after a pause, while heartbeats go on.
    TryAgain,
    /// No attempt will end otherwise: keep the message as a dead letter, for people.
    DeadLetter,
}

pub(crate) fn classify(kind: FailureKind) -> Remedy {
    match kind {
        FailureKind::Unreachable | FailureKind::TimedOut | FailureKind::Busy | FailureKind::Denied => Remedy::TryAgain,
        FailureKind::Rejected => Remedy::DeadLetter,
    }
}

/// When each server last did what it was asked.
///
/// The retry timeout is for failures of one job. While a server serves nobody, the failure is the server's: giving jobs back then
/// would only use up their attempts.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Served {
    store: Option<Serving>,
    broker: Option<Serving>,
}

/// A row of successes without a longer pause between two of them.
#[derive(Debug, Clone, Copy)]
struct Serving {
    since: Time,
    last: Time,
}

/// Who carries out an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    Store,
    Broker,
}

impl Served {
    /// Keeps in mind that an effect succeeded.
    pub(crate) fn reported(&mut self, now: Time, report: &Report, pause: Duration) {
        match report {
            Report::Counted { .. } | Report::Loaded(_) | Report::Saved(_) | Report::Marked => {
                served(&mut self.store, now, pause);
            }
            Report::Published { .. }
            | Report::DeadLettered { .. }
            | Report::Republished { .. }
            | Report::Acknowledged => {
                served(&mut self.broker, now, pause);
            }
            Report::Failed(_) => {}
        }
    }

    /// Keeps in mind that a message came.
    pub(crate) fn delivered(&mut self, now: Time, pause: Duration) {
        served(&mut self.broker, now, pause);
    }

    /// Since when the server has served others without a longer pause than `pause`; `None` where it does not.
    pub(crate) fn since(self, server: Server, now: Time, pause: Duration) -> Option<Time> {
        let serving = match server {
            Server::Store => self.store,
            Server::Broker => self.broker,
        };
        serving.filter(|serving| now.since(serving.last) <= pause).map(|serving| serving.since)
    }
}

fn served(serving: &mut Option<Serving>, now: Time, pause: Duration) {
    let since = serving.filter(|it| now.since(it.last) <= pause).map_or(now, |it| it.since);
    *serving = Some(Serving { since, last: now });
}
