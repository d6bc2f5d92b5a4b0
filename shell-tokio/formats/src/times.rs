//! Times: as files write them, and as they are used.

/// A later time is one of a clock, not one since a call's start: three years in milliseconds.
const FIRST_CLOCK_MS: f64 = 1e11;
/// A later clock counts microseconds, and was taken for milliseconds; or milliseconds that were taken for seconds.
const FIRST_CLOCK_MICROS: f64 = 1e14;
/// A later clock counts nanoseconds, or microseconds that were taken for seconds.
const FIRST_CLOCK_NANOS: f64 = 1e17;
/// Nanoseconds that were taken for seconds.
const FIRST_CLOCK_PICOS: f64 = 1e20;
/// No number of a time has more digits than any clock.
const MAX_DIGITS: usize = 12;

/// Start and end of a cue, in milliseconds. A negative time is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timing {
    pub start_ms: i64,
    pub end_ms: i64,
}

/// Reads `<time> --> <time> [settings]`. Settings are `name:value`; where something else follows, the line is speech.
pub(crate) fn timing(line: &str) -> Option<Timing> {
    // Most lines are speech: look at the first letter before searching.
    let line = line.trim();
    if !line.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
        return None;
    }
    let (start, rest) = line.split_once("-->")?;
    let mut rest = rest.split_whitespace();
    let timing = Timing { start_ms: stamp(start.trim_end())?, end_ms: stamp(rest.next()?)? };
    rest.all(|setting| setting.contains(':')).then_some(timing)
}

/// Whether a line was meant to be the times of a cue: it has the arrow, and on one side of it something like a time.
pub(crate) fn is_broken_timing(line: &str) -> bool {
    let like_a_time = |side: &str| {
        let side = side.trim_start_matches('-');
        side.starts_with(|c: char| c.is_ascii_digit()) && side.contains(':')
    };
    line.split_once("-->").is_some_and(|(start, end)| {
        let end = end.split_whitespace().next().unwrap_or_default();
        (like_a_time(start.trim()) && !start.trim().contains(' '))
            || (start.trim().is_empty() && like_a_time(end))
            || (like_a_time(end) && !start.trim().contains(' '))
    })
}

/// Reads `[hours:]minutes:seconds[.fraction]`, in milliseconds. The fraction follows a dot or a comma and is a decimal one:
/// `.5`, `.50` and `.500` are the same.
pub(crate) fn stamp(text: &str) -> Option<i64> {
    let (sign, text) = text.strip_prefix('-').map_or((1, text), |rest| (0, rest));
    let (whole, fraction) = match text.find(['.', ',']) {
        Some(at) => (text.get(..at)?, text.get(at + 1..)?),
        None => (text, "0"),
    };
    let mut parts = whole.split(':').map(number);
    let (first, second) = (parts.next()??, parts.next()??);
    let minutes_and_seconds = match parts.next() {
        Some(seconds) => first * 3600 + second * 60 + seconds?,
        None => first * 60 + second,
    };
    parts.next().is_none().then_some(sign * (minutes_and_seconds * 1000 + millis(fraction)?))
}

fn number(digits: &str) -> Option<i64> {
    let is_number = (1..=MAX_DIGITS).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| digits.parse().ok())?
}

fn millis(fraction: &str) -> Option<i64> {
    let digits = u32::try_from(fraction.len()).ok()?;
    let value = number(fraction)?;
    Some(match digits {
        0..=3 => value * 10_i64.pow(3 - digits),
        // Rounded as the seconds of the JSON formats are.
        4.. => (value + 5 * 10_i64.pow(digits - 4)) / 10_i64.pow(digits - 3),
    })
}

/// A number of milliseconds, or no time where it is none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Millis(Option<f64>);

impl Millis {
    pub(crate) const NONE: Self = Self(None);

    pub(crate) fn new(millis: f64) -> Self {
        Self(millis.is_finite().then_some(millis))
    }

    /// For what orders and compares times before a [`Clock`] has seen them.
    pub(crate) fn value(self) -> Option<f64> {
        self.0
    }

