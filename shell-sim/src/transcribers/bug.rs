//! Faults of a transcriber and of its shell, put in on purpose. Each must be found, or the simulator is worth nothing.
//!
//! All are planted from outside the machine: in its inputs, its outputs, or the statements of its store. So they need no
//! feature, and no production build has them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Bug {
    /// A session ends when one instance sees that nobody is connected to it.
    EndsAtItsOwnZero,
    /// The end announces how many segments were received, not how many are stored.
    CountsReceived,
    /// A save is reported before it is done.
    EndsBeforeTheLastSave,
    /// A session ends when the first of its connections closes.
    EndsOnTheFirstClose,
    /// Nobody looks for entries of dead instances.
    NoSuccessor,
    /// Writes are not checked against the instance's entry.
    UnfencedLease,
    /// An instance that joins counts indexes from 0, and replaces what is there.
    ReconnectOverwritesIndexZero,
    /// Interim segments are taken for final ones.
    StoresInterim,
    /// The batch is not in the session's document, so that a successor does not find it.
    BatchNotInTheDocument,
    /// A successor takes an entry without a mark that its lease is lost, so that the dead instance is not told.
    LeaseNotMarked,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::EndsAtItsOwnZero,
        Self::CountsReceived,
        Self::EndsBeforeTheLastSave,
        Self::EndsOnTheFirstClose,
        Self::NoSuccessor,
        Self::UnfencedLease,
        Self::ReconnectOverwritesIndexZero,
        Self::StoresInterim,
        Self::BatchNotInTheDocument,
        Self::LeaseNotMarked,
    ];
}

impl fmt::Display for Bug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
