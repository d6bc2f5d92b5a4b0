//! What waits to be published, and what became of everything else. No I/O, no clock.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

/// How much may wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Events.
    pub(super) events: usize,
    /// Bytes of their payloads.
    pub(super) bytes: usize,
}

/// An event to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    /// `recording.<event>`
    pub(super) subject: String,
    /// `Nats-Msg-Id`.
    pub(super) id: String,
    /// `{ts, …data}`.
    pub(super) payload: Bytes,
}

impl Event {
    /// What the log calls it.
    pub(super) fn name(&self) -> &str {
        self.subject.strip_prefix("recording.").unwrap_or(&self.subject)
    }
}

/// Why an event was not published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropReason {
    /// Its name cannot be part of a subject.
    Name,
    /// Its data cannot be written as a JSON object.
    Data,
    /// It is larger than the buffer, or than the servers take.
    TooLarge,
    /// As many events as the buffer holds were waiting already.
    BufferFull,
    /// NATS did not acknowledge it for a minute on a connection that stood. It may have been stored all the same.
    Unacknowledged,
    /// The application ended, or ended its runtime, before NATS had taken it.
    Ended,
}

/// What became of the events so far.
///
/// `logged` is the sum of `published`, `waiting`, `only_logged` and all that were dropped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordingCounts {
    /// Calls of [`log`](crate::RecordingEvents::log).
    pub logged: u64,
    /// Events that the stream has acknowledged.
    pub published: u64,
    /// Events that wait to be published, the one under way included.
    pub waiting: u64,
    /// Events that were written to the log only, because there is no NATS to publish to.
    pub only_logged: u64,
    /// Events that were not published, by reason; a reason that has none is not there.
    pub dropped: BTreeMap<DropReason, u64>,
}

impl RecordingCounts {
    /// All events that were not published although there is a NATS to publish to.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.values().sum()
    }
}

/// How many names a report has at most; the events of further names are counted under [`OTHERS`].
const NAMES_IN_REPORT: usize = 32;
const OTHERS: &str = "others";

/// The bounded queue.
#[derive(Debug)]
pub(super) struct Buffer {
    bounds: Bounds,
    waiting: VecDeque<Event>,
    bytes: usize,
    counts: RecordingCounts,
    /// Dropped events that no report has named yet.
    unreported: BTreeMap<(DropReason, String), u64>,
}

impl Buffer {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            waiting: VecDeque::new(),
            bytes: 0,
            counts: RecordingCounts::default(),
            unreported: BTreeMap::new(),
        }
    }

    /// Takes an event in, or says why not. What waits already is older, and stays.
    pub(super) fn push(&mut self, event: Event) -> Result<(), DropReason> {
        self.counts.logged += 1;
        let size = event.payload.len();
        let reason = if size > self.bounds.bytes {
            DropReason::TooLarge
        } else if self.waiting.len() >= self.bounds.events || self.bytes + size > self.bounds.bytes {
            self.report_later(DropReason::BufferFull, event.name());
            DropReason::BufferFull
        } else {
            self.bytes += size;
            self.waiting.push_back(event);
            return Ok(());
        };
        self.count_dropped(reason);
        Err(reason)
    }

    /// Counts an event that cannot be published at all.
    pub(super) fn reject(&mut self, reason: DropReason) {
        self.counts.logged += 1;
        self.count_dropped(reason);
    }

    /// Counts an event that was only to be logged.
    pub(super) fn only_logged(&mut self) {
        self.counts.logged += 1;
        self.counts.only_logged += 1;
    }

    /// The oldest event. It stays until it is [published](Self::published) or [given up](Self::give_up).
    pub(super) fn oldest(&self) -> Option<&Event> {
        self.waiting.front()
    }

    /// The stream has the oldest event.
    pub(super) fn published(&mut self) {
        if self.remove_oldest().is_some() {
            self.counts.published += 1;
        }
    }

    /// The oldest event will not be published.
    pub(super) fn give_up(&mut self, reason: DropReason) {
        if self.remove_oldest().is_some() {
            self.count_dropped(reason);
        }
    }

    /// Nobody will publish what waits.
    pub(super) fn give_up_all(&mut self) {
        while let Some(event) = self.remove_oldest() {
            self.count_dropped(DropReason::Ended);
            self.report_later(DropReason::Ended, event.name());
        }
    }

    pub(super) fn counts(&self) -> RecordingCounts {
        let waiting = u64::try_from(self.waiting.len()).unwrap_or(u64::MAX);
        RecordingCounts { waiting, ..self.counts.clone() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The dropped events that were not reported before: for each reason how many, and how many of each name.
    pub(super) fn report(&mut self) -> BTreeMap<DropReason, Report> {
        let mut reports: BTreeMap<DropReason, Report> = BTreeMap::new();
        for ((reason, name), number) in std::mem::take(&mut self.unreported) {
            let report = reports.entry(reason).or_default();
            report.events += number;
            report.names.push((name, number));
        }
        reports
    }

    fn remove_oldest(&mut self) -> Option<Event> {
        let event = self.waiting.pop_front()?;
        self.bytes -= event.payload.len();
        Some(event)
    }

    fn count_dropped(&mut self, reason: DropReason) {
        *self.counts.dropped.entry(reason).or_default() += 1;
    }

    fn report_later(&mut self, reason: DropReason, name: &str) {
        // A name that is known is counted without a copy of it, which is all that happens a million times in an outage.
        let is_known = self.unreported.iter_mut().find(|((of, known), _)| *of == reason && known == name);
        if let Some((_, number)) = is_known {
            *number += 1;
            return;
        }
        let name = if self.unreported.len() < NAMES_IN_REPORT { name } else { OTHERS };
        *self.unreported.entry((reason, name.to_owned())).or_default() += 1;
    }
}

/// Dropped events of one reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) events: u64,
    pub(super) names: Vec<(String, u64)>,
}

