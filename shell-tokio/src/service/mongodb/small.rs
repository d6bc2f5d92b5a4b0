//! Small calls, read together by one query.

use std::collections::BTreeMap;

use futures::TryStreamExt;
use mongodb::bson::{Bson, Document, doc};
use transcript_client::mongodb::{CommandError, Reply, SmallCall, SmallEnd, SmallRead};

use super::{
    segment,
    socket::{ONE_BATCH, Socket},
};

impl Socket {
    /// Reads the calls session by session, in the order of MongoDB's index.
    pub(super) async fn small(
        &self,
        calls: &[SmallCall],
        max_segments: u64,
        max_bytes: u64,
    ) -> Result<Reply, CommandError> {
        let bounds: BTreeMap<&str, u64> = calls.iter().map(|call| (&*call.session_id, call.max_bytes)).collect();
        let sessions: Vec<Bson> = calls.iter().map(|call| Bson::from(&*call.session_id)).collect();
        let query = async {
            self.segments()
                .find(doc! { "sessionId": { "$in": sessions, "$not": { "$type": "array" } } })
                .sort(doc! { "sessionId": 1, "index": 1 })
                .limit(i64::try_from(max_segments).unwrap_or(i64::MAX))
                .projection(fields())
                .batch_size(ONE_BATCH)
                .await
        };
        let mut cursor = self.answer(query).await?;
        let (mut sessions, mut read, mut kept) = (vec![], 0, 0);
        let mut session: Option<SmallRead> = None;
        while let Some(document) = self.answer(cursor.try_next()).await? {
            let name = document.get_str("sessionId").unwrap_or_default();
            if session.as_ref().is_none_or(|session| session.session_id != name) {
                sessions.extend(session.take());
                if kept > max_bytes {
                    // What was read is whole; this session and those behind it were not reached.
                    sessions.push(SmallRead { session_id: name.to_owned(), documents: vec![], bytes: 0 });
                    return Ok(Reply::Small { sessions, end: SmallEnd::Stopped });
                }
            }
            let current =
                session.get_or_insert_with(|| SmallRead { session_id: name.to_owned(), documents: vec![], bytes: 0 });
            let bytes = u64::try_from(document.as_bytes().len()).unwrap_or(u64::MAX);
            current.bytes += bytes;
            let is_large = current.bytes > bounds.get(name).copied().unwrap_or(0);
            if !is_large {
                kept += bytes;
                current.documents.push(segment::read(&document));
            }
            read += 1;
            if is_large {
                // It has to be read page by page: nothing of it is read any more, and with it nothing behind it.
                sessions.extend(session);
                return Ok(Reply::Small { sessions, end: SmallEnd::Stopped });
            }
        }
        sessions.extend(session);
        let end = if read < max_segments { SmallEnd::All } else { SmallEnd::Stopped };
        Ok(Reply::Small { sessions, end })
    }
}

/// What is read of a segment.
pub(super) fn fields() -> Document {
    doc! {
        "sessionId": 1, "index": 1, "speaker": 1, "text": 1, "startMs": 1, "endMs": 1, "onSessionClock": 1, "edits": 1,
    }
}
