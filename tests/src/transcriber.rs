//! A running transcriber, and clients of it.

use std::{net::SocketAddr, time::Duration};

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream,
    tungstenite::{self, Message, client::IntoClientRequest, http::HeaderValue},
};

use crate::{
    processor::{Processor, ProcessorCommand, ProcessorError},
    wait::{NotReached, wait_until},
};

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// A `transcript-processor transcriber` that takes connections.
#[derive(Debug)]
pub struct RunningTranscriber {
    /// The process.
    pub process: Processor,
    /// Where it listens.
    pub address: SocketAddr,
}

impl RunningTranscriber {
    /// Starts it on a free port, and waits until it listens.
    ///
    /// # Errors
    ///
    /// It does not start, or ends at once.
    pub async fn start(command: ProcessorCommand) -> Result<Self, TranscriberError> {
        let process = command.arguments(["--listen", "127.0.0.1:0"]).start().await?;
        let listens = wait_until("the transcriber listens", LONG, || async {
            let log = process.logs();
            let ready = log.lines().find(|line| line.contains(" ready "));
            let address =
                ready.and_then(|line| line.split("address=").nth(1)).map(|rest| rest.trim().trim_matches('"'));
            address.and_then(|address| address.parse().ok()).ok_or(log)
        });
        let address = listens.await?;
        Ok(Self { process, address })
    }

    /// Opens a socket for a session; `query` is empty or begins with `?`.
    ///
    /// # Errors
    ///
    /// The transcriber refuses it.
    pub async fn connect(&self, conversation: &str, session: &str, query: &str) -> Result<Client, TranscriberError> {
        Client::connect(self.address, conversation, session, query, &[]).await
    }

    /// Sends a request and gives the status and the body of the answer.
    ///
    /// # Errors
    ///
    /// There is no answer.
    pub async fn post(&self, path: &str, body: &str) -> Result<(u16, Value), TranscriberError> {
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.address,
            body.len()
        );
        let answer = exchange(self.address, request.as_bytes()).await?;
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
        let body = serde_json::from_str(body).unwrap_or(Value::Null);
        Ok((status.ok_or(TranscriberError::Answer(answer))?, body))
    }
}

/// Sends bytes, and reads until the server closes.
///
/// # Errors
///
/// The connection breaks, or does not end in a minute.
pub async fn exchange(address: SocketAddr, request: &[u8]) -> Result<String, TranscriberError> {
    let exchanged = timeout(LONG, async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(request).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&answer).into_owned())
    });
    exchanged.await.map_err(|_| TranscriberError::Silent)?.map_err(TranscriberError::Io)
}

/// A WebSocket of a session.
#[derive(Debug)]
pub struct Client {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

/// How the other side closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closed {
    /// The code; 1006 where it broke without one.
    pub code: u16,
    /// The reason.
    pub reason: String,
}

