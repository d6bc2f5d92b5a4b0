//! Whether a stored summary is the right one.

use mongodb::bson::{Bson, Document};
use serde_json::Value;
use thiserror::Error;
use transcript_core::{
    WallTime,
    summary::{Limits, Segment, Summarizer},
};

use crate::calls::Call;

/// The fields that say when it was made and announced, and nothing about the call.
const NOT_OF_THE_CALL: [&str; 4] = ["updatedAt", "notified", "revision", "revised"];

/// Compares the stored summary with what the call's segments, all of them, add up to, and looks for its mark.
///
/// # Errors
///
/// Some field is another, or there is no mark.
pub fn check(call: &Call, stored: &Document) -> Result<(), WrongSummary> {
    let mut summarizer = Summarizer::new(Limits::default());
    for segment in &call.segments {
        summarizer.push(&Segment {
            id: segment.id(),
            index: i64::try_from(segment.index).ok(),
            speaker: segment.speaker.clone(),
            text: segment.text.clone(),
            start_ms: segment.start_ms,
            end_ms: segment.end_ms,
            ..Segment::default()
        });
    }
    let published = u64::try_from(call.segments.len()).unwrap_or(u64::MAX);
    let expected = summarizer.finish(&call.session, published, WallTime::from_millis(0));
    let expected = of_the_call(serde_json::to_value(&expected).unwrap_or_default());
    let found = of_the_call(Bson::from(stored.clone()).into_relaxed_extjson());
    if found != expected || !stored.contains_key("notified") {
        return Err(WrongSummary { expected, found: Box::new(stored.clone()) });
    }
    Ok(())
}

/// A stored summary that is not what the call's segments add up to, or is not marked as announced.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("the summary should be {expected} with a mark, but is {found}")]
pub struct WrongSummary {
    /// What the segments add up to.
    pub expected: Value,
    /// What is stored.
    pub found: Box<Document>,
}

fn of_the_call(mut summary: Value) -> Value {
    if let Some(fields) = summary.as_object_mut() {
        fields.retain(|field, _| !NOT_OF_THE_CALL.contains(&field.as_str()));
    }
    summary
}
