//! Follows the jobs of a trace from entry to entry, and counts what each of them did.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    time::Duration,
};

use transcript_core::{
    Acknowledgement, Effect, FailureKind, Input, Output, Report, Time,
    event::SessionEnded,
    ids::{EffectId, JobId, Session},
};

use super::{End, Measure, Stats};
use crate::{
    format::{Entry, Said},
    processes::Begin,
    transcriber::CountingTranscribers,
};

/// How many jobs may be under way: more than a core has. Beyond it the oldest are given up, whose end a trace did not tell.
const MOST_JOBS: usize = 1 << 17;

/// A trace that is being counted.
#[derive(Debug, Default)]
pub(super) struct Counting {
    stats: Stats,
    pub(super) transcribers: CountingTranscribers,
    /// The process that is being read. What another one had under way is over: nobody can tell when it went on.
    process: usize,
    now: Time,
    jobs: BTreeMap<JobId, Job>,
    /// The jobs of each call that are at work, in their order.
    queues: BTreeMap<Session, VecDeque<JobId>>,
    messages: BTreeMap<u64, JobId>,
    /// A job that is over unless it asks for something now.
    maybe_over: Option<(JobId, End)>,
}

#[derive(Debug)]
struct Job {
    session: Option<Session>,
    /// `None` for a job without a delivery.
    stream_sequence: Option<u64>,
    attempt: u64,
    began: Time,
    phase: Measure,
    since: Time,
    rounds: u64,
    first_count: Option<u64>,
    last_count: u64,
    counted: Time,
    segments: Option<u64>,
    failures: u64,
    /// How it ends once its acknowledgement is confirmed.
    ends: End,
}

impl Counting {
    pub(super) fn header(&mut self, process: usize, begin: Begin) {
        self.over();
        if begin != Begin::GoesOn || self.process != process {
            self.end_all(End::UnderWay);
            self.now = Time::ZERO;
        }
        self.stats.parts += 1;
        self.process = process;
    }

    pub(super) fn entry(&mut self, entry: Entry) {
        self.stats.entries += 1;
        if let Some(at) = entry.at {
            // The outputs before it are there.
            self.over();
            self.now = at;
        }
        match entry.said {
            Said::In(input) => {
                if let Some(job) = entry.job {
                    self.told(job, input);
                }
            }
            Said::Out(Output::Perform { id, effect }) => self.asks(id, &effect),
            Said::Out(Output::Drained) => {
                self.over();
                self.end_all(End::Abandoned);
            }
            Said::Out(Output::InProgress { .. } | Output::StopDeliveries | Output::Notice(_) | Output::Wait(_))
            | Said::Note(_) => {}
            Said::LeftOut(left_out) => {
                self.stats.left_out += left_out.inputs;
                left_out.jobs.into_iter().for_each(|job| self.end(job, End::LeftOut));
            }
        }
    }

    /// The trace is over: what it counted.
    pub(super) fn finish(mut self) -> Stats {
        self.over();
        self.end_all(End::UnderWay);
        Stats { transcribers: self.transcribers.stats, ..self.stats }
    }

    fn told(&mut self, id: JobId, input: Input) {
        match input {
            Input::Delivered(delivery) => {
                if let Some(job) = self.jobs.get_mut(&id) {
                    job.attempt = job.attempt.max(delivery.attempt);
                    return;
                }
                if let Some(before) = self.messages.get(&delivery.stream_sequence).copied() {
                    // It waited for nothing but the confirmation of its acknowledgement, or a new job would not have begun.
                    let given_back = self.jobs.get(&before).is_some_and(|job| job.ends == End::GivenBack);
                    self.end(before, if given_back { End::GivenBack } else { End::GivenUp });
                }
                let session = SessionEnded::parse(&delivery.payload.0).ok().map(|ended| ended.session);
                self.begin(id, session, Some(delivery.stream_sequence), delivery.attempt);
            }
            Input::Exhausted(exhausted) => self.begin(id, None, None, exhausted.attempts),
            Input::Stale(stale) => self.begin(id, Some(stale.session), None, 0),
            Input::Reported { report, .. } => self.reported(id, &report),
            Input::Consumer(_)
            | Input::Woken
            | Input::Quiet
            | Input::Resume
            | Input::Drain
            | Input::DeliveriesStopped => {}
        }
    }

    fn begin(&mut self, id: JobId, session: Option<Session>, stream_sequence: Option<u64>, attempt: u64) {
        while self.jobs.len() >= MOST_JOBS
            && let Some((oldest, _)) = self.jobs.first_key_value()
        {
            self.end(*oldest, End::LeftOut);
        }
        self.stats.jobs += 1;
        let job = Job {
            session: session.clone(),
            stream_sequence,
            attempt,
            began: self.now,
            phase: Measure::Waiting,
            since: self.now,
            rounds: 0,
            first_count: None,
            last_count: 0,
            counted: self.now,
            segments: None,
            failures: 0,
            ends: End::Acknowledged,
        };
        self.jobs.insert(id, job);
        self.messages.extend(stream_sequence.map(|sequence| (sequence, id)));
        match session {
            Some(session) => {
                let queues = self.queues.entry(session.clone()).or_default();
                queues.push_back(id);
                self.start_first(&session);
            }
            // It has no queue to wait in, and says at once what it wants.
            None => self.enter(id, Measure::Settling, self.now),
        }
    }

