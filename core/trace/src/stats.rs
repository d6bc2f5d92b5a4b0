//! Counts what a trace tells: how long each phase of a job took, how often it was tried, how it ended.

use std::{
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    fmt, mem,
};

use hdrhistogram::Histogram;
use serde::{Serialize, Serializer, ser::SerializeStruct};
use transcript_core::{
    Acknowledgement, Effect, FailureKind, Input, Output, Report, Time,
    event::SessionEnded,
    ids::{EffectId, JobId, Session},
};

use crate::{
    format::{self, Line, Said},
    processes::{Begin, ProcessHeader, ProcessLine, Processes},
    read::ReadError,
    transcriber::{CountingTranscribers, TranscriberStats},
};

/// How many jobs may be under way: more than a core has. Beyond it the oldest are given up, whose end a trace did not tell.
const MOST_JOBS: usize = 1 << 17;
/// How exactly values are kept, in digits.
const DIGITS: u8 = 3;
/// The quantiles that are shown.
const QUANTILES: [(&str, f64); 3] = [("median", 0.5), ("90 %", 0.9), ("99 %", 0.99)];

/// The distributions of a trace.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    parts: u64,
    entries: u64,
    jobs: u64,
    left_out: u64,
    distributions: BTreeMap<Measure, Histogram<u64>>,
    ends: BTreeMap<End, u64>,
    transcribers: TranscriberStats,
}

/// What is counted or timed; the phases in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    /// Deliveries of the message, as JetStream counts them.
    Attempts,
    /// Counts until the call was taken to be settled.
    SettleRounds,
    /// Segments that the last of those counts found and the first did not.
    LateSegments,
    /// Segments of the summary.
    Segments,
    /// Steps that failed and were tried again, or given up.
    Failures,
    /// Until an earlier job of the same call was done, in microseconds.
    Waiting,
    /// Until the call was settled, in microseconds.
    Settling,
    /// Until the summary was made, in microseconds; with the wait for room.
    Loading,
    /// Until it was stored, in microseconds.
    Saving,
    /// Until it was known again what is stored, in microseconds.
    Checking,
    /// Until it was announced, in microseconds.
    Publishing,
    /// Until it was marked as announced, in microseconds.
    Marking,
    /// Until a dead letter was kept, in microseconds.
    DeadLettering,
    /// Until the end was published again, in microseconds.
    Republishing,
    /// Until the acknowledgement was confirmed, in microseconds.
    Acknowledging,
    /// From the first to the last of it, in microseconds.
    Whole,
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// Acknowledged: the call is summarised and announced.
    Acknowledged,
    /// A stale summary was replaced, or found good.
    Replaced,
    /// Given back to JetStream (nak).
    GivenBack,
    /// Its end was published again.
    Republished,
    /// Kept as a dead letter.
    DeadLetter,
    /// Terminated, because its payload can never be processed.
    Refused,
    /// The acknowledgement was never confirmed, or a job without a delivery was given up.
    GivenUp,
    /// A draining processor left it to redelivery.
    Abandoned,
    /// The trace does not tell it any further.
    LeftOut,
    /// Under way where the trace ends.
    UnderWay,
}

