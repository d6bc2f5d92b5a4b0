//! Look-ups in the store.

use std::{collections::BTreeMap, time::Duration};

use futures::TryStreamExt;
use mongodb::{
    Database,
    bson::{Bson, Document, RawDocument, RawDocumentBuf, doc},
};
use transcript_client::mongodb::{CommandError, CommandKind};
use transcript_core::{Failure, Stored, TranscriptVersion, event::SessionEnded};

use crate::service::mongodb::{
    reply::{number, stored},
    socket::Socket,
    stale::session,
};

/// How many summaries are asked for in one command.
pub const BATCH: usize = 1000;
/// How long an answer is waited for. A command that looks through all summaries takes its time.
const ANSWER_WITHIN: Duration = Duration::from_secs(300);

/// The summaries and the segments, for reading.
#[derive(Debug, Clone)]
pub struct Summaries {
    socket: Socket,
}

/// What is stored of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The call, as its summary tells its end; `None` where the document names none.
    pub ended: Option<SessionEnded>,
    /// The summary.
    pub stored: Stored,
}

impl Summaries {
    /// Those of `database`.
    #[must_use]
    pub fn of(database: &Database) -> Self {
        Self { socket: Socket::new(database, ANSWER_WITHIN) }
    }

    /// The summaries of these keys, by key.
    ///
    /// # Errors
    ///
    /// MongoDB does not answer.
    pub async fn find(&self, keys: impl Iterator<Item = &str>) -> Result<BTreeMap<String, Found>, Failure> {
        let keys: Vec<Bson> = keys.map(Bson::from).collect();
        let fields = doc! {
            "conversationId": 1, "sessionId": 1, "segments": 1, "edits": 1, "publishedSegments": 1, "complete": 1,
            "notified": 1, "revision": 1, "revised.revision": 1, "reprocess": 1,
        };
        let found: Vec<RawDocumentBuf> = self
            .socket
            .answer(async {
                let summaries = self.socket.summaries();
                summaries.find(doc! { "_id": { "$in": keys } }).projection(fields).await?.try_collect().await
            })
            .await
            .map_err(unread)?;
        Ok(found
            .iter()
            .filter_map(|document| Some((document.get_str("_id").ok()?.to_owned(), read(document))))
            .collect())
    }

    /// Which version of its segments each session has; sessions without segments are left out.
    ///
    /// # Errors
    ///
    /// MongoDB does not answer.
    pub async fn versions(
        &self,
        sessions: impl Iterator<Item = &str> + Clone,
    ) -> Result<BTreeMap<String, TranscriptVersion>, Failure> {
        self.socket.versions(sessions).await.map_err(|error| error.failure(CommandKind::Count))
    }

    /// Hands the keys of all summaries without a mark to `each`; documents that are no summaries of ours are left out.
    ///
    /// # Errors
    ///
    /// MongoDB does not answer.
    pub async fn unmarked(&self, mut each: impl FnMut(&str)) -> Result<(), Failure> {
        let find = async {
            let summaries = self.socket.summaries();
            let fields = doc! { "conversationId": 1, "sessionId": 1 };
            summaries.find(doc! { "notified": { "$exists": false } }).projection(fields).await
        };
        let mut cursor = self.socket.answer(find).await.map_err(unread)?;
        while let Some(document) = self.socket.answer(cursor.try_next()).await.map_err(unread)? {
            if let Some(session) = session(&document) {
                each(session.key().as_str());
            }
        }
        Ok(())
    }
}

impl Summaries {
    /// Removes the mark that names the message at `place`, if the summary has that one.
    ///
    /// # Errors
    ///
    /// MongoDB does not answer, or refuses.
    pub async fn unmark(&self, key: &str, place: u64) -> Result<(), Failure> {
        self.change_mark(key, place, doc! { "$unset": { "notified": "" } }).await
    }

    /// Has the mark that names the message at `from` name the one at `to`, if the summary has that one.
    ///
    /// # Errors
    ///
    /// MongoDB does not answer, or refuses.
    pub async fn correct_mark(&self, key: &str, from: u64, to: u64) -> Result<(), Failure> {
        let change = doc! { "$set": { "notified.streamSequence": place_in_stream(to) } };
        self.change_mark(key, from, change).await
    }

    async fn change_mark(&self, key: &str, from: u64, change: Document) -> Result<(), Failure> {
        let summary = doc! { "_id": key, "notified.streamSequence": place_in_stream(from) };
        let changed = self.socket.answer(async { self.socket.summaries().update_one(summary, change).await }).await;
        changed.map(drop).map_err(|error| error.failure(CommandKind::Mark))
    }
}

fn place_in_stream(place: u64) -> i64 {
    i64::try_from(place).unwrap_or(i64::MAX)
}

fn unread(error: CommandError) -> Failure {
    error.failure(CommandKind::ReadBack)
}

fn read(document: &RawDocument) -> Found {
    let published_segments = number(document.get("publishedSegments").ok().flatten());
    Found {
        ended: session(document).map(|session| SessionEnded { session, published_segments, reprocess: 0 }),
        stored: stored(document),
    }
}