    pub(crate) fn or(self, other: Self) -> Self {
        Self(self.0.or(other.0))
    }
}

impl From<i64> for Millis {
    fn from(millis: i64) -> Self {
        Self::new(millis as f64)
    }
}

/// Turns the times of a file into times since the call's start.
///
/// Times of a clock count from the first of them, so that nothing waits for a year. Whether a time is one of a clock, and in
/// which unit, is told by its size: no call lasts three years.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    first: Option<f64>,
}

impl Clock {
    /// Rounded to a millisecond; a time before the call's start is the start.
    pub(crate) fn since_start(&mut self, time: Millis) -> Option<i64> {
        let time = time.0?;
        let since = if time < FIRST_CLOCK_MS {
            time
        } else {
            let clock = match time {
                t if t < FIRST_CLOCK_MICROS => t,
                t if t < FIRST_CLOCK_NANOS => t / 1e3,
                t if t < FIRST_CLOCK_PICOS => t / 1e6,
                t if t < FIRST_CLOCK_PICOS * 1e3 => t / 1e9,
                _ => return None,
            };
            clock - *self.first.get_or_insert(clock)
        };
        Some(since.max(0.0).round() as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_in_all_its_forms() {
        for (text, expected) in [
            ("00:00:01.500", Some(1500)),
            ("00:00:01,500", Some(1500)),
            ("00:01.500", Some(1500)),
            ("0:0:1.5", Some(1500)),
            ("00:00:01,50", Some(1500)),
            ("00:00:01", Some(1000)),
            ("00:10:00.0000000", Some(600_000)),
            ("00:00:00.0005", Some(1)),
            ("123:00:00.000", Some(442_800_000)),
            ("-00:00:01,000", Some(0)),
            ("1:2:3:4", None),
            ("01", None),
            ("00:00:01.", None),
            ("00:00:0x.000", None),
            ("99999999999999999999:00:00", None),
            ("٠٠:٠١", None),
            ("NaN:00", None),
        ] {
            assert_eq!(stamp(text), expected, "{text}");
        }
    }

    #[test]
    fn a_timing_is_a_whole_line() {
        let timing = |line| timing(line).map(|t| (t.start_ms, t.end_ms));
        assert_eq!(timing("00:01.000 --> 00:02.000 align:start position:0%"), Some((1000, 2000)));
        assert_eq!(timing(" 00:01.000-->00:02.000 "), Some((1000, 2000)));
        assert_eq!(timing("00:00:01,000 --> 00:00:02,000  X1:1 X2:3"), Some((1000, 2000)));
        assert_eq!(timing("00:01 --> 00:05 we go"), None);
        assert_eq!(timing("see 00:01 --> 00:05"), None);
        assert_eq!(timing("a --> b"), None);
    }

    #[test]
    fn a_broken_timing_is_told_from_speech() {
        for line in ["00:00:01,000 --> ", "00:00:0x --> 00:00:02", "--> 00:00:02", "00:00:01 --> later"] {
            assert!(is_broken_timing(line), "{line}");
        }
        for line in ["a --> b", "from a to b --> 00:05", "1 --> 2", "no arrow 00:05", "00:01 then --> x"] {
            assert!(!is_broken_timing(line), "{line}");
        }
    }

    #[test]
    fn clocks_count_from_their_first_time() {
        for unit in [1.0, 1e3, 1e6, 1e9] {
            let mut clock = Clock::default();
            let at = |seconds: f64| Millis::new((1.7e12 + seconds * 1e3) * unit);
            assert_eq!(clock.since_start(at(0.0)), Some(0));
            assert_eq!(clock.since_start(at(2.0)), Some(2000));
            assert_eq!(clock.since_start(at(-1.0)), Some(0));
            assert_eq!(clock.since_start(Millis::new(799.999_95)), Some(800));
        }
        let mut clock = Clock::default();
        assert_eq!(clock.since_start(Millis::new(-3.0)), Some(0));
        assert_eq!(clock.since_start(Millis::new(f64::NAN)), None);
        assert_eq!(clock.since_start(Millis::new(1e300)), None);
    }
}
