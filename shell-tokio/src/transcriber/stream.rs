//! What is published, and whether it can be.

use std::sync::{Arc, OnceLock};

use async_nats::{
    Client, HeaderMap, HeaderValue,
    connection::State,
    header::NATS_MESSAGE_ID,
    jetstream::{
        Context,
        context::{PublishAckFuture, PublishError, PublishErrorKind},
    },
};
use bytes::Bytes;
use serde::Serialize;
use tokio::{
    sync::watch,
    time::{Duration, sleep},
};
use transcript_core::{
    Failure, FailureKind,
    contract::{SEGMENT_SUBJECT, SESSION_ENDED_SUBJECT},
    ids::Session,
};
use transcript_transcriber::{Effect, EffectKind, PublishedSegment, Report, StreamState};

use crate::{connect::NatsConnection, service::nats};

/// How often the state of the connection is looked at where nobody says that it has changed.
const LOOK: Duration = Duration::from_millis(200);

/// The stream, or that there is none.
#[derive(Debug, Clone)]
pub struct Stream {
    context: Arc<OnceLock<Context>>,
    state: watch::Sender<StreamState>,
    /// Kept, so that the connection is watched for as long as there is a stream, also before its state is asked for.
    _listener: watch::Receiver<StreamState>,
}

/// The payload of `transcription.segment`, with the mark of its times.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SegmentPayload<'a> {
    #[serde(flatten)]
    session: &'a Session,
    index: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    speaker: Option<&'a str>,
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_ms: Option<i64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    on_session_clock: bool,
}

impl Stream {
    /// A stream in this state, which is not connected yet.
    #[must_use]
    pub fn new(state: StreamState) -> Self {
        let (state, listener) = watch::channel(state);
        Self { context: Arc::default(), state, _listener: listener }
    }

    /// A stream that is there for as long as it is used.
    #[must_use]
    pub fn over(context: Context) -> Self {
        let (state, listener) = watch::channel(StreamState::Available);
        Self { context: Arc::new(OnceLock::from(context)), state, _listener: listener }
    }

    /// The state, and its changes.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<StreamState> {
        self.state.subscribe()
    }

    /// Uses this connection from now on. It is done once.
    pub fn connected(&self, connection: &NatsConnection, context: Context) {
        if self.context.set(context).is_ok() {
            tokio::spawn(watch_connection(connection.clone(), self.state.clone()));
        }
    }

    /// The client of the connection, once there is one.
    #[must_use]
    pub fn client(&self) -> Option<async_nats::Client> {
        self.context.get().map(Context::client)
    }

    /// The same, waited for.
    pub async fn client_once_connected(&self) -> Client {
        loop {
            if let Some(client) = self.client() {
                return client;
            }
            sleep(LOOK).await;
        }
    }

    /// Writes what is still to be written.
    pub async fn flush(&self) {
        if let Some(context) = self.context.get() {
            nats::flush(&context.client()).await;
        }
    }

    /// Performs an effect of the stream.
    pub async fn perform(&self, effect: &Effect) -> Report {
        let kind = effect.kind();
        let Some(context) = self.context.get() else {
            return failed(kind, FailureKind::Unreachable, "NATS was not reached yet");
        };
        let published = match effect {
            Effect::PublishSegments { session, segments } => {
                publish_segments(context, session, segments).await.map(|()| Report::SegmentsPublished)
            }
            Effect::PublishEnd { ended, message_id } => publish_end(context, ended, message_id)
                .await
                .map(|stream_sequence| Report::EndPublished { stream_sequence }),
            Effect::OpenLease { .. }
            | Effect::RenewLease { .. }
            | Effect::ReleaseLease { .. }
            | Effect::FindOrphans { .. }
            | Effect::Join { .. }
            | Effect::Reserve { .. }
            | Effect::Save { .. }
            | Effect::Leave { .. }
            | Effect::Count { .. }
            | Effect::Finish { .. }
            | Effect::TakeOver { .. } => return failed(kind, FailureKind::Rejected, "it is no effect of the stream"),
        };
        published.unwrap_or_else(|(of, why)| failed(kind, of, why))
    }
}

type Refused = (FailureKind, &'static str);

/// Sends all of them, and then waits for each acknowledgement.
async fn publish_segments(context: &Context, session: &Session, segments: &[PublishedSegment]) -> Result<(), Refused> {
    let mut acks = Vec::with_capacity(segments.len());
    for PublishedSegment { segment, message_id } in segments {
        let payload = SegmentPayload {
            session,
            index: segment.index,
            speaker: segment.speaker.as_deref(),
            text: &segment.text,
            start_ms: segment.start_ms,
            end_ms: segment.end_ms,
            on_session_clock: segment.on_session_clock,
        };
        acks.push(send(context, SEGMENT_SUBJECT, message_id, &payload).await?);
    }
    for ack in acks {
        ack.await.map_err(|error| refused(&error))?;
    }
    Ok(())
}

async fn publish_end(context: &Context, ended: &impl Serialize, message_id: &str) -> Result<u64, Refused> {
    let ack = send(context, SESSION_ENDED_SUBJECT, message_id, ended).await?;
    ack.await.map(|ack| ack.sequence).map_err(|error| refused(&error))
}

async fn send(
    context: &Context,
    subject: &'static str,
    message_id: &str,
    payload: &impl Serialize,
) -> Result<PublishAckFuture, Refused> {
    let id: HeaderValue = message_id.parse().map_err(|_| (FailureKind::Rejected, "its id cannot be a header"))?;
    let mut headers = HeaderMap::new();
    headers.insert(NATS_MESSAGE_ID, id);
    let payload = serde_json::to_vec(payload).map_err(|_| (FailureKind::Rejected, "it cannot be written as JSON"))?;
    context.publish_with_headers(subject, headers, Bytes::from(payload)).await.map_err(|error| refused(&error))
}

fn refused(error: &PublishError) -> Refused {
    match error.kind() {
        PublishErrorKind::StreamNotFound => {
            (FailureKind::Busy, "no stream takes it: create the streams with `transcript-processor setup`")
        }
        PublishErrorKind::TimedOut => (FailureKind::TimedOut, "no acknowledgement in time"),
        PublishErrorKind::BrokenPipe => (FailureKind::Unreachable, "the connection is closed"),
        PublishErrorKind::MaxPayloadExceeded => (FailureKind::Rejected, "it is larger than the server takes"),
        PublishErrorKind::MaxAckPending => (FailureKind::Busy, "too many messages wait for an acknowledgement"),
        PublishErrorKind::WrongLastMessageId | PublishErrorKind::WrongLastSequence | PublishErrorKind::Other => {
            (FailureKind::Busy, "the stream refused it")
        }
    }
}

fn failed(kind: EffectKind, of: FailureKind, why: &str) -> Report {
    Report::Failed(Failure { kind: of, detail: format!("NATS did not {kind}: {why}") })
}

/// Tells whether the connection is there.
async fn watch_connection(connection: NatsConnection, state: watch::Sender<StreamState>) {
    let NatsConnection { client, mut events, .. } = connection;
    loop {
        let now = match client.connection_state() {
            State::Connected => StreamState::Available,
            State::Pending | State::Disconnected => StreamState::Away,
        };
        state.send_if_modified(|state| std::mem::replace(state, now) != now);
        if state.is_closed() {
            return;
        }
        tokio::select! {
            Ok(()) = events.changed() => {}
            () = sleep(LOOK) => {}
        }
    }
}
