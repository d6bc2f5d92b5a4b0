//! Feeds a trace to state machines and compares what they say.

mod transcriber;

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::Arc,
};

use serde::Serialize;
use serde_json::Value;
use thiserror::Error;
use transcript_core::{Input, Output, Processor, SettingsError, Time, ids::JobId};

use self::transcriber::TranscriberPart;
use crate::{
    follow::{Followed, Follower},
    format::{Entry, Header, LeftOut, Line, Said},
    processes::{Begin, ProcessHeader, ProcessLine, Processes},
    read::ReadError,
};

/// How many entries are remembered, to tell what led to a difference.
const REMEMBERED: usize = 8192;
/// How many entries of the job a difference shows.
const SHOWN: usize = 12;
/// The most bytes of a value that a difference shows.
const LONGEST_VALUE: usize = 200;

/// A trace that a core took as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Replayed {
    /// Parts.
    pub parts: u64,
    /// Entries, in all parts.
    pub entries: u64,
    /// Outputs that were compared.
    pub outputs: u64,
    /// Jobs that began.
    pub jobs: u64,
    /// Inputs that the trace says are missing.
    pub left_out: u64,
    /// Entries of transcribers that could not be compared, because what is before them is missing.
    pub uncompared: u64,
    /// Parts that go on from a file which was not given, by that file's name: of them, what began in them was compared.
    pub partial: Vec<String>,
    /// The last line, where it is cut off.
    pub cut_off: Option<String>,
}

/// Why a trace did not replay.
#[derive(Debug, Error)]
pub enum Problem {
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It holds settings that no core can have.
    #[error("line {line}: the settings cannot work")]
    Settings {
        /// The header's line, from 1.
        line: u64,
        /// Which.
        source: SettingsError,
    },
    /// It holds settings that no transcriber can have.
    #[error("line {line}: the settings cannot work")]
    TranscriberSettings {
        /// The header's line, from 1.
        line: u64,
        /// Which.
        source: transcript_transcriber::SettingsError,
    },
    /// The core says something else.
    #[error(transparent)]
    Difference(Box<Difference>),
}

/// The first place where the core and the trace differ.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// The line, counted from 1 over everything that was read.
    pub line: u64,
    /// The entry of its part.
    pub n: u64,
    /// When, since its process started.
    pub at: Time,
    /// The processor; `None` where it is a transcriber.
    pub processor: Option<Arc<str>>,
    /// The transcriber; `None` where it is a processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transcriber: Option<Arc<str>>,
    /// The program that wrote the trace.
    pub program: String,
    /// The input that the core was told last, in words.
    pub input: String,
    /// What the trace has.
    pub trace: String,
    /// What the core says.
    pub core: String,
    /// What led to it: the last entries of the job, or of the session.
    pub led: Vec<Led>,
    /// The file that the part goes on from, where it was not given.
    pub without: Option<String>,
}

/// An entry that led to a difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Led {
    /// The line, counted from 1 over everything that was read.
    pub line: u64,
    /// When it was, and what.
    pub words: String,
}

impl Difference {
    /// The difference in words, with lines called what `place` calls them.
    #[must_use]
    pub fn told(&self, place: &dyn Fn(u64) -> String) -> String {
        DifferenceText { difference: self, place }.to_string()
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        DifferenceText { difference: self, place: &|line| format!("line {line}") }.fmt(f)
    }
}

struct DifferenceText<'a> {
    difference: &'a Difference,
    place: &'a dyn Fn(u64) -> String,
}

impl fmt::Display for DifferenceText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { difference, place } = self;
        let name = difference.processor.as_ref().or(difference.transcriber.as_ref());
        let processor = name.map_or("nobody", |name| &**name);
        let (line, n, at) = (place(difference.line), difference.n, Moment(difference.at));
        writeln!(f, "{line}: entry {n} of {processor}, {at} after its start:")?;
        writeln!(f, "  told:      {}", difference.input)?;
        writeln!(f, "  the trace: {}", difference.trace)?;
        write!(f, "  the core:  {}", difference.core)?;
        if !difference.led.is_empty() {
            write!(f, "\nwhat led to it:")?;
            difference.led.iter().try_for_each(|led| write!(f, "\n  {} {}", place(led.line), led.words))?;
        }
        if let Some(without) = &difference.without {
            write!(f, "\nThe trace goes on from {without}, which was not given: that may be why.")?;
        }
        if difference.program != program() {
            write!(f, "\nThe trace was written by {}: that program replays it.", difference.program)?;
        }
        Ok(())
    }
}

