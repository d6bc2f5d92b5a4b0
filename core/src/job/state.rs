//! The names of where a job stands, what can happen to it, and what it does next.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{input::Report, output::Timer, time::Time};

/// Where a job stands, in the order of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// Its last effect was confirmed or given up; the job is no more.
    Over,
    /// An earlier job has the same key.
    Queued,
    /// Waits for a quiet period to end.
    Quiet,
    /// Has asked for a count.
    Counting,
    /// Has asked for a page.
    Loading,
    /// Has asked for the summary to be stored.
    Saving,
    /// Has asked what is stored of the summary.
    Checking,
    /// Has asked for the notification to be published.
    Publishing,
    /// Has asked for the summary to be marked.
    Marking,
    /// Has asked for its message to be kept as a dead letter.
    DeadLettering,
    /// Has asked for its message to be published again.
    Republishing,
    /// Has asked for its acknowledgement.
    Acknowledging,
}

/// What can happen to a job.
#[derive(Debug)]
pub(crate) enum Event {
    /// No earlier job has the same key.
    FirstOfKey,
    QuietOver,
    Reported(Report),
    /// Its message came again.
    Redelivered {
        reply: Arc<str>,
        attempt: u64,
    },
    /// Its message used up its deliveries.
    Exhausted,
    /// An earlier job of the key is done with its call.
    Covered(Outcome),
    /// The pause after a failure is over.
    PauseOver,
    Drain,
    /// The time that a draining processor gives its last jobs is over.
    GraceOver,
}

/// What became of a call whose summary is stored and announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// How many segments the stored summary counts.
    pub(crate) segments: u64,
    /// Whether it is complete.
    pub(crate) complete: bool,
    /// When the segments were loaded; `None` where this job loaded none.
    pub(crate) loaded_at: Option<Time>,
}

/// What a job does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Asks for the effect of its phase.
    Ask,
    /// Waits for a timer.
    Wait(Timer, Time),
    /// Goes on as before.
    Stay,
    /// Is over.
    End,
}

impl Event {
    /// The event's name in the table.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::FirstOfKey => "first of its key",
            Self::QuietOver => "quiet over",
            Self::Reported(Report::Counted { .. }) => "counted",
            Self::Reported(Report::Loaded(_)) => "loaded",
            Self::Reported(Report::Saved(_)) => "saved",
            Self::Reported(Report::Checked(_)) => "checked",
            Self::Reported(Report::Published { .. }) => "published",
            Self::Reported(Report::Marked) => "marked",
            Self::Reported(Report::DeadLettered { .. }) => "dead-lettered",
            Self::Reported(Report::Republished { .. }) => "republished",
            Self::Reported(Report::Acknowledged) => "acknowledged",
            Self::Reported(Report::Failed(_)) => "failed",
            Self::Redelivered { .. } => "redelivered",
            Self::Exhausted => "exhausted",
            Self::Covered(_) => "covered",
            Self::PauseOver => "pause over",
            Self::Drain => "drain",
            Self::GraceOver => "grace over",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Over => "over",
            Self::Queued => "queued",
            Self::Quiet => "quiet",
            Self::Counting => "counting",
            Self::Loading => "loading",
            Self::Saving => "saving",
            Self::Checking => "checking",
            Self::Publishing => "publishing",
            Self::Marking => "marking",
            Self::DeadLettering => "dead-lettering",
            Self::Republishing => "republishing",
            Self::Acknowledging => "acknowledging",
        })
    }
}
