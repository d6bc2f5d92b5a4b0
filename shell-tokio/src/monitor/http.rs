//! The listener: health, readiness, metrics, the status document and the page.
//!
//! Everything that a client can do is bounded: how many connections there are, how long a request's header may take and how
//! large it may be, and how long a connection may last. A client that does not read is cut off with its connection. No request
//! changes anything.
//!
//! On a loopback address only requests for a loopback host are answered: a page of another site that had its name resolved
//! to 127.0.0.1 (DNS rebinding) names its own. Where a token is given, everything but `/healthz` and `/readyz` needs it; it
//! comes in a header, which another site's page cannot send.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Query, Request, State},
    http::{
        HeaderMap, HeaderName, HeaderValue, StatusCode,
        header::{
            AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, REFERRER_POLICY,
            WWW_AUTHENTICATE,
        },
        header::{X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS},
    },
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use mongodb::bson::doc;
use serde::Deserialize;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};
use transcript_core::{contract::SUMMARIES_COLLECTION, ids::Session};

use super::{
    Monitor,
    finding::Finding,
    metrics::{self, Broker},
    status::{SessionStatus, Status},
};
use crate::{error_line::error_line, secret::Secret};

/// How many connections there may be.
const CONNECTIONS: usize = 64;
/// How long the header of a request may take, also that of the next request of a connection.
const HEADER_WITHIN: Duration = Duration::from_secs(5);
/// How large it may be, in bytes.
const HEADER_BYTES: usize = 16 << 10;
/// How many headers it may have.
const HEADERS: usize = 64;
/// How long a connection may last.
const CONNECTION_LASTS: Duration = Duration::from_secs(60);
/// The pause after a connection that could not be taken, as where the process has no more file descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a session is looked up at the most.
const LOOK_UP: Duration = Duration::from_secs(5);
/// Nothing but the page's own files.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      form-action 'none'; frame-ancestors 'none'; base-uri 'none'";
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// How it is served.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The token that requests must have.
    pub token: Option<Secret>,
    /// Whether the broker's numbers are among the metrics.
    pub broker: Broker,
}

#[derive(Debug, Clone)]
struct Site {
    monitor: Monitor,
    settings: Arc<Settings>,
    is_loopback: bool,
}

/// A socket that listens.
///
/// # Errors
///
/// The address cannot be had.
pub async fn bind(address: SocketAddr, settings: &Settings) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    tracing::info!(%address, "listening for HTTP");
    if !address.ip().is_loopback() && settings.token.is_none() {
        tracing::warn!(
            %address,
            "whoever reaches this address can read the ids of calls and the reasons of dead letters: give a token with \
             --http-token-file, or listen on a loopback address"
        );
    }
    Ok(listener)
}

/// Serves until it is dropped.
pub async fn serve(listener: TcpListener, monitor: Monitor, settings: Settings) {
    let is_loopback = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
    let router = router(Site { monitor, settings: Arc::new(settings), is_loopback });
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = tokio::task::JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "an HTTP connection was not taken");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        // One too many is closed at once, so that its client knows.
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else { continue };
        let router = router.clone();
        connections.spawn(async move {
            serve_connection(stream, router).await;
            drop(place);
        });
    }
}

async fn serve_connection(stream: TcpStream, router: Router) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_WITHIN).max_buf_size(HEADER_BYTES).max_headers(HEADERS);
    let served = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match timeout(CONNECTION_LASTS, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "an HTTP connection broke"),
        Err(_) => tracing::debug!("an HTTP connection lasted too long"),
    }
}

fn router(site: Site) -> Router {
    let open = Router::new().route("/healthz", get(healthz)).route("/readyz", get(readyz));
    // The page and its files hold nothing: what they show they ask for with the token.
    let page = Router::new()
        .route("/", get(|| file("text/html; charset=utf-8", include_str!("page/index.html"))))
        .route("/page.css", get(|| file("text/css; charset=utf-8", include_str!("page/page.css"))))
        .route("/page.js", get(|| file("text/javascript; charset=utf-8", include_str!("page/page.js"))));
    let closed = Router::new()
        .route("/metrics", get(metrics))
        .route("/status.json", get(status))
        .route("/session.json", get(session))
        .layer(middleware::from_fn_with_state(site.clone(), authorize));
    open.merge(page)
        .merge(closed)
        .layer(middleware::from_fn_with_state(site.clone(), guard))
        .fallback(|| async { (StatusCode::NOT_FOUND, "there is nothing here: see /") })
        .with_state(site)
}

