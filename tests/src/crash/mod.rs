//! One crash: a call ends, the real binary is stopped at a chosen point with `SIGKILL`, started again, and what is stored,
//! announced and delivered in the end is counted.
//!
//! The processor reaches both servers through proxies only, so that a point is reached by what the servers have seen and not
//! by the time that has passed: what the processor would say next is held back or lost, what it has said is looked up in the
//! stream and in the store, and then it is killed.

pub mod first_version;
pub mod prediction;
pub(crate) mod stop;
pub mod table;

use std::{fmt, time::Duration};

use mongodb::bson::doc;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use transcript_core::contract::{PROCESSED_SUBJECT, SUMMARIES_COLLECTION};

pub use self::stop::StopPoint;
use crate::{
    calls::Call,
    cargo::Version,
    proxy::{Direction, Fate, MongoProxy, NatsProxy, NatsTraffic},
    restarted_processor::RestartedProcessor,
    summary,
    wait::wait_until,
    world::{TestWorld, WorldError},
};

/// Whatever a run of one can fail with.
pub type CrashError = Box<dyn std::error::Error + Send + Sync>;

/// How long anything may take beyond the times that it must take. Reached only where something is broken.
const MARGIN: Duration = Duration::from_secs(60);
/// The segments of the call.
const SEGMENTS: u32 = 8;
/// Those of them that come after the end of the call, where it is stopped while it waits for them.
const LATE: usize = 3;

/// A crash to be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crash {
    /// Whose.
    pub version: Version,
    /// Where.
    pub stop: StopPoint,
    /// With which settings.
    pub times: Times,
    /// How long the processor stays down.
    pub outage: Duration,
}

/// The settings that decide what a crash does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// How long the segment count must stay the same.
    pub quiet_period: Duration,
    /// After how long without a sign of life a call is delivered again.
    pub ack_wait: Duration,
    /// How long the stream knows a message id.
    pub window: Duration,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Observed {
    /// Summaries of the call in the store.
    pub summaries: u64,
    /// Notifications of the call in the stream.
    pub notifications: u64,
    /// Deliveries of the call's end after the first.
    pub redeliveries: u64,
    /// From the restart until the stream confirmed the notification; `None` where that was done before the crash.
    pub notified_after: Option<Duration>,
    /// From the restart until the acknowledgement was confirmed; `None` where that was done before the crash.
    pub acknowledged_after: Option<Duration>,
    /// From the killed processor's last sign of life to the restart; `None` where nobody was killed.
    pub silent_for: Option<Duration>,
}

impl Times {
    /// Those of the product.
    #[must_use]
    pub const fn production() -> Self {
        Self {
            quiet_period: Duration::from_secs(2),
            ack_wait: Duration::from_secs(6),
            window: Duration::from_secs(24 * 60 * 60),
        }
    }

    /// Short ones, for tests.
    #[must_use]
    pub const fn short() -> Self {
        Self {
            quiet_period: Duration::from_millis(100),
            ack_wait: Duration::from_secs(1),
            window: Duration::from_secs(24 * 60 * 60),
        }
    }

    /// The same with another duplicate window.
    #[must_use]
    pub const fn window(self, window: Duration) -> Self {
        Self { window, ..self }
    }

    /// As arguments of `run`.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let quiet_period = format!("--quiet-period={}ms", self.quiet_period.as_millis());
        self.of_streams().into_iter().chain([quiet_period]).collect()
    }

    /// As arguments of `setup`.
    fn of_streams(&self) -> [String; 2] {
        [("ack-wait", self.ack_wait), ("duplicate-window", self.window)]
            .map(|(name, time)| format!("--{name}={}ms", time.as_millis()))
    }
}

impl Crash {
    /// Runs it, on a nats-server of its own and a database of its own.
    ///
    /// # Errors
    ///
    /// The point was not reached, or not as the point is meant; the call was not done with in time; or its summary is not
    /// the right one. How often it was stored and announced is no error, but what is [`Observed`].
    pub async fn run(&self) -> Result<Observed, CrashError> {
        let mut stage = Stage::set(self).await?;
        let outcome = stage.play(self).await;
        outcome.map_err(|error| format!("{self}: {error}; the processor's log:\n{}", stage.restarted.logs()).into())
    }
}

impl fmt::Display for Crash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = match self.version {
            Version::Product => "",
            Version::First => "first version, ",
        };
        let (down, window) = (table::short(self.outage), table::short(self.times.window));
        write!(f, "{version}{}, down for {down}, window {window}", self.stop)
    }
}

/// Servers, proxies, the processor and its call.
struct Stage {
    world: TestWorld,
    nats: NatsProxy,
    mongo: MongoProxy,
    restarted: RestartedProcessor,
    call: Call,
}

