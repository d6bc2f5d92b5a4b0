//! What waits for a worker.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::mpsc;
use transcript_core::ids::{EffectId, JobId};

/// Something asked for by the core.
#[derive(Debug, Clone)]
pub(super) struct Asked<T> {
    pub(super) id: EffectId,
    pub(super) what: T,
}

/// A queue in which each job has one place. A job that asks again, because it has waited for longer than it would, keeps the
/// place of its first request: only the last one is carried out, and in a queue that is longer than the jobs' retry timeout they
/// are served all the same.
pub(super) fn queue<T>() -> (Sender<T>, Receiver<T>) {
    let (order, ordered) = mpsc::unbounded_channel();
    let waiting = Waiting::default();
    (Sender { order, waiting: waiting.clone() }, Receiver { ordered, waiting })
}

/// The requests of the jobs in the queue.
#[derive(Debug)]
struct Waiting<T>(Arc<Mutex<BTreeMap<JobId, Asked<T>>>>);

impl<T> Waiting<T> {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<JobId, Asked<T>>> {
        // Nothing in here panics between two changes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Clone for Waiting<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Where requests are put.
#[derive(Debug)]
pub(super) struct Sender<T> {
    order: mpsc::UnboundedSender<JobId>,
    waiting: Waiting<T>,
}

/// What became of a request that was put into a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Put {
    /// It waits behind the others.
    Behind,
    /// It has taken the place of an earlier one of its job.
    InPlace,
}

impl<T> Sender<T> {
    pub(super) fn put(&self, asked: Asked<T>) -> Put {
        let job = asked.id.job;
        if self.waiting.lock().insert(job, asked).is_some() {
            return Put::InPlace;
        }
        // A worker that is gone reports nothing: the core asks again and gives the job back in the end.
        self.order.send(job).ok();
        Put::Behind
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { order: self.order.clone(), waiting: self.waiting.clone() }
    }
}

/// Where requests are taken from.
#[derive(Debug)]
pub(super) struct Receiver<T> {
    ordered: mpsc::UnboundedReceiver<JobId>,
    waiting: Waiting<T>,
}

impl<T> Receiver<T> {
    /// Waits for requests and takes those that are there, at most `most`; none once every sender is gone.
    pub(super) async fn take(&mut self, most: usize) -> Vec<Asked<T>> {
        let mut jobs = vec![];
        self.ordered.recv_many(&mut jobs, most).await;
        let mut waiting = self.waiting.lock();
        jobs.iter().filter_map(|job| waiting.remove(job)).collect()
    }

    /// Waits for a request; `None` once every sender is gone. Where this is dropped no request is lost.
    pub(super) async fn next(&mut self) -> Option<Asked<T>> {
        let job = self.ordered.recv().await?;
        self.waiting.lock().remove(&job)
    }
}

/// Runs `perform` on everything that waits, at most `most` at a time, until the senders are gone. While one command is under
/// way the next batch gathers, so nothing waits for a timer.
pub(super) async fn batches<T>(mut waiting: Receiver<T>, most: usize, mut perform: impl AsyncFnMut(Vec<Asked<T>>)) {
    loop {
        let batch = waiting.take(most).await;
        if batch.is_empty() {
            return;
        }
        perform(batch).await;
    }
}

#[cfg(test)]
mod tests {
    use transcript_core::{Delivery, Input, Output, Payload, Processor, Settings, Time, WallTime};

    use super::*;

    /// Ids as the core gives them; nobody else can make one.
    fn jobs(count: u64) -> Vec<JobId> {
        let settings = Settings { quiet_period: std::time::Duration::ZERO, ..Settings::default() };
        let mut core = Processor::new(settings).expect("settings can work");
        let mut jobs = vec![];
        for sequence in 1..=count {
            let payload = format!(r#"{{"conversationId":"c","sessionId":"{sequence}","publishedSegments":0}}"#);
            let delivery = Delivery {
                stream_sequence: sequence,
                attempt: 1,
                stored_at: WallTime::from_millis(0),
                received_at: WallTime::from_millis(0),
                reply: "reply".into(),
                redrive_of: None,
                payload: Payload(payload.into_bytes()),
            };
            core.handle(Time::ZERO, Input::Delivered(delivery));
            while let Output::Perform { id, .. } = core.poll_output() {
                jobs.push(id.job);
            }
        }
        jobs
    }

    fn asked(job: JobId, number: u32) -> Asked<u32> {
        Asked { id: EffectId { job, number }, what: number }
    }

    #[tokio::test]
    async fn a_job_that_asks_again_keeps_its_place_and_only_its_last_request_is_carried_out() {
        let jobs = jobs(3);
        let (sender, mut receiver) = queue();
        assert_eq!(jobs.iter().map(|job| sender.put(asked(*job, 1))).collect::<Vec<_>>(), [Put::Behind; 3]);
        assert_eq!(sender.put(asked(jobs[0], 2)), Put::InPlace);
        assert_eq!(sender.put(asked(jobs[1], 2)), Put::InPlace);
        let taken = receiver.take(2).await;
        assert_eq!(
            taken.iter().map(|asked| asked.id).collect::<Vec<_>>(),
            [EffectId { job: jobs[0], number: 2 }, EffectId { job: jobs[1], number: 2 },]
        );
        assert_eq!(taken.iter().map(|asked| asked.what).collect::<Vec<_>>(), [2, 2], "with what was asked last");
        assert_eq!(sender.put(asked(jobs[0], 3)), Put::Behind, "what was taken has no place any more");
        drop(sender);
        assert_eq!(receiver.next().await.map(|asked| asked.id), Some(EffectId { job: jobs[2], number: 1 }));
        assert_eq!(receiver.next().await.map(|asked| asked.id), Some(EffectId { job: jobs[0], number: 3 }));
        assert!(receiver.next().await.is_none() && receiver.take(5).await.is_empty(), "every sender is gone");
    }

    #[tokio::test]
    async fn what_gathers_during_a_command_is_the_next_batch() {
        let (sender, receiver) = queue();
        let mut jobs = jobs(6).into_iter();
        sender.put(asked(jobs.next().expect("six"), 1));
        let mut more = Some(sender);
        let mut seen = vec![];
        batches(receiver, 3, async |batch| {
            if let Some(sender) = more.take() {
                for job in jobs.by_ref() {
                    sender.put(asked(job, 1));
                }
            }
            seen.push(batch.len());
        })
        .await;
        assert_eq!(seen, [1, 3, 2]);
    }
}
