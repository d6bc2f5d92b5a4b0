//! A call that is looked up on the page: the numbers of its summary, and with `--page-content` what was said.

use std::time::Duration;

use axum::{
    extract::{Query, State},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use mongodb::{
    Database,
    bson::{Document, doc},
};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use transcript_core::{
    Stored, WallTime,
    contract::{SEGMENTS_COLLECTION, SUMMARIES_COLLECTION},
    ids::Session,
    summary::Segment,
};

use super::http::{PageContent, Site, json};
use crate::{
    error_line::error_line,
    service::mongodb::reply::{number, stored},
    transcripts::show,
};

/// How long a session is looked up at the most.
const LOOK_UP: Duration = Duration::from_secs(5);
/// How many segments of a call are shown.
const MOST_SEGMENTS: u32 = 2000;
/// How many bytes of text are shown.
const MOST_TEXT: usize = 1 << 20;
/// How wide a summary is laid out, in columns.
const SUMMARY_WIDTH: usize = 80;

/// Which session is looked up: by its ids, or by its key as logs print it.
#[derive(Debug, Deserialize)]
pub(super) struct Wanted {
    conversation: Option<String>,
    session: Option<String>,
    key: Option<String>,
}

/// What is known of a call.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Found {
    key: String,
    #[serde(flatten)]
    session: Session,
    #[serde(flatten)]
    stored: Stored,
    published_segments: u64,
    /// How many segments are stored now.
    segments_now: u64,
    updated_at: Option<WallTime>,
    /// The summary for people; absent where it is not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<String>,
    /// The segments in the order of the call; absent where they are not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    transcript: Option<Vec<Line>>,
}

/// A segment that is shown.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    index: Option<i64>,
    start_ms: Option<i64>,
    speaker: Option<String>,
    text: String,
}

impl Wanted {
    fn session(&self) -> Result<Session, String> {
        match self {
            Self { key: Some(key), .. } => Session::of_key(key).map_err(|error| format!("this is no key: {error}")),
            Self { conversation: Some(conversation), session: Some(session), .. } => {
                Session::new(conversation, session).map_err(|error| error.to_string())
            }
            Self { .. } => Err("name a call: ?key=, or ?conversation= and ?session=".to_owned()),
        }
    }
}

pub(super) async fn look_up(State(site): State<Site>, Query(wanted): Query<Wanted>) -> Response {
    let plain = |status: StatusCode, text: String| {
        (status, [(CONTENT_TYPE, "text/plain; charset=utf-8")], format!("{text}\n")).into_response()
    };
    let session = match wanted.session() {
        Ok(session) => session,
        Err(error) => return plain(StatusCode::BAD_REQUEST, error),
    };
    let found = find(&site.monitor().parts().database, session, site.content());
    match timeout(LOOK_UP, found).await {
        Ok(Ok(Some(found))) => json(serde_json::to_string(&found)),
        Ok(Ok(None)) => plain(StatusCode::NOT_FOUND, "there is no summary of this session".to_owned()),
        Ok(Err(error)) => plain(StatusCode::BAD_GATEWAY, error_line(&error)),
        Err(_) => plain(StatusCode::GATEWAY_TIMEOUT, "MongoDB does not answer".to_owned()),
    }
}

async fn find(
    database: &Database,
    session: Session,
    content: PageContent,
) -> Result<Option<Found>, mongodb::error::Error> {
    let key = session.key();
    let summaries = database.collection::<mongodb::bson::RawDocumentBuf>(SUMMARIES_COLLECTION);
    let Some(document) = summaries.find_one(doc! { "_id": key.as_str() }).await? else { return Ok(None) };
    let segments = database.collection::<Document>(SEGMENTS_COLLECTION);
    let of_session = doc! { "sessionId": &*session.session_id };
    let segments_now = segments.count_documents(of_session).await?;
    let (summary, transcript) = match content {
        PageContent::Hidden => (None, None),
        PageContent::Shown => {
            let whole = Document::try_from(document.as_ref()).ok();
            let text = whole.and_then(|whole| show::render(&whole, SUMMARY_WIDTH).ok());
            (text, Some(transcript(database, &session).await?))
        }
    };
    let at = document.get_datetime("updatedAt").ok();
    Ok(Some(Found {
        key: key.to_string(),
        session,
        stored: stored(&document),
        published_segments: number(document.get("publishedSegments").ok().flatten()),
        segments_now,
        updated_at: at.map(|at| WallTime::from_millis(at.timestamp_millis())),
        summary,
        transcript,
    }))
}

/// The first segments of a call in its order.
async fn transcript(database: &Database, session: &Session) -> Result<Vec<Line>, mongodb::error::Error> {
    let segments = show::transcript(database, session, Some(MOST_SEGMENTS)).await?;
    let mut room = MOST_TEXT;
    let fits = |segment: &Segment| {
        let fits = segment.text.len() <= room;
        room = room.saturating_sub(segment.text.len());
        fits
    };
    let line = |Segment { index, start_ms, speaker, text, .. }| Line { index, start_ms, speaker, text };
    Ok(segments.into_iter().take_while(fits).map(line).collect())
}
