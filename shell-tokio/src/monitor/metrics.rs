//! The metrics, in Prometheus' text format. They are made at the scrape, from the core's counters and the last look at the
//! servers; no label holds an id.

use std::{collections::HashMap, fmt, time::Duration};

use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet, prometheus_text},
    metrics::{MetricType, counter::ConstCounter, exemplar::Exemplar, gauge::ConstGauge},
    registry::Registry,
};
use transcript_client::mongodb::CommandKind;
use transcript_core::{
    Counters, DurationHistogram, State,
    contract::{CONSUMER, TRANSCRIPTION_STREAM},
};

use super::{
    Monitor, Observation, behind,
    finding::FindingName,
    otlp::SpanCounts,
    servers::{ConsumerState, Servers, StreamState},
};
use crate::service::{
    driver::Snapshot,
    mongodb::{BatchSizes, Distribution},
};

/// The content type.
pub use prometheus_text::CONTENT_TYPE;

/// Whether the broker's own numbers are told too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broker {
    /// They are left to the exporter that the broker has.
    Left,
    /// They are told, under that exporter's names.
    Told,
}

/// The phases of a job that are told, also where no job is there.
const PHASES: [State; 11] = [
    State::Queued,
    State::Quiet,
    State::Counting,
    State::Loading,
    State::Saving,
    State::Checking,
    State::Publishing,
    State::Marking,
    State::DeadLettering,
    State::Republishing,
    State::Acknowledging,
];

/// All metrics as they are now; `None` where the processor's loop does not answer.
pub async fn scrape(monitor: &Monitor, broker: Broker) -> Option<String> {
    let Observation { processor, servers, findings } = monitor.observe().await;
    let processor = processor?;
    let parts = monitor.parts();
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Numbers {
        behind: behind(&servers, Some(&processor)),
        findings: findings.iter().map(|finding| finding.name).collect(),
        batches: parts.batches.read().into_iter().collect(),
        spans: parts.spans.clone(),
        left_out: parts.recorder.as_ref().map_or(0, |recorder| recorder.left_out()),
        processor,
        servers,
        broker,
    }));
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry).ok()?;
    Some(text)
}

/// The numbers of one scrape.
#[derive(Debug)]
struct Numbers {
    processor: Snapshot,
    servers: Servers,
    behind: Option<Duration>,
    findings: Vec<FindingName>,
    batches: Vec<(CommandKind, Distribution)>,
    spans: Option<SpanCounts>,
    left_out: u64,
    broker: Broker,
}

impl prometheus_client::collector::Collector for Numbers {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out(encoder);
        self.state(&mut out)?;
        self.outcomes(&mut out)?;
        self.work(&mut out)?;
        self.servers(&mut out)?;
        match self.broker {
            Broker::Told => self.broker(&mut out),
            Broker::Left => Ok(()),
        }
    }
}

impl Numbers {
    fn state(&self, out: &mut Out<'_>) -> fmt::Result {
        let Self { processor, behind, findings, .. } = self;
        out.gauges("transcript_jobs", "Calls in hand, by the phase of their jobs", "phase", {
            PHASES.map(|phase| (phase.to_string(), processor.states.get(&phase).copied().map_or(0, whole)))
        })?;
        out.gauge(
            "transcript_bytes_in_flight",
            "Bytes of text that summaries under way hold and are to load",
            real(processor.bytes_in_flight),
        )?;
        let help = "Age in seconds of the oldest end that is not settled, of all processors; 0 where there is none";
        out.known("transcript_seconds_behind", help, behind.map(|behind| behind.as_secs_f64()))?;
        let help = "1 where this is wrong now, 0 where it is not";
        out.gauges("transcript_finding", help, "name", {
            FindingName::ALL.map(|name| (name.name().to_owned(), u64::from(findings.contains(&name))))
        })?;
        let ready = !findings.iter().any(|name| name.blocks());
        out.gauge("transcript_ready", "1 where /readyz says so", f64::from(u8::from(ready)))?;
        out.gauge("transcript_uptime_seconds", "Seconds since the start of the process", processor.at.as_secs_f64())
    }

    fn outcomes(&self, out: &mut Out<'_>) -> fmt::Result {
        let counters = &self.processor.counters;
        out.counters("transcript_sessions", "Ends of calls that are done, by what became of them", "outcome", {
            [
                ("complete", counters.complete),
                ("incomplete", counters.incomplete),
                ("announced_before", counters.announced_before),
                ("dead_letter", counters.dead_lettered),
            ]
        })?;
        let help = "Seconds from when the end of a call was stored until its notification was";
        out.durations("transcript_notification_seconds", help, &counters.notification)?;
        let help = "Seconds from the hand-over of an end until its call had settled";
        out.durations("transcript_settle_seconds", help, &counters.settling)?;
        self.each(
            out,
            &[
                ("transcript_settle_rounds", "Counts of segments of calls that have settled", |c| c.settle_rounds),
                ("transcript_missing_segments", "Segments that ends announced and announced summaries lack", |c| {
                    c.missing_segments
                }),
                ("transcript_late_segments", "Segments that came while their call settled", |c| c.late_segments),
                ("transcript_revisions", "Announcements of summaries that replaced an announced one", |c| c.revised),
            ],
        )
    }

