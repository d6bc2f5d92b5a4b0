//! The fold.

use super::{Limits, Segment, Summary};
use crate::{ids::Session, time::WallTime};

/// Folds a call's segments, given in the order of the call, into its [`Summary`].
#[derive(Debug)]
pub struct Summarizer {
    limits: Limits,
    segments: u64,
}

impl Summarizer {
    /// A fold over no segment yet.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, segments: 0 }
    }

    /// Takes the next segment of the call.
    pub fn push(&mut self, _segment: &Segment) {
        self.segments += 1;
    }

    /// How many segments were taken.
    #[must_use]
    pub fn segments(&self) -> u64 {
        self.segments
    }

    /// The summary of the segments taken.
    #[must_use]
    pub fn finish(self, _session: &Session, _published_segments: u64, _updated_at: WallTime) -> Summary {
        unimplemented!("{:?}", self.limits)
    }
}
