//! How the spans of steps are named, and what is said of them, by OpenTelemetry's semantic conventions for messaging and for
//! databases. The names of spans are few: none holds an id.

use std::sync::Arc;

use transcript_core::{
    AcknowledgementKind, JobMoved, State,
    contract::{
        Announcement, CONSUMER, DEAD_LETTER_SUBJECT, PROCESSED_SUBJECT, REVISED_SUBJECT, SEGMENTS_COLLECTION,
        SESSION_ENDED_SUBJECT, SUMMARIES_COLLECTION,
    },
    ids::Key,
};

use super::span::{Attribute, SpanKind, Value};

/// What is said of a step, whatever comes of it.
#[derive(Debug, Clone, PartialEq)]
pub struct StepNames {
    /// The span's name.
    pub name: &'static str,
    /// Its kind.
    pub kind: SpanKind,
    /// Its attributes.
    pub attributes: Vec<Attribute>,
}

/// The attributes of the job's message that do not change.
pub(super) const PROCESS: [(&str, Value); 5] = [
    ("messaging.system", Value::Static("nats")),
    ("messaging.operation.name", Value::Static("process")),
    ("messaging.operation.type", Value::Static("process")),
    ("messaging.destination.name", Value::Static(SESSION_ENDED_SUBJECT)),
    ("messaging.consumer.group.name", Value::Static(CONSUMER)),
];

/// The step of a job that stands there; `None` where it is over.
#[must_use]
pub fn names(moved: &JobMoved, key: Option<&Key>) -> Option<StepNames> {
    Some(match moved.to {
        State::Over => return None,
        State::Queued => internal("queue"),
        State::Quiet => internal("quiet period"),
        State::Counting => database("count transcriptsegments", "aggregate", SEGMENTS_COLLECTION),
        State::Loading => database("load transcriptsegments", "find", SEGMENTS_COLLECTION),
        State::Saving => database("save transcriptsummaries", "update", SUMMARIES_COLLECTION),
        State::Checking => database("check transcriptsummaries", "find", SUMMARIES_COLLECTION),
        State::Publishing => announces(moved.announcement, key),
        State::Marking => database("mark transcriptsummaries", "update", SUMMARIES_COLLECTION),
        State::DeadLettering => sends("send transcription.dead-letter", DEAD_LETTER_SUBJECT, None),
        State::Republishing => sends("send transcription.session-ended", SESSION_ENDED_SUBJECT, None),
        State::Acknowledging => settles(moved.acknowledgement),
    })
}

fn internal(name: &'static str) -> StepNames {
    StepNames { name, kind: SpanKind::Internal, attributes: vec![] }
}

/// One command of MongoDB can be about many jobs: the span lasts from the wish to the answer.
fn database(name: &'static str, command: &'static str, collection: &'static str) -> StepNames {
    let attributes = vec![
        ("db.system.name", Value::Static("mongodb")),
        ("db.operation.name", Value::Static(command)),
        ("db.collection.name", Value::Static(collection)),
    ];
    StepNames { name, kind: SpanKind::Client, attributes }
}

fn announces(announcement: Option<Announcement>, key: Option<&Key>) -> StepNames {
    let id = announcement.zip(key).map(|(announcement, key)| announcement.message_id(key));
    match announcement {
        Some(Announcement::Revised { .. }) => sends("send transcript.revised", REVISED_SUBJECT, id),
        // The subject of one that is announced once for ever holds the key; its template is the part before it.
        Some(Announcement::Processed | Announcement::ProcessedOnce) | None => {
            sends("send transcript.processed", PROCESSED_SUBJECT, id)
        }
    }
}

fn sends(name: &'static str, subject: &'static str, id: Option<String>) -> StepNames {
    let mut attributes = vec![
        ("messaging.system", Value::Static("nats")),
        ("messaging.operation.name", Value::Static("publish")),
        ("messaging.operation.type", Value::Static("send")),
        ("messaging.destination.name", Value::Static(subject)),
    ];
    attributes.extend(id.map(|id| ("messaging.message.id", Value::Text(Arc::from(id)))));
    StepNames { name, kind: SpanKind::Producer, attributes }
}

fn settles(acknowledgement: Option<AcknowledgementKind>) -> StepNames {
    let (name, operation) = match acknowledgement {
        Some(AcknowledgementKind::Ack) | None => ("ack transcription.session-ended", "ack"),
        Some(AcknowledgementKind::Nak) => ("nak transcription.session-ended", "nak"),
        Some(AcknowledgementKind::Term) => ("term transcription.session-ended", "term"),
    };
    let attributes = vec![
        ("messaging.system", Value::Static("nats")),
        ("messaging.operation.name", Value::Static(operation)),
        ("messaging.operation.type", Value::Static("settle")),
        ("messaging.destination.name", Value::Static(SESSION_ENDED_SUBJECT)),
        ("messaging.consumer.group.name", Value::Static(CONSUMER)),
    ];
    StepNames { name, kind: SpanKind::Client, attributes }
}
