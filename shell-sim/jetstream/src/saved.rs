//! The consumer's state as its file has it, a little behind.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use super::{message::SequencePair, stamp::Stamp};

/// The longest time that the file lags behind: 100 ms between two writes, and what a write and a kill take themselves.
const LONGEST_LAG: Duration = Duration::from_millis(150);

/// The state that the consumer's store holds, with the last changes kept apart: a kill can lose any tail of them.
///
/// It is not the consumer's own state: the two drift apart in what the server reports as the ack floor, and in the stamps.
#[derive(Debug, Clone, Default)]
pub(super) struct Saved {
    state: SavedState,
    written: SavedState,
    unwritten: VecDeque<(Stamp, Change)>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SavedState {
    pub(super) delivered: SequencePair,
    pub(super) floor: SequencePair,
    pub(super) pending: BTreeMap<u64, Pending>,
    pub(super) redelivered: BTreeMap<u64, u64>,
}

/// A delivery that is neither acknowledged nor given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pending {
    /// The consumer sequence of the first delivery of the message; later ones do not change it.
    pub(super) consumer_seq: u64,
    /// When its ack wait began.
    pub(super) since: Stamp,
}

/// A change of the state, in the server's own steps.
#[derive(Debug, Clone)]
pub(super) enum Change {
    Delivered { consumer_seq: u64, stream_seq: u64, deliveries: u64, since: Stamp, max_deliver: Option<u64> },
    Acked { consumer_seq: u64, stream_seq: u64 },
    RedeliveredBelow(u64),
    Replaced(Box<SavedState>),
}

impl Saved {
    /// The state of a consumer that starts after `stream_seq`, which is written at once.
    pub(super) fn starting(stream_seq: u64) -> Self {
        let start = SequencePair { consumer: 0, stream: stream_seq };
        let state = SavedState { delivered: start, floor: start, ..SavedState::default() };
        Self { written: state.clone(), state, unwritten: VecDeque::new() }
    }

    pub(super) fn state(&self) -> &SavedState {
        &self.state
    }

    pub(super) fn apply(&mut self, now: Stamp, change: Change) {
        self.write_until(now.before(LONGEST_LAG));
        self.state.apply(&change);
        self.unwritten.push_back((now, change));
    }

    /// A graceful stop: everything is written, in whole seconds.
    pub(super) fn stop(&mut self) {
        self.unwritten.clear();
        self.state.truncate();
        self.written = self.state.clone();
    }

    /// A kill: what was changed after `until` is lost.
    pub(super) fn kill(&mut self, until: Stamp) {
        self.write_until(until);
        self.state = self.written.clone();
        self.stop();
    }

    fn write_until(&mut self, until: Stamp) {
        while self.unwritten.front().is_some_and(|(at, _)| *at <= until) {
            if let Some((_, change)) = self.unwritten.pop_front() {
                self.written.apply(&change);
            }
        }
    }
}

impl SavedState {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Delivered { consumer_seq, stream_seq, deliveries, since, max_deliver } => {
                self.delivered(*consumer_seq, *stream_seq, *deliveries, *since, *max_deliver);
            }
            Change::Acked { consumer_seq, stream_seq } => self.acked(*consumer_seq, *stream_seq),
            Change::RedeliveredBelow(first) => self.redelivered = self.redelivered.split_off(first),
            Change::Replaced(state) => self.clone_from(state),
        }
    }

    fn delivered(&mut self, consumer_seq: u64, stream_seq: u64, deliveries: u64, since: Stamp, most: Option<u64>) {
        if consumer_seq <= self.floor.consumer {
            return;
        }
        if stream_seq <= self.delivered.stream {
            if let Some(pending) = self.pending.get_mut(&stream_seq) {
                pending.since = since;
            }
        } else {
            self.pending.insert(stream_seq, Pending { consumer_seq, since });
        }
        self.delivered.consumer = self.delivered.consumer.max(consumer_seq);
        self.delivered.stream = self.delivered.stream.max(stream_seq);
        if deliveries > 1 {
            if most.is_some_and(|most| deliveries > most) {
                self.pending.remove(&stream_seq);
            }
            let times = self.redelivered.entry(stream_seq).or_default();
            *times = (*times).max(deliveries - 1);
        }
    }

    fn acked(&mut self, consumer_seq: u64, stream_seq: u64) {
        self.redelivered.remove(&stream_seq);
        if consumer_seq <= self.floor.consumer {
            return;
        }
        let Some(pending) = self.pending.remove(&stream_seq) else {
            return;
        };
        let first_seq = consumer_seq.min(pending.consumer_seq);
        if self.pending.is_empty() {
            self.floor = self.delivered;
        } else if first_seq == self.floor.consumer + 1 {
            self.floor = SequencePair { consumer: first_seq, stream: stream_seq };
            if let Some((next, pending)) = self.pending.range(stream_seq + 1..).next()
                && self.delivered.consumer > first_seq
            {
                self.floor = SequencePair { consumer: pending.consumer_seq - 1, stream: next - 1 };
            }
        }
    }

    fn truncate(&mut self) {
        for pending in self.pending.values_mut() {
            pending.since = pending.since.whole_seconds();
        }
    }
}
