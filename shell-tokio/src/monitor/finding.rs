//! What is wrong, in words that say what happened, what it leads to and what to do. The same findings are told by
//! `/readyz`, `/metrics`, `status` and the status page.

use std::{fmt, time::Duration};

use serde::Serialize;
use transcript_core::{EffectKind, Server};

use super::servers::{ConsumerState, DeadLetterCounts, Servers, StreamState};
use crate::service::driver::{Failing, Snapshot};

/// Where the manual describes the findings; a finding's name is the heading.
pub const MANUAL: &str = "shell-tokio/README.md";
/// An answer of MongoDB to a ping that takes longer is slow.
const SLOW: Duration = Duration::from_secs(1);
/// How long a step may fail before that is a finding: one failure alone is repaired by the retry.
const FAILS_FOR: Duration = Duration::from_secs(3);
/// A stream is full where less than one part in so many is left.
const LAST_PART: u64 = 100;

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// What it is.
    pub name: FindingName,
    /// Whether the process is not ready because of it.
    pub blocks: bool,
    /// What happened.
    pub cause: String,
    /// What it leads to.
    pub consequence: &'static str,
    /// What to do.
    pub remedy: &'static str,
    /// Where the manual describes it.
    pub manual: String,
}

impl fmt::Display for Finding {
    /// One line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, cause, consequence, remedy, manual, .. } = self;
        write!(f, "{}: {cause}. {consequence} {remedy} See {manual}", name.name())
    }
}

/// The names of what can be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingName {
    /// There is no connection to NATS.
    NatsUnreachable,
    /// NATS is there, and JetStream does not answer.
    JetstreamUnavailable,
    /// The stream is missing.
    StreamMissing,
    /// The stream takes no more messages.
    StreamFull,
    /// The consumer is missing.
    ConsumerMissing,
    /// The consumer is not as it must be.
    ConsumerChanged,
    /// The consumer is paused.
    ConsumerPaused,
    /// The consumer hands out no more than it has.
    ConsumerAtItsBound,
    /// NATS refuses what is published, or acknowledgements.
    NatsStepFails,
    /// MongoDB does not answer.
    MongodbUnreachable,
    /// MongoDB takes no writes.
    MongodbCannotWrite,
    /// Reading from MongoDB fails.
    MongodbCannotRead,
    /// MongoDB answers slowly.
    MongodbSlow,
    /// There are open dead letters.
    DeadLettersOpen,
    /// The trace cannot be written.
    TraceNotWritten,
    /// The process has been told to end.
    Draining,
}

