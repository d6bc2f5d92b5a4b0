//! What begins a job: a delivery, a message that used up its deliveries, a summary that is stale.

use std::sync::Arc;

use super::{Processor, keys::Digested};
use crate::{
    event::SessionEnded,
    ids::{JobId, Key},
    input::{Delivery, Exhausted, StaleSummary},
    job::{Event, Job, Next, State},
};

impl Processor {
    pub(super) fn deliver(&mut self, delivery: &Delivery) -> Option<JobId> {
        let ended = SessionEnded::parse(&delivery.payload.0).map(|ended| (ended.session.key(), ended));
        if let Some(id) = self.redelivered(ended.as_ref().ok().map(|(key, _)| key), delivery) {
            return Some(id);
        }
        // Jobs without a delivery must not take the place of one that was asked for.
        if self.jobs.len() - self.without_delivery >= self.settings.max_in_flight.saturating_mul(4) {
            self.counters.overflowed += 1;
            return None;
        }
        self.counters.delivered += 1;
        self.counters.redelivered += u64::from(delivery.attempt > 1);
        self.counters.rejected += u64::from(ended.is_err());
        let id = self.next_id();
        match ended {
            Err(rejection) => {
                let job = Job::rejected(id, self.now, delivery, rejection.to_string(), &self.settings);
                self.begin(id, "delivered", job, Next::Ask);
            }
            Ok((_, ended)) if self.stage.drains() => {
                let job = Job::handed_on(id, self.now, delivery, ended, &self.settings);
                self.begin(id, "delivered", job, Next::Ask);
            }
            Ok((key, ended)) => {
                let mut job = Job::new(id, self.now, delivery, key.clone(), ended, &self.settings);
                let key = Digested::new(&key);
                if let Some(loaded_at) = self.done.loaded_at(key.digest) {
                    job = job.after(loaded_at);
                }
                self.begin(id, "delivered", job, Next::Stay);
                self.queue(id, key);
            }
        }
        Some(id)
    }

    /// The job that is under way about the same message and takes the delivery over. A second one would only do the same
    /// again, and its acknowledgement would settle the first one's delivery.
    pub(super) fn redelivered(&mut self, key: Option<&Key>, delivery: &Delivery) -> Option<JobId> {
        let id = self.messages.get(&delivery.stream_sequence).copied()?;
        // A stream that was made anew counts from the beginning.
        self.jobs.get(&id).filter(|job| job.key() == key)?;
        self.advance(id, Event::Redelivered { reply: Arc::clone(&delivery.reply), attempt: delivery.attempt });
        let taken = self.jobs.contains_key(&id);
        if taken {
            self.counters.delivered += 1;
            self.counters.redelivered += 1;
        }
        taken.then_some(id)
    }

    /// JetStream counts the deliveries that were due to its own outages too. A job that works on the message knows better:
    /// its acknowledgement is taken as before, however late (nats-server, consumer.go, processAckMsgLocked).
    pub(super) fn exhausted(&mut self, exhausted: &Exhausted) -> Option<JobId> {
        let in_hand = self.messages.get(&exhausted.stream_sequence).copied();
        if let Some(id) = in_hand.filter(|id| self.jobs.get(id).is_some_and(|job| !job.gives_back())) {
            self.counters.outlived += 1;
            self.advance(id, Event::Exhausted);
            return Some(id);
        }
        let id = self.next_id();
        self.begin(id, "exhausted", Job::exhausted(id, self.now, exhausted), Next::Ask);
        Some(id)
    }

    /// Takes up a session that has more segments than its summary, unless there is no room, or a job about it is under way already.
    pub(super) fn stale(&mut self, stale: StaleSummary) -> Option<JobId> {
        let key = stale.session.key();
        let digested = Digested::new(&key);
        if self.room() == 0 || self.first_of_key(digested).is_some() {
            return None;
        }
        let id = self.next_id();
        self.begin(id, "stale", Job::stale(id, self.now, key.clone(), stale), Next::Stay);
        self.queue(id, digested);
        Some(id)
    }

    pub(super) fn next_id(&mut self) -> JobId {
        self.last_job += 1;
        JobId(self.last_job)
    }

    pub(super) fn begin(&mut self, id: JobId, on: &'static str, job: Job, next: Next) {
        let mut job = Box::new(job);
        job.key_digest = job.key().map_or(0, |key| Digested::new(key).digest);
        self.took(State::Over, on, job.state());
        self.counters.given_back += u64::from(job.gives_back());
        self.count_state(job.state(), usize::saturating_add);
        if job.reply().is_some() {
            self.messages.insert(job.stream_sequence(), id);
        }
        self.without_delivery += usize::from(job.reply().is_none());
        self.exhausted += usize::from(job.is_about_exhausted());
        self.keep_beginning(id, &job);
        self.jobs.insert(id, job);
        self.go_on(id, next);
    }
}
