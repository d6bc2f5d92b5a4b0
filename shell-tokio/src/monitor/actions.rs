//! What an operator can do on the page: redrive and discard dead letters, pause and resume all processors, make one quiet, and
//! have a call processed again. Each does what the command of the same name does.
//!
//! It takes the token of `--http-token-file`; without one nothing can be done here. A request must be JSON and say so, and
//! a browser must send it from the page itself: another site's page can send neither the token nor, without being asked
//! first by its browser, that content type. Each action is logged with who asked for it and what became of it.

use std::{fmt::Display, net::SocketAddr, time::Duration};

use axum::{
    Extension,
    body::{Body, Bytes, HttpBody, to_bytes},
    extract::State,
    http::{
        HeaderMap, StatusCode,
        header::{CONTENT_TYPE, HOST, ORIGIN},
    },
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use transcript_core::ids::Session;

use super::http::Site;
use crate::{
    cli::Which,
    error_line::error_line,
    operate::{
        dead_letters::{self, Outcome},
        pause,
        processes::{self, Ask},
        reprocess,
    },
    terminal::harmless,
};

/// The largest request, in bytes.
const MOST_BYTES: u16 = u16::MAX;
/// How long a client may take to send it.
const SENT_WITHIN: Duration = Duration::from_secs(10);
/// The most dead letters of one request.
const MOST_LETTERS: usize = 1000;
/// How long an action may take.
const WITHIN: Duration = Duration::from_secs(50);
/// The shortest and the longest pause, in seconds: as `pause --for` takes it.
const PAUSE: std::ops::RangeInclusive<u64> = 1..=30 * 24 * 3600;

/// The address of the client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub(super) SocketAddr);

/// What is asked for.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", tag = "action", deny_unknown_fields)]
enum Action {
    /// Publishes the ends of these dead letters again.
    Redrive { sequences: Vec<u64> },
    /// Removes these dead letters.
    Discard { sequences: Vec<u64> },
    /// Has JetStream hand out no call for so long.
    Pause { seconds: u64 },
    /// Ends that.
    Resume,
    /// Has one processor take no more calls.
    Quiet { name: String },
    /// Ends that.
    Unquiet { name: String },
    /// Has a call processed again.
    #[serde(rename_all = "camelCase")]
    Reprocess { conversation_id: String, session_id: String },
}

/// What became of it.
#[derive(Debug, Serialize)]
struct Answer {
    /// Whether everything was done.
    good: bool,
    /// What became of it, for people.
    lines: Vec<String>,
}

/// The body. One that says that it is too large is not waited for.
async fn read(body: Body) -> Result<Bytes, StatusCode> {
    if body.size_hint().lower() > MOST_BYTES.into() {
        return Err(StatusCode::PAYLOAD_TOO_LARGE);
    }
    match timeout(SENT_WITHIN, to_bytes(body, MOST_BYTES.into())).await {
        Ok(read) => read.map_err(|_| StatusCode::PAYLOAD_TOO_LARGE),
        Err(_) => Err(StatusCode::REQUEST_TIMEOUT),
    }
}

/// Does what is asked.
pub(super) async fn act(
    State(site): State<Site>,
    Extension(Peer(peer)): Extension<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    if !site.has_token() {
        let text = "nothing can be done here: the process was started without --http-token-file\n";
        return (StatusCode::FORBIDDEN, text).into_response();
    }
    if let Err(why) = is_from_the_page(&headers) {
        tracing::warn!(%peer, why, "an action on the status page was refused");
        return (StatusCode::FORBIDDEN, format!("{why}\n")).into_response();
    }
    let body = match read(body).await {
        Ok(body) => body,
        Err(status) => return (status, "a request has at most 64 KiB, and is sent within 10 s\n").into_response(),
    };
    let action: Action = match serde_json::from_slice(&body) {
        Ok(action) => action,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("no action: {error}\n")).into_response(),
    };
    // The log tells it before it is done: it is known who did it although the process dies over it.
    tracing::info!(%peer, token = "--http-token-file", ?action, "asked for on the status page");
    let answer = match timeout(WITHIN, perform(&site, &action)).await {
        Ok(answer) => answer,
        Err(_) => Answer::bad("it takes too long: look whether it is done before you repeat it"),
    };
    tracing::info!(%peer, good = answer.good, told = ?answer.lines, ?action, "done on the status page");
    let status = if answer.good { StatusCode::OK } else { StatusCode::CONFLICT };
    match serde_json::to_string(&answer) {
        Ok(text) => (status, [(CONTENT_TYPE, "application/json")], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Whether a browser sends it from the page itself, or something that is no browser does.
///
/// # Errors
///
/// Why it is refused.
fn is_from_the_page(headers: &HeaderMap) -> Result<(), &'static str> {
    let text = |value: Option<&axum::http::HeaderValue>| value.and_then(|value| value.to_str().ok()).map(str::to_owned);
    let content = text(headers.get(CONTENT_TYPE)).unwrap_or_default();
    let kind = content.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        return Err("the content type must be application/json");
    }
    if let Some(origin) = headers.get(ORIGIN) {
        let host = text(headers.get(HOST)).ok_or("the request names no host")?;
        let origin = text(Some(origin)).unwrap_or_default();
        let authority = origin.split_once("://").map(|(_, authority)| authority);
        if authority.is_none_or(|authority| !authority.eq_ignore_ascii_case(&host)) {
            return Err("the request comes from another site's page");
        }
    }
    match text(headers.get("sec-fetch-site")).as_deref() {
        None | Some("same-origin" | "none") => Ok(()),
        Some(_) => Err("the request comes from another site's page"),
    }
}

async fn perform(site: &Site, action: &Action) -> Answer {
    let parts = site.monitor().parts();
    let (js, database) = (&parts.jetstream, &parts.database);
    match action {
        Action::Redrive { sequences } | Action::Discard { sequences } if sequences.len() > MOST_LETTERS => {
            Answer::bad(&format!("at most {MOST_LETTERS} dead letters at once"))
        }
        Action::Redrive { sequences } => {
            Answer::outcomes(dead_letters::redrive(js, database, &Which::These(sequences.clone()), None).await)
        }
        Action::Discard { sequences } => Answer::outcomes(dead_letters::discard(js, sequences).await),
        Action::Pause { seconds } if !PAUSE.contains(seconds) => Answer::bad("a pause takes from a second to 30 days"),
        Action::Pause { seconds } => {
            let paused = pause::pause(js, parts.clock.wall(), Duration::from_secs(*seconds)).await;
            Answer::of(paused.map(|until| format!("paused until {until}")))
        }
        Action::Resume => Answer::of(pause::resume(js).await.map(|hands_out| {
            if hands_out {
                "resumed: calls are handed out".to_owned()
            } else {
                "the consumer is still paused".to_owned()
            }
        })),
        Action::Quiet { name } => {
            let told = processes::tell(&js.client(), name, Ask::Quiet).await;
            Answer::of(told.map(|presence| {
                format!("{} takes no more calls; it has {} in hand", presence.name, presence.in_hand.unwrap_or(0))
            }))
        }
        Action::Unquiet { name } => {
            let told = processes::tell(&js.client(), name, Ask::Resume).await;
            Answer::of(told.map(|presence| format!("{} takes calls again", presence.name)))
        }
        Action::Reprocess { conversation_id, session_id } => match Session::new(conversation_id, session_id) {
            Ok(session) => Answer::of(reprocess::request(js, database, &session).await.map(|requested| {
                format!("asked for as message {}; the answer is announced as a revision", requested.stream_sequence)
            })),
            Err(error) => Answer::bad(&error.to_string()),
        },
    }
}

impl Answer {
    fn bad(why: &str) -> Self {
        Self { good: false, lines: vec![why.to_owned()] }
    }

    fn of<E: std::error::Error + 'static>(done: Result<impl Display, E>) -> Self {
        match done {
            Ok(line) => Self { good: true, lines: vec![harmless(&line.to_string())] },
            Err(error) => Self { good: false, lines: vec![harmless(&error_line(&error))] },
        }
    }

    fn outcomes<E: std::error::Error + 'static>(outcomes: Result<Vec<Outcome>, E>) -> Self {
        match outcomes {
            Ok(outcomes) => Self {
                good: outcomes.iter().all(|outcome| outcome.done.is_success()),
                lines: outcomes.iter().map(|outcome| harmless(&outcome.to_string())).collect(),
            },
            Err(error) => Self { good: false, lines: vec![harmless(&error_line(&error))] },
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn verdict(headers: &[(&'static str, &'static str)]) -> Result<(), &'static str> {
        let headers =
            headers.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        is_from_the_page(&headers.collect())
    }

    #[test]
    fn only_the_page_itself_and_what_is_no_browser_can_act() {
        const JSON: (&str, &str) = ("content-type", "application/json; charset=utf-8");
        const OURS: (&str, &str) = ("host", "127.0.0.1:9464");
        assert_eq!(verdict(&[JSON]), Ok(()), "curl");
        assert_eq!(
            verdict(&[JSON, OURS, ("origin", "http://127.0.0.1:9464"), ("sec-fetch-site", "same-origin")]),
            Ok(())
        );
        for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""] {
            assert!(verdict(&[("content-type", kind), OURS]).is_err(), "{kind}: a form can send it");
        }
        assert!(verdict(&[OURS]).is_err());
        for origin in ["http://example.org", "null", "http://127.0.0.1:9464.example.org", "http://127.0.0.1:9465", ""] {
            assert!(verdict(&[JSON, OURS, ("origin", origin)]).is_err(), "{origin}");
        }
        assert!(verdict(&[JSON, ("origin", "http://127.0.0.1:9464")]).is_err(), "no host");
        for site in ["cross-site", "same-site"] {
            assert!(verdict(&[JSON, OURS, ("sec-fetch-site", site)]).is_err(), "{site}");
        }
    }

    #[test]
    fn an_action_is_read_exactly() {
        let read = |text: &str| serde_json::from_str::<Action>(text).map_err(|error| error.to_string());
        assert!(matches!(read(r#"{"action":"redrive","sequences":[7]}"#), Ok(Action::Redrive { .. })));
        assert!(matches!(
            read(r#"{"action":"reprocess","conversationId":"c","sessionId":"s"}"#),
            Ok(Action::Reprocess { .. })
        ));
        for bad in ["", "{}", r#"{"action":"redrive"}"#, r#"{"action":"drop"}"#, r#"{"action":"pause","seconds":-1}"#] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
