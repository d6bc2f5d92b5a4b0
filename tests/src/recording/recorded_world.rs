//! Where traces are recorded: real servers, processors that record, and an observer.

use std::{collections::BTreeMap, ffi::OsString, time::Duration};

use nix::unistd::gethostname;
use tempfile::TempDir;
use tokio::time::Instant;
use transcript_core::ids::Session;
use transcript_publishing::SegmentMessage;
use transcript_trace::Server;

use super::{observer::Observer, shown::Shown, trace::Trace};
use crate::{
    calls::Call,
    cargo,
    crash::CrashError,
    process_guard::Exit,
    processor::ProcessorCommand,
    proxy::{MongoProxy, NatsProxy},
    restarted_processor::RestartedProcessor,
    servers::NatsOptions,
    wait::wait_until,
    world::{StoreOf, TestWorld},
};

/// How long anything may take. Reached only where something is broken.
const WITHIN: Duration = Duration::from_secs(60);
/// Short times, but so long that a call shows a heartbeat. Arguments stand above them.
const TIMES: [(&str, &str); 4] = [
    ("TRANSCRIPT_QUIET_PERIOD", "300ms"),
    ("TRANSCRIPT_ACK_WAIT", "1500ms"),
    ("TRANSCRIPT_REQUEST_TIMEOUT", "1s"),
    ("TRANSCRIPT_RETRY_CAP", "500ms"),
];

/// Servers, processors by name, and who watches them.
#[derive(Debug)]
pub struct RecordedWorld {
    /// The servers.
    pub world: TestWorld,
    /// Before NATS.
    pub nats: NatsProxy,
    /// Before MongoDB.
    pub mongo: MongoProxy,
    /// Who watches.
    pub observer: Observer,
    command: ProcessorCommand,
    processors: BTreeMap<&'static str, RestartedProcessor>,
    directory: TempDir,
}

/// How processors reach their servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Straight.
    Straight,
    /// Through proxies, which can hold back and lose what is sent.
    ThroughProxies,
}

impl RecordedWorld {
    /// Starts the servers and sets them up. Processors get short times and these arguments.
    ///
    /// # Errors
    ///
    /// Something does not start.
    pub async fn open(store: StoreOf, way: Way, arguments: &[&str]) -> Result<Self, CrashError> {
        let world = TestWorld::start_as(store, NatsOptions::default()).await?;
        let nats = NatsProxy::start(world.nats.process().address()).await?;
        let mongo = MongoProxy::start(world.mongod_address()).await?;
        let directory = tempfile::Builder::new().prefix("transcript-tests-traces-").tempdir()?;
        let straight = world.processor("run").environment("TRANSCRIPT_RECORD", directory.path());
        let command = match way {
            Way::Straight => straight,
            Way::ThroughProxies => straight.environment("NATS_URL", nats.url()).environment("MONGODB_URI", mongo.uri()),
        };
        let timed = TIMES.into_iter().fold(command, |command, (name, time)| command.environment(name, time));
        let command = timed.arguments(arguments.iter().map(OsString::from));
        Ok(Self { world, nats, mongo, observer: Observer::new(), command, processors: BTreeMap::new(), directory })
    }

    /// Starts the processor of this name, for the first time or again, and waits until it takes messages.
    ///
    /// # Errors
    ///
    /// It cannot be started or is not ready in time.
    pub async fn start(&mut self, name: &'static str) -> Result<Instant, CrashError> {
        let command = self.command.clone().arguments(["--name", name]);
        let processor = self.processors.entry(name).or_insert_with(|| RestartedProcessor::new(command));
        let started = processor.start().await?;
        processor.ready(WITHIN).await?;
        Ok(started)
    }

    /// The processor of this name.
    ///
    /// # Errors
    ///
    /// It was never started.
    pub fn processor(&mut self, name: &str) -> Result<&mut RestartedProcessor, CrashError> {
        self.processors.get_mut(name).ok_or_else(|| format!("there is no processor {name}").into())
    }

    /// Stores segments, and notes that.
    ///
    /// # Errors
    ///
    /// The store does not take them.
    pub async fn store(&mut self, session: &Session, segments: &[SegmentMessage]) -> Result<(), CrashError> {
        self.world.insert_segments(segments).await?;
        if !segments.is_empty() {
            self.observer.stored(session, segments.len());
        }
        Ok(())
    }

