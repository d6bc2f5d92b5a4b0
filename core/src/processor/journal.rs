//! The journal, where one is kept.

use super::Processor;
use crate::{
    ids::JobId,
    job::{Job, State},
    journal::{JobMoved, JournalEntry, JournalEvent},
    output::Done,
};

impl Processor {
    /// From now on keeps a journal of what jobs do. Whoever asks for it has to [take](Self::take_journal) it after each
    /// input: it grows until then.
    pub fn keep_journal(&mut self) {
        self.journal.get_or_insert_default();
    }

    /// What jobs did since this was called last, in its order; nothing where no journal is kept.
    pub fn take_journal(&mut self) -> impl Iterator<Item = JournalEntry> {
        self.journal.iter_mut().flat_map(|journal| journal.drain(..))
    }

    pub(super) fn keep_beginning(&mut self, job: JobId, record: &Job) {
        if let Some(journal) = &mut self.journal {
            let event = JournalEvent::Began(Box::new(record.began()));
            journal.push(JournalEntry { job, at: self.now, event });
        }
    }

    /// What a job did, and where it stands if it has moved.
    pub(super) fn keep(&mut self, job: JobId, did: Option<JournalEvent>, has_moved: bool, done: Option<&Done>) {
        let Some(journal) = &mut self.journal else { return };
        let at = self.now;
        let moved = self.jobs.get(&job).filter(|_| has_moved).map(|record| record.moved(done.cloned()));
        let events = did.into_iter().chain(moved.map(JournalEvent::Moved));
        journal.extend(events.map(|event| JournalEntry { job, at, event }));
    }

    pub(super) fn keep_abandoned(&mut self) {
        let Some(journal) = &mut self.journal else { return };
        let at = self.now;
        let moved = JobMoved { to: State::Over, announcement: None, acknowledgement: None, done: None };
        let over = |&job: &JobId| JournalEntry { job, at, event: JournalEvent::Moved(moved.clone()) };
        journal.extend(self.jobs.keys().map(over));
    }
}
