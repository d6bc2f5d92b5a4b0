//! OpenTelemetry: each job and its steps as spans, sent to a collector by OTLP over HTTP.
//!
//! ```text
//!  core ─ journal ─► recorder (in the driver's loop) ─ bounded queue ─► exporter ─ POST /v1/traces ─► collector
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | [`settings`] | the environment's `OTEL_…` variables |
//! | [`recorder`] | makes spans of the core's journal |
//! | [`step`] | how the spans of steps are named, by the semantic conventions |
//! | [`span`] | a span, and OTLP's JSON of it |
//! | [`exporter`] | sends spans in batches |
//! | [`connection`] | the connection to the collector |
//!
//! No call waits for a collector. Spans that find no room in the queue, or that the collector does not take, are dropped and
//! counted. No span holds a word of a call.
//!
//! OTLP in JSON is a stable encoding of the protocol, and a few structures of serde. The SDK of OpenTelemetry would bring a
//! second HTTP client, a processor with threads of its own, and clocks that the core's times would have to be carried around.

pub mod connection;
pub mod exporter;
pub mod recorder;
pub mod settings;
pub mod span;
pub mod step;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use axum::http::Uri;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::{sync::mpsc, task::JoinHandle};
use transcript_core::SpanIds;

use self::exporter::Exporter;
pub use self::{exporter::LAST_SPANS, recorder::SpanRecorder, settings::OtlpSettings};
use crate::service::clock::Clock;

/// How many jobs' spans may wait to be sent.
const QUEUE: usize = 2048;

/// What became of spans since the start.
#[derive(Debug, Clone, Default)]
pub struct SpanCounts(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    exported: AtomicU64,
    dropped: AtomicU64,
}

impl SpanCounts {
    /// Spans that the collector took.
    #[must_use]
    pub fn exported(&self) -> u64 {
        self.0.exported.load(Ordering::Relaxed)
    }

    /// Spans that no collector has got.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    fn took(&self, spans: usize) {
        self.0.exported.fetch_add(u64::try_from(spans).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn drop(&self, spans: usize) {
        self.0.dropped.fetch_add(u64::try_from(spans).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// What a process that sends spans has.
#[derive(Debug)]
pub struct Spans {
    /// The numbers of its spans: whoever publishes names one of them.
    pub ids: SpanIds,
    /// Makes spans of the core's journal.
    pub recorder: SpanRecorder,
    /// What becomes of them.
    pub counts: SpanCounts,
    /// Sends them; it ends after the recorder, once it has sent what was left.
    pub exporter: JoinHandle<()>,
}

impl Spans {
    /// Begins to export, where the environment asks for it.
    #[must_use]
    pub fn of_environment(name: &str, clock: Clock) -> Option<Self> {
        let (settings, warnings) = OtlpSettings::read(name, |variable| std::env::var(variable).ok());
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        let settings = settings?;
        let mut seed = [0; 8];
        if SystemRandom::new().fill(&mut seed).is_err() {
            tracing::warn!("the system gives no random bytes: no spans are sent");
            return None;
        }
        let ids = SpanIds::new(u64::from_ne_bytes(seed));
        tracing::info!(endpoint = %told(&settings.endpoint), "spans are sent by OTLP over HTTP, in JSON");
        let counts = SpanCounts::default();
        let (sender, receiver) = mpsc::channel(QUEUE);
        let exporter = tokio::spawn(Exporter::new(settings, receiver, counts.clone()).run());
        let recorder = SpanRecorder::new(ids, clock, sender, counts.clone());
        Some(Self { ids, recorder, counts, exporter })
    }
}

/// The endpoint without a password that somebody may have put into it.
fn told(endpoint: &Uri) -> String {
    let host = endpoint.authority().map_or("", |authority| authority.as_str().rsplit('@').next().unwrap_or_default());
    format!("{}://{host}{}", endpoint.scheme_str().unwrap_or_default(), endpoint.path())
}
