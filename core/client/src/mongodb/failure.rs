//! What a failed command means to its members.

use std::fmt;

use transcript_core::{Failure, FailureKind};

use super::{
    command::{CommandKind, WriteError},
    error_codes::{self, Class},
};

/// Why a command failed as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandError {
    /// The server refused it with this code.
    Code(i32),
    /// No server can be reached, or the connection broke. The command may have been carried out.
    Unreachable,
    /// There was no answer in time. The command may have been carried out.
    TimedOut,
    /// No server let the user in.
    Denied,
    /// The reply cannot be read. The command may have been carried out.
    Undecodable,
    /// The reply, or the command, is larger than a message may be.
    TooLarge,
    /// A member cannot be written as BSON. Nothing was sent.
    Unencodable,
    /// The driver gave up for another reason.
    Driver,
}

impl CommandError {
    /// Whether one member may be at fault, so that the others would do without it.
    pub(super) fn may_be_a_members(self) -> bool {
        match self {
            Self::Code(code) => match error_codes::class(code) {
                Class::Refused | Class::Unknown | Class::Duplicate => true,
                Class::Busy | Class::TimedOut | Class::Denied | Class::Unusable => false,
            },
            Self::Undecodable | Self::TooLarge | Self::Unencodable => true,
            Self::Unreachable | Self::TimedOut | Self::Denied | Self::Driver => false,
        }
    }

    /// The failure of a member that was alone in its command, or of each member where none of them is at fault.
    #[must_use]
    pub fn failure(self, of: CommandKind) -> Failure {
        let kind = match self {
            Self::Code(code) => error_codes::kind(error_codes::class(code)),
            Self::Unreachable => FailureKind::Unreachable,
            Self::TimedOut => FailureKind::TimedOut,
            Self::Denied => FailureKind::Denied,
            Self::Undecodable | Self::Driver => FailureKind::Busy,
            Self::TooLarge | Self::Unencodable => FailureKind::Rejected,
        };
        // A read refuses no document.
        let kind = if kind == FailureKind::Rejected && !of.writes() { FailureKind::Busy } else { kind };
        Failure { kind, detail: format!("MongoDB did not {of}: {self}") }
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Code(code) => return f.write_str(&error_codes::describe(*code)),
            Self::Unreachable => "no server can be reached",
            Self::TimedOut => "no answer in time",
            Self::Denied => "the login is refused",
            Self::Undecodable => "the reply cannot be read",
            Self::TooLarge => "the message is too large",
            Self::Unencodable => "it cannot be written as a document",
            Self::Driver => "the driver gave up",
        })
    }
}

/// The failure of a member whose write has an error of its own.
pub(super) fn of_member(error: &WriteError) -> Failure {
    let kind = error_codes::kind(error_codes::class(error.code));
    let index = error.index.as_ref().map(|name| format!(" on index {name}")).unwrap_or_default();
    let refused = error_codes::describe(error.code);
    Failure { kind, detail: format!("MongoDB refused the summary: {refused}{index}") }
}

/// The failure of a member that was written, but not for certain.
pub(super) fn of_concern(code: i32) -> Failure {
    let kind = match error_codes::kind(error_codes::class(code)) {
        // Whatever the reason, no document is refused.
        FailureKind::Rejected => FailureKind::Busy,
        kind @ (FailureKind::Unreachable
        | FailureKind::TimedOut
        | FailureKind::Busy
        | FailureKind::Denied
        | FailureKind::Missing) => kind,
    };
    let detail = format!("MongoDB does not know whether the write will last: {}", error_codes::describe(code));
    Failure { kind, detail }
}
