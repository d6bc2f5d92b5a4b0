//! The objects in JetStream, and the settings that each must have.

use std::time::Duration;

use async_nats::{datetime::parse_rfc3339, jetstream::ErrorCode};
use serde_json::{Value, json};
use transcript_core::{
    WallTime,
    contract::{
        CONSUMER, RECORDING_STREAM, RECORDING_SUBJECTS, SESSION_ENDED_SUBJECT, TRANSCRIPTION_STREAM,
        TRANSCRIPTION_SUBJECTS,
    },
};

use super::{
    Request, SetupError,
    plan::{self, Config, Otherwise, Plan, Refusal, Rule, Wanted},
};
use crate::cli::StreamValues;

/// So many operations a replica may be behind before natscli calls that critical.
const PEER_LAG: u64 = 10_000;
/// So long a replica may be silent.
const PEER_SEEN: &str = "10s";
/// So many messages may be handed out more than once at the same time.
const REDELIVERED: u64 = 1000;
const FIXED: &str = "JetStream cannot change that: move the messages to a stream that has it, or remove this one";
const FIXED_CONSUMER: &str = "JetStream cannot change that: remove the consumer; the next start makes it anew, and hands \
                              out every call that the stream still holds";
const SEALED: &str = "nothing can be published to a sealed stream, which JetStream cannot change: remove it";
const FOLLOWS: &str = "nothing can be published to a mirror, which JetStream cannot change: remove it";
const ASYNC: &str = "messages would be acknowledged before they are stored, which JetStream cannot change: \
                     move them to a stream without it, or remove this one";

/// A stream or a consumer: the settings that it must have, and where to ask for it.
pub(super) struct Object {
    /// The kind and the name, for people.
    pub name: String,
    pub info_subject: String,
    kind: ObjectKind,
    rules: Vec<Rule>,
}

enum ObjectKind {
    Stream(&'static str),
    Consumer,
}

impl Object {
    /// The stream of the transcripts.
    pub(super) fn transcription(request: &Request) -> Self {
        let mut rules = stream_rules(&TRANSCRIPTION_SUBJECTS, request);
        rules.extend([
            fixed("storage", "file", FIXED),
            fixed_nothing("persist_mode", ASYNC),
            Rule {
                field: "retention",
                wanted: Wanted::Value(json!("limits")),
                otherwise: Otherwise::RefuseIf("workqueue", FIXED),
            },
            Rule { field: "no_ack", wanted: Wanted::Nothing, otherwise: Otherwise::Change },
            Rule {
                field: "duplicate_window",
                wanted: Wanted::Time(request.values().duplicate_window),
                otherwise: asked(request.settings.duplicate_window, "--duplicate-window"),
            },
        ]);
        Self::stream(TRANSCRIPTION_STREAM, rules)
    }

    /// The stream of the recordings. The processor does not read it, so how it stores its messages is not its business.
    pub(super) fn recording(request: &Request) -> Self {
        Self::stream(RECORDING_STREAM, stream_rules(&RECORDING_SUBJECTS, request))
    }

    /// The consumer that all processors share.
    pub(super) fn consumer(request: &Request) -> Self {
        let (values, settings) = (request.values(), &request.settings);
        let mut rules = vec![
            fixed("durable_name", CONSUMER, FIXED_CONSUMER),
            fixed_nothing("deliver_subject", FIXED_CONSUMER),
            fixed("deliver_policy", "all", FIXED_CONSUMER),
            fixed("ack_policy", "explicit", FIXED_CONSUMER),
            fixed("replay_policy", "instant", FIXED_CONSUMER),
            fixed_nothing("mem_storage", FIXED_CONSUMER),
        ];
        let ack_wait = match asked(settings.ack_wait, "--ack-wait") {
            // The server overwrites the ack wait with the first step of a backoff.
            Otherwise::Keep { option, least, .. } => Otherwise::Keep { option, least, unless: Some("backoff") },
            otherwise @ (Otherwise::Change | Otherwise::Refuse(_) | Otherwise::RefuseIf(..)) => otherwise,
        };
        let most = i64::try_from(values.max_ack_pending).unwrap_or(-1);
        let unlimited = match asked(settings.max_ack_pending, "--max-ack-pending") {
            Otherwise::Keep { option, unless, .. } => Otherwise::Keep { option, unless, least: -1 },
            otherwise @ (Otherwise::Change | Otherwise::Refuse(_) | Otherwise::RefuseIf(..)) => otherwise,
        };
        rules.extend(
            [
                ("filter_subject", Wanted::Value(json!(SESSION_ENDED_SUBJECT)), Otherwise::Change),
                ("ack_wait", Wanted::Time(values.ack_wait), ack_wait),
                ("max_deliver", Wanted::Value(json!(values.max_deliver)), asked(settings.max_deliver, "--max-deliver")),
                ("max_ack_pending", Wanted::Value(json!(most)), unlimited),
            ]
            .map(|(field, wanted, otherwise)| Rule { field, wanted, otherwise }),
        );
        let hindrance = |field, wanted| Rule { field, wanted, otherwise: Otherwise::Change };
        rules.extend(HINDERING_TIMES.map(|field| hindrance(field, Wanted::NoTime)));
        rules.extend(HINDRANCES.map(|field| hindrance(field, Wanted::Nothing)));
        Self {
            name: format!("consumer {CONSUMER}"),
            info_subject: format!("CONSUMER.INFO.{TRANSCRIPTION_STREAM}.{CONSUMER}"),
            kind: ObjectKind::Consumer,
            rules,
        }
    }

