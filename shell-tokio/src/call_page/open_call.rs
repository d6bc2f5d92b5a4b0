//! The call that whoever opens the plain address joins.

use std::time::Duration;

use mongodb::{
    Database,
    bson::{Document, doc, oid::ObjectId},
};
use tokio::{sync::Mutex, time::timeout};
use transcript_core::{contract::SUMMARIES_COLLECTION, ids::Session};

/// The conversation of a call whose address names none; `page.js` says the same.
const CONVERSATION: &str = "try-out";
/// How long the store may take to say whether a call is over. Where it says nothing, the call counts as open.
const ANSWER: Duration = Duration::from_secs(1);

/// One open call at a time. The next one begins once this one has a summary.
#[derive(Debug)]
pub(super) struct OpenCall {
    session_id: Mutex<String>,
}

impl Default for OpenCall {
    fn default() -> Self {
        Self { session_id: Mutex::new(new_id()) }
    }
}

impl OpenCall {
    /// The session of the call that is open now.
    pub(super) async fn session_id(&self, database: &Database) -> String {
        let mut session_id = self.session_id.lock().await;
        if is_over(database, &session_id).await {
            *session_id = new_id();
        }
        session_id.clone()
    }
}

/// An id that no other start of this command gives.
fn new_id() -> String {
    ObjectId::new().to_hex()
}

async fn is_over(database: &Database, session_id: &str) -> bool {
    let Ok(session) = Session::new(CONVERSATION, session_id) else { return false };
    let summaries = database.collection::<Document>(SUMMARIES_COLLECTION);
    let summary = summaries.find_one(doc! { "_id": session.key().as_str() }).projection(doc! { "_id": 1 });
    matches!(timeout(ANSWER, async { summary.await }).await, Ok(Ok(Some(_))))
}
