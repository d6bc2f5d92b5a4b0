//! Statements about session documents. Each effect is one `findAndModify` of one document, which is what makes it atomic: its
//! filter is the fence, and its pipeline decides on what the document says at that moment.
//!
//! Texts of clients go into a pipeline as literals only: a `$` in them would be read as an expression.

use std::time::Duration;

use mongodb::bson::{Bson, DateTime, Document, doc};
use transcript_core::ids::{Key, Session};
use transcript_transcriber::{
    Departure, EpochOpened, Fence, IdleOthers, InstanceId, Joined, Silence,
    document::{MAX_EPOCH_CLOCKS, PublishedEnd, StoredSegment, Transport},
};

use super::Unreadable;

/// What a document is looked for by, and what is done with it.
#[derive(Debug)]
pub(super) struct Statement {
    pub(super) filter: Document,
    pub(super) pipeline: Vec<Document>,
}

/// The document of this key, whoever serves it.
pub(super) fn of(key: &Key) -> Document {
    doc! { "_id": key.as_str() }
}

/// The document of this key, where the instance is listed and no later effect has changed its entry.
fn fenced(key: &Key, fence: &Fence) -> Document {
    let entry = doc! { "id": fence.instance.as_str(), "step": { "$lt": number(fence.step) } };
    doc! { "_id": key.as_str(), "instances": { "$elemMatch": entry } }
}

/// See [`Effect::Join`](transcript_transcriber::Effect::Join).
pub(super) fn join(session: &Session, fence: &Fence, transport: Transport, epochs: &[EpochOpened]) -> Statement {
    let own = literal(fence.instance.as_str());
    let step = number(fence.step);
    let listed = doc! { "$in": [own.clone(), { "$ifNull": ["$instances.id", []] }] };
    let instances = doc! { "$ifNull": ["$instances", []] };
    let fresh = doc! { "id": own.clone(), "step": step, "transport": name(transport), "joinedAt": "$$NOW" };
    let is_later = doc! { "$lt": ["$$entry.step", step] };
    let changed = doc! { "$mergeObjects": [
        "$$entry",
        { "joinedAt": "$$NOW" },
        { "$cond": [is_later, { "step": step, "transport": name(transport) }, {}] },
    ] };
    let own_changed = map(instances.clone(), own, changed);
    let defaults = doc! {
        "conversationId": literal(&session.conversation_id),
        "sessionId": literal(&session.session_id),
        "state": "open",
        "generation": { "$ifNull": ["$generation", 0_i64] },
        "nextIndex": { "$ifNull": ["$nextIndex", 0_i64] },
        "writes": { "$ifNull": ["$writes", 0_i64] },
        "startedAt": { "$ifNull": ["$startedAt", "$$NOW"] },
    };
    let entered = doc! { "instances": { "$cond": [listed, own_changed, { "$concatArrays": [instances, [fresh]] }] } };
    let mut pipeline = vec![doc! { "$set": defaults }, doc! { "$set": entered }];
    if !epochs.is_empty() {
        pipeline.push(doc! { "$set": { "epochs": epoch_clocks(epochs) } });
    }
    Statement { filter: of(&session.key()), pipeline }
}

/// The epochs that the document knows, and those that begin now where there is room.
fn epoch_clocks(epochs: &[EpochOpened]) -> Document {
    let opened: Vec<Document> = epochs
        .iter()
        .map(|opened| doc! { "epoch": literal(opened.epoch.as_str()), "ago": millis(opened.ago) })
        .collect();
    let knows = doc! { "$in": ["$$this.epoch", "$$value.epoch"] };
    let is_full = doc! { "$gte": [{ "$size": "$$value" }, i64::try_from(MAX_EPOCH_CLOCKS).unwrap_or(i64::MAX)] };
    let start = doc! { "$subtract": [{ "$subtract": ["$$NOW", "$startedAt"] }, "$$this.ago"] };
    let with_it = doc! { "$concatArrays": ["$$value", [{ "epoch": "$$this.epoch", "startMs": start }]] };
    doc! { "$reduce": {
        "input": opened,
        "initialValue": { "$ifNull": ["$epochs", []] },
        "in": { "$cond": [{ "$or": [knows, is_full] }, "$$value", with_it] },
    } }
}

/// What a join or a take-over needs to read of the document.
pub(super) fn join_projection() -> Document {
    doc! { "nextIndex": 1, "startedAt": 1, "epochs": 1, "instances.id": 1, "instances.joinedAt": 1 }
}

