//! MongoDB as the processor sees it: the segments, the summaries, and what can go wrong between asking and answering.
//!
//! [`Store::perform`] is the one way in and out: a command takes effect at one instant, as a command on one document does.
//! How long it takes to get there and back is the world's business, and so is its [`Fate`].
//!
//! # What it does to its users, and why the real server may
//!
//! | behaviour | why |
//! |---|---|
//! | a command fails, and nothing was done ([`Fate::FailsBefore`]) | the connection broke on the way there; an election |
//! | a command fails, and it was done ([`Fate::FailsAfter`]) | the answer was lost, or the wait for the journals of a majority ran out |
//! | an upsert fails with a duplicate key ([`Fate::Races`]) | two upserts of one new `_id` both found nothing; the server tries the loser's again itself where filter and update allow it (`shouldRetryDuplicateKeyException`): mongod 6.0.5 did so each time in 320 races of the processor's upsert, so that this fault is harsher than what was seen |
//! | a count misses segments that are being written, or counts part of them | a count reads what is there at its instant; nothing ties it to a writer |
//! | a kill forgets writes that were answered ([`Store::kill`]) | a write without `j: true` is answered before the journal is on disk; the journal is flushed every 100 ms, and by each write with `j: true`, which takes all before it along |
//! | reads and writes fail until there is a primary ([`Store::step_down`]) | error 10107 `NotWritablePrimary`, and 13435 `NotPrimaryNoSecondaryOk` for primary reads |
//! | an insert leaves out documents whose `_id` is there | error 11000, unordered |
//! | one write of a command fails alone ([`Fate::MemberFails`], [`Rule::Refuses`]) | `writeErrors` by index: a conflict, a validator |
//! | one document makes the server refuse the whole command ([`Rule::RefusesCommand`]) | errors 2, 9, 14, 10334, 17419 of an update |
//! | writes are answered with a `writeConcernError`, and kept or rolled back ([`Fate::ConcernFails`]) | code 64: the primary has lost the majority, and finds it again, or steps down |
//! | a reply cannot be read ([`Fate::Garbled`]) | mongod cuts the text of a duplicate key at 150 bytes, also inside a character |
//! | reads are served and writes are not ([`Store::refuse_writes`]) | error 11602 while a primary gives up its place |
//!
//! # What it leaves out
//!
//! Roll-backs of writes that no majority has: the processor asks for a majority, and a single node rolls nothing back.
//! Secondary reads, transactions, other collections.

mod commands;
#[cfg(feature = "planted-bugs")]
mod planted;
mod segments;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::Arc,
    time::Duration,
};

use transcript_core::{
    Notified, Stored, Time, TranscriptVersion,
    contract::Announcement,
    ids::Key,
    summary::{Segment, Summary},
};

use transcript_client::mongodb;

pub(crate) use self::commands::written_keys;
use self::{commands::Fault, segments::Segments};

/// The longest time between two flushes of the journal.
pub const JOURNAL_INTERVAL: Duration = Duration::from_millis(100);

/// One mongod that is the primary of its replica set, or was.
#[derive(Debug, Clone, Default)]
pub struct Store {
    segments: Segments,
    summaries: BTreeMap<Key, Document>,
    /// How to take back, from the last one on, the writes that the journal does not have yet.
    unflushed: VecDeque<(Time, Undo)>,
    state: State,
    rules: BTreeMap<Key, Rule>,
    /// How many faults keep the primary from taking writes while it serves reads.
    write_blocks: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Primary,
    Secondary,
    Down,
}

/// A summary with its marks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The summary.
    pub summary: Arc<Summary>,
    /// The mark that it was announced.
    pub notified: Option<Notified>,
    /// Which summary of the session it is.
    pub revision: u64,
    /// The last revision above 1 that was announced.
    pub revised: Option<u64>,
}

#[derive(Debug, Clone)]
enum Undo {
    /// The segment of this `_id` was this one, or there was none.
    Segment { id: Arc<str>, before: Option<(Arc<str>, Arc<Segment>)> },
    /// The summary was this one, or there was none.
    Summary { key: Key, before: Option<Document> },
}

