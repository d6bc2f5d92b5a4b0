//! Messages that used up their deliveries, of which JetStream tells whoever listens.
//!
//! It tells once and does not look whether anybody heard, and for more than one delivery it notices only when a pull
//! request waits (nats-server, `server/consumer.go`: `hasMaxDeliveries`, `notifyDeliveryExceeded`). What nobody heard is
//! found by the audit.

use async_nats::{Client, SubscribeError, Subscriber};
use futures::StreamExt;
use serde::Deserialize;
use tokio::sync::mpsc;
use transcript_core::{
    Exhausted, Input,
    contract::{CONSUMER, TRANSCRIPTION_STREAM},
};

use super::Broker;
use crate::service::clock::Clock;

/// A subscription that all processors share: each advisory goes to one of them.
#[derive(Debug)]
pub struct Advisories {
    subscriber: Subscriber,
}

/// The part of `io.nats.jetstream.advisory.v1.max_deliver` that is needed.
#[derive(Debug, Deserialize)]
struct MaxDeliver {
    stream_seq: u64,
    deliveries: u64,
}

impl Advisories {
    /// Listens from now on.
    ///
    /// # Errors
    ///
    /// The connection is closed.
    pub async fn subscribe(client: &Client) -> Result<Self, SubscribeError> {
        let subject = format!("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{TRANSCRIPTION_STREAM}.{CONSUMER}");
        let subscriber = client.queue_subscribe(subject, CONSUMER.to_owned()).await?;
        Ok(Self { subscriber })
    }

    /// Hands over what it hears until nobody takes it any more.
    pub async fn run(mut self, clock: Clock, broker: Broker, inputs: mpsc::UnboundedSender<Input>) {
        while let Some(message) = self.subscriber.next().await {
            let input = match serde_json::from_slice::<MaxDeliver>(&message.payload) {
                Ok(MaxDeliver { stream_seq, deliveries }) => Input::Exhausted(Exhausted {
                    stream_sequence: stream_seq,
                    attempts: deliveries,
                    received_at: clock.wall(),
                    payload: broker.payload(stream_seq).await,
                }),
                Err(error) => {
                    tracing::warn!(%error, "an advisory of JetStream cannot be read");
                    continue;
                }
            };
            if inputs.send(input).is_err() {
                return;
            }
        }
    }
}
