//! MongoDB, as the transcriber uses it: each effect of the state machine is performed as the state machine describes it.
//!
//! Writes are acknowledged by the journals of a majority, and reads see what a majority has: the connection asks for that.

mod segment;
mod session;

use std::time::Duration;

use futures::TryStreamExt;
use mongodb::{
    Collection, Database,
    bson::{Bson, Document, RawDocumentBuf, doc},
    options::ReturnDocument,
};
use thiserror::Error;
use transcript_client::mongodb::{
    CommandError, CommandKind, WriteError,
    error_codes::{self, Class},
};
use transcript_core::{Failure, FailureKind, contract::SEGMENTS_COLLECTION, ids::Session};
use transcript_transcriber::{
    Effect, EffectKind, Fence, InstanceId, Orphan, Report, SavedSegment, TakenOver,
    document::{LEASES_COLLECTION, SESSIONS_COLLECTION, SessionState, StoredSegment},
};

use self::session::{End, NotFinished, Statement};
use crate::service::mongodb::{driver_error, reply};

/// How often upserts of one source that clashed with others at the same time are tried at once.
const CLASHES: usize = 5;

/// The collections, and how long they may take to answer.
#[derive(Debug, Clone)]
pub struct Store {
    database: Database,
    sessions: Collection<Document>,
    leases: Collection<Document>,
    segments: Collection<Document>,
    request_timeout: Duration,
}

