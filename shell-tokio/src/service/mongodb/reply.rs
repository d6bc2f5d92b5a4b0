//! What replies to writes and reads of summaries say. Texts are read leniently: mongod cuts the text of an error at 150
//! bytes, also inside a character.

use mongodb::bson::{DateTime, RawBson, RawBsonRef, RawDocument};
use transcript_client::mongodb::{CommandError, WriteError, WriteErrors};
use transcript_core::{Notified, Stored, WallTime};

/// The longest name of an index that is told.
const INDEX_NAME: usize = 128;

/// What an update command's reply says of its single updates.
///
/// # Errors
///
/// An error of which nobody can tell whose it is.
pub(crate) fn write_errors(reply: &RawDocument) -> Result<WriteErrors, CommandError> {
    let concern = reply.get_document("writeConcernError").ok().map(code);
    let Ok(errors) = reply.get_array("writeErrors") else { return Ok(WriteErrors { members: vec![], concern }) };
    let mut members = vec![];
    for error in errors {
        let error = error.ok().and_then(RawBsonRef::as_document).ok_or(CommandError::Undecodable)?;
        members.push(WriteError { place: place(error)?, code: code(error), index: index(error) });
    }
    Ok(WriteErrors { members, concern })
}

/// Which updates of an update command inserted a document.
///
/// # Errors
///
/// An insert of which nobody can tell whose it is.
pub(crate) fn inserted(reply: &RawDocument) -> Result<Vec<usize>, CommandError> {
    let Ok(upserted) = reply.get_array("upserted") else { return Ok(vec![]) };
    let member = |one: Result<RawBsonRef<'_>, _>| {
        place(one.ok().and_then(RawBsonRef::as_document).ok_or(CommandError::Undecodable)?)
    };
    upserted.into_iter().map(member).collect()
}

/// The place in the command of what a member of the reply is about.
fn place(member: &RawDocument) -> Result<usize, CommandError> {
    let place = member.get("index").ok().flatten().and_then(integer).and_then(|place| usize::try_from(place).ok());
    place.ok_or(CommandError::Undecodable)
}

fn code(error: &RawDocument) -> i32 {
    error.get("code").ok().flatten().and_then(integer).and_then(|code| i32::try_from(code).ok()).unwrap_or(0)
}

fn integer(value: RawBsonRef<'_>) -> Option<i64> {
    value.as_i32().map(i64::from).or_else(|| value.as_i64())
}

/// The unique index that refused a key: its name stands only in the text, between these words (`buildDupKeyErrorStatus` in
/// `src/mongo/db/storage/duplicate_key_error_info`). The key itself stands behind it and is not read.
fn index(error: &RawDocument) -> Option<String> {
    let text = error.iter_elements().flatten().find(|element| element.key().as_str() == "errmsg")?;
    let RawBson::String(text) = text.value_utf8_lossy().ok()? else { return None };
    let (_, behind) = text.split_once(" index: ")?;
    let ends = [" dup key", " collation"].into_iter().filter_map(|end| behind.find(end)).min()?;
    let name = behind.get(..ends)?;
    (!name.is_empty() && name.len() <= INDEX_NAME).then(|| name.to_owned())
}

/// What a summary's document says.
pub(crate) fn stored(document: &RawDocument) -> Stored {
    let notified = document.get_document("notified").ok().map(|mark| Notified {
        stream_sequence: number(mark.get("streamSequence").ok().flatten()),
        at: WallTime::from_millis(mark.get_datetime("at").map_or(0, DateTime::timestamp_millis)),
    });
    Stored {
        segments: number(document.get("segments").ok().flatten()),
        edits: number(document.get("edits").ok().flatten()),
        complete: document.get_bool("complete").unwrap_or(false),
        notified,
        revision: number(document.get("revision").ok().flatten()).max(1),
        reprocess: number(document.get("reprocess").ok().flatten()),
        revised: document.get_document("revised").ok().map(|mark| number(mark.get("revision").ok().flatten())),
    }
}

/// A number of any type; 0 where there is none.
pub(crate) fn number(value: Option<RawBsonRef<'_>>) -> u64 {
    let Some(value) = value else { return 0 };
    let decimal = || if let RawBsonRef::Decimal128(decimal) = value { decimal.to_string().parse().ok() } else { None };
    let other = || value.as_f64().or_else(decimal).map(|n| n as i64);
    integer(value).or_else(other).and_then(|n| u64::try_from(n).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{RawDocumentBuf, doc};

    use super::*;

    /// The reply with each `#` of its texts replaced by half a character.
    fn reply(document: &mongodb::bson::Document) -> RawDocumentBuf {
        let reply = RawDocumentBuf::try_from(document).expect("the document is encodable");
        let bytes = reply.into_bytes().into_iter().map(|byte| if byte == b'#' { 0xC3 } else { byte }).collect();
        RawDocumentBuf::from_bytes(bytes).expect("it is as long as before")
    }

    #[test]
    fn a_reply_tells_which_updates_failed_and_how() {
        let reply = reply(&doc! { "ok": 1, "n": 2, "writeErrors": [
            { "index": 1, "code": 11000, "errmsg": "E11000 duplicate key error collection: a.b index: _id_ dup key: { _id: \"ca#" },
            { "index": 2, "code": 11000, "errmsg": "E11000 duplicate key error collection: a.b index: of us dup key: { x: \"words of a call\" }" },
            { "index": 4, "code": 112, "errmsg": "WriteConflict" },
        ] });
        let error = |place, code, index: Option<&str>| WriteError { place, code, index: index.map(str::to_owned) };
        let members = vec![error(1, 11_000, Some("_id_")), error(2, 11_000, Some("of us")), error(4, 112, None)];
        assert_eq!(write_errors(&reply), Ok(WriteErrors { members, concern: None }));
    }

    #[test]
    fn a_write_concern_error_is_told_beside_the_others() {
        let reply = reply(&doc! {
            "ok": 1, "n": 1, "writeErrors": [{ "index": 0, "code": 121, "errmsg": "#" }],
            "writeConcernError": { "code": 64, "errmsg": "waiting timed out" },
        });
        let members = vec![WriteError { place: 0, code: 121, index: None }];
        assert_eq!(write_errors(&reply), Ok(WriteErrors { members, concern: Some(64) }));
    }

    #[test]
    fn a_reply_tells_which_updates_inserted() {
        let upserted =
            doc! { "ok": 1, "n": 3, "upserted": [{ "index": 0, "_id": "s:0" }, { "index": 2, "_id": "s:2" }] };
        assert_eq!(inserted(&reply(&upserted)), Ok(vec![0, 2]));
        assert_eq!(inserted(&reply(&doc! { "ok": 1, "n": 1 })), Ok(vec![]));
        assert_eq!(inserted(&reply(&doc! { "upserted": [{ "_id": "s:0" }] })), Err(CommandError::Undecodable));
    }

    #[test]
    fn an_error_that_names_no_update_makes_the_reply_unreadable() {
        let nobodys = reply(&doc! { "ok": 1, "writeErrors": [{ "code": 112 }] });
        assert_eq!(write_errors(&nobodys), Err(CommandError::Undecodable));
    }
}
