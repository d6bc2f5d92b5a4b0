//! Sends spans in batches. It runs beside the driver, which never waits for it.

use std::{ops::ControlFlow, time::Duration};

use tokio::{sync::mpsc, time::sleep};

use super::{
    SpanCounts,
    connection::{Collector, ExportError},
    settings::OtlpSettings,
    span::{ExportRequest, Span},
};
use crate::error_line::error_line;

/// How long the spans of a process that ends may take to be sent.
pub const LAST_SPANS: Duration = Duration::from_secs(2);
/// How long spans gather before they are sent.
const GATHER: Duration = Duration::from_millis(500);
/// The most jobs whose spans go out in one request: some megabytes.
const JOBS: usize = 256;
/// The pauses before the same request is sent again; then its spans are dropped.
const PAUSES: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];

/// Sends what a recorder made.
#[derive(Debug)]
pub struct Exporter {
    collector: Collector,
    resource: Vec<(String, String)>,
    spans: mpsc::Receiver<Vec<Span>>,
    counts: SpanCounts,
    /// Whether a warning was logged that no success has followed.
    fails: bool,
}

impl Exporter {
    pub(super) fn new(settings: OtlpSettings, spans: mpsc::Receiver<Vec<Span>>, counts: SpanCounts) -> Self {
        let resource = settings.resource.clone();
        Self { collector: Collector::new(settings), resource, spans, counts, fails: false }
    }

    /// Sends until the recorder is gone, and what it left.
    pub async fn run(mut self) {
        let mut jobs = Vec::with_capacity(JOBS);
        while self.spans.recv_many(&mut jobs, JOBS).await > 0 {
            if jobs.len() < JOBS && !self.spans.is_closed() {
                sleep(GATHER).await;
                while let Some(job) = (jobs.len() < JOBS).then(|| self.spans.try_recv().ok()).flatten() {
                    jobs.push(job);
                }
            }
            let spans: Vec<&Span> = jobs.iter().flatten().collect();
            let sent = serde_json::to_vec(&ExportRequest::new(&self.resource, &spans));
            let all = spans.len();
            match sent {
                Ok(body) => self.send(body.into(), all).await,
                Err(_) => self.counts.drop(all),
            }
            jobs.clear();
        }
    }

    async fn send(&mut self, body: axum::body::Bytes, all: usize) {
        let mut pauses = PAUSES.into_iter();
        loop {
            match self.collector.export(body.clone()).await {
                Ok(refused) => {
                    if std::mem::take(&mut self.fails) {
                        tracing::info!("spans reach the collector again");
                    }
                    let refused = refused.min(all);
                    self.counts.took(all - refused);
                    return self.counts.drop(refused);
                }
                Err(error) => {
                    if let ControlFlow::Break(()) = self.failed(&error, pauses.next()).await {
                        return self.counts.drop(all);
                    }
                }
            }
        }
    }

    /// Waits for the next attempt, where there is one.
    async fn failed(&mut self, error: &ExportError, pause: Option<Duration>) -> ControlFlow<()> {
        let line = error_line(error);
        if std::mem::replace(&mut self.fails, true) {
            tracing::debug!(error = line, "spans do not reach the collector");
        } else {
            tracing::warn!(
                error = line,
                "spans do not reach the collector of OTEL_EXPORTER_OTLP_ENDPOINT: they are dropped and counted until it takes \
                 them; calls do not wait for it"
            );
        }
        match pause.filter(|_| error.passes()) {
            Some(pause) => {
                sleep(pause).await;
                ControlFlow::Continue(())
            }
            None => ControlFlow::Break(()),
        }
    }
}
