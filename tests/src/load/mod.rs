//! Load tests: how fast ended calls are worked off, by this processor, by others, and by the bare commands, on real servers that
//! are started for each load test.
//!
//! Segments are stored first, then the worker is started and warmed up, then all calls end at once. The clock is the server's:
//! from the first end that was stored to the last notification that was.

pub mod ceiling;
mod environment;
pub mod giant;
pub mod table;
mod usage;

use std::{collections::BTreeMap, env, ffi::OsString, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use transcript_core::contract::CONSUMER;

pub use self::{
    environment::{Call, LoadEnvironment, SessionTimes},
    usage::{Commands, Machine, Usage},
};
use crate::{
    cargo::{self, Version},
    process_guard::{self, GuardedProcess, Launch},
    wait::wait_until,
};

/// Whatever a load test can fail with.
pub type LoadTestError = Box<dyn std::error::Error + Send + Sync>;

/// Calls by which a worker is warmed up.
const WARM_UP: usize = 200;
/// What all sessions of the warm-up begin with, and no other.
const WARM: char = 'w';
/// How often it is looked how far a load test is. The result does not depend on it.
const LOOK: Duration = Duration::from_millis(50);
/// How long anything may take beyond the times that it must take.
const MARGIN: Duration = Duration::from_secs(60);
/// What a slow worker may take for a call.
const SLOW: Duration = Duration::from_millis(50);

/// One load test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadTest {
    /// What it is called in the table.
    pub name: String,
    /// Who runs.
    pub runner: Runner,
    /// How many of them.
    pub instances: usize,
    /// Calls that end at once.
    pub sessions: usize,
    /// Segments of each.
    pub segments: usize,
    /// The quiet period.
    pub quiet: Duration,
    /// More arguments for the product.
    pub arguments: Vec<String>,
    /// How long the calls are looked at while they settle.
    pub watched: Option<Duration>,
}

/// Who works the calls off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Runner {
    /// This workspace's processor.
    Product,
    /// The same commands without it: this program, started with the argument.
    Ceiling(&'static str),
    /// Another worker, as a line for the shell. It is told `NATS_URL`, `MONGODB_URI`, `MONGODB_DATABASE`, and `QUIET` in
    /// seconds.
    Peer(String),
}

/// What came of a load test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// The load test's name.
    pub name: String,
    /// Whether it was the product that ran.
    pub product: bool,
    /// How many instances ran.
    pub instances: usize,
    /// Calls that ended.
    pub sessions: usize,
    /// The quiet period, in seconds.
    pub quiet_seconds: f64,
    /// From the first end stored to the last notification stored.
    pub seconds: f64,
    /// Sessions in each of those.
    pub per_second: f64,
    /// From the last end stored to the last notification stored, less the two quiet periods that a call takes to settle.
    pub beyond_settling_seconds: f64,
    /// From a call's end to its notification: the median, the 99th percentile, and the most.
    pub latency_seconds: [f64; 3],
    /// Deliveries beyond one a message.
    pub redelivered: i64,
    /// Sessions with a notification.
    pub announced: usize,
    /// Notifications.
    pub notifications: usize,
    /// Summaries.
    pub summaries: u64,
    /// Summaries of too few segments.
    pub incomplete: u64,
    /// Commands to MongoDB for each session, by name.
    pub commands: BTreeMap<String, f64>,
    /// CPU seconds of all instances, of mongod and of nats-server.
    pub cpu_seconds: [f64; 3],
    /// The most memory that all instances had, in MiB.
    pub peak_mib: f64,
    /// What they had before the first call ended, in MiB.
    pub idle_mib: f64,
    /// What was seen while the calls settled.
    pub waiting: Option<Waiting>,
}

/// What was seen while calls settled.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    /// For how long, since the last of them was delivered.
    pub seconds: f64,
    /// Deliveries that were not acknowledged.
    pub unacknowledged: usize,
    /// Deliveries beyond one a message.
    pub redelivered: i64,
    /// Memory, in MiB.
    pub resident_mib: f64,
}

