//! A request that delivers segments, or ends a session.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{self, Body},
    http::StatusCode,
};
use serde::Serialize;
use thiserror::Error;
use tokio::time::timeout;
use transcript_dialects::{Frame, Problem};
use transcript_transcriber::{ClientFrame, ServerFrame};

use super::{
    hub::{Answer, Connection},
    socket::{self, SocketLimits},
};

/// How long the body of a request may take.
const BODY: Duration = Duration::from_secs(30);
/// How long a request waits until its segments are stored.
const STORED: Duration = Duration::from_secs(30);

/// What became of a request.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Delivered {
    /// How many of its segments are stored; absent where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved: Option<u64>,
    /// What the state machine said of the segments, in the order in which it did.
    pub answers: Vec<ServerFrame>,
    /// Frames that could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Unread>,
}

/// A frame that could not be read.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Unread {
    /// Which one, from 0.
    pub position: usize,
    /// Why.
    pub reason: String,
}

impl Delivered {
    /// 200: everything is stored. 422: something was refused, and will be again. 503: send the same request again.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        let is_retryable = |frame: &ServerFrame| matches!(frame, ServerFrame::Error { retryable: true, .. });
        let is_error = |frame: &ServerFrame| matches!(frame, ServerFrame::Error { .. });
        if self.saved.is_none() || self.answers.iter().any(is_retryable) {
            StatusCode::SERVICE_UNAVAILABLE
        } else if !self.problems.is_empty() || self.answers.iter().any(is_error) {
            StatusCode::UNPROCESSABLE_ENTITY
        } else {
            StatusCode::OK
        }
    }
}

/// Why a body cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BadBody {
    /// It is larger than it may be.
    #[error("the body is larger than {0} bytes, or broke off")]
    TooLarge(usize),
    /// It did not come in time.
    #[error("the body did not come in time")]
    TooSlow,
    /// It is no text.
    #[error("the body is not UTF-8")]
    NoText,
}

impl BadBody {
    /// The status of the answer.
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::NoText => StatusCode::BAD_REQUEST,
        }
    }
}

/// The text of a body.
pub(super) async fn text(body: Body, limits: &SocketLimits, frames: usize) -> Result<String, BadBody> {
    let most = limits.max_frame.saturating_mul(frames);
    let read = timeout(BODY, body::to_bytes(body, most)).await.map_err(|_| BadBody::TooSlow)?;
    let bytes = read.map_err(|_| BadBody::TooLarge(most))?;
    String::from_utf8(bytes.into()).map_err(|_| BadBody::NoText)
}

/// Delivers frames, and waits until what they say is stored.
pub(super) async fn deliver(
    mut connection: Connection,
    frames: Vec<Result<Frame, Problem>>,
    speaker: Option<Arc<str>>,
) -> Delivered {
    let mut delivered = Delivered::default();
    let mut last = ClientFrame::Finalize;
    let mut said = Vec::new();
    for (position, frame) in frames.into_iter().enumerate() {
        match frame {
            Ok(Frame::End) => last = ClientFrame::EndSession,
            Ok(frame) => said.extend(socket::client_frames(frame, speaker.as_ref())),
            Err(problem) => delivered.problems.push(Unread { position, reason: problem.to_string() }),
        }
    }
    said.push(last);
    exchange(&mut connection, said, &mut delivered).await;
    delivered
}

/// Ends the session.
pub(super) async fn end(mut connection: Connection) -> Delivered {
    let mut delivered = Delivered::default();
    exchange(&mut connection, vec![ClientFrame::EndSession], &mut delivered).await;
    delivered
}

async fn exchange(connection: &mut Connection, frames: Vec<ClientFrame>, delivered: &mut Delivered) {
    let places = connection.places();
    let mut frames = frames.into_iter();
    let mut next = frames.next();
    let answered = timeout(STORED, async {
        loop {
            tokio::select! {
                answer = connection.answers.recv() => match answer {
                    Some(Answer::Send(ServerFrame::Saved { count })) => return Some(count),
                    Some(Answer::Send(ServerFrame::Ready) | Answer::Read(_)) => {}
                    Some(Answer::Send(frame @ (ServerFrame::Ack { .. } | ServerFrame::Error { .. }))) => {
                        delivered.answers.push(frame);
                    }
                    Some(Answer::Close(..)) | None => return None,
                },
                Some(place) = Connection::place(Arc::clone(&places)), if next.is_some() => {
                    if let Some(frame) = next.take() {
                        connection.frame(frame, place);
                    }
                    next = frames.next();
                }
            }
        }
    });
    delivered.saved = answered.await.ok().flatten();
    if delivered.saved.is_some() {
        connection.ends_cleanly();
    }
}
