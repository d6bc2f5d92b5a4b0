//! Marks: one update command for many summaries.

use mongodb::bson::RawArrayBuf;
use transcript_core::Report;

use super::{Asked, Mark, Worker, save::write_errors, statement};

impl Worker {
    pub(super) async fn mark(&self, batch: Vec<Asked<Mark>>) {
        let updates: RawArrayBuf = batch.iter().map(|asked| statement::mark(&asked.what)).collect();
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
