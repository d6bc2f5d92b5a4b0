//! Reads traces, and says what is wrong with one.

use std::{
    io::{self, BufRead, Read},
    ops::Range,
};

use serde::Deserialize;
use thiserror::Error;

use crate::{
    format::{Entry, FORMAT, Header, Line},
    json_error::json_error,
};

/// The longest line, in bytes: beyond a page of the largest documents there is none.
const LONGEST_LINE: u64 = 256 << 20;

/// The longest that a processor is taken to have run, in microseconds: a century.
const LATEST: u64 = 100 * 366 * 24 * 3600 * 1_000_000;
/// From when to when a processor can have started, in milliseconds since the Unix epoch: until the year 3000.
const DATES: Range<i64> = 0..32_503_680_000_000;

/// The lines of a trace, checked: a part begins with its header, and no entry is missing.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    buffer: Vec<u8>,
    line: u64,
    /// The number of the part's last entry.
    last: Option<u64>,
    ended: bool,
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
}

impl<R: BufRead> Reader<R> {
    /// Reads from here on.
    pub fn new(from: R) -> Self {
        Self { from, buffer: vec![], line: 0, last: None, ended: false }
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
        if self.buffer.starts_with(br#"{"n":"#) && self.last.is_some() {
            self.entry().map(|entry| Some(Line::Entry(Box::new(entry))))
        } else {
            self.header().map(|header| Some(Line::Header(Box::new(header))))
        }
    }

    fn entry(&mut self) -> Result<Entry, ReadError> {
        let line = self.line;
        let entry: Entry = serde_json::from_slice(&self.buffer)
            .map_err(|error| ReadError::Malformed { line, why: json_error(&error) })?;
        if entry.at.is_some_and(|at| at.as_micros() > LATEST) {
            return Err(ReadError::Malformed { line, why: "no processor has run for so long".to_owned() });
        }
        let expected = self.last.unwrap_or(0).saturating_add(1);
        if entry.n != expected {
            return Err(ReadError::Missing { line, expected, found: entry.n });
        }
        self.last = Some(entry.n);
        Ok(entry)
    }

    fn header(&mut self) -> Result<Header, ReadError> {
        let line = self.line;
        let malformed = |error: serde_json::Error| ReadError::Malformed { line, why: json_error(&error) };
        let any: AnyHeader = match serde_json::from_slice(&self.buffer) {
            Ok(any) => any,
            Err(error) if self.last.is_some() => return Err(malformed(error)),
            Err(_) => return Err(ReadError::NotATrace { line }),
        };
        let Some(format) = any.format else { return Err(ReadError::NotATrace { line }) };
        if format != u64::from(FORMAT) {
            let program = any.program.unwrap_or_else(|| "an unknown program".to_owned());
            return Err(ReadError::OtherFormat { line, format, program });
        }
        let header: Header = serde_json::from_slice(&self.buffer).map_err(malformed)?;
        if !DATES.contains(&header.started_at.as_millis()) {
            return Err(ReadError::Malformed { line, why: "it started at no date of this age".to_owned() });
        }
        self.last = Some(header.continues.as_ref().map_or(0, |before| before.entries));
        Ok(header)
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