/// A stored document that is not as it was written: the field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the session's document has no {0} that can be read")]
pub(crate) struct Unreadable(pub(crate) &'static str);

/// Why an effect failed.
#[derive(Debug)]
enum Failed {
    Command(CommandError),
    Unreadable(Unreadable),
}

impl From<CommandError> for Failed {
    fn from(error: CommandError) -> Self {
        Self::Command(error)
    }
}

impl From<Unreadable> for Failed {
    fn from(unreadable: Unreadable) -> Self {
        Self::Unreadable(unreadable)
    }
}

impl Store {
    /// The store in this database, whose commands fail after `request_timeout`.
    #[must_use]
    pub fn new(database: &Database, request_timeout: Duration) -> Self {
        Self {
            database: database.clone(),
            sessions: database.collection(SESSIONS_COLLECTION),
            leases: database.collection(LEASES_COLLECTION),
            segments: database.collection(SEGMENTS_COLLECTION),
            request_timeout,
        }
    }

    /// Performs an effect of the store; `None` where it is one of the stream.
    pub async fn perform(&self, effect: &Effect) -> Option<Report> {
        let report = match effect {
            Effect::OpenLease { instance, duration } => self.open_lease(instance, *duration).await,
            Effect::RenewLease { instance, duration } => self.renew_lease(instance, *duration).await,
            Effect::ReleaseLease { instance } => self.release_lease(instance).await,
            Effect::FindOrphans { limit, own } => self.find_orphans(*limit, own.as_ref()).await,
            Effect::Join { session, fence, transport, epochs } => {
                let statement = session::join(session, fence, *transport, epochs);
                match self.upsert(statement).await {
                    Ok(document) => session::joined(&document, &fence.instance, epochs)
                        .map(Report::Joined)
                        .map_err(Failed::Unreadable),
                    Err(error) => Err(error.into()),
                }
            }
            Effect::Reserve { session, fence, segments, from } => self.reserve(session, fence, segments, *from).await,
            Effect::Save { session, segments } => self.save(session, segments).await.map(Report::Saved),
            Effect::Leave { session, fence, silence, idle_others } => {
                let statement = session::leave(session, fence, *silence, *idle_others);
                match self.modify(statement, ReturnDocument::Before, None).await {
                    Ok(Some(before)) => session::left(&before, &fence.instance, *silence, *idle_others)
                        .map(Report::Left)
                        .map_err(Failed::Unreadable),
                    Ok(None) => Ok(Report::Gone),
                    Err(error) => Err(error.into()),
                }
            }
            Effect::Count { session } => self.count(session).await,
            Effect::Finish { session, fence, generation, saved, edits, published } => {
                let end = End { generation: *generation, saved: *saved, edits: *edits, published: published.as_ref() };
                self.finish(session, fence, &end).await
            }
            Effect::TakeOver { session, fence, from } => self.take_over(session, fence, from).await,
            Effect::PublishSegments { .. } | Effect::PublishEnd { .. } => return None,
        };
        Some(report.unwrap_or_else(|failed| Report::Failed(failure(effect.kind(), &failed))))
    }

    async fn open_lease(&self, instance: &InstanceId, duration: Duration) -> Result<Report, Failed> {
        let is_succeeded = doc! { "$eq": ["$state", "succeeded"] };
        let until = doc! { "$add": ["$$NOW", session::millis(duration)] };
        let set = doc! {
            "until": { "$cond": [is_succeeded, "$until", until] },
            "state": { "$ifNull": ["$state", "held"] },
        };
        let opened = self.leases.update_one(doc! { "_id": instance.as_str() }, vec![doc! { "$set": set }]).upsert(true);
        self.answer(opened).await?;
        Ok(Report::LeaseHeld)
    }

    async fn renew_lease(&self, instance: &InstanceId, duration: Duration) -> Result<Report, Failed> {
        let until = doc! { "$add": ["$$NOW", session::millis(duration)] };
        let found = self.set_until(instance, until).await?;
        Ok(if found { Report::LeaseHeld } else { Report::LeaseLost })
    }

    async fn release_lease(&self, instance: &InstanceId) -> Result<Report, Failed> {
        self.set_until(instance, "$$NOW").await?;
        Ok(Report::LeaseReleased)
    }

    /// Sets when a lease that is held expires; whether there is one.
    async fn set_until(&self, instance: &InstanceId, until: impl Into<Bson>) -> Result<bool, Failed> {
        let filter = doc! { "_id": instance.as_str(), "state": "held" };
        let set = self.leases.update_one(filter, vec![doc! { "$set": { "until": until.into() } }]);
        Ok(self.answer(set).await?.matched_count > 0)
    }

    /// The entries are read before the leases: an instance opens its lease before it is listed, so that an entry that is seen
    /// has a lease that is seen.
    async fn find_orphans(&self, limit: u32, own: Option<&InstanceId>) -> Result<Report, Failed> {
        let expired = doc! { "state": "held", "$expr": { "$lt": ["$until", "$$NOW"] } };
        self.answer(self.leases.update_many(expired, doc! { "$set": { "state": "succeeded" } })).await?;
        let listed = self.answer(self.sessions.distinct("instances.id", doc! {})).await?;
        let listed: Vec<&str> = listed.iter().filter_map(Bson::as_str).collect();
        let of_listed = doc! { "_id": { "$in": &listed }, "state": "held" };
        let held: Vec<Document> = self.all(self.leases.find(of_listed)).await?;
        let held: Vec<&str> = held.iter().filter_map(|lease| lease.get_str("_id").ok()).collect();
        let is_own = |id: &str| own.is_some_and(|own| own.as_str() == id);
        let dead: Vec<&str> = listed.iter().copied().filter(|id| !held.contains(id) || is_own(id)).collect();
        let unneeded = doc! { "_id": { "$nin": &listed }, "state": "succeeded" };
        self.answer(self.leases.delete_many(unneeded)).await?;
        if dead.is_empty() {
            return Ok(Report::Orphans(Vec::new()));
        }
        let found = self
            .sessions
            .find(doc! { "instances.id": { "$in": &dead } })
            .projection(doc! { "conversationId": 1, "sessionId": 1, "instances.id": 1 })
            .limit(i64::from(limit));
        let mut orphans = Vec::new();
        for document in self.all(found).await? {
            let session = session_of(&document)?;
            for entry in session::documents(&document, "instances") {
                let Some(id) = entry.get_str("id").ok().filter(|id| dead.contains(id)) else { continue };
                let instance = instance(id)?;
                orphans.push(Orphan { session: session.clone(), instance });
            }
        }
        orphans.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(Report::Orphans(orphans))
    }

    async fn reserve(
        &self,
        session: &Session,
        fence: &Fence,
        segments: &[StoredSegment],
        from: u64,
    ) -> Result<Report, Failed> {
        let statement = session::reserve(session, fence, segments, from);
        let fields = doc! { "nextIndex": 1, "writes": 1 };
        let Some(document) = self.modify(statement, ReturnDocument::After, Some(fields)).await? else {
            return Ok(Report::Gone);
        };
        let count = u64::try_from(segments.len()).unwrap_or(u64::MAX);
        let next = session::unsigned(&document, "nextIndex")?;
        let first_index = next.checked_sub(count).ok_or(Unreadable("nextIndex"))?;
        Ok(Report::Reserved { first_index, write: session::unsigned(&document, "writes")? })
    }

    /// Stores each segment; those that clash with the same segment of another writer are tried again.
    async fn save(&self, session: &Session, segments: &[StoredSegment]) -> Result<Vec<SavedSegment>, Failed> {
        let mut saved: Vec<Option<SavedSegment>> = vec![None; segments.len()];
        let mut left: Vec<usize> = (0..segments.len()).collect();
        for round in 1.. {
            let updates: Vec<Document> =
                left.iter().filter_map(|place| segments.get(*place)).map(|one| segment::upsert(session, one)).collect();
            let errors = self.update(updates).await?;
            let mut clashed = Vec::new();
            for error in errors {
                let Some(place) = left.get(error.place).copied() else { return Err(CommandError::Undecodable.into()) };
                let Some(slot) = saved.get_mut(place) else { continue };
                match judged(&error) {
                    Judged::IdTaken => *slot = Some(SavedSegment::IndexTaken { highest: self.highest(session).await? }),
                    Judged::Clash if round < CLASHES => clashed.push(place),
                    Judged::Clash => {
                        let reason =
                            "another conversation has a session of this id, and in it the same segment".to_owned();
                        *slot = Some(SavedSegment::Refused { reason });
                    }
                    Judged::Refused(reason) => *slot = Some(SavedSegment::Refused { reason }),
                    Judged::Failed => return Err(CommandError::Code(error.code).into()),
                }
            }
            if clashed.is_empty() {
                break;
            }
            left = clashed;
        }
        self.indexes(session, segments, saved).await
    }

    /// The indexes under which the segments are stored of which nothing else is known: that of the first text of a source is
    /// kept.
    async fn indexes(
        &self,
        session: &Session,
        segments: &[StoredSegment],
        saved: Vec<Option<SavedSegment>>,
    ) -> Result<Vec<SavedSegment>, Failed> {
        let sources: Vec<&str> = segments.iter().map(|segment| segment.source.as_str()).collect();
        let filter = doc! { "sessionId": &*session.session_id, "source": { "$in": sources } };
        let fields = doc! { "_id": 0, "source": 1, "index": 1 };
        let stored = self.all(self.segments.find(filter).projection(fields)).await?;
        let index = |segment: &StoredSegment| {
            let document = stored.iter().find(|document| session::is(document, "source", segment.source.as_str()));
            document.ok_or(Unreadable("source")).and_then(|document| session::unsigned(document, "index"))
        };
        let mut all = Vec::with_capacity(segments.len());
        for (segment, known) in segments.iter().zip(saved) {
            all.push(match known {
                Some(known) => known,
                None => SavedSegment::Stored { index: index(segment)? },
            });
        }
        Ok(all)
    }

    /// Runs upserts of segments, each with its own outcome.
    async fn update(&self, updates: Vec<Document>) -> Result<Vec<WriteError>, CommandError> {
        let command = doc! {
            "update": SEGMENTS_COLLECTION, "updates": updates, "ordered": false,
            "writeConcern": { "w": "majority", "j": true },
        };
        let answer = self.answer(self.database.run_command(command)).await?;
        let answer = RawDocumentBuf::try_from(&answer).map_err(|_| CommandError::Undecodable)?;
        let errors = reply::write_errors(&answer)?;
        match errors.concern {
            // Nobody knows whether what was written will last.
            Some(code) => Err(CommandError::Code(code)),
            None => Ok(errors.members),
        }
    }

    /// The highest index of a session's segments.
    async fn highest(&self, session: &Session) -> Result<u64, Failed> {
        let last = self
            .segments
            .find_one(doc! { "sessionId": &*session.session_id })
            .sort(doc! { "index": -1 })
            .projection(doc! { "_id": 0, "index": 1 });
        let last = self.answer(last).await?;
        Ok(last.and_then(|last| session::unsigned(&last, "index").ok()).unwrap_or(0))
    }

    async fn count(&self, session: &Session) -> Result<Report, Failed> {
        let group = doc! { "_id": null, "segments": { "$sum": 1_i64 }, "edits": { "$sum": "$edits" } };
        let stages = [doc! { "$match": { "sessionId": &*session.session_id } }, doc! { "$group": group }];
        let counted = self.all(self.segments.aggregate(stages)).await?;
        let number = |field| counted.first().map_or(Ok(0), |counted| session::unsigned(counted, field));
        Ok(Report::Counted { segments: number("segments")?, edits: number("edits")? })
    }

    async fn finish(&self, session: &Session, fence: &Fence, end: &End<'_>) -> Result<Report, Failed> {
        let statement = session::finish(session, fence, end);
        if self.modify(statement, ReturnDocument::After, Some(doc! { "_id": 1 })).await?.is_some() {
            return Ok(Report::Finished);
        }
        let found = self.sessions.find_one(session::of(&session.key()));
        let found = self.answer(found).await?;
        Ok(match session::not_finished(found.as_ref(), fence, end.generation) {
            NotFinished::Done => Report::Finished,
            NotFinished::Reopened => Report::Reopened,
            NotFinished::Gone => Report::Gone,
        })
    }

    async fn take_over(&self, session: &Session, fence: &Fence, from: &InstanceId) -> Result<Report, Failed> {
        let statement = session::take_over(session, fence, from);
        let Some(before) = self.modify(statement, ReturnDocument::Before, None).await? else {
            return Ok(Report::Gone);
        };
        let age = doc! { "age": { "$subtract": ["$$NOW", "$startedAt"] } };
        let stages = [doc! { "$match": session::of(&session.key()) }, doc! { "$project": age }];
        let age = self.all(self.sessions.aggregate(stages)).await?;
        let age = age.first().map_or(Ok(0), |document| session::unsigned(document, "age"))?;
        let entry = session::entry(&before, from)?;
        Ok(Report::TakenOver(TakenOver {
            joined: transcript_transcriber::Joined {
                next_index: session::unsigned(&before, "nextIndex")?,
                age: Duration::from_millis(age),
                epochs: Vec::new(),
            },
            state: state(&before)?,
            generation: session::unsigned(&before, "generation")?,
            transport: session::transport(entry),
            pending: session::batch(entry)?,
        }))
    }

    async fn upsert(&self, statement: Statement) -> Result<Document, CommandError> {
        let Statement { filter, pipeline } = statement;
        let written = self
            .sessions
            .find_one_and_update(filter, pipeline)
            .upsert(true)
            .return_document(ReturnDocument::After)
            .projection(session::join_projection());
        self.answer(written).await?.ok_or(CommandError::Undecodable)
    }

    async fn modify(
        &self,
        statement: Statement,
        returned: ReturnDocument,
        fields: Option<Document>,
    ) -> Result<Option<Document>, CommandError> {
        let Statement { filter, pipeline } = statement;
        let changed = self.sessions.find_one_and_update(filter, pipeline).return_document(returned);
        match fields {
            Some(fields) => self.answer(changed.projection(fields)).await,
            None => self.answer(changed).await,
        }
    }

    /// Waits for an answer of the driver, but not for ever.
    async fn answer<T>(&self, answer: impl IntoFuture<Output = mongodb::error::Result<T>>) -> Result<T, CommandError> {
        match tokio::time::timeout(self.request_timeout, answer.into_future()).await {
            Ok(answer) => answer.map_err(|error| driver_error::of(&error)),
            Err(_) => Err(CommandError::TimedOut),
        }
    }

    /// All documents of a cursor.
    async fn all(
        &self,
        cursor: impl IntoFuture<Output = mongodb::error::Result<mongodb::Cursor<Document>>>,
    ) -> Result<Vec<Document>, CommandError> {
        let cursor = cursor.into_future();
        self.answer(async { cursor.await?.try_collect().await }).await
    }
}

/// What an error of one upsert means.
enum Judged {
    /// Another segment has its `_id`.
    IdTaken,
    /// Another writer inserted the same segment at the same moment.
    Clash,
    /// The document will be refused again.
    Refused(String),
    /// Nothing is known of the document.
    Failed,
}

fn judged(error: &WriteError) -> Judged {
    match error_codes::class(error.code) {
        Class::Duplicate => match error.index.as_deref() {
            Some("_id_") => Judged::IdTaken,
            Some(_) | None => Judged::Clash,
        },
        Class::Refused => Judged::Refused(format!("MongoDB refused it: {}", error_codes::describe(error.code))),
        Class::Busy | Class::TimedOut | Class::Denied | Class::Unusable | Class::Unknown => Judged::Failed,
    }
}

fn failure(kind: EffectKind, failed: &Failed) -> Failure {
    match failed {
        Failed::Command(error) => {
            let command = if writes(kind) { CommandKind::Save } else { CommandKind::Count };
            Failure { kind: error.failure(command).kind, detail: format!("MongoDB did not {kind}: {error}") }
        }
        Failed::Unreadable(unreadable) => Failure { kind: FailureKind::Busy, detail: unreadable.to_string() },
    }
}

/// Whether an effect of the store changes documents.
fn writes(kind: EffectKind) -> bool {
    match kind {
        EffectKind::FindOrphans | EffectKind::Count => false,
        EffectKind::OpenLease
        | EffectKind::RenewLease
        | EffectKind::ReleaseLease
        | EffectKind::Join
        | EffectKind::Reserve
        | EffectKind::Save
        | EffectKind::Leave
        | EffectKind::Finish
        | EffectKind::TakeOver
        | EffectKind::PublishSegments
        | EffectKind::PublishEnd => true,
    }
}

fn session_of(document: &Document) -> Result<Session, Unreadable> {
    let id = |field: &'static str| document.get_str(field).map_err(|_| Unreadable(field));
    Session::new(id("conversationId")?, id("sessionId")?).map_err(|_| Unreadable("sessionId"))
}

/// An instance as the store names it.
fn instance(id: &str) -> Result<InstanceId, Unreadable> {
    serde_json::from_value(serde_json::Value::from(id)).map_err(|_| Unreadable("instances"))
}

fn state(document: &Document) -> Result<SessionState, Unreadable> {
    match document.get_str("state") {
        Ok("open") => Ok(SessionState::Open),
        Ok("ending") => Ok(SessionState::Ending),
        Ok("ended") => Ok(SessionState::Ended),
        Ok(_) | Err(_) => Err(Unreadable("state")),
    }
}