impl Report {
    /// `stored: 3, deleted: 1`
    pub(super) fn names(&self) -> String {
        self.names.iter().map(|(name, number)| format!("{name}: {number}")).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: Bounds = Bounds { events: 4, bytes: 20 };

    fn event(number: usize, name: &str, size: usize) -> Event {
        Event { subject: format!("recording.{name}"), id: number.to_string(), payload: vec![b'x'; size].into() }
    }

    #[test]
    fn a_full_buffer_keeps_what_is_older_and_names_what_it_drops() {
        let mut buffer = Buffer::new(BOUNDS);
        for number in 0..3 {
            assert_eq!(buffer.push(event(number, "old", 5)), Ok(()));
        }
        assert_eq!(buffer.push(event(3, "stored", 6)), Err(DropReason::BufferFull));
        assert_eq!(buffer.push(event(4, "huge", 21)), Err(DropReason::TooLarge));
        assert_eq!(buffer.push(event(5, "deleted", 5)), Ok(()));
        assert_eq!(buffer.push(event(6, "stored", 0)), Err(DropReason::BufferFull));
        let report = buffer.report();
        assert_eq!(report.keys().collect::<Vec<_>>(), [&DropReason::BufferFull]);
        let full = &report[&DropReason::BufferFull];
        assert_eq!((full.events, full.names().as_str()), (2, "stored: 2"));
        assert!(buffer.report().is_empty(), "each is reported once");
        assert_eq!(buffer.oldest().map(|event| event.id.as_str()), Some("0"));
    }

    #[test]
    fn a_report_has_few_names_however_many_there_are() {
        let mut buffer = Buffer::new(Bounds { events: 0, bytes: 100 });
        for number in 0..1000 {
            assert!(buffer.push(event(number, &format!("name-{number}"), 1)).is_err());
        }
        let report = &buffer.report()[&DropReason::BufferFull];
        assert_eq!(report.events, 1000);
        assert_eq!(report.names.len(), NAMES_IN_REPORT + 1);
        assert!(report.names().contains("others: 968"), "{}", report.names());
    }

    #[derive(Debug, Clone)]
    enum Step {
        Push(usize),
        Reject,
        Publish,
        GiveUp,
        Report,
        End,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0_usize..25).prop_map(Step::Push),
            1 => Just(Step::Reject),
            4 => Just(Step::Publish),
            1 => Just(Step::GiveUp),
            1 => Just(Step::Report),
            1 => Just(Step::End),
        ]
    }

    proptest! {
        /// What comes out is what went in, in its order, without what was dropped; and each event is counted once.
        #[test]
        fn events_keep_their_order_and_each_is_counted_once(steps in prop::collection::vec(step(), 0..200)) {
            let mut buffer = Buffer::new(BOUNDS);
            let (mut accepted, mut out) = (VecDeque::new(), Vec::new());
            let (mut logged, mut published, mut dropped, mut to_report, mut reported) = (0, 0, 0, 0, 0);
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Push(size) => {
                        logged += 1;
                        match buffer.push(event(number, &format!("n{}", number % 3), size)) {
                            Ok(()) => accepted.push_back(number.to_string()),
                            Err(reason) => {
                                dropped += 1;
                                to_report += u64::from(reason == DropReason::BufferFull);
                            }
                        }
                    }
                    Step::Reject => {
                        (logged, dropped) = (logged + 1, dropped + 1);
                        buffer.reject(DropReason::Name);
                    }
                    Step::Publish => {
                        let oldest = buffer.oldest().map(|event| event.id.clone());
                        prop_assert_eq!(oldest.as_ref(), accepted.front());
                        buffer.published();
                        published += u64::from(oldest.is_some());
                        out.extend(accepted.pop_front());
                    }
                    Step::GiveUp => {
                        buffer.give_up(DropReason::Unacknowledged);
                        dropped += u64::from(accepted.pop_front().is_some());
                    }
                    Step::Report => reported += buffer.report().values().map(|report| report.events).sum::<u64>(),
                    Step::End => {
                        let ended = accepted.drain(..).count() as u64;
                        (dropped, to_report) = (dropped + ended, to_report + ended);
                        buffer.give_up_all();
                        prop_assert!(buffer.is_empty());
                    }
                }
                let counts = buffer.counts();
                prop_assert!(counts.waiting <= BOUNDS.events as u64);
                prop_assert!(buffer.bytes <= BOUNDS.bytes);
                prop_assert_eq!((counts.logged, counts.published, counts.dropped()), (logged, published, dropped));
                prop_assert_eq!(counts.waiting, accepted.len() as u64);
                prop_assert_eq!(counts.logged, counts.published + counts.waiting + counts.dropped());
            }
            reported += buffer.report().values().map(|report| report.events).sum::<u64>();
            prop_assert_eq!(reported, to_report);
            prop_assert!(out.iter().map(|id| id.parse::<usize>().unwrap()).is_sorted());
        }
    }
}
