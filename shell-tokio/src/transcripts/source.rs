//! Transcripts in files, and on stdin: read whole, and checked, before anything is done with them.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use thiserror::Error;
use transcript_core::{
    event::MAX_COUNT,
    ids::{IdError, Session},
};
use transcript_formats::{Announcement, Broken, Call, Cues, Faults, Options, Reader, Record, Segment};
use transcript_publishing::{PublishError, SegmentMessage};

use crate::{cli::SourceArgs, terminal::harmless};

/// What is read of a file at once.
const PIECE: usize = 64 * 1024;
/// Most segments of one file. A call of a day has some 30,000.
const MAX_SEGMENTS: usize = 1_000_000;
/// Stands for stdin on the command line.
const STDIN: &str = "-";

/// The calls of one file, in the order in which they appear in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transcript {
    pub(super) path: PathBuf,
    pub(super) sessions: Vec<SourceSession>,
    /// In the order of the file.
    pub(super) segments: Vec<SourceSegment>,
    /// How many places were left out, and the first of them.
    pub(super) left_out: Option<(usize, BadPlace)>,
}

/// A call of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SourceSession {
    pub session: Session,
    /// What the file says that the end announces; otherwise it is the number of the session's segments.
    pub announced: Option<u64>,
}

/// A segment of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SourceSegment {
    /// The place of its session among [`Transcript::sessions`].
    pub place: usize,
    pub message: SegmentMessage,
    /// The line of the file, counted from 1.
    pub line: u64,
}

/// Reads all files, `-` as stdin. What is left out is told to `warn`, a line for each file.
///
/// # Errors
///
/// The first file that cannot be read, or of which a place cannot be read, see [`SourceError`].
pub fn read_all(args: &SourceArgs, cues: Cues, warn: &dyn Fn(&str)) -> Result<Vec<Transcript>, SourceError> {
    let mut transcripts = Vec::with_capacity(args.files.len());
    let mut files: BTreeMap<Session, &Path> = BTreeMap::new();
    for path in &args.files {
        let transcript = Transcript::read(path, Source::open(path)?, args, cues)?;
        for told in &transcript.sessions {
            if let Some(other) = files.insert(told.session.clone(), path) {
                let (path, other) = (path.clone(), other.to_owned());
                return Err(SourceError::Twice { path, other, session: told.session.session_id.to_string() });
            }
        }
        if let Some((count, first)) = &transcript.left_out {
            let places = if *count == 1 { "place was" } else { "places were" };
            warn(&format!("{}: {count} {places} left out, the first: {first}", shown(path)));
        }
        transcripts.push(transcript);
    }
    Ok(transcripts)
}

/// Why files were not read.
#[derive(Debug, Error)]
pub enum SourceError {
    /// A file cannot be opened or read.
    #[error("cannot read {}", shown(path))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A place of the file cannot be read.
    #[error("{}: {place}", shown(path))]
    Bad {
        /// The file.
        path: PathBuf,
        /// The first bad place.
        place: BadPlace,
    },
    /// The file has no line of a call.
    #[error("{}: no call in it", shown(path))]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file has no ids, and its name cannot be one.
    #[error("{}: its name cannot be an id ({reason}); name the call with --session and --conversation", shown(path))]
    Name {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: IdError,
    },
    /// The file holds too much.
    #[error("{}: more than {MAX_SEGMENTS} segments; split the file", shown(path))]
    TooMany {
        /// The file.
        path: PathBuf,
    },
    /// Two files hold the same call.
    #[error("{}: session {session:?} is in {} already; name the call with --session", shown(path), shown(other))]
    Twice {
        /// The file.
        path: PathBuf,
        /// The file before it.
        other: PathBuf,
        /// The session.
        session: String,
    },
}

/// A file's name on a terminal.
pub(super) fn shown(path: &Path) -> String {
    if path.as_os_str() == STDIN { "stdin".to_owned() } else { harmless(&path.display().to_string()) }
}

