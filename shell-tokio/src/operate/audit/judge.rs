//! What a session comes to, from what the stream and the store say of it.

use async_nats::jetstream::consumer;
use transcript_core::{Stored, TranscriptVersion};

use super::{pass::SessionRecord, sessions::Unended};

/// How far the processors' consumer was when the audit began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Standing {
    /// The place of the last message that was handed out.
    delivered: u64,
    /// Everything up to this place is acknowledged, terminated or given up by JetStream.
    floor: u64,
    /// How many messages are handed out and not yet acknowledged.
    unacknowledged: usize,
}

/// What a session comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) announced: bool,
    pub(super) under_way: bool,
    pub(super) discarded: bool,
    pub(super) announced_again: bool,
    /// It has no end, and nobody is there to end it.
    pub(super) unended: Option<Unended>,
    pub(super) problem: Option<Problem>,
}

/// What keeps a session from being one to one. It has one problem at a time: the first one, whose remedy is that of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Problem {
    DeadLetter,
    Missing,
    WrongMark,
    NeverAnnounced,
    Stale,
}

/// What the mark of a summary is worth: whether the message that it names announces the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// It does, or that cannot be known any more, or there is no mark.
    Believed,
    /// The message is another one, or was never there, or was removed.
    Wrong,
}

impl Standing {
    /// Without a consumer everything is still to be handed out: a processor makes one that begins with the first message.
    pub(super) fn of(consumer: Option<&consumer::Info>) -> Self {
        consumer.map_or(Self { delivered: 0, floor: 0, unacknowledged: 0 }, |info| Self {
            delivered: info.delivered.stream_sequence,
            floor: info.ack_floor.stream_sequence,
            unacknowledged: info.num_ack_pending,
        })
    }

    /// Whether the end at this place may still be processed. One that used up its deliveries stands above the floor until
    /// the next acknowledgement, and only while others are not acknowledged it cannot be told from those.
    pub(super) fn may_come(self, end: u64) -> bool {
        let waits = end > self.delivered;
        let in_hand = end > self.floor && self.unacknowledged > 0;
        end > 0 && (waits || in_hand)
    }
}

impl Verdict {
    /// Whether its end is published again where repair is asked for.
    pub(super) fn is_repairable(self) -> bool {
        match self.problem {
            Some(Problem::Missing | Problem::WrongMark | Problem::NeverAnnounced | Problem::Stale) => true,
            Some(Problem::DeadLetter) | None => false,
        }
    }
}

/// Judges a session whose stored segments are of this version.
pub(super) fn judge(
    seen: &SessionRecord,
    stored: Option<&Stored>,
    mark: Mark,
    version: TranscriptVersion,
    standing: Standing,
) -> Verdict {
    let is_believed = mark == Mark::Believed;
    let is_marked = is_believed && stored.is_some_and(|stored| stored.notified.is_some());
    let announced = is_marked || seen.notifications > 0;
    let is_settled = is_believed && stored.is_some_and(|stored| stored.is_settled(version));
    let given_up = seen.dead_letter > 0 && seen.about >= seen.last_end && !is_settled;
    // Somebody looked at it and decided that nothing more is to come of it.
    let discarded = seen.discarded > 0 && seen.discarded >= seen.last_end;
    let unended = seen.unended.filter(|unended| match unended {
        Unended::Abandoned | Unended::Awaited => true,
        Unended::Unpublished => stored.is_none() && !discarded && !given_up,
    });
    let lack = match stored {
        _ if discarded => None,
        _ if given_up => Some(Problem::DeadLetter),
        // It is to end first.
        None if unended == Some(Unended::Unpublished) => None,
        // A notification alone says too that the call ended.
        None if seen.ends > 0 || seen.notifications > 0 => Some(Problem::Missing),
        Some(_) if !is_believed => Some(Problem::WrongMark),
        Some(_) if !announced => Some(Problem::NeverAnnounced),
        Some(stored) if stored.is_stale_with(version) => Some(Problem::Stale),
        Some(_) | None => None,
    };
    // A processor that finds a mark believes it.
    let may_come = is_believed && standing.may_come(seen.last_end);
    let under_way = !given_up && lack.is_some() && may_come;
    Verdict {
        announced,
        under_way,
        discarded,
        announced_again: seen.notifications > 1,
        unended,
        problem: lack.filter(|_| !under_way),
    }
}