impl Outcome {
    /// All commands to MongoDB for a session.
    #[must_use]
    pub fn commands_per_session(&self) -> f64 {
        self.commands.values().sum()
    }

    /// CPU time of everybody for a session. On a machine that does other things too it tells more than a rate.
    #[must_use]
    pub fn cpu_per_session(&self) -> Duration {
        Duration::from_secs_f64(self.cpu_seconds.iter().sum::<f64>() / self.sessions.max(1) as f64)
    }

    /// What a product may not do, however fast it is; nothing for others.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let Self { name, sessions, .. } = self;
        let waited = self.waiting.map_or(0, |waiting| waiting.redelivered);
        let checks = [
            (self.redelivered == 0 && waited == 0, format!("{} redeliveries", self.redelivered.max(waited))),
            (self.announced == *sessions, format!("{} sessions announced", self.announced)),
            (self.notifications == self.announced, format!("{} notifications", self.notifications)),
            (self.summaries == *sessions as u64, format!("{} summaries", self.summaries)),
            (self.incomplete == 0, format!("{} summaries of too few segments", self.incomplete)),
        ];
        let wrong = checks.into_iter().filter(|(right, _)| self.product && !right);
        wrong.map(|(_, what)| format!("{name}: {what} of {sessions} sessions")).collect()
    }
}

impl LoadTest {
    /// A load test of the product over calls of 12 segments.
    #[must_use]
    pub fn of_product(name: &str, sessions: usize, quiet: Duration) -> Self {
        Self {
            name: name.to_owned(),
            runner: Runner::Product,
            instances: 1,
            sessions,
            segments: 12,
            quiet,
            arguments: vec![],
            watched: None,
        }
    }

    /// Runs it, and tells how far it is.
    ///
    /// # Errors
    ///
    /// A server does not start, or the worker ends or does not come to an end.
    pub async fn run(&self, tell: &dyn Fn(&str)) -> Result<Outcome, LoadTestError> {
        let tell = |what: &str| tell(&format!("{}: {what}", self.name));
        tell("the servers start");
        let environment = LoadEnvironment::start().await?;
        if self.runner != Runner::Product {
            environment.remove_consumer().await?;
        }
        // Warming up takes a settling of its own; where calls are watched while they settle, speed is not what is measured.
        let warm_up = if self.watched.is_some() { 0 } else { WARM_UP };
        let calls = |of: char, many: usize| -> Vec<Call> {
            (0..many).map(|n| Call { session: format!("{of}{n}"), segments: self.segments }).collect()
        };
        let (warm, all) = (calls(WARM, warm_up), calls('s', self.sessions));
        tell("segments are stored");
        environment.store(&warm).await?;
        environment.store(&all).await?;
        let workers = self.start(&environment).await?;
        tell("the worker warms up");
        environment.end(&warm).await?;
        self.all_announced(&environment, &workers, warm.len(), &tell).await?;
        environment.acknowledged().await?;

        let idle = Readings::take(&environment, &workers).await?;
        tell("all calls end");
        environment.end(&all).await?;
        let waiting = match self.watched {
            Some(watched) => Some(self.watch(&environment, &workers, watched, &tell).await?),
            None => None,
        };
        self.all_announced(&environment, &workers, warm.len() + all.len(), &tell).await?;
        environment.acknowledged().await?;
        let done = Readings::take(&environment, &workers).await?;
        let delivered = environment.consumers().await?.iter().map(|info| info.delivered.consumer_sequence).sum();
        drop(workers);
        tell("the stream is read");
        self.outcome(&environment, &idle, &done, redelivered(delivered, warm.len() + all.len()), waiting).await
    }

