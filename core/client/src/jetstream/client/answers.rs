//! What a message from the server is about, and what its task does next.

use serde::Deserialize;
use transcript_core::{Delivery, Exhausted, Failure, FailureKind, Payload, Report, TranscriptVersion, WallTime};

use super::{JetStream, Task, TaskId, TaskState, Work};
use crate::jetstream::{
    Note, Settings,
    consumer::Answer,
    delivery::{AckSubject, lacks_payload},
    frame::{Address, Message, Status, header},
    publication::{Content, Envelope, Progress, Published},
    pull::Hint,
    raw::{RawMessage, ReadError},
};

/// nats-server's status where nobody listens to a subject.
const NO_RESPONDERS: u16 = 503;
/// How many messages that used up their deliveries may wait to be read. What comes beyond that is found by the audit.
const MOST_ADVISORIES: usize = 16_384;

/// The part of `io.nats.jetstream.advisory.v1.max_deliver` that is needed.
#[derive(Deserialize)]
struct MaxDeliver {
    stream_seq: u64,
    deliveries: u64,
}

impl JetStream {
    pub(super) fn received(&mut self, message: Message) {
        self.pulls.heard(self.now, self.settings.pull_margin);
        if message.to == Address::Advisories {
            return self.advised(&message);
        }
        // Whoever has to be told that a message is done has been given a message, whatever its status line says: anybody can
        // publish `NATS/1.0 503`.
        if let Some(subject) = message.reply.as_deref().and_then(AckSubject::parse) {
            self.pulls.received();
            self.knows_deliveries(subject.stream_sequence);
            return self.delivered(subject, message);
        }
        let token = match message.to {
            Address::Advisories | Address::Published => return,
            Address::Inbox(token) => token,
        };
        if let Some((id, _)) = self.open.remove(&token) {
            self.answered(id, &message);
        } else if let Some(status) = &message.status {
            let pending = header(&message.headers, "Nats-Pending-Messages").and_then(|value| value.parse().ok());
            match self.pulls.ended(self.now, token, status, pending) {
                Hint::None => {}
                Hint::Look(status) => {
                    self.note(Note::PullRefused { status });
                    self.look_at = self.now;
                }
            }
        }
    }

    pub(super) fn advised(&mut self, message: &Message) {
        if self.pulls.is_stopping() {
            return;
        }
        match serde_json::from_slice(&message.payload) {
            Ok(MaxDeliver { stream_seq, deliveries }) if self.advisories < MOST_ADVISORIES => {
                let id = TaskId::Advisory(stream_seq);
                let work = Work::Advisory { attempts: deliveries, received_at: message.received_at };
                self.advisories += usize::from(!self.tasks.contains_key(&id));
                self.begin(id, work);
            }
            Ok(MaxDeliver { .. }) => self.note(Note::AdvisoryDropped),
            Err(_) => self.note(Note::UnreadableAdvisory),
        }
    }

    pub(super) fn delivered(&mut self, subject: AckSubject, message: Message) {
        if lacks_payload(&message) {
            self.look_at = self.now;
            let work = Work::Payload { message: Box::new(message), subject };
            if self.tasks.contains_key(&TaskId::Payload(subject.stream_sequence)) {
                self.pulls.given_up();
            }
            self.begin(TaskId::Payload(subject.stream_sequence), work);
        } else {
            self.tell(transcript_core::Input::Delivered(subject.delivery(message)));
        }
    }

