//! `show`: a stored summary, for people or as it is stored.

mod render;

use mongodb::{
    Database,
    bson::{Bson, Document, doc},
};
use thiserror::Error;
use transcript_core::{contract::SUMMARIES_COLLECTION, ids::Session};

pub use self::render::{harmless, render};

/// Why there is nothing to show.
#[derive(Debug, Error)]
pub enum ShowError {
    /// No such summary.
    #[error("there is no summary of session {session:?} of conversation {conversation:?} in {SUMMARIES_COLLECTION}")]
    Missing {
        /// The conversation asked for.
        conversation: String,
        /// The session asked for.
        session: String,
    },
    /// MongoDB could not be asked.
    #[error("cannot read from {SUMMARIES_COLLECTION}")]
    Read(#[from] mongodb::error::Error),
    /// The document is no summary.
    #[error("the document is no summary; --json shows it as it is stored")]
    NoSummary(#[from] mongodb::bson::error::Error),
}

/// The document as it is stored.
///
/// # Errors
///
/// [`ShowError::Missing`] and [`ShowError::Read`].
pub async fn load(db: &Database, session: &Session) -> Result<Document, ShowError> {
    let found =
        db.collection::<Document>(SUMMARIES_COLLECTION).find_one(doc! { "_id": session.key().as_str() }).await?;
    found.ok_or_else(|| ShowError::Missing {
        conversation: session.conversation_id.to_string(),
        session: session.session_id.to_string(),
    })
}

/// The document in MongoDB's relaxed extended JSON, indented.
#[must_use]
pub fn to_json(document: Document) -> String {
    format!("{:#}", Bson::Document(document).into_relaxed_extjson())
}
