//! The ids of calls.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The longest conversation or session id, in bytes of UTF-8.
pub const MAX_ID_BYTES: usize = 256;

/// One session of one conversation: what a call is known by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// The conversation that the session belongs to.
    pub conversation_id: Arc<str>,
    /// The session; it alone names the segments of the call.
    pub session_id: Arc<str>,
}

impl Session {
    /// A session with both ids checked.
    ///
    /// # Errors
    ///
    /// An id that is empty or longer than [`MAX_ID_BYTES`].
    pub fn new(conversation_id: &str, session_id: &str) -> Result<Self, IdError> {
        for (name, id) in [("conversationId", conversation_id), ("sessionId", session_id)] {
            if id.is_empty() {
                return Err(IdError::Empty(name));
            }
            if id.len() > MAX_ID_BYTES {
                return Err(IdError::TooLong(name));
            }
        }
        Ok(Self { conversation_id: conversation_id.into(), session_id: session_id.into() })
    }

    /// The `_id` of the session's summary and the `Nats-Msg-Id` of its notification.
    #[must_use]
    pub fn key(&self) -> Key {
        let mut key = String::with_capacity(self.conversation_id.len() + 1 + self.session_id.len());
        escape_into(&mut key, &self.conversation_id);
        key.push(':');
        escape_into(&mut key, &self.session_id);
        Key(key.into())
    }

    /// The session of a key: what [`Self::key`] makes, read backwards.
    ///
    /// # Errors
    ///
    /// A text that is the key of no session.
    pub fn of_key(key: &str) -> Result<Self, KeyError> {
        let (conversation, session) = key.split_once(':').ok_or(KeyError::Parts)?;
        if session.contains(':') {
            return Err(KeyError::Parts);
        }
        Ok(Self::new(&unescaped(conversation)?, &unescaped(session)?)?)
    }
}

/// Why a text is the key of no session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum KeyError {
    /// It has no `:` between two ids, or several.
    #[error("a key is conversationId:sessionId; inside an id : is written %3A and % is written %25")]
    Parts,
    /// A `%` that escapes nothing.
    #[error("inside an id % is written %25; it is followed by two hexadecimal digits")]
    Escape,
    /// One of its ids.
    #[error(transparent)]
    Id(#[from] IdError),
}

/// Why an id cannot be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum IdError {
    /// The named id has no character.
    #[error("{0} is empty")]
    Empty(&'static str),
    /// The named id has more than [`MAX_ID_BYTES`].
    #[error("{0} is longer than {MAX_ID_BYTES} bytes")]
    TooLong(&'static str),
}

/// `conversationId:sessionId`, one to one with its session.
///
/// Inside an id `%` and `:` are written `%25` and `%3A`, so that `a:b` + `c` and `a` + `b:c` stay apart. Two more things are
/// escaped because the key travels as a NATS header, where nats-server drops spaces before a value (`sliceHeader` in its
/// `server/client.go`) and a line break would end it: a space at the very start, and control characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Key(Arc<str>);

impl Key {
    /// The key as it is stored and sent.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The key as one token of a subject: everything but letters, digits, `-`, `_` and `:` of ASCII is written `%XX`, byte
    /// by byte.
    #[must_use]
    pub fn subject_token(&self) -> String {
        subject_token(&self.0)
    }
}

/// A text as one token of a subject.
pub(crate) fn subject_token(text: &str) -> String {
    let mut token = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b':') {
            token.push(char::from(byte));
        } else {
            token.push_str(&format!("%{byte:02X}"));
        }
    }
    token
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn escape_into(key: &mut String, id: &str) {
    for c in id.chars() {
        let leading_space = c == ' ' && key.is_empty();
        if c == '%' || c == ':' || c.is_ascii_control() || leading_space {
            key.push('%');
            key.push_str(&format!("{:02X}", u32::from(c)));
        } else {
            key.push(c);
        }
    }
}

fn unescaped(id: &str) -> Result<String, KeyError> {
    let mut pieces = id.split('%');
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let code = piece.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let c = code.filter(u8::is_ascii).ok_or(KeyError::Escape)?;
        plain.push(char::from(c));
        plain.push_str(&piece[2..]);
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(conversation: &str, session: &str) -> String {
        Session::new(conversation, session).expect("ids are valid").key().to_string()
    }

    #[test]
    fn an_ordinary_key_is_plain() {
        assert_eq!(key("room 7.$a", "2024-05-01/🦀"), "room 7.$a:2024-05-01/🦀");
    }

    #[test]
    fn separators_inside_ids_keep_sessions_apart() {
        assert_eq!(key("a:b", "c"), "a%3Ab:c");
        assert_eq!(key("a", "b:c"), "a:b%3Ac");
        assert_eq!(key("a%3Ab", "c"), "a%253Ab:c");
    }

    #[test]
    fn what_a_header_would_lose_is_escaped() {
        assert_eq!(key("  a ", " b "), "%20 a : b ");
        assert_eq!(key("a\r\nX: y", "\0"), "a%0D%0AX%3A y:%00");
    }

    #[test]
    fn ids_are_bounded() {
        assert_eq!(Session::new("", "s"), Err(IdError::Empty("conversationId")));
        assert_eq!(Session::new("c", ""), Err(IdError::Empty("sessionId")));
        assert!(Session::new("c", &"s".repeat(256)).is_ok());
        assert_eq!(Session::new("c", &"é".repeat(129)), Err(IdError::TooLong("sessionId")));
    }

    #[test]
    fn what_is_no_key_is_told() {
        for (text, error) in [
            ("a", KeyError::Parts),
            ("a:b:c", KeyError::Parts),
            ("a%:c", KeyError::Escape),
            ("a%3:c", KeyError::Escape),
            ("a%é:c", KeyError::Escape),
            ("a%FF:c", KeyError::Escape),
            (":c", KeyError::Id(IdError::Empty("conversationId"))),
        ] {
            assert_eq!(Session::of_key(text), Err(error), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_key_names_its_session(a in "[ab:%é \n\0]{1,4}", b in "[ab:%é \n\0]{1,4}") {
            let session = Session::new(&a, &b).expect("ids are valid");
            prop_assert_eq!(Session::of_key(session.key().as_str()), Ok(session));
        }

        #[test]
        fn different_sessions_have_different_keys(
            a in "[ab:% \n]{1,4}", b in "[ab:% \n]{1,4}", c in "[ab:% \n]{1,4}", d in "[ab:% \n]{1,4}",
        ) {
            prop_assert_eq!(key(&a, &b) == key(&c, &d), (a, b) == (c, d));
        }
    }
}
