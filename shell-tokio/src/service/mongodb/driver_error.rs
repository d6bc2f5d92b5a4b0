//! The driver's errors as the client knows them. Their texts go nowhere: they can quote a document.

use mongodb::{
    bson::{RawBsonRef, RawDocument},
    error::{Error, ErrorKind, WriteFailure},
};
use transcript_client::mongodb::{CommandError, error_codes};

/// What an error means to a command as a whole.
pub(crate) fn of(error: &Error) -> CommandError {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the driver's error kinds are open-ended")]
    match error.kind.as_ref() {
        ErrorKind::Command(refused) => CommandError::Code(refused.code),
        ErrorKind::ServerSelection { .. }
        | ErrorKind::Io(_)
        | ErrorKind::ConnectionPoolCleared { .. }
        | ErrorKind::DnsResolve { .. } => CommandError::Unreachable,
        ErrorKind::Authentication { .. } => CommandError::Denied,
        _ => match error.server_response().map(|reply| code(reply)) {
            // The text of a refusal can be cut inside a character, and the driver cannot read the reply then.
            Some(Some(code)) => CommandError::Code(code),
            Some(None) => CommandError::Undecodable,
            None => match error.kind.as_ref() {
                ErrorKind::InvalidResponse { .. } | ErrorKind::BsonDeserialization(_) => CommandError::Undecodable,
                ErrorKind::BsonSerialization(_) | ErrorKind::InvalidArgument { .. } => CommandError::Unencodable,
                _ => CommandError::Driver,
            },
        },
    }
}

/// The code of a refusal.
fn code(reply: &RawDocument) -> Option<i32> {
    reply.get("code").ok().flatten().and_then(RawBsonRef::as_i32)
}

/// A driver's error for people: no text of the server, and none that can quote a document.
#[must_use]
pub fn describe(error: &Error) -> String {
    let unreadable = || "a document or a reply cannot be read".to_owned();
    #[expect(clippy::wildcard_enum_match_arm, reason = "the driver's error kinds are open-ended")]
    match error.kind.as_ref() {
        ErrorKind::Command(refused) => error_codes::describe(refused.code),
        ErrorKind::Write(WriteFailure::WriteError(refused)) => error_codes::describe(refused.code),
        ErrorKind::Write(WriteFailure::WriteConcernError(unsure)) => error_codes::describe(unsure.code),
        ErrorKind::InsertMany(failed) => {
            let refused = failed.write_errors.iter().flatten().map(|error| error.code).next();
            let code = refused.or_else(|| failed.write_concern_error.as_ref().map(|error| error.code));
            code.map_or_else(unreadable, error_codes::describe)
        }
        ErrorKind::BulkWrite(failed) => {
            let refused = failed.write_errors.values().map(|error| error.code).next();
            let code = refused.or_else(|| failed.write_concern_errors.first().map(|error| error.code));
            code.map_or_else(unreadable, error_codes::describe)
        }
        ErrorKind::InvalidResponse { .. }
        | ErrorKind::BsonSerialization(_)
        | ErrorKind::BsonDeserialization(_)
        | ErrorKind::Bson(_) => match error.server_response().and_then(|reply| code(reply)) {
            Some(code) => error_codes::describe(code),
            None => unreadable(),
        },
        kind => {
            // A failed selection goes on with everything that is known of every server.
            let text = kind.to_string();
            text.split(" Topology: ").next().unwrap_or_default().to_owned()
        }
    }
}
