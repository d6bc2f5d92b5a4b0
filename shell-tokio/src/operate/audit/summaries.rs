//! Look-ups in the store.

use std::{collections::BTreeMap, time::Duration};

use futures::TryStreamExt;
use mongodb::{
    Database,
    bson::{Bson, RawDocument, RawDocumentBuf, doc},
};
use tokio::sync::mpsc;
use transcript_core::{Failure, Stored, event::SessionEnded};

use crate::store::{
    Worker,
    save::{number, stored},
    stale::session,
};

/// How many summaries are asked for in one command.
pub const BATCH: usize = 1000;
/// How long an answer is waited for. A command that looks through all summaries takes its time.
const ANSWER_WITHIN: Duration = Duration::from_secs(300);

/// The summaries and the segments, for reading.
#[derive(Debug, Clone)]
pub struct Summaries {
    worker: Worker,
}

/// What is stored of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The call, as its summary tells its end; `None` where the document names none.
    pub ended: Option<SessionEnded>,
    /// The summary.
    pub stored: Stored,
}

impl Summaries {
    /// Those of `database`.
    #[must_use]
    pub fn of(database: &Database) -> Self {
        // What a worker reports, it reports of effects; there are none here.
        let (reports, _) = mpsc::unbounded_channel();
        Self { worker: Worker::new(database, reports, ANSWER_WITHIN) }
    }

    /// The summaries of these keys, by key.
    ///
    /// # Errors
    ///
    /// MongoDB does not answer.
    pub async fn find(&self, keys: impl Iterator<Item = &str>) -> Result<BTreeMap<String, Found>, Failure> {
        let keys: Vec<Bson> = keys.map(Bson::from).collect();
        let fields = doc! {
            "conversationId": 1, "sessionId": 1, "segments": 1, "publishedSegments": 1, "complete": 1, "notified": 1,
            "revision": 1, "revised.revision": 1,
        };
        let found: Vec<RawDocumentBuf> = self
            .worker
            .answer(async {
                let summaries = self.worker.summaries();
                summaries.find(doc! { "_id": { "$in": keys } }).projection(fields).await?.try_collect().await
            })
            .await?;
        Ok(found
            .iter()
            .filter_map(|document| Some((document.get_str("_id").ok()?.to_owned(), read(document))))
            .collect())
    }

    /// How many segments each session has; those of none are left out.
    ///
    /// # Errors
    ///
    /// MongoDB does not answer.
    pub async fn counts(&self, sessions: impl Iterator<Item = &str>) -> Result<BTreeMap<String, u64>, Failure> {
        self.worker.counts(sessions).await
    }

    /// Hands the keys of all summaries without a mark to `each`; documents that are no summaries of ours are left out.
    ///
    /// # Errors
    ///
    /// MongoDB does not answer.
    pub async fn unmarked(&self, mut each: impl FnMut(&str)) -> Result<(), Failure> {
        let find = async {
            let summaries = self.worker.summaries();
            let fields = doc! { "conversationId": 1, "sessionId": 1 };
            summaries.find(doc! { "notified": { "$exists": false } }).projection(fields).await
        };
        let mut cursor = self.worker.answer(find).await?;
        while let Some(document) = self.worker.answer(cursor.try_next()).await? {
            if let Some(session) = session(&document) {
                each(session.key().as_str());
            }
        }
        Ok(())
    }
}

fn read(document: &RawDocument) -> Found {
    let published_segments = number(document.get("publishedSegments").ok().flatten());
    Found {
        ended: session(document).map(|session| SessionEnded { session, published_segments }),
        stored: stored(document),
    }
}
