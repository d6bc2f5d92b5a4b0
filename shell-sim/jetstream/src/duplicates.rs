//! Which message ids a stream remembers.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::stamp::Stamp;

/// The purge never runs again sooner than this.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

/// The ids of a stream, forgotten only when its one timer fires: a look-up asks whether an id is there, never how old it is.
#[derive(Debug, Clone, Default)]
pub(super) struct Duplicates {
    sequences: BTreeMap<Arc<str>, u64>,
    by_age: VecDeque<(Arc<str>, Stamp)>,
    due: Option<Stamp>,
}

impl Duplicates {
    pub(super) fn sequence_of(&self, id: &str) -> Option<u64> {
        self.sequences.get(id).copied()
    }

    pub(super) fn due(&self) -> Option<Stamp> {
        self.due
    }

    /// Remembers an id. The first one starts the timer with a whole window from `now`, which after a restart is later than
    /// the end of the window of a message stored before it.
    pub(super) fn remember(&mut self, id: Arc<str>, sequence: u64, stored_at: Stamp, now: Stamp, window: Duration) {
        self.sequences.insert(id.clone(), sequence);
        self.by_age.push_back((id, stored_at));
        self.due.get_or_insert_with(|| now.after(window));
    }

    /// The window was changed: the timer fires at once, if it runs.
    pub(super) fn window_changed(&mut self, now: Stamp) {
        if self.due.is_some() {
            self.due = Some(now);
        }
    }

    /// The timer fires.
    pub(super) fn purge(&mut self, now: Stamp, window: Duration, lag: Duration) {
        let mut pause = window;
        while let Some((id, stored_at)) = self.by_age.front() {
            let age = now.since(*stored_at);
            if age < window {
                pause = window - age;
                break;
            }
            self.sequences.remove(id);
            self.by_age.pop_front();
        }
        if self.sequences.is_empty() {
            *self = Self::default();
        } else {
            self.due = Some(now.after(pause.max(SHORTEST_PAUSE) + lag));
        }
    }
}
