//! Steps in short.

use super::{Step, Stop};

/// Let time pass, in milliseconds.
#[must_use]
pub fn wait(ms: u64) -> Step {
    Step::Wait { ms }
}

/// Publish without an id.
#[must_use]
pub fn publish(subject: &str) -> Step {
    Step::Publish { subject: subject.to_owned(), id: None, expected: None }
}

/// Publish under an id.
#[must_use]
pub fn publish_id(subject: &str, id: &str) -> Step {
    Step::Publish { subject: subject.to_owned(), id: Some(id.to_owned()), expected: None }
}

/// A client asks for messages, and waits for `expires_ms`.
#[must_use]
pub fn pull(client: u64, batch: u64, expires_ms: u64) -> Step {
    Step::Pull { client, batch, expires_ms, no_wait: false, heartbeat_ms: 0, max_bytes: 0 }
}

/// Say something to the reply subject of a delivery.
#[must_use]
pub fn ack(sequence: u64, delivery: usize, body: &str) -> Step {
    Step::Ack { sequence, delivery, body: body.to_owned() }
}

/// See what the consumer says about itself.
#[must_use]
pub fn info() -> Step {
    Step::Info
}

/// The server ends, and starts again.
#[must_use]
pub fn restart(stop: Stop, down_ms: u64) -> Step {
    Step::Restart { stop, down_ms }
}
