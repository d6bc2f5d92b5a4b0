//! Marks: one update command for many summaries.

use mongodb::bson::{DateTime, RawArrayBuf, RawBson, RawDocumentBuf, rawdoc};
use transcript_core::{Notified, Report, ids::Key};

use super::{Asked, Worker, save::write_errors};

impl Worker {
    pub(super) async fn mark(&self, batch: Vec<Asked<(Key, Notified)>>) {
        let updates: RawArrayBuf = batch.iter().map(|asked| update(&asked.what.0, &asked.what.1)).collect();
        match self.update(updates).await.and_then(|reply| write_errors(&reply)) {
            Ok(mut errors) => {
                for (place, asked) in batch.iter().enumerate() {
                    self.report(
                        asked.id,
                        errors.remove(&place).map_or(Report::Marked, |error| Report::Failed(error.failure())),
                    );
                }
            }
            Err(failure) => self.fail(&batch, &failure),
        }
    }
}

fn update(key: &Key, notified: &Notified) -> RawDocumentBuf {
    let sequence = i64::try_from(notified.stream_sequence).map_or(RawBson::Null, RawBson::Int64);
    let mark = rawdoc! { "streamSequence": sequence, "at": DateTime::from_millis(notified.at.as_millis()) };
    rawdoc! { "q": { "_id": key.as_str(), "notified": { "$exists": false } }, "u": { "$set": { "notified": mark } } }
}
