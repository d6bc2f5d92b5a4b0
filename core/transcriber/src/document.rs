//! What is stored: sessions, leases, and segments as the transcriber writes them.
//!
//! # The fence
//!
//! A lease and a session are different documents, and one MongoDB command is atomic for one document only. So the lease is
//! not what a write is checked against. The right to write a session is the instance's **entry in the session's document**:
//! each write of an instance filters on its own entry, and a successor takes the entry away in one command before it does
//! anything else with the session. The lease only says when a successor may do so.
//!
//! Segments are in a collection of their own, where a session's document cannot guard them. So nothing is written there that
//! is not in the session's document first: [`Effect::Reserve`](crate::Effect::Reserve) puts a batch into the entry, with its
//! indexes, and [`Effect::Save`](crate::Effect::Save) copies it into the collection. A successor finds the batch in the entry
//! that it takes, and copies it before it counts. When the instance wakes that was thought dead, and finishes its copy, it writes
//! what is there already: the [source](Source) of a segment is unique in a session. So no write can change the count of an
//! ended session without opening it again.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use transcript_core::{
    WallTime,
    ids::{Key, Session},
};

use crate::ids::{EpochId, InstanceId, Source};

/// The collection of sessions.
pub const SESSIONS_COLLECTION: &str = "transcriptsessions";
/// The collection of leases.
pub const LEASES_COLLECTION: &str = "transcriptleases";
/// The most [epoch clocks](EpochClock) of one session. Segments of further epochs are not on the session's clock.
pub const MAX_EPOCH_CLOCKS: usize = 256;

/// One session: a document of [`SESSIONS_COLLECTION`]. It needs an index on `instances.id`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionDocument {
    /// The session's key.
    #[serde(rename = "_id")]
    pub key: Key,
    /// The session.
    #[serde(flatten)]
    pub session: Session,
    /// Where it stands.
    pub state: SessionState,
    /// How often its end was begun: the generation of the last end; 0 before the first one.
    pub generation: u64,
    /// The index of the next segment.
    pub next_index: u64,
    /// How many batches were written into it, by all instances. A segment carries the number of its batch: the higher one
    /// replaces the lower one.
    pub writes: u64,
    /// The instances that serve it. An ended session has none.
    pub instances: Vec<InstanceEntry>,
    /// When the epochs began that clients named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub epochs: Vec<EpochClock>,
    /// When it was opened first, by the store's clock: the zero of the session's clock.
    pub started_at: WallTime,
    /// When its last end was done, by the store's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<WallTime>,
    /// How many segments were stored at its last end: what that end announced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved: Option<u64>,
    /// How often a stored text was replaced, counted at its last end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edits: Option<u64>,
    /// Its last end's place in the stream; absent where nothing is published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<PublishedEnd>,
}

/// Where a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SessionState {
    /// Instances serve it.
    Open,
    /// The last instance has left it, and announces the end. Its entry is still there, so that a successor finds it.
    Ending,
    /// Its end is done.
    Ended,
}

/// An instance that serves a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceEntry {
    /// The instance.
    pub id: InstanceId,
    /// The number of the last effect that changed this entry: see [`Fence`](crate::Fence).
    pub step: u64,
    /// How its clients deliver.
    pub transport: Transport,
    /// Its last batch. It is in the collection of segments, or must still be copied there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending: Vec<StoredSegment>,
}

/// How a client delivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Transport {
    /// By requests: each one is a connection that closes when it is answered.
    Post,
    /// By a WebSocket.
    Socket,
}

/// When an epoch began that a client named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EpochClock {
    /// The epoch.
    pub epoch: EpochId,
    /// Its zero, in milliseconds of the session's clock.
    pub start_ms: i64,
}

/// Where an end is in the stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PublishedEnd {
    /// Its `Nats-Msg-Id`.
    pub message_id: Arc<str>,
    /// Its place.
    pub stream_sequence: u64,
}

/// An instance's lease: a document of [`LEASES_COLLECTION`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseDocument {
    /// The instance.
    #[serde(rename = "_id")]
    pub id: InstanceId,
    /// When it expires, by the store's clock.
    pub until: WallTime,
    /// Whether another instance has begun to take its sessions over. It cannot be renewed any more.
    pub state: LeaseState,
}

/// Whether a lease can be renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LeaseState {
    /// It can, also after it has expired.
    Held,
    /// It cannot.
    Succeeded,
}

/// A segment as the transcriber stores it: a document of `transcriptsegments`, with `_id` = `<sessionId>:<index>` and the two
/// ids of the session beside these fields. The collection needs a unique index on `{sessionId: 1, source: 1}`, partial to
/// documents that have a `source`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredSegment {
    /// Its place in the session. Gaps are allowed; two segments with one index are not.
    pub index: u64,
    /// Where it came from; unique in the session.
    pub source: Source,
    /// The number of the batch that brought its text: see [`SessionDocument::writes`].
    pub write: u64,
    /// Who speaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speaker: Option<Arc<str>>,
    /// What was said.
    pub text: Arc<str>,
    /// Start, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ms: Option<i64>,
    /// End, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_ms: Option<i64>,
    /// Whether both times are those of the session's clock, which is zero when the session was opened first. Written only
    /// where it is true.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_session_clock: bool,
}

impl StoredSegment {
    /// Whether `other` says the same of the same segment, whatever its index and its batch.
    #[must_use]
    pub fn says_the_same(&self, other: &Self) -> bool {
        (&self.source, &self.speaker, &self.text) == (&other.source, &other.speaker, &other.text)
            && (self.start_ms, self.end_ms, self.on_session_clock)
                == (other.start_ms, other.end_ms, other.on_session_clock)
    }
}
