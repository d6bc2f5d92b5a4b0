//! Writes a trace into one file after the other.

use std::{
    io::{self, Write},
    mem,
    time::Duration,
};

use super::{files::Place, machine::Machine, tape::TapedInput};
use transcript_core::{Processor, Time};

/// How many bytes are gathered at most before they are written.
const GATHERED: usize = 256 << 10;
/// What the buffer keeps of the room that a large page took.
const ROOM: usize = 1 << 20;
/// What is said in the trace where the driver found the tape full.
const FULL: &str = "the recorder could not keep up";

/// When a file is followed by another one, and when a failure is tried again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rotation {
    pub(super) max_bytes: u64,
    pub(super) max_age: Duration,
    pub(super) retry: Duration,
}

/// A trace that is being written. Whole lines are gathered and written together, so that a kill leaves whole lines; where
/// writing fails, what was gathered is left out.
#[derive(Debug)]
pub(super) struct Writer<P: Place, M: Machine = Processor> {
    place: P,
    rotation: Rotation,
    recorder: M::Recorder,
    file: File<P::File>,
    /// The number of the last file that was written to.
    number: u32,
    /// Inputs of which the lines are gathered.
    gathered: u64,
    /// Inputs that are left out because writing failed, of which nothing is said yet.
    left_out: u64,
    /// All inputs that were left out since the start.
    all_left_out: u64,
    now: Time,
}

#[derive(Debug)]
enum File<F> {
    Open {
        file: F,
        bytes: u64,
        since: Time,
        /// The number of the file before it.
        before: u32,
    },
    Failing {
        /// When to try again.
        retry: Time,
        why: String,
    },
}

impl<P: Place, M: Machine> Writer<P, M> {
    /// Begins the first file. `recorder` has written its header.
    pub(super) fn start(mut place: P, rotation: Rotation, mut recorder: M::Recorder, now: Time) -> io::Result<Self> {
        place.make_room(rotation.max_bytes);
        let (mut file, number) = create(&mut place, 1)?;
        let header = mem::take(M::lines(&mut recorder));
        if let Err(error) = file.write_all(&header) {
            place.cut_back(&mut file, number, 0)?;
            return Err(error);
        }
        let file = File::Open { file, bytes: length(&header), since: now, before: number };
        Ok(Self { place, rotation, recorder, file, number, gathered: 0, left_out: 0, all_left_out: 0, now })
    }

    /// The file that is written to.
    pub(super) fn file(&self) -> String {
        self.place.name(self.number)
    }

    /// Whether something is gathered that is not written.
    pub(super) fn is_behind(&self) -> bool {
        self.gathered > 0
    }

    /// Whether it cannot write now, and how many inputs were left out since the start.
    pub(super) fn health(&self) -> (bool, u64) {
        (matches!(self.file, File::Failing { .. }), self.all_left_out)
    }

    /// Takes what the state machine was told.
    pub(super) fn write(&mut self, told: TapedInput<M>) {
        self.now = self.now.max(told.at);
        self.lost(told.lost_before);
        self.turn_over();
        if let File::Failing { .. } = self.file {
            self.leave_out(1);
            return;
        }
        self.gathered += 1;
        if let Err(error) = M::record(&mut self.recorder, told.at, told.answer, told.input) {
            self.fail(&error.to_string(), self.rotation.retry);
        } else if M::lines(&mut self.recorder).len() >= GATHERED {
            self.flush();
        }
    }

    /// Writes what is gathered.
    pub(super) fn flush(&mut self) {
        let lines = M::lines(&mut self.recorder);
        let File::Open { file, bytes, .. } = &mut self.file else { return };
        if lines.is_empty() {
            return;
        }
        if !self.place.is_there(file) {
            // Somebody wanted the room, or moved the directory away. There may be another one.
            self.fail("the file was removed", Duration::ZERO);
            return;
        }
        match file.write_all(lines) {
            Ok(()) => {
                *bytes += length(lines);
                lines.clear();
                lines.shrink_to(ROOM);
                self.gathered = 0;
                self.left_out = 0;
            }
            Err(error) => self.fail(&error.to_string(), self.rotation.retry),
        }
    }

