//! The names of the data contract, and the messages that are not the core's input.

use serde::{Deserialize, Serialize};

use crate::ids::Session;

/// The stream that holds the transcripts' events.
pub const TRANSCRIPTION_STREAM: &str = "TRANSCRIPTION";
/// The subjects of [`TRANSCRIPTION_STREAM`].
pub const TRANSCRIPTION_SUBJECTS: [&str; 2] = ["transcription.>", "transcript.>"];
/// The stream that holds the recordings' events.
pub const RECORDING_STREAM: &str = "RECORDING";
/// The subjects of [`RECORDING_STREAM`].
pub const RECORDING_SUBJECTS: [&str; 1] = ["recording.>"];
/// The durable consumer that all processors share.
pub const CONSUMER: &str = "transcript-processor";
/// A finished segment of a running call.
pub const SEGMENT_SUBJECT: &str = "transcription.segment";
/// The end of a call: what the processor waits for.
pub const SESSION_ENDED_SUBJECT: &str = "transcription.session-ended";
/// The notification: a summary is stored.
pub const PROCESSED_SUBJECT: &str = "transcript.processed";
/// The collection of segments.
pub const SEGMENTS_COLLECTION: &str = "transcriptsegments";
/// The collection of summaries.
pub const SUMMARIES_COLLECTION: &str = "transcriptsummaries";

/// The notification: the payload of `transcript.processed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Notification {
    /// The session whose summary is stored.
    #[serde(flatten)]
    pub session: Session,
    /// How many segments the stored summary counts.
    pub segments: u64,
    /// Whether those are at least as many as were announced.
    pub complete: bool,
}
