//! What the broker tells whoever listens.

use std::sync::Arc;

use super::{message::Pause, stamp::Stamp, wire::json::Object};

/// Something that happened to a message of a consumer. On the wire it is a core message, at most once: lost where nobody listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advisory {
    /// The stream.
    pub stream: Arc<str>,
    /// The consumer.
    pub consumer: Arc<str>,
    /// The sequence of the message in the stream.
    pub stream_seq: u64,
    /// How often it had been delivered.
    pub deliveries: u64,
    /// What happened.
    pub kind: AdvisoryKind,
}

/// What happened to a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdvisoryKind {
    /// It will not be delivered again.
    MaxDeliveries,
    /// It was given back.
    Naked {
        /// The consumer sequence of the delivery named.
        consumer_seq: u64,
    },
    /// It was terminated, or was removed from the stream while it was out.
    Terminated {
        /// The consumer sequence of the delivery named.
        consumer_seq: u64,
        /// Why.
        reason: Arc<str>,
    },
    /// The consumer was paused, or goes on; no message is meant.
    Pause(Pause),
    /// The consumer was made; no message is meant.
    Created,
    /// The consumer was deleted; no message is meant.
    Deleted,
}

impl Advisory {
    /// The subject of the core message.
    #[must_use]
    pub fn subject(&self) -> String {
        let token = match self.kind {
            AdvisoryKind::MaxDeliveries => "MAX_DELIVERIES",
            AdvisoryKind::Naked { .. } => "MSG_NAKED",
            AdvisoryKind::Terminated { .. } => "MSG_TERMINATED",
            AdvisoryKind::Pause(_) => "PAUSE",
            AdvisoryKind::Created => "CREATED",
            AdvisoryKind::Deleted => "DELETED",
        };
        format!("$JS.EVENT.ADVISORY.CONSUMER.{token}.{}.{}", self.stream, self.consumer)
    }

    /// The payload of the core message; `number` makes its id.
    pub(super) fn payload(&self, number: u64, at: Stamp) -> Arc<[u8]> {
        let kind = match self.kind {
            AdvisoryKind::MaxDeliveries => "max_deliver",
            AdvisoryKind::Naked { .. } => "nak",
            AdvisoryKind::Terminated { .. } => "terminated",
            AdvisoryKind::Pause(_) => "consumer_pause",
            AdvisoryKind::Created | AdvisoryKind::Deleted => "consumer_action",
        };
        let mut json = Object::new(320);
        json.text("type", &format!("io.nats.jetstream.advisory.v1.{kind}"));
        json.text("id", &format!("{number:022}"));
        json.time("timestamp", at.nanos());
        json.text("stream", &self.stream);
        json.text("consumer", &self.consumer);
        match &self.kind {
            AdvisoryKind::MaxDeliveries => {}
            AdvisoryKind::Naked { consumer_seq } | AdvisoryKind::Terminated { consumer_seq, .. } => {
                json.number("consumer_seq", consumer_seq);
            }
            AdvisoryKind::Created | AdvisoryKind::Deleted => {
                json.text("action", if self.kind == AdvisoryKind::Created { "create" } else { "delete" });
                return json.finish().into_bytes().into();
            }
            AdvisoryKind::Pause(pause) => {
                json.truth("paused", pause.left.is_some());
                json.time_or_never("pause_until", pause.until_nanos);
                return json.finish().into_bytes().into();
            }
        }
        json.number("stream_seq", self.stream_seq);
        json.number("deliveries", self.deliveries);
        if let AdvisoryKind::Terminated { reason, .. } = &self.kind
            && !reason.is_empty()
        {
            json.text("reason", reason);
        }
        json.finish().into_bytes().into()
    }
}