#[cfg(test)]
mod tests {
    use transcript_core::{Notified, WallTime};

    use super::*;

    const DONE: Standing = Standing { delivered: 100, floor: 100, unacknowledged: 0 };

    const THREE: TranscriptVersion = TranscriptVersion { segments: 3, edits: 0 };

    fn ended(last_end: u64) -> SessionRecord {
        SessionRecord { last_end, ends: 1, ..SessionRecord::default() }
    }

    fn summary(segments: u64, mark: Option<u64>) -> Stored {
        let notified = mark.map(|stream_sequence| Notified { stream_sequence, at: WallTime::from_millis(0) });
        Stored { segments, complete: true, notified, revision: 1, revised: None, edits: 0, reprocess: 0 }
    }

    fn problem(
        seen: SessionRecord,
        stored: Option<Stored>,
        segments: u64,
        standing: Standing,
    ) -> (Option<Problem>, bool) {
        let version = TranscriptVersion { segments, edits: 0 };
        let verdict = judge(&seen, stored.as_ref(), Mark::Believed, version, standing);
        (verdict.problem, verdict.under_way)
    }

    #[test]
    fn a_session_has_the_first_problem_of_its_row() {
        let dead_letter = |about| SessionRecord { dead_letter: 50, about, ..ended(10) };
        let told = SessionRecord { notifications: 1, ..ended(10) };
        let orphan = SessionRecord::default();
        let (marked, unmarked) = (Some(summary(3, Some(11))), Some(summary(3, None)));
        let rows = [
            (ended(10), None, 0, Some(Problem::Missing)),
            (told, None, 0, Some(Problem::Missing)),
            (SessionRecord { last_end: 0, ends: 0, ..told }, None, 0, Some(Problem::Missing)),
            (ended(10), unmarked, 3, Some(Problem::NeverAnnounced)),
            (orphan, unmarked, 3, Some(Problem::NeverAnnounced)),
            (orphan, None, 0, None),
            (ended(10), unmarked, 9, Some(Problem::NeverAnnounced)),
            (told, unmarked, 3, None),
            (told, unmarked, 4, Some(Problem::Stale)),
            (ended(10), marked, 3, None),
            (ended(10), marked, 2, None),
            (ended(10), marked, 4, Some(Problem::Stale)),
            (dead_letter(10), None, 0, Some(Problem::DeadLetter)),
            (dead_letter(10), unmarked, 3, Some(Problem::DeadLetter)),
            (dead_letter(10), marked, 3, None),
            (dead_letter(10), marked, 4, Some(Problem::DeadLetter)),
            (dead_letter(9), marked, 4, Some(Problem::Stale)),
            (SessionRecord { discarded: 10, ..ended(10) }, None, 0, None),
            (SessionRecord { discarded: 9, ..ended(10) }, None, 0, Some(Problem::Missing)),
            (dead_letter(9), None, 0, Some(Problem::Missing)),
            (SessionRecord { last_end: 0, ends: 0, ..dead_letter(10) }, None, 0, Some(Problem::DeadLetter)),
        ];
        for (place, (seen, stored, segments, expected)) in rows.into_iter().enumerate() {
            assert_eq!(problem(seen, stored, segments, DONE), (expected, false), "row {place}: {seen:?}");
        }
    }

