//! What a transcript consists of.

/// One thing that a file says.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// Somebody said something.
    Segment(Segment),
    /// The end of a call, with a number of segments.
    Announcement(Announcement),
    /// A place was left out; only with [`Faults::LeaveOut`](crate::Faults::LeaveOut).
    LeftOut(crate::Broken),
}

/// What one speaker said without a break.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The call. Only this project's own lines name it.
    pub call: Option<Call>,
    /// The place in the call, counted from 0.
    pub index: u64,
    /// Who speaks. A label that is a number in the file is that number written out.
    pub speaker: Option<String>,
    /// What was said. The lines of a cue are separated by line feeds.
    pub text: String,
    /// Start, in milliseconds since the call's start.
    pub start_ms: Option<i64>,
    /// End, in milliseconds since the call's start.
    pub end_ms: Option<i64>,
    /// The line of the file at which it begins, counted from 1.
    pub line: u64,
}

/// What the end of a call announces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// The call.
    pub call: Call,
    /// `publishedSegments`.
    pub segments: u64,
    /// The line of the file, counted from 1.
    pub line: u64,
}

/// The ids of a call, as the file has them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    /// `conversationId`.
    pub conversation_id: String,
    /// `sessionId`.
    pub session_id: String,
}
