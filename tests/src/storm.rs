//! Many calls end while processors are killed at random instants and a test does something to the servers or to the network.
//!
//! Whatever that was, at the end every call has the right summary and one notification, nothing is pending, and the
//! processors leave nothing behind on the servers.

use std::{collections::BTreeMap, env, fmt::Display, str::FromStr, time::Duration};

use futures::{StreamExt, TryFutureExt, TryStreamExt, future::try_join_all, stream};
use serde_json::Value;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep_until},
};
use transcript_publishing::SegmentMessage;

use crate::{
    calls::Call,
    crash::CrashError,
    process_guard::Exit,
    proxy::NatsProxy,
    restarted_processor::RestartedProcessor,
    servers::{Login, NatsOptions},
    summary,
    wait::{NotReached, wait_until},
    world::{App, StoreOf, TestWorld},
};

/// How many calls, where it is not to be 300.
pub const SESSIONS_VARIABLE: &str = "TRANSCRIPT_TESTS_SESSIONS";
/// The seed that a failed test has printed.
pub const SEED_VARIABLE: &str = "TRANSCRIPT_TESTS_SEED";

const SESSIONS: u32 = 300;
/// How long it takes until all of them have ended: this for each, but no less than [`LEAST_SPREAD`].
const SPREAD: Duration = Duration::from_millis(50);
const LEAST_SPREAD: Duration = Duration::from_secs(4);
/// How long anything may take that goes on by itself once the servers are well.
const LONG: Duration = Duration::from_secs(120);
/// Calls that the app ends at the same time.
const ENDS: usize = 16;
/// Calls of which the last segments come after the end: every third one.
const LATE: usize = 3;
/// The name under which the product's connections stand in the server's list.
const CONNECTION_NAME: &str = "transcript-processor";

/// Servers, a proxy before NATS, processors, and calls that are about to end.
#[derive(Debug)]
pub struct Storm {
    /// The servers.
    pub world: TestWorld,
    /// Through which the processors reach NATS.
    pub nats: NatsProxy,
    /// The processors.
    pub processors: Vec<RestartedProcessor>,
    /// Where all that is random comes from.
    pub chance: fastrand::Rng,
    seed: u64,
    calls: Vec<Call>,
}

/// What is done to a processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// It is killed and started again at once.
    Restart,
    /// It is stopped where it stands.
    Freeze,
    /// It goes on.
    Thaw,
}

/// An act on the processor of this number, this long after the beginning.
pub type Cue = (Duration, usize, Act);

/// Calls that are being ended.
#[derive(Debug)]
#[must_use = "the calls must have ended before anything can be said about them"]
pub struct Ending(JoinHandle<Result<(), CrashError>>);

/// Processors that are being acted upon.
#[derive(Debug)]
#[must_use = "the processors are not the storm's again before this is over"]
pub struct Acting(JoinHandle<(Vec<RestartedProcessor>, Result<(), CrashError>)>);

impl Storm {
    /// Starts servers and that many processors, with short times and these arguments. Prints the seed.
    ///
    /// # Errors
    ///
    /// Something does not start, or an environment variable is no number.
    pub async fn begin(store: StoreOf, processors: usize, arguments: &[&str]) -> Result<Self, CrashError> {
        let seed = from_environment(SEED_VARIABLE)?.unwrap_or_else(|| fastrand::u64(..));
        eprintln!("{SEED_VARIABLE}={seed} repeats the instants of this test");
        let system = Login { user: "system".to_owned(), password: "system".to_owned() };
        let config =
            format!("accounts {{ $SYS {{ users: [{{ user: {}, password: {} }}] }} }}", system.user, system.password);
        let world = TestWorld::start_as(store, NatsOptions { config, login: None, authority: None }).await?;
        let nats = NatsProxy::start(world.nats.process().address()).await?;
        let command = world
            .processor("run")
            .environment("NATS_URL", nats.url())
            .arguments(["--ack-wait=1500ms", "--request-timeout=1s", "--retry-cap=500ms"])
            .environment("TRANSCRIPT_QUIET_PERIOD", "200ms")
            .arguments(arguments);
        let calls = (0..from_environment(SESSIONS_VARIABLE)?.unwrap_or(SESSIONS))
            .map(|number| Call::of("conversation", &format!("session {number}"), 3 + number % 5))
            .collect::<Result<_, _>>()?;
        let mut processors: Vec<_> = (0..processors).map(|_| RestartedProcessor::new(command.clone())).collect();
        for processor in &mut processors {
            processor.start().await?;
            processor.ready(LONG).await?;
        }
        Ok(Self { world, nats, processors, chance: fastrand::Rng::with_seed(seed), seed, calls })
    }

