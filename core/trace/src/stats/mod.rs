//! Counts what a trace tells: how long each phase of a job took, how often it was tried, how it ended.

pub(crate) mod counting;

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt,
};

use hdrhistogram::Histogram;
use serde::{Serialize, Serializer, ser::SerializeStruct};
use transcript_core::EffectKind;

use self::counting::Counting;
use crate::{
    format::Line,
    processes::{ProcessHeader, ProcessLine, Processes},
    read::ReadError,
    transcriber::TranscriberStats,
};

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
        Ok(counting.finish())
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
    /// The phase of a job that has asked for such an effect.
    fn phase(kind: EffectKind) -> Self {
        match kind {
            EffectKind::Count => Self::Settling,
            EffectKind::Load => Self::Loading,
            EffectKind::Save => Self::Saving,
            EffectKind::Check => Self::Checking,
            EffectKind::Publish => Self::Publishing,
            EffectKind::Mark => Self::Marking,
            EffectKind::DeadLetter => Self::DeadLettering,
            EffectKind::Republish => Self::Republishing,
            EffectKind::Acknowledge => Self::Acknowledging,
        }
    }

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
