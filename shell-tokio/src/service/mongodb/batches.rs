//! How large the batches are: how many calls one command is about.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use transcript_client::mongodb::{Command, CommandKind};

/// The sizes of the batches since the start, by kind of command. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct BatchSizes(Arc<Mutex<BTreeMap<CommandKind, Distribution>>>);

/// How many batches were how large.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Distribution {
    /// How many batches there are up to each of [`BatchSizes::BOUNDS`] and above the one before it; the last number is of
    /// those above all.
    pub buckets: [u64; BatchSizes::BOUNDS.len() + 1],
    /// The members of all batches.
    pub sum: u64,
}

impl BatchSizes {
    /// The upper bounds of the buckets but the last one, which has none.
    pub const BOUNDS: [u64; 10] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];

    /// Counts a command that is about to be run.
    pub(super) fn count(&self, command: &Command) {
        let members = match command {
            Command::Count { sessions } => sessions.len(),
            Command::LoadSmall { calls, .. } => calls.len(),
            Command::Tally { .. } | Command::Page { .. } => 1,
            Command::Save { summaries, .. } => summaries.len(),
            Command::ReadBack { keys } => keys.len(),
            Command::Mark { marks } => marks.len(),
        };
        let members = u64::try_from(members).unwrap_or(u64::MAX);
        let mut sizes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let distribution = sizes.entry(command.kind()).or_default();
        if let Some(bucket) = distribution.buckets.get_mut(Self::BOUNDS.partition_point(|bound| *bound < members)) {
            *bucket += 1;
        }
        distribution.sum = distribution.sum.saturating_add(members);
    }

    /// What was counted.
    #[must_use]
    pub fn read(&self) -> BTreeMap<CommandKind, Distribution> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
