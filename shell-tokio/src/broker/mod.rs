//! The effects on NATS, and the deliveries.

mod pull;

use std::{sync::Arc, time::Duration};

use async_nats::{
    Client, HeaderMap, Message, Request, RequestErrorKind,
    jetstream::{publish::PublishAck, response::Response},
};
use tokio::sync::mpsc;
use transcript_core::{
    Acknowledgement, Failure, FailureKind, Input, Report,
    contract::{Notification, PROCESSED_SUBJECT, TRANSCRIPTION_STREAM},
    ids::{EffectId, Key},
};

pub use self::pull::Puller;
use crate::batch::pipelined;

/// Heartbeats that may wait for the connection. When it falls behind they are dropped: the next ones are never far.
const HEARTBEATS: usize = 1 << 16;

/// Hands effects to the worker. Its queue is as long as jobs wait for it, which the core bounds.
#[derive(Debug, Clone)]
pub struct Broker {
    requests: mpsc::UnboundedSender<Asked>,
    heartbeats: mpsc::Sender<Arc<str>>,
}

#[derive(Debug)]
struct Asked {
    id: EffectId,
    what: What,
}

#[derive(Debug)]
enum What {
    Publish { message_id: Key, notification: Notification },
    Acknowledge { reply: Arc<str>, acknowledgement: Acknowledgement },
}

impl Broker {
    /// Starts the workers; they end when every clone of the broker is gone. What became of the effects is sent to `reports`.
    #[must_use]
    pub fn start(client: &Client, reports: &mpsc::UnboundedSender<Input>, answer_timeout: Duration) -> Self {
        let (requests, waiting) = mpsc::unbounded_channel();
        let (heartbeats, beating) = mpsc::channel(HEARTBEATS);
        let (requester, reports) = (client.clone(), reports.clone());
        // Every request is sent at once, the answers are taken as they come.
        tokio::spawn(pipelined(waiting, usize::MAX, move |asked| {
            let (client, reports) = (requester.clone(), reports.clone());
            // The driver loop is gone once the processor has drained; nobody needs the report then.
            async move { drop(reports.send(request(&client, asked, answer_timeout).await)) }
        }));
        tokio::spawn(heartbeats_worker(client.clone(), beating));
        Self { requests, heartbeats }
    }

    /// Publishes the notification.
    pub fn publish(&self, id: EffectId, message_id: Key, notification: Notification) {
        self.send(id, What::Publish { message_id, notification });
    }

    /// Acknowledges a delivery.
    pub fn acknowledge(&self, id: EffectId, reply: Arc<str>, acknowledgement: Acknowledgement) {
        self.send(id, What::Acknowledge { reply, acknowledgement });
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

async fn request(client: &Client, asked: Asked, answer_timeout: Duration) -> Input {
    let answer = match asked.what {
        What::Publish { message_id, notification } => publish(client, &message_id, &notification, answer_timeout).await,
        What::Acknowledge { reply, acknowledgement } => {
            // Any answer is a yes; where nobody answers NATS says so, which the client tells apart (`double_ack` does not).
            let request = Request::new().payload(body(&acknowledgement).into()).timeout(Some(answer_timeout));
            send(client, reply.to_string(), request).await.map(|_| Report::Acknowledged)
        }
    };
    Input::Reported { effect: asked.id, report: answer.unwrap_or_else(Report::Failed) }
}

async fn publish(
    client: &Client,
    message_id: &Key,
    notification: &Notification,
    answer_timeout: Duration,
) -> Result<Report, Failure> {
    let rejected = |detail: String| Failure { kind: FailureKind::Rejected, detail };
    let payload = serde_json::to_vec(notification).map_err(|error| rejected(error.to_string()))?;
    let mut headers = HeaderMap::new();
    if cfg!(not(feature = "first-version")) {
        headers.insert(async_nats::header::NATS_MESSAGE_ID, message_id.as_str());
    }
    headers.insert(async_nats::header::NATS_EXPECTED_STREAM, TRANSCRIPTION_STREAM);
    let request = Request::new().payload(payload.into()).headers(headers).timeout(Some(answer_timeout));
    let answer = send(client, PROCESSED_SUBJECT.to_owned(), request).await?;
    match serde_json::from_slice::<Response<PublishAck>>(&answer.payload) {
        Ok(Response::Ok(ack)) => Ok(Report::Published { stream_sequence: ack.sequence }),
        Ok(Response::Err { error }) => {
            Err(Failure { kind: of_code(error.code()), detail: format!("JetStream refused the publish: {error}") })
        }
        Err(error) => Err(Failure { kind: FailureKind::Busy, detail: format!("no publish acknowledgement: {error}") }),
    }
}

async fn send(client: &Client, subject: String, request: Request) -> Result<Message, Failure> {
    client.send_request(subject, request).await.map_err(|error| {
        let kind = match error.kind() {
            RequestErrorKind::TimedOut => FailureKind::TimedOut,
            RequestErrorKind::NoResponders | RequestErrorKind::Other => FailureKind::Unreachable,
            RequestErrorKind::InvalidSubject | RequestErrorKind::MaxPayloadExceeded => FailureKind::Rejected,
        };
        Failure { kind, detail: format!("NATS: {error}") }
    })
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
