//! A page of a large call, and the tally that tells its order.

use futures::TryStreamExt;
use mongodb::{
    Collection,
    bson::{RawArrayBuf, RawBson, RawBsonRef, RawDocumentBuf, doc, raw::cstr, rawdoc},
};
use transcript_client::mongodb::{CommandError, IndexedNumbers, PageRead, Place, SortKey, StoredId};
use transcript_core::{Tally, contract::SEGMENTS_COLLECTION, summary::Order};

use super::{reply, segment, socket::Socket};

/// Two to the power of 63: the numbers from here on are no index and no start.
pub(super) const BEYOND: f64 = 9_223_372_036_854_775_808.0;

/// Which segments a page is of: see [`Command::Page`](transcript_client::mongodb::Command::Page).
pub(super) struct PageQuery<'a> {
    pub(super) session_id: &'a str,
    pub(super) order: Order,
    pub(super) place: &'a Place,
    pub(super) numbers: IndexedNumbers,
    pub(super) limit: u32,
}

impl Socket {
    /// Reads until the query ends, or a bound is met.
    pub(super) async fn page(&self, query: &PageQuery<'_>, max_bytes: u64) -> Result<PageRead, CommandError> {
        let mut cursor = self.cursor(query.command()).await?;
        let (mut page, mut bytes) = (PageRead::default(), 0_u64);
        loop {
            // One batch after another, and within it document by document, without reading the texts strictly.
            if !self.answer(cursor.advance()).await? {
                return Ok(page);
            }
            let document = cursor.current();
            let size = u64::try_from(document.as_bytes().len()).unwrap_or(u64::MAX);
            bytes = bytes.saturating_add(size);
            let full = page.documents.len() >= usize::try_from(query.limit).unwrap_or(usize::MAX);
            if full || bytes > max_bytes {
                page.more = true;
                page.needs = (size > max_bytes).then_some(size);
                return Ok(page);
            }
            let index = document.get("index").ok().flatten();
            let is_other = matches!(index, Some(RawBsonRef::Array(_) | RawBsonRef::Decimal128(_)));
            page.others |= is_other && query.may_meet_others();
            page.documents.push(segment::read(document));
        }
    }

    pub(super) async fn tally(&self, session_id: &str) -> Result<Tally, CommandError> {
        // At the same time: one request's time is all that a command has.
        let segments = self.segments();
        let (tally, edits) = tokio::try_join!(self.answer(tally(&segments, session_id)), self.edits([session_id]))?;
        Ok(Tally { edits: edits.get(session_id).copied().unwrap_or(0), ..tally })
    }
}

/// Counts the segments of a session, and those without a start on the session's clock, from the index alone. Changes are in
/// another index: [`Store::edits`].
pub(crate) async fn tally(segments: &Collection<RawDocumentBuf>, session_id: &str) -> mongodb::error::Result<Tally> {
    // As segments are read: an array that holds the mark or a number is neither.
    let has_start = doc! { "$and": [
        { "$eq": ["$onSessionClock", true] },
        { "$in": [{ "$type": "$startMs" }, ["int", "long", "double"]] },
        { "$gte": ["$startMs", i64::MIN] }, { "$lt": ["$startMs", BEYOND] },
    ] };
    // A session that is an array matches where it holds the name. Asked of in the match, this would need the documents.
    let is_other = doc! { "$isArray": "$sessionId" };
    let pipeline = [
        doc! { "$match": { "sessionId": session_id } },
        doc! { "$group": {
            "_id": null,
            "segments": { "$sum": { "$cond": [is_other.clone(), 0_i64, 1_i64] } },
            "withoutStart": { "$sum": { "$cond": [{ "$or": [is_other, has_start] }, 0_i64, 1_i64] } },
        } },
    ];
    let groups: Vec<RawDocumentBuf> = segments.aggregate(pipeline).with_type().await?.try_collect().await?;
    // A session without segments makes no group.
    let number = |field: &str| groups.first().map_or(0, |group| reply::number(group.get(field).ok().flatten()));
    Ok(Tally { segments: number("segments"), without_start: number("withoutStart"), edits: 0 })
}

