//! The collections, before anything is written to them: what somebody else made of them may keep summaries from being stored.

use std::time::Duration;

use futures::TryStreamExt;
use mongodb::{
    Database,
    bson::{Bson, Document, doc},
    error::{Error, ErrorKind},
};
use transcript_core::contract::{SEGMENTS_COLLECTION, SUMMARIES_COLLECTION};

use super::{Report, SetupError, index};

/// MongoDB's answer where the user may not do that.
const UNAUTHORIZED: i32 = 13;

/// Refuses collections in which summaries cannot be stored and segments cannot be found, and warns of what may refuse some.
pub(super) async fn check(db: &Database, report: &mut Report) -> Result<(), SetupError> {
    let names = [SUMMARIES_COLLECTION, SEGMENTS_COLLECTION];
    let described = match describe(db, &names).await {
        Ok(described) => described,
        Err(error) if is_unauthorized(&error) => {
            report.warnings.push(
                "MongoDB does not let this user list collections (listCollections): whether they are fit was not checked"
                    .to_owned(),
            );
            return Ok(());
        }
        Err(source) => {
            return Err(SetupError::Mongodb { action: "describe the collections".to_owned(), source });
        }
    };
    for description in &described {
        let Ok(name) = description.get_str("name") else { continue };
        if let Some((what, why)) = unfit(description) {
            return Err(SetupError::Collection { name: name.to_owned(), what, why });
        }
        report.warnings.extend(validator(name, description));
    }
    for name in names {
        let source = |source| SetupError::Mongodb { action: format!("list the indexes of {name}"), source };
        for description in index::list(db, name).await.map_err(source)? {
            let index = description.get_str("name").unwrap_or("without a name").to_owned();
            if name == SUMMARIES_COLLECTION && is_hindering(&description) {
                let keys = description.get_document("key").map_or_else(|_| String::new(), Document::to_string);
                return Err(SetupError::UniqueIndex { name: name.to_owned(), index, keys });
            }
            if let Some(seconds) = description.get("expireAfterSeconds") {
                report.warnings.push(format!(
                    "index {index} on {name} removes documents after {seconds} s (expireAfterSeconds): `audit` then finds their calls missing"
                ));
            }
        }
    }
    Ok(())
}

async fn describe(db: &Database, names: &[&str]) -> Result<Vec<Document>, Error> {
    let command = doc! { "listCollections": 1, "filter": { "name": { "$in": names } } };
    db.run_cursor_command(command).await?.try_collect().await
}

/// What the collection is or has that it must not, and why.
fn unfit(description: &Document) -> Option<(String, &'static str)> {
    let kind = description.get_str("type").unwrap_or("collection");
    if kind != "collection" {
        return Some((format!("is a {kind}"), "no document can be updated in it"));
    }
    let options = description.get_document("options").ok()?;
    if options.get_bool("capped").unwrap_or(false) {
        return Some(("is capped".to_owned(), "it drops its oldest documents when it is full"));
    }
    match options.get_document("collation").and_then(|collation| collation.get_str("locale")) {
        Ok(locale) if locale != "simple" => Some((
            format!("has the collation {locale}"),
            "ids that differ would count as equal, and calls would be mixed up",
        )),
        Ok(_) | Err(_) => None,
    }
}

fn validator(name: &str, description: &Document) -> Option<String> {
    let options = description.get_document("options").ok()?;
    let rules = options.get_document("validator").ok().filter(|rules| !rules.is_empty())?;
    let refuses = options.get_str("validationAction").unwrap_or("error") == "error" && !rules.is_empty();
    (refuses && name == SUMMARIES_COLLECTION).then(|| {
        format!(
            "{name} has a validator: a summary that it refuses cannot be stored, and its call becomes a dead letter"
        )
    })
}

