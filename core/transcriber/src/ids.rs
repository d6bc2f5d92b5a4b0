//! The ids of instances, connections and effects, and the source of a segment.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use transcript_core::ids::Key;

/// One start of a transcriber: the `_id` of its lease, and its name in the documents of the sessions that it serves.
///
/// `<name>.<nonce>.<incarnation>`. A name can come again, an instance cannot: the shell draws the nonce at each start, and the
/// machine counts the incarnation up when its lease was lost.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InstanceId(Arc<str>);

impl InstanceId {
    /// An instance; `incarnation` counts from 1.
    #[must_use]
    pub fn new(name: &str, nonce: &str, incarnation: u32) -> Self {
        Self(format!("{name}.{nonce}.{incarnation}").into())
    }

    /// The id as it is stored.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names a connection; the shell gives it, and gives it once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ConnectionId(pub u64);

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Ties the report of an effect to the request for it. It grows with each effect of one transcriber, so that it also orders
/// the writes of one instance: see [`Fence`](crate::Fence).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EffectId(pub(crate) u64);

impl EffectId {
    /// The number, from 1.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for EffectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where a segment came from: one string for client, epoch and the client's id of the segment. Two segments of one session
/// with the same source are the same segment; the later one replaces the text of the earlier one.
///
/// `<client>:<epoch>:<id>`. Inside a part `%` and `:` are written `%25` and `%3A`. A part that the client did not name is
/// generated, and begins with `%` and a letter, so that it is never equal to a named one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Source(Arc<str>);

impl Source {
    /// The source of a segment: of an [epoch](EpochId) and the client's id, or its number on its connection where the client
    /// gave none.
    #[must_use]
    pub fn new(epoch: &EpochId, id: Result<&str, Unnamed<'_>>) -> Self {
        let mut source = String::from(&*epoch.0);
        source.push(':');
        match id {
            Ok(id) => escape_into(&mut source, id),
            Err(Unnamed { nonce, connection, number }) => {
                source.push_str(&format!("%n{nonce}.{connection}.{number}"));
            }
        }
        Self(source.into())
    }

    /// The source as it is stored.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A segment without an id of its client, which is therefore no other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unnamed<'a> {
    /// The nonce of the transcriber that received it.
    pub nonce: &'a str,
    /// Its connection.
    pub connection: ConnectionId,
    /// Its number on the connection.
    pub number: u64,
}

/// A span in which a client's segment ids and times are those of one clock: `<client>:<epoch>`.
///
/// Engines restart both after a reconnect, so that each connection is an epoch of its own. A client that goes on after a
/// reconnect names itself and its epoch.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EpochId(Arc<str>);

impl EpochId {
    /// An epoch that the client named.
    #[must_use]
    pub fn named(client: &str, epoch: &str) -> Self {
        let mut id = String::new();
        escape_into(&mut id, client);
        id.push(':');
        escape_into(&mut id, epoch);
        Self(id.into())
    }

    /// The epoch of one connection.
    #[must_use]
    pub fn of_connection(client: Option<&str>, nonce: &str, connection: ConnectionId) -> Self {
        let mut id = String::new();
        escape_into(&mut id, client.unwrap_or_default());
        id.push_str(&format!(":%c{nonce}.{connection}"));
        Self(id.into())
    }

    /// The epoch of all requests of a client that named itself: requests are repeated, and each is a connection.
    #[must_use]
    pub fn of_requests(client: &str) -> Self {
        let mut id = String::new();
        escape_into(&mut id, client);
        id.push_str(":%p");
        Self(id.into())
    }

    /// The epoch as it is stored.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// `Nats-Msg-Id` of a session's end, one for each generation. It is no key, because in a key two hexadecimal digits stand
/// behind every `%`; and the end that a repair makes from a summary is `<key>%end`, without a number.
#[must_use]
pub fn end_message_id(key: &Key, generation: u64) -> String {
    format!("{key}%end{generation}")
}

/// `Nats-Msg-Id` of a segment: `<sessionId>:<index>`, as the data contract has it. A text that replaced another one has an id of
/// its own, or else the stream would drop it as a duplicate.
#[must_use]
pub fn segment_message_id(session_id: &str, index: u64, replaced_by: Option<u64>) -> String {
    match replaced_by {
        None => format!("{session_id}:{index}"),
        Some(write) => format!("{session_id}:{index}%edit{write}"),
    }
}

fn escape_into(out: &mut String, part: &str) {
    for c in part.chars() {
        match c {
            '%' => out.push_str("%25"),
            ':' => out.push_str("%3A"),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn generated_parts_are_no_named_ones() {
        let unnamed = Unnamed { nonce: "f00", connection: ConnectionId(3), number: 1 };
        let connection = EpochId::of_connection(Some("alice"), "f00", ConnectionId(3));
        assert_eq!(Source::new(&connection, Err(unnamed)).as_str(), "alice:%cf00.3:%nf00.3.1");
        assert_eq!(Source::new(&EpochId::of_requests("bot"), Ok("7")).as_str(), "bot:%p:7");
        assert_eq!(Source::new(&EpochId::named("a:b", "%c"), Ok("%n1")).as_str(), "a%3Ab:%25c:%25n1");
    }

    #[test]
    fn message_ids_of_different_meaning_differ() {
        let key = transcript_core::ids::Session::new("s", "1").expect("ids are valid").key();
        assert_eq!(end_message_id(&key, 1), "s:1%end1");
        assert_eq!(segment_message_id("s", 1, None), "s:1");
        assert_ne!(segment_message_id("s", 1, Some(1)), end_message_id(&key, 1));
    }

    proptest! {
        #[test]
        fn different_parts_give_different_sources(
            a in "[a:%]{0,3}", b in "[b:%]{0,3}", c in "[c:%]{0,3}", d in "[a:%]{0,3}", e in "[b:%]{0,3}", f in "[c:%]{0,3}",
        ) {
            let one = Source::new(&EpochId::named(&a, &b), Ok(&c));
            let other = Source::new(&EpochId::named(&d, &e), Ok(&f));
            prop_assert_eq!(one == other, (a, b, c) == (d, e, f));
        }
    }
}
