//! The routes, and who is let in.

use std::sync::Arc;

use axum::{
    Router,
    extract::{DefaultBodyLimit, Path, Query, State, WebSocketUpgrade, rejection::QueryRejection},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::Deserialize;
use transcript_core::ids::Session;
use transcript_dialects::Dialect;
use transcript_transcriber::{Opening, ServerFrame, document::Transport};

use super::{
    access::{self, Access, SUBPROTOCOL},
    hub::Hub,
    post::{self, Delivered},
    socket::{self, SocketLimits},
};

/// The longest name of a client and of an epoch, in bytes.
const LONGEST_NAME: usize = 256;
/// How many times a frame the body of a request may be.
const FRAMES_A_BODY: usize = 16;

/// What every request needs.
#[derive(Debug)]
pub struct Service {
    /// Who is let in.
    pub access: Access,
    /// Where connections begin.
    pub hub: Hub,
    /// How much a socket may take.
    pub limits: SocketLimits,
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
}

impl Refusal {
    /// A request that is wrong.
    pub(super) fn bad(reason: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, reason: reason.into() }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let error = ServerFrame::Error { id: None, reason: self.reason, retryable: false };
        json(self.status, serde_json::to_string(&error).unwrap_or_default())
    }
}

/// An answer in JSON.
pub(super) fn json(status: StatusCode, body: String) -> Response {
    (status, [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}

/// The routes.
pub fn router(service: Service) -> Router {
    let body = service.limits.max_frame.saturating_mul(FRAMES_A_BODY);
    Router::new()
        .route("/v1/conversations/{conversation}/sessions/{session}", get(upgrade))
        .route("/v1/conversations/{conversation}/sessions/{session}/segments", post(segments))
        .route("/v1/conversations/{conversation}/sessions/{session}/end", post(end))
        .layer(DefaultBodyLimit::max(body))
        .with_state(Arc::new(service))
}

/// A client that was let in.
struct Admitted {
    opening: Opening,
    dialect: Dialect,
    speaker: Option<Arc<str>>,
}

impl Service {
    fn admit(
        &self,
        ids: &(String, String),
        headers: &HeaderMap,
        asked: Result<Query<Asked>, QueryRejection>,
        transport: Transport,
    ) -> Result<Admitted, Refusal> {
        let session = session(ids)?;
        let Query(asked) = asked.map_err(|_| Refusal::bad("the query cannot be read"))?;
        self.access
            .check(headers, asked.token.as_deref(), &session)
            .map_err(|refused| Refusal { status: refused.status(), reason: refused.to_string() })?;
        let dialect = asked.dialect.as_deref().map_or(Ok(Dialect::Native), str::parse);
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
        Ok(Admitted {
            opening: Opening { connection: self.hub.next_id(), session, client, epoch, transport },
            dialect: dialect.map_err(|unknown| Refusal::bad(unknown.to_string()))?,
            speaker: name("speaker", asked.speaker)?,
        })
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
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Result<Response, Refusal> {
    let admitted = service.admit(&ids, &headers, asked, Transport::Socket)?;
    let upgrade = upgrade
        .map_err(|_| Refusal { status: StatusCode::UPGRADE_REQUIRED, reason: "this is a WebSocket".to_owned() })?;
    let limits = service.limits;
    let mut upgrade = limits.apply(upgrade);
    if access::subprotocols(&headers).any(|offered| offered == SUBPROTOCOL) {
        upgrade.set_selected_protocol(HeaderValue::from_static(SUBPROTOCOL));
    }
    let hub = service.hub.clone();
    let Admitted { opening, dialect, speaker } = admitted;
    Ok(upgrade.on_upgrade(move |socket| async move {
        socket::serve(socket, hub.open(opening), dialect, speaker, limits).await;
    }))
}

async fn segments(
    State(service): State<Arc<Service>>,
    Path(ids): Path<(String, String)>,
    asked: Result<Query<Asked>, QueryRejection>,
    headers: HeaderMap,
    body: axum::body::Body,
) -> Result<Response, Refusal> {
    let Admitted { opening, dialect, speaker } = service.admit(&ids, &headers, asked, Transport::Post)?;
    let text = post::text(body, &service.limits, FRAMES_A_BODY).await.map_err(Refusal::from)?;
    let frames = dialect.read_all(&text).map_err(|problem| Refusal::bad(problem.to_string()))?;
    let delivered = post::deliver(service.hub.open(opening), frames, speaker).await;
    Ok(delivered.into_response())
}

async fn end(
    State(service): State<Arc<Service>>,
    Path(ids): Path<(String, String)>,
    asked: Result<Query<Asked>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let Admitted { opening, .. } = service.admit(&ids, &headers, asked, Transport::Post)?;
    Ok(post::end(service.hub.open(opening)).await.into_response())
}

impl From<post::BadBody> for Refusal {
    fn from(bad: post::BadBody) -> Self {
        Self { status: bad.status(), reason: bad.to_string() }
    }
}

impl IntoResponse for Delivered {
    fn into_response(self) -> Response {
        json(self.status(), serde_json::to_string(&self).unwrap_or_default())
    }
}