    fn stream(name: &'static str, rules: Vec<Rule>) -> Self {
        Self {
            name: format!("stream {name}"),
            info_subject: format!("STREAM.INFO.{name}"),
            kind: ObjectKind::Stream(name),
            rules,
        }
    }

    /// The configuration with which it is created.
    pub(super) fn blank(&self) -> Config {
        let mut config = plan::blank(&self.rules);
        let thresholds = self.thresholds(&config);
        config.insert("metadata".to_owned(), thresholds);
        match self.kind {
            // The API wants these named even where they are what it would take anyway.
            ObjectKind::Stream(name) => {
                config.insert("name".to_owned(), name.into());
                config.entry("storage").or_insert_with(|| "file".into());
                config.entry("retention").or_insert_with(|| "limits".into());
            }
            ObjectKind::Consumer => {
                config.insert("name".to_owned(), CONSUMER.into());
            }
        }
        config
    }

    /// The metadata by which natscli's `nats server check` knows what is too much (jsm.go, `monitor/consumer.go` and
    /// `stream_monitor.go`). A new object has them; those of what exists are their operators' own.
    fn thresholds(&self, config: &Config) -> Value {
        let number = |field: &str| config.get(field).and_then(Value::as_u64).filter(|number| *number > 0);
        let mut thresholds = vec![("enabled", "true".to_owned())];
        match self.kind {
            ObjectKind::Stream(_) => {
                if let Some(replicas) = number("num_replicas").filter(|replicas| *replicas > 1) {
                    let lag = PEER_LAG.to_string();
                    let seen = PEER_SEEN.to_owned();
                    thresholds.extend([
                        ("peer-expect", replicas.to_string()),
                        ("peer-lag-critical", lag),
                        ("peer-seen-critical", seen),
                    ]);
                }
            }
            ObjectKind::Consumer => {
                let most = number("max_ack_pending").map(|most| most.to_string());
                thresholds.extend(most.clone().map(|most| ("outstanding-ack-critical", most)));
                thresholds.extend(most.map(|most| ("unprocessed-critical", most)));
                thresholds.push(("redelivery-critical", REDELIVERED.to_string()));
            }
        }
        thresholds.into_iter().map(|(name, value)| (format!("io.nats.monitor.{name}"), Value::from(value))).collect()
    }

    /// What has to be changed in the `existing` configuration.
    pub(super) fn plan(&self, existing: &Config) -> Result<Plan, SetupError> {
        let planned = plan::plan(existing, &self.rules).map_err(|Refusal { difference, why }| SetupError::Refused {
            object: self.name.clone(),
            field: difference.field,
            existing: difference.existing,
            wanted: difference.wanted,
            why,
        })?;
        let time = |field| planned.config.get(field).and_then(Value::as_u64).unwrap_or(0);
        let (window, max_age) = (time("duplicate_window"), time("max_age"));
        if max_age > 0 && window > max_age {
            return Err(SetupError::WindowBeyondAge {
                object: self.name.clone(),
                max_age: plan::show_time(max_age),
                window: plan::show_time(window),
            });
        }
        if self.remembers_ids()
            && let Some((field, limit)) = limits(&planned.config).find(|(field, _)| drops_old(&planned.config, field))
        {
            return Err(SetupError::Evicts { object: self.name.clone(), field, limit });
        }
        Ok(planned)
    }

