//! The listener: health, readiness, metrics, the status document and the page.
//!
//! Everything that a client can do is bounded: how many connections there are, how long a request's header may take and how
//! large it may be, and how long a connection may last. A client that does not read is cut off with its connection. Only a POST to
//! `/action` changes anything, and only with the token.
//!
//! On a loopback address only requests for a loopback host are answered: a page of another site that had its name resolved
//! to 127.0.0.1 (DNS rebinding) names its own. Where a token is given, everything but `/healthz` and `/readyz` needs it; it
//! comes in a header, which another site's page cannot send.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    extract::{Request, State},
    http::{
        HeaderMap, HeaderName, HeaderValue, StatusCode,
        header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, REFERRER_POLICY, WWW_AUTHENTICATE},
        header::{X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS},
    },
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};

use super::{
    Monitor,
    actions::{self, Peer},
    finding::Finding,
    metrics::{self, Broker},
    session,
    status::Status,
};
use crate::{
    secret::Secret,
    transcriber::access::{SharedSecret, bearer},
};

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
/// Nothing but the page's own files.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      form-action 'none'; frame-ancestors 'none'; base-uri 'none'";
const JSON: &str = "application/json";

/// How it is served.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The token that requests must have.
    pub token: Option<Secret>,
    /// Whether the broker's numbers are among the metrics.
    pub broker: Broker,
    /// Whether what was said in calls is shown.
    pub content: PageContent,
}

/// Whether the page shows what was said in calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageContent {
    /// Numbers and ids only.
    Hidden,
    /// Summaries and transcripts too.
    Shown,
}

#[derive(Debug, Clone)]
pub(super) struct Site {
    monitor: Monitor,
    broker: Broker,
    content: PageContent,
    gate: Gate,
}

impl Site {
    /// What is looked at.
    pub(super) fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    /// Whether requests must have a token.
    pub(super) fn has_token(&self) -> bool {
        self.gate.token.is_some()
    }

    /// Whether what was said is shown.
    pub(super) fn content(&self) -> PageContent {
        self.content
    }
}

/// Who is let in.
#[derive(Debug, Clone)]
pub(super) struct Gate {
    token: Option<Arc<SharedSecret>>,
    is_loopback: bool,
}

impl Gate {
    /// Of what listens there.
    pub(super) fn new(listener: &TcpListener, token: Option<&Secret>) -> Self {
        let is_loopback = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
        let token = token.map(|token| Arc::new(SharedSecret::new(token.reveal().as_bytes())));
        Self { token, is_loopback }
    }
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
    let Settings { token, broker, content } = settings;
    let gate = Gate::new(&listener, token.as_ref());
    take(listener, router(Site { monitor, broker, content, gate })).await;
}

/// Serves these routes until it is dropped.
pub(super) async fn take(listener: TcpListener, router: Router) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = tokio::task::JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "an HTTP connection was not taken");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        // One too many is closed at once, so that its client knows.
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else { continue };
        let router = router.clone().layer(Extension(Peer(peer)));
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
        .route("/session.json", get(session::look_up))
        .route("/action", post(actions::act))
        .layer(middleware::from_fn_with_state(site.gate.clone(), authorize));
    open.merge(page)
        .merge(closed)
        .layer(middleware::from_fn_with_state(site.gate.clone(), guard))
        .fallback(|| async { (StatusCode::NOT_FOUND, "there is nothing here: see /") })
        .with_state(site)
}

/// Refuses hosts that are not this one, and says how answers may be used.
pub(super) async fn guard(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    if gate.is_loopback && !names_loopback(request.headers()) {
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

/// Lets only those in who have the token.
pub(super) async fn authorize(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    let Some(token) = gate.token.as_deref() else { return next.run(request).await };
    if bearer(request.headers()).is_some_and(|given| token.is(given.as_bytes())) {
        return next.run(request).await;
    }
    let challenge = [(WWW_AUTHENTICATE, "Bearer")];
    (StatusCode::UNAUTHORIZED, challenge, "this needs the token of --http-token-file\n").into_response()
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
    match metrics::scrape(&site.monitor, site.broker).await {
        Some(text) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, "the event loop does not answer\n").into_response(),
    }
}

async fn status(State(site): State<Site>) -> Response {
    json(serde_json::to_string(&Status::of_process(&site.monitor).await))
}

pub(super) fn json(text: serde_json::Result<String>) -> Response {
    match text {
        Ok(text) => ([(CONTENT_TYPE, JSON)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
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
        let token = SharedSecret::new(b"secret");
        assert!(token.is(b"secret"));
        for other in [&b"secre"[..], b"secret1", b"Secret", b""] {
            assert!(!token.is(other));
        }
    }
}
