//! Our own frames.
//!
//! | field | what |
//! |---|---|
//! | `type` | `Segment` or missing: a segment. `Finalize`, `CloseStream`, `KeepAlive`: as their names say |
//! | `id` | string or whole number, at most 256 bytes; the same id of the same client replaces the text |
//! | `speaker` | string or whole number, at most 1024 bytes |
//! | `text` | string; required |
//! | `startMs`, `endMs` | whole milliseconds on the client's clock |
//! | `final` | `false`: an interim segment, which is not stored; missing: final |
//!
//! Other fields are ignored. A final segment is stored whatever its text is, also a blank one: the client asked for it.

use serde_json::{Map, Value};

use crate::{Frame, Problem, Utterance, field};

pub(crate) fn read(frame: &Map<String, Value>) -> Result<Frame, Problem> {
    match field::text(frame, "type")? {
        None | Some("Segment") => segment(frame),
        Some("Finalize") => Ok(Frame::Finalize),
        Some("CloseStream") => Ok(Frame::End),
        Some("KeepAlive") => Ok(Frame::KeepAlive),
        Some(_) => Err(Problem::UnknownType("Segment, Finalize, CloseStream, KeepAlive")),
    }
}

fn segment(frame: &Map<String, Value>) -> Result<Frame, Problem> {
    let is_final = field::flag(frame, "final")?.unwrap_or(true);
    let utterance = Utterance {
        id: field::id(frame, "id")?,
        speaker: field::speaker(frame, "speaker")?,
        text: field::required_text(frame, "text")?.to_owned(),
        start_ms: field::millis(frame, "startMs")?,
        end_ms: field::millis(frame, "endMs")?,
    };
    Ok(if is_final { Frame::Final(vec![utterance]) } else { Frame::Interim })
}
