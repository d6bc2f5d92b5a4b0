//! What waits to be put into a command.

use std::collections::{BTreeMap, VecDeque};

use transcript_core::ids::{EffectId, JobId};

/// A request of the core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked<T> {
    pub(super) id: EffectId,
    pub(super) what: T,
}

/// A queue in which each job has one place. A job that asks again, because it waited for longer than it would, keeps the
/// place of its first request, and only its last request is carried out. So a queue that is longer than the jobs wait is
/// worked off all the same.
#[derive(Debug)]
pub(super) struct Queue<T> {
    order: VecDeque<JobId>,
    waiting: BTreeMap<JobId, Asked<T>>,
}

/// What became of a request that was put into a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Put {
    /// It waits behind the others.
    Behind,
    /// It has taken the place of an earlier one of its job.
    InPlace,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { order: VecDeque::new(), waiting: BTreeMap::new() }
    }
}

impl<T> Queue<T> {
    pub(super) fn put(&mut self, asked: Asked<T>) -> Put {
        let job = asked.id.job;
        if self.waiting.insert(job, asked).is_some() {
            return Put::InPlace;
        }
        self.order.push_back(job);
        Put::Behind
    }

    /// The request that is next.
    pub(super) fn first(&self) -> Option<&Asked<T>> {
        self.order.front().and_then(|job| self.waiting.get(job))
    }

    /// Takes the request that is next.
    pub(super) fn take(&mut self) -> Option<Asked<T>> {
        let job = self.order.pop_front()?;
        self.waiting.remove(&job)
    }
}
