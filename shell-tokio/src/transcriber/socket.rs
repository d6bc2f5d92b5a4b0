//! One WebSocket: frames in, answers out. It reads no more than the state machine and the limits allow.

use std::{error::Error as _, sync::Arc, time::Duration};

use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::tungstenite::{self, error::CapacityError};
use transcript_dialects::{Dialect, Frame, Utterance};
use transcript_transcriber::{ClientFrame, ClientSegment, Finality, Reading, ServerFrame};

use super::hub::{Answer, Connection};

/// What is read of a socket at once. The default of 128 KiB is held for as long as the connection is.
const READ_BUFFER: usize = 1 << 10;
/// How many bytes of answers are gathered into one write.
const GATHERED: usize = 2 << 10;
/// How many bytes may wait in the buffer of a socket before a write has to wait for the client.
const WRITE_BUFFER: usize = 8 << 10;
/// How many answers are taken before they are flushed.
const BURST: usize = 64;
/// How long a client may take to read what is written to it.
const WRITE: Duration = Duration::from_secs(10);
/// How long a client may take to answer a close.
const GOODBYE: Duration = Duration::from_secs(2);
/// The longest reason of a close, in bytes (RFC 6455, section 5.5).
const LONGEST_REASON: usize = 123;
/// How many seconds' worth of frames a client may send at once.
const BURST_SECONDS: f64 = 2.0;

/// How much a socket may take.
#[derive(Debug, Clone, Copy)]
pub struct SocketLimits {
    /// The largest frame, and the largest message of several frames, in bytes.
    pub max_frame: usize,
    /// How many frames are read a second.
    pub max_frame_rate: u32,
    /// How long nothing may come before the connection counts as broken.
    pub silence_timeout: Duration,
}

impl SocketLimits {
    /// A WebSocket with these limits, and with small buffers.
    pub(super) fn apply(&self, upgrade: WebSocketUpgrade) -> WebSocketUpgrade {
        upgrade
            .read_buffer_size(READ_BUFFER)
            .write_buffer_size(GATHERED)
            .max_write_buffer_size(WRITE_BUFFER)
            .max_message_size(self.max_frame)
            .max_frame_size(self.max_frame)
    }
}

/// How a socket ends.
enum End {
    /// The client has closed it, or answered a close.
    Closed {
        /// Whether it is what the client wanted.
        is_clean: bool,
    },
    /// It broke.
    Broken,
    /// It is closed from this side.
    Close(u16, String),
}

/// Serves a socket to its end.
pub(super) async fn serve(
    socket: WebSocket,
    connection: Connection,
    dialect: Dialect,
    speaker: Option<Arc<str>>,
    limits: SocketLimits,
) {
    let now = Instant::now();
    let mut session = Session {
        socket,
        connection,
        dialect,
        speaker,
        reading: Reading::Resumed,
        rate: Rate::new(limits.max_frame_rate, now),
        silence: Silence::new(limits.silence_timeout, now),
    };
    match session.run().await {
        End::Closed { is_clean: true } => session.connection.ends_cleanly(),
        End::Closed { is_clean: false } | End::Broken => {}
        End::Close(code, reason) => {
            if code == close_code::NORMAL {
                session.connection.ends_cleanly();
            }
            timeout(GOODBYE, session.close(code, &reason)).await.ok();
        }
    }
}

struct Session {
    socket: WebSocket,
    connection: Connection,
    dialect: Dialect,
    speaker: Option<Arc<str>>,
    reading: Reading,
    rate: Rate,
    silence: Silence,
}

impl Session {
    async fn run(&mut self) -> End {
        let places = self.connection.places();
        loop {
            let now = Instant::now();
            let reads = self.reading == Reading::Resumed;
            let may_read = reads && self.rate.next_at(now) <= now;
            let socket = &mut self.socket;
            let message = async {
                let place = Connection::place(Arc::clone(&places)).await?;
                Some((place, socket.next().await))
            };
            let end = tokio::select! {
                answer = self.connection.answers.recv() => self.answer(answer).await,
                Some((place, message)) = message, if may_read => match message {
                    Some(message) => self.message(message, place).await,
                    None => Some(End::Broken),
                },
                () = sleep_until(self.rate.next_at(now)), if reads && !may_read => None,
                () = sleep_until(self.silence.due), if may_read => self.silent().await,
            };
            if let Some(end) = end {
                return end;
            }
        }
    }

