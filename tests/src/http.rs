//! Requests to a processor's HTTP address, byte for byte.

use std::{io, net::SocketAddr, time::Duration};

use thiserror::Error;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{
    processor::Processor,
    wait::{NotReached, wait_until},
};

/// How long an answer is waited for.
const ANSWER: Duration = Duration::from_secs(20);

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpAnswer {
    /// The status code.
    pub status: u16,
    /// The status line and the headers.
    pub head: String,
    /// The body.
    pub body: String,
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum HttpError {
    /// The connection failed.
    #[error("the connection failed")]
    Connection(#[from] io::Error),
    /// Nothing came in time.
    #[error("no answer came in time")]
    Silent,
    /// What came is none.
    #[error("what came is no answer: {0:?}")]
    NoAnswer(String),
}

/// Where a processor listens for HTTP, once its log says so.
///
/// # Errors
///
/// It does not, `within` that time.
pub async fn address(processor: &Processor, within: Duration) -> Result<SocketAddr, NotReached> {
    wait_until("the processor listens for HTTP", within, || async {
        let logs = processor.logs();
        let line = logs.lines().find(|line| line.contains("listening for HTTP")).ok_or_else(|| logs.clone())?;
        let address = line.split("address=").nth(1).and_then(|rest| rest.split_whitespace().next());
        address.and_then(|address| address.parse().ok()).ok_or_else(|| line.to_owned())
    })
    .await
}

/// `GET` of this path, with more header lines that each end in `\r\n`.
///
/// # Errors
///
/// See [`HttpError`].
pub async fn get(address: SocketAddr, path: &str, headers: &str) -> Result<HttpAnswer, HttpError> {
    send(address, &format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n{headers}\r\n")).await
}

/// Sends these bytes, and reads until the connection ends.
///
/// # Errors
///
/// See [`HttpError`].
pub async fn send(address: SocketAddr, request: &str) -> Result<HttpAnswer, HttpError> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, io::Error>(answer)
    };
    let answer = timeout(ANSWER, exchange).await.map_err(|_| HttpError::Silent)??;
    let parts = answer.split_once("\r\n\r\n");
    let status = parts.and_then(|(head, _)| head.split_ascii_whitespace().nth(1)?.parse().ok());
    match (parts, status) {
        (Some((head, body)), Some(status)) => Ok(HttpAnswer { status, head: head.to_owned(), body: body.to_owned() }),
        _ => Err(HttpError::NoAnswer(answer)),
    }
}
