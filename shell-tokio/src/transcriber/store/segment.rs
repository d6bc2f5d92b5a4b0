//! The upserts of segments.

use mongodb::bson::{Bson, Document, doc};
use transcript_core::ids::Session;
use transcript_transcriber::document::StoredSegment;

use super::session::{literal, number, said};

/// One update of a command that stores a batch: see [`Effect::Save`](transcript_transcriber::Effect::Save).
///
/// The conversation is part of the filter: a segment of another conversation, whose session has the same id, is not replaced.
pub(super) fn upsert(session: &Session, segment: &StoredSegment) -> Document {
    let filter = doc! {
        "sessionId": &*session.session_id, "source": segment.source.as_str(),
        "conversationId": &*session.conversation_id,
    };
    let exists = doc! { "$ne": [{ "$type": "$text" }, "missing"] };
    let is_as_new = doc! { "$and": [exists.clone(), { "$gte": ["$write", number(segment.write)] }] };
    let said = said(segment);
    let differs = |field: &str, absent: Bson| {
        let new = said.get(field).cloned().unwrap_or_else(|| absent.clone());
        doc! { "$ne": [{ "$ifNull": [format!("${field}"), absent] }, { "$literal": new }] }
    };
    let is_edit = doc! { "$and": [exists, { "$or": [
        differs("speaker", Bson::Null), differs("text", Bson::Null), differs("startMs", Bson::Null),
        differs("endMs", Bson::Null), differs("onSessionClock", false.into()),
    ] }] };
    let edits = doc! { "$cond": [is_edit, { "$add": [{ "$ifNull": ["$edits", 0_i64] }, 1_i64] }, "$edits"] };
    let id = format!("{}:{}", session.session_id, segment.index);
    let whole = doc! { "$mergeObjects": [
        {
            "_id": { "$ifNull": ["$_id", literal(&id)] },
            "conversationId": literal(&session.conversation_id),
            "sessionId": literal(&session.session_id),
            "index": { "$ifNull": ["$index", number(segment.index)] },
        },
        { "$literal": &said },
        { "source": literal(segment.source.as_str()), "write": number(segment.write), "edits": edits },
    ] };
    let pipeline = vec![doc! { "$replaceWith": { "$cond": [is_as_new, "$$ROOT", whole] } }];
    doc! { "q": filter, "u": pipeline, "upsert": true }
}
