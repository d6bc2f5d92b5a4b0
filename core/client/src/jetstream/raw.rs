//! Stored messages, read through `$JS.API.STREAM.MSG.GET`.
//!
//! The answer is JSON with the header block in base64, so that no stored message can break the connection that it is read
//! on: a delivery carries the block as it was published, and async-nats drops the connection over one that it cannot parse.

use std::str;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::Deserialize;

use super::{
    error::{ApiError, NO_MESSAGE_FOUND},
    frame::Headers,
};

/// A message as the stream holds it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RawMessage {
    /// The subject it was published to.
    pub subject: String,
    /// Its place in the stream.
    pub sequence: u64,
    /// The header block, byte for byte; empty where there is none.
    pub header_block: Vec<u8>,
    /// The payload.
    pub payload: Vec<u8>,
}

/// Which message of the stream to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// The one at this place.
    Sequence(u64),
    /// The last one of a subject.
    LastOf(String),
    /// The first one of a subject from this place on.
    NextOf(u64, String),
}

/// Why a stored message could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadError {
    /// The stream holds no such message.
    NotFound,
    /// JetStream refused.
    Refused(ApiError),
    /// The answer is not one.
    Unreadable,
}

#[derive(Deserialize)]
struct Answer {
    error: Option<ApiError>,
    message: Option<Stored>,
}

#[derive(Deserialize)]
struct Stored {
    subject: String,
    seq: u64,
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
}

/// The subject of the request.
#[must_use]
pub fn subject(api_prefix: &str, stream: &str) -> String {
    format!("{api_prefix}.STREAM.MSG.GET.{stream}")
}

