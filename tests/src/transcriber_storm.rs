//! Many calls through sockets while transcribers are killed, servers go away, and the network swallows what is sent.
//!
//! Whatever happens, at the end what was acknowledged is stored, each segment is stored once, one of a session's ends counts what
//! is stored, and every call has one summary and one notification.

use std::{
    collections::BTreeMap,
    error::Error,
    fmt, io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use fastrand::Rng;
use futures::TryStreamExt;
use mongodb::bson::{Document, doc};
use serde_json::json;
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};
use transcript_core::contract::SESSION_ENDED_SUBJECT;
use transcript_transcriber::document::SESSIONS_COLLECTION;

use crate::{
    processor::ProcessorCommand,
    proxy::{NatsProxy, TcpProxy},
    servers::NatsOptions,
    transcriber::{Client, RunningTranscriber},
    wait::wait_until,
    world::{StoreOf, TestWorld, WorldError},
};

/// Long beside everything that is awaited of one process or server here.
const LONG: Duration = Duration::from_secs(120);
/// How long after the last call everything may take, for each session.
const SETTLES: Duration = Duration::from_millis(500);
/// How long nothing may come from a socket before the transcriber takes it for broken: a quarter of the calls, within these. Every
/// quarter of it each socket is asked by a ping, which costs more than the segments where there are thousands of sockets.
const SILENCE: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(20));
/// How long a client waits before it connects again.
const RECONNECT: Duration = Duration::from_millis(50);
/// How often a participant breaks off right after it said something, of a hundred times.
const BREAKS: u8 = 5;

type Failed = Box<dyn Error + Send + Sync>;

/// What happens in a storm.
#[derive(Debug, Clone)]
pub struct StormPlan {
    /// Calls.
    pub sessions: usize,
    /// Sockets of a call.
    pub sockets: usize,
    /// Segments of a socket.
    pub segments: usize,
    /// How long the calls last, and while they do everything below happens.
    pub lasts: Duration,
    /// Transcribers that serve the calls, each of them all calls.
    pub transcribers: usize,
    /// How often each transcriber is killed, and started again at once.
    pub kills: usize,
    /// How long NATS is away, if it goes away.
    pub nats_away: Option<Duration>,
    /// How often mongod is killed, and started again at once.
    pub mongod_kills: usize,
    /// How often the network swallows what the connections of one transcriber send, without closing them. Where it does, it also
    /// swallows once what goes to NATS and comes from it.
    pub swallows: usize,
    /// Where all that is random comes from.
    pub seed: u64,
}

/// What came of a storm in which everything was as promised.
#[derive(Debug)]
pub struct StormReport {
    /// How long the calls took until all of them were acknowledged.
    pub delivered: Duration,
    /// How long it took after that until all of them had ended.
    pub ended: Duration,
    /// How long it took after that until each had one summary and one notification.
    pub announced: Duration,
    /// Segments that were acknowledged.
    pub acknowledged: usize,
    /// Connections that were opened beyond one for each socket.
    pub reconnects: usize,
    /// Ends that were published.
    pub ends: usize,
    /// The most ends of one call.
    pub most_ends: usize,
    /// What `audit` said.
    pub audit: String,
}

impl fmt::Display for StormReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "segments acknowledged, each stored once: {}", self.acknowledged)?;
        writeln!(f, "connections that clients opened again:   {}", self.reconnects)?;
        writeln!(f, "ends published, and the most of a call:  {}, {}", self.ends, self.most_ends)?;
        writeln!(f, "all segments acknowledged after:         {:.1?}", self.delivered)?;
        writeln!(f, "all calls ended, after that:             {:.1?}", self.ended)?;
        writeln!(f, "all calls announced once, after that:    {:.1?}", self.announced)?;
        write!(f, "{}", self.audit.trim_end())
    }
}

/// One thing that happens.
#[derive(Debug, Clone, Copy)]
enum Event {
    Kill(usize),
    Swallow(usize),
    SwallowNats,
    NatsGoes,
    NatsComes,
    KillMongod,
}