    /// How many calls end.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.len().try_into().unwrap_or(u64::MAX)
    }

    /// How long it takes until all calls have ended.
    #[must_use]
    pub fn spread(&self) -> Duration {
        let all = SPREAD * u32::try_from(self.calls.len()).unwrap_or(u32::MAX);
        all.max(LEAST_SPREAD)
    }

    /// A random instant while calls end, this long after the beginning.
    pub fn instant(&mut self) -> Duration {
        self.spread().mul_f64(self.chance.f64())
    }

    /// Restarts of all processors at random instants, that often each.
    pub fn restarts(&mut self, each: usize) -> Vec<Cue> {
        let processors = self.processors.len();
        (0..each * processors).map(|number| (self.instant(), number % processors, Act::Restart)).collect()
    }

    /// Ends the calls, spread over time, as an app does that tries again until it has an answer.
    pub fn end_calls(&self) -> Ending {
        let (app, calls, begun) = (self.world.app(), self.calls.clone(), Instant::now());
        let step = self.spread() / u32::try_from(calls.len()).unwrap_or(u32::MAX).max(1);
        Ending(tokio::spawn(async move {
            let timed = (0..).zip(calls).map(|(number, call)| (begun + step * number, number % 3 == 0, call));
            let ends = stream::iter(timed).map(|(at, late, call)| {
                let app = app.clone();
                async move {
                    sleep_until(at).await;
                    end(&app, &call, late).await
                }
            });
            ends.buffered(ENDS).try_collect::<()>().await
        }))
    }

    /// Acts upon the processors as told. They are the storm's again after [`Self::acted`].
    pub fn act(&mut self, mut cues: Vec<Cue>) -> Acting {
        let (mut processors, begun) = (std::mem::take(&mut self.processors), Instant::now());
        cues.sort_by_key(|(at, ..)| *at);
        Acting(tokio::spawn(async move {
            let acted = async {
                for (after, which, act) in cues {
                    sleep_until(begun + after).await;
                    match act {
                        Act::Restart => drop(processors[which].start().await?),
                        Act::Freeze => processors[which].freeze().await?,
                        Act::Thaw => processors[which].thaw().await?,
                    }
                }
                Ok(())
            }
            .await;
            (processors, acted)
        }))
    }

    /// Waits until all was done that [`Self::act`] was told.
    ///
    /// # Errors
    ///
    /// It could not be done.
    pub async fn acted(&mut self, acting: Acting) -> Result<(), CrashError> {
        let (processors, acted) = acting.0.await?;
        self.processors = processors;
        acted
    }

    /// Kills the processors and both servers, starts all of them again at the same time, as after a power cut, and waits until
    /// the processors take messages.
    ///
    /// # Errors
    ///
    /// Something does not start.
    pub async fn restart_everything(&mut self) -> Result<(), CrashError> {
        for processor in &mut self.processors {
            processor.kill().await?;
        }
        let processors = try_join_all(self.processors.iter_mut().map(RestartedProcessor::start));
        tokio::try_join!(
            self.world.start_servers_again().map_err(CrashError::from),
            processors.map_err(CrashError::from)
        )?;
        try_join_all(self.processors.iter().map(|processor| processor.ready(LONG))).await?;
        Ok(())
    }

    /// Waits until every call is done with, and checks all that must be so then.
    ///
    /// # Errors
    ///
    /// Something is not as it must be. The error says what, and the seed.
    pub async fn end(mut self, ending: Ending) -> Result<(), CrashError> {
        let ended = async {
            ending.0.await??;
            self.calls_are_done().await?;
            for ended in 0..self.processors.len() {
                self.each_asks_for_messages(self.processors.len() - ended).await?;
                match self.processors[ended].terminate(LONG).await? {
                    Some(Exit::Code(0)) => {}
                    exit => return Err(format!("a processor that was asked to end came to {exit:?}").into()),
                }
            }
            self.nothing_is_left_over().await?;
            self.each_call_came_out_once().await
        };
        let result: Result<(), CrashError> = ended.await;
        result.map_err(|error| {
            let logs: Vec<_> = self.processors.iter().map(|processor| tail(&processor.logs())).collect();
            format!("{error}; {SEED_VARIABLE}={}; logs:\n{}", self.seed, logs.join("\n---\n")).into()
        })
    }

    /// Waits until the consumer has nothing pending and every call is announced.
    ///
    /// # Errors
    ///
    /// That does not come.
    pub async fn calls_are_done(&self) -> Result<(), NotReached> {
        wait_until("every call is announced and acknowledged", LONG, || async {
            let consumer = self.world.consumer().await.map_err(|error| error.to_string())?;
            let open = (consumer.num_pending, consumer.num_ack_pending);
            if open != (0, 0) {
                return Err(format!("{open:?} are pending and unacknowledged"));
            }
            let announced = self.world.notifications().await.map_err(|error| error.to_string())?.len();
            if announced >= self.calls.len() { Ok(()) } else { Err(format!("{announced} are announced")) }
        })
        .await
    }

    /// Waits until so many processors that have nothing to do wait for messages: one that has given up asking is not missed while
    /// the others do its work.
    async fn each_asks_for_messages(&self, processors: usize) -> Result<(), NotReached> {
        wait_until(format!("each of {processors} processors asks for messages"), LONG, || async {
            let consumer = self.world.consumer().await.map_err(|error| error.to_string())?;
            let waiting = consumer.num_waiting;
            if waiting == processors { Ok(()) } else { Err(format!("{waiting} pull requests are open")) }
        })
        .await
    }

    async fn each_call_came_out_once(&self) -> Result<(), CrashError> {
        let mut announced = BTreeMap::<_, Vec<_>>::new();
        for stored in self.world.notifications().await? {
            announced.entry(stored.notification.session.key().to_string()).or_default().push(stored.sequence);
        }
        let mut wrong = Vec::new();
        for call in &self.calls {
            let key = call.session.key();
            let sequences = announced.remove(key.as_str()).unwrap_or_default();
            if sequences.len() != 1 {
                wrong.push(format!("{key} is announced {} times, at {sequences:?}", sequences.len()));
            }
            match self.world.summary(&key).await? {
                Some(stored) => wrong.extend(summary::check(call, &stored).err().map(|error| error.to_string())),
                None => wrong.push(format!("{key} has no summary")),
            }
        }
        wrong.extend(announced.keys().map(|key| format!("{key} was announced, and no call")));
        let summaries = self.world.summaries().await?.len();
        if summaries != self.calls.len() {
            wrong.push(format!("there are {summaries} summaries of {} calls", self.calls.len()));
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n").into()) }
    }

    /// By the server's own account, with all processors gone.
    async fn nothing_is_left_over(&self) -> Result<(), CrashError> {
        let system = async_nats::ConnectOptions::with_user_and_password("system".to_owned(), "system".to_owned())
            .connect(self.world.nats.url())
            .await?;
        wait_until("the processors have left nothing on the server", LONG, || async {
            let consumer = self.world.consumer().await.map_err(|error| error.to_string())?;
            let connections = connections(&system).await?;
            let left = (consumer.num_waiting, connections, self.nats.open_connections());
            let found = format!("pull requests, connections, connections through the proxy: {left:?}");
            if left == (0, 0, 0) { Ok(()) } else { Err(found) }
        })
        .await?;
        Ok(())
    }
}