    /// Whether it is the stream whose duplicate window the processor relies on.
    fn remembers_ids(&self) -> bool {
        self.rules.iter().any(|rule| rule.field == "duplicate_window")
    }

    /// Checks the configuration that the server answered with.
    pub(super) fn verify(&self, config: &Config) -> Result<(), SetupError> {
        match self.plan(config)?.differences.into_iter().next() {
            None => Ok(()),
            Some(difference) => Err(SetupError::NotTaken {
                object: self.name.clone(),
                field: difference.field,
                wanted: difference.wanted,
                got: difference.existing,
            }),
        }
    }

    /// What is left as it is although it weakens what the processor promises.
    pub(super) fn warnings(&self, config: &Config) -> Vec<String> {
        let transform = config.get("subject_transform").filter(|transform| !plan::is_nothing(transform));
        let transform = transform.map(|transform| {
            format!("{} stores messages under other subjects, by subject_transform {transform}", self.name)
        });
        let limits = limits(config).filter(|_| self.remembers_ids());
        let limited = limits.map(|(field, limit)| {
            format!(
                "{} has {field} {limit}: once that is reached it takes no more segments, ends or notifications",
                self.name
            )
        });
        let size = config.get("max_msg_size").and_then(Value::as_i64).filter(|size| *size > 0 && self.remembers_ids());
        let size = size.map(|size| {
            format!(
                "{} has max_msg_size {size}: it takes no larger segments, ends, notifications or dead letters",
                self.name
            )
        });
        limited.chain(size).chain(transform).chain(self.short_window(config)).collect()
    }

    /// A notification is repeated where the call is processed again behind the window.
    fn short_window(&self, config: &Config) -> Option<String> {
        let rule = self.rules.iter().find(|rule| rule.field == "duplicate_window")?;
        if !matches!(rule.otherwise, Otherwise::Keep { .. }) {
            return None;
        }
        let window = config.get(rule.field)?.as_u64()?;
        let least = plan::nanos(StreamValues::default().duplicate_window);
        (window < least).then(|| {
            format!(
                "{} has duplicate_window {}: a call that is processed again later than that may be announced twice; \
                 `setup --duplicate-window {}` changes it",
                self.name,
                plan::show_time(window),
                plan::show_time(least)
            )
        })
    }

    /// The values that it has in common with others of its kind, into `values`.
    pub(super) fn values(&self, config: &Config, values: &mut StreamValues) {
        let number = |field: &str| config.get(field).and_then(Value::as_u64);
        let time = |field: &str| number(field).map(Duration::from_nanos);
        match self.kind {
            ObjectKind::Stream(_) if self.remembers_ids() => {
                values.duplicate_window = time("duplicate_window").unwrap_or(values.duplicate_window);
                values.replicas = number("num_replicas").unwrap_or(values.replicas);
            }
            ObjectKind::Stream(_) => {}
            ObjectKind::Consumer => {
                values.ack_wait = time("ack_wait").unwrap_or(values.ack_wait);
                values.max_deliver = number("max_deliver").unwrap_or(values.max_deliver);
                values.max_ack_pending = number("max_ack_pending").unwrap_or(u64::MAX);
            }
        }
    }

    /// A subject that the stream takes and that nobody uses; nothing for what is no stream.
    pub(super) fn probe_subject(&self) -> Option<String> {
        let (ObjectKind::Stream(_), Some(Wanted::Subjects(subjects))) =
            (&self.kind, self.rules.iter().find(|rule| rule.field == "subjects").map(|rule| &rule.wanted))
        else {
            return None;
        };
        Some(subjects.first()?.replace('>', "setup-probe"))
    }

    /// Until when nothing is handed out, where that is so at `now`.
    pub(super) fn paused_until(&self, config: &Config, now: WallTime) -> Option<String> {
        let text = config.get("pause_until")?.as_str().filter(|_| matches!(self.kind, ObjectKind::Consumer))?;
        let until = parse_rfc3339(text).ok()?.unix_timestamp_nanos() / 1_000_000;
        (until > i128::from(now.as_millis())).then(|| text.to_owned())
    }

