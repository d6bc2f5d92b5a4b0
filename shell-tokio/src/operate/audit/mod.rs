//! `audit`: holds the stream against the store. Every call that ended is to be summarised once and announced once; what is
//! not, is named, and on request put right.
//!
//! The order in which things are looked at keeps a running system free of false alarms: first what the consumer has handed
//! out, then where the stream ends, then the stream up to there, and the store last. What was acknowledged before the first
//! look is then summarised in the last one, and what was under way at the first look is not judged by what is missing.
//!
//! # Memory
//!
//! The sessions of the stream are joined in a map that holds at most [`SESSIONS_A_PASS`]. Where the stream has more, the
//! keys are halved by their hashes as often as needed, and the stream is read once for each part. A session takes some
//! 100 bytes and its key: a million sessions whose two ids are as long as UUIDs are audited in two passes, in which the
//! process has been seen to take 113 MiB at most.
//!
//! # What is told of a session
//!
//! | word | when |
//! |---|---|
//! | ended | its end is in the stream |
//! | summarised | its summary is stored |
//! | announced | a notification is in the stream, or the summary has a mark that is not wrong |
//! | under way | something is missing, and its last end waits for a processor or is in the hands of one |
//! | dead letter | it was given up for its last end, and is not both announced and summarised in full: open |
//! | discarded | the dead letter about its last end was discarded: nothing more is to come |
//! | missing | it ended, is not summarised, not under way, no dead letter and not discarded |
//! | wrong mark | the message that its summary's mark names is another one, or was removed from the part that is kept |
//! | never announced | it is summarised, neither marked nor announced in the stream, not under way and no dead letter |
//! | announced again | two or more notifications are in the stream |
//! | stale | more segments are stored than the summary counts, or some were changed since, and it is not under way |
//! | without an end | its transcribers are dead, and none runs that would end it; or its document says that it ended, and neither its end nor a summary is there |
//!
//! An end that can never be processed names no session. Processors keep it as a dead letter, which somebody has to discard or
//! redrive. One without a dead letter and without the record of a discarded one is told as *not kept*: processors of older
//! versions terminated such ends and kept nothing.
//!
//! Three more things are told and are no problem: summaries of fewer segments than were announced (incomplete), summaries
//! that replaced an announced one without anybody being told (a processor tells with `--revise`), and messages whose headers
//! no client can take from a consumer ([`crate::operate::history`]).

mod end;
mod judge;
mod names;
mod pass;
mod progress;
mod render;
mod repair;
mod sessions;
pub mod summaries;

use async_nats::jetstream::{Context, consumer};
use futures::{StreamExt, TryStreamExt, stream};
use mongodb::Database;
use serde::Serialize;
use thiserror::Error;
use transcript_core::{Failure, WallTime, ids::Session};

use self::names::NAMED;
use self::{
    judge::{Mark, Problem, Standing, Verdict, judge},
    pass::{HashPartition, Loose, Pass, SessionRecord, announced_key, announces},
    repair::{Repair, WrongMark},
    sessions::{Sessions, Unended, Wanted},
    summaries::{BATCH, Found, Summaries},
};
pub use self::{
    names::{Name, Names},
    progress::Progress,
    render::render,
};
use crate::operate::history::{History, HistoryError, RawMessage};

/// How many sessions one pass holds.
pub const SESSIONS_A_PASS: usize = 1 << 19;
/// How many batches of sessions are looked up in the store at the same time.
const LOOK_UPS: usize = 4;

/// How an audit is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Looks only at what was stored in the stream from then on.
    pub since: Option<WallTime>,
    /// What is done about what is found.
    pub remedy: Remedy,
    /// How many sessions a pass holds at most; 0 counts as 1.
    pub sessions_a_pass: usize,
    /// Which incomplete summaries are named.
    pub incomplete: Incomplete,
}

/// Which incomplete summaries are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Incomplete {
    /// The first of them.
    Some,
    /// All of them, however many there are.
    All,
}

impl Incomplete {
    fn most(self) -> usize {
        match self {
            Self::Some => NAMED,
            Self::All => usize::MAX,
        }
    }
}

