//! Faults put in on purpose: how a store behaves under commands that no client should send.

use std::sync::Arc;

use transcript_client::mongodb::{Reply, WriteError, WriteErrors, error_codes};
use transcript_core::{Time, summary::Summary};

use super::{Answer, Command, Document, Durability, Fate, Store, StoreError};

impl Store {
    /// Inserts summaries; one that is there already fails.
    pub(crate) fn insert(&mut self, now: Time, summaries: &[Arc<Summary>], fate: Fate) -> Result<Answer, StoreError> {
        self.each(summaries, |store, summary| {
            let there = store.summaries.contains_key(&summary.key);
            let fate = if there && fate == Fate::Done { Fate::FailsBefore(StoreError::DuplicateKey) } else { fate };
            store.perform(now, save(summary), fate).map(|_| ())
        })
    }

    /// Stores summaries whatever is there, and keeps their marks.
    pub(crate) fn replace(&mut self, now: Time, summaries: &[Arc<Summary>], fate: Fate) -> Result<Answer, StoreError> {
        self.each(summaries, |store, summary| {
            store.perform(now, save(summary), fate)?;
            if let Some(document) = store.summaries.get_mut(&summary.key) {
                *document = Document { summary: Arc::clone(summary), ..document.clone() };
            }
            Ok(())
        })
    }

    fn each(
        &mut self,
        summaries: &[Arc<Summary>],
        mut one: impl FnMut(&mut Self, &Arc<Summary>) -> Result<(), StoreError>,
    ) -> Result<Answer, StoreError> {
        let mut errors = WriteErrors::default();
        for (place, summary) in summaries.iter().enumerate() {
            match one(self, summary) {
                Ok(()) => {}
                Err(StoreError::DuplicateKey) => {
                    errors.members.push(WriteError { place, code: error_codes::DUPLICATE_KEY, index: None });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Answer::Client(Reply::Written(errors)))
    }
}

fn save(summary: &Arc<Summary>) -> Command {
    Command::Save { summary: Arc::clone(summary), durability: Durability::Journal }
}