    /// The first job of a session goes on.
    fn start_first(&mut self, session: &Session) {
        let first = self.queues.get(session).and_then(|queues| queues.front()).copied();
        if let Some(first) = first.filter(|id| self.jobs.get(id).is_some_and(|job| job.phase == Measure::Waiting)) {
            self.enter(first, Measure::Settling, self.now);
        }
    }

    fn reported(&mut self, id: JobId, report: &Report) {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        self.maybe_over = match report {
            Report::Counted { segments } => {
                job.rounds += 1;
                job.first_count.get_or_insert(*segments);
                (job.last_count, job.counted) = (*segments, now);
                None
            }
            Report::Loaded(_) | Report::Checked(_) => None,
            Report::Saved(stored) => {
                job.segments = Some(stored.segments);
                Some((id, End::Replaced))
            }
            Report::Marked => Some((id, End::Replaced)),
            Report::DeadLettered { .. } => {
                job.ends = End::DeadLetter;
                Some((id, End::DeadLetter))
            }
            Report::Republished { .. } => {
                job.ends = End::Republished;
                None
            }
            Report::Acknowledged => Some((id, job.ends)),
            Report::Failed(failure) => {
                job.failures += 1;
                // What is refused is not tried again.
                (failure.kind == FailureKind::Rejected).then_some((id, End::GivenUp))
            }
            Report::Published { .. } => None,
        };
    }

    fn asks(&mut self, id: EffectId, effect: &Effect) {
        self.maybe_over.take_if(|(job, _)| *job == id.job);
        let Some(job) = self.jobs.get_mut(&id.job) else { return };
        let phase = Measure::phase(effect.kind());
        // It may have waited for room since the last count.
        let waited = phase == Measure::Loading && job.phase == Measure::Settling;
        let since = if waited { job.counted } else { self.now };
        if let Effect::Acknowledge { acknowledgement, .. } = effect {
            job.ends = match acknowledgement {
                Acknowledgement::Ack if job.ends == End::Republished => End::Republished,
                Acknowledgement::Ack => End::Acknowledged,
                Acknowledgement::Nak { .. } => End::GivenBack,
                Acknowledgement::Term { .. } if job.ends == End::DeadLetter => End::DeadLetter,
                Acknowledgement::Term { .. } => End::Refused,
            };
        }
        self.enter(id.job, phase, since);
        if phase == Measure::Acknowledging {
            self.leave_queue(id.job);
        }
    }

    /// The job has been in another phase since then.
    fn enter(&mut self, id: JobId, phase: Measure, since: Time) {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.phase != phase) else { return };
        let before = mem::replace(&mut job.phase, phase);
        let took = since.since(mem::replace(&mut job.since, since));
        let settled = (phase == Measure::Loading).then_some((job.rounds, job.first_count, job.last_count));
        let never_counted = before == Measure::Settling && job.rounds == 0;
        if job.session.is_some() && !never_counted {
            self.stats.record(before, micros(took));
        }
        if let Some((rounds, Some(first), last)) = settled {
            self.stats.record(Measure::SettleRounds, rounds);
            self.stats.record(Measure::LateSegments, last.saturating_sub(first));
        }
    }

    /// The job that has asked for nothing more is over.
    fn over(&mut self) {
        if let Some((job, end)) = self.maybe_over.take() {
            self.end(job, end);
        }
    }

    fn end(&mut self, id: JobId, end: End) {
        self.leave_queue(id);
        let Some(job) = self.jobs.remove(&id) else { return };
        if let Some(sequence) = job.stream_sequence
            && self.messages.get(&sequence) == Some(&id)
        {
            self.messages.remove(&sequence);
        }
        *self.stats.ends.entry(end).or_default() += 1;
        if job.stream_sequence.is_some() {
            self.stats.record(Measure::Attempts, job.attempt);
        }
        self.stats.record(Measure::Failures, job.failures);
        if let Some(segments) = job.segments {
            self.stats.record(Measure::Segments, segments);
        }
        match end {
            End::LeftOut | End::UnderWay | End::Abandoned | End::GivenUp => {}
            End::Acknowledged | End::Replaced | End::GivenBack | End::Republished | End::DeadLetter | End::Refused => {
                self.stats.record(job.phase, micros(self.now.since(job.since)));
                self.stats.record(Measure::Whole, micros(self.now.since(job.began)));
            }
        }
    }

    fn leave_queue(&mut self, id: JobId) {
        let Some(session) = self.jobs.get(&id).and_then(|job| job.session.clone()) else { return };
        let Some(queues) = self.queues.get_mut(&session) else { return };
        queues.retain(|other| *other != id);
        if queues.is_empty() {
            self.queues.remove(&session);
        } else {
            self.start_first(&session);
        }
    }

    fn end_all(&mut self, end: End) {
        // A job that ends must start no other one.
        self.queues.clear();
        let jobs: Vec<JobId> = self.jobs.keys().copied().collect();
        jobs.into_iter().for_each(|job| self.end(job, end));
    }
}

pub(crate) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