    /// Stores all segments of a call, and ends it.
    ///
    /// # Errors
    ///
    /// A server does not take it.
    pub async fn play(&mut self, call: &Call) -> Result<(), CrashError> {
        self.store(&call.session, &call.segments).await?;
        self.end(call).await
    }

    /// Ends a call.
    ///
    /// # Errors
    ///
    /// The stream does not take it.
    pub async fn end(&self, call: &Call) -> Result<(), CrashError> {
        self.world.publish_session_end(&call.session, u64::try_from(call.segments.len())?).await?;
        Ok(())
    }

    /// Waits until the trace of this processor, as far as it is written, shows something.
    ///
    /// # Errors
    ///
    /// It does not, or cannot be read.
    pub async fn until(&self, processor: &str, what: &str, shows: impl Fn(&Shown) -> bool) -> Result<(), CrashError> {
        wait_until(format!("the trace of {processor} shows {what}"), WITHIN, || async {
            let shown = Shown::of(&self.written()?.of(processor));
            if shows(&shown) { Ok(()) } else { Err(format!("{shown:?}; logs:\n{}", self.logs())) }
        })
        .await?;
        Ok(())
    }

    /// Waits until nothing is left to be done: for the stream, and for those that work on what it handed out.
    ///
    /// # Errors
    ///
    /// That does not come.
    pub async fn until_all_is_done(&self) -> Result<(), CrashError> {
        wait_until("nothing is pending, unacknowledged or in hand", WITHIN, || async {
            let consumer = self.world.consumer().await.map_err(|error| error.to_string())?;
            let in_hand = self.written()?.in_hand().map_err(|error| error.to_string())?;
            let open = (consumer.num_pending, consumer.num_ack_pending, in_hand);
            if open == (0, 0, 0) { Ok(()) } else { Err(format!("{open:?}; logs:\n{}", self.logs())) }
        })
        .await?;
        Ok(())
    }

    /// Kills a server, waits until `noticed`, and starts it again.
    ///
    /// # Errors
    ///
    /// It cannot be killed or started, or `noticed` failed.
    pub async fn kill_server(
        &mut self,
        server: Server,
        noticed: impl AsyncFnOnce(&Self) -> Result<(), CrashError>,
    ) -> Result<(), CrashError> {
        let from = Instant::now();
        match server {
            Server::Nats => self.world.nats.process().kill().await?,
            Server::Mongodb => self.world.mongod().process().kill().await?,
        };
        noticed(self).await?;
        match server {
            Server::Nats => self.world.nats.start_again().await?,
            Server::Mongodb => self.world.mongod().start_again().await?,
        }
        self.observer.away(server, from, Instant::now());
        Ok(())
    }

    /// Asks every processor that still runs to end, and gives the whole trace, with what was noted beside.
    ///
    /// # Errors
    ///
    /// One does not end well, or the trace tells where it was recorded.
    pub async fn close(mut self, about: &str) -> Result<Trace, CrashError> {
        for (name, processor) in &mut self.processors {
            match processor.terminate(WITHIN).await? {
                Some(Exit::Code(0)) | None => {}
                Some(exit) => return Err(format!("{name} ended with {exit}; its log:\n{}", processor.logs()).into()),
            }
            self.observer.restarted(name, processor.steps());
        }
        let trace = self.observer.complete(Trace::recorded(self.directory.path())?, about);
        let text = trace.text()?;
        let host = gethostname()?.to_string_lossy().into_owned();
        let places = [cargo::workspace().to_string_lossy(), self.directory.path().to_string_lossy(), host.into()];
        match places.iter().find(|place| text.contains(&***place)) {
            Some(place) => Err(format!("the trace has {place} in it").into()),
            None => Ok(trace),
        }
    }

    /// What is written so far.
    fn written(&self) -> Result<Trace, String> {
        Trace::recorded(self.directory.path()).map_err(|error| format!("{error}: {error:?}"))
    }

    fn logs(&self) -> String {
        let logs = self.processors.iter().map(|(name, processor)| format!("--- {name}\n{}", processor.logs()));
        logs.collect()
    }
}