    fn work(&self, out: &mut Out<'_>) -> fmt::Result {
        self.each(
            out,
            &[
                ("transcript_deliveries", "Deliveries taken: the attempts of all calls", |c| c.delivered),
                ("transcript_redeliveries", "Deliveries that JetStream had made before", |c| c.redelivered),
                ("transcript_given_back", "Jobs given back to JetStream", |c| c.given_back),
                ("transcript_republished", "Ends published again by a draining processor", |c| c.republished),
                ("transcript_acknowledged", "Jobs whose acknowledgement was confirmed", |c| c.acknowledged),
                ("transcript_unconfirmed", "Jobs whose acknowledgement was never confirmed", |c| c.unconfirmed),
                ("transcript_rejected", "Ends that can never be processed", |c| c.rejected),
                ("transcript_dead_letter_failures", "Tries to store a dead letter that failed", |c| {
                    c.dead_letters_failed
                }),
                ("transcript_unmarked", "Announced calls whose summary could not be marked", |c| c.unmarked),
                ("transcript_heartbeats", "Heartbeats of calls in hand", |c| c.heartbeats),
            ],
        )?;
        let counters = &self.processor.counters;
        let gap = counters.longest_heartbeat_gap.as_secs_f64();
        let help = "The longest time between two heartbeats of one call since the start, in seconds";
        out.gauge("transcript_heartbeat_gap_seconds_max", help, gap)?;
        let mut retries =
            out.family("transcript_retries", "Steps that failed and are tried again", MetricType::Counter)?;
        for (kind, cause, tries) in counters.retries() {
            let (server, cause) = (kind.server().to_string(), cause.to_string());
            let labels = [("server", server.as_str()), ("step", kind.name()), ("cause", cause.as_str())];
            ConstCounter::new(tries).encode(retries.encode_family(&labels)?)?;
        }
        let pulls = self.processor.pulls_restarted;
        let help = "Pull requests that JetStream ended for a reason of its own, or of whose end it said nothing";
        out.counter("transcript_pulls_restarted", help, pulls)?;
        out.counter("transcript_trace_left_out", "Inputs left out of the trace", self.left_out)?;
        let (exported, dropped) = self.spans.as_ref().map_or((0, 0), |spans| (spans.exported(), spans.dropped()));
        out.counter("transcript_spans_exported", "Spans that the collector of OpenTelemetry took", exported)?;
        out.counter("transcript_spans_dropped", "Spans that no collector got", dropped)?;
        out.batches("transcript_mongodb_batch_size", "Calls that one command of MongoDB is about", &self.batches)
    }

    fn each(&self, out: &mut Out<'_>, counters: &[Counter<'_>]) -> fmt::Result {
        counters.iter().try_for_each(|(name, help, read)| out.counter(name, help, read(&self.processor.counters)))
    }

    fn servers(&self, out: &mut Out<'_>) -> fmt::Result {
        let Servers { nats, mongodb, dead_letters, .. } = &self.servers;
        let up = |is_up: bool| u64::from(is_up);
        out.gauges("transcript_server_up", "1 where the server answered at the last look", "server", {
            [("nats".to_owned(), up(nats.is_ok())), ("mongodb".to_owned(), up(mongodb.is_ok()))]
        })?;
        let ping = mongodb.as_ref().ok().map(Duration::as_secs_f64);
        out.known("transcript_mongodb_ping_seconds", "How long MongoDB took for a ping, in seconds", ping)?;
        let open = dead_letters.map(|counts| real(counts.open));
        out.known("transcript_dead_letters", "Dead letters that nobody has acted on", open)
    }

    /// Under the names of nats-surveyor and prometheus-nats-exporter, so that dashboards that are there show them.
    fn broker(&self, out: &mut Out<'_>) -> fmt::Result {
        if let Ok(Some(stream)) = &self.servers.stream {
            self::stream(out, stream)?;
        }
        if let Ok(Some(consumer)) = &self.servers.consumer {
            self::consumer(out, consumer)?;
        }
        Ok(())
    }
}

fn stream(out: &mut Out<'_>, stream: &StreamState) -> fmt::Result {
    let labels = [("stream_name", TRANSCRIPTION_STREAM)];
    let limit = |most: Option<u64>| most.map_or(-1.0, real);
    for (name, help, value) in [
        ("jetstream_stream_total_messages", "Messages of the stream", real(stream.messages)),
        ("jetstream_stream_total_bytes", "Bytes of the stream", real(stream.bytes)),
        (
            "jetstream_stream_limit_messages",
            "Most messages of the stream; -1 without a limit",
            limit(stream.max_messages),
        ),
        ("jetstream_stream_limit_bytes", "Most bytes of the stream; -1 without a limit", limit(stream.max_bytes)),
        ("jetstream_stream_replicas", "Replicas of the stream but the leader", real(whole(stream.replica_lags.len()))),
    ] {
        out.labelled(name, help, &labels, value)?;
    }
    let mut lags =
        out.family("jetstream_stream_replica_lag", "Operations that a replica is behind", MetricType::Gauge)?;
    for (peer, lag) in &stream.replica_lags {
        let labels = [("stream_name", TRANSCRIPTION_STREAM), ("peer", peer.as_str())];
        ConstGauge::new(real(*lag)).encode(lags.encode_family(&labels)?)?;
    }
    Ok(())
}