impl Stats {
    /// Reads a trace to its end.
    ///
    /// # Errors
    ///
    /// What keeps it from being read; a last line that is cut off does not.
    pub fn read(lines: impl Iterator<Item = Result<Line, ReadError>>) -> Result<Self, ReadError> {
        let mut counting = Counting::default();
        for line in Processes::of(lines) {
            match line {
                Ok(ProcessLine::Header(ProcessHeader { process, begin, .. })) => counting.header(process, begin),
                Ok(ProcessLine::Entry(entry)) => counting.entry(*entry),
                Ok(ProcessLine::TranscriberHeader(begun)) => counting.transcribers.header(&begun),
                Ok(ProcessLine::TranscriberEntry(entry)) => counting.transcribers.entry(*entry),
                Err(ReadError::CutOff { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        counting.over();
        counting.end_all(End::UnderWay);
        Ok(Self { transcribers: counting.transcribers.stats, ..counting.stats })
    }

    /// What the traces of transcribers tell.
    #[must_use]
    pub fn transcribers(&self) -> &TranscriberStats {
        &self.transcribers
    }

    /// Jobs that began.
    #[must_use]
    pub fn jobs(&self) -> u64 {
        self.jobs
    }

    /// How many jobs ended so.
    #[must_use]
    pub fn ended(&self, end: End) -> u64 {
        self.ends.get(&end).copied().unwrap_or(0)
    }

    /// The values of a kind, to three digits.
    #[must_use]
    pub fn distribution(&self, what: Measure) -> Option<&Histogram<u64>> {
        self.distributions.get(&what)
    }

    fn record(&mut self, what: Measure, value: u64) {
        recorded(self.distributions.entry(what), value);
    }
}

/// One more value of a distribution.
pub(crate) fn recorded<K: Ord>(distribution: Entry<'_, K, Histogram<u64>>, value: u64) {
    let new = || Histogram::new(DIGITS).expect("a number of digits that it can have");
    distribution.or_insert_with(new).record(value).expect("it grows with its values");
}

impl Serialize for Stats {
    /// What is shown, with times in microseconds.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { parts, entries, jobs, left_out, distributions, ends, transcribers } = self;
        let distributions: Vec<_> =
            distributions.iter().map(|(what, values)| ShownDistribution::of(*what, values)).collect();
        let ended: Vec<_> = ends.iter().map(|(end, jobs)| ShownEnd { how: end.name(), jobs: *jobs }).collect();
        let mut shown = serializer.serialize_struct("Stats", 6 + usize::from(!transcribers.is_empty()))?;
        shown.serialize_field("parts", parts)?;
        shown.serialize_field("entries", entries)?;
        shown.serialize_field("jobs", jobs)?;
        shown.serialize_field("inputsLeftOut", left_out)?;
        shown.serialize_field("distributions", &distributions)?;
        shown.serialize_field("ended", &ended)?;
        if !transcribers.is_empty() {
            shown.serialize_field("transcribers", transcribers)?;
        }
        shown.end()
    }
}

/// One line of the table.
#[derive(Serialize)]
pub(crate) struct ShownDistribution {
    what: &'static str,
    /// `us` for microseconds; absent for a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<&'static str>,
    count: u64,
    min: u64,
    median: u64,
    p90: u64,
    p99: u64,
    max: u64,
}

impl ShownDistribution {
    fn of(what: Measure, values: &Histogram<u64>) -> Self {
        Self::named(what.name(), what.is_time().then_some("us"), values)
    }

    /// `unit` is `us` for microseconds.
    pub(crate) fn named(what: &'static str, unit: Option<&'static str>, values: &Histogram<u64>) -> Self {
        let [median, p90, p99] = QUANTILES.map(|(_, quantile)| values.value_at_quantile(quantile));
        Self { what, unit, count: values.len(), min: values.min(), median, p90, p99, max: values.max() }
    }
}

/// How many jobs ended so.
#[derive(Serialize)]
struct ShownEnd {
    how: &'static str,
    jobs: u64,
}

impl fmt::Display for Stats {
    /// Tables of at most 80 columns.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.parts == 0 && !self.transcribers.is_empty() {
            return self.transcribers.fmt(f);
        }
        let Self { parts, entries, jobs, left_out, .. } = self;
        let many = |n: u64| if n == 1 { "" } else { "s" };
        write!(f, "{jobs} job{}, {entries} entries, {parts} part{}", many(*jobs), many(*parts))?;
        if *left_out > 0 {
            write!(f, "; {left_out} input{} left out", many(*left_out))?;
        }
        write!(f, "\n\n{}", table_header())?;
        for (what, values) in &self.distributions {
            writeln!(f, "{}", row(what.name(), values, |value| what.shown(value)))?;
        }
        write!(f, "\nended")?;
        self.ends.iter().try_for_each(|(end, jobs)| write!(f, "\n  {:55}{jobs:>10}", end.name()))?;
        if !self.transcribers.is_empty() {
            write!(f, "\n\n{}", self.transcribers)?;
        }
        Ok(())
    }
}

/// The first line of a table of distributions, ended.
pub(crate) fn table_header() -> String {
    let quantiles: String = QUANTILES.iter().map(|(name, _)| format!("{name:>9}")).collect();
    format!("{:22}{:>9}{:>9}{quantiles}{:>9}\n", "", "count", "min", "max")
}

/// A line of it.
pub(crate) fn row(name: &str, values: &Histogram<u64>, shown: impl Fn(u64) -> String) -> String {
    let quantile = |(_, quantile): &(&str, f64)| format!("{:>9}", shown(values.value_at_quantile(*quantile)));
    let quantiles: String = QUANTILES.iter().map(quantile).collect();
    format!("{name:22}{:>9}{:>9}{quantiles}{:>9}", values.len(), shown(values.min()), shown(values.max()))
}

impl Measure {
    fn name(self) -> &'static str {
        match self {
            Self::Attempts => "attempts",
            Self::SettleRounds => "settle rounds",
            Self::LateSegments => "late segments",
            Self::Segments => "segments",
            Self::Failures => "failed steps",
            Self::Waiting => "queued",
            Self::Settling => "settling",
            Self::Loading => "loading",
            Self::Saving => "saving",
            Self::Checking => "checking",
            Self::Publishing => "publishing",
            Self::Marking => "marking",
            Self::DeadLettering => "keeping dead letters",
            Self::Republishing => "publishing again",
            Self::Acknowledging => "acknowledging",
            Self::Whole => "altogether",
        }
    }

