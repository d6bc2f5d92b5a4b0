//! Fields of frames. `null` is the same as a field that is missing.

use serde_json::{Map, Number, Value};

use crate::{MAX_ID_BYTES, MAX_SPEAKER_BYTES, Problem};

/// Seconds beyond which a time is taken to be nonsense: a thousand years.
const MOST_SECONDS: f64 = 1000.0 * 366.0 * 86_400.0;

/// Any value of a field that is there.
pub(crate) fn value<'a>(object: &'a Map<String, Value>, field: &str) -> Option<&'a Value> {
    object.get(field).filter(|value| !value.is_null())
}

/// A text.
pub(crate) fn text<'a>(object: &'a Map<String, Value>, field: &'static str) -> Result<Option<&'a str>, Problem> {
    let text = |value: &'a Value| value.as_str().ok_or(Problem::Kind { field, expected: "a string" });
    value(object, field).map(text).transpose()
}

/// A text that must be there.
pub(crate) fn required_text<'a>(object: &'a Map<String, Value>, field: &'static str) -> Result<&'a str, Problem> {
    text(object, field)?.ok_or(Problem::Missing(field))
}

/// True or false.
pub(crate) fn flag(object: &Map<String, Value>, field: &'static str) -> Result<Option<bool>, Problem> {
    let flag = |value: &Value| value.as_bool().ok_or(Problem::Kind { field, expected: "true or false" });
    value(object, field).map(flag).transpose()
}

/// An object.
pub(crate) fn object<'a>(
    object: &'a Map<String, Value>,
    field: &'static str,
) -> Result<Option<&'a Map<String, Value>>, Problem> {
    let inner = |value: &'a Value| value.as_object().ok_or(Problem::Kind { field, expected: "an object" });
    value(object, field).map(inner).transpose()
}

/// An object that must be there.
pub(crate) fn required_object<'a>(
    outer: &'a Map<String, Value>,
    field: &'static str,
) -> Result<&'a Map<String, Value>, Problem> {
    object(outer, field)?.ok_or(Problem::Missing(field))
}

/// A list; empty where it is missing.
pub(crate) fn list<'a>(object: &'a Map<String, Value>, field: &'static str) -> Result<&'a [Value], Problem> {
    let list =
        |value: &'a Value| value.as_array().map(Vec::as_slice).ok_or(Problem::Kind { field, expected: "a list" });
    value(object, field).map_or(Ok(&[]), list)
}

/// The objects of a list; what is none is a problem.
pub(crate) fn objects<'a>(
    object: &'a Map<String, Value>,
    field: &'static str,
) -> Result<Vec<&'a Map<String, Value>>, Problem> {
    let inner = |value: &'a Value| value.as_object().ok_or(Problem::Kind { field, expected: "a list of objects" });
    list(object, field)?.iter().map(inner).collect()
}

/// A whole number of milliseconds.
pub(crate) fn millis(object: &Map<String, Value>, field: &'static str) -> Result<Option<i64>, Problem> {
    let whole = |value: &Value| {
        let number = value.as_number().and_then(whole_millis);
        number.ok_or(Problem::Kind { field, expected: "a whole number of milliseconds" })
    };
    value(object, field).map(whole).transpose()
}

/// Writers of some languages have only floating-point numbers: 1500.0 is whole.
fn whole_millis(number: &Number) -> Option<i64> {
    let exact = |number: f64| number.fract() == 0.0 && number.abs() <= MOST_SECONDS * 1000.0;
    number.as_i64().or_else(|| number.as_f64().filter(|number| exact(*number)).map(|number| number as i64))
}

/// A time in seconds, as milliseconds.
pub(crate) fn seconds(object: &Map<String, Value>, field: &'static str) -> Result<Option<i64>, Problem> {
    let millis = |value: &Value| {
        let seconds = value.as_f64().filter(|seconds| seconds.abs() <= MOST_SECONDS);
        seconds
            .map(|seconds| (seconds * 1000.0).round() as i64)
            .ok_or(Problem::Kind { field, expected: "a number of seconds" })
    };
    value(object, field).map(millis).transpose()
}

/// An id: a string that is not empty, or a whole number.
pub(crate) fn id(object: &Map<String, Value>, field: &'static str) -> Result<Option<String>, Problem> {
    let Some(id) = label(object, field, MAX_ID_BYTES)? else { return Ok(None) };
    if id.is_empty() { Err(Problem::Kind { field, expected: "a string that is not empty" }) } else { Ok(Some(id)) }
}

/// The name of a speaker: a string, or a whole number. An empty one is none.
pub(crate) fn speaker(object: &Map<String, Value>, field: &'static str) -> Result<Option<String>, Problem> {
    Ok(label(object, field, MAX_SPEAKER_BYTES)?.filter(|name| !name.is_empty()))
}

fn label(object: &Map<String, Value>, field: &'static str, most: usize) -> Result<Option<String>, Problem> {
    let label = match value(object, field) {
        None => return Ok(None),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) if number.is_i64() || number.is_u64() => number.to_string(),
        Some(Value::Number(_) | Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_)) => {
            return Err(Problem::Kind { field, expected: "a string or a whole number" });
        }
    };
    if label.len() > most { Err(Problem::TooLong { field, most }) } else { Ok(Some(label)) }
}
