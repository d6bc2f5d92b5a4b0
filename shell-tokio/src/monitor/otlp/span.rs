//! A span, and OTLP's JSON of it (opentelemetry-proto, `trace/v1/trace.proto`; JSON: "JSON Protobuf Encoding" of the OTLP
//! specification: numbers of 64 bits are strings, ids are hexadecimal, enums are numbers).

use std::sync::Arc;

use serde::{Serialize, Serializer};
use transcript_core::contract::trace_context::{SpanId, TraceId};

/// A finished span.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Span {
    /// Its trace.
    #[serde(serialize_with = "shown")]
    pub trace_id: TraceId,
    /// Itself.
    #[serde(serialize_with = "shown")]
    pub span_id: SpanId,
    /// What tracing systems add to the trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_state: Option<Box<str>>,
    /// The span that it is a part of.
    #[serde(serialize_with = "shown_if", skip_serializing_if = "Option::is_none")]
    pub parent_span_id: Option<SpanId>,
    /// Its name; one of few.
    pub name: &'static str,
    /// Its kind.
    pub kind: SpanKind,
    /// When it began.
    pub start_time_unix_nano: UnixNanos,
    /// When it ended.
    pub end_time_unix_nano: UnixNanos,
    /// What is known of it.
    #[serde(serialize_with = "attributes")]
    pub attributes: Vec<Attribute>,
    /// What happened in it.
    pub events: Vec<SpanEvent>,
    /// How many events were left out.
    pub dropped_events_count: u32,
    /// How it ended.
    pub status: SpanStatus,
}

/// Something that happened in a span.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SpanEvent {
    /// When.
    pub time_unix_nano: UnixNanos,
    /// What.
    pub name: &'static str,
    /// What is known of it.
    #[serde(serialize_with = "attributes")]
    pub attributes: Vec<Attribute>,
}

/// How a span ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SpanStatus {
    /// 2 where it failed; nothing is said of the others, as the specification asks of libraries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u8>,
}

impl SpanStatus {
    /// It failed.
    pub const ERROR: Self = Self { code: Some(2) };
}

/// A kind of span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// Work inside the process.
    Internal,
    /// A question to a server.
    Client,
    /// A message is sent.
    Producer,
    /// A message is processed.
    Consumer,
}

impl Serialize for SpanKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(match self {
            Self::Internal => 1,
            Self::Client => 3,
            Self::Producer => 4,
            Self::Consumer => 5,
        })
    }
}

/// A moment, in nanoseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixNanos(pub u64);

impl Serialize for UnixNanos {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// A name and a value.
pub type Attribute = (&'static str, Value);

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Value {
    /// A text that does not change.
    #[serde(rename = "stringValue")]
    Static(&'static str),
    /// A text.
    #[serde(rename = "stringValue")]
    Text(Arc<str>),
    /// A whole number.
    #[serde(rename = "intValue", serialize_with = "shown")]
    Whole(u64),
    /// A number.
    #[serde(rename = "doubleValue")]
    Real(f64),
    /// Yes or no.
    #[serde(rename = "boolValue")]
    Bool(bool),
}

/// The body of an export request.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExportRequest<'a> {
    resource_spans: [ResourceSpans<'a>; 1],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceSpans<'a> {
    resource: Resource<'a>,
    scope_spans: [ScopeSpans<'a>; 1],
}

#[derive(Debug, Serialize)]
struct Resource<'a> {
    attributes: Vec<KeyValue<'a, TextValue<'a>>>,
}

#[derive(Debug, Serialize)]
struct ScopeSpans<'a> {
    scope: Scope,
    spans: &'a [&'a Span],
}

#[derive(Debug, Serialize)]
struct Scope {
    name: &'static str,
    version: &'static str,
}

#[derive(Debug, Serialize)]
struct KeyValue<'a, V> {
    key: &'a str,
    value: V,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TextValue<'a> {
    string_value: &'a str,
}

impl<'a> ExportRequest<'a> {
    /// A request with these spans of a process with these attributes.
    #[must_use]
    pub fn new(resource: &'a [(String, String)], spans: &'a [&'a Span]) -> Self {
        let attributes = resource.iter().map(|(key, value)| KeyValue { key, value: TextValue { string_value: value } });
        let scope = Scope { name: env!("CARGO_PKG_NAME"), version: env!("CARGO_PKG_VERSION") };
        let resource = Resource { attributes: attributes.collect() };
        Self { resource_spans: [ResourceSpans { resource, scope_spans: [ScopeSpans { scope, spans }] }] }
    }
}

fn attributes<S: Serializer>(attributes: &[Attribute], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(attributes.iter().map(|(key, value)| KeyValue { key, value }))
}

fn shown<S: Serializer>(value: &impl ToString, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&value.to_string())
}

fn shown_if<S: Serializer>(value: &Option<SpanId>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_request_is_as_the_protocol_says() {
        let span = Span {
            trace_id: TraceId::new(0x4bf9),
            span_id: SpanId::new(0xab),
            trace_state: Some("a=1".into()),
            parent_span_id: Some(SpanId::new(1)),
            name: "send transcript.processed",
            kind: SpanKind::Producer,
            start_time_unix_nano: UnixNanos(1_700_000_000_000_000_001),
            end_time_unix_nano: UnixNanos(1_700_000_000_000_000_002),
            attributes: vec![
                ("messaging.system", Value::Static("nats")),
                ("messaging.message.id", Value::Text("c:s".into())),
                ("attempt", Value::Whole(2)),
                ("complete", Value::Bool(true)),
                ("age", Value::Real(0.5)),
            ],
            events: vec![SpanEvent { time_unix_nano: UnixNanos(3), name: "retry", attributes: vec![] }],
            dropped_events_count: 0,
            status: SpanStatus::ERROR,
        };
        let resource = [("service.name".to_owned(), "s".to_owned())];
        let request = serde_json::to_value(ExportRequest::new(&resource, &[&span])).expect("it is JSON");
        let expected = json!({ "resourceSpans": [{
            "resource": { "attributes": [{ "key": "service.name", "value": { "stringValue": "s" } }] },
            "scopeSpans": [{
                "scope": { "name": "transcript-processor", "version": env!("CARGO_PKG_VERSION") },
                "spans": [{
                    "traceId": "00000000000000000000000000004bf9", "spanId": "00000000000000ab", "traceState": "a=1",
                    "parentSpanId": "0000000000000001", "name": "send transcript.processed", "kind": 4,
                    "startTimeUnixNano": "1700000000000000001", "endTimeUnixNano": "1700000000000000002",
                    "attributes": [
                        { "key": "messaging.system", "value": { "stringValue": "nats" } },
                        { "key": "messaging.message.id", "value": { "stringValue": "c:s" } },
                        { "key": "attempt", "value": { "intValue": "2" } },
                        { "key": "complete", "value": { "boolValue": true } },
                        { "key": "age", "value": { "doubleValue": 0.5 } },
                    ],
                    "events": [{ "timeUnixNano": "3", "name": "retry", "attributes": [] }],
                    "droppedEventsCount": 0, "status": { "code": 2 },
                }],
            }],
        }] });
        assert_eq!(request, expected);
    }
}
