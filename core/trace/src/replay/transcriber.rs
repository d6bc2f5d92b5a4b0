//! A transcriber's part that is being replayed.

use std::collections::{BTreeMap, VecDeque};

use transcript_core::{Time, ids::Key};
use transcript_transcriber::{ClientFrame, ConnectionId, EffectId, Input, Output, SettingsError, Transcriber};

use super::{Difference, Led, Moment, REMEMBERED, Replayed, SHOWN, told_apart};
use crate::{
    format::{LeftOut, Said, TranscriberEntry, TranscriberHeader},
    processes::{Begin, ProcessHeader},
    transcriber::is_recorded,
};

/// A transcriber that is being replayed.
pub(super) struct TranscriberPart {
    header: TranscriberHeader,
    /// `None` where something is missing: from there on nothing can be compared.
    machine: Option<Transcriber>,
    /// What the state machine has said, and the trace not yet.
    said: VecDeque<Output>,
    at: Time,
    input: String,
    remembered: VecDeque<Remembered>,
    /// Which session a connection delivers to, and which one an effect is about.
    connections: BTreeMap<ConnectionId, Key>,
    effects: BTreeMap<EffectId, Key>,
}

struct Remembered {
    line: u64,
    at: Time,
    /// `None` where it is about no single session.
    key: Option<Key>,
    words: String,
}

impl TranscriberPart {
    /// Takes a header in: of a process that starts or goes on.
    pub(super) fn begin(
        parts: &mut BTreeMap<usize, Self>,
        ProcessHeader { header, process, begin }: ProcessHeader<TranscriberHeader>,
    ) -> Result<(), SettingsError> {
        let part = match (begin, parts.remove(&process)) {
            (Begin::GoesOn, Some(before)) => Self { header: *header, ..before },
            (Begin::Start, _) => {
                let machine = Transcriber::new(header.settings.clone())?;
                // The state machine of a process that has started again is not needed any more.
                parts.retain(|_, part| part.header.transcriber != header.transcriber);
                Self::new(*header, Some(machine))
            }
            (Begin::Gap | Begin::GoesOn, _) => Self::new(*header, None),
        };
        parts.insert(process, part);
        Ok(())
    }

    fn new(header: TranscriberHeader, machine: Option<Transcriber>) -> Self {
        let mut part = Self {
            header,
            machine,
            said: VecDeque::new(),
            at: Time::ZERO,
            input: "nothing yet".to_owned(),
            remembered: VecDeque::new(),
            connections: BTreeMap::new(),
            effects: BTreeMap::new(),
        };
        part.listen();
        part
    }

    pub(super) fn entry(
        &mut self,
        line: u64,
        entry: TranscriberEntry,
        replayed: &mut Replayed,
    ) -> Result<(), Box<Difference>> {
        self.at = entry.at.unwrap_or(self.at);
        if self.machine.is_none() {
            replayed.uncompared += 1;
        }
        let key = self.key(&entry.said);
        self.remember(Remembered { line, at: self.at, key: key.clone(), words: words(&entry.said) });
        match entry.said {
            Said::In(input) => {
                self.nothing_more(line, entry.n)?;
                self.input = in_words(&input);
                if let Some(machine) = &mut self.machine {
                    machine.handle(self.at, input);
                }
                self.listen();
            }
            Said::Out(_) if self.machine.is_none() => {}
            Said::Out(output) => {
                if self.said.front() != Some(&output) {
                    let says = self.said.front();
                    let core =
                        says.map_or_else(|| "says nothing more".to_owned(), |said| out_in_words(said, Some(&output)));
                    return Err(self.difference(line, entry.n, out_in_words(&output, says), core, key.as_ref()));
                }
                self.said.pop_front();
                replayed.outputs += 1;
            }
            Said::LeftOut(left_out) => {
                replayed.left_out += left_out.inputs;
                self.nothing_more(line, entry.n)?;
                self.machine = None;
            }
            Said::Note(_) => {}
        }
        Ok(())
    }

    /// Takes what the state machine says.
    fn listen(&mut self) {
        let Some(machine) = &mut self.machine else { return };
        loop {
            let output = machine.poll_output();
            let is_last = matches!(output, Output::Wait(_) | Output::Stopped);
            if is_recorded(&output) {
                self.said.push_back(output);
            }
            if is_last {
                return;
            }
        }
    }

    /// Everything that the state machine has said must have come by now.
    fn nothing_more(&mut self, line: u64, n: u64) -> Result<(), Box<Difference>> {
        let Some(said) = self.said.front() else { return Ok(()) };
        let (core, key) = (out_in_words(said, None), self.key_of_output(said));
        Err(self.difference(line, n, "says nothing more".to_owned(), core, key.as_ref()))
    }

