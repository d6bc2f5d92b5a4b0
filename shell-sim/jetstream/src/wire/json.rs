//! JSON as Go's `encoding/json` writes it.

use std::{
    fmt::{self, Write as _},
    time::{Duration, UNIX_EPOCH},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};

/// A JSON object that is being written, field after field.
pub(crate) struct Object {
    text: String,
    is_empty: bool,
}

impl Object {
    pub(crate) fn new(capacity: usize) -> Self {
        let mut text = String::with_capacity(capacity);
        text.push('{');
        Self { text, is_empty: true }
    }

    fn name(&mut self, name: &str) {
        if !self.is_empty {
            self.text.push(',');
        }
        self.is_empty = false;
        self.text.push('"');
        self.text.push_str(name);
        self.text.push_str("\":");
    }

    pub(crate) fn text(&mut self, name: &str, value: &str) {
        self.name(name);
        string(&mut self.text, value);
    }

    pub(crate) fn texts<'t>(&mut self, name: &str, values: impl IntoIterator<Item = &'t str>) {
        self.name(name);
        self.list(values, string);
    }

    pub(crate) fn numbers(&mut self, name: &str, values: impl IntoIterator<Item = i64>) {
        self.name(name);
        self.list(values, decimal);
    }

    fn list<T>(&mut self, values: impl IntoIterator<Item = T>, write: impl Fn(&mut String, T)) {
        self.text.push('[');
        for (place, value) in values.into_iter().enumerate() {
            if place > 0 {
                self.text.push(',');
            }
            write(&mut self.text, value);
        }
        self.text.push(']');
    }

    pub(crate) fn number(&mut self, name: &str, value: impl fmt::Display) {
        self.name(name);
        write!(self.text, "{value}").expect("a string takes any text");
    }

    pub(crate) fn truth(&mut self, name: &str, value: bool) {
        self.name(name);
        self.text.push_str(if value { "true" } else { "false" });
    }

    /// Bytes, in base64.
    pub(crate) fn bytes(&mut self, name: &str, value: &[u8]) {
        self.name(name);
        self.text.push('"');
        BASE64_STANDARD.encode_string(value, &mut self.text);
        self.text.push('"');
    }

    /// A moment in nanoseconds since the Unix epoch.
    pub(crate) fn time(&mut self, name: &str, nanos: i64) {
        self.name(name);
        self.text.push('"');
        time(&mut self.text, nanos);
        self.text.push('"');
    }

    /// The same, or Go's zero time where there is none.
    pub(crate) fn time_or_never(&mut self, name: &str, nanos: Option<i64>) {
        match nanos {
            Some(nanos) => self.time(name, nanos),
            None => self.text(name, "0001-01-01T00:00:00Z"),
        }
    }

    /// A list of one object.
    pub(crate) fn list_of(&mut self, name: &str, value: Self) {
        self.name(name);
        self.list([value], |text, value| text.push_str(&value.finish()));
    }

    pub(crate) fn object(&mut self, name: &str, value: Self) {
        self.name(name);
        self.text.push_str(&value.finish());
    }

    pub(crate) fn finish(mut self) -> String {
        self.text.push('}');
        self.text
    }
}

fn decimal(text: &mut String, value: i64) {
    write!(text, "{value}").expect("a string takes any text");
}

/// A string with what Go escapes: control characters, quotes, and what has a meaning in HTML or JavaScript.
fn string(text: &mut String, value: &str) {
    text.push('"');
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b' ' | b'-' | b'.' | b':' | b'_');
    if value.bytes().all(is_plain) {
        text.push_str(value);
        text.push('"');
        return;
    }
    for character in value.chars() {
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\u{8}' => text.push_str("\\b"),
            '\u{c}' => text.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => escaped(text, character),
            other => text.push(other),
        }
    }
    text.push('"');
}

fn escaped(text: &mut String, character: char) {
    write!(text, "\\u{:04x}", u32::from(character)).expect("a string takes any text");
}

/// RFC 3339 with as many digits of the second as are needed.
pub(crate) fn time(text: &mut String, nanos: i64) {
    let moment = UNIX_EPOCH + Duration::from_nanos(u64::try_from(nanos).unwrap_or(0));
    write!(text, "{}", humantime::format_rfc3339_nanos(moment)).expect("a string takes any text");
    text.pop();
    text.truncate(text.trim_end_matches('0').trim_end_matches('.').len());
    text.push('Z');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_as_go_does() {
        for (nanos, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400_000_000_000, "2000-02-29T00:00:00Z"),
            (1_735_689_599_000_000_000, "2024-12-31T23:59:59Z"),
            (3_661_000_007_000, "1970-01-01T01:01:01.000007Z"),
            (1_500_000_000, "1970-01-01T00:00:01.5Z"),
        ] {
            let mut text = String::new();
            time(&mut text, nanos);
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn strings_are_escaped_as_go_does() {
        let mut text = String::new();
        string(&mut text, "a\"\\\n\u{1}<&>\u{2028}é");
        assert_eq!(text, r#""a\"\\\n\u0001\u003c\u0026\u003e\u2028é""#);
    }
}
