//! The commands of a processor's client: many members each, of which single ones can fail.

use std::{collections::BTreeMap, sync::Arc};

use transcript_client::mongodb::{
    Command, CommandError, Document, DocumentId, Missing, PageRead, Place, Reply, SmallCall, SmallEnd, SmallRead,
    SortKey, StoredId, WriteError, WriteErrors, error_codes,
};
use transcript_core::{
    Tally, Time,
    contract::Announcement,
    ids::Key,
    summary::{Order, Segment, Summary},
};

use super::{Durability, Fate, Rule, Store, StoreError, Writes};

/// What goes wrong with a command that reaches a primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    Races,
    MemberFails(StoreError),
    ConcernFails(Writes),
    Garbled,
}

impl Fault {
    pub(super) fn of(fate: Fate) -> Self {
        match fate {
            Fate::Done | Fate::FailsBefore(_) | Fate::FailsAfter(_) => Self::None,
            Fate::Races => Self::Races,
            Fate::MemberFails(error) => Self::MemberFails(error),
            Fate::ConcernFails(writes) => Self::ConcernFails(writes),
            Fate::Garbled => Self::Garbled,
        }
    }
}

impl From<StoreError> for CommandError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unreachable => Self::Unreachable,
            StoreError::TimedOut => Self::TimedOut,
            StoreError::NotPrimary
            | StoreError::DuplicateKey
            | StoreError::WriteConflict
            | StoreError::Unauthorized
            | StoreError::Rejected => Self::Code(error.code()),
        }
    }
}

impl StoreError {
    /// The server's code; that of a time-out where there is none.
    fn code(self) -> i32 {
        match self {
            Self::NotPrimary => error_codes::NOT_WRITABLE_PRIMARY,
            Self::DuplicateKey => error_codes::DUPLICATE_KEY,
            Self::WriteConflict => error_codes::WRITE_CONFLICT,
            Self::Unauthorized => error_codes::UNAUTHORIZED,
            Self::Rejected => error_codes::DOCUMENT_VALIDATION_FAILURE,
            Self::Unreachable | Self::TimedOut => error_codes::WRITE_CONCERN_TIMEOUT,
        }
    }
}

impl Store {
    /// Does what a client asks, as far as its fault lets it.
    pub(super) fn answer(&mut self, now: Time, command: Command, fault: Fault) -> Reply {
        let reply = match command {
            Command::Count { sessions } => {
                Reply::Counted(sessions.iter().map(|session| self.segments.count(session)).collect())
            }
            Command::LoadSmall { calls, max_segments, max_bytes } => self.small(&calls, max_segments, max_bytes),
            Command::Tally { session_id } => Reply::Tallied(self.tally(&session_id)),
            Command::Page { session_id, order, place, numbers: _, limit, max_bytes } => {
                Reply::Page(self.page(&session_id, order, &place, limit, max_bytes))
            }
            Command::Save { summaries, missing } => self.save_all(now, &summaries, missing, fault),
            Command::Mark { marks } => {
                let keys: Vec<Key> = marks.iter().map(|mark| mark.key.clone()).collect();
                self.write(&keys, fault, |store, place| {
                    if let Some(mark) = marks.get(place) {
                        store.mark(now, mark.key.clone(), mark.announcement, mark.announced, mark.notified);
                        store.written(now, Durability::Journal);
                    }
                })
            }
            Command::ReadBack { keys } => {
                let stored = keys.iter().filter_map(|key| Some((key.as_str().to_owned(), self.summary(key)?.stored())));
                Reply::ReadBack(stored.collect())
            }
        };
        if fault == Fault::Garbled { Reply::Failed(CommandError::Undecodable) } else { reply }
    }

    fn save_all(&mut self, now: Time, summaries: &[Arc<Summary>], missing: Missing, fault: Fault) -> Reply {
        let spoils = |summary: &Arc<Summary>| self.rules.get(&summary.key) == Some(&Rule::RefusesCommand);
        if summaries.iter().any(spoils) {
            return Reply::Failed(CommandError::Code(error_codes::BSON_OBJECT_TOO_LARGE));
        }
        let keys: Vec<Key> = summaries.iter().map(|summary| summary.key.clone()).collect();
        self.write(&keys, fault, |store, place| {
            let summary = summaries.get(place).filter(|summary| {
                // An update of what is not there changes nothing.
                missing == Missing::Insert || store.summaries.contains_key(&summary.key)
            });
            if let Some(summary) = summary {
                store.save(now, Arc::clone(summary));
                store.written(now, Durability::Journal);
            }
        })
    }

