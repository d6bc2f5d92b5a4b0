//! Configurations of streams and consumers as JSON.

use std::{
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use serde::Deserialize;

use super::{body, json::Object};
use crate::{
    call::{ApiCall, ConsumerAction},
    config::{ConsumerConfig, DeliverPolicy, Discard, PriorityGroups, PriorityPolicy, StreamConfig},
    message::ApiError,
};

/// What the server adds to configurations: its version, the API level it has, and the one that the configuration needs.
/// Source: `server/jetstream_versioning.go`.
const VERSION: &str = "2.15.1";
const LEVEL: &str = "5";

fn metadata(required_level: &str) -> Object {
    let mut json = Object::new(96);
    json.text("_nats.level", LEVEL);
    json.text("_nats.req.level", required_level);
    json.text("_nats.ver", VERSION);
    json
}

fn unlimited(limit: Option<u64>) -> i64 {
    limit.and_then(|limit| i64::try_from(limit).ok()).unwrap_or(-1)
}

fn nanos(span: Duration) -> i64 {
    i64::try_from(span.as_nanos()).unwrap_or(i64::MAX)
}

pub(super) fn stream(config: &StreamConfig) -> Object {
    let mut json = Object::new(512);
    json.text("name", &config.name);
    json.texts("subjects", config.subjects.iter().map(AsRef::as_ref));
    json.text("retention", "limits");
    json.number("max_consumers", -1);
    json.number("max_msgs", unlimited(config.max_msgs));
    json.number("max_bytes", unlimited(config.max_bytes));
    json.number("max_age", config.max_age.map_or(0, nanos));
    json.number("max_msgs_per_subject", -1);
    json.number("max_msg_size", unlimited(config.max_msg_size));
    json.text("discard", if config.discard == Discard::New { "new" } else { "old" });
    json.text("storage", "file");
    json.number("num_replicas", 1);
    json.number("duplicate_window", nanos(config.duplicate_window));
    json.text("compression", "none");
    json.truth("allow_direct", false);
    json.truth("mirror_direct", false);
    json.truth("sealed", config.sealed);
    json.truth("deny_delete", config.sealed);
    json.truth("deny_purge", config.sealed);
    json.truth("allow_rollup_hdrs", false);
    json.object("consumer_limits", Object::new(2));
    json.truth("allow_msg_ttl", false);
    json.object("metadata", metadata("0"));
    json
}

pub(super) fn consumer(config: &ConsumerConfig) -> Object {
    let mut json = Object::new(512);
    json.text("durable_name", &config.name);
    json.text("name", &config.name);
    json.text(
        "deliver_policy",
        match config.deliver {
            DeliverPolicy::All => "all",
            DeliverPolicy::New => "new",
            DeliverPolicy::Last => "last",
            DeliverPolicy::FromSequence(_) => "by_start_sequence",
        },
    );
    if let DeliverPolicy::FromSequence(sequence) = config.deliver {
        json.number("opt_start_seq", sequence);
    }
    json.text("ack_policy", "explicit");
    json.number("ack_wait", nanos(config.ack_wait));
    json.number("max_deliver", unlimited(config.max_deliver));
    if !config.backoff.is_empty() {
        json.numbers("backoff", config.backoff.iter().map(|step| nanos(*step)));
    }
    match &config.filters[..] {
        [] => {}
        [filter] => json.text("filter_subject", filter),
        filters => json.texts("filter_subjects", filters.iter().map(AsRef::as_ref)),
    }
    json.text("replay_policy", "instant");
    json.number("max_waiting", config.max_waiting);
    json.number("max_ack_pending", unlimited(config.max_ack_pending));
    if config.headers_only {
        json.truth("headers_only", true);
    }
    for (name, limit) in [
        ("max_batch", config.max_batch),
        ("max_expires", config.max_expires.and_then(|span| u64::try_from(nanos(span)).ok())),
        ("max_bytes", config.max_bytes),
    ] {
        if let Some(limit) = limit.filter(|limit| *limit > 0) {
            json.number(name, limit);
        }
    }
    json.number("num_replicas", 0);
    let level = if config.priority.is_some() || config.pause_until_nanos.is_some() { "1" } else { "0" };
    json.object("metadata", metadata(level));
    if let Some(until) = config.pause_until_nanos {
        json.time("pause_until", until);
    }
    if let Some(priority) = &config.priority {
        json.texts("priority_groups", priority.groups.iter().map(AsRef::as_ref));
        json.text(
            "priority_policy",
            match priority.policy {
                PriorityPolicy::Overflow => "overflow",
                PriorityPolicy::PinnedClient => "pinned_client",
                PriorityPolicy::Prioritized => "prioritized",
            },
        );
        if priority.policy == PriorityPolicy::PinnedClient {
            let timeout = if priority.timeout.is_zero() { Duration::from_secs(120) } else { priority.timeout };
            json.number("priority_timeout", nanos(timeout));
        }
    }
    json
}

/// The body of `STREAM.CREATE` and `STREAM.UPDATE`.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct StreamBody {
    name: String,
    subjects: Vec<Arc<str>>,
    retention: Option<String>,
    #[serde(rename = "max_consumers")]
    _max_consumers: i64,
    max_msgs: i64,
    max_bytes: i64,
    max_age: u64,
    max_msgs_per_subject: i64,
    max_msg_size: i64,
    discard: Option<String>,
    storage: Option<String>,
    num_replicas: u64,
    duplicate_window: u64,
    compression: Option<String>,
    allow_direct: bool,
    mirror_direct: bool,
    sealed: bool,
    deny_delete: bool,
    deny_purge: bool,
    allow_rollup_hdrs: bool,
    allow_msg_ttl: bool,
    /// Kept by the server and told again; this model drops them.
    #[serde(rename = "description")]
    _description: String,
    #[serde(rename = "metadata")]
    _metadata: Ignored,
    #[serde(rename = "consumer_limits")]
    _consumer_limits: Ignored,
}

