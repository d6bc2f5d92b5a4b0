//! The server's side of one client's connection: its subscriptions.

use std::{collections::BTreeMap, sync::Arc};

use super::{Received, request};
use crate::{
    ack::AckBody,
    headers::Headers,
    message::{ClientId, Inbox, Input, Message, Request},
    subject::matches,
};

/// What a client says on its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// `SUB`.
    Subscribe {
        /// The client's own number for the subscription, which comes with everything that is delivered to it.
        sid: u64,
        /// The subject, wildcards included.
        subject: Arc<str>,
        /// The queue group.
        group: Option<Arc<str>>,
    },
    /// `UNSUB`.
    Unsubscribe {
        /// The subscription.
        sid: u64,
    },
    /// `PUB` and `HPUB`.
    Publish {
        /// The subject.
        subject: Arc<str>,
        /// Where an answer is to go.
        reply: Option<Arc<str>>,
        /// The headers.
        headers: Headers,
        /// The payload.
        payload: Arc<[u8]>,
    },
}

/// What a server allows a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientLimits {
    /// `max_payload`: the most bytes of headers and payload of a message that a client sends.
    pub max_payload: u64,
    /// `max_pending`: the most bytes that wait to be written to a client. The server closes the connection of a slow consumer,
    /// and what waited is lost.
    pub max_pending: u64,
}

impl Default for ClientLimits {
    /// The server's defaults: 1 MiB and 64 MiB.
    fn default() -> Self {
        Self { max_payload: 1 << 20, max_pending: 64 << 20 }
    }
}

/// Why the server closes a connection. The harness tells the model [`Input::Disconnect`], and drops what is under way to the
/// client. Source: `server/client.go` of nats-server, `maxPayloadViolation` and `queueOutbound`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    /// A message of the client is larger than `max_payload`.
    MaxPayload,
    /// More than `max_pending` bytes wait for the client.
    SlowConsumer,
}

/// One connection as the server keeps it: which subscriptions the client has, and which subject each of the model's inboxes
/// stands for. A client that connects again starts with a new one, and subscribes again.
///
/// A reply subject to which no subscription of this client listens has no interest: pull requests are dropped and answers lost.
#[derive(Debug, Clone)]
pub struct Connection {
    client: ClientId,
    subscriptions: BTreeMap<u64, Subscription>,
    inboxes: BTreeMap<u64, Heard>,
    tokens: BTreeMap<Arc<str>, u64>,
    last_token: u64,
    limits: ClientLimits,
    /// Bytes that wait to be written to the client.
    pending: u64,
}

#[derive(Debug, Clone)]
struct Subscription {
    subject: Arc<str>,
    /// The model's inbox for what other clients publish.
    token: u64,
}

/// What one of the model's inboxes stands for.
#[derive(Debug, Clone)]
enum Heard {
    /// What is published to a subscription.
    Published { sid: u64 },
    /// A reply subject.
    Reply { subject: Arc<str>, answers: Answers },
}

/// How many answers come to a reply subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answers {
    /// One for each request.
    Expected(u32),
    /// It is the inbox of a pull request.
    Any,
}

impl Answers {
    fn expect(&mut self, request: &Request) {
        let pulls = match request {
            Request::Pull { .. } | Request::Ack { body: AckBody::Next(_), .. } => true,
            Request::Publish { .. } | Request::UnreadablePull { .. } | Request::Ack { .. } | Request::Api { .. } => {
                false
            }
        };
        *self = match *self {
            Self::Expected(_) if pulls => Self::Any,
            Self::Expected(count) => Self::Expected(count + 1),
            Self::Any => Self::Any,
        };
    }

    /// One has come; whether it was the last.
    fn is_last(&mut self) -> bool {
        match self {
            Self::Expected(count) => {
                *count = count.saturating_sub(1);
                *count == 0
            }
            Self::Any => false,
        }
    }
}

impl Connection {
    /// A new connection without subscriptions. [`Input::Connect`] tells the model of it.
    #[must_use]
    pub fn new(client: ClientId, limits: ClientLimits) -> Self {
        let (subscriptions, inboxes, tokens) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { client, subscriptions, inboxes, tokens, last_token: 0, limits, pending: 0 }
    }

    /// The inputs for the model that a frame makes, in their order.
    ///
    /// # Errors
    ///
    /// The message is too large, and the server closes the connection.
    pub fn send(&mut self, frame: Frame, inputs: &mut impl Extend<Input>) -> Result<(), Violation> {
        match frame {
            Frame::Subscribe { sid, subject, group } => self.subscribe(sid, subject, group, inputs),
            Frame::Unsubscribe { sid } => self.unsubscribe(sid, inputs),
            Frame::Publish { subject, reply, headers, payload } => {
                if (headers.wire_len() + payload.len()) as u64 > self.limits.max_payload {
                    return Err(Violation::MaxPayload);
                }
                let inbox = reply.map(|reply| self.inbox(reply, inputs));
                let Some(request) = request(subject, inbox, headers, payload) else { return Ok(()) };
                if let Some(Heard::Reply { answers, .. }) = inbox.and_then(|inbox| self.inboxes.get_mut(&inbox.token)) {
                    answers.expect(&request);
                }
                inputs.extend([Input::Request(request)]);
            }
        }
        Ok(())
    }

