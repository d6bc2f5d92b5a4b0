//! The sockets of the JetStream client: frames to async-nats, messages and the state of the connection from it.
//!
//! One subscription with a wildcard carries every answer and every delivery. It is made once: async-nats drops what is on
//! its way to a subscription that ends (0.51: `Command::Unsubscribe` takes it out of its map at once, and a drain ends with
//! the next turn of its loop and not with the server's PONG).

use std::{sync::Arc, time::Duration};

use async_nats::{Client, HeaderMap, SubscribeError, Subscriber, connection::State};
use futures::StreamExt;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, interval_at, timeout},
};
use transcript_client::jetstream::{self, Address, Frame, Headers, Input, Message, Settings, Status};

use super::clock::Clock;
use crate::connect::ConnectionEvents;

/// How many frames are written before it is said that they are.
const BURST: usize = 256;
/// How often the state of the connection is looked at where nobody says that it has changed: async-nats drops events that
/// are not taken in time.
const LOOK: Duration = Duration::from_millis(100);
/// How long the last bytes to NATS may take.
const FLUSH: Duration = Duration::from_secs(1);

/// Takes frames.
#[derive(Debug, Clone)]
pub struct Socket {
    frames: mpsc::UnboundedSender<Frame>,
}

impl Socket {
    /// Subscribes, and hands what comes to `inputs` from now on.
    ///
    /// # Errors
    ///
    /// The connection is closed.
    pub async fn open(
        client: &Client,
        settings: &Settings,
        clock: Clock,
        events: watch::Receiver<ConnectionEvents>,
        inputs: &mpsc::UnboundedSender<Input>,
    ) -> Result<Self, SubscribeError> {
        let prefix = client.new_inbox();
        let inbox = client.subscribe(format!("{prefix}.*")).await?;
        let advisories = client.subscribe(jetstream::advisories(settings)).await?;
        let own = format!("{prefix}.");
        tokio::spawn(forward(inbox, clock, inputs.clone(), move |subject| {
            let token = subject.strip_prefix(&own).and_then(|token| token.parse().ok());
            token.map_or(Address::Published, Address::Inbox)
        }));
        tokio::spawn(forward(advisories, clock, inputs.clone(), |_| Address::Advisories));
        tokio::spawn(watch_connection(client.clone(), events, inputs.clone()));
        let (sender, frames) = mpsc::unbounded_channel();
        tokio::spawn(write(client.clone(), prefix.into(), frames, inputs.clone()));
        Ok(Self { frames: sender })
    }

    /// Writes a frame behind those before it. The client bounds how many wait.
    pub fn send(&self, frame: Frame) {
        // A writer that is gone reports nothing: what it was given is asked for again.
        drop(self.frames.send(frame));
    }
}

/// Writes what is still to be written, before the process ends.
pub(crate) async fn flush(client: &Client) {
    if !matches!(timeout(FLUSH, client.flush()).await, Ok(Ok(()))) {
        tracing::warn!("NATS did not take the last messages in time: another process sends them again");
    }
}

async fn forward(
    mut subscriber: Subscriber,
    clock: Clock,
    inputs: mpsc::UnboundedSender<Input>,
    address: impl Fn(&str) -> Address,
) {
    while let Some(message) = subscriber.next().await {
        let to = address(&message.subject);
        if inputs.send(Input::Received(read(to, message, clock))).is_err() {
            return;
        }
    }
}

fn read(to: Address, message: async_nats::Message, clock: Clock) -> Message {
    let headers = message
        .headers
        .iter()
        .flat_map(HeaderMap::iter)
        .flat_map(|(name, values)| values.iter().map(|value| (name.to_string().into(), value.as_str().to_owned())));
    Message {
        to,
        reply: message.reply.map(|reply| Arc::from(reply.as_str())),
        status: message.status.map(|status| Status {
            code: status.as_u16(),
            description: message.description.unwrap_or_default().into(),
        }),
        headers: headers.collect(),
        payload: message.payload.to_vec(),
        received_at: clock.wall(),
    }
}

/// Writes what it is given, and says how much of it async-nats has taken to its connection. While there is none, async-nats
/// keeps what it was given and sends it later: it is given no more than the client allows.
async fn write(
    client: Client,
    prefix: Arc<str>,
    mut frames: mpsc::UnboundedReceiver<Frame>,
    inputs: mpsc::UnboundedSender<Input>,
) {
    let mut burst = Vec::with_capacity(BURST);
    loop {
        let count = frames.recv_many(&mut burst, BURST).await;
        if count == 0 {
            return;
        }
        for frame in burst.drain(..) {
            if let Err(error) = publish(&client, &prefix, frame).await {
                tracing::debug!(%error, "a message was not sent");
            }
        }
        if let Err(error) = client.flush().await {
            tracing::debug!(%error, "NATS is closed");
        }
        let frames = u64::try_from(count).unwrap_or(u64::MAX);
        if inputs.send(Input::Written { frames }).is_err() {
            return;
        }
    }
}

async fn publish(client: &Client, prefix: &str, frame: Frame) -> Result<(), async_nats::PublishError> {
    let Frame { subject, reply, headers, payload } = frame;
    let (subject, payload) = (subject.to_string(), payload.into());
    let reply = reply.map(|token| format!("{prefix}.{token}"));
    match (reply, headers.is_empty()) {
        (None, true) => client.publish(subject, payload).await,
        (None, false) => client.publish_with_headers(subject, header_map(headers), payload).await,
        (Some(reply), true) => client.publish_with_reply(subject, reply, payload).await,
        (Some(reply), false) => {
            client.publish_with_reply_and_headers(subject, reply, header_map(headers), payload).await
        }
    }
}

fn header_map(headers: Headers) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(name.as_ref(), value);
    }
    map
}

/// Says when the connection is lost and made anew. It is told by what async-nats counts, so that nothing is missed; the
/// events say when to look.
async fn watch_connection(
    client: Client,
    mut events: watch::Receiver<ConnectionEvents>,
    inputs: mpsc::UnboundedSender<Input>,
) {
    let statistics = client.statistics();
    let connects = || statistics.connects.load(std::sync::atomic::Ordering::Relaxed);
    let (mut known, mut failed_before) = (None, events.borrow().failed_attempts);
    let mut looks = interval_at(Instant::now(), LOOK);
    loop {
        let is_connected = client.connection_state() == State::Connected;
        let current = is_connected.then(connects);
        if current != known {
            if known.is_some() && inputs.send(Input::Disconnected).is_err() {
                return;
            }
            known = current;
            if current.is_some() {
                let failed = events.borrow_and_update().failed_attempts;
                let failed_attempts = failed.wrapping_sub(std::mem::replace(&mut failed_before, failed));
                let connected = Input::Connected { max_payload: client.max_payload(), failed_attempts };
                if inputs.send(connected).is_err() {
                    return;
                }
            }
        }
        tokio::select! {
            changed = events.changed() => if changed.is_err() { looks.tick().await; },
            _ = looks.tick() => if inputs.is_closed() { return },
        }
    }
}
