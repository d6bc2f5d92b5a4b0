//! The protocol: what a NATS client sends becomes the model's requests, and the model's messages become what a client
//! receives.
//!
//! There are two ways to use it. [`request`] and [`Received::from`] translate single messages, for a harness that names the
//! inboxes by numbers itself. A [`Connection`] keeps the subscriptions of one client as nats-server does, with subjects and
//! subscription ids.
//!
//! Payloads are the bytes that nats-server 2.15 writes, including the order of the fields; a test runs the same requests
//! against both. Sources: `server/jetstream_api.go`, `server/stream.go` and `server/consumer.go` of nats-server. The text of
//! an error about JSON that cannot be parsed is this model's own.

mod answer;
mod body;
mod config;
mod connection;
pub(crate) mod json;
mod request;
mod strict;

use std::{borrow::Cow, sync::Arc};

pub use self::{
    connection::{ClientLimits, Connection, Frame, Violation},
    request::request,
    strict::Unparsable,
};
use super::{
    headers::Headers,
    message::{Message, Status, StatusHeaders},
};

/// A message as a client receives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The subject; `None` stands for the inbox that the message came to. A delivery carries the subject under which it was
    /// published: a client with one wildcard subscription for many inboxes cannot tell to which of them it came.
    pub subject: Option<Arc<str>>,
    /// Where it can be answered: of a delivery, its acknowledgement subject.
    pub reply: Option<Arc<str>>,
    /// What follows `NATS/1.0` in the first line of the header block. A raw block can hold another: see [`Received::parsed`].
    pub status: Option<StatusLine>,
    /// The header lines.
    pub headers: Headers,
    /// The payload.
    pub payload: Arc<[u8]>,
}

/// The status in the first line of a header block: `NATS/1.0 408 Request Timeout`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusLine {
    /// The code.
    pub code: u16,
    /// The rest of the line; empty where there is none.
    pub text: Cow<'static, str>,
}

impl From<Message> for Received {
    fn from(message: Message) -> Self {
        match message {
            Message::Delivery(delivery) => Self {
                subject: Some(delivery.message.subject.clone()),
                reply: Some(delivery.reply.to_string().into()),
                status: None,
                headers: delivery.message.headers.clone(),
                payload: delivery.message.payload.clone(),
            },
            Message::Core { subject, headers, payload } => {
                Self { subject: Some(subject), reply: None, status: None, headers, payload }
            }
            Message::Status(status) => Self::status(status),
            Message::AckConfirmed => Self::empty(),
            Message::NoResponders { subject } => Self {
                status: Some(StatusLine { code: 503, text: "".into() }),
                headers: Headers::default().with("Nats-Subject", subject),
                ..Self::empty()
            },
            Message::PubAck(ack) => Self::answer(answer::pub_ack(&ack)),
            Message::PublishRefused { stream, error } => Self::answer(answer::publish_refused(&stream, &error)),
            Message::Answer { call, answer } => Self::answer(answer::answered(call, &answer)),
            Message::Refused { call, error } => Self::answer(answer::refused(call, &error)),
        }
    }
}

impl Received {
    fn answer(payload: Vec<u8>) -> Self {
        Self { payload: payload.into(), ..Self::empty() }
    }

    fn empty() -> Self {
        Self { subject: None, reply: None, status: None, headers: Headers::default(), payload: Arc::default() }
    }

    fn status(status: Status) -> Self {
        let headers = match status.headers {
            StatusHeaders::None => Headers::default(),
            StatusHeaders::Pending { messages, bytes } => {
                Headers::numbers([("Nats-Pending-Messages", messages), ("Nats-Pending-Bytes", bytes)])
            }
            StatusHeaders::Last { consumer, stream } => {
                Headers::numbers([("Nats-Last-Consumer", consumer), ("Nats-Last-Stream", stream)])
            }
        };
        let status = Some(StatusLine { code: status.code, text: status.text });
        Self { status, headers, ..Self::empty() }
    }

    /// This message with its header block parsed as a strict client does it; a raw block becomes a status and lines.
    ///
    /// # Errors
    ///
    /// The client cannot parse the block, and drops the connection.
    pub fn parsed(self) -> Result<Self, Unparsable> {
        if self.headers.lines().is_some() {
            return Ok(self);
        }
        let (status, headers) = strict::parse(&self.headers.to_bytes())?;
        Ok(Self { status, headers, ..self })
    }

    /// The header block as the protocol writes it; empty where there is none.
    #[must_use]
    pub fn header_block(&self) -> Vec<u8> {
        let block = self.headers.to_bytes();
        let Some(status) = &self.status else { return block.into_owned() };
        let space = if status.text.is_empty() { "" } else { " " };
        let mut written = format!("NATS/1.0 {}{space}{}\r\n", status.code, status.text).into_bytes();
        let lines = block.strip_prefix(b"NATS/1.0\r\n").unwrap_or(b"\r\n");
        written.extend_from_slice(lines);
        written
    }

    /// The length of the message as the protocol writes it: what it takes of a client's pending bytes. `to` is the subject of
    /// the inbox, `sid` the subscription's id.
    #[must_use]
    pub fn wire_len(&self, to: &str, sid: u64) -> usize {
        let status = self.status.as_ref().map_or(0, |status| {
            let bare = if self.headers.is_empty() { "NATS/1.0\r\n\r\n".len() } else { 0 };
            let text = if status.text.is_empty() { 0 } else { 1 + status.text.len() };
            bare + " 408".len() + text
        });
        let headers = self.headers.wire_len() + status;
        let digits = |number: usize| super::message::decimal_digits(number as u64);
        let total = headers + self.payload.len();
        let sizes = if headers == 0 { "MSG".len() } else { "HMSG ".len() + digits(headers) };
        let reply = self.reply.as_ref().map_or(0, |reply| 1 + reply.len());
        let line = sizes + 1 + self.subject.as_deref().unwrap_or(to).len() + 1 + super::message::decimal_digits(sid);
        line + reply + 1 + digits(total) + "\r\n".len() + total + "\r\n".len()
    }
}
