//! Our own lines: `{conversationId, sessionId, index, speaker?, text, startMs?, endMs?}`, or the end of a call,
//! `{conversationId, sessionId, publishedSegments}`.

use serde::Deserialize;

use crate::{
    Announcement, Broken, Call,
    json::{self, Unit, Value},
    sink::{Draft, Sink},
};

/// Most that a number can be which every language and store keeps exactly: 2^53 - 1.
const MAX_EXACT: f64 = 9_007_199_254_740_991.0;

/// Reads one line. An empty one says nothing, and fields that the contract does not know say nothing either.
pub(crate) fn line(line: &str, number: u64, sink: &mut Sink) -> Result<(), Broken> {
    if line.trim().is_empty() {
        return Ok(());
    }
    let told = match serde_json::from_str::<Own<'_>>(line) {
        Ok(own) => own.checked(number),
        // Python writes `NaN`: what it stands for is looked at only where the line is no JSON.
        Err(error) => match serde_json::from_str::<Own<'_>>(&json::repair::without_nan(line)) {
            Ok(own) => own.checked(number),
            Err(_) => Err(json::syntax(&error, number)),
        },
    };
    told.map(|told| tell(told, number, sink)).or_else(|broken| sink.broken(broken))
}

/// One element of a JSON array of such lines.
pub(crate) fn element(own: &Own<'_>, line: u64, sink: &mut Sink) -> Result<(), Broken> {
    own.checked(line).map(|told| tell(told, line, sink)).or_else(|broken| sink.broken(broken))
}

fn tell(told: OwnLine, line: u64, sink: &mut Sink) {
    match told {
        OwnLine::Segment { call, index, draft } => sink.own(call, index, draft),
        OwnLine::End { call, segments } => sink.announcement(Announcement { call, segments, line }),
    }
}

/// A line of our own, each field of any type.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Own<'a> {
    #[serde(borrow, default)]
    conversation_id: Value<'a>,
    #[serde(borrow, default)]
    session_id: Value<'a>,
    #[serde(borrow, default)]
    index: Value<'a>,
    #[serde(borrow, default)]
    speaker: Value<'a>,
    #[serde(borrow, default)]
    text: Value<'a>,
    #[serde(borrow, default)]
    start_ms: Value<'a>,
    #[serde(borrow, default)]
    end_ms: Value<'a>,
    #[serde(borrow, default)]
    published_segments: Value<'a>,
}

/// What a line of our own says.
enum OwnLine {
    Segment { call: Call, index: u64, draft: Draft },
    End { call: Call, segments: u64 },
}

impl Own<'_> {
    fn checked(&self, line: u64) -> Result<OwnLine, Broken> {
        let call = Call {
            conversation_id: id("conversationId", &self.conversation_id, line)?,
            session_id: id("sessionId", &self.session_id, line)?,
        };
        if self.index.is_absent() && self.text.is_absent() && !self.published_segments.is_absent() {
            let segments = count("publishedSegments", &self.published_segments, line)?;
            return Ok(OwnLine::End { call, segments });
        }
        let index = count("index", &self.index, line)?;
        let Value::Text(text) = &self.text else {
            return Err(Broken::new(
                line,
                "expected a segment with index and text, or publishedSegments, found no text",
            ));
        };
        let draft = Draft {
            speaker: self.speaker.label(),
            text: text.to_string(),
            start: self.start_ms.time(Unit::Milliseconds),
            end: self.end_ms.time(Unit::Milliseconds),
            line,
        };
        Ok(OwnLine::Segment { call, index, draft })
    }
}

fn id(name: &str, value: &Value<'_>, line: u64) -> Result<String, Broken> {
    match value {
        Value::Text(id) if !id.is_empty() => Ok(id.to_string()),
        Value::Text(_) => Err(Broken::new(line, format!("expected {name}, found an empty one"))),
        Value::Absent => Err(Broken::new(line, format!("expected {name}, found none"))),
        Value::Number(_) | Value::Other => Err(Broken::new(line, format!("expected {name} to be a text"))),
    }
}

fn count(name: &str, value: &Value<'_>, line: u64) -> Result<u64, Broken> {
    match value {
        Value::Number(n) if (0.0..=MAX_EXACT).contains(n) && n.fract() == 0.0 => Ok(*n as u64),
        Value::Absent => Err(Broken::new(line, format!("expected {name}, found none"))),
        Value::Number(n) => {
            Err(Broken::new(line, format!("expected {name} to be a whole number from 0 to {MAX_EXACT}, found {n}")))
        }
        Value::Text(_) | Value::Other => Err(Broken::new(line, format!("expected {name} to be a number"))),
    }
}
