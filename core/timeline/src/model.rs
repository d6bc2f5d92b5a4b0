//! What a drawing is made of.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use transcript_core::{
    Time, WallTime,
    ids::{JobId, Session},
};

/// A moment on the axis that all parts of a trace share: microseconds since the Unix epoch, by the clock of the process
/// that wrote the part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(pub(super) i64);

/// A part of a trace, by its place, and one of its jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct JobOf {
    pub(super) part: usize,
    pub(super) job: JobId,
}

/// What somebody does about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Work {
    /// A job of a processor.
    Job(JobOf),
    /// A transcriber serves it: which one, by its place among the transcribers of the trace.
    Session(usize),
}

impl From<JobOf> for Work {
    fn from(job: JobOf) -> Self {
        Self::Job(job)
    }
}

/// A column of the drawing, from left to right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lane {
    /// Who connects to transcribers.
    Clients,
    /// Who publishes segments and ends, where no transcriber is recorded.
    Transcriber,
    /// A run of a transcriber, by its place among the transcribers of the trace.
    RunOfTranscriber(usize),
    /// JetStream.
    Stream,
    /// A run of a processor, by the place of its part in the trace.
    Processor(usize),
    /// MongoDB.
    Store,
    /// Who hears that a summary is stored.
    Subscribers,
}

/// A lane, and the time in which there was somebody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lives {
    pub(super) lane: Lane,
    pub(super) name: String,
    /// `None` where it was there before the drawing begins.
    pub(super) from: Option<Moment>,
    /// `None` where it is still there when the drawing ends.
    pub(super) to: Option<Moment>,
}

/// Something that one lane said to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) at: Moment,
    /// The end of several in a row that are drawn as one; otherwise `at`.
    pub(super) until: Moment,
    /// How many are drawn as one; segments where it is [`StepKind::Stored`].
    pub(super) count: u64,
    /// Its place among all that was read: of two at the same moment the one that was read first comes first.
    pub(super) order: u64,
    /// The call, by its place in the timeline's list; `None` where it is no single one's.
    pub(super) call: Option<usize>,
    pub(super) job: Option<JobOf>,
    pub(super) from: Lane,
    /// The same as `from` where it was said to nobody.
    pub(super) to: Lane,
    pub(super) kind: StepKind,
    /// A few words.
    pub(super) label: String,
    /// The whole of it.
    pub(super) text: String,
}

/// The kind of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StepKind {
    /// A message, or a note about one.
    Message,
    /// Segments were stored.
    Stored,
    /// A processor asked for an effect.
    Asked,
    /// It was done.
    Answered,
    /// It was not, or nobody knows.
    Failed,
    /// It was asked for, and no report ever came.
    Lost,
    /// A processor said that it is at work.
    Heartbeat,
    /// Nothing was said to anybody.
    Remark,
}

/// A call of the drawing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) name: CallName,
    /// What makes it worth a look; empty where nothing does.
    pub(super) marks: Vec<&'static str>,
}

/// What a call is known by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum CallName {
    /// Its session.
    Session(Session),
    /// A message of the stream whose payload names no call, or is not there.
    Message(u64),
}

/// What was read, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) lines: u64,
    pub(super) parts: u64,
    pub(super) calls: u64,
    pub(super) steps: u64,
    /// Inputs that the trace says are missing.
    pub(super) missing: u64,
    /// Stored segments that were noted and could not be kept.
    pub(super) forgotten_notes: u64,
}

impl Moment {
    pub(super) fn of_wall(at: WallTime) -> Self {
        Self(at.as_millis().saturating_mul(1000))
    }

    pub(super) fn after(self, since: Time) -> Self {
        Self(self.0.saturating_add_unsigned(since.as_micros()))
    }

    /// Zero where `earlier` is later.
    pub(super) fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0).try_into().unwrap_or(0))
    }

    /// The moment by the calendar, in UTC.
    pub(super) fn absolute(self) -> String {
        // Later and earlier years are outside of what the format can write.
        const LAST: u64 = 253_402_300_799_999_999;
        match u64::try_from(self.0) {
            Ok(micros) if micros <= LAST => {
                let at: SystemTime = UNIX_EPOCH + Duration::from_micros(micros);
                humantime::format_rfc3339_millis(at).to_string().replace('T', " ").replace('Z', " UTC")
            }
            Ok(_) | Err(_) => format!("{} ms since the Unix epoch", self.0 / 1000),
        }
    }
}

impl fmt::Display for CallName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session(session) => write!(f, "{}", session.key()),
            Self::Message(sequence) => write!(f, "message {sequence}"),
        }
    }
}

impl StepKind {
    /// Whether several in a row are drawn as one.
    pub(super) fn folds(self) -> bool {
        matches!(self, Self::Heartbeat | Self::Stored)
    }
}

/// A length of time, as people say it.
pub(super) fn span(length: Duration) -> String {
    let (micros, seconds) = (length.as_micros(), length.as_secs());
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..1_000_000 => format!("{} ms", micros / 1000),
        1_000_000..60_000_000 => format!("{}.{:02} s", seconds, length.subsec_millis() / 10),
        60_000_000..3_600_000_000 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        3_600_000_000..86_400_000_000 => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
        86_400_000_000.. => format!("{} d {:02} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// A place on the axis, from its beginning. Never longer than eleven characters before a hundred days.
pub(super) fn offset(length: Duration) -> String {
    let (seconds, millis) = (length.as_secs(), length.subsec_millis());
    let (minutes, hours) = (seconds / 60 % 60, seconds / 3600 % 24);
    match seconds {
        0..1000 => format!("+{seconds}.{millis:03} s"),
        1000..86_400 => format!("+{hours}:{minutes:02}:{:02}.{}", seconds % 60, millis / 100),
        86_400.. => format!("+{}d {hours:02}:{minutes:02}:{:02}", seconds / 86_400, seconds % 60),
    }
}

/// A number with its thousands set apart.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_places_are_written_as_people_say_them() {
        let written = |micros| (span(Duration::from_micros(micros)), offset(Duration::from_micros(micros)));
        let both = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(written(250), both("250 µs", "+0.000 s"));
        assert_eq!(written(2_999), both("2 ms", "+0.002 s"));
        assert_eq!(written(1_980_000), both("1.98 s", "+1.980 s"));
        assert_eq!(written(125_000_000), both("2 min 05 s", "+125.000 s"));
        assert_eq!(written(3_725_400_000), both("1 h 02 min", "+1:02:05.4"));
        assert_eq!(written(90_000_000_000), both("1 d 01 h", "+1d 01:00:00"));
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(999), "999");
    }

    #[test]
    fn a_moment_outside_of_the_calendar_is_still_written() {
        assert_eq!(Moment(1_764_400_000_500_000).absolute(), "2025-11-29 07:06:40.500 UTC");
        assert_eq!(Moment(-5_000).absolute(), "-5 ms since the Unix epoch");
        assert_eq!(
            Moment::of_wall(WallTime::from_millis(i64::MAX)).absolute(),
            "9223372036854775 ms since the Unix epoch"
        );
    }
}
