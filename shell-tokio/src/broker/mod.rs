//! The effects on NATS, and the deliveries.

mod advisory;
mod again;
mod publish;
mod pull;

use std::{sync::Arc, time::Duration};

use async_nats::{Client, Message, Request, RequestErrorKind};
use tokio::sync::mpsc;
use transcript_core::{
    Acknowledgement, Failure, FailureKind, Input, Payload, Report,
    contract::{Announcement, DeadLetter, Notification},
    event::SessionEnded,
    ids::{EffectId, Key},
};

pub use self::{advisory::Advisories, pull::Puller};
use crate::batch::pipelined;

/// Heartbeats that may wait for the connection. When it falls behind they are dropped: the next ones are never far.
const HEARTBEATS: usize = 1 << 16;

/// Hands effects to the worker. Its queue is as long as jobs wait for it, which the core bounds.
#[derive(Debug, Clone)]
pub struct Broker {
    requests: mpsc::UnboundedSender<Asked>,
    heartbeats: mpsc::Sender<Arc<str>>,
    requester: Requester,
}

#[derive(Debug)]
struct Asked {
    id: EffectId,
    what: What,
}

#[derive(Debug)]
enum What {
    Publish { key: Key, announcement: Announcement, notification: Notification },
    DeadLetter { dead_letter: Arc<DeadLetter> },
    Republish { stream_sequence: u64, ended: SessionEnded },
    Acknowledge { reply: Arc<str>, acknowledgement: Acknowledgement },
}

impl Broker {
    /// Starts the workers; they end when every clone of the broker is gone. What became of the effects is sent to `reports`.
    #[must_use]
    pub fn start(
        client: &Client,
        reports: &mpsc::UnboundedSender<Input>,
        answer_timeout: Duration,
        name: Arc<str>,
    ) -> Self {
        let (requests, mut waiting) = mpsc::unbounded_channel();
        let (heartbeats, beating) = mpsc::channel(HEARTBEATS);
        let requester = Requester { client: client.clone(), answer_timeout, name };
        let (worker, reports) = (requester.clone(), reports.clone());
        // Every request is sent at once, the answers are taken as they come.
        tokio::spawn(pipelined(
            async move || waiting.recv().await,
            usize::MAX,
            move |asked: Asked| {
                let (requester, reports) = (worker.clone(), reports.clone());
                async move {
                    let report = requester.perform(asked.what).await.unwrap_or_else(Report::Failed);
                    // The driver loop is gone once the processor has drained; nobody needs the report then.
                    drop(reports.send(Input::Reported { effect: asked.id, report }));
                }
            },
        ));
        tokio::spawn(heartbeats_worker(client.clone(), beating));
        Self { requests, heartbeats, requester }
    }

    /// Publishes a notification.
    pub fn publish(&self, id: EffectId, key: Key, announcement: Announcement, notification: Notification) {
        self.send(id, What::Publish { key, announcement, notification });
    }

    /// Keeps a message as a dead letter.
    pub fn dead_letter(&self, id: EffectId, dead_letter: Arc<DeadLetter>) {
        self.send(id, What::DeadLetter { dead_letter });
    }

    /// Publishes the end of a call again.
    pub fn republish(&self, id: EffectId, stream_sequence: u64, ended: SessionEnded) {
        self.send(id, What::Republish { stream_sequence, ended });
    }

    /// Acknowledges a delivery.
    pub fn acknowledge(&self, id: EffectId, reply: Arc<str>, acknowledgement: Acknowledgement) {
        self.send(id, What::Acknowledge { reply, acknowledgement });
    }

    /// The bytes of a message of the stream; `None` where it holds none, or they cannot be read.
    pub async fn payload(&self, stream_sequence: u64) -> Option<Payload> {
        let message = self.requester.message(stream_sequence).await.ok()??;
        Some(Payload(message.payload.to_vec()))
    }

    /// Says that a delivery is still worked on.
    pub fn in_progress(&self, reply: Arc<str>) {
        drop(self.heartbeats.try_send(reply));
    }

