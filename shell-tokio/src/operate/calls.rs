//! `calls`: the calls that ended, with what became of each, read from the stream and the store. Nothing about them is written
//! down anywhere else:
//!
//! | state | when |
//! |---|---|
//! | complete, incomplete | the summary is stored and announced, with or without all segments |
//! | dead-letter | the call is not announced, and an open dead letter is about it |
//! | waiting | neither, and the end was not handed out yet |
//! | in-hand | neither, and it was: a processor works on it, or gets it again |
//!
//! Calls are read in batches, so that any number of them can be listed; only their keys are kept.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    time::{Duration, UNIX_EPOCH},
};

use async_nats::jetstream::Context;
use mongodb::Database;
use serde::Serialize;
use thiserror::Error;
use transcript_core::{Failure, WallTime, contract::SESSION_ENDED_SUBJECT, event::SessionEnded, ids::Session};

use super::{
    audit::summaries::{BATCH, Found, Summaries},
    dead_letters::{self, DeadLettersError, State},
    history::{History, HistoryError, Parts, Reading, Record, Start},
};
use crate::terminal::{harmless, padded};

/// How often `--follow` looks again.
const FOLLOW_EVERY: Duration = Duration::from_secs(2);
/// How many calls without an end `--follow` keeps in mind; beyond it the oldest are forgotten.
const MOST_OPEN: usize = 100_000;

/// Which calls are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Those whose end was stored at this moment or later.
    pub since: WallTime,
    /// Those in these states; all where none is named.
    pub states: Vec<CallState>,
    /// Those of this conversation.
    pub conversation: Option<String>,
    /// Those that were given up for a reason with this text in it.
    pub reason: Option<String>,
}

/// What became of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum CallState {
    /// Summarised and announced, with all segments.
    Complete,
    /// Summarised and announced, and segments are missing.
    Incomplete,
    /// Given up.
    DeadLetter,
    /// Its end was not handed out yet.
    Waiting,
    /// A processor works on it, or gets it again.
    InHand,
}

impl CallState {
    /// Whether it stays so, unless somebody acts.
    fn is_final(self) -> bool {
        match self {
            Self::Complete | Self::Incomplete | Self::DeadLetter => true,
            Self::Waiting | Self::InHand => false,
        }
    }
}

impl fmt::Display for CallState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Complete => "complete",
            Self::Incomplete => "incomplete",
            Self::DeadLetter => "dead-letter",
            Self::Waiting => "waiting",
            Self::InHand => "in-hand",
        })
    }
}

/// A call that ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CallLine {
    /// When its end was stored, in milliseconds since the Unix epoch.
    pub at: WallTime,
    /// What became of it.
    pub state: CallState,
    /// The place of its end in the stream.
    pub stream_sequence: u64,
    /// Its key, as log lines print it; `None` where its end names no call.
    pub key: Option<String>,
    /// The call; `None` where its end names none.
    #[serde(flatten)]
    pub session: Option<Session>,
    /// How many segments its stored summary counts.
    pub segments: Option<u64>,
    /// How many its end announced.
    pub published_segments: Option<u64>,
    /// Which summary of the call it is, counted from 1.
    pub revision: Option<u64>,
    /// Why it was given up.
    pub reason: Option<String>,
}

impl fmt::Display for CallLine {
    /// One line of columns.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = u64::try_from(self.at.as_millis()).unwrap_or(0);
        let when = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(millis));
        let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        let segments = format!("{}/{}", number(self.segments), number(self.published_segments));
        let key = self.key.as_deref().map_or_else(|| format!("message {}", self.stream_sequence), harmless);
        write!(f, "{when}  {}  {}  {key}", padded(&self.state.to_string(), 11), padded(&segments, 11))?;
        if let Some(revision) = self.revision.filter(|revision| *revision > 1) {
            write!(f, "  revision {revision}")?;
        }
        self.reason.as_ref().map_or(Ok(()), |reason| write!(f, "  {}", harmless(reason)))
    }
}

