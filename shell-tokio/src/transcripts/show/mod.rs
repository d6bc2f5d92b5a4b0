//! `show`: a stored summary, for people or as it is stored.

mod render;
mod transcript;

use mongodb::{
    Database,
    bson::{Bson, Document, doc},
};
use serde::{Serialize, Serializer};
use thiserror::Error;
use transcript_core::{contract::SUMMARIES_COLLECTION, ids::Session};

pub use self::{
    render::render,
    transcript::{render_transcript, transcript},
};
use crate::terminal::harmless_json;

/// Why there is nothing to show.
#[derive(Debug, Error)]
pub enum ShowError {
    /// No such summary.
    #[error(
        "there is no summary of session {session:?} of conversation {conversation:?} in {database}.{SUMMARIES_COLLECTION}: \
         `transcript-processor audit` says whether the call is under way, was given up, or never ended"
    )]
    Missing {
        /// The database that was asked.
        database: String,
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
        database: db.name().to_owned(),
        conversation: session.conversation_id.to_string(),
        session: session.session_id.to_string(),
    })
}

/// The document in MongoDB's relaxed extended JSON, indented, with its fields in the order in which they are stored.
#[must_use]
pub fn to_json(document: Document) -> String {
    json(&Relaxed(Bson::Document(document))).expect("a document can be written as JSON")
}

/// The value in JSON, indented, with everything escaped that a terminal would obey.
///
/// # Errors
///
/// See [`serde_json::to_string_pretty`].
pub fn json<T: Serialize>(value: &T) -> serde_json::Result<String> {
    Ok(harmless_json(&serde_json::to_string_pretty(value)?))
}

/// The value in JSON on one line, escaped likewise.
///
/// # Errors
///
/// See [`serde_json::to_string`].
pub fn json_line<T: Serialize>(value: &T) -> serde_json::Result<String> {
    Ok(harmless_json(&serde_json::to_string(value)?))
}

/// `Bson::into_relaxed_extjson` sorts the fields of a document by name; this keeps their order.
struct Relaxed(Bson);

#[expect(clippy::wildcard_enum_match_arm, reason = "only what holds fields is asked about")]
impl Serialize for Relaxed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Bson::Document(fields) => {
                serializer.collect_map(fields.iter().map(|(name, value)| (name, Self(value.clone()))))
            }
            Bson::Array(items) => serializer.collect_seq(items.iter().map(|item| Self(item.clone()))),
            scalar => scalar.clone().into_relaxed_extjson().serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::DateTime;

    use super::*;

    #[test]
    fn json_keeps_the_order_of_the_fields() {
        let document = doc! {
            "_id": "c:s", "words": 7_i64, "b": [{ "z": 1, "a": Bson::Null }], "at": DateTime::from_millis(0), "half": 0.5,
        };
        assert_eq!(
            to_json(document).split_whitespace().collect::<String>(),
            r#"{"_id":"c:s","words":7,"b":[{"z":1,"a":null}],"at":{"$date":"1970-01-01T00:00:00Z"},"half":0.5}"#
        );
    }
}
