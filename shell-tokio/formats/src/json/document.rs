//! A JSON document, and where in it things stand.

use serde::Deserialize;
use serde_json::{Deserializer, value::RawValue};

use crate::{Broken, Remedy, sink::Sink};

/// Most elements of one list. A day of speech has some 200,000 words.
const MAX_ELEMENTS: usize = 2_000_000;

/// A document, and the line of the element that was read last.
pub(crate) struct Document<'a> {
    text: &'a str,
    at: usize,
    line: u64,
}

impl<'a> Document<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, at: 0, line: 1 }
    }

    /// The line on which a part of this document begins. Parts are asked for in order; going back costs a new count.
    pub(crate) fn line_of(&mut self, part: &RawValue) -> u64 {
        let at = (part.get().as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize).min(self.text.len());
        if at < self.at {
            (self.at, self.line) = (0, 1);
        }
        let between = self.text.as_bytes().get(self.at..at).unwrap_or_default();
        self.line += memchr::memchr_iter(b'\n', between).count() as u64;
        self.at = at;
        self.line
    }

    /// Reads a part of this document.
    pub(crate) fn element<T: Deserialize<'a>>(&mut self, part: &'a RawValue) -> Result<T, Broken> {
        serde_json::from_str(part.get()).map_err(|error| {
            let line = self.line_of(part);
            if part.get().starts_with(['{', '[']) {
                syntax(&error, line)
            } else {
                Broken::new(line, format!("expected an object, found {}", kind(part)))
            }
        })
    }

    /// The elements of a list.
    pub(crate) fn list(&mut self, part: &'a RawValue) -> Result<Vec<&'a RawValue>, Broken> {
        let line = self.line_of(part);
        if !part.get().starts_with('[') {
            return Err(Broken::new(line, format!("expected a list, found {}", kind(part))).with(Remedy::ExportAgain));
        }
        let elements: Vec<&RawValue> = self.element::<Elements<'a>>(part)?.0;
        if elements.len() > MAX_ELEMENTS { Err(too_many(line)) } else { Ok(elements) }
    }

    /// The elements of a list that may be missing.
    pub(crate) fn list_of(&mut self, part: Option<&'a RawValue>) -> Result<Vec<&'a RawValue>, Broken> {
        part.map_or(Ok(Vec::new()), |part| self.list(part))
    }

    /// Reads each element and hands it on with its line. Null says nothing; what cannot be read costs no other element.
    pub(crate) fn each<T: Deserialize<'a>>(
        &mut self,
        elements: &[&'a RawValue],
        sink: &mut Sink,
        mut take: impl FnMut(T, u64, &mut Self, &mut Sink) -> Result<(), Broken>,
    ) -> Result<(), Broken> {
        for element in elements.iter().filter(|element| element.get() != "null") {
            let line = self.line_of(element);
            match self.element(element) {
                Ok(read) => take(read, line, self, sink).or_else(|broken| sink.broken(broken))?,
                Err(broken) => sink.broken(broken)?,
            }
        }
        Ok(())
    }
}

/// What a value is. What it says may be a word of a call, and is not repeated.
fn kind(value: &RawValue) -> &'static str {
    match value.get().as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "a list",
        Some(b'"') => "a text",
        Some(b't' | b'f') => "true or false",
        Some(b'n') => "null",
        Some(_) | None => "a number",
    }
}

/// The elements of a list, of which no more are kept than may be.
struct Elements<'a>(Vec<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Elements<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> serde::de::Visitor<'de> for List {
            type Value = Elements<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut list: A) -> Result<Elements<'de>, A::Error> {
                let mut elements = Vec::new();
                while let Some(element) = list.next_element()? {
                    if elements.len() <= MAX_ELEMENTS {
                        elements.push(element);
                    }
                }
                Ok(Elements(elements))
            }
        }
        deserializer.deserialize_seq(List)
    }
}

/// The values of a text: one document, or several one after another.
pub(super) fn values(text: &str) -> Result<Vec<&RawValue>, serde_json::Error> {
    Deserializer::from_str(text).into_iter().take(MAX_ELEMENTS).collect()
}

fn too_many(line: u64) -> Broken {
    Broken::new(line, format!("expected a list of at most {MAX_ELEMENTS} elements, found a longer one"))
        .with(Remedy::Split)
}

/// What is wrong with JSON that begins on line `first`.
pub(crate) fn syntax(error: &serde_json::Error, first: u64) -> Broken {
    let place = format!(" at line {} column {}", error.line(), error.column());
    let text = error.to_string();
    let what = text.strip_suffix(&place).unwrap_or(&text);
    let what = if error.is_data() && !what.starts_with("duplicate field") {
        format!("expected a field of another type (column {})", error.column())
    } else if error.is_eof() {
        format!("expected more of the JSON, found its end (column {})", error.column())
    } else {
        format!("this is not the JSON of a transcript: {} (column {})", what.escape_debug(), error.column())
    };
    Broken::new(first + (error.line() as u64).saturating_sub(1), what)
}

/// The byte at which an error was found.
pub(super) fn offset_of(text: &str, error: &serde_json::Error) -> usize {
    if error.is_eof() {
        return text.len();
    }
    let lines_before = error.line().saturating_sub(1);
    let begin = match lines_before.checked_sub(1) {
        None => 0,
        Some(last) => memchr::memchr_iter(b'\n', text.as_bytes()).nth(last).map_or(text.len(), |at| at + 1),
    };
    // The column is that of the wrong byte, counted from 1.
    (begin + error.column().saturating_sub(1)).min(text.len())
}
