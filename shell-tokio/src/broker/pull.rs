//! Deliveries, by explicit pull requests for no more messages than the core has room for.
//!
//! No message waits in a client buffer without a heartbeat: what a request asks for is handed to the core as it comes. Each
//! request has an inbox of its own, because a delivery shows its stream subject and not the request that it answers. A
//! request is over when its messages have come, when the server says so, when the connection was made anew, or when the
//! server has been silent for longer than its heartbeats allow.

use std::{sync::Arc, time::Duration};

use async_nats::{Client, Message, StatusCode, Subscriber, connection::State, jetstream};
use futures::{FutureExt, StreamExt, future};
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};
use transcript_core::{
    Delivery, Input, Payload, WallTime,
    contract::{CONSUMER, REDRIVE_OF_HEADER, TRANSCRIPTION_STREAM},
};

use crate::service::clock::Clock;

/// The shortest and the longest time for which the server keeps a request; between them it is the ack wait.
///
/// A request outlives a connection that broke without a word, and a process that is frozen, and until it expires the server
/// hands every other message to it, for nobody. A message that is lost so comes back after the ack wait: where a
/// request lives no longer than that, it costs a message one attempt, or two, and never all of them.
const EXPIRES: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));
/// How often the server says that a request still waits.
const IDLE_HEARTBEAT: Duration = Duration::from_secs(1);
/// When a request that is not heard of is taken to be forgotten.
const SILENCE: Duration = Duration::from_millis(2500);
/// Requests of one processor that are open at once: one that is being served and one behind it.
const REQUESTS: usize = 2;
/// How often it is looked whether the connection is there again.
const OFFLINE: Duration = Duration::from_millis(50);
/// The pause after a request that the server did not take.
const PAUSE: Duration = Duration::from_millis(250);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Pulls deliveries and hands them to the driver.
#[derive(Debug)]
pub struct Puller {
    client: Client,
    clock: Clock,
    deliveries: mpsc::UnboundedSender<Input>,
    /// How many deliveries the core has taken and wants, all together since the start.
    allowance: watch::Receiver<u64>,
    /// Told when there is no consumer to ask.
    missing: Arc<Notify>,
    expires: Duration,
    requests: Vec<PullRequest>,
    received: u64,
    connects: u64,
    pause: Duration,
    not_before: Instant,
}

#[derive(Debug)]
struct PullRequest {
    subscriber: Subscriber,
    left: u64,
    last_heard: Instant,
}

/// What came of waiting for the open requests.
enum Heard {
    Message(usize, Message),
    /// The subscription of a request has ended.
    Closed(usize),
}

/// Why a request is over, for the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    /// As it should: ask again at once.
    Served,
    /// The server did not take it or forgot it: pause before asking again.
    Refused,
    /// There is no consumer, or no JetStream: the same, and somebody has to make it anew.
    Missing,
}

impl Puller {
    /// A puller that hands deliveries to `deliveries`, never asks for more than `allowance`, counted since the start, and
    /// notifies `missing` whenever it asked in vain because there is no consumer. It keeps asking, with growing pauses.
    #[must_use]
    pub fn new(
        client: Client,
        clock: Clock,
        deliveries: mpsc::UnboundedSender<Input>,
        allowance: watch::Receiver<u64>,
        missing: Arc<Notify>,
        ack_wait: Duration,
    ) -> Self {
        let connects = connects(&client);
        Self {
            client,
            clock,
            deliveries,
            allowance,
            missing,
            expires: ack_wait.clamp(EXPIRES.0, EXPIRES.1),
            requests: vec![],
            received: 0,
            connects,
            pause: PAUSE,
            not_before: Instant::now(),
        }
    }

    /// Pulls until it is told to stop or the driver is gone. When it returns, the server has been told that nobody waits
    /// for messages any more, before anything that is sent after that: what is given back then goes to other processors.
    pub async fn run(mut self, mut stop: oneshot::Receiver<()>) {
        loop {
            self.ask_for_more().await;
            let wake_up = self.wake_up();
            tokio::select! {
                heard = heard(&mut self.requests) => self.take(heard),
                changed = self.allowance.changed() => if changed.is_err() { return },
                () = sleep_until(wake_up) => {}
                _ = &mut stop => return self.stop().await,
            }
            self.forget_silent().await;
        }
    }

    /// When to look again without having heard anything.
    fn wake_up(&self) -> Instant {
        let now = Instant::now();
        let silent = self.requests.iter().map(|request| request.last_heard + SILENCE).min();
        let refused = Some(self.not_before).filter(|at| *at > now);
        let offline = (!self.connected()).then_some(now + OFFLINE);
        silent.into_iter().chain(refused).chain(offline).min().unwrap_or(now + SILENCE)
    }

    fn connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    async fn stop(mut self) {
        for mut request in std::mem::take(&mut self.requests) {
            if self.connected() && request.subscriber.drain().await.is_ok() {
                self.rest(&mut request).await;
            } else {
                self.end(request).await;
            }
        }
    }

    /// Tells the server that nobody waits for the request's messages any more, and hands over those that came before.
    async fn end(&mut self, mut request: PullRequest) {
        if let Err(error) = request.subscriber.unsubscribe().await {
            tracing::debug!(%error, "the connection is closed already");
        }
        self.rest(&mut request).await;
    }

    async fn rest(&mut self, request: &mut PullRequest) {
        while let Some(message) = request.subscriber.next().await {
            if matches!(message.status, None | Some(StatusCode::OK)) {
                self.received += 1;
                self.deliver(message);
            }
        }
    }

