//! A segment as it is read from a document that anybody may have written.

use mongodb::bson::{RawBson, RawBsonRef, RawDocument, raw::RawElement, spec::ElementType};
use transcript_client::mongodb::{Document, DocumentId, OtherId, TEXT_ORDER};
use transcript_core::summary::Segment;

/// What a field of text holds.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Text {
    /// Nothing, or null.
    Missing,
    /// A text.
    Valid(String),
    /// A text that is not valid UTF-8, with U+FFFD in place of the broken bytes, or a value of another type, as far as it can
    /// be written out.
    Damaged(Option<String>),
    /// A number.
    Number(i64),
}

/// Reads a segment.
///
/// A time or an index of another type than the contract's counts as missing. A label that is a number is that number written
/// out, because some speech-to-text services number their speakers. Every other text or label that is no valid text is
/// damaged: what can be read of it counts.
pub(crate) fn read(document: &RawDocument) -> Document {
    let mut segment = Segment::default();
    let (mut id, mut damaged) = (DocumentId::Text, false);
    for element in document.iter_elements() {
        // What is behind a broken element cannot be found.
        let Ok(element) = element else {
            damaged = true;
            break;
        };
        match element.key().as_str() {
            "_id" => (segment.id, id) = identify(document, &element),
            "index" => segment.index = value(&element).and_then(whole),
            "startMs" => segment.start_ms = value(&element).and_then(whole),
            "endMs" => segment.end_ms = value(&element).and_then(whole),
            "onSessionClock" => {
                segment.on_session_clock = value(&element).and_then(RawBsonRef::as_bool).unwrap_or(false);
            }
            "edits" => segment.edits = value(&element).and_then(whole).and_then(|n| u64::try_from(n).ok()).unwrap_or(0),
            "text" => match text(&element) {
                Text::Missing => {}
                Text::Valid(text) => segment.text = text,
                Text::Damaged(text) => (segment.text, damaged) = (text.unwrap_or_default(), true),
                Text::Number(number) => (segment.text, damaged) = (number.to_string(), true),
            },
            "speaker" => match text(&element) {
                Text::Missing => {}
                Text::Valid(label) => segment.speaker = Some(label),
                Text::Damaged(label) => (segment.speaker, damaged) = (label, true),
                Text::Number(number) => segment.speaker = Some(number.to_string()),
            },
            _ => {}
        }
    }
    Document { segment, id, damaged }
}

fn value<'a>(element: &RawElement<'a>) -> Option<RawBsonRef<'a>> {
    element.value().ok()
}

fn text(element: &RawElement<'_>) -> Text {
    if element.element_type() == ElementType::String {
        return match value(element).and_then(RawBsonRef::as_str) {
            Some(text) => Text::Valid(text.to_owned()),
            None => Text::Damaged(lossy(element)),
        };
    }
    match value(element) {
        Some(RawBsonRef::Null | RawBsonRef::Undefined) => Text::Missing,
        Some(other) => whole(other).map_or(Text::Damaged(None), Text::Number),
        None => Text::Damaged(None),
    }
}

fn lossy(element: &RawElement<'_>) -> Option<String> {
    match element.value_utf8_lossy() {
        Ok(RawBson::String(text)) => Some(text),
        Ok(_) | Err(_) => None,
    }
}

/// A number without its fraction; `None` for what is no number of 64 bits.
fn whole(value: RawBsonRef<'_>) -> Option<i64> {
    /// Two to the power of 63.
    const BEYOND: f64 = 9_223_372_036_854_775_808.0;
    let double = || value.as_f64().filter(|n| (-BEYOND..BEYOND).contains(n)).map(|n| n.floor() as i64);
    value.as_i32().map(i64::from).or_else(|| value.as_i64()).or_else(double)
}

/// The `_id` in words, and as MongoDB orders it.
fn identify(document: &RawDocument, element: &RawElement<'_>) -> (String, DocumentId) {
    if let Some(text) = value(element).and_then(RawBsonRef::as_str) {
        return (text.to_owned(), DocumentId::Text);
    }
    let bson = stored_id(document, element).unwrap_or_default();
    let in_words = lossy(element).or_else(|| value(element).map(|id| format!("{id:?}"))).unwrap_or_default();
    (in_words, DocumentId::Other(Box::new(OtherId { order: id_order(element, &bson), bson })))
}

