//! Publishing a message exactly once, on evidence.
//!
//! ```text
//!            original ── there, or what is known of it ──┐
//!                                                        ▼
//!  (announcement) ───────────────────────────────────► publish ── stored ──────────────────────────► done
//!                                                      ▲  │  │
//!                       another message: the next id   │  │  └─ duplicate of n ──► look at n ── it is this one ► done
//!                                                      ├──┼────────────────────────────┘
//!     another message: expect that one to be the last  │  └─ wrong last sequence ► look at the last ── this one ► done
//!                                                      └───────────────────────────────┘
//! ```
//!
//! `duplicate: true` proves that *some* message has the id, whatever its subject: message ids belong to the stream, and
//! anybody can publish under any id. So the message is looked at before it counts.

use transcript_core::{
    Failure, FailureKind, TranscriptVersion, WallTime,
    contract::{
        ATTEMPTS_HEADER, Announcement, DEAD_LETTER_SUBJECT, DeadLetter, Notification, PROCESSOR_HEADER, REASON_HEADER,
        REDRIVE_OF_HEADER, SESSION_ENDED_SUBJECT, STREAM_SEQUENCE_HEADER, TIME_HEADER, free_message_id, redrive_id,
        trace_context::TraceContext,
    },
    event::SessionEnded,
    ids::Key,
};

use std::sync::Arc;

use serde::Deserialize;

use super::{
    error::{ApiError, WRONG_LAST_SEQUENCE, WRONG_LAST_SEQUENCE_UNTOLD},
    frame::{Headers, trace_context},
    raw::{RawMessage, ReadError, Which},
};

/// On a dead letter whose message had a header block that no client can parse: that block in base64.
pub const RAW_HEADERS_HEADER: &str = "Transcript-Raw-Headers";

/// How many ids of a message may belong to others before it cannot be published. Each costs whoever takes it a message.
const MOST_IDS: u32 = 16;
/// The longest text of a header, in bytes.
const LONGEST_TEXT: usize = 1024;
/// What the headers may take of the room that a server gives a message.
const HEADERS: usize = 4096;
/// The longest header block that is kept with a dead letter, in bytes before base64; nats-server takes 64 KiB.
const LONGEST_BLOCK: usize = 32 << 10;

/// A message on its way into the stream.
#[derive(Debug)]
pub(super) struct Publication {
    content: Content,
    step: Step,
    /// The message itself, once it is known.
    payload: Vec<u8>,
    /// The trace that it belongs to.
    trace_context: Option<TraceContext>,
    /// How many of its ids belong to other messages.
    taken: u32,
    /// The last message of the subject, where the subject has to be this one's own.
    last: u64,
}

/// What is published.
#[derive(Debug)]
pub(super) enum Content {
    Announcement {
        key: Key,
        announcement: Announcement,
        notification: Notification,
        trace_context: Option<TraceContext>,
    },
    DeadLetter(Arc<DeadLetter>),
    /// A message that no client can be given.
    Undeliverable {
        message: RawMessage,
        at: WallTime,
    },
    Redriven {
        of: u64,
        ended: SessionEnded,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Reads the message that this one is made from.
    Original,
    Publish,
    /// Looks at the message that made this one a duplicate.
    Duplicate(u64),
    /// Looks at the last message of the subject.
    Last,
}

/// What to send next.
#[derive(Debug)]
pub(super) enum Request {
    Read(Which),
    Publish { subject: String, headers: Headers, payload: Vec<u8> },
}

/// What came of an answer.
#[derive(Debug)]
pub(super) enum Progress {
    /// The next request is due.
    GoesOn,
    Done(Published),
    Failed(Failure),
}

/// What is in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Published {
    pub(super) stream_sequence: u64,
    /// What the message in the stream announces, which differs from this one's where an earlier run announced; nothing for what
    /// is no announcement.
    pub(super) announced: TranscriptVersion,
}

