//! The jobs of one key: the first one runs, and what it brings about may be all that the others ask for.

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher},
};

use super::Processor;
use crate::{
    ids::{JobId, Key},
    job::{Event, Outcome},
    time::Time,
};

/// Stands for a key where many are compared: equal keys have equal digests, others may.
pub(super) type Digest = u64;

/// A key with its digest, which is computed once for a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Digested<'k> {
    pub(super) key: &'k Key,
    pub(super) digest: Digest,
}

impl<'k> Digested<'k> {
    pub(super) fn new(key: &'k Key) -> Self {
        // Without a random state it is the same in each run, and nothing that is said depends on it.
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        Self { key, digest: hasher.finish() }
    }
}

/// The calls that were done last, with the time when their segments were loaded.
#[derive(Debug, Default)]
pub(super) struct DoneCalls {
    loaded_at: HashMap<Digest, Time, BuildHasherDefault<DigestHasher>>,
    oldest_first: VecDeque<Digest>,
}

/// Takes a digest for its own hash.
#[derive(Debug, Default)]
struct DigestHasher(u64);

impl Hasher for DigestHasher {
    fn write(&mut self, bytes: &[u8]) {
        // A digest is written by the method below; anything else would still be hashed.
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, digest: u64) {
        self.0 = digest;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// How many of them are remembered.
const DONE_CALLS: usize = 4096;

impl DoneCalls {
    pub(super) fn add(&mut self, digest: Digest, loaded_at: Time) {
        if self.loaded_at.insert(digest, loaded_at).is_none() {
            self.oldest_first.push_back(digest);
        }
        if self.oldest_first.len() > DONE_CALLS
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            self.loaded_at.remove(&oldest);
        }
    }

    /// When the segments of a call were loaded. Other calls have the same digest at times: what is found is only a hint.
    pub(super) fn loaded_at(&self, digest: Digest) -> Option<Time> {
        self.loaded_at.get(&digest).copied()
    }
}

impl Processor {
    /// Puts the job behind those of the same key; the first one runs.
    pub(super) fn queue(&mut self, id: JobId, key: Digested<'_>) {
        self.key_queues.insert((key.digest, id));
        if self.first_of_key(key) == Some(id) {
            self.advance(id, Event::FirstOfKey);
        }
    }

    /// A job is done with its call. Other ends of the call may wait behind it, to which that is all that they ask for.
    pub(super) fn cover(&mut self, key: Digested<'_>, outcome: Option<Outcome>) {
        let Some(outcome) = outcome else { return };
        let Some(loaded_at) = outcome.loaded_at else { return };
        self.done.add(key.digest, loaded_at);
        let waiting: Vec<JobId> = self.jobs_of_key(key).collect();
        for id in waiting {
            self.advance(id, Event::Covered(outcome));
        }
    }

    /// The next job of the key goes on, unless it does already. It does not wait for an acknowledgement to be confirmed: a
    /// server that forgot the delivery in a crash answers none, and delivers it again only where there is room.
    pub(super) fn start_next_of_key(&mut self, key: Digested<'_>) {
        // A draining processor begins nothing.
        if !self.stage.drains()
            && let Some(next) = self.first_of_key(key)
        {
            self.advance(next, Event::FirstOfKey);
        }
    }

    pub(super) fn first_of_key(&self, key: Digested<'_>) -> Option<JobId> {
        self.jobs_of_key(key).next()
    }

    /// The jobs of a key that have not done their work, in the order of their delivery.
    pub(super) fn jobs_of_key(&self, key: Digested<'_>) -> impl Iterator<Item = JobId> {
        let Digested { key, digest } = key;
        let alike = self.key_queues.range((digest, JobId(0))..=(digest, JobId(u64::MAX))).map(|(_, id)| *id);
        alike.filter(move |id| self.jobs.get(id).is_some_and(|job| job.key() == Some(key)))
    }
}
