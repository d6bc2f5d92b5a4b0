//! The calls of the management API, from their subjects and bodies.

use serde::{Deserialize, de::DeserializeOwned};

use super::{
    config::{ConsumerBody, StreamBody, read_time},
    request::two_tokens,
};
use crate::{
    call::{ApiCall, ApiKind, PurgeScope, Which},
    message::ApiError,
};

/// The call behind `$JS.API.`; `None` where the server knows none, and does not answer.
pub(super) fn call(call: &str, body: &[u8]) -> Option<ApiCall> {
    let (kind, read) = match call.split_once('.')? {
        ("STREAM", rest) => stream_call(rest, body)?,
        ("CONSUMER", rest) => consumer_call(rest, body)?,
        (_, _) => return None,
    };
    Some(read.unwrap_or_else(|error| ApiCall::Unreadable { kind, error }))
}

type ReadCall = Option<(ApiKind, Result<ApiCall, ApiError>)>;

fn stream_call(call: &str, body: &[u8]) -> ReadCall {
    let (verb, stream) = call.rsplit_once('.')?;
    Some(match verb {
        "CREATE" => (ApiKind::CreateStream, StreamBody::read(stream, body).map(ApiCall::CreateStream)),
        "UPDATE" => (ApiKind::UpdateStream, StreamBody::read(stream, body).map(ApiCall::UpdateStream)),
        "DELETE" => (ApiKind::DeleteStream, Ok(ApiCall::DeleteStream(stream.into()))),
        "INFO" => (ApiKind::StreamInfo, Ok(ApiCall::StreamInfo(stream.into()))),
        "PURGE" => (ApiKind::Purge, purge(stream, body)),
        "MSG.GET" => (ApiKind::GetMessage, get(stream, body)),
        "MSG.DELETE" => (ApiKind::DeleteMessage, delete(stream, body)),
        _ => return None,
    })
}

fn consumer_call(call: &str, body: &[u8]) -> ReadCall {
    let (verb, rest) = call.split_once('.')?;
    if verb == "CREATE" {
        // The filter of a consumer can follow its name; the body holds it as well.
        let mut tokens = rest.splitn(3, '.');
        let (stream, name) = (tokens.next()?, tokens.next());
        return Some((ApiKind::CreateConsumer, ConsumerBody::read(stream, name, body)));
    }
    let (stream, consumer) = two_tokens(rest.strip_prefix("CREATE.").unwrap_or(rest))?;
    if verb == "DURABLE" {
        return Some((ApiKind::CreateConsumer, ConsumerBody::read(stream, Some(consumer), body)));
    }
    let (stream, consumer) = (stream.into(), consumer.into());
    Some(match verb {
        "INFO" => (ApiKind::ConsumerInfo, Ok(ApiCall::ConsumerInfo { stream, consumer })),
        "DELETE" => (ApiKind::DeleteConsumer, Ok(ApiCall::DeleteConsumer { stream, consumer })),
        "RESET" => {
            let sequence = read_or_default::<Sequence>(body).map(|body| (body.seq > 0).then_some(body.seq));
            let call = sequence.map(|sequence| ApiCall::ResetConsumer { stream, consumer, sequence });
            (ApiKind::ResetConsumer, call)
        }
        "PAUSE" => {
            let until = read_or_default::<Pause>(body).and_then(|body| match body.pause_until.as_deref() {
                None | Some("" | "0001-01-01T00:00:00Z") => Ok(None),
                Some(text) => read_time(text).map(Some),
            });
            let call = until.map(|until_nanos| ApiCall::PauseConsumer { stream, consumer, until_nanos });
            (ApiKind::PauseConsumer, call)
        }
        _ => return None,
    })
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Pause {
    pause_until: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Sequence {
    seq: u64,
    #[serde(rename = "no_erase")]
    _no_erase: bool,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Purge {
    seq: u64,
    filter: String,
    keep: u64,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Get {
    seq: u64,
    last_by_subj: String,
    next_by_subj: String,
}

fn purge(stream: &str, body: &[u8]) -> Result<ApiCall, ApiError> {
    let Purge { seq, filter, keep } = read_or_default(body)?;
    let scope = match (seq, filter.as_str(), keep) {
        (0, "", 0) => PurgeScope::All,
        (0, filter, 0) => PurgeScope::Subject(filter.into()),
        (seq, "", 0) => PurgeScope::Before(seq),
        (1.., _, 1..) => return Err(ApiError::bad_request()),
        (_, _, _) => return Err(ApiError::not_modelled("a purge of this kind")),
    };
    Ok(ApiCall::Purge { stream: stream.into(), scope })
}

fn get(stream: &str, body: &[u8]) -> Result<ApiCall, ApiError> {
    let Get { seq, last_by_subj, next_by_subj } = read(body)?;
    let which = match (seq, last_by_subj.as_str(), next_by_subj.as_str()) {
        (1.., "", "") => Which::Sequence(seq),
        (0, last, "") if !last.is_empty() => Which::LastOf(last.into()),
        (_, "", next) if !next.is_empty() => Which::NextOf(seq, next.into()),
        (_, _, _) => return Err(ApiError::bad_request()),
    };
    Ok(ApiCall::GetMessage { stream: stream.into(), which })
}

fn delete(stream: &str, body: &[u8]) -> Result<ApiCall, ApiError> {
    let Sequence { seq, .. } = read(body)?;
    Ok(ApiCall::DeleteMessage { stream: stream.into(), sequence: seq })
}

/// Reads a body that must be there.
pub(super) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    if body.trim_ascii().is_empty() {
        return Err(ApiError::bad_request());
    }
    serde_json::from_slice(body).map_err(|error| {
        let text = error.to_string();
        // Go names a field that it does not know in its own words.
        let unknown = text.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next());
        let why = unknown.map_or(text.clone(), |field| format!("json: unknown field \"{field}\""));
        ApiError::new(400, 10_025, format!("invalid JSON: {why}"))
    })
}

/// Reads a body that may be missing.
fn read_or_default<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, ApiError> {
    if body.trim_ascii().is_empty() { Ok(T::default()) } else { read(body) }
}

impl ApiError {
    fn bad_request() -> Self {
        Self::new(400, 10_003, "bad request")
    }

    /// What the real server could do and this model does not; no code of the server is like it.
    pub(super) fn not_modelled(what: &str) -> Self {
        Self::new(501, 0, format!("jetstream-model does not model {what}"))
    }
}
