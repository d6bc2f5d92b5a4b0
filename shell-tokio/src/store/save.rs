//! Saves: one update command with many conditional upserts, each with its own outcome.

use std::{collections::BTreeMap, sync::Arc};

use futures::TryStreamExt;
use mongodb::bson::{Bson, DateTime, Document, RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, doc};
use transcript_core::{Failure, FailureKind, Notified, Report, Stored, WallTime, ids::Key, summary::Summary};

use super::{
    Asked, ONE_BATCH, Worker,
    failures::{self, DUPLICATE_KEY},
    statement::{Missing, encode, upsert},
};

/// The most bytes of summaries in one command; a server takes messages of up to 48 MB.
const BATCH_BYTES: usize = 16 << 20;

impl Worker {
    pub(super) async fn save(&self, batch: Vec<Asked<Arc<Summary>>>) {
        let mut group = vec![];
        let mut bytes = 0;
        for asked in batch {
            let document = match encode(&asked.what) {
                Ok(document) => document,
                Err(failure) => {
                    self.fail([&asked], &failure);
                    continue;
                }
            };
            let size = document.as_bytes().len();
            if bytes + size > BATCH_BYTES && !group.is_empty() {
                self.save_group(std::mem::take(&mut group)).await;
                bytes = 0;
            }
            bytes += size;
            group.push((asked, document));
        }
        if !group.is_empty() {
            self.save_group(group).await;
        }
    }

    async fn save_group(&self, group: Vec<(Asked<Arc<Summary>>, RawDocumentBuf)>) {
        let everything: Vec<usize> = (0..group.len()).collect();
        let mut failed = match self.upsert(&group, &everything, Missing::Insert).await {
            Ok(failed) => failed,
            Err(failure) if failure.kind == FailureKind::Rejected && group.len() > 1 => {
                // One document spoils the command: alone it fails alone.
                for one in group {
                    Box::pin(self.save_group(vec![one])).await;
                }
                return;
            }
            Err(failure) => return self.fail(group.iter().map(|(asked, _)| asked), &failure),
        };
        let raced: Vec<usize> =
            failed.extract_if(.., |_, error| error.code == DUPLICATE_KEY).map(|(at, _)| at).collect();
        if !raced.is_empty() {
            // Another upsert of the same key was faster; now there is a summary to compare with.
            match self.upsert(&group, &raced, Missing::Leave).await {
                Ok(again) => failed.extend(again),
                Err(failure) => failed.extend(raced.into_iter().map(|at| (at, WriteError::whole(&failure)))),
            }
        }
        self.report_stored(&group, &failed).await;
    }

    /// Runs the upserts of the group's members at `places`; what failed comes back by place.
    async fn upsert(
        &self,
        group: &[(Asked<Arc<Summary>>, RawDocumentBuf)],
        places: &[usize],
        missing: Missing,
    ) -> Result<BTreeMap<usize, WriteError>, Failure> {
        let members = places.iter().filter_map(|place| group.get(*place));
        let updates: RawArrayBuf = members.map(|(asked, new)| upsert(&asked.what, new, missing)).collect();
        let errors = write_errors(&self.update(updates).await?)?;
        Ok(errors.into_iter().filter_map(|(at, error)| Some((*places.get(at)?, error))).collect())
    }

    /// Reads back what is stored now: this summary, or one of more segments, with its mark if it has one.
    async fn report_stored(
        &self,
        group: &[(Asked<Arc<Summary>>, RawDocumentBuf)],
        failed: &BTreeMap<usize, WriteError>,
    ) {
        let found = self.read_back(group.iter().map(|(asked, _)| &asked.what.key)).await.unwrap_or_default();
        for (place, (asked, _)) in group.iter().enumerate() {
            let report = match (failed.get(&place), found.get(asked.what.key.as_str())) {
                (Some(error), _) => Report::Failed(error.clone().failure()),
                (None, Some(stored)) => Report::Saved(*stored),
                (None, None) => Report::Failed(Failure {
                    kind: FailureKind::Busy,
                    detail: "the summary could not be read back".into(),
                }),
            };
            self.report(asked.id, report);
        }
    }

    /// Tells what is stored of each summary.
    pub(super) async fn check(&self, batch: Vec<Asked<Key>>) {
        match self.read_back(batch.iter().map(|asked| &asked.what)).await {
            Ok(found) => {
                for asked in &batch {
                    self.report(asked.id, Report::Checked(found.get(asked.what.as_str()).copied()));
                }
            }
            Err(failure) => self.fail(&batch, &failure),
        }
    }