/// What frames a publication.
#[derive(Debug, Clone, Copy)]
pub(super) struct Envelope<'a> {
    pub(super) stream: &'a str,
    /// The name of the processor.
    pub(super) name: &'a str,
    /// The largest message that the server takes.
    pub(super) max_payload: usize,
}

#[derive(Deserialize)]
struct PubAck {
    error: Option<ApiError>,
    seq: Option<u64>,
    #[serde(default)]
    duplicate: bool,
}

impl Publication {
    pub(super) fn new(mut content: Content) -> Self {
        let trace_context = match &mut content {
            Content::Announcement { trace_context, .. } => trace_context.take(),
            Content::DeadLetter(_) | Content::Undeliverable { .. } | Content::Redriven { .. } => None,
        };
        let (step, payload) = match &content {
            Content::Announcement { .. } => (Step::Publish, vec![]),
            Content::Undeliverable { message, .. } => (Step::Publish, message.payload.clone()),
            Content::DeadLetter(_) | Content::Redriven { .. } => (Step::Original, vec![]),
        };
        Self { content, step, payload, trace_context, taken: 0, last: 0 }
    }

    pub(super) fn content(&self) -> &Content {
        &self.content
    }

    /// The request of the step.
    pub(super) fn request(&self, envelope: Envelope<'_>) -> Result<Request, Failure> {
        Ok(match self.step {
            Step::Original => Request::Read(Which::Sequence(self.content.original())),
            Step::Duplicate(sequence) => Request::Read(Which::Sequence(sequence)),
            Step::Last => Request::Read(Which::LastOf(self.content.subject())),
            Step::Publish => {
                let payload = self.content.payload(&self.payload)?;
                let mut headers = self.content.headers(envelope.name);
                let id = free_message_id(self.content.message_id(), self.taken);
                headers.extend(self.trace_context.iter().flat_map(TraceContext::headers));
                headers.push(("Nats-Msg-Id".into(), id));
                headers.push(("Nats-Expected-Stream".into(), envelope.stream.to_owned()));
                if self.content.has_own_subject() {
                    headers.push(("Nats-Expected-Last-Subject-Sequence".into(), self.last.to_string()));
                }
                if payload.len().saturating_add(HEADERS) > envelope.max_payload {
                    let detail = format!("the server takes messages of at most {} bytes", envelope.max_payload);
                    return Err(Failure { kind: FailureKind::Busy, detail });
                }
                Request::Publish { subject: self.content.subject(), headers, payload }
            }
        })
    }

    /// Takes the answer to the request of the step.
    pub(super) fn answered(&mut self, answer: &[u8], envelope: Envelope<'_>) -> Progress {
        match self.step {
            Step::Publish => self.published(answer),
            Step::Original => self.original(RawMessage::read(answer), envelope),
            Step::Duplicate(_) | Step::Last => self.looked_at(RawMessage::read(answer)),
        }
    }

    fn published(&mut self, answer: &[u8]) -> Progress {
        match serde_json::from_slice(answer) {
            Ok(PubAck { error: Some(error), .. }) => {
                let occupied = matches!(error.err_code, WRONG_LAST_SEQUENCE | WRONG_LAST_SEQUENCE_UNTOLD);
                if occupied && self.content.has_own_subject() {
                    self.step = Step::Last;
                    return Progress::GoesOn;
                }
                Progress::Failed(error.failure("publish"))
            }
            Ok(PubAck { error: None, seq: Some(seq), duplicate: true }) => {
                self.step = Step::Duplicate(seq);
                Progress::GoesOn
            }
            Ok(PubAck { error: None, seq: Some(seq), duplicate: false }) => {
                let announced = self.content.announced();
                Progress::Done(Published { stream_sequence: seq, announced })
            }
            Ok(PubAck { error: None, seq: None, .. }) | Err(_) => {
                Progress::Failed(busy("no publish acknowledgement".to_owned()))
            }
        }
    }

