//! Makes spans of the core's journal: one of each job, and one of each of its steps.

use std::{collections::BTreeMap, sync::Arc};

use tokio::sync::mpsc;
use transcript_core::{
    AcknowledgementKind, FailureKind, JobBegan, JobMoved, JournalEntry, JournalEvent, SpanIds, State, Time,
    contract::trace_context::{SpanId, TraceContext, TraceId},
    ids::{JobId, Key},
};

use super::{
    SpanCounts,
    span::{Attribute, Span, SpanEvent, SpanKind, SpanStatus, UnixNanos, Value},
    step::{self, StepNames},
};
use crate::service::clock::Clock;

/// The most steps of a job that become spans. A job of many more waits and tries again; its further steps are dropped.
const MOST_STEPS: usize = 64;
/// The most events of a span.
const MOST_EVENTS: usize = 16;

/// Follows the jobs of one processor. It is called in the driver's loop, and never waits.
#[derive(Debug)]
pub struct SpanRecorder {
    ids: SpanIds,
    clock: Clock,
    jobs: BTreeMap<JobId, OpenJob>,
    sender: mpsc::Sender<Vec<Span>>,
    counts: SpanCounts,
}

/// A job under way.
#[derive(Debug)]
struct OpenJob {
    id: JobId,
    trace: TraceId,
    state: Option<Box<str>>,
    /// The start of the processor by the calendar as it was when the job began.
    epoch: u64,
    key: Option<Key>,
    /// The span of the job, which ends last.
    span: Span,
    steps: Vec<Span>,
    step: Option<OpenStep>,
    /// How many steps have begun.
    begun: u64,
    /// Steps that were left out.
    left_out: usize,
    outcome: JobOutcome,
}

/// A step under way.
#[derive(Debug)]
struct OpenStep {
    span: Span,
    /// Its last failure.
    failed: Option<(Time, FailureKind)>,
}

/// What is said of a job that is over.
#[derive(Debug, Default)]
struct JobOutcome {
    announced: bool,
    dead_lettered: bool,
    republished: bool,
    given_back: bool,
    done: Option<transcript_core::Done>,
}

impl SpanRecorder {
    /// A recorder of no jobs yet.
    pub(super) fn new(ids: SpanIds, clock: Clock, sender: mpsc::Sender<Vec<Span>>, counts: SpanCounts) -> Self {
        Self { ids, clock, jobs: BTreeMap::new(), sender, counts }
    }

    /// Takes what jobs did.
    pub fn take(&mut self, journal: impl Iterator<Item = JournalEntry>) {
        for JournalEntry { job, at, event } in journal {
            match event {
                JournalEvent::Began(began) => self.began(job, at, *began),
                JournalEvent::Moved(moved) => self.moved(job, at, moved),
                JournalEvent::Failed(kind) => {
                    if let Some(open) = self.jobs.get_mut(&job) {
                        open.failed(at, kind);
                    }
                }
                JournalEvent::Redelivered => {
                    if let Some(open) = self.jobs.get_mut(&job) {
                        let at = open.moment(at);
                        event_of(&mut open.span, at, "redelivered", vec![]);
                    }
                }
            }
        }
    }

    fn began(&mut self, job: JobId, at: Time, began: JobBegan) {
        // Whoever sent the end keeps nothing of its trace: a part of it would hang in the air.
        if began.trace_context.as_ref().is_some_and(|context| !context.is_sampled()) {
            return;
        }
        let wall = u64::try_from(self.clock.wall().as_millis()).unwrap_or(0).saturating_mul(1_000_000);
        let epoch = wall.saturating_sub(self.clock.now().as_micros().saturating_mul(1000));
        let first = JobMoved { to: began.state, announcement: None, acknowledgement: None, done: None };
        let mut open = OpenJob::new(self.ids, job, at, epoch, began);
        open.begin_step(self.ids, at, &first);
        open.outcome.learn(first);
        self.jobs.insert(job, open);
    }

    fn moved(&mut self, job: JobId, at: Time, moved: JobMoved) {
        let Some(open) = self.jobs.get_mut(&job) else { return };
        open.end_step(at);
        open.begin_step(self.ids, at, &moved);
        open.outcome.learn(moved);
        if open.step.is_some() {
            return;
        }
        if let Some(open) = self.jobs.remove(&job) {
            let left_out = open.left_out;
            let spans = open.end(at);
            let all = spans.len();
            let dropped = if self.sender.try_send(spans).is_err() { all } else { 0 };
            self.counts.drop(dropped + left_out);
        }
    }
}

