//! Loads. Small calls are read together by one query; the others page by page, so that a giant call neither fills the
//! memory nor holds up the small ones.
//!
//! The order of the call is index, then start, then `_id`, a missing field last. MongoDB sorts missing fields first, and the
//! index reaches only as far as the segments' index. So pages are cut between different indexes and sorted here, and the
//! rare segments that share an index in larger numbers than a page holds, or have none, are sorted by the server.

use std::collections::{BTreeMap, VecDeque};

use futures::TryStreamExt;
use mongodb::bson::{Bson, Document, RawBsonRef, RawDocumentBuf, doc};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use transcript_core::{
    Cursor, Failure, FailureKind, Page, Report,
    summary::{Segment, order},
};

use super::{Asked, Load, ONE_BATCH, Worker, segment::read};

/// The most bytes of documents in a page, and in what is gathered for one small call.
const PAGE_BYTES: usize = 4 << 20;
/// The most segments, as counted, that one query loads for many small calls.
const GATHERED: u64 = 20_000;

/// Where a page starts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Place {
    /// Among the segments whose index is a number greater than this one, or any number.
    After(Option<f64>),
    /// Among the segments of this index, after so many.
    Within { index: f64, skip: u64 },
    /// Among the segments without a number for an index, after so many.
    Rest { skip: u64 },
}

/// What a query gave before it ended or a page was full.
#[derive(Debug, Default)]
struct Gathered {
    segments: Vec<(f64, Segment)>,
    full: bool,
}

impl Worker {
    /// Loads the small calls of the batch together, as many as one query should, and passes the others on to be paged.
    pub(super) async fn load(&self, batch: Vec<Asked<Load>>, pages: &mpsc::UnboundedSender<Asked<Load>>) {
        let mut small = vec![];
        let mut counted = 0;
        for asked in batch {
            let load = &asked.what;
            if load.after.is_some() || load.counted > u64::from(load.limit) {
                drop(pages.send(asked));
                continue;
            }
            if counted + load.counted > GATHERED && !small.is_empty() {
                self.load_small(&std::mem::take(&mut small), counted, pages).await;
                counted = 0;
            }
            counted += load.counted;
            small.push(asked);
        }
        if !small.is_empty() {
            self.load_small(&small, counted, pages).await;
        }
    }

    async fn load_small(&self, small: &[Asked<Load>], counted: u64, pages: &mpsc::UnboundedSender<Asked<Load>>) {
        match self.load_together(small, counted).await {
            Ok(left) => left.into_iter().for_each(|asked| drop(pages.send(asked))),
            Err((left, failure)) => self.fail(&left, &failure),
        }
    }

    /// Reads the calls with one query, session by session, and reports each as its last segment is read. Those come back
    /// that turned out not to be small.
    async fn load_together(
        &self,
        small: &[Asked<Load>],
        counted: u64,
    ) -> Result<Vec<Asked<Load>>, (Vec<Asked<Load>>, Failure)> {
        let mut waiting: BTreeMap<&str, VecDeque<&Asked<Load>>> = BTreeMap::new();
        for asked in small {
            waiting.entry(&asked.what.session_id).or_default().push_back(asked);
        }
        let limit = counted.saturating_add(1000);
        let sessions: Vec<Bson> = waiting.keys().map(|session| Bson::from(*session)).collect();
        let query = async {
            self.segments()
                .find(doc! { "sessionId": { "$in": sessions, "$not": { "$type": "array" } } })
                .sort(doc! { "sessionId": 1, "index": 1 })
                .limit(i64::try_from(limit).unwrap_or(i64::MAX))
                .projection(fields())
                .batch_size(ONE_BATCH)
                .await
        };
        let mut large = vec![];
        let mut run = Run::default();
        let outcome = async {
            let mut cursor = self.answer(query).await?;
            while let Some(document) = self.answer(cursor.try_next()).await? {
                let session = document.get_str("sessionId").unwrap_or_default();
                if run.session != session {
                    self.finish(&mut run, &mut waiting, &mut large);
                    session.clone_into(&mut run.session);
                }
                run.bytes += document.as_bytes().len();
                if run.bytes <= PAGE_BYTES {
                    run.segments.push(read(&document));
                }
                run.total += 1;
            }
            if run.total < limit {
                self.finish(&mut run, &mut waiting, &mut large);
            }
            Ok(())
        }
        .await;
        let left = waiting.into_values().flatten().cloned();
        if let Err(failure) = outcome {
            return Err((left.chain(large).collect(), failure));
        }
        if run.total < limit {
            for asked in left {
                self.report(asked.id, Report::Loaded(Page { segments: vec![], next: None }));
            }
            Ok(large)
        } else {
            // More was stored since the counts: the last session may be cut short, those after it were not reached.
            Ok(left.chain(large).collect())
        }
    }

