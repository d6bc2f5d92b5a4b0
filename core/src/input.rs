//! What the world tells the core.

use std::{fmt, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    WallTime,
    contract::trace_context::TraceContext,
    failure::Failure,
    ids::{EffectId, Session},
    micros,
    summary::{Order, Segment, Summary},
};

/// Everything that the core can be told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Input {
    /// JetStream handed over a message.
    Delivered(Delivery),
    /// What became of an effect.
    Reported {
        /// The effect, as it was asked for.
        effect: EffectId,
        /// What became of it.
        report: Report,
    },
    /// JetStream says that a message was handed over as often as may be, and will not be again.
    Exhausted(Exhausted),
    /// The stored summary of a session is behind its segments, or was replaced and nobody was told.
    Stale(StaleSummary),
    /// What the consumer is really set to: at the start, and each time that it turns out to have changed.
    Consumer(ConsumerSettings),
    /// Time has passed; nothing else has happened.
    Woken,
    /// Take no more deliveries until [`Input::Resume`]; finish what is in hand. A message that JetStream sends for a request
    /// that was under way is in hand too.
    Quiet,
    /// The end of [`Input::Quiet`].
    Resume,
    /// Take no more work and come to an end; see [`Settings::grace`](crate::Settings::grace). The core asks for
    /// [`Output::StopDeliveries`](crate::Output::StopDeliveries) first.
    Drain,
    /// [`Output::StopDeliveries`](crate::Output::StopDeliveries) was carried out: JetStream hands this processor nothing
    /// more, and everything that it had handed over before was handed to the core.
    DeliveriesStopped,
}

/// One hand-over of one stream message to this processor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Delivery {
    /// The message's place in the stream.
    pub stream_sequence: u64,
    /// How often JetStream says it was handed over, this time included. It can go backwards when a server crashes.
    pub attempt: u64,
    /// When the server stored the message, by the server's clock.
    pub stored_at: WallTime,
    /// When the shell received it, by the shell's clock.
    pub received_at: WallTime,
    /// Where acknowledgements go.
    pub reply: Arc<str>,
    /// The message that this one was made from, where it was published again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redrive_of: Option<u64>,
    /// The trace that the message belongs to: it goes on in the notification.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_context: Option<Arc<TraceContext>>,
    /// The message, byte for byte.
    pub payload: Payload,
}

/// A message that used up its deliveries without an acknowledgement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Exhausted {
    /// The message's place in the stream.
    pub stream_sequence: u64,
    /// How often it was handed over.
    pub attempts: u64,
    /// When the shell learnt of it, by its clock.
    pub received_at: WallTime,
    /// The message, as the stream holds it; `None` where the stream no longer does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Payload>,
}

/// What JetStream's consumer is set to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConsumerSettings {
    /// Its `ack_wait`, in microseconds.
    #[serde(with = "micros")]
    pub ack_wait: Duration,
    /// Its `max_deliver`; `u64::MAX` where there is no limit.
    pub max_deliver: u64,
}

/// A session whose stored summary is behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StaleSummary {
    /// The session.
    #[serde(flatten)]
    pub session: Session,
    /// How many segments its end announced, as the summary says.
    pub published_segments: u64,
    /// When the shell saw it, by its clock.
    pub received_at: WallTime,
}

/// A message's bytes; recorded as text where they are UTF-8.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload(pub Vec<u8>);

/// What became of an effect. A report of another kind than the effect asked for is counted and ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Report {
    /// How many segments of the session are stored.
    Counted {
        /// The number of documents.
        segments: u64,
    },
    /// A page of the session's segments.
    Loaded(Page),
    /// The summary is stored and journaled, or the stored one is of more segments and was kept.
    Saved(Stored),
    /// What is stored of the summary; `None` where there is none.
    Checked(Option<Stored>),
    /// The notification is in the stream.
    Published {
        /// Its place there; of the first one where this one was a duplicate.
        stream_sequence: u64,
        /// How many segments the message at that place announces: ours, unless it was published before.
        segments: u64,
        /// How often it says that they were changed.
        #[serde(default, skip_serializing_if = "is_zero")]
        edits: u64,
    },
    /// The summary carries its mark.
    Marked,
    /// The dead letter is in the stream, this one or an earlier one about the same message.
    DeadLettered {
        /// Its place there.
        stream_sequence: u64,
    },
    /// The end is in the stream again.
    Republished {
        /// Its place there.
        stream_sequence: u64,
    },
    /// The server confirmed the acknowledgement.
    Acknowledged,
    /// It did not happen, or nobody can say whether it did.
    Failed(Failure),
}

/// Part of a session's segments in the order of the call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// The segments.
    pub segments: Vec<Segment>,
    /// How many of them have a damaged text: the text or the label is not valid UTF-8, or is no text at all.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub damaged: u64,
    /// Where the next page starts; `None` after the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Cursor>,
    /// How many bytes the next segment takes, where it alone is larger than the page was allowed to be. The page may be
    /// empty then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needs: Option<u64>,
    /// What the session had when the last page of a load [by start](crate::summary::Order::Start) was read, unless the page
    /// is the whole call. A segment can be changed while pages are read: then its start may move it behind a page that it was
    /// on, or off the session's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tally: Option<Tally>,
    /// What it had before the first page of such a load was read; told beside `tally`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tally_before: Option<Tally>,
}

