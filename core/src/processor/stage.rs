//! From the first delivery to the last moment: how a processor stops.

use std::time::Duration;

use super::{Bytes, Processor};
use crate::{
    ids::JobId,
    job::Event,
    output::{Output, Timer, WakeUp},
    time::Time,
};

/// How long jobs that the grace time has left may take to be given back; no longer than the grace time itself.
const LAST_MOMENT: Duration = Duration::from_secs(1);
/// How long the end of the deliveries is waited for. A shell needs no longer than its last pull request is open, and less
/// than that where the server is away; after this time, what it was asked is taken for lost.
pub const DELIVERIES_STOP_WITHIN: Duration = Duration::from_secs(5);

/// Where a processor stands between its start and its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// It takes deliveries.
    Running,
    /// It takes none until it is told to go on, and finishes what is in hand.
    Quiet,
    /// It wants no more of them, and waits until they have ended.
    Stopping {
        /// When it waits no longer.
        until: Time,
    },
    /// It gives back what has not begun to save, and lets the others finish.
    Draining {
        /// When the grace time ends.
        until: Time,
    },
    /// It has given back everything else.
    LastMoment {
        /// When it waits for confirmations no longer.
        until: Time,
    },
}

impl Stage {
    /// What it waits for at last.
    pub(super) fn deadline(self) -> Option<WakeUp> {
        match self {
            Self::Running | Self::Quiet => None,
            Self::Stopping { until } => Some(WakeUp { at: until, timer: Timer::StopDeliveries }),
            Self::Draining { until } | Self::LastMoment { until } => Some(WakeUp { at: until, timer: Timer::Grace }),
        }
    }

    /// Whether no job is begun any more.
    pub(super) fn drains(self) -> bool {
        match self {
            Self::Running | Self::Quiet | Self::Stopping { .. } => false,
            Self::Draining { .. } | Self::LastMoment { .. } => true,
        }
    }
}

impl Processor {
    pub(super) fn quiet(&mut self) {
        if self.stage == Stage::Running {
            self.stage = Stage::Quiet;
        }
    }

    pub(super) fn resume(&mut self) {
        if self.stage == Stage::Quiet {
            self.stage = Stage::Running;
        }
    }

    /// Before anything is given back: an open pull request would get it again, at once and again.
    pub(super) fn stop_deliveries(&mut self) {
        if let Stage::Running | Stage::Quiet = self.stage {
            self.stage = Stage::Stopping { until: self.now.after(DELIVERIES_STOP_WITHIN) };
            self.outputs.push_back(Output::StopDeliveries);
        }
    }

    pub(super) fn drain(&mut self) {
        let (Stage::Running | Stage::Quiet | Stage::Stopping { .. }) = self.stage else { return };
        self.stage = Stage::Draining { until: self.now.after(self.settings.grace) };
        let jobs: Vec<JobId> = self.jobs.keys().copied().collect();
        for id in jobs {
            self.advance(id, Event::Drain);
        }
    }

    /// Gives back what did not come to its end within the grace time, for which there is a moment more.
    pub(super) fn end_grace(&mut self) {
        self.stage = Stage::LastMoment { until: self.now.after(self.settings.grace.min(LAST_MOMENT)) };
        let jobs: Vec<JobId> = self.jobs.keys().copied().collect();
        for id in jobs {
            self.advance(id, Event::GraceOver);
        }
    }

    /// Leaves everything to redelivery.
    pub(super) fn abandon(&mut self) {
        self.counters.abandoned += u64::try_from(self.jobs.len()).unwrap_or(u64::MAX);
        self.keep_abandoned();
        self.jobs.clear();
        self.bytes = Bytes::default();
        (self.acknowledging, self.queued, self.without_delivery, self.exhausted) = (0, 0, 0, 0);
        self.messages.clear();
        self.key_queues.clear();
        self.due.clear();
    }
}
