//! Clients, and what they deliver.

use std::{collections::BTreeMap, sync::Arc};

use transcript_core::{Time, ids::MAX_ID_BYTES};

use super::{
    AfterSave, Join, Membership, Phase, Session,
    segments::{Batch, Epoch, Receipt, Waiting, cost, on_session_clock},
};
use crate::{
    around::Around,
    connection::{Clock, Connection, Then},
    document::{MAX_EPOCH_CLOCKS, StoredSegment, Transport},
    frame::{ClientFrame, ClientSegment, CloseCode, Finality, ServerFrame},
    ids::{ConnectionId, EpochId, Source, Unnamed},
    input::{Closure, Opening, SavedSegment},
    output::{EpochOpened, Output, Reading},
};

impl Session {
    /// A client has connected.
    pub(crate) fn open(&mut self, around: &mut Around, opening: Opening) {
        let before = self.state();
        let Opening { connection: id, client, epoch, transport, .. } = opening;
        let named = client.as_ref().zip(epoch.as_ref()).map(|(client, epoch)| EpochId::named(client, epoch));
        let clock = match (&named, transport) {
            (Some(epoch), _) if self.knows_epoch(epoch, around.now) => Clock::Epoch(epoch.clone()),
            (Some(_), _) | (None, Transport::Post) => Clock::Unknown,
            (None, Transport::Socket) => Clock::Opened(around.now),
        };
        // Two services that name neither themselves nor an epoch may use the same ids: their segments must not replace each
        // other. A service whose repeated requests are to be known again names itself.
        let epoch = named.unwrap_or_else(|| match (transport, &client) {
            (Transport::Post, Some(client)) => EpochId::of_requests(client),
            (Transport::Post, None) | (Transport::Socket, _) => {
                EpochId::of_connection(client.as_deref(), &around.settings.nonce, id)
            }
        });
        let connection = Connection::new(id, client, transport, epoch, clock);
        self.end.opened(&connection);
        self.connections.insert(id, connection);
        self.settle(around, before, "opened");
    }

    /// A client has said something.
    pub(crate) fn frame(&mut self, around: &mut Around, id: ConnectionId, frame: ClientFrame) {
        let before = self.state();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if around.stops || connection.has_closed_its_side() {
            return;
        }
        match frame {
            ClientFrame::Segment(segment) => self.segment(around, id, segment),
            ClientFrame::Finalize => connection.request(Then::Stay),
            ClientFrame::CloseStream => connection.request(Then::Close),
            ClientFrame::EndSession => {
                connection.request(Then::Close);
                self.end.is_requested = true;
            }
            ClientFrame::KeepAlive => {}
        }
        self.settle(around, before, "frame");
    }

    /// A connection is gone.
    pub(crate) fn close(&mut self, around: &mut Around, id: ConnectionId, closure: Closure) {
        let before = self.state();
        self.closed(around, id, closure);
        self.settle(around, before, "closed");
    }

    /// What comes after nothing is under way.
    pub(super) fn after_serving(&mut self, around: &mut Around) -> Option<Phase> {
        let is_stored = self.waiting.is_empty();
        if around.stops && is_stored {
            return (self.publications.is_empty() || !self.can_publish(around)).then_some(Phase::Over);
        }
        if self.membership.is_none() && !self.is_wanted() && self.dead.is_empty() {
            return Some(Phase::Over);
        }
        if !around.has_lease {
            return None;
        }
        if !self.dead.is_empty() {
            return Some(Phase::TakingOver);
        }
        if self.must_join(around) {
            return Some(if self.is_wanted() { Phase::Joining(Join::default()) } else { Phase::Over });
        }
        if !is_stored {
            self.batch = self.next_batch(around);
            return Some(Phase::Reserving);
        }
        (!self.is_wanted()).then_some(Phase::Lingering)
    }

    /// What became of the segments of the batch.
    pub(super) fn saved(&mut self, around: &mut Around, outcomes: Vec<SavedSegment>) {
        let Batch { segments, receipts } = std::mem::take(&mut self.batch);
        let mut again = vec![];
        let members = segments.iter().zip(receipts).zip(outcomes.into_iter().map(Some).chain(std::iter::repeat(None)));
        for ((segment, receipt), outcome) in members {
            match outcome {
                Some(SavedSegment::Stored { index }) => self.stored(around, segment, receipt.as_ref(), index),
                Some(SavedSegment::Refused { reason }) => self.refused(around, segment, receipt.as_ref(), reason),
                // A shell that says nothing of a segment says that it is to be stored again.
                Some(SavedSegment::IndexTaken { .. }) | None => {
                    if let Some(SavedSegment::IndexTaken { highest }) = outcome {
                        self.reserve_from = self.reserve_from.max(highest.saturating_add(1));
                    }
                    again.push(Waiting { segment: segment.clone(), clock: None, receipt });
                }
            }
        }
        for waiting in again.into_iter().rev() {
            self.waiting.push_front(waiting);
        }
        self.phase = self.after_batch();
    }

