//! Everything that an operator wants to know, in one document.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;
use transcript_core::{JobView, State, WallTime};

use super::{
    Monitor, Observation, behind,
    finding::{Finding, Observed, judge},
    recent::Minute,
    servers::{ConsumerState, Servers},
};
use crate::{
    operate::{dead_letters::StoredDeadLetter, processes::Presence},
    service::driver::Snapshot,
};

/// How a processor and its servers stand. Times are in seconds, unless a name says otherwise.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// When, in milliseconds since the Unix epoch.
    pub at: WallTime,
    /// What is wrong, the most urgent first; empty where all is well.
    pub findings: Vec<Finding>,
    /// How long ago the oldest end was stored that is not settled; `None` where that is not known.
    pub seconds_behind: Option<f64>,
    /// The consumer; `None` where it is not known.
    pub consumer: Option<ConsumerStatus>,
    /// How long MongoDB took for a ping; `None` where it does not answer.
    pub mongodb_ping_seconds: Option<f64>,
    /// The dead letters; `None` where they are not known.
    pub dead_letters: Option<DeadLetterStatus>,
    /// The processors and transcribers that are alive, and for ten minutes those that were.
    pub processes: Vec<Presence>,
    /// The process; `None` where the servers alone were asked.
    pub process: Option<ProcessStatus>,
}

/// The consumer of all processors.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConsumerStatus {
    /// Ends that wait to be handed out.
    pub waiting: u64,
    /// Ends that all processors together have in hand.
    pub in_hand: u64,
    /// Those of them that were handed out more than once.
    pub redelivered: u64,
    /// The most ends in hand, where there is a limit.
    pub max_ack_pending: Option<u64>,
    /// Pull requests that wait: each processor that has room keeps one.
    pub pull_requests: u64,
    /// How much longer it is paused.
    pub paused_seconds: Option<f64>,
}

/// The dead letters.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetterStatus {
    /// Nobody has acted on them.
    pub open: u64,
    /// Their ends were published again.
    pub redriven: u64,
    /// Their calls are summarised and announced meanwhile.
    pub settled: u64,
    /// The newest open ones; 200 at the most.
    pub newest: Vec<StoredDeadLetter>,
}

/// One process.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessStatus {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: &'static str,
    /// How long it has run.
    pub uptime_seconds: f64,
    /// Whether its loop stands still.
    pub stands_still: bool,
    /// How many jobs it has where; `None`, as all that follows, where its loop does not answer.
    pub phases: Option<BTreeMap<State, usize>>,
    /// The jobs that were begun first, oldest first; 100 at the most.
    pub jobs: Option<Vec<JobStatus>>,
    /// What it has done since its start.
    pub since_start: Option<SinceStart>,
    /// The last eight hours, minute by minute.
    pub minutes: Vec<Minute>,
}

/// A job under way.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobStatus {
    /// The call; `None` where its end names none.
    pub key: Option<String>,
    /// Where it stands.
    pub phase: State,
    /// How long ago its end was stored.
    pub age_seconds: f64,
    /// How often its end was handed out.
    pub attempt: u64,
    /// How often its step has failed in a row.
    pub failures: u32,
}

/// What a process has done since its start.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SinceStart {
    /// Calls announced with all of their segments.
    pub complete: u64,
    /// Calls announced although segments were missing.
    pub incomplete: u64,
    /// Ends of calls that were announced before.
    pub announced_before: u64,
    /// Announcements of summaries that replaced an announced one.
    pub revised: u64,
    /// Ends given up and kept as dead letters.
    pub dead_lettered: u64,
    /// Deliveries that JetStream had made before.
    pub redelivered: u64,
    /// Steps tried again.
    pub retried: u64,
    /// From the end of a call to its notification, on average; `None` where no call was announced.
    pub notification_seconds: Option<f64>,
    /// The longest time between two heartbeats of one call.
    pub longest_heartbeat_gap_seconds: f64,
}

impl Status {
    /// Of a running process.
    pub async fn of_process(monitor: &Monitor) -> Self {
        let Observation { processor, servers, findings } = monitor.observe().await;
        let parts = monitor.parts();
        let process = ProcessStatus {
            name: parts.name.to_string(),
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: parts.clock.now().since(transcript_core::Time::ZERO).as_secs_f64(),
            stands_still: parts.health.stands_still() || processor.is_none(),
            phases: processor.as_ref().map(|snapshot| snapshot.states.clone()),
            jobs: processor.as_ref().map(|snapshot| snapshot.jobs.iter().map(job).collect()),
            since_start: processor.as_ref().map(since_start),
            minutes: monitor.recent().minutes().copied().collect(),
        };
        let seconds_behind = behind(&servers, processor.as_ref());
        Self { process: Some(process), ..Self::new(parts.clock.wall(), &servers, findings, seconds_behind) }
    }

    /// Of the servers alone, at this moment.
    #[must_use]
    pub fn of_servers(at: WallTime, servers: &Servers) -> Self {
        let findings = judge(Observed { servers, processor: None, trace_fails: false });
        Self::new(at, servers, findings, behind(servers, None))
    }

    fn new(at: WallTime, servers: &Servers, findings: Vec<Finding>, behind: Option<Duration>) -> Self {
        Self {
            at,
            findings,
            seconds_behind: behind.map(|behind| behind.as_secs_f64()),
            consumer: servers.consumer.as_ref().ok().and_then(Option::as_ref).map(consumer),
            mongodb_ping_seconds: servers.mongodb.as_ref().ok().map(Duration::as_secs_f64),
            dead_letters: servers.dead_letters.map(|counts| DeadLetterStatus {
                open: counts.open,
                redriven: counts.redriven,
                settled: counts.settled,
                newest: servers.open.to_vec(),
            }),
            processes: servers.processes.to_vec(),
            process: None,
        }
    }
}

fn consumer(consumer: &ConsumerState) -> ConsumerStatus {
    ConsumerStatus {
        waiting: consumer.pending,
        in_hand: consumer.ack_pending,
        redelivered: consumer.redelivered,
        max_ack_pending: consumer.max_ack_pending,
        pull_requests: consumer.waiting,
        paused_seconds: consumer.paused_for.map(|left| left.as_secs_f64()),
    }
}

fn job(job: &JobView) -> JobStatus {
    JobStatus {
        key: job.key.as_ref().map(|key| key.as_str().to_owned()),
        phase: job.state,
        age_seconds: job.age.as_secs_f64(),
        attempt: job.attempt,
        failures: job.failures,
    }
}

fn since_start(snapshot: &Snapshot) -> SinceStart {
    let counters = &snapshot.counters;
    let notified = u32::try_from(counters.notification.count()).ok().filter(|count| *count > 0);
    SinceStart {
        complete: counters.complete,
        incomplete: counters.incomplete,
        announced_before: counters.announced_before,
        revised: counters.revised,
        dead_lettered: counters.dead_lettered,
        redelivered: counters.redelivered,
        retried: counters.retried,
        notification_seconds: notified.map(|count| (counters.notification.sum() / count).as_secs_f64()),
        longest_heartbeat_gap_seconds: counters.longest_heartbeat_gap.as_secs_f64(),
    }
}
