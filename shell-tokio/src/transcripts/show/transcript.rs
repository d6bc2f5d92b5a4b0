//! A call's transcript, as its segments are stored.

use futures::TryStreamExt;
use mongodb::{
    Database,
    bson::{RawDocumentBuf, doc},
};
use transcript_core::{
    contract::SEGMENTS_COLLECTION,
    ids::Session,
    summary::{Order, Segment},
};

use crate::{
    service::mongodb::{segment, tally},
    terminal::harmless,
};

/// The segments of a call in its order; the first `most` of them, where there are more.
///
/// # Errors
///
/// MongoDB cannot be asked.
pub async fn transcript(
    database: &Database,
    session: &Session,
    most: Option<u32>,
) -> Result<Vec<Segment>, mongodb::error::Error> {
    let collection = database.collection::<RawDocumentBuf>(SEGMENTS_COLLECTION);
    // Without a bound, the segments that are read have their own order.
    let bounded_order = match most {
        Some(_) => tally(&collection, &session.session_id).await?.order(),
        None => Order::Index,
    };
    let (filter, sorted) = match bounded_order {
        Order::Index => (doc! { "sessionId": &*session.session_id }, doc! { "index": 1 }),
        Order::Start => (doc! { "sessionId": &*session.session_id, "onSessionClock": true }, doc! { "startMs": 1 }),
    };
    let find = collection.find(filter).sort(sorted);
    let documents: Vec<RawDocumentBuf> = find.limit(most.map_or(0, i64::from)).await?.try_collect().await?;
    let mut segments: Vec<Segment> = documents.iter().map(|document| segment::read(document).segment).collect();
    let order = if most.is_some() { bounded_order } else { Order::of(&segments) };
    segments.sort_by(|a, b| order.compare(a, b));
    Ok(segments)
}

/// The segments for people, one a line: when it began, where that is known, who speaks, and what is said.
#[must_use]
pub fn render_transcript(segments: &[Segment]) -> String {
    let line = |Segment { start_ms, speaker, text, .. }: &Segment| {
        let began = start_ms.and_then(|start| u64::try_from(start).ok()).map_or_else(String::new, |start| {
            let seconds = start / 1000;
            format!("{:02}:{:02}:{:02}  ", seconds / 3600, seconds / 60 % 60, seconds % 60)
        });
        format!("{began}{}: {}\n", speaker.as_deref().map_or_else(|| "-".to_owned(), harmless), harmless(text))
    };
    segments.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_when_who_and_what_and_a_terminal_obeys_none_of_it() {
        let segment = |speaker: Option<&str>, start_ms| Segment {
            speaker: speaker.map(str::to_owned),
            text: "a\u{1b}[2J\nb".to_owned(),
            start_ms,
            ..Segment::default()
        };
        let text = render_transcript(&[segment(Some("Ada\u{202e}"), Some(3_725_000)), segment(None, None)]);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.starts_with("01:02:05  Ada") && text.contains("\n-: a"), "{text}");
        assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'), "{text}");
    }
}
