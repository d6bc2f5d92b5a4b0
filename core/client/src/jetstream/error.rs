//! JetStream's errors, by the server's own codes.
//!
//! An answer carries two numbers. `code` is like one of HTTP and says little: 10002 (the account is full) comes with 400 and
//! 10158 (an id that is in process) with 409. `err_code` is the server's own, and it is what is sorted here. Source of codes
//! and names: `server/errors.json` of nats-server.

use serde::Deserialize;
use transcript_core::{Failure, FailureKind};

/// The consumer does not exist.
pub const CONSUMER_NOT_FOUND: u16 = 10_014;
/// The stream does not hold the message.
pub const NO_MESSAGE_FOUND: u16 = 10_037;
/// The stream does not exist.
pub const STREAM_NOT_FOUND: u16 = 10_059;
/// The subject holds a message already, or its last one is another than expected.
pub const WRONG_LAST_SEQUENCE: u16 = 10_071;
/// The same, where the server does not say which the last one is.
pub const WRONG_LAST_SEQUENCE_UNTOLD: u16 = 10_164;

/// The error of an answer. The server's text is left out: it can quote what was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct ApiError {
    /// The server's own code; 0 where it gave none.
    #[serde(default)]
    pub err_code: u16,
    /// The code that is like one of HTTP.
    #[serde(default)]
    pub code: u16,
}

/// The codes that an answer to this client's requests can carry, what the server calls them, and what they mean for the
/// effect. What an operator or freed space can mend is tried again: it never gives a call up.
const ERRORS: [(u16, &str, FailureKind); 32] = [
    (10_002, "resource limits of the account exceeded", FailureKind::Busy),
    (10_004, "incomplete results", FailureKind::Busy),
    (10_006, "JetStream is not clustered", FailureKind::Busy),
    (10_007, "JetStream cluster not assigned to this server", FailureKind::Busy),
    (10_008, "JetStream temporarily unavailable", FailureKind::Busy),
    (10_009, "JetStream cluster cannot handle the request", FailureKind::Busy),
    (10_010, "JetStream clustering required", FailureKind::Busy),
    (CONSUMER_NOT_FOUND, "consumer not found", FailureKind::Unreachable),
    (10_023, "insufficient resources", FailureKind::Busy),
    (10_028, "insufficient memory", FailureKind::Busy),
    (10_035, "account not found", FailureKind::Denied),
    (NO_MESSAGE_FOUND, "no message found", FailureKind::Busy),
    (10_039, "JetStream not enabled for the account", FailureKind::Denied),
    (10_041, "Raft error", FailureKind::Busy),
    (10_047, "insufficient storage", FailureKind::Busy),
    (10_051, "stream failure", FailureKind::Busy),
    (10_053, "stream limits exceeded", FailureKind::Busy),
    (10_054, "message larger than the stream's max_msg_size", FailureKind::Busy),
    (STREAM_NOT_FOUND, "stream not found", FailureKind::Unreachable),
    (10_060, "the subject belongs to another stream", FailureKind::Busy),
    (WRONG_LAST_SEQUENCE, "wrong last sequence", FailureKind::Busy),
    (10_076, "JetStream not enabled", FailureKind::Busy),
    (10_077, "the stream could not store the message", FailureKind::Busy),
    (10_096, "stream not valid", FailureKind::Busy),
    // The headers are this client's own, and they stay as they are.
    (10_097, "headers larger than 64 KiB", FailureKind::Rejected),
    (10_109, "the stream is sealed", FailureKind::Busy),
    (10_118, "stream offline", FailureKind::Busy),
    (10_119, "consumer offline", FailureKind::Busy),
    (10_120, "no JetStream limit for the account", FailureKind::Denied),
    (10_158, "an equal message id is in process", FailureKind::Busy),
    (WRONG_LAST_SEQUENCE_UNTOLD, "wrong last sequence", FailureKind::Busy),
    (10_167, "too many requests", FailureKind::Busy),
];

impl ApiError {
    /// What the error means for the effect that met it. A code that is not in the table is tried again.
    #[must_use]
    pub fn failure(self, what: &str) -> Failure {
        let known = ERRORS.iter().find(|(code, ..)| *code == self.err_code);
        let (kind, name) = match known {
            Some((_, name, kind)) => (*kind, *name),
            None if matches!(self.code, 401 | 403) => (FailureKind::Denied, "refused"),
            None => (FailureKind::Busy, "an error that this version does not know"),
        };
        Failure { kind, detail: format!("{what}: JetStream error {}: {name}", self.err_code) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_stand_once_and_in_order() {
        assert!(ERRORS.is_sorted_by(|(a, ..), (b, ..)| a < b));
    }

    #[test]
    fn what_freed_space_or_an_operator_can_mend_is_tried_again() {
        for code in [10_002, 10_023, 10_047, 10_054, 10_077, 10_109, 10_120, 10_158, 10_167, 0, 65_535] {
            let failure = ApiError { err_code: code, code: 400 }.failure("publish");
            assert_ne!(failure.kind, FailureKind::Rejected, "{failure}");
            assert!(failure.detail.contains(&code.to_string()), "{failure}");
        }
    }
}