    fn original(&mut self, read: Result<RawMessage, ReadError>, envelope: Envelope<'_>) -> Progress {
        let payload = match read {
            Ok(message) => {
                // A dead letter, and an end that is published again, are of the trace of their original.
                self.trace_context = trace_context(&message.headers());
                Some(message.payload)
            }
            Err(ReadError::NotFound) => None,
            Err(error) => return Progress::Failed(unreadable(error)),
        };
        let fits = |payload: &Vec<u8>| payload.len().saturating_add(HEADERS) <= envelope.max_payload;
        self.payload = match payload {
            Some(payload) if fits(&payload) => payload,
            // What is known of the call, where the stream no longer holds the message, or the server would not take it again.
            other => match self.content.known(other.as_deref()) {
                Some(known) => known,
                None => {
                    let (kind, detail) = match other {
                        None => (FailureKind::Missing, "the message is no longer in the stream"),
                        Some(_) => (FailureKind::Rejected, "the message is too large to be kept"),
                    };
                    return Progress::Failed(Failure { kind, detail: detail.to_owned() });
                }
            },
        };
        self.step = Step::Publish;
        Progress::GoesOn
    }

    fn looked_at(&mut self, read: Result<RawMessage, ReadError>) -> Progress {
        let found = match read {
            Ok(message) => Some(message),
            Err(ReadError::NotFound) => None,
            Err(error) => return Progress::Failed(unreadable(error)),
        };
        if let Some(published) = found.as_ref().and_then(|message| self.content.is(message)) {
            return Progress::Done(published);
        }
        match (self.step, found) {
            (Step::Last, found) => self.last = found.map_or(0, |message| message.sequence),
            (Step::Duplicate(_), _) => {}
            (Step::Original | Step::Publish, _) => return Progress::GoesOn,
        }
        self.taken += 1;
        if self.taken > MOST_IDS {
            let detail = format!("{MOST_IDS} ids of this message belong to other messages");
            return Progress::Failed(Failure { kind: FailureKind::Busy, detail });
        }
        self.step = Step::Publish;
        Progress::GoesOn
    }
}

impl Content {
    fn subject(&self) -> String {
        match self {
            Self::Announcement { key, announcement, .. } => announcement.subject(key),
            Self::DeadLetter(_) | Self::Undeliverable { .. } => DEAD_LETTER_SUBJECT.to_owned(),
            Self::Redriven { .. } => SESSION_ENDED_SUBJECT.to_owned(),
        }
    }

    fn message_id(&self) -> String {
        match self {
            Self::Announcement { key, announcement, .. } => announcement.message_id(key),
            Self::DeadLetter(dead_letter) => dead_letter.message_id(),
            Self::Undeliverable { message, at } => undeliverable(message, *at).message_id(),
            Self::Redriven { of, .. } => redrive_id(*of),
        }
    }

    fn headers(&self, name: &str) -> Headers {
        let of_dead_letter = |dead_letter: &DeadLetter| {
            vec![
                (STREAM_SEQUENCE_HEADER.into(), dead_letter.stream_sequence.to_string()),
                (ATTEMPTS_HEADER.into(), dead_letter.attempts.to_string()),
                (REASON_HEADER.into(), line(&dead_letter.reason)),
                (TIME_HEADER.into(), dead_letter.at.as_millis().to_string()),
                (PROCESSOR_HEADER.into(), line(name)),
            ]
        };
        match self {
            Self::Announcement { .. } => vec![],
            Self::DeadLetter(dead_letter) => of_dead_letter(dead_letter),
            Self::Undeliverable { message, at } => {
                let mut headers = of_dead_letter(&undeliverable(message, *at));
                if message.header_block.len() <= LONGEST_BLOCK {
                    headers.push((RAW_HEADERS_HEADER.into(), message.header_block_in_base64()));
                }
                headers
            }
            Self::Redriven { of, .. } => vec![(REDRIVE_OF_HEADER.into(), of.to_string())],
        }
    }