/// What is asked of the store.
#[derive(Debug, Clone)]
pub enum Command {
    /// Write segments of a session.
    WriteSegments {
        /// The session.
        session_id: Arc<str>,
        /// The segments.
        segments: Vec<Arc<Segment>>,
        /// What becomes of one whose `_id` is there.
        existing: Existing,
        /// When it is answered.
        durability: Durability,
    },
    /// Count the segments of sessions, and how often they were changed.
    Count {
        /// The sessions.
        sessions: Vec<Arc<str>>,
    },
    /// Store a summary unless one is stored that is ahead of it ([`Stored::is_ahead_of`]); marks that are there stay.
    Save {
        /// The summary.
        summary: Arc<Summary>,
        /// When it is answered.
        durability: Durability,
    },
    /// Mark a summary as announced unless it is, or is not there.
    Mark {
        /// Which.
        key: Key,
        /// What was announced.
        announcement: Announcement,
        /// Which version of the segments was announced.
        announced: TranscriptVersion,
        /// The mark.
        notified: Notified,
        /// When it is answered.
        durability: Durability,
    },
    /// Read what is stored.
    Read {
        /// Which.
        key: Key,
    },
    /// A command of a processor's client, with many members.
    Client(mongodb::Command),
}

/// What becomes of a document whose `_id` is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// It stays, and the new one is counted as refused.
    Kept,
    /// It is replaced.
    Replaced,
}

/// When a write is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Once it is in memory: a kill can lose it.
    Memory,
    /// Once the journal with it is on disk (`j: true`).
    Journal,
}

/// What becomes of a command; the world chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is done and answered.
    Done,
    /// It is not done, and fails.
    FailsBefore(StoreError),
    /// It is done, and fails all the same.
    FailsAfter(StoreError),
    /// A save began before the document was there that is there now: it fails with a duplicate key. Without a document, and
    /// for every other command, it is as [`Fate::Done`].
    Races,
    /// The first write of a client's command fails alone, undone. Every other command is as [`Fate::Done`].
    MemberFails(StoreError),
    /// A client's writes are answered with a `writeConcernError`. Every other command is as [`Fate::Done`].
    ConcernFails(Writes),
    /// A client's command is done, and its reply cannot be read. Every other command is as [`Fate::Done`].
    Garbled,
}

/// What becomes of writes that no majority has confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// A majority takes them over after all.
    Kept,
    /// They are rolled back. Nobody who reads what a majority has ever sees them.
    RolledBack,
}

/// What a rule of the collection makes of a summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// It refuses the document: error 121 of this member alone.
    Refuses,
    /// It refuses each command that holds it: error 10334, as for a document that is too large once it is updated.
    RefusesCommand,
}

/// What the store answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// How many segments were written, and how many were refused because they were there.
    Written {
        /// Inserted or replaced.
        written: u64,
        /// Refused.
        refused: u64,
    },
    /// The versions of the segments, in the order of the sessions asked for.
    Versions(Vec<TranscriptVersion>),
    /// What is stored now.
    Stored(Option<Stored>),
    /// The mark is there, or there is no summary.
    Marked,
    /// The reply to a client's command.
    Client(mongodb::Reply),
}

/// Why a command failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreError {
    /// Nobody answers.
    Unreachable,
    /// No answer in time.
    TimedOut,
    /// 10107 or 13435: there is no primary.
    NotPrimary,
    /// 11000: another upsert of the same `_id` was faster.
    DuplicateKey,
    /// 112: the storage engine gave up on a conflict.
    WriteConflict,
    /// 13: not permitted.
    Unauthorized,
    /// The document is refused, now and always.
    Rejected,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreachable => "nobody answers",
            Self::TimedOut => "no answer in time",
            Self::NotPrimary => "not primary (10107)",
            Self::DuplicateKey => "E11000 duplicate key",
            Self::WriteConflict => "write conflict (112)",
            Self::Unauthorized => "not authorized (13)",
            Self::Rejected => "the document is refused",
        })
    }
}

