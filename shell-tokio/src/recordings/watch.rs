//! `recording watch`: the events from the stream's start, and then as they come.
//!
//! Messages are read one by one with `STREAM.MSG.GET`, a few times a second where there are none. A consumer would hand out
//! a message as a publisher wrote it, and one whose headers the client cannot parse would end the connection each time.

use std::{
    io::{self, Write},
    time::{Duration, UNIX_EPOCH},
};

use async_nats::{
    datetime::DateTime,
    jetstream::{
        self, Context, ErrorCode,
        context::{GetStreamError, GetStreamErrorKind, RequestErrorKind},
        response::Response,
    },
};
use serde::Serialize;
use serde_json::{Map, Value};
use thiserror::Error;
use transcript_client::jetstream::raw::{RawMessage, Which};
use transcript_core::contract::{RECORDING_STREAM, RECORDING_SUBJECTS};

use crate::{cli::WatchArgs, terminal::harmless, transcripts::show::json_line};

/// How often new events are looked for where there were none.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// After so many looks without an event it is seen whether the stream is still the same.
const LOOKS_BEFORE_CHECK: u32 = 25;
/// Between two tries where JetStream does not answer.
const PAUSE: Duration = Duration::from_secs(1);

/// Why nothing more is printed.
#[derive(Debug, Error)]
pub enum WatchError {
    /// There is no stream.
    #[error("there is no stream {RECORDING_STREAM}: create it with `transcript-processor setup`")]
    NoStream,
    /// JetStream refuses to describe the stream.
    #[error("cannot ask for the stream {RECORDING_STREAM}: check the server and this user's permissions")]
    Stream(#[source] GetStreamError),
    /// JetStream refuses to give its messages.
    #[error("JetStream does not give the messages of {RECORDING_STREAM}: check this user's permissions")]
    Refused(#[source] jetstream::Error),
    /// JetStream's answer is none.
    #[error("JetStream's answer cannot be read")]
    Answer(#[source] serde_json::Error),
    /// An event cannot be printed.
    #[error("cannot print an event")]
    Output(#[from] io::Error),
}

/// Prints events until it cannot, or is ended.
///
/// # Errors
///
/// There is no stream, JetStream refuses, or the output takes no more. Where NATS is away it is tried again for ever.
pub async fn watch(js: &Context, args: WatchArgs, out: &mut impl Write) -> Result<(), WatchError> {
    let mut stream = created(js).await?;
    let (mut next, mut quiet, mut is_away) = (1, 0, false);
    loop {
        match get(js, next).await? {
            Got::Message(message) => {
                (next, quiet) = (message.sequence.saturating_add(1), 0);
                if let Some(line) = Event::of(message).and_then(|event| event.line(args)) {
                    writeln!(out, "{line}")?;
                }
            }
            Got::Nothing if quiet < LOOKS_BEFORE_CHECK => {
                quiet += 1;
                tokio::time::sleep(LOOK_EVERY).await;
            }
            Got::Nothing => {
                quiet = 0;
                match created(js).await {
                    Ok(now) if now != stream => {
                        tracing::warn!("the stream {RECORDING_STREAM} was made anew: its events follow from its start");
                        (stream, next) = (now, 1);
                    }
                    Ok(_) => {}
                    Err(error) => tracing::debug!(%error, "the stream cannot be described"),
                }
            }
            Got::NoAnswer => {
                if !is_away {
                    tracing::warn!("JetStream does not answer: events are printed once it does");
                }
                is_away = true;
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        }
        if std::mem::take(&mut is_away) {
            tracing::info!("JetStream answers again");
        }
    }
}

/// When the stream was made, which tells it from one that takes its place.
#[expect(clippy::wildcard_enum_match_arm, reason = "the client's enum grows, and one variant is asked about")]
async fn created(js: &Context) -> Result<DateTime, WatchError> {
    let stream = js.get_stream(RECORDING_STREAM).await.map_err(|error| match error.kind() {
        GetStreamErrorKind::JetStream(answer) if answer.error_code() == ErrorCode::STREAM_NOT_FOUND => {
            WatchError::NoStream
        }
        _ => WatchError::Stream(error),
    })?;
    Ok(stream.cached_info().created)
}

enum Got {
    Message(RawMessage),
    Nothing,
    NoAnswer,
}

/// The first message at `sequence` or behind it.
async fn get(js: &Context, sequence: u64) -> Result<Got, WatchError> {
    let wanted = Which::NextOf(sequence, RECORDING_SUBJECTS[0].to_owned());
    let answer: Result<Response<Value>, _> = js.request(format!("STREAM.MSG.GET.{RECORDING_STREAM}"), &wanted).await;
    match answer {
        Ok(Response::Ok(answer)) => serde_json::from_value(answer).map(Got::Message).map_err(WatchError::Answer),
        // The stream may be about to be made anew.
        Ok(Response::Err { error })
            if [ErrorCode::NO_MESSAGE_FOUND, ErrorCode::STREAM_NOT_FOUND].contains(&error.error_code()) =>
        {
            Ok(Got::Nothing)
        }
        // 5xx: JetStream has no leader, or no resources.
        Ok(Response::Err { error }) if error.code() >= 500 => Ok(Got::NoAnswer),
        Ok(Response::Err { error }) => Err(WatchError::Refused(error)),
        Err(error) => match error.kind() {
            RequestErrorKind::TimedOut
            | RequestErrorKind::NoResponders
            | RequestErrorKind::InvalidSubject
            | RequestErrorKind::Other => Ok(Got::NoAnswer),
        },
    }
}

/// An event as it is shown.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    sequence: u64,
    event: String,
    stored_at: String,
    #[serde(flatten)]
    said: Said,
}

/// What an event says.
#[derive(Debug, Serialize)]
enum Said {
    #[serde(rename = "data")]
    Data(Map<String, Value>),
    /// A text that is no JSON object.
    #[serde(rename = "payload")]
    Text(String),
    /// Bytes that are no text.
    #[serde(rename = "payloadEscaped")]
    Bytes(String),
}

impl Event {
    /// `None` where it was stored behind the year 9999.
    fn of(message: RawMessage) -> Option<Self> {
        let said = match (serde_json::from_slice(&message.payload), String::from_utf8(message.payload)) {
            (Ok(data), _) => Said::Data(data),
            (Err(_), Ok(text)) => Said::Text(text),
            (Err(_), Err(error)) => Said::Bytes(error.as_bytes().escape_ascii().to_string()),
        };
        Some(Self {
            sequence: message.sequence,
            event: message.subject.strip_prefix("recording.").unwrap_or(&message.subject).to_owned(),
            stored_at: moment(message.stored_at.as_millis())?,
            said,
        })
    }

    /// The line that is printed; `None` where it is not asked for.
    fn line(&self, args: WatchArgs) -> Option<String> {
        if args.failures && !self.is_failure() {
            return None;
        }
        if args.json {
            return json_line(self).ok();
        }
        let (when, rest) = match &self.said {
            Said::Data(data) => {
                let mut data = data.clone();
                let ts = data.get("ts").and_then(Value::as_i64).and_then(moment);
                if ts.is_some() {
                    data.remove("ts");
                }
                (ts, if data.is_empty() { String::new() } else { json_line(&data).ok()? })
            }
            Said::Text(text) | Said::Bytes(text) => (None, harmless(text)),
        };
        let when = when.as_ref().unwrap_or(&self.stored_at);
        Some(format!("{when}  {:<20}  {rest}", harmless(&self.event)).trim_end().to_owned())
    }

    /// An event says by its reason that something went wrong.
    fn is_failure(&self) -> bool {
        match &self.said {
            Said::Data(data) => data.get("reason").is_some_and(|reason| !reason.is_null()),
            Said::Text(_) | Said::Bytes(_) => false,
        }
    }
}

/// A moment in RFC 3339, to a millisecond; `None` before 1970 and behind 9999.
fn moment(millis: i64) -> Option<String> {
    const BEHIND: u64 = 253_402_300_800_000;
    let millis = u64::try_from(millis).ok().filter(|millis| *millis < BEHIND)?;
    Some(humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(millis)).to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use transcript_core::WallTime;

    use super::*;

    const PLAIN: WatchArgs = WatchArgs { failures: false, json: false };
    const JSON: WatchArgs = WatchArgs { failures: false, json: true };
    const FAILURES: WatchArgs = WatchArgs { failures: true, json: false };

    fn event(subject: &str, payload: &[u8]) -> Event {
        let stored_at = WallTime::from_millis(1_796_112_000_123);
        let (subject, header_block, payload) = (subject.to_owned(), vec![], payload.to_vec());
        Event::of(RawMessage { subject, sequence: 7, stored_at, header_block, payload }).unwrap()
    }

    #[test]
    fn an_event_is_a_line_with_its_own_time() {
        let stored = event("recording.stored", br#"{"ts":1795939200000,"file":"a.webm"}"#);
        let line = stored.line(PLAIN).unwrap();
        assert_eq!(line, r#"2026-11-29T08:00:00.000Z  stored                {"file":"a.webm"}"#);
        let line: Value = serde_json::from_str(&stored.line(JSON).unwrap()).unwrap();
        let data = json!({ "ts": 1_795_939_200_000_u64, "file": "a.webm" });
        let stored_at = "2026-12-01T08:00:00.123Z";
        assert_eq!(line, json!({ "sequence": 7, "event": "stored", "storedAt": stored_at, "data": data }));
        assert_eq!(event("recording.a.b", b"{}").line(PLAIN).unwrap(), "2026-12-01T08:00:00.123Z  a.b");
    }

    #[test]
    fn failures_have_a_reason() {
        let is_shown = |payload: &[u8]| event("recording.deleted", payload).line(FAILURES).is_some();
        assert!(is_shown(br#"{"reason":"never-started"}"#) && is_shown(br#"{"reason":""}"#));
        for payload in [&b"{}"[..], br#"{"reason":null}"#, b"reason", b"[\"reason\"]", b"\xff"] {
            assert!(!is_shown(payload), "{}", payload.escape_ascii());
        }
    }

    #[test]
    fn whatever_a_publisher_writes_is_one_harmless_line() {
        let hostile = "\u{1b}[2J\u{9b}1m\n\u{202e}";
        let object = json!({ "ts": -1, "a": hostile }).to_string();
        for payload in [object.as_bytes(), hostile.as_bytes(), b"\xff\x1b", b"", b"[1]"] {
            for args in [PLAIN, JSON] {
                let line = event(&format!("recording.{hostile}"), payload).line(args).unwrap();
                let obeyed = |c: char| c.is_control() || c == '\u{202e}';
                assert!(!line.contains(obeyed), "{line:?}");
                assert!(!args.json || serde_json::from_str::<Value>(&line).is_ok(), "{line}");
            }
        }
        assert!(event("recording.x", b"{\"ts\":9e99}").line(PLAIN).unwrap().starts_with("2026-12-01T08:00:00.123Z"));
    }
}
