//! `cargo demo`: three calls end, the processor is killed between saving a summary and announcing it, and every call is
//! nevertheless announced once.
//!
//! `cargo demo --stay` tells nothing: it leaves all that runs which a call in the browser needs, and prints its address.
//!
//! Real servers, the real binary, the calls of `fixtures/transcripts`. Two of the calls are delivered through the sockets of a
//! transcriber, which ends them; the segments of the third one are published late. Ends with code 1 where anything came out wrong. What
//! happened is drawn on a page, which the demo names at its end.

use std::{
    cell::Cell,
    env,
    error::Error,
    fmt::Display,
    fs,
    io::{self, IsTerminal, Write},
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use mongodb::{
    bson::Document,
    change_stream::{ChangeStream, event::ChangeStreamEvent},
    options::FullDocumentType,
};
use tokio::time::Instant;
use transcript_core::{
    contract::PROCESSED_SUBJECT,
    contract::SUMMARIES_COLLECTION,
    ids::{Key, Session},
};
use transcript_tests::{
    browser_call::BrowserCall,
    calls::{Call, fixture},
    cargo,
    process_guard::Exit,
    processor::{Processor, ProcessorCommand},
    proxy::{Nats, NatsProxy, NatsTraffic, Rule},
    recording::{Observer, Trace},
    transcriber::RunningTranscriber,
    wait::wait_until,
    world::TestWorld,
};
use transcript_timeline::{Selection, Timeline};
use transcript_trace::Reader;

/// The calls; of the one that is late, the last segments come after the end of the call.
const CALLS: [&str; 3] = ["olive-oil.ndjson", "festival-lineup.ndjson", "nobody-spoke.ndjson"];
const LATE_CALL: &str = "festival-lineup.ndjson";
const LATE: &str = "3";
const LATE_BY: &str = "500ms";
/// The name of the transcriber.
const TRANSCRIBER: &str = "transcriber-1";
/// How long it waits for another socket after the last one has closed.
const ENDS: [&str; 4] = ["--end-after-close", "200ms", "--end-after-silence", "0s"];
/// The names of the processors.
const FIRST: &str = "first";
const SECOND: &str = "second";
/// What the page says about itself.
const ABOUT: &str = "the demo: three calls, two of them from their first socket on, a kill between save and publish, and another \
     process that takes over";
/// How long any one thing may take. Settling and an ack wait together take some ten seconds.
const WITHIN: Duration = Duration::from_secs(40);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> ExitCode {
    let story = Story::begin();
    let told = match env::args().nth(1).as_deref() {
        None => tell(&story).await,
        Some("--stay") => match stay(&story).await {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => Err(error),
        },
        Some(_) => Err("usage: cargo demo [--stay]".into()),
    };
    match told {
        Ok(problems) if problems.is_empty() => {
            story.heading("ALL WELL: every call has one summary and was announced once");
            ExitCode::SUCCESS
        }
        Ok(problems) => {
            story.heading("WRONG: this must not be");
            problems.iter().for_each(|problem| story.line(format!("  {problem}")));
            ExitCode::FAILURE
        }
        Err(error) => {
            story.heading("FAILED: the demo did not come to its end");
            story.line(format!("  {error}"));
            let mut cause = error.source();
            while let Some(reason) = cause {
                story.line(format!("  because: {reason}"));
                cause = reason.source();
            }
            ExitCode::FAILURE
        }
    }
}

/// Leaves servers, a processor, a transcriber and a page running, on which people hold a call in the browser.
async fn stay(story: &Story) -> Result<()> {
    story.heading("A call in the browser");
    cargo::processor(cargo::Version::Product).await?;
    story.event("the binary is built");
    let call = BrowserCall::start(&empty_directory()?).await?;
    story.event("two servers, a processor, a transcriber and the page run");
    story.line(format!("  open this address in two windows, and hold a call: {}", call.address()));
    let servers = call.world.environment().map(|(name, value)| format!("{name}={value}"));
    story.line(format!("  for commands in another terminal: export {}", servers.join(" ")));
    story.line("  Ctrl-C ends all of it");
    tokio::signal::ctrl_c().await?;
    Ok(())
}

/// Everything that came out wrong.
async fn tell(story: &Story) -> Result<Vec<String>> {
    story.heading("Two servers, a transcriber and a processor");
    cargo::processor(cargo::Version::Product).await?;
    story.event("the binary is built");
    let stage = Stage::set(story).await?;
    let outcome = play(&stage, story).await;
    // Where something went wrong there is the more to see.
    let page = stage.draw();
    if let Ok(page) = &page {
        story.line(format!("  all of it as a page: {}", page.display()));
    }
    let problems = outcome?;
    page.map(|_| problems)
}

async fn play(stage: &Stage, story: &Story) -> Result<Vec<String>> {
    story.heading("Three calls end");
    let first = stage.start_processor(story, FIRST).await?;
    let _narrator = stage.narrate_saves(story).await?;
    let _watcher = stage.note_segments().await?;
    // The notifications of all three are held back, so the kill finds one on its way whichever call is first.
    let notifications = stage.proxy.hold(NatsTraffic::to(PROCESSED_SUBJECT));
    stage.play_calls(story).await?;

    story.heading("A crash at the worst moment");
    let killed = stage.kill_between_save_and_publish(story, &first, notifications).await?;
    drop(first);

    story.heading("Another processor takes over");
    let second = stage.start_processor(story, SECOND).await?;
    let recovery = stage.wait_until_all_is_announced(story, killed).await?;
    let exit = second.terminate().await?;
    story.event(&format!("the processor is asked to end, and does: {exit}"));

    story.heading("What is left");
    let mut problems = stage.report(story, recovery).await?;
    let ended = stage.transcriber.process.terminate().await?;
    if ended != Exit::Code(0) {
        problems.push(format!("the transcriber came to its end by {ended} when it was asked to end"));
    }
    if exit != Exit::Code(0) {
        problems.push(format!("the processor came to its end by {exit} when it was asked to end"));
    }
    Ok(problems)
}

/// Servers, a proxy that can hold a notification back, the calls to be played, and where all that is written down.
struct Stage {
    world: TestWorld,
    proxy: NatsProxy,
    transcriber: RunningTranscriber,
    calls: Vec<Call>,
    observer: Arc<Mutex<Observer>>,
    /// Of the traces, and of the page.
    directory: PathBuf,
}

impl Stage {
    async fn set(story: &Story) -> Result<Self> {
        let calls = CALLS.iter().map(|name| Call::read(&transcript(name))).collect::<std::result::Result<_, _>>()?;
        let world = TestWorld::start_with_own_mongod().await?;
        let proxy = NatsProxy::start(world.nats.process().address()).await?;
        story.event(&format!("nats-server runs at {}", world.nats.url()));
        story.event(&format!("mongod runs at {}", world.mongodb_uri()));
        world.processor("setup").run(WITHIN).await?;
        story.event("streams, consumer and indexes are set up");
        let directory = empty_directory()?;
        let command = world.processor("transcriber").arguments(["--name", TRANSCRIBER]).arguments(ENDS);
        let transcriber = RunningTranscriber::start(command.argument("--record").argument(&directory)).await?;
        story.event(&format!("a transcriber runs, pid {}", transcriber.process.pid()));
        Ok(Self { world, proxy, transcriber, calls, observer: Arc::default(), directory })
    }

    /// A processor that reaches NATS through the proxy only, and records what it does.
    async fn start_processor(&self, story: &Story, name: &str) -> Result<Processor> {
        let command = self.world.processor("run").environment("NATS_URL", self.proxy.url());
        let processor =
            command.argument("--record").argument(&self.directory).arguments(["--name", name]).start().await?;
        story.event(&format!("a processor runs, pid {}", processor.pid()));
        Ok(processor)
    }

    async fn play_calls(&self, story: &Story) -> Result<()> {
        let plays = CALLS.iter().zip(&self.calls).map(async |(&name, call)| {
            let late = name == LATE_CALL;
            self.play(name, late).run(WITHIN).await?;
            let lateness =
                if late { format!(", {LATE} of them {LATE_BY} late") } else { ", through sockets".to_owned() };
            story.event(&format!("ended: {}, {} segments{lateness}", call.session.key(), call.segments.len()));
            Ok::<_, Box<dyn Error>>(())
        });
        futures::future::try_join_all(plays).await?;
        Ok(())
    }

    fn play(&self, name: &str, late: bool) -> ProcessorCommand {
        let play = self.world.processor("play").argument(transcript(name)).arguments(["--speed", "0"]);
        if late {
            play.arguments(["--late", LATE, "--late-by", LATE_BY])
        } else {
            play.arguments(["--via".to_owned(), format!("ws://{}", self.transcriber.address)])
        }
    }

    /// Tells of every summary as it is saved, until the returned guard is dropped.
    async fn narrate_saves(&self, story: &Story) -> Result<AbortOnDrop> {
        let summaries = self.world.database().collection::<Document>(SUMMARIES_COLLECTION);
        let changes = summaries.watch().full_document(FullDocumentType::UpdateLookup).await?;
        Ok(AbortOnDrop(tokio::spawn(narrate(changes, story.clone()))))
    }

    /// Notes every segment as it is stored that no transcriber tells of, until the returned guard is dropped.
    async fn note_segments(&self) -> Result<AbortOnDrop> {
        let changes = self.world.segments().watch().await?;
        Ok(AbortOnDrop(tokio::spawn(note_stored(changes, self.observer.clone()))))
    }

    async fn kill_between_save_and_publish(
        &self,
        story: &Story,
        processor: &Processor,
        held_back: Rule<Nats>,
    ) -> Result<Killed> {
        let held = tokio::select! {
            held = self.proxy.held() => held,
            ended = processor.wait(WITHIN) => {
                let what = ended.map_or_else(|_| format!("sent nothing within {WITHIN:?}"), |exit| format!("ended: {exit}"));
                return Err(format!("the processor {what}; its log:\n{}", processor.logs()).into());
            }
        };
        let id = held.message().and_then(|message| message.header("Nats-Msg-Id"));
        let key = id.ok_or("the notification has no Nats-Msg-Id")?.to_owned();
        story.event(&format!("held up: the notification of {key}"));
        wait_until(format!("the summary of {key} is stored"), WITHIN, || async {
            let stored = self.world.summaries().await.map_err(|error| error.to_string())?;
            let keys: Vec<_> = stored.iter().filter_map(|summary| summary.get_str("_id").ok()).collect();
            if keys.contains(&key.as_str()) { Ok(()) } else { Err(format!("stored are: {}", keys.join(", "))) }
        })
        .await?;
        let exit = processor.kill().await?;
        let at = Instant::now();
        lock(&self.observer).killed(FIRST, at);
        self.proxy.cut();
        drop(held_back);
        story.event(&format!("killed by {exit}: a summary is saved, and nobody was told"));
        let told = self.world.notifications().await?.len();
        if told == 0 { Ok(Killed { key, at }) } else { Err(format!("{told} notifications went through").into()) }
    }

    /// How long after the kill the interrupted call was announced.
    async fn wait_until_all_is_announced(&self, story: &Story, killed: Killed) -> Result<Duration> {
        let (seen, recovery) = (Cell::new(0), Cell::new(None));
        wait_until("every call is announced and acknowledged", WITHIN, || async {
            let consumer = self.world.consumer().await.map_err(|error| error.to_string())?;
            let announced = self.world.notifications().await.map_err(|error| error.to_string())?;
            for new in announced.iter().skip(seen.get()) {
                let id = new.id.as_deref().unwrap_or("a message without id");
                story.event(&format!("announced: {id}, {} segments", new.notification.segments));
                if id == killed.key && recovery.get().is_none() {
                    recovery.set(Some(killed.at.elapsed()));
                }
            }
            seen.set(announced.len());
            let open = consumer.num_pending + u64::try_from(consumer.num_ack_pending).unwrap_or(u64::MAX);
            let done = announced.len() >= self.calls.len() && open == 0;
            if done { Ok(()) } else { Err(format!("{} announced, {open} open", announced.len())) }
        })
        .await?;
        Ok(recovery.get().ok_or("the interrupted call was not announced")?)
    }

    /// Draws what the processors have recorded, and gives the page.
    fn draw(&self) -> Result<PathBuf> {
        let trace = lock(&self.observer).complete(Trace::recorded(&self.directory)?, ABOUT).text()?;
        let page = self.directory.join("timeline.html");
        fs::write(&page, Timeline::read(Reader::new(trace.as_bytes()), &Selection::default())?.html())?;
        Ok(page)
    }

    async fn report(&self, story: &Story, recovery: Duration) -> Result<Vec<String>> {
        let notifications = self.world.notifications().await?;
        let mut problems = Vec::new();
        for call in &self.calls {
            let key = call.session.key();
            let announced = notifications.iter().filter(|stored| stored.id.as_deref() == Some(key.as_str())).count();
            match self.world.summary(&key).await? {
                Some(summary) => {
                    story.line(format!("  {}", describe(&summary)));
                    problems.extend(check(&key, call, &summary, announced));
                }
                None => problems.push(format!("{key} has no summary")),
            }
        }
        let summaries = self.world.summaries().await?.len();
        let consumer = self.world.consumer().await?;
        story.line(format!(
            "  {} calls, {summaries} summaries, {} notifications, {} deliveries",
            self.calls.len(),
            notifications.len(),
            consumer.delivered.consumer_sequence,
        ));
        story.line(format!("  the interrupted call was announced {:.1} s after the kill", recovery.as_secs_f64()));
        if (summaries, notifications.len()) != (self.calls.len(), self.calls.len()) {
            problems.push("there is not one summary and one notification a call".to_owned());
        }
        Ok(problems)
    }
}

/// The demo's directory, without what an earlier demo has left there.
fn empty_directory() -> Result<PathBuf> {
    let directory = cargo::target_dir().join("demo");
    match fs::remove_dir_all(&directory) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    fs::create_dir_all(&directory)?;
    Ok(directory)
}

/// The session whose notification the processor died with, and when.
struct Killed {
    key: String,
    at: Instant,
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn narrate(mut changes: ChangeStream<ChangeStreamEvent<Document>>, story: Story) {
    while let Some(Ok(change)) = changes.next().await {
        if let Some(summary) = change.full_document {
            let key = summary.get_str("_id").unwrap_or("?").to_owned();
            let what = if summary.contains_key("notified") { "marked as announced" } else { "summary saved" };
            story.event(&format!("{what}: {key}, {} segments", number(&summary, "segments")));
        }
    }
}

async fn note_stored(mut changes: ChangeStream<ChangeStreamEvent<Document>>, observer: Arc<Mutex<Observer>>) {
    while let Some(Ok(change)) = changes.next().await {
        let ids = change
            .full_document
            .as_ref()
            .filter(|segment| !segment.contains_key("source"))
            .map(|segment| (segment.get_str("conversationId"), segment.get_str("sessionId")));
        if let Some((Ok(conversation), Ok(session))) = ids
            && let Ok(session) = Session::new(conversation, session)
        {
            lock(&observer).stored(&session, 1);
        }
    }
}

fn lock(observer: &Mutex<Observer>) -> MutexGuard<'_, Observer> {
    observer.lock().unwrap_or_else(PoisonError::into_inner)
}

fn check(key: &Key, call: &Call, summary: &Document, announced: usize) -> Vec<String> {
    let expected = i64::try_from(call.segments.len()).unwrap_or(i64::MAX);
    let checks = [
        (announced == 1, format!("{key} was announced {announced} times")),
        (number(summary, "segments") == expected, format!("{key} has not the {expected} segments of the call")),
        (number(summary, "publishedSegments") == expected, format!("{key} was not told of {expected} segments")),
        (summary.get_bool("complete").unwrap_or(false), format!("{key} is not complete")),
        (summary.contains_key("notified"), format!("{key} is not marked as announced")),
    ];
    checks.into_iter().filter(|(right, _)| !right).map(|(_, problem)| problem).collect()
}

fn describe(summary: &Document) -> String {
    let length = |field| summary.get_array(field).map_or(0, Vec::len);
    format!(
        "{}: {} segments, {} words, {} speakers, {} questions",
        summary.get_str("_id").unwrap_or("?"),
        number(summary, "segments"),
        number(summary, "words"),
        length("speakers"),
        length("questions"),
    )
}

/// A number of a document, in whichever of BSON's integer types it is; -1 where it is none.
fn number(document: &Document, field: &str) -> i64 {
    document.get_i64(field).or_else(|_| document.get_i32(field).map(i64::from)).unwrap_or(-1)
}

fn transcript(name: &str) -> PathBuf {
    fixture("transcripts").join(name)
}

/// What is told, line by line, with the time since the beginning.
#[derive(Debug, Clone)]
struct Story {
    begun: Instant,
    on_terminal: bool,
}

impl Story {
    fn begin() -> Self {
        Self { begun: Instant::now(), on_terminal: io::stdout().is_terminal() }
    }

    fn heading(&self, heading: &str) {
        if self.on_terminal {
            self.line(format!("\n\x1b[1m{heading}\x1b[0m"));
        } else {
            self.line(heading);
        }
    }

    fn event(&self, event: &str) {
        let seconds = self.begun.elapsed().as_secs_f64();
        if self.on_terminal {
            self.line(format!("\x1b[2m{seconds:6.2} s\x1b[0m  {event}"));
        } else {
            self.line(format!("{seconds:6.2} s  {event}"));
        }
    }

    fn line(&self, line: impl Display) {
        // Where nobody reads on, the exit code still tells.
        writeln!(io::stdout(), "{line}").ok();
    }
}
