//! How a large call is read page by page.
//!
//! A call has the order of its indexes or that of its starts ([`Order`]). Which one, the store tells before the first page
//! ([`Command::Tally`](super::Command::Tally)). MongoDB sorts missing fields first, and its index reaches only as far as the
//! field that comes first in the order. So pages are cut between different numbers of that field, and each page is sorted here.
//! Segments that share a number in larger numbers than a page holds, or have none, are sorted by the server. A page begins
//! behind a segment and never at a number of segments: what is stored meanwhile moves no other segment from one page to
//! another. So the size of the pages makes no difference to the summary.
//!
//! An index never changes. A start can, and so can the mark that it is on the session's clock. So a load by start ends with
//! another tally, from which the core tells whether a segment came twice or is missing: the first one goes along in the cursor.

use std::{cmp::Ordering, fmt::Write as _};

use serde::{Deserialize, Serialize};
use transcript_core::{Cursor, Failure, FailureKind, Page, Tally, summary::Order};

use super::{
    client::Load,
    command::{Document, DocumentId, IndexedNumbers, PageRead, Place, SortKey, StoredId, TEXT_ORDER},
};

/// What a cursor of the core says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Start {
    pub(super) by: Order,
    pub(super) at: Place,
    #[serde(rename = "met")]
    pub(super) numbers: IndexedNumbers,
    /// What the session had before the first page was read, where that was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) before: Option<Tally>,
}

impl Start {
    /// Where a load goes on; `None` where it begins and what the session has must be asked first.
    ///
    /// # Errors
    ///
    /// A cursor that no client made.
    pub(super) fn of(load: &Load) -> Result<Option<Self>, Failure> {
        let Some(Cursor(start)) = &load.after else {
            return Ok((load.order == Some(Order::Index)).then(Self::first_by_index));
        };
        serde_json::from_str(start).map(Some).map_err(|error| Failure {
            kind: FailureKind::Rejected,
            detail: format!(
                "a cursor that this client did not make, {:?} at column {}",
                error.classify(),
                error.column()
            ),
        })
    }

    fn first_by_index() -> Self {
        Self { by: Order::Index, at: Place::After(None), numbers: IndexedNumbers::Numbers, before: None }
    }

    /// Where the load of a session begins that has this.
    pub(super) fn first(tally: Tally) -> Self {
        Self { by: tally.order(), before: Some(tally), ..Self::first_by_index() }
    }

    /// How many segments to read for a page of `limit`: where a page is cut between numbers, the last number that was met may
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
                let next = self.next_number(&mut documents, more);
                // The next page begins before the segment that was too large for this one.
                needs = needs.filter(|_| documents.len() == read);
                next
            }
            Place::Within { number, .. } => match documents.last().filter(|_| more) {
                Some(last) => Some(Place::Within { number, after: Some(self.sort_key(last)) }),
                None => Some(Place::After(Some(number))),
            },
            Place::Rest { .. } => {
                documents.last().filter(|_| more).map(|last| Place::Rest { after: Some(self.sort_key(last)) })
            }
        };
        let next = next.and_then(|at| serde_json::to_string(&Self { at, ..self }).ok());
        Page { needs, ..page(documents, next.map(Cursor)) }
    }

    /// Cuts segments in the order of their numbers where a number may go on behind them, and tells where to go on.
    fn next_number(&self, documents: &mut Vec<Document>, more: bool) -> Option<Place> {
        let last = documents.last().and_then(|last| self.number(last)).filter(|_| more);
        let next = match (last, self.by) {
            (Some(last), _) => {
                documents.retain(|document| self.number(document) != Some(last));
                match documents.last().and_then(|document| self.number(document)) {
                    Some(number) => Some(Place::After(Some(number))),
                    None => Some(Place::Within { number: last, after: None }),
                }
            }
            (None, Order::Index) => Some(Place::Rest { after: None }),
            (None, Order::Start) => None,
        };
        documents.sort_by(|a, b| order(self.by, a, b));
        next
    }

    /// The number that comes first in the order.
    fn number(&self, document: &Document) -> Option<i64> {
        match self.by {
            Order::Index => document.segment.index,
            Order::Start => document.segment.session_start(),
        }
    }

    fn sort_key(&self, document: &Document) -> SortKey {
        let id = match &document.id {
            DocumentId::Text => StoredId::Text(document.segment.id.clone()),
            DocumentId::Other(id) => StoredId::Bson(id.bson.iter().fold(String::new(), |mut digits, byte| {
                write!(digits, "{byte:02x}").ok();
                digits
            })),
        };
        let second = match self.by {
            Order::Index => document.segment.start_ms,
            Order::Start => document.segment.index,
        };
        SortKey { second, id }
    }
}

/// A page for the core.
pub(super) fn page(documents: Vec<Document>, next: Option<Cursor>) -> Page {
    let damaged = documents.iter().filter(|document| document.damaged).count();
    Page {
        damaged: u64::try_from(damaged).unwrap_or(u64::MAX),
        segments: documents.into_iter().map(|document| document.segment).collect(),
        next,
        ..Page::default()
    }
}

/// Compares two segments of a call of this order, and ids as MongoDB orders them.
#[must_use]
pub fn order(by: Order, a: &Document, b: &Document) -> Ordering {
    by.compare_places(&a.segment, &b.segment).then_with(|| id_order(a).cmp(&id_order(b)))
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