/// How many segments a session has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tally {
    /// All of them.
    pub segments: u64,
    /// Those without a start on the session's clock.
    pub without_start: u64,
    /// How often its segments were changed, all together.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub edits: u64,
}

impl Tally {
    /// The [order](Order::of) of a call of these segments.
    #[must_use]
    pub fn order(self) -> Order {
        if self.segments > 0 && self.without_start == 0 { Order::Start } else { Order::Index }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A place among a session's segments. Only the store knows what is in it; the core gives it back as it got it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cursor(pub String);

/// Which state of a session's segments a summary is of. Segments are never removed, and whoever changes one counts that: of two
/// versions, the later one has more segments, or as many that were changed more often.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TranscriptVersion {
    /// How many segments there are.
    pub segments: u64,
    /// How often they were changed, all together.
    pub edits: u64,
}

/// The summary that is in the store once a save is done: this one, or one of a later version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stored {
    /// Its segments.
    pub segments: u64,
    /// How often those were changed, all together.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub edits: u64,
    /// Whether it is complete.
    pub complete: bool,
    /// The mark that it was announced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notified: Option<Notified>,
    /// Which summary of the session it is: 1, and one more each time that an announced one was replaced.
    #[serde(default = "first_revision")]
    pub revision: u64,
    /// The last revision above 1 that was announced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revised: Option<u64>,
    /// How often an operator had asked for the call to be processed again when it was built.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reprocess: u64,
}

fn first_revision() -> u64 {
    1
}

impl Stored {
    /// The revision of a summary that replaced an announced one, where nobody was told of it.
    #[must_use]
    pub fn unannounced_revision(&self) -> Option<u64> {
        let announced = self.revised.unwrap_or(1);
        (self.notified.is_some() && self.revision > announced).then_some(self.revision)
    }

    /// Which version of the session's segments it is of.
    #[must_use]
    pub fn version(&self) -> TranscriptVersion {
        TranscriptVersion { segments: self.segments, edits: self.edits }
    }

    /// Whether a save of this summary leaves the stored one as it is: that one is of a later version of the segments; or of
    /// the same, and made for a later request to process the call again; or for the same one, and announced.
    #[must_use]
    pub fn is_ahead_of(&self, summary: &Summary) -> bool {
        let (mine, other) = ((self.version(), self.reprocess), (summary.version(), summary.reprocess));
        mine > other || (mine == other && self.notified.is_some())
    }

    /// Whether nothing is left to do for a session whose segments are of this version: it is announced and not stale.
    #[must_use]
    pub fn is_settled(&self, version: TranscriptVersion) -> bool {
        self.notified.is_some() && !self.is_stale_with(version)
    }

    /// Whether segments of this version make a new summary due.
    #[must_use]
    pub fn is_stale_with(&self, version: TranscriptVersion) -> bool {
        version > self.version()
    }
}

/// The mark on a summary that was announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Notified {
    /// The notification's place in the stream.
    pub stream_sequence: u64,
    /// When the mark was asked for.
    pub at: WallTime,
}

impl fmt::Display for Report {
    /// Without a word of the call.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Counted { segments } => write!(f, "counted {segments}"),
            Self::Loaded(page) if page.next.is_some() => write!(f, "loaded {}, more to come", page.segments.len()),
            Self::Loaded(page) => write!(f, "loaded {}, the last", page.segments.len()),
            Self::Saved(stored) => write!(f, "stored with {} segments", stored.segments),
            Self::Checked(None) => f.write_str("nothing is stored"),
            Self::Checked(Some(stored)) if stored.notified.is_some() => {
                write!(f, "stored with {} segments, and announced", stored.segments)
            }
            Self::Checked(Some(stored)) => write!(f, "stored with {} segments, not announced", stored.segments),
            Self::Published { stream_sequence, segments, .. } => {
                write!(f, "published at {stream_sequence} with {segments} segments")
            }
            Self::Marked => f.write_str("marked"),
            Self::DeadLettered { stream_sequence } => write!(f, "kept as a dead letter at {stream_sequence}"),
            Self::Republished { stream_sequence } => write!(f, "published again at {stream_sequence}"),
            Self::Acknowledged => f.write_str("acknowledged"),
            Self::Failed(failure) => write!(f, "failed, {failure}"),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Recorded {
    Text(String),
    Bytes(Vec<u8>),
}

impl Serialize for Payload {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => text.serialize(serializer),
            Err(_) => self.0.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match Recorded::deserialize(deserializer)? {
            Recorded::Text(text) => text.into_bytes(),
            Recorded::Bytes(bytes) => bytes,
        }))
    }
}
