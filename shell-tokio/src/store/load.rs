//! Loads. Small calls are read together by one query; the others page by page, so that a giant call neither fills the
//! memory nor holds up the small ones.
//!
//! The order of the call is index, then start, then `_id`, a missing field last. MongoDB sorts missing fields first, and the
//! index reaches only as far as the segments' index. So pages are cut between different indexes and sorted here, and the
//! rare segments that share an index in larger numbers than a page holds, or have none, are sorted by the server.
//!
//! An index that is an array or a decimal counts as none, but stands in MongoDB's index among the numbers. As long as the
//! pages meet none, what is left at the end is everything outside the numbers, which MongoDB's index finds. Once they have
//! met one, each query leaves out its like, and only looking at every segment of the call tells what is left.

use std::collections::{BTreeMap, VecDeque};

use futures::TryStreamExt;
use mongodb::bson::{Bson, Document, RawBsonRef, RawDocumentBuf, doc};
use serde::{Deserialize, Serialize};
use transcript_core::{
    Cursor, Failure, FailureKind, Page, Report,
    summary::{Segment, order},
};

use super::{
    Load, ONE_BATCH, Worker,
    queue::{Asked, Sender},
    segment::read,
};

/// The most bytes of documents in a page, and in what is gathered for one small call.
const PAGE_BYTES: usize = 4 << 20;
/// The most segments, as counted, that one query loads for many small calls.
const GATHERED: u64 = 20_000;

/// What a cursor says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Start {
    at: Place,
    met: Met,
}

impl Start {
    const FIRST: Self = Self { at: Place::After(None), met: Met::Numbers };
}

/// What the pages so far have met where MongoDB's index has numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Met {
    /// Nothing else.
    Numbers,
    /// Arrays or decimals among them.
    Others,
}

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
    /// An index was an array or a decimal.
    others: bool,
}

impl Gathered {
    fn len(&self) -> u64 {
        u64::try_from(self.segments.len()).unwrap_or(u64::MAX)
    }

    fn found(self, next: Option<Place>) -> Found {
        let segments = self.segments.into_iter().map(|(_, segment)| segment).collect();
        Found { segments, next, others: false }
    }
}

/// A page, and where the next one starts.
#[derive(Debug)]
struct Found {
    segments: Vec<Segment>,
    next: Option<Place>,
    /// The page is worth nothing: where numbers were expected there are others too.
    others: bool,
}

impl Worker {
    /// Loads the small calls of the batch together, as many as one query should, and passes the others on to be paged. Tells
    /// how many queries it took.
    pub(super) async fn load(&self, batch: Vec<Asked<Load>>, pages: &Sender<Load>) -> u64 {
        let mut small = vec![];
        let (mut counted, mut queries) = (0, 0);
        for asked in batch {
            let load = &asked.what;
            if load.after.is_some() || load.counted > u64::from(load.limit) {
                pages.put(asked);
                continue;
            }
            if counted + load.counted > GATHERED && !small.is_empty() {
                self.load_small(&std::mem::take(&mut small), counted, pages).await;
                (counted, queries) = (0, queries + 1);
            }
            counted += load.counted;
            small.push(asked);
        }
        if !small.is_empty() {
            self.load_small(&small, counted, pages).await;
            queries += 1;
        }
        queries
    }

