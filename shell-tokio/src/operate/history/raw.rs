//! One message of the stream at a time, which no message can break: [`raw`](transcript_client::jetstream::raw) says how.

use std::time::Duration;

use async_nats::jetstream::{Context, ErrorCode, context::RequestErrorKind, response::Response};
use transcript_client::jetstream::raw::{RawMessage, Which};
use transcript_core::contract::TRANSCRIPTION_STREAM;

use super::HistoryError;

/// How often a request is repeated. A message that breaks the connection takes the requests of that moment along.
const TRIES: u32 = 10;
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(200);
const ACTION: &str = "give a message";

/// The message, if there is one.
///
/// # Errors
///
/// JetStream refuses, or does not answer several times in a row.
pub(super) async fn get(js: &Context, which: &Which) -> Result<Option<RawMessage>, HistoryError> {
    let subject = format!("STREAM.MSG.GET.{TRANSCRIPTION_STREAM}");
    let mut tries = 0;
    loop {
        tries += 1;
        let answer: Result<Response<RawMessage>, _> = js.request(subject.clone(), which).await;
        let passes = match answer {
            Ok(Response::Ok(answer)) => return Ok(Some(answer)),
            Ok(Response::Err { error }) if error.error_code() == ErrorCode::NO_MESSAGE_FOUND => return Ok(None),
            Ok(Response::Err { error }) if error.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                return Err(HistoryError::NoStream);
            }
            Ok(Response::Err { error }) => return Err(super::refused(ACTION)(error)),
            Err(error) => match error.kind() {
                RequestErrorKind::TimedOut | RequestErrorKind::Other | RequestErrorKind::NoResponders => error,
                RequestErrorKind::InvalidSubject => return Err(super::refused(ACTION)(error)),
            },
        };
        if tries == TRIES {
            return Err(super::refused(ACTION)(passes));
        }
        tokio::time::sleep(PAUSE).await;
    }
}