    async fn outcome(
        &self,
        environment: &LoadEnvironment,
        idle: &Readings,
        done: &Readings,
        redelivered: i64,
        waiting: Option<Waiting>,
    ) -> Result<Outcome, LoadTestError> {
        let mut told = environment.told().await?;
        told.retain(|session, _| !session.starts_with(WARM));
        let first_end = told.values().filter_map(|told| told.ended).min().ok_or("no end was stored")?;
        let last_end = told.values().filter_map(|told| told.ended).max().ok_or("no end was stored")?;
        let last = told.values().filter_map(|told| told.announced).max().ok_or("nothing was announced")?;
        let seconds = (last - first_end) as f64 / 1e9;
        let latencies = told.values().filter_map(SessionTimes::latency).collect();
        let stored = environment.stored(WARM).await?;
        Ok(Outcome {
            name: self.name.clone(),
            product: self.runner == Runner::Product,
            instances: self.instances,
            sessions: self.sessions,
            quiet_seconds: self.quiet.as_secs_f64(),
            seconds,
            per_second: self.sessions as f64 / seconds,
            beyond_settling_seconds: (last - last_end) as f64 / 1e9 - 2.0 * self.quiet.as_secs_f64(),
            latency_seconds: spread(latencies),
            redelivered,
            announced: told.values().filter(|told| told.notifications > 0).count(),
            notifications: told.values().map(|told| told.notifications).sum(),
            summaries: stored.summaries,
            incomplete: stored.incomplete,
            commands: done.commands.per_session_since(&idle.commands, self.sessions),
            cpu_seconds: [0, 1, 2].map(|who| (done.usage[who].cpu.saturating_sub(idle.usage[who].cpu)).as_secs_f64()),
            peak_mib: mebibytes(done.usage[0].peak),
            idle_mib: mebibytes(idle.usage[0].resident),
            waiting,
        })
    }

    async fn start(&self, environment: &LoadEnvironment) -> Result<Vec<GuardedProcess>, LoadTestError> {
        let mut workers = vec![];
        for _ in 0..self.instances {
            workers.push(start(&self.runner, environment, self.quiet, &self.arguments).await?);
        }
        if self.runner == Runner::Product {
            for worker in &workers {
                ready(worker).await?;
            }
        }
        Ok(workers)
    }

    async fn all_announced(
        &self,
        environment: &LoadEnvironment,
        workers: &[GuardedProcess],
        wanted: usize,
        tell: &dyn Fn(&str),
    ) -> Result<(), LoadTestError> {
        let within = MARGIN + 12 * self.quiet + SLOW * u32::try_from(wanted).unwrap_or(u32::MAX);
        let announced = async {
            loop {
                let announced = environment.announced().await?;
                if announced >= wanted as u64 {
                    return Ok(());
                }
                if let Some(worker) = workers.iter().find(|worker| worker.exit().is_some()) {
                    return Err(LoadTestError::from(format!("the worker ended; its log:\n{}", worker.log_tail())));
                }
                tell(&format!("{announced} of {wanted} are announced"));
                sleep(LOOK).await;
            }
        };
        let in_time = tokio::time::timeout(within, announced).await;
        in_time.map_err(|_| format!("{}: not all calls were announced within {within:?}", self.name))?
    }

    /// Waits until all calls are in hand, lets time pass, and looks at what became of them.
    async fn watch(
        &self,
        environment: &LoadEnvironment,
        workers: &[GuardedProcess],
        watched: Duration,
        tell: &dyn Fn(&str),
    ) -> Result<Waiting, LoadTestError> {
        let delivered = || async {
            let info = environment.world.consumer().await.map_err(|error| error.to_string())?;
            let (delivered, left) = (info.delivered.consumer_sequence, info.num_pending);
            if left == 0 { Ok(()) } else { Err(format!("{delivered} are delivered, {left} are not")) }
        };
        wait_until("all calls are in hand", MARGIN, delivered).await?;
        tell(&format!("all calls are in hand, and left alone for {watched:?}"));
        sleep(watched).await;
        let info = environment.world.consumer().await?;
        Ok(Waiting {
            seconds: watched.as_secs_f64(),
            unacknowledged: info.num_ack_pending,
            redelivered: redelivered(info.delivered.consumer_sequence, self.sessions),
            resident_mib: mebibytes(usage(workers)?.resident),
        })
    }
}

