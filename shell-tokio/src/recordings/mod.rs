//! The events of recordings on the command line: [`publish`] publishes one, [`watch`] prints them.

pub mod watch;

use async_nats::jetstream::Context;
use transcript_core::contract::RECORDING_STREAM;
use transcript_publishing::{PublishError, Publisher};

use crate::{cli::RecordingArgs, service::clock::Clock};

/// Publishes an event that happens now, and says where the stream has it.
///
/// # Errors
///
/// See [`Publisher::recording`].
pub async fn publish(js: &Context, event: &str, args: &RecordingArgs) -> Result<String, PublishError> {
    let published = Publisher::new(js.clone()).recording(event, Clock::start().wall(), args.data()).await?;
    Ok(format!("recording.{event} is message {} of {RECORDING_STREAM}", published.sequence))
}
