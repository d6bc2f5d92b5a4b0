//! How a running processor stands, for whoever asks: a driver answers between two inputs.

use std::{collections::BTreeMap, time::Duration};

use tokio::sync::{mpsc, oneshot};
use transcript_core::{Counters, EffectKind, Failure, JobView, Processor, State, Time};

/// How many questions may wait for an answer.
const QUESTIONS: usize = 8;
/// How many jobs are told one by one, those that were begun first.
const JOBS: usize = 100;

/// How a processor stood at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The time since its start.
    pub at: Duration,
    /// What has happened since then.
    pub counters: Counters,
    /// How many jobs stand where.
    pub states: BTreeMap<State, usize>,
    /// The jobs that were begun first, oldest first; 100 at the most.
    pub jobs: Vec<JobView>,
    /// How many bytes of text the summaries under way hold, and have to be ready for.
    pub bytes_in_flight: u64,
    /// How long ago the oldest end was stored that it has in hand and has not done its work for.
    pub oldest_end: Option<Duration>,
    /// What fails now.
    pub failing: Vec<Failing>,
    /// Whether it takes no calls until it is told to go on.
    pub is_quiet: bool,
    /// Whether it has been told to come to an end.
    pub is_draining: bool,
    /// Pull requests that JetStream ended for a reason of its own, or of whose end it said nothing.
    pub pulls_restarted: u64,
}

/// A kind of effect that fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failing {
    /// The kind.
    pub kind: EffectKind,
    /// For how long none has succeeded.
    pub lasts: Duration,
    /// The first failure.
    pub failure: Failure,
}

impl Snapshot {
    pub(super) fn of(processor: &Processor, now: Time, pulls_restarted: u64) -> Self {
        let failing = processor.failing().map(|(kind, since, failure)| Failing {
            kind,
            lasts: now.since(since),
            failure: failure.clone(),
        });
        Self {
            at: now.since(Time::ZERO),
            counters: processor.counters().clone(),
            states: processor.states(),
            jobs: processor.views(now, JOBS).collect(),
            bytes_in_flight: processor.bytes_in_flight(),
            oldest_end: processor.oldest_end(now),
            failing: failing.collect(),
            is_quiet: processor.is_quiet(),
            is_draining: processor.is_draining(),
            pulls_restarted,
        }
    }
}

/// A driver's end: the questions that come.
#[derive(Debug)]
pub struct Questions<S = Snapshot>(mpsc::Receiver<oneshot::Sender<S>>);

/// Asks a driver.
#[derive(Debug)]
pub struct Asker<S = Snapshot>(mpsc::Sender<oneshot::Sender<S>>);

impl<S> Clone for Asker<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// A way to ask a driver.
#[must_use]
pub fn questions<S>() -> (Asker<S>, Questions<S>) {
    let (sender, receiver) = mpsc::channel(QUESTIONS);
    (Asker(sender), Questions(receiver))
}

impl<S> Questions<S> {
    /// The next question; `None` where nobody can ask any more.
    pub(crate) async fn next(&mut self) -> Option<oneshot::Sender<S>> {
        self.0.recv().await
    }
}

impl<S> Asker<S> {
    /// How the driver stands; `None` where it does not answer `within` that time, or has ended.
    pub async fn ask(&self, within: Duration) -> Option<S> {
        let (sender, answer) = oneshot::channel();
        let asked = async {
            self.0.send(sender).await.ok()?;
            answer.await.ok()
        };
        tokio::time::timeout(within, asked).await.ok().flatten()
    }
}
