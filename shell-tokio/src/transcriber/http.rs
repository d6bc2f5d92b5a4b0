//! The routes, and who is let in.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use axum::{
    Extension, Router,
    body::Body,
    extract::{Path, Query, State, WebSocketUpgrade, rejection::QueryRejection},
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::Deserialize;
use tokio::sync::{Semaphore, SemaphorePermit};
use transcript_core::ids::Session;
use transcript_dialects::Dialect;
use transcript_transcriber::{Opening, ServerFrame, document::Transport};

use super::{
    access::{self, Access, AccessRequest, Refused, SUBPROTOCOL, SignedRequest},
    hub::Hub,
    listen::Place,
    post::{self, Delivered},
    socket::{self, SocketLimits},
};

/// The longest name of a client and of an epoch, in bytes.
const LONGEST_NAME: usize = 256;
/// How many times a frame the body of a request may be.
const FRAMES_A_BODY: usize = 16;

/// How many requests with a body are served at the same time. Each holds its body until its segments are stored, so this bounds
/// the memory of clients that send slowly, and of all clients while MongoDB is away.
const BODIES: usize = 256;

/// What every request needs.
#[derive(Debug)]
pub struct Service {
    access: Access,
    hub: Hub,
    limits: SocketLimits,
    bodies: Semaphore,
    refused: RefusedRequests,
}

/// How many requests were refused before the state machine knew of them.
#[derive(Debug, Clone, Default)]
pub struct RefusedRequests(Arc<RefusedCounts>);

#[derive(Debug, Default)]
struct RefusedCounts {
    token: AtomicU64,
    origin: AtomicU64,
    request: AtomicU64,
}

