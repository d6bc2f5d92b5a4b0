//! `dead-letters`: the ends of calls that were given up, what became of them, and what can be done about them.
//!
//! Nothing is written down about a dead letter but the dead letter itself. Its state is read from the stream and the store:
//!
//! | state | when |
//! |---|---|
//! | settled | the session's summary is stored, marked as announced, and of all segments that are stored |
//! | redriven | an end made from the dead letter is in the stream, and the dead letter is not settled |
//! | open | neither |
//!
//! A dead letter is redriven once. Where that end is given up again it comes back as a dead letter of its own, with a place of
//! its own, and that one is open.

mod render;

use std::collections::{BTreeMap, BTreeSet};

use async_nats::jetstream::Context;
use bytes::Bytes;
use mongodb::Database;
use serde::Serialize;
use thiserror::Error;
use transcript_core::{
    Failure, WallTime,
    contract::{
        ATTEMPTS_HEADER, DEAD_LETTER_SUBJECT, PROCESSOR_HEADER, REASON_HEADER, REDRIVE_OF_HEADER,
        SESSION_ENDED_SUBJECT, STREAM_SEQUENCE_HEADER, TIME_HEADER, TRANSCRIPTION_STREAM, redrive_id,
    },
    event::SessionEnded,
    ids::Session,
};

pub use self::render::{Whole, render, table};
use crate::{
    cli::Which,
    error_line::error_line,
    operate::audit::summaries::{BATCH, Found, Summaries},
    operate::history::{History, HistoryError, Parts, Reading, Record, Start},
};

/// A dead letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredDeadLetter {
    /// Its place in the stream.
    pub sequence: u64,
    /// When the end was given up; when the dead letter was stored where it does not say.
    pub at: WallTime,
    /// The call; `None` where the payload names none.
    #[serde(flatten)]
    pub session: Option<Session>,
    /// How often the end was handed over.
    pub attempts: Option<u64>,
    /// Why it was given up.
    pub reason: Option<String>,
    /// Who gave it up.
    pub processor: Option<String>,
    /// The place of the end.
    pub stream_sequence: Option<u64>,
    /// What became of it.
    #[serde(flatten)]
    pub state: State,
}

/// What became of a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum State {
    /// Nothing.
    Open,
    /// An end made from it is in the stream.
    #[serde(rename_all = "camelCase")]
    Redriven {
        /// The place of that end.
        redriven_as: u64,
        /// The dead letter as which it came back.
        came_back_as: Option<u64>,
    },
    /// The session's summary is stored and announced, and no segment came after it.
    Settled,
}

/// What a command did about one dead letter.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// The dead letter.
    pub sequence: u64,
    /// What was done.
    #[serde(flatten)]
    pub done: Done,
}

/// What was done about a dead letter, or why nothing was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "outcome")]
pub enum Done {
    /// An end made from it was published.
    #[serde(rename_all = "camelCase")]
    Redriven {
        /// The place of that end.
        redriven_as: u64,
    },
    /// An end made from it is in the stream already.
    #[serde(rename_all = "camelCase")]
    RedrivenBefore {
        /// The place of that end.
        redriven_as: u64,
    },
    /// The session's summary is stored and announced: there is nothing to do.
    Settled,
    /// It was removed from the stream, and the stream holds the record of that.
    Discarded,
    /// It was redriven, and given up again.
    #[serde(rename_all = "camelCase")]
    CameBack {
        /// The dead letter that it is now.
        came_back_as: u64,
    },
    /// There is no such message.
    Absent,
    /// The message is none.
    NotADeadLetter {
        /// The message's subject.
        subject: String,
    },
    /// It is not known to be done.
    Failed {
        /// Why.
        error: String,
    },
}

impl Done {
    /// Whether the dead letter is as it should be now.
    #[must_use]
    pub fn is_success(&self) -> bool {
        match self {
            Self::Redriven { .. } | Self::RedrivenBefore { .. } | Self::Settled | Self::Discarded => true,
            Self::CameBack { .. } | Self::Absent | Self::NotADeadLetter { .. } | Self::Failed { .. } => false,
        }
    }
}

