//! Faults put in on purpose: how a store behaves under commands that no shell should send.

use std::sync::Arc;

use transcript_core::{Time, summary::Summary};

use super::{Answer, Command, Document, Durability, Fate, Store, StoreError};

impl Store {
    /// Inserts a summary; one that is there already makes it fail.
    pub(crate) fn insert(&mut self, now: Time, summary: Arc<Summary>, fate: Fate) -> Result<Answer, StoreError> {
        let there = self.summaries.contains_key(&summary.key);
        let fate = if there && fate == Fate::Done { Fate::FailsBefore(StoreError::DuplicateKey) } else { fate };
        self.perform(now, Command::Save { summary, durability: Durability::Journal }, fate)
    }

    /// Stores a summary whatever is there, and keeps its mark.
    pub(crate) fn replace(&mut self, now: Time, summary: Arc<Summary>, fate: Fate) -> Result<Answer, StoreError> {
        let key = summary.key.clone();
        let replaced = Arc::clone(&summary);
        let answer = self.perform(now, Command::Save { summary, durability: Durability::Journal }, fate)?;
        if let Some(document) = self.summaries.get_mut(&key) {
            *document = Document { summary: replaced, ..document.clone() };
        }
        Ok(answer)
    }
}
