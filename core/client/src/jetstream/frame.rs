//! What goes to a NATS server and what comes from it, as subjects, headers and payloads.

use std::{borrow::Cow, sync::Arc};

use transcript_core::{WallTime, contract::trace_context::TraceContext};

/// The headers of a message in their order; names can repeat.
pub type Headers = Vec<(Cow<'static, str>, String)>;

/// A message to the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Where it is published.
    pub subject: Arc<str>,
    /// The token of the inbox that the answer is to come to; `None` where no answer is wanted.
    pub reply: Option<u64>,
    /// Headers; an empty list is none.
    pub headers: Headers,
    /// The payload.
    pub payload: Vec<u8>,
}

/// A message from the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Which subscription it came for.
    pub to: Address,
    /// The subject on which it is to be answered: of a delivery, where it is acknowledged.
    pub reply: Option<Arc<str>>,
    /// The status line of its header block, where that has one. Anybody can publish one.
    pub status: Option<Status>,
    /// Headers.
    pub headers: Headers,
    /// The payload.
    pub payload: Vec<u8>,
    /// When the shell received it, by its calendar.
    pub received_at: WallTime,
}

/// Where a message came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Address {
    /// The inbox subject with this token at its end.
    Inbox(u64),
    /// The inbox, under the subject that the message was published under: nats-server shows a delivery like that, and not the
    /// token of the request that it answers.
    Published,
    /// The subject of [`advisories`](super::advisories).
    Advisories,
}

/// The status line of a header block: `NATS/1.0 408 Request Timeout`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The code.
    pub code: u16,
    /// The rest of the line.
    pub description: Cow<'static, str>,
}

/// The trace that a message with these headers belongs to.
#[must_use]
pub fn trace_context(headers: &Headers) -> Option<TraceContext> {
    TraceContext::of_headers(headers.iter().map(|(name, value)| (&**name, value.as_str())))
}

/// The first value of a header. Names are compared as nats-server does, letter by letter.
#[must_use]
pub fn header<'a>(headers: &'a Headers, name: &str) -> Option<&'a str> {
    headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}
