//! What the world tells the transcriber.

use std::{fmt, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use transcript_core::{Failure, ids::Session, micros};

use crate::{
    document::{SessionState, StoredSegment, Transport},
    frame::ClientFrame,
    ids::{ConnectionId, EffectId, InstanceId},
};

/// Everything that the transcriber can be told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Input {
    /// A client connected, and its token and its ids were found good.
    Opened(Opening),
    /// A client said something. Frames of a connection that the transcriber has closed are ignored.
    Frame {
        /// The connection.
        connection: ConnectionId,
        /// What it said.
        frame: ClientFrame,
    },
    /// A connection is gone, whoever closed it. It is said once of each connection.
    Closed {
        /// The connection.
        connection: ConnectionId,
        /// How it went.
        closure: Closure,
    },
    /// What became of an effect.
    Reported {
        /// The effect, as it was asked for.
        effect: EffectId,
        /// What became of it.
        report: Report,
    },
    /// The stream's state has changed. At the start it is [`Settings::stream`](crate::Settings::stream).
    Stream(StreamState),
    /// Time has passed; nothing else has happened.
    Woken,
    /// Take no more clients, store what is there, hand the sessions over and come to an end; see
    /// [`Settings::grace`](crate::Settings::grace).
    Shutdown,
}

/// A new connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Opening {
    /// Its id.
    pub connection: ConnectionId,
    /// The session that it delivers to.
    pub session: Session,
    /// The client's name, where it gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<Arc<str>>,
    /// The client's epoch, where it gave one: its ids and times go on from earlier connections of the same epoch. It counts only
    /// with a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Arc<str>>,
    /// How it delivers.
    pub transport: Transport,
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Closure {
    /// With a closing handshake of code 1000 or 1001, or a request that was answered.
    Clean,
    /// In any other way: a reset, a silence, a protocol error.
    Broken,
}

/// Whether messages can be published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StreamState {
    /// There is no stream: nothing is ever published.
    Absent,
    /// The stream cannot be reached now: what is to be published waits.
    Away,
    /// Publish.
    Available,
}

/// What became of an effect. A report of another kind than the effect asked for is counted and ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Report {
    /// The lease is held: of [`Effect::OpenLease`](crate::Effect::OpenLease) and [`Effect::RenewLease`](crate::Effect::RenewLease).
    LeaseHeld,
    /// Another instance has begun to take over what this one served: of [`Effect::RenewLease`](crate::Effect::RenewLease).
    LeaseLost,
    /// The lease has expired: of [`Effect::ReleaseLease`](crate::Effect::ReleaseLease).
    LeaseReleased,
    /// Entries of instances whose lease has been succeeded.
    Orphans(Vec<Orphan>),
    /// The session is open and lists this instance.
    Joined(Joined),
    /// The batch is in the session's document.
    Reserved {
        /// The index of the batch's first segment; the others follow.
        first_index: u64,
        /// The number of the batch.
        write: u64,
    },
    /// What became of each segment of the batch, in its order.
    Saved(Vec<SavedSegment>),
    /// What the session's document says of the departure.
    Left(Departure),
    /// What is stored of the session.
    Counted {
        /// The number of its segments.
        segments: u64,
        /// How often a stored text was replaced by another one.
        edits: u64,
    },
    /// The segments are in the stream.
    SegmentsPublished,
    /// The end is in the stream, this one or an earlier one with the same id.
    EndPublished {
        /// Its place there.
        stream_sequence: u64,
    },
    /// The document says that the session has ended, and lists nobody.
    Finished,
    /// The session was opened again since this end was begun: this instance is still listed, and nothing was changed.
    Reopened,
    /// The entry is this instance's, now or since before.
    TakenOver(TakenOver),
    /// The session's document has no such entry, or a later effect has changed it: nothing was changed. Of every effect with
    /// a [`Fence`](crate::Fence) but a join, and of a take-over.
    Gone,
    /// It did not happen, or nobody can say whether it did.
    Failed(Failure),
}

/// An entry that nobody looks after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Orphan {
    /// The session.
    pub session: Session,
    /// Whose entry it is.
    pub instance: InstanceId,
}

/// What a session's document says to an instance that joins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Joined {
    /// The index of the next segment.
    pub next_index: u64,
    /// How long ago the session was opened first, on the store's clock, in microseconds.
    #[serde(with = "micros")]
    pub age: Duration,
    /// The zeros of the epochs that the join named, in its order, in milliseconds of the session's clock; `None` where the
    /// document holds as many as it may.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub epochs: Vec<Option<i64>>,
}

/// What became of one segment of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum SavedSegment {
    /// It is stored.
    Stored {
        /// Its index: that of the first segment of its source, which need not be the reserved one.
        index: u64,
    },
    /// Another segment has its `_id`, one of another source. It takes another index.
    IndexTaken {
        /// The highest index of the session's segments.
        highest: u64,
    },
    /// The store refuses this document, and will refuse it again.
    Refused {
        /// Why; without a word of the call.
        reason: String,
    },
}

/// What the session's document says of an instance that leaves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Departure {
    /// Other instances serve the session: this one is not listed any more.
    Others,
    /// It was the last one, and nobody ever said anything; the leave was not to end such a session. It is still listed.
    Silent,
    /// It was the last one: the session is ending, and lists this instance until its end is done.
    Ending {
        /// Which end this is.
        generation: u64,
        /// Where entries of other instances were to be removed: everything that must be saved before the count.
        pending: Vec<StoredSegment>,
    },
}

/// An entry that was another instance's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TakenOver {
    /// What the document says.
    pub joined: Joined,
    /// Where the session stands.
    pub state: SessionState,
    /// The generation of its last end.
    pub generation: u64,
    /// How the clients of the entry delivered.
    pub transport: Transport,
    /// The batch of the entry, to be saved.
    pub pending: Vec<StoredSegment>,
}

impl fmt::Display for Report {
    /// Without a word of the call.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeaseHeld => f.write_str("lease held"),
            Self::LeaseLost => f.write_str("lease lost"),
            Self::LeaseReleased => f.write_str("lease released"),
            Self::Orphans(orphans) => write!(f, "{} orphans", orphans.len()),
            Self::Joined(joined) => write!(f, "joined, next index {}", joined.next_index),
            Self::Reserved { first_index, write } => write!(f, "reserved from index {first_index}, write {write}"),
            Self::Saved(segments) => write!(f, "saved {} segments", segments.len()),
            Self::Left(Departure::Others) => f.write_str("left to others"),
            Self::Left(Departure::Silent) => f.write_str("not left: nobody said anything"),
            Self::Left(Departure::Ending { generation, .. }) => write!(f, "left, end {generation} begins"),
            Self::Counted { segments, edits } => write!(f, "counted {segments} segments, {edits} edits"),
            Self::SegmentsPublished => f.write_str("segments published"),
            Self::EndPublished { stream_sequence } => write!(f, "end published as {stream_sequence}"),
            Self::Finished => f.write_str("finished"),
            Self::Reopened => f.write_str("reopened"),
            Self::TakenOver(_) => f.write_str("taken over"),
            Self::Gone => f.write_str("gone"),
            Self::Failed(failure) => write!(f, "failed: {failure}"),
        }
    }
}
