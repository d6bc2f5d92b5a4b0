//! The kinds of effects: their names, and who carries them out.

use std::fmt;

use serde::{Deserialize, Serialize};
use transcript_core::Server;

use crate::input::Report;

/// A kind of [`Effect`](crate::Effect): those of the lease, and then those of a session in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EffectKind {
    /// Insert the lease.
    OpenLease,
    /// Renew the lease.
    RenewLease,
    /// Let the lease expire.
    ReleaseLease,
    /// Look for entries of dead instances.
    FindOrphans,
    /// List the instance in a session.
    Join,
    /// Take indexes for a batch.
    Reserve,
    /// Store a batch.
    Save,
    /// Leave a session.
    Leave,
    /// Count what is stored.
    Count,
    /// Record that a session has ended.
    Finish,
    /// Take the entry of a dead instance.
    TakeOver,
    /// Publish segments.
    PublishSegments,
    /// Publish the end.
    PublishEnd,
}

impl EffectKind {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::OpenLease,
        Self::RenewLease,
        Self::ReleaseLease,
        Self::FindOrphans,
        Self::Join,
        Self::Reserve,
        Self::Save,
        Self::Leave,
        Self::Count,
        Self::Finish,
        Self::TakeOver,
        Self::PublishSegments,
        Self::PublishEnd,
    ];

    /// Its name in plain words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenLease => "open lease",
            Self::RenewLease => "renew lease",
            Self::ReleaseLease => "release lease",
            Self::FindOrphans => "find orphans",
            Self::Join => "join",
            Self::Reserve => "reserve",
            Self::Save => "save",
            Self::Leave => "leave",
            Self::Count => "count",
            Self::Finish => "finish",
            Self::TakeOver => "take over",
            Self::PublishSegments => "publish segments",
            Self::PublishEnd => "publish end",
        }
    }

    /// Who carries it out.
    #[must_use]
    pub fn server(self) -> Server {
        match self {
            Self::OpenLease
            | Self::RenewLease
            | Self::ReleaseLease
            | Self::FindOrphans
            | Self::Join
            | Self::Reserve
            | Self::Save
            | Self::Leave
            | Self::Count
            | Self::Finish
            | Self::TakeOver => Server::Mongodb,
            Self::PublishSegments | Self::PublishEnd => Server::Nats,
        }
    }

    /// Whether a report can be one of an effect of this kind.
    #[must_use]
    pub fn can_report(self, report: &Report) -> bool {
        match report {
            Report::LeaseHeld => matches!(self, Self::OpenLease | Self::RenewLease),
            Report::LeaseLost => self == Self::RenewLease,
            Report::LeaseReleased => self == Self::ReleaseLease,
            Report::Orphans(_) => self == Self::FindOrphans,
            Report::Joined(_) => self == Self::Join,
            Report::Reserved { .. } => self == Self::Reserve,
            Report::Saved(_) => self == Self::Save,
            Report::Left(_) => self == Self::Leave,
            Report::Counted { .. } => self == Self::Count,
            Report::Finished | Report::Reopened => self == Self::Finish,
            Report::TakenOver(_) => self == Self::TakeOver,
            Report::Gone => matches!(self, Self::Reserve | Self::Leave | Self::Finish | Self::TakeOver),
            Report::SegmentsPublished => self == Self::PublishSegments,
            Report::EndPublished { .. } => self == Self::PublishEnd,
            Report::Failed(_) => true,
        }
    }
}

impl fmt::Display for EffectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
