//! Small calls that are read together by one command.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use transcript_core::{Page, Report, ids::EffectId, summary::Order};

use super::{
    client::Load,
    command::{Command, Document, SmallCall, SmallEnd, SmallRead},
    pages,
    queue::Asked,
};

/// More segments than were counted that one command reads: some are stored after the count.
const MORE_THAN_COUNTED: u64 = 1_000;
/// The most bytes of documents that one command keeps.
const MOST_BYTES: u64 = 8 << 20;

/// What came of one command.
#[derive(Debug, Default)]
pub(super) struct SmallOutcome {
    /// What is reported.
    pub(super) reports: Vec<(EffectId, Report)>,
    /// Calls whose segments are damaged, and how many of them.
    pub(super) damaged: Vec<(Arc<str>, u64)>,
    /// Calls that turned out to be large.
    pub(super) large: Vec<Asked<Load>>,
    /// Calls that were not reached.
    pub(super) left: Vec<Asked<Load>>,
}

/// The command that reads the calls of a batch.
pub(super) fn command(batch: &[Asked<Load>]) -> Command {
    let mut calls: BTreeMap<&Arc<str>, u64> = BTreeMap::new();
    for asked in batch {
        let max_bytes = calls.entry(&asked.what.session_id).or_default();
        *max_bytes = asked.what.max_bytes.max(*max_bytes);
    }
    let counted = batch.iter().fold(0_u64, |sum, asked| sum.saturating_add(asked.what.counted));
    let calls = calls.into_iter();
    Command::LoadSmall {
        calls: calls.map(|(session, max_bytes)| SmallCall { session_id: Arc::clone(session), max_bytes }).collect(),
        max_segments: counted.saturating_add(MORE_THAN_COUNTED),
        max_bytes: MOST_BYTES,
    }
}

/// Hands out what was read to the requests of the batch.
pub(super) fn outcome(batch: Vec<Asked<Load>>, sessions: Vec<SmallRead>, end: SmallEnd) -> SmallOutcome {
    let mut waiting: BTreeMap<Arc<str>, VecDeque<Asked<Load>>> = BTreeMap::new();
    for asked in batch {
        waiting.entry(Arc::clone(&asked.what.session_id)).or_default().push_back(asked);
    }
    let mut outcome = SmallOutcome::default();
    let read = sessions.len();
    for (place, session) in sessions.into_iter().enumerate() {
        let Some(asked) = waiting.remove(session.session_id.as_str()) else { continue };
        let may_be_cut = end == SmallEnd::Stopped && place + 1 == read;
        let is_large = asked.iter().all(|asked| session.bytes > asked.what.max_bytes);
        if is_large || (may_be_cut && place == 0) {
            outcome.large.extend(asked);
        } else if may_be_cut {
            outcome.left.extend(asked);
        } else {
            outcome.whole(asked, session);
        }
    }
    let rest = waiting.into_values().flatten();
    match end {
        SmallEnd::All => {
            outcome.reports.extend(rest.map(|asked| (asked.id, Report::Loaded(Page::default()))));
        }
        // Where nothing was read at all, reading the same again would not end.
        SmallEnd::Stopped if read == 0 => outcome.large.extend(rest),
        SmallEnd::Stopped => outcome.left.extend(rest),
    }
    outcome
}

impl SmallOutcome {
    /// All segments of a call were read, or as many as its bound lets through.
    fn whole(&mut self, asked: VecDeque<Asked<Load>>, session: SmallRead) {
        let SmallRead { mut documents, bytes, .. } = session;
        let by = Order::of(documents.iter().map(|document| &document.segment));
        documents.sort_by(|a, b| pages::order(by, a, b));
        let segments = u64::try_from(documents.len()).unwrap_or(u64::MAX);
        if let Some(first) = asked.front() {
            let damaged = documents.iter().filter(|document| document.damaged).count();
            self.damaged.push((Arc::clone(&first.what.session_id), u64::try_from(damaged).unwrap_or(u64::MAX)));
        }
        let (fitting, large): (Vec<_>, Vec<_>) = asked
            .into_iter()
            .partition(|asked| segments <= u64::from(asked.what.limit.max(1)) && bytes <= asked.what.max_bytes);
        self.large.extend(large);
        let mut fitting = fitting.into_iter().peekable();
        let mut documents = Some(documents);
        while let Some(asked) = fitting.next() {
            let taken: Option<Vec<Document>> =
                if fitting.peek().is_some() { documents.clone() } else { documents.take() };
            let page = pages::page(taken.unwrap_or_default(), None);
            self.reports.push((asked.id, Report::Loaded(page)));
        }
    }
}
