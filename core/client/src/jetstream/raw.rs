//! Stored messages, read through `$JS.API.STREAM.MSG.GET`.
//!
//! The answer is JSON with the header block in base64, so that no stored message can break the connection that it is read
//! on: a delivery carries the block as it was published, and async-nats drops the connection over one that it cannot parse.

use std::{
    fmt, str,
    time::{SystemTime, UNIX_EPOCH},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};
use transcript_core::WallTime;

use super::{
    error::{ApiError, NO_MESSAGE_FOUND},
    frame::Headers,
};

/// A message as the stream holds it. It deserializes from the answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Answer")]
pub struct RawMessage {
    /// The subject it was published to.
    pub subject: String,
    /// Its place in the stream.
    pub sequence: u64,
    /// When it was stored.
    pub stored_at: WallTime,
    /// The header block, byte for byte; empty where there is none.
    pub header_block: Vec<u8>,
    /// The payload.
    pub payload: Vec<u8>,
}

/// Which message of the stream to read. It serializes into the payload of the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(into = "Body")]
pub enum Which {
    /// The one at this place.
    Sequence(u64),
    /// The last one of a subject.
    LastOf(String),
    /// The first one of a subject, which may have wildcards, from this place on.
    NextOf(u64, String),
}

/// The payload of a request.
#[derive(Serialize)]
struct Body {
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_by_subj: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_by_subj: Option<String>,
}

impl From<Which> for Body {
    fn from(which: Which) -> Self {
        match which {
            Which::Sequence(sequence) => Self { seq: Some(sequence), last_by_subj: None, next_by_subj: None },
            Which::LastOf(subject) => Self { seq: None, last_by_subj: Some(subject), next_by_subj: None },
            Which::NextOf(sequence, subject) => {
                Self { seq: Some(sequence), last_by_subj: None, next_by_subj: Some(subject) }
            }
        }
    }
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

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str("the stream holds no such message"),
            Self::Refused(ApiError { err_code, .. }) => write!(f, "JetStream refused with error {err_code}"),
            Self::Unreadable => f.write_str("the answer of JetStream cannot be read"),
        }
    }
}

impl std::error::Error for ReadError {}

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
    time: String,
}

impl TryFrom<Answer> for RawMessage {
    type Error = ReadError;

    fn try_from(answer: Answer) -> Result<Self, ReadError> {
        match answer {
            Answer { error: Some(ApiError { err_code: NO_MESSAGE_FOUND, .. }), .. } => Err(ReadError::NotFound),
            Answer { error: Some(error), .. } => Err(ReadError::Refused(error)),
            Answer { message: Some(Stored { subject, seq, hdrs, data, time }), .. } => {
                let decode = |text: &str| BASE64_STANDARD.decode(text).map_err(|_| ReadError::Unreadable);
                let time = humantime::parse_rfc3339(&time).map_err(|_| ReadError::Unreadable)?;
                let (header_block, payload) = (decode(&hdrs)?, decode(&data)?);
                Ok(Self { subject, sequence: seq, stored_at: wall_time(time), header_block, payload })
            }
            Answer { error: None, message: None } => Err(ReadError::Unreadable),
        }
    }
}

/// A time before the epoch is taken for the epoch: no message is that old.
fn wall_time(time: SystemTime) -> WallTime {
    let millis = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    WallTime::from_millis(i64::try_from(millis).unwrap_or(i64::MAX))
}

/// The subject of the request.
#[must_use]
pub fn subject(api_prefix: &str, stream: &str) -> String {
    format!("{api_prefix}.STREAM.MSG.GET.{stream}")
}

impl Which {
    /// The payload of the request.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and strings are JSON")
    }
}

impl RawMessage {
    /// Reads the answer to a request.
    ///
    /// # Errors
    ///
    /// The stream holds no such message, JetStream refused, or the answer is not one.
    pub fn read(answer: &[u8]) -> Result<Self, ReadError> {
        serde_json::from_slice(answer).map_err(|_| ReadError::Unreadable).and_then(|answer: Answer| answer.try_into())
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

    /// Why async-nats cannot hand the message over as it was published; `None` where it can.
    #[must_use]
    pub fn flaw(&self) -> Option<Flaw> {
        if self.header_block.is_empty() { None } else { flaw(&self.header_block) }
    }
}

/// Why a client cannot take a message from a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// The header block is not UTF-8.
    NotUtf8,
    /// The header block does not begin with the version line.
    Version,
    /// The version line has a status, which only the server's own messages may have: the client takes the message for one of
    /// them. All other flaws end the connection.
    Status,
    /// The version line goes on with something that is no status.
    NoStatus,
    /// A header line has no colon.
    NoColon,
    /// The name of a header is none.
    Name,
}

impl Flaw {
    /// Whether async-nats drops the connection over it, with everything that was sent behind the message.
    #[must_use]
    pub fn ends_connection(self) -> bool {
        match self {
            Self::Status => false,
            Self::NotUtf8 | Self::Version | Self::NoStatus | Self::NoColon | Self::Name => true,
        }
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotUtf8 => "its headers are not UTF-8",
            Self::Version => "its headers do not begin with NATS/1.0",
            Self::Status => "its headers have the form of a server's status",
            Self::NoStatus => "the first line of its headers goes on behind NATS/1.0, and not with a status",
            Self::NoColon => "one of its header lines has no colon",
            Self::Name => "the name of one of its headers is not valid",
        })
    }
}

