//! What is sent next: heartbeats before requests, and requests before pulls.

use std::sync::Arc;

use transcript_core::{Acknowledgement, Failure, FailureKind, contract::SESSION_ENDED_SUBJECT};

use super::{JetStream, TaskId, TaskState, Work};
use crate::jetstream::{
    Settings, consumer,
    delivery::AckSubject,
    frame::Frame,
    publication::{Envelope, Request},
    raw::{self, Which},
};

/// The subjects of the requests, which never change.
#[derive(Debug)]
pub(super) struct Subjects {
    /// Asks for deliveries.
    pull: Arc<str>,
    /// Looks at the consumer.
    look: Arc<str>,
    /// Reads a stored message.
    read: Arc<str>,
}

impl Subjects {
    pub(super) fn new(Settings { api_prefix, stream, consumer, .. }: &Settings) -> Self {
        Self {
            pull: format!("{api_prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}").into(),
            look: consumer::subject(api_prefix, stream, consumer).into(),
            read: raw::subject(api_prefix, stream).into(),
        }
    }
}

impl JetStream {
    pub(super) fn next_frame(&mut self) -> Option<Frame> {
        let max_payload = self.connection?;
        if self.unwritten >= self.settings.max_unwritten {
            return None;
        }
        let frame = self.next_heartbeat().or_else(|| self.next_request(max_payload)).or_else(|| self.next_pull())?;
        self.unwritten += 1;
        Some(frame)
    }

    pub(super) fn next_heartbeat(&mut self) -> Option<Frame> {
        let reply = self.heartbeats.pop_front()?;
        Some(heartbeat(reply))
    }

    pub(super) fn next_request(&mut self, max_payload: usize) -> Option<Frame> {
        while let Some(id) = self.queue.pop_front() {
            let envelope = Envelope { stream: &self.settings.stream, name: &self.settings.name, max_payload };
            if self.tasks.get(&id).is_some_and(|task| task.work.is_late(self.now)) {
                let detail = format!("NATS: not sent within {:?}", self.settings.sends_within);
                self.failed(id, Failure { kind: FailureKind::TimedOut, detail });
                continue;
            }
            let Some(task) = self.tasks.get_mut(&id) else { continue };
            if let Work::Acknowledge { stream_sequence, .. } = task.work
                && !self.known.include(stream_sequence)
            {
                task.state = TaskState::Held;
                self.known.hold(stream_sequence, id);
                continue;
            }
            let read = |which: &Which| frame(Arc::clone(&self.subjects.read), which.body());
            let made = match &task.work {
                Work::Publish { publication, .. } | Work::Keep { publication } => {
                    publication.request(envelope).map(|request| match request {
                        Request::Read(which) => read(&which),
                        Request::Publish { subject, headers, payload } => Frame { headers, ..frame(subject, payload) },
                    })
                }
                Work::Acknowledge { reply, body, .. } => Ok(frame(Arc::clone(reply), body.clone().into_bytes())),
                Work::Look => Ok(frame(Arc::clone(&self.subjects.look), vec![])),
                Work::Search { part } => match self.search.next(*part) {
                    Some(next) => Ok(read(&Which::NextOf(next, SESSION_ENDED_SUBJECT.to_owned()))),
                    None => {
                        self.tasks.remove(&id);
                        continue;
                    }
                },
                Work::Terminate => {
                    let TaskId::Undeliverable(sequence) = id else { continue };
                    let reply = AckSubject::composed(&self.settings.stream, &self.settings.consumer, sequence);
                    Ok(frame(reply, b"+TERM its header block cannot be parsed".to_vec()))
                }
                Work::Advisory { .. } => {
                    let TaskId::Advisory(sequence) = id else { continue };
                    Ok(read(&Which::Sequence(sequence)))
                }
                Work::Payload { subject, .. } => Ok(read(&Which::Sequence(subject.stream_sequence))),
            };
            match made {
                Ok(frame) => {
                    self.last_token += 1;
                    task.state = TaskState::Open(self.last_token);
                    self.open.insert(self.last_token, (id, self.now.after(self.settings.request_timeout)));
                    return Some(Frame { reply: Some(self.last_token), ..frame });
                }
                Err(failure) => self.failed(id, failure),
            }
        }
        None
    }

    pub(super) fn next_pull(&mut self) -> Option<Frame> {
        if self.holds_pulls() {
            return None;
        }
        let request = self.pulls.wanted(self.now)?;
        self.last_token += 1;
        self.pulls.asked(self.now, self.last_token, request, self.settings.pull_margin);
        let known = self.last_pull.take().filter(|(known, _)| *known == request);
        let (_, body) = self.last_pull.insert(known.unwrap_or_else(|| (request, request.body())));
        let body = body.clone();
        Some(Frame { reply: Some(self.last_token), ..frame(Arc::clone(&self.subjects.pull), body) })
    }

    /// Whether a message that breaks the connection may be under way.
    pub(super) fn holds_pulls(&self) -> bool {
        // Only a few kinds come behind it in the order of the tasks, and mostly there is none of them.
        let may_be = self.tasks.last_key_value().is_some_and(|(id, _)| *id >= TaskId::Undeliverable(0));
        let undeliverable = TaskId::Undeliverable(0)..=TaskId::Undeliverable(u64::MAX);
        self.search.is_on() || (may_be && self.tasks.range(undeliverable).next().is_some())
    }
}

fn frame(subject: impl Into<Arc<str>>, payload: Vec<u8>) -> Frame {
    Frame { subject: subject.into(), reply: None, headers: vec![], payload }
}

fn heartbeat(reply: Arc<str>) -> Frame {
    frame(reply, b"+WPI".to_vec())
}

pub(super) fn body(acknowledgement: &Acknowledgement) -> String {
    match acknowledgement {
        Acknowledgement::Ack => "+ACK".to_owned(),
        Acknowledgement::Nak { delay, .. } if delay.is_zero() => "-NAK".to_owned(),
        Acknowledgement::Nak { delay, .. } => format!(r#"-NAK {{"delay": {}}}"#, delay.as_nanos()),
        Acknowledgement::Term { reason } => format!("+TERM {reason}"),
    }
}
