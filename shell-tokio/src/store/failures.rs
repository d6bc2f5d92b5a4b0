//! What an error of MongoDB or its driver means to a job.

use mongodb::error::{Error, ErrorKind};
use transcript_core::{Failure, FailureKind};

/// An upsert met another one of the same `_id`.
pub(super) const DUPLICATE_KEY: i32 = 11000;

/// Names what happened to a command as a whole.
pub(super) fn of(error: &Error) -> Failure {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the driver's error kinds are open-ended")]
    let kind = match error.kind.as_ref() {
        ErrorKind::ServerSelection { .. } | ErrorKind::Io(_) | ErrorKind::ConnectionPoolCleared { .. } => {
            FailureKind::Unreachable
        }
        ErrorKind::Authentication { .. } => FailureKind::Denied,
        ErrorKind::Command(error) => of_code(error.code),
        _ => FailureKind::Busy,
    };
    Failure { kind, detail: describe(error) }
}

/// Names what happened by the server's error code (`src/mongo/base/error_codes.yml`). What is not known here is taken to
/// pass: trying again costs little, and a job's retry timeout ends.
pub(super) fn of_code(code: i32) -> FailureKind {
    match code {
        // Unauthorized, AuthenticationFailed.
        13 | 18 => FailureKind::Denied,
        // ExceededTimeLimit, MaxTimeMSExpired, WriteConcernFailed.
        262 | 50 | 64 => FailureKind::TimedOut,
        // BadValue, FailedToParse, TypeMismatch, DocumentValidationFailure, BSONObjectTooLarge, "object to insert too large".
        2 | 9 | 14 | 121 | 10334 | 17419 | 17420 => FailureKind::Rejected,
        _ => FailureKind::Busy,
    }
}

/// The code with its name, where it says why a document is refused. What the server says beside it may quote the document.
pub(super) fn name_of(code: i32) -> String {
    let name = match code {
        13 => "Unauthorized",
        112 => "WriteConflict",
        121 => "DocumentValidationFailure",
        10334 | 17419 | 17420 => "BSONObjectTooLarge",
        DUPLICATE_KEY => "DuplicateKey",
        _ => return format!("code {code}"),
    };
    format!("{name} ({code})")
}

/// The error in words, without the labels and wrappers that the driver's own text has.
fn describe(error: &Error) -> String {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the driver's error kinds are open-ended")]
    match error.kind.as_ref() {
        ErrorKind::Command(error) => format!("{} ({} {})", error.message, error.code, error.code_name),
        kind => {
            // A failed selection goes on with everything that is known of every server.
            let text = kind.to_string();
            text.split(" Topology: ").next().unwrap_or_default().to_owned()
        }
    }
}
