//! `run --record` and `transcriber --record`: write a trace of what the state machine is told, beside the work and never in
//! its way.
//!
//! The driver puts a copy of every input into a [`Tape`]. A thread takes them out, and writes them with what is said to each
//! into files that are rotated by size and age: by a second core for a processor ([`transcript_trace::Recorder`]), by the
//! state machine itself for a transcriber ([`transcript_trace::TranscriberRecorder`]). The driver never
//! waits for it: what finds the tape full is left out, counted, and the trace says so once it goes on. Neither does a disk
//! that is full or gone hurt a job.
//!
//! It is a thread of its own, not a task: it computes and writes without a pause, and lives as long as the process.

mod files;
mod machine;
mod tape;
mod writer;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use bytesize::ByteSize;
use thiserror::Error;
use tokio::sync::oneshot;
use transcript_core::WallTime;
use transcript_trace::Content;

pub(crate) use self::tape::Copied;
use self::{
    files::Directory,
    tape::{Bounds, TapeReader},
    writer::{Rotation, Writer},
};
pub use self::{
    files::{file_stem, is_trace_file},
    machine::Machine,
    tape::Tape,
};
use crate::{cli::RecordArgs, private_files, service::clock::Clock};

/// What the tape holds at most. A burst of ten thousand calls fits in, should the recorder not get to run meanwhile.
const TAPE: Bounds = Bounds { inputs: 1 << 17, bytes: 64 << 20 };
/// Where inputs come thick and fast, what came within this time is written at once. A kill loses no more than that.
const GATHER: Duration = Duration::from_millis(5);
/// How long a trace that cannot be written is left alone before it is tried again.
const RETRY: Duration = Duration::from_secs(10);
/// How long a process that ends gives the recorder to write what is on the tape.
const FINISH: Duration = Duration::from_secs(3);

/// Whose trace it is, and what is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subject<'a> {
    /// The name of the processor or of the transcriber.
    pub name: &'a str,
    /// When it started.
    pub started_at: WallTime,
    /// Whether the words of the calls are kept.
    pub content: Content,
}

/// Where a trace goes, and how much of it there may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The directory; it is made if it is not there.
    pub directory: PathBuf,
    /// A file that has become larger is followed by another one.
    pub max_size: ByteSize,
    /// A file that has become older is followed by another one.
    pub max_age: Duration,
    /// What the traces in the directory, whoever wrote them, may take together: the oldest ones are removed.
    pub keep: ByteSize,
}

impl Target {
    /// Where the settings say; `None` where nothing is recorded.
    #[must_use]
    pub fn of(args: &RecordArgs) -> Option<Self> {
        let RecordArgs { directory, max_size, max_age, keep, .. } = args.clone();
        Some(Self { directory: directory?, max_size, max_age, keep })
    }
}

/// Why a trace was not begun.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The directory is not there and cannot be made, or no file can be written there.
    #[error("cannot record to {} (--record)", directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The system gives no thread.
    #[error("cannot start the recorder")]
    Thread(#[source] io::Error),
}

/// A recorder at work.
#[derive(Debug)]
pub struct Recording {
    ended: oneshot::Receiver<()>,
    health: Arc<RecorderHealth>,
}

/// Whether the recorder can do its work.
#[derive(Debug, Default)]
pub struct RecorderHealth {
    fails: AtomicBool,
    left_out: AtomicU64,
}

impl RecorderHealth {
    /// Whether the trace cannot be written now.
    #[must_use]
    pub fn fails(&self) -> bool {
        self.fails.load(Ordering::Relaxed)
    }

    /// How many inputs were left out of the trace since the start.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }

    fn set(&self, (fails, left_out): (bool, u64)) {
        self.fails.store(fails, Ordering::Relaxed);
        self.left_out.store(left_out, Ordering::Relaxed);
    }
}

/// Makes the directory, unless it is there, and sees whether a file can be made in it.
///
/// # Errors
///
/// Neither.
pub fn prepare(directory: &Path) -> Result<(), RecordError> {
    let failed = |source| RecordError::Directory { directory: directory.to_owned(), source };
    private_files::create_directories(directory).map_err(failed)?;
    // It has no name, or a random one, so that what a killed process leaves is in nobody's way.
    tempfile::tempfile_in(directory).map(drop).map_err(failed)
}

/// Starts to record. `recorder` has written the header of its trace.
///
/// # Errors
///
/// The first file cannot be written.
pub fn start<M: Machine>(
    target: &Target,
    subject: Subject<'_>,
    recorder: M::Recorder,
    clock: Clock,
) -> Result<(Tape<M>, Recording), RecordError> {
    let failed = |source| RecordError::Directory { directory: target.directory.clone(), source };
    let words = match subject.content {
        Content::Redacted => "the words of the calls are left out",
        Content::Kept => "the words of the calls are kept (--record-content)",
    };
    let stem = file_stem(subject.name, subject.started_at, std::process::id());
    let place = Directory::new(target.directory.clone(), stem, target.keep.as_u64());
    let rotation = Rotation { max_bytes: target.max_size.as_u64(), max_age: target.max_age, retry: RETRY };
    let writer = Writer::<_, M>::start(place, rotation, recorder, clock.now()).map_err(failed)?;
    tracing::info!(
        directory = %target.directory.display(), file = writer.file(),
        "recording: {words}"
    );
    let (tape, played) = tape::tape(TAPE);
    let (tell, ended) = oneshot::channel();
    let health = Arc::new(RecorderHealth::default());
    let shared = Arc::clone(&health);
    thread::Builder::new()
        .name("recorder".to_owned())
        .spawn(move || {
            write_down(writer, &played, clock, &shared);
            if tell.send(()).is_err() {
                tracing::debug!("the trace has ended, and nobody waits for it");
            }
        })
        .map_err(RecordError::Thread)?;
    Ok((tape, Recording { ended, health }))
}

impl Recording {
    /// Whether the recorder can do its work.
    #[must_use]
    pub fn health(&self) -> Arc<RecorderHealth> {
        Arc::clone(&self.health)
    }

    /// Waits until what was put on the tape is written, for a few seconds at most. The tape must be gone, as it is when
    /// its driver has ended.
    pub async fn finish(self) {
        match tokio::time::timeout(FINISH, self.ended).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => tracing::error!("the recorder broke down: the trace ends early"),
            Err(_) => tracing::warn!("the recorder could not write all within {FINISH:?}: the trace ends early"),
        }
    }
}

/// Writes until the tape is gone, and flushes whenever it is empty.
fn write_down<M: Machine>(
    mut writer: Writer<Directory, M>,
    played: &TapeReader<M>,
    clock: Clock,
    health: &RecorderHealth,
) {
    let mut flushed = clock.now();
    loop {
        let told = match played.at_once() {
            Some(told) => Some(told),
            None if writer.is_behind() && clock.now().since(flushed) < GATHER => {
                pause(GATHER.saturating_sub(clock.now().since(flushed)));
                continue;
            }
            None => {
                writer.flush();
                health.set(writer.health());
                flushed = clock.now();
                played.next()
            }
        };
        let Some(told) = told else { break };
        writer.write(told);
    }
    writer.finish(played.lost());
}

#[expect(clippy::disallowed_methods, reason = "waiting for an input would wake this thread for each one of a burst")]
fn pause(span: Duration) {
    thread::sleep(span);
}

#[cfg(test)]
mod tests;