/// A place of a file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadPlace {
    /// It cannot be read.
    #[error("{0}")]
    Broken(#[from] Broken),
    /// It can be read, and cannot be a segment or the end of a call.
    #[error("line {line}: {reason}")]
    Refused {
        /// Counted from 1.
        line: u64,
        /// Why.
        reason: String,
    },
}

#[derive(Debug, Error)]
enum Reason {
    #[error("{0}")]
    Id(#[from] IdError),
    #[error("{0}")]
    MessageId(#[from] PublishError),
    #[error("index {index} of session {session:?} is on line {before} already")]
    Repeated { index: u64, session: String, before: u64 },
    #[error("publishedSegments {0} is more than {MAX_COUNT}, which every processor refuses")]
    AnnouncedTooMany(u64),
    #[error("publishedSegments of session {session:?} is on line {before} already")]
    AnnouncedTwice { session: String, before: u64 },
}

/// A file, or stdin.
struct Source(Box<dyn Read>);

impl Source {
    fn open(path: &Path) -> Result<Self, SourceError> {
        if path.as_os_str() == STDIN {
            return Ok(Self(Box::new(io::stdin().lock())));
        }
        let file = File::open(path).map_err(|source| SourceError::Read { path: path.to_owned(), source })?;
        Ok(Self(Box::new(file)))
    }
}

impl Transcript {
    fn read(path: &Path, mut source: Source, args: &SourceArgs, cues: Cues) -> Result<Self, SourceError> {
        let faults = if args.keep_going { Faults::LeaveOut } else { Faults::Refuse };
        let options = Options { format: args.format, faults, labels: args.labels.into(), cues };
        let mut collector = Collector::new(path, Unnamed::new(path, args), faults);
        let mut reader = Reader::new(options);
        let mut piece = vec![0; PIECE];
        loop {
            let read = match source.0.read(&mut piece) {
                Ok(read) => read,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(source) => return Err(SourceError::Read { path: path.to_owned(), source }),
            };
            let pushed = match piece.get(..read) {
                Some([]) | None => reader.finish(),
                Some(bytes) => reader.push(bytes),
            };
            while let Some(record) = reader.next_record() {
                collector.take(record)?;
            }
            pushed.map_err(|broken| SourceError::Bad { path: path.to_owned(), place: broken.into() })?;
            if read == 0 {
                return collector.finish();
            }
        }
    }

    /// The segments of each session, in the order of the sessions.
    pub(super) fn by_session(&self) -> Vec<Vec<(usize, &SegmentMessage)>> {
        let mut by_session = vec![Vec::new(); self.sessions.len()];
        for (order, segment) in self.segments.iter().enumerate() {
            if let Some(own) = by_session.get_mut(segment.place) {
                own.push((order, &segment.message));
            }
        }
        by_session
    }
}

/// The ids of a call that the file does not name: what the command line says, or the file's name without its end.
struct Unnamed {
    conversation: String,
    session: String,
}

impl Unnamed {
    fn new(path: &Path, args: &SourceArgs) -> Self {
        let stem = match path.file_stem() {
            Some(stem) if path.as_os_str() != STDIN => stem.to_string_lossy().into_owned(),
            Some(_) | None => "stdin".to_owned(),
        };
        let or_stem = |id: &Option<String>| id.clone().unwrap_or_else(|| stem.clone());
        Self { conversation: or_stem(&args.conversation), session: or_stem(&args.session) }
    }
}

/// Makes a transcript of records.
struct Collector<'a> {
    path: &'a Path,
    unnamed: Unnamed,
    faults: Faults,
    transcript: Transcript,
    places: BTreeMap<Session, usize>,
    /// Where each segment stands; the session's id alone names it, whatever the conversation.
    lines: BTreeMap<(Arc<str>, u64), u64>,
    announcements: BTreeMap<Session, u64>,
    names_calls: bool,
}

impl<'a> Collector<'a> {
    fn new(path: &'a Path, unnamed: Unnamed, faults: Faults) -> Self {
        Self {
            path,
            unnamed,
            faults,
            transcript: Transcript { path: path.to_owned(), ..Transcript::default() },
            places: BTreeMap::new(),
            lines: BTreeMap::new(),
            announcements: BTreeMap::new(),
            names_calls: false,
        }
    }

