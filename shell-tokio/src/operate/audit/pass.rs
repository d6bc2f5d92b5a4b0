//! One reading of the stream, and the sessions that it keeps in mind.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use transcript_core::{
    WallTime,
    contract::{
        DEAD_LETTER_SUBJECT, DISCARDED_SUBJECT, Notification, PROCESSED_SUBJECT, REDRIVE_OF_HEADER,
        SESSION_ENDED_SUBJECT, STREAM_SEQUENCE_HEADER,
    },
    event::SessionEnded,
    ids::Session,
};

use super::{
    Name, Names, Progress,
    names::NAMED,
    sessions::{Told, Unended},
};
use crate::operate::history::{History, HistoryError, Parts, Reading, Record, Start};

/// After so many messages the progress is shown.
const STEP: usize = 1000;

/// What the stream says of a session. A place is 0 where there is none; the stream counts from 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SessionRecord {
    /// The place of its last end.
    pub(super) last_end: u64,
    /// The place of its last dead letter.
    pub(super) dead_letter: u64,
    /// The place of the end that this one is about.
    pub(super) about: u64,
    /// The place of the end for which its dead letter was discarded.
    pub(super) discarded: u64,
    /// How often its end is in the stream.
    pub(super) ends: u32,
    /// How often it is announced.
    pub(super) notifications: u32,
    /// The place of its first notification.
    pub(super) first_notification: u64,
    /// The place of its last notification.
    pub(super) last_notification: u64,
    /// What its transcribers' document says, where it has no end, or perhaps none.
    pub(super) unended: Option<Unended>,
}

/// The keys whose hashes end in the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HashPartition {
    bits: u32,
    value: u64,
}

/// What is the same in every pass: what names no session, and messages that no client can take.
#[derive(Debug, Default)]
pub(super) struct Loose {
    /// Ends that can never be processed.
    pub(super) terminated: u64,
    pub(super) unreadable: u64,
    /// Messages whose headers no client can take from a consumer.
    pub(super) flawed: Names,
    /// Dead letters about ends that cannot be read, but for those that were redriven.
    dead_letters: BTreeSet<u64>,
    /// Why ends cannot be processed about which there is no dead letter and no record of a discarded one. The reason is kept
    /// for as many as are named.
    unkept: BTreeMap<u64, Option<Box<str>>>,
}

/// The sessions of a part.
#[derive(Debug)]
pub(super) struct Pass {
    part: HashPartition,
    most: usize,
    sessions: BTreeMap<Box<str>, SessionRecord>,
    /// Whether there are summaries of which the stream has said nothing.
    has_orphans: bool,
    /// What did not fit and is left to other passes.
    pub(super) left: Vec<HashPartition>,
}

impl HashPartition {
    pub(super) const WHOLE: Self = Self { bits: 0, value: 0 };

    fn has(self, key: &str) -> bool {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        hasher.finish() & ((1 << self.bits) - 1) == self.value
    }

    /// Two parts that are this one together; `None` where hashes have no more bits to tell keys apart.
    fn halves(self) -> Option<(Self, Self)> {
        let bits = self.bits + 1;
        (bits < u64::BITS)
            .then(|| (Self { bits, value: self.value }, Self { bits, value: self.value | 1 << self.bits }))
    }
}

impl Loose {
    pub(super) fn open_dead_letters(&self) -> impl Iterator<Item = u64> {
        self.dead_letters.iter().copied()
    }

    /// The ends that can never be processed and of which nothing was kept, with the reasons.
    pub(super) fn unkept(&self) -> impl Iterator<Item = (u64, Option<&str>)> {
        self.unkept.iter().map(|(place, reason)| (*place, reason.as_deref()))
    }

