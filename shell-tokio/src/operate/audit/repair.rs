//! Repair: ends that are published again, for a processor to do the rest.
//!
//! A processor that reads such an end does what is missing and nothing else: it summarises what is not summarised or has
//! grown, and announces what is not announced. So everything that can be repaired is repaired in the same way.

use bytes::Bytes;
use futures::{StreamExt, stream};
use serde::Serialize;
use transcript_core::{contract::redrive_id, event::SessionEnded};

use super::{Name, Names};
use crate::{
    error_line::error_line,
    operate::history::{History, HistoryError, Republished},
};

/// How many ends are published at the same time.
const AT_ONCE: usize = 64;

/// What was done about what was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Repair {
    /// Sessions whose end was published again.
    pub redriven: u64,
    /// Sessions whose end had been published again before, within the stream's duplicate window.
    pub redriven_before: u64,
    /// Sessions about which nothing could be done, and why.
    pub failed: Names,
}

/// The end of a session.
#[derive(Debug, Clone, Copy)]
pub(super) struct End<'a> {
    pub(super) key: &'a str,
    /// The place of the last one in the stream; 0 where there is none.
    pub(super) sequence: u64,
    /// What the summary tells of it.
    pub(super) ended: Option<&'a SessionEnded>,
}

impl Repair {
    /// Publishes ends again.
    pub(super) async fn publish(&mut self, history: &History, ends: impl Iterator<Item = End<'_>>) {
        let mut published =
            stream::iter(ends).map(|end| async move { (end, publish(history, end).await) }).buffered(AT_ONCE);
        while let Some((end, outcome)) = published.next().await {
            match outcome {
                Ok(Some(Republished { before: false, .. })) => self.redriven += 1,
                Ok(Some(Republished { before: true, .. })) => self.redriven_before += 1,
                Ok(None) => self.failed(end, "its end is no longer in the stream".to_owned()),
                Err(error) => self.failed(end, error_line(&error)),
            }
        }
    }

    fn failed(&mut self, end: End<'_>, error: String) {
        self.failed.add(Name { key: Some(end.key.to_owned()), error: Some(error), ..Name::default() });
    }
}

/// Publishes the end again with its own bytes; where the stream does not hold them any more, or the server would not take
/// them together with more headers, with what the store or the bytes tell of the call.
async fn publish(history: &History, end: End<'_>) -> Result<Option<Republished>, HistoryError> {
    let original = match end.sequence {
        0 => None,
        sequence => history.message(sequence).await?.map(|message| message.payload),
    };
    let id = match end.sequence {
        0 => without_end(end.key),
        sequence => redrive_id(sequence),
    };
    let payload = match original {
        Some(payload) if payload.len() <= history.room() => Some(payload),
        Some(payload) => SessionEnded::parse(&payload).ok().as_ref().and_then(written),
        None => end.ended.and_then(written),
    };
    match payload {
        Some(payload) => history.republish(end.sequence, id, payload).await.map(Some),
        None => Ok(None),
    }
}

fn written(ended: &SessionEnded) -> Option<Bytes> {
    serde_json::to_vec(ended).ok().map(Bytes::from)
}

/// `Nats-Msg-Id` of an end that is made from a summary alone. Like a revision's, it is no key, because in a key two
/// hexadecimal digits stand behind every `%`, and no segment's, because those end in digits.
fn without_end(key: &str) -> String {
    format!("{key}%end")
}

#[cfg(test)]
mod tests {
    use transcript_core::{contract::Announcement, ids::Session};

    use super::*;

    #[test]
    fn the_id_of_an_end_that_is_made_from_a_summary_is_nothing_elses() {
        let key = Session::new("c", "s").expect("ids are valid").key();
        let id = without_end(key.as_str());
        let other = Session::new("c", "s%end").expect("ids are valid").key();
        assert_ne!(id, other.as_str());
        assert_ne!(id, Announcement::Revised { revision: 1 }.message_id(&key));
        assert_eq!(id, "c:s%end");
    }

    #[test]
    fn a_rebuilt_end_is_one() {
        let ended = SessionEnded { session: Session::new("c", "s").expect("ids are valid"), published_segments: 3 };
        assert_eq!(SessionEnded::parse(&written(&ended).expect("it is JSON")), Ok(ended));
    }
}
