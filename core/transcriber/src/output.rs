//! What the transcriber asks of the world.

use std::{fmt, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use transcript_core::{
    Failure, Time,
    event::SessionEnded,
    ids::{Key, Session},
    micros,
};

use crate::{
    document::{PublishedEnd, StoredSegment, Transport},
    frame::{CloseCode, ServerFrame},
    ids::{ConnectionId, EffectId, EpochId, InstanceId},
    kind::EffectKind,
};

/// Everything that the transcriber can say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Output {
    /// Do this, and report what became of it.
    Perform {
        /// Names the effect in its report.
        id: EffectId,
        /// What to do.
        effect: Effect,
    },
    /// Tell a client something.
    Send {
        /// The connection.
        connection: ConnectionId,
        /// What to say.
        frame: ServerFrame,
    },
    /// Close a connection after everything that was to be sent on it. It counts as closed from now on, also where the client
    /// does not answer.
    Close {
        /// The connection.
        connection: ConnectionId,
        /// The code.
        code: CloseCode,
        /// The reason, for people; of at most 123 bytes, as RFC 6455 bounds it.
        reason: String,
    },
    /// Read no more frames of a connection, or read on. What was read before can still be handed over. Every connection is read
    /// at first.
    Read {
        /// The connection.
        connection: ConnectionId,
        /// Whether to read.
        reading: Reading,
    },
    /// Something that people want to know.
    Notice(Notice),
    /// Nothing more to do until something happens, or until the wake-up.
    Wait(Option<WakeUp>),
    /// The transcriber has come to its end: nothing more will ever come.
    Stopped,
}

/// Whether a connection is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reading {
    /// It is not: the transcriber holds as much of it as it may.
    Paused,
    /// It is.
    Resumed,
}

/// Until when the transcriber can wait, and what for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WakeUp {
    /// When to tell it [`Input::Woken`](crate::Input::Woken) at the latest.
    pub at: Time,
    /// What is due then.
    pub timer: Timer,
}

/// The waits of the transcriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Timer {
    /// The lease is renewed.
    Renew,
    /// Expired leases are looked for.
    Orphans,
    /// A session that nobody is connected to ends.
    End,
    /// A failed effect is tried again.
    Retry,
    /// An effect was asked for and never reported.
    Answer,
    /// The time that a shutdown gives to what is not stored ends.
    Grace,
}

/// What people want to know, for the log. Nothing has to be done about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Notice {
    /// Nothing is published, because there is no stream. It is said once, at the start.
    NothingIsPublished,
    /// A session's end is done.
    Ended {
        /// The session.
        key: Key,
        /// Which end of the session it is.
        generation: u64,
        /// How many segments are stored.
        segments: u64,
        /// Its place in the stream; `None` where nothing is published.
        stream_sequence: Option<u64>,
    },
    /// This instance was thought dead, and goes on as another one.
    LeaseLost {
        /// The new instance.
        instance: InstanceId,
    },
    /// An entry of a dead instance is this one's now.
    TookOver {
        /// The session.
        key: Key,
        /// The dead instance.
        from: InstanceId,
    },
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
    /// A connection is refused or closed because of a limit.
    Limited {
        /// The session.
        key: Key,
        /// The limit.
        reason: String,
    },
}

/// What a write of an instance on a session's document is checked against.
///
/// The command filters on `{_id: <key>, instances: {$elemMatch: {id: <instance>, step: {$lt: <step>}}}}` and sets the entry's
/// `step`. So it changes nothing where a successor has taken the entry away, and nothing where it arrives after a later effect
/// of the same instance, as a command can that its client gave up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fence {
    /// The instance that writes.
    pub instance: InstanceId,
    /// The number of the effect.
    pub step: u64,
}