/// What is done about what is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// Nothing.
    Tell,
    /// Ends are published again.
    Repair,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Audit {
    /// Whether every call is summarised once and announced once, as far as it is not under way.
    pub one_to_one: bool,
    /// The last place of the stream that was looked at.
    pub through: u64,
    /// How often the stream was read.
    pub passes: u64,
    /// Sessions whose end is in the stream.
    pub ended: u64,
    /// Those sessions of the stream that are summarised.
    pub summarised: u64,
    /// Those that are announced.
    pub announced: u64,
    /// Summaries of fewer segments than their calls announced.
    pub incomplete: Names,
    /// Summaries that replaced an announced one, of which nobody was told.
    pub revised_unannounced: u64,
    /// Those that lack something and wait for a processor or are in the hands of one.
    pub under_way: u64,
    /// Those whose dead letter was discarded.
    pub discarded: u64,
    /// Ends that can never be processed.
    pub terminated: u64,
    /// Notifications and dead letters from which no session can be read.
    pub unreadable: u64,
    /// Messages whose headers no client can take from a consumer.
    pub unreadable_headers: Names,
    /// Who asked for what is to be processed, when the audit began.
    pub asking: Asking,
    /// Sessions of dead transcribers that one which runs is to end.
    pub to_be_ended: u64,
    /// Sessions of transcribers that have no end, and that nobody will end.
    pub without_end: Names,
    /// Ended, and lost.
    pub missing: Names,
    /// Summarised, and nobody was told.
    pub never_announced: Names,
    /// Announced more than once.
    pub announced_again: Names,
    /// Summarised from fewer segments than are stored, or from what some said before they were changed.
    pub stale: Names,
    /// Given up, and not redriven.
    pub dead_letters: Names,
    /// Summaries whose mark names a message that does not announce the call.
    pub wrong_mark: Names,
    /// Ends that can never be processed, without a dead letter and without the record of a discarded one.
    pub not_kept: Names,
    /// What was done about it, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repair: Option<Repair>,
}

/// Whether somebody does what is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Asking {
    /// Nobody can, there is no consumer: no processor has run yet, or somebody removed it.
    NoConsumer,
    /// No processor asks for messages.
    Nobody,
    /// A processor asks for messages.
    Somebody,
}

/// Why there is no result.
#[derive(Debug, Error)]
pub enum AuditError {
    /// The stream cannot be read.
    #[error(transparent)]
    Stream(#[from] HistoryError),
    /// MongoDB cannot be asked.
    #[error("MongoDB cannot be asked: {0}; repeat the command")]
    Store(Failure),
}

impl From<Failure> for AuditError {
    fn from(failure: Failure) -> Self {
        Self::Store(failure)
    }
}

/// Audits.
///
/// # Errors
///
/// The stream or the store cannot be read to the end. What was repaired until then stays.
pub async fn audit(
    js: &Context,
    database: &Database,
    options: Options,
    progress: &Progress,
) -> Result<Audit, AuditError> {
    let history = History::open(js).await?;
    let consumer = history.consumer().await?;
    let (first, through) = history.kept().await?.into_inner();
    let auditor = Auditor {
        standing: Standing::of(consumer.as_ref()),
        summaries: Summaries::of(database),
        sessions: Sessions::of(database),
        js,
        database,
        history,
        first,
        through,
        options,
        progress,
    };
    let mut audit = Audit::new(through, asking(consumer.as_ref()), options.remedy);
    let mut parts = vec![HashPartition::WHOLE];
    let mut loose = Some(Loose::default());
    while let Some(part) = parts.pop() {
        let mut pass = Pass::new(part, options.sessions_a_pass);
        auditor.gather(&mut pass, loose.as_mut()).await?;
        // What names no session is the same in every pass.
        if let Some(loose) = loose.take() {
            if let Some(repair) = &mut audit.repair {
                let gone = loose.unkept().filter(|(place, _)| !auditor.standing.may_come(*place));
                repair.keep(&auditor.history, gone).await;
            }
            audit.add_loose(loose, auditor.standing);
        }
        parts.append(&mut pass.left);
        auditor.look_up(pass, &mut audit).await?;
        audit.passes += 1;
    }
    audit.one_to_one = audit.problems().iter().all(|(_, names)| names.total == 0);
    Ok(audit)
}

fn asking(consumer: Option<&consumer::Info>) -> Asking {
    match consumer {
        None => Asking::NoConsumer,
        Some(info) if info.num_waiting == 0 => Asking::Nobody,
        Some(_) => Asking::Somebody,
    }
}

/// What every pass needs.
struct Auditor<'a> {
    js: &'a Context,
    database: &'a Database,
    history: History,
    summaries: Summaries,
    sessions: Sessions,
    standing: Standing,
    /// The place of the first message that the stream still holds.
    first: u64,
    through: u64,
    options: Options,
    progress: &'a Progress,
}

