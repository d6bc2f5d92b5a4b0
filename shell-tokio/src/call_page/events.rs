//! What one window is told: segments as they are stored, the summary, and what is wrong.

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
use serde_json::{Value, json};
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time::{sleep, timeout},
};
use transcript_core::{
    contract::{SEGMENTS_COLLECTION, SUMMARIES_COLLECTION},
    ids::Session,
};

use super::faults::Fault;

/// How often the store is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// How long a look may take before the store counts as away.
const LOOK_WITHIN: Duration = Duration::from_secs(2);
/// One look in so many reads the whole call: a text that replaced an earlier one is found then. The others read its end.
const WHOLE_LOOK_EVERY: u64 = 10;
/// How many of the last segments the other looks read: saves of several transcribers can overtake each other.
const TAIL: i64 = 20;
/// How many segments of a call are shown.
const MAX_SEGMENTS: usize = 2000;

/// What happens in a call, for one window.
pub(super) struct CallEvents {
    database: Database,
    session: Session,
    /// What the window was told, by index.
    told: BTreeMap<i64, Said>,
    summary: Option<Document>,
    faults: Vec<Fault>,
    of_processor: watch::Receiver<Vec<Fault>>,
    looks: u64,
    events: VecDeque<Event>,
    _place: OwnedSemaphorePermit,
}

/// What the page shows of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Said {
    index: i64,
    speaker: Option<String>,
    text: String,
}

impl Said {
    /// `None` for a document that somebody else has written in another shape.
    fn read(document: &Document) -> Option<Self> {
        let index = document.get_i64("index").or_else(|_| document.get_i32("index").map(i64::from)).ok()?;
        let speaker = document.get_str("speaker").ok().map(str::to_owned);
        Some(Self { index, speaker, text: document.get_str("text").ok()?.to_owned() })
    }
}

impl CallEvents {
    /// The events for a window that was told nothing yet.
    pub(super) fn new(
        database: Database,
        session: Session,
        of_processor: watch::Receiver<Vec<Fault>>,
        place: OwnedSemaphorePermit,
    ) -> Self {
        Self {
            database,
            session,
            told: BTreeMap::new(),
            summary: None,
            faults: vec![],
            of_processor,
            looks: 0,
            events: VecDeque::new(),
            _place: place,
        }
    }

    /// Everything that the window is told, for as long as it listens.
    pub(super) fn stream(self) -> impl Stream<Item = Result<Event, Infallible>> {
        stream::unfold(self, |mut events| async move {
            let event = events.next().await;
            Some((Ok(event), events))
        })
    }

    async fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            if self.looks > 0 {
                sleep(LOOK_EVERY).await;
            }
            let answers = matches!(timeout(LOOK_WITHIN, self.look()).await, Ok(Ok(())));
            self.looks += 1;
            // A processor that cannot work keeps nobody from a summary that is there.
            let of_processor = if self.summary.is_none() { self.of_processor.borrow().clone() } else { vec![] };
            let faults = faults(answers, of_processor);
            // The first list is told also where it is empty: what the window was told before it connected again is over.
            if faults != self.faults || self.looks == 1 {
                self.tell("faults", &json!(faults));
                self.faults = faults;
            }
        }
    }

    /// Looks for what the window does not know yet.
    async fn look(&mut self) -> mongodb::error::Result<()> {
        let from = if self.looks.is_multiple_of(WHOLE_LOOK_EVERY) {
            0
        } else {
            self.told.last_key_value().map_or(0, |(last, _)| last - TAIL)
        };
        let of_call = doc! {
            "sessionId": &*self.session.session_id,
            "conversationId": &*self.session.conversation_id,
            "index": { "$gte": from },
        };
        let segments = self.database.collection::<Document>(SEGMENTS_COLLECTION);
        let found = segments
            .find(of_call)
            .sort(doc! { "index": 1 })
            .limit(i64::try_from(MAX_SEGMENTS).unwrap_or(i64::MAX))
            .projection(doc! { "index": 1, "speaker": 1, "text": 1 });
        let stored: Vec<Document> = found.await?.try_collect().await?;
        for said in stored.iter().filter_map(Said::read) {
            let before = self.told.get(&said.index);
            if before != Some(&said) && (before.is_some() || self.told.len() < MAX_SEGMENTS) {
                self.tell("segment", &json!({ "index": said.index, "speaker": said.speaker, "text": said.text }));
                self.told.insert(said.index, said);
            }
        }
        let summaries = self.database.collection::<Document>(SUMMARIES_COLLECTION);
        let summary = summaries.find_one(doc! { "_id": self.session.key().as_str() }).await?;
        if let Some(summary) = summary
            && self.summary.as_ref() != Some(&summary)
        {
            self.tell("summary", &Bson::Document(summary.clone()).into_relaxed_extjson());
            self.summary = Some(summary);
        }
        Ok(())
    }

    fn tell(&mut self, name: &'static str, data: &Value) {
        self.events.push_back(Event::default().event(name).data(data.to_string()));
    }
}

/// What is wrong: what this process sees itself, and what the processor says. That MongoDB is away is told once.
fn faults(mongodb_answers: bool, mut of_processor: Vec<Fault>) -> Vec<Fault> {
    if mongodb_answers {
        return of_processor;
    }
    let text = "MongoDB does not answer. What you say is kept in this window. It is stored, shown to others and summed up once \
        MongoDB answers.";
    let away = Fault { name: "mongodb_unreachable".to_owned(), text: text.to_owned() };
    of_processor.retain(|fault| !fault.name.starts_with("mongodb_"));
    of_processor.insert(0, away);
    of_processor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_mongodb_is_away_is_told_once() {
        let fault = |name: &str| Fault { name: name.to_owned(), text: name.to_owned() };
        let names = |answers: bool, of_processor: &[Fault]| -> Vec<String> {
            faults(answers, of_processor.to_vec()).into_iter().map(|fault| fault.name).collect()
        };
        let of_processor = [fault("nats_unreachable"), fault("mongodb_cannot_write")];
        assert_eq!(names(true, &of_processor), ["nats_unreachable", "mongodb_cannot_write"]);
        assert_eq!(names(false, &of_processor), ["mongodb_unreachable", "nats_unreachable"]);
        assert_eq!(names(true, &[]), [""; 0]);
    }

    #[test]
    fn a_segment_in_another_shape_hides_no_other() {
        let read = |document: Document| Said::read(&document).map(|said| (said.index, said.speaker, said.text));
        assert_eq!(
            read(doc! { "index": 3, "speaker": "Ann", "text": "Yes." }),
            Some((3, Some("Ann".to_owned()), "Yes.".to_owned()))
        );
        assert_eq!(read(doc! { "index": 3_i64, "speaker": 7, "text": "" }), Some((3, None, String::new())));
        assert_eq!(read(doc! { "index": "3", "text": "Yes." }), None);
        assert_eq!(read(doc! { "index": 3 }), None);
    }
}