impl RefusedRequests {
    /// How many were refused, by reason.
    #[must_use]
    pub fn by_reason(&self) -> [(&'static str, u64); 3] {
        let RefusedCounts { token, origin, request } = &*self.0;
        [("token", token), ("origin", origin), ("request", request)]
            .map(|(reason, counter)| (reason, counter.load(Ordering::Relaxed)))
    }

    /// One more. A session that the token does not name is a matter of the token.
    fn not_let_in(&self, refused: Refused) {
        let RefusedCounts { token, origin, .. } = &*self.0;
        let counter = if refused == Refused::Origin { origin } else { token };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn bad_request(&self) {
        self.0.request.fetch_add(1, Ordering::Relaxed);
    }
}

/// The query of a request; other parameters are ignored.
#[derive(Debug, Default, Deserialize)]
pub struct Asked {
    dialect: Option<String>,
    client: Option<String>,
    epoch: Option<String>,
    speaker: Option<String>,
    token: Option<String>,
}

/// Why a request is refused.
#[derive(Debug)]
pub struct Refusal {
    status: StatusCode,
    reason: String,
    is_retryable: bool,
}

impl Refusal {
    /// A request that is refused whenever it comes.
    fn lasting(status: StatusCode, reason: impl Into<String>) -> Self {
        Self { status, reason: reason.into(), is_retryable: false }
    }

    /// A request that is wrong.
    pub(super) fn bad(reason: impl Into<String>) -> Self {
        Self::lasting(StatusCode::BAD_REQUEST, reason)
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        Self::lasting(refused.status(), refused.to_string())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let error = ServerFrame::Error { id: None, reason: self.reason, retryable: self.is_retryable };
        json(self.status, serde_json::to_string(&error).unwrap_or_default())
    }
}

/// An answer in JSON.
pub(super) fn json(status: StatusCode, body: String) -> Response {
    (status, [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}

/// The routes.
pub fn router(service: Service) -> Router {
    Router::new()
        .route("/v1/conversations/{conversation}/sessions/{session}", get(upgrade))
        .route("/v1/conversations/{conversation}/sessions/{session}/segments", post(segments))
        .route("/v1/conversations/{conversation}/sessions/{session}/end", post(end))
        .with_state(Arc::new(service))
}

/// A client that was let in.
struct Admitted {
    opening: Opening,
    dialect: Dialect,
    speaker: Option<Arc<str>>,
}

/// A client that was let in, unless its signature is bad.
struct Candidate(Admitted);

impl Candidate {
    /// Checks the signature, once the body is there.
    fn verify(self, service: &Service, request: SignedRequest<'_>) -> Result<Admitted, Refusal> {
        let Self(admitted) = self;
        let checked = service.access.check_signature(admitted.dialect, admitted.opening.transport, request);
        checked.inspect_err(|refused| service.refused.not_let_in(*refused))?;
        Ok(admitted)
    }
}

impl Service {
    /// A service that lets these in, hands their connections to this hub, and counts who is not let in.
    #[must_use]
    pub fn new(access: Access, hub: Hub, limits: SocketLimits, refused: RefusedRequests) -> Self {
        Self { access, hub, limits, bodies: Semaphore::new(BODIES), refused }
    }

    /// A place for the body of a request.
    fn place_for_body(&self) -> Result<SemaphorePermit<'_>, Refusal> {
        self.bodies.try_acquire().map_err(|_| Refusal {
            status: StatusCode::SERVICE_UNAVAILABLE,
            reason: "too many requests at the same time: send it again".to_owned(),
            is_retryable: true,
        })
    }

    /// The text of a body, which may have as much as some frames.
    async fn text(&self, body: Body) -> Result<String, Refusal> {
        Ok(post::text(body, self.limits.max_frame.saturating_mul(FRAMES_A_BODY)).await?)
    }

    /// Lets a client in, or counts that it is not let in.
    fn admit(
        &self,
        ids: &(String, String),
        headers: &HeaderMap,
        asked: Result<Query<Asked>, QueryRejection>,
        transport: Transport,
    ) -> Result<Candidate, Refusal> {
        let candidate = self.check(ids, headers, asked, transport);
        if matches!(&candidate, Err(refusal) if refusal.status == StatusCode::BAD_REQUEST) {
            self.refused.bad_request();
        }
        candidate
    }

    fn check(
        &self,
        ids: &(String, String),
        headers: &HeaderMap,
        asked: Result<Query<Asked>, QueryRejection>,
        transport: Transport,
    ) -> Result<Candidate, Refusal> {
        let session = session(ids)?;
        let Query(asked) = asked.map_err(|_| Refusal::bad("the query cannot be read"))?;
        // An unknown dialect is told to nobody who may not come in.
        let dialect = asked.dialect.as_deref().map_or(Ok(Dialect::Native), str::parse::<Dialect>);
        let request = AccessRequest {
            headers,
            query: asked.token.as_deref(),
            session: &session,
            dialect: dialect.as_ref().copied().unwrap_or_default(),
            transport,
        };
        self.access.check(request).inspect_err(|refused| self.refused.not_let_in(*refused))?;
        let name = |what: &str, name: Option<String>| match name {
            Some(name) if name.is_empty() || name.len() > LONGEST_NAME => {
                Err(Refusal::bad(format!("{what} must have 1 to {LONGEST_NAME} bytes")))
            }
            other => Ok(other.map(Arc::from)),
        };
        let (client, epoch) = (name("client", asked.client)?, name("epoch", asked.epoch)?);
        if epoch.is_some() && client.is_none() {
            return Err(Refusal::bad("epoch needs client: it is an epoch of that client"));
        }
        Ok(Candidate(Admitted {
            opening: Opening { connection: self.hub.next_id(), session, client, epoch, transport },
            dialect: dialect.map_err(|unknown| Refusal::bad(unknown.to_string()))?,
            speaker: name("speaker", asked.speaker)?,
        }))
    }
}

/// The session of a path. Its id begins the ids of messages, which headers carry.
fn session((conversation, session): &(String, String)) -> Result<Session, Refusal> {
    let ids = Session::new(conversation, session).map_err(|error| Refusal::bad(error.to_string()))?;
    if session.starts_with(' ') || session.contains(|c: char| c.is_ascii_control()) {
        return Err(Refusal::bad("sessionId must not begin with a space, nor hold a control character"));
    }
    Ok(ids)
}

async fn upgrade(
    State(service): State<Arc<Service>>,
    Path(ids): Path<(String, String)>,
    asked: Result<Query<Asked>, QueryRejection>,
    uri: Uri,
    headers: HeaderMap,
    Extension(place): Extension<Place>,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Result<Response, Refusal> {
    let candidate = service.admit(&ids, &headers, asked, Transport::Socket)?;
    let admitted = candidate.verify(&service, SignedRequest { headers: &headers, uri: &uri, body: b"" })?;
    let upgrade = upgrade.map_err(|_| Refusal::lasting(StatusCode::UPGRADE_REQUIRED, "this is a WebSocket"))?;
    let limits = service.limits;
    let mut upgrade = limits.apply(upgrade);
    if access::subprotocols(&headers).any(|offered| offered == SUBPROTOCOL) {
        upgrade.set_selected_protocol(HeaderValue::from_static(SUBPROTOCOL));
    }
    let hub = service.hub.clone();
    let Admitted { opening, dialect, speaker } = admitted;
    Ok(upgrade.on_upgrade(move |socket| async move {
        socket::serve(socket, hub.open(opening), dialect, speaker, limits).await;
        drop(place);
    }))
}

async fn segments(
    State(service): State<Arc<Service>>,
    Path(ids): Path<(String, String)>,
    asked: Result<Query<Asked>, QueryRejection>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let candidate = service.admit(&ids, &headers, asked, Transport::Post)?;
    let _place = service.place_for_body()?;
    let text = service.text(body).await?;
    let request = SignedRequest { headers: &headers, uri: &uri, body: text.as_bytes() };
    let Admitted { opening, dialect, speaker } = candidate.verify(&service, request)?;
    let frames = dialect.read_all(&text).map_err(|problem| Refusal::bad(problem.to_string()))?;
    let delivered = post::deliver(service.hub.open(opening), frames, speaker).await;
    Ok(delivered.into_response())
}

async fn end(
    State(service): State<Arc<Service>>,
    Path(ids): Path<(String, String)>,
    asked: Result<Query<Asked>, QueryRejection>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let candidate = service.admit(&ids, &headers, asked, Transport::Post)?;
    let _place = service.place_for_body()?;
    // What it says is signed, and means nothing else.
    let text = service.text(body).await?;
    let request = SignedRequest { headers: &headers, uri: &uri, body: text.as_bytes() };
    let Admitted { opening, .. } = candidate.verify(&service, request)?;
    Ok(post::end(service.hub.open(opening)).await.into_response())
}

impl From<post::BadBody> for Refusal {
    fn from(bad: post::BadBody) -> Self {
        Self::lasting(bad.status(), bad.to_string())
    }
}

impl IntoResponse for Delivered {
    fn into_response(self) -> Response {
        json(self.status(), serde_json::to_string(&self).unwrap_or_default())
    }
}
