//! The task that publishes, one event after the other.
//!
//! The next event is sent only when the one before it is acknowledged. Were two of them under way when a connection is lost,
//! the second could be stored without the first, and the first behind it.

use std::{error::Error, sync::Arc, time::Duration};

use async_nats::{
    ConnectOptions, HeaderMap, ServerAddr,
    connection::State,
    header::NATS_MESSAGE_ID,
    jetstream::{
        self, Context, ErrorCode,
        context::{PublishError, PublishErrorKind},
    },
};
use tokio::time::{Instant, sleep, timeout};

use super::{DropReason, LOG, Shared, buffer::Event};

/// The name under which servers list the connection.
const NAME: &str = "recording-events";
/// A peer that is gone without a word is noticed after three of these.
const PING_INTERVAL: Duration = Duration::from_secs(2);
/// Between two attempts, at first; each next pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long an acknowledgement is waited for.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(5);
/// For how long an event is sent again on a connection that stands, and not acknowledged: a user may lack the permission
/// for one subject, of which the server tells the publisher nothing, and that event must not hold up the others for ever.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);
/// How often dropped events are warned of while there are more.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// Where events are published.
#[derive(Debug)]
pub(super) enum Target {
    /// With the application's own connection.
    Context(Context),
    /// With a connection of our own to these.
    Servers { servers: Vec<ServerAddr>, options: Box<ConnectOptions> },
}

/// Publishes until no more events will come.
pub(super) async fn publish(end: End, target: Target) {
    let shared = &*end.0;
    tokio::select! {
        () = publish_all(shared, target) => {}
        () = shared.ended.notified() => {}
        () = report(shared) => {}
    }
}

/// Ends the queue with the task, also where the runtime ends first, before or after the task's first step: what waits then is
/// counted and named.
pub(super) struct End(pub(super) Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.end();
    }
}

async fn report(shared: &Shared) {
    loop {
        shared.dropped.notified().await;
        shared.report();
        sleep(REPORT_EVERY).await;
    }
}

async fn publish_all(shared: &Shared, target: Target) {
    let mut outage = Outage::default();
    let js = match target {
        Target::Context(js) => js,
        Target::Servers { servers, options } => connect(shared, &servers, *options, &mut outage).await,
    };
    while let Some(event) = shared.next().await {
        let Err(reason) = publish_one(shared, &js, &event, &mut outage).await else {
            shared.buffer().published();
            continue;
        };
        shared.buffer().give_up(reason);
        let event = event.name();
        tracing::warn!(target: LOG, event, ?reason, "a recording event is not published: NATS does not take it");
    }
}

/// A connection that notices soon that its peer is gone, and soon that it is back.
pub(super) fn default_options() -> ConnectOptions {
    ConnectOptions::new().name(NAME).ping_interval(PING_INTERVAL).reconnect_delay_callback(pause)
}

/// The first connection, however long it takes. Afterwards the client connects again by itself.
async fn connect(shared: &Shared, servers: &[ServerAddr], options: ConnectOptions, outage: &mut Outage) -> Context {
    let mut failed = 0;
    loop {
        match options.clone().connect(servers).await {
            Ok(client) => return jetstream::new(client),
            // Its text may be a server's; its kind is the client's.
            Err(error) => outage.goes_on(shared, &error.kind().to_string()),
        }
        failed += 1;
        sleep(pause(failed)).await;
    }
}

fn pause(failed: usize) -> Duration {
    let doublings = u32::try_from(failed.saturating_sub(1)).unwrap_or(u32::MAX).min(16);
    if failed == 0 { Duration::ZERO } else { (FIRST_PAUSE * 2_u32.pow(doublings)).min(LONGEST_PAUSE) }
}

/// Sends the event until the stream has acknowledged it.
async fn publish_one(shared: &Shared, js: &Context, event: &Event, outage: &mut Outage) -> Result<(), DropReason> {
    let mut failed = 0;
    let mut unanswered_since = None;
    loop {
        let begun = Instant::now();
        match attempt(js, event).await {
            Attempt::Stored => {
                outage.is_over();
                return Ok(());
            }
            Attempt::Refused => return Err(DropReason::TooLarge),
            Attempt::Unanswered => {
                let since = *unanswered_since.get_or_insert(begun);
                if since.elapsed() >= GIVE_UP_AFTER {
                    return Err(DropReason::Unacknowledged);
                }
                outage.goes_on(shared, "the stream does not acknowledge: may this user publish to recording.>?");
            }
            Attempt::Unavailable(why) => {
                unanswered_since = None;
                outage.goes_on(shared, &why);
            }
        }
        failed += 1;
        sleep(pause(failed)).await;
    }
}

enum Attempt {
    Stored,
    /// The server or the stream takes no message of this size.
    Refused,
    /// The connection stands, and there was no answer.
    Unanswered,
    /// Nothing can be published now.
    Unavailable(String),
}

async fn attempt(js: &Context, event: &Event) -> Attempt {
    let is_connected = || js.client().connection_state() == State::Connected;
    // What is sent without a connection would stay in the client, once for each attempt.
    if !is_connected() {
        return Attempt::Unavailable("NATS is not connected".to_owned());
    }
    let mut headers = HeaderMap::new();
    headers.insert(NATS_MESSAGE_ID, event.id.as_str());
    let acknowledged =
        async { js.publish_with_headers(event.subject.clone(), headers, event.payload.clone()).await?.await };
    match timeout(ACKNOWLEDGED_WITHIN, acknowledged).await {
        Ok(Ok(_)) => Attempt::Stored,
        Ok(Err(error)) => failed(&error, is_connected()),
        Err(_elapsed) if is_connected() => Attempt::Unanswered,
        Err(_elapsed) => Attempt::Unavailable("the connection to NATS was lost".to_owned()),
    }
}

fn failed(error: &PublishError, is_connected: bool) -> Attempt {
    match error.kind() {
        PublishErrorKind::MaxPayloadExceeded => Attempt::Refused,
        PublishErrorKind::TimedOut if is_connected => Attempt::Unanswered,
        PublishErrorKind::StreamNotFound => {
            Attempt::Unavailable("no stream takes recording.>: `transcript-processor setup` creates it".to_owned())
        }
        PublishErrorKind::Other => {
            let answer = error.source().and_then(|source| source.downcast_ref::<jetstream::Error>());
            match answer.map(jetstream::Error::error_code) {
                Some(ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM) => Attempt::Refused,
                Some(code) => Attempt::Unavailable(format!("the stream does not take it (JetStream error {})", code.0)),
                None => Attempt::Unavailable("NATS does not take it".to_owned()),
            }
        }
        PublishErrorKind::TimedOut
        | PublishErrorKind::BrokenPipe
        | PublishErrorKind::MaxAckPending
        | PublishErrorKind::WrongLastMessageId
        | PublishErrorKind::WrongLastSequence => Attempt::Unavailable("the connection to NATS was lost".to_owned()),
    }
}

/// Whether events are kept waiting, and why, as the log was told.
#[derive(Debug, Default)]
struct Outage {
    why: Option<String>,
}

impl Outage {
    fn goes_on(&mut self, shared: &Shared, why: &str) {
        if self.why.as_deref() != Some(why) {
            let waiting = shared.buffer().counts().waiting;
            tracing::warn!(target: LOG, waiting, "recording events wait to be published: {why}");
            self.why = Some(why.to_owned());
        }
    }

    fn is_over(&mut self) {
        if self.why.take().is_some() {
            tracing::info!(target: LOG, "recording events are published again");
        }
    }
}
