//! One message of the stream at a time, which no message can break.
//!
//! A consumer hands a message over as nats-server stored it, and the client drops the connection where it cannot parse
//! the header block (async-nats 0.51, `connection.rs`), or takes the message for a status of the server where the block
//! says so. The server stores both kinds. `STREAM.MSG.GET` gives the same message as JSON with the bytes in base64.

use std::{fmt, time::Duration};

use async_nats::{
    datetime::parse_rfc3339,
    jetstream::{Context, ErrorCode, context::RequestErrorKind, response::Response},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use transcript_core::{WallTime, contract::TRANSCRIPTION_STREAM};

use super::HistoryError;

/// How often a request is repeated. A message that breaks the connection takes the requests of that moment along.
const TRIES: u32 = 10;
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(200);
const ACTION: &str = "give a message";

/// A message as the stream holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawMessage {
    /// Its place in the stream.
    pub sequence: u64,
    /// Its subject.
    pub subject: String,
    /// When it was stored.
    pub stored_at: WallTime,
    /// The header block, with its version line; empty where there is none.
    pub header_block: Bytes,
    /// The payload.
    pub payload: Bytes,
}

/// Why a client cannot take a message from a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// The header block is not UTF-8.
    NotUtf8,
    /// The header block does not begin with the version line.
    Version,
    /// The version line has a status, which only the server's own messages may have.
    Status,
    /// A header line has no colon.
    NoColon,
    /// The name of a header is none.
    Name,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotUtf8 => "its headers are not UTF-8",
            Self::Version => "its headers do not begin with NATS/1.0",
            Self::Status => "its headers have the form of a server's status",
            Self::NoColon => "one of its header lines has no colon",
            Self::Name => "the name of one of its headers is not valid",
        })
    }
}

impl RawMessage {
    /// Why a client cannot take this message from a consumer; `None` where it can.
    ///
    /// The rules are async-nats 0.51's (`connection.rs`, the part that reads `HMSG`).
    #[must_use]
    pub fn flaw(&self) -> Option<Flaw> {
        flaw(&self.header_block)
    }

    /// The headers that can be read, in their order. What is not UTF-8 in them is replaced.
    pub fn headers(&self) -> impl Iterator<Item = (String, String)> {
        let block = String::from_utf8_lossy(&self.header_block).into_owned();
        let lines: Vec<_> = block.lines().skip(1).filter_map(|line| line.split_once(':')).map(owned).collect();
        lines.into_iter()
    }
}

fn owned((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.trim().to_owned())
}

fn flaw(block: &[u8]) -> Option<Flaw> {
    if block.is_empty() {
        return None;
    }
    let Ok(text) = std::str::from_utf8(block) else { return Some(Flaw::NotUtf8) };
    let mut lines = text.lines().peekable();
    match lines.next().and_then(|line| line.strip_prefix("NATS/1.0")) {
        None => return Some(Flaw::Version),
        Some(rest) if !rest.trim().is_empty() => return Some(Flaw::Status),
        Some(_) => {}
    }
    while let Some(line) = lines.next() {
        if line.is_empty() {
            continue;
        }
        let Some((name, _)) = line.split_once(':') else { return Some(Flaw::NoColon) };
        if name.contains(|c: char| !c.is_ascii_graphic()) {
            return Some(Flaw::Name);
        }
        // The value goes on in lines that begin with white space.
        while lines.next_if(|line| line.starts_with(char::is_whitespace)).is_some() {}
    }
    None
}