/// Where the transcribers are now, seen through the proxies before them.
#[derive(Debug, Clone, Default)]
struct Addresses {
    all: Arc<Mutex<Vec<SocketAddr>>>,
    opened: Arc<AtomicUsize>,
}

impl Addresses {
    fn any(&self, rng: &mut Rng) -> SocketAddr {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all[rng.usize(..all.len())]
    }

    fn set(&self, place: usize, address: SocketAddr) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if place < all.len() { all[place] = address } else { all.push(address) }
    }
}

impl StormPlan {
    /// Starts servers, a processor and the transcribers, has the storm, and looks at what is left of it.
    ///
    /// # Errors
    ///
    /// Something is not as promised: the error says what, with the logs of the transcribers where it is theirs.
    pub async fn run(&self) -> Result<StormReport, Failed> {
        let mut storm = Storm::begin(self).await?;
        let mut rng = Rng::with_seed(self.seed);
        let begun = Instant::now();
        let participants = storm.participants(&mut rng);
        storm.weather(begun, &mut rng).await?;
        let acknowledged = participants.join(begun + self.lasts + storm.within()).await?;
        let delivered = begun.elapsed();
        storm.judge(acknowledged, delivered).await
    }

    /// How long nothing may come from a socket.
    fn silence(&self) -> Duration {
        (self.lasts / 4).clamp(SILENCE.0, SILENCE.1)
    }

    /// What happens, and how long after the beginning.
    fn events(&self, rng: &mut Rng) -> Vec<(Duration, Event)> {
        let lasts = self.lasts;
        let kills = self.transcribers * self.kills;
        let mut events: Vec<(Duration, Event)> = (0..kills)
            .map(|kill| {
                (lasts.mul_f64((kill as f64 + rng.f64()) / kills as f64), Event::Kill(kill % self.transcribers))
            })
            .collect();
        for _ in 0..self.swallows {
            events.push((lasts.mul_f64(rng.f64()), Event::Swallow(rng.usize(..self.transcribers))));
        }
        if self.swallows > 0 {
            events.push((lasts.mul_f64(rng.f64()), Event::SwallowNats));
        }
        for _ in 0..self.mongod_kills {
            events.push((lasts.mul_f64(rng.f64()), Event::KillMongod));
        }
        if let Some(away) = self.nats_away {
            let goes = lasts.saturating_sub(away).mul_f64(rng.f64());
            events.extend([(goes, Event::NatsGoes), (goes + away, Event::NatsComes)]);
        }
        events.sort_by_key(|(at, _)| *at);
        events
    }
}

/// The world of a storm.
struct Storm<'a> {
    plan: &'a StormPlan,
    world: TestWorld,
    network: Network,
    nats: NatsProxy,
    command: ProcessorCommand,
    transcribers: Vec<(RunningTranscriber, TcpProxy)>,
    addresses: Addresses,
    /// It runs until the storm is over.
    _processor: crate::processor::Processor,
}

/// A thread of its own for the proxies: what thousands of clients have to do must not delay what goes to NATS.
struct Network(Option<Runtime>);

impl Network {
    fn start() -> io::Result<Self> {
        Ok(Self(Some(Builder::new_multi_thread().worker_threads(1).enable_all().build()?)))
    }

    async fn nats(&self, server: SocketAddr) -> Result<NatsProxy, Failed> {
        Ok(self.runtime()?.spawn(NatsProxy::start(server)).await??)
    }

    async fn tcp(&self, server: SocketAddr) -> Result<TcpProxy, Failed> {
        Ok(self.runtime()?.spawn(TcpProxy::start(server)).await??)
    }

    fn runtime(&self) -> Result<&Runtime, Failed> {
        self.0.as_ref().ok_or_else(|| "the network is gone".into())
    }
}