    fn is_time(self) -> bool {
        self >= Self::Waiting
    }

    fn shown(self, value: u64) -> String {
        if self.is_time() { span(value) } else { value.to_string() }
    }
}

impl End {
    fn name(self) -> &'static str {
        match self {
            Self::Acknowledged => "acknowledged",
            Self::Replaced => "without a delivery: replaced a summary, or had not to",
            Self::GivenBack => "given back (nak)",
            Self::Republished => "published again",
            Self::DeadLetter => "kept as dead letters",
            Self::Refused => "terminated: the payload can never be processed",
            Self::GivenUp => "given up: left to redelivery, or without a delivery",
            Self::Abandoned => "left to redelivery when the processor had drained",
            Self::LeftOut => "not told to their end",
            Self::UnderWay => "under way where the trace ends",
        }
    }
}

/// A span of microseconds in at most eight characters.
pub(crate) fn span(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} us"),
        1_000..10_000 => format!("{}.{:02} ms", micros / 1_000, micros % 1_000 / 10),
        10_000..100_000 => format!("{}.{} ms", micros / 1_000, micros % 1_000 / 100),
        100_000..1_000_000 => format!("{} ms", micros / 1_000),
        1_000_000..10_000_000 => format!("{}.{:02} s", micros / 1_000_000, micros % 1_000_000 / 10_000),
        10_000_000..600_000_000 => format!("{}.{} s", micros / 1_000_000, micros % 1_000_000 / 100_000),
        _ => format!("{} min", micros / 60_000_000),
    }
}

/// A trace that is being counted.
#[derive(Debug, Default)]
struct Counting {
    stats: Stats,
    transcribers: CountingTranscribers,
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
    fn header(&mut self, process: usize, begin: Begin) {
        self.over();
        if begin != Begin::GoesOn || self.process != process {
            self.end_all(End::UnderWay);
            self.now = Time::ZERO;
        }
        self.stats.parts += 1;
        self.process = process;
    }

    fn entry(&mut self, entry: format::Entry) {
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
        let mut since = self.now;
        let phase = match effect {
            Effect::Count { .. } => Measure::Settling,
            Effect::Load { .. } => {
                // It may have waited for room since then.
                since = if job.phase == Measure::Settling { job.counted } else { since };
                Measure::Loading
            }
            Effect::Save { .. } => Measure::Saving,
            Effect::Check { .. } => Measure::Checking,
            Effect::Publish { .. } => Measure::Publishing,
            Effect::Mark { .. } => Measure::Marking,
            Effect::DeadLetter { .. } => Measure::DeadLettering,
            Effect::Republish { .. } => Measure::Republishing,
            Effect::Acknowledge { acknowledgement, .. } => {
                job.ends = match acknowledgement {
                    Acknowledgement::Ack if job.ends == End::Republished => End::Republished,
                    Acknowledgement::Ack => End::Acknowledged,
                    Acknowledgement::Nak { .. } => End::GivenBack,
                    Acknowledgement::Term { .. } if job.ends == End::DeadLetter => End::DeadLetter,
                    Acknowledgement::Term { .. } => End::Refused,
                };
                Measure::Acknowledging
            }
        };
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

pub(crate) fn micros(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