/// What the document says to the instance that joined.
pub(super) fn joined(document: &Document, own: &InstanceId, epochs: &[EpochOpened]) -> Result<Joined, Unreadable> {
    let entry = entry(document, own)?;
    let (joined, started) = (moment(entry, "joinedAt")?, moment(document, "startedAt")?);
    let clocks = documents(document, "epochs");
    let clock = |opened: &EpochOpened| {
        let known = clocks.iter().find(|clock| is(clock, "epoch", opened.epoch.as_str()));
        known.and_then(|clock| integer(clock, "startMs"))
    };
    Ok(Joined {
        next_index: unsigned(document, "nextIndex")?,
        age: Duration::from_millis(u64::try_from(joined - started).unwrap_or(0)),
        epochs: epochs.iter().map(clock).collect(),
    })
}

/// See [`Effect::Reserve`](transcript_transcriber::Effect::Reserve).
pub(super) fn reserve(session: &Session, fence: &Fence, segments: &[StoredSegment], from: u64) -> Statement {
    let first = doc! { "$max": ["$nextIndex", number(from)] };
    let batch: Vec<Document> = segments.iter().map(pending).collect();
    let placed = doc! { "$mergeObjects": [
        "$$this",
        { "index": { "$add": ["$nextIndex", "$$this.index"] }, "write": "$writes" },
    ] };
    let placed = doc! { "$map": { "input": { "$literal": batch }, "as": "this", "in": placed } };
    let count = i64::try_from(segments.len()).unwrap_or(i64::MAX);
    let entry = doc! { "$mergeObjects": ["$$entry", { "step": number(fence.step), "pending": placed }] };
    Statement {
        filter: fenced(&session.key(), fence),
        // Between the first stage and the last one, `nextIndex` is the index of the batch's first segment.
        pipeline: vec![
            doc! { "$set": { "nextIndex": first, "writes": { "$add": ["$writes", 1_i64] } } },
            doc! { "$set": { "instances": map("$instances", literal(fence.instance.as_str()), entry) } },
            doc! { "$set": { "nextIndex": { "$add": ["$nextIndex", count] } } },
        ],
    }
}

/// See [`Effect::Leave`](transcript_transcriber::Effect::Leave). What it did is read from the document as it was before:
/// [`left`].
pub(super) fn leave(session: &Session, fence: &Fence, silence: Silence, idle_others: IdleOthers) -> Statement {
    let own = literal(fence.instance.as_str());
    let is_other = doc! { "$ne": ["$$entry.id", own.clone()] };
    let others = doc! { "$filter": { "input": "$instances", "as": "entry", "cond": is_other } };
    let keeps_it_open = match idle_others {
        IdleOthers::Stay => doc! { "$ne": ["$$entry.id", own.clone()] },
        IdleOthers::Removed => doc! { "$and": [
            { "$ne": ["$$entry.id", own.clone()] },
            { "$ne": ["$$entry.transport", name(Transport::Post)] },
        ] },
    };
    let stays = doc! { "$anyElementTrue": [
        { "$map": { "input": "$instances", "as": "entry", "in": keeps_it_open } },
    ] };
    let waits = match silence {
        Silence::Waits => doc! { "$eq": ["$nextIndex", 0_i64] },
        Silence::Ends => doc! { "$literal": false },
    };
    let ended = doc! { "$mergeObjects": ["$$ROOT", {
        "state": "ending",
        "generation": { "$cond": [
            { "$eq": ["$state", "ending"] }, "$generation", { "$add": ["$generation", 1_i64] },
        ] },
        "instances": { "$map": {
            "input": { "$filter": { "input": "$instances", "as": "entry", "cond": { "$eq": ["$$entry.id", own] } } },
            "as": "entry",
            "in": { "$mergeObjects": ["$$entry", { "step": number(fence.step) }] },
        } },
    }] };
    let left = doc! { "$mergeObjects": ["$$ROOT", { "instances": others }] };
    let next = doc! { "$cond": [stays, left, { "$cond": [waits, "$$ROOT", ended] }] };
    Statement { filter: fenced(&session.key(), fence), pipeline: vec![doc! { "$replaceWith": next }] }
}

