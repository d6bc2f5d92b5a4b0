//! The texts of all summaries under way, and which job may load its next page.

use std::collections::BTreeSet;

use super::{Processor, schedule};
use crate::{ids::JobId, job::Weight, output::Output, settings::Settings};

/// The texts of all summaries under way.
#[derive(Debug, Default)]
pub(super) struct Bytes {
    /// The bytes that the jobs hold, and have to be ready for.
    pub(super) held: u64,
    /// How many jobs wait for a page.
    awaiting: usize,
    /// Jobs that would ask for one if there were room, oldest first.
    pub(super) waiting: BTreeSet<JobId>,
}

impl Bytes {
    /// Whether a page of so many bytes may be asked for; whatever else is asked for may. When nobody waits for a page there
    /// is no other way on.
    pub(super) fn have_room(&self, page: Option<u64>, settings: &Settings) -> bool {
        page.is_none_or(|page| self.held.saturating_add(page) <= settings.max_bytes_in_flight) || self.awaiting == 0
    }

    pub(super) fn change(&mut self, from: Weight, to: Weight) {
        self.held = self.held.saturating_add(to.bytes).saturating_sub(from.bytes);
        self.awaiting = (self.awaiting + usize::from(to.awaits_page)).saturating_sub(usize::from(from.awaits_page));
    }
}

impl Processor {
    pub(super) fn admit(&mut self) {
        while let Some(id) = self.bytes.waiting.first().copied() {
            let page = self.jobs.get(&id).and_then(|job| job.next_page_bytes(&self.settings));
            if !self.bytes.have_room(page, &self.settings) {
                return;
            }
            self.bytes.waiting.remove(&id);
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            if let Some((effect, what)) = job.ask(self.now, &self.settings) {
                self.outputs.push_back(Output::Perform { id: effect, effect: what });
            }
            let weight = job.weight(&self.settings);
            self.bytes.change(std::mem::replace(&mut job.weighed, weight), weight);
            schedule(&mut self.due, id, job);
        }
    }
}