impl Drop for Network {
    /// A runtime must not be waited for inside of another one.
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Participants that are talking.
struct Participants(JoinSet<(String, Vec<String>)>);

impl<'a> Storm<'a> {
    async fn begin(plan: &'a StormPlan) -> Result<Self, Failed> {
        let store = if plan.mongod_kills > 0 { StoreOf::ThisWorld } else { StoreOf::AllWorlds };
        let world = TestWorld::start_as(store, NatsOptions::default()).await?;
        world.processor("setup").run(LONG).await?;
        let network = Network::start()?;
        let nats = network.nats(world.nats.process().address()).await?;
        let revise_every = if plan.sessions < 50 { "200ms" } else { "2s" };
        let revising = ["--quiet-period", "100ms", "--revise", "--revise-every", revise_every];
        let processor = world.processor("run").arguments(revising).start().await?;
        let delays = ["--lease", "1s", "--end-after-break", "2s", "--end-after-close", "500ms"];
        let silence = format!("--silence-timeout={}ms", plan.silence().as_millis());
        let command = world.processor("transcriber").environment("NATS_URL", nats.url()).arguments(delays);
        let command = command.arguments([&silence, "--request-timeout=2s"]);
        let addresses = Addresses::default();
        let mut storm =
            Self { plan, world, network, nats, command, transcribers: vec![], addresses, _processor: processor };
        for place in 0..plan.transcribers {
            let started = storm.transcriber(place).await?;
            storm.transcribers.push(started);
        }
        Ok(storm)
    }

    /// How long whatever goes on by itself may take.
    fn within(&self) -> Duration {
        LONG + SETTLES * u32::try_from(self.plan.sessions).unwrap_or(u32::MAX)
    }

    /// A transcriber, and a proxy before it.
    async fn transcriber(&self, place: usize) -> Result<(RunningTranscriber, TcpProxy), Failed> {
        let started = RunningTranscriber::start(self.command.clone()).await?;
        let proxy = self.network.tcp(started.address).await?;
        self.addresses.set(place, proxy.address());
        Ok((started, proxy))
    }

    fn participants(&self, rng: &mut Rng) -> Participants {
        let mut participants = JoinSet::new();
        for session in 0..self.plan.sessions {
            for socket in 0..self.plan.sockets {
                let session = format!("session-{session}");
                let participant = Participant {
                    addresses: self.addresses.clone(),
                    session: session.clone(),
                    name: format!("p{socket}"),
                    segments: self.plan.segments,
                    lasts: self.plan.lasts,
                    patience: self.plan.silence() * 2,
                    rng: rng.fork(),
                };
                participants.spawn(async move { (session, participant.talk().await) });
            }
        }
        Participants(participants)
    }

    /// Has everything happen that the plan has.
    async fn weather(&mut self, begun: Instant, rng: &mut Rng) -> Result<(), Failed> {
        for (at, event) in self.plan.events(rng) {
            sleep_until(begun + at).await;
            match event {
                Event::Kill(place) => {
                    self.transcribers[place].0.process.kill().await?;
                    self.transcribers[place] = self.transcriber(place).await?;
                }
                Event::Swallow(place) => self.transcribers[place].1.silence(),
                Event::SwallowNats => self.nats.silence(),
                Event::NatsGoes => {
                    self.world.nats.process().kill().await?;
                }
                Event::NatsComes => self.world.nats.start_again().await?,
                Event::KillMongod => {
                    self.world.mongod().process().kill().await?;
                    self.world.mongod().start_again().await?;
                }
            }
        }
        Ok(())
    }

    async fn judge(
        &self,
        acknowledged: BTreeMap<String, Vec<String>>,
        delivered: Duration,
    ) -> Result<StormReport, Failed> {
        let begun = Instant::now();
        self.all_ended().await?;
        let ended = begun.elapsed();
        let (stored, ends) = (self.stored().await?, self.ends().await?);
        self.check_segments(&acknowledged, &stored, &ends)?;
        wait_until("each call has one summary and one notification", self.within(), || async {
            self.check_announced(&stored).await.map_err(|error| error.to_string())
        })
        .await?;
        let audit = wait_until("stream and store are one to one", self.within(), || async {
            self.world.processor("audit").run(LONG).await.map_err(|error| error.to_string())
        })
        .await?;
        let announced = begun.elapsed() - ended;
        let opened = self.addresses.opened.load(Ordering::Relaxed);
        Ok(StormReport {
            delivered,
            ended,
            announced,
            acknowledged: acknowledged.values().map(Vec::len).sum(),
            reconnects: opened - self.plan.sessions * self.plan.sockets,
            ends: ends.values().map(Vec::len).sum(),
            most_ends: ends.values().map(Vec::len).max().unwrap_or_default(),
            audit,
        })
    }

