//! The collection of segments.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use transcript_core::{Cursor, Page, summary::Segment};

/// The segments of all sessions, each session's in the order of the call. An `_id` is unique among all.
#[derive(Debug, Clone, Default)]
pub(super) struct Segments {
    by_session: BTreeMap<Arc<str>, BTreeMap<Place, Arc<Segment>>>,
    by_id: BTreeMap<Arc<str>, (Arc<str>, Place)>,
}

/// The order of a call: by index, then start, then `_id`; a missing field sorts last.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    index: Last,
    start: Last,
    id: Arc<str>,
}

/// A number, or none, which is greater than all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Last {
    Number(i64),
    Missing,
}

impl From<Option<i64>> for Last {
    fn from(number: Option<i64>) -> Self {
        number.map_or(Self::Missing, Self::Number)
    }
}

impl Last {
    fn number(self) -> Option<i64> {
        match self {
            Self::Number(number) => Some(number),
            Self::Missing => None,
        }
    }
}

impl Place {
    fn of(segment: &Segment, id: &Arc<str>) -> Self {
        Self { index: segment.index.into(), start: segment.start_ms.into(), id: id.clone() }
    }

    fn cursor(&self) -> Cursor {
        let place = (self.index.number(), self.start.number(), &*self.id);
        Cursor(serde_json::to_string(&place).expect("numbers and a text are JSON"))
    }

    fn read(cursor: &Cursor) -> Option<Self> {
        let (index, start, id): (Option<i64>, Option<i64>, String) = serde_json::from_str(&cursor.0).ok()?;
        Some(Self { index: index.into(), start: start.into(), id: id.into() })
    }
}

impl Segments {
    pub(super) fn contains(&self, id: &str) -> bool {
        self.by_id.contains_key(id)
    }

    pub(super) fn count(&self, session_id: &str) -> u64 {
        self.by_session.get(session_id).map_or(0, |segments| segments.len() as u64)
    }

    /// Inserts or replaces a segment, and gives out the one that was there.
    pub(super) fn put(
        &mut self,
        id: &Arc<str>,
        session_id: &Arc<str>,
        segment: Arc<Segment>,
    ) -> Option<(Arc<str>, Arc<Segment>)> {
        let before = self.take(id);
        let place = Place::of(&segment, id);
        self.by_session.entry(session_id.clone()).or_default().insert(place.clone(), segment);
        self.by_id.insert(id.clone(), (session_id.clone(), place));
        before
    }

    pub(super) fn remove(&mut self, id: &str) {
        drop(self.take(id));
    }

    /// The segments after the cursor, at most `limit` and `max_bytes`; `None` where the cursor is not one of this store.
    pub(super) fn page(&self, session_id: &str, after: Option<&Cursor>, limit: u32, max_bytes: u64) -> Option<Page> {
        let start = match after {
            Some(cursor) => Bound::Excluded(Place::read(cursor)?),
            None => Bound::Unbounded,
        };
        let mut rest = self
            .by_session
            .get(session_id)
            .into_iter()
            .flat_map(|segments| segments.range((start.clone(), Bound::Unbounded)));
        let limit = usize::try_from(limit.max(1)).unwrap_or(usize::MAX);
        let mut rest = rest.by_ref().peekable();
        let (mut page, mut bytes): (Vec<(&Place, &Arc<Segment>)>, u64) = (vec![], 0);
        while page.len() < limit
            && let Some(next) = rest.next_if(|(_, segment)| bytes + size(segment) <= max_bytes)
        {
            bytes += size(next.1);
            page.push(next);
        }
        let left = rest.next();
        let needs = left.map(|(_, segment)| size(segment)).filter(|size| *size > max_bytes);
        let next = left.and(page.last()).map(|(place, _)| place.cursor());
        Some(Page { segments: page.into_iter().map(|(_, segment)| Segment::clone(segment)).collect(), next, needs })
    }

    fn take(&mut self, id: &str) -> Option<(Arc<str>, Arc<Segment>)> {
        let (session_id, place) = self.by_id.remove(id)?;
        let segments = self.by_session.get_mut(&session_id)?;
        let segment = segments.remove(&place)?;
        Some((session_id, segment))
    }
}

/// What a segment counts for where pages are bounded by bytes.
fn size(segment: &Segment) -> u64 {
    let bytes = segment.text.len() + segment.speaker.as_ref().map_or(0, String::len);
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