    /// What the client receives of a message that the model sent to one of its inboxes, for each subscription that matches,
    /// with the subscription's id. It is pending until [`Connection::written`].
    ///
    /// # Errors
    ///
    /// The client is a slow consumer, and the server closes the connection.
    pub fn receive(
        &mut self,
        to: Inbox,
        message: Message,
        received: &mut impl Extend<(u64, Received)>,
    ) -> Result<(), Violation> {
        let Some(heard) = self.inboxes.get_mut(&to.token).filter(|_| to.client == self.client) else { return Ok(()) };
        let message = Received::from(message);
        match heard {
            Heard::Published { sid } => {
                self.pending += message.wire_len("", *sid) as u64;
                received.extend([(*sid, message)]);
            }
            Heard::Reply { subject, answers } => {
                let subject = Arc::clone(subject);
                if answers.is_last() {
                    self.inboxes.remove(&to.token);
                    self.tokens.remove(&subject);
                }
                let matching = self.subscriptions.iter().filter(|(_, it)| matches(&it.subject, &subject));
                for (sid, _) in matching {
                    let shown = message.subject.as_ref().unwrap_or(&subject);
                    let message = Received { subject: Some(Arc::clone(shown)), ..message.clone() };
                    self.pending += message.wire_len(&subject, *sid) as u64;
                    received.extend([(*sid, message)]);
                }
            }
        }
        if self.pending > self.limits.max_pending { Err(Violation::SlowConsumer) } else { Ok(()) }
    }

    /// A message was written to the client's socket: it waits no longer.
    pub fn written(&mut self, sid: u64, message: &Received) {
        self.pending = self.pending.saturating_sub(message.wire_len("", sid) as u64);
    }

    fn subscribe(&mut self, sid: u64, subject: Arc<str>, group: Option<Arc<str>>, inputs: &mut impl Extend<Input>) {
        let token = self.new_token();
        self.inboxes.insert(token, Heard::Published { sid });
        let revived = self.replies(&subject).map(|inbox| Input::Subscribe { to: inbox, subject: None, group: None });
        let revived: Vec<Input> = revived.collect();
        self.subscriptions.insert(sid, Subscription { subject: Arc::clone(&subject), token });
        let to = Inbox { client: self.client, token };
        inputs.extend([Input::Subscribe { to, subject: Some(subject), group }]);
        inputs.extend(revived);
    }

    fn unsubscribe(&mut self, sid: u64, inputs: &mut impl Extend<Input>) {
        let Some(subscription) = self.subscriptions.remove(&sid) else { return };
        self.inboxes.remove(&subscription.token);
        inputs.extend([Input::Unsubscribe(Inbox { client: self.client, token: subscription.token })]);
        let silent: Vec<Input> = self
            .inboxes
            .iter()
            .filter(|(_, heard)| {
                let Heard::Reply { subject, .. } = heard else { return false };
                matches(&subscription.subject, subject) && !self.listens_to(subject)
            })
            .map(|(token, _)| Input::Unsubscribe(Inbox { client: self.client, token: *token }))
            .collect();
        inputs.extend(silent);
    }

    /// The inboxes of reply subjects that the pattern matches.
    fn replies<'c>(&'c self, pattern: &'c str) -> impl Iterator<Item = Inbox> + 'c {
        self.inboxes.iter().filter_map(move |(token, heard)| {
            let Heard::Reply { subject, .. } = heard else { return None };
            matches(pattern, subject).then_some(Inbox { client: self.client, token: *token })
        })
    }

    fn listens_to(&self, subject: &str) -> bool {
        self.subscriptions.values().any(|it| matches(&it.subject, subject))
    }

    /// The model's inbox for a reply subject.
    fn inbox(&mut self, subject: Arc<str>, inputs: &mut impl Extend<Input>) -> Inbox {
        let client = self.client;
        if let Some(token) = self.tokens.get(&subject) {
            return Inbox { client, token: *token };
        }
        let token = self.new_token();
        let inbox = Inbox { client, token };
        if !self.listens_to(&subject) {
            inputs.extend([Input::Unsubscribe(inbox)]);
        }
        self.tokens.insert(Arc::clone(&subject), token);
        self.inboxes.insert(token, Heard::Reply { subject, answers: Answers::Expected(0) });
        inbox
    }

    fn new_token(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }
}
