//! What one window is told: segments as they are stored, the summary, and whether the store can be reached.

use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    time::Duration,
};

use axum::response::sse::Event;
use futures::{Stream, TryStreamExt, stream};
use mongodb::{
    Database,
    bson::{Bson, Document, doc},
};
use serde::Deserialize;
use serde_json::json;
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{sleep, timeout},
};
use transcript_core::{
    contract::{SEGMENTS_COLLECTION, SUMMARIES_COLLECTION},
    ids::Session,
};

/// How often the store is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// How long a look may take before the store counts as away.
const LOOK_WITHIN: Duration = Duration::from_secs(5);
/// How many segments of a call are shown.
const MAX_SEGMENTS: i64 = 2000;

/// A call that a window follows.
pub(super) struct Follow {
    database: Database,
    session: Session,
    /// What the window was told, by index.
    told: BTreeMap<i64, Said>,
    summary: Option<Document>,
    is_away: bool,
    is_first: bool,
    events: VecDeque<Event>,
    _place: OwnedSemaphorePermit,
}

/// What the page shows of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Said {
    index: i64,
    speaker: Option<String>,
    text: String,
}

impl Follow {
    /// A window that was told nothing yet.
    pub(super) fn new(database: Database, session: Session, place: OwnedSemaphorePermit) -> Self {
        Self {
            database,
            session,
            told: BTreeMap::new(),
            summary: None,
            is_away: false,
            is_first: true,
            events: VecDeque::new(),
            _place: place,
        }
    }

    /// Everything that the window is told, for as long as it listens.
    pub(super) fn events(self) -> impl Stream<Item = Result<Event, Infallible>> {
        stream::unfold(self, |mut follow| async move {
            let event = follow.next().await;
            Some((Ok(event), follow))
        })
    }

    async fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            if !std::mem::take(&mut self.is_first) {
                sleep(LOOK_EVERY).await;
            }
            let is_away = !matches!(timeout(LOOK_WITHIN, self.look()).await, Ok(Ok(())));
            if is_away != self.is_away {
                let (name, text) = if is_away {
                    ("fault", "MongoDB cannot be reached: what is said is shown, and summed up, once it can.")
                } else {
                    ("recovered", "MongoDB can be reached again.")
                };
                self.events.push_back(Event::default().event(name).data(text));
                self.is_away = is_away;
            }
        }
    }

    /// Looks for what the window does not know yet.
    async fn look(&mut self) -> mongodb::error::Result<()> {
        let of_call = doc! {
            "sessionId": &*self.session.session_id,
            "conversationId": &*self.session.conversation_id,
        };
        let segments = self.database.collection::<Said>(SEGMENTS_COLLECTION);
        let found = segments
            .find(of_call)
            .sort(doc! { "index": 1 })
            .limit(MAX_SEGMENTS)
            .projection(doc! { "index": 1, "speaker": 1, "text": 1 });
        let stored: Vec<Said> = found.await?.try_collect().await?;
        for said in stored {
            if self.told.get(&said.index) != Some(&said) {
                let segment = json!({ "index": said.index, "speaker": said.speaker, "text": said.text });
                self.events.push_back(Event::default().event("segment").data(segment.to_string()));
                self.told.insert(said.index, said);
            }
        }
        let summaries = self.database.collection::<Document>(SUMMARIES_COLLECTION);
        let summary = summaries.find_one(doc! { "_id": self.session.key().as_str() }).await?;
        if let Some(summary) = summary
            && self.summary.as_ref() != Some(&summary)
        {
            let json = Bson::Document(summary.clone()).into_relaxed_extjson();
            self.events.push_back(Event::default().event("summary").data(json.to_string()));
            self.summary = Some(summary);
        }
        Ok(())
    }
}
