//! Messages of the stream, read in a form that no message can break.

use std::io;

use transcript_client::jetstream::raw::{self, RawMessage, ReadError, Which};
use transcript_core::contract::{DEAD_LETTER_SUBJECT, TRANSCRIPTION_STREAM};

use crate::world::TestWorld;

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
