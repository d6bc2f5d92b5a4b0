//! Jigasi's remote publisher of transcriptions: one POST for each event of a Jitsi conference.
//!
//! | field | what |
//! |---|---|
//! | `event` | `SPEECH` is read, `END` ends; `START`, `JOIN`, `LEAVE`, `RAISE_HAND` and others are ignored |
//! | `type` | `translation-result` is ignored: it says again what was said |
//! | `is_interim` | whether the text will be replaced |
//! | `transcript[0].text` | the text of the likeliest alternative |
//! | `participant` | `name`, or else `id`: the speaker |
//! | `message_id` | the id |
//!
//! `timestamp` is a moment of the calendar, not a time in the call, and is not read. Source: `LocalJsonTranscriptHandler` and
//! `RemotePublisherTranscriptionHandler` of jitsi/jigasi.

use serde_json::{Map, Value};

use crate::{Frame, Problem, Utterance, field};

pub(crate) fn read(frame: &Map<String, Value>) -> Result<Frame, Problem> {
    if field::text(frame, "type")? == Some("translation-result") {
        return Ok(Frame::Ignored);
    }
    match field::required_text(frame, "event")? {
        "SPEECH" if field::flag(frame, "is_interim")?.unwrap_or(false) => Ok(Frame::Interim),
        "SPEECH" => speech(frame),
        "END" => Ok(Frame::End),
        _ => Ok(Frame::Ignored),
    }
}

fn speech(frame: &Map<String, Value>) -> Result<Frame, Problem> {
    let alternatives = field::objects(frame, "transcript")?;
    let best = alternatives.first().ok_or(Problem::Missing("transcript"))?;
    let speaker = match field::object(frame, "participant")? {
        Some(participant) => match field::speaker(participant, "name")? {
            Some(name) => Some(name),
            None => field::speaker(participant, "id")?,
        },
        None => None,
    };
    Ok(Frame::said(Utterance {
        id: field::id(frame, "message_id")?,
        speaker,
        text: field::required_text(best, "text")?.to_owned(),
        start_ms: None,
        end_ms: None,
    }))
}
