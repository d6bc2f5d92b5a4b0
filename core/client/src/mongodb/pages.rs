//! How a large call is read page by page.
//!
//! The order of a call is index, then start, then `_id`, a missing field last. MongoDB sorts missing fields first, and its
//! index reaches only as far as the segments' index. So pages are cut between different indexes, and each page is sorted
//! here. Segments that share an index in larger numbers than a page holds, or have none, are sorted by the server. A page
//! begins behind a segment and never at a number of segments: what is stored meanwhile moves no other segment from one page
//! to another. So the size of the pages makes no difference to the summary.

use std::{cmp::Ordering, fmt::Write as _};

use serde::{Deserialize, Serialize};
use transcript_core::{Cursor, Failure, FailureKind, Page};

use super::command::{Document, DocumentId, IndexedNumbers, PageRead, Place, SortKey, StoredId, TEXT_ORDER};

/// What a cursor of the core says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Start {
    pub(super) at: Place,
    #[serde(rename = "met")]
    pub(super) numbers: IndexedNumbers,
}

impl Start {
    /// Where a load begins.
    ///
    /// # Errors
    ///
    /// A cursor that no client made.
    pub(super) fn of(after: Option<&Cursor>) -> Result<Self, Failure> {
        let Some(Cursor(start)) = after else {
            return Ok(Self { at: Place::After(None), numbers: IndexedNumbers::Numbers });
        };
        serde_json::from_str(start).map_err(|error| Failure {
            kind: FailureKind::Rejected,
            detail: format!(
                "a cursor that this client did not make, {:?} at column {}",
                error.classify(),
                error.column()
            ),
        })
    }

    /// How many segments to read for a page of `limit`: where a page is cut between indexes, the last index that was met may
    /// go on behind it.
    pub(super) fn segments_to_read(&self, limit: u32) -> u32 {
        match self.at {
            Place::After(_) => limit.max(1).saturating_add(1),
            Place::Within { .. } | Place::Rest { .. } => limit.max(1),
        }
    }

    /// The page of at most `limit` segments that was read from here, and where the next one starts.
    pub(super) fn page(self, read: PageRead, limit: u32) -> Page {
        let PageRead { mut documents, more, mut needs, others: _ } = read;
        if documents.is_empty() && more {
            // The next segment is too large: the same place is asked for again, with room for it.
            return Page { needs, ..Page::default() };
        }
        let more = more || documents.len() > usize::try_from(limit.max(1)).unwrap_or(usize::MAX);
        let next = match self.at {
            Place::After(_) => {
                let read = documents.len();
                let next = next_index(&mut documents, more);
                // The next page begins before the segment that was too large for this one.
                needs = needs.filter(|_| documents.len() == read);
                next
            }
            Place::Within { index, .. } => match documents.last().filter(|_| more) {
                Some(last) => Some(Place::Within { index, after: Some(sort_key(last)) }),
                None => Some(Place::After(Some(index))),
            },
            Place::Rest { .. } => {
                documents.last().filter(|_| more).map(|last| Place::Rest { after: Some(sort_key(last)) })
            }
        };
        let next = next.and_then(|at| serde_json::to_string(&Self { at, numbers: self.numbers }).ok());
        Page { needs, ..page(documents, next.map(Cursor)) }
    }
}

/// Cuts segments in the order of their indexes where an index may go on behind them, and tells where to go on.
fn next_index(documents: &mut Vec<Document>, more: bool) -> Option<Place> {
    let last = documents.last().and_then(|last| last.segment.index).filter(|_| more);
    let next = match last {
        Some(last) => {
            documents.retain(|document| document.segment.index != Some(last));
            match documents.last().and_then(|document| document.segment.index) {
                Some(index) => Place::After(Some(index)),
                None => Place::Within { index: last, after: None },
            }
        }
        None => Place::Rest { after: None },
    };
    documents.sort_by(order);
    Some(next)
}

/// A page for the core.
pub(super) fn page(documents: Vec<Document>, next: Option<Cursor>) -> Page {
    let damaged = documents.iter().filter(|document| document.damaged).count();
    Page {
        damaged: u64::try_from(damaged).unwrap_or(u64::MAX),
        segments: documents.into_iter().map(|document| document.segment).collect(),
        next,
        needs: None,
    }
}

/// The order of a call: index, start, `_id`; a missing field last, and ids as MongoDB orders them.
#[must_use]
pub fn order(a: &Document, b: &Document) -> Ordering {
    missing_last(a.segment.index, b.segment.index)
        .then_with(|| missing_last(a.segment.start_ms, b.segment.start_ms))
        .then_with(|| id_order(a).cmp(&id_order(b)))
}

fn missing_last(a: Option<i64>, b: Option<i64>) -> Ordering {
    a.is_none().cmp(&b.is_none()).then(a.cmp(&b))
}

/// The place of an id's type in MongoDB's order, and what is compared among ids of that type.
fn id_order(document: &Document) -> (u8, &[u8]) {
    match &document.id {
        DocumentId::Text => (TEXT_ORDER, document.segment.id.as_bytes()),
        DocumentId::Other(id) => match id.order.split_first() {
            Some((place, value)) => (*place, value),
            None => (0, &[]),
        },
    }
}

fn sort_key(document: &Document) -> SortKey {
    let id = match &document.id {
        DocumentId::Text => StoredId::Text(document.segment.id.clone()),
        DocumentId::Other(id) => StoredId::Bson(id.bson.iter().fold(String::new(), |mut digits, byte| {
            write!(digits, "{byte:02x}").ok();
            digits
        })),
    };
    SortKey { start: document.segment.start_ms, id }
}