/// One thing to do.
///
/// The effects of one session's document and segments come one after the other: the next one is asked for after the report of the
/// one before it. So do a session's publications among each other, and those of the lease. Effects of different sessions are
/// independent, and a shell may send many in one command.
///
/// Writes are to be acknowledged by a majority and journaled (`w: majority`, `j: true`), reads to be of the primary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Effect {
    /// Insert the instance's lease, held until `$$NOW` and `duration`: [`Report::LeaseHeld`](crate::Report::LeaseHeld), also where
    /// it is there and held.
    OpenLease {
        /// The instance.
        instance: InstanceId,
        /// For how long, in microseconds.
        #[serde(with = "micros")]
        duration: Duration,
    },
    /// Set the lease's `until` to `$$NOW` and `duration` where it is there and held, expired or not: then
    /// [`Report::LeaseHeld`](crate::Report::LeaseHeld), and [`Report::LeaseLost`](crate::Report::LeaseLost) where it is not. Never
    /// insert one.
    RenewLease {
        /// The instance.
        instance: InstanceId,
        /// For how long, in microseconds.
        #[serde(with = "micros")]
        duration: Duration,
    },
    /// Set the lease's `until` to `$$NOW`, so that the sessions of this instance are taken over at once:
    /// [`Report::LeaseReleased`](crate::Report::LeaseReleased), also where the lease is not there.
    ReleaseLease {
        /// The instance.
        instance: InstanceId,
    },
    /// Set the state of all leases with `until < $$NOW` to `succeeded`. Then name the entries, in sessions of any state, of
    /// instances that have no lease that is held: [`Report::Orphans`](crate::Report::Orphans). A lease that no entry needs any
    /// more can be deleted then.
    FindOrphans {
        /// The most entries to name.
        limit: u32,
        /// Name the entries of this instance too.
        own: Option<InstanceId>,
    },
    /// List the instance in the session's document, and open it: [`Report::Joined`](crate::Report::Joined). One command, which
    /// upserts. A new document is open, of generation 0, and starts at `$$NOW`. The state of an ending or ended one becomes open. An entry of
    /// this instance that is there keeps its batch; its transport becomes the given one if its step is lower.
    Join {
        /// The session.
        session: Session,
        /// The instance that writes. Its step goes into the entry; a join needs no entry.
        fence: Fence,
        /// How the clients deliver: by sockets, if any of them does.
        transport: Transport,
        /// The epochs of clients that named theirs. One that the document does not know begins the given time before `$$NOW`; it
        /// is entered unless the document holds [`MAX_EPOCH_CLOCKS`](crate::document::MAX_EPOCH_CLOCKS).
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        epochs: Vec<EpochOpened>,
    },
    /// Put a batch into the instance's entry in place of the one before it, and take indexes for it:
    /// [`Report::Reserved`](crate::Report::Reserved), or [`Report::Gone`](crate::Report::Gone). One command: the first index is the
    /// higher one of `nextIndex` and `from`, `nextIndex` becomes the index after the batch, `writes` grows by one, and the entry's
    /// `pending` holds the segments with their indexes and that number.
    Reserve {
        /// The session.
        session: Session,
        /// The fence.
        fence: Fence,
        /// The segments. Their `index` counts from 0 within the batch, and their `write` is 0.
        segments: Arc<Vec<StoredSegment>>,
        /// An index that the batch must not be below.
        from: u64,
    },
    /// Store the segments: [`Report::Saved`](crate::Report::Saved).
    ///
    /// Each one is upserted by `{sessionId, source}`. Where that finds none, it is inserted with `_id` = `<sessionId>:<index>`. Where
    /// it finds one of a lower `write`, speaker, text, times and mark and `write` are replaced; the document's own `edits` grows by
    /// one where any of the first four or the mark [changed](StoredSegment::says_the_same). Where it finds one of the same `write` or
    /// a higher one, nothing is changed. Two upserts of one source at the same time can clash in the unique index, and are tried
    /// again. A clash of `_id` is [`SavedSegment::IndexTaken`](crate::SavedSegment::IndexTaken). A segment that fails does not stop
    /// the ones after it.
    Save {
        /// The session.
        session: Session,
        /// The segments, as the session's document has them.
        segments: Arc<Vec<StoredSegment>>,
    },
    /// Leave the session: [`Report::Left`](crate::Report::Left), or [`Report::Gone`](crate::Report::Gone). One command, in this order:
    ///
    /// - where other entries are there, and not all of them are [to be removed](Self::Leave::idle_others): remove this
    ///   instance's entry; [`Departure::Others`](crate::Departure::Others);
    /// - where `nextIndex` is 0 and `silence` is to wait: change nothing; [`Departure::Silent`](crate::Departure::Silent);
    /// - else remove the other entries and add their batches to this instance's, set the state to `ending`, and count `generation`
    ///   up, unless the state is `ending` already; [`Departure::Ending`](crate::Departure::Ending), with the batch of this
    ///   instance's entry where others were [to be removed](Self::Leave::idle_others), and else with none.
    Leave {
        /// The session.
        session: Session,
        /// The fence.
        fence: Fence,
        /// What to do about a session in which nobody ever said anything.
        silence: Silence,
        /// What to do about other entries with the transport [`Transport::Post`].
        idle_others: IdleOthers,
    },
    /// Count the session's segments, and add up their `edits`: [`Report::Counted`](crate::Report::Counted).
    Count {
        /// The session.
        session: Session,
    },
    /// Where the state is `ending` and the generation this one: set the state to `ended`, `saved`, `edits`, `published` and
    /// `endedAt`, and remove the instance's entry: [`Report::Finished`](crate::Report::Finished), also where that was done before
    /// (state, generation, and nobody listed). Where the entry is there and the session is anything else, change nothing:
    /// [`Report::Reopened`](crate::Report::Reopened). Else [`Report::Gone`](crate::Report::Gone). One command.
    Finish {
        /// The session.
        session: Session,
        /// The fence.
        fence: Fence,
        /// Which end this is.
        generation: u64,
        /// How many segments are stored.
        saved: u64,
        /// How often a stored text was replaced.
        edits: u64,
        /// Its place in the stream; `None` where nothing is published.
        published: Option<PublishedEnd>,
    },
    /// Make an entry of another instance this one's: [`Report::TakenOver`](crate::Report::TakenOver), or
    /// [`Report::Gone`](crate::Report::Gone) where neither that entry nor one of this instance is there. One command: the entry
    /// gets this instance's id and step; where this instance is listed too, the other entry is removed, and its batch is added to this
    /// one's. Where only this instance is listed, it was done before, and nothing changes. State and generation stay as they
    /// are.
    TakeOver {
        /// The session.
        session: Session,
        /// The instance that writes. Its step goes into the entry.
        fence: Fence,
        /// Whose entry it is.
        from: InstanceId,
    },
    /// Publish segments, in their order, each with its message id: [`Report::SegmentsPublished`](crate::Report::SegmentsPublished) when
    /// the stream has confirmed all of them.
    PublishSegments {
        /// The session.
        session: Session,
        /// The segments.
        segments: Arc<Vec<PublishedSegment>>,
    },
    /// Publish the end: [`Report::EndPublished`](crate::Report::EndPublished) when the stream has confirmed it.
    PublishEnd {
        /// What it says.
        ended: SessionEnded,
        /// `Nats-Msg-Id`.
        message_id: Arc<str>,
    },
}

