//! `reprocess`: a call is processed again on purpose, because somebody has corrected its transcript.
//!
//! It is one message: an end of the call whose payload has `reprocess`, how often that was asked for. A summary that was made
//! for a lower number gives way to one of the same version of the segments, also where it was announced, and keeps the number. So a
//! request does its work once, however often it is delivered, and whoever dies over it: the summary says whether it was
//! answered. Asking again before the answer is the same request: it has the same `Nats-Msg-Id`.

use async_nats::jetstream::Context;
use bytes::Bytes;
use mongodb::Database;
use serde::Serialize;
use thiserror::Error;
use transcript_core::{Failure, TranscriptVersion, contract::reprocess_id, event::SessionEnded, ids::Session};

use super::{
    audit::summaries::{Found, Summaries},
    history::{History, HistoryError},
};

/// Why a call is not processed again.
#[derive(Debug, Error)]
pub enum ReprocessError {
    /// There is no summary.
    #[error(
        "there is no summary of {key}: `transcript-processor calls` says what became of the call, and `dead-letters \
         redrive` publishes the end of one that was given up"
    )]
    Missing {
        /// The call.
        key: String,
    },
    /// It is not announced yet.
    #[error(
        "the summary of {key} is not announced yet: a processor still works on the call, and reads what is stored now"
    )]
    NotAnnounced {
        /// The call.
        key: String,
    },
    /// The store has fewer segments than the summary, or as many that were changed less often.
    #[error(
        "{} segments of {key} are stored, with {} edits, and its summary is of {}, with {}: a summary never goes back. Store \
         the missing segments and the edits first; or, if they are to be gone, delete the summary from \
         transcriptsummaries, and publish the end again",
        stored.segments, stored.edits, summarised.segments, summarised.edits
    )]
    Fewer {
        /// The call.
        key: String,
        /// Which version of them is stored.
        stored: TranscriptVersion,
        /// Of which one the summary is.
        summarised: TranscriptVersion,
    },
    /// MongoDB cannot be asked.
    #[error("MongoDB does not tell what is stored of the call: {0}")]
    Store(Failure),
    /// The stream does not take the request.
    #[error(transparent)]
    Stream(#[from] HistoryError),
    /// The request cannot be written.
    #[error("the request cannot be written")]
    Encode(#[from] serde_json::Error),
}

/// A request that is in the stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Requested {
    /// The call.
    pub key: String,
    /// How often it was asked for, this time included.
    pub request: u64,
    /// The place of the request in the stream.
    pub stream_sequence: u64,
    /// Whether it was there before, and is not answered yet.
    pub before: bool,
    /// The revision that the stored summary is; the answer is a later one.
    pub revision: u64,
}

/// Asks for a call to be processed again.
///
/// # Errors
///
/// See [`ReprocessError`]. Where the stream does not answer, the request may have been stored all the same; repeating it does
/// no harm.
pub async fn request(js: &Context, database: &Database, session: &Session) -> Result<Requested, ReprocessError> {
    let key = session.key();
    let named = || key.to_string();
    let summaries = Summaries::of(database);
    let found = summaries.find(std::iter::once(key.as_str())).await.map_err(ReprocessError::Store)?;
    let Found { ended, stored } =
        found.get(key.as_str()).cloned().ok_or_else(|| ReprocessError::Missing { key: named() })?;
    if stored.notified.is_none() {
        return Err(ReprocessError::NotAnnounced { key: named() });
    }
    let versions = summaries.versions(std::iter::once(&*session.session_id)).await.map_err(ReprocessError::Store)?;
    let version = versions.get(&*session.session_id).copied().unwrap_or_default();
    if version < stored.version() {
        return Err(ReprocessError::Fewer { key: named(), stored: version, summarised: stored.version() });
    }
    let reprocess = stored.reprocess.saturating_add(1);
    let published_segments = ended.map_or(stored.segments, |ended| ended.published_segments);
    let end = SessionEnded { session: session.clone(), published_segments, reprocess };
    let payload = Bytes::from(serde_json::to_vec(&end)?);
    let published = History::open(js).await?.publish_end(reprocess_id(&key, reprocess), payload).await?;
    Ok(Requested {
        key: named(),
        request: reprocess,
        stream_sequence: published.sequence,
        before: published.before,
        revision: stored.revision,
    })
}
