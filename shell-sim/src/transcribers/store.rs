//! A model of the store as the transcriber uses it: sessions, leases and segments.
//!
//! Each effect is carried out as its documentation says: what is one command there is one step here, and a save is a step for
//! each segment. What it does not model, the world around it does: commands and answers that are lost, commands that arrive
//! long after their client gave them up (a proxy that held them back), and elections, in which nothing is served. Writes are
//! acknowledged by a majority, so that no acknowledged one is ever rolled back.

use std::collections::BTreeMap;

use transcript_core::{
    WallTime,
    ids::{Key, Session},
};
use transcript_transcriber::{
    Departure, Effect, EpochOpened, Fence, IdleOthers, InstanceId, Joined, Orphan, Report, SavedSegment, Silence,
    Source, TakenOver,
    document::{
        EpochClock, InstanceEntry, LeaseDocument, LeaseState, MAX_EPOCH_CLOCKS, SessionDocument, SessionState,
        StoredSegment, Transport,
    },
};

use super::bug::Bug;

/// The store.
#[derive(Debug, Default)]
pub(super) struct SessionStore {
    sessions: BTreeMap<Key, SessionDocument>,
    leases: BTreeMap<InstanceId, LeaseDocument>,
    segments: BTreeMap<Key, Segments>,
    bug: Option<Bug>,
    changes: Vec<Change>,
}

/// The segments of one session.
#[derive(Debug, Default)]
struct Segments {
    by_index: BTreeMap<u64, Stored>,
    by_source: BTreeMap<Source, u64>,
}

#[derive(Debug)]
struct Stored {
    segment: StoredSegment,
    edits: u64,
}

/// What a command changed, for whoever watches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// A segment was inserted, or its text was replaced.
    Saved { key: Key },
    /// A segment of one source took the place of one of another source.
    Overwritten { key: Key, index: u64 },
    /// The end of a session was begun.
    EndBegun { key: Key },
    /// What is stored was counted.
    Counted { key: Key },
}

impl SessionStore {
    pub(super) fn new(bug: Option<Bug>) -> Self {
        Self { bug, ..Self::default() }
    }

    pub(super) fn sessions(&self) -> impl Iterator<Item = &SessionDocument> {
        self.sessions.values()
    }

    pub(super) fn session(&self, key: &Key) -> Option<&SessionDocument> {
        self.sessions.get(key)
    }

    pub(super) fn segments(&self, key: &Key) -> impl Iterator<Item = &StoredSegment> {
        self.segments.get(key).into_iter().flat_map(|segments| segments.by_index.values().map(|stored| &stored.segment))
    }

    pub(super) fn segment(&self, key: &Key, index: u64) -> Option<&StoredSegment> {
        Some(&self.segments.get(key)?.by_index.get(&index)?.segment)
    }

    pub(super) fn count(&self, key: &Key) -> (u64, u64) {
        self.segments.get(key).map_or((0, 0), |segments| {
            (segments.by_index.len() as u64, segments.by_index.values().map(|stored| stored.edits).sum())
        })
    }

    /// Whether an instance's lease can still be renewed.
    pub(super) fn holds(&self, instance: &InstanceId) -> bool {
        self.leases.get(instance).is_some_and(|lease| lease.state == LeaseState::Held)
    }

    /// Puts a segment there that another program stored.
    pub(super) fn put_foreign(&mut self, session: &Session, segment: StoredSegment) {
        let segments = self.segments.entry(session.key()).or_default();
        segments.by_source.insert(segment.source.clone(), segment.index);
        segments.by_index.insert(segment.index, Stored { segment, edits: 0 });
    }

    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Carries out an effect on the store, by the store's clock; `None` for an effect on the stream.
    pub(super) fn perform(&mut self, now: WallTime, effect: &Effect) -> Option<Report> {
        Some(match effect {
            Effect::OpenLease { instance, duration } => {
                let lease =
                    LeaseDocument { id: instance.clone(), until: now.after(*duration), state: LeaseState::Held };
                self.leases.entry(instance.clone()).or_insert(lease);
                Report::LeaseHeld
            }
            Effect::RenewLease { instance, duration } => match self.leases.get_mut(instance) {
                Some(lease) if lease.state == LeaseState::Held => {
                    lease.until = now.after(*duration);
                    Report::LeaseHeld
                }
                Some(_) | None => Report::LeaseLost,
            },
            Effect::ReleaseLease { instance } => {
                if let Some(lease) = self.leases.get_mut(instance) {
                    lease.until = now;
                }
                Report::LeaseReleased
            }
            Effect::FindOrphans { limit, own } => Report::Orphans(self.orphans(now, *limit as usize, own.as_ref())),
            Effect::Join { session, fence, transport, epochs } => {
                Report::Joined(self.join(now, session, fence, *transport, epochs))
            }
            Effect::Reserve { session, fence, segments, from } => self.reserve(session, fence, segments, *from),
            Effect::Save { session, segments } => {
                Report::Saved(segments.iter().map(|segment| self.save(&session.key(), segment)).collect())
            }
            Effect::Leave { session, fence, silence, idle_others } => {
                self.leave(session, fence, *silence, *idle_others)
            }
            Effect::Count { session } => {
                let key = session.key();
                let (segments, edits) = self.count(&key);
                self.changes.push(Change::Counted { key });
                Report::Counted { segments, edits }
            }
            Effect::Finish { session, fence, generation, saved, edits, published } => {
                let Some(document) = self.sessions.get_mut(&session.key()) else { return Some(Report::Gone) };
                let is_this = document.generation == *generation;
                if entry(document, fence, self.bug).is_none() {
                    let was_done = is_this && document.state == SessionState::Ended && document.instances.is_empty();
                    return Some(if was_done { Report::Finished } else { Report::Gone });
                }
                if !is_this || document.state != SessionState::Ending {
                    return Some(Report::Reopened);
                }
                document.state = SessionState::Ended;
                (document.saved, document.edits) = (Some(*saved), Some(*edits));
                document.published.clone_from(published);
                document.ended_at = Some(now);
                document.instances.retain(|entry| entry.id != fence.instance);
                Report::Finished
            }
            Effect::TakeOver { session, fence, from } => self.take_over(now, session, fence, from),
            Effect::PublishSegments { .. } | Effect::PublishEnd { .. } => return None,
        })
    }

