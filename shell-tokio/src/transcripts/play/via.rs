//! `play --via`: delivers recorded transcripts to a transcriber, one WebSocket for each speaker of a session.
//!
//! Each socket names itself and its epoch, so that a segment that was sent twice is stored once: whatever breaks, the socket is
//! opened again, and what was not acknowledged is sent again.

use std::{
    collections::{BTreeMap, VecDeque},
    fs, io,
    time::Duration,
};

use futures::{SinkExt, StreamExt};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::{
    net::TcpStream,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async,
    tungstenite::{
        self, Message,
        client::IntoClientRequest,
        handshake::client::Request,
        http::{HeaderValue, header::AUTHORIZATION},
    },
};
use transcript_core::ids::Session;
use transcript_publishing::SegmentMessage;

use super::{
    PlayedSession,
    timeline::{Action, Mishaps, timeline},
};
use crate::{cli::PlayArgs, secret::SecretFile, transcripts::source::Transcript};

/// How many segments of one speaker may wait for their acknowledgement.
const UNACKNOWLEDGED: usize = 256;
/// How long an answer is waited for before the socket counts as broken.
const ANSWER: Duration = Duration::from_secs(30);
/// How long a transcriber is looked for that is not there.
const AWAY: Duration = Duration::from_secs(60);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// Why a transcript was not delivered.
#[derive(Debug, Error)]
pub enum ViaError {
    /// The file of the token.
    #[error("cannot read --token-file {file}")]
    Token {
        /// The file.
        file: SecretFile,
        /// Why.
        source: io::Error,
    },
    /// The address cannot be used.
    #[error("--via {0} is no address such as ws://127.0.0.1:8090")]
    Address(String),
    /// The transcriber refuses a socket.
    #[error("the transcriber refuses {session}: {reason}")]
    Refused {
        /// The session's id.
        session: String,
        /// Its answer.
        reason: String,
    },
    /// The transcriber cannot be reached.
    #[error("the transcriber cannot be reached at {address}")]
    Away {
        /// Where.
        address: String,
        /// What the last attempt met.
        source: Option<Box<tungstenite::Error>>,
    },
    /// The outcome cannot be printed.
    #[error("cannot print what was played")]
    Output(#[source] io::Error),
}

/// Delivers transcripts one after another, and hands what became of each session to `each`.
///
/// # Errors
///
/// A transcriber that refuses, or that stays away. Delivering a transcript again adds its segments again, because each
/// delivery is an epoch of its own.
pub async fn play(
    args: &PlayArgs,
    address: &str,
    transcripts: &[Transcript],
    epoch: i64,
    mut each: impl FnMut(&PlayedSession) -> io::Result<()>,
) -> Result<(), ViaError> {
    let token = args.token_file.as_ref().map(token).transpose()?;
    let target = Target { address: address.trim_end_matches('/').to_owned(), token, epoch };
    for transcript in transcripts {
        for played in target.play(transcript, args.speed).await? {
            each(&played).map_err(ViaError::Output)?;
        }
    }
    Ok(())
}

fn token(file: &SecretFile) -> Result<String, ViaError> {
    let read = fs::read_to_string(file.path());
    let text = read.map_err(|source| ViaError::Token { file: file.clone(), source })?;
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Where transcripts are delivered.
struct Target {
    address: String,
    token: Option<String>,
    /// What tells this delivery from others.
    epoch: i64,
}

impl Target {
    async fn play(&self, transcript: &Transcript, speed: f64) -> Result<Vec<PlayedSession>, ViaError> {
        let none = Mishaps { late: 0, late_by: Duration::ZERO, lose: 0 };
        let (steps, played) = timeline(transcript, speed, none);
        let start = Instant::now();
        let mut sockets = BTreeMap::new();
        // Everybody is there from the start, so that all clocks start together.
        for segment in &transcript.segments {
            let (session, speaker) = (&segment.message.session, segment.message.speaker.as_deref());
            self.socket(&mut sockets, session, speaker).await?;
        }
        for step in &steps {
            sleep_until(start + step.due).await;
            match &step.action {
                Action::Segment { segment, .. } => {
                    let socket = self.socket(&mut sockets, &segment.session, segment.speaker.as_deref()).await?;
                    socket.say(segment).await?;
                }
                Action::End(end) => {
                    self.socket(&mut sockets, &end.session, None).await?;
                    let is_other = |session: &Session| *session != end.session;
                    let (others, own) = sockets.into_iter().partition(|((session, _), _)| is_other(session));
                    sockets = others;
                    let own: BTreeMap<(Session, Option<String>), Speaker> = own;
                    for (_, socket) in own {
                        socket.finish().await?;
                    }
                }
                Action::LateSave(_) => {}
            }
        }
        Ok(played)
    }

    /// The socket of a speaker.
    async fn socket<'a>(
        &self,
        sockets: &'a mut BTreeMap<(Session, Option<String>), Speaker>,
        session: &Session,
        speaker: Option<&str>,
    ) -> Result<&'a mut Speaker, ViaError> {
        let key = (session.clone(), speaker.map(str::to_owned));
        if !sockets.contains_key(&key) {
            let opened = Speaker::open(self.request(session, speaker)?, session, &self.address).await?;
            sockets.insert(key.clone(), opened);
        }
        Ok(sockets.get_mut(&key).expect("it was just inserted"))
    }