    #[test]
    fn a_session_without_an_end_is_to_be_ended_unless_it_was_processed() {
        let unended = |unended, stored: Option<Stored>| {
            let seen = SessionRecord { unended: Some(unended), ..SessionRecord::default() };
            judge(&seen, stored.as_ref(), Mark::Believed, THREE, DONE)
        };
        let marked = Some(summary(3, Some(11)));
        for (is, stored, expected) in [
            (Unended::Abandoned, None, Some(Unended::Abandoned)),
            // Late segments opened it again.
            (Unended::Abandoned, marked, Some(Unended::Abandoned)),
            (Unended::Awaited, None, Some(Unended::Awaited)),
            (Unended::Unpublished, None, Some(Unended::Unpublished)),
            (Unended::Unpublished, marked, None),
        ] {
            let verdict = unended(is, stored);
            assert_eq!((verdict.unended, verdict.problem), (expected, None), "{is:?}");
        }
        let kept = SessionRecord { unended: Some(Unended::Unpublished), dead_letter: 50, about: 10, ..ended(10) };
        let verdict = judge(&kept, None, Mark::Believed, TranscriptVersion::default(), DONE);
        assert_eq!((verdict.unended, verdict.problem), (None, Some(Problem::DeadLetter)));
    }

    #[test]
    fn what_may_still_come_is_under_way() {
        let busy = Standing { delivered: 20, floor: 10, unacknowledged: 2 };
        let idle = Standing { unacknowledged: 0, ..busy };
        for (end, standing, under_way) in [
            (10, busy, false),
            (11, busy, true),
            (20, busy, true),
            (21, busy, true),
            (11, idle, false),
            (21, idle, true),
        ] {
            let missing = (!under_way).then_some(Problem::Missing);
            assert_eq!(problem(ended(end), None, 0, standing), (missing, under_way), "{end} {standing:?}");
        }
        assert_eq!(problem(ended(11), Some(summary(3, Some(12))), 3, busy), (None, false), "it lacks nothing");
        assert_eq!(problem(ended(11), Some(summary(3, Some(12))), 4, busy), (None, true));
        assert_eq!(problem(ended(1), None, 0, Standing::of(None)), (None, true));
        let given_up = SessionRecord { dead_letter: 15, about: 11, ..ended(11) };
        assert_eq!(problem(given_up, None, 0, busy), (Some(Problem::DeadLetter), false));
    }

    #[test]
    fn a_segment_that_was_changed_makes_its_summary_stale() {
        let edited = |edits| TranscriptVersion { edits, ..THREE };
        let marked = Stored { edits: 1, ..summary(3, Some(11)) };
        for (version, problem) in [(THREE, None), (edited(1), None), (edited(2), Some(Problem::Stale))] {
            assert_eq!(judge(&ended(10), Some(&marked), Mark::Believed, version, DONE).problem, problem, "{version:?}");
        }
    }

    #[test]
    fn two_notifications_are_one_too_many_whatever_else_is() {
        let seen = SessionRecord { notifications: 2, ..ended(30) };
        for standing in [DONE, Standing { delivered: 20, floor: 10, unacknowledged: 2 }] {
            let verdict = judge(&seen, Some(&summary(3, Some(11))), Mark::Believed, THREE, standing);
            assert!(verdict.announced_again && verdict.problem.is_none() && !verdict.is_repairable());
        }
    }

    #[test]
    fn a_mark_that_names_another_message_is_no_announcement() {
        let busy = Standing { delivered: 20, floor: 9, unacknowledged: 2 };
        let marked = summary(3, Some(11));
        let told = SessionRecord { notifications: 1, ..ended(10) };
        for (seen, announced) in [(ended(10), false), (told, true)] {
            for standing in [DONE, busy] {
                let verdict = judge(&seen, Some(&marked), Mark::Wrong, THREE, standing);
                assert_eq!((verdict.problem, verdict.announced), (Some(Problem::WrongMark), announced), "{seen:?}");
                assert!(verdict.is_repairable() && !verdict.under_way);
            }
        }
        let given_up = SessionRecord { dead_letter: 15, about: 10, ..ended(10) };
        let verdict = judge(&given_up, Some(&marked), Mark::Wrong, THREE, DONE);
        assert_eq!(verdict.problem, Some(Problem::DeadLetter), "the mark does not settle it");
    }
}
