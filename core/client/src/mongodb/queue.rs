//! What waits to be put into a command.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use transcript_core::{
    Time,
    ids::{EffectId, JobId},
};

/// A request of the core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked<T> {
    pub(super) id: EffectId,
    /// When the core asked. It waits no longer for being passed on from one queue to another.
    pub(super) at: Time,
    pub(super) what: T,
}

/// A queue in which each job has one place. A job that asks again, because it waited for longer than it would, keeps the
/// place of its first request, and only its last request is carried out. So a queue that is longer than the jobs wait is
/// worked off all the same.
#[derive(Debug)]
pub(super) struct Queue<T> {
    order: VecDeque<JobId>,
    waiting: BTreeMap<JobId, Asked<T>>,
    dropped: usize,
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
        Self { order: VecDeque::new(), waiting: BTreeMap::new(), dropped: 0 }
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

    /// The request that is next. Those before it that waited for too long are dropped: nobody waits for them any more, and
    /// who did has asked again.
    pub(super) fn first(&mut self, deadline: Deadline) -> Option<&Asked<T>> {
        while let Some(asked) = self.order.front().and_then(|job| self.waiting.get(job))
            && deadline.now.since(asked.at) > deadline.within
        {
            self.take();
            self.dropped += 1;
        }
        self.order.front().and_then(|job| self.waiting.get(job))
    }

    /// Takes the request that is next.
    pub(super) fn take(&mut self) -> Option<Asked<T>> {
        let job = self.order.pop_front()?;
        self.waiting.remove(&job)
    }

    /// How many requests were dropped since this was asked last.
    pub(super) fn dropped(&mut self) -> usize {
        std::mem::take(&mut self.dropped)
    }
}

/// For how long requests are worth carrying out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    pub(super) now: Time,
    pub(super) within: Duration,
}
