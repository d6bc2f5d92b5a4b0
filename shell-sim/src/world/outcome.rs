//! What a run came to.

use super::{Points, Violation};

/// What a run came to.
#[derive(Debug)]
pub struct Outcome {
    /// The promise that was broken, if one was.
    pub violation: Option<Violation>,
    /// One line for each thing that happened, if it was recorded.
    pub trace: Option<String>,
    /// Numbers.
    pub stats: Stats,
}

/// Numbers of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// How long the world went on, in microseconds.
    pub virtual_us: u64,
    /// How often a task ran.
    pub steps: u64,
    /// Hand-overs of ends.
    pub deliveries: u64,
    /// Summaries stored.
    pub summaries: u64,
    /// Notifications in the stream.
    pub notifications: u64,
    /// Revisions of summaries in the stream.
    pub revisions: u64,
    /// Ends whose attempts were all burnt by faults.
    pub exhausted: u64,
    /// Those of them that nobody heard of, so that only an audit finds them.
    pub missing: u64,
    /// Dead letters in the stream.
    pub dead_letters: u64,
    /// When the last end was acknowledged or terminated, in microseconds.
    pub settled_us: u64,
    /// When each fault of the plan happened, in microseconds; those behind the last one that did are not there.
    pub faults_us: Vec<Option<u64>>,
    /// The points that were passed.
    pub points: Points,
    /// Those that had been passed when the first fault happened.
    pub at_first_fault: Option<Points>,
}

impl Outcome {
    /// Tells traces apart: the 64-bit FNV-1a hash of the trace, if it was recorded.
    #[must_use]
    pub fn digest(&self) -> Option<String> {
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = self.trace.as_ref()?.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
        Some(format!("{hash:016x}"))
    }
}
