//! What an operator sees of a running processor: over HTTP its health, its readiness, its metrics and a page; and the same in
//! a terminal with `status`.
//!
//! | module | what it has |
//! |---|---|
//! | [`servers`] | what the servers say, looked at every few seconds |
//! | [`finding`] | what is wrong, with cause, consequence and remedy |
//! | [`status`] | everything in one document: the page and `status` show it |
//! | [`metrics`] | the same for Prometheus |
//! | [`otlp`] | each job and its steps as spans for OpenTelemetry |
//! | [`recent`] | the last eight hours, minute by minute |
//! | [`http`] | the listener and its routes |
//! | `actions` | what an operator can do on the page |
//! | `session` | a call that is looked up |
//! | [`terminal`] | `status` as a text, and how it is fetched from a running processor |
//! | [`transcriber`] | health, readiness and metrics of a transcriber |
//!
//! No number is kept twice: the core counts, and is asked when somebody looks ([`Asker`]). Nothing here can hold up a call:
//! a question waits for its answer, never the loop for a question.

mod actions;
pub mod finding;
pub mod http;
pub mod metrics;
pub mod otlp;
pub mod recent;
pub mod servers;
mod session;
pub mod status;
pub mod terminal;
pub mod transcriber;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_nats::jetstream::Context;
use mongodb::Database;
use tokio::{sync::watch, task::JoinSet};

use self::{
    finding::{Finding, Observed, judge},
    otlp::SpanCounts,
    recent::Recent,
    servers::{Looker, Servers},
};
use crate::service::{
    clock::Clock,
    driver::{Asker, Snapshot},
    mongodb::BatchSizes,
    record::RecorderHealth,
    watchdog::LoopHealth,
};

/// How long a driver may take to answer. It answers between two inputs.
const ANSWER: Duration = Duration::from_secs(2);

/// The parts of a running processor that are looked at.
#[derive(Debug)]
pub struct Parts {
    /// The processor's name.
    pub name: Arc<str>,
    /// Its clock.
    pub clock: Clock,
    /// Asks its driver.
    pub asker: Asker,
    /// Whether its loop stands still.
    pub health: LoopHealth,
    /// The sizes of its batches.
    pub batches: BatchSizes,
    /// What became of its spans, where it has some.
    pub spans: Option<SpanCounts>,
    /// Its recorder, where there is one.
    pub recorder: Option<Arc<RecorderHealth>>,
    /// The stream, for what operators ask on the page.
    pub jetstream: Context,
    /// The store, to look sessions up.
    pub database: Database,
}

/// Looks at a running processor.
#[derive(Debug, Clone)]
pub struct Monitor {
    parts: Arc<Parts>,
    servers: watch::Receiver<Servers>,
    recent: Arc<Mutex<Recent>>,
}

/// What was seen at one moment.
#[derive(Debug, Clone)]
pub struct Observation {
    /// How the processor stands; `None` where its loop does not answer.
    pub processor: Option<Snapshot>,
    /// What the servers say.
    pub servers: Servers,
    /// What is wrong.
    pub findings: Vec<Finding>,
}

impl Monitor {
    /// Begins to look, until `tasks` is dropped.
    pub fn start(parts: Parts, looker: Looker, tasks: &mut JoinSet<()>) -> Self {
        let (seen, servers) = watch::channel(Servers::unknown());
        tasks.spawn(looker.watch(seen));
        let recent = Arc::new(Mutex::new(Recent::default()));
        let monitor = Self { parts: Arc::new(parts), servers, recent };
        tasks.spawn(monitor.clone().keep_recent());
        monitor
    }

    /// Looks now.
    pub async fn observe(&self) -> Observation {
        let processor = self.parts.asker.ask(ANSWER).await;
        let servers = self.servers.borrow().clone();
        let trace_fails = self.parts.recorder.as_ref().is_some_and(|recorder| recorder.fails());
        let findings = judge(Observed { servers: &servers, processor: processor.as_ref(), trace_fails });
        Observation { processor, servers, findings }
    }

    /// The parts that are looked at.
    #[must_use]
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// The last hours.
    #[must_use]
    pub fn recent(&self) -> Recent {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn keep_recent(self) {
        let mut minutes = tokio::time::interval(recent::MINUTE);
        loop {
            minutes.tick().await;
            if let Some(snapshot) = self.parts.asker.ask(ANSWER).await {
                let now = self.parts.clock.wall();
                self.recent.lock().unwrap_or_else(PoisonError::into_inner).note(now, &snapshot.counters);
            }
        }
    }
}

/// How long ago the oldest end was stored that is not settled, as far as anybody can tell; `None` where the stream cannot be
/// read and nothing is in hand.
#[must_use]
pub fn behind(servers: &Servers, processor: Option<&Snapshot>) -> Option<Duration> {
    let in_hand = processor.and_then(|snapshot| snapshot.oldest_end);
    let in_stream = servers.consumer.as_ref().ok().and_then(Option::as_ref).map(|consumer| consumer.behind);
    in_hand.into_iter().chain(in_stream).max()
}
