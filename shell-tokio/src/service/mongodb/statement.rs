//! The updates of summaries, as statements of MongoDB's `update` command.

use mongodb::bson::{self, DateTime, RawBson, RawDocumentBuf, rawdoc};
use transcript_client::mongodb::{CommandError, Mark, Missing};
use transcript_core::{TranscriptVersion, contract::Announcement, summary::Summary};

/// The upsert of a summary.
///
/// # Errors
///
/// A summary that is no document.
pub fn save(summary: &Summary) -> Result<RawDocumentBuf, CommandError> {
    Ok(upsert(summary, &encode(summary)?, Missing::Insert))
}

/// The mark on a summary that was announced, unless it is there. A summary of the announced revision that is of a later
/// version of the segments than was announced becomes the next revision.
#[must_use]
pub fn mark(mark: &Mark) -> RawDocumentBuf {
    let Mark { key, announcement, announced: told, notified } = mark;
    let at = DateTime::from_millis(notified.at.as_millis());
    let sequence = number(notified.stream_sequence);
    let announced = match announcement {
        Announcement::Processed | Announcement::ProcessedOnce => 1,
        Announcement::Revised { revision } => *revision,
    };
    let revision = rawdoc! { "$cond": [{ "$isNumber": "$revision" }, "$revision", 1] };
    let behind = rawdoc! { "$and": [{ "$eq": [revision, number(announced)] }, is_later_than(*told)] };
    // A field that is missing in the stored summary stays missing.
    let next = rawdoc! { "$cond": [behind, number(announced.saturating_add(1)), "$revision"] };
    let mark = |field: &str, is_marked: RawDocumentBuf, mark: RawDocumentBuf| {
        rawdoc! { "$cond": [is_marked, format!("${field}"), { "$literal": mark }] }
    };
    let marks = match announcement {
        Announcement::Processed | Announcement::ProcessedOnce => {
            let is_marked = rawdoc! { "$ne": [{ "$type": "$notified" }, "missing"] };
            let new = rawdoc! { "streamSequence": sequence, "at": at };
            rawdoc! { "notified": mark("notified", is_marked, new), "revision": next }
        }
        Announcement::Revised { revision } => {
            let same = rawdoc! { "$gte": ["$revised.revision", number(*revision)] };
            let is_marked = rawdoc! { "$and": [{ "$isNumber": "$revised.revision" }, same] };
            let new = rawdoc! { "revision": number(*revision), "streamSequence": sequence, "at": at };
            rawdoc! { "revised": mark("revised", is_marked, new), "revision": next }
        }
    };
    rawdoc! { "q": { "_id": key.as_str() }, "u": [{ "$set": marks }] }
}

/// Whether the stored summary is of a later version of the segments. BSON sorts texts and arrays after numbers; what is no
/// number of segments is none.
fn is_later_than(version: TranscriptVersion) -> RawDocumentBuf {
    let (segments, edits) = (at_most(version.segments), at_most(version.edits));
    let more = rawdoc! { "$gt": ["$segments", segments] };
    let as_many = rawdoc! { "$eq": ["$segments", segments] };
    let edited = rawdoc! { "$and": [as_many, { "$gt": [stored_edits(), edits] }] };
    rawdoc! { "$and": [{ "$isNumber": "$segments" }, { "$or": [more, edited] }] }
}

fn is_of(version: TranscriptVersion) -> RawDocumentBuf {
    rawdoc! { "$and": [
        { "$eq": ["$segments", at_most(version.segments)] },
        { "$eq": [stored_edits(), at_most(version.edits)] },
    ] }
}

/// A summary of segments that nobody changed does not say so.
fn stored_edits() -> RawDocumentBuf {
    rawdoc! { "$cond": [{ "$isNumber": "$edits" }, "$edits", 0_i64] }
}

fn at_most(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// BSON has no unsigned numbers.
fn number(n: u64) -> RawBson {
    i64::try_from(n).map_or(RawBson::Null, RawBson::Int64)
}

/// The conditional upsert: the summary replaces a stored one that is not ahead of it (`Stored::is_ahead_of`). One that was
/// announced is replaced only by one of a later version of the segments, or of the same that an operator has asked for since,
/// which takes over its marks and is the next revision.
pub(super) fn upsert(summary: &Summary, new: &RawDocumentBuf, missing: Missing) -> RawDocumentBuf {
    let announced = || rawdoc! { "$ne": [{ "$type": "$notified" }, "missing"] };
    let revision = rawdoc! { "$add": [{ "$cond": [{ "$isNumber": "$revision" }, "$revision", 1] }, 1] };
    // A field that is missing in the stored summary stays missing.
    let marks = rawdoc! { "notified": "$notified", "revision": revision, "revised": "$revised" };
    let marks = rawdoc! { "$cond": [announced(), marks, {}] };
    // BSON sorts texts and arrays after numbers, and what is missing before them.
    let reprocess = || rawdoc! { "$cond": [{ "$isNumber": "$reprocess" }, "$reprocess", 0] };
    let asked = at_most(summary.reprocess);
    let is_later = || rawdoc! { "$gt": [reprocess(), asked] };
    let later = rawdoc! { "$cond": [is_later(), { "reprocess": "$reprocess" }, {}] };
    let replaced = rawdoc! { "$mergeObjects": [{ "$literal": new.clone() }, later, marks] };
    let version = summary.version();
    let is_same = rawdoc! { "$and": [{ "$eq": [reprocess(), asked] }, announced()] };
    let stays = rawdoc! { "$and": [is_of(version), { "$or": [is_later(), is_same] }] };
    let ahead = rawdoc! { "$or": [is_later_than(version), stays] };
    let choice = rawdoc! { "$cond": [ahead, "$$ROOT", replaced] };
    rawdoc! {
        "q": { "_id": summary.key.as_str() },
        "u": [{ "$replaceWith": choice }],
        "upsert": missing == Missing::Insert,
    }
}

pub(super) fn encode(summary: &Summary) -> Result<RawDocumentBuf, CommandError> {
    let mut document = bson::serialize_to_document(summary).map_err(|_| CommandError::Unencodable)?;
    document.insert("updatedAt", DateTime::from_millis(summary.updated_at.as_millis()));
    RawDocumentBuf::try_from(&document).map_err(|_| CommandError::Unencodable)
}
