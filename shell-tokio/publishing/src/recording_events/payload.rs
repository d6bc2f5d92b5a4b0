//! The JSON of an event.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;
use serde_json::{Map, Value};
use transcript_contract::WallTime;

use crate::RecordingEvent;

/// `{ts, …data}` on one line; the error says why there is none, without a word of the data.
pub(super) fn of(at: WallTime, data: impl Serialize) -> Result<String, String> {
    // A serializer is the application's code, and its panic must not end what is being recorded.
    let value = match catch_unwind(AssertUnwindSafe(|| serde_json::to_value(data))) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_panic) => return Err("its serializer panicked".to_owned()),
    };
    let data = match value {
        Value::Object(data) => data,
        Value::Null => Map::new(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            return Err("it is no object".to_owned());
        }
    };
    let json = serde_json::to_string(&RecordingEvent::new(at, data)).map_err(|error| error.to_string())?;
    Ok(on_one_line(json))
}

/// Escapes what JSON need not escape and what may end a line of a log or be obeyed by a terminal: control characters, the
/// separators of lines and paragraphs, and the marks that turn the direction of a text. They stand inside of texts only.
fn on_one_line(json: String) -> String {
    let is_special = |c: char| {
        let turns =
            matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        turns || c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
    };
    if !json.contains(is_special) {
        return json;
    }
    let mut line = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if is_special(c) {
            line.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            line.push(c);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::{Serializer, ser::Error};
    use serde_json::json;

    use super::*;

    const AT: WallTime = WallTime::from_millis(7);

    struct Panics;

    impl Serialize for Panics {
        fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            panic!("the application's code")
        }
    }

    struct Fails;

    impl Serialize for Fails {
        fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(S::Error::custom("cannot"))
        }
    }

    #[test]
    fn data_is_an_object_or_nothing() {
        assert_eq!(of(AT, json!({ "file": "a" })).unwrap(), r#"{"file":"a","ts":7}"#);
        assert_eq!(of(AT, json!({ "ts": 9 })).unwrap(), r#"{"ts":9}"#);
        assert_eq!(of(AT, ()).unwrap(), r#"{"ts":7}"#);
        assert_eq!(of(AT, None::<Map<String, Value>>).unwrap(), r#"{"ts":7}"#);
        assert_eq!(of(AT, BTreeMap::from([("n", f64::NAN)])).unwrap(), r#"{"n":null,"ts":7}"#);
        for data in [json!(1), json!("a"), json!([1]), json!(true)] {
            assert_eq!(of(AT, data).unwrap_err(), "it is no object");
        }
        assert_eq!(of(AT, Fails).unwrap_err(), "cannot");
        assert_eq!(of(AT, Panics).unwrap_err(), "its serializer panicked");
        assert!(of(AT, BTreeMap::from([(vec![1], 1)])).is_err(), "a key that is no text");
    }

    #[test]
    fn an_event_is_one_line_that_a_terminal_does_not_obey() {
        let hostile = "\n\r\t\u{1b}[2J\u{7f}\u{85}\u{9b}\u{2028}\u{202e}\"ä😀";
        let line = of(AT, json!({ "name": hostile })).unwrap();
        assert!(!line.contains(|c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{202e}')), "{line}");
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), json!({ "name": hostile, "ts": 7 }));
    }
}