    /// The segments of `run` are all that its session has.
    fn finish(
        &self,
        run: &mut Run,
        waiting: &mut BTreeMap<&str, VecDeque<&Asked<Load>>>,
        large: &mut Vec<Asked<Load>>,
    ) {
        let mut segments = std::mem::take(&mut run.segments);
        segments.sort_by(order);
        let small = run.bytes <= PAGE_BYTES;
        run.bytes = 0;
        for asked in waiting.remove(run.session.as_str()).unwrap_or_default() {
            if small {
                self.report(asked.id, Report::Loaded(Page { segments: segments.clone(), next: None }));
            } else {
                large.push(asked.clone());
            }
        }
    }

    /// Loads one page: a job asks for its next one behind those that wait.
    pub(super) async fn load_page(&self, asked: Asked<Load>) {
        let report = match self.page(&asked.what).await {
            Ok(page) => Report::Loaded(page),
            Err(failure) => Report::Failed(failure),
        };
        self.report(asked.id, report);
    }

    async fn page(&self, load: &Load) -> Result<Page, Failure> {
        let place = match &load.after {
            None => Place::After(None),
            Some(Cursor(place)) => serde_json::from_str(place).map_err(|error| Failure {
                kind: FailureKind::Rejected,
                detail: format!("a cursor that this store did not make: {error}"),
            })?,
        };
        let (segments, next) = match place {
            Place::After(after) => self.after(load, after).await?,
            Place::Within { index, skip } => {
                let filter = doc! { "sessionId": of_session(&load.session_id), "index": { "$eq": index, "$not": { "$type": ["array", "decimal"] } } };
                let (segments, more) = self.sorted_by_server(load, filter, skip).await?;
                let next =
                    if more { Place::Within { index, skip: skip + len(&segments) } } else { Place::After(Some(index)) };
                (segments, Some(next))
            }
            Place::Rest { skip } => {
                let filter =
                    doc! { "sessionId": of_session(&load.session_id), "$nor": [{ "index": numbers_after(None) }] };
                let (segments, more) = self.sorted_by_server(load, filter, skip).await?;
                let next = more.then(|| Place::Rest { skip: skip + len(&segments) });
                (segments, next)
            }
        };
        let next = next.and_then(|place| serde_json::to_string(&place).ok()).map(Cursor);
        Ok(Page { segments, next })
    }

    /// The next segments with an index, cut where the index changes.
    async fn after(&self, load: &Load, after: Option<f64>) -> Result<(Vec<Segment>, Option<Place>), Failure> {
        let query = async {
            self.segments()
                .find(doc! { "sessionId": of_session(&load.session_id), "index": numbers_after(after) })
                .batch_size(load.limit.saturating_add(1))
                .sort(doc! { "index": 1 })
                .limit(i64::from(load.limit) + 1)
                .projection(fields())
                .await
        };
        let mut gathered = self.gather(load, query).await?;
        let next = match gathered.segments.last().map(|(index, _)| *index) {
            Some(last) if gathered.full => {
                gathered.segments.retain(|(index, _)| *index < last);
                match gathered.segments.last() {
                    Some((index, _)) => Place::After(Some(*index)),
                    None => Place::Within { index: last, skip: 0 },
                }
            }
            Some(_) | None => Place::Rest { skip: 0 },
        };
        let mut segments: Vec<Segment> = gathered.segments.into_iter().map(|(_, segment)| segment).collect();
        segments.sort_by(order);
        Ok((segments, Some(next)))
    }

