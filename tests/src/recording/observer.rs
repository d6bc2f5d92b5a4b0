//! Notes of what no core sees.

use mongodb::bson::DateTime;
use tokio::time::Instant;
use transcript_core::{Settings, Time, WallTime, ids::Session};
use transcript_trace::{Content, FORMAT, Header, Note, Server, Servers};

use super::trace::{Trace, TracePart};
use crate::{process_guard::Exit, restarted_processor::Step};

/// `SIGKILL`.
const KILLED: Exit = Exit::Signal(9);

/// Who sees what is done to processors and servers, and notes it.
#[derive(Debug, Clone)]
pub struct Observer {
    begun: Instant,
    started_at: WallTime,
    notes: Vec<(Time, Note)>,
    /// Of a processor: these go into its own part.
    of_processors: Vec<(String, Instant, Fate)>,
}

#[derive(Debug, Clone, Copy)]
enum Fate {
    Killed,
    Frozen { until: Instant },
}

impl Default for Observer {
    fn default() -> Self {
        Self::new()
    }
}

impl Observer {
    /// One that begins now.
    #[must_use]
    pub fn new() -> Self {
        let started_at = WallTime::from_millis(DateTime::now().timestamp_millis());
        Self { begun: Instant::now(), started_at, notes: vec![], of_processors: vec![] }
    }

    /// Segments of a session were stored just now.
    pub fn stored(&mut self, session: &Session, segments: usize) {
        let segments = u64::try_from(segments).unwrap_or(u64::MAX);
        self.note(Instant::now(), Note::Stored { session_id: session.session_id.clone(), segments });
    }

    /// A server was away.
    pub fn away(&mut self, server: Server, from: Instant, until: Instant) {
        let until = Some(self.time(until));
        self.note(from, Note::Away { server, until });
    }

    /// Something else, just now.
    pub fn remark(&mut self, what: impl Into<String>) {
        self.note(Instant::now(), Note::Remark(what.into()));
    }

    /// A processor of this name was killed.
    pub fn killed(&mut self, processor: &str, at: Instant) {
        self.of_processors.push((processor.to_owned(), at, Fate::Killed));
    }

    /// What was done to a processor of this name.
    pub fn restarted(&mut self, processor: &str, steps: &[(Instant, Step)]) {
        let mut frozen = None;
        for (at, step) in steps {
            match step {
                Step::Frozen => frozen = Some(*at),
                Step::Thawed => {
                    let froze = frozen.take().map(|from| (processor.to_owned(), from, Fate::Frozen { until: *at }));
                    self.of_processors.extend(froze);
                }
                Step::Ended(exit) if *exit == KILLED => self.killed(processor, *at),
                Step::Started | Step::Ended(_) => {}
            }
        }
    }

    /// Puts the notes into a trace, and says what it shows.
    #[must_use]
    pub fn complete(&self, mut trace: Trace, about: &str) -> Trace {
        for (processor, at, fate) in &self.of_processors {
            let noted = self.wall(*at);
            let Some(part) = trace.part_of(processor, noted) else { continue };
            let ahead = Time::from_micros(micros(self.started_at, part.header.started_at));
            let time = |at: Instant| Time::from_micros(self.time(at).since(ahead).as_micros().try_into().unwrap_or(0));
            let note = match fate {
                Fate::Killed => Note::Killed,
                Fate::Frozen { until } => Note::Frozen { until: time(*until) },
            };
            part.note(time(*at), note);
        }
        let mut observed = TracePart { header: self.header(&trace, about), entries: vec![] };
        for (at, note) in &self.notes {
            observed.note(*at, note.clone());
        }
        trace.parts.insert(0, observed);
        trace
    }

    fn header(&self, trace: &Trace, about: &str) -> Header {
        let of_core = trace.parts.first().map(|part| &part.header);
        Header {
            format: FORMAT,
            program: concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION")).to_owned(),
            servers: of_core.map_or_else(Servers::default, |header| header.servers.clone()),
            processor: None,
            started_at: self.started_at,
            content: of_core.map_or(Content::Redacted, |header| header.content),
            settings: of_core.map_or_else(Settings::default, |header| header.settings.clone()),
            pull_expires: None,
            continues: None,
            session: None,
            about: Some(about.to_owned()),
        }
    }

    fn note(&mut self, at: Instant, note: Note) {
        self.notes.push((self.time(at), note));
    }

    fn time(&self, at: Instant) -> Time {
        Time::ZERO.after(at.saturating_duration_since(self.begun))
    }

    fn wall(&self, at: Instant) -> WallTime {
        self.started_at.after(at.saturating_duration_since(self.begun))
    }
}

/// From one moment to a later one.
fn micros(from: WallTime, to: WallTime) -> u64 {
    u64::try_from(to.since(from).as_micros()).unwrap_or(u64::MAX)
}