    /// Stores what a dead instance had not stored, or what nobody knows of whether it had.
    pub(super) fn save_recovered(&mut self, around: &mut Around, pending: Vec<StoredSegment>, then: AfterSave) {
        self.batch = Batch::recovered(pending);
        let bytes: usize = self.batch.segments.iter().map(cost).sum();
        self.hold(around, bytes);
        self.phase = match then {
            AfterSave::Count { generation } if self.batch.receipts.is_empty() => Phase::Counting { generation },
            AfterSave::Serve if self.batch.receipts.is_empty() => Phase::Serving,
            AfterSave::Serve | AfterSave::Count { .. } => Phase::Saving(then),
        };
    }

    /// The store refuses a whole batch.
    pub(super) fn refuse_batch(&mut self, around: &mut Around, batch: Batch, reason: &str) {
        for (segment, receipt) in batch.segments.iter().zip(batch.receipts) {
            self.refused(around, segment, receipt.as_ref(), reason.to_owned());
        }
    }

    /// How the clients of this instance deliver.
    pub(super) fn transport(
        connections: &BTreeMap<ConnectionId, Connection>,
        membership: &Option<Membership>,
    ) -> Transport {
        let delivered = connections.values().map(|connection| connection.transport);
        delivered.chain(membership.iter().map(|membership| membership.transport)).max().unwrap_or(Transport::Post)
    }

    /// The epochs that a join has to ask for.
    pub(super) fn asked_epochs(epochs: &BTreeMap<EpochId, Epoch>, now: Time) -> Vec<EpochOpened> {
        let opened = epochs.iter().filter_map(|(epoch, clock)| match clock {
            Epoch::Unasked(opened) => Some(EpochOpened { epoch: epoch.clone(), ago: now.since(*opened) }),
            Epoch::At(_) | Epoch::Unmapped => None,
        });
        opened.collect()
    }

    /// Tells clients that they are connected, and that everything is stored; lets them go on, or wait.
    pub(super) fn tell(&mut self, around: &mut Around) {
        // An end that is under way is taken back by a join: until then, the session is not open.
        let serves = matches!(self.phase, Phase::Serving | Phase::Reserving | Phase::Saving(AfterSave::Serve));
        let is_open = serves && self.membership.is_some() && !self.is_stale(around);
        let mut leaving = vec![];
        for connection in self.connections.values_mut() {
            let has_clock = match &connection.clock {
                Clock::Epoch(epoch) => !matches!(self.epochs.get(epoch), Some(Epoch::Unasked(_))),
                Clock::Opened(_) | Clock::Unknown => true,
            };
            if is_open && has_clock && !connection.is_ready {
                connection.is_ready = true;
                around.send(connection.id, ServerFrame::Ready);
            }
            while let Some(then) = connection.take_answered() {
                around.send(connection.id, ServerFrame::Saved { count: connection.stored });
                if then == Then::Close {
                    leaving.push(connection.id);
                    break;
                }
            }
        }
        let some_left = !leaving.is_empty();
        for id in leaving {
            around.close(id, CloseCode::Normal, "");
            self.closed(around, id, Closure::Clean);
        }
        if some_left {
            self.decide(around);
        }
        self.read_or_wait(around);
    }

    /// Has clients wait that send faster than the store takes, and lets them go on when half of it is stored.
    fn read_or_wait(&mut self, around: &mut Around) {
        let settings = &around.settings;
        let (all, session) = (level(around.bytes, settings.max_bytes), level(self.bytes, settings.max_session_bytes));
        let mut waits_for_all = false;
        for connection in self.connections.values_mut() {
            let level = level(connection.bytes, settings.max_connection_bytes).max(session).max(all);
            let reading = match level {
                Level::Low | Level::Middle if around.stops => Reading::Paused,
                Level::Low => Reading::Resumed,
                Level::Middle => connection.reading,
                Level::High => Reading::Paused,
            };
            waits_for_all |= reading == Reading::Paused && all > Level::Low;
            if reading != connection.reading {
                connection.reading = reading;
                around.outputs.push_back(Output::Read { connection: connection.id, reading });
            }
        }
        if waits_for_all {
            around.waits_for_memory.insert(self.number);
        } else {
            around.waits_for_memory.remove(&self.number);
        }
    }

    fn knows_epoch(&mut self, epoch: &EpochId, now: Time) -> bool {
        let is_known = self.epochs.contains_key(epoch);
        if !is_known && self.epochs.len() < MAX_EPOCH_CLOCKS {
            self.epochs.insert(epoch.clone(), Epoch::Unasked(now));
            return true;
        }
        is_known
    }

    fn segment(&mut self, around: &mut Around, id: ConnectionId, said: ClientSegment) {
        match said.finality {
            Finality::Interim => around.counters.interim += 1,
            Finality::Final => {
                around.counters.received += 1;
                if let Err((reason, retryable)) = self.take(around, id, &said) {
                    around.counters.refused_segments += 1;
                    around.send(id, ServerFrame::Error { id: said.id, reason, retryable });
                }
            }
        }
    }