/// Why nothing is known about dead letters.
#[derive(Debug, Error)]
pub enum DeadLettersError {
    /// The stream cannot be read.
    #[error(transparent)]
    Stream(#[from] HistoryError),
    /// MongoDB cannot be asked.
    #[error("MongoDB does not tell which calls are summarised: {0}")]
    Store(Failure),
    /// No such message.
    #[error("there is no message {sequence} in {TRANSCRIPTION_STREAM}: `dead-letters list` names those that are there")]
    Absent {
        /// The place that was asked for.
        sequence: u64,
    },
    /// The message is none.
    #[error("message {sequence} is no dead letter but a {subject}: `dead-letters list` names those that are")]
    NotADeadLetter {
        /// The place that was asked for.
        sequence: u64,
        /// Its subject.
        subject: String,
    },
}

/// All dead letters in the order of the stream, with their states.
///
/// # Errors
///
/// See [`DeadLettersError`].
pub async fn list(js: &Context, database: &Database) -> Result<Vec<StoredDeadLetter>, DeadLettersError> {
    survey(&History::open(js).await?, database).await
}

/// One dead letter and its payload.
///
/// # Errors
///
/// See [`DeadLettersError`].
pub async fn show(
    js: &Context,
    database: &Database,
    sequence: u64,
) -> Result<(StoredDeadLetter, Bytes), DeadLettersError> {
    let history = History::open(js).await?;
    let payload = match look(&history, sequence).await? {
        Look::DeadLetter { payload, .. } => payload,
        Look::Absent => return Err(DeadLettersError::Absent { sequence }),
        Look::Other(subject) => return Err(DeadLettersError::NotADeadLetter { sequence, subject }),
    };
    let dead_letters = survey(&history, database).await?;
    let dead_letter = dead_letters.into_iter().find(|dead_letter| dead_letter.sequence == sequence);
    dead_letter.map(|dead_letter| (dead_letter, payload)).ok_or(DeadLettersError::Absent { sequence })
}

/// Publishes the payloads of dead letters as ends again, those that are open, or `corrected` in the place of a payload that
/// can never be processed. Each has an outcome of its own.
///
/// # Errors
///
/// Nothing is known about the dead letters, and nothing was published.
pub async fn redrive(
    js: &Context,
    database: &Database,
    which: &Which,
    corrected: Option<&SessionEnded>,
) -> Result<Vec<Outcome>, DeadLettersError> {
    let history = History::open(js).await?;
    let dead_letters = survey(&history, database).await?;
    let states: BTreeMap<u64, State> =
        dead_letters.iter().map(|dead_letter| (dead_letter.sequence, dead_letter.state)).collect();
    let sequences: Vec<u64> = match which {
        Which::These(sequences) => each_once(sequences),
        Which::AllOpen => states.iter().filter(|(_, state)| **state == State::Open).map(|(place, _)| *place).collect(),
    };
    let mut outcomes = Vec::with_capacity(sequences.len());
    for sequence in sequences {
        let done = match states.get(&sequence) {
            Some(State::Settled) => Done::Settled,
            Some(State::Redriven { came_back_as: Some(came_back_as), .. }) => {
                Done::CameBack { came_back_as: *came_back_as }
            }
            Some(State::Redriven { redriven_as, came_back_as: None }) => {
                Done::RedrivenBefore { redriven_as: *redriven_as }
            }
            Some(State::Open) | None => {
                redrive_one(&history, sequence, corrected).await.unwrap_or_else(|error| failed(&error))
            }
        };
        outcomes.push(Outcome { sequence, done });
    }
    Ok(outcomes)
}

/// Removes dead letters from the stream, for good: the stream keeps a record of it, by which the audit knows that nothing is
/// missing. Each has an outcome of its own.
///
/// # Errors
///
/// There is no stream, and nothing was removed.
pub async fn discard(js: &Context, sequences: &[u64]) -> Result<Vec<Outcome>, DeadLettersError> {
    let history = History::open(js).await?;
    let mut outcomes = Vec::with_capacity(sequences.len());
    for sequence in each_once(sequences) {
        let done = discard_one(&history, sequence).await.unwrap_or_else(|error| failed(&error));
        outcomes.push(Outcome { sequence, done });
    }
    Ok(outcomes)
}

/// Each place once, in the order in which they were given: a place that is given twice is one dead letter.
fn each_once(sequences: &[u64]) -> Vec<u64> {
    let mut seen = BTreeSet::new();
    sequences.iter().copied().filter(|sequence| seen.insert(*sequence)).collect()
}

async fn redrive_one(history: &History, sequence: u64, corrected: Option<&SessionEnded>) -> Result<Done, HistoryError> {
    Ok(match look(history, sequence).await? {
        Look::DeadLetter { payload, .. } => {
            let corrected = corrected.and_then(|ended| serde_json::to_vec(ended).ok()).map(Bytes::from);
            let payload = corrected.unwrap_or(payload);
            let end = history.republish(sequence, redrive_id(sequence), payload).await?;
            if end.before {
                Done::RedrivenBefore { redriven_as: end.sequence }
            } else {
                Done::Redriven { redriven_as: end.sequence }
            }
        }
        Look::Absent => Done::Absent,
        Look::Other(subject) => Done::NotADeadLetter { subject },
    })
}

async fn discard_one(history: &History, sequence: u64) -> Result<Done, HistoryError> {
    Ok(match look(history, sequence).await? {
        Look::DeadLetter { payload, about } => {
            // The record first: whoever repeats a discard that stopped between the two does no harm.
            history.record_discard(sequence, about, payload).await?;
            history.remove(sequence).await?;
            Done::Discarded
        }
        Look::Absent => Done::Absent,
        Look::Other(subject) => Done::NotADeadLetter { subject },
    })
}

fn failed(error: &HistoryError) -> Done {
    Done::Failed { error: error_line(error) }
}

/// What stands at a place of the stream.
enum Look {
    DeadLetter {
        payload: Bytes,
        /// The place of the end that it is about; its own, which stands behind that, where it does not say.
        about: u64,
    },
    Other(String),
    Absent,
}

async fn look(history: &History, sequence: u64) -> Result<Look, HistoryError> {
    Ok(match history.message(sequence).await? {
        Some(message) if message.subject.as_str() == DEAD_LETTER_SUBJECT => {
            let about = message.header(STREAM_SEQUENCE_HEADER).and_then(|place| place.parse().ok());
            Look::DeadLetter { payload: message.payload.into(), about: about.unwrap_or(sequence) }
        }
        Some(message) => Look::Other(message.subject),
        None => Look::Absent,
    })
}

async fn survey(history: &History, database: &Database) -> Result<Vec<StoredDeadLetter>, DeadLettersError> {
    let through = history.last_sequence().await?;
    let mut dead_letters = read_dead_letters(history, through).await?;
    let Some(first) = dead_letters.first().map(|dead_letter| dead_letter.sequence) else { return Ok(dead_letters) };
    let redriven = read_redriven(history, first, through).await?;
    let sessions = sessions(history, &dead_letters, &redriven).await?;
    let settled = settled(database, sessions.values()).await?;
    let given_up: BTreeMap<u64, u64> = dead_letters
        .iter()
        .filter_map(|dead_letter| Some((dead_letter.stream_sequence?, dead_letter.sequence)))
        .collect();
    for dead_letter in &mut dead_letters {
        let session = sessions.get(&dead_letter.sequence);
        let is_settled = session.is_some_and(|session| settled.contains(session.key().as_str()));
        dead_letter.state = match redriven.get(&dead_letter.sequence) {
            _ if is_settled => State::Settled,
            Some(&redriven_as) => {
                State::Redriven { redriven_as, came_back_as: came_back(redriven_as, &redriven, &given_up) }
            }
            None => State::Open,
        };
    }
    Ok(dead_letters)
}

/// The dead letter about this end, or about one that was made from it: a processor that is told to stop publishes an end again
/// too. An end stands behind the message that it was made from, so this comes to an end.
fn came_back(end: u64, redriven: &BTreeMap<u64, u64>, given_up: &BTreeMap<u64, u64>) -> Option<u64> {
    let mut end = end;
    loop {
        if let Some(dead_letter) = given_up.get(&end) {
            return Some(*dead_letter);
        }
        end = redriven.get(&end).copied().filter(|next| *next > end)?;
    }
}

async fn read_dead_letters(history: &History, through: u64) -> Result<Vec<StoredDeadLetter>, HistoryError> {
    let subjects = vec![DEAD_LETTER_SUBJECT.to_owned()];
    let mut reader = history.read(Reading { subjects, start: Start::First, through, parts: Parts::Whole }).await?;
    let mut dead_letters = vec![];
    while let Some(record) = reader.next().await? {
        dead_letters.push(dead_letter(&record));
    }
    Ok(dead_letters)
}

/// The ends that were made from other messages, by those; the last one where there are several.
async fn read_redriven(history: &History, behind: u64, through: u64) -> Result<BTreeMap<u64, u64>, HistoryError> {
    let subjects = vec![SESSION_ENDED_SUBJECT.to_owned()];
    let start = Start::Behind(behind);
    let mut reader = history.read(Reading { subjects, start, through, parts: Parts::Headers }).await?;
    let mut redriven = BTreeMap::new();
    while let Some(record) = reader.next().await? {
        if let Some(source) = record.header(REDRIVE_OF_HEADER).and_then(|source| source.parse().ok()) {
            redriven.insert(source, record.sequence);
        }
    }
    Ok(redriven)
}

/// The sessions of the dead letters, by their places. One whose payload names none may have been redriven with another
/// payload, which does.
async fn sessions(
    history: &History,
    dead_letters: &[StoredDeadLetter],
    redriven: &BTreeMap<u64, u64>,
) -> Result<BTreeMap<u64, Session>, HistoryError> {
    let mut sessions = BTreeMap::new();
    for StoredDeadLetter { sequence, session, .. } in dead_letters {
        let session = match (session, redriven.get(sequence)) {
            (Some(session), _) => Some(session.clone()),
            (None, Some(&end)) => {
                let end = history.message(end).await?;
                end.and_then(|end| SessionEnded::parse(&end.payload).ok()).map(|ended| ended.session)
            }
            (None, None) => None,
        };
        sessions.extend(session.map(|session| (*sequence, session)));
    }
    Ok(sessions)
}

/// The keys of those sessions for which nothing is left to do.
async fn settled(
    database: &Database,
    sessions: impl Iterator<Item = &Session>,
) -> Result<BTreeSet<String>, DeadLettersError> {
    let summaries = Summaries::of(database);
    let keys: Vec<_> = sessions.map(Session::key).collect();
    let mut settled = BTreeSet::new();
    for batch in keys.chunks(BATCH) {
        let found = summaries.find(batch.iter().map(|key| key.as_str())).await.map_err(DeadLettersError::Store)?;
        let sessions = found.values().filter_map(|found| Some(&*found.ended.as_ref()?.session.session_id));
        let versions = summaries.versions(sessions).await.map_err(DeadLettersError::Store)?;
        let is_settled = |found: &Found| {
            let session = found.ended.as_ref().map(|ended| &*ended.session.session_id);
            let version = session.and_then(|session| versions.get(session)).copied().unwrap_or_default();
            found.stored.is_settled(version)
        };
        settled.extend(found.iter().filter(|(_, found)| is_settled(found)).map(|(key, _)| key.clone()));
    }
    Ok(settled)
}

/// A dead letter as it is read, and of which nothing more is known yet.
fn dead_letter(record: &Record) -> StoredDeadLetter {
    let text = |name: &str| record.header(name);
    let number = |name: &str| text(name)?.parse::<u64>().ok();
    StoredDeadLetter {
        sequence: record.sequence,
        at: text(TIME_HEADER).and_then(|at| at.parse().ok()).map_or(record.stored_at, WallTime::from_millis),
        session: SessionEnded::parse(&record.payload).ok().map(|ended| ended.session),
        attempts: number(ATTEMPTS_HEADER),
        reason: text(REASON_HEADER).map(str::to_owned),
        processor: text(PROCESSOR_HEADER).map(str::to_owned),
        stream_sequence: number(STREAM_SEQUENCE_HEADER),
        state: State::Open,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operate::history::RawMessage;

    fn record(block: &'static str, payload: &'static [u8]) -> Record {
        Record::from(RawMessage {
            sequence: 9,
            subject: DEAD_LETTER_SUBJECT.to_owned(),
            stored_at: WallTime::from_millis(1),
            header_block: block.as_bytes().to_vec(),
            payload: payload.to_vec(),
        })
    }

    #[test]
    fn a_dead_letter_says_what_its_headers_say() {
        let block = "NATS/1.0\r\nTranscript-Stream-Sequence: 7\r\nTranscript-Attempts: 5\r\nTranscript-Reason: the \
                     summary step panicked\r\nTranscript-Time: 1500\r\nTranscript-Processor: host/12\r\n\r\n";
        let payload = br#"{"conversationId":"c","sessionId":"s","publishedSegments":1}"#;
        let read = dead_letter(&record(block, payload));
        let expected = StoredDeadLetter {
            sequence: 9,
            at: WallTime::from_millis(1500),
            session: Session::new("c", "s").ok(),
            attempts: Some(5),
            reason: Some("the summary step panicked".into()),
            processor: Some("host/12".into()),
            stream_sequence: Some(7),
            state: State::Open,
        };
        assert_eq!(read, expected);
    }

    #[test]
    fn a_dead_letter_of_somebody_else_is_read_as_far_as_it_goes() {
        for block in ["", "NATS/1.0\r\nTranscript-Attempts: many\r\n\r\n"] {
            let read = dead_letter(&record(block, b"\xff"));
            assert_eq!((read.at, read.session, read.attempts), (WallTime::from_millis(1), None, None));
        }
    }

    #[test]
    fn what_came_back_is_found_along_the_ends_that_were_made_from_each_other() {
        let redriven = BTreeMap::from([(5, 6), (6, 8), (20, 21)]);
        assert_eq!(came_back(6, &redriven, &BTreeMap::from([(1, 5), (8, 9)])), Some(9));
        assert_eq!(came_back(6, &redriven, &BTreeMap::from([(1, 5)])), None);
        assert_eq!(came_back(3, &BTreeMap::from([(3, 3)]), &BTreeMap::new()), None);
    }
}
