//! One session on one instance, from its first connection here until the instance has left it.
//!
//! An instance serves a session while its entry is in the session's document. It *leaves* when nobody is connected here, the
//! delay is over, and everything is stored and published. Whether that is the session's end, the document says: it is, if no
//! other entry is there. The end is counted, published and recorded by the instance that left last, which stays listed until
//! that is done, so that a successor finds an end that was begun.
//!
//! A client that connects while an end is under way opens the session again. What was published by then is a true
//! statement about an earlier generation; the next end has the next number.
//!
//! When the lease was lost, the instance goes on under another id. It joins again where clients are connected or something
//! is not stored or published, and forgets the other sessions: they are its successor's.
//!
//! A session begins as *serving*, before anything is asked, and is over when it has left this table. *Next* stands for what
//! it does by itself whenever no effect on the store is under way. Failures that are not in the table are tried again.
//!
//! | from | on | to | when |
//! |---|---|---|---|
//! | serving | next | over | this instance is not listed and nobody wants it to be; or its lease was lost meanwhile; or it shuts down, and everything is stored and published |
//! | serving | next | takingOver | an entry of a dead instance was found |
//! | serving | next | joining | this instance is not listed under its present id; or its first socket opens; or an epoch is new |
//! | serving | next | reserving | segments wait |
//! | serving | next | lingering | nobody is connected, and everything is stored and published |
//! | takingOver | taken over | saving | the entry holds a batch |
//! | takingOver | taken over | serving | it holds none, and the session is open |
//! | takingOver | taken over | counting | it holds none, and the session is ending |
//! | takingOver | gone | serving | another instance was faster |
//! | takingOver | next | serving | a shutdown leaves it to others |
//! | joining | joined | serving | |
//! | joining | failed | over | the store refuses the session: its clients are told |
//! | joining | next | serving | a shutdown, and nothing waits to be stored |
//! | reserving | reserved | saving | |
//! | reserving | gone | serving | the entry is another instance's: the batch waits until this one is listed again |
//! | reserving | failed | serving | the store refuses the batch: its clients are told |
//! | reserving | next | serving | the lease was lost while it waited to try again |
//! | saving | saved | serving | |
//! | saving | saved | counting | the batch was another instance's, and the session is ending |
//! | saving | failed | serving | the store refuses the batch: its clients are told |
//! | saving | failed | counting | the same, of another instance's batch |
//! | lingering | next | serving | a client connects, or a dead instance's entry is found |
//! | lingering | next | leaving | the delay is over |
//! | lingering | next | over | the lease was lost, or it shuts down: the session is a successor's |
//! | leaving | left to others | serving | other instances serve the session |
//! | leaving | left nobody spoke | lingering | nobody ever said anything: there is a longer delay |
//! | leaving | left last | counting | the end begins |
//! | leaving | left last | saving | the same, with a batch of an instance that was only delivered to by requests |
//! | leaving | gone | serving | the entry is another instance's |
//! | leaving | next | joining | a client connects while it waits to try again |
//! | leaving | next | over | the lease was lost while it waited to try again |
//! | counting | counted | publishing | |
//! | counting | counted | finishing | there is no stream |
//! | counting | next | joining | a client has connected: the session is opened again |
//! | counting | next | over | the lease was lost |
//! | publishing | published | finishing | the end is in the stream |
//! | publishing | next | joining | a client has connected: the session is opened again |
//! | publishing | next | over | the lease was lost; or it shuts down and the stream is away |
//! | finishing | finished | serving | the end is recorded |
//! | finishing | reopened | serving | another instance has opened the session again |
//! | finishing | gone | serving | the entry is another instance's |
//! | finishing | next | joining | a client connects while it waits to try again |
//! | finishing | next | over | the lease was lost while it waited to try again |

mod end_timer;
mod ending;
mod segments;
mod serving;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use transcript_core::{
    Failure, FailureKind, Time,
    ids::{Key, Session as SessionIds},
};

