//! The ids by which the core and its shell name jobs and effects to each other, and the contract's ids of calls.

use std::fmt;

use serde::{Deserialize, Serialize};
pub use transcript_contract::ids::{IdError, Key, KeyError, MAX_ID_BYTES, Session};

/// Names a job to its shell; counted up from 1, never used again by the same processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub(crate) u64);

/// Ties the report of an effect to the request for it; never used again by the same processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EffectId {
    /// The job that asked.
    pub job: JobId,
    /// Which of the job's effects, from 1.
    pub number: u32,
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for EffectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.job, self.number)
    }
}