    fn payload(&self, original: &[u8]) -> Result<Vec<u8>, Failure> {
        match self {
            Self::Announcement { notification, .. } => serde_json::to_vec(notification)
                .map_err(|error| Failure { kind: FailureKind::Rejected, detail: error.to_string() }),
            Self::DeadLetter(_) | Self::Undeliverable { .. } | Self::Redriven { .. } => Ok(original.to_vec()),
        }
    }

    fn announced(&self) -> TranscriptVersion {
        match self {
            Self::Announcement { notification, .. } => version(notification),
            Self::DeadLetter(_) | Self::Undeliverable { .. } | Self::Redriven { .. } => TranscriptVersion::default(),
        }
    }

    /// Whether the subject holds this message only.
    fn has_own_subject(&self) -> bool {
        matches!(self, Self::Announcement { announcement: Announcement::ProcessedOnce, .. })
    }

    /// The message that this one is made from.
    fn original(&self) -> u64 {
        match self {
            Self::Announcement { .. } => 0,
            Self::DeadLetter(dead_letter) => dead_letter.stream_sequence,
            Self::Undeliverable { message, .. } => message.sequence,
            Self::Redriven { of, .. } => *of,
        }
    }

    /// What is known of the call, as an end's payload.
    fn known(&self, original: Option<&[u8]>) -> Option<Vec<u8>> {
        let ended = match self {
            Self::DeadLetter(dead_letter) => dead_letter.ended.clone(),
            Self::Redriven { ended, .. } => Some(ended.clone()),
            Self::Announcement { .. } | Self::Undeliverable { .. } => None,
        };
        let ended = ended.or_else(|| SessionEnded::parse(original?).ok())?;
        serde_json::to_vec(&ended).ok()
    }

    /// What is in the stream, if this message of it is the one that was to be published.
    fn is(&self, message: &RawMessage) -> Option<Published> {
        let about = |name: &str| message.header(name).and_then(|value| value.parse::<u64>().ok());
        let nothing = TranscriptVersion::default();
        let announced = match self {
            _ if message.subject != self.subject() => return None,
            Self::Announcement { notification: ours, .. } => {
                let theirs: Notification = serde_json::from_slice(&message.payload).ok()?;
                let same = theirs.session == ours.session && theirs.revision == ours.revision;
                same.then_some(version(&theirs))
            }
            Self::DeadLetter(_) | Self::Undeliverable { .. } => {
                (about(STREAM_SEQUENCE_HEADER) == Some(self.original())).then_some(nothing)
            }
            Self::Redriven { of, .. } => (about(REDRIVE_OF_HEADER) == Some(*of)).then_some(nothing),
        };
        announced.map(|announced| Published { stream_sequence: message.sequence, announced })
    }
}

fn version(notification: &Notification) -> TranscriptVersion {
    TranscriptVersion { segments: notification.segments, edits: notification.edits }
}

fn undeliverable(message: &RawMessage, at: WallTime) -> DeadLetter {
    DeadLetter {
        stream_sequence: message.sequence,
        attempts: 1,
        reason: "its header block cannot be parsed".to_owned(),
        at,
        ended: None,
    }
}

/// A failure to read passes: the message is there, or JetStream says that it is not.
fn unreadable(error: ReadError) -> Failure {
    match error {
        ReadError::Refused(error) => error.failure("read the stream"),
        ReadError::NotFound | ReadError::Unreadable => busy("the stream cannot be read".to_owned()),
    }
}

fn busy(detail: String) -> Failure {
    Failure { kind: FailureKind::Busy, detail }
}

/// The text as a header's value: one line, without control characters, and not too long.
fn line(text: &str) -> String {
    let mut line = text.split(char::is_control).collect::<Vec<_>>().join(" ").trim().to_owned();
    line.truncate(line.floor_char_boundary(LONGEST_TEXT));
    line
}