/// What async-nats finds wrong with a header block. The rules are those of async-nats 0.51: `connection.rs`, `try_read_op`;
/// `header.rs`, `validate_header_name`; `status.rs`, `from_bytes`.
fn flaw(block: &[u8]) -> Option<Flaw> {
    let Ok(text) = str::from_utf8(block) else { return Some(Flaw::NotUtf8) };
    let mut lines = text.lines().peekable();
    let Some(version) = lines.next().and_then(|line| line.strip_prefix("NATS/1.0")) else { return Some(Flaw::Version) };
    let version = version.trim();
    let status = version.split_once(' ').map_or(version, |(status, _)| status.trim());
    if !status.is_empty() && !is_status(status) {
        return Some(Flaw::NoStatus);
    }
    while let Some(line) = lines.next() {
        if line.is_empty() {
            continue;
        }
        let Some((name, _)) = line.split_once(':') else { return Some(Flaw::NoColon) };
        if !name.chars().all(|c| c.is_ascii_graphic() && c != ':') {
            return Some(Flaw::Name);
        }
        // The value goes on in lines that begin with white space.
        while lines.next_if(|line| line.starts_with(char::is_whitespace)).is_some() {}
    }
    (!status.is_empty()).then_some(Flaw::Status)
}

fn is_status(text: &str) -> bool {
    text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_refuses_or_misreads_is_told_apart() {
        let blocks: [(&[u8], Option<Flaw>); 19] = [
            (b"", None),
            (b"NATS/1.0\r\n\r\n", None),
            (b"NATS/1.0\r\nX: 1\r\n\r\n", None),
            (b"NATS/1.0\r\nNats-Msg-Id: c:s\r\nX:\r\n\r\n", None),
            (b"NATS/1.0\r\nX:\r\n folded without a colon\r\n\r\n", None),
            (b"NATS/1.0\r\n: no name\r\n\r\n", None),
            (b"NATS/1.0 503\r\n\r\n", Some(Flaw::Status)),
            (b"NATS/1.0 503\n\n", Some(Flaw::Status)),
            (b"NATS/1.0 503 No Responders\r\n\r\n", Some(Flaw::Status)),
            (b"NATS/1.0 503\r\nno colon\r\n\r\n", Some(Flaw::NoColon)),
            (b"NATS/1.0 5x3\r\n\r\n", Some(Flaw::NoStatus)),
            (b"NATS/1.0 50\r\n\r\n", Some(Flaw::NoStatus)),
            (b"NATS/1.0 none of ours\r\n\r\n", Some(Flaw::NoStatus)),
            (b"NATS/2.0\r\n\r\n", Some(Flaw::Version)),
            (b"\r\n\r\n", Some(Flaw::Version)),
            (b"NATS/1.0\r\nX:\xff\r\n\r\n", Some(Flaw::NotUtf8)),
            (b"NATS/1.0\r\nno colon\r\n\r\n", Some(Flaw::NoColon)),
            (b"NATS/1.0\r\nX Y: 1\r\n\r\n", Some(Flaw::Name)),
            (b"NATS/1.0\r\nwhite space: x\r\n\r\n", Some(Flaw::Name)),
        ];
        for (block, expected) in blocks {
            let message = RawMessage {
                subject: String::new(),
                sequence: 1,
                stored_at: WallTime::from_millis(0),
                header_block: block.to_vec(),
                payload: vec![],
            };
            assert_eq!(message.flaw(), expected, "{}", block.escape_ascii());
        }
    }

    #[test]
    fn a_message_that_is_taken_for_a_status_ends_no_connection() {
        let all = [Flaw::NotUtf8, Flaw::Version, Flaw::Status, Flaw::NoStatus, Flaw::NoColon, Flaw::Name];
        let harmless: Vec<_> = all.into_iter().filter(|flaw| !flaw.ends_connection()).collect();
        assert_eq!(harmless, [Flaw::Status]);
    }

    #[test]
    fn an_answer_is_read_with_its_bytes() {
        let answer = br#"{"type":"io.nats.jetstream.api.v1.stream_msg_get_response","message":{"subject":"a.b","seq":7,
            "hdrs":"TkFUUy8xLjANClg6/w0KDQo=","data":"eyJhIjoxfQ==","time":"2026-11-29T08:00:00.5001Z"}}"#;
        let message = RawMessage::read(answer).expect("an answer");
        assert_eq!((message.subject.as_str(), message.sequence), ("a.b", 7));
        assert_eq!(message.payload, br#"{"a":1}"#);
        assert_eq!(message.header_block, b"NATS/1.0\r\nX:\xff\r\n\r\n");
        assert_eq!(message.header("X").as_deref(), Some("\u{fffd}"));
        assert_eq!(message.stored_at, WallTime::from_millis(1_795_939_200_500));
        assert_eq!(message.flaw(), Some(Flaw::NotUtf8));
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
        for message in [
            r#"{"subject":"a","seq":1}"#,
            r#"{"subject":"a","seq":1,"time":"yesterday"}"#,
            r#"{"subject":"a","seq":1,"data":"?","time":"2026-11-30T12:00:00Z"}"#,
        ] {
            let answer = format!(r#"{{"message":{message}}}"#);
            assert_eq!(RawMessage::read(answer.as_bytes()), Err(ReadError::Unreadable), "{message}");
        }
    }

    #[test]
    fn requests_read_as_the_server_expects_them() {
        let body = |which: Which| String::from_utf8(which.body()).expect("JSON is UTF-8");
        assert_eq!(body(Which::Sequence(7)), r#"{"seq":7}"#);
        assert_eq!(body(Which::LastOf("a.\"b".into())), r#"{"last_by_subj":"a.\"b"}"#);
        assert_eq!(body(Which::NextOf(7, "a.b".into())), r#"{"seq":7,"next_by_subj":"a.b"}"#);
    }
}