    fn orphans(&mut self, now: WallTime, limit: usize, own: Option<&InstanceId>) -> Vec<Orphan> {
        if self.bug == Some(Bug::NoSuccessor) {
            return vec![];
        }
        let mut expired = vec![];
        for lease in self.leases.values_mut().filter(|lease| lease.until < now) {
            expired.push(lease.id.clone());
            if self.bug != Some(Bug::LeaseNotMarked) {
                lease.state = LeaseState::Succeeded;
            }
        }
        let is_dead = |id: &InstanceId| expired.contains(id) || !self.holds(id) || own == Some(id);
        let entries = self
            .sessions
            .values()
            .flat_map(|document| document.instances.iter().map(|entry| (Self::ids(document), entry.id.clone())));
        let orphans = entries.filter(|(_, id)| is_dead(id)).take(limit);
        orphans.map(|(session, instance)| Orphan { session, instance }).collect()
    }

    fn ids(document: &SessionDocument) -> Session {
        document.session.clone()
    }

    fn join(
        &mut self,
        now: WallTime,
        session: &Session,
        fence: &Fence,
        transport: Transport,
        epochs: &[EpochOpened],
    ) -> Joined {
        let key = session.key();
        let document = self.sessions.entry(key.clone()).or_insert_with(|| SessionDocument {
            key,
            session: session.clone(),
            state: SessionState::Open,
            generation: 0,
            next_index: 0,
            writes: 0,
            instances: vec![],
            epochs: vec![],
            started_at: now,
            ended_at: None,
            saved: None,
            edits: None,
            published: None,
        });
        document.state = SessionState::Open;
        match document.instances.iter_mut().find(|entry| entry.id == fence.instance) {
            Some(entry) if entry.step < fence.step => (entry.step, entry.transport) = (fence.step, transport),
            Some(_) => {}
            None => document.instances.push(InstanceEntry {
                id: fence.instance.clone(),
                step: fence.step,
                transport,
                pending: vec![],
            }),
        }
        let age = now.since(document.started_at);
        let zeros = epochs.iter().map(|opened| {
            let known = document.epochs.iter().find(|clock| clock.epoch == opened.epoch).map(|clock| clock.start_ms);
            known.or_else(|| {
                let start_ms = i64::try_from(age.saturating_sub(opened.ago).as_millis()).unwrap_or(i64::MAX);
                let has_room = document.epochs.len() < MAX_EPOCH_CLOCKS;
                has_room.then(|| {
                    document.epochs.push(EpochClock { epoch: opened.epoch.clone(), start_ms });
                    start_ms
                })
            })
        });
        let epochs = zeros.collect();
        if self.bug == Some(Bug::ReconnectOverwritesIndexZero) {
            document.next_index = 0;
        }
        Joined { next_index: document.next_index, age, epochs }
    }

    fn reserve(&mut self, session: &Session, fence: &Fence, segments: &[StoredSegment], from: u64) -> Report {
        let (bug, is_kept) = (self.bug, self.bug != Some(Bug::BatchNotInTheDocument));
        let Some(document) = self.sessions.get_mut(&session.key()) else { return Report::Gone };
        let (first_index, write) = (document.next_index.max(from), document.writes + 1);
        if entry(document, fence, bug).is_none() && bug != Some(Bug::UnfencedLease) {
            return Report::Gone;
        }
        (document.next_index, document.writes) = (first_index + segments.len() as u64, write);
        if let Some(entry) = document.instances.iter_mut().find(|entry| entry.id == fence.instance) {
            let with_index = |segment: &StoredSegment| StoredSegment {
                index: first_index + segment.index,
                write,
                ..segment.clone()
            };
            entry.pending = if is_kept { segments.iter().map(with_index).collect() } else { vec![] };
        }
        Report::Reserved { first_index, write }
    }

