//! A page of a large call.

use mongodb::bson::{RawArrayBuf, RawBson, RawBsonRef, RawDocumentBuf, raw::cstr, rawdoc};
use transcript_client::mongodb::{CommandError, IndexedNumbers, PageRead, Place, SortKey, StoredId};
use transcript_core::contract::SEGMENTS_COLLECTION;

use super::{segment, socket::Socket};

/// Two to the power of 63: the numbers from here on are no index.
const BEYOND: f64 = 9_223_372_036_854_775_808.0;

impl Socket {
    /// Reads until the query ends, or a bound is met.
    pub(super) async fn page(
        &self,
        session_id: &str,
        place: &Place,
        numbers: IndexedNumbers,
        limit: u32,
        max_bytes: u64,
    ) -> Result<PageRead, CommandError> {
        let mut cursor = self.cursor(command(session_id, place, numbers, limit)).await?;
        let (mut page, mut bytes) = (PageRead::default(), 0_u64);
        loop {
            // One batch after another, and within it document by document, without reading the texts strictly.
            if !self.answer(cursor.advance()).await? {
                return Ok(page);
            }
            let document = cursor.current();
            let size = u64::try_from(document.as_bytes().len()).unwrap_or(u64::MAX);
            bytes = bytes.saturating_add(size);
            let full = page.documents.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
            if full || bytes > max_bytes {
                page.more = true;
                page.needs = (size > max_bytes).then_some(size);
                return Ok(page);
            }
            let index = document.get("index").ok().flatten();
            let is_other = matches!(index, Some(RawBsonRef::Array(_) | RawBsonRef::Decimal128(_)));
            page.others |= is_other && !matches!(place, Place::Rest { .. });
            page.documents.push(segment::read(document));
        }
    }
}

/// The query of a page, for one segment more than it holds.
fn command(session_id: &str, place: &Place, numbers: IndexedNumbers, limit: u32) -> RawDocumentBuf {
    let mut pipeline = RawArrayBuf::new();
    let mut filter = rawdoc! {};
    let after = match place {
        Place::After(after) => {
            filter = rawdoc! { "sessionId": of_session(session_id), "index": numbers_after(*after, numbers) };
            None
        }
        Place::Within { index, after } => {
            filter = rawdoc! { "sessionId": of_session(session_id), "index": numbers_of(*index, numbers) };
            after.as_ref()
        }
        Place::Rest { after } => {
            filter = rest(session_id, numbers);
            after.as_ref()
        }
    };
    pipeline.push(rawdoc! { "$match": filter });
    match place {
        Place::After(_) => pipeline.push(rawdoc! { "$sort": { "index": 1 } }),
        Place::Within { .. } | Place::Rest { .. } => {
            pipeline.push(rawdoc! { "$set": { "place": place_of_segment() } });
            if let Some(after) = after {
                pipeline.push(rawdoc! { "$match": { "$expr": { "$gt": ["$place", { "$literal": key(after) }] } } });
            }
            pipeline.push(rawdoc! { "$sort": { "place": 1 } });
        }
    }
    pipeline.push(rawdoc! { "$limit": i64::from(limit) + 1 });
    pipeline.push(rawdoc! { "$project": { "index": 1, "speaker": 1, "text": 1, "startMs": 1, "endMs": 1 } });
    rawdoc! {
        "aggregate": SEGMENTS_COLLECTION,
        "pipeline": pipeline,
        "cursor": { "batchSize": i64::from(limit) + 1 },
        "allowDiskUse": true,
        "readConcern": { "level": "majority" },
    }
}

/// What segments of one index are sorted by: whether the start is missing, the start, the `_id`. A start is read as
/// [`segment::read`] reads it. Documents are compared field by field.
fn place_of_segment() -> RawDocumentBuf {
    let is_number = rawdoc! { "$in": [{ "$type": "$startMs" }, ["int", "long", "double"]] };
    let in_range = rawdoc! { "$and": [is_number, { "$gte": ["$startMs", i64::MIN] }, { "$lt": ["$startMs", BEYOND] }] };
    let whole = rawdoc! { "$toLong": { "$floor": "$startMs" } };
    rawdoc! {
        "startless": { "$cond": [in_range.clone(), false, true] },
        "start": { "$cond": [in_range, whole, RawBson::Null] },
        "id": "$_id",
    }
}

