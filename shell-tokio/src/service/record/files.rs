//! The files of a trace: their names, and how much there is of them.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use transcript_core::WallTime;

use crate::private_files;

/// How a trace's file ends.
const SUFFIX: &str = ".jsonl";
/// What of a processor's name is in the names of its files, in bytes.
const NAME_BYTES: usize = 100;
/// What a file is called by, of a processor's name. A dot at the start would hide the file.
const UNSAFE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');

/// Where the files of a trace are made.
pub(super) trait Place {
    /// A file.
    type File: Write;
    /// Makes the file of this number. One that is there already is never written over.
    fn create(&mut self, number: u32) -> io::Result<Self::File>;
    /// What the file of this number is called.
    fn name(&self, number: u32) -> String;
    /// Whether the file still has its name.
    fn is_there(&self, file: &Self::File) -> bool;
    /// Takes back what was written behind these bytes; a file of none is removed.
    fn cut_back(&mut self, file: &mut Self::File, number: u32, bytes: u64) -> io::Result<()>;
    /// Removes old files, so that one of so many bytes has room.
    fn make_room(&mut self, bytes: u64);
}

/// A directory.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    stem: String,
    /// What all traces in it may take.
    keep: u64,
}

/// What the files of a processor's trace begin with: its name, when it started, and its process. In the order of their names
/// they are in the order of their making.
#[must_use]
pub fn file_stem(processor: &str, started_at: WallTime, pid: u32) -> String {
    let name = utf8_percent_encode(processor, UNSAFE).to_string();
    // What is encoded is ASCII.
    let name = name[..name.len().min(NAME_BYTES)].trim_start_matches('.');
    let millis = u64::try_from(started_at.as_millis()).unwrap_or(0);
    let started = humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(millis)).to_string();
    format!("{name}-{}-{pid}", started.replace(['-', ':'], ""))
}

/// Whether a file of this name is one of a trace that a processor recorded.
#[must_use]
pub fn is_trace_file(name: &str) -> bool {
    let is_number: fn(&str) -> bool = |part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_moment: fn(&str) -> bool = |part| {
        part.len() == "20261129T224858.123Z".len() && part.ends_with('Z') && part.as_bytes().get(8) == Some(&b'T')
    };
    let Some(name) = name.strip_suffix(SUFFIX) else { return false };
    let mut parts = name.rsplitn(4, '-');
    let ends = [is_number, is_number, is_moment].iter().all(|is| parts.next().is_some_and(is));
    ends && parts.next().is_some()
}

impl Directory {
    pub(super) fn new(path: PathBuf, stem: String, keep: u64) -> Self {
        Self { path, stem, keep }
    }

    /// The traces in it, the one that was written to longest ago first, with their sizes. Only regular files are traces.
    fn traces(&self) -> io::Result<Vec<(SystemTime, PathBuf, u64)>> {
        let mut traces = vec![];
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if !entry.file_name().to_str().is_some_and(is_trace_file) {
                continue;
            }
            // Of the entry itself, not of what a link leads to. What is gone by now needs no room.
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_file() {
                traces.push((metadata.modified()?, entry.path(), metadata.len()));
            } else {
                tracing::warn!(
                    file = %entry.path().display(),
                    "this has the name of a trace, but is no regular file: it is left alone"
                );
            }
        }
        traces.sort_unstable();
        Ok(traces)
    }

    /// Removes the oldest traces. One that cannot be removed, as another user's, does not keep the next one.
    fn remove_oldest(&self, bytes: u64) -> io::Result<()> {
        let traces = self.traces()?;
        let mut taken = traces.iter().map(|(_, _, bytes)| bytes).sum::<u64>().saturating_add(bytes);
        for (_, path, bytes) in traces {
            if taken <= self.keep {
                break;
            }
            if is_in_use(&path) {
                continue;
            }
            match fs::remove_file(&path) {
                Ok(()) => tracing::info!(
                    file = %path.display(), bytes,
                    "removed the oldest trace: there are more than --record-keep in the directory"
                ),
                // Another processor was faster.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!(file = %path.display(), %error, "an old trace cannot be removed: it is left alone");
                    continue;
                }
            }
            taken = taken.saturating_sub(bytes);
        }
        Ok(())
    }
}

impl Place for Directory {
    type File = File;

    fn create(&mut self, number: u32) -> io::Result<File> {
        private_files::create_directories(&self.path).map_err(|error| {
            // Something else has the directory's name: it is not the file that is there already.
            let is_taken = error.kind() == io::ErrorKind::AlreadyExists;
            if is_taken { io::ErrorKind::NotADirectory.into() } else { error }
        })?;
        let file = private_files::create_new(&self.path.join(self.name(number)))?;
        // Keeps other processors from removing it. Where the file system has no locks, that it is young keeps it as well.
        if let Err(error) = file.try_lock() {
            tracing::debug!(%error, "the trace's file cannot be locked");
        }
        Ok(file)
    }

    fn name(&self, number: u32) -> String {
        format!("{}-{number:05}{SUFFIX}", self.stem)
    }

    fn is_there(&self, file: &File) -> bool {
        file.metadata().is_ok_and(|metadata| metadata.nlink() > 0)
    }

    fn cut_back(&mut self, file: &mut File, number: u32, bytes: u64) -> io::Result<()> {
        if bytes == 0 { fs::remove_file(self.path.join(self.name(number))) } else { file.set_len(bytes) }
    }

    fn make_room(&mut self, bytes: u64) {
        match self.remove_oldest(bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(%error, "old traces cannot be removed"),
        }
    }
}

/// Whether a processor writes to it.
fn is_in_use(path: &Path) -> bool {
    let file = private_files::open_regular(path).ok().flatten();
    file.is_some_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}
