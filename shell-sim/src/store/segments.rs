//! The collection of segments.

use std::{collections::BTreeMap, sync::Arc};

use transcript_core::summary::Segment;

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

impl Place {
    fn of(segment: &Segment, id: &Arc<str>) -> Self {
        Self { index: segment.index.into(), start: segment.start_ms.into(), id: id.clone() }
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

    /// The session's segments in the order of the call.
    pub(super) fn of(&self, session_id: &str) -> impl Iterator<Item = &Arc<Segment>> {
        self.by_session.get(session_id).into_iter().flat_map(BTreeMap::values)
    }

    fn take(&mut self, id: &str) -> Option<(Arc<str>, Arc<Segment>)> {
        let (session_id, place) = self.by_id.remove(id)?;
        let segments = self.by_session.get_mut(&session_id)?;
        let segment = segments.remove(&place)?;
        Some((session_id, segment))
    }
}