impl Stage {
    async fn set(crash: &Crash) -> Result<Self, CrashError> {
        let world = TestWorld::start().await?;
        let nats = NatsProxy::start(world.nats.process().address()).await?;
        let mongo = MongoProxy::start(world.mongod_address()).await?;
        let command = world
            .processor("run")
            .version(crash.version)
            .environment("NATS_URL", nats.url())
            .environment("MONGODB_URI", mongo.uri());
        let command = match crash.version {
            Version::Product => command.arguments(crash.times.arguments()),
            Version::First => {
                world.processor("setup").arguments(crash.times.of_streams()).run(MARGIN).await?;
                command.argument(format!("--quiet-period-ms={}", crash.times.quiet_period.as_millis()))
            }
        };
        let call = Call::of("conversation", "session", SEGMENTS)?;
        Ok(Self { world, nats, mongo, restarted: RestartedProcessor::new(command), call })
    }

    async fn play(&mut self, crash: &Crash) -> Result<Observed, CrashError> {
        let started = self.restarted.start().await?;
        self.restarted.ready(MARGIN).await?;
        let late = if crash.stop == StopPoint::Wait { LATE } else { 0 };
        let (early, late) = self.call.segments.split_at(self.call.segments.len() - late);
        self.world.insert_segments(early).await?;
        let fault = stop::Fault::arm(crash.stop, &self.nats, &self.mongo);
        self.world.publish_session_end(&self.call.session, u64::from(SEGMENTS)).await?;
        let within = MARGIN + crash.times.ack_wait;
        if tokio::time::timeout(within, stop::reach(crash.stop, &self.nats, &self.mongo, started)).await.is_err() {
            return Err(format!("{} was not reached within {within:?}", crash.stop).into());
        }
        let restarted = if crash.stop == StopPoint::None {
            Instant::now()
        } else {
            let killed = self.restarted.kill().await?;
            self.nats.cut();
            self.mongo.cut();
            drop(fault);
            stop::check(crash.stop, &self.world, &self.call).await?;
            self.world.insert_segments(late).await?;
            tokio::time::sleep_until(killed + crash.outage).await;
            self.restarted.start().await?
        };
        self.until_done(crash).await?;
        let observed = self.observe(crash, restarted).await?;
        if crash.version == Version::Product {
            let stored = self.world.summary(&self.call.session.key()).await?.ok_or("there is no summary")?;
            summary::check(&self.call, &stored)?;
        }
        Ok(observed)
    }

    /// Waits until the call's end is acknowledged, and so nothing more can come of it.
    async fn until_done(&self, crash: &Crash) -> Result<(), CrashError> {
        let within = crash.times.ack_wait + 10 * crash.times.quiet_period + MARGIN;
        self.restarted.ready(within).await?;
        wait_until("the call is stored, announced and acknowledged", within, || async {
            let consumer = self.world.consumer().await.map_err(|error| error.to_string())?;
            let open = (consumer.num_pending, consumer.num_ack_pending);
            if open != (0, 0) {
                return Err(format!("pending and unacknowledged are {open:?}"));
            }
            let (summaries, notifications) = self.counts().await.map_err(|error| error.to_string())?;
            let state = format!("{summaries} summaries, {notifications} notifications");
            if summaries > 0 && notifications > 0 { Ok(()) } else { Err(state) }
        })
        .await?;
        Ok(())
    }

    async fn counts(&self) -> Result<(u64, u64), WorldError> {
        Ok((count_summaries(&self.world, &self.call).await?, count_notifications(&self.world, &self.call).await?))
    }

    async fn observe(&self, crash: &Crash, restarted: Instant) -> Result<Observed, CrashError> {
        let (summaries, notifications) = self.counts().await?;
        let crashed = crash.stop != StopPoint::None;
        let log = self.nats.log();
        let first_after = |traffic: NatsTraffic| {
            let seen =
                log.iter().find(|seen| seen.at >= restarted && seen.traffic == traffic && seen.fate == Fate::Passed)?;
            Some(seen.at - restarted).filter(|_| crashed)
        };
        let signs = [(NatsTraffic::Delivery, Direction::ToClient), (NatsTraffic::InProgress, Direction::ToServer)];
        let last_sign = log.iter().rfind(|seen| {
            seen.at < restarted && seen.fate == Fate::Passed && signs.contains(&(seen.traffic.clone(), seen.direction))
        });
        let deliveries = self.world.consumer().await?.delivered.consumer_sequence;
        Ok(Observed {
            summaries,
            notifications,
            redeliveries: deliveries.saturating_sub(1),
            notified_after: first_after(NatsTraffic::to(PROCESSED_SUBJECT).answer()),
            acknowledged_after: first_after(NatsTraffic::Ack.answer()),
            silent_for: last_sign.map(|sign| restarted - sign.at).filter(|_| crashed),
        })
    }
}

/// By its ids and not by its key, under which the first version did not store it.
async fn count_summaries(world: &TestWorld, call: &Call) -> Result<u64, WorldError> {
    let session = doc! { "conversationId": &*call.session.conversation_id, "sessionId": &*call.session.session_id };
    let summaries = world.database().collection::<mongodb::bson::Document>(SUMMARIES_COLLECTION);
    Ok(summaries.count_documents(session).await?)
}

async fn count_notifications(world: &TestWorld, call: &Call) -> Result<u64, WorldError> {
    let notifications = world.notifications().await?;
    let of_call = notifications.iter().filter(|stored| stored.notification.session == call.session);
    Ok(u64::try_from(of_call.count()).unwrap_or(u64::MAX))
}
