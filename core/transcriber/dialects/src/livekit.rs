//! LiveKit's text streams of the topic `lk.transcription`, which an agent forwards, one object for each stream it has read.
//!
//! | field | what |
//! |---|---|
//! | `text` | the text of the whole stream |
//! | `topic` | where it is given and is not `lk.transcription`, the frame is ignored |
//! | `participantIdentity` (`participant_identity` in Python) | the speaker |
//! | `attributes."lk.transcription_final"` | whether the text is final: a boolean, or `"true"` and `"false"`, as text streams carry it; required, because a stream without it says nothing about what will replace it |
//! | `attributes."lk.segment_id"` | the id |
//!
//! Such a stream has no time of speech. Source: LiveKit's SDK reference, `TranscriptionAttributes` and `TextStreamInfo`.

use serde_json::{Map, Value};

use crate::{Frame, Problem, Utterance, field};

const FINAL: &str = "lk.transcription_final";

pub(crate) fn read(frame: &Map<String, Value>) -> Result<Frame, Problem> {
    if field::text(frame, "topic")?.is_some_and(|topic| topic != "lk.transcription") {
        return Ok(Frame::Ignored);
    }
    let attributes = field::required_object(frame, "attributes")?;
    if !is_final(attributes)? {
        return Ok(Frame::Interim);
    }
    let speaker = field::speaker(frame, "participantIdentity")?;
    Ok(Frame::said(Utterance {
        id: field::id(attributes, "lk.segment_id")?,
        speaker: speaker.map_or_else(|| field::speaker(frame, "participant_identity"), |name| Ok(Some(name)))?,
        text: field::required_text(frame, "text")?.to_owned(),
        start_ms: None,
        end_ms: None,
    }))
}

fn is_final(attributes: &Map<String, Value>) -> Result<bool, Problem> {
    let wrong = Problem::Kind { field: FINAL, expected: "true or false" };
    match field::value(attributes, FINAL).ok_or(Problem::Missing(FINAL))? {
        Value::Bool(is_final) => Ok(*is_final),
        Value::String(text) if text.eq_ignore_ascii_case("true") => Ok(true),
        Value::String(text) if text.eq_ignore_ascii_case("false") => Ok(false),
        Value::String(_) | Value::Null | Value::Number(_) | Value::Array(_) | Value::Object(_) => Err(wrong),
    }
}