    /// Segments that share an index or have none, in the order that the server computes, and whether there are more.
    async fn sorted_by_server(
        &self,
        load: &Load,
        filter: Document,
        skip: u64,
    ) -> Result<(Vec<Segment>, bool), Failure> {
        let pipeline = [
            doc! { "$match": filter },
            doc! { "$set": { "startless": { "$not": [{ "$isNumber": "$startMs" }] } } },
            doc! { "$sort": { "startless": 1, "startMs": 1, "_id": 1 } },
            doc! { "$skip": i64::try_from(skip).unwrap_or(i64::MAX) },
            doc! { "$limit": i64::from(load.limit) + 1 },
            doc! { "$project": fields() },
        ];
        let query = async { self.segments().aggregate(pipeline).allow_disk_use(true).with_type().await };
        let mut gathered = self.gather(load, query).await?;
        if gathered.full && gathered.segments.len() > 1 {
            gathered.segments.pop();
        }
        Ok((gathered.segments.into_iter().map(|(_, segment)| segment).collect(), gathered.full))
    }

    /// Reads until the query ends, or one segment more than the page holds, or its bytes are used up.
    async fn gather(
        &self,
        load: &Load,
        query: impl Future<Output = mongodb::error::Result<mongodb::Cursor<RawDocumentBuf>>>,
    ) -> Result<Gathered, Failure> {
        let mut cursor = self.answer(query).await?;
        let mut gathered = Gathered::default();
        let mut bytes = 0;
        while let Some(document) = self.answer(cursor.try_next()).await? {
            bytes += document.as_bytes().len();
            gathered.segments.push((number(document.get("index").ok().flatten()), read(&document)));
            gathered.full = gathered.segments.len() > usize::try_from(load.limit).unwrap_or(usize::MAX);
            if bytes > PAGE_BYTES && gathered.segments.len() > 1 {
                gathered.full = true;
                break;
            }
        }
        Ok(gathered)
    }
}

/// The session that is being read for many.
#[derive(Debug, Default)]
struct Run {
    session: String,
    segments: Vec<Segment>,
    /// Of this session.
    bytes: usize,
    /// Documents of all sessions so far.
    total: u64,
}

/// Numbers beyond this are not all different as doubles; segments with such an index are loaded with those that have none.
const LARGEST_INDEX: f64 = 9_007_199_254_740_992.0;

/// Matches an index that is a number greater than `after` and the same as a double. MongoDB compares numbers only with
/// numbers, but also the elements of an array.
fn numbers_after(after: Option<f64>) -> Document {
    let others = doc! { "$type": ["array", "decimal"] };
    doc! { "$gt": after.unwrap_or(-LARGEST_INDEX), "$lt": LARGEST_INDEX, "$not": others }
}

/// Matches the session's documents, but not one whose session is an array that holds it.
fn of_session(session_id: &str) -> Document {
    doc! { "$eq": session_id, "$not": { "$type": "array" } }
}

fn number(value: Option<RawBsonRef<'_>>) -> f64 {
    let whole = |value: RawBsonRef<'_>| value.as_i32().map(f64::from).or_else(|| value.as_i64().map(|n| n as f64));
    value.and_then(|value| value.as_f64().or_else(|| whole(value))).unwrap_or(f64::NAN)
}

fn fields() -> Document {
    doc! { "sessionId": 1, "index": 1, "speaker": 1, "text": 1, "startMs": 1, "endMs": 1 }
}

fn len(segments: &[Segment]) -> u64 {
    u64::try_from(segments.len()).unwrap_or(u64::MAX)
}
