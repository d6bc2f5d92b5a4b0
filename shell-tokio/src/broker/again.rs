//! Messages that are made from a message of the stream: dead letters, and ends that are published again.

use async_nats::{
    HeaderMap, HeaderValue,
    header::NATS_MESSAGE_ID,
    jetstream::{self, message::StreamMessage},
};
use bytes::Bytes;
use transcript_core::{
    Failure, FailureKind, Report,
    contract::{
        ATTEMPTS_HEADER, DEAD_LETTER_SUBJECT, DeadLetter, PROCESSOR_HEADER, REASON_HEADER, REDRIVE_OF_HEADER,
        SESSION_ENDED_SUBJECT, STREAM_SEQUENCE_HEADER, TIME_HEADER, TRANSCRIPTION_STREAM, redrive_id,
    },
    event::SessionEnded,
};

use super::{Requester, publish::Refusal};
use crate::operate::history::if_there;

/// The longest reason that a header holds, in bytes.
const LONGEST_REASON: usize = 1024;
/// What the headers may take of the room that a server gives a message.
const HEADERS: usize = 4096;

impl Requester {
    /// Stores the message as a dead letter, unless there is one about it.
    pub(super) async fn dead_letter(&self, dead_letter: &DeadLetter) -> Result<Report, Failure> {
        let payload = self.copy_of(dead_letter.stream_sequence, dead_letter.ended.as_ref()).await?;
        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_ID, dead_letter.message_id());
        headers.insert(STREAM_SEQUENCE_HEADER, dead_letter.stream_sequence.to_string());
        headers.insert(ATTEMPTS_HEADER, dead_letter.attempts.to_string());
        headers.insert(REASON_HEADER, line(&dead_letter.reason));
        headers.insert(TIME_HEADER, dead_letter.at.as_millis().to_string());
        headers.insert(PROCESSOR_HEADER, line(&self.name));
        let stored = self.publish(DEAD_LETTER_SUBJECT.to_owned(), headers, payload).await.map_err(Refusal::failure)?;
        Ok(Report::DeadLettered { stream_sequence: stored.sequence })
    }

    /// Publishes the end again, unless that was done within the duplicate window.
    pub(super) async fn republish(&self, stream_sequence: u64, ended: &SessionEnded) -> Result<Report, Failure> {
        let payload = self.copy_of(stream_sequence, Some(ended)).await?;
        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_ID, redrive_id(stream_sequence));
        headers.insert(REDRIVE_OF_HEADER, stream_sequence.to_string());
        let stored =
            self.publish(SESSION_ENDED_SUBJECT.to_owned(), headers, payload).await.map_err(Refusal::failure)?;
        Ok(Report::Republished { stream_sequence: stored.sequence })
    }

    /// The message's own bytes; where the stream no longer holds them, or the server would not take them together with
    /// more headers, what is known of the call.
    async fn copy_of(&self, stream_sequence: u64, ended: Option<&SessionEnded>) -> Result<Bytes, Failure> {
        let original = self.message(stream_sequence).await?.map(|message| message.payload);
        let fits = |payload: &Bytes| payload.len().saturating_add(HEADERS) <= self.client.server_info().max_payload;
        if let Some(payload) = original.clone().filter(fits) {
            return Ok(payload);
        }
        let read = original.and_then(|payload| SessionEnded::parse(&payload).ok());
        let known = ended.cloned().or(read).ok_or_else(|| Failure {
            kind: FailureKind::Missing,
            detail: format!("message {stream_sequence} is no longer in the stream, or too large to be kept"),
        })?;
        serde_json::to_vec(&known)
            .map(Bytes::from)
            .map_err(|error| Failure { kind: FailureKind::Rejected, detail: error.to_string() })
    }

    /// A message of the stream; `None` where there is none, or none any more.
    pub(super) async fn message(&self, stream_sequence: u64) -> Result<Option<StreamMessage>, Failure> {
        let stream = self.stream().await?;
        if_there(stream.get_raw_message(stream_sequence).await).map_err(|error| unreadable(&error))
    }

    /// The last message of a subject.
    pub(super) async fn last_of(&self, subject: &str) -> Result<StreamMessage, Failure> {
        let stream = self.stream().await?;
        stream.get_last_raw_message_by_subject(subject).await.map_err(|error| unreadable(&error))
    }

    async fn stream(&self) -> Result<jetstream::stream::Stream<()>, Failure> {
        let mut context = jetstream::new(self.client.clone());
        context.set_timeout(self.answer_timeout);
        context
            .get_stream_no_info(TRANSCRIPTION_STREAM)
            .await
            .map_err(|error| Failure { kind: FailureKind::Unreachable, detail: format!("NATS: {error}") })
    }
}

/// A failure to read passes: the message is there, or JetStream says that it is not.
fn unreadable(error: &jetstream::stream::RawMessageError) -> Failure {
    Failure { kind: FailureKind::Busy, detail: format!("the stream cannot be read: {error}") }
}

/// The text as a header's value: one line, without control characters, and not too long.
fn line(text: &str) -> HeaderValue {
    let mut line: String = text.split(char::is_control).collect::<Vec<_>>().join(" ").trim().to_owned();
    line.truncate(line.floor_char_boundary(LONGEST_REASON));
    HeaderValue::from(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_becomes_one_line_of_bounded_length() {
        assert_eq!(line("a\r\nNats-Msg-Id: x\tb").as_str(), "a  Nats-Msg-Id: x b");
        assert_eq!(line(&"ä".repeat(1000)).as_str().len(), LONGEST_REASON);
        assert_eq!(line("").as_str(), "");
    }
}
