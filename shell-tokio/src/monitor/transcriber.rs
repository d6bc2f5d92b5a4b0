//! Health, readiness and metrics of a running transcriber.
//!
//! Its state machine knows how its servers are: each session asks them for something all the time, and the lease does where
//! there is no session. So nothing else looks at them.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    middleware,
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, registry::Registry};
use tokio::net::TcpListener;
use transcript_core::{Server, Time};
use transcript_transcriber::{
    AcknowledgementTimes, Counters, EffectKind, State as SessionState, StreamState, Transcriber,
};

use super::{
    finding::MANUAL,
    http::{self, Gate, authorize, guard},
    metrics::{self, Out, real, whole},
};
use crate::{secret::Secret, service::driver::Asker, transcriber::http::RefusedRequests};

/// How long a driver may take to answer. One that takes longer stands still.
const ANSWER: Duration = Duration::from_secs(4);

/// The states of a session that are told, also where no session is there.
const STATES: [SessionState; 10] = [
    SessionState::TakingOver,
    SessionState::Joining,
    SessionState::Serving,
    SessionState::Reserving,
    SessionState::Saving,
    SessionState::Lingering,
    SessionState::Leaving,
    SessionState::Counting,
    SessionState::Publishing,
    SessionState::Finishing,
];

/// How a transcriber stood at one moment.
#[derive(Debug, Clone)]
pub struct TranscriberSnapshot {
    at: Time,
    counters: Counters,
    acknowledged: AcknowledgementTimes,
    sessions: BTreeMap<SessionState, usize>,
    connections: usize,
    bytes: usize,
    stream: StreamState,
    has_lease: bool,
    is_stopping: bool,
    failing: Vec<EffectKind>,
}

impl TranscriberSnapshot {
    /// How this one stands.
    #[must_use]
    pub fn of(machine: &Transcriber, at: Time) -> Self {
        Self {
            at,
            counters: machine.counters(),
            acknowledged: machine.acknowledgement_times(),
            sessions: machine.states(),
            connections: machine.connections(),
            bytes: machine.bytes(),
            stream: machine.stream_state(),
            has_lease: machine.has_lease(),
            is_stopping: machine.is_stopping(),
            failing: machine.failing().collect(),
        }
    }

    fn findings(&self) -> Vec<TranscriberFinding> {
        let fails = |server: Server| self.failing.iter().any(|kind| kind.server() == server);
        let found = [
            (TranscriberFinding::StoreFails, fails(Server::Mongodb)),
            (TranscriberFinding::NoLease, !self.has_lease),
            (TranscriberFinding::PublishingFails, self.stream == StreamState::Away || fails(Server::Nats)),
            (TranscriberFinding::Stopping, self.is_stopping),
        ];
        found.into_iter().filter(|(_, is_so)| *is_so).map(|(finding, _)| finding).collect()
    }
}

/// What can be wrong with a transcriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TranscriberFinding {
    /// MongoDB does not store.
    StoreFails,
    /// The lease is not held.
    NoLease,
    /// Nothing can be published.
    PublishingFails,
    /// It has been told to end.
    Stopping,
}