impl Client {
    /// Opens a socket, with more headers.
    ///
    /// # Errors
    ///
    /// The transcriber refuses it.
    pub async fn connect(
        address: SocketAddr,
        conversation: &str,
        session: &str,
        query: &str,
        headers: &[(&'static str, &str)],
    ) -> Result<Self, TranscriberError> {
        let url = format!("ws://{address}/v1/conversations/{conversation}/sessions/{session}{query}");
        let mut request = url.into_client_request()?;
        for (name, value) in headers {
            let value = HeaderValue::from_str(value).map_err(|_| TranscriberError::Answer((*value).to_owned()))?;
            request.headers_mut().insert(*name, value);
        }
        let connected = timeout(LONG, tokio_tungstenite::connect_async(request)).await;
        let (socket, _) = connected.map_err(|_| TranscriberError::Silent)??;
        Ok(Self { socket })
    }

    /// Sends a frame.
    ///
    /// # Errors
    ///
    /// The connection is broken.
    pub async fn send(&mut self, frame: &Value) -> Result<(), TranscriberError> {
        self.send_message(Message::text(frame.to_string())).await
    }

    /// Sends any message.
    ///
    /// # Errors
    ///
    /// The connection is broken.
    pub async fn send_message(&mut self, message: Message) -> Result<(), TranscriberError> {
        Ok(self.socket.send(message).await?)
    }

    /// Says something under an id.
    ///
    /// # Errors
    ///
    /// The connection is broken.
    pub async fn say(&mut self, id: &str, text: &str) -> Result<(), TranscriberError> {
        self.send(&json!({ "id": id, "speaker": "Ana M.", "text": text })).await
    }

    /// The next frame that is no ping.
    ///
    /// # Errors
    ///
    /// The transcriber closes the connection, or nothing comes in a minute.
    pub async fn next(&mut self) -> Result<Value, TranscriberError> {
        loop {
            let message = timeout(LONG, self.socket.next()).await.map_err(|_| TranscriberError::Silent)?;
            let message = match message {
                Some(message) => message?,
                None => return Err(TranscriberError::Closed(Closed { code: 1006, reason: String::new() })),
            };
            match message {
                Message::Text(text) => {
                    return serde_json::from_str(&text).map_err(|_| TranscriberError::Answer(text.to_string()));
                }
                Message::Close(frame) => {
                    let closed = frame.map_or(Closed { code: 1005, reason: String::new() }, |frame| Closed {
                        code: frame.code.into(),
                        reason: frame.reason.to_string(),
                    });
                    return Err(TranscriberError::Closed(closed));
                }
                Message::Ping(_) | Message::Pong(_) | Message::Binary(_) | Message::Frame(_) => {}
            }
        }
    }

    /// Frames up to the first one of this type, which is the last of them.
    ///
    /// # Errors
    ///
    /// See [`Self::next`].
    pub async fn until(&mut self, kind: &str) -> Result<Vec<Value>, TranscriberError> {
        let mut frames = Vec::new();
        loop {
            let frame = self.next().await?;
            let is_last = frame["type"] == kind;
            frames.push(frame);
            if is_last {
                return Ok(frames);
            }
        }
    }

    /// How the transcriber closes, after whatever it still says.
    ///
    /// # Errors
    ///
    /// It does not close.
    pub async fn closed(&mut self) -> Result<Closed, TranscriberError> {
        loop {
            match self.next().await {
                Ok(_) => {}
                Err(TranscriberError::Closed(closed)) => return Ok(closed),
                Err(TranscriberError::Socket(_)) => return Ok(Closed { code: 1006, reason: String::new() }),
                Err(other) => return Err(other),
            }
        }
    }

    /// Asks for everything to be stored, and gives how many segments are.
    ///
    /// # Errors
    ///
    /// See [`Self::next`].
    pub async fn finalize(&mut self) -> Result<u64, TranscriberError> {
        self.send(&json!({ "type": "Finalize" })).await?;
        let frames = self.until("saved").await?;
        Ok(frames.last().and_then(|saved| saved["count"].as_u64()).unwrap_or_default())
    }

    /// Closes cleanly.
    ///
    /// # Errors
    ///
    /// The connection is broken.
    pub async fn close(mut self) -> Result<(), TranscriberError> {
        self.socket.close(None).await?;
        self.closed().await.map(drop)
    }

    /// Breaks the connection off, as a process that is killed does.
    ///
    /// # Errors
    ///
    /// The system does not let the connection be reset.
    pub fn break_off(self) -> Result<(), TranscriberError> {
        if let MaybeTlsStream::Plain(stream) = self.socket.get_ref() {
            stream.set_zero_linger().map_err(TranscriberError::Io)?;
        }
        Ok(())
    }
}

/// What did not work.
#[derive(Debug, Error)]
pub enum TranscriberError {
    /// The process.
    #[error(transparent)]
    Process(#[from] ProcessorError),
    /// It does not listen.
    #[error(transparent)]
    NotReached(#[from] NotReached),
    /// The protocol, or a refused upgrade.
    #[error(transparent)]
    Socket(#[from] tungstenite::Error),
    /// The connection.
    #[error("the connection: {0}")]
    Io(#[source] std::io::Error),
    /// The transcriber closed it.
    #[error("closed: {0:?}")]
    Closed(Closed),
    /// Nothing came.
    #[error("nothing came")]
    Silent,
    /// Something else came.
    #[error("not expected: {0}")]
    Answer(String),
}

impl TranscriberError {
    /// The status and the reason of an upgrade that was refused.
    #[must_use]
    pub fn refusal(&self) -> Option<(u16, String)> {
        let Self::Socket(tungstenite::Error::Http(response)) = self else { return None };
        let body = response.body().as_deref().map(String::from_utf8_lossy).unwrap_or_default();
        Some((response.status().as_u16(), body.into_owned()))
    }
}
