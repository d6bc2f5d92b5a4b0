//! Reads a story out of a trace.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use transcript_core::{
    Delivery, Input, Output, Report, Settings, Time, WallTime,
    event::SessionEnded,
    ids::{JobId, Session},
    summary::Segment,
};
use transcript_trace::{Entry, Header, Note, ProcessHeader, Said, cut::Wanted};

use super::{Came, EndTold, Process, Step, StepEvent, Story};
use crate::{crashes::Unfit, plan::EffectPattern};

/// A story while it is being read.
pub(super) struct Reading<'a> {
    wanted: Option<&'a Wanted>,
    found: Option<Session>,
    part: Option<StoryPart>,
    parts: u64,
    story: Loose,
}

#[derive(Default)]
struct Loose {
    settings: Option<(Settings, Option<Duration>)>,
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

impl<'a> Reading<'a> {
    pub(super) fn new(wanted: Option<&'a Wanted>) -> Self {
        Self { wanted, found: None, part: None, parts: 0, story: Loose::default() }
    }
}

impl Reading<'_> {
    /// Whether a part has begun.
    pub(super) fn has_begun(&self) -> bool {
        self.parts > 0
    }

    pub(super) fn header(&mut self, ProcessHeader { header, process: of_trace, .. }: ProcessHeader) {
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

    pub(super) fn entry(&mut self, entry: Entry) -> Result<(), Unfit> {
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
                self.story.settings.get_or_insert_with(|| (part.header.settings.clone(), part.header.pull_expires));
            }
        }
    }

    fn step(&mut self, entry: u64, at: i64, job: JobId, what: StepEvent) {
        let Some(part) = &self.part else { return };
        let only_of = part.perhaps.get(&job).copied();
        let (part, process) = (self.parts, part.process);
        self.story.steps.push(Step { part, entry, process, at, job, what, only_of });
    }

    pub(super) fn finish(self) -> Result<Story, Unfit> {
        let Loose { settings, mut steps, ends, segments, processes } = self.story;
        let (Some(session), Some((settings, pull_expires))) = (self.found, settings) else {
            return Err(Unfit::Nothing { session: self.wanted.map(|wanted| wanted.session_id.clone()) });
        };
        steps.retain(|step| step.only_of.is_none_or(|message| ends.contains_key(&message)));
        // Parts follow each other in the file, and go on beside each other in time.
        steps.sort_by_key(|step| step.at);
        if ends.is_empty() {
            return Err(Unfit::NoEnd { session: Box::new(session) });
        }
        Ok(Story { session, settings, pull_expires, steps, ends, segments, processes })
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