    fn save(&mut self, key: &Key, segment: &StoredSegment) -> SavedSegment {
        let segments = self.segments.entry(key.clone()).or_default();
        if let Some(index) = segments.by_source.get(&segment.source).copied() {
            if let Some(stored) = segments.by_index.get_mut(&index)
                && stored.segment.write < segment.write
            {
                if !stored.segment.says_the_same(segment) {
                    stored.edits += 1;
                    self.changes.push(Change::Saved { key: key.clone() });
                }
                stored.segment = StoredSegment { index, ..segment.clone() };
            }
            return SavedSegment::Stored { index };
        }
        if let Some(other) = segments.by_index.get(&segment.index) {
            if self.bug != Some(Bug::ReconnectOverwritesIndexZero) {
                let highest = segments.by_index.keys().next_back().copied().unwrap_or(segment.index);
                return SavedSegment::IndexTaken { highest };
            }
            segments.by_source.remove(&other.segment.source);
            self.changes.push(Change::Overwritten { key: key.clone(), index: segment.index });
        }
        segments.by_source.insert(segment.source.clone(), segment.index);
        segments.by_index.insert(segment.index, Stored { segment: segment.clone(), edits: 0 });
        self.changes.push(Change::Saved { key: key.clone() });
        SavedSegment::Stored { index: segment.index }
    }

    fn leave(&mut self, session: &Session, fence: &Fence, silence: Silence, idle_others: IdleOthers) -> Report {
        let bug = self.bug;
        let Some(document) = self.sessions.get_mut(&session.key()) else { return Report::Gone };
        if entry(document, fence, bug).is_none() {
            return Report::Gone;
        }
        let removes = idle_others == IdleOthers::Removed;
        let counts =
            |other: &InstanceEntry| other.id != fence.instance && !(removes && other.transport == Transport::Post);
        if document.instances.iter().any(counts) && bug != Some(Bug::EndsAtItsOwnZero) {
            document.instances.retain(|entry| entry.id != fence.instance);
            return Report::Left(Departure::Others);
        }
        if document.next_index == 0 && silence == Silence::Waits {
            return Report::Left(Departure::Silent);
        }
        let mut others = vec![];
        if removes {
            let (ours, removed): (Vec<_>, Vec<_>) =
                document.instances.drain(..).partition(|entry| entry.id == fence.instance);
            document.instances = ours;
            others = removed;
        }
        let mut pending = vec![];
        if let Some(ours) = document.instances.iter_mut().find(|entry| entry.id == fence.instance) {
            ours.pending.extend(others.into_iter().flat_map(|other| other.pending));
            if removes {
                pending.clone_from(&ours.pending);
            }
        }
        if document.state != SessionState::Ending {
            document.state = SessionState::Ending;
            document.generation += 1;
        }
        self.changes.push(Change::EndBegun { key: document.key.clone() });
        Report::Left(Departure::Ending { generation: document.generation, pending })
    }

    fn take_over(&mut self, now: WallTime, session: &Session, fence: &Fence, from: &InstanceId) -> Report {
        let Some(document) = self.sessions.get_mut(&session.key()) else { return Report::Gone };
        let taken = document.instances.iter().position(|entry| entry.id == *from);
        let taken = taken.map(|place| document.instances.remove(place));
        let age = now.since(document.started_at);
        let ours = document.instances.iter_mut().find(|entry| entry.id == fence.instance);
        let entry = match (ours, taken) {
            (None, None) => return Report::Gone,
            (Some(ours), None) => ours,
            (Some(ours), Some(taken)) => {
                ours.pending.extend(taken.pending);
                ours.transport = ours.transport.max(taken.transport);
                ours
            }
            (None, Some(taken)) => {
                // Steps are counted by each instance for itself.
                document.instances.push(InstanceEntry { id: fence.instance.clone(), step: fence.step, ..taken });
                match document.instances.last_mut() {
                    Some(entry) => entry,
                    None => return Report::Gone,
                }
            }
        };
        entry.step = entry.step.max(fence.step);
        Report::TakenOver(TakenOver {
            joined: Joined { next_index: document.next_index, age, epochs: vec![] },
            state: document.state,
            generation: document.generation,
            transport: entry.transport,
            pending: entry.pending.clone(),
        })
    }
}

/// The instance's own entry, unless a later effect has changed it.
fn entry<'a>(document: &'a mut SessionDocument, fence: &Fence, bug: Option<Bug>) -> Option<&'a mut InstanceEntry> {
    let unfenced = bug == Some(Bug::UnfencedLease);
    let entry = document.instances.iter_mut().find(|entry| entry.id == fence.instance);
    let entry = entry.filter(|entry| entry.step < fence.step || unfenced)?;
    entry.step = fence.step;
    Some(entry)
}