impl FindingName {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::NatsUnreachable,
        Self::JetstreamUnavailable,
        Self::StreamMissing,
        Self::StreamFull,
        Self::ConsumerMissing,
        Self::ConsumerChanged,
        Self::ConsumerPaused,
        Self::ConsumerAtItsBound,
        Self::NatsStepFails,
        Self::MongodbUnreachable,
        Self::MongodbCannotWrite,
        Self::MongodbCannotRead,
        Self::MongodbSlow,
        Self::DeadLettersOpen,
        Self::TraceNotWritten,
        Self::Draining,
    ];

    /// As it stands in labels, in the manual's headings and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NatsUnreachable => "nats_unreachable",
            Self::JetstreamUnavailable => "jetstream_unavailable",
            Self::StreamMissing => "stream_missing",
            Self::StreamFull => "stream_full",
            Self::ConsumerMissing => "consumer_missing",
            Self::ConsumerChanged => "consumer_changed",
            Self::ConsumerPaused => "consumer_paused",
            Self::ConsumerAtItsBound => "consumer_at_its_bound",
            Self::NatsStepFails => "nats_step_fails",
            Self::MongodbUnreachable => "mongodb_unreachable",
            Self::MongodbCannotWrite => "mongodb_cannot_write",
            Self::MongodbCannotRead => "mongodb_cannot_read",
            Self::MongodbSlow => "mongodb_slow",
            Self::DeadLettersOpen => "dead_letters_open",
            Self::TraceNotWritten => "trace_not_written",
            Self::Draining => "draining",
        }
    }

    /// Whether a process is not ready because of it.
    #[must_use]
    pub fn blocks(self) -> bool {
        match self {
            Self::NatsUnreachable
            | Self::JetstreamUnavailable
            | Self::StreamMissing
            | Self::StreamFull
            | Self::ConsumerMissing
            | Self::ConsumerChanged
            | Self::ConsumerPaused
            | Self::NatsStepFails
            | Self::MongodbUnreachable
            | Self::MongodbCannotWrite
            | Self::MongodbCannotRead
            | Self::Draining => true,
            Self::ConsumerAtItsBound | Self::MongodbSlow | Self::DeadLettersOpen | Self::TraceNotWritten => false,
        }
    }

    fn consequence(self) -> &'static str {
        match self {
            Self::NatsUnreachable => {
                "No call is taken, announced or acknowledged. Calls in hand wait; other processors get them after the ack wait."
            }
            Self::JetstreamUnavailable => {
                "No call is taken, announced or acknowledged until it answers. No call is lost."
            }
            Self::StreamMissing => "Calls that end now are not stored, and are lost unless their publisher repeats.",
            Self::StreamFull => {
                "No call can be announced and no end stored. Publishers get errors; calls in hand wait."
            }
            Self::ConsumerMissing => {
                "No call is taken. A new consumer hands out every end that the stream holds; calls that are done are \
                 acknowledged again without a second announcement within the duplicate window."
            }
            Self::ConsumerChanged => "Calls are not handed out as they must be, or none at all.",
            Self::ConsumerPaused => "No call is handed out to any processor. Ends wait in the stream.",
            Self::ConsumerAtItsBound => {
                "No more calls are handed out until calls in hand are done. The others wait in the stream."
            }
            Self::NatsStepFails => "Calls in hand wait, and the step is tried again. No call is given up meanwhile.",
            Self::MongodbUnreachable => {
                "No call can be counted, loaded or saved. Calls in hand wait and are not given up."
            }
            Self::MongodbCannotWrite => "No summary can be saved. Calls in hand wait and are not given up.",
            Self::MongodbCannotRead => "Calls cannot be counted or loaded. Calls in hand wait and are not given up.",
            Self::MongodbSlow => "Calls take longer than they should.",
            Self::DeadLettersOpen => "These calls have no summary, and get none until somebody acts.",
            Self::TraceNotWritten => "Calls are processed as before; what happens now is missing from the trace.",
            Self::Draining => "No more calls are taken. Calls in hand are finished or given back.",
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Self::NatsUnreachable => "Start nats-server, or correct the network or the credentials.",
            Self::JetstreamUnavailable => {
                "Bring back a majority of the cluster's servers, enable JetStream, or grant this user its API."
            }
            Self::StreamMissing => "Restore the stream, or run `transcript-processor setup`.",
            Self::StreamFull => {
                "Raise the stream's max_bytes or max_msgs, set max_age, or free space: \
                 `nats stream edit TRANSCRIPTION`."
            }
            Self::ConsumerMissing => {
                "A running processor makes it anew within seconds; else run `transcript-processor setup`."
            }
            Self::ConsumerChanged => "Run `transcript-processor setup`.",
            Self::ConsumerPaused => "Run `transcript-processor resume`, or wait for the end of the pause.",
            Self::ConsumerAtItsBound => {
                "Raise it with `setup --max-ack-pending`, or find out why calls in hand do not end."
            }
            Self::NatsStepFails => "Read the cause; see nats-server's log and this user's permissions.",
            Self::MongodbUnreachable => "Start mongod, or correct the network or the credentials.",
            Self::MongodbCannotWrite => {
                "Bring back a majority of the replica set, free disk space, or grant this user to write."
            }
            Self::MongodbCannotRead => "Read the cause; see mongod's log and this user's privileges.",
            Self::MongodbSlow => "Look at mongod's load and disk, and at the network.",
            Self::DeadLettersOpen => {
                "Read the reasons with `transcript-processor dead-letters list`, remove the cause, then redrive or discard them."
            }
            Self::TraceNotWritten => "Free disk space in the directory of --record, or correct its permissions.",
            Self::Draining => "Nothing, if that was wanted: it ends by itself.",
        }
    }

    fn because(self, cause: impl Into<String>) -> Finding {
        Finding {
            name: self,
            blocks: self.blocks(),
            cause: cause.into(),
            consequence: self.consequence(),
            remedy: self.remedy(),
            manual: format!("{MANUAL}#{}", self.name()),
        }
    }
}