impl Store {
    /// An empty store with a primary.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Does what is asked, as far as its fate lets it.
    ///
    /// # Errors
    ///
    /// The fate's, those of a server that is down or no primary, and a duplicate key where the fate races.
    pub fn perform(&mut self, now: Time, command: Command, fate: Fate) -> Result<Answer, StoreError> {
        match self.state {
            State::Primary => {}
            State::Secondary => return Err(StoreError::NotPrimary),
            State::Down => return Err(StoreError::Unreachable),
        }
        match fate {
            Fate::FailsBefore(error) => Err(error),
            Fate::FailsAfter(error) => self.act(now, command).and(Err(error)),
            Fate::Races if self.lost_race(&command) => Err(StoreError::DuplicateKey),
            Fate::Done | Fate::Races | Fate::MemberFails(_) | Fate::ConcernFails(_) | Fate::Garbled => {
                let Command::Client(command) = command else { return self.act(now, command) };
                Ok(Answer::Client(self.answer(now, command, Fault::of(fate))))
            }
        }
    }

    /// The primary steps down: every command fails until [`Self::elect`].
    pub fn step_down(&mut self) {
        if self.state == State::Primary {
            self.state = State::Secondary;
        }
    }

    /// The server is primary again.
    pub fn elect(&mut self) {
        if self.state == State::Secondary {
            self.state = State::Primary;
        }
    }

    /// A rule for a summary, from now on.
    pub fn rule(&mut self, key: Key, rule: Rule) {
        self.rules.insert(key, rule);
    }

    /// The primary serves reads and takes no writes of processors until [`Self::take_writes`] was called as often.
    pub fn refuse_writes(&mut self) {
        self.write_blocks += 1;
    }

    /// The end of one [`Self::refuse_writes`].
    pub fn take_writes(&mut self) {
        self.write_blocks = self.write_blocks.saturating_sub(1);
    }

    /// SIGKILL: the writes of the last `lag` that no journal has are lost. The journal is never more than
    /// [`JOURNAL_INTERVAL`] behind, so that a longer lag loses no more.
    pub fn kill(&mut self, now: Time, lag: Duration) {
        self.flush_older(now);
        let lag = lag.min(JOURNAL_INTERVAL);
        while self.unflushed.back().is_some_and(|(at, _)| now.since(*at) < lag) {
            if let Some((_, undo)) = self.unflushed.pop_back() {
                self.undo(undo);
            }
        }
        self.unflushed.clear();
        self.state = State::Down;
    }

    /// SIGTERM: everything is flushed.
    pub fn terminate(&mut self) {
        self.unflushed.clear();
        self.state = State::Down;
    }

    /// The server starts again, and is not yet primary.
    pub fn start(&mut self) {
        if self.state == State::Down {
            self.state = State::Secondary;
        }
    }

    /// The stored summary, for the eyes of the world's checks.
    #[must_use]
    pub fn summary(&self, key: &Key) -> Option<&Document> {
        self.summaries.get(key)
    }

    /// All stored summaries by key, for the eyes of the world's checks.
    pub fn summaries(&self) -> impl Iterator<Item = (&Key, &Document)> {
        self.summaries.iter()
    }

    /// Which version a session's stored segments are of, for the eyes of the world's checks.
    #[must_use]
    pub fn version_of(&self, session_id: &str) -> TranscriptVersion {
        let edits = self.segments.of(session_id).map(|segment| segment.edits).sum();
        TranscriptVersion { segments: self.segments.count(session_id), edits }
    }

    /// Whether a segment is stored, for the eyes of the world's checks.
    #[must_use]
    pub fn has_segment(&self, id: &str) -> bool {
        self.segments.contains(id)
    }

    fn lost_race(&self, command: &Command) -> bool {
        matches!(command, Command::Save { summary, .. } if self.summaries.contains_key(&summary.key))
    }