use self::{
    end_timer::EndTimer,
    segments::{Batch, Epoch, SessionClock, Waiting},
};
use crate::{
    around::{Around, Owner, SessionNumber},
    connection::Connection,
    document::{PublishedEnd, Transport},
    frame::{CloseCode, ServerFrame},
    ids::{ConnectionId, EffectId, EpochId, InstanceId},
    input::{Departure, Joined, Report, StreamState, TakenOver},
    kind::EffectKind,
    lane::Lane,
    output::{Effect, Notice, PublishedSegment, WakeUp},
};

/// One session on one instance.
#[derive(Debug)]
pub(crate) struct Session {
    number: SessionNumber,
    ids: SessionIds,
    key: Key,
    phase: Phase,
    membership: Option<Membership>,
    clock: Option<SessionClock>,
    /// The index that the next segment will have, as far as this instance knows.
    next_index: u64,
    /// An index below which the collection holds segments of somebody else.
    reserve_from: u64,
    connections: BTreeMap<ConnectionId, Connection>,
    waiting: VecDeque<Waiting>,
    batch: Batch,
    epochs: BTreeMap<EpochId, Epoch>,
    /// Stored segments that are to be published, and how many of them are under way.
    publications: VecDeque<PublishedSegment>,
    publishing: usize,
    /// The generation of the end that is under way, or was last.
    publishing_end: Option<u64>,
    /// Effects on the session's document and segments.
    store: Lane,
    /// Publications.
    stream: Lane,
    /// Dead instances whose entries are to be taken over.
    dead: VecDeque<InstanceId>,
    end: EndTimer,
    /// Bytes of everything that waits here.
    bytes: usize,
    #[cfg(test)]
    pub(crate) edges: std::collections::BTreeSet<(State, &'static str, State)>,
}

/// Where a session stands on this instance, in the order of its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// It is not there any more, or not yet.
    Over,
    /// It takes over the entry of a dead instance.
    TakingOver,
    /// It asks the document to list this instance.
    Joining,
    /// It waits for something to store.
    Serving,
    /// It takes indexes for a batch.
    Reserving,
    /// It stores a batch.
    Saving,
    /// Nobody is connected.
    Lingering,
    /// It asks the document to be removed.
    Leaving,
    /// It counts what is stored.
    Counting,
    /// It publishes the end.
    Publishing,
    /// It records the end on the document.
    Finishing,
}

/// A state with what it needs. In each one but `Over`, `Serving`, `Lingering` and `Publishing`, an effect on the store is under
/// way, is tried again after a pause, or is about to be asked for.
#[derive(Debug, Clone)]
enum Phase {
    Over,
    TakingOver,
    Joining(Join),
    Serving,
    Reserving,
    Saving(AfterSave),
    Lingering,
    Leaving,
    Counting { generation: u64 },
    Publishing(End),
    Finishing(End, Option<PublishedEnd>),
}

/// What a join asked for.
#[derive(Debug, Clone, Default)]
struct Join {
    instance: Option<InstanceId>,
    epochs: Vec<EpochId>,
    transport: Option<Transport>,
}

/// What comes after a batch is stored.
#[derive(Debug, Clone, Copy)]
enum AfterSave {
    Serve,
    Count { generation: u64 },
}

/// An end, once it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct End {
    generation: u64,
    segments: u64,
    edits: u64,
}

/// That the session's document lists this instance.
#[derive(Debug)]
struct Membership {
    instance: InstanceId,
    transport: Transport,
}

