//! Messages of the stream that were handed over to this process.

use std::sync::Arc;

use transcript_core::{Delivery, Payload, WallTime, contract::REDRIVE_OF_HEADER};

use super::frame::{Message, header, trace_context};

/// Names of the headers that the server adds where a consumer delivers headers only.
const SIZE_HEADER: &str = "Nats-Msg-Size";

/// What the subject says on which a delivery is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AckSubject {
    pub(super) stream_sequence: u64,
    deliveries: u64,
    stored_ns: i64,
}

impl AckSubject {
    /// `$JS.ACK.<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<ns>.<pending>`, with the domain and the hash of
    /// the account before the stream where the server has `js_ack_fc_v2` (nats-server, `server/consumer.go`: `replyInfo`).
    pub(super) fn parse(reply: &str) -> Option<Self> {
        let mut tokens = reply.strip_prefix("$JS.ACK.")?.split('.');
        let skipped = match tokens.clone().count() {
            7 => 2,
            9.. => 4,
            _ => return None,
        };
        let mut numbers = tokens.by_ref().skip(skipped);
        let deliveries = numbers.next()?.parse().ok()?;
        let stream_sequence = numbers.next()?.parse().ok()?;
        let _consumer_sequence = numbers.next()?;
        let stored_ns = numbers.next()?.parse().ok()?;
        Some(Self { stream_sequence, deliveries, stored_ns })
    }

    /// Where the message at this place can be acknowledged although its delivery was lost: nats-server looks at the stream
    /// sequence only (`server/consumer.go`: `processAckMsgLocked`, `processTerm`).
    pub(super) fn composed(stream: &str, consumer: &str, stream_sequence: u64) -> Arc<str> {
        format!("$JS.ACK.{stream}.{consumer}.1.{stream_sequence}.1.0.0").into()
    }

    pub(super) fn delivery(self, message: Message) -> Delivery {
        let redrive_of = redrive_of(&message);
        let trace_context = trace_context(&message.headers).map(Arc::new);
        Delivery {
            stream_sequence: self.stream_sequence,
            attempt: self.deliveries,
            stored_at: WallTime::from_millis(self.stored_ns / 1_000_000),
            received_at: message.received_at,
            reply: message.reply.unwrap_or_default(),
            redrive_of,
            trace_context,
            payload: Payload(message.payload),
        }
    }
}

/// Whether the server kept the payload back, as the consumer's `headers_only` asks.
pub(super) fn lacks_payload(message: &Message) -> bool {
    message.payload.is_empty() && header(&message.headers, SIZE_HEADER).is_some()
}

/// The message that this one was made from. One of which the header cannot be read was still published again by somebody.
fn redrive_of(message: &Message) -> Option<u64> {
    Some(header(&message.headers, REDRIVE_OF_HEADER)?.parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_the_subject_are_read() {
        let expected = AckSubject { stream_sequence: 17, deliveries: 2, stored_ns: 1_700_000_000_000_000_000 };
        for subject in [
            "$JS.ACK.TRANSCRIPTION.transcript-processor.2.17.40.1700000000000000000.3",
            "$JS.ACK.hub.ACCHASH.TRANSCRIPTION.transcript-processor.2.17.40.1700000000000000000.3",
            "$JS.ACK._.ACCHASH.TRANSCRIPTION.transcript-processor.2.17.40.1700000000000000000.3.random",
        ] {
            assert_eq!(AckSubject::parse(subject), Some(expected), "{subject}");
        }
        for subject in ["$JS.ACK.a.b.1.2.3", "_INBOX.x.1", "$JS.ACK.a.b.x.17.40.1.3", "$JS.FC.a.b.c"] {
            assert_eq!(AckSubject::parse(subject), None, "{subject}");
        }
        let composed = AckSubject::composed("S", "C", 17);
        assert_eq!(AckSubject::parse(&composed).map(|subject| subject.stream_sequence), Some(17));
    }
}
