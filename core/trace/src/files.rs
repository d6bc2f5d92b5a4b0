//! Traces in files and directories, read one after the other.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
};

use thiserror::Error;
use transcript_core::WallTime;

use crate::{
    format::Line,
    read::{ReadError, Reader},
};

/// How much is read at a time, in bytes.
const BUFFER: usize = 256 << 10;

/// The lines of traces in files, in directories, and on the standard input (`-`).
///
/// The files of a directory are read in the order in which their processors started, so that a file comes behind the one
/// that it continues. A file that ends in the middle of a line, as a kill leaves one, ends with the line before it. That is
/// warned of; at the end of the last file it is also the last item, [`ReadError::CutOff`].
pub struct TraceFiles<'a> {
    warn: &'a dyn Fn(&str),
    paths: VecDeque<PathBuf>,
    reader: Option<Reader<Box<dyn BufRead>>>,
    /// The files that were begun, with the lines that were read before each.
    begun: Vec<(u64, String)>,
    read: u64,
    /// Why a file gave no line, as long as none did.
    nothing: Option<ReadError>,
}

/// Why files cannot be read.
#[derive(Debug, Error)]
pub enum FilesError {
    /// What is wrong in a file.
    #[error("{file}: {source}")]
    Trace {
        /// The file.
        file: String,
        /// What is wrong in it.
        source: ReadError,
    },
    /// The system cannot read it.
    #[error("cannot read {file}")]
    Io {
        /// The file.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// A directory without a trace.
    #[error("there is no trace (*.jsonl) in {}", .0.display())]
    NoTrace(PathBuf),
}

/// Whether a file of a directory is one of its traces.
#[must_use]
pub fn is_read_in_directory(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "jsonl")
}

/// When the processor of a trace's first part started; nothing where that cannot be read, of which reading it will say why.
fn started_at(path: &Path) -> Option<WallTime> {
    let first = Reader::new(BufReader::new(File::open(path).ok()?)).next()?;
    match first.ok()? {
        Line::Header(header) => Some(header.started_at),
        Line::TranscriberHeader(header) => Some(header.started_at),
        Line::Entry(_) | Line::TranscriberEntry(_) => None,
    }
}

impl<'a> TraceFiles<'a> {
    /// Reads these files, and those of these directories. What is cut off or empty goes to `warn`, in words.
    ///
    /// # Errors
    ///
    /// A directory that cannot be read, or has no trace. A file that cannot be read is an item of the iterator.
    pub fn open(paths: &[PathBuf], warn: &'a dyn Fn(&str)) -> Result<Self, FilesError> {
        let mut all = VecDeque::new();
        for path in paths {
            if path.is_dir() {
                let failed = |source| FilesError::Io { file: path.display().to_string(), source };
                let mut files = vec![];
                for entry in fs::read_dir(path).map_err(failed)? {
                    let file = entry.map_err(failed)?.path();
                    if is_read_in_directory(&file) && file.is_file() {
                        files.push(file);
                    }
                }
                if files.is_empty() {
                    return Err(FilesError::NoTrace(path.clone()));
                }
                // In the order in which their processors started; the files of one are in the order of their names.
                files.sort_by_cached_key(|file| (started_at(file), file.clone()));
                all.extend(files);
            } else {
                all.push_back(path.clone());
            }
        }
        Ok(Self { warn, paths: all, reader: None, begun: vec![], read: 0, nothing: None })
    }

    /// The file that is being read; empty before the first.
    #[must_use]
    pub fn file(&self) -> &str {
        self.begun.last().map_or("", |(_, file)| file)
    }

    /// The file and the line of it, for a line that is counted over all files.
    #[must_use]
    pub fn place(&self, line: u64) -> String {
        let file = self.begun.iter().rev().find(|(before, _)| *before < line);
        file.map_or_else(|| format!("line {line}"), |(before, file)| format!("{file}:{}", line - before))
    }

    /// What went wrong, with the file in which it did.
    #[must_use]
    pub fn unreadable(&self, source: ReadError) -> FilesError {
        let file = self.file().to_owned();
        match source {
            ReadError::Io(source) => FilesError::Io { file, source },
            source @ (ReadError::Empty
            | ReadError::NotATrace { .. }
            | ReadError::OtherFormat { .. }
            | ReadError::CutOff { .. }
            | ReadError::Missing { .. }
            | ReadError::Malformed { .. }
            | ReadError::TooLong { .. }) => FilesError::Trace { file, source },
        }
    }

    /// Goes on with the next file; `None` after the last.
    fn next_file(&mut self) -> Option<io::Result<&mut Reader<Box<dyn BufRead>>>> {
        let path = self.paths.pop_front()?;
        let is_stdin = path.as_os_str() == "-";
        self.begun.push((self.read, if is_stdin { "stdin".to_owned() } else { path.display().to_string() }));
        let from: Box<dyn BufRead> = if is_stdin {
            Box::new(BufReader::with_capacity(BUFFER, io::stdin()))
        } else {
            match File::open(&path) {
                Ok(file) => Box::new(BufReader::with_capacity(BUFFER, file)),
                Err(error) => return Some(Err(error)),
            }
        };
        Some(Ok(self.reader.insert(Reader::new(from))))
    }
}

/// Where not even the first line is whole, there is no line before it to which a trace could go.
fn headless(error: ReadError) -> ReadError {
    match error {
        ReadError::CutOff { line, bytes } => {
            ReadError::Malformed { line, why: format!("it is cut off after {bytes} bytes, and there is no other one") }
        }
        error @ (ReadError::Io(_)
        | ReadError::Empty
        | ReadError::NotATrace { .. }
        | ReadError::OtherFormat { .. }
        | ReadError::Missing { .. }
        | ReadError::Malformed { .. }
        | ReadError::TooLong { .. }) => error,
    }
}

impl Iterator for TraceFiles<'_> {
    type Item = Result<Line, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let reader = match &mut self.reader {
                Some(reader) => reader,
                None => match self.next_file() {
                    Some(Ok(reader)) => reader,
                    Some(Err(error)) => return Some(Err(error.into())),
                    // Files of which not a line could be read are no trace.
                    None => return self.nothing.take().map(headless).map(Err),
                },
            };
            match reader.next() {
                Some(Ok(line)) => {
                    self.read += 1;
                    self.nothing = None;
                    return Some(Ok(line));
                }
                Some(Err(error @ (ReadError::CutOff { .. } | ReadError::Empty))) => {
                    self.reader = None;
                    let was_last = self.paths.is_empty();
                    if self.read > 0 || !was_last {
                        (self.warn)(&format!("{}: {error}", self.file()));
                    }
                    if self.read == 0 {
                        self.nothing = Some(error);
                    } else if let (true, ReadError::CutOff { .. }) = (was_last, &error) {
                        return Some(Err(error));
                    }
                }
                None => self.reader = None,
                Some(Err(error)) => return Some(Err(error)),
            }
        }
    }
}