    async fn ask_for_more(&mut self) {
        let open: u64 = self.requests.iter().map(|request| request.left).sum();
        let allowance = *self.allowance.borrow_and_update();
        let wanted = allowance.saturating_sub(self.received + open);
        // A request behind the one that is being served is worth its while when it asks for as much.
        let worthwhile = if self.requests.is_empty() { wanted > 0 } else { wanted >= open.max(1) };
        // What is asked offline is sent after the next connect, when nobody may listen to its inbox any more.
        if !worthwhile || self.requests.len() >= REQUESTS || Instant::now() < self.not_before || !self.connected() {
            return;
        }
        match self.request(wanted).await {
            Ok(request) => self.requests.push(request),
            Err(error) => {
                tracing::warn!(%error, "cannot ask for messages");
                self.refused();
            }
        }
    }

    async fn request(&self, batch: u64) -> Result<PullRequest, async_nats::Error> {
        let inbox = self.client.new_inbox();
        let subscriber = self.client.subscribe(inbox.clone()).await?;
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{TRANSCRIPTION_STREAM}.{CONSUMER}");
        let body = serde_json::json!({
            "batch": batch,
            "expires": self.expires.as_nanos(),
            "idle_heartbeat": IDLE_HEARTBEAT.as_nanos(),
        });
        self.client.publish_with_reply(subject, inbox, body.to_string().into()).await?;
        tracing::debug!(batch, "asked for messages");
        Ok(PullRequest { subscriber, left: batch, last_heard: Instant::now() })
    }

    fn take(&mut self, heard: Heard) {
        let over = match heard {
            Heard::Closed(place) => Some((place, Over::Refused)),
            Heard::Message(place, message) => {
                let Some(request) = self.requests.get_mut(place) else { return };
                request.last_heard = Instant::now();
                match message.status {
                    None | Some(StatusCode::OK) => {
                        request.left = request.left.saturating_sub(1);
                        let served = request.left == 0;
                        self.received += 1;
                        self.pause = PAUSE;
                        self.deliver(message);
                        served.then_some((place, Over::Served))
                    }
                    Some(StatusCode::IDLE_HEARTBEAT) => None,
                    Some(status) => Some((place, over(status, message.description.as_deref().unwrap_or_default()))),
                }
            }
        };
        if let Some((place, over)) = over {
            self.requests.swap_remove(place);
            match over {
                Over::Served => {}
                Over::Refused => self.refused(),
                Over::Missing => {
                    self.refused();
                    self.missing.notify_one();
                }
            }
        }
    }

    fn deliver(&self, message: Message) {
        let received_at = self.clock.wall();
        let message = jetstream::Message { message, context: jetstream::new(self.client.clone()) };
        let delivery = match message.info() {
            Ok(info) => Delivery {
                stream_sequence: info.stream_sequence,
                attempt: u64::try_from(info.delivered).unwrap_or(0),
                stored_at: WallTime::from_millis(
                    i64::try_from(info.published.unix_timestamp_nanos() / 1_000_000).unwrap_or(0),
                ),
                received_at,
                reply: message.reply.as_deref().unwrap_or_default().into(),
                redrive_of: redrive_of(&message),
                payload: Payload(message.payload.to_vec()),
            },
            Err(error) => {
                tracing::warn!(%error, "a message that is no delivery came to a pull request's inbox");
                return;
            }
        };
        // The driver loop is gone once the processor has drained; the message is left to redelivery.
        drop(self.deliveries.send(Input::Delivered(delivery)));
    }

    /// Requests that the server must have forgotten are asked for anew.
    async fn forget_silent(&mut self) {
        let connects = connects(&self.client);
        let reconnected = connects != self.connects;
        if reconnected {
            self.connects = connects;
            self.not_before = Instant::now();
        }
        let now = Instant::now();
        let forgotten = |request: &mut PullRequest| reconnected || now >= request.last_heard + SILENCE;
        let forgotten: Vec<PullRequest> = self.requests.extract_if(.., forgotten).collect();
        for request in forgotten {
            tracing::debug!(reconnected, left = request.left, "a pull request must be forgotten: asking anew");
            self.end(request).await;
        }
    }

    fn refused(&mut self) {
        self.not_before = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}

/// The message that this one was made from. One of which the header cannot be read was still published again by somebody.
fn redrive_of(message: &Message) -> Option<u64> {
    let header = message.headers.as_ref()?.get(REDRIVE_OF_HEADER)?;
    Some(header.as_str().parse().unwrap_or(0))
}

async fn heard(requests: &mut [PullRequest]) -> Heard {
    if requests.is_empty() {
        return future::pending().await;
    }
    let next = requests.iter_mut().enumerate().map(|(place, request)| {
        Box::pin(request.subscriber.next().map(move |message| match message {
            Some(message) => Heard::Message(place, message),
            None => Heard::Closed(place),
        }))
    });
    future::select_all(next).await.0
}

/// Sorts the statuses that end a request (nats-server, `server/consumer.go`: `processNextMsgRequest`, `processWaiting`).
fn over(status: StatusCode, description: &str) -> Over {
    let expired = status == StatusCode::TIMEOUT || status == StatusCode::NOT_FOUND;
    if expired || description.eq_ignore_ascii_case("Batch Completed") {
        return Over::Served;
    }
    tracing::warn!(%status, description, "JetStream ended a pull request");
    let missing = status == StatusCode::NO_RESPONDERS || description.eq_ignore_ascii_case("Consumer Deleted");
    if missing { Over::Missing } else { Over::Refused }
}

fn connects(client: &Client) -> u64 {
    client.statistics().connects.load(std::sync::atomic::Ordering::Relaxed)
}
