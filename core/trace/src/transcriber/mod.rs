//! Traces of transcribers.

mod record;
mod redact;
mod stats;

pub(crate) use self::stats::CountingTranscribers;
pub use self::{
    record::{TranscriberRecorder, is_recorded},
    stats::{Count, Span, TranscriberStats},
};
