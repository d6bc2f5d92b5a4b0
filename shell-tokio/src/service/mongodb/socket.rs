//! Runs the client's commands. It reads from the primary and only what a majority has, whatever the connection string asks
//! for, and writes are acknowledged once they are on the journals of a majority: an unjournaled write can be lost when a
//! server is killed.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::TryStreamExt;
use mongodb::{
    Collection, Cursor, Database,
    bson::{Bson, RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, doc, rawdoc},
    options::{CollectionOptions, ReadConcern, ReadPreference, RunCursorCommandOptions, SelectionCriteria},
};
use transcript_client::mongodb::{Command, CommandError, Mark, Missing, Reply, WriteErrors};
use transcript_core::{
    TranscriptVersion,
    contract::{SEGMENTS_COLLECTION, SUMMARIES_COLLECTION},
    ids::Key,
    summary::Summary,
};

use super::{
    driver_error,
    page::{BEYOND, PageQuery},
    reply, statement,
};

/// So many documents come with the first answer of a query, where a server would send 101 and have the rest asked for; it
/// ends an answer at 16 MiB all the same.
pub(super) const ONE_BATCH: u32 = 10_000;

/// A database, and how long it may take to answer.
#[derive(Debug, Clone)]
pub(crate) struct Socket {
    database: Database,
    /// How long an answer is waited for. The driver itself would wait for ever on a server that is frozen.
    request_timeout: Duration,
}

impl Socket {
    pub(crate) fn new(database: &Database, request_timeout: Duration) -> Self {
        Self { database: database.clone(), request_timeout }
    }

    pub(super) async fn run(&self, command: Command) -> Reply {
        let reply = match command {
            Command::Count { sessions } => self.count(&sessions).await.map(Reply::Counted),
            Command::LoadSmall { calls, max_segments, max_bytes } => self.small(&calls, max_segments, max_bytes).await,
            Command::Tally { session_id } => self.tally(&session_id).await.map(Reply::Tallied),
            Command::Page { session_id, order, place, numbers, limit, max_bytes } => {
                let query = PageQuery { session_id: &session_id, order, place: &place, numbers, limit };
                self.page(&query, max_bytes).await.map(Reply::Page)
            }
            Command::Save { summaries, missing } => self.save(&summaries, missing).await.map(Reply::Written),
            Command::ReadBack { keys } => self.read_back(&keys).await,
            Command::Mark { marks } => self.mark(&marks).await.map(Reply::Written),
        };
        reply.unwrap_or_else(Reply::Failed)
    }

    pub(crate) fn segments(&self) -> Collection<RawDocumentBuf> {
        self.database.collection_with_options(SEGMENTS_COLLECTION, of_the_majority())
    }

    pub(crate) fn summaries(&self) -> Collection<RawDocumentBuf> {
        self.database.collection_with_options(SUMMARIES_COLLECTION, of_the_majority())
    }

    /// Waits for an answer of the driver, but not for ever.
    pub(crate) async fn answer<T>(
        &self,
        answer: impl IntoFuture<Output = mongodb::error::Result<T>>,
    ) -> Result<T, CommandError> {
        match tokio::time::timeout(self.request_timeout, answer.into_future()).await {
            Ok(answer) => answer.map_err(|error| driver_error::of(&error)),
            Err(_) => Err(CommandError::TimedOut),
        }
    }

    /// Runs a read that is written as raw BSON, because its values may be no valid text.
    pub(super) async fn cursor(
        &self,
        command: RawDocumentBuf,
    ) -> Result<Cursor<mongodb::bson::Document>, CommandError> {
        let primary = SelectionCriteria::ReadPreference(ReadPreference::Primary);
        let options = RunCursorCommandOptions::builder().selection_criteria(primary).build();
        self.answer(self.database.run_raw_cursor_command(command).with_options(options)).await
    }

    async fn count(&self, sessions: &[Arc<str>]) -> Result<Vec<u64>, CommandError> {
        let counts = self.counts(sessions.iter().map(|session| &**session)).await?;
        Ok(sessions.iter().map(|session| counts.get(&**session).copied().unwrap_or(0)).collect())
    }

    /// How many segments each session has; those of none are left out.
    pub(crate) async fn counts(
        &self,
        sessions: impl IntoIterator<Item = &str>,
    ) -> Result<BTreeMap<String, u64>, CommandError> {
        let sessions: Vec<Bson> = sessions.into_iter().map(Bson::from).collect();
        // Answered from an index alone.
        let pipeline = [
            doc! { "$match": { "sessionId": { "$in": sessions } } },
            doc! { "$group": { "_id": "$sessionId", "segments": { "$sum": 1 } } },
        ];
        let groups: Vec<RawDocumentBuf> = self
            .answer(async {
                self.segments().aggregate(pipeline).batch_size(ONE_BATCH).with_type().await?.try_collect().await
            })
            .await?;
        Ok(groups.iter().filter_map(|group| Some((group.get_str("_id").ok()?.to_owned(), counted(group)?))).collect())
    }

