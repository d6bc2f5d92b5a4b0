//! Conversation Relay of Twilio, and of Telnyx, which has the same frames. It carries what the caller says.
//!
//! | field | what |
//! |---|---|
//! | `type` | `prompt` is read; `setup`, `interrupt`, `dtmf`, `error` and others are ignored |
//! | `voicePrompt` | the text |
//! | `last` | `false`: interim; `true` or missing: final |
//!
//! A prompt has no id, no speaker and no time. Source: Twilio's documentation, "Getting and sending WebSocket messages", and
//! Telnyx' "ConversationRelay WebSocket channel". Of the answers it is sent errors only
//! ([`Dialect::wants_receipts`](crate::Dialect::wants_receipts)): Twilio's documentation, "Error 64107".

use serde_json::{Map, Value};

use crate::{Frame, Problem, Utterance, field};

pub(crate) fn read(frame: &Map<String, Value>) -> Result<Frame, Problem> {
    match field::required_text(frame, "type")? {
        "prompt" if field::flag(frame, "last")?.unwrap_or(true) => {
            let text = field::required_text(frame, "voicePrompt")?.to_owned();
            Ok(Frame::said(Utterance { text, ..Utterance::default() }))
        }
        "prompt" => Ok(Frame::Interim),
        _ => Ok(Frame::Ignored),
    }
}
