//! What a transcriber does, and when.

use std::time::Duration;

use transcript_publishing::{SegmentMessage, SessionEnded};

use super::PlayedSession;
use crate::transcripts::source::Transcript;

/// No call is played for longer, whatever times its file names: beyond, a clock would overflow.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// No speaker pauses for longer, whatever times the file names: such a gap is played without a wait.
const LONGEST_PAUSE_MS: u64 = 24 * 3600 * 1000;

/// What goes wrong, in every session alike.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mishaps {
    /// How many of the last segments that are not lost are saved late.
    pub late: usize,
    /// How long after the end of the call they are saved.
    pub late_by: Duration,
    /// How many of the last segments are never saved.
    pub lose: usize,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step<'a> {
    /// Time since the playing began.
    pub due: Duration,
    pub action: Action<'a>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action<'a> {
    Segment { segment: &'a SegmentMessage, saved: bool },
    End(SessionEnded),
    LateSave(&'a SegmentMessage),
}

impl Action<'_> {
    /// Whether both can be done together.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// Everything to be done for a transcript, in order of time, and what will then have become of each of its sessions.
///
/// All sessions begin with their first segment, at the same time. A segment is due when it was spoken, and at once where it
/// says no time; a call ends with its last segment. At `speed` 0 no time passes until the late segments.
pub(super) fn timeline(transcript: &Transcript, speed: f64, mishaps: Mishaps) -> (Vec<Step<'_>>, Vec<PlayedSession>) {
    let mut segments = Vec::with_capacity(transcript.segments.len());
    let mut ends = Vec::with_capacity(transcript.sessions.len());
    let mut late_saves = Vec::new();
    let mut played = Vec::with_capacity(transcript.sessions.len());
    for (told, own) in transcript.sessions.iter().zip(transcript.by_session()) {
        let lost = mishaps.lose.min(own.len());
        let late = mishaps.late.min(own.len() - lost);
        let first_late = own.len() - lost - late;
        let first_lost = own.len() - lost;
        let dues = dues(own.iter().map(|(_, segment)| *segment), speed);
        let end = dues.last().copied().unwrap_or(Duration::ZERO);
        for (n, ((order, segment), due)) in own.iter().zip(dues).enumerate() {
            let action = Action::Segment { segment, saved: n < first_late };
            segments.push((*order, Step { due, action }));
            if (first_late..first_lost).contains(&n) {
                late_saves.push(Step { due: end + mishaps.late_by, action: Action::LateSave(segment) });
            }
        }
        let announced = told.announced.unwrap_or(own.len() as u64);
        let ended = SessionEnded { session: told.session.clone(), published_segments: announced, reprocess: 0 };
        ends.push(Step { due: end, action: Action::End(ended) });
        played.push(PlayedSession {
            session: told.session.clone(),
            saved: first_lost,
            published: own.len(),
            announced,
            late,
            lost,
        });
    }
    segments.sort_by_key(|(order, _)| *order);
    let mut steps: Vec<Step<'_>> = segments.into_iter().map(|(_, step)| step).chain(ends).chain(late_saves).collect();
    steps.sort_by_key(|step| step.due);
    (steps, played)
}

/// When each segment of one session is due; never before the one before it.
fn dues<'a>(segments: impl Iterator<Item = &'a SegmentMessage> + Clone, speed: f64) -> Vec<Duration> {
    let moment = |segment: &SegmentMessage| segment.end_ms.or(segment.start_ms);
    // The latest moment that was played: a segment of an earlier one is due at once.
    let mut latest = segments.clone().filter_map(moment).min().unwrap_or(0);
    let mut spoken = Duration::ZERO;
    segments
        .map(|segment| {
            if let Some(moment) = moment(segment)
                && moment > latest
            {
                let pause = moment.abs_diff(latest);
                latest = moment;
                if pause <= LONGEST_PAUSE_MS {
                    spoken = spoken.saturating_add(Duration::from_millis(pause));
                }
            }
            if speed > 0.0 {
                Duration::try_from_secs_f64(spoken.as_secs_f64() / speed).unwrap_or(LONGEST).min(LONGEST)
            } else {
                Duration::ZERO
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use transcript_core::ids::Session;

    use super::*;
    use crate::transcripts::source::{SourceSegment, SourceSession};

    const NONE: Mishaps = Mishaps { late: 0, late_by: Duration::ZERO, lose: 0 };

    /// A transcript of segments: session, index, end.
    fn transcript_of(segments: &[(&str, u64, Option<i64>)]) -> Transcript {
        let mut transcript = Transcript::default();
        for (name, index, end_ms) in segments {
            let session = Session::new("c", name).unwrap();
            let place = transcript.sessions.iter().position(|told| told.session == session).unwrap_or_else(|| {
                transcript.sessions.push(SourceSession { session: session.clone(), announced: None });
                transcript.sessions.len() - 1
            });
            let text = "x".to_owned();
            let message =
                SegmentMessage { session, index: *index, speaker: None, text, start_ms: None, end_ms: *end_ms };
            transcript.segments.push(SourceSegment { place, message, line: 1 });
        }
        transcript
    }

    fn transcript() -> Transcript {
        transcript_of(&[("a", 0, Some(50_000)), ("b", 0, Some(1000)), ("a", 1, Some(52_000)), ("a", 2, None)])
    }

    /// `<due in ms> <what>`, with a bar before a segment that is not saved in time.
    fn shown(steps: &[Step<'_>]) -> Vec<String> {
        let show = |step: &Step<'_>| {
            let what = match &step.action {
                Action::Segment { segment, saved: true } => segment.id(),
                Action::Segment { segment, saved: false } => format!("|{}", segment.id()),
                Action::End(end) => format!("end {} {}", end.session.session_id, end.published_segments),
                Action::LateSave(segment) => format!("late {}", segment.id()),
            };
            format!("{} {what}", step.due.as_millis())
        };
        steps.iter().map(show).collect()
    }

    #[test]
    fn at_once_means_segments_then_ends() {
        let transcript = transcript();
        let (steps, played) = timeline(&transcript, 0.0, NONE);
        assert_eq!(shown(&steps), ["0 a:0", "0 b:0", "0 a:1", "0 a:2", "0 end a 3", "0 end b 1"]);
        let counts: Vec<_> = played.iter().map(|p| (p.saved, p.published, p.announced, p.late, p.lost)).collect();
        assert_eq!(counts, [(3, 3, 3, 0, 0), (1, 1, 1, 0, 0)]);
    }

    #[test]
    fn as_spoken_means_by_the_times_of_each_session() {
        let transcript = transcript();
        let (steps, _) = timeline(&transcript, 2.0, NONE);
        assert_eq!(shown(&steps), ["0 a:0", "0 b:0", "0 end b 1", "1000 a:1", "1000 a:2", "1000 end a 3"]);
    }

    #[test]
    fn late_and_lost_segments_are_the_last_ones() {
        let transcript = transcript();
        let mishaps = Mishaps { late: 1, late_by: Duration::from_millis(500), lose: 1 };
        let (steps, played) = timeline(&transcript, 0.0, mishaps);
        assert_eq!(shown(&steps), ["0 a:0", "0 |b:0", "0 |a:1", "0 |a:2", "0 end a 3", "0 end b 1", "500 late a:1"]);
        let counts: Vec<_> = played.iter().map(|p| (p.saved, p.published, p.announced, p.late, p.lost)).collect();
        assert_eq!(counts, [(2, 3, 3, 1, 1), (0, 1, 1, 0, 1)]);
    }

    #[test]
    fn a_silent_call_ends_with_what_it_announces() {
        let session = Session::new("c", "s").unwrap();
        let sessions = vec![SourceSession { session, announced: Some(9) }];
        let transcript = Transcript { sessions, ..Transcript::default() };
        assert_eq!(shown(&timeline(&transcript, 1.0, NONE).0), ["0 end s 9"]);
    }

    #[test]
    fn absurd_times_do_not_overflow_and_are_not_waited_for() {
        let last = |times: &[i64], speed| {
            let segments: Vec<_> = (0..).zip(times).map(|(index, time)| ("a", index, Some(*time))).collect();
            timeline(&transcript_of(&segments), speed, NONE).0.last().unwrap().due
        };
        assert_eq!(last(&[i64::MIN, i64::MAX], 0.000_1), Duration::ZERO);
        assert_eq!(last(&[0, 1_700_000_000_000, 1_700_000_001_000], 1.0), Duration::from_secs(1));
        assert_eq!(last(&[0, 86_400_000], 1.0), Duration::from_secs(86_400));
        assert_eq!(last(&[0, 86_400_000], 0.000_1), LONGEST);
        assert_eq!(last(&[0, 5000, 2000, 6000], 1.0), Duration::from_secs(6));
    }
}
