//! Notifications.

use async_nats::{
    HeaderMap, Request,
    header::{NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, NATS_EXPECTED_STREAM, NATS_MESSAGE_ID},
    jetstream::{self, ErrorCode, publish::PublishAck, response::Response},
};
use bytes::Bytes;
use transcript_core::{
    Failure, FailureKind, Report,
    contract::{Announcement, Notification, SEGMENT_SUBJECT, TRANSCRIPTION_STREAM},
    ids::Key,
};

use super::{Requester, of_code};

/// What the stream made of a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stored {
    /// Its place; that of the earlier one where this one was a duplicate.
    pub(super) sequence: u64,
    duplicate: bool,
}

/// Why the stream did not take a message.
pub(super) enum Refusal {
    /// JetStream said so.
    Answered(jetstream::Error),
    /// Nobody knows whether it did.
    Failed(Failure),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Refusal {
    pub(super) fn failure(self) -> Failure {
        match self {
            Self::Answered(error) => {
                Failure { kind: of_code(error.code()), detail: format!("JetStream refused the publish: {error}") }
            }
            Self::Failed(failure) => failure,
        }
    }
}

impl Requester {
    /// Announces a summary.
    ///
    /// Where the subject is the notification's own, the stream takes it only while that holds no message. A lone server
    /// looks at that before it looks at the id, a cluster the other way round: a repeated one is refused by the one, and
    /// acknowledged as a duplicate by the other (nats-server, `processJetStreamMsg`, `checkMsgHeadersPreClusteredProposal`).
    pub(super) async fn announce(
        &self,
        key: &Key,
        announcement: Announcement,
        notification: &Notification,
    ) -> Result<Report, Failure> {
        let rejected = |detail: String| Failure { kind: FailureKind::Rejected, detail };
        let payload = serde_json::to_vec(notification).map_err(|error| rejected(error.to_string()))?;
        let subject = announcement.subject(key);
        let mut headers = HeaderMap::new();
        if cfg!(not(feature = "first-version")) {
            headers.insert(NATS_MESSAGE_ID, announcement.message_id(key));
        }
        if announcement == Announcement::ProcessedOnce {
            headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, "0");
        }
        let payload = Bytes::from(payload);
        let mut published = self.publish(subject.clone(), headers.clone(), payload.clone()).await;
        let mut there = None;
        if let Ok(Stored { duplicate: true, sequence }) = published {
            there = self.message(sequence).await?;
            // No notification but a segment: see `Announcement`.
            if there.as_ref().is_some_and(|message| message.subject.as_str() == SEGMENT_SUBJECT) {
                there = None;
                headers.insert(NATS_MESSAGE_ID, announcement.other_message_id(key));
                published = self.publish(subject.clone(), headers, payload).await;
            }
        }
        let stream_sequence = match published {
            Ok(stored) => stored.sequence,
            Err(Refusal::Answered(error)) if error.error_code() == ErrorCode::STREAM_WRONG_LAST_SEQUENCE => {
                let last = self.last_of(&subject).await?;
                there.insert(last).sequence
            }
            Err(refusal) => return Err(refusal.failure()),
        };
        // What a message that cannot be read announces is taken to be the same.
        let announced = there.and_then(|message| serde_json::from_slice::<Notification>(&message.payload).ok());
        let segments = announced.map_or(notification.segments, |announced| announced.segments);
        Ok(Report::Published { stream_sequence, segments })
    }

    /// Publishes to the stream.
    pub(super) async fn publish(
        &self,
        subject: String,
        mut headers: HeaderMap,
        payload: Bytes,
    ) -> Result<Stored, Refusal> {
        headers.insert(NATS_EXPECTED_STREAM, TRANSCRIPTION_STREAM);
        let answer = self.send(subject, Request::new().payload(payload).headers(headers)).await?;
        match serde_json::from_slice::<Response<PublishAck>>(&answer.payload) {
            Ok(Response::Ok(ack)) => Ok(Stored { sequence: ack.sequence, duplicate: ack.duplicate }),
            Ok(Response::Err { error }) => Err(Refusal::Answered(error)),
            Err(error) => {
                let detail = format!("no publish acknowledgement: {error}");
                Err(Refusal::Failed(Failure { kind: FailureKind::Busy, detail }))
            }
        }
    }
}
