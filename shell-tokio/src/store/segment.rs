//! A segment as it is read from a document that anybody may have written.

use mongodb::bson::{RawBsonRef, RawDocument};
use transcript_core::summary::Segment;

/// Reads a segment. A field of another type than the contract's counts as missing; a label that is a number is that
/// number written out, because some speech-to-text services number their speakers.
pub(super) fn read(document: &RawDocument) -> Segment {
    let field = |name| document.get(name).ok().flatten();
    Segment {
        id: field("_id").map_or_else(String::new, |id| id.as_str().map_or_else(|| format!("{id:?}"), str::to_owned)),
        index: field("index").and_then(whole),
        speaker: field("speaker").and_then(label),
        text: field("text").and_then(RawBsonRef::as_str).unwrap_or_default().to_owned(),
        start_ms: field("startMs").and_then(whole),
        end_ms: field("endMs").and_then(whole),
    }
}

fn label(value: RawBsonRef<'_>) -> Option<String> {
    value.as_str().map(str::to_owned).or_else(|| whole(value).map(|n| n.to_string()))
}

/// A number without its fraction; `None` for what is no finite number.
fn whole(value: RawBsonRef<'_>) -> Option<i64> {
    let double = || value.as_f64().filter(|n| n.is_finite()).map(|n| n.floor() as i64);
    value.as_i32().map(i64::from).or_else(|| value.as_i64()).or_else(double)
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{RawDocumentBuf, doc};

    use super::*;

    fn segment(document: &mongodb::bson::Document) -> Segment {
        read(&RawDocumentBuf::try_from(document).expect("the document is encodable"))
    }

    #[test]
    fn a_segment_is_read_as_the_contract_says() {
        let read = segment(&doc! {
            "_id": "s:3", "sessionId": "s", "index": 3, "speaker": "$a.b", "text": "Hello", "startMs": 1_i64, "endMs": 2.9,
            "unknown": { "is": "ignored" },
        });
        let expected = Segment {
            id: "s:3".into(),
            index: Some(3),
            speaker: Some("$a.b".into()),
            text: "Hello".into(),
            start_ms: Some(1),
            end_ms: Some(2),
        };
        assert_eq!(read, expected);
    }

    #[test]
    fn what_is_missing_or_of_another_type_is_left_out() {
        let read = segment(&doc! { "_id": 7, "index": "3", "speaker": null, "text": 5, "startMs": f64::NAN });
        assert_eq!((read.index, read.speaker, read.text.as_str(), read.start_ms), (None, None, "", None));
        assert_eq!(segment(&doc! { "_id": "x", "speaker": 1, "text": "" }).speaker.as_deref(), Some("1"));
        assert_eq!(segment(&doc! { "_id": "x", "speaker": "", "text": "" }).speaker.as_deref(), Some(""));
    }
}
