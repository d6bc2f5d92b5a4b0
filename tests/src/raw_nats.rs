//! Messages past everything that a client checks: written over a bare socket, and read in a form that no message can break.

use std::{io, net::SocketAddr};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use transcript_client::jetstream::raw::{self, RawMessage, ReadError, Which};
use transcript_core::contract::{DEAD_LETTER_SUBJECT, TRANSCRIPTION_STREAM};

use crate::world::TestWorld;

/// Publishes a message with this header block, as it is.
///
/// # Errors
///
/// The server closes the connection.
pub async fn publish(server: SocketAddr, subject: &str, header_block: &[u8], payload: &[u8]) -> io::Result<()> {
    let mut stream = TcpStream::connect(server).await?;
    let total = header_block.len() + payload.len();
    let mut bytes = b"CONNECT {\"verbose\":false,\"headers\":true}\r\n".to_vec();
    bytes.extend(format!("HPUB {subject} {} {total}\r\n", header_block.len()).into_bytes());
    bytes.extend_from_slice(header_block);
    bytes.extend_from_slice(payload);
    bytes.extend_from_slice(b"\r\nPING\r\n");
    stream.write_all(&bytes).await?;
    let mut answer = vec![];
    while !answer.windows(4).any(|it| it == b"PONG") {
        let mut read = [0; 4096];
        let count = stream.read(&mut read).await?;
        if count == 0 {
            return Err(io::Error::other(String::from_utf8_lossy(&answer).into_owned()));
        }
        answer.extend_from_slice(read.get(..count).unwrap_or_default());
    }
    Ok(())
}

/// Reads a message of the stream.
///
/// # Errors
///
/// There is none ([`io::ErrorKind::NotFound`]), or the server does not answer.
pub async fn message(world: &TestWorld, which: Which) -> io::Result<RawMessage> {
    let subject = raw::subject("$JS.API", TRANSCRIPTION_STREAM);
    let answer = world.client.request(subject, which.body().into()).await.map_err(io::Error::other)?;
    RawMessage::read(&answer.payload).map_err(|error| match error {
        ReadError::NotFound => io::ErrorKind::NotFound.into(),
        ReadError::Refused(_) | ReadError::Unreadable => io::Error::other(error),
    })
}

/// All dead letters of the stream, in its order.
///
/// # Errors
///
/// The server does not answer.
pub async fn dead_letters(world: &TestWorld) -> io::Result<Vec<RawMessage>> {
    let (mut all, mut next) = (vec![], 1);
    loop {
        match message(world, Which::NextOf(next, DEAD_LETTER_SUBJECT.to_owned())).await {
            Ok(message) => {
                next = message.sequence + 1;
                all.push(message);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(all),
            Err(error) => return Err(error),
        }
    }
}
