//! What the first version did: an insert under a new `_id` for every run of a job.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use mongodb::bson::{self, Document};
use transcript_client::mongodb::{CommandError, Reply, WriteErrors};
use transcript_core::{Stored, contract::SUMMARIES_COLLECTION, ids::Key, summary::Summary};

use super::socket::Socket;

/// What was inserted last for each call: nobody else finds it under the call's key.
#[derive(Debug, Clone, Default)]
pub(super) struct Inserted(Arc<Mutex<BTreeMap<String, Stored>>>);

impl Inserted {
    pub(super) async fn insert_all(&self, socket: &Socket, summaries: &[Arc<Summary>]) -> Result<Reply, CommandError> {
        let collection = socket.database().collection::<Document>(SUMMARIES_COLLECTION);
        for summary in summaries {
            let mut document = bson::serialize_to_document(&**summary).map_err(|_| CommandError::Unencodable)?;
            // The driver gives it a new one.
            document.remove("_id");
            socket.answer(collection.insert_one(document)).await?;
            let stored = Stored {
                segments: summary.segments,
                complete: summary.complete,
                notified: None,
                revision: 1,
                revised: None,
            };
            let mut inserted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            inserted.insert(summary.key.as_str().to_owned(), stored);
        }
        Ok(Reply::Written(WriteErrors::default()))
    }

    pub(super) fn read_back(&self, keys: &[Key]) -> Reply {
        let inserted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |key: &Key| Some((key.as_str().to_owned(), *inserted.get(key.as_str())?));
        Reply::ReadBack(keys.iter().filter_map(of).collect())
    }
}
