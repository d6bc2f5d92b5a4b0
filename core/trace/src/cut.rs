//! Cuts the trace of one session out of that of a run.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
};

use thiserror::Error;
use transcript_core::{
    Input, Processor, SettingsError, Time,
    event::SessionEnded,
    ids::{JobId, Session},
};

use crate::{
    format::{Entry, Header, LeftOut, Line, Note, Said},
    processes::{ProcessHeader, ProcessLine, Processes},
    read::ReadError,
    record::Recorder,
};

/// The session to be cut out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its id.
    pub session_id: String,
    /// Its conversation; `None` where the session's id says enough.
    pub conversation_id: Option<String>,
}

/// What was cut out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cut {
    /// Parts that concern the session.
    pub parts: u64,
    /// Its jobs.
    pub jobs: u64,
    /// How often its core, alone with this session, went another way than the one that it was recorded from. The trace says
    /// where.
    pub mismatches: u64,
}

/// Why nothing was cut out, or not all.
#[derive(Debug, Error)]
pub enum CutError {
    /// The trace cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The cut cannot be written.
    #[error("cannot write")]
    Write(#[from] io::Error),
    /// The trace holds settings that no core can have.
    #[error("the settings of a trace cannot work")]
    Settings(#[from] SettingsError),
}

/// Writes what concerns one session into `to`: a trace that replays, with the numbers of the jobs as they were.
///
/// Other sessions leave no mark in it but that time passed. Parts of transcribers are left out, because all sessions of one
/// share what it may hold in memory. A last line that is cut off is passed over.
///
/// # Errors
///
/// Reading, and writing.
pub fn cut<W: Write>(
    lines: impl Iterator<Item = Result<Line, ReadError>>,
    wanted: &Wanted,
    to: W,
) -> Result<Cut, CutError> {
    let mut cutting = Cutting {
        wanted,
        cut: Cut::default(),
        to: Some(to),
        recorder: None,
        part: None,
        messages: BTreeMap::new(),
        held: vec![],
    };
    for line in Processes::of(lines) {
        match line {
            Ok(ProcessLine::Header(begun)) => cutting.header(begun),
            Ok(ProcessLine::Entry(entry)) => cutting.entry(*entry)?,
            // What is left of a transcriber's trace would not replay.
            Ok(ProcessLine::TranscriberHeader(_) | ProcessLine::TranscriberEntry(_)) => {}
            Err(ReadError::CutOff { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    cutting.finish()
}

struct Cutting<'a, W> {
    wanted: &'a Wanted,
    cut: Cut,
    /// Until the first part concerns the session.
    to: Option<W>,
    /// From then on.
    recorder: Option<Recorder<W>>,
    part: Option<CutPart>,
    /// The session's messages, in all parts: they are the stream's.
    messages: BTreeMap<u64, Session>,
    /// What observers noted before the first job of the session: without one there is nothing to cut out.
    held: Vec<(Header, Vec<(Time, Note)>)>,
}

struct CutPart {
    header: Header,
    process: usize,
    jobs: BTreeSet<JobId>,
    /// Whether it is being written.
    begun: bool,
    /// What it was told of its end, that no job of the session saw yet.
    unseen: Vec<Input>,
    at: Time,
}

impl Wanted {
    fn is(&self, session: &Session) -> bool {
        *session.session_id == *self.session_id
            && self.conversation_id.as_ref().is_none_or(|wanted| *session.conversation_id == **wanted)
    }
}

impl<W: Write> Cutting<'_, W> {
    fn header(&mut self, ProcessHeader { header, process, .. }: ProcessHeader) {
        // Where a file is missing, the core that is told the rest goes on all the same.
        if self.part.as_ref().is_none_or(|part| part.process != process) {
            let (jobs, begun, unseen, at) = (BTreeSet::new(), false, vec![], Time::ZERO);
            self.part = Some(CutPart { header: *header, process, jobs, begun, unseen, at });
        }
    }

    fn entry(&mut self, entry: Entry) -> Result<(), CutError> {
        // The reader gives no entry before a header.
        let Some(part) = &mut self.part else { return Ok(()) };
        let at = entry.at.unwrap_or(part.at);
        part.at = at;
        match entry.said {
            Said::In(input) => {
                if let (Some(session), Some(job)) = (about(self.wanted, &mut self.messages, &input), entry.job) {
                    self.cut.jobs += u64::from(part.jobs.insert(job));
                    self.begin(Some(session))?;
                    self.tell_of_the_end(at)?;
                    self.record(at, entry.job, input)
                } else if self.concerns(&input) {
                    self.record(at, entry.job, input)
                } else {
                    self.pass(at)
                }
            }
            Said::LeftOut(left_out) => self.left_out(at, left_out),
            Said::Note(note) => self.note(at, note),
            Said::Out(_) => Ok(()),
        }
    }

    /// Begins the part, unless it has begun, behind what observers noted.
    fn begin(&mut self, session: Option<Session>) -> Result<(), CutError> {
        let Some(part) = self.part.as_mut().filter(|part| !part.begun) else { return Ok(()) };
        part.begun = true;
        let header = Header { session, continues: None, ..part.header.clone() };
        for (header, notes) in std::mem::take(&mut self.held) {
            self.open(header)?;
            if let Some(recorder) = &mut self.recorder {
                notes.into_iter().try_for_each(|(at, note)| recorder.note(at, note))?;
            }
        }
        self.open(header)
    }

    /// Tells the core to drain where its processor was told, before the first job that sees it.
    fn tell_of_the_end(&mut self, at: Time) -> Result<(), CutError> {
        let unseen = self.part.as_mut().map(|part| std::mem::take(&mut part.unseen)).unwrap_or_default();
        unseen.into_iter().try_for_each(|input| self.record(at, None, input))
    }

    fn open(&mut self, header: Header) -> Result<(), CutError> {
        self.cut.parts += 1;
        let core = Processor::new(header.settings.clone())?;
        self.recorder = match (self.recorder.take(), self.to.take()) {
            (Some(before), _) => {
                self.cut.mismatches += before.mismatches();
                Some(before.begin(header, core)?)
            }
            (None, Some(to)) => Some(Recorder::new(to, header, core)?),
            (None, None) => None,
        };
        Ok(())
    }

    fn concerns(&mut self, input: &Input) -> bool {
        let Some(part) = &mut self.part else { return false };
        match input {
            Input::Reported { effect, .. } => part.jobs.contains(&effect.job),
            // Whether other calls are taken makes no difference to this one.
            Input::Quiet | Input::Resume => false,
            Input::Drain | Input::DeliveriesStopped => {
                let is_seen = part.begun && self.recorder.as_ref().is_some_and(|recorder| recorder.in_flight() > 0);
                if !is_seen {
                    part.unseen.push(input.clone());
                }
                is_seen
            }
            Input::Consumer(consumer) => {
                if !part.begun {
                    part.header.settings.ack_wait = consumer.ack_wait;
                    part.header.settings.max_deliver = consumer.max_deliver;
                }
                part.begun
            }
            Input::Delivered(_) | Input::Exhausted(_) | Input::Stale(_) | Input::Woken => false,
        }
    }

    /// Time has passed, which is told only where it makes a difference.
    fn pass(&mut self, at: Time) -> Result<(), CutError> {
        let wake_up = self.recorder.as_ref().and_then(Recorder::wake_up);
        if wake_up.is_some_and(|wake_up| wake_up.at <= at) && self.part.as_ref().is_some_and(|part| part.begun) {
            self.record(at, None, Input::Woken)?;
        }
        Ok(())
    }

    fn record(&mut self, at: Time, job: Option<JobId>, input: Input) -> Result<(), CutError> {
        if let Some(recorder) = &mut self.recorder {
            recorder.record(at, job, input)?;
        }
        Ok(())
    }

    fn left_out(&mut self, at: Time, left_out: LeftOut) -> Result<(), CutError> {
        let Some(part) = &self.part else { return Ok(()) };
        let jobs: Vec<JobId> = left_out.jobs.iter().copied().filter(|job| part.jobs.contains(job)).collect();
        if let (Some(recorder), false) = (&mut self.recorder, jobs.is_empty()) {
            recorder.left_out(at, LeftOut { jobs, ..left_out })?;
        }
        Ok(())
    }

    fn note(&mut self, at: Time, note: Note) -> Result<(), CutError> {
        let Some(part) = &self.part else { return Ok(()) };
        match &note {
            Note::Stored { session_id, .. } if **session_id != *self.wanted.session_id => return Ok(()),
            Note::Stored { .. } | Note::Killed | Note::Frozen { .. } | Note::Away { .. } | Note::Remark(_) => {}
        }
        // What an observer saw concerns everybody.
        if part.header.processor.is_none() {
            if self.cut.jobs == 0 {
                match self.held.last_mut() {
                    Some((header, notes)) if header.started_at == part.header.started_at => notes.push((at, note)),
                    _ => self.held.push((part.header.clone(), vec![(at, note)])),
                }
                return Ok(());
            }
            self.begin(None)?;
        }
        if let (Some(recorder), Some(CutPart { begun: true, .. })) = (&mut self.recorder, &self.part) {
            recorder.note(at, note)?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Cut, CutError> {
        if let Some(recorder) = &mut self.recorder {
            self.cut.mismatches += recorder.mismatches();
            recorder.get_mut().flush()?;
        }
        Ok(self.cut)
    }
}

/// The wanted session, where the input begins a job of it or is about one of its messages.
fn about(wanted: &Wanted, messages: &mut BTreeMap<u64, Session>, input: &Input) -> Option<Session> {
    match input {
        Input::Delivered(delivery) => {
            let ended = SessionEnded::parse(&delivery.payload.0).ok().filter(|ended| wanted.is(&ended.session))?;
            messages.insert(delivery.stream_sequence, ended.session.clone());
            Some(ended.session)
        }
        Input::Stale(stale) => wanted.is(&stale.session).then(|| stale.session.clone()),
        Input::Exhausted(exhausted) => messages.get(&exhausted.stream_sequence).cloned(),
        Input::Reported { .. }
        | Input::Consumer(_)
        | Input::Woken
        | Input::Quiet
        | Input::Resume
        | Input::Drain
        | Input::DeliveriesStopped => None,
    }
}
