//! `call-page`: a page on which people hold a call in the browser, to try the system out.
//!
//! The page speaks with a transcriber, as any client does. From here it gets what it cannot get there: what others have said,
//! the summary, and a drawing of what happened. All of that is read from MongoDB and from traces; nothing is written.
//!
//! There are no tokens. So it listens on loopback addresses only, and answers only requests that name one: a page of another
//! site whose name was made to mean this machine gets nothing.

mod follow;

use std::{io, net::SocketAddr, path::PathBuf, sync::Arc};

use axum::{
    Json, Router,
    extract::{Path, Request, State},
    http::{HeaderMap, HeaderName, StatusCode, header},
    middleware::{self, Next},
    response::{Html, IntoResponse, Response, Sse, sse::KeepAlive},
    routing::get,
};
use mongodb::Database;
use serde_json::json;
use thiserror::Error;
use tokio::{net::TcpListener, sync::Semaphore};
use transcript_core::ids::Session;

use self::follow::Follow;
use crate::{cli::CallPageArgs, error_line::error_line, traces};

/// How many windows are told what is said at the same time.
const MAX_WINDOWS: usize = 64;

const PAGE: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("page.js");
const STYLE: &str = include_str!("page.css");

/// Why the page is not served, or not any more.
#[derive(Debug, Error)]
pub enum CallPageError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address} (--listen)")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Connections cannot be taken.
    #[error("cannot take connections")]
    Serve(#[source] io::Error),
}

/// What every request needs.
#[derive(Debug)]
struct Service {
    database: Database,
    transcriber: String,
    traces: Option<PathBuf>,
    windows: Arc<Semaphore>,
}

/// Serves the page until the process ends. `ready` is told the page's address.
///
/// # Errors
///
/// The address cannot be listened on.
pub async fn serve(
    args: &CallPageArgs,
    database: Database,
    ready: impl FnOnce(&str) -> io::Result<()>,
) -> Result<(), CallPageError> {
    let failed = |source| CallPageError::Listen { address: args.listen, source };
    let listener = TcpListener::bind(args.listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let service = Service {
        database,
        transcriber: args.transcriber.trim_end_matches('/').to_owned(),
        traces: args.traces.clone(),
        windows: Arc::new(Semaphore::new(MAX_WINDOWS)),
    };
    ready(&format!("http://{address}/")).map_err(CallPageError::Serve)?;
    axum::serve(listener, router(service)).await.map_err(CallPageError::Serve)
}

fn router(service: Service) -> Router {
    Router::new()
        .route("/", get(async || Html(PAGE)))
        .route("/page.js", get(async || text("text/javascript", SCRIPT)))
        .route("/page.css", get(async || text("text/css", STYLE)))
        .route("/settings.json", get(settings))
        .route("/calls/{conversation}/{session}/events", get(events))
        .route("/calls/{conversation}/{session}/timeline", get(timeline))
        .layer(middleware::from_fn(only_from_here))
        .with_state(Arc::new(service))
}

fn text(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// Refuses requests that do not name a loopback address, and says what the pages may load.
async fn only_from_here(request: Request, next: Next) -> Response {
    if !is_loopback(request.headers()) {
        return (StatusCode::FORBIDDEN, "this page answers to 127.0.0.1, [::1] and localhost only").into_response();
    }
    let is_timeline = request.uri().path().ends_with("/timeline");
    let mut response = next.run(request).await;
    // A drawn timeline has its styles and its script in itself.
    let policy = if is_timeline {
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
    } else {
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self' ws: wss:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    };
    let headers: [(HeaderName, &'static str); 4] = [
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, header::HeaderValue::from_static(value));
    }
    response
}

fn is_loopback(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(host, |(name, _)| name);
    ["127.0.0.1", "[::1]", "localhost"].contains(&name)
}

async fn settings(State(service): State<Arc<Service>>) -> Response {
    Json(json!({ "transcriber": service.transcriber, "timelines": service.traces.is_some() })).into_response()
}

async fn events(
    State(service): State<Arc<Service>>,
    Path((conversation, session)): Path<(String, String)>,
) -> Response {
    let session = match Session::new(&conversation, &session) {
        Ok(session) => session,
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    let Ok(place) = Arc::clone(&service.windows).try_acquire_owned() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many windows are open").into_response();
    };
    let events = Follow::new(service.database.clone(), session, place).events();
    Sse::new(events).keep_alive(KeepAlive::default()).into_response()
}

async fn timeline(
    State(service): State<Arc<Service>>,
    Path((conversation, session)): Path<(String, String)>,
) -> Response {
    let Some(directory) = &service.traces else {
        return (StatusCode::NOT_FOUND, "no traces are recorded: see --traces").into_response();
    };
    match traces::page(directory, &conversation, &session) {
        Ok(page) => Html(page).into_response(),
        Err(error) => {
            let why = format!("there is no timeline of this call yet: {}", error_line(error.as_ref()));
            (StatusCode::NOT_FOUND, why).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_answered() {
        let is_answered =
            |host: &str| is_loopback(&HeaderMap::from_iter([(header::HOST, host.parse().expect("it is a value"))]));
        for host in ["127.0.0.1:8092", "localhost:8092", "[::1]:8092", "localhost", "[::1]"] {
            assert!(is_answered(host), "{host}");
        }
        for host in ["", "evil.example", "evil.example:8092", "127.0.0.1.evil.example:8092", "localhost:evil"] {
            assert!(!is_answered(host), "{host}");
        }
        assert!(!is_loopback(&HeaderMap::new()));
    }
}
