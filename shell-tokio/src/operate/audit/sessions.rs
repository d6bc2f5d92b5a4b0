//! Sessions of transcribers that have no end.
//!
//! A session is a document that names the transcribers that serve it, and each transcriber holds a lease for as long as it
//! lives. When it dies, another one takes its sessions over and ends them. Where no other one runs, they have no end: nobody
//! summarises them, and nothing in the stream says that they were there.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::TryStreamExt;
use mongodb::{
    Collection, Database,
    bson::{Bson, Document, doc},
};
use transcript_client::mongodb::{CommandError, CommandKind};
use transcript_core::Failure;
use transcript_transcriber::document::{LEASES_COLLECTION, SESSIONS_COLLECTION};

use crate::service::mongodb::driver_error;

/// How long an answer is waited for. A command that looks through all sessions takes its time.
const ANSWER_WITHIN: Duration = Duration::from_secs(300);

/// The documents of sessions, for reading.
#[derive(Debug, Clone)]
pub(super) struct Sessions {
    sessions: Collection<Document>,
    leases: Collection<Document>,
}

/// What is to be known of a session that has no end, or perhaps none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unended {
    /// Its transcribers are dead, and no other one runs; or it names none.
    Abandoned,
    /// Its transcribers are dead, and one that runs is to end it.
    Awaited,
    /// It has ended, and its end is not in the stream. Whether it was processed all the same, its summary says.
    Unpublished,
}

/// Which sessions are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// All of them.
    All,
    /// Those that have not ended.
    Open,
}

/// A session, as far as its document tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// It has not ended, and no transcriber that lives serves it.
    Unserved(Unended),
    /// It has ended; the place of its end in the stream, 0 where it was not published.
    Ended(u64),
}

impl Sessions {
    pub(super) fn of(database: &Database) -> Self {
        Self { sessions: database.collection(SESSIONS_COLLECTION), leases: database.collection(LEASES_COLLECTION) }
    }

    /// Hands every session that nobody serves, and every ended one where those are wanted, to `each`.
    ///
    /// The sessions are read before the leases: a transcriber opens its lease before it is listed.
    pub(super) async fn each(&self, wanted: Wanted, mut each: impl FnMut(&str, Told)) -> Result<(), Failure> {
        let filter = match wanted {
            Wanted::All => doc! {},
            Wanted::Open => doc! { "state": { "$ne": "ended" } },
        };
        let fields = doc! { "state": 1, "instances.id": 1, "published.streamSequence": 1 };
        let mut cursor = answer(self.sessions.find(filter).projection(fields)).await?;
        let mut open = vec![];
        while let Some(document) = answer(cursor.try_next()).await? {
            let Ok(key) = document.get_str("_id") else { continue };
            if document.get_str("state").is_ok_and(|state| state == "ended") {
                each(key, Told::Ended(published(&document)));
            } else {
                open.push((key.to_owned(), instances(&document)));
            }
        }
        if open.is_empty() {
            return Ok(());
        }
        let living = self.living().await?;
        for (key, instances) in open {
            if instances.iter().any(|instance| living.contains(instance)) {
                continue;
            }
            let is_found = !living.is_empty() && !instances.is_empty();
            each(&key, Told::Unserved(if is_found { Unended::Awaited } else { Unended::Abandoned }));
        }
        Ok(())
    }

    /// The instances of transcribers that live.
    pub(super) async fn living(&self) -> Result<BTreeSet<String>, Failure> {
        let holds = doc! { "state": "held", "$expr": { "$gte": ["$until", "$$NOW"] } };
        let cursor = answer(self.leases.find(holds).projection(doc! { "_id": 1 })).await?;
        let leases: Vec<Document> = answer(cursor.try_collect()).await?;
        Ok(leases.iter().filter_map(|lease| lease.get_str("_id").ok().map(str::to_owned)).collect())
    }

    /// How these sessions stand, by key.
    pub(super) async fn standing(&self, keys: &[&str]) -> Result<BTreeMap<String, Standing>, Failure> {
        let fields = doc! { "state": 1, "generation": 1, "instances.id": 1 };
        let cursor = answer(self.sessions.find(doc! { "_id": { "$in": keys } }).projection(fields)).await?;
        let found: Vec<Document> = answer(cursor.try_collect()).await?;
        let told = |document: &Document| {
            let key = document.get_str("_id").ok()?.to_owned();
            let has_ended = document.get_str("state").is_ok_and(|state| state == "ended");
            let ended = has_ended.then(|| document.get_i64("generation").unwrap_or(0));
            Some((key, Standing { ended, is_listed: !instances(document).is_empty() }))
        };
        Ok(found.iter().filter_map(told).collect())
    }
}

/// How a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Standing {
    /// Which end it was, where it has ended.
    pub(super) ended: Option<i64>,
    /// Whether its document names a transcriber.
    pub(super) is_listed: bool,
}

fn instances(document: &Document) -> Vec<String> {
    let entries = document.get_array("instances").map(Vec::as_slice).unwrap_or_default();
    let id = |entry: &Bson| entry.as_document()?.get_str("id").ok().map(str::to_owned);
    entries.iter().filter_map(id).collect()
}

/// The place of the end in the stream; 0 where there is none.
fn published(document: &Document) -> u64 {
    let published = document.get_document("published").ok().and_then(|published| published.get("streamSequence"));
    let place = published.and_then(|place| place.as_i64().or_else(|| place.as_i32().map(i64::from)));
    place.and_then(|place| u64::try_from(place).ok()).unwrap_or(0)
}

async fn answer<T>(answer: impl IntoFuture<Output = mongodb::error::Result<T>>) -> Result<T, Failure> {
    let answered = match tokio::time::timeout(ANSWER_WITHIN, answer.into_future()).await {
        Ok(answered) => answered.map_err(|error| driver_error::of(&error)),
        Err(_) => Err(CommandError::TimedOut),
    };
    answered.map_err(|error| error.failure(CommandKind::ReadBack))
}