/// What [`leave`] did to the document that was like this before.
pub(super) fn left(
    before: &Document,
    own: &InstanceId,
    silence: Silence,
    idle_others: IdleOthers,
) -> Result<Departure, Unreadable> {
    let entries = documents(before, "instances");
    let others: Vec<&Document> = entries.iter().copied().filter(|entry| !is(entry, "id", own.as_str())).collect();
    let stays = match idle_others {
        IdleOthers::Stay => !others.is_empty(),
        IdleOthers::Removed => others.iter().any(|entry| transport(entry) != Transport::Post),
    };
    if stays {
        return Ok(Departure::Others);
    }
    if silence == Silence::Waits && unsigned(before, "nextIndex")? == 0 {
        return Ok(Departure::Silent);
    }
    let generation = unsigned(before, "generation")?;
    let is_ending = is(before, "state", "ending");
    let mut pending = Vec::new();
    for entry in others {
        pending.extend(batch(entry)?);
    }
    Ok(Departure::Ending { generation: if is_ending { generation } else { generation + 1 }, pending })
}

/// What an end records.
#[derive(Debug)]
pub(super) struct End<'a> {
    pub(super) generation: u64,
    pub(super) saved: u64,
    pub(super) edits: u64,
    pub(super) published: Option<&'a PublishedEnd>,
}

/// See [`Effect::Finish`](transcript_transcriber::Effect::Finish). What it did is read from the document as it was before:
/// [`finished`].
pub(super) fn finish(session: &Session, fence: &Fence, end: &End<'_>) -> Statement {
    let own = literal(fence.instance.as_str());
    let published = end.published.map_or_else(
        || Bson::from("$$REMOVE"),
        |published| {
            let sequence = number(published.stream_sequence);
            doc! { "messageId": literal(&published.message_id), "streamSequence": sequence }.into()
        },
    );
    let others = doc! { "$filter": {
        "input": "$instances", "as": "entry", "cond": { "$ne": ["$$entry.id", own] },
    } };
    let mut filter = fenced(&session.key(), fence);
    filter.extend(doc! { "state": "ending", "generation": number(end.generation) });
    let set = doc! {
        "state": "ended", "saved": number(end.saved), "edits": number(end.edits), "endedAt": "$$NOW",
        "published": published, "instances": others,
    };
    Statement { filter, pipeline: vec![doc! { "$set": set }] }
}

/// Why [`finish`] matched nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotFinished {
    /// It was done before.
    Done,
    /// The session was opened again.
    Reopened,
    /// The entry is gone.
    Gone,
}

/// Reads why [`finish`] matched nothing from the document; `None` where there is none.
pub(super) fn not_finished(document: Option<&Document>, fence: &Fence, generation: u64) -> NotFinished {
    let Some(document) = document else { return NotFinished::Gone };
    let entries = documents(document, "instances");
    let is_ended = is(document, "state", "ended");
    if is_ended && entries.is_empty() && unsigned(document, "generation") == Ok(generation) {
        return NotFinished::Done;
    }
    let is_own = |entry: &&&Document| is(entry, "id", fence.instance.as_str());
    match entries.iter().find(is_own).map(|entry| unsigned(entry, "step")) {
        Some(Ok(step)) if step < fence.step => NotFinished::Reopened,
        Some(Ok(_) | Err(_)) | None => NotFinished::Gone,
    }
}

/// See [`Effect::TakeOver`](transcript_transcriber::Effect::TakeOver).
pub(super) fn take_over(session: &Session, fence: &Fence, from: &InstanceId) -> Statement {
    let (own, other) = (literal(fence.instance.as_str()), literal(from.as_str()));
    let step = number(fence.step);
    let of_other = |field: &str| {
        let theirs = doc! { "$first": { "$filter": {
            "input": "$instances", "as": "entry", "cond": { "$eq": ["$$entry.id", other.clone()] },
        } } };
        doc! { "$let": { "vars": { "theirs": theirs }, "in": { "$ifNull": [format!("$$theirs.{field}"), []] } } }
    };
    let merged = doc! { "$mergeObjects": ["$$entry", {
        "step": { "$max": ["$$entry.step", step] },
        "pending": { "$concatArrays": [{ "$ifNull": ["$$entry.pending", []] }, of_other("pending")] },
    }] };
    let without_other = doc! { "$filter": {
        "input": "$instances", "as": "entry", "cond": { "$ne": ["$$entry.id", other.clone()] },
    } };
    let added = map(without_other, own.clone(), merged);
    let renamed = doc! { "$mergeObjects": ["$$entry", { "id": own.clone(), "step": step, "joinedAt": "$$NOW" }] };
    let renamed = map("$instances", other, renamed);
    let instances = doc! { "$cond": [{ "$in": [own, "$instances.id"] }, added, renamed] };
    Statement {
        filter: doc! { "_id": session.key().as_str(), "instances.id": from.as_str() },
        pipeline: vec![doc! { "$set": { "instances": instances } }],
    }
}