/// Whether two calls may have the same keys in this index. Their ids together are never the same.
fn is_hindering(index: &Document) -> bool {
    let Ok(keys) = index.get_document("key") else { return false };
    let is_own = keys.len() == 1 && keys.contains_key("_id");
    let tells_apart = keys.contains_key("conversationId") && keys.contains_key("sessionId");
    let has_collation = index.contains_key("collation");
    index.get_bool("unique").unwrap_or(false) && !is_own && (!tells_apart || has_collation)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the driver's enum grows, and one variant is asked about")]
fn is_unauthorized(error: &Error) -> bool {
    match error.kind.as_ref() {
        ErrorKind::Command(e) => e.code == UNAUTHORIZED,
        _ => false,
    }
}

/// How long the answer of the write that changes nothing is waited for.
const WRITE_TRIED_FOR: Duration = Duration::from_secs(5);

/// What this user has to be allowed to do in the database, and what fails where it is not.
const NEEDED: [(&str, &[&str], &str); 2] = [
    (SUMMARIES_COLLECTION, &["find", "insert", "update"], "no summary could be stored"),
    (SEGMENTS_COLLECTION, &["find"], "no segment could be read"),
];

/// Refuses a user who may not do what a processor has to do. `setup` and `run` need the same, and `createIndex` where an
/// index has to be made.
///
/// The server tells the privileges itself (`connectionStatus`). A write that is to match nothing then shows that the server
/// takes writes at all; it needs the privilege `update` and changes nothing. A server that does not answer it is warned of:
/// calls wait for such a server, and so does no start.
pub(super) async fn check_privileges(db: &Database, report: &mut Report) -> Result<(), SetupError> {
    let failed = |action: &str| {
        let action = action.to_owned();
        move |source| SetupError::Mongodb { action, source }
    };
    let status = db
        .run_command(doc! { "connectionStatus": 1, "showPrivileges": true })
        .await
        .map_err(failed("tell this user's privileges"))?;
    let missing = missing(&status, db.name());
    if !missing.is_empty() {
        return Err(SetupError::Privileges { database: db.name().to_owned(), missing: missing.join(", and ") });
    }
    let nothing = doc! { "_id": { "$in": [] } };
    let write = doc! {
        "update": SUMMARIES_COLLECTION,
        "updates": [{ "q": nothing, "u": { "$set": { "segments": 0_i64 } } }],
    };
    match tokio::time::timeout(WRITE_TRIED_FOR, db.run_command(write)).await {
        Ok(written) => written.map_err(failed("take a write that changes nothing")).map(drop),
        Err(_) => {
            report.warnings.push(format!(
                "MongoDB reads, but has not answered a write for {WRITE_TRIED_FOR:?}: no summary is stored until it does"
            ));
            Ok(())
        }
    }
}

/// What the user of the connection may not do. A server without access control names no user.
fn missing(status: &Document, database: &str) -> Vec<String> {
    let Ok(info) = status.get_document("authInfo") else { return vec![] };
    if info.get_array("authenticatedUsers").map_or(true, Vec::is_empty) {
        return vec![];
    }
    let privileges = info.get_array("authenticatedUserPrivileges").map(Vec::as_slice).unwrap_or_default();
    let privileges: Vec<&Document> = privileges.iter().filter_map(Bson::as_document).collect();
    let may = |collection: &str, action: &str| {
        privileges.iter().any(|privilege| {
            let covers = privilege.get_document("resource").is_ok_and(|place| covers(place, database, collection));
            let actions = privilege.get_array("actions").map(Vec::as_slice).unwrap_or_default();
            covers && actions.iter().any(|given| matches!(given.as_str(), Some(given) if given == action))
        })
    };
    NEEDED
        .iter()
        .filter_map(|(collection, actions, consequence)| {
            let missing: Vec<_> = actions.iter().copied().filter(|action| !may(collection, action)).collect();
            (!missing.is_empty()).then(|| format!("{} on {collection} ({consequence})", missing.join(", ")))
        })
        .collect()
}

/// Whether a resource of a privilege covers the collection. An empty name stands for all that are not the server's own.
fn covers(resource: &Document, database: &str, collection: &str) -> bool {
    if resource.get_bool("anyResource").unwrap_or(false) {
        return true;
    }
    let names = |field: &str, name: &str| resource.get_str(field).is_ok_and(|given| given.is_empty() || given == name);
    names("db", database) && names("collection", collection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_hold_summaries_is_told_apart() {
        let refused = |description: Document| unfit(&description).map(|(what, _)| what);
        assert_eq!(refused(doc! { "type": "view" }), Some("is a view".to_owned()));
        assert_eq!(refused(doc! { "type": "timeseries" }), Some("is a timeseries".to_owned()));
        assert_eq!(refused(doc! { "type": "collection", "options": { "capped": true } }), Some("is capped".to_owned()));
        let collation = doc! { "type": "collection", "options": { "collation": { "locale": "en", "strength": 1 } } };
        assert_eq!(refused(collation), Some("has the collation en".to_owned()));
        assert_eq!(refused(doc! { "type": "collection", "options": { "collation": { "locale": "simple" } } }), None);
        assert_eq!(refused(doc! { "type": "collection", "options": {} }), None);
    }

    #[test]
    fn a_unique_index_hinders_unless_calls_never_share_its_keys() {
        for (index, hinders) in [
            (doc! { "key": { "_id": 1 }, "unique": true }, false),
            (doc! { "key": { "sessionId": 1 } }, false),
            (doc! { "key": { "sessionId": 1 }, "unique": true }, true),
            (doc! { "key": { "words": 1 }, "unique": true }, true),
            (doc! { "key": { "conversationId": 1, "sessionId": 1 }, "unique": true }, false),
            (doc! { "key": { "conversationId": 1, "sessionId": 1 }, "unique": true, "collation": {} }, true),
        ] {
            assert_eq!(is_hindering(&index), hinders, "{index}");
        }
    }

    #[test]
    fn privileges_are_read_as_the_server_writes_them() {
        let status = |resource: Document, actions: &[&str]| {
            doc! { "authInfo": {
                "authenticatedUsers": [{ "user": "ann", "db": "admin" }],
                "authenticatedUserPrivileges": [{ "resource": resource, "actions": actions }],
            } }
        };
        let all = ["find", "insert", "update", "remove"];
        for resource in
            [doc! { "db": "t", "collection": "" }, doc! { "db": "", "collection": "" }, doc! { "anyResource": true }]
        {
            assert_eq!(missing(&status(resource, &all), "t"), Vec::<String>::new());
        }
        let only_read = missing(&status(doc! { "db": "t", "collection": "" }, &["find"]), "t");
        assert_eq!(only_read, ["insert, update on transcriptsummaries (no summary could be stored)"]);
        let elsewhere = missing(&status(doc! { "db": "other", "collection": "" }, &all), "t");
        assert_eq!(elsewhere.len(), 2, "{elsewhere:?}");
        let one = missing(&status(doc! { "db": "t", "collection": "transcriptsummaries" }, &all), "t");
        assert_eq!(one, ["find on transcriptsegments (no segment could be read)"]);
        assert_eq!(missing(&doc! { "authInfo": { "authenticatedUsers": [] } }, "t"), Vec::<String>::new());
    }
}