    /// Takes a final segment; an error says why not, and whether it can be sent again.
    fn take(&mut self, around: &mut Around, id: ConnectionId, said: &ClientSegment) -> Result<(), (String, bool)> {
        let settings = &around.settings;
        if said.id.as_ref().is_some_and(|id| id.len() > MAX_ID_BYTES) {
            return Err((format!("the id is longer than {MAX_ID_BYTES} bytes"), false));
        }
        let size = said.text.len() + said.speaker.as_ref().map_or(0, |speaker| speaker.len());
        if size > settings.max_segment_bytes {
            return Err((format!("the segment has more than {} bytes of text", settings.max_segment_bytes), false));
        }
        let under_way = (self.waiting.len() + self.batch.receipts.len()) as u64;
        if self.next_index.saturating_add(under_way) >= settings.max_session_segments {
            return Err((format!("the session has {} segments", settings.max_session_segments), false));
        }
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let number = connection.receive();
        let unnamed = Unnamed { nonce: &settings.nonce, connection: id, number };
        let segment = StoredSegment {
            index: 0,
            source: Source::new(&connection.epoch, said.id.as_deref().ok_or(unnamed)),
            write: 0,
            speaker: said.speaker.clone(),
            text: Arc::clone(&said.text),
            start_ms: said.start_ms,
            end_ms: said.end_ms,
            on_session_clock: false,
        };
        let bytes = cost(&segment);
        connection.bytes += bytes;
        let clock = Some(connection.clock.clone());
        let receipt = Some(Receipt { connection: id, number, id: said.id.clone(), received: around.now });
        self.waiting.push_back(Waiting { segment, clock, receipt });
        self.hold(around, bytes);
        Ok(())
    }

    fn closed(&mut self, around: &Around, id: ConnectionId, closure: Closure) {
        let Some(connection) = self.connections.remove(&id) else { return };
        let is_replaced =
            connection.client.is_some() && self.connections.values().any(|other| other.client == connection.client);
        self.end.closed(around.now, &connection, closure, is_replaced, &around.settings);
    }

    /// Whether the document must be told something before a batch: who serves, how, or which epochs there are.
    fn must_join(&self, around: &Around) -> bool {
        let Some(membership) = &self.membership else { return true };
        let has_sockets = Self::transport(&self.connections, &self.membership) > membership.transport;
        let has_epochs = self.epochs.values().any(|epoch| matches!(epoch, Epoch::Unasked(_)));
        membership.instance != around.instance
            || has_sockets
            || (self.is_wanted() && (has_epochs || self.clock.is_none()))
    }

    fn next_batch(&mut self, around: &Around) -> Batch {
        let (session, epochs) = (self.clock, &self.epochs);
        Batch::take(&mut self.waiting, &around.settings, |waiting| {
            let Waiting { mut segment, clock, receipt } = waiting;
            if let Some(clock) = clock {
                on_session_clock(&mut segment, &clock, session, epochs);
            }
            (segment, receipt)
        })
    }

    fn stored(&mut self, around: &mut Around, segment: &StoredSegment, receipt: Option<&Receipt>, index: u64) {
        around.counters.stored += 1;
        let bytes = cost(segment);
        if let Some(receipt) = receipt
            && let Some(connection) = self.connections.get_mut(&receipt.connection)
        {
            connection.settle(receipt.number, bytes);
            connection.stored += 1;
            around.acknowledged.observe(around.now.since(receipt.received));
            around.send(receipt.connection, ServerFrame::Ack { id: receipt.id.clone(), index });
        }
        if !self.queue_publication(around, segment, index) {
            self.release(around, bytes);
        }
    }

    fn refused(&mut self, around: &mut Around, segment: &StoredSegment, receipt: Option<&Receipt>, reason: String) {
        around.counters.refused_segments += 1;
        let bytes = cost(segment);
        self.release(around, bytes);
        if let Some(receipt) = receipt
            && let Some(connection) = self.connections.get_mut(&receipt.connection)
        {
            connection.settle(receipt.number, bytes);
            let id = receipt.id.clone();
            around.send(receipt.connection, ServerFrame::Error { id, reason, retryable: false });
        }
    }

    fn hold(&mut self, around: &mut Around, bytes: usize) {
        self.bytes += bytes;
        around.bytes += bytes;
    }

    pub(super) fn release(&mut self, around: &mut Around, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
        around.bytes = around.bytes.saturating_sub(bytes);
    }
}

/// How full something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    /// At most half.
    Low,
    /// Between half and full.
    Middle,
    /// Full.
    High,
}

fn level(bytes: usize, most: usize) -> Level {
    if bytes >= most {
        Level::High
    } else if bytes > most / 2 {
        Level::Middle
    } else {
        Level::Low
    }
}