/// Something that makes no difference to this model.
#[derive(Default)]
struct Ignored;

impl<'de> Deserialize<'de> for Ignored {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

impl StreamBody {
    pub(super) fn read(stream: &str, body: &[u8]) -> Result<StreamConfig, ApiError> {
        let read: Self = body::read(body)?;
        if read.name != stream {
            return Err(ApiError::new(400, 10_056, "stream name in subject does not match request"));
        }
        let is = |value: &Option<String>, only: &str| value.as_deref().is_none_or(|value| value == only);
        let limits = is(&read.retention, "limits") && is(&read.storage, "file") && is(&read.compression, "none");
        let direct = read.allow_direct || read.mirror_direct;
        let denied = (read.deny_delete || read.deny_purge) && !read.sealed;
        let others = read.allow_rollup_hdrs || read.allow_msg_ttl || denied || read.max_msgs_per_subject > 0;
        if !limits || direct || others || read.num_replicas > 1 {
            return Err(ApiError::not_modelled("a stream of this kind"));
        }
        Ok(StreamConfig {
            name: stream.into(),
            subjects: read.subjects,
            duplicate_window: Duration::from_nanos(read.duplicate_window),
            max_age: (read.max_age > 0).then(|| Duration::from_nanos(read.max_age)),
            max_msgs: positive(read.max_msgs),
            max_bytes: positive(read.max_bytes),
            discard: if read.discard.as_deref() == Some("new") { Discard::New } else { Discard::Old },
            max_msg_size: positive(read.max_msg_size),
            sealed: read.sealed,
        })
    }
}

/// The body of `CONSUMER.CREATE`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConsumerBody {
    stream_name: String,
    config: ConsumerFields,
    #[serde(default)]
    action: String,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct ConsumerFields {
    durable_name: String,
    name: String,
    deliver_policy: Option<String>,
    opt_start_seq: u64,
    ack_policy: Option<String>,
    ack_wait: u64,
    max_deliver: i64,
    backoff: Vec<u64>,
    filter_subject: Option<Arc<str>>,
    filter_subjects: Vec<Arc<str>>,
    replay_policy: Option<String>,
    max_waiting: i64,
    max_ack_pending: i64,
    headers_only: bool,
    max_batch: i64,
    max_expires: i64,
    max_bytes: i64,
    num_replicas: u64,
    pause_until: Option<String>,
    priority_groups: Vec<Arc<str>>,
    priority_policy: Option<String>,
    priority_timeout: i64,
    /// Kept by the server and told again; this model drops them.
    #[serde(rename = "description")]
    _description: String,
    #[serde(rename = "metadata")]
    _metadata: Ignored,
    #[serde(rename = "sample_freq")]
    _sample_freq: String,
    /// A push consumer, a consumer in memory, one that ends by itself.
    deliver_subject: String,
    mem_storage: bool,
    inactive_threshold: i64,
    rate_limit_bps: u64,
}

impl ConsumerBody {
    pub(super) fn read(stream: &str, name: Option<&str>, body: &[u8]) -> Result<ApiCall, ApiError> {
        let Self { stream_name, config, action } = body::read(body)?;
        if stream_name != stream {
            return Err(ApiError::new(400, 10_056, "stream name in subject does not match request"));
        }
        let action = match action.as_str() {
            "" => ConsumerAction::CreateOrUpdate,
            "create" => ConsumerAction::Create,
            "update" => ConsumerAction::Update,
            _ => return Err(ApiError::new(400, 10_025, "invalid JSON: unknown consumer action")),
        };
        Ok(ApiCall::CreateConsumer { stream: stream.into(), config: config.config(name)?, action })
    }
}

impl ConsumerFields {
    fn config(self, name: Option<&str>) -> Result<ConsumerConfig, ApiError> {
        let other = |value: &Option<String>, only: &str| value.as_deref().is_some_and(|value| value != only);
        let ephemeral = self.durable_name.is_empty() || self.mem_storage || self.inactive_threshold > 0;
        let pushed = !self.deliver_subject.is_empty() || self.rate_limit_bps > 0;
        if ephemeral || pushed || self.num_replicas > 1 || other(&self.replay_policy, "instant") {
            return Err(ApiError::not_modelled("a consumer of this kind"));
        }
        if self.ack_policy.as_deref() != Some("explicit") {
            return Err(ApiError::not_modelled("a consumer without explicit acknowledgements"));
        }
        if name.is_some_and(|name| name != self.durable_name) {
            return Err(ApiError::new(400, 10_017, "consumer name in subject does not match durable name in request"));
        }
        let deliver = match self.deliver_policy.as_deref() {
            None | Some("all") => DeliverPolicy::All,
            Some("new") => DeliverPolicy::New,
            Some("last") => DeliverPolicy::Last,
            Some("by_start_sequence") => DeliverPolicy::FromSequence(self.opt_start_seq),
            Some(_) => return Err(ApiError::not_modelled("this deliver policy")),
        };
        let priority = self.priority()?;
        Ok(ConsumerConfig {
            name: self.durable_name.as_str().into(),
            filters: self
                .filter_subject
                .into_iter()
                .filter(|one| !one.is_empty())
                .chain(self.filter_subjects)
                .collect(),
            deliver,
            ack_wait: Duration::from_nanos(self.ack_wait),
            backoff: self.backoff.into_iter().map(Duration::from_nanos).collect(),
            max_deliver: positive(self.max_deliver),
            max_ack_pending: if self.max_ack_pending == 0 { Some(1_000) } else { positive(self.max_ack_pending) },
            max_waiting: positive(self.max_waiting).unwrap_or(0),
            max_batch: positive(self.max_batch),
            max_expires: positive(self.max_expires).map(Duration::from_nanos),
            max_bytes: positive(self.max_bytes),
            headers_only: self.headers_only,
            pause_until_nanos: self.pause_until.as_deref().map(read_time).transpose()?,
            priority,
        })
    }