/// Which message is wanted.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wanted<'a> {
    /// The one at this place.
    At(u64),
    /// The first one of this subject, which may have wildcards, at this place or behind it.
    From(u64, &'a str),
    /// The last one of this subject.
    LastOf(&'a str),
}

/// The message, if there is one.
///
/// # Errors
///
/// JetStream refuses, or does not answer several times in a row.
pub(super) async fn get(js: &Context, wanted: Wanted<'_>) -> Result<Option<RawMessage>, HistoryError> {
    let body = match wanted {
        Wanted::At(sequence) => json!({ "seq": sequence }),
        Wanted::From(sequence, subject) => json!({ "seq": sequence.max(1), "next_by_subj": subject }),
        Wanted::LastOf(subject) => json!({ "last_by_subj": subject }),
    };
    let mut tries = 0;
    loop {
        tries += 1;
        let answer: Result<Response<Value>, _> =
            js.request(format!("STREAM.MSG.GET.{TRANSCRIPTION_STREAM}"), &body).await;
        let passes = match answer {
            Ok(Response::Ok(answer)) => return read(answer).map(Some),
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

/// The part of an answer that is needed.
#[derive(Deserialize)]
struct Answer {
    message: Stored,
}

#[derive(Deserialize)]
struct Stored {
    subject: String,
    seq: u64,
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
    time: String,
}

fn read(answer: Value) -> Result<RawMessage, HistoryError> {
    let Answer { message } = serde_json::from_value(answer).map_err(super::refused(ACTION))?;
    let time = parse_rfc3339(&message.time)
        .map_err(|source| HistoryError::Request { action: "say when a message was stored", source })?;
    let decoded = |text: &str| BASE64_STANDARD.decode(text).map(Bytes::from).map_err(super::refused(ACTION));
    Ok(RawMessage {
        sequence: message.seq,
        subject: message.subject,
        stored_at: super::wall_time(time),
        header_block: decoded(&message.hdrs)?,
        payload: decoded(&message.data)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_would_refuse_or_misread_is_told_apart() {
        let blocks: [(&[u8], Option<Flaw>); 12] = [
            (b"", None),
            (b"NATS/1.0\r\n\r\n", None),
            (b"NATS/1.0\r\nNats-Msg-Id: c:s\r\nX:\r\n\r\n", None),
            (b"NATS/1.0\r\nX: a\r\n  b without a colon\r\n\r\n", None),
            (b"NATS/1.0\r\nX:\xff\r\n\r\n", Some(Flaw::NotUtf8)),
            (b"NATS/1.0 503\r\n\r\n", Some(Flaw::Status)),
            (b"NATS/1.0 503\n\n", Some(Flaw::Status)),
            (b"NATS/1.0 none of ours\r\n\r\n", Some(Flaw::Status)),
            (b"NATS/2.0\r\n\r\n", Some(Flaw::Version)),
            (b"\r\n", Some(Flaw::Version)),
            (b"NATS/1.0\r\nno colon\r\n\r\n", Some(Flaw::NoColon)),
            (b"NATS/1.0\r\nwhite space: x\r\n\r\n", Some(Flaw::Name)),
        ];
        for (block, expected) in blocks {
            assert_eq!(flaw(block), expected, "{}", block.escape_ascii());
        }
    }

    #[test]
    fn whatever_ends_a_connection_is_a_flaw() {
        let blocks: [&[u8]; 6] = [
            b"NATS/1.0\r\nX:\xff\r\n\r\n",
            b"NATS/1.0 50\r\n\r\n",
            b"NATS/1.0\r\nno colon\r\n\r\n",
            b"NATS/1.0\r\nX Y: 1\r\n\r\n",
            b"NATS/2.0\r\n\r\n",
            b"NATS/1.0\r\nX: 1\r\n\r\n",
        ];
        for block in blocks {
            let message = transcript_client::jetstream::raw::RawMessage {
                header_block: block.to_vec(),
                ..transcript_client::jetstream::raw::RawMessage::default()
            };
            assert_eq!(flaw(block).is_none(), message.can_be_delivered(), "{}", block.escape_ascii());
        }
    }

    #[test]
    fn what_can_be_read_of_a_flawed_block_is_read() {
        let message = read(json!({ "message": {
            "subject": "transcription.session-ended", "seq": 7, "time": "2026-11-29T08:00:00.5Z", "data": "e30=",
            "hdrs": BASE64_STANDARD.encode(b"NATS/1.0\r\nno colon\r\nA:\xff\r\nTranscript-Stream-Sequence: 4\r\n\r\n"),
        } }))
        .expect("it is an answer");
        let headers: Vec<_> = message.headers().collect();
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(headers, [header("A", "\u{fffd}"), header("Transcript-Stream-Sequence", "4")]);
        assert_eq!((message.sequence, &*message.payload, message.flaw()), (7, &b"{}"[..], Some(Flaw::NotUtf8)));
        assert_eq!(message.stored_at, WallTime::from_millis(1_795_939_200_500));
    }
}