    /// Takes the answer to a task's request.
    pub(super) fn answered(&mut self, id: TaskId, message: &Message) {
        if matches!(message.status, Some(Status { code: NO_RESPONDERS, .. })) {
            let failure = Failure { kind: FailureKind::Unreachable, detail: "NATS: nobody answers there".to_owned() };
            return self.failed(id, failure);
        }
        let max_payload = self.connection.unwrap_or(usize::MAX);
        let settings = &self.settings;
        let Some(Task { work, .. }) = self.tasks.remove(&id) else { return };
        match work {
            // Any answer is a yes.
            Work::Acknowledge { effect, .. } => self.report(effect, Report::Acknowledged),
            Work::Publish { effect, mut publication, until } => {
                let envelope = Envelope { stream: &settings.stream, name: &settings.name, max_payload };
                match publication.answered(&message.payload, envelope) {
                    Progress::GoesOn => self.goes_on(id, Work::Publish { effect, publication, until }),
                    Progress::Done(published) => self.report(effect, done(publication.content(), published)),
                    Progress::Failed(failure) => self.report(effect, Report::Failed(failure)),
                }
            }
            Work::Keep { mut publication } => {
                let envelope = Envelope { stream: &settings.stream, name: &settings.name, max_payload };
                match publication.answered(&message.payload, envelope) {
                    Progress::GoesOn => self.goes_on(id, Work::Keep { publication }),
                    Progress::Done(_) => self.goes_on(id, Work::Terminate),
                    Progress::Failed(failure) => {
                        self.tasks.insert(id, Task { work: Work::Keep { publication }, state: TaskState::Queued });
                        self.failed(id, failure);
                    }
                }
            }
            Work::Terminate => {
                if let TaskId::Undeliverable(stream_sequence) = id {
                    self.note(Note::UndeliverableKept { stream_sequence });
                }
            }
            Work::Look => self.looked(Answer::read(&message.payload)),
            Work::Search { part } => {
                self.searched(part, RawMessage::read(&message.payload), message.received_at);
            }
            Work::Advisory { attempts, received_at } => {
                self.exhausted(id, attempts, received_at, RawMessage::read(&message.payload));
            }
            Work::Payload { message: delivery, subject } => match RawMessage::read(&message.payload) {
                Ok(RawMessage { payload, .. }) => {
                    let delivery = Delivery { payload: Payload(payload), ..subject.delivery(*delivery) };
                    self.tell(transcript_core::Input::Delivered(delivery));
                }
                Err(_) => self.payload_missing(subject.stream_sequence),
            },
        }
    }

    /// A task's request failed, or nobody answered it.
    pub(super) fn failed(&mut self, id: TaskId, failure: Failure) {
        let Some(Task { work, .. }) = self.tasks.remove(&id) else { return };
        match work {
            Work::Publish { effect, .. } | Work::Acknowledge { effect, .. } => {
                self.report(effect, Report::Failed(failure));
            }
            Work::Look if failure.kind == FailureKind::TimedOut => self.looked(Answer::Failed(failure.to_string())),
            // JetStream is not there: what a request for messages would meet, too.
            Work::Look => self.looked(Answer::Failed(failure.to_string())),
            Work::Search { part } => self.searched(part, Err(ReadError::Unreadable), WallTime::from_millis(0)),
            Work::Payload { subject, .. } => self.payload_missing(subject.stream_sequence),
            Work::Keep { .. } | Work::Terminate => {
                if let TaskId::Undeliverable(stream_sequence) = id {
                    self.note(Note::UndeliverableFailed { stream_sequence, why: failure.to_string() });
                    // It must not be delivered to anybody meanwhile.
                    let Settings { stream, consumer, .. } = &self.settings;
                    self.heartbeats.push_back(AckSubject::composed(stream, consumer, stream_sequence));
                }
                self.pause(id, work);
            }
            Work::Advisory { attempts, received_at } => {
                self.exhausted(id, attempts, received_at, Err(ReadError::Unreadable));
            }
        }
    }

    /// A message that used up its deliveries was read, or is no longer there.
    pub(super) fn exhausted(
        &mut self,
        id: TaskId,
        attempts: u64,
        received_at: WallTime,
        read: Result<RawMessage, ReadError>,
    ) {
        let TaskId::Advisory(stream_sequence) = id else { return };
        let payload = match read {
            Ok(message) => Some(Payload(message.payload)),
            Err(ReadError::NotFound) => None,
            Err(ReadError::Refused(_) | ReadError::Unreadable) => {
                return self.pause(id, Work::Advisory { attempts, received_at });
            }
        };
        self.advisories -= 1;
        let exhausted = Exhausted { stream_sequence, attempts, received_at, payload };
        self.tell(transcript_core::Input::Exhausted(exhausted));
    }

    pub(super) fn payload_missing(&mut self, stream_sequence: u64) {
        self.pulls.given_up();
        self.note(Note::PayloadMissing { stream_sequence });
    }
}

fn done(content: &Content, Published { stream_sequence, announced }: Published) -> Report {
    let TranscriptVersion { segments, edits } = announced;
    match content {
        Content::Announcement { .. } => Report::Published { stream_sequence, segments, edits },
        Content::DeadLetter(_) | Content::Undeliverable { .. } => Report::DeadLettered { stream_sequence },
        Content::Redriven { .. } => Report::Republished { stream_sequence },
    }
}
