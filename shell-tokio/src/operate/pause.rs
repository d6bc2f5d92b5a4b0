//! `pause` and `resume`: JetStream's own pause of the consumer. While it lasts no call is handed out to any processor; calls in
//! hand are finished, and heartbeats and acknowledgements go on (nats-server 2.11 and later).

use std::time::{Duration, UNIX_EPOCH};

use async_nats::jetstream::{Context, Error as ApiError, ErrorCode, context::RequestError, response::Response};
use serde::Deserialize;
use serde_json::{Value, json};
use thiserror::Error;
use transcript_core::{
    WallTime,
    contract::{CONSUMER, TRANSCRIPTION_STREAM},
};

/// Why the consumer was neither paused nor resumed.
#[derive(Debug, Error)]
pub enum PauseError {
    /// There is none.
    #[error("there is no consumer {CONSUMER} in {TRANSCRIPTION_STREAM}: create it with `transcript-processor setup`")]
    NoConsumer,
    /// JetStream does not answer.
    #[error(
        "JetStream does not answer: check that it runs, that nats-server is 2.11 or later, and that this user may publish to \
         its API"
    )]
    Silent(#[source] RequestError),
    /// JetStream refused it.
    #[error("JetStream refused it")]
    Refused(#[source] ApiError),
}

/// What JetStream says about the pause.
#[derive(Debug, Deserialize)]
struct Paused {
    #[serde(default)]
    paused: bool,
}

/// Pauses the consumer from now on. Gives the moment until when, as JetStream was told it.
///
/// # Errors
///
/// See [`PauseError`].
pub async fn pause(js: &Context, now: WallTime, lasts: Duration) -> Result<String, PauseError> {
    let since_epoch = u64::try_from(now.after(lasts).as_millis()).unwrap_or(0);
    let until = humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(since_epoch)).to_string();
    ask(js, &json!({ "pause_until": until })).await?;
    Ok(until)
}

/// Ends a pause. Gives whether the consumer hands out calls now.
///
/// # Errors
///
/// See [`PauseError`].
pub async fn resume(js: &Context) -> Result<bool, PauseError> {
    ask(js, &json!({})).await.map(|answer| !answer.paused)
}

async fn ask(js: &Context, request: &Value) -> Result<Paused, PauseError> {
    let subject = format!("CONSUMER.PAUSE.{TRANSCRIPTION_STREAM}.{CONSUMER}");
    match js.request(subject, request).await.map_err(PauseError::Silent)? {
        Response::Ok(answer) => Ok(answer),
        Response::Err { error } => Err(match error.error_code() {
            ErrorCode::CONSUMER_NOT_FOUND | ErrorCode::STREAM_NOT_FOUND => PauseError::NoConsumer,
            _ => PauseError::Refused(error),
        }),
    }
}