    /// Which version of its segments each session has; sessions without segments are left out.
    pub(crate) async fn versions(
        &self,
        sessions: impl IntoIterator<Item = &str> + Clone,
    ) -> Result<BTreeMap<String, TranscriptVersion>, CommandError> {
        let edits = self.edits(sessions.clone()).await?;
        let counts = self.counts(sessions).await?.into_iter();
        Ok(counts
            .map(|(session, segments)| {
                let edits = edits.get(&session).copied().unwrap_or(0);
                (session, TranscriptVersion { segments, edits })
            })
            .collect())
    }

    /// How often the segments of each session were changed; sessions without changed ones are left out.
    pub(super) async fn edits(
        &self,
        sessions: impl IntoIterator<Item = &str>,
    ) -> Result<BTreeMap<String, u64>, CommandError> {
        let named: Vec<Bson> = sessions.into_iter().map(Bson::from).collect();
        // Answered from the index of the changed segments alone. A number is read as a segment's is.
        let is_number = doc! { "$in": [{ "$type": "$edits" }, ["int", "long", "double"]] };
        let whole = doc! { "$toLong": { "$floor": "$edits" } };
        let edits = doc! { "$cond": [{ "$and": [is_number, { "$lt": ["$edits", BEYOND] }] }, whole, 0_i64] };
        let pipeline = [
            doc! { "$match": { "sessionId": { "$in": named }, "edits": { "$gt": 0 } } },
            doc! { "$group": { "_id": "$sessionId", "edits": { "$sum": edits } } },
        ];
        let edits: Vec<RawDocumentBuf> = self
            .answer(async {
                self.segments().aggregate(pipeline).batch_size(ONE_BATCH).with_type().await?.try_collect().await
            })
            .await?;
        let edits = edits.iter().filter_map(|group| {
            Some((group.get_str("_id").ok()?.to_owned(), reply::number(group.get("edits").ok().flatten())))
        });
        Ok(edits.collect())
    }

    async fn save(&self, summaries: &[Arc<Summary>], missing: Missing) -> Result<WriteErrors, CommandError> {
        let mut updates = RawArrayBuf::new();
        for summary in summaries {
            let new = statement::encode(summary)?;
            updates.push(statement::upsert(summary, &new, missing));
        }
        self.update(updates).await
    }

    async fn read_back(&self, keys: &[Key]) -> Result<Reply, CommandError> {
        let keys: Vec<Bson> = keys.iter().map(|key| Bson::from(key.as_str())).collect();
        let fields = doc! {
            "segments": 1, "edits": 1, "complete": 1, "notified": 1, "revision": 1, "revised.revision": 1,
            "reprocess": 1,
        };
        let found: Vec<RawDocumentBuf> = self
            .answer(async {
                let summaries = self.summaries();
                let find = summaries.find(doc! { "_id": { "$in": keys } }).projection(fields);
                find.batch_size(ONE_BATCH).await?.try_collect().await
            })
            .await?;
        let stored = found
            .iter()
            .filter_map(|document| Some((document.get_str("_id").ok()?.to_owned(), reply::stored(document))));
        Ok(Reply::ReadBack(stored.collect()))
    }

    async fn mark(&self, marks: &[Mark]) -> Result<WriteErrors, CommandError> {
        self.update(marks.iter().map(statement::mark).collect()).await
    }

    /// Runs updates of summaries, each with its own outcome.
    async fn update(&self, updates: RawArrayBuf) -> Result<WriteErrors, CommandError> {
        let command = rawdoc! {
            "update": SUMMARIES_COLLECTION,
            "updates": updates,
            "ordered": false,
            "writeConcern": { "w": "majority", "j": true, "wtimeout": 10_000 },
        };
        let answer = tokio::time::timeout(self.request_timeout, self.database.run_raw_command(command).into_future());
        match answer.await {
            Ok(Ok(answer)) => {
                let answer = RawDocumentBuf::try_from(&answer).map_err(|_| CommandError::Undecodable)?;
                reply::write_errors(&answer)
            }
            // The driver reads texts strictly; the reply is there all the same.
            Ok(Err(error)) => match error.server_response().filter(|answer| is_ok(answer)) {
                Some(answer) => reply::write_errors(answer),
                None => Err(driver_error::of(&error)),
            },
            Err(_) => Err(CommandError::TimedOut),
        }
    }
}

fn of_the_majority() -> CollectionOptions {
    let mut options = CollectionOptions::default();
    options.selection_criteria = Some(SelectionCriteria::ReadPreference(ReadPreference::Primary));
    options.read_concern = Some(ReadConcern::majority());
    options
}

/// Whether the command was carried out.
fn is_ok(answer: &RawDocument) -> bool {
    let ok = answer.get("ok").ok().flatten();
    ok.is_some_and(|ok| ok.as_f64() == Some(1.0) || ok.as_i32() == Some(1) || ok.as_i64() == Some(1))
}

fn counted(group: &RawDocument) -> Option<u64> {
    let segments = group.get("segments").ok()??;
    let number = segments.as_i32().map(i64::from).or_else(|| RawBsonRef::as_i64(segments));
    number.and_then(|n| u64::try_from(n).ok())
}
