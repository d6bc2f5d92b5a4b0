//! Which process a line belongs to, whatever file it is in.

use std::sync::Arc;

use transcript_core::WallTime;

use crate::{
    format::{Continues, Entry, Header, Line, TranscriberEntry, TranscriberHeader},
    read::ReadError,
};

/// The lines of a trace with the processes that they belong to.
///
/// A process goes on in another file from time to time, and the trace of another one may stand between the two. Who
/// replays, cuts, counts or draws a trace reads it through this iterator, which alone decides what goes on where.
#[derive(Debug)]
pub struct Processes<I> {
    lines: I,
    begun: usize,
    /// The processes that can go on; the one that is being read is the last.
    open: Vec<Open>,
}

/// A line and its process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessLine {
    /// A file of a process begins, or another part of the trace.
    Header(ProcessHeader),
    /// An entry of the process of the header before it.
    Entry(Box<Entry>),
    /// A file of a transcriber begins.
    TranscriberHeader(ProcessHeader<TranscriberHeader>),
    /// An entry of the transcriber of the header before it.
    TranscriberEntry(Box<TranscriberEntry>),
}

/// A header and its process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessHeader<H = Header> {
    /// The header.
    pub header: Box<H>,
    /// The process, counted from 0 in the order in which the trace first tells of them. An observer counts as one.
    pub process: usize,
    /// What was read of the process before.
    pub begin: Begin,
}

/// How a header stands to what was read before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// The process starts.
    Start,
    /// It goes on behind its last entry that was read.
    GoesOn,
    /// It goes on, and entries before this are missing: all of them, or those of a file between two.
    Gap,
}

#[derive(Debug)]
struct Open {
    number: usize,
    who: Who,
    started_at: WallTime,
    /// The number of its last entry.
    last: u64,
}

/// Whose trace it is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Who {
    Processor(Arc<str>),
    Transcriber(Arc<str>),
    Observer,
}

impl<I: Iterator<Item = Result<Line, ReadError>>> Processes<I> {
    /// Reads the lines.
    pub fn of(lines: I) -> Self {
        Self { lines, begun: 0, open: vec![] }
    }

    /// Finds the process of a header: its number, and what was read of it before.
    fn begin(&mut self, who: Who, started_at: WallTime, continues: Option<&Continues>) -> (usize, Begin) {
        let is_same = |open: &Open| open.who == who && open.started_at == started_at;
        let known = self.open.iter().rposition(|open| continues.is_some() && is_same(open));
        let mut open = match known {
            Some(known) => self.open.remove(known),
            None => {
                // A process that starts again has ended before. Observers have no name.
                self.open.retain(|open| open.who == Who::Observer || open.who != who);
                self.begun += 1;
                Open { number: self.begun - 1, who, started_at, last: 0 }
            }
        };
        let begin = match continues {
            None => Begin::Start,
            Some(before) if known.is_some() && before.entries == open.last => Begin::GoesOn,
            Some(_) => Begin::Gap,
        };
        open.last = continues.map_or(0, |before| before.entries);
        let process = open.number;
        self.open.push(open);
        (process, begin)
    }

    fn entry(&mut self, n: u64) {
        if let Some(open) = self.open.last_mut() {
            open.last = n;
        }
    }
}

impl<I: Iterator<Item = Result<Line, ReadError>>> Iterator for Processes<I> {
    type Item = Result<ProcessLine, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.lines.next()?.map(|line| match line {
            Line::Header(header) => {
                let who = header.processor.clone().map_or(Who::Observer, Who::Processor);
                let (process, begin) = self.begin(who, header.started_at, header.continues.as_ref());
                ProcessLine::Header(ProcessHeader { header, process, begin })
            }
            Line::TranscriberHeader(header) => {
                let who = Who::Transcriber(Arc::clone(&header.transcriber));
                let (process, begin) = self.begin(who, header.started_at, header.continues.as_ref());
                ProcessLine::TranscriberHeader(ProcessHeader { header, process, begin })
            }
            Line::Entry(entry) => {
                self.entry(entry.n);
                ProcessLine::Entry(entry)
            }
            Line::TranscriberEntry(entry) => {
                self.entry(entry.n);
                ProcessLine::TranscriberEntry(entry)
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use transcript_core::{Input, Settings, Time};

    use super::*;
    use crate::format::{Content, Continues, FORMAT, Said, Servers};

    /// A header of a processor, and what it goes on behind.
    fn header(name: Option<&str>, started: i64, behind: Option<u64>) -> Line {
        Line::Header(Box::new(Header {
            format: FORMAT,
            program: "a test".to_owned(),
            servers: Servers::default(),
            processor: name.map(Into::into),
            started_at: WallTime::from_millis(started),
            content: Content::Redacted,
            settings: Settings::default(),
            pull_expires: None,
            continues: behind.map(|entries| Continues { file: "before".to_owned(), entries, last_job: None }),
            session: None,
            about: None,
        }))
    }

    fn entries(numbers: std::ops::RangeInclusive<u64>) -> Vec<Line> {
        let entry = |n| Entry { n, at: Some(Time::ZERO), job: None, said: Said::In(Input::Woken) };
        numbers.map(|n| Line::Entry(Box::new(entry(n)))).collect()
    }

    fn begins(parts: Vec<(Line, std::ops::RangeInclusive<u64>)>) -> Vec<(usize, Begin)> {
        let lines = parts.into_iter().flat_map(|(header, numbers)| [vec![header], entries(numbers)].concat());
        Processes::of(lines.map(Ok))
            .filter_map(|line| match line.expect("nothing fails") {
                ProcessLine::Header(begun) => Some((begun.process, begun.begin)),
                ProcessLine::TranscriberHeader(begun) => Some((begun.process, begun.begin)),
                ProcessLine::Entry(_) | ProcessLine::TranscriberEntry(_) => None,
            })
            .collect()
    }

    #[test]
    fn a_process_goes_on_behind_its_last_entry_also_where_others_stand_between() {
        let (a, b) = (Some("a"), Some("b"));
        let parts = vec![
            (header(a, 1, None), 1..=3),
            (header(b, 2, None), 1..=2),
            (header(a, 1, Some(3)), 4..=5),
            (header(b, 2, Some(2)), 3..=3),
            (header(a, 1, Some(5)), 6..=6),
        ];
        let expected =
            [(0, Begin::Start), (1, Begin::Start), (0, Begin::GoesOn), (1, Begin::GoesOn), (0, Begin::GoesOn)];
        assert_eq!(begins(parts), expected);
    }

    #[test]
    fn what_is_missing_is_a_gap() {
        let a = Some("a");
        // The first file is missing; then one in the middle.
        let parts = vec![(header(a, 1, Some(3)), 4..=5), (header(a, 1, Some(9)), 10..=10)];
        assert_eq!(begins(parts), [(0, Begin::Gap), (0, Begin::Gap)]);
    }

    #[test]
    fn a_process_that_starts_again_is_another_one_and_the_first_goes_on_no_more() {
        let a = Some("a");
        let parts = vec![
            (header(a, 1, None), 1..=3),
            (header(a, 7, None), 1..=3),
            (header(a, 1, Some(3)), 4..=4),
            (header(None, 0, None), 1..=1),
            (header(None, 0, None), 1..=1),
        ];
        let expected = [(0, Begin::Start), (1, Begin::Start), (2, Begin::Gap), (3, Begin::Start), (4, Begin::Start)];
        assert_eq!(begins(parts), expected);
    }
}