    async fn all_ended(&self) -> Result<(), Failed> {
        let all_ended = wait_until("every session has ended", self.within(), || async {
            let sessions = self.world.database().collection::<Document>(SESSIONS_COLLECTION);
            let ended = sessions.count_documents(doc! { "state": "ended" }).await.map_err(|error| error.to_string())?;
            let expected = u64::try_from(self.plan.sessions).unwrap_or(u64::MAX);
            if ended == expected { Ok(()) } else { Err(format!("{ended} of {expected} have ended")) }
        });
        all_ended.await.map_err(|error| {
            let logs: Vec<String> =
                self.transcribers.iter().map(|(transcriber, _)| transcriber.process.logs()).collect();
            format!("{error}\n{}", logs.join("\n---\n")).into()
        })
    }

    /// What was acknowledged is stored, each segment once, and an end counts what is stored.
    fn check_segments(
        &self,
        acknowledged: &BTreeMap<String, Vec<String>>,
        stored: &BTreeMap<String, Vec<String>>,
        ends: &BTreeMap<String, Vec<u64>>,
    ) -> Result<(), Failed> {
        let none = Vec::new();
        for (session, ids) in acknowledged {
            let sources = stored.get(session).unwrap_or(&none);
            if let Some(id) = ids.iter().find(|id| !sources.contains(id)) {
                return Err(format!("{session}: {id} was acknowledged, and is not stored").into());
            }
            let expected = self.plan.sockets * self.plan.segments;
            if sources.len() != expected {
                return Err(format!("{session}: {} segments are stored in place of {expected}", sources.len()).into());
            }
            let counts = ends.get(session).map(Vec::as_slice).unwrap_or_default();
            if !counts.contains(&u64::try_from(expected)?) {
                return Err(format!("{session}: {expected} are stored, its ends say {counts:?}").into());
            }
        }
        Ok(())
    }

    /// Each call has one summary, of all that is stored, and one notification.
    async fn check_announced(&self, stored: &BTreeMap<String, Vec<String>>) -> Result<(), Failed> {
        let mut notifications = BTreeMap::<String, usize>::new();
        for stored in self.world.notifications().await? {
            *notifications.entry(stored.notification.session.session_id.to_string()).or_default() += 1;
        }
        let mut summaries = BTreeMap::new();
        for summary in self.world.summaries().await? {
            summaries.insert(summary.get_str("sessionId")?.to_owned(), summary.get_i64("segments")?);
        }
        for (session, sources) in stored {
            let (told, summed) = (notifications.get(session).copied(), summaries.get(session).copied());
            if told != Some(1) || summed != i64::try_from(sources.len()).ok() {
                return Err(format!("{session}: notifications {told:?}, segments of its summary {summed:?}").into());
            }
        }
        let expected = self.plan.sessions;
        if (stored.len(), notifications.len(), summaries.len()) != (expected, expected, expected) {
            return Err(
                format!("{} notified, {} summaries, {expected} calls", notifications.len(), summaries.len()).into()
            );
        }
        Ok(())
    }

    /// What the ends of each session count.
    async fn ends(&self) -> Result<BTreeMap<String, Vec<u64>>, WorldError> {
        let mut ends: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for end in self.world.payloads(SESSION_ENDED_SUBJECT).await? {
            let session = end["sessionId"].as_str().unwrap_or_default().to_owned();
            ends.entry(session).or_default().push(end["publishedSegments"].as_u64().unwrap_or_default());
        }
        Ok(ends)
    }