    fn act(&mut self, now: Time, command: Command) -> Result<Answer, StoreError> {
        match command {
            Command::WriteSegments { session_id, segments, existing, durability } => {
                let answer = self.write_segments(now, &session_id, segments, existing);
                self.written(now, durability);
                Ok(answer)
            }
            Command::Count { sessions } => {
                Ok(Answer::Versions(sessions.iter().map(|session| self.version_of(session)).collect()))
            }
            Command::Save { summary, durability } => {
                let stored = self.save(now, summary);
                self.written(now, durability);
                Ok(Answer::Stored(Some(stored)))
            }
            Command::Mark { key, announcement, announced, notified, durability } => {
                self.mark(now, key, announcement, announced, notified);
                self.written(now, durability);
                Ok(Answer::Marked)
            }
            Command::Read { key } => Ok(Answer::Stored(self.summaries.get(&key).map(Document::stored))),
            Command::Client(command) => Ok(Answer::Client(self.answer(now, command, Fault::None))),
        }
    }

    fn write_segments(
        &mut self,
        now: Time,
        session_id: &Arc<str>,
        segments: Vec<Arc<Segment>>,
        existing: Existing,
    ) -> Answer {
        let (mut written, mut refused) = (0, 0);
        for segment in segments {
            if existing == Existing::Kept && self.segments.contains(&segment.id) {
                refused += 1;
                continue;
            }
            written += 1;
            let id: Arc<str> = segment.id.as_str().into();
            let before = self.segments.put(&id, session_id, segment);
            self.unflushed.push_back((now, Undo::Segment { id, before }));
        }
        Answer::Written { written, refused }
    }

    fn save(&mut self, now: Time, summary: Arc<Summary>) -> Stored {
        let key = summary.key.clone();
        let before = self.summaries.get(&key);
        if let Some(stored) = before.map(Document::stored).filter(|stored| stored.is_ahead_of(&summary)) {
            return stored;
        }
        let asked = before.map_or(0, |stored| stored.summary.reprocess);
        let summary = if asked > summary.reprocess {
            Arc::new(Summary { reprocess: asked, ..Summary::clone(&summary) })
        } else {
            summary
        };
        let document = match before.filter(|stored| stored.notified.is_some()) {
            Some(stored) => Document { summary, revision: stored.revision + 1, ..stored.clone() },
            None => Document { summary, notified: None, revision: 1, revised: None },
        };
        let stored = document.stored();
        let before = self.summaries.insert(key.clone(), document);
        self.unflushed.push_back((now, Undo::Summary { key, before }));
        stored
    }

    fn mark(&mut self, now: Time, key: Key, announcement: Announcement, told: TranscriptVersion, notified: Notified) {
        let Some(document) = self.summaries.get_mut(&key) else { return };
        let before = document.clone();
        let announced = match announcement {
            Announcement::Processed | Announcement::ProcessedOnce => {
                document.notified.get_or_insert(notified);
                1
            }
            Announcement::Revised { revision } => {
                document.revised = document.revised.max(Some(revision));
                revision
            }
        };
        if document.revision == announced && document.summary.version() > told {
            document.revision += 1;
        }
        if *document != before {
            self.unflushed.push_back((now, Undo::Summary { key, before: Some(before) }));
        }
    }

    fn written(&mut self, now: Time, durability: Durability) {
        match durability {
            Durability::Memory => self.flush_older(now),
            Durability::Journal => self.unflushed.clear(),
        }
    }

    fn flush_older(&mut self, now: Time) {
        while self.unflushed.front().is_some_and(|(at, _)| now.since(*at) >= JOURNAL_INTERVAL) {
            self.unflushed.pop_front();
        }
    }

    fn undo(&mut self, undo: Undo) {
        match undo {
            Undo::Segment { id, before: Some((session_id, segment)) } => {
                self.segments.put(&id, &session_id, segment);
            }
            Undo::Segment { id, before: None } => self.segments.remove(&id),
            Undo::Summary { key, before: Some(document) } => {
                self.summaries.insert(key, document);
            }
            Undo::Summary { key, before: None } => {
                self.summaries.remove(&key);
            }
        }
    }
}

impl Document {
    /// What a save learns of it.
    #[must_use]
    pub fn stored(&self) -> Stored {
        Stored {
            segments: self.summary.segments,
            edits: self.summary.edits,
            complete: self.summary.complete,
            notified: self.notified,
            revision: self.revision,
            revised: self.revised,
            reprocess: self.summary.reprocess,
        }
    }
}