    fn hear(&mut self, record: &Record, names_session: bool) {
        let place = record.sequence;
        if let Some(flaw) = record.flaw {
            self.flawed.add(Name {
                message: Some(place),
                subject: Some(record.subject.clone()),
                error: Some(flaw.to_string()),
                ..Name::default()
            });
        }
        match record.subject.as_str() {
            SESSION_ENDED_SUBJECT => {
                if let Some(source) = number(record, REDRIVE_OF_HEADER) {
                    self.dead_letters.remove(&source);
                }
                if let Err(reason) = SessionEnded::parse(&record.payload) {
                    self.terminated += 1;
                    let is_named = self.unkept.len() < NAMED;
                    self.unkept.insert(place, is_named.then(|| reason.to_string().into()));
                }
            }
            DEAD_LETTER_SUBJECT => {
                self.unkept.remove(&about(record));
                if !names_session {
                    self.unreadable += 1;
                    self.dead_letters.insert(place);
                }
            }
            DISCARDED_SUBJECT => {
                self.unkept.remove(&about(record));
            }
            _ => self.unreadable += u64::from(!names_session),
        }
    }
}

impl Pass {
    /// A pass over `part` that keeps at most so many sessions in mind.
    pub(super) fn new(part: HashPartition, most: usize) -> Self {
        Self { part, most: most.max(1), sessions: BTreeMap::new(), has_orphans: false, left: vec![] }
    }

    pub(super) fn len(&self) -> u64 {
        u64::try_from(self.sessions.len()).unwrap_or(u64::MAX)
    }

    pub(super) fn into_sessions(self) -> impl Iterator<Item = (Box<str>, SessionRecord)> {
        self.sessions.into_iter()
    }

    /// Reads the stream up to a place; what names no session is told to `loose`.
    pub(super) async fn read(
        &mut self,
        history: &History,
        since: Option<WallTime>,
        through: u64,
        mut loose: Option<&mut Loose>,
        progress: &Progress,
    ) -> Result<(), HistoryError> {
        let each_alone = format!("{PROCESSED_SUBJECT}.*");
        let subjects = [SESSION_ENDED_SUBJECT, PROCESSED_SUBJECT, &each_alone, DEAD_LETTER_SUBJECT, DISCARDED_SUBJECT]
            .map(str::to_owned)
            .to_vec();
        let start = since.map_or(Start::First, Start::At);
        let mut reader = history.read(Reading { subjects, start, through, parts: Parts::Whole }).await?;
        progress.begin("reading the stream", Some(reader.expected()));
        let mut steps = 0;
        while let Some(record) = reader.next().await? {
            let names_session = self.hear(&record);
            if let Some(loose) = &mut loose {
                loose.hear(&record, names_session);
            }
            steps += 1;
            if steps % STEP == 0 {
                progress.add(STEP);
            }
        }
        Ok(())
    }

    /// A summary without a mark.
    pub(super) fn add_summary(&mut self, key: &str) {
        let known = self.sessions.contains_key(key);
        if !known && self.session(key).is_some() {
            self.has_orphans = true;
        }
    }

    /// What the document of a session says. The end of one that ended may be in the stream behind `through`.
    pub(super) fn add_session(&mut self, key: &str, told: Told, through: u64) {
        let unended = match told {
            Told::Unserved(unended) => unended,
            Told::Ended(place) if place > through || self.sessions.get(key).is_some_and(|seen| seen.ends > 0) => return,
            Told::Ended(_) => Unended::Unpublished,
        };
        if let Some(seen) = self.session(key) {
            seen.unended = Some(unended);
        }
    }

    /// Reads the ends behind `through`. A summary that was not there when the rest was read has its end there.
    pub(super) async fn read_ends_behind(&mut self, history: &History, through: u64) -> Result<(), HistoryError> {
        if !self.has_orphans {
            return Ok(());
        }
        let now = history.last_sequence().await?;
        let subjects = vec![SESSION_ENDED_SUBJECT.to_owned()];
        let reading = Reading { subjects, start: Start::Behind(through), through: now, parts: Parts::Whole };
        let mut reader = history.read(reading).await?;
        while let Some(record) = reader.next().await? {
            if let Some(key) = key_of_end(&record)
                && let Some(seen) = self.sessions.get_mut(key.as_str())
            {
                seen.last_end = record.sequence;
            }
        }
        Ok(())
    }