/// The type of the `_id` and its value, byte for byte. A server puts it first.
fn stored_id(document: &RawDocument, element: &RawElement<'_>) -> Option<Vec<u8>> {
    const LENGTH: usize = 4;
    const FIELD: &[u8] = b"_id\0";
    let (kind, rest) = document.as_bytes().get(LENGTH..)?.split_first()?;
    let stored = rest.strip_prefix(FIELD)?.get(..element.size())?;
    Some([&[*kind], stored].concat())
}

/// MongoDB's order of types, and of values of one type as far as ids have them:
/// <https://www.mongodb.com/docs/manual/reference/bson-type-comparison-order/>. `bson` is the type and the value.
fn id_order(element: &RawElement<'_>, bson: &[u8]) -> Vec<u8> {
    let stored = bson.get(1..).unwrap_or_default();
    #[expect(clippy::wildcard_enum_match_arm, reason = "types that can be no `_id` are ordered by their bytes")]
    let (place, order) = match element.element_type() {
        ElementType::MinKey => (0, vec![]),
        ElementType::Null | ElementType::Undefined => (1, vec![]),
        ElementType::Int32 | ElementType::Int64 | ElementType::Double | ElementType::Decimal128 => {
            (2, value(element).map(number_order).unwrap_or_default())
        }
        // A text that is not valid UTF-8, or a symbol: its length, the bytes, a zero.
        ElementType::String | ElementType::Symbol => {
            let text = stored.get(4..).and_then(|text| text.split_last());
            (TEXT_ORDER, text.map(|(_, text)| text.to_vec()).unwrap_or_default())
        }
        ElementType::EmbeddedDocument => (4, stored.to_vec()),
        ElementType::Array => (5, stored.to_vec()),
        ElementType::Binary => (
            6,
            stored
                .split_at_checked(4)
                .map(|(len, bytes)| {
                    let mut order: Vec<u8> = len.iter().rev().copied().collect();
                    order.extend(bytes);
                    order
                })
                .unwrap_or_default(),
        ),
        ElementType::ObjectId => (7, stored.to_vec()),
        ElementType::Boolean => (8, stored.to_vec()),
        ElementType::DateTime => (9, signed(stored)),
        ElementType::Timestamp => (10, stored.iter().rev().copied().collect()),
        ElementType::MaxKey => (u8::MAX, vec![]),
        _ => (11, stored.to_vec()),
    };
    [&[place], order.as_slice()].concat()
}

/// Bytes that compare as the number does: the nearest double, and what a whole number is beyond it.
fn number_order(value: RawBsonRef<'_>) -> Vec<u8> {
    let whole = value.as_i32().map(i64::from).or_else(|| value.as_i64());
    let decimal = || if let RawBsonRef::Decimal128(n) = value { n.to_string().parse().ok() } else { None };
    let double = whole.map(|n| n as f64).or_else(|| value.as_f64()).or_else(decimal).unwrap_or(f64::NAN);
    if double.is_nan() {
        return vec![];
    }
    // Both zeros are one number.
    let bits = (double + 0.0).to_bits();
    let ordered = if bits >> 63 == 0 { bits | (1 << 63) } else { !bits };
    let beyond = whole.map_or(0, |n| i128::from(n) - double as i128);
    let beyond = i64::try_from(beyond).unwrap_or(0);
    [ordered.to_be_bytes(), flipped(beyond)].concat()
}

/// A whole number of 64 bits as it is stored, in bytes that compare as it does.
fn signed(stored: &[u8]) -> Vec<u8> {
    stored.try_into().map(|bytes| flipped(i64::from_le_bytes(bytes)).to_vec()).unwrap_or_default()
}

