//! What a run is made of: printable data, from which the run follows byte for byte.

mod fault;

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};
use transcript_core::{Settings, Time, ids::Session};

pub use self::fault::{Action, Direction, EffectPattern, Fault, Moment, Server, StoreFault, Trigger};
use crate::bug::Bug;

/// How long the broker keeps a pull request where a plan does not say it.
const PULL_EXPIRES: Duration = Duration::from_secs(3);

/// A whole run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Plan {
    /// Where the network's delays come from.
    pub seed: u64,
    /// How many processors there are from the start.
    pub processors: usize,
    /// How everything is set.
    pub options: Options,
    /// The calls.
    pub calls: Vec<Call>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// What the operator does by hand, also once everything is mended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chores: Vec<Chore>,
    /// When everything that is broken is mended and nothing more breaks; `None` lets every fault come to its own end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heals_at_ms: Option<u64>,
    /// The fault that was put into the product.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bug: Option<Bug>,
}

/// How everything is set. Times are in the unit that their name ends in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Options {
    /// The quiet period of a call.
    pub quiet_period_ms: u64,
    /// The most counts of a call.
    pub settle_rounds: u32,
    /// The ack wait.
    pub ack_wait_ms: u64,
    /// The most deliveries of a message.
    pub max_deliver: u64,
    /// The most unacknowledged deliveries before new messages wait; `None` for any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_ack_pending: Option<u64>,
    /// The jobs of one processor.
    pub max_in_flight: usize,
    /// The segments of a page.
    pub page_size: u32,
    /// How long a step is tried again in place.
    pub retry_timeout_ms: u64,
    /// The longest pause between two tries; without an entry, the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_cap_ms: Option<u64>,
    /// How long a client waits for an answer.
    pub request_timeout_ms: u64,
    /// The duplicate window that the stream is given, and for which one notification a call is promised.
    pub window_ms: u64,
    /// The shortest delay of a message.
    pub delay_us: u64,
    /// How much longer a delay may be.
    pub jitter_us: u64,
    /// By how much the calendar of each processor is ahead of the servers', or behind; processors without an entry agree.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skews_ms: Vec<i64>,
    /// How late the broker's timers may be: those of its ack wait, and those that forget message ids.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub timer_lag_ms: u64,
    /// When a transcriber takes a segment for saved.
    #[serde(default, skip_serializing_if = "SegmentWrites::are_journaled")]
    pub segment_writes: SegmentWrites,
    /// Whether each notification has a subject of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub announce_once: bool,
    /// Whether summaries that their sessions have made stale are replaced, and that is announced.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub revise: bool,
    /// The bytes above which a core asks for no more pages; `None` for the product's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes_in_flight: Option<u64>,
    /// How long a pull request lasts; `None` for three seconds: longer than in production, because a world is mostly idle. A
    /// trace names the span in its header, and a plan that is made of a trace has that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_expires_ms: Option<u64>,
}

/// When a transcriber takes a segment for saved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SegmentWrites {
    /// Once the journal has it (`j: true`).
    #[default]
    Journaled,
    /// Once the server has it in memory: a kill can lose what was saved in the 100 ms before it.
    Unjournaled,
}

impl SegmentWrites {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
    fn are_journaled(&self) -> bool {
        *self == Self::Journaled
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A call as its transcriber plays it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Call {
    /// The conversation.
    pub conversation: String,
    /// The session.
    pub session: String,
    /// What is saved, and when.
    pub segments: Vec<SegmentSaved>,
    /// What is published at the end, and when.
    pub ends: Vec<End>,
    /// What MongoDB makes of its summary.
    #[serde(default, skip_serializing_if = "Verdict::is_taken")]
    pub verdict: Verdict,
}

/// What MongoDB makes of a summary.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// It stores it.
    #[default]
    Taken,
    /// It refuses it, each time: a rule for the collection's documents that this one breaks.
    Refused,
    /// It refuses every command that holds it, each time: a document that is too large.
    RefusesCommand,
}

impl Verdict {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
    fn is_taken(&self) -> bool {
        *self == Self::Taken
    }
}

/// One save of a segment. The same index twice is a segment saved twice.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SegmentSaved {
    /// When.
    pub at_ms: u64,
    /// Its place in the call.
    pub index: i64,
    /// Who speaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speaker: Option<String>,
    /// What is said.
    pub text: String,
    /// When it starts, in milliseconds of the session's clock; `None` for a start that is not on that clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_start_ms: Option<i64>,
    /// How often it was changed before that: the same index with one more is a change.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub edits: u64,
}

/// One publication of a call's end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct End {
    /// When.
    pub at_ms: u64,
    /// What.
    pub payload: EndPayload,
}

/// What is published at the end of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EndPayload {
    /// The contract's payload with so many segments announced.
    Announces(u64),
    /// The same, published under the message id that the call's notification will have.
    Claims(u64),
    /// An operator asks for the call to be processed again, because somebody has corrected it.
    AsksAgain {
        /// How many segments are announced.
        announces: u64,
        /// How often that was asked for, this time included.
        request: u64,
    },
    /// These bytes, which no processor can take.
    Malformed(String),
}