impl fmt::Display for Replayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (entries, jobs) = (counted(self.entries, "entry", "entries"), counted(self.jobs, "job", "jobs"));
        write!(f, "replays: {entries}, {jobs}, {} compared", counted(self.outputs, "output", "outputs"))?;
        if self.parts != 1 {
            write!(f, ", {} parts", self.parts)?;
        }
        if self.left_out > 0 {
            write!(f, "; {} inputs are not in the trace", self.left_out)?;
        }
        if self.uncompared > 0 {
            let entries = counted(self.uncompared, "entry of a transcriber was", "entries of transcribers were");
            write!(f, "\n{entries} not compared: something before them is missing")?;
        }
        for before in &self.partial {
            write!(f, "\nwithout {before}, which was not given: only what began after it was compared")?;
        }
        if let Some(cut_off) = &self.cut_off {
            write!(f, "\n{cut_off}")?;
        }
        Ok(())
    }
}

fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// The program that writes traces of this version.
fn program() -> &'static str {
    concat!("transcript-processor ", env!("CARGO_PKG_VERSION"))
}

/// Replays a trace: what is a processor's on a core that `new_core` makes, what is a transcriber's on a new state machine.
///
/// # Errors
///
/// The first difference, and what keeps the trace from being read; a last line that is cut off does not.
pub fn replay(
    lines: impl Iterator<Item = Result<Line, ReadError>>,
    mut new_core: impl FnMut(&Header) -> Result<Processor, SettingsError>,
) -> Result<Replayed, Problem> {
    let mut replayed = Replayed::default();
    let mut parts: BTreeMap<usize, ReplayedPart> = BTreeMap::new();
    let mut transcribers: BTreeMap<usize, TranscriberPart> = BTreeMap::new();
    let mut current = 0;
    for (line, number) in Processes::of(lines).zip(1_u64..) {
        match line {
            Ok(ProcessLine::Header(ProcessHeader { header, process, begin })) => {
                replayed.parts += 1;
                current = process;
                let part = match (begin, parts.remove(&process)) {
                    (Begin::GoesOn, Some(before)) => ReplayedPart { header: *header, ..before },
                    (Begin::Start | Begin::Gap | Begin::GoesOn, _) => {
                        let core = new_core(&header).map_err(|source| Problem::Settings { line: number, source })?;
                        replayed.partial.extend(header.continues.as_ref().map(|before| before.file.clone()));
                        // The core of a process whose processor has started again is not needed any more.
                        parts.retain(|_, part| part.header.processor != header.processor);
                        ReplayedPart::new(*header, core)
                    }
                };
                parts.insert(process, part);
            }
            Ok(ProcessLine::Entry(entry)) => {
                replayed.entries += 1;
                // The reader gives no entry before a header.
                if let Some(part) = parts.get_mut(&current) {
                    part.entry(number, *entry, &mut replayed).map_err(Problem::Difference)?;
                }
            }
            Ok(ProcessLine::TranscriberHeader(begun)) => {
                replayed.parts += 1;
                current = begun.process;
                TranscriberPart::begin(&mut transcribers, begun)
                    .map_err(|source| Problem::TranscriberSettings { line: number, source })?;
            }
            Ok(ProcessLine::TranscriberEntry(entry)) => {
                replayed.entries += 1;
                if let Some(part) = transcribers.get_mut(&current) {
                    part.entry(number, *entry, &mut replayed).map_err(Problem::Difference)?;
                }
            }
            Err(cut_off @ ReadError::CutOff { .. }) if replayed.parts > 0 => {
                replayed.cut_off = Some(cut_off.to_string());
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(replayed)
}

/// A part that is being replayed.
struct ReplayedPart {
    header: Header,
    follower: Follower,
    /// What the core has said, and the trace not yet.
    said: VecDeque<Output>,
    /// An input that the core took otherwise than the trace says; that is no difference where the trace says so next.
    mismatch: Option<JobMismatch>,
    /// Whether some jobs began in a file that was not given.
    partial: bool,
    at: Time,
    input: String,
    remembered: VecDeque<Remembered>,
}

struct JobMismatch {
    there: Option<JobId>,
    here: Option<JobId>,
    jobs: Vec<JobId>,
}

struct Remembered {
    line: u64,
    at: Time,
    job: Option<JobId>,
    words: String,
}

impl ReplayedPart {
    fn new(header: Header, core: Processor) -> Self {
        let newest = header.continues.as_ref().and_then(|before| before.last_job);
        Self {
            partial: header.continues.is_some(),
            header,
            follower: Follower::new(core, newest),
            said: VecDeque::new(),
            mismatch: None,
            at: Time::ZERO,
            input: "nothing yet".to_owned(),
            remembered: VecDeque::new(),
        }
    }

    fn entry(&mut self, line: u64, entry: Entry, replayed: &mut Replayed) -> Result<(), Box<Difference>> {
        let at = entry.at.unwrap_or(self.at);
        self.at = at;
        let job = entry.job.or_else(|| job_of(&entry.said));
        self.remember(Remembered { line, at, job, words: words(&entry.said) });
        match entry.said {
            Said::In(input) => {
                self.nothing_more(line, entry.n)?;
                let begins = begins(&input) && entry.job.is_some_and(|job| !self.follower.knows(job));
                self.input = in_words(&input);
                let mut followed = self.follower.follow(at, entry.job, input);
                if self.partial && followed == Followed::Unknown {
                    // It is about a job that began before, but time has passed for those that did not.
                    followed = self.follower.follow(at, None, Input::Woken);
                }
                match followed {
                    Followed::Taken(outputs) => {
                        replayed.jobs += u64::from(begins);
                        self.said.extend(outputs);
                    }
                    Followed::Unknown => {}
                    Followed::OtherJob { taken, outputs, jobs } => {
                        self.said.extend(outputs);
                        self.mismatch = Some(JobMismatch { there: entry.job, here: taken, jobs });
                    }
                }
                Ok(())
            }
            Said::Out(output) => {
                if self.said.front() == Some(&output) {
                    self.said.pop_front();
                    replayed.outputs += 1;
                    return Ok(());
                }
                if self.partial && self.concerns_others(&output) {
                    return Ok(());
                }
                let core = self
                    .said
                    .front()
                    .map_or_else(|| "says nothing more".to_owned(), |said| out_in_words(said, Some(&output)));
                let trace = out_in_words(&output, self.said.front());
                Err(self.difference(line, entry.n, trace, core, job))
            }
            Said::LeftOut(left_out) => {
                replayed.left_out += left_out.inputs;
                self.mismatch.take_if(|mismatch| mismatch.jobs.iter().all(|job| left_out.jobs.contains(job)));
                self.nothing_more(line, entry.n)?;
                self.said.extend(self.follower.leave_out(&left_out));
                Ok(())
            }
            Said::Note(_) => Ok(()),
        }
    }

    /// Everything that the core has said must have come by now.
    fn nothing_more(&mut self, line: u64, n: u64) -> Result<(), Box<Difference>> {
        if let Some(said) = self.said.front() {
            let job = job_of_output(said);
            return Err(self.difference(line, n, "says nothing more".to_owned(), out_in_words(said, None), job));
        }
        if let Some(JobMismatch { there, here, .. }) = self.mismatch {
            let takes = |job: Option<JobId>| {
                job.map_or_else(|| "nobody takes it".to_owned(), |job| format!("job {job} takes it"))
            };
            return Err(self.difference(line, n, takes(there), takes(here), there.or(here)));
        }
        Ok(())
    }

    /// Whether an output can be one of jobs that began before the first file.
    fn concerns_others(&self, output: &Output) -> bool {
        match output {
            Output::Perform { id, .. } => !self.follower.knows(id.job),
            Output::InProgress { .. }
            | Output::StopDeliveries
            | Output::Notice(_)
            | Output::Drained
            | Output::Wait(_) => true,
        }
    }

    fn remember(&mut self, what: Remembered) {
        if self.remembered.len() == REMEMBERED {
            self.remembered.pop_front();
        }
        self.remembered.push_back(what);
    }

    fn difference(&self, line: u64, n: u64, trace: String, core: String, job: Option<JobId>) -> Box<Difference> {
        let concerns = |one: &&Remembered| job.is_none() || one.job == job;
        let mut led: Vec<Led> =
            self.remembered.iter().rev().filter(concerns).take(SHOWN).map(Remembered::led).collect();
        led.reverse();
        Box::new(Difference {
            line,
            n,
            at: self.at,
            processor: self.header.processor.clone(),
            transcriber: None,
            program: self.header.program.clone(),
            input: self.input.clone(),
            trace,
            core,
            led,
            without: self.header.continues.as_ref().filter(|_| self.partial).map(|before| before.file.clone()),
        })
    }
}

impl Remembered {
    fn led(&self) -> Led {
        let job = self.job.map(|job| format!(", job {job}")).unwrap_or_default();
        Led { line: self.line, words: format!("at {}{job}: {}", Moment(self.at), self.words) }
    }
}

/// Seconds since the start of a processor.
struct Moment(Time);

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        write!(f, "{}.{:06} s", micros / 1_000_000, micros % 1_000_000)
    }
}

fn begins(input: &Input) -> bool {
    matches!(input, Input::Delivered(_) | Input::Exhausted(_) | Input::Stale(_))
}

fn job_of(said: &Said) -> Option<JobId> {
    match said {
        Said::In(Input::Reported { effect, .. }) => Some(effect.job),
        Said::Out(output) => job_of_output(output),
        Said::In(
            Input::Delivered(_)
            | Input::Exhausted(_)
            | Input::Stale(_)
            | Input::Consumer(_)
            | Input::Woken
            | Input::Quiet
            | Input::Resume
            | Input::Drain
            | Input::DeliveriesStopped,
        )
        | Said::LeftOut(_)
        | Said::Note(_) => None,
    }
}

fn job_of_output(output: &Output) -> Option<JobId> {
    match output {
        Output::Perform { id, .. } => Some(id.job),
        Output::InProgress { .. } | Output::StopDeliveries | Output::Notice(_) | Output::Wait(_) | Output::Drained => {
            None
        }
    }
}

fn words(said: &Said) -> String {
    match said {
        Said::In(input) => in_words(input),
        Said::Out(output) => out_in_words(output, None),
        Said::LeftOut(LeftOut { inputs: 0, why, .. }) => format!("left out: {why}"),
        Said::LeftOut(LeftOut { inputs, why, .. }) => format!("{inputs} inputs left out: {why}"),
        Said::Note(note) => format!("noted: {note:?}"),
    }
}

fn in_words(input: &Input) -> String {
    match input {
        Input::Delivered(delivery) => {
            format!("message {} delivered, attempt {}", delivery.stream_sequence, delivery.attempt)
        }
        Input::Reported { effect, report } => format!("effect {effect}: {report}"),
        Input::Exhausted(exhausted) => format!("message {} used up its deliveries", exhausted.stream_sequence),
        Input::Stale(stale) => format!("the summary of {} is stale", stale.session.key()),
        Input::Woken => "time has passed".to_owned(),
        Input::Consumer(consumer) => format!(
            "the consumer's ack wait is {:?}, and it delivers {} times at the most",
            consumer.ack_wait, consumer.max_deliver
        ),
        Input::Quiet => "be quiet".to_owned(),
        Input::Resume => "go on".to_owned(),
        Input::Drain => "drain".to_owned(),
        Input::DeliveriesStopped => "the deliveries have ended".to_owned(),
    }
}

/// An output in words, and where another one has the same words, with what tells them apart.
fn out_in_words(output: &Output, other: Option<&Output>) -> String {
    let words = |output: &Output| match output {
        Output::Perform { id, effect } => format!("asks {id}: {effect}"),
        Output::InProgress { reply } => format!("says that it works on {reply}"),
        Output::StopDeliveries => "ends the deliveries".to_owned(),
        Output::Notice(notice) => format!("says {notice:?}"),
        Output::Wait(_) => "waits".to_owned(),
        Output::Drained => "has drained".to_owned(),
    };
    told_apart(output, other, words)
}

/// The words of an output, and where another one has the same words, with what tells them apart.
fn told_apart<T: Serialize>(output: &T, other: Option<&T>, words: impl Fn(&T) -> String) -> String {
    let said = words(output);
    match other {
        Some(other) if words(other) == said => format!("{said}, with {}", apart(output, other).unwrap_or_default()),
        Some(_) | None => said,
    }
}

/// The first thing that `one` has and `other` has not, as a path and its value.
fn apart<T: Serialize>(one: &T, other: &T) -> Option<String> {
    let (mut one, mut other) = (serde_json::to_value(one).ok()?, serde_json::to_value(other).ok()?);
    let mut path = String::new();
    loop {
        let name = match (&one, &other) {
            (Value::Object(some), Value::Object(others)) => {
                let differs = |name: &&String| some.get(*name) != others.get(*name);
                some.keys().chain(others.keys()).find(differs)?.clone()
            }
            (Value::Array(some), Value::Array(others)) => {
                let both = 0..some.len().max(others.len());
                both.into_iter().find(|place| some.get(*place) != others.get(*place))?.to_string()
            }
            (_, _) => {
                let value = one.to_string();
                let end = value.floor_char_boundary(LONGEST_VALUE);
                let more = if end < value.len() { "…" } else { "" };
                return Some(format!("{} {}{more}", path.trim_start_matches('.'), &value[..end]));
            }
        };
        path = format!("{path}.{name}");
        (one, other) = (take(one, &name), take(other, &name));
    }
}

/// A field or an item; `null` where there is none.
fn take(value: Value, name: &str) -> Value {
    match value {
        Value::Object(mut fields) => fields.remove(name),
        Value::Array(mut items) => {
            name.parse().ok().filter(|place| *place < items.len()).map(|place: usize| items.swap_remove(place))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
    .unwrap_or(Value::Null)
}
