//! Writes traces.

use std::io::{self, Write};

use serde::Serialize;
use transcript_core::{Input, Output, Processor, Time, WakeUp, ids::JobId};

use crate::{
    follow::{Followed, Follower},
    format::{Content, Continues, Entry, Header, LeftOut, Note, Said},
    lines::{Lines, write},
    redact::Redaction,
};

/// How many entries are written before the labels of jobs that have ended are forgotten.
const TIDY_EVERY: u64 = 4096;
/// What is kept of the room that a long line took, in bytes.
const LINE: usize = 64 << 10;

/// Writes down what a core is told, with what a second core says to it.
///
/// Every call writes whole lines into `W`, which may well be buffered.
#[derive(Debug)]
pub struct Recorder<W> {
    lines: Lines<W>,
    header: Header,
    follower: Follower,
    redaction: Redaction,
    /// The line of the input that is being taken.
    line: Vec<u8>,
    last_job: Option<JobId>,
    mismatches: u64,
}

impl<W: Write> Recorder<W> {
    /// Begins a part. `core` must be as the one that is recorded was at its start.
    ///
    /// # Errors
    ///
    /// Writing.
    pub fn new(to: W, header: Header, core: Processor) -> io::Result<Self> {
        let lines = Lines::begin(to, &header)?;
        let follower = Follower::new(core, None);
        Ok(Self {
            lines,
            header,
            follower,
            redaction: Redaction::default(),
            line: vec![],
            last_job: None,
            mismatches: 0,
        })
    }

    /// Begins another part behind this one.
    ///
    /// # Errors
    ///
    /// Writing.
    pub fn begin(self, header: Header, core: Processor) -> io::Result<Self> {
        Self::new(self.lines.into_inner(), header, core)
    }

    /// What the core was told, and the job that took it.
    ///
    /// # Errors
    ///
    /// Writing.
    pub fn record(&mut self, at: Time, job: Option<JobId>, input: Input) -> io::Result<()> {
        let input = match self.header.content {
            Content::Kept => input,
            Content::Redacted => self.redaction.redact(input, self.header.settings.limits.label_bytes),
        };
        self.last_job = self.last_job.max(job);
        // Before the core takes it: a page is too large to be copied.
        self.line.clear();
        write(&mut self.line, &BorrowedEntry { n: self.lines.entries() + 1, at, job, input: &input })?;
        match self.follower.follow(at, job, input) {
            Followed::Unknown => Ok(()),
            Followed::Taken(outputs) => self.write_line(outputs),
            Followed::OtherJob { outputs, jobs, .. } => {
                self.mismatches += 1;
                self.write_line(outputs)?;
                let why = "the core that wrote this goes another way, which it cannot follow".to_owned();
                self.left_out(at, LeftOut { inputs: 0, jobs, why })
            }
        }
    }

    /// Says that inputs were lost, whatever they were: no job that is under way is told any further.
    ///
    /// # Errors
    ///
    /// Writing.
    pub fn lost(&mut self, at: Time, inputs: u64, why: &str) -> io::Result<()> {
        let jobs = self.follower.core().jobs().collect();
        self.left_out(at, LeftOut { inputs, jobs, why: why.to_owned() })
    }

    /// Something that no core saw.
    ///
    /// # Errors
    ///
    /// Writing.
    pub fn note(&mut self, at: Time, note: Note) -> io::Result<()> {
        self.entry(Some(at), None, Said::Note(note))
    }

    /// Goes on in another file; gives back the one before.
    ///
    /// # Errors
    ///
    /// Writing.
    pub fn go_on(&mut self, to: W, before: &str) -> io::Result<W> {
        let continues = Continues { file: before.to_owned(), entries: self.lines.entries(), last_job: self.last_job };
        self.lines.go_on(to, &Header { continues: Some(continues), ..self.header.clone() })
    }

    /// Where it writes.
    pub fn get_mut(&mut self) -> &mut W {
        self.lines.get_mut()
    }

    /// How many jobs it is still being told of.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.follower.core().in_flight()
    }

    /// When the core that is followed wants to be told that time has passed.
    #[must_use]
    pub fn wake_up(&self) -> Option<WakeUp> {
        self.follower.wake_up()
    }

    /// How often the core could not be followed.
    #[must_use]
    pub fn mismatches(&self) -> u64 {
        self.mismatches
    }

    /// Says that something is missing.
    ///
    /// # Errors
    ///
    /// Writing.
    pub fn left_out(&mut self, at: Time, left_out: LeftOut) -> io::Result<()> {
        let outputs = self.follower.leave_out(&left_out);
        self.entry(Some(at), None, Said::LeftOut(left_out))?;
        outputs.into_iter().try_for_each(|output| self.entry(None, None, Said::Out(output)))
    }

    /// The line of an input, and what was said to it.
    fn write_line(&mut self, outputs: Vec<Output>) -> io::Result<()> {
        self.lines.whole_entry(&self.line)?;
        self.tidy();
        self.line.shrink_to(LINE);
        outputs.into_iter().try_for_each(|output| self.entry(None, None, Said::Out(output)))
    }

    fn entry(&mut self, at: Option<Time>, job: Option<JobId>, said: Said) -> io::Result<()> {
        self.lines.entry(|n| Entry { n, at, job, said })?;
        self.tidy();
        Ok(())
    }

    fn tidy(&mut self) {
        if self.lines.entries().is_multiple_of(TIDY_EVERY) {
            let core = self.follower.core();
            self.redaction.keep(|job| core.has(job));
        }
    }
}

/// An [`Entry`] of an input that is not given away.
#[derive(Serialize)]
struct BorrowedEntry<'a> {
    n: u64,
    at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<JobId>,
    #[serde(rename = "in")]
    input: &'a Input,
}