fn flipped(number: i64) -> [u8; 8] {
    (number.cast_unsigned() ^ (1 << 63)).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{Bson, DateTime, RawDocumentBuf, doc, oid::ObjectId};

    use super::*;

    fn raw(document: &mongodb::bson::Document) -> RawDocumentBuf {
        RawDocumentBuf::try_from(document).expect("the document is encodable")
    }

    fn segment(document: &mongodb::bson::Document) -> Document {
        read(&raw(document))
    }

    /// The document with each `#` in it replaced by half a character.
    fn broken(document: &mongodb::bson::Document) -> Document {
        let bytes = raw(document).into_bytes().into_iter().map(|byte| if byte == b'#' { 0xC3 } else { byte }).collect();
        read(&RawDocumentBuf::from_bytes(bytes).expect("it is as long as before"))
    }

    #[test]
    fn a_segment_is_read_as_the_contract_says() {
        let read = segment(&doc! {
            "_id": "s:3", "sessionId": "s", "index": 3, "speaker": "$a.b", "text": "Hello", "startMs": 1_i64, "endMs": 2.9,
            "onSessionClock": true, "edits": 2, "unknown": { "is": "ignored" },
        });
        let expected = Segment {
            id: "s:3".into(),
            index: Some(3),
            speaker: Some("$a.b".into()),
            text: "Hello".into(),
            start_ms: Some(1),
            end_ms: Some(2),
            on_session_clock: true,
            edits: 2,
        };
        assert_eq!(read, Document { segment: expected, id: DocumentId::Text, damaged: false });
    }

    #[test]
    fn what_is_missing_or_a_number_of_another_type_is_left_out() {
        let read = segment(&doc! { "_id": 7, "index": "3", "speaker": null, "startMs": f64::NAN, "endMs": 1e300 });
        let Document { segment: read, damaged, .. } = read;
        assert_eq!(
            (read.index, read.speaker, read.text.as_str(), read.start_ms, read.end_ms),
            (None, None, "", None, None)
        );
        assert!(!damaged);
        let numbered = segment(&doc! { "_id": "x", "speaker": 1, "text": "" });
        assert_eq!((numbered.segment.speaker.as_deref(), numbered.damaged), (Some("1"), false));
        assert_eq!(segment(&doc! { "_id": "x", "speaker": "", "text": "" }).segment.speaker.as_deref(), Some(""));
    }

    #[test]
    fn what_is_no_valid_text_is_damaged_and_what_can_be_read_of_it_counts() {
        let read = broken(&doc! { "_id": "x", "speaker": "An#", "text": "caf# latte", "index": 4 });
        assert_eq!(
            (read.segment.text.as_str(), read.segment.speaker.as_deref()),
            ("caf\u{FFFD} latte", Some("An\u{FFFD}"))
        );
        assert_eq!((read.segment.index, read.damaged), (Some(4), true), "the fields behind are read");
        let texts: [(Bson, &str); 4] =
            [(5.into(), "5"), (true.into(), ""), (Bson::Array(vec![]), ""), (1.5.into(), "1")];
        for (text, read_as) in texts {
            let read = segment(&doc! { "_id": "x", "text": text.clone() });
            assert_eq!((read.segment.text.as_str(), read.damaged), (read_as, true), "{text}");
        }
        let read = segment(&doc! { "_id": "x", "speaker": { "name": "Ann" }, "text": "a" });
        assert_eq!((read.segment.speaker, read.damaged), (None, true));
    }

    #[test]
    fn ids_are_ordered_as_mongodb_orders_them() {
        let ids: [Bson; 14] = [
            Bson::MinKey,
            f64::NEG_INFINITY.into(),
            (i64::MIN).into(),
            (-1.5).into(),
            0.into(),
            Bson::Int64((1 << 53) + 1),
            Bson::Int64((1 << 53) + 2),
            1e300.into(),
            "a#".into(),
            doc! { "a": 1 }.into(),
            ObjectId::from_bytes([1; 12]).into(),
            true.into(),
            DateTime::from_millis(-1).into(),
            DateTime::from_millis(1).into(),
        ];
        let orders = ids.map(|id| match broken(&doc! { "_id": id }).id {
            DocumentId::Other(id) => id.order,
            DocumentId::Text => panic!("an id that is no text"),
        });
        assert!(orders.is_sorted_by(|a, b| a < b), "{orders:?}");
    }
}
