//! What the first version did: an insert under a new `_id` for every run of a job.

use std::sync::Arc;

use mongodb::bson::{self, Document};
use transcript_core::{Failure, FailureKind, Report, Stored, contract::SUMMARIES_COLLECTION, summary::Summary};

use super::{Asked, Worker};

impl Worker {
    pub(super) async fn insert(&self, batch: Vec<Asked<Arc<Summary>>>) {
        for asked in batch {
            let stored = Stored {
                segments: asked.what.segments,
                complete: asked.what.complete,
                notified: None,
                revision: 1,
                revised: None,
            };
            let report = self.insert_one(&asked.what).await.map_or_else(Report::Failed, |()| Report::Saved(stored));
            self.report(asked.id, report);
        }
    }

    async fn insert_one(&self, summary: &Summary) -> Result<(), Failure> {
        let rejected = |error: bson::error::Error| Failure { kind: FailureKind::Rejected, detail: error.to_string() };
        let mut document = bson::serialize_to_document(summary).map_err(rejected)?;
        // The driver gives it a new one.
        document.remove("_id");
        let summaries = self.database.collection::<Document>(SUMMARIES_COLLECTION);
        self.answer(summaries.insert_one(document)).await.map(|_| ())
    }
}
