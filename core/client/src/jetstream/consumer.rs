//! What the consumer is, as `$JS.API.CONSUMER.INFO` tells, and in what it differs from what it must be.

use std::time::Duration;

use serde::Deserialize;
use transcript_core::contract::SESSION_ENDED_SUBJECT;

use super::error::{ApiError, CONSUMER_NOT_FOUND, STREAM_NOT_FOUND};

/// The consumer as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Consumer {
    /// How long the server waits for an acknowledgement or a heartbeat.
    pub(super) ack_wait: Duration,
    /// How often it hands a message over; `None` where there is no limit.
    pub(super) max_deliver: Option<u64>,
    /// In what it differs from what it must be, one phrase each; not in its ack wait and its deliveries, which may be anything.
    pub(super) differences: Vec<String>,
    /// Bounds that it sets on pull requests.
    pub(super) max_batch: Option<u64>,
    pub(super) max_bytes: Option<u64>,
    pub(super) max_expires: Option<Duration>,
    /// Up to where all messages are acknowledged.
    pub(super) ack_floor: u64,
    /// The last message that it handed to anybody for the first time.
    pub(super) delivered: u64,
}

/// What an answer tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Consumer(Box<Consumer>),
    /// There is no consumer, or no stream.
    Missing,
    /// It cannot be told now.
    Failed(String),
}

#[derive(Deserialize)]
struct ConsumerInfo {
    error: Option<ApiError>,
    config: Option<Config>,
    #[serde(default)]
    delivered: Place,
    #[serde(default)]
    ack_floor: Place,
    #[serde(default)]
    paused: bool,
}

#[derive(Deserialize, Default)]
struct Place {
    #[serde(default)]
    stream_seq: u64,
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    ack_policy: String,
    #[serde(default)]
    ack_wait: u64,
    #[serde(default)]
    max_deliver: i64,
    filter_subject: Option<String>,
    filter_subjects: Option<Vec<String>>,
    deliver_subject: Option<String>,
    #[serde(default)]
    headers_only: bool,
    #[serde(default)]
    max_batch: i64,
    #[serde(default)]
    max_bytes: i64,
    #[serde(default)]
    max_expires: i64,
    priority_groups: Option<Vec<String>>,
}

pub(super) fn subject(api_prefix: &str, stream: &str, consumer: &str) -> String {
    format!("{api_prefix}.CONSUMER.INFO.{stream}.{consumer}")
}

impl Answer {
    pub(super) fn read(answer: &[u8]) -> Self {
        match serde_json::from_slice(answer) {
            Ok(ConsumerInfo { error: Some(error), .. })
                if matches!(error.err_code, CONSUMER_NOT_FOUND | STREAM_NOT_FOUND) =>
            {
                Self::Missing
            }
            Ok(ConsumerInfo { error: Some(error), .. }) => Self::Failed(error.failure("look at the consumer").detail),
            Ok(ConsumerInfo { config: Some(config), delivered, ack_floor, paused, .. }) => {
                Self::Consumer(Box::new(config.consumer(delivered.stream_seq, ack_floor.stream_seq, paused)))
            }
            Ok(ConsumerInfo { config: None, .. }) | Err(_) => {
                Self::Failed("the answer is none about a consumer".to_owned())
            }
        }
    }
}