/// Each entry, the one of this id changed to `expression`, in which it is `$$entry`.
fn map(instances: impl Into<Bson>, id: Bson, expression: Document) -> Document {
    doc! { "$map": {
        "input": instances.into(), "as": "entry",
        "in": { "$cond": [{ "$eq": ["$$entry.id", id] }, expression, "$$entry"] },
    } }
}

/// A segment as an entry holds it.
fn pending(segment: &StoredSegment) -> Document {
    let mut document = doc! { "index": number(segment.index), "source": segment.source.as_str(), "write": 0_i64 };
    document.extend(said(segment));
    document
}

/// What a segment says; fields that it does not have are left out.
pub(super) fn said(segment: &StoredSegment) -> Document {
    let mut document = Document::new();
    if let Some(speaker) = &segment.speaker {
        document.insert("speaker", &**speaker);
    }
    document.insert("text", &*segment.text);
    if let Some(start) = segment.start_ms {
        document.insert("startMs", start);
    }
    if let Some(end) = segment.end_ms {
        document.insert("endMs", end);
    }
    if segment.on_session_clock {
        document.insert("onSessionClock", true);
    }
    document
}

/// The batch of an entry.
pub(super) fn batch(entry: &Document) -> Result<Vec<StoredSegment>, Unreadable> {
    documents(entry, "pending").into_iter().map(stored).collect()
}

fn stored(document: &Document) -> Result<StoredSegment, Unreadable> {
    let text = |field: &str| document.get_str(field).ok().map(std::sync::Arc::from);
    let source = text("source").ok_or(Unreadable("source"))?;
    Ok(StoredSegment {
        index: unsigned(document, "index")?,
        source: serde_json::from_value(serde_json::Value::from(&*source)).map_err(|_| Unreadable("source"))?,
        write: unsigned(document, "write")?,
        speaker: text("speaker"),
        text: text("text").ok_or(Unreadable("text"))?,
        start_ms: integer(document, "startMs"),
        end_ms: integer(document, "endMs"),
        on_session_clock: document.get_bool("onSessionClock").unwrap_or(false),
    })
}

/// The entry of an instance.
pub(super) fn entry<'a>(document: &'a Document, instance: &InstanceId) -> Result<&'a Document, Unreadable> {
    let entries = documents(document, "instances");
    let found = entries.into_iter().find(|entry| is(entry, "id", instance.as_str()));
    found.ok_or(Unreadable("instances"))
}

/// How the clients of an entry deliver.
pub(super) fn transport(entry: &Document) -> Transport {
    if is(entry, "transport", name(Transport::Post)) { Transport::Post } else { Transport::Socket }
}

fn name(transport: Transport) -> &'static str {
    match transport {
        Transport::Post => "post",
        Transport::Socket => "socket",
    }
}

/// Whether a field is this text.
pub(super) fn is(document: &Document, field: &str, text: &str) -> bool {
    document.get_str(field).is_ok_and(|found| found == text)
}

/// The documents of a list; none where it is missing.
pub(super) fn documents<'a>(document: &'a Document, field: &str) -> Vec<&'a Document> {
    document.get_array(field).map(|list| list.iter().filter_map(Bson::as_document).collect()).unwrap_or_default()
}

/// A whole number that is not negative.
pub(super) fn unsigned(document: &Document, field: &'static str) -> Result<u64, Unreadable> {
    integer(document, field).and_then(|number| u64::try_from(number).ok()).ok_or(Unreadable(field))
}

fn integer(document: &Document, field: &str) -> Option<i64> {
    let value = document.get(field)?;
    value.as_i64().or_else(|| value.as_i32().map(i64::from)).or_else(|| value.as_f64().map(|number| number as i64))
}

fn moment(document: &Document, field: &'static str) -> Result<i64, Unreadable> {
    document.get_datetime(field).map(|at| DateTime::timestamp_millis(*at)).map_err(|_| Unreadable(field))
}

/// A text of a client within a pipeline.
pub(super) fn literal(text: &str) -> Bson {
    doc! { "$literal": text }.into()
}

/// A number as the server has it.
pub(super) fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A span in milliseconds.
pub(super) fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}
