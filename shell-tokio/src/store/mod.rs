//! The effects on MongoDB. Each kind of effect has a worker that makes one command of all that wait.

mod count;
mod failures;
#[cfg(feature = "first-version")]
mod first_version;
mod load;
mod mark;
pub mod outgrown;
#[cfg_attr(feature = "first-version", expect(dead_code, reason = "the first version had no conditional upsert"))]
pub(crate) mod save;
mod segment;
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

use crate::batch::{batches, pipelined};

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
    counts: mpsc::UnboundedSender<Asked<Arc<str>>>,
    loads: mpsc::UnboundedSender<Asked<Load>>,
    saves: mpsc::UnboundedSender<Asked<Arc<Summary>>>,
    marks: mpsc::UnboundedSender<Asked<Mark>>,
}

/// A mark to put on a summary.
#[derive(Debug, Clone)]
pub struct Mark {
    /// The summary's `_id`.
    pub key: Key,
    /// What was announced.
    pub announcement: Announcement,
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
    /// How many segments the last count found.
    pub counted: u64,
}

/// Something asked for by the core.
#[derive(Debug, Clone)]
struct Asked<T> {
    id: EffectId,
    what: T,
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
        let (counts, waiting_counts) = mpsc::unbounded_channel();
        let (loads, waiting_loads) = mpsc::unbounded_channel();
        let (pages, waiting_pages) = mpsc::unbounded_channel();
        let (saves, waiting_saves) = mpsc::unbounded_channel();
        let (marks, waiting_marks) = mpsc::unbounded_channel();
        let counter = worker.clone();
        tokio::spawn(batches(waiting_counts, BATCH, async move |batch| counter.count(batch).await));
        let loader = worker.clone();
        tokio::spawn(batches(waiting_loads, BATCH, async move |batch| loader.load(batch, &pages).await));
        let pager = worker.clone();
        tokio::spawn(pipelined(waiting_pages, PAGES, move |asked| {
            let pager = pager.clone();
            async move { pager.load_page(asked).await }
        }));
        let saver = worker.clone();
        tokio::spawn(batches(waiting_saves, BATCH, async move |batch| {
            #[cfg(not(feature = "first-version"))]
            saver.save(batch).await;
            #[cfg(feature = "first-version")]
            saver.insert(batch).await;
        }));
        tokio::spawn(batches(waiting_marks, BATCH, async move |batch| worker.mark(batch).await));
        Self { counts, loads, saves, marks }
    }

    /// Counts the session's segments.
    pub fn count(&self, id: EffectId, session_id: Arc<str>) {
        send(&self.counts, id, session_id);
    }

    /// Loads a page.
    pub fn load(&self, id: EffectId, load: Load) {
        send(&self.loads, id, load);
    }

    /// Stores a summary unless one of more segments is stored.
    pub fn save(&self, id: EffectId, summary: Arc<Summary>) {
        send(&self.saves, id, summary);
    }

    /// Marks a summary as announced.
    pub fn mark(&self, id: EffectId, mark: Mark) {
        send(&self.marks, id, mark);
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

fn send<T>(queue: &mpsc::UnboundedSender<Asked<T>>, id: EffectId, what: T) {
    // A worker that is gone reports nothing: the core asks again and gives the job back in the end.
    drop(queue.send(Asked { id, what }));
}