/// Refuses hosts that are not this one, and says how answers may be used.
async fn guard(State(site): State<Site>, request: Request, next: Next) -> Response {
    if site.is_loopback && !names_loopback(request.headers()) {
        return (StatusCode::FORBIDDEN, "the request is for another host: this address answers for localhost only\n")
            .into_response();
    }
    let mut response = next.run(request).await;
    let headers: [(HeaderName, &'static str); 5] = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn names_loopback(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST).and_then(|host| host.to_str().ok()) else { return false };
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

async fn authorize(State(site): State<Site>, request: Request, next: Next) -> Response {
    let Some(token) = &site.settings.token else { return next.run(request).await };
    let given = request.headers().get(AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    if given.is_some_and(|given| is_same(given, token.reveal().as_bytes())) {
        return next.run(request).await;
    }
    let challenge = [(WWW_AUTHENTICATE, "Bearer")];
    (StatusCode::UNAUTHORIZED, challenge, "this needs the token of --http-token-file\n").into_response()
}

/// Compares in a time that does not depend on where they differ.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let differ = one.iter().zip(other).fold(0, |differ, (one, other)| differ | (one ^ other));
    one.len() == other.len() && differ == 0
}

async fn file(kind: &'static str, content: &'static str) -> impl IntoResponse {
    ([(CONTENT_TYPE, kind)], content)
}

async fn healthz(State(site): State<Site>) -> impl IntoResponse {
    if site.monitor.parts().health.stands_still() {
        let stands_still = "the event loop stands still: nothing is pulled and no heartbeat goes out. Calls in hand go to \
                            other processors. Restart the process\n";
        return (StatusCode::SERVICE_UNAVAILABLE, stands_still);
    }
    (StatusCode::OK, "ok\n")
}

async fn readyz(State(site): State<Site>) -> (StatusCode, String) {
    let observed = site.monitor.observe().await;
    if observed.processor.is_none() {
        return (StatusCode::SERVICE_UNAVAILABLE, "the event loop does not answer\n".to_owned());
    }
    let lines = |findings: &[Finding]| findings.iter().map(|finding| format!("{finding}\n")).collect::<String>();
    let is_ready = observed.findings.iter().all(|finding| !finding.blocks);
    let told = lines(&observed.findings);
    if is_ready { (StatusCode::OK, format!("ready\n{told}")) } else { (StatusCode::SERVICE_UNAVAILABLE, told) }
}

async fn metrics(State(site): State<Site>) -> Response {
    match metrics::scrape(&site.monitor, site.settings.broker).await {
        Some(text) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, "the event loop does not answer\n").into_response(),
    }
}

async fn status(State(site): State<Site>) -> Response {
    json(serde_json::to_string(&Status::of_process(&site.monitor).await))
}

fn json(text: serde_json::Result<String>) -> Response {
    match text {
        Ok(text) => ([(CONTENT_TYPE, JSON)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Which session is looked up.
#[derive(Debug, Deserialize)]
struct Wanted {
    conversation: String,
    session: String,
}

/// A summary's numbers, without a word of the call.
async fn session(State(site): State<Site>, Query(wanted): Query<Wanted>) -> Response {
    let plain = |status: StatusCode, text: String| (status, [(CONTENT_TYPE, TEXT)], text).into_response();
    let session = match Session::new(&wanted.conversation, &wanted.session) {
        Ok(session) => session,
        Err(error) => return plain(StatusCode::BAD_REQUEST, format!("{error}\n")),
    };
    let summaries = site.monitor.parts().database.collection::<SessionStatus>(SUMMARIES_COLLECTION);
    let fields = doc! { "segments": 1, "publishedSegments": 1, "complete": 1 };
    let find = summaries.find_one(doc! { "_id": session.key().as_str() }).projection(fields);
    match timeout(LOOK_UP, find.into_future()).await {
        Ok(Ok(Some(found))) => json(serde_json::to_string(&found)),
        Ok(Ok(None)) => plain(StatusCode::NOT_FOUND, "there is no summary of this session\n".to_owned()),
        Ok(Err(error)) => plain(StatusCode::BAD_GATEWAY, format!("{}\n", error_line(&error))),
        Err(_) => plain(StatusCode::GATEWAY_TIMEOUT, "MongoDB does not answer\n".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_hosts_are_loopback() {
        let host = |host: &'static str| HeaderMap::from_iter([(HOST, HeaderValue::from_static(host))]);
        for good in ["localhost", "LOCALHOST:9464", "127.0.0.1:9464", "[::1]:9464", "127.9.9.9"] {
            assert!(names_loopback(&host(good)), "{good}");
        }
        for bad in ["example.org", "localhost.example.org", "127.0.0.1.example.org:9464", "10.0.0.1", "", "[::2]"] {
            assert!(!names_loopback(&host(bad)), "{bad}");
        }
        assert!(!names_loopback(&HeaderMap::new()));
    }

    #[test]
    fn tokens_are_the_same_only_where_all_of_them_is() {
        assert!(is_same(b"secret", b"secret"));
        for other in [&b"secre"[..], b"secret1", b"Secret", b""] {
            assert!(!is_same(other, b"secret"));
        }
    }
}