async fn end(app: &App, call: &Call, late: bool) -> Result<(), CrashError> {
    let (early, late) = call.segments.split_at(call.segments.len() - if late { LATE } else { 0 });
    stored(app, call, early, early.len()).await?;
    let published = u64::try_from(call.segments.len())?;
    wait_until(format!("the end of {} is stored", call.session.key()), LONG, || async {
        app.publish_session_end(&call.session, published).await.map_err(|error| error.to_string())
    })
    .await?;
    stored(app, call, late, call.segments.len()).await
}

/// Stores segments until there are as many as there must be: what was not answered may have been stored.
async fn stored(app: &App, call: &Call, segments: &[SegmentMessage], all: usize) -> Result<(), CrashError> {
    wait_until(format!("the segments of {} are stored", call.session.key()), LONG, || async {
        let inserted = app.insert_segments(segments).await;
        let found = app.count_segments(&call.session).await.map_err(|error| error.to_string())?;
        if usize::try_from(found) == Ok(all) { Ok(()) } else { Err(format!("{found} are there, and {inserted:?}")) }
    })
    .await?;
    Ok(())
}

/// How many connections of processors the server has.
async fn connections(system: &async_nats::Client) -> Result<usize, String> {
    let answer = system.request("$SYS.REQ.SERVER.PING.CONNZ", "{}".into()).await.map_err(|error| error.to_string())?;
    let answer: Value = serde_json::from_slice(&answer.payload).map_err(|error| error.to_string())?;
    let all = answer["data"]["connections"].as_array().ok_or_else(|| format!("no list of connections: {answer}"))?;
    Ok(all.iter().filter(|connection| connection["name"] == CONNECTION_NAME).count())
}

fn from_environment<N: FromStr<Err: Display>>(variable: &str) -> Result<Option<N>, CrashError> {
    let Some(value) = env::var_os(variable) else { return Ok(None) };
    let number = value.to_string_lossy().parse().map_err(|error| format!("{variable} is no number: {error}"))?;
    Ok(Some(number))
}

/// The end of a log that may be long.
fn tail(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}