impl OpenJob {
    fn new(ids: SpanIds, id: JobId, at: Time, epoch: u64, began: JobBegan) -> Self {
        let JobBegan { key, stream_sequence, attempt, age, trace_context, .. } = began;
        let context = trace_context.as_deref();
        let trace = context.map_or_else(|| ids.trace(id), |context| context.trace);
        let state = context.and_then(|TraceContext { state, .. }| state.clone());
        let (name, kind) = match stream_sequence {
            Some(_) => ("process transcription.session-ended", SpanKind::Consumer),
            None => ("process stale summary", SpanKind::Internal),
        };
        let mut span = span(trace, ids.job(id), name, kind, moment(epoch, at));
        span.parent_span_id = context.map(|context| context.span);
        span.trace_state.clone_from(&state);
        if let Some(sequence) = stream_sequence {
            span.attributes.extend(step::PROCESS);
            span.attributes.push(("messaging.message.id", Value::Text(Arc::from(sequence.to_string()))));
            span.attributes.push(("transcript.attempt", Value::Whole(attempt)));
            span.attributes.push(("transcript.age_seconds", Value::Real(age.as_secs_f64())));
        }
        span.attributes.extend(key.as_ref().map(|key| ("transcript.key", Value::Text(Arc::from(key.as_str())))));
        let (steps, outcome) = (vec![], JobOutcome::default());
        Self { id, trace, state, epoch, key, span, steps, step: None, begun: 0, left_out: 0, outcome }
    }

    fn moment(&self, at: Time) -> UnixNanos {
        moment(self.epoch, at)
    }

    fn begin_step(&mut self, ids: SpanIds, at: Time, moved: &JobMoved) {
        let Some(StepNames { name, kind, attributes }) = step::names(moved, self.key.as_ref()) else { return };
        let id = match moved.announcement {
            Some(announcement) => ids.announcement(self.id, announcement),
            None => ids.step(self.id, self.begun),
        };
        self.begun += 1;
        let mut span = span(self.trace, id, name, kind, self.moment(at));
        span.parent_span_id = Some(self.span.span_id);
        span.trace_state.clone_from(&self.state);
        span.attributes = attributes;
        self.step = Some(OpenStep { span, failed: None });
    }

    /// The step ends. One that ends at the moment of its failure has failed.
    fn end_step(&mut self, at: Time) {
        let Some(OpenStep { mut span, failed }) = self.step.take() else { return };
        span.end_time_unix_nano = self.moment(at);
        if let Some((_, kind)) = failed.filter(|(failed_at, _)| *failed_at == at) {
            span.status = SpanStatus::ERROR;
            span.attributes.push(("error.type", Value::Static(error_type(kind))));
        }
        if self.steps.len() < MOST_STEPS {
            self.steps.push(span);
        } else {
            self.left_out += 1;
        }
    }

    fn failed(&mut self, at: Time, kind: FailureKind) {
        let moment = self.moment(at);
        if let Some(step) = &mut self.step {
            step.failed = Some((at, kind));
            event_of(&mut step.span, moment, "failed", vec![("error.type", Value::Static(error_type(kind)))]);
        }
    }

    fn end(mut self, at: Time) -> Vec<Span> {
        self.span.end_time_unix_nano = self.moment(at);
        let outcome = self.outcome.name();
        self.span.attributes.push(("transcript.outcome", Value::Static(outcome)));
        if let Some(done) = &self.outcome.done {
            self.span.attributes.extend([
                ("transcript.segments", Value::Whole(done.segments)),
                ("transcript.published_segments", Value::Whole(done.published_segments)),
                ("transcript.complete", Value::Bool(done.complete)),
            ]);
        }
        if self.outcome.dead_lettered {
            self.span.status = SpanStatus::ERROR;
            self.span.attributes.push(("error.type", Value::Static("dead_letter")));
        }
        self.steps.push(self.span);
        self.steps
    }
}

impl JobOutcome {
    fn learn(&mut self, moved: JobMoved) {
        self.announced |= moved.to == State::Marking;
        self.dead_lettered |= moved.to == State::DeadLettering;
        self.republished |= moved.to == State::Republishing;
        self.given_back |= moved.acknowledgement == Some(AcknowledgementKind::Nak);
        if moved.done.is_some() {
            self.done = moved.done;
        }
    }

    /// As the metrics name it, where they do.
    fn name(&self) -> &'static str {
        match &self.done {
            _ if self.dead_lettered => "dead_letter",
            _ if self.republished => "republished",
            _ if self.given_back => "given_back",
            Some(_) if !self.announced => "announced_before",
            Some(done) if done.complete => "complete",
            Some(_) => "incomplete",
            None => "left",
        }
    }
}

fn span(trace_id: TraceId, span_id: SpanId, name: &'static str, kind: SpanKind, began: UnixNanos) -> Span {
    Span {
        trace_id,
        span_id,
        trace_state: None,
        parent_span_id: None,
        name,
        kind,
        start_time_unix_nano: began,
        end_time_unix_nano: began,
        attributes: vec![],
        events: vec![],
        dropped_events_count: 0,
        status: SpanStatus::default(),
    }
}

fn moment(epoch: u64, at: Time) -> UnixNanos {
    UnixNanos(epoch.saturating_add(at.as_micros().saturating_mul(1000)))
}

fn event_of(span: &mut Span, at: UnixNanos, name: &'static str, attributes: Vec<Attribute>) {
    if span.events.len() < MOST_EVENTS {
        span.events.push(SpanEvent { time_unix_nano: at, name, attributes });
    } else {
        span.dropped_events_count += 1;
    }
}

fn error_type(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::Unreachable => "unreachable",
        FailureKind::TimedOut => "timed_out",
        FailureKind::Busy => "busy",
        FailureKind::Denied => "denied",
        FailureKind::Rejected => "rejected",
        FailureKind::Missing => "missing",
    }
}
