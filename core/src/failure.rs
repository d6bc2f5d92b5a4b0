//! What can go wrong with an effect, sorted by what must be done about it.

use std::fmt;

use serde::{Deserialize, Serialize};

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
    /// What the effect is about does not exist any more, so that nothing can be done: a message that the stream no longer
    /// holds, and of which nothing else is known.
    Missing,
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreachable => "unreachable",
            Self::TimedOut => "timed out",
            Self::Busy => "busy",
            Self::Denied => "denied",
            Self::Rejected => "rejected",
            Self::Missing => "missing",
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
        FailureKind::Rejected | FailureKind::Missing => Remedy::DeadLetter,
    }
}