    /// What the driver says, and whatever else it has said by now.
    async fn answer(&mut self, first: Option<Answer>) -> Option<End> {
        let mut next = first;
        let mut frames = Vec::new();
        let mut end = None;
        for _ in 0..BURST {
            match next {
                Some(Answer::Send(frame)) => frames.push(frame),
                Some(Answer::Read(reading)) => {
                    self.reading = reading;
                    self.silence.heard(Instant::now());
                }
                Some(Answer::Close(code, reason)) => end = Some(End::Close(code.number(), reason)),
                None => end = Some(End::Close(close_code::POLICY, "answers are read too slowly".to_owned())),
            }
            if end.is_some() {
                break;
            }
            match self.connection.answers.try_recv() {
                Ok(answer) => next = Some(answer),
                Err(_) => break,
            }
        }
        if frames.is_empty() { end } else { self.send(&frames).await.err().or(end) }
    }

    async fn send(&mut self, frames: &[ServerFrame]) -> Result<(), End> {
        let wants_receipts = self.dialect.wants_receipts();
        let written = timeout(WRITE, async {
            for frame in frames {
                if !wants_receipts && !matches!(frame, ServerFrame::Error { .. }) {
                    continue;
                }
                let text = serde_json::to_string(frame).unwrap_or_default();
                self.socket.feed(Message::text(text)).await?;
            }
            self.socket.flush().await
        });
        match written.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(End::Broken),
        }
    }

    async fn message(
        &mut self,
        message: Result<Message, axum::Error>,
        place: tokio::sync::OwnedSemaphorePermit,
    ) -> Option<End> {
        let now = Instant::now();
        self.silence.heard(now);
        self.rate.took(now);
        match message {
            Ok(Message::Text(text)) => match self.dialect.read(&text) {
                Ok(frame) => {
                    self.frames(frame, place).await;
                    None
                }
                Err(problem) => {
                    let error = ServerFrame::Error { id: None, reason: problem.to_string(), retryable: false };
                    self.send(&[error]).await.err()
                }
            },
            Ok(Message::Binary(_)) => {
                Some(End::Close(close_code::UNSUPPORTED, "frames are JSON in text messages".to_owned()))
            }
            // tungstenite answers a ping itself, with the next write.
            Ok(Message::Ping(_)) => match timeout(WRITE, self.socket.flush()).await {
                Ok(Ok(())) => None,
                Ok(Err(_)) | Err(_) => Some(End::Broken),
            },
            Ok(Message::Pong(_)) => None,
            Ok(Message::Close(close)) => {
                // A close without a code is one that the client wanted.
                let code = close.map_or(close_code::NORMAL, |close| close.code);
                let is_clean = matches!(code, close_code::NORMAL | close_code::AWAY | close_code::STATUS);
                timeout(GOODBYE, self.socket.flush()).await.ok();
                Some(End::Closed { is_clean })
            }
            Err(error) => Some(broken(&error)),
        }
    }

    /// Hands the frames over that one message says.
    async fn frames(&mut self, frame: Frame, first: tokio::sync::OwnedSemaphorePermit) {
        let mut place = Some(first);
        for frame in client_frames(frame, self.speaker.as_ref()) {
            let place = match place.take() {
                Some(place) => place,
                None => match Connection::place(self.connection.places()).await {
                    Some(place) => place,
                    None => return,
                },
            };
            self.connection.frame(frame, place);
        }
    }

    /// Nothing has come for a while.
    async fn silent(&mut self) -> Option<End> {
        if !self.silence.asks_again(Instant::now()) {
            return Some(End::Close(close_code::POLICY, "nothing was heard, not even an answer to a ping".to_owned()));
        }
        match timeout(WRITE, self.socket.send(Message::Ping(Bytes::new()))).await {
            Ok(Ok(())) => None,
            Ok(Err(_)) | Err(_) => Some(End::Broken),
        }
    }

    /// Closes it, and waits until the client has read that.
    async fn close(&mut self, code: u16, reason: &str) {
        let end = reason.floor_char_boundary(LONGEST_REASON);
        let reason = reason.get(..end).unwrap_or_default().into();
        if self.socket.send(Message::Close(Some(CloseFrame { code, reason }))).await.is_err() {
            return;
        }
        while let Some(Ok(message)) = self.socket.next().await {
            if let Message::Close(_) = message {
                return;
            }
        }
    }
}