    /// Does the writes, each with its own outcome.
    fn write(&mut self, keys: &[Key], fault: Fault, mut one: impl FnMut(&mut Self, usize)) -> Reply {
        if self.write_blocks > 0 {
            return Reply::Failed(CommandError::Code(error_codes::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE));
        }
        let mut errors = WriteErrors::default();
        if let Fault::ConcernFails(writes) = fault {
            errors.concern = Some(error_codes::WRITE_CONCERN_TIMEOUT);
            if writes == Writes::RolledBack {
                return Reply::Written(errors);
            }
        }
        for (place, key) in keys.iter().enumerate() {
            let refused = self.rules.get(key) == Some(&Rule::Refuses);
            let code = match fault {
                _ if refused => Some(error_codes::DOCUMENT_VALIDATION_FAILURE),
                Fault::MemberFails(error) if place == 0 => Some(error.code()),
                Fault::Races if self.summaries.contains_key(key) => Some(error_codes::DUPLICATE_KEY),
                Fault::None | Fault::Races | Fault::MemberFails(_) | Fault::ConcernFails(_) | Fault::Garbled => None,
            };
            match code {
                Some(code) => {
                    let index = (code == error_codes::DUPLICATE_KEY).then(|| "_id_".to_owned());
                    errors.members.push(WriteError { place, code, index });
                }
                None => one(self, place),
            }
        }
        Reply::Written(errors)
    }

    fn small(&self, calls: &[SmallCall], max_segments: u64, max_bytes: u64) -> Reply {
        let (mut sessions, mut kept) = (vec![], 0);
        let mut read = 0_u64;
        for call in calls {
            let mut session = SmallRead { session_id: call.session_id.to_string(), documents: vec![], bytes: 0 };
            for segment in self.segments.of(&call.session_id) {
                if read == max_segments || (kept > max_bytes && !sessions.is_empty()) {
                    sessions.push(session);
                    return Reply::Small { sessions, end: SmallEnd::Stopped };
                }
                read += 1;
                session.bytes += bytes(segment);
                if session.bytes > call.max_bytes {
                    sessions.push(session);
                    return Reply::Small { sessions, end: SmallEnd::Stopped };
                }
                kept += bytes(segment);
                session.documents.push(document(segment));
            }
            if !session.documents.is_empty() {
                sessions.push(session);
            }
        }
        Reply::Small { sessions, end: SmallEnd::All }
    }

    fn tally(&self, session_id: &str) -> Tally {
        let without_start = self.segments.of(session_id).filter(|segment| segment.session_start().is_none()).count();
        Tally {
            segments: self.segments.count(session_id),
            without_start: u64::try_from(without_start).unwrap_or(u64::MAX),
            edits: self.segments.of(session_id).map(|segment| segment.edits).sum(),
        }
    }

    fn page(&self, session_id: &str, order: Order, place: &Place, limit: u32, max_bytes: u64) -> PageRead {
        let mut found: Vec<&Arc<Segment>> =
            self.segments.of(session_id).filter(|segment| is_of(segment, order, place)).collect();
        if order == Order::Start {
            found.sort_by(|a, b| order.compare(a, b));
        }
        let mut found = found.into_iter();
        let (mut page, mut read) = (PageRead::default(), 0);
        let limit = usize::try_from(limit.max(1)).unwrap_or(usize::MAX);
        while page.documents.len() < limit {
            let Some(segment) = found.next() else { return page };
            read += bytes(segment);
            if read > max_bytes {
                page.more = true;
                page.needs = Some(bytes(segment)).filter(|bytes| *bytes > max_bytes);
                return page;
            }
            page.documents.push(document(segment));
        }
        page.more = found.next().is_some();
        page
    }
}

/// Whether a page that starts there can hold the segment.
fn is_of(segment: &Segment, order: Order, place: &Place) -> bool {
    let (number, second) = match order {
        Order::Index => (segment.index, segment.start_ms),
        Order::Start => (segment.session_start(), segment.index),
    };
    let behind = |after: &Option<SortKey>| {
        after.as_ref().is_none_or(|SortKey { second: of, id: StoredId::Text(id) | StoredId::Bson(id) }| {
            let place = |second: Option<i64>| (second.is_none(), second);
            (place(second), &segment.id) > (place(*of), id)
        })
    };
    match place {
        Place::After(after) => number.is_some_and(|number| after.is_none_or(|after| number > after)),
        Place::Within { number: of, after } => number == Some(*of) && behind(after),
        Place::Rest { after } => number.is_none() && behind(after),
    }
}

fn document(segment: &Segment) -> Document {
    Document { segment: segment.clone(), id: DocumentId::Text, damaged: false }
}

fn bytes(segment: &Segment) -> u64 {
    let speaker = segment.speaker.as_ref().map_or(0, String::len);
    u64::try_from(segment.text.len() + speaker).unwrap_or(u64::MAX)
}

/// The summaries that a command writes: at which places, and what it announces.
pub(crate) fn written_keys(command: &Command) -> BTreeMap<Key, (Vec<usize>, Option<Announcement>)> {
    let members: Vec<(&Key, Option<Announcement>)> = match command {
        Command::Save { summaries, .. } => summaries.iter().map(|summary| (&summary.key, None)).collect(),
        Command::Mark { marks } => marks.iter().map(|mark| (&mark.key, Some(mark.announcement))).collect(),
        Command::Count { .. }
        | Command::LoadSmall { .. }
        | Command::Tally { .. }
        | Command::Page { .. }
        | Command::ReadBack { .. } => vec![],
    };
    let mut written: BTreeMap<Key, (Vec<usize>, Option<Announcement>)> = BTreeMap::new();
    for (place, (key, announcement)) in members.into_iter().enumerate() {
        written.entry(key.clone()).or_insert((vec![], announcement)).0.push(place);
    }
    written
}
