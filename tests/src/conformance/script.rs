//! What is done to a broker.

use serde::{Deserialize, Serialize};

use super::STEP_MS;

/// A stream `S` with the consumer `c`, and what is done to them by a control connection and two clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Script {
    /// A sentence: what it shows.
    pub name: String,
    /// The duplicate window, in milliseconds; zero for the default.
    pub window_ms: u64,
    /// The consumer.
    pub consumer: ConsumerPlan,
    /// What is done, in order.
    pub steps: Vec<Step>,
    /// How long to watch after the last step, in milliseconds.
    pub watch_ms: u64,
}

/// What the consumer is to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConsumerPlan {
    /// In milliseconds.
    pub ack_wait_ms: u64,
    /// In milliseconds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backoff_ms: Vec<u64>,
    /// `None` without end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_deliver: Option<u64>,
    /// `None` for any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_ack_pending: Option<u64>,
    /// Zero for the default.
    #[serde(default)]
    pub max_waiting: u64,
    /// The largest batch of a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_batch: Option<u64>,
    /// What follows the stream's prefix in the filter; all where `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
}

impl Default for ConsumerPlan {
    fn default() -> Self {
        Self {
            ack_wait_ms: 1_000,
            backoff_ms: vec![],
            max_deliver: Some(3),
            max_ack_pending: Some(1_000),
            max_waiting: 0,
            max_batch: None,
            filter: None,
        }
    }
}

/// One thing that is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Step {
    /// Let time pass.
    Wait {
        /// In milliseconds, on top of the time between steps.
        ms: u64,
    },
    /// Publish, and see the acknowledgement.
    #[serde(rename_all = "camelCase")]
    Publish {
        /// What follows the stream's prefix.
        subject: String,
        /// `Nats-Msg-Id`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// `Nats-Expected-Last-Subject-Sequence`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expected: Option<u64>,
    },
    /// A client asks for messages.
    #[serde(rename_all = "camelCase")]
    Pull {
        /// 1 or 2.
        client: u64,
        /// How many.
        batch: u64,
        /// In milliseconds; zero for no expiry.
        expires_ms: u64,
        /// Whether the request does not wait.
        #[serde(default)]
        no_wait: bool,
        /// In milliseconds; zero for none.
        #[serde(default)]
        heartbeat_ms: u64,
        /// Zero for any number.
        #[serde(default)]
        max_bytes: u64,
    },
    /// Say something to the reply subject of a delivery, and see whether it is answered. Nothing is done where there was no
    /// such delivery.
    Ack {
        /// The message, by its sequence.
        sequence: u64,
        /// Which of its deliveries, from 1.
        delivery: usize,
        /// What is said, byte for byte.
        body: String,
    },
    /// Remove a message.
    DeleteMessage {
        /// Which.
        sequence: u64,
    },
    /// Remove all messages, or those of a subject.
    Purge {
        /// What follows the stream's prefix.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subject: Option<String>,
    },
    /// Change the duplicate window.
    SetWindow {
        /// In milliseconds.
        ms: u64,
    },
    /// Create or update the consumer.
    Consumer {
        /// Which of both.
        action: Action,
        /// What it is to be.
        plan: ConsumerPlan,
    },
    /// Delete the consumer.
    DeleteConsumer,
    /// Set the consumer back.
    Reset {
        /// The next sequence to deliver.
        sequence: u64,
    },
    /// See what the consumer says about itself.
    Info,
    /// A client stops listening to its inbox.
    Unsubscribe {
        /// 1 or 2.
        client: u64,
    },
    /// The server ends; it starts again after `down_ms`, and all connect again. Only where the script has a server of its own.
    #[serde(rename_all = "camelCase")]
    Restart {
        /// How.
        stop: Stop,
        /// In milliseconds, until it starts.
        down_ms: u64,
    },
}

/// What to do with a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Action {
    /// An existing one must be the same.
    Create,
    /// It must exist.
    Update,
    /// Either.
    Either,
}

/// How a server ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Stop {
    /// SIGTERM.
    Terminate,
    /// SIGKILL.
    Kill,
}

impl Script {
    /// The steps with their times, in milliseconds since the start of the script, and the time at which the script ends.
    #[must_use]
    pub fn schedule(&self) -> (Vec<(u64, &Step)>, u64) {
        let mut at = STEP_MS;
        let mut timed = vec![];
        for step in &self.steps {
            match step {
                Step::Wait { ms } => at += ms,
                Step::Restart { down_ms, .. } => {
                    timed.push((at, step));
                    at += down_ms + RESTART_MS;
                }
                Step::Publish { .. }
                | Step::Pull { .. }
                | Step::Ack { .. }
                | Step::DeleteMessage { .. }
                | Step::Purge { .. }
                | Step::SetWindow { .. }
                | Step::Consumer { .. }
                | Step::DeleteConsumer
                | Step::Reset { .. }
                | Step::Info
                | Step::Unsubscribe { .. } => {
                    timed.push((at, step));
                    at += STEP_MS;
                }
            }
        }
        (timed, at + self.watch_ms)
    }

    /// Whether it ends the server, and so needs one of its own.
    #[must_use]
    pub fn restarts(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Restart { .. }))
    }
}

/// How long a start of the server and the connections to it may take, in milliseconds.
pub(super) const RESTART_MS: u64 = 400;