impl TranscriberFinding {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::StoreFails, Self::NoLease, Self::PublishingFails, Self::Stopping];

    /// As it stands in labels and in the manual's headings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::StoreFails => "segments_not_stored",
            Self::NoLease => "no_lease",
            Self::PublishingFails => "segments_not_published",
            Self::Stopping => "stopping",
        }
    }

    /// Whether clients should go elsewhere because of it.
    fn blocks(self) -> bool {
        match self {
            Self::StoreFails | Self::NoLease | Self::Stopping => true,
            Self::PublishingFails => false,
        }
    }

    /// What happened, what it leads to, and what to do.
    fn words(self) -> [&'static str; 3] {
        match self {
            Self::StoreFails => [
                "MongoDB does not do what it is asked for",
                "Segments are not acknowledged. Clients keep them, and are not read once they have sent much.",
                "Start mongod, bring back a majority of the replica set, free disk space, or see the user's privileges; \
                 the log has MongoDB's words.",
            ],
            Self::NoLease => [
                "this transcriber's lease is not in the store",
                "It serves no session until it is.",
                "See why MongoDB does not take it: the log has its words.",
            ],
            Self::PublishingFails => [
                "NATS cannot be reached, or refuses what is published",
                "Segments are stored and acknowledged. They are published later, and so are the ends of sessions: no call \
                 is summarised until then.",
                "Start nats-server, raise the limits of the stream, or correct the network or the credentials.",
            ],
            Self::Stopping => [
                "it has been told to end",
                "It takes no more clients, stores what it has, and hands its sessions over.",
                "Nothing, if that was wanted: it ends by itself.",
            ],
        }
    }
}

impl fmt::Display for TranscriberFinding {
    /// One line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, [cause, consequence, remedy]) = (self.name(), self.words());
        write!(f, "{name}: {cause}. {consequence} {remedy} See {MANUAL}#{name}")
    }
}

/// A transcriber that is looked at.
#[derive(Debug)]
pub struct Watched {
    /// Asks its driver.
    pub asker: Asker<TranscriberSnapshot>,
    /// Who was not let in.
    pub refused: RefusedRequests,
}

/// Serves until it is dropped.
pub async fn serve(listener: TcpListener, watched: Watched, token: Option<Secret>) {
    let gate = Gate::new(&listener, token.as_ref());
    let closed =
        Router::new().route("/metrics", get(scrape)).layer(middleware::from_fn_with_state(gate.clone(), authorize));
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .merge(closed)
        .layer(middleware::from_fn_with_state(gate, guard))
        .fallback(|| async { (StatusCode::NOT_FOUND, "there is nothing here: see /readyz and /metrics\n") })
        .with_state(Arc::new(watched));
    http::take(listener, router).await;
}

const SILENT: &str = "the event loop does not answer: nothing is stored. Restart the process\n";

async fn healthz(State(watched): State<Arc<Watched>>) -> (StatusCode, &'static str) {
    match watched.asker.ask(ANSWER).await {
        Some(_) => (StatusCode::OK, "ok\n"),
        None => (StatusCode::SERVICE_UNAVAILABLE, SILENT),
    }
}

async fn readyz(State(watched): State<Arc<Watched>>) -> (StatusCode, String) {
    let Some(snapshot) = watched.asker.ask(ANSWER).await else {
        return (StatusCode::SERVICE_UNAVAILABLE, SILENT.to_owned());
    };
    let findings = snapshot.findings();
    let told: String = findings.iter().map(|finding| format!("{finding}\n")).collect();
    if findings.iter().any(|finding| finding.blocks()) {
        (StatusCode::SERVICE_UNAVAILABLE, told)
    } else {
        (StatusCode::OK, format!("ready\n{told}"))
    }
}

async fn scrape(State(watched): State<Arc<Watched>>) -> Response {
    let Some(snapshot) = watched.asker.ask(ANSWER).await else {
        return (StatusCode::SERVICE_UNAVAILABLE, SILENT).into_response();
    };
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Numbers { snapshot, refused: watched.refused.clone() }));
    let mut text = String::new();
    match prometheus_client::encoding::prometheus_text::encode(&mut text, &registry) {
        Ok(()) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// The numbers of one scrape.
#[derive(Debug)]
struct Numbers {
    snapshot: TranscriberSnapshot,
    refused: RefusedRequests,
}

impl Collector for Numbers {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out(encoder);
        self.state(&mut out)?;
        self.segments(&mut out)?;
        self.sessions(&mut out)
    }
}

