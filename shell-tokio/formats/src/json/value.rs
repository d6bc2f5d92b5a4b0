//! A field of any type: engines write numbers as texts, texts as numbers, and null anywhere.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use crate::times::{self, Millis};

/// Numbers above are written as they come, not as whole ones.
const MAX_WHOLE: f64 = 1e15;

/// The value of a field of which any type is accepted.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) enum Value<'a> {
    /// Missing, or null.
    #[default]
    Absent,
    Text(Cow<'a, str>),
    Number(f64),
    /// True, false, a list or an object.
    Other,
}

/// What a number of a time counts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Unit {
    Seconds,
    Milliseconds,
}

impl Value<'_> {
    pub(crate) fn is_absent(&self) -> bool {
        *self == Self::Absent
    }

    /// A text, or a number written out; empty where it is neither.
    pub(crate) fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::Number(number) => Cow::Owned(written(*number)),
            Self::Absent | Self::Other => Cow::Borrowed(""),
        }
    }

    /// A speaker's label. An empty one names nobody.
    pub(crate) fn label(&self) -> Option<String> {
        let label = self.text();
        (!label.trim().is_empty()).then(|| label.trim().to_owned())
    }

    /// A time: a number, a number written as a text, or a stamp. Anything else is no time.
    pub(crate) fn time(&self, unit: Unit) -> Millis {
        let millis = |number: f64| match unit {
            Unit::Seconds => Millis::new(number * 1000.0),
            Unit::Milliseconds => Millis::new(number),
        };
        match self {
            Self::Number(number) => millis(*number),
            Self::Text(text) => match text.trim().parse() {
                Ok(number) => millis(number),
                Err(_) => times::stamp(text.trim()).map_or(Millis::NONE, Millis::from),
            },
            Self::Absent | Self::Other => Millis::NONE,
        }
    }
}

fn written(number: f64) -> String {
    if number.fract() == 0.0 && number.abs() < MAX_WHOLE { (number as i64).to_string() } else { number.to_string() }
}

impl<'de: 'a, 'a> Deserialize<'de> for Value<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyType)
    }
}

struct AnyType;

impl<'de> Visitor<'de> for AnyType {
    type Value = Value<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Value<'de>, E> {
        Ok(Value::Other)
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value<'de>, E> {
        Ok(Value::Number(number as f64))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value<'de>, E> {
        Ok(Value::Number(number as f64))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value<'de>, E> {
        Ok(Value::Number(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value<'de>, E> {
        Ok(Value::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Value<'de>, E> {
        Ok(Value::Text(Cow::Borrowed(text)))
    }

    fn visit_unit<E>(self) -> Result<Value<'de>, E> {
        Ok(Value::Absent)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value<'de>, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value<'de>, A::Error> {
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Value::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(json: &str) -> Value<'_> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_label_may_be_a_number() {
        assert_eq!(value("0").label().as_deref(), Some("0"));
        assert_eq!(value("\" A \"").label().as_deref(), Some("A"));
        for json in ["null", "\"\"", "true", "[1]", "{\"a\":[]}"] {
            assert_eq!(value(json).label(), None, "{json}");
        }
    }

    #[test]
    fn a_time_may_be_a_text() {
        let seconds = |json| value(json).time(Unit::Seconds).value();
        assert_eq!(seconds("1.5"), Some(1500.0));
        assert_eq!(seconds("\"1.5\""), Some(1500.0));
        assert_eq!(seconds("\"00:01,500\""), Some(1500.0));
        for json in ["null", "\"NaN\"", "\"inf\"", "\"\"", "\"soon\"", "[]"] {
            assert_eq!(seconds(json), None, "{json}");
        }
        assert_eq!(value("799.99995").time(Unit::Milliseconds).value(), Some(799.999_95));
    }
}
