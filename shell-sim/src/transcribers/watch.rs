//! What must be true whatever happens.
//!
//! | property | says |
//! |---|---|
//! | `EveryAcknowledgedSegmentIsStored` | at the acknowledgement, and at the end with that text, a later one, or one that the client sent on a connection that it gave up |
//! | `TheEndFollowsTheLastSave` | nothing is inserted or replaced between the count of an end and the next opening of its session |
//! | `EverySessionEndsAndItsLastEndCountsWhatIsStored` | when the world has been whole for long enough, for every session of which a client was told that it is open |
//! | `NoSessionEndsWhileSomebodyIsConnected` | no end is begun while an instance that holds its lease has a socket open that it told that it is ready |
//! | `AnIndexNamesOneSegment` | no segment takes the place of one of another source |
//! | `AnEndSaysOneThing` | two ends with one message id announce the same count |
//! | `InterimTextIsNotStored` | |
//! | `EverySegmentIsPublishedUnlessAnInstanceDied` | where there is a stream, and nobody was killed, frozen or stopped |
//! | `DeadlinesMove` | a wake-up that was served is not asked for again |
//! | `MemoryIsBounded` | while the world runs, and nothing is held at its end |

use std::collections::BTreeMap;

use serde::Serialize;
use transcript_core::ids::Key;
use transcript_transcriber::document::SessionState;

use super::store::{Change, SessionStore};

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Violation {
    /// Its name, a sentence.
    pub property: &'static str,
    /// How it was broken.
    pub what: String,
}

/// Watches a world.
#[derive(Debug, Default)]
pub(super) struct Watch {
    pub(super) violation: Option<Violation>,
    /// The generation whose end was counted last, and with how many segments.
    counted: BTreeMap<Key, u64>,
    ends: BTreeMap<String, u64>,
    last_end: BTreeMap<Key, u64>,
    published_indexes: BTreeMap<Key, std::collections::BTreeSet<u64>>,
}

impl Watch {
    /// Keeps the first promise that is broken.
    pub(super) fn broken(&mut self, property: &'static str, what: String) {
        self.violation.get_or_insert(Violation { property, what });
    }

    /// Something was changed in the store. `connected` tells who is connected to a session.
    pub(super) fn changed(&mut self, store: &SessionStore, change: Change, connected: impl Fn(&Key) -> Option<String>) {
        match change {
            Change::Saved { key } => {
                let document = store.session(&key);
                let is_over = document.is_some_and(|document| {
                    document.state != SessionState::Open && self.counted.get(&key) == Some(&document.generation)
                });
                if is_over {
                    self.broken(
                        "TheEndFollowsTheLastSave",
                        format!("a segment of {key} was stored after its end was counted"),
                    );
                }
            }
            Change::Overwritten { key, index } => {
                self.broken("AnIndexNamesOneSegment", format!("{key} had another segment at index {index}"));
            }
            Change::EndBegun { key } => {
                if let Some(who) = connected(&key) {
                    self.broken("NoSessionEndsWhileSomebodyIsConnected", format!("the end of {key} was begun: {who}"));
                }
            }
            Change::Counted { key } => {
                let document = store.session(&key).filter(|document| document.state == SessionState::Ending);
                if let Some(document) = document {
                    self.counted.insert(key, document.generation);
                }
            }
        }
    }

    /// An end is in the stream.
    pub(super) fn end_published(&mut self, key: &Key, message_id: &str, segments: u64) {
        let said = *self.ends.entry(message_id.to_owned()).or_insert(segments);
        if said != segments {
            self.broken("AnEndSaysOneThing", format!("{message_id} announced {said} segments, and then {segments}"));
        }
        self.last_end.insert(key.clone(), segments);
    }

    /// A segment is in the stream.
    pub(super) fn segment_published(&mut self, key: &Key, index: u64) {
        self.published_indexes.entry(key.clone()).or_default().insert(index);
    }

    /// How many ends are in the stream.
    pub(super) fn ends(&self) -> u64 {
        self.ends.len() as u64
    }

    /// The world has come to its end. `owed` are the sessions of which a client was told that they are open.
    pub(super) fn at_end(&mut self, store: &SessionStore, owed: &[Key], has_stream: bool, nobody_died: bool) {
        const ENDS: &str = "EverySessionEndsAndItsLastEndCountsWhatIsStored";
        for key in owed {
            let (segments, edits) = store.count(key);
            let Some(document) = store.session(key) else {
                self.broken(ENDS, format!("{key} was open, and has no document"));
                continue;
            };
            if document.state != SessionState::Ended || !document.instances.is_empty() {
                self.broken(ENDS, format!("{key} has not ended: {document:?}"));
            }
            if (document.saved, document.edits) != (Some(segments), Some(edits)) {
                let said = (document.saved, document.edits);
                self.broken(ENDS, format!("{key} says {said:?} segments and edits, and has {segments} and {edits}"));
            }
            let announced = self.last_end.get(key).copied();
            if has_stream && announced != Some(segments) {
                self.broken(ENDS, format!("the last end of {key} announces {announced:?} segments of {segments}"));
            }
            let published = self.published_indexes.get(key).map_or(0, |indexes| indexes.len() as u64);
            let foreign = store.segments(key).filter(|segment| segment.write == 0).count() as u64;
            if has_stream && nobody_died && published != segments - foreign {
                let what = format!("{published} segments of {key} were published, and {segments} are stored");
                self.broken("EverySegmentIsPublishedUnlessAnInstanceDied", what);
            }
        }
        for document in store.sessions() {
            let interim = store.segments(&document.key).find(|segment| segment.text.starts_with("interim"));
            if interim.is_some() {
                self.broken("InterimTextIsNotStored", format!("{} has an interim text", document.key));
            }
        }
    }
}
