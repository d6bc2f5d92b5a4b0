//! The events of recordings on the command line: [`publish`] publishes one, [`watch`] prints them.

pub mod watch;

use std::fmt;

use async_nats::jetstream::Context;
use serde::Serialize;
use transcript_core::contract::RECORDING_STREAM;
use transcript_publishing::{PublishError, Publisher};

use crate::{cli::RecordingArgs, service::clock::Clock};

/// An event that the stream has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PublishedEvent {
    /// Its name.
    pub event: String,
    /// Its place in the stream.
    pub sequence: u64,
}

impl fmt::Display for PublishedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "recording.{} is message {} of {RECORDING_STREAM}", self.event, self.sequence)
    }
}

/// Publishes an event that happens now, and says where the stream has it.
///
/// # Errors
///
/// See [`Publisher::recording`].
pub async fn publish(js: &Context, event: &str, args: &RecordingArgs) -> Result<PublishedEvent, PublishError> {
    let published = Publisher::new(js.clone()).recording(event, Clock::start().wall(), args.data()).await?;
    Ok(PublishedEvent { event: event.to_owned(), sequence: published.sequence })
}