    fn send(&self, id: EffectId, what: What) {
        // A worker that is gone reports nothing: the core asks again and gives the job back in the end.
        drop(self.requests.send(Asked { id, what }));
    }
}

async fn heartbeats_worker(client: Client, mut beating: mpsc::Receiver<Arc<str>>) {
    while let Some(reply) = beating.recv().await {
        // What cannot be sent now would be late.
        if client.connection_state() == async_nats::connection::State::Connected
            && let Err(error) = client.publish(reply.to_string(), "+WPI".into()).await
        {
            tracing::debug!(%error, "heartbeat not sent");
        }
    }
}

/// What a request needs.
#[derive(Debug, Clone)]
struct Requester {
    client: Client,
    answer_timeout: Duration,
    /// The processor's name, for dead letters.
    name: Arc<str>,
}

impl Requester {
    async fn perform(&self, what: What) -> Result<Report, Failure> {
        match what {
            What::Publish { key, announcement, notification } => self.announce(&key, announcement, &notification).await,
            What::DeadLetter { dead_letter } => self.dead_letter(&dead_letter).await,
            What::Republish { stream_sequence, ended } => self.republish(stream_sequence, &ended).await,
            What::Acknowledge { reply, acknowledgement } => {
                // Any answer is a yes; where nobody answers NATS says so, which the client tells apart (`double_ack` does
                // not).
                let request = Request::new().payload(body(&acknowledgement).into());
                self.send(reply.to_string(), request).await.map(|_| Report::Acknowledged)
            }
        }
    }

    async fn send(&self, subject: String, request: Request) -> Result<Message, Failure> {
        let request = request.timeout(Some(self.answer_timeout));
        self.client.send_request(subject, request).await.map_err(|error| {
            let kind = match error.kind() {
                RequestErrorKind::TimedOut => FailureKind::TimedOut,
                RequestErrorKind::NoResponders | RequestErrorKind::Other => FailureKind::Unreachable,
                RequestErrorKind::InvalidSubject | RequestErrorKind::MaxPayloadExceeded => FailureKind::Rejected,
            };
            Failure { kind, detail: format!("NATS: {error}") }
        })
    }
}

/// JetStream's error codes are HTTP's: what it refuses with one of these is not refused for good. A duplicate id that is
/// still in process is a 409.
fn of_code(code: usize) -> FailureKind {
    match code {
        401 | 403 => FailureKind::Denied,
        409 | 429 | 500.. => FailureKind::Busy,
        _ => FailureKind::Rejected,
    }
}

fn body(acknowledgement: &Acknowledgement) -> String {
    match acknowledgement {
        Acknowledgement::Ack => "+ACK".to_owned(),
        Acknowledgement::Nak { delay, .. } if delay.is_zero() => "-NAK".to_owned(),
        Acknowledgement::Nak { delay, .. } => format!(r#"-NAK {{"delay": {}}}"#, delay.as_nanos()),
        Acknowledgement::Term { reason } => format!("+TERM {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_read_as_the_server_expects_them() {
        let term = Acknowledgement::Term { reason: "sessionId is empty".into() };
        let nak = |delay| Acknowledgement::Nak { delay, reason: String::new() };
        let bodies = [
            (Acknowledgement::Ack, "+ACK"),
            (nak(Duration::ZERO), "-NAK"),
            (nak(Duration::from_millis(1500)), r#"-NAK {"delay": 1500000000}"#),
            (term, "+TERM sessionId is empty"),
        ];
        for (acknowledgement, expected) in bodies {
            assert_eq!(body(&acknowledgement), expected);
        }
    }

    #[test]
    fn a_duplicate_id_in_process_is_tried_again() {
        assert_eq!(of_code(409), FailureKind::Busy);
        assert_eq!(of_code(503), FailureKind::Busy);
        assert_eq!(of_code(400), FailureKind::Rejected);
    }
}
