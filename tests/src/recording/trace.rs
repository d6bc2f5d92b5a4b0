//! A trace in memory, part by part.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

use serde::Serialize;
use thiserror::Error;
use transcript_core::{Processor, SettingsError, Time, WallTime};
use transcript_processor::service::record::is_trace_file;
use transcript_trace::{
    Entry, Follower, Header, Line, Note, ReadError, Reader, Said, TranscriberEntry, TranscriberHeader,
};

/// A trace, part by part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    /// The parts of processors and of observers.
    pub parts: Vec<TracePart>,
    /// The parts of transcribers.
    pub transcribers: Vec<TranscriberPart>,
}

/// What one transcriber recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TranscriberPart {
    /// Its first line.
    pub header: TranscriberHeader,
    /// The others.
    pub entries: Vec<TranscriberEntry>,
}

/// What one process recorded, or what was noted beside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracePart {
    /// Its first line.
    pub header: Header,
    /// The others.
    pub entries: Vec<Entry>,
}

/// Why there is no trace.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The file or the directory.
    #[error("{} cannot be read", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is no trace.
    #[error("{} is no trace", path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// What is wrong with it.
        source: ReadError,
    },
}

impl Trace {
    /// Reads a file. A last line that is cut off, as a killed process leaves one, is passed over.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is no trace.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let bytes = fs::read(path).map_err(|source| TraceError::File { path: path.to_owned(), source })?;
        Self::parse(&bytes).map_err(|source| TraceError::Read { path: path.to_owned(), source })
    }

    /// Reads what processors are recording, or have recorded, into a directory: their parts in the order of their starts.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or is no trace.
    pub fn recorded(directory: &Path) -> Result<Self, TraceError> {
        let failed = |source| TraceError::File { path: directory.to_owned(), source };
        let mut files = fs::read_dir(directory)
            .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>())
            .map_err(failed)?;
        files.retain(|file| file.file_name().and_then(OsStr::to_str).is_some_and(is_trace_file));
        // One processor's files are in the order of their names.
        files.sort_unstable();
        let mut whole = Self::default();
        for file in files {
            match Self::read(&file) {
                Ok(trace) => {
                    whole.parts.extend(trace.parts);
                    whole.transcribers.extend(trace.transcribers);
                }
                // It has just been made.
                Err(TraceError::Read { source: ReadError::Empty, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        whole.parts.sort_by_key(|part| part.header.started_at);
        whole.transcribers.sort_by_key(|part| part.header.started_at);
        Ok(whole)
    }

    fn parse(bytes: &[u8]) -> Result<Self, ReadError> {
        let mut trace = Self::default();
        for line in Reader::new(bytes) {
            match line {
                Ok(Line::Header(header)) => trace.parts.push(TracePart { header: *header, entries: vec![] }),
                Ok(Line::Entry(entry)) => trace.parts.last_mut().into_iter().for_each(|part| {
                    part.entries.push((*entry).clone());
                }),
                Ok(Line::TranscriberHeader(header)) => {
                    trace.transcribers.push(TranscriberPart { header: *header, entries: vec![] });
                }
                Ok(Line::TranscriberEntry(entry)) => {
                    trace.transcribers.last_mut().into_iter().for_each(|part| part.entries.push((*entry).clone()));
                }
                Err(ReadError::CutOff { .. }) if !(trace.parts.is_empty() && trace.transcribers.is_empty()) => {}
                Err(ReadError::CutOff { .. }) => return Err(ReadError::Empty),
                Err(error) => return Err(error),
            }
        }
        Ok(trace)
    }

    /// Its lines, each ended.
    ///
    /// # Errors
    ///
    /// Something in it cannot be JSON.
    pub fn text(&self) -> Result<String, serde_json::Error> {
        let mut text = String::new();
        for part in &self.transcribers {
            add(&mut text, &part.header, &part.entries)?;
        }
        for part in &self.parts {
            add(&mut text, &part.header, &part.entries)?;
        }
        Ok(text)
    }

    /// The parts of one processor, over all its lives.
    #[must_use]
    pub fn of(&self, processor: &str) -> Self {
        let parts = self.parts.iter().filter(|part| part.is_of(processor)).cloned().collect();
        Self { parts, transcribers: vec![] }
    }

    /// How many jobs the processors that still run have in hand.
    ///
    /// # Errors
    ///
    /// A core cannot have the settings of a part.
    pub(super) fn in_hand(&self) -> Result<usize, SettingsError> {
        let mut last = BTreeMap::new();
        for part in &self.parts {
            last.insert(part.header.processor.as_deref(), part);
        }
        last.into_values().map(TracePart::in_hand).sum()
    }

    /// The processor's part that was being written at this time.
    pub(super) fn part_of(&mut self, processor: &str, at: WallTime) -> Option<&mut TracePart> {
        let begun = |part: &&mut TracePart| part.is_of(processor) && part.header.started_at <= at;
        self.parts.iter_mut().filter(begun).last()
    }
}

fn add(text: &mut String, header: &impl Serialize, entries: &[impl Serialize]) -> Result<(), serde_json::Error> {
    text.push_str(&serde_json::to_string(header)?);
    text.push('\n');
    for entry in entries {
        text.push_str(&serde_json::to_string(entry)?);
        text.push('\n');
    }
    Ok(())
}

impl TracePart {
    fn is_of(&self, processor: &str) -> bool {
        self.header.processor.as_deref() == Some(processor)
    }

    /// How many jobs its core has in hand at its end.
    fn in_hand(&self) -> Result<usize, SettingsError> {
        let newest = self.header.continues.as_ref().and_then(|before| before.last_job);
        let mut follower = Follower::new(Processor::new(self.header.settings.clone())?, newest);
        let mut now = Time::ZERO;
        for entry in &self.entries {
            now = entry.at.unwrap_or(now);
            match &entry.said {
                Said::In(input) => drop(follower.follow(now, entry.job, input.clone())),
                Said::LeftOut(left_out) => drop(follower.leave_out(left_out)),
                Said::Out(_) | Said::Note(_) => {}
            }
        }
        Ok(follower.core().in_flight())
    }

    /// Puts a note where it belongs in the order of time.
    pub(super) fn note(&mut self, at: Time, note: Note) {
        // An output has no time of its own and stays with its input.
        let place = self.entries.iter().position(|entry| entry.at.is_some_and(|later| later > at));
        let entry = Entry { n: 0, at: Some(at), job: None, said: Said::Note(note) };
        self.entries.insert(place.unwrap_or(self.entries.len()), entry);
        let first = self.header.continues.as_ref().map_or(0, |before| before.entries);
        for (entry, n) in self.entries.iter_mut().zip(first + 1..) {
            entry.n = n;
        }
    }
}
