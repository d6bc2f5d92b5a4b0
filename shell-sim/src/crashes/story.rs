//! What a trace tells of one session.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use transcript_core::{
    Delivery, EffectKind, FailureKind, Input, Output, Report, Settings, Time, WallTime,
    event::SessionEnded,
    ids::{JobId, Session},
    summary::Segment,
};
use transcript_trace::{
    Entry, Header, Line, Note, ProcessHeader, ProcessLine, Processes, ReadError, Said, cut::Wanted,
};

use super::Unfit;
use crate::plan::{EffectPattern, Server};

/// Everything that happened to one session, in the order of time.
#[derive(Debug)]
pub(super) struct Story {
    pub(super) session: Session,
    /// Those of the first process that had it.
    pub(super) settings: Settings,
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
        let mut reading = Reading { wanted, found: None, part: None, parts: 0, story: Loose::default() };
        for line in Processes::of(lines) {
            match line {
                Ok(ProcessLine::Header(begun)) => reading.header(begun),
                Ok(ProcessLine::Entry(entry)) => reading.entry(*entry)?,
                // What became of a call is told by processors.
                Ok(ProcessLine::TranscriberHeader(_) | ProcessLine::TranscriberEntry(_)) => {}
                // As a killed process leaves it.
                Err(ReadError::CutOff { .. }) if reading.parts > 0 => {}
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
        let (session, settings) = (self.session.clone(), self.settings.clone());
        let (ends, segments) = (BTreeMap::new(), BTreeMap::new());
        Self { session, settings, steps: vec![], ends, segments, processes: vec![] }
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

/// A story while it is being read.
struct Reading<'a> {
    wanted: Option<&'a Wanted>,
    found: Option<Session>,
    part: Option<StoryPart>,
    parts: u64,
    story: Loose,
}

#[derive(Default)]
struct Loose {
    settings: Option<Settings>,
    steps: Vec<Step>,
    ends: BTreeMap<u64, EndTold>,
    segments: BTreeMap<String, Segment>,
    processes: Vec<Process>,
}

/// The part that is being read.
struct StoryPart {
    header: Header,
    /// The process as the trace counts them.
    of_trace: usize,
    process: usize,
    at: Time,
    /// The session's jobs, with what they asked for.
    jobs: BTreeMap<JobId, BTreeMap<u32, EffectPattern>>,
    /// Jobs about messages that may be the session's.
    perhaps: BTreeMap<JobId, u64>,
    replies: BTreeMap<Arc<str>, JobId>,
}

impl Reading<'_> {
    fn header(&mut self, ProcessHeader { header, process: of_trace, .. }: ProcessHeader) {
        self.parts += 1;
        // Where a file is missing it is the same process all the same.
        if self.part.as_ref().is_some_and(|part| part.of_trace == of_trace) {
            return;
        }
        let started_at = micros(header.started_at);
        let process = self.story.processes.len();
        self.story.processes.push(Process {
            processor: header.processor.clone(),
            started_at,
            last_at: started_at,
            killed: false,
            drained: false,
            left_out: false,
        });
        let (jobs, perhaps, replies) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        self.part = Some(StoryPart { header: *header, of_trace, process, at: Time::ZERO, jobs, perhaps, replies });
    }

    fn entry(&mut self, entry: Entry) -> Result<(), Unfit> {
        let Some(part) = &mut self.part else { return Ok(()) };
        part.at = entry.at.unwrap_or(part.at);
        let at = part.wall();
        if let Some(process) = self.story.processes.get_mut(part.process).filter(|it| it.processor.is_some()) {
            process.last_at = process.last_at.max(at);
        }
        match entry.said {
            Said::In(input) => self.told(entry.n, at, entry.job, input),
            Said::Out(output) => {
                self.said(entry.n, at, &output);
                Ok(())
            }
            Said::LeftOut(left_out) => {
                let concerns = left_out.jobs.iter().any(|job| part.jobs.contains_key(job));
                left_out.jobs.iter().for_each(|job| drop(part.jobs.remove(job)));
                if let Some(process) = self.story.processes.get_mut(part.process).filter(|_| concerns) {
                    process.left_out = true;
                }
                Ok(())
            }
            Said::Note(Note::Killed) => {
                if let Some(process) = self.story.processes.get_mut(part.process) {
                    process.killed = true;
                }
                Ok(())
            }
            Said::Note(Note::Stored { .. } | Note::Frozen { .. } | Note::Away { .. } | Note::Remark(_)) => Ok(()),
        }
    }

    fn told(&mut self, entry: u64, at: i64, job: Option<JobId>, input: Input) -> Result<(), Unfit> {
        match (input, job) {
            (Input::Delivered(delivery), Some(job)) => self.delivered(entry, at, job, delivery)?,
            (Input::Stale(stale), Some(job)) if self.is_it(&stale.session)? => {
                self.begin(job);
                self.step(entry, at, job, StepEvent::StaleSummary);
            }
            (Input::Exhausted(exhausted), Some(job)) => {
                if let Some(part) = &mut self.part {
                    part.perhaps.insert(job, exhausted.stream_sequence);
                }
                self.begin(job);
                self.step(entry, at, job, StepEvent::Exhausted);
            }
            (Input::Reported { effect, report }, Some(job)) => {
                let asked = self.part.as_ref().and_then(|part| part.jobs.get(&job)?.get(&effect.number)).copied();
                if let Some(kind) = asked {
                    let came = self.came(report);
                    self.step(entry, at, job, StepEvent::Reported { number: effect.number, kind, came });
                }
            }
            (Input::Drain, _) => {
                let jobs: Vec<JobId> = self.part.iter().flat_map(|part| part.jobs.keys().copied()).collect();
                if let Some(process) = self.part.as_ref().and_then(|part| self.story.processes.get_mut(part.process)) {
                    process.drained = true;
                }
                // Nothing of the call was under way any more: it has not seen this.
                let process = self.part.as_ref().map(|part| part.process);
                let before = self.story.steps.iter().rfind(|step| Some(step.process) == process);
                let over = before.is_some_and(Step::is_the_last_word);
                if let (Some(last), false) = (jobs.last(), over) {
                    self.step(entry, at, *last, StepEvent::Drained);
                }
            }
            (
                Input::Delivered(_)
                | Input::Stale(_)
                | Input::Exhausted(_)
                | Input::Reported { .. }
                | Input::Consumer(_)
                | Input::Woken
                | Input::Quiet
                | Input::Resume
                | Input::DeliveriesStopped,
                _,
            ) => {}
        }
        Ok(())
    }

    fn delivered(&mut self, entry: u64, at: i64, job: JobId, delivery: Delivery) -> Result<(), Unfit> {
        let Ok(ended) = SessionEnded::parse(&delivery.payload.0) else { return Ok(()) };
        if !self.is_it(&ended.session)? {
            return Ok(());
        }
        self.begin(job);
        let Delivery { stream_sequence, stored_at, redrive_of, reply, .. } = delivery;
        if let Some(part) = &mut self.part {
            part.replies.insert(reply, job);
        }
        let told = EndTold {
            published_segments: ended.published_segments,
            reprocess: ended.reprocess,
            stored_at: micros(stored_at),
            first_delivered_at: at,
            redrive_of,
        };
        let end = self.story.ends.entry(stream_sequence).or_insert(told);
        end.first_delivered_at = end.first_delivered_at.min(at);
        self.step(entry, at, job, StepEvent::Delivered { message: stream_sequence });
        Ok(())
    }

    fn said(&mut self, entry: u64, at: i64, output: &Output) {
        match output {
            Output::Perform { id, effect } => {
                let kind = EffectPattern::Of(effect.kind());
                let asked = self.part.as_mut().and_then(|part| part.jobs.get_mut(&id.job));
                if let Some(asked) = asked {
                    asked.insert(id.number, kind);
                    self.step(entry, at, id.job, StepEvent::Asked { number: id.number, kind, word: effect.word() });
                }
            }
            Output::InProgress { reply } => {
                let job = self.part.as_ref().and_then(|part| part.replies.get(reply)).copied();
                if let Some(job) = job {
                    self.step(entry, at, job, StepEvent::Heartbeat);
                }
            }
            Output::StopDeliveries | Output::Notice(_) | Output::Wait(_) | Output::Drained => {}
        }
    }

    fn came(&mut self, report: Report) -> Came {
        if let Report::Counted { segments } = report {
            Came::Counted(segments)
        } else if let Report::Loaded(page) = report {
            let segments = page.segments.len() as u64;
            self.story.segments.extend(page.segments.into_iter().map(|segment| (segment.id.clone(), segment)));
            Came::Loaded(segments)
        } else if let Report::Failed(failure) = report {
            Came::Failed(failure.kind)
        } else {
            Came::Done
        }
    }

    /// Whether it is the session that is wanted; where none was named, the trace may have only one.
    fn is_it(&mut self, session: &Session) -> Result<bool, Unfit> {
        let wanted = self.wanted.is_none_or(|wanted| {
            *session.session_id == *wanted.session_id
                && wanted.conversation_id.as_ref().is_none_or(|conversation| *session.conversation_id == **conversation)
        });
        if !wanted {
            return Ok(false);
        }
        match &self.found {
            Some(found) if found != session => {
                Err(Unfit::Several { one: Box::new(found.clone()), other: Box::new(session.clone()) })
            }
            Some(_) => Ok(true),
            None => {
                self.found = Some(session.clone());
                Ok(true)
            }
        }
    }

    fn begin(&mut self, job: JobId) {
        if let Some(part) = &mut self.part {
            part.jobs.entry(job).or_default();
            if !part.perhaps.contains_key(&job) {
                self.story.settings.get_or_insert_with(|| part.header.settings.clone());
            }
        }
    }

    fn step(&mut self, entry: u64, at: i64, job: JobId, what: StepEvent) {
        let Some(part) = &self.part else { return };
        let only_of = part.perhaps.get(&job).copied();
        let (part, process) = (self.parts, part.process);
        self.story.steps.push(Step { part, entry, process, at, job, what, only_of });
    }

    fn finish(self) -> Result<Story, Unfit> {
        let Loose { settings, mut steps, ends, segments, processes } = self.story;
        let (Some(session), Some(settings)) = (self.found, settings) else {
            return Err(Unfit::Nothing { session: self.wanted.map(|wanted| wanted.session_id.clone()) });
        };
        steps.retain(|step| step.only_of.is_none_or(|message| ends.contains_key(&message)));
        // Parts follow each other in the file, and go on beside each other in time.
        steps.sort_by_key(|step| step.at);
        if ends.is_empty() {
            return Err(Unfit::NoEnd { session: Box::new(session) });
        }
        Ok(Story { session, settings, steps, ends, segments, processes })
    }
}

impl StoryPart {
    /// The time of the entry by the processor's calendar.
    fn wall(&self) -> i64 {
        micros(self.header.started_at).saturating_add(i64::try_from(self.at.as_micros()).unwrap_or(i64::MAX))
    }
}

fn micros(at: WallTime) -> i64 {
    at.as_millis().saturating_mul(1_000)
}
