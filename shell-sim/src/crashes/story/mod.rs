//! What a trace tells of one session.

mod reading;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use transcript_core::{
    EffectKind, FailureKind, Settings,
    ids::{JobId, Session},
    summary::Segment,
};
use transcript_trace::{Line, ProcessLine, Processes, ReadError, cut::Wanted};

use self::reading::Reading;
use super::Unfit;
use crate::plan::{EffectPattern, Server};

/// Everything that happened to one session, in the order of time.
#[derive(Debug)]
pub(super) struct Story {
    pub(super) session: Session,
    /// Those of the first process that had it.
    pub(super) settings: Settings,
    /// For how long the broker kept a pull request of that process, where the trace says it.
    pub(super) pull_expires: Option<Duration>,
    pub(super) steps: Vec<Step>,
    /// Its ends, by their places in the stream.
    pub(super) ends: BTreeMap<u64, EndTold>,
    /// What was loaded of it, by id.
    pub(super) segments: BTreeMap<String, Segment>,
    /// The processes that had it.
    pub(super) processes: Vec<Process>,
}

/// An end of a call as it was handed over.
#[derive(Debug, Clone)]
pub(super) struct EndTold {
    pub(super) published_segments: u64,
    /// Which request to process the call again it is; 0 for none.
    pub(super) reprocess: u64,
    /// In microseconds since the Unix epoch, as all moments of a story.
    pub(super) stored_at: i64,
    pub(super) first_delivered_at: i64,
    pub(super) redrive_of: Option<u64>,
}

/// One process, from its start to what the trace has last of it.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) processor: Option<Arc<str>>,
    pub(super) started_at: i64,
    pub(super) last_at: i64,
    pub(super) killed: bool,
    pub(super) drained: bool,
    /// Whether the account of the session ends before that of the process.
    left_out: bool,
}

/// One thing that happened.
#[derive(Debug, Clone)]
pub(super) struct Step {
    /// The part of the trace, from 1.
    pub(super) part: u64,
    /// The entry of the part.
    pub(super) entry: u64,
    pub(super) process: usize,
    pub(super) at: i64,
    pub(super) job: JobId,
    pub(super) what: StepEvent,
    /// It counts only if this message turns out to be the session's.
    only_of: Option<u64>,
}

#[derive(Debug, Clone)]
pub(super) enum StepEvent {
    Delivered {
        message: u64,
    },
    Exhausted,
    StaleSummary,
    Asked {
        number: u32,
        kind: EffectPattern,
        word: &'static str,
    },
    Heartbeat,
    Reported {
        number: u32,
        kind: EffectPattern,
        came: Came,
    },
    /// The job's process is told to drain.
    Drained,
}

/// What came of an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Came {
    Counted(u64),
    Loaded(u64),
    Done,
    Failed(FailureKind),
}

impl Story {
    /// Reads it.
    ///
    /// # Errors
    ///
    /// Reading, and where the trace does not say which session is meant, or has nothing of it.
    pub(super) fn read(
        lines: impl Iterator<Item = Result<Line, ReadError>>,
        wanted: Option<&Wanted>,
    ) -> Result<Self, Unfit> {
        let mut reading = Reading::new(wanted);
        for line in Processes::of(lines) {
            match line {
                Ok(ProcessLine::Header(begun)) => reading.header(begun),
                Ok(ProcessLine::Entry(entry)) => reading.entry(*entry)?,
                // What became of a call is told by processors.
                Ok(ProcessLine::TranscriberHeader(_) | ProcessLine::TranscriberEntry(_)) => {}
                // As a killed process leaves it.
                Err(ReadError::CutOff { .. }) if reading.has_begun() => {}
                Err(error) => return Err(error.into()),
            }
        }
        reading.finish()
    }

    /// The step that asked for an effect, by the place of its report.
    pub(super) fn asked(&self, reported: usize) -> Option<&Step> {
        self.steps.get(self.asked_place(reported)?)
    }

    pub(super) fn asked_place(&self, reported: usize) -> Option<usize> {
        let report = self.steps.get(reported)?;
        let StepEvent::Reported { number: awaited, .. } = report.what else { return None };
        let asks = |step: &Step| matches!(step.what, StepEvent::Asked { number, .. } if number == awaited);
        self.steps.get(..reported)?.iter().rposition(|step| step.is_of_the_job_of(report) && asks(step))
    }

    /// The step before one, of the same job; heartbeats are none.
    pub(super) fn before(&self, place: usize) -> Option<usize> {
        let step = self.steps.get(place)?;
        let is_before = |before: &Step| before.is_of_the_job_of(step) && !matches!(before.what, StepEvent::Heartbeat);
        self.steps.get(..place)?.iter().rposition(is_before)
    }