    fn priority(&self) -> Result<Option<PriorityGroups>, ApiError> {
        let policy = match self.priority_policy.as_deref() {
            None | Some("none" | "") => return Ok(None),
            Some("overflow") => PriorityPolicy::Overflow,
            Some("pinned_client") => PriorityPolicy::PinnedClient,
            Some("prioritized") => PriorityPolicy::Prioritized,
            Some(_) => return Err(ApiError::new(400, 10_025, "invalid JSON: unknown priority policy")),
        };
        let timeout = positive(self.priority_timeout).map(Duration::from_nanos).unwrap_or_default();
        Ok(Some(PriorityGroups { policy, groups: self.priority_groups.clone(), timeout }))
    }
}

/// A moment as RFC 3339 in UTC, in nanoseconds since the Unix epoch.
pub(super) fn read_time(text: &str) -> Result<i64, ApiError> {
    let since = humantime::parse_rfc3339(text).ok().and_then(|moment| moment.duration_since(UNIX_EPOCH).ok());
    let nanos = since.and_then(|since| i64::try_from(since.as_nanos()).ok());
    nanos.ok_or_else(|| ApiError::new(400, 10_025, format!("invalid JSON: parsing time {text:?}")))
}

fn positive(number: i64) -> Option<u64> {
    u64::try_from(number).ok().filter(|number| *number > 0)
}