    fn take(&mut self, record: Record) -> Result<(), SourceError> {
        let (line, taken) = match record {
            Record::Segment(segment) => (segment.line, self.segment(segment)?),
            Record::Announcement(announcement) => (announcement.line, self.announcement(&announcement)),
            Record::LeftOut(broken) => {
                self.leave_out(broken.into());
                return Ok(());
            }
        };
        let Err(reason) = taken else { return Ok(()) };
        let place = BadPlace::Refused { line, reason: reason.to_string() };
        match self.faults {
            Faults::Refuse => Err(SourceError::Bad { path: self.path.to_owned(), place }),
            Faults::LeaveOut => {
                self.leave_out(place);
                Ok(())
            }
        }
    }

    fn finish(mut self) -> Result<Transcript, SourceError> {
        if self.transcript.sessions.is_empty() {
            if self.names_calls {
                return Err(SourceError::Empty { path: self.path.to_owned() });
            }
            // A file of an engine in which nobody spoke is a silent call.
            let session = self.unnamed_session()?;
            self.place(&session);
        }
        Ok(self.transcript)
    }

    fn segment(&mut self, segment: Segment) -> Result<Result<(), Reason>, SourceError> {
        let Segment { call, index, speaker, text, start_ms, end_ms, line } = segment;
        let session = match call {
            Some(call) => match self.named_session(&call) {
                Ok(session) => session,
                Err(reason) => return Ok(Err(reason)),
            },
            None => self.unnamed_session()?,
        };
        if self.transcript.segments.len() == MAX_SEGMENTS {
            return Err(SourceError::TooMany { path: self.path.to_owned() });
        }
        let message = SegmentMessage { session, index, speaker, text, start_ms, end_ms };
        Ok(self.message(message, line))
    }

    fn message(&mut self, message: SegmentMessage, line: u64) -> Result<(), Reason> {
        message.check_id()?;
        match self.lines.entry((message.session.session_id.clone(), message.index)) {
            Entry::Occupied(before) => {
                return Err(Reason::Repeated {
                    index: message.index,
                    session: message.session.session_id.to_string(),
                    before: *before.get(),
                });
            }
            Entry::Vacant(free) => free.insert(line),
        };
        let place = self.place(&message.session);
        self.transcript.segments.push(SourceSegment { place, message, line });
        Ok(())
    }

    fn announcement(&mut self, announcement: &Announcement) -> Result<(), Reason> {
        let Announcement { call, segments, line } = announcement;
        let session = self.named_session(call)?;
        if *segments > MAX_COUNT {
            return Err(Reason::AnnouncedTooMany(*segments));
        }
        let place = self.place(&session);
        match self.announcements.entry(session) {
            Entry::Occupied(before) => {
                return Err(Reason::AnnouncedTwice {
                    session: before.key().session_id.to_string(),
                    before: *before.get(),
                });
            }
            Entry::Vacant(free) => free.insert(*line),
        };
        if let Some(told) = self.transcript.sessions.get_mut(place) {
            told.announced = Some(*segments);
        }
        Ok(())
    }

    fn named_session(&mut self, call: &Call) -> Result<Session, Reason> {
        self.names_calls = true;
        Ok(Session::new(&call.conversation_id, &call.session_id)?)
    }

    fn unnamed_session(&self) -> Result<Session, SourceError> {
        Session::new(&self.unnamed.conversation, &self.unnamed.session)
            .map_err(|reason| SourceError::Name { path: self.path.to_owned(), reason })
    }

    fn place(&mut self, session: &Session) -> usize {
        if let Some(place) = self.places.get(session) {
            return *place;
        }
        let place = self.transcript.sessions.len();
        self.places.insert(session.clone(), place);
        self.transcript.sessions.push(SourceSession { session: session.clone(), announced: None });
        place
    }

    fn leave_out(&mut self, place: BadPlace) {
        match &mut self.transcript.left_out {
            Some((count, _)) => *count += 1,
            None => self.transcript.left_out = Some((1, place)),
        }
    }
}

#[cfg(test)]
mod tests;