    /// How long an answer takes that is given at once, in microseconds: the median of those that tell it.
    pub(super) fn round_trip(&self) -> Option<i64> {
        let mut all: Vec<i64> = vec![];
        for (place, step) in self.steps.iter().enumerate() {
            // A save is more than one command.
            let tells = matches!(
                step.what,
                StepEvent::Reported {
                    kind: EffectPattern::Of(
                        EffectKind::Count | EffectKind::Load | EffectKind::Publish | EffectKind::Mark
                    ),
                    came,
                    ..
                } if !matches!(came, Came::Failed(_))
            );
            all.extend(self.asked(place).filter(|_| tells).map(|asked| step.at.saturating_sub(asked.at)));
        }
        all.sort_unstable();
        all.get(all.len() / 2).copied()
    }

    /// The jobs, in the order of their beginnings.
    pub(super) fn jobs(&self) -> Vec<(usize, JobId)> {
        let (mut jobs, mut known) = (vec![], BTreeSet::new());
        for step in &self.steps {
            let job = (step.process, step.job);
            if known.insert(job) {
                jobs.push(job);
            }
        }
        jobs
    }

    /// What succeeded in a job, in its order, each by its place.
    pub(super) fn successes(&self, (process, job): (usize, JobId)) -> Vec<(usize, EffectPattern, Came)> {
        let steps = self.steps.iter().enumerate().filter(|(_, step)| (step.process, step.job) == (process, job));
        let successes = steps.filter_map(|(place, step)| match step.what {
            StepEvent::Reported { kind, came: came @ (Came::Counted(_) | Came::Loaded(_) | Came::Done), .. } => {
                Some((place, kind, came))
            }
            StepEvent::Reported { came: Came::Failed(_), .. }
            | StepEvent::Delivered { .. }
            | StepEvent::Exhausted
            | StepEvent::StaleSummary
            | StepEvent::Asked { .. }
            | StepEvent::Heartbeat
            | StepEvent::Drained => None,
        });
        successes.collect()
    }

    /// One in which nothing happens.
    pub(super) fn without_steps(&self) -> Self {
        let (session, settings, pull_expires) = (self.session.clone(), self.settings.clone(), self.pull_expires);
        let (ends, segments) = (BTreeMap::new(), BTreeMap::new());
        Self { session, settings, pull_expires, steps: vec![], ends, segments, processes: vec![] }
    }

    /// The process that took the n-th delivery, from 0.
    pub(super) fn holder_of_delivery(&self, nth: usize) -> Option<usize> {
        let mut delivered = self.steps.iter().filter(|step| matches!(step.what, StepEvent::Delivered { .. }));
        delivered.nth(nth).map(|step| step.process)
    }

    /// Whether somebody else got a message of a process after it had it.
    fn was_taken_over(&self, process: usize) -> bool {
        let had = |step: &&Step| step.process == process && matches!(step.what, StepEvent::Delivered { .. });
        let Some(last) = self.steps.iter().rfind(had) else { return false };
        let StepEvent::Delivered { message: of, .. } = last.what else { return false };
        self.steps.iter().any(|step| {
            step.at > last.at
                && step.process != process
                && matches!(step.what, StepEvent::Delivered { message, .. } if message == of)
        })
    }

    /// Whether a process came to a sudden end with the session in its hands.
    pub(super) fn was_killed(&self, process: usize) -> bool {
        let Some(Process { killed, drained, left_out, .. }) = self.processes.get(process) else { return false };
        let last = self.steps.iter().rfind(|step| step.process == process && !matches!(step.what, StepEvent::Drained));
        let Some(last) = last else { return false };
        !last.is_the_last_word() && !drained && !left_out && (*killed || self.was_taken_over(process))
    }
}

impl Step {
    /// Whether a delivery was settled with it.
    pub(super) fn is_the_last_word(&self) -> bool {
        matches!(
            self.what,
            StepEvent::Reported { kind: EffectPattern::Of(EffectKind::Acknowledge), came: Came::Done, .. }
        )
    }

    fn is_of_the_job_of(&self, other: &Self) -> bool {
        (self.process, self.job) == (other.process, other.job)
    }
}

/// Who carries an effect out.
pub(super) fn server(kind: EffectPattern) -> Server {
    match kind {
        EffectPattern::Of(kind) => match kind.server() {
            transcript_core::Server::Mongodb => Server::Store,
            transcript_core::Server::Nats => Server::Broker,
        },
        EffectPattern::Any | EffectPattern::Heartbeat => Server::Broker,
    }
}
