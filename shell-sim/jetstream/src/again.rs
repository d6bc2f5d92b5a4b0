//! What a consumer is to deliver again.

use std::collections::{BTreeSet, VecDeque};

/// A queue that holds each sequence once. It lives in memory only.
#[derive(Debug, Clone, Default)]
pub(super) struct Again {
    queue: VecDeque<u64>,
    members: BTreeSet<u64>,
}

impl Again {
    pub(super) fn push(&mut self, sequence: u64) {
        if self.members.insert(sequence) {
            self.queue.push_back(sequence);
        }
    }

    pub(super) fn pop(&mut self) -> Option<u64> {
        let sequence = self.queue.pop_front()?;
        self.members.remove(&sequence);
        Some(sequence)
    }

    pub(super) fn len(&self) -> u64 {
        self.queue.len() as u64
    }

    pub(super) fn contains(&self, sequence: u64) -> bool {
        self.members.contains(&sequence)
    }

    pub(super) fn remove(&mut self, sequence: u64) {
        if self.members.remove(&sequence) {
            self.queue.retain(|queued| *queued != sequence);
        }
    }

    pub(super) fn into_iter(self) -> impl Iterator<Item = u64> {
        self.queue.into_iter()
    }
}
