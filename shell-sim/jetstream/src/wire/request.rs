//! What a client publishes, as a request to the server.

use std::sync::Arc;

use super::body;
use crate::{
    ack::{AckBody, AckSubject},
    headers::Headers,
    message::{Inbox, Request},
    pull::Pull,
};

/// The request that a message to `subject` makes: a call of the management API, a pull, an acknowledgement, or else a message
/// to a subject. `None` where the model does nothing about it: a pull or a call that wants no answer.
#[must_use]
pub fn request(subject: Arc<str>, reply: Option<Inbox>, headers: Headers, payload: Arc<[u8]>) -> Option<Request> {
    if let Some(call) = subject.strip_prefix("$JS.API.") {
        let reply = reply?;
        let Some((stream, consumer)) = call.strip_prefix("CONSUMER.MSG.NEXT.").and_then(two_tokens) else {
            return Some(Request::Api { reply, call: Box::new(body::call(call, &payload)?) });
        };
        let (stream, consumer) = (stream.into(), consumer.into());
        return Some(match Pull::parse(&payload) {
            Ok(pull) => Request::Pull { stream, consumer, reply, pull },
            Err(why) => Request::UnreadablePull { stream, consumer, reply, why },
        });
    }
    if subject.starts_with("$JS.ACK.")
        && let Ok(ack) = subject.parse::<AckSubject>()
    {
        return Some(Request::Ack { subject: ack, body: AckBody::parse(&payload), reply });
    }
    Some(Request::Publish { reply, subject, headers, payload })
}

pub(super) fn two_tokens(rest: &str) -> Option<(&str, &str)> {
    rest.split_once('.').filter(|(_, second)| !second.contains('.'))
}
