//! `convert`: prints transcripts as this project's own lines.

use serde::Serialize;
use transcript_core::ids::Session;

use super::source::Transcript;

/// One JSON object a line: each segment, and the end of each call that announces what its segments do not say.
///
/// # Errors
///
/// A segment that does not serialise.
pub fn lines(transcript: &Transcript) -> Result<String, serde_json::Error> {
    let mut lines = String::new();
    for segment in &transcript.segments {
        lines.push_str(&serde_json::to_string(&segment.message)?);
        lines.push('\n');
    }
    for (told, segments) in transcript.sessions.iter().zip(transcript.by_session()) {
        // A call in which nobody spoke has no line that could name it.
        let announced = told.announced.or_else(|| segments.is_empty().then_some(0));
        if let Some(published_segments) = announced {
            lines.push_str(&serde_json::to_string(&End { session: &told.session, published_segments })?);
            lines.push('\n');
        }
    }
    Ok(lines)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct End<'a> {
    #[serde(flatten)]
    session: &'a Session,
    published_segments: u64,
}