fn consumer(out: &mut Out<'_>, consumer: &ConsumerState) -> fmt::Result {
    let labels = [("stream_name", TRANSCRIPTION_STREAM), ("consumer_name", CONSUMER)];
    for (name, help, value) in [
        ("jetstream_consumer_num_pending", "Messages that wait to be handed out", consumer.pending),
        ("jetstream_consumer_num_ack_pending", "Messages that are not acknowledged", consumer.ack_pending),
        ("jetstream_consumer_num_redelivered", "Messages handed out more than once", consumer.redelivered),
        ("jetstream_consumer_num_waiting", "Pull requests that wait", consumer.waiting),
        ("jetstream_consumer_delivered_stream_seq", "Place of the last message handed out", consumer.delivered),
        ("jetstream_consumer_ack_floor_stream_seq", "Place up to which all is acknowledged", consumer.ack_floor),
    ] {
        out.labelled(name, help, &labels, real(value))?;
    }
    Ok(())
}

/// A counter: its name, its help, and where it is read.
type Counter<'a> = (&'a str, &'a str, fn(&Counters) -> u64);

/// Writes metrics.
pub(super) struct Out<'a>(pub(super) DescriptorEncoder<'a>);

impl Out<'_> {
    fn family(&mut self, name: &'static str, help: &str, kind: MetricType) -> Result<MetricEncoder<'_>, fmt::Error> {
        self.0.encode_descriptor(name, help, None, kind)
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        ConstGauge::new(value).encode(self.0.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }

    /// A gauge that has no sample where its value is not known.
    fn known(&mut self, name: &str, help: &str, value: Option<f64>) -> fmt::Result {
        let metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        value.map_or(Ok(()), |value| ConstGauge::new(value).encode(metric))
    }

    fn labelled<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: &[(&str, &str); N],
        value: f64,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(family.encode_family(labels)?)
    }

    pub(super) fn gauges(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (String, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        values.into_iter().try_for_each(|(of, value)| {
            ConstGauge::new(real(value)).encode(family.encode_family(&[(label, of.as_str())])?)
        })
    }

    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        ConstCounter::new(value).encode(self.0.encode_descriptor(name, help, None, MetricType::Counter)?)
    }

    pub(super) fn counters<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: [(&str, u64); N],
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        values
            .into_iter()
            .try_for_each(|(of, value)| ConstCounter::new(value).encode(family.encode_family(&[(label, of)])?))
    }

    fn durations(&mut self, name: &str, help: &str, durations: &DurationHistogram) -> fmt::Result {
        self.histogram(name, help, &DurationHistogram::BOUNDS, durations.buckets(), durations.sum())
    }

    pub(super) fn histogram(
        &mut self,
        name: &str,
        help: &str,
        bounds: &[Duration],
        buckets: &[u64],
        sum: Duration,
    ) -> fmt::Result {
        let bounds = bounds.iter().map(Duration::as_secs_f64);
        let told: Vec<(f64, u64)> = bounds.chain([f64::INFINITY]).zip(buckets.iter().copied()).collect();
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        metric.encode_histogram(sum.as_secs_f64(), buckets.iter().sum(), &told, NO_EXEMPLARS)
    }

    fn batches(&mut self, name: &str, help: &str, batches: &[(CommandKind, Distribution)]) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (kind, distribution) in batches {
            let bounds = BatchSizes::BOUNDS.iter().map(|bound| real(*bound));
            let buckets: Vec<(f64, u64)> =
                bounds.chain([f64::INFINITY]).zip(distribution.buckets.iter().copied()).collect();
            let labels = [("command", command(*kind))];
            let mut metric = family.encode_family(&labels)?;
            let count = distribution.buckets.iter().sum();
            metric.encode_histogram(real(distribution.sum), count, &buckets, NO_EXEMPLARS)?;
        }
        Ok(())
    }
}

const NO_EXEMPLARS: Option<&HashMap<usize, Exemplar<NoLabelSet, f64>>> = None;

fn command(kind: CommandKind) -> &'static str {
    match kind {
        CommandKind::Count => "count",
        CommandKind::LoadSmall => "load_small",
        CommandKind::Tally => "tally",
        CommandKind::Page => "page",
        CommandKind::Save => "save",
        CommandKind::ReadBack => "read_back",
        CommandKind::Mark => "mark",
    }
}

pub(super) fn whole(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Prometheus has no other numbers than doubles.
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
pub(super) fn real(number: u64) -> f64 {
    number as f64
}