    async fn load_small(&self, small: &[Asked<Load>], counted: u64, pages: &Sender<Load>) {
        match self.load_together(small, counted).await {
            Ok(left) => {
                for asked in left {
                    pages.put(asked);
                }
            }
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
                self.report(asked.id, Report::Loaded(Page { segments: vec![], next: None, needs: None }));
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
        for asked in waiting.remove(run.session.as_str()).unwrap_or_default() {
            if small && u64::try_from(run.bytes).is_ok_and(|bytes| bytes <= asked.what.max_bytes) {
                self.report(asked.id, Report::Loaded(Page { segments: segments.clone(), next: None, needs: None }));
            } else {
                large.push(asked.clone());
            }
        }
        run.bytes = 0;
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
        let Start { at, met } = match &load.after {
            None => Start::FIRST,
            Some(Cursor(start)) => serde_json::from_str(start).map_err(|error| Failure {
                kind: FailureKind::Rejected,
                detail: format!("a cursor that this store did not make: {error}"),
            })?,
        };
        let (found, met) = match self.found(load, at.clone(), met).await? {
            // The same once more, without the others.
            Found { others: true, .. } => (self.found(load, at, Met::Others).await?, Met::Others),
            found @ Found { others: false, .. } => (found, met),
        };
        let next = found.next.and_then(|at| serde_json::to_string(&Start { at, met }).ok()).map(Cursor);
        Ok(Page { segments: found.segments, next, needs: None })
    }

    async fn found(&self, load: &Load, at: Place, met: Met) -> Result<Found, Failure> {
        match at {
            Place::After(after) => self.after(load, after, met).await,
            Place::Within { index, skip } => {
                let index_is = match met {
                    Met::Numbers => doc! { "$eq": index },
                    Met::Others => doc! { "$eq": index, "$not": others() },
                };
                let filter = doc! { "sessionId": of_session(&load.session_id), "index": index_is };
                let gathered = self.sorted_by_server(load, filter, skip).await?;
                let skip = skip + gathered.len();
                let next = if gathered.full { Place::Within { index, skip } } else { Place::After(Some(index)) };
                Ok(Found { others: met == Met::Numbers && gathered.others, ..gathered.found(Some(next)) })
            }
            Place::Rest { skip } => {
                let gathered = self.sorted_by_server(load, rest(&load.session_id, met), skip).await?;
                let next = gathered.full.then(|| Place::Rest { skip: skip + gathered.len() });
                Ok(gathered.found(next))
            }
        }
    }

    /// The next segments with an index, cut where the index changes.
    async fn after(&self, load: &Load, after: Option<f64>, met: Met) -> Result<Found, Failure> {
        let query = async {
            self.segments()
                .find(doc! { "sessionId": of_session(&load.session_id), "index": numbers_after(after, met) })
                .batch_size(load.limit.saturating_add(1))
                .sort(doc! { "index": 1 })
                .limit(i64::from(load.limit) + 1)
                .projection(fields())
                .await
        };
        let mut gathered = self.gather(load, query).await?;
        let others = met == Met::Numbers && gathered.others;
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
        let mut found = gathered.found(Some(next));
        found.segments.sort_by(order);
        Ok(Found { others, ..found })
    }

    /// Segments that share an index or have none, in the order that the server computes.
    async fn sorted_by_server(&self, load: &Load, filter: Document, skip: u64) -> Result<Gathered, Failure> {
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
        Ok(gathered)
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
            let index = document.get("index").ok().flatten();
            gathered.others |= matches!(index, Some(RawBsonRef::Array(_) | RawBsonRef::Decimal128(_)));
            gathered.segments.push((number(index), read(&document)));
            gathered.full = gathered.segments.len() > usize::try_from(load.limit).unwrap_or(usize::MAX);
            if u64::try_from(bytes).is_ok_and(|bytes| bytes > load.max_bytes) && gathered.segments.len() > 1 {
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

/// Matches an index that is a number greater than `after` and the same as a double; where only numbers were met, also what
/// stands among them. MongoDB compares numbers only with numbers, but also the elements of an array.
fn numbers_after(after: Option<f64>, met: Met) -> Document {
    let mut numbers = match after {
        Some(after) => doc! { "$gt": after, "$lt": LARGEST_INDEX },
        None => doc! { "$gte": -LARGEST_INDEX, "$lt": LARGEST_INDEX },
    };
    if met == Met::Others {
        numbers.insert("$not", others());
    }
    numbers
}

/// Matches what no page of numbers can hold.
fn rest(session_id: &str, met: Met) -> Document {
    let of_session = || of_session(session_id);
    match met {
        // The opposite of `numbers_after`, in two parts with bounds in the index that have nothing in common. Each starts
        // with the session, so that MongoDB plans each for itself.
        Met::Numbers => doc! { "$or": [
            { "sessionId": of_session(), "index": { "$not": { "$gte": -LARGEST_INDEX } } },
            { "sessionId": of_session(), "index": { "$gte": LARGEST_INDEX, "$not": { "$lt": LARGEST_INDEX } } },
        ] },
        Met::Others => doc! { "sessionId": of_session(), "$nor": [{ "index": numbers_after(None, met) }] },
    }
}

/// The types that stand among the numbers of MongoDB's index and are no index here.
fn others() -> Document {
    doc! { "$type": ["array", "decimal"] }
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