impl Config {
    fn consumer(self, delivered: u64, ack_floor: u64, paused: bool) -> Consumer {
        let positive = |value: i64| u64::try_from(value).ok().filter(|value| *value > 0);
        let max_batch = positive(self.max_batch);
        let max_bytes = positive(self.max_bytes);
        let max_expires = positive(self.max_expires).map(Duration::from_nanos);
        let mut differences = vec![];
        let filters: Vec<&str> = match (&self.filter_subject, &self.filter_subjects) {
            (Some(filter), _) => vec![filter],
            (None, Some(filters)) => filters.iter().map(String::as_str).collect(),
            (None, None) => vec![],
        };
        if filters != [SESSION_ENDED_SUBJECT] {
            differences.push(format!("its filter is {filters:?} and not {SESSION_ENDED_SUBJECT:?}"));
        }
        if self.ack_policy != "explicit" {
            differences.push(format!("its ack policy is {:?} and not \"explicit\"", self.ack_policy));
        }
        if self.deliver_subject.is_some_and(|subject| !subject.is_empty()) {
            differences.push("it is a push consumer".to_owned());
        }
        if self.headers_only {
            differences.push("it delivers no payloads (headers_only)".to_owned());
        }
        differences.extend(max_batch.map(|most| format!("it bounds requests to {most} messages (max_batch)")));
        differences.extend(max_bytes.map(|most| format!("it bounds requests to {most} bytes (max_bytes)")));
        differences.extend(max_expires.map(|most| format!("it bounds requests to {most:?} (max_expires)")));
        if let Some(groups) = self.priority_groups.filter(|groups| !groups.is_empty()) {
            differences.push(format!("it has priority groups {groups:?}"));
        }
        if paused {
            differences.push("it is paused".to_owned());
        }
        Consumer {
            ack_wait: Duration::from_nanos(self.ack_wait),
            max_deliver: positive(self.max_deliver),
            differences,
            max_batch,
            max_bytes,
            max_expires,
            ack_floor,
            delivered,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: &str, rest: &str) -> Consumer {
        let answer = format!(
            r#"{{"type":"io.nats.jetstream.api.v1.consumer_info_response","config":{{"durable_name":"c","ack_policy":"explicit",
            "ack_wait":6000000000,"max_deliver":5,{config}}},"delivered":{{"consumer_seq":9,"stream_seq":20}},
            "ack_floor":{{"consumer_seq":3,"stream_seq":12}}{rest}}}"#
        );
        match Answer::read(answer.as_bytes()) {
            Answer::Consumer(consumer) => *consumer,
            other @ (Answer::Missing | Answer::Failed(_)) => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_consumer_that_is_as_it_must_be_has_no_difference() {
        let consumer = read(r#""filter_subject":"transcription.session-ended""#, "");
        assert_eq!((consumer.ack_wait, consumer.max_deliver), (Duration::from_secs(6), Some(5)));
        assert_eq!((consumer.ack_floor, consumer.delivered), (12, 20));
        assert!(consumer.differences.is_empty(), "{:?}", consumer.differences);
    }

    #[test]
    fn each_difference_is_named() {
        let good = r#""filter_subject":"transcription.session-ended""#;
        for (config, rest, named) in [
            (r#""filter_subject":"other""#, "", "filter"),
            (r#""replay_policy":"instant""#, "", "filter"),
            (&*format!(r#"{good},"headers_only":true"#), "", "headers_only"),
            (&*format!(r#"{good},"max_batch":3"#), "", "max_batch"),
            (&*format!(r#"{good},"max_bytes":3"#), "", "max_bytes"),
            (&*format!(r#"{good},"max_expires":3000000"#), "", "max_expires"),
            (&*format!(r#"{good},"priority_groups":["a"],"priority_policy":"pinned_client""#), "", "priority"),
            (good, r#","paused":true"#, "paused"),
        ] {
            let consumer = read(config, rest);
            assert!(consumer.differences.iter().any(|it| it.contains(named)), "{named}: {:?}", consumer.differences);
        }
    }

    #[test]
    fn a_missing_consumer_is_told_from_an_answer_that_failed() {
        let error = |code| format!(r#"{{"error":{{"code":404,"err_code":{code},"description":"gone"}}}}"#);
        assert_eq!(Answer::read(error(10_014).as_bytes()), Answer::Missing);
        assert_eq!(Answer::read(error(10_059).as_bytes()), Answer::Missing);
        assert!(matches!(Answer::read(error(10_008).as_bytes()), Answer::Failed(_)));
        assert!(matches!(Answer::read(b"{}"), Answer::Failed(_)));
    }
}