    /// Writes the rest, and says what is not there.
    pub(super) fn finish(mut self, lost: u64) {
        self.lost(lost);
        self.flush();
        if self.left_out > 0 {
            tracing::warn!(inputs = self.left_out, "the trace ends early: it could not be written");
        }
    }

    /// Says that the driver left something out.
    fn lost(&mut self, inputs: u64) {
        if inputs == 0 {
            return;
        }
        match self.file {
            File::Failing { .. } => self.leave_out(inputs),
            File::Open { .. } => {
                self.all_left_out += inputs;
                tracing::info!(inputs, "inputs were left out of the trace: the recorder could not keep up");
                if let Err(error) = M::lost(&mut self.recorder, self.now, inputs, FULL) {
                    self.fail(&error.to_string(), self.rotation.retry);
                }
            }
        }
    }

    /// Goes on in another file where it is time for that.
    fn turn_over(&mut self) {
        let (now, gathered) = (self.now, length(M::lines(&mut self.recorder)));
        let Rotation { max_bytes, max_age, .. } = self.rotation;
        if let File::Open { bytes, since, .. } = &self.file {
            if bytes + gathered < max_bytes && now.since(*since) < max_age {
                return;
            }
            self.flush();
        }
        match &self.file {
            File::Open { .. } => {
                if let Err(error) = self.go_on() {
                    self.fail(&error.to_string(), self.rotation.retry);
                }
            }
            File::Failing { retry, why } if *retry <= now => {
                let why = format!("the trace could not be written: {why}");
                let left_out = self.left_out;
                let gone_on = self.go_on().and_then(|()| M::lost(&mut self.recorder, now, left_out, &why));
                // What was left out is said in its first lines: they must be there before it counts as going on.
                match gone_on {
                    Ok(()) => self.flush(),
                    Err(error) => self.fail(&error.to_string(), self.rotation.retry),
                }
                if let File::Open { .. } = self.file {
                    tracing::warn!(file = self.file(), inputs = left_out, "the trace goes on; inputs were left out");
                }
            }
            File::Failing { .. } => {}
        }
    }

    /// Begins the next file.
    fn go_on(&mut self) -> io::Result<()> {
        let before = self.file();
        self.place.make_room(self.rotation.max_bytes);
        let (file, number) = create(&mut self.place, self.number + 1)?;
        M::go_on(&mut self.recorder, &before)?;
        self.file = File::Open { file, bytes: 0, since: self.now, before: self.number };
        self.number = number;
        Ok(())
    }

    /// Leaves out what is gathered, and tries again later.
    fn fail(&mut self, why: &str, pause: Duration) {
        let retry = self.now.after(pause);
        let failing = File::Failing { retry, why: why.to_owned() };
        match mem::replace(&mut self.file, failing) {
            File::Open { mut file, bytes, before, .. } => {
                if self.left_out == 0 {
                    tracing::warn!(
                        file = self.file(),
                        why,
                        "the trace cannot be written: inputs are left out until it can"
                    );
                }
                // A line that was begun ends nowhere. Where it cannot be taken back, readers stop at the line before it.
                if let Err(error) = self.place.cut_back(&mut file, self.number, bytes) {
                    tracing::debug!(%error, "the trace's file cannot be cut back to whole lines");
                }
                if bytes == 0 {
                    self.number = before;
                }
            }
            File::Failing { .. } => tracing::debug!(why, "the trace still cannot be written"),
        }
        M::lines(&mut self.recorder).clear();
        let gathered = mem::take(&mut self.gathered);
        self.leave_out(gathered);
    }

    fn leave_out(&mut self, inputs: u64) {
        self.left_out += inputs;
        self.all_left_out += inputs;
    }
}

/// Makes the first file from this number on that is not there yet.
fn create<P: Place>(place: &mut P, from: u32) -> io::Result<(P::File, u32)> {
    let mut number = from;
    loop {
        match place.create(number) {
            Ok(file) => return Ok((file, number)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < u32::MAX => number += 1,
            Err(error) => return Err(error),
        }
    }
}

fn length(lines: &[u8]) -> u64 {
    u64::try_from(lines.len()).unwrap_or(u64::MAX)
}
