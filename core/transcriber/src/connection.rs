//! One client's connection: what it sent that is not settled, and what it waits to be told.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use transcript_core::Time;

use crate::{
    document::Transport,
    ids::{ConnectionId, EpochId},
    output::Reading,
};

/// A connection that is open.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) id: ConnectionId,
    pub(crate) client: Option<Arc<str>>,
    pub(crate) transport: Transport,
    pub(crate) epoch: EpochId,
    pub(crate) clock: Clock,
    /// Whether the client was told that the session counts it.
    pub(crate) is_ready: bool,
    pub(crate) reading: Reading,
    /// Bytes of its segments that are not settled.
    pub(crate) bytes: usize,
    pub(crate) stored: u64,
    received: u64,
    /// The numbers of its segments that are neither stored nor refused.
    unsettled: BTreeSet<u64>,
    requests: VecDeque<Request>,
}

/// Which clock a client's times are of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Clock {
    /// One that started when the connection opened.
    Opened(Time),
    /// That of an epoch which the client named.
    Epoch(EpochId),
    /// Nobody knows.
    Unknown,
}

/// What a client waits for.
#[derive(Debug, Clone, Copy)]
struct Request {
    /// Segments up to this number are to be settled first.
    after: u64,
    then: Then,
}

/// What happens once a client was told that everything is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// It goes on.
    Stay,
    /// Its connection is closed.
    Close,
}

impl Connection {
    pub(crate) fn new(
        id: ConnectionId,
        client: Option<Arc<str>>,
        transport: Transport,
        epoch: EpochId,
        clock: Clock,
    ) -> Self {
        Self {
            id,
            client,
            transport,
            epoch,
            clock,
            is_ready: false,
            reading: Reading::Resumed,
            bytes: 0,
            stored: 0,
            received: 0,
            unsettled: BTreeSet::new(),
            requests: VecDeque::new(),
        }
    }

    /// The number of a segment that has just come.
    pub(crate) fn receive(&mut self) -> u64 {
        self.received += 1;
        self.unsettled.insert(self.received);
        self.received
    }

    /// A segment is stored or refused.
    pub(crate) fn settle(&mut self, number: u64, bytes: usize) {
        if self.unsettled.remove(&number) {
            self.bytes = self.bytes.saturating_sub(bytes);
        }
    }

    /// The client wants to be told when everything is settled that it has sent.
    pub(crate) fn request(&mut self, then: Then) {
        self.requests.push_back(Request { after: self.received, then });
    }

    /// Whether the client said that it sends no more.
    pub(crate) fn has_closed_its_side(&self) -> bool {
        self.requests.iter().any(|request| request.then == Then::Close)
    }

    /// The first request that can be answered.
    pub(crate) fn take_answered(&mut self) -> Option<Then> {
        let request = self.requests.front()?;
        let waits = self.unsettled.first().is_some_and(|number| *number <= request.after);
        if waits || !self.is_ready {
            return None;
        }
        self.requests.pop_front().map(|request| request.then)
    }
}
