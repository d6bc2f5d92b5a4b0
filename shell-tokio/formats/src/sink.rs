//! Where every reader puts what it has read: numbers, clocks and what is empty are treated here, the same for all.

use std::collections::VecDeque;

use crate::{
    Announcement, Broken, Call, Record, Segment,
    reader::{Cues, Faults},
    sentences::Joiner,
    times::{Clock, Millis},
};

/// A segment as a reader finds it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Draft {
    pub speaker: Option<String>,
    pub text: String,
    pub start: Millis,
    pub end: Millis,
    pub line: u64,
}

/// Collects records until they are taken.
pub(crate) struct Sink {
    records: VecDeque<Record>,
    faults: Faults,
    clock: Clock,
    next_index: u64,
    joiner: Option<Joiner>,
}

impl Sink {
    pub(crate) fn new(faults: Faults, cues: Cues) -> Self {
        let joiner = match cues {
            Cues::Keep => None,
            Cues::Join => Some(Joiner::default()),
        };
        Self { records: VecDeque::new(), faults, clock: Clock::default(), next_index: 0, joiner }
    }

    pub(crate) fn next_record(&mut self) -> Option<Record> {
        self.records.pop_front()
    }

    /// A segment of a format that numbers none. One without a visible character is no segment.
    pub(crate) fn draft(&mut self, draft: Draft) {
        if let Some(segment) = self.segment(draft) {
            self.put(segment);
        }
    }

    /// A cue: as it is, or joined with its neighbours.
    pub(crate) fn cue(&mut self, draft: Draft) {
        let Some(segment) = self.segment(draft) else { return };
        let Some(mut joiner) = self.joiner.take() else {
            self.put(segment);
            return;
        };
        joiner.push(&segment, &mut |segment| self.put(segment));
        self.joiner = Some(joiner);
    }

    /// A segment of our own: its number is that of the file, and it stays though it be empty.
    pub(crate) fn own(&mut self, call: Call, index: u64, draft: Draft) {
        let (start_ms, end_ms) = self.times(&draft);
        let Draft { speaker, text, line, .. } = draft;
        let segment = Segment { call: Some(call), index, speaker, text, start_ms, end_ms, line };
        self.records.push_back(Record::Segment(segment));
    }

    pub(crate) fn announcement(&mut self, announcement: Announcement) {
        self.records.push_back(Record::Announcement(announcement));
    }

    pub(crate) fn left_out(&mut self, broken: Broken) {
        self.records.push_back(Record::LeftOut(broken));
    }

    /// A place that cannot be read: an error, or counted and left out.
    pub(crate) fn broken(&mut self, broken: Broken) -> Result<(), Broken> {
        match self.faults {
            Faults::Refuse => Err(broken),
            Faults::LeaveOut => {
                self.left_out(broken);
                Ok(())
            }
        }
    }

    /// The file has ended.
    pub(crate) fn finish(&mut self) {
        if let Some(joiner) = self.joiner.take() {
            joiner.finish(&mut |segment| self.put(segment));
        }
    }

    fn segment(&mut self, draft: Draft) -> Option<Segment> {
        if draft.text.trim().is_empty() {
            return None;
        }
        let (start_ms, end_ms) = self.times(&draft);
        let Draft { speaker, text, line, .. } = draft;
        Some(Segment { call: None, index: 0, speaker, text, start_ms, end_ms, line })
    }

    fn put(&mut self, mut segment: Segment) {
        segment.index = self.next_index;
        self.next_index += 1;
        self.records.push_back(Record::Segment(segment));
    }

    /// An end before its start is left out: the start is what orders and plays a segment.
    fn times(&mut self, draft: &Draft) -> (Option<i64>, Option<i64>) {
        let start = self.clock.since_start(draft.start);
        let end = self.clock.since_start(draft.end).filter(|end| start.is_none_or(|start| *end >= start));
        (start, end)
    }
}
