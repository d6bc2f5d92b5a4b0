//! Repair: ends that are published again, for a processor to do the rest.
//!
//! A processor that reads such an end does what is missing and nothing else: it summarises what is not summarised or has
//! grown, and announces what is not announced. So everything that can be repaired is repaired in the same way, but for three
//! things. A session of transcribers that has no end is ended first ([`end`]). A processor believes the mark of a summary: one that names a message which does not announce the call is
//! corrected, or removed, before the end is published again. And an end that can never be processed is kept as a dead
//! letter, as processors keep it.

use async_nats::jetstream::Context;
use bytes::Bytes;
use futures::{StreamExt, stream};
use mongodb::Database;
use serde::Serialize;
use transcript_core::{contract::redrive_id, event::SessionEnded, ids::Session};

use super::{Name, Names, end, sessions::Sessions, summaries::Summaries};
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
    /// Summaries whose mark names the message that announces the call now, or that have no mark any more.
    pub marks_corrected: u64,
    /// Sessions that had no end and have one now.
    pub ended: u64,
    /// Ends that can never be processed and that are dead letters now.
    pub kept: u64,
    /// Sessions and messages about which nothing could be done, and why.
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
    /// The mark of the summary, where that is wrong.
    pub(super) wrong_mark: Option<WrongMark>,
}

/// A mark that names a message which does not announce the call.
#[derive(Debug, Clone, Copy)]
pub(super) struct WrongMark {
    /// The place of the message that it names.
    pub(super) names: u64,
    /// The place of a message that does announce the call; 0 where there is none.
    pub(super) announced_at: u64,
}

impl Repair {
    /// Corrects marks and publishes ends again.
    pub(super) async fn publish(
        &mut self,
        history: &History,
        summaries: &Summaries,
        ends: impl Iterator<Item = End<'_>>,
    ) {
        let mut published =
            stream::iter(ends).map(|end| async move { (end, mend(history, summaries, end).await) }).buffered(AT_ONCE);
        while let Some((end, outcome)) = published.next().await {
            self.marks_corrected += u64::from(end.wrong_mark.is_some() && outcome.is_ok());
            match outcome {
                Ok(Done::Published(Republished { before: false, .. })) => self.redriven += 1,
                Ok(Done::Published(Republished { before: true, .. })) => self.redriven_before += 1,
                Ok(Done::MarkCorrected) => {}
                Ok(Done::NoEnd) => self.failed(end, "its end is no longer in the stream".to_owned()),
                Err(error) => self.failed(end, error),
            }
        }
    }

    /// Keeps ends that can never be processed as dead letters.
    pub(super) async fn keep(&mut self, history: &History, ends: impl Iterator<Item = (u64, Option<&str>)>) {
        for (place, reason) in ends {
            match history.keep_as_dead_letter(place, reason.unwrap_or("it can never be processed")).await {
                Ok(()) => self.kept += 1,
                Err(error) => {
                    self.failed.add(Name { message: Some(place), error: Some(error_line(&error)), ..Name::default() });
                }
            }
        }
    }

    /// Ends sessions that have no end.
    pub(super) async fn end(&mut self, js: &Context, database: &Database, looker: &Sessions, sessions: &[Session]) {
        let (left, why) = match end::end(js, database, looker, sessions).await {
            Ok(left) => {
                (left, "it could not be ended: is MongoDB writable, and does the stream take messages?".to_owned())
            }
            Err(failure) => (sessions.to_vec(), failure.to_string()),
        };
        self.ended += u64::try_from(sessions.len() - left.len()).unwrap_or(0);
        for session in left {
            let (key, error) = (Some(session.key().as_str().to_owned()), Some(why.clone()));
            self.failed.add(Name { key, error, ..Name::default() });
        }
    }

    fn failed(&mut self, end: End<'_>, error: String) {
        self.failed.add(Name { key: Some(end.key.to_owned()), error: Some(error), ..Name::default() });
    }
}

/// What was done about a session.
enum Done {
    Published(Republished),
    MarkCorrected,
    NoEnd,
}

async fn mend(history: &History, summaries: &Summaries, end: End<'_>) -> Result<Done, String> {
    match end.wrong_mark {
        Some(WrongMark { names, announced_at: 0 }) => {
            summaries.unmark(end.key, names).await.map_err(|failure| failure.to_string())?;
        }
        Some(WrongMark { names, announced_at }) => {
            summaries.correct_mark(end.key, names, announced_at).await.map_err(|failure| failure.to_string())?;
            return Ok(Done::MarkCorrected);
        }
        None => {}
    }
    let published = publish(history, end).await.map_err(|error| error_line(&error))?;
    Ok(published.map_or(Done::NoEnd, Done::Published))
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
        Some(payload) if payload.len() <= history.room() => Some(payload.into()),
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
        let ended = SessionEnded {
            session: Session::new("c", "s").expect("ids are valid"),
            published_segments: 3,
            reprocess: 0,
        };
        assert_eq!(SessionEnded::parse(&written(&ended).expect("it is JSON")), Ok(ended));
    }
}
