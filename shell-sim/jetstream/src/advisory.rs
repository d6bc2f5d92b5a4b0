//! What the broker tells whoever listens.

use std::sync::Arc;

use serde_json::json;

use super::{stamp::Stamp, wire::go_time};

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
}

impl Advisory {
    /// The subject of the core message.
    #[must_use]
    pub fn subject(&self) -> String {
        let token = match self.kind {
            AdvisoryKind::MaxDeliveries => "MAX_DELIVERIES",
            AdvisoryKind::Naked { .. } => "MSG_NAKED",
            AdvisoryKind::Terminated { .. } => "MSG_TERMINATED",
        };
        format!("$JS.EVENT.ADVISORY.CONSUMER.{token}.{}.{}", self.stream, self.consumer)
    }

    /// The payload of the core message; `number` makes its id.
    pub(super) fn payload(&self, number: u64, at: Stamp) -> Arc<[u8]> {
        let kind = match self.kind {
            AdvisoryKind::MaxDeliveries => "max_deliver",
            AdvisoryKind::Naked { .. } => "nak",
            AdvisoryKind::Terminated { .. } => "terminated",
        };
        let mut fields = json!({
            "type": format!("io.nats.jetstream.advisory.v1.{kind}"),
            "id": format!("{number:022}"),
            "timestamp": go_time(at.nanos()),
            "stream": *self.stream,
            "consumer": *self.consumer,
            "stream_seq": self.stream_seq,
            "deliveries": self.deliveries,
        });
        match &self.kind {
            AdvisoryKind::MaxDeliveries => {}
            AdvisoryKind::Naked { consumer_seq } => fields["consumer_seq"] = json!(consumer_seq),
            AdvisoryKind::Terminated { consumer_seq, reason } => {
                fields["consumer_seq"] = json!(consumer_seq);
                if !reason.is_empty() {
                    fields["reason"] = json!(**reason);
                }
            }
        }
        fields.to_string().into_bytes().into()
    }
}
