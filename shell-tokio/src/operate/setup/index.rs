//! The indexes of the segments, by which they are counted and loaded in either order, and that of the summaries, by which
//! those of the last while are found.

use futures::TryStreamExt;
use mongodb::{
    Database, IndexModel,
    bson::{Bson, Document, doc},
    error::{Error, ErrorKind},
    options::IndexOptions,
};
use transcript_core::contract::{SEGMENTS_COLLECTION, SUMMARIES_COLLECTION};
use transcript_transcriber::document::SESSIONS_COLLECTION;

use super::{Change, Report, SetupError};

/// MongoDB's answer where the collection does not exist.
const NAMESPACE_NOT_FOUND: i32 = 26;
/// Options with which an index does not hold every document, is not used, or orders text otherwise.
const UNFIT: [&str; 4] = ["partialFilterExpression", "sparse", "hidden", "collation"];

/// The indexes of the segments: one for each order of a call.
pub(super) async fn ensure(db: &Database, report: &mut Report) -> Result<(), SetupError> {
    ensure_index(db, SEGMENTS_COLLECTION, keys(), report).await?;
    let by_start = doc! { "sessionId": 1, "onSessionClock": 1, "startMs": 1 };
    ensure_index(db, SEGMENTS_COLLECTION, by_start, report).await?;
    ensure_edits(db, report).await
}

/// The index of the segments that were changed, which are few.
async fn ensure_edits(db: &Database, report: &mut Report) -> Result<(), SetupError> {
    let changed = doc! { "edits": { "$gt": 0 } };
    let options = IndexOptions::builder().partial_filter_expression(changed).build();
    ensure_partial(db, doc! { "sessionId": 1, "edits": 1 }, options, report).await
}

/// Creates a partial index of segments, unless one of the same keys that is partial by the same fields is there.
async fn ensure_partial(
    db: &Database,
    keys: Document,
    options: IndexOptions,
    report: &mut Report,
) -> Result<(), SetupError> {
    let failed = |action: String| move |source| SetupError::Mongodb { action, source };
    let existing = list(db, SEGMENTS_COLLECTION).await;
    let existing = existing.map_err(failed(format!("list the indexes of {SEGMENTS_COLLECTION}")))?;
    let is_unique = options.unique.unwrap_or(false);
    let wanted = options.partial_filter_expression.clone().unwrap_or_default();
    let serves = |index: &Document| {
        let partial = index.get_document("partialFilterExpression");
        has_keys(index, &keys)
            && index.get_bool("unique").unwrap_or(false) == is_unique
            && partial.is_ok_and(|partial| partial.keys().eq(wanted.keys()))
    };
    if existing.iter().any(serves) {
        return Ok(());
    }
    create(db, SEGMENTS_COLLECTION, keys, options, report).await
}

/// The index of the summaries.
pub(super) async fn ensure_watched(db: &Database, report: &mut Report) -> Result<(), SetupError> {
    ensure_index(db, SUMMARIES_COLLECTION, doc! { "updatedAt": 1 }, report).await
}

/// The indexes of the transcriber: sessions by the instances that serve them, and segments by their source, which is unique in
/// a session.
pub(super) async fn ensure_transcriber(db: &Database, report: &mut Report) -> Result<(), SetupError> {
    ensure_index(db, SESSIONS_COLLECTION, doc! { "instances.id": 1 }, report).await?;
    let with_source = doc! { "source": { "$exists": true } };
    let options = IndexOptions::builder().unique(true).partial_filter_expression(with_source).build();
    ensure_partial(db, doc! { "sessionId": 1, "source": 1 }, options, report).await
}

/// Creates an index, and with it the collection, unless an equal one is there under whatever name.
async fn ensure_index(db: &Database, collection: &str, keys: Document, report: &mut Report) -> Result<(), SetupError> {
    let failed = |action: String| move |source| SetupError::Mongodb { action, source };
    let existing = list(db, collection).await.map_err(failed(format!("list the indexes of {collection}")))?;
    if existing.iter().any(|index| serves(index, &keys)) {
        return Ok(());
    }
    create(db, collection, keys, IndexOptions::default(), report).await
}

async fn create(
    db: &Database,
    collection: &str,
    keys: Document,
    options: IndexOptions,
    report: &mut Report,
) -> Result<(), SetupError> {
    let failed = |action: String| move |source| SetupError::Mongodb { action, source };
    let object = format!("index {keys} on {collection}");
    let model = IndexModel::builder().keys(keys).options(options).build();
    let created = db.collection::<Document>(collection).create_index(model).await;
    created.map_err(failed(format!("create the {object}")))?;
    report.changes.push(Change::Created { object });
    Ok(())
}

fn keys() -> Document {
    doc! { "sessionId": 1, "index": 1 }
}

/// The indexes as the server describes them; the driver's own type leaves out whether one is hidden.
pub(super) async fn list(db: &Database, collection: &str) -> Result<Vec<Document>, Error> {
    match db.run_cursor_command(doc! { "listIndexes": collection }).await {
        Ok(cursor) => cursor.try_collect().await,
        Err(e) if is_namespace_not_found(&e) => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the driver's enum grows, and one variant is asked about")]
fn is_namespace_not_found(error: &Error) -> bool {
    match error.kind.as_ref() {
        ErrorKind::Command(e) => e.code == NAMESPACE_NOT_FOUND,
        _ => false,
    }
}

fn serves(index: &Document, keys: &Document) -> bool {
    has_keys(index, keys)
        && !UNFIT.iter().any(|option| index.get(option).is_some_and(|value| *value != Bson::Boolean(false)))
}

fn has_keys(index: &Document, keys: &Document) -> bool {
    index.get_document("key").is_ok_and(|key| {
        key.len() == keys.len()
            && key.iter().zip(keys).all(|((name, order), (wanted, _))| name == wanted && is_ascending(order))
    })
}

/// Whichever type of number the client that made the index wrote.
fn is_ascending(order: &Bson) -> bool {
    order.as_i32() == Some(1) || order.as_i64() == Some(1) || order.as_f64() == Some(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_equal_index_serves_under_any_name_and_number_type() {
        assert!(serves(
            &doc! { "v": 2, "name": "mine", "key": { "sessionId": 1.0, "index": 1_i64 }, "unique": true },
            &keys()
        ));
        assert!(serves(&doc! { "key": keys(), "sparse": false }, &keys()));
    }

    #[test]
    fn another_index_does_not_serve() {
        for index in [
            doc! { "key": { "sessionId": 1 } },
            doc! { "key": { "index": 1, "sessionId": 1 } },
            doc! { "key": { "sessionId": 1, "index": -1 } },
            doc! { "key": { "sessionId": "hashed", "index": 1 } },
            doc! { "key": { "sessionId": 1, "index": 1, "x": 1 } },
            doc! { "key": keys(), "partialFilterExpression": { "index": { "$gt": 1 } } },
            doc! { "key": keys(), "sparse": true },
            doc! { "key": keys(), "hidden": true },
        ] {
            assert!(!serves(&index, &keys()), "{index}");
        }
    }
}