    /// The session that an entry is about, as far as that is known. Takes note of connections and effects.
    fn key(&mut self, said: &Said<Input, Output>) -> Option<Key> {
        match said {
            Said::In(Input::Opened(opening)) => {
                let key = opening.session.key();
                self.connections.insert(opening.connection, key.clone());
                Some(key)
            }
            Said::In(Input::Frame { connection, .. }) => self.connections.get(connection).cloned(),
            Said::In(Input::Closed { connection, .. }) => self.connections.remove(connection),
            Said::In(Input::Reported { effect, .. }) => self.effects.remove(effect),
            Said::Out(output) => {
                let key = self.key_of_output(output);
                if let (Output::Perform { id, .. }, Some(key)) = (output, &key) {
                    self.effects.insert(*id, key.clone());
                }
                key
            }
            Said::In(Input::Stream(_) | Input::Woken | Input::Shutdown) | Said::LeftOut(_) | Said::Note(_) => None,
        }
    }

    fn key_of_output(&self, output: &Output) -> Option<Key> {
        match output {
            Output::Perform { effect, .. } => effect.session().map(|session| session.key()),
            Output::Send { connection, .. } | Output::Close { connection, .. } | Output::Read { connection, .. } => {
                self.connections.get(connection).cloned()
            }
            Output::Notice(_) | Output::Wait(_) | Output::Stopped => None,
        }
    }

    fn remember(&mut self, what: Remembered) {
        if self.remembered.len() == REMEMBERED {
            self.remembered.pop_front();
        }
        self.remembered.push_back(what);
    }

    fn difference(&self, line: u64, n: u64, trace: String, core: String, key: Option<&Key>) -> Box<Difference> {
        let concerns = |one: &&Remembered| key.is_none() || one.key.as_ref() == key;
        let mut led: Vec<Led> =
            self.remembered.iter().rev().filter(concerns).take(SHOWN).map(Remembered::led).collect();
        led.reverse();
        Box::new(Difference {
            line,
            n,
            at: self.at,
            processor: None,
            transcriber: Some(self.header.transcriber.clone()),
            program: self.header.program.clone(),
            input: self.input.clone(),
            trace,
            core,
            led,
            without: None,
        })
    }
}

impl Remembered {
    fn led(&self) -> Led {
        let key = self.key.as_ref().map(|key| format!(", {key}")).unwrap_or_default();
        Led { line: self.line, words: format!("at {}{key}: {}", Moment(self.at), self.words) }
    }
}

fn words(said: &Said<Input, Output>) -> String {
    match said {
        Said::In(input) => in_words(input),
        Said::Out(output) => out_in_words(output, None),
        Said::LeftOut(LeftOut { inputs, why, .. }) => format!("{inputs} inputs left out: {why}"),
        Said::Note(note) => format!("noted: {note:?}"),
    }
}

fn in_words(input: &Input) -> String {
    match input {
        Input::Opened(opening) => format!("connection {} opened", opening.connection),
        Input::Frame { connection, frame } => {
            let frame = match frame {
                ClientFrame::Segment(_) => "a segment",
                ClientFrame::Finalize => "Finalize",
                ClientFrame::CloseStream => "CloseStream",
                ClientFrame::EndSession => "the end of the session",
                ClientFrame::KeepAlive => "KeepAlive",
            };
            format!("connection {connection} sent {frame}")
        }
        Input::Closed { connection, closure } => format!("connection {connection} closed, {closure:?}"),
        Input::Reported { effect, report } => format!("effect {effect}: {report}"),
        Input::Stream(state) => format!("the stream is {state:?}"),
        Input::Woken => "time has passed".to_owned(),
        Input::Shutdown => "shut down".to_owned(),
    }
}

fn out_in_words(output: &Output, other: Option<&Output>) -> String {
    told_apart(output, other, |output| match output {
        Output::Perform { id, effect } => format!("asks {id}: {effect}"),
        Output::Send { connection, frame } => format!("tells connection {connection} {frame:?}"),
        Output::Close { connection, code, .. } => format!("closes connection {connection} with {}", code.number()),
        Output::Read { connection, reading } => format!("{reading:?} for connection {connection}"),
        Output::Notice(notice) => format!("says {notice:?}"),
        Output::Wait(_) => "waits".to_owned(),
        Output::Stopped => "has come to its end".to_owned(),
    })
}