impl Session {
    pub(crate) fn new(number: SessionNumber, ids: SessionIds) -> Self {
        let key = ids.key();
        Self {
            number,
            ids,
            key,
            phase: Phase::Serving,
            membership: None,
            clock: None,
            next_index: 0,
            reserve_from: 0,
            connections: BTreeMap::new(),
            waiting: VecDeque::new(),
            batch: Batch::default(),
            epochs: BTreeMap::new(),
            publications: VecDeque::new(),
            publishing: 0,
            publishing_end: None,
            store: Lane::default(),
            stream: Lane::default(),
            dead: VecDeque::new(),
            end: EndTimer::default(),
            bytes: 0,
            #[cfg(test)]
            edges: std::collections::BTreeSet::new(),
        }
    }

    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.len()
    }

    pub(crate) fn state(&self) -> State {
        match self.phase {
            Phase::Over => State::Over,
            Phase::TakingOver => State::TakingOver,
            Phase::Joining(_) => State::Joining,
            Phase::Serving => State::Serving,
            Phase::Reserving => State::Reserving,
            Phase::Saving(_) => State::Saving,
            Phase::Lingering => State::Lingering,
            Phase::Leaving => State::Leaving,
            Phase::Counting { .. } => State::Counting,
            Phase::Publishing(_) => State::Publishing,
            Phase::Finishing(..) => State::Finishing,
        }
    }

    /// When it has to be looked at next, and why.
    pub(crate) fn wake_up(&self, around: &Around) -> Option<WakeUp> {
        let lingers = matches!(self.phase, Phase::Lingering) && around.has_lease;
        let ends =
            lingers.then(|| WakeUp { at: self.end.leave_at(&around.settings), timer: crate::output::Timer::End });
        self.store.wake_up().into_iter().chain(self.stream.wake_up()).chain(ends).min_by_key(|wake_up| wake_up.at)
    }

    /// Time has passed, or something has changed around it.
    pub(crate) fn look(&mut self, around: &mut Around, what: &'static str) {
        let before = self.state();
        let unanswered = || Failure { kind: FailureKind::TimedOut, detail: "no report in time".to_owned() };
        if let Some(kind) = self.store.take_unanswered(around.now).and_then(|id| around.forget(id)) {
            self.store_failed(around, kind, &unanswered());
        }
        if let Some(kind) = self.stream.take_unanswered(around.now).and_then(|id| around.forget(id)) {
            self.stream_failed(around, kind, &unanswered());
        }
        self.store.end_pause(around.now);
        self.stream.end_pause(around.now);
        self.settle(around, before, what);
    }

    /// A dead instance is listed in the session's document.
    pub(crate) fn orphaned(&mut self, around: &mut Around, from: InstanceId) {
        let before = self.state();
        if from == around.instance {
            // A join of this instance that was given up, and that arrived after all.
            if self.membership.is_none() && self.store.is_free() && matches!(self.phase, Phase::Serving) {
                self.membership = Some(Membership { instance: from, transport: Transport::Socket });
                self.end.taken_over(around.now, Transport::Socket, &around.settings);
            }
        } else if !self.dead.contains(&from) {
            self.dead.push_back(from);
        }
        self.settle(around, before, "orphaned");
    }

    /// An effect on the store was reported.
    pub(crate) fn store_reported(&mut self, around: &mut Around, id: EffectId, kind: EffectKind, report: Report) {
        let before = self.state();
        self.store.reported(id);
        let what = if let Report::Failed(failure) = &report {
            self.store_failed(around, kind, failure);
            "failed"
        } else {
            self.store.succeeded();
            around.say_works(kind);
            self.store_done(around, report)
        };
        self.settle(around, before, what);
    }

    /// Ends without a word to the store: what is listed there is found by a successor.
    pub(crate) fn hand_over(&mut self, around: &mut Around) {
        self.phase = Phase::Over;
        self.conclude(around);
    }

    fn store_done(&mut self, around: &mut Around, report: Report) -> &'static str {
        match report {
            Report::Joined(joined) => {
                self.joined(around, &joined);
                "joined"
            }
            Report::Reserved { first_index, write } => {
                self.batch.reserved(first_index, write);
                self.next_index = self.next_index.max(first_index.saturating_add(self.batch.receipts.len() as u64));
                self.phase = Phase::Saving(AfterSave::Serve);
                "reserved"
            }
            Report::Saved(outcomes) => {
                self.saved(around, outcomes);
                "saved"
            }
            Report::Left(departure) => self.left(around, departure),
            Report::Counted { segments, edits } => {
                if let Phase::Counting { generation } = self.phase {
                    let end = End { generation, segments, edits };
                    self.phase = match around.stream {
                        StreamState::Absent => Phase::Finishing(end, None),
                        StreamState::Away | StreamState::Available => Phase::Publishing(end),
                    };
                }
                "counted"
            }
            Report::Finished => {
                self.finished(around);
                "finished"
            }
            Report::Reopened => {
                self.phase = Phase::Serving;
                "reopened"
            }
            Report::TakenOver(taken) => {
                self.taken_over(around, taken);
                "taken over"
            }
            Report::Gone => {
                self.gone();
                "gone"
            }
            // The transcriber hands over only reports that fit the effect.
            Report::LeaseHeld
            | Report::LeaseLost
            | Report::LeaseReleased
            | Report::Orphans(_)
            | Report::SegmentsPublished
            | Report::EndPublished { .. }
            | Report::Failed(_) => "nothing",
        }
    }

    fn joined(&mut self, around: &Around, joined: &Joined) {
        let Phase::Joining(join) = std::mem::replace(&mut self.phase, Phase::Serving) else { return };
        for (epoch, zero) in join.epochs.into_iter().zip(&joined.epochs) {
            self.epochs.insert(epoch, zero.map_or(Epoch::Unmapped, Epoch::At));
        }
        if let (Some(instance), Some(transport)) = (join.instance, join.transport) {
            self.membership = Some(Membership { instance, transport });
        }
        self.learn(around.now, joined);
    }

    fn learn(&mut self, now: Time, joined: &Joined) {
        self.clock = Some(SessionClock { at: now, age: joined.age });
        self.next_index = self.next_index.max(joined.next_index);
    }

    fn taken_over(&mut self, around: &mut Around, taken: TakenOver) {
        let Some(from) = self.dead.pop_front() else { return };
        around.counters.taken_over += 1;
        around.notice(Notice::TookOver { key: self.key.clone(), from });
        self.learn(around.now, &taken.joined);
        self.end.taken_over(around.now, taken.transport, &around.settings);
        let before = self.membership.take().filter(|membership| membership.instance == around.instance);
        let transport = before.map_or(taken.transport, |before| before.transport.max(taken.transport));
        // Somebody who is connected opens the session again, by another join.
        let ends = taken.state == crate::document::SessionState::Ending;
        if !(ends && self.is_used()) {
            self.membership = Some(Membership { instance: around.instance.clone(), transport });
        }
        let then =
            if ends && !self.is_used() { AfterSave::Count { generation: taken.generation } } else { AfterSave::Serve };
        self.save_recovered(around, taken.pending, then);
    }

    fn left(&mut self, around: &mut Around, departure: Departure) -> &'static str {
        match departure {
            Departure::Others => {
                self.membership = None;
                self.phase = Phase::Serving;
                "left to others"
            }
            Departure::Silent => {
                self.end.silent();
                self.phase = Phase::Lingering;
                "left nobody spoke"
            }
            Departure::Ending { generation, pending } => {
                self.save_recovered(around, pending, AfterSave::Count { generation });
                "left last"
            }
        }
    }

    fn gone(&mut self) {
        match self.phase {
            Phase::TakingOver => {
                self.dead.pop_front();
            }
            Phase::Reserving => {
                self.membership = None;
                std::mem::take(&mut self.batch).put_back(&mut self.waiting);
            }
            Phase::Over
            | Phase::Joining(_)
            | Phase::Serving
            | Phase::Saving(_)
            | Phase::Lingering
            | Phase::Leaving
            | Phase::Counting { .. }
            | Phase::Publishing(_)
            | Phase::Finishing(..) => self.membership = None,
        }
        self.phase = Phase::Serving;
    }

    /// What an effect's failure leads to. What the store refuses it will refuse again; everything else is tried again.
    fn store_failed(&mut self, around: &mut Around, kind: EffectKind, failure: &Failure) {
        around.say_failing(kind, failure);
        if kind == EffectKind::Join && failure.kind == FailureKind::TimedOut {
            around.joins_arrive_until = around.now.after(around.settings.answer_timeout());
        }
        let is_refused = match failure.kind {
            FailureKind::Rejected => true,
            FailureKind::Unreachable
            | FailureKind::TimedOut
            | FailureKind::Busy
            | FailureKind::Denied
            | FailureKind::Missing => false,
        };
        match self.phase {
            Phase::Joining(_) if is_refused => {
                self.refuse_everybody(around, "the store refuses this session");
                self.phase = Phase::Over;
            }
            Phase::Reserving | Phase::Saving(_) if is_refused => {
                let refused = std::mem::take(&mut self.batch);
                self.phase = self.after_batch();
                self.refuse_batch(around, refused, "the store refuses this segment");
            }
            Phase::Over
            | Phase::TakingOver
            | Phase::Joining(_)
            | Phase::Serving
            | Phase::Reserving
            | Phase::Saving(_)
            | Phase::Lingering
            | Phase::Leaving
            | Phase::Counting { .. }
            | Phase::Publishing(_)
            | Phase::Finishing(..) => self.store.failed(around.now, &around.settings, self.number),
        }
    }

    /// What comes after a batch is stored or refused.
    fn after_batch(&self) -> Phase {
        match self.phase {
            Phase::Saving(AfterSave::Count { generation }) => Phase::Counting { generation },
            Phase::Saving(AfterSave::Serve)
            | Phase::Over
            | Phase::TakingOver
            | Phase::Joining(_)
            | Phase::Serving
            | Phase::Reserving
            | Phase::Lingering
            | Phase::Leaving
            | Phase::Counting { .. }
            | Phase::Publishing(_)
            | Phase::Finishing(..) => Phase::Serving,
        }
    }

    /// Goes on as far as it can, and tells its clients what there is to tell. It ends every event.
    fn settle(&mut self, around: &mut Around, before: State, what: &'static str) {
        self.took(before, what);
        self.decide(around);
        self.publish(around);
        self.tell(around);
        if matches!(self.phase, Phase::Over) {
            self.conclude(around);
        }
    }

    /// Keeps the edge that was taken, for the test of the table.
    #[cfg(test)]
    fn took(&mut self, from: State, what: &'static str) {
        if from != self.state() {
            self.edges.insert((from, what, self.state()));
        }
    }

    #[cfg(not(test))]
    fn took(&self, _: State, _: &'static str) {}

    /// Changes the phase for as long as nothing has to be waited for, and asks for its effect.
    fn decide(&mut self, around: &mut Around) {
        while !self.store.is_asked() {
            let next = match &self.phase {
                Phase::Over => return,
                Phase::Serving => self.after_serving(around),
                Phase::Lingering => self.after_lingering(around),
                Phase::TakingOver
                | Phase::Joining(_)
                | Phase::Reserving
                | Phase::Saving(_)
                | Phase::Leaving
                | Phase::Counting { .. }
                | Phase::Publishing(_)
                | Phase::Finishing(..) => self.instead(around),
            };
            match next {
                Some(phase) => {
                    let before = self.state();
                    let was_ending = before >= State::Leaving;
                    around.counters.reopened += u64::from(was_ending && matches!(phase, Phase::Joining(_)));
                    self.store.forget_retry();
                    self.phase = phase;
                    self.took(before, "next");
                }
                None => break,
            }
        }
        if self.store.is_free() && around.has_lease {
            self.ask(around);
        }
    }

    /// What comes instead of the effect that is about to be asked for, or to be tried again.
    fn instead(&mut self, around: &Around) -> Option<Phase> {
        let is_stale = self.is_stale(around);
        match &self.phase {
            Phase::Leaving | Phase::Counting { .. } | Phase::Publishing(_) | Phase::Finishing(..) => {
                if self.is_used() {
                    return Some(Phase::Joining(Join::default()));
                }
                let cannot_end = around.stops
                    && matches!(self.phase, Phase::Publishing(_))
                    && around.stream != StreamState::Available;
                (is_stale || cannot_end).then_some(Phase::Over)
            }
            Phase::Joining(_) | Phase::TakingOver => {
                (around.stops && self.waiting.is_empty()).then_some(Phase::Serving)
            }
            Phase::Reserving if is_stale => {
                std::mem::take(&mut self.batch).put_back(&mut self.waiting);
                Some(Phase::Serving)
            }
            Phase::Over | Phase::Serving | Phase::Lingering | Phase::Reserving | Phase::Saving(_) => None,
        }
    }

    fn after_lingering(&self, around: &Around) -> Option<Phase> {
        let is_due = self.end.leave_at(&around.settings) <= around.now && around.has_lease;
        match () {
            () if self.is_wanted() || !self.dead.is_empty() => Some(Phase::Serving),
            () if around.stops || self.is_stale(around) => Some(Phase::Over),
            () => is_due.then_some(Phase::Leaving),
        }
    }

    /// Asks for the effect of the phase.
    fn ask(&mut self, around: &mut Around) {
        let owner = Owner::Store(self.number);
        let session = self.ids.clone();
        match &mut self.phase {
            Phase::Over | Phase::Serving | Phase::Lingering | Phase::Publishing(_) => {}
            Phase::TakingOver => {
                let Some(from) = self.dead.front().cloned() else { return };
                around.ask(&mut self.store, owner, |fence| Effect::TakeOver { session, fence, from });
            }
            Phase::Joining(join) => {
                let (transport, epochs) = (
                    Self::transport(&self.connections, &self.membership),
                    Self::asked_epochs(&self.epochs, around.now),
                );
                *join = Join {
                    instance: Some(around.instance.clone()),
                    epochs: epochs.iter().map(|opened| opened.epoch.clone()).collect(),
                    transport: Some(transport),
                };
                around.ask(&mut self.store, owner, |fence| Effect::Join { session, fence, transport, epochs });
            }
            Phase::Reserving => {
                let (segments, from) = (Arc::clone(&self.batch.segments), self.reserve_from);
                around.ask(&mut self.store, owner, |fence| Effect::Reserve { session, fence, segments, from });
            }
            Phase::Saving(_) => {
                let segments = Arc::clone(&self.batch.segments);
                around.ask(&mut self.store, owner, |_| Effect::Save { session, segments });
            }
            Phase::Leaving => {
                let silence = self.end.silence(around.now, &around.settings);
                let idle_others = self.end.idle_others();
                around.ask(&mut self.store, owner, |fence| Effect::Leave { session, fence, silence, idle_others });
            }
            Phase::Counting { .. } => around.ask(&mut self.store, owner, |_| Effect::Count { session }),
            Phase::Finishing(end, published) => {
                let (End { generation, segments: saved, edits }, published) = (*end, published.clone());
                around.ask(&mut self.store, owner, |fence| Effect::Finish {
                    session,
                    fence,
                    generation,
                    saved,
                    edits,
                    published,
                });
            }
        }
    }

    /// Whether the session must not end: somebody is connected, or something is not stored.
    fn is_used(&self) -> bool {
        !self.connections.is_empty() || !self.waiting.is_empty()
    }

    /// Whether there is more to do here than to leave: it is used, or something is not published.
    fn is_wanted(&self) -> bool {
        self.is_used() || !self.publications.is_empty()
    }

    /// Whether the document listed this instance under an id that it has lost.
    fn is_stale(&self, around: &Around) -> bool {
        self.membership.as_ref().is_some_and(|membership| membership.instance != around.instance)
    }

    /// The last thing that it does.
    fn conclude(&mut self, around: &mut Around) {
        for id in std::mem::take(&mut self.connections).into_keys() {
            around.close(id, CloseCode::Restart, "the transcriber restarts");
        }
        around.counters.unpublished += self.publications.len() as u64;
        around.bytes = around.bytes.saturating_sub(self.bytes);
        self.bytes = 0;
        around.waits_for_memory.remove(&self.number);
    }

    fn refuse_everybody(&mut self, around: &mut Around, reason: &str) {
        self.waiting.clear();
        for id in std::mem::take(&mut self.connections).into_keys() {
            around.send(id, ServerFrame::Error { id: None, reason: reason.to_owned(), retryable: false });
            around.close(id, CloseCode::Internal, reason);
        }
    }
}