    /// The subject and the body of the request to create or update it with `config`.
    pub(super) fn submission(&self, action: &str, config: &Config) -> (String, Value) {
        match self.kind {
            ObjectKind::Stream(name) => (format!("STREAM.{}.{name}", action.to_uppercase()), json!(config)),
            ObjectKind::Consumer => (
                format!("CONSUMER.CREATE.{TRANSCRIPTION_STREAM}.{CONSUMER}.{SESSION_ENDED_SUBJECT}"),
                json!({ "stream_name": TRANSCRIPTION_STREAM, "config": config, "action": action }),
            ),
        }
    }

    /// Whether the answer to reading or updating says that there is no such object.
    pub(super) fn is_missing(&self, code: ErrorCode) -> bool {
        match self.kind {
            ObjectKind::Stream(_) => code == ErrorCode::STREAM_NOT_FOUND,
            ObjectKind::Consumer => code == ErrorCode::CONSUMER_NOT_FOUND || code == ErrorCode::CONSUMER_DOES_NOT_EXIST,
        }
    }

    /// Whether the answer to creating says that there is one by now, with other settings.
    pub(super) fn is_taken(&self, code: ErrorCode) -> bool {
        match self.kind {
            ObjectKind::Stream(_) => code == ErrorCode::STREAM_NAME_EXIST,
            ObjectKind::Consumer => {
                code == ErrorCode::CONSUMER_ALREADY_EXISTS || code == ErrorCode::CONSUMER_NAME_EXIST
            }
        }
    }
}

/// The stream's limits that are set.
fn limits(config: &Config) -> impl Iterator<Item = (&'static str, i64)> {
    ["max_msgs", "max_bytes", "max_msgs_per_subject"].into_iter().filter_map(|field| {
        let limit = config.get(field).and_then(Value::as_i64).filter(|limit| *limit > 0)?;
        Some((field, limit))
    })
}

/// Whether the stream drops its oldest messages once the limit is reached, and does not refuse new ones. Ends that nobody
/// has processed would be lost, and a restart of the server forgets the ids of what was dropped.
fn drops_old(config: &Config, limit: &str) -> bool {
    let refuses = config.get("discard").and_then(Value::as_str) == Some("new");
    let per_subject = config.get("discard_new_per_subject").and_then(Value::as_bool) == Some(true);
    !refuses || (limit == "max_msgs_per_subject" && !per_subject)
}

/// Times with which the processor could not work as promised: `backoff` replaces the ack wait, an idle consumer would be
/// removed and would start over, and a pull that is to wait for longer than allowed is answered with an error. The time for
/// which a client stays pinned goes with the priority policy: nats-server refuses one without the other (error 10197).
const HINDERING_TIMES: [&str; 4] = ["backoff", "inactive_threshold", "max_expires", "priority_timeout"];

/// The like of [`HINDERING_TIMES`]: other filters widen ours, without bodies there is no call to process, and a pull that
/// is larger than allowed, or names no priority group where one is wanted, is answered with an error.
const HINDRANCES: [&str; 6] =
    ["filter_subjects", "headers_only", "max_batch", "max_bytes", "priority_groups", "priority_policy"];

/// What to do about a value that is another: to change it where it is asked for.
fn asked<T: Copy>(setting: Option<T>, option: &'static str) -> Otherwise {
    match setting {
        Some(_) => Otherwise::Change,
        None => Otherwise::Keep { option, least: 1, unless: None },
    }
}

fn stream_rules(subjects: &[&'static str], request: &Request) -> Vec<Rule> {
    vec![
        fixed_nothing("mirror", FOLLOWS),
        fixed_nothing("sealed", SEALED),
        Rule { field: "subjects", wanted: Wanted::Subjects(subjects.to_vec()), otherwise: Otherwise::Change },
        Rule {
            field: "num_replicas",
            wanted: Wanted::Value(json!(request.values().replicas)),
            otherwise: asked(request.settings.replicas, "--replicas"),
        },
    ]
}

fn fixed(field: &'static str, wanted: &str, why: &'static str) -> Rule {
    Rule { field, wanted: Wanted::Value(wanted.into()), otherwise: Otherwise::Refuse(why) }
}

fn fixed_nothing(field: &'static str, why: &'static str) -> Rule {
    Rule { field, wanted: Wanted::Nothing, otherwise: Otherwise::Refuse(why) }
}