/// An epoch that a client named, and that a join is to find or to begin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EpochOpened {
    /// The epoch.
    pub epoch: EpochId,
    /// How long ago its connection opened, in microseconds.
    #[serde(with = "micros")]
    pub ago: Duration,
}

/// What a leave does about a session in which nobody ever said anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Silence {
    /// The session goes on: its clients have perhaps not come yet.
    Waits,
    /// The session ends.
    Ends,
}

/// What a leave does about entries of instances that are only delivered to by requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum IdleOthers {
    /// They are other entries.
    Stay,
    /// They are removed: a service has asked for the end.
    Removed,
}

/// A segment to be published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PublishedSegment {
    /// The segment, with the index under which it is stored.
    pub segment: StoredSegment,
    /// `Nats-Msg-Id`.
    pub message_id: Arc<str>,
}

impl Effect {
    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> EffectKind {
        match self {
            Self::OpenLease { .. } => EffectKind::OpenLease,
            Self::RenewLease { .. } => EffectKind::RenewLease,
            Self::ReleaseLease { .. } => EffectKind::ReleaseLease,
            Self::FindOrphans { .. } => EffectKind::FindOrphans,
            Self::Join { .. } => EffectKind::Join,
            Self::Reserve { .. } => EffectKind::Reserve,
            Self::Save { .. } => EffectKind::Save,
            Self::Leave { .. } => EffectKind::Leave,
            Self::Count { .. } => EffectKind::Count,
            Self::Finish { .. } => EffectKind::Finish,
            Self::TakeOver { .. } => EffectKind::TakeOver,
            Self::PublishSegments { .. } => EffectKind::PublishSegments,
            Self::PublishEnd { .. } => EffectKind::PublishEnd,
        }
    }

    /// The session that it is about; `None` where it is about the lease.
    #[must_use]
    pub fn session(&self) -> Option<&Session> {
        match self {
            Self::OpenLease { .. } | Self::RenewLease { .. } | Self::ReleaseLease { .. } | Self::FindOrphans { .. } => {
                None
            }
            Self::Join { session, .. }
            | Self::Reserve { session, .. }
            | Self::Save { session, .. }
            | Self::Leave { session, .. }
            | Self::Count { session }
            | Self::Finish { session, .. }
            | Self::TakeOver { session, .. }
            | Self::PublishSegments { session, .. } => Some(session),
            Self::PublishEnd { ended, .. } => Some(&ended.session),
        }
    }
}

impl fmt::Display for Effect {
    /// Without a word of the call.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind())?;
        match self.session() {
            Some(session) => write!(f, " {}", session.key()),
            None => Ok(()),
        }
    }
}
