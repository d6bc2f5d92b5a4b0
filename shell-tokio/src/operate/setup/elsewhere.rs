//! Whether a stream that is missing here is kept elsewhere.
//!
//! A leaf node can have a JetStream of its own, in a domain of its own. A client that is connected to it asks that JetStream
//! unless it names another domain, and would make a second, empty stream beside the one that everybody else uses. The leaf
//! node would then store what is published there and at the hub as well.

use std::time::Duration;

use async_nats::{
    HeaderMap, Request as NatsRequest, RequestErrorKind,
    header::NATS_EXPECTED_STREAM,
    jetstream::{Context, response::Response},
};
use serde_json::{Value, json};

use super::{Api, Request, SetupError, objects::Object};

/// How long an answer is waited for. Where nobody listens, NATS says so at once.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// The name of no stream.
const NO_STREAM: &str = "none-of-this-name";

/// Refuses to make a stream where another JetStream is known to have it, and where it was not said which one is meant.
///
/// # Errors
///
/// [`SetupError::Domain`] and [`SetupError::Elsewhere`].
pub(super) async fn check(js: &Context, object: &Object, request: &Request) -> Result<(), SetupError> {
    if request.api != Api::Nearest {
        return Ok(());
    }
    if let Some(domain) = domain(js).await {
        return Err(SetupError::Domain { object: object.name.clone(), domain });
    }
    match taken_by(js, object).await {
        Some(stream) => Err(SetupError::Elsewhere { object: object.name.clone(), stream }),
        None => Ok(()),
    }
}

/// The domain of the JetStream that answers.
async fn domain(js: &Context) -> Option<String> {
    match js.request::<_, _, Response<Value>>("INFO".to_owned(), &json!({})).await {
        Ok(Response::Ok(info)) => info["domain"].as_str().filter(|domain| !domain.is_empty()).map(str::to_owned),
        Ok(Response::Err { .. }) | Err(_) => None,
    }
}

/// The stream that takes messages of this kind, wherever it is.
///
/// It is asked with a message that no stream stores: it expects to be stored in a stream that does not exist. A stream whose
/// subjects match refuses it and says its name, in whichever domain it is (nats-server, `stream.go`, where it reads
/// `Nats-Expected-Stream`).
async fn taken_by(js: &Context, object: &Object) -> Option<String> {
    let mut headers = HeaderMap::new();
    headers.insert(NATS_EXPECTED_STREAM, NO_STREAM);
    let request = NatsRequest::new().headers(headers).timeout(Some(ANSWER_WITHIN));
    let answer = match js.client().send_request(object.probe_subject()?, request).await {
        Ok(answer) => answer,
        Err(error) => {
            if error.kind() != RequestErrorKind::NoResponders {
                tracing::debug!(%error, "whether another stream takes these subjects is not known");
            }
            return None;
        }
    };
    let answer: Value = serde_json::from_slice(&answer.payload).ok()?;
    let stream = answer["stream"].as_str()?;
    let domain = answer["domain"].as_str().map(|domain| format!(" of domain {domain}"));
    Some(format!("{stream}{}", domain.unwrap_or_default()))
}