/// What is known of the process, where there is one.
#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    /// What the servers say.
    pub servers: &'a Servers,
    /// How the processor stands.
    pub processor: Option<&'a Snapshot>,
    /// Whether the trace cannot be written.
    pub trace_fails: bool,
}

/// What is wrong, the most urgent first.
#[must_use]
pub fn judge(observed: Observed<'_>) -> Vec<Finding> {
    let Observed { servers, processor, trace_fails } = observed;
    let mut findings = nats(servers);
    if let Err(cause) = &servers.mongodb {
        findings.push(FindingName::MongodbUnreachable.because(format!("MongoDB does not answer: {cause}")));
    }
    let failing = processor.map(|snapshot| snapshot.failing.as_slice()).unwrap_or_default();
    findings.extend(steps(failing, servers));
    if let Ok(ping) = servers.mongodb
        && ping > SLOW
    {
        findings.push(FindingName::MongodbSlow.because(format!("MongoDB took {:.1} s for a ping", ping.as_secs_f64())));
    }
    if let Some(DeadLetterCounts { open, .. }) = servers.dead_letters
        && open > 0
    {
        findings.push(FindingName::DeadLettersOpen.because(match open {
            1 => "one call was given up and is a dead letter".to_owned(),
            more => format!("{more} calls were given up and are dead letters"),
        }));
    }
    if trace_fails {
        findings.push(FindingName::TraceNotWritten.because("the trace cannot be written"));
    }
    if processor.is_some_and(|snapshot| snapshot.is_draining) {
        findings.push(FindingName::Draining.because("the process has been told to end"));
    }
    findings.sort_by_key(|finding| (!finding.blocks, finding.name));
    findings
}

fn nats(servers: &Servers) -> Vec<Finding> {
    if let Err(cause) = &servers.nats {
        return vec![FindingName::NatsUnreachable.because(format!("there is no connection to NATS: {cause}"))];
    }
    let stream = match &servers.stream {
        Err(cause) => {
            return vec![FindingName::JetstreamUnavailable.because(format!("JetStream does not answer: {cause}"))];
        }
        Ok(None) => return vec![FindingName::StreamMissing.because("there is no stream TRANSCRIPTION")],
        Ok(Some(stream)) => stream,
    };
    let mut findings = vec![];
    findings.extend(full(stream).map(|cause| FindingName::StreamFull.because(cause)));
    match &servers.consumer {
        Err(cause) => {
            findings
                .push(FindingName::JetstreamUnavailable.because(format!("the consumer cannot be looked at: {cause}")));
        }
        Ok(None) => {
            findings.push(FindingName::ConsumerMissing.because("there is no consumer transcript-processor"));
        }
        Ok(Some(consumer)) => findings.extend(consumer_findings(consumer)),
    }
    findings
}

fn full(stream: &StreamState) -> Option<String> {
    if !stream.refuses_new {
        return None;
    }
    let is_near = |is: u64, most: Option<u64>| most.is_some_and(|most| is >= most - most / LAST_PART);
    if is_near(stream.bytes, stream.max_bytes) {
        return Some(format!(
            "the stream has {} bytes, and its max_bytes is {}",
            stream.bytes,
            stream.max_bytes.unwrap_or(0)
        ));
    }
    let is_full = stream.max_messages.is_some_and(|most| stream.messages >= most);
    is_full.then(|| {
        format!("the stream has {} messages, and its max_msgs is {}", stream.messages, stream.max_messages.unwrap_or(0))
    })
}

fn consumer_findings(consumer: &ConsumerState) -> Vec<Finding> {
    let mut findings = vec![];
    if let Some(left) = consumer.paused_for {
        let left = humantime::format_duration(Duration::from_secs(left.as_secs()));
        findings.push(FindingName::ConsumerPaused.because(format!("the consumer is paused for another {left}")));
    }
    if let Some(problem) = &consumer.problem {
        findings.push(FindingName::ConsumerChanged.because(problem.clone()));
    }
    if let Some(most) = consumer.max_ack_pending
        && consumer.ack_pending >= most
        && consumer.pending > 0
    {
        findings.push(FindingName::ConsumerAtItsBound.because(format!(
            "{} calls are in hand, which is the consumer's max_ack_pending, and {} wait",
            consumer.ack_pending, consumer.pending
        )));
    }
    findings
}

