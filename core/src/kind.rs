//! The kinds of effects: their names, and who carries them out.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::input::Report;

/// A kind of [`Effect`](crate::Effect), in the order of a job. What is told apart by kind, in logs, traces, drawings,
/// failures and tests, is told apart by this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EffectKind {
    /// Count segments.
    Count,
    /// Load a page of segments.
    Load,
    /// Store a summary.
    Save,
    /// Read the mark of a stored summary.
    Check,
    /// Publish a notification.
    Publish,
    /// Mark a summary as announced.
    Mark,
    /// Store a dead letter.
    DeadLetter,
    /// Publish an end again.
    Republish,
    /// Acknowledge a delivery.
    Acknowledge,
}

/// Who carries out an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Server {
    /// The stream's.
    Nats,
    /// The store's.
    Mongodb,
}

impl EffectKind {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Count,
        Self::Load,
        Self::Save,
        Self::Check,
        Self::Publish,
        Self::Mark,
        Self::DeadLetter,
        Self::Republish,
        Self::Acknowledge,
    ];

    /// Its name: one word, or two.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Load => "load",
            Self::Save => "save",
            Self::Check => "check",
            Self::Publish => "publish",
            Self::Mark => "mark",
            Self::DeadLetter => "dead letter",
            Self::Republish => "republish",
            Self::Acknowledge => "acknowledge",
        }
    }

    /// Who carries it out.
    #[must_use]
    pub fn server(self) -> Server {
        match self {
            Self::Count | Self::Load | Self::Save | Self::Check | Self::Mark => Server::Mongodb,
            Self::Publish | Self::DeadLetter | Self::Republish | Self::Acknowledge => Server::Nats,
        }
    }
}

impl Report {
    /// The kind of effect that it is the success of; `None` for a failure.
    #[must_use]
    pub fn kind(&self) -> Option<EffectKind> {
        match self {
            Self::Counted { .. } => Some(EffectKind::Count),
            Self::Loaded(_) => Some(EffectKind::Load),
            Self::Saved(_) => Some(EffectKind::Save),
            Self::Checked(_) => Some(EffectKind::Check),
            Self::Published { .. } => Some(EffectKind::Publish),
            Self::Marked => Some(EffectKind::Mark),
            Self::DeadLettered { .. } => Some(EffectKind::DeadLetter),
            Self::Republished { .. } => Some(EffectKind::Republish),
            Self::Acknowledged => Some(EffectKind::Acknowledge),
            Self::Failed(_) => None,
        }
    }
}

impl fmt::Display for EffectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nats => "NATS",
            Self::Mongodb => "MongoDB",
        })
    }
}
