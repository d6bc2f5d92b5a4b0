//! What the core asks of the world.

use std::{fmt, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    contract::{Announcement, DeadLetter, Notification, trace_context::TraceContext},
    event::SessionEnded,
    failure::Failure,
    ids::{EffectId, JobId, Key},
    input::{Cursor, Notified},
    kind::EffectKind,
    micros,
    summary::{Order, Summary},
    time::Time,
};

/// Everything that the core can say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Output {
    /// Do this, and report what became of it.
    Perform {
        /// Names the effect in its report.
        id: EffectId,
        /// What to do.
        effect: Effect,
    },
    /// Tell JetStream that a delivery is still worked on (`+WPI`). It is not reported: the next one is never far.
    InProgress {
        /// The delivery's reply subject.
        reply: Arc<str>,
    },
    /// Have JetStream hand over nothing more, hand over what it had sent by then, and say
    /// [`Input::DeliveriesStopped`](crate::Input::DeliveriesStopped). It is said once, before anything is given back: what
    /// is given back while a pull request is open comes back at once.
    StopDeliveries,
    /// Something that people want to know.
    Notice(Notice),
    /// Nothing more to do until something happens, or until the wake-up.
    Wait(Option<WakeUp>),
    /// The processor has drained: nothing more will ever come.
    Drained,
}

/// Until when the core can wait, and what for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WakeUp {
    /// When to tell it [`Input::Woken`](crate::Input::Woken) at the latest.
    pub at: Time,
    /// What is due then.
    pub timer: Timer,
}

/// The waits of the core, in the order in which they are served when they are due together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Timer {
    /// A job tells JetStream that it is alive.
    Heartbeat,
    /// A quiet period ends.
    Settle,
    /// A failed effect is tried again.
    Retry,
    /// An effect was asked for and never reported.
    Answer,
    /// Nobody confirmed that the deliveries have ended.
    StopDeliveries,
    /// The time that a draining processor gives its last jobs ends.
    Grace,
}

/// What people want to know, for the log. Nothing has to be done about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Notice {
    /// A call's summary is stored and announced.
    Done(Done),
    /// An effect failed. It is said of each kind at the first failure, and then once a minute at the most.
    Failing {
        /// Their kind.
        kind: EffectKind,
        /// The last failure.
        failure: Failure,
    },
    /// An effect succeeded, the first one of its kind since that was said.
    Works {
        /// Their kind.
        kind: EffectKind,
    },
}