/// What the steps of calls say. While a server is known to be away that is the cause of all of them.
fn steps(failing: &[Failing], servers: &Servers) -> Vec<Finding> {
    let mut findings: Vec<Finding> = vec![];
    for Failing { kind, lasts, failure } in failing.iter().filter(|failing| failing.lasts >= FAILS_FOR) {
        let name = match (kind.server(), kind) {
            (Server::Nats, _) => FindingName::NatsStepFails,
            (Server::Mongodb, EffectKind::Save | EffectKind::Mark) => FindingName::MongodbCannotWrite,
            (Server::Mongodb, _) => FindingName::MongodbCannotRead,
        };
        let is_away = match kind.server() {
            Server::Nats => servers.nats.is_err() || servers.stream.is_err(),
            Server::Mongodb => servers.mongodb.is_err(),
        };
        if !is_away && findings.iter().all(|finding| finding.name != name) {
            let seconds = lasts.as_secs();
            findings.push(name.because(format!("the step \"{kind}\" has failed for {seconds} s: {failure}")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use transcript_core::{Failure, FailureKind};

    fn healthy() -> Servers {
        Servers {
            nats: Ok(()),
            stream: Ok(Some(StreamState::default())),
            consumer: Ok(Some(ConsumerState::default())),
            mongodb: Ok(Duration::from_millis(1)),
            ..Servers::unknown()
        }
    }

    fn names(servers: &Servers) -> Vec<FindingName> {
        let observed = Observed { servers, processor: None, trace_fails: false };
        judge(observed).iter().map(|finding| finding.name).collect()
    }

    #[test]
    fn nothing_is_wrong_with_healthy_servers() {
        assert_eq!(names(&healthy()), []);
    }

    #[test]
    fn what_follows_from_another_finding_is_not_said_beside_it() {
        let away = Servers { nats: Err("lost".into()), stream: Err("no answer".into()), ..healthy() };
        assert_eq!(names(&away), [FindingName::NatsUnreachable]);
        let no_quorum = Servers { stream: Err("no answer".into()), consumer: Err("no answer".into()), ..healthy() };
        assert_eq!(names(&no_quorum), [FindingName::JetstreamUnavailable]);
        let fails = |kind| Failing {
            kind,
            lasts: Duration::from_secs(9),
            failure: Failure { kind: FailureKind::Unreachable, detail: "gone".into() },
        };
        let away = Servers { mongodb: Err("no answer".into()), ..healthy() };
        assert_eq!(steps(&[fails(EffectKind::Save)], &away), []);
        let steps = steps(&[fails(EffectKind::Save), fails(EffectKind::Mark), fails(EffectKind::Publish)], &healthy());
        let steps: Vec<_> = steps.iter().map(|finding| finding.name).collect();
        assert_eq!(steps, [FindingName::MongodbCannotWrite, FindingName::NatsStepFails]);
    }

    #[test]
    fn a_stream_is_full_only_where_it_refuses_new_messages() {
        let stream = StreamState { bytes: 995, max_bytes: Some(1000), refuses_new: true, ..StreamState::default() };
        assert!(full(&stream).is_some());
        assert!(full(&StreamState { bytes: 989, ..stream.clone() }).is_none());
        assert!(full(&StreamState { refuses_new: false, ..stream }).is_none());
    }

    #[test]
    fn a_consumer_is_at_its_bound_only_where_calls_wait() {
        let bound = ConsumerState { ack_pending: 5, max_ack_pending: Some(5), pending: 1, ..ConsumerState::default() };
        assert_eq!(consumer_findings(&bound).len(), 1);
        assert_eq!(consumer_findings(&ConsumerState { pending: 0, ..bound }), []);
    }

    #[test]
    fn every_name_is_there_once_and_as_json_writes_it() {
        for name in FindingName::ALL {
            assert_eq!(serde_json::to_value(name).unwrap(), name.name());
            assert_eq!(FindingName::ALL.iter().filter(|other| other.name() == name.name()).count(), 1);
        }
    }
}
