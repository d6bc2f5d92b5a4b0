//! An error and its causes in one line, without what a server or a document said.
//!
//! MongoDB repeats the command that it refuses, and readers of JSON and BSON repeat the value that they did not expect: both
//! can be the words of a call. So of a server's error its code, its name and our own words are told, and of a value that it
//! is not the expected one.

use std::error::Error;

use async_nats::jetstream;
use mongodb::error::ErrorKind;
use transcript_core::Server;
use transcript_trace::json_error;

use crate::{connect::Fault, service::mongodb::describe};

/// The error and its causes in one line. Some errors repeat their cause in their own text; it is then not told twice.
#[must_use]
pub fn error_line(error: &(dyn Error + 'static)) -> String {
    let mut line = String::new();
    let mut hidden = vec![];
    let mut cause = Some(error);
    while let Some(error) = cause {
        let own = own_words(error);
        let text = error.to_string();
        if !line.contains(&text) {
            if !line.is_empty() {
                line.push_str(": ");
            }
            line.push_str(&text);
        }
        // What is behind an error that is told in our words is its client's.
        cause = if own.is_some() { None } else { error.source() };
        hidden.extend(own.map(|own| (text, own)));
    }
    // The clients' errors repeat their cause in their own text.
    for (text, own) in hidden {
        line = line.replace(&text, &own);
    }
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What is told of an error whose text may be a server's or a document's.
fn own_words(error: &(dyn Error + 'static)) -> Option<String> {
    if let Some(error) = error.downcast_ref::<mongodb::error::Error>() {
        return Some(mongodb_error(error));
    }
    if let Some(error) = error.downcast_ref::<Box<mongodb::error::Error>>() {
        return Some(mongodb_error(error));
    }
    if error.is::<mongodb::bson::error::Error>() {
        return Some("a document of MongoDB cannot be read: it is not what this program writes".to_owned());
    }
    if let Some(error) = error.downcast_ref::<jetstream::Error>() {
        return Some(jetstream_error(error));
    }
    error.downcast_ref::<serde_json::Error>().map(json_error)
}

/// What an error of the MongoDB driver says, without a text of the server.
fn mongodb_error(error: &mongodb::error::Error) -> String {
    if let ErrorKind::ConnectionPoolCleared { .. } = error.kind.as_ref() {
        return "MongoDB: the connection was lost".to_owned();
    }
    let fault = Fault::of_mongodb(error);
    if fault == Fault::Other {
        return format!("MongoDB: {}", describe(error));
    }
    format!("MongoDB: {}", fault.explain(Server::Mongodb))
}

/// What an error of JetStream says, by its code (nats-server, `server/errors.json`).
fn jetstream_error(error: &jetstream::Error) -> String {
    let code = error.error_code();
    let known = match code.0 {
        10_002 | 10_023 => "the account or the server has no resources left: free some, or raise its limits",
        10_003 | 10_025 => "the request is none: is the server older than this program needs?",
        10_005 => "no server of the cluster can hold it: there are too few, or they have no room",
        10_008 | 10_009 => "JetStream has no leader: wait until a majority of the servers is up",
        10_013 | 10_148 => "the consumer is there already, with other settings",
        10_014 => "there is no such consumer: setup creates it",
        10_037 => "there is no such message",
        10_039 | 10_076 => "JetStream is not enabled there: enable it for this account, or on the server",
        10_047 => "the server has no storage left: free some",
        10_052 => "the stream cannot have these settings",
        10_054 => "the message is larger than the stream allows (max_msg_size)",
        10_058 => "there is a stream of this name, with other settings",
        10_059 => "there is no such stream: setup creates it",
        10_065 => "another stream has these subjects",
        10_071 => "the stream has gone on meanwhile",
        10_074 => "the server cannot keep so many replicas: it is alone, or the cluster is too small",
        10_077 => "the stream takes no message now: it is full, or sealed",
        _ => "the server refuses it",
    };
    format!("{known} (JetStream error {})", code.0)
}

#[cfg(test)]
mod tests {
    use std::io;

    use thiserror::Error;

    use super::*;

    #[derive(Debug, Error)]
    #[error("the stream cannot be read: {0}")]
    struct Repeats(#[source] io::Error);

    #[derive(Debug, Error)]
    #[error("the stream cannot be read: {0}")]
    struct Json(#[source] serde_json::Error);

    #[test]
    fn a_cause_is_told_once() {
        let error = Repeats(io::Error::other("no\n  room"));
        assert_eq!(error_line(&error), "the stream cannot be read: no room");
    }

    #[test]
    fn a_value_is_never_told() {
        let value = |json: &str| serde_json::from_str::<Vec<u8>>(json).unwrap_err();
        let told = error_line(&Json(value(r#"["so much for that, expected more"]"#)));
        assert_eq!(told, "the stream cannot be read: a value is not of its type: u8 is expected at line 1 column 34");
    }

    #[test]
    fn a_text_of_jetstream_is_never_told() {
        let error: jetstream::Error =
            serde_json::from_str(r#"{"code":404,"err_code":10059,"description":"so much for that"}"#).unwrap();
        let told = error_line(&jetstream::context::GetStreamError::with_source(
            jetstream::context::GetStreamErrorKind::Request,
            error,
        ));
        assert!(told.ends_with("there is no such stream: setup creates it (JetStream error 10059)"), "{told}");
        assert!(!told.contains("so much"), "{told}");
    }
}
