//! Writes traces of transcribers.

use std::io::{self, Write};

use transcript_core::Time;
use transcript_transcriber::{Input, Output};

use super::redact::Redaction;
use crate::{
    format::{Content, Continues, Entry, LeftOut, Note, Said, TranscriberEntry, TranscriberHeader},
    lines::Lines,
};

/// Writes down what a transcriber's state machine is told, and what it says.
///
/// Every call writes whole lines into `W`, which may well be buffered.
#[derive(Debug)]
pub struct TranscriberRecorder<W> {
    lines: Lines<W>,
    header: TranscriberHeader,
    redaction: Redaction,
}

/// Whether an output is in a trace: waiting changes nothing.
#[must_use]
pub fn is_recorded(output: &Output) -> bool {
    match output {
        Output::Wait(_) => false,
        Output::Perform { .. }
        | Output::Send { .. }
        | Output::Close { .. }
        | Output::Read { .. }
        | Output::Notice(_)
        | Output::Stopped => true,
    }
}

impl<W: Write> TranscriberRecorder<W> {
    /// Begins a part. `secret` is a random text: it keeps the names of clients from being guessed where they are replaced.
    ///
    /// # Errors
    ///
    /// Writing.
    pub fn new(to: W, header: TranscriberHeader, secret: &str) -> io::Result<Self> {
        Ok(Self { lines: Lines::begin(to, &header)?, header, redaction: Redaction::new(secret) })
    }

    /// What the state machine was told, and what it said to it; it says something before it is told anything. Of the outputs
    /// those are written that [`is_recorded`] names.
    ///
    /// # Errors
    ///
    /// Writing.
    pub fn record(&mut self, at: Time, input: Option<Input>, outputs: Vec<Output>) -> io::Result<()> {
        let is_redacted = self.header.content == Content::Redacted;
        let mut time = Some(at);
        if let Some(input) = input {
            let input = if is_redacted { self.redaction.input(input) } else { input };
            self.entry(time.take(), Said::In(input))?;
        }
        for output in outputs.into_iter().filter(is_recorded) {
            let output = if is_redacted { self.redaction.output(output) } else { output };
            self.entry(time.take(), Said::Out(output))?;
        }
        Ok(())
    }

    /// Says that inputs were lost, whatever they were: from here on the trace does not replay.
    ///
    /// # Errors
    ///
    /// Writing.
    pub fn lost(&mut self, at: Time, inputs: u64, why: &str) -> io::Result<()> {
        self.entry(Some(at), Said::LeftOut(LeftOut { inputs, jobs: vec![], why: why.to_owned() }))
    }

    /// Something that no state machine saw.
    ///
    /// # Errors
    ///
    /// Writing.
    pub fn note(&mut self, at: Time, note: Note) -> io::Result<()> {
        self.entry(Some(at), Said::Note(note))
    }

    /// Goes on in another file; gives back the one before.
    ///
    /// # Errors
    ///
    /// Writing.
    pub fn go_on(&mut self, to: W, before: &str) -> io::Result<W> {
        let continues = Continues { file: before.to_owned(), entries: self.lines.entries(), last_job: None };
        self.lines.go_on(to, &TranscriberHeader { continues: Some(continues), ..self.header.clone() })
    }

    /// Where it writes.
    pub fn get_mut(&mut self) -> &mut W {
        self.lines.get_mut()
    }

    fn entry(&mut self, at: Option<Time>, said: Said<Input, Output>) -> io::Result<()> {
        self.lines.entry(|n| -> TranscriberEntry { Entry { n, at, job: None, said } })
    }
}
