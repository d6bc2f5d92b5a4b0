//! Takes the words out of what a core is told.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;
use transcript_core::{
    Delivery, Exhausted, Input, Page, Payload, Report,
    contract::trace_context::TraceContext,
    event::SessionEnded,
    ids::{JobId, MAX_ID_BYTES},
    summary,
};

/// The placeholders of each job's speakers.
#[derive(Debug, Default)]
pub(crate) struct Redaction {
    jobs: BTreeMap<JobId, Labels>,
}

/// Placeholders of the same length, each for one label.
#[derive(Debug, Default)]
struct Labels {
    placeholders: BTreeMap<String, String>,
    /// How many of each shape there are, and one less.
    used: BTreeMap<Vec<usize>, u64>,
}

/// The fields of an end that the contract names.
const FIELDS: [&str; 4] = ["conversationId", "sessionId", "publishedSegments", "reprocess"];
/// Those of them that are kept where they are numbers.
const COUNTS: [&str; 2] = ["publishedSegments", "reprocess"];
/// Those of them that are kept where they can be ids.
const IDS: [&str; 2] = ["conversationId", "sessionId"];

impl Redaction {
    /// The input without a word. `label_bytes` is how far speakers' labels are told apart.
    pub(crate) fn redact(&mut self, input: Input, label_bytes: usize) -> Input {
        match input {
            Input::Delivered(delivery) => {
                // What other systems wrote into the state of a trace can be anything.
                let trace_context =
                    delivery.trace_context.map(|context| Arc::new(TraceContext { state: None, ..(*context).clone() }));
                Input::Delivered(Delivery { trace_context, payload: payload(&delivery.payload), ..delivery })
            }
            Input::Reported { effect, report: Report::Loaded(page) } => {
                let labels = self.jobs.entry(effect.job).or_default();
                Input::Reported { effect, report: Report::Loaded(labels.page(page, label_bytes)) }
            }
            Input::Exhausted(exhausted) => {
                let payload = exhausted.payload.as_ref().map(payload);
                Input::Exhausted(Exhausted { payload, ..exhausted })
            }
            Input::Reported { .. }
            | Input::Stale(_)
            | Input::Consumer(_)
            | Input::Woken
            | Input::Quiet
            | Input::Resume
            | Input::Drain
            | Input::DeliveriesStopped => input,
        }
    }

    /// Forgets the labels of jobs that have ended.
    pub(crate) fn keep(&mut self, is_under_way: impl Fn(JobId) -> bool) {
        self.jobs.retain(|job, _| is_under_way(*job));
    }
}

impl Labels {
    fn page(&mut self, mut page: Page, label_bytes: usize) -> Page {
        for segment in &mut page.segments {
            segment.text = summary::shape(&segment.text);
            segment.speaker = segment.speaker.take().map(|label| self.label(&label, label_bytes));
        }
        page
    }

    /// A placeholder of the same length, character by character, as far as labels are told apart; behind that a shape.
    fn label(&mut self, label: &str, label_bytes: usize) -> String {
        let (told, rest) = label.split_at(label.floor_char_boundary(label_bytes));
        let placeholder = match self.placeholders.get(told) {
            Some(known) => known.clone(),
            None => {
                // Where there are more labels than placeholders of that length, some share one.
                let new = self.used.entry(lengths(told)).and_modify(|used| *used += 1).or_default();
                let new = numbered(told, *new);
                self.placeholders.insert(told.to_owned(), new.clone());
                new
            }
        };
        placeholder + &summary::shape(rest)
    }
}

/// The length of each character.
fn lengths(label: &str) -> Vec<usize> {
    label.chars().map(char::len_utf8).collect()
}

/// The label's characters replaced by digits of `number`, the last one first, each by one of the same length.
fn numbered(label: &str, mut number: u64) -> String {
    let mut digits: Vec<char> = label
        .chars()
        .rev()
        .map(|c| {
            let (first, digits) = match c.len_utf8() {
                1 => ('a', 26),
                2 => ('\u{430}', 32),
                3 => ('\u{AC00}', 11_172),
                _ => ('\u{10428}', 40),
            };
            let digit = u32::try_from(number % digits).unwrap_or(0);
            number /= digits;
            char::from_u32(u32::from(first) + digit).unwrap_or(first)
        })
        .collect();
    digits.reverse();
    digits.into_iter().collect()
}

/// What the contract names is kept, of everything else the shape: a payload is refused for the same reason as before,
/// wherever JSON can be told from its words.
fn payload(payload: &Payload) -> Payload {
    if let Ok(ended) = SessionEnded::parse(&payload.0) {
        return Payload(serde_json::to_vec(&ended).expect("an end is JSON"));
    }
    let without = match serde_json::from_slice::<Value>(&payload.0) {
        Ok(Value::Object(fields)) => {
            let kept = fields.into_iter().map(|(name, value)| {
                let name = if FIELDS.contains(&name.as_str()) { name } else { summary::shape(&name) };
                if COUNTS.contains(&name.as_str()) && value.is_number() {
                    return (name, value);
                }
                let is_id = value.as_str().is_some_and(|id| id.len() <= MAX_ID_BYTES) && IDS.contains(&name.as_str());
                (name, if is_id { value } else { shaped(value) })
            });
            serde_json::to_vec(&Value::Object(kept.collect())).expect("a value is JSON")
        }
        Ok(value) => serde_json::to_vec(&shaped(value)).expect("a value is JSON"),
        Err(_) => match std::str::from_utf8(&payload.0) {
            Ok(text) => summary::shape(text).into_bytes(),
            Err(_) => payload.0.iter().copied().map(shaped_byte).collect(),
        },
    };
    Payload(without)
}

/// What stands for a byte of what is no text: no encoding has words in it then, and it still is no text.
fn shaped_byte(byte: u8) -> u8 {
    match byte {
        b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => b'x',
        0x80.. => 0xFF,
        _ => byte,
    }
}

fn shaped(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(summary::shape(&text)),
        Value::Array(items) => Value::Array(items.into_iter().map(shaped).collect()),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(name, value)| (summary::shape(&name), shaped(value))).collect())
        }
        Value::Number(_) => Value::from(0),
        Value::Null | Value::Bool(_) => value,
    }
}
