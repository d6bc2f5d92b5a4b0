//! Counts: one aggregation for many sessions.

use std::{collections::BTreeMap, sync::Arc};

use futures::TryStreamExt;
use mongodb::bson::{Bson, RawDocumentBuf, doc};
use transcript_core::{Failure, Report};

use super::{Asked, ONE_BATCH, Worker};

impl Worker {
    pub(super) async fn count(&self, batch: Vec<Asked<Arc<str>>>) {
        match self.counts(batch.iter().map(|asked| &*asked.what)).await {
            Ok(counts) => {
                for asked in &batch {
                    let segments = counts.get(&*asked.what).copied().unwrap_or(0);
                    self.report(asked.id, Report::Counted { segments });
                }
            }
            Err(failure) => self.fail(&batch, &failure),
        }
    }

    /// How many segments each session has; those of none are left out.
    pub(crate) async fn counts(
        &self,
        sessions: impl IntoIterator<Item = &str>,
    ) -> Result<BTreeMap<String, u64>, Failure> {
        let sessions: Vec<Bson> = sessions.into_iter().map(Bson::from).collect();
        // Answered from the index {sessionId, index} alone.
        let pipeline = [
            doc! { "$match": { "sessionId": { "$in": sessions } } },
            doc! { "$group": { "_id": "$sessionId", "segments": { "$sum": 1 } } },
        ];
        let groups: Vec<RawDocumentBuf> = self
            .answer(async {
                self.segments().aggregate(pipeline).batch_size(ONE_BATCH).with_type().await?.try_collect().await
            })
            .await?;
        Ok(groups.iter().filter_map(|group| Some((group.get_str("_id").ok()?.to_owned(), number(group)?))).collect())
    }
}

fn number(group: &RawDocumentBuf) -> Option<u64> {
    let segments = group.get("segments").ok()??;
    segments.as_i32().map(i64::from).or_else(|| segments.as_i64()).and_then(|n| u64::try_from(n).ok())
}