    /// Takes in a message; whether a session could be read from it.
    fn hear(&mut self, record: &Record) -> bool {
        let place = record.sequence;
        let key = match record.subject.as_str() {
            SESSION_ENDED_SUBJECT | DEAD_LETTER_SUBJECT | DISCARDED_SUBJECT => key_of_end(record),
            _ => announced_key(&record.payload),
        };
        let Some(key) = key else { return false };
        let Some(seen) = self.session(&key) else { return true };
        match record.subject.as_str() {
            SESSION_ENDED_SUBJECT => {
                seen.last_end = place;
                seen.ends = seen.ends.saturating_add(1);
            }
            DEAD_LETTER_SUBJECT => {
                let about = about(record);
                if about >= seen.about {
                    (seen.dead_letter, seen.about) = (place, about);
                }
            }
            DISCARDED_SUBJECT => seen.discarded = about(record),
            _ => {
                seen.notifications = seen.notifications.saturating_add(1);
                seen.last_notification = place;
                if seen.first_notification == 0 {
                    seen.first_notification = place;
                }
            }
        }
        true
    }

    /// The session of this key, kept in mind from now on; `None` where it is another pass's.
    fn session(&mut self, key: &str) -> Option<&mut SessionRecord> {
        if !self.part.has(key) {
            return None;
        }
        if !self.sessions.contains_key(key) {
            self.sessions.insert(key.into(), SessionRecord::default());
            while self.sessions.len() > self.most
                && let Some((kept, left)) = self.part.halves()
            {
                self.part = kept;
                self.left.push(left);
                self.sessions.retain(|key, _| kept.has(key));
            }
        }
        self.sessions.get_mut(key)
    }
}

/// The key of the session that a notification announces.
pub(super) fn announced_key(payload: &[u8]) -> Option<String> {
    let notification: Notification = serde_json::from_slice(payload).ok()?;
    valid(&notification.session).map(|session| session.key().as_str().to_owned())
}

/// Whether it is a subject on which summaries are announced.
pub(super) fn announces(subject: &str) -> bool {
    subject.strip_prefix(PROCESSED_SUBJECT).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The end that a dead letter is about. One that does not say it can only be about an end before it.
fn about(record: &Record) -> u64 {
    number(record, STREAM_SEQUENCE_HEADER).unwrap_or(record.sequence)
}

fn number(record: &Record, header: &str) -> Option<u64> {
    record.header(header)?.parse().ok()
}

fn key_of_end(record: &Record) -> Option<String> {
    SessionEnded::parse(&record.payload).ok().map(|ended| ended.session.key().as_str().to_owned())
}

fn valid(session: &Session) -> Option<Session> {
    Session::new(&session.conversation_id, &session.session_id).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> String {
        format!("conversation-{number}:session-{number}")
    }

    #[test]
    fn halves_are_the_whole_and_have_nothing_in_common() {
        let mut parts = vec![HashPartition::WHOLE];
        for _ in 0..3 {
            parts = parts.into_iter().filter_map(HashPartition::halves).flat_map(|(a, b)| [a, b]).collect();
        }
        let keys: Vec<_> = (0..800).map(key).collect();
        for key in &keys {
            assert_eq!(parts.iter().filter(|part| part.has(key)).count(), 1, "{key}");
        }
        for part in &parts {
            assert!(keys.iter().filter(|key| part.has(key)).count() > 50, "{part:?}");
        }
        assert_eq!(HashPartition { bits: 63, value: 0 }.halves(), None);
    }

    #[test]
    fn what_does_not_fit_is_left_to_other_passes_and_nothing_is_lost() {
        let mut parts = vec![HashPartition::WHOLE];
        let mut seen = vec![];
        let mut passes = 0;
        while let Some(part) = parts.pop() {
            let mut pass = Pass::new(part, 16);
            for number in (0..100).chain(0..100) {
                if let Some(seen) = pass.session(&key(number)) {
                    seen.ends += 1;
                }
                assert!(pass.len() <= 16);
            }
            parts.append(&mut pass.left);
            seen.extend(pass.into_sessions());
            passes += 1;
        }
        assert!(passes >= 7, "{passes}");
        seen.sort_by(|a, b| a.0.cmp(&b.0));
        let mut expected: Vec<_> = (0..100).map(|number| key(number).into_boxed_str()).collect();
        expected.sort();
        assert_eq!(seen.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>(), expected);
        assert!(seen.iter().all(|(_, seen)| seen.ends == 2), "a session is forgotten only together with its part");
    }
}
