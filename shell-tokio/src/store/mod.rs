//! The effects on MongoDB. Each kind of effect has a worker that makes one command of all that wait.

mod count;
mod failures;
mod load;
mod mark;
mod page_gate;
mod queue;
pub(crate) mod save;
mod segment;
pub mod stale;
pub mod statement;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mongodb::{
    Collection, Database,
    bson::{Document, RawArrayBuf, RawDocumentBuf, rawdoc},
};
use tokio::sync::mpsc;
use transcript_core::{
    Cursor, Failure, FailureKind, Input, Notified, Report,
    contract::{Announcement, SEGMENTS_COLLECTION, SUMMARIES_COLLECTION},
    ids::{EffectId, Key},
    summary::Summary,
};

use self::{
    page_gate::PageGate,
    queue::{Asked, Put, Sender, batches, queue},
};
use crate::batch::pipelined;

/// The most effects of one command. Larger ones gain little and make each effect wait longer.
pub const BATCH: usize = 500;
/// So many documents come with the first answer of a query, where a server would send 101 and have the rest asked for; it
/// ends an answer at 16 MiB all the same.
const ONE_BATCH: u32 = 10_000;
/// The most pages that are loaded at the same time; each can be some MiB.
const PAGES: usize = 8;

/// Hands effects to the workers. Each queue is as long as jobs wait for it, which the core bounds.
#[derive(Debug, Clone)]
pub struct Store {
    counts: Sender<Arc<str>>,
    loads: Sender<Load>,
    saves: Sender<Arc<Summary>>,
    checks: Sender<Key>,
    marks: Sender<Mark>,
    page_gate: Arc<PageGate>,
}

/// A mark to put on a summary.
#[derive(Debug, Clone)]
pub struct Mark {
    /// The summary's `_id`.
    pub key: Key,
    /// What was announced.
    pub announcement: Announcement,
    /// How many segments were announced.
    pub segments: u64,
    /// Where, and when.
    pub notified: Notified,
}

/// A page to load.
#[derive(Debug, Clone)]
pub struct Load {
    /// The session.
    pub session_id: Arc<str>,
    /// Where to go on.
    pub after: Option<Cursor>,
    /// The most segments.
    pub limit: u32,
    /// The most bytes of documents.
    pub max_bytes: u64,
    /// How many segments the last count found.
    pub counted: u64,
}

/// What every worker needs.
#[derive(Debug, Clone)]
pub(crate) struct Worker {
    database: Database,
    reports: mpsc::UnboundedSender<Input>,
    /// How long an answer is waited for. The driver itself would wait for ever on a server that is frozen.
    answer_timeout: Duration,
    /// Whether the last command failed, for the log.
    failing: Arc<AtomicBool>,
}

impl Store {
    /// Starts the workers; they end when every clone of the store is gone. What became of the effects is sent to `reports`.
    #[must_use]
    pub fn start(database: &Database, reports: &mpsc::UnboundedSender<Input>, answer_timeout: Duration) -> Self {
        let worker = Worker::new(database, reports.clone(), answer_timeout);
        let page_gate = Arc::new(PageGate::default());
        let (counts, waiting_counts) = queue();
        let (loads, waiting_loads) = queue();
        let (pages, mut waiting_pages) = queue();
        let (saves, waiting_saves) = queue();
        let (checks, waiting_checks) = queue();
        let (marks, waiting_marks) = queue();
        let (counter, after_counts) = (worker.clone(), Arc::clone(&page_gate));
        tokio::spawn(batches(waiting_counts, BATCH, async move |batch| {
            let requests = batch.len();
            counter.count(batch).await;
            after_counts.done(requests, 1);
        }));
        let (loader, after_loads) = (worker.clone(), Arc::clone(&page_gate));
        tokio::spawn(batches(waiting_loads, BATCH, async move |batch| {
            let requests = batch.len();
            let commands = loader.load(batch, &pages).await;
            after_loads.done(requests, commands);
        }));
        let (pager, before_pages) = (worker.clone(), Arc::clone(&page_gate));
        tokio::spawn(pipelined(
            async move || waiting_pages.next().await,
            PAGES,
            move |asked| {
                let (pager, page_gate) = (pager.clone(), Arc::clone(&before_pages));
                async move {
                    page_gate.page().await;
                    pager.load_page(asked).await;
                }
            },
        ));
        let (saver, after_saves) = (worker.clone(), Arc::clone(&page_gate));
        tokio::spawn(batches(waiting_saves, BATCH, async move |batch| {
            let requests = batch.len();
            saver.save(batch).await;
            after_saves.done(requests, 1);
        }));
        let (checker, after_checks) = (worker.clone(), Arc::clone(&page_gate));
        tokio::spawn(batches(waiting_checks, BATCH, async move |batch| {
            let requests = batch.len();
            checker.check(batch).await;
            after_checks.done(requests, 1);
        }));
        let after_marks = Arc::clone(&page_gate);
        tokio::spawn(batches(waiting_marks, BATCH, async move |batch| {
            let requests = batch.len();
            worker.mark(batch).await;
            after_marks.done(requests, 1);
        }));
        Self { counts, loads, saves, checks, marks, page_gate }
    }