impl Auditor<'_> {
    /// Everything that is to be looked up, but for what the store knows of it.
    async fn gather(&self, pass: &mut Pass, loose: Option<&mut Loose>) -> Result<(), AuditError> {
        pass.read(&self.history, self.options.since, self.through, loose, self.progress).await?;
        if self.options.since.is_none() {
            self.progress.begin("looking for unmarked summaries", None);
            self.summaries.unmarked(|key| pass.add_summary(key)).await?;
        }
        self.progress.begin("looking for sessions without an end", None);
        // Where only a part of the stream is read, nobody can say whose end is not there.
        let wanted = if self.options.since.is_none() { Wanted::All } else { Wanted::Open };
        self.sessions.each(wanted, |key, told| pass.add_session(key, told, self.through)).await?;
        if self.options.since.is_none() {
            pass.read_ends_behind(&self.history, self.through).await?;
        }
        Ok(())
    }

    async fn look_up(&self, pass: Pass, audit: &mut Audit) -> Result<(), AuditError> {
        self.progress.begin("looking up summaries", Some(pass.len()));
        let batches = stream::iter(pass.into_sessions()).chunks(BATCH);
        let mut judged = batches.map(|batch| self.judge(batch)).buffered(LOOK_UPS);
        while let Some(batch) = judged.try_next().await? {
            self.progress.add(batch.len());
            let repairs = batch.iter().filter(|judged| judged.verdict.is_repairable()).map(Judged::end);
            if let Some(repair) = &mut audit.repair {
                repair.publish(&self.history, &self.summaries, repairs).await;
                let unended: Vec<Session> = batch.iter().filter_map(Judged::to_be_ended).collect();
                if !unended.is_empty() {
                    repair.end(self.js, self.database, &self.sessions, &unended).await;
                }
            }
            batch.iter().for_each(|judged| audit.add(judged, self.options.incomplete));
        }
        Ok(())
    }

    async fn judge(&self, batch: Vec<(Box<str>, SessionRecord)>) -> Result<Vec<Judged>, AuditError> {
        let mut found = self.summaries.find(batch.iter().map(|(key, _)| &**key)).await?;
        let sessions = found.values().filter_map(|found| Some(&*found.ended.as_ref()?.session.session_id));
        let versions = self.summaries.versions(sessions).await?;
        let mut judged = Vec::with_capacity(batch.len());
        for (key, seen) in batch {
            let found = found.remove(&*key);
            let mark = self.mark(&key, &seen, found.as_ref()).await?;
            let ended = found.as_ref().and_then(|found| found.ended.clone());
            let version = ended.as_ref().and_then(|ended| versions.get(&*ended.session.session_id)).copied();
            let version = version.unwrap_or_default();
            let stored = found.map(|found| found.stored);
            let verdict = judge(&seen, stored.as_ref(), mark, version, self.standing);
            judged.push(Judged { key, seen, ended, stored, version, verdict });
        }
        Ok(judged)
    }

    /// Compares the mark of a summary with the message that it names. Nothing is known of a message that the stream has
    /// dropped from its beginning, nor by a mark that names none.
    async fn mark(&self, key: &str, seen: &SessionRecord, found: Option<&Found>) -> Result<Mark, HistoryError> {
        let Some(mark) = found.and_then(|found| found.stored.notified) else { return Ok(Mark::Believed) };
        let place = mark.stream_sequence;
        if [0, seen.first_notification, seen.last_notification].contains(&place) || place < self.first {
            return Ok(Mark::Believed);
        }
        let announces_it = |message: RawMessage| {
            announces(&message.subject) && announced_key(&message.payload).as_deref() == Some(key)
        };
        let is_right = match self.history.message(place).await? {
            Some(message) => announces_it(message),
            // The stream may have dropped it only now.
            None => place < *self.history.kept().await?.start(),
        };
        Ok(if is_right { Mark::Believed } else { Mark::Wrong })
    }
}

/// A session, everything that is known of it, and what that comes to.
struct Judged {
    key: Box<str>,
    seen: SessionRecord,
    ended: Option<transcript_core::event::SessionEnded>,
    stored: Option<transcript_core::Stored>,
    version: transcript_core::TranscriptVersion,
    verdict: Verdict,
}

impl Judged {
    fn end(&self) -> repair::End<'_> {
        let is_wrong = self.verdict.problem == Some(Problem::WrongMark);
        let mark = self.stored.and_then(|stored| stored.notified).filter(|_| is_wrong);
        let announced_at = self.seen.last_notification;
        repair::End {
            key: &self.key,
            sequence: self.seen.last_end,
            ended: self.ended.as_ref(),
            wrong_mark: mark.map(|mark| WrongMark { names: mark.stream_sequence, announced_at }),
        }
    }

    /// The session, where it has no end and nobody will end it.
    fn to_be_ended(&self) -> Option<Session> {
        match self.verdict.unended? {
            Unended::Abandoned | Unended::Unpublished => Session::of_key(&self.key).ok(),
            Unended::Awaited => None,
        }
    }

    fn name(&self) -> Name {
        Name {
            key: Some(self.key.to_string()),
            end: (self.seen.last_end > 0).then_some(self.seen.last_end),
            ..Name::default()
        }
    }
}