/// What one frame of a dialect says in the state machine's words.
pub(super) fn client_frames(frame: Frame, speaker: Option<&Arc<str>>) -> Vec<ClientFrame> {
    let segment = |said: Utterance| {
        ClientFrame::Segment(ClientSegment {
            id: said.id.map(Arc::from),
            speaker: said.speaker.map(Arc::from).or_else(|| speaker.cloned()),
            text: said.text.into(),
            start_ms: said.start_ms,
            end_ms: said.end_ms,
            finality: Finality::Final,
        })
    };
    match frame {
        Frame::Final(utterances) => utterances.into_iter().map(segment).collect(),
        Frame::Finalize => vec![ClientFrame::Finalize],
        Frame::End => vec![ClientFrame::CloseStream],
        Frame::Interim | Frame::KeepAlive | Frame::Ignored => vec![ClientFrame::KeepAlive],
    }
}

/// How a socket ends that cannot be read: the client is told why where it can be.
fn broken(error: &axum::Error) -> End {
    let Some(error) = error.source().and_then(|source| source.downcast_ref::<tungstenite::Error>()) else {
        return End::Broken;
    };
    #[expect(clippy::wildcard_enum_match_arm, reason = "the rest cannot be answered")]
    match error {
        tungstenite::Error::Capacity(CapacityError::MessageTooLong { max_size, .. }) => {
            End::Close(close_code::SIZE, format!("a message is larger than {max_size} bytes"))
        }
        tungstenite::Error::Utf8(_) => End::Close(close_code::INVALID, "a message is not UTF-8".to_owned()),
        tungstenite::Error::Protocol(problem) => End::Close(close_code::PROTOCOL, problem.to_string()),
        _ => End::Broken,
    }
}

/// A bucket of tokens, one a frame.
#[derive(Debug)]
struct Rate {
    interval: Duration,
    /// When the bucket would be empty of debts: at most a burst before now.
    paid_until: Instant,
    burst: Duration,
}

impl Rate {
    fn new(frames_a_second: u32, now: Instant) -> Self {
        let interval = Duration::from_secs(1) / frames_a_second.max(1);
        let burst = Duration::from_secs_f64(BURST_SECONDS);
        Self { interval, paid_until: now - burst, burst }
    }

    /// When the next frame may be read.
    fn next_at(&self, now: Instant) -> Instant {
        self.paid_until.max(now - self.burst)
    }

    fn took(&mut self, now: Instant) {
        self.paid_until = self.next_at(now) + self.interval;
    }
}

/// How long nothing has come: three pings, and then the connection counts as broken.
#[derive(Debug)]
struct Silence {
    interval: Duration,
    due: Instant,
    pings: u32,
}

impl Silence {
    /// Pings before a silent connection is given up.
    const PINGS: u32 = 3;

    fn new(limit: Duration, now: Instant) -> Self {
        let interval = limit / (Self::PINGS + 1);
        Self { interval, due: now + interval, pings: 0 }
    }

    fn heard(&mut self, now: Instant) {
        self.pings = 0;
        self.due = now + self.interval;
    }

    /// Whether another ping is sent.
    fn asks_again(&mut self, now: Instant) -> bool {
        self.pings += 1;
        self.due = now + self.interval;
        self.pings <= Self::PINGS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_read_at_once_and_then_one_frame_an_interval() {
        let start = Instant::now();
        let mut rate = Rate::new(10, start);
        for _ in 0..=20 {
            assert!(rate.next_at(start) <= start);
            rate.took(start);
        }
        assert_eq!(rate.next_at(start), start + Duration::from_millis(100));
        let later = start + Duration::from_secs(60);
        assert_eq!(rate.next_at(later), later - Duration::from_secs(2));
    }

    #[test]
    fn three_pings_without_an_answer_are_the_end() {
        let start = Instant::now();
        let mut silence = Silence::new(Duration::from_secs(4), start);
        for second in 1..=3 {
            let now = start + Duration::from_secs(second);
            assert_eq!(silence.due, now);
            assert!(silence.asks_again(now));
        }
        assert!(!silence.asks_again(start + Duration::from_secs(4)));
        silence.heard(start + Duration::from_secs(4));
        assert!(silence.asks_again(start + Duration::from_secs(5)));
    }
}