/// The value of [`place_of_segment`] for a segment that was read.
fn key(after: &SortKey) -> RawDocumentBuf {
    let start = after.start.map_or(RawBson::Null, RawBson::Int64);
    let head = rawdoc! { "startless": after.start.is_none(), "start": start };
    match &after.id {
        StoredId::Text(id) => {
            let mut key = head;
            key.append(cstr!("id"), id.as_str());
            key
        }
        StoredId::Bson(digits) => with_raw_id(head, &bytes(digits)),
    }
}

/// The document with one more field, whose type and value are given as they were stored: a text may be none that Rust knows.
fn with_raw_id(head: RawDocumentBuf, id: &[u8]) -> RawDocumentBuf {
    let Some((kind, value)) = id.split_first() else { return head };
    let mut document = head.clone().into_bytes();
    document.pop();
    document.push(*kind);
    document.extend(b"id\0");
    document.extend(value);
    document.push(0);
    let length = i32::try_from(document.len()).unwrap_or(i32::MAX).to_le_bytes();
    document.splice(..length.len(), length);
    RawDocumentBuf::from_bytes(document).unwrap_or(head)
}

fn bytes(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks(2);
    pairs.filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// Matches an index that is a number within the range of indexes and greater than `after`; where only numbers were met, also
/// what stands among them. MongoDB compares whole numbers and doubles exactly, numbers only with numbers, but also the
/// elements of an array.
fn numbers_after(after: Option<i64>, numbers: IndexedNumbers) -> RawDocumentBuf {
    // The whole part of a double is greater than a number where the double reaches the next one.
    let from = match after {
        None => RawBson::Int64(i64::MIN),
        Some(after) => after.checked_add(1).map_or(RawBson::Double(BEYOND), RawBson::Int64),
    };
    within(rawdoc! { "$gte": from, "$lt": BEYOND }, numbers)
}

/// Matches the numbers of which the whole part is `index`.
fn numbers_of(index: i64, numbers: IndexedNumbers) -> RawDocumentBuf {
    let next = index.checked_add(1).map_or(RawBson::Double(BEYOND), RawBson::Int64);
    within(rawdoc! { "$gte": index, "$lt": next }, numbers)
}

fn within(mut range: RawDocumentBuf, numbers: IndexedNumbers) -> RawDocumentBuf {
    if numbers == IndexedNumbers::Others {
        // The types that stand among the numbers of MongoDB's index and are no index here.
        range.append(cstr!("$not"), rawdoc! { "$type": ["array", "decimal"] });
    }
    range
}

/// Matches what no page of numbers can hold.
fn rest(session_id: &str, numbers: IndexedNumbers) -> RawDocumentBuf {
    let of_session = || of_session(session_id);
    match numbers {
        // The opposite of `numbers_after`, in two parts with bounds in the index that have nothing in common. Each starts
        // with the session, so that MongoDB plans each for itself.
        IndexedNumbers::Numbers => rawdoc! { "$or": [
            { "sessionId": of_session(), "index": { "$not": { "$gte": i64::MIN } } },
            { "sessionId": of_session(), "index": { "$gte": BEYOND, "$not": { "$lt": BEYOND } } },
        ] },
        IndexedNumbers::Others => {
            rawdoc! { "sessionId": of_session(), "$nor": [{ "index": numbers_after(None, numbers) }] }
        }
    }
}

/// Matches the session's documents, but not one whose session is an array that holds it.
fn of_session(session_id: &str) -> RawDocumentBuf {
    rawdoc! { "$eq": session_id, "$not": { "$type": "array" } }
}
