//! `call-page`: a page on which people hold a call in the browser, to try the system out.
//!
//! The page speaks with a transcriber, as any client does. From here it gets what it cannot get there: what others have said,
//! the summary, what keeps the processor from working, and a drawing of what happened. All of that is read from MongoDB, from
//! the processor's status and from traces. Nothing is written.
//!
//! There are no tokens. So it listens on loopback addresses only, and answers only requests that name one: a page of another
//! site whose name was made to mean this machine gets nothing.

mod events;
mod faults;
mod open_call;

use std::{io, net::SocketAddr, path::PathBuf, sync::Arc};

use axum::{
    Json, Router,
    extract::{Path, Query, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{Html, IntoResponse, Redirect, Response, Sse, sse::KeepAlive},
    routing::get,
};
use mongodb::Database;
use serde::Deserialize;
use serde_json::json;
use thiserror::Error;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
    task::spawn_blocking,
};
use transcript_core::ids::Session;

use self::{
    events::CallEvents,
    faults::{Fault, ask_processor},
    open_call::OpenCall,
};
use crate::{
    cli::CallPageArgs,
    error_line::error_line,
    service::run::{RunError, read_token},
    traces,
};

/// How many windows are told what is said at the same time.
const MAX_WINDOWS: usize = 64;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
/// The page's modules, by name.
const SCRIPTS: [(&str, &str); 4] = [
    ("/page.js", include_str!("page.js")),
    ("/client.js", include_str!("client.js")),
    ("/memory.js", include_str!("memory.js")),
    ("/view.js", include_str!("view.js")),
];

/// What the page itself may load, and where it may connect to.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; \
    connect-src 'self' ws: wss:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// A drawn timeline has its styles and its script in itself.
const TIMELINE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; \
    frame-ancestors 'none'";

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
    /// The token of the processor cannot be read.
    #[error(transparent)]
    Token(#[from] RunError),
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
    open_call: OpenCall,
    windows: Arc<Semaphore>,
    /// One drawing at a time: it reads whole files.
    drawing: Semaphore,
    faults: watch::Receiver<Vec<Fault>>,
}

/// Serves the page until the process ends. `ready` is told the page's address.
///
/// # Errors
///
/// The address cannot be listened on, or the token of the processor cannot be read.
pub async fn serve(
    args: &CallPageArgs,
    database: Database,
    ready: impl FnOnce(&str) -> io::Result<()>,
) -> Result<(), CallPageError> {
    let token = args.token_file.as_ref().map(read_token).transpose()?;
    let failed = |source| CallPageError::Listen { address: args.listen, source };
    let listener = TcpListener::bind(args.listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let windows = Arc::new(Semaphore::new(MAX_WINDOWS));
    let (told, faults) = watch::channel(vec![]);
    let service = Service {
        database,
        transcriber: args.transcriber.trim_end_matches('/').to_owned(),
        traces: args.traces.clone(),
        open_call: OpenCall::default(),
        windows: Arc::clone(&windows),
        drawing: Semaphore::new(1),
        faults,
    };
    ready(&format!("http://{address}/")).map_err(CallPageError::Serve)?;
    let is_open = || windows.available_permits() < MAX_WINDOWS;
    let asking = async {
        match &args.processor {
            Some(processor) => ask_processor(processor, token.as_ref(), &told, is_open).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        served = axum::serve(listener, router(service)) => served.map_err(CallPageError::Serve),
        () = asking => Ok(()),
    }
}

fn router(service: Service) -> Router {
    let scripts = SCRIPTS.into_iter().fold(Router::new(), |router, (path, script)| {
        router.route(path, get(async move || text("text/javascript; charset=utf-8", script)))
    });
    scripts
        .route("/", get(page))
        .route("/page.css", get(async || text("text/css; charset=utf-8", STYLE)))
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
    let policy = if request.uri().path().ends_with("/timeline") { TIMELINE_POLICY } else { PAGE_POLICY };
    let mut response = next.run(request).await;
    let headers: [(HeaderName, &'static str); 4] = [
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn is_loopback(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(host, |(name, _)| name);
    ["127.0.0.1", "[::1]", "localhost"].contains(&name)
}

/// The call that the address of the page names, if it names one.
#[derive(Debug, Deserialize)]
struct NamedCall {
    session: Option<String>,
}

/// The page. Whoever opens it without naming a call is led to the open one, so that two people who open the same address hold
/// one call.
async fn page(State(service): State<Arc<Service>>, Query(named): Query<NamedCall>) -> Response {
    match named.session {
        Some(_) => Html(PAGE).into_response(),
        None => {
            let session = service.open_call.session_id(&service.database).await;
            Redirect::to(&format!("/?session={session}")).into_response()
        }
    }
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
    let events = CallEvents::new(service.database.clone(), session, service.faults.clone(), place);
    Sse::new(events.stream()).keep_alive(KeepAlive::default()).into_response()
}

#[expect(clippy::disallowed_methods, reason = "reading traces blocks, and must not keep other windows waiting")]
async fn timeline(
    State(service): State<Arc<Service>>,
    Path((conversation, session)): Path<(String, String)>,
) -> Response {
    let Some(directory) = service.traces.clone() else {
        return (StatusCode::NOT_FOUND, "no traces are recorded: see --traces").into_response();
    };
    let _one = service.drawing.acquire().await;
    let draw = move || traces::page(&directory, &conversation, &session).map_err(|error| error_line(error.as_ref()));
    match spawn_blocking(draw).await {
        Ok(Ok(page)) => Html(page).into_response(),
        Ok(Err(why)) => {
            (StatusCode::NOT_FOUND, format!("there is no timeline of this call yet: {why}")).into_response()
        }
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "the timeline could not be drawn").into_response(),
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

    #[test]
    fn the_page_loads_nothing_that_is_not_served() {
        let named = PAGE.split(['"', '\'']).chain(SCRIPTS.iter().flat_map(|(_, script)| script.split('"')));
        let loaded: Vec<&str> = named.filter(|name| name.ends_with(".js") || name.ends_with(".css")).collect();
        assert!(loaded.len() > SCRIPTS.len(), "{loaded:?}");
        for name in loaded {
            let path = format!("/{}", name.trim_start_matches("./"));
            assert!(path == "/page.css" || SCRIPTS.iter().any(|(served, _)| *served == path), "{name}");
        }
    }
}