    async fn read_back(&self, keys: impl Iterator<Item = &Key>) -> Result<BTreeMap<String, Stored>, Failure> {
        let keys: Vec<Bson> = keys.map(|key| Bson::from(key.as_str())).collect();
        let fields = doc! { "segments": 1, "complete": 1, "notified": 1, "revision": 1, "revised.revision": 1 };
        let found: Vec<RawDocumentBuf> = self
            .answer(async {
                let summaries = self.summaries();
                let find = summaries.find(doc! { "_id": { "$in": keys } }).projection(fields);
                find.batch_size(ONE_BATCH).await?.try_collect().await
            })
            .await?;
        let read = |document: &RawDocumentBuf| Some((document.get_str("_id").ok()?.to_owned(), stored(document)));
        Ok(found.iter().filter_map(read).collect())
    }
}

/// An update's error within a command that was carried out for others.
#[derive(Debug, Clone)]
pub(super) struct WriteError {
    code: i32,
    kind: FailureKind,
    message: String,
}

impl WriteError {
    fn whole(failure: &Failure) -> Self {
        Self { code: 0, kind: failure.kind, message: failure.detail.clone() }
    }

    pub(super) fn failure(self) -> Failure {
        Failure { kind: self.kind, detail: self.message }
    }
}

/// What an update command's reply says of its single updates.
pub(super) fn write_errors(reply: &Document) -> Result<BTreeMap<usize, WriteError>, Failure> {
    if let Ok(error) = reply.get_document("writeConcernError") {
        let detail = error.get_str("errmsg").unwrap_or("write concern not satisfied").to_owned();
        return Err(Failure { kind: FailureKind::TimedOut, detail });
    }
    let errors = reply.get_array("writeErrors").map(Vec::as_slice).unwrap_or_default();
    Ok(errors
        .iter()
        .filter_map(Bson::as_document)
        .filter_map(|error| {
            let code = error.get_i32("code").unwrap_or(0);
            let place = usize::try_from(error.get_i32("index").ok()?).ok()?;
            let message = format!("MongoDB refused the summary: {}", failures::name_of(code));
            Some((place, WriteError { code, kind: failures::of_code(code), message }))
        })
        .collect())
}

pub(crate) fn stored(document: &RawDocument) -> Stored {
    let notified = document.get_document("notified").ok().map(|mark| Notified {
        stream_sequence: number(mark.get("streamSequence").ok().flatten()),
        at: WallTime::from_millis(mark.get_datetime("at").map_or(0, DateTime::timestamp_millis)),
    });
    Stored {
        segments: number(document.get("segments").ok().flatten()),
        complete: document.get_bool("complete").unwrap_or(false),
        notified,
        revision: number(document.get("revision").ok().flatten()).max(1),
        revised: document.get_document("revised").ok().map(|mark| number(mark.get("revision").ok().flatten())),
    }
}

/// A number of any type; 0 where there is none.
pub(crate) fn number(value: Option<RawBsonRef<'_>>) -> u64 {
    let Some(value) = value else { return 0 };
    let decimal = || if let RawBsonRef::Decimal128(decimal) = value { decimal.to_string().parse().ok() } else { None };
    let other = || value.as_f64().or_else(decimal).map(|n| n as i64);
    let whole = value.as_i64().or_else(|| value.as_i32().map(i64::from)).or_else(other);
    whole.and_then(|n| u64::try_from(n).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_tells_which_updates_failed_and_how() {
        let reply = doc! { "ok": 1, "n": 2, "writeErrors": [
            { "index": 1, "code": 11000, "errmsg": "E11000 duplicate key error … dup key: { _id: \"c:s\" }" },
            { "index": 4, "code": 112, "errmsg": "WriteConflict" },
        ] };
        let errors = write_errors(&reply).expect("the command was carried out");
        let kinds: Vec<_> = errors.iter().map(|(place, error)| (*place, error.code, error.kind)).collect();
        assert_eq!(kinds, [(1, 11000, FailureKind::Busy), (4, 112, FailureKind::Busy)]);
        let unsure = doc! { "ok": 1, "n": 1, "writeConcernError": { "code": 64, "errmsg": "waiting timed out" } };
        assert_eq!(write_errors(&unsure).expect_err("nobody knows").kind, FailureKind::TimedOut);
    }
}