/// Starts a worker in the environment.
///
/// # Errors
///
/// It cannot be built or started.
pub(crate) async fn start(
    runner: &Runner,
    environment: &LoadEnvironment,
    quiet: Duration,
    arguments: &[String],
) -> Result<GuardedProcess, LoadTestError> {
    let (program, own) = match runner {
        Runner::Product => {
            let quiet = format!("--quiet-period={}us", quiet.as_micros());
            (cargo::processor(Version::Product).await?, vec!["run".to_owned(), quiet])
        }
        Runner::Ceiling(argument) => (env::current_exe()?, vec![(*argument).to_owned()]),
        Runner::Peer(line) => ("sh".into(), vec!["-c".to_owned(), format!("exec {line}")]),
    };
    let temporary = process_guard::directory("load-test")?;
    let variables = [
        ("NATS_URL", environment.world.nats.url()),
        ("MONGODB_URI", environment.world.mongodb_uri().to_owned()),
        ("MONGODB_DATABASE", environment.world.database().name().to_owned()),
        ("QUIET", quiet.as_secs_f64().to_string()),
    ];
    let started = GuardedProcess::start(Launch {
        program,
        arguments: own.iter().chain(arguments).map(OsString::from).collect(),
        environment: variables.map(|(name, value)| (name.into(), value.into())).into(),
        directory: temporary.path().to_owned(),
        output: temporary.path().join("output"),
        log: temporary.path().join("log"),
    })
    .await?;
    // The guard removes it.
    let _directory = temporary.keep();
    Ok(started)
}

/// Waits until a processor takes calls.
pub(crate) async fn ready(worker: &GuardedProcess) -> Result<(), LoadTestError> {
    let says_so = || async { if worker.log().contains(" ready ") { Ok(()) } else { Err(worker.log_tail()) } };
    Ok(wait_until("the processor is ready", MARGIN, says_so).await?)
}

/// What everybody had used at one moment.
struct Readings {
    /// Of all instances, of mongod and of nats-server.
    usage: [Usage; 3],
    commands: Commands,
}

impl Readings {
    async fn take(environment: &LoadEnvironment, workers: &[GuardedProcess]) -> Result<Self, LoadTestError> {
        let mongod = environment.world.database().run_command(mongodb::bson::doc! { "serverStatus": 1 }).await?;
        let mongod = u32::try_from(mongod.get_i64("pid")?)?;
        Ok(Self {
            usage: [usage(workers)?, Usage::of(mongod)?, Usage::of(environment.world.nats.process().pid())?],
            commands: Commands::of(environment.world.database()).await?,
        })
    }
}

fn usage(workers: &[GuardedProcess]) -> Result<Usage, LoadTestError> {
    workers.iter().try_fold(Usage::default(), |all, worker| Ok(all.and(Usage::of(worker.pid())?)))
}

fn redelivered(delivered: u64, ends: usize) -> i64 {
    let ends = i64::try_from(ends).unwrap_or(i64::MAX);
    i64::try_from(delivered).unwrap_or(i64::MAX) - ends
}

/// The median, the 99th percentile and the most.
fn spread(mut all: Vec<Duration>) -> [f64; 3] {
    all.sort_unstable();
    let at = |part: f64| {
        let place = (all.len() as f64 * part) as usize;
        all.get(place.min(all.len().saturating_sub(1))).map_or(0.0, Duration::as_secs_f64)
    };
    [at(0.5), at(0.99), at(1.0)]
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The durable consumer of everybody who is not the product.
pub(crate) fn consumer_of_others() -> String {
    format!("{CONSUMER}-other")
}
