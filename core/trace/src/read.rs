//! Reads traces, and says what is wrong with one.

use std::{
    io::{self, BufRead, Read},
    ops::Range,
};

use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};
use thiserror::Error;
use transcript_core::WallTime;

use crate::{
    format::{Continues, Entry, FORMAT, Header, Line, TranscriberHeader},
    json_error::json_error,
};

/// The longest line, in bytes: beyond a page of the largest documents there is none.
const LONGEST_LINE: u64 = 256 << 20;

/// The longest that a process is taken to have run, in microseconds: a century.
const LATEST: u64 = 100 * 366 * 24 * 3600 * 1_000_000;
/// From when to when a process can have started, in milliseconds since the Unix epoch: until the year 3000.
const DATES: Range<i64> = 0..32_503_680_000_000;

/// The lines of a trace, checked: a part begins with its header, and no entry is missing.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    buffer: Vec<u8>,
    line: u64,
    part: Option<Part>,
    ended: bool,
}

/// The part that is being read.
#[derive(Debug, Clone, Copy)]
struct Part {
    of: PartOf,
    /// The number of its last entry.
    last: u64,
}

/// Whose part it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PartOf {
    /// A processor's, or an observer's.
    Processor,
    /// A transcriber's.
    Transcriber,
}

/// Why a trace cannot be read, or not any further.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The file.
    #[error("cannot read")]
    Io(#[from] io::Error),
    /// It has no line.
    #[error("the trace is empty")]
    Empty,
    /// The first line is no header.
    #[error("line {line} is not the first line of a trace: it has no \"transcriptTrace\"")]
    NotATrace {
        /// The line, from 1.
        line: u64,
    },
    /// Another format than [`FORMAT`].
    #[error(
        "line {line}: a trace of format {format}, written by {program}, which can read it; this program reads format {FORMAT}"
    )]
    OtherFormat {
        /// The line, from 1.
        line: u64,
        /// Its format.
        format: u64,
        /// The program that wrote it.
        program: String,
    },
    /// The last line does not end, as when the process was killed while it wrote.
    #[error("line {line} is cut off after {bytes} bytes: the trace goes as far as the line before it")]
    CutOff {
        /// The line, from 1.
        line: u64,
        /// Its length.
        bytes: usize,
    },
    /// An entry is missing.
    #[error("line {line} is entry {found} where entry {expected} should be: {}", missing(*.expected, *.found))]
    Missing {
        /// The line, from 1.
        line: u64,
        /// The number that it should have.
        expected: u64,
        /// The number that it has.
        found: u64,
    },
    /// Not a line of a trace.
    #[error("line {line} is not a line of a trace: {why}")]
    Malformed {
        /// The line, from 1.
        line: u64,
        /// Why.
        why: String,
    },
    /// Longer than any line of a trace.
    #[error("line {line} is longer than {LONGEST_LINE} bytes")]
    TooLong {
        /// The line, from 1.
        line: u64,
    },
}

fn missing(expected: u64, found: u64) -> String {
    match found.checked_sub(expected) {
        Some(1) => "one line is missing".to_owned(),
        Some(lines) => format!("{lines} lines are missing"),
        None => "lines are there twice or in another order".to_owned(),
    }
}

/// What a line must have to be a header; what else is in it depends on the format.
#[derive(Deserialize)]
struct AnyHeader {
    #[serde(rename = "transcriptTrace")]
    format: Option<u64>,
    #[serde(default)]
    program: Option<String>,
    /// Only a transcriber's has one.
    #[serde(default)]
    transcriber: Option<IgnoredAny>,
}

impl<R: BufRead> Reader<R> {
    /// Reads from here on.
    pub fn new(from: R) -> Self {
        Self { from, buffer: vec![], line: 0, part: None, ended: false }
    }

    /// The number of the line that was read last, from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    fn read(&mut self) -> Result<Option<Line>, ReadError> {
        self.buffer.clear();
        let bytes = Read::take(&mut self.from, LONGEST_LINE).read_until(b'\n', &mut self.buffer)?;
        if bytes == 0 {
            return if self.line == 0 { Err(ReadError::Empty) } else { Ok(None) };
        }
        self.line += 1;
        let line = self.line;
        if self.buffer.pop_if(|last| *last == b'\n').is_none() {
            return Err(if bytes as u64 == LONGEST_LINE {
                ReadError::TooLong { line }
            } else {
                ReadError::CutOff { line, bytes }
            });
        }
        match self.part {
            Some(part) if self.buffer.starts_with(br#"{"n":"#) => match part.of {
                PartOf::Processor => self.entry(part).map(|entry| Some(Line::Entry(Box::new(entry)))),
                PartOf::Transcriber => self.entry(part).map(|entry| Some(Line::TranscriberEntry(Box::new(entry)))),
            },
            Some(_) | None => self.header().map(Some),
        }
    }

    fn entry<I: DeserializeOwned, O: DeserializeOwned>(&mut self, part: Part) -> Result<Entry<I, O>, ReadError> {
        let line = self.line;
        let entry: Entry<I, O> = self.parse()?;
        if entry.at.is_some_and(|at| at.as_micros() > LATEST) {
            return Err(ReadError::Malformed { line, why: "no process has run for so long".to_owned() });
        }
        let expected = part.last.saturating_add(1);
        if entry.n != expected {
            return Err(ReadError::Missing { line, expected, found: entry.n });
        }
        self.part = Some(Part { last: entry.n, ..part });
        Ok(entry)
    }

    fn header(&mut self) -> Result<Line, ReadError> {
        let line = self.line;
        let any: AnyHeader = match self.parse() {
            Ok(any) => any,
            Err(error) if self.part.is_some() => return Err(error),
            Err(_) => return Err(ReadError::NotATrace { line }),
        };
        let Some(format) = any.format else { return Err(ReadError::NotATrace { line }) };
        if format != u64::from(FORMAT) {
            let program = any.program.unwrap_or_else(|| "an unknown program".to_owned());
            return Err(ReadError::OtherFormat { line, format, program });
        }
        if any.transcriber.is_some() {
            let header: TranscriberHeader = self.parse()?;
            self.begin(PartOf::Transcriber, header.started_at, header.continues.as_ref())?;
            return Ok(Line::TranscriberHeader(Box::new(header)));
        }
        let header: Header = self.parse()?;
        self.begin(PartOf::Processor, header.started_at, header.continues.as_ref())?;
        Ok(Line::Header(Box::new(header)))
    }

    fn begin(&mut self, of: PartOf, started_at: WallTime, before: Option<&Continues>) -> Result<(), ReadError> {
        if !DATES.contains(&started_at.as_millis()) {
            let why = "it started at no date of this age".to_owned();
            return Err(ReadError::Malformed { line: self.line, why });
        }
        self.part = Some(Part { of, last: before.map_or(0, |before| before.entries) });
        Ok(())
    }

    fn parse<T: DeserializeOwned>(&self) -> Result<T, ReadError> {
        let malformed = |error| ReadError::Malformed { line: self.line, why: json_error(&error) };
        serde_json::from_slice(&self.buffer).map_err(malformed)
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Line, ReadError>;

    /// Nothing more after an error.
    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let read = self.read().transpose();
        self.ended = !matches!(read, Some(Ok(_)));
        read
    }
}
