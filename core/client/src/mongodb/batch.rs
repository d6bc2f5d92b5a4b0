//! The requests of one kind: one command of them is under way at a time, and the next ones gather.

use std::collections::VecDeque;

use super::queue::{Asked, Deadline, Put, Queue};

/// Requests of one kind.
#[derive(Debug)]
pub(super) struct Lane<T, P = Vec<Asked<T>>> {
    queue: Queue<T>,
    /// What comes before the queue: parts of batches that were split.
    parts: VecDeque<P>,
    busy: bool,
}

impl<T, P> Default for Lane<T, P> {
    fn default() -> Self {
        Self { queue: Queue::default(), parts: VecDeque::new(), busy: false }
    }
}

impl<T, P> Lane<T, P> {
    pub(super) fn put(&mut self, asked: Asked<T>) -> Put {
        self.queue.put(asked)
    }

    /// See [`Queue::dropped`].
    pub(super) fn dropped(&mut self) -> usize {
        self.queue.dropped()
    }

    /// Begins the next command, if none is under way: with a part of an earlier batch, or with what `gather` takes.
    pub(super) fn begin(&mut self, gather: impl FnOnce(&mut Queue<T>) -> Option<P>) -> Option<P> {
        if self.busy {
            return None;
        }
        let next = self.parts.pop_front().or_else(|| gather(&mut self.queue));
        self.busy = next.is_some();
        next
    }

    /// The command is over.
    pub(super) fn end(&mut self) {
        self.busy = false;
    }

    /// What is to be done before everything else.
    pub(super) fn first(&mut self, part: P) {
        self.parts.push_front(part);
    }
}

/// Takes requests for one command: at most `most`, and as many as weigh no more than `heaviest` together, or one.
pub(super) fn gather<T>(
    queue: &mut Queue<T>,
    deadline: Deadline,
    most: usize,
    heaviest: u64,
    weight: impl Fn(&T) -> u64,
) -> Option<Vec<Asked<T>>> {
    let (mut batch, mut weighs) = (vec![], 0_u64);
    while let Some(next) = queue.first(deadline) {
        let more = weighs.saturating_add(weight(&next.what));
        if batch.len() >= most || (more > heaviest && !batch.is_empty()) {
            break;
        }
        weighs = more;
        batch.extend(queue.take());
    }
    (!batch.is_empty()).then_some(batch)
}

/// Both halves of a batch of more than one.
pub(super) fn halves<M>(mut batch: Vec<M>) -> (Vec<M>, Vec<M>) {
    let second = batch.split_off(batch.len() / 2);
    (batch, second)
}