/// Something that the operator does by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Chore {
    /// When.
    pub at_ms: u64,
    /// What.
    pub what: Task,
}

/// What an operator does by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Task {
    /// Publishes the ends of all dead letters again.
    Redrive,
    /// Sets the consumer back to the first message of the stream.
    ResetConsumer,
    /// Purges the stream and restarts NATS, which then has forgotten every message id.
    PurgeAndRestart,
    /// Publishes every end again that was published before, without a message id, from a copy of the stream.
    PublishAgain,
}

impl Plan {
    /// How many things happen: saves of segments, ends, faults, chores.
    #[must_use]
    pub fn events(&self) -> usize {
        self.faults.len()
            + self.chores.len()
            + self.calls.iter().map(|call| call.segments.len() + call.ends.len()).sum::<usize>()
    }
}

impl Options {
    /// The project's defaults on a quick network.
    #[must_use]
    pub fn quick() -> Self {
        Self {
            quiet_period_ms: 2_000,
            settle_rounds: 5,
            ack_wait_ms: 6_000,
            max_deliver: 5,
            max_ack_pending: None,
            max_in_flight: 8,
            page_size: 2,
            retry_timeout_ms: 600_000,
            retry_cap_ms: None,
            request_timeout_ms: 7_500,
            window_ms: 86_400_000,
            delay_us: 150,
            jitter_us: 0,
            skews_ms: vec![],
            timer_lag_ms: 0,
            segment_writes: SegmentWrites::Journaled,
            announce_once: false,
            revise: false,
            max_bytes_in_flight: None,
            pull_expires_ms: None,
        }
    }

    /// For how long the broker keeps a pull request.
    #[must_use]
    pub fn pull_expires(&self) -> Duration {
        self.pull_expires_ms.map_or(PULL_EXPIRES, millis)
    }

    /// The core's settings.
    #[must_use]
    pub fn core(&self) -> Settings {
        let defaults = Settings::default();
        Settings {
            quiet_period: millis(self.quiet_period_ms),
            settle_rounds: self.settle_rounds,
            ack_wait: millis(self.ack_wait_ms),
            max_in_flight: self.max_in_flight,
            page_size: self.page_size,
            max_deliver: self.max_deliver,
            retry_timeout: millis(self.retry_timeout_ms),
            retry_cap: self.retry_cap_ms.map_or(defaults.retry_cap, millis),
            request_timeout: millis(self.request_timeout_ms),
            duplicate_window: millis(self.window_ms),
            announce_once: self.announce_once,
            revise: self.revise,
            max_bytes_in_flight: self.max_bytes_in_flight.unwrap_or(defaults.max_bytes_in_flight),
            ..defaults
        }
    }
}

impl Call {
    /// A call of one segment, announced as it is.
    #[must_use]
    pub fn short(conversation: &str, session: &str, ends_at_ms: u64) -> Self {
        let text = "Shall we begin?".to_owned();
        Self {
            conversation: conversation.to_owned(),
            session: session.to_owned(),
            segments: vec![SegmentSaved { text, speaker: Some("Ada".to_owned()), ..SegmentSaved::default() }],
            ends: vec![End { at_ms: ends_at_ms, payload: EndPayload::Announces(1) }],
            verdict: Verdict::Taken,
        }
    }

    /// The session, checked.
    #[must_use]
    pub fn ids(&self) -> Session {
        Session::new(&self.conversation, &self.session).expect("a plan's ids are valid")
    }
}

pub(crate) fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub(crate) fn at_ms(count: u64) -> Time {
    Time::ZERO.after(millis(count))
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bug = self.bug.map(|bug| format!(", with the planted bug {bug}")).unwrap_or_default();
        writeln!(f, "{} processor(s), {} event(s), seed {}{bug}", self.processors, self.events(), self.seed)?;
        writeln!(f, "  {:?}", self.options)?;
        for call in &self.calls {
            let refused = match call.verdict {
                Verdict::Taken => "",
                Verdict::Refused => ", whose summary is refused",
                Verdict::RefusesCommand => ", whose summary makes MongoDB refuse the command",
            };
            writeln!(f, "  call {:?} {:?}{refused}", call.conversation, call.session)?;
            for segment in &call.segments {
                let SegmentSaved { at_ms, index, speaker, text, session_start_ms, edits } = segment;
                let start = session_start_ms.map(|start| format!(", which starts at {start} ms")).unwrap_or_default();
                let changed = if *edits == 0 { "" } else { ", changed" };
                writeln!(f, "    at {at_ms} ms: segment {index} of {speaker:?}{start}{changed}: {text:?}")?;
            }
            for end in &call.ends {
                writeln!(f, "    at {} ms: end {:?}", end.at_ms, end.payload)?;
            }
        }
        for fault in &self.faults {
            writeln!(f, "  {fault}")?;
        }
        for Chore { at_ms, what } in &self.chores {
            writeln!(f, "  at {at_ms} ms the operator: {what:?}")?;
        }
        match self.heals_at_ms {
            Some(at) => write!(f, "  everything is mended at {at} ms"),
            None => write!(f, "  every fault comes to its own end"),
        }
    }
}