/// A call whose summary is stored and announced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Done {
    /// The job.
    pub job: JobId,
    /// The call.
    pub key: Key,
    /// The end's place in the stream; `None` for a job without a delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_sequence: Option<u64>,
    /// How many segments the stored summary counts.
    pub segments: u64,
    /// How many the end announced.
    pub published_segments: u64,
    /// Whether the stored summary is complete.
    pub complete: bool,
    /// How often the end was handed over, as JetStream counts.
    pub attempts: u64,
    /// How long it took since this processor took it, in microseconds.
    #[serde(with = "micros")]
    pub took: Duration,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Effect {
    /// Count the session's segments: [`Report::Counted`](crate::Report::Counted).
    #[serde(rename_all = "camelCase")]
    Count {
        /// The session.
        session_id: Arc<str>,
    },
    /// Load a page of the session's segments in the order of the call: [`Report::Loaded`](crate::Report::Loaded).
    #[serde(rename_all = "camelCase")]
    Load {
        /// The session.
        session_id: Arc<str>,
        /// In which order; `None` where the store is to find out which [order](Order::of) the call has. Pages behind the first
        /// one keep the order of the first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        order: Option<Order>,
        /// Where to go on; `None` for the first page.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<Cursor>,
        /// The most segments to load.
        limit: u32,
        /// The most bytes of documents to load, as the store counts them. Where the next segment alone is larger, the page
        /// ends before it and [says so](crate::Page::needs).
        max_bytes: u64,
        /// How many segments the last count found.
        counted: u64,
    },
    /// Store the summary unless one is stored that is [ahead of it](crate::Stored::is_ahead_of); keep a mark that is there,
    /// and the higher number of requests to process the call again, and count the revision up where an announced summary
    /// is replaced: [`Report::Saved`](crate::Report::Saved), once it
    /// is on the journals of a majority.
    Save {
        /// The summary.
        summary: Arc<Summary>,
    },
    /// Read what is stored of the summary, its mark above all: [`Report::Checked`](crate::Report::Checked).
    Check {
        /// The summary's `_id`.
        key: Key,
    },
    /// Publish the notification: [`Report::Published`](crate::Report::Published), once the stream has confirmed it.
    #[serde(rename_all = "camelCase")]
    Publish {
        /// The summary's `_id`.
        key: Key,
        /// Where, and how it is known again.
        announcement: Announcement,
        /// The payload.
        notification: Notification,
        /// The trace that the end belongs to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trace_context: Option<Arc<TraceContext>>,
    },
    /// Mark the summary as announced unless it is: [`Report::Marked`](crate::Report::Marked), also where it is gone. A
    /// summary of the announced revision (1 where it is no revision) that is of a later version than was announced becomes
    /// the next revision, of which nobody knows yet.
    Mark {
        /// The summary's `_id`.
        key: Key,
        /// What was announced.
        announcement: Announcement,
        /// How many segments were announced.
        segments: u64,
        /// How often they were said to be changed.
        #[serde(default, skip_serializing_if = "is_zero")]
        edits: u64,
        /// The mark.
        notified: Notified,
    },
    /// Store the message as a dead letter, with its own bytes where the stream still holds it, up to
    /// [`DEAD_LETTER_BYTES`](crate::contract::DEAD_LETTER_BYTES) of one that can never be processed:
    /// [`Report::DeadLettered`](crate::Report::DeadLettered), once the stream has confirmed it.
    #[serde(rename_all = "camelCase")]
    DeadLetter {
        /// Everything but the message.
        dead_letter: Arc<DeadLetter>,
    },
    /// Publish the end again, so that it counts its attempts anew: [`Report::Republished`](crate::Report::Republished).
    #[serde(rename_all = "camelCase")]
    Republish {
        /// The place of the message that it is made from.
        stream_sequence: u64,
        /// What it says.
        ended: SessionEnded,
    },
    /// Acknowledge the delivery: [`Report::Acknowledged`](crate::Report::Acknowledged), once the server has confirmed it.
    Acknowledge {
        /// The delivery's reply subject.
        reply: Arc<str>,
        /// The call, where the payload named one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<Key>,
        /// How.
        acknowledgement: Acknowledgement,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The last word on a delivery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Acknowledgement {
    /// Done (`+ACK`).
    Ack,
    /// Not done; deliver it again at once, or after a delay (`-NAK`).
    Nak {
        /// How long to wait, in microseconds.
        #[serde(with = "micros")]
        delay: Duration,
        /// Why, for people: JetStream is not told.
        reason: String,
    },
    /// Never deliver it again (`+TERM`).
    Term {
        /// Why.
        reason: String,
    },
}

impl Acknowledgement {
    /// A job that a draining processor gives back at once.
    pub(crate) fn drained() -> Self {
        Self::Nak { delay: Duration::ZERO, reason: "the processor drains".to_owned() }
    }
}

impl Effect {
    /// The name of its kind; of an acknowledgement, which one it is.
    #[must_use]
    pub fn word(&self) -> &'static str {
        let Self::Acknowledge { acknowledgement, .. } = self else { return self.kind().name() };
        match acknowledgement {
            Acknowledgement::Ack => "ack",
            Acknowledgement::Nak { .. } => "nak",
            Acknowledgement::Term { .. } => "term",
        }
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> EffectKind {
        match self {
            Self::Count { .. } => EffectKind::Count,
            Self::Load { .. } => EffectKind::Load,
            Self::Save { .. } => EffectKind::Save,
            Self::Check { .. } => EffectKind::Check,
            Self::Publish { .. } => EffectKind::Publish,
            Self::Mark { .. } => EffectKind::Mark,
            Self::DeadLetter { .. } => EffectKind::DeadLetter,
            Self::Republish { .. } => EffectKind::Republish,
            Self::Acknowledge { .. } => EffectKind::Acknowledge,
        }
    }
}

impl fmt::Display for Effect {
    /// Without a word of the call.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count { session_id } => write!(f, "count the segments of {session_id:?}"),
            Self::Load { session_id, after: None, .. } => write!(f, "load the segments of {session_id:?}"),
            Self::Load { session_id, after: Some(_), .. } => write!(f, "load more segments of {session_id:?}"),
            Self::Save { summary } => write!(f, "save {} with {} segments", summary.key, summary.segments),
            Self::Check { key } => write!(f, "check what is stored of {key}"),
            Self::Publish { key, announcement: Announcement::Processed | Announcement::ProcessedOnce, .. } => {
                write!(f, "publish {key}")
            }
            Self::Publish { key, announcement: Announcement::Revised { revision }, .. } => {
                write!(f, "publish revision {revision} of {key}")
            }
            Self::Mark { key, announcement: Announcement::Processed | Announcement::ProcessedOnce, .. } => {
                write!(f, "mark {key} as announced")
            }
            Self::Mark { key, announcement: Announcement::Revised { revision }, .. } => {
                write!(f, "mark revision {revision} of {key} as announced")
            }
            Self::DeadLetter { dead_letter } => {
                write!(f, "keep message {} as a dead letter: {}", dead_letter.stream_sequence, dead_letter.reason)
            }
            Self::Republish { stream_sequence, .. } => write!(f, "publish message {stream_sequence} again"),
            Self::Acknowledge { acknowledgement: Acknowledgement::Ack, .. } => f.write_str("ack"),
            Self::Acknowledge { acknowledgement: Acknowledgement::Nak { delay, .. }, .. } if delay.is_zero() => {
                f.write_str("nak")
            }
            Self::Acknowledge { acknowledgement: Acknowledgement::Nak { delay, .. }, .. } => {
                write!(f, "nak for {delay:?}")
            }
            Self::Acknowledge { acknowledgement: Acknowledgement::Term { reason }, .. } => write!(f, "term: {reason}"),
        }
    }
}