impl PageQuery<'_> {
    /// The query, for one segment more than the page holds.
    fn command(&self) -> RawDocumentBuf {
        let Self { session_id, place, limit, .. } = *self;
        let (sorted, second) = match self.order {
            Order::Index => (rawdoc! { "$sort": { "index": 1 } }, "$startMs"),
            Order::Start => (rawdoc! { "$sort": { "startMs": 1 } }, "$index"),
        };
        let (numbers, after) = match place {
            Place::After(after) => (numbers_after(*after, self.numbers), None),
            Place::Within { number, after } => (numbers_of(*number, self.numbers), after.as_ref()),
            Place::Rest { after } => (rawdoc! {}, after.as_ref()),
        };
        let mut pipeline = RawArrayBuf::new();
        pipeline.push(rawdoc! { "$match": match (place, self.order) {
            (Place::Rest { .. }, _) => rest(session_id, self.numbers),
            (Place::After(_) | Place::Within { .. }, Order::Index) => {
                rawdoc! { "sessionId": of_session(session_id), "index": numbers }
            }
            (Place::After(_) | Place::Within { .. }, Order::Start) => {
                rawdoc! { "sessionId": of_session(session_id), "onSessionClock": true, "startMs": numbers }
            }
        } });
        match place {
            Place::After(_) => pipeline.push(sorted),
            Place::Within { .. } | Place::Rest { .. } => {
                pipeline.push(rawdoc! { "$set": { "place": place_of_segment(second) } });
                if let Some(after) = after {
                    pipeline.push(rawdoc! { "$match": { "$expr": { "$gt": ["$place", { "$literal": key(after) }] } } });
                }
                pipeline.push(rawdoc! { "$sort": { "place": 1 } });
            }
        }
        pipeline.push(rawdoc! { "$limit": i64::from(limit) + 1 });
        pipeline.push(rawdoc! { "$project": {
            "index": 1, "speaker": 1, "text": 1, "startMs": 1, "endMs": 1, "onSessionClock": 1, "edits": 1,
        } });
        rawdoc! {
            "aggregate": SEGMENTS_COLLECTION,
            "pipeline": pipeline,
            "cursor": { "batchSize": i64::from(limit) + 1 },
            "allowDiskUse": true,
            "readConcern": { "level": "majority" },
        }
    }

    /// Whether an array or a decimal can stand among the numbers that it asks for. By start, a segment with one has no start,
    /// and the tally counts it as such.
    fn may_meet_others(&self) -> bool {
        self.order == Order::Index && !matches!(self.place, Place::Rest { .. })
    }
}

/// What segments of one number are sorted by: whether the second field is missing, the field, the `_id`. It is read as
/// [`segment::read`] reads it. Documents are compared field by field.
fn place_of_segment(second: &str) -> RawDocumentBuf {
    let is_number = rawdoc! { "$in": [{ "$type": second }, ["int", "long", "double"]] };
    let at_least = rawdoc! { "$gte": [second, i64::MIN] };
    let in_range = rawdoc! { "$and": [is_number, at_least, { "$lt": [second, BEYOND] }] };
    let whole = rawdoc! { "$toLong": { "$floor": second } };
    rawdoc! {
        "missing": { "$cond": [in_range.clone(), false, true] },
        "second": { "$cond": [in_range, whole, RawBson::Null] },
        "id": "$_id",
    }
}

/// The value of [`place_of_segment`] for a segment that was read.
fn key(after: &SortKey) -> RawDocumentBuf {
    let second = after.second.map_or(RawBson::Null, RawBson::Int64);
    let head = rawdoc! { "missing": after.second.is_none(), "second": second };
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

/// Matches a number of 64 bits that is greater than `after`; where only numbers were met, also
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