/// Why calls cannot be listed.
#[derive(Debug, Error)]
pub enum CallsError {
    /// The stream cannot be read.
    #[error(transparent)]
    Stream(#[from] HistoryError),
    /// The dead letters are not known.
    #[error(transparent)]
    DeadLetters(#[from] DeadLettersError),
    /// MongoDB cannot be asked.
    #[error("MongoDB does not tell which calls are summarised: {0}")]
    Store(Failure),
    /// What was found cannot be printed.
    #[error(transparent)]
    Print(#[from] io::Error),
}

/// Lists calls.
pub struct Calls<'a> {
    js: &'a Context,
    database: &'a Database,
    wanted: &'a Wanted,
    history: History,
    summaries: Summaries,
    /// The place up to which ends were read.
    read: u64,
    keys: BTreeSet<String>,
    /// Ends of which nothing final was said.
    open: Vec<End>,
}

/// An end of a call, as the stream has it.
#[derive(Debug, Clone)]
struct End {
    at: WallTime,
    stream_sequence: u64,
    ended: Option<SessionEnded>,
}

/// What is known of all ends together.
struct Known {
    /// The place of the last end that was handed out.
    delivered: u64,
    /// The reasons of the open dead letters, by key.
    keys: BTreeMap<String, Option<String>>,
    /// The same by the place of the end that they are about.
    places: BTreeMap<u64, Option<String>>,
}

impl<'a> Calls<'a> {
    /// A listing that has begun with nothing.
    ///
    /// # Errors
    ///
    /// There is no stream, or JetStream does not answer.
    pub async fn open(js: &'a Context, database: &'a Database, wanted: &'a Wanted) -> Result<Self, CallsError> {
        let history = History::open(js).await?;
        let (keys, open) = (BTreeSet::new(), Vec::new());
        Ok(Self { js, database, wanted, history, summaries: Summaries::of(database), read: 0, keys, open })
    }

    /// Hands all calls that are wanted to `print`, in the order in which they ended.
    ///
    /// # Errors
    ///
    /// See [`CallsError`].
    pub async fn list(&mut self, mut print: impl FnMut(&CallLine) -> io::Result<()>) -> Result<(), CallsError> {
        self.pass(&mut print, |_| true).await
    }

    /// Hands each call that is wanted to `print` once it is complete, incomplete or given up, for ever. [`Calls::list`] comes
    /// first.
    ///
    /// # Errors
    ///
    /// See [`CallsError`].
    pub async fn follow(&mut self, mut print: impl FnMut(&CallLine) -> io::Result<()>) -> Result<(), CallsError> {
        loop {
            tokio::time::sleep(FOLLOW_EVERY).await;
            let open = std::mem::take(&mut self.open);
            if !open.is_empty() {
                let known = self.known().await?;
                for batch in open.chunks(BATCH) {
                    self.print(batch, &known, &mut print, CallState::is_final).await?;
                }
            }
            self.pass(&mut print, CallState::is_final).await?;
            let too_many = self.open.len().saturating_sub(MOST_OPEN);
            self.open.drain(..too_many);
        }
    }

    /// Reads the ends that came since the last pass.
    async fn pass(
        &mut self,
        print: &mut impl FnMut(&CallLine) -> io::Result<()>,
        is_due: impl Fn(CallState) -> bool + Copy,
    ) -> Result<(), CallsError> {
        let through = self.history.last_sequence().await?;
        if through <= self.read {
            return Ok(());
        }
        let known = self.known().await?;
        let start = if self.read == 0 { Start::At(self.wanted.since) } else { Start::Behind(self.read) };
        let subjects = vec![SESSION_ENDED_SUBJECT.to_owned()];
        let history = self.history.clone();
        let mut reader = history.read(Reading { subjects, start, through, parts: Parts::Whole }).await?;
        let mut batch = Vec::with_capacity(BATCH);
        while let Some(record) = reader.next().await? {
            batch.extend(self.end(&record));
            if batch.len() == BATCH {
                self.print(&batch, &known, print, is_due).await?;
                batch.clear();
            }
        }
        self.print(&batch, &known, print, is_due).await?;
        self.read = through;
        Ok(())
    }

    /// The end, where it is wanted and its call was not seen before.
    fn end(&mut self, record: &Record) -> Option<End> {
        let ended = SessionEnded::parse(&record.payload).ok();
        if let Some(conversation) = &self.wanted.conversation {
            ended.as_ref().filter(|ended| *ended.session.conversation_id == **conversation)?;
        }
        let is_new = ended.as_ref().is_none_or(|ended| self.keys.insert(ended.session.key().to_string()));
        is_new.then_some(End { at: record.stored_at, stream_sequence: record.sequence, ended })
    }

    async fn known(&self) -> Result<Known, CallsError> {
        let consumer = self.history.consumer().await?;
        let letters = dead_letters::list(self.js, self.database).await?;
        let open = || letters.iter().filter(|letter| letter.state == State::Open);
        let by_key = |letter: &dead_letters::StoredDeadLetter| {
            Some((letter.session.as_ref()?.key().to_string(), letter.reason.clone()))
        };
        Ok(Known {
            delivered: consumer.map_or(0, |consumer| consumer.delivered.stream_sequence),
            keys: open().filter_map(by_key).collect(),
            places: open().filter_map(|letter| Some((letter.stream_sequence?, letter.reason.clone()))).collect(),
        })
    }

    async fn print(
        &mut self,
        ends: &[End],
        known: &Known,
        print: &mut impl FnMut(&CallLine) -> io::Result<()>,
        is_due: impl Fn(CallState) -> bool,
    ) -> Result<(), CallsError> {
        let keys: Vec<_> = ends.iter().filter_map(|end| Some(end.ended.as_ref()?.session.key())).collect();
        let found = self.summaries.find(keys.iter().map(|key| key.as_str())).await.map_err(CallsError::Store)?;
        for end in ends {
            let line = line(end, known, &found);
            if !line.state.is_final() {
                self.open.push(end.clone());
            }
            if is_due(line.state) && self.is_wanted(&line) {
                print(&line)?;
            }
        }
        Ok(())
    }

    fn is_wanted(&self, line: &CallLine) -> bool {
        let Wanted { states, reason, .. } = self.wanted;
        let has_reason = |text: &String| line.reason.as_ref().is_some_and(|reason| reason.contains(text));
        (states.is_empty() || states.contains(&line.state)) && reason.as_ref().is_none_or(has_reason)
    }
}

fn line(end: &End, known: &Known, found: &BTreeMap<String, Found>) -> CallLine {
    let key = end.ended.as_ref().map(|ended| ended.session.key().to_string());
    let stored = key.as_ref().and_then(|key| found.get(key)).map(|found| found.stored);
    let given_up = known.places.get(&end.stream_sequence).or_else(|| known.keys.get(key.as_ref()?));
    let announced = stored.filter(|stored| stored.notified.is_some());
    let state = match (announced, given_up) {
        (Some(stored), _) if stored.complete => CallState::Complete,
        (Some(_), _) => CallState::Incomplete,
        (None, Some(_)) => CallState::DeadLetter,
        (None, None) if end.stream_sequence > known.delivered => CallState::Waiting,
        (None, None) => CallState::InHand,
    };
    CallLine {
        at: end.at,
        state,
        stream_sequence: end.stream_sequence,
        key,
        session: end.ended.as_ref().map(|ended| ended.session.clone()),
        segments: stored.map(|stored| stored.segments),
        published_segments: end.ended.as_ref().map(|ended| ended.published_segments),
        revision: stored.map(|stored| stored.revision),
        reason: if state == CallState::DeadLetter { given_up.cloned().flatten() } else { None },
    }
}

#[cfg(test)]
mod tests {
    use transcript_core::{Notified, Stored};

    use super::*;

    fn known() -> Known {
        let reason = Some("poison".to_owned());
        let keys = BTreeMap::from([("c:given-up".to_owned(), reason.clone())]);
        Known { delivered: 10, keys, places: BTreeMap::from([(4, reason)]) }
    }

    fn state(sequence: u64, session: Option<&str>, stored: Option<Stored>) -> CallState {
        let ended = session.map(|session| SessionEnded {
            session: Session::new("c", session).expect("ids are valid"),
            published_segments: 2,
            reprocess: 0,
        });
        let found = stored
            .zip(ended.clone())
            .map(|(stored, ended)| (ended.session.key().to_string(), Found { ended: None, stored }));
        line(
            &End { at: WallTime::from_millis(0), stream_sequence: sequence, ended },
            &known(),
            &found.into_iter().collect(),
        )
        .state
    }

    #[test]
    fn the_state_of_a_call_follows_from_summary_dead_letter_and_consumer() {
        let notified = Some(Notified { stream_sequence: 3, at: WallTime::from_millis(0) });
        let stored =
            Stored { segments: 2, complete: true, notified, revision: 1, revised: None, edits: 0, reprocess: 0 };
        assert_eq!(state(5, Some("s"), Some(stored)), CallState::Complete);
        assert_eq!(state(5, Some("s"), Some(Stored { complete: false, ..stored })), CallState::Incomplete);
        assert_eq!(state(5, Some("given-up"), Some(stored)), CallState::Complete, "it was redriven since");
        assert_eq!(state(5, Some("given-up"), None), CallState::DeadLetter);
        assert_eq!(state(4, None, None), CallState::DeadLetter);
        assert_eq!(state(5, Some("s"), Some(Stored { notified: None, ..stored })), CallState::InHand);
        assert_eq!(state(11, Some("s"), None), CallState::Waiting);
    }

    #[test]
    fn a_line_has_nothing_that_a_terminal_would_obey() {
        let session = Session::new("a\u{1b}[2J", "b\u{202e}").expect("ids are valid");
        let ended = Some(SessionEnded { session, published_segments: 1, reprocess: 0 });
        let end = End { at: WallTime::from_millis(0), stream_sequence: 4, ended };
        let text = line(&end, &known(), &BTreeMap::new()).to_string();
        assert!(text.starts_with("1970-01-01T00:00:00Z  dead-letter  -/1"), "{text}");
        assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}') && text.ends_with("poison"), "{text}");
    }
}