    fn request(&self, session: &Session, speaker: Option<&str>) -> Result<Request, ViaError> {
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let client: String = format!("play {}", speaker.unwrap_or_default()).chars().take(60).collect();
        let url = format!(
            "{}/v1/conversations/{}/sessions/{}?client={}&epoch={}",
            self.address,
            encoded(&session.conversation_id),
            encoded(&session.session_id),
            encoded(&client),
            self.epoch,
        );
        let bad = || ViaError::Address(self.address.clone());
        let mut request = url.into_client_request().map_err(|_| bad())?;
        if let Some(token) = &self.token {
            let value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| bad())?;
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        Ok(request)
    }
}

/// One speaker's socket, over all its connections.
struct Speaker {
    request: Request,
    session: String,
    address: String,
    socket: Socket,
    /// What is not acknowledged: ids and frames.
    unacknowledged: VecDeque<(String, String)>,
}

/// Why a socket has to be opened again.
enum Broken {
    Socket,
    Refused(String),
}

impl Speaker {
    async fn open(request: Request, session: &Session, address: &str) -> Result<Self, ViaError> {
        let session = session.session_id.to_string();
        let socket = connect(&request, &session, address).await?;
        Ok(Self { request, session, address: address.to_owned(), socket, unacknowledged: VecDeque::new() })
    }

    /// Sends a segment, once there is room for it.
    async fn say(&mut self, segment: &SegmentMessage) -> Result<(), ViaError> {
        let id = segment.index.to_string();
        let frame = json!({
            "id": id, "speaker": segment.speaker, "text": segment.text, "startMs": segment.start_ms, "endMs": segment.end_ms,
        });
        let frame = frame.to_string();
        while self.unacknowledged.len() >= UNACKNOWLEDGED {
            if let Err(broken) = self.hear().await {
                self.again(broken).await?;
            }
        }
        self.unacknowledged.push_back((id, frame.clone()));
        match self.socket.send(Message::text(frame)).await {
            Ok(()) => Ok(()),
            Err(_) => self.again(Broken::Socket).await,
        }
    }

    /// Waits until everything is stored, and closes.
    async fn finish(mut self) -> Result<(), ViaError> {
        loop {
            match self.close().await {
                Ok(()) => return Ok(()),
                Err(broken) => self.again(broken).await?,
            }
        }
    }

    async fn close(&mut self) -> Result<(), Broken> {
        let close = Message::text(json!({ "type": "CloseStream" }).to_string());
        self.socket.send(close).await.map_err(|_| Broken::Socket)?;
        while self.hear().await? != "saved" {}
        if self.unacknowledged.is_empty() { Ok(()) } else { Err(Broken::Socket) }
    }

    /// The next frame's type. What it acknowledges is forgotten.
    async fn hear(&mut self) -> Result<String, Broken> {
        let frame = hear(&mut self.socket).await?;
        let id = frame["id"].as_str();
        self.unacknowledged.retain(|(waiting, _)| Some(waiting.as_str()) != id);
        Ok(frame["type"].as_str().unwrap_or_default().to_owned())
    }

    /// Opens the socket again, and sends again what was not acknowledged.
    async fn again(&mut self, broken: Broken) -> Result<(), ViaError> {
        if let Broken::Refused(reason) = broken {
            return Err(ViaError::Refused { session: self.session.clone(), reason });
        }
        loop {
            sleep(PAUSE).await;
            self.socket = connect(&self.request, &self.session, &self.address).await?;
            let frames: Vec<Message> =
                self.unacknowledged.iter().map(|(_, frame)| Message::text(frame.clone())).collect();
            let mut sent = Ok(());
            for frame in frames {
                sent = self.socket.send(frame).await;
                if sent.is_err() {
                    break;
                }
            }
            if sent.is_ok() {
                return Ok(());
            }
        }
    }
}

/// Connects and waits until the session is open, for as long as a transcriber that is restarted may be away.
async fn connect(request: &Request, session: &str, address: &str) -> Result<Socket, ViaError> {
    let until = Instant::now() + AWAY;
    loop {
        let source = match connect_async(request.clone()).await {
            Ok((mut socket, _)) => match hear(&mut socket).await {
                Ok(_ready) => return Ok(socket),
                Err(Broken::Refused(reason)) => return Err(ViaError::Refused { session: session.to_owned(), reason }),
                Err(Broken::Socket) => None,
            },
            Err(tungstenite::Error::Http(response)) => {
                let reason = response.body().as_deref().map(String::from_utf8_lossy).unwrap_or_default();
                return Err(ViaError::Refused { session: session.to_owned(), reason: reason.trim().to_owned() });
            }
            Err(error) => Some(Box::new(error)),
        };
        if Instant::now() >= until {
            return Err(ViaError::Away { address: address.to_owned(), source });
        }
        sleep(PAUSE).await;
    }
}

/// The next frame that is no error.
async fn hear(socket: &mut Socket) -> Result<Value, Broken> {
    loop {
        let message = timeout(ANSWER, socket.next()).await.map_err(|_| Broken::Socket)?;
        let text = match message {
            Some(Ok(Message::Text(text))) => text,
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Binary(_) | Message::Frame(_))) => continue,
            Some(Ok(Message::Close(_)) | Err(_)) | None => return Err(Broken::Socket),
        };
        let frame: Value = serde_json::from_str(&text).map_err(|_| Broken::Socket)?;
        if frame["type"] != "error" {
            return Ok(frame);
        }
        let reason = frame["reason"].as_str().unwrap_or_default().to_owned();
        let is_retryable = frame["retryable"].as_bool().unwrap_or(false);
        return Err(if is_retryable { Broken::Socket } else { Broken::Refused(reason) });
    }
}