    /// Counts the session's segments.
    pub fn count(&self, id: EffectId, session_id: Arc<str>) {
        self.ask(&self.counts, id, session_id);
    }

    /// Loads a page.
    pub fn load(&self, id: EffectId, load: Load) {
        self.ask(&self.loads, id, load);
    }

    /// Stores a summary unless one of more segments is stored.
    pub fn save(&self, id: EffectId, summary: Arc<Summary>) {
        self.ask(&self.saves, id, summary);
    }

    /// Reads what is stored of a summary.
    pub fn check(&self, id: EffectId, key: Key) {
        self.ask(&self.checks, id, key);
    }

    /// Marks a summary as announced.
    pub fn mark(&self, id: EffectId, mark: Mark) {
        self.ask(&self.marks, id, mark);
    }

    fn ask<T>(&self, queue: &Sender<T>, id: EffectId, what: T) {
        // Before it can be carried out.
        self.page_gate.waits();
        if queue.put(Asked { id, what }) == Put::InPlace {
            self.page_gate.done(1, 0);
        }
    }
}

impl Worker {
    pub(crate) fn new(database: &Database, reports: mpsc::UnboundedSender<Input>, answer_timeout: Duration) -> Self {
        Self { database: database.clone(), reports, answer_timeout, failing: Arc::default() }
    }

    fn segments(&self) -> Collection<RawDocumentBuf> {
        self.database.collection(SEGMENTS_COLLECTION)
    }

    pub(crate) fn summaries(&self) -> Collection<RawDocumentBuf> {
        self.database.collection(SUMMARIES_COLLECTION)
    }

    /// Waits for an answer of the driver, but not for ever.
    pub(crate) async fn answer<T>(
        &self,
        answer: impl IntoFuture<Output = mongodb::error::Result<T>>,
    ) -> Result<T, Failure> {
        let answer = match tokio::time::timeout(self.answer_timeout, answer.into_future()).await {
            Ok(answer) => answer.map_err(|error| failures::of(&error)),
            Err(_) => Err(Failure {
                kind: FailureKind::TimedOut,
                detail: format!("MongoDB did not answer within {:?}", self.answer_timeout),
            }),
        };
        if self.failing.swap(answer.is_err(), Ordering::Relaxed) != answer.is_err() {
            match &answer {
                Ok(_) => tracing::info!("MongoDB can be used again"),
                Err(failure) => tracing::warn!("MongoDB cannot be used: {failure}"),
            }
        }
        answer
    }

    /// Runs updates of summaries, each with its own outcome. They are acknowledged once they are on the journals of a
    /// majority: an unjournaled write can be lost when a server is killed.
    async fn update(&self, updates: RawArrayBuf) -> Result<Document, Failure> {
        let command = rawdoc! {
            "update": SUMMARIES_COLLECTION,
            "updates": updates,
            "ordered": false,
            "writeConcern": { "w": "majority", "j": true, "wtimeout": 10_000 },
        };
        self.answer(self.database.run_raw_command(command)).await
    }

    fn report(&self, effect: EffectId, report: Report) {
        // The driver loop is gone once the processor has drained; nobody needs the report then.
        drop(self.reports.send(Input::Reported { effect, report }));
    }

    fn fail<'a, T: 'a>(&self, batch: impl IntoIterator<Item = &'a Asked<T>>, failure: &Failure) {
        for asked in batch {
            self.report(asked.id, Report::Failed(failure.clone()));
        }
    }
}