impl Audit {
    fn new(through: u64, asking: Asking, remedy: Remedy) -> Self {
        Self {
            one_to_one: false,
            through,
            passes: 0,
            ended: 0,
            summarised: 0,
            announced: 0,
            incomplete: Names::default(),
            revised_unannounced: 0,
            under_way: 0,
            discarded: 0,
            terminated: 0,
            unreadable: 0,
            unreadable_headers: Names::default(),
            asking,
            to_be_ended: 0,
            without_end: Names::default(),
            missing: Names::default(),
            never_announced: Names::default(),
            announced_again: Names::default(),
            stale: Names::default(),
            dead_letters: Names::default(),
            wrong_mark: Names::default(),
            not_kept: Names::default(),
            repair: (remedy == Remedy::Repair).then(Repair::default),
        }
    }

    /// What keeps calls from being one to one, with the words for it.
    #[must_use]
    pub fn problems(&self) -> [(&'static str, &Names); 8] {
        [
            ("without an end", &self.without_end),
            ("missing", &self.missing),
            ("never announced", &self.never_announced),
            ("announced again", &self.announced_again),
            ("stale", &self.stale),
            ("dead letters", &self.dead_letters),
            ("wrong mark", &self.wrong_mark),
            ("not kept", &self.not_kept),
        ]
    }

    fn add_loose(&mut self, loose: Loose, standing: Standing) {
        self.terminated += loose.terminated;
        self.unreadable += loose.unreadable;
        for dead_letter in loose.open_dead_letters() {
            self.dead_letters.add(Name { dead_letter: Some(dead_letter), ..Name::default() });
        }
        for (place, reason) in loose.unkept() {
            if standing.may_come(place) {
                self.under_way += 1;
            } else {
                let error = reason.map(str::to_owned);
                self.not_kept.add(Name { message: Some(place), error, ..Name::default() });
            }
        }
        self.unreadable_headers = loose.flawed;
    }

    fn add(&mut self, judged: &Judged, incomplete: Incomplete) {
        let Judged { seen, verdict, .. } = judged;
        // The document of its transcribers said that it ended, the stream has dropped all of it, and its summary is there.
        let is_only_remembered = seen.unended == Some(Unended::Unpublished) && seen.notifications == 0;
        if is_only_remembered && verdict.unended.is_none() && verdict.problem.is_none() {
            return;
        }
        self.ended += u64::from(seen.ends > 0);
        self.summarised += u64::from(judged.stored.is_some());
        self.announced += u64::from(verdict.announced);
        let stored = judged.stored.as_ref();
        if let Some(stored) = stored.filter(|stored| !stored.complete) {
            let announced = judged.ended.as_ref().map(|ended| ended.published_segments);
            self.incomplete
                .add_within(incomplete.most(), Name { counted: Some(stored.segments), announced, ..judged.name() });
        }
        self.revised_unannounced += u64::from(stored.is_some_and(|stored| stored.unannounced_revision().is_some()));
        self.under_way += u64::from(verdict.under_way);
        self.discarded += u64::from(verdict.discarded);
        let name = || judged.name();
        let why = match verdict.unended {
            Some(Unended::Awaited) => {
                self.to_be_ended += 1;
                None
            }
            Some(Unended::Abandoned) => Some("no transcriber serves it, and it has not ended"),
            Some(Unended::Unpublished) => Some("it has ended, and its end is not in the stream"),
            None => None,
        };
        if let Some(why) = why {
            self.without_end.add(Name { error: Some(why.to_owned()), ..name() });
        }
        match verdict.problem {
            Some(Problem::Missing) => self.missing.add(name()),
            Some(Problem::NeverAnnounced) => self.never_announced.add(name()),
            Some(Problem::Stale) => {
                let counted = judged.stored.map(|stored| stored.segments);
                let behind = judged.stored.map_or(0, |stored| judged.version.edits.saturating_sub(stored.edits));
                let edits = Some(behind).filter(|edits| *edits > 0);
                self.stale.add(Name { counted, stored: Some(judged.version.segments), edits, ..name() });
            }
            Some(Problem::WrongMark) => {
                let marked = stored.and_then(|stored| stored.notified).map(|mark| mark.stream_sequence);
                self.wrong_mark.add(Name { marked, ..name() });
            }
            Some(Problem::DeadLetter) => self.dead_letters.add(Name { dead_letter: Some(seen.dead_letter), ..name() }),
            None => {}
        }
        if verdict.announced_again {
            self.announced_again.add(Name { notifications: Some(seen.notifications), ..name() });
        }
    }
}
