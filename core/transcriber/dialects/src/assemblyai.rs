//! AssemblyAI's streaming API, version 3: what its server sends, forwarded by an application.
//!
//! | field | what |
//! |---|---|
//! | `type` | `Turn` is read; `Termination` ends; `KeepAlive` keeps; `Begin`, `SpeechStarted` and others are ignored |
//! | `end_of_turn` | whether the turn is final |
//! | `turn_order` | the id: a formatted turn comes after the unformatted one of the same order, and replaces it |
//! | `transcript` | the text |
//! | `speaker_label` | the speaker |
//! | `words[]` | `start` of the first and `end` of the last one, in milliseconds |
//!
//! Source: AssemblyAI's documentation, "Message Sequence" of streaming.

use serde_json::{Map, Value};

use crate::{Frame, Problem, Utterance, field};

pub(crate) fn read(frame: &Map<String, Value>) -> Result<Frame, Problem> {
    match field::text(frame, "type")? {
        Some("Turn") => turn(frame),
        Some("Termination") => Ok(Frame::End),
        Some("KeepAlive") => Ok(Frame::KeepAlive),
        Some(_) => Ok(Frame::Ignored),
        None => Err(Problem::Missing("type")),
    }
}

fn turn(frame: &Map<String, Value>) -> Result<Frame, Problem> {
    if !field::flag(frame, "end_of_turn")?.unwrap_or(false) {
        return Ok(Frame::Interim);
    }
    let words = field::objects(frame, "words")?;
    let edge = |word: Option<&&Map<String, Value>>, name| {
        word.map(|word| field::millis(word, name)).transpose().map(Option::flatten)
    };
    Ok(Frame::said(Utterance {
        id: field::id(frame, "turn_order")?,
        speaker: field::speaker(frame, "speaker_label")?,
        text: field::required_text(frame, "transcript")?.to_owned(),
        start_ms: edge(words.first(), "start")?,
        end_ms: edge(words.last(), "end")?,
    }))
}