impl Which {
    /// The payload of the request.
    #[must_use]
    pub fn body(&self) -> String {
        match self {
            Self::Sequence(sequence) => format!(r#"{{"seq":{sequence}}}"#),
            Self::LastOf(subject) => format!(r#"{{"last_by_subj":{}}}"#, json_string(subject)),
            Self::NextOf(sequence, subject) => {
                format!(r#"{{"seq":{sequence},"next_by_subj":{}}}"#, json_string(subject))
            }
        }
    }
}

fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

impl RawMessage {
    /// Reads the answer to a request.
    ///
    /// # Errors
    ///
    /// The stream holds no such message, JetStream refused, or the answer is not one.
    pub fn read(answer: &[u8]) -> Result<Self, ReadError> {
        let answer: Answer = serde_json::from_slice(answer).map_err(|_| ReadError::Unreadable)?;
        match answer {
            Answer { error: Some(ApiError { err_code: NO_MESSAGE_FOUND, .. }), .. } => Err(ReadError::NotFound),
            Answer { error: Some(error), .. } => Err(ReadError::Refused(error)),
            Answer { message: Some(Stored { subject, seq, hdrs, data }), .. } => {
                let decode = |text: &str| BASE64_STANDARD.decode(text).map_err(|_| ReadError::Unreadable);
                Ok(Self { subject, sequence: seq, header_block: decode(&hdrs)?, payload: decode(&data)? })
            }
            Answer { error: None, message: None } => Err(ReadError::Unreadable),
        }
    }

    /// The first value of a header, whatever else the block holds.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<String> {
        let (_, value) = self.headers().into_iter().find(|(known, _)| known == name)?;
        Some(value)
    }

    /// The lines of the header block that are headers. Bytes that are not UTF-8 become U+FFFD.
    #[must_use]
    pub fn headers(&self) -> Headers {
        let text = String::from_utf8_lossy(&self.header_block);
        let lines = text.lines().skip(1).filter_map(|line| line.split_once(':'));
        lines.map(|(name, value)| (name.to_owned().into(), value.trim().to_owned())).collect()
    }

    /// The header block in base64.
    #[must_use]
    pub fn header_block_in_base64(&self) -> String {
        BASE64_STANDARD.encode(&self.header_block)
    }

    /// Whether async-nats can take the message in a delivery.
    #[must_use]
    pub fn can_be_delivered(&self) -> bool {
        self.header_block.is_empty() || is_parsable(&self.header_block)
    }
}

/// Whether async-nats parses the header block. It drops the connection where it does not, with everything that was sent
/// behind the message. The rules are those of async-nats 0.51: `connection.rs`, `try_read_op`; `header.rs`,
/// `validate_header_name`; `status.rs`, `from_bytes`.
fn is_parsable(block: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(block) else { return false };
    let mut lines = text.lines().peekable();
    let Some(version) = lines.next().and_then(|line| line.strip_prefix("NATS/1.0")) else { return false };
    let version = version.trim();
    let status = version.split_once(' ').map_or(version, |(status, _)| status.trim());
    if !status.is_empty() && !is_status(status) {
        return false;
    }
    while let Some(line) = lines.next() {
        if line.is_empty() {
            continue;
        }
        let Some((name, _)) = line.split_once(':') else { return false };
        if !name.chars().all(|c| c.is_ascii_graphic() && c != ':') {
            return false;
        }
        while lines.next_if(|line| line.starts_with(char::is_whitespace)).is_some() {}
    }
    true
}

fn is_status(text: &str) -> bool {
    text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_blocks_that_end_a_connection_are_known() {
        let blocks: [(&[u8], bool); 14] = [
            (b"NATS/1.0\r\n\r\n", true),
            (b"NATS/1.0\r\nX: 1\r\n\r\n", true),
            (b"NATS/1.0\r\nX:\r\n folded without a colon\r\n\r\n", true),
            (b"NATS/1.0 503\r\n\r\n", true),
            (b"NATS/1.0 503\n\n", true),
            (b"NATS/1.0 503 No Responders\r\n\r\n", true),
            (b"NATS/1.0\r\n: no name\r\n\r\n", true),
            (b"NATS/1.0\r\nX:\xff\r\n\r\n", false),
            (b"NATS/1.0\r\nno colon\r\n\r\n", false),
            (b"NATS/1.0\r\nX Y: 1\r\n\r\n", false),
            (b"NATS/1.0 5x3\r\n\r\n", false),
            (b"NATS/1.0 50\r\n\r\n", false),
            (b"NATS/2.0\r\n\r\n", false),
            (b"\r\n\r\n", false),
        ];
        for (block, expected) in blocks {
            assert_eq!(is_parsable(block), expected, "{}", block.escape_ascii());
        }
    }

    #[test]
    fn an_answer_is_read_with_its_bytes() {
        let answer = br#"{"type":"io.nats.jetstream.api.v1.stream_msg_get_response","message":{"subject":"a.b","seq":7,
            "hdrs":"TkFUUy8xLjANClg6/w0KDQo=","data":"eyJhIjoxfQ==","time":"2026-11-30T12:00:00Z"}}"#;
        let message = RawMessage::read(answer).expect("an answer");
        assert_eq!((message.subject.as_str(), message.sequence), ("a.b", 7));
        assert_eq!(message.payload, br#"{"a":1}"#);
        assert_eq!(message.header_block, b"NATS/1.0\r\nX:\xff\r\n\r\n");
        assert_eq!(message.header("X").as_deref(), Some("\u{fffd}"));
        assert!(!message.can_be_delivered());
    }

    #[test]
    fn an_answer_without_a_message_says_why() {
        let refused =
            |code| format!(r#"{{"error":{{"code":404,"err_code":{code},"description":"no message found"}}}}"#);
        assert_eq!(RawMessage::read(refused(10_037).as_bytes()), Err(ReadError::NotFound));
        let other = ApiError { err_code: 10_059, code: 404 };
        assert_eq!(RawMessage::read(refused(10_059).as_bytes()), Err(ReadError::Refused(other)));
        assert_eq!(RawMessage::read(b"{}"), Err(ReadError::Unreadable));
        assert_eq!(RawMessage::read(b"no JSON"), Err(ReadError::Unreadable));
    }

    #[test]
    fn requests_read_as_the_server_expects_them() {
        assert_eq!(Which::Sequence(7).body(), r#"{"seq":7}"#);
        assert_eq!(Which::LastOf("a.\"b".into()).body(), r#"{"last_by_subj":"a.\"b"}"#);
        assert_eq!(Which::NextOf(7, "a.b".into()).body(), r#"{"seq":7,"next_by_subj":"a.b"}"#);
    }
}