    /// The sources of each session's segments.
    async fn stored(&self) -> Result<BTreeMap<String, Vec<String>>, Failed> {
        let mut sources: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut segments = self.world.segments().find(doc! {}).await?;
        while let Some(segment) = segments.try_next().await? {
            let (session, source) = (segment.get_str("sessionId")?.to_owned(), segment.get_str("source")?.to_owned());
            sources.entry(session).or_default().push(source);
        }
        Ok(sources)
    }
}

impl Participants {
    /// What was acknowledged to whom.
    async fn join(mut self, deadline: Instant) -> Result<BTreeMap<String, Vec<String>>, Failed> {
        let mut acknowledged: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let all = async {
            while let Some(participant) = self.0.join_next().await {
                let (session, ids) = participant?;
                acknowledged.entry(session).or_default().extend(ids);
            }
            Ok::<_, Failed>(())
        };
        match timeout_at(deadline, all).await {
            Ok(joined) => joined.map(|()| acknowledged),
            Err(_) => Err("some participants were not acknowledged everything in time".into()),
        }
    }
}

/// Whoever says segments until all of them are acknowledged, wherever that is possible.
struct Participant {
    addresses: Addresses,
    session: String,
    name: String,
    segments: usize,
    lasts: Duration,
    /// How long it waits for an answer before it takes its connection for dead.
    patience: Duration,
    rng: Rng,
}

impl Participant {
    /// Talks, and gives the sources of the segments that were acknowledged.
    async fn talk(mut self) -> Vec<String> {
        let mut left: Vec<String> = (0..self.segments).map(|number| number.to_string()).collect();
        let mut acknowledged = Vec::new();
        let query = format!("?client={0}&epoch=1&speaker={0}", self.name);
        loop {
            let address = self.addresses.any(&mut self.rng);
            let opened = timeout(self.patience, Client::connect(address, "storm", &self.session, &query, &[])).await;
            let Ok(Ok(mut client)) = opened else {
                sleep(RECONNECT).await;
                continue;
            };
            self.addresses.opened.fetch_add(1, Ordering::Relaxed);
            for id in self.say(&mut client, &left).await {
                left.retain(|waiting| *waiting != id);
                acknowledged.push(format!("{}:1:{id}", self.name));
            }
            if left.is_empty() {
                // Some close, some break off, and some are told that it is theirs to close.
                match self.rng.u8(..3) {
                    0 => drop(timeout(self.patience, client.close()).await),
                    1 => drop(client.break_off()),
                    _ => drop(timeout(self.patience, client.send(&json!({ "type": "CloseStream" }))).await),
                }
                return acknowledged;
            }
            client.break_off().ok();
        }
    }

    /// Says what is left, spread over the call, and gives the ids that are acknowledged until all is saved or the connection is gone.
    async fn say(&mut self, client: &mut Client, left: &[String]) -> Vec<String> {
        let pause = self.lasts / u32::try_from(self.segments).unwrap_or(u32::MAX).max(1);
        let mut ids = Vec::new();
        for id in left {
            // It reads all the time, or else it would answer no ping.
            let next = Instant::now() + pause.mul_f64(self.rng.f64() * 2.0);
            let is_gone = heard(client, next, &mut ids).await == Heard::End;
            let breaks_off = self.rng.u8(..100) < BREAKS;
            let said = timeout(self.patience, client.say(id, &format!("{} says {id}.", self.name))).await;
            if is_gone || breaks_off || !matches!(said, Ok(Ok(()))) {
                return ids;
            }
        }
        if let Ok(Ok(())) = timeout(self.patience, client.send(&json!({ "type": "Finalize" }))).await {
            heard(client, Instant::now() + self.patience, &mut ids).await;
        }
        ids
    }
}

/// Why nothing more is heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    /// It is time for something else.
    UntilThen,
    /// Everything is saved, or the connection is gone.
    End,
}

/// Reads until everything is saved, the connection is gone, or it is time for something else.
async fn heard(client: &mut Client, until: Instant, ids: &mut Vec<String>) -> Heard {
    loop {
        match timeout_at(until, client.next()).await {
            Ok(Ok(frame)) if frame["type"] == "ack" => ids.push(frame["id"].as_str().unwrap_or_default().to_owned()),
            Ok(Ok(frame)) if frame["type"] == "saved" => return Heard::End,
            Ok(Ok(_)) => {}
            Ok(Err(_)) => return Heard::End,
            Err(_) => return Heard::UntilThen,
        }
    }
}
