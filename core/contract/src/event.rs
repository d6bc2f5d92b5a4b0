//! The payload of `transcription.session-ended`, read from bytes that anybody may have sent.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::ids::{IdError, Session};

/// The largest count that every JSON implementation holds exactly: 2^53 - 1 (RFC 8259, section 6).
pub const MAX_COUNT: u64 = (1 << 53) - 1;

/// A call's end: the payload of `transcription.session-ended`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionEnded {
    /// The session that ended.
    #[serde(flatten)]
    pub session: Session,
    /// How many segments its transcriber published.
    pub published_segments: u64,
    /// How often an operator has asked for the call to be processed again, this time included; 0, and absent, for the end of
    /// a call. A summary of as many segments, made for a lower number, gives way although it was announced, and the new
    /// one is announced as a revision.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reprocess: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl SessionEnded {
    /// Reads a payload and checks it; unknown fields are ignored.
    ///
    /// # Errors
    ///
    /// What makes this a payload that can never be processed.
    pub fn parse(payload: &[u8]) -> Result<Self, Rejection> {
        // A derived struct would also take an array of its fields.
        if payload.trim_ascii_start().first() != Some(&b'{') {
            return Err(match serde_json::from_slice::<serde::de::IgnoredAny>(payload) {
                Ok(_) => Rejection::NotAnObject,
                Err(error) => not_json(&error),
            });
        }
        let raw: Raw = serde_json::from_slice(payload).map_err(|error| not_json(&error))?;
        let conversation_id = id("conversationId", raw.conversation_id.as_ref())?;
        let session_id = id("sessionId", raw.session_id.as_ref())?;
        let session = Session::new(conversation_id, session_id)?;
        let published_segments = count("publishedSegments", raw.published_segments.as_ref())?;
        let reprocess = raw.reprocess.as_ref().map_or(Ok(0), |number| count("reprocess", Some(number)))?;
        Ok(Self { session, published_segments, reprocess })
    }
}

/// Why a payload can never be processed. No rejection quotes the payload.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Rejection {
    /// Empty, not UTF-8, or not JSON.
    #[error("not JSON: line {line}, column {column}")]
    NotJson {
        /// Where reading stopped, from 1; 0 for an empty payload.
        line: usize,
        /// Where reading stopped, from 1; 0 for an empty payload.
        column: usize,
    },
    /// JSON, but no object, or one that gives a field twice.
    #[error("not a JSON object with each field once")]
    NotAnObject,
    /// A field is absent or null.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// An id of another type.
    #[error("{0} is not a string")]
    NotAString(&'static str),
    /// An id that is empty or too long.
    #[error(transparent)]
    Id(#[from] IdError),
    /// A count that is negative, fractional, too large, or no number.
    #[error("{0} is not a whole number from 0 to {MAX_COUNT}")]
    NotACount(&'static str),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    conversation_id: Option<Value>,
    session_id: Option<Value>,
    published_segments: Option<Value>,
    reprocess: Option<Value>,
}

fn not_json(error: &serde_json::Error) -> Rejection {
    match error.classify() {
        serde_json::error::Category::Data => Rejection::NotAnObject,
        serde_json::error::Category::Io | serde_json::error::Category::Syntax | serde_json::error::Category::Eof => {
            Rejection::NotJson { line: error.line(), column: error.column() }
        }
    }
}

fn id<'a>(name: &'static str, value: Option<&'a Value>) -> Result<&'a str, Rejection> {
    value.ok_or(Rejection::Missing(name))?.as_str().ok_or(Rejection::NotAString(name))
}

fn count(name: &'static str, value: Option<&Value>) -> Result<u64, Rejection> {
    let value = value.ok_or(Rejection::Missing(name))?;
    // JSON does not tell 3 from 3.0, and some writers send every number with a fraction.
    let whole = value.as_u64().or_else(|| value.as_f64().filter(|n| n.fract() == 0.0 && *n >= 0.0).map(|n| n as u64));
    whole.filter(|n| *n <= MAX_COUNT).ok_or(Rejection::NotACount(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejection(payload: impl AsRef<[u8]>) -> String {
        SessionEnded::parse(payload.as_ref()).expect_err("payload is malformed").to_string()
    }

    fn with_count(count: &str) -> String {
        format!(r#"{{"conversationId":"c","sessionId":"s","publishedSegments":{count}}}"#)
    }

    #[test]
    fn a_good_payload_is_read_and_unknown_fields_are_ignored() {
        let payload =
            br#" {"sessionId":"s:1","conversationId":" c ","extra":{"publishedSegments":[-1]},"publishedSegments":12}"#;
        let ended = SessionEnded::parse(payload).expect("payload is good");
        assert_eq!(ended.session, Session::new(" c ", "s:1").expect("ids are valid"));
        assert_eq!(ended.published_segments, 12);
    }

    #[test]
    fn a_count_is_a_whole_number_however_it_is_written() {
        for (written, count) in [("0", 0), ("3.0", 3), ("-0.0", 0), ("1e3", 1000), ("9007199254740991", MAX_COUNT)] {
            assert_eq!(SessionEnded::parse(with_count(written).as_bytes()).expect(written).published_segments, count);
        }
        for written in ["-1", "1.5", "\"3\"", "1e30", "9007199254740992", "true", "[]", "-0.5", "18446744073709551616"]
        {
            assert_eq!(
                rejection(with_count(written)),
                "publishedSegments is not a whole number from 0 to 9007199254740991"
            );
        }
    }

    #[test]
    fn what_is_no_json_is_named_with_its_place() {
        assert_eq!(rejection(""), "not JSON: line 1, column 0");
        assert_eq!(rejection("hello"), "not JSON: line 1, column 1");
        assert!(rejection(b"{\"conversationId\":\"\xff\xfe\"}").starts_with("not JSON"));
        assert!(rejection("{\"conversationId\":\"c\"").starts_with("not JSON"));
        assert!(rejection("{} {}").starts_with("not JSON"));
        assert!(rejection("[".repeat(900_000)).starts_with("not JSON"));
    }

    #[test]
    fn what_is_no_object_is_named() {
        for payload in ["[]", "3", "null", r#"["c","s",3]"#, r#"{"sessionId":"s","sessionId":"t"}"#] {
            assert_eq!(rejection(payload), "not a JSON object with each field once", "{payload}");
        }
    }

    #[test]
    fn ids_are_checked_one_by_one() {
        assert_eq!(rejection("{}"), "conversationId is missing");
        assert_eq!(rejection(r#"{"conversationId":null}"#), "conversationId is missing");
        assert_eq!(rejection(r#"{"conversationId":"c"}"#), "sessionId is missing");
        assert_eq!(rejection(r#"{"conversationId":7,"sessionId":"s"}"#), "conversationId is not a string");
        assert_eq!(rejection(r#"{"conversationId":"c","sessionId":""}"#), "sessionId is empty");
        assert_eq!(rejection(r#"{"conversationId":"c","sessionId":"s"}"#), "publishedSegments is missing");
        let long = "x".repeat(10_000);
        assert_eq!(
            rejection(format!(r#"{{"conversationId":"{long}","sessionId":"s"}}"#)),
            "conversationId is longer than 256 bytes"
        );
    }
}