impl Numbers {
    fn state(&self, out: &mut Out<'_>) -> fmt::Result {
        let Self { snapshot, .. } = self;
        out.gauges("transcriber_sessions", "Sessions that are served, by where they stand", "state", {
            STATES.map(|state| (name(state).to_owned(), snapshot.sessions.get(&state).copied().map_or(0, whole)))
        })?;
        out.gauge("transcriber_connections", "Sockets and requests that are open", real(whole(snapshot.connections)))?;
        let help = "Bytes of segments that wait to be stored or published";
        out.gauge("transcriber_bytes_waiting", help, real(whole(snapshot.bytes)))?;
        let findings = snapshot.findings();
        let help = "1 where this is wrong now, 0 where it is not";
        out.gauges("transcriber_finding", help, "name", {
            TranscriberFinding::ALL.map(|finding| (finding.name().to_owned(), u64::from(findings.contains(&finding))))
        })?;
        let ready = !findings.iter().any(|finding| finding.blocks());
        out.gauge("transcriber_ready", "1 where /readyz says so", f64::from(u8::from(ready)))?;
        let help = "Seconds since the start of the process";
        out.gauge("transcriber_uptime_seconds", help, snapshot.at.since(Time::ZERO).as_secs_f64())
    }

    fn segments(&self, out: &mut Out<'_>) -> fmt::Result {
        let Counters { received, interim, refused_segments, stored, published, unpublished, unstored, .. } =
            self.snapshot.counters;
        let times = &self.snapshot.acknowledged;
        let help = "Seconds from the receipt of a segment until it was stored and its client was told";
        let bounds = &AcknowledgementTimes::BOUNDS;
        out.histogram("transcriber_acknowledgement_seconds", help, bounds, times.buckets(), times.sum())?;
        out.counter("transcriber_segments_received", "Final segments received", received)?;
        out.counter("transcriber_segments_interim", "Interim segments, which are not stored", interim)?;
        out.counter("transcriber_segments_stored", "Segments stored, repetitions included", stored)?;
        let help = "Segments refused: too large, too many, or by the store";
        out.counter("transcriber_segments_refused", help, refused_segments)?;
        out.counter("transcriber_segments_published", "Segments published", published)?;
        let help = "Segments that the stream refused, or that a shutdown left unpublished; they are stored";
        out.counter("transcriber_segments_unpublished", help, unpublished)?;
        let help =
            "Segments that were not stored when a shutdown waited no longer; their clients were not told that they are";
        out.counter("transcriber_segments_unstored", help, unstored)
    }

    fn sessions(&self, out: &mut Out<'_>) -> fmt::Result {
        let Counters { opened, refused_connections, ended, reopened, taken_over, leases_lost, retried, .. } =
            self.snapshot.counters;
        out.counter("transcriber_connections_opened", "Sockets and requests that were let in", opened)?;
        let [token, origin, request] = self.refused.by_reason();
        let help =
            "Sockets and requests that were refused: by their token, their origin, what they ask for, or a limit";
        out.counters("transcriber_refused", help, "reason", [token, origin, request, ("limit", refused_connections)])?;
        out.counter("transcriber_sessions_ended", "Ends of sessions that are done", ended)?;
        let help = "Sessions opened again while their end was under way";
        out.counter("transcriber_sessions_reopened", help, reopened)?;
        let help = "Entries of transcribers that are dead, taken over";
        out.counter("transcriber_sessions_taken_over", help, taken_over)?;
        out.counter("transcriber_leases_lost", "Times that this transcriber was thought dead", leases_lost)?;
        out.counter("transcriber_retries", "Steps that failed and are tried again", retried)
    }
}

fn name(state: SessionState) -> &'static str {
    match state {
        SessionState::Over => "over",
        SessionState::TakingOver => "taking_over",
        SessionState::Joining => "joining",
        SessionState::Serving => "serving",
        SessionState::Reserving => "reserving",
        SessionState::Saving => "saving",
        SessionState::Lingering => "lingering",
        SessionState::Leaving => "leaving",
        SessionState::Counting => "counting",
        SessionState::Publishing => "publishing",
        SessionState::Finishing => "finishing",
    }
}
