//! What each command does, and what it prints.

use std::{
    error::Error,
    io::{self, IsTerminal, Read, Write},
    path::Path,
    time::Duration,
};

use async_nats::jetstream;
use mongodb::Database;
use serde_json::json;
use tokio::sync::mpsc;
use transcript_core::{event::SessionEnded, summary::Segment};
use transcript_processor::{
    call_page,
    cli::{
        AuditArgs, CallPageArgs, CallsArgs, Command, ConvertArgs, DeadLettersCommand, MongodbArgs, NatsArgs, Offline,
        OnNats, Online, Options, PauseArgs, PlayArgs, QuietArgs, RecordingAction, RecordingArgs, ReprocessArgs,
        RunArgs, SetupArgs, ShowArgs, StatusArgs, Stored, TranscriberArgs,
    },
    connect::{ConnectError, Logins, NatsConnection, connect_mongodb, connect_nats},
    error_line::error_line,
    logging,
    monitor::{
        servers::Looker,
        status::Status,
        terminal::{self, fetch},
    },
    operate::audit::{self, Incomplete, Progress, Remedy, SESSIONS_A_PASS},
    operate::calls::{CallLine, CallState, Calls, Wanted},
    operate::dead_letters::{self, Outcome, Whole},
    operate::pause,
    operate::processes::{self, Ask, Presence},
    operate::reprocess::{self, Requested},
    operate::setup::{
        self, Api, Pause, Request,
        permissions::{Permissions, Refusals},
    },
    recordings::{self, watch},
    reference,
    service::clock::Clock,
    service::driver::Signal,
    service::run::{self, Ends},
    terminal::{harmless_json, harmless_lines, width},
    traces, transcriber,
    transcripts::convert,
    transcripts::play,
    transcripts::show,
    transcripts::source,
};

use super::Finding;

/// How long ending the connections to MongoDB may take.
const GOODBYE: Duration = Duration::from_millis(500);
/// A summary is not laid out wider.
const WIDEST_SUMMARY: usize = 100;

type Done = Result<Finding, Box<dyn Error>>;
type Signals = mpsc::UnboundedReceiver<Signal>;

/// Does what needs no server.
pub(super) fn offline(command: &Offline) -> Done {
    let answer = match command {
        Offline::Convert(args) => return convert(args),
        Offline::Completions(args) => {
            reference::completions(args, &mut io::stdout().lock())?;
            return Ok(Finding::Good);
        }
        Offline::Man(args) => {
            reference::man(args, &mut io::stdout().lock())?;
            return Ok(Finding::Good);
        }
        Offline::Replay(args) => traces::replay(args, &logging::warning),
        Offline::Trace(args) => traces::trace(args, &logging::warning),
        Offline::Timeline(args) => traces::timeline(args, &logging::warning),
    }?;
    // A cut that went to stdout is all that there is to be.
    if !answer.text.is_empty() {
        print(&answer.text)?;
    }
    Ok(Finding::is(answer.is_good))
}

fn convert(args: &ConvertArgs) -> Done {
    let transcripts = source::read_all(&args.source, args.cues.into(), &logging::warning)?;
    let pages = transcripts.iter().map(convert::lines).collect::<Result<Vec<_>, _>>()?;
    let mut out = io::stdout().lock();
    pages.iter().try_for_each(|page| out.write_all(harmless_json(page).as_bytes()))?;
    out.flush()?;
    Ok(Finding::Good)
}

/// Does what needs servers.
pub(super) async fn online(command: &Command, signals: &mut Signals) -> Done {
    match command {
        Command::Run(on) => on_servers(on, signals, async |servers: Servers<'_>| servers.run(&on.args).await).await,
        Command::Transcriber(online) => transcribe(online, signals).await,
        Command::Setup(on) => {
            on_servers(on, signals, async |servers: Servers<'_>| servers.set_up(&on.args).await).await
        }
        Command::Play(online) => play(online, signals).await,
        Command::Show(stored) => show_summary(stored, signals).await,
        Command::Recording(on_nats) => recording(on_nats).await,
        Command::CallPage(stored) => call_page(stored, signals).await,
        Command::DeadLetters(args) => dead_letters(&args.command, signals).await,
        Command::Audit(on) => {
            on_servers(on, signals, async |servers: Servers<'_>| audit(&servers, &on.args).await).await
        }
        Command::Calls(on) => {
            on_servers(on, signals, async |servers: Servers<'_>| calls(&servers, &on.args).await).await
        }
        Command::Status(online) => status(online, signals).await,
        Command::Pause(on) => {
            on_servers(on, signals, async |servers: Servers<'_>| pause(&servers, &on.args).await).await
        }
        Command::Resume(on) => on_servers(on, signals, async |servers: Servers<'_>| resume(&servers).await).await,
        Command::Quiet(on_nats) => quiet(on_nats).await,
        Command::Reprocess(on) => {
            on_servers(on, signals, async |servers: Servers<'_>| reprocess(&servers, &on.args).await).await
        }
        Command::Offline(command) => offline(command),
    }
}

/// Connects to both servers and performs a command on them. Where neither can be reached, each is told of.
async fn on_servers<A: Options>(
    online: &Online<A>,
    signals: &mut Signals,
    perform: impl AsyncFnOnce(Servers<'_>) -> Done,
) -> Done {
    let (refusals, logins) = (Refusals::default(), Logins::new(online.login_timeout()));
    let within = online.connect.timeout;
    let connecting = async {
        let nats = connect_nats(&online.nats, within, &refusals, &logins);
        match tokio::join!(nats, connect_mongodb(&online.mongodb, within, &logins)) {
            (Ok(nats), Ok(mongodb)) => Ok((nats, mongodb)),
            (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
            (Err(nats), Err(mongodb)) => {
                logging::error(&error_line(&nats));
                Err(mongodb)
            }
        }
    };
    let Some((nats, client)) = unless_stopped(signals, connecting).await? else {
        return Ok(Finding::Good);
    };
    let (js, api) = jetstream_of(&online.nats, nats.client.clone());
    let database = client.database(&online.mongodb.database);
    let ends = Ends { logins: &logins, signals };
    let servers = Servers { args: &online.nats, nats, js, api, database: &database, refusals: &refusals, ends };
    let done = perform(servers).await;
    end(client).await;
    done
}

/// Connects to MongoDB and performs a command on it.
async fn on_mongodb(
    args: &MongodbArgs,
    within: Duration,
    Ends { logins, signals }: Ends<'_>,
    perform: impl AsyncFnOnce(&Database, Ends<'_>) -> Done,
) -> Done {
    let Some(client) = unless_stopped(signals, connect_mongodb(args, within, logins)).await? else {
        return Ok(Finding::Good);
    };
    let done = perform(&client.database(&args.database), Ends { logins, signals }).await;
    end(client).await;
    done
}

/// What was connected to, or nothing where a signal came first.
async fn unless_stopped<T>(
    signals: &mut Signals,
    connecting: impl Future<Output = Result<T, ConnectError>>,
) -> Result<Option<T>, ConnectError> {
    tokio::select! {
        connected = connecting => connected.map(Some),
        Some(Signal::Drain | Signal::Stop) = signals.recv() => {
            tracing::info!("stopped before it had begun");
            Ok(None)
        }
    }
}

/// Ends the connections to MongoDB. A server that does not answer keeps the driver's tasks, and must not keep the process.
async fn end(client: mongodb::Client) {
    if tokio::time::timeout(GOODBYE, client.shutdown().immediate(true)).await.is_err() {
        tracing::debug!("MongoDB was left without a goodbye");
    }
}

/// Both servers.
struct Servers<'a> {
    args: &'a NatsArgs,
    nats: NatsConnection,
    js: jetstream::Context,
    api: Api,
    database: &'a Database,
    refusals: &'a Refusals,
    ends: Ends<'a>,
}

impl<'a> Servers<'a> {
    fn permissions(&self) -> Permissions<'a> {
        Permissions { refusals: self.refusals, api_prefix: self.args.js_api_prefix() }
    }

    async fn run(self, args: &RunArgs) -> Done {
        let permissions = self.permissions();
        run::run(self.nats, self.js, self.api, permissions, self.database.clone(), args, self.ends).await?;
        Ok(Finding::Good)
    }

    async fn set_up(self, args: &SetupArgs) -> Done {
        let lacking = self.permissions().check_setup(&self.js.client()).await?;
        let pause = if args.resume { Pause::End } else { Pause::Keep };
        let request = Request { settings: args.stream.clone(), api: self.api, pause, ..Request::default() };
        let mut report = setup::ensure(&self.js, self.database, &request).await?;
        if args.revise {
            setup::ensure_watched(self.database, &mut report).await?;
        }
        if let Err(error) = setup::ensure_transcriber(self.database, &mut report).await {
            report.warnings.push(format!("the indexes of the transcriber are not there: {}", error_line(&error)));
        }
        report.warnings.extend(lacking);
        let changes: Vec<_> = report.changes.iter().map(ToString::to_string).collect();
        let kept: Vec<_> = report.kept.iter().map(ToString::to_string).collect();
        for warning in &report.warnings {
            tracing::warn!("{warning}");
        }
        if args.json {
            print_json(&json!({ "changes": changes, "kept": kept, "warnings": report.warnings }))?;
        } else {
            let nothing = changes.is_empty().then(|| "nothing to change".to_owned());
            print(&changes.into_iter().chain(kept).chain(nothing).collect::<Vec<_>>().join("\n"))?;
        }
        Ok(Finding::Good)
    }
}

/// The JetStream that is meant.
fn jetstream_of(args: &NatsArgs, client: async_nats::Client) -> (jetstream::Context, Api) {
    match (&args.js_domain, &args.js_api_prefix) {
        (Some(domain), _) => (jetstream::with_domain(client, domain), Api::Named),
        (None, Some(prefix)) => (jetstream::with_prefix(client, prefix), Api::Named),
        (None, None) => (jetstream::new(client), Api::Nearest),
    }
}

/// Publishes or prints events of recordings; MongoDB has no part in it.
async fn recording(OnNats { args, nats, connect, .. }: &OnNats<RecordingArgs>) -> Done {
    let (refusals, logins) = (Refusals::default(), Logins::new(connect.timeout));
    let connection = connect_nats(nats, connect.timeout, &refusals, &logins).await?;
    let (js, _) = jetstream_of(nats, connection.client);
    match args.action() {
        RecordingAction::Watch(watched) => watch::watch(&js, watched, &mut io::stdout().lock()).await?,
        RecordingAction::Publish(event) => {
            let published = recordings::publish(&js, event, args).await?;
            print(&if args.json { show::json_line(&published)? } else { published.to_string() })?;
        }
    }
    Ok(Finding::Good)
}

/// Takes segments from WebSockets and requests. It connects to NATS itself, because it starts without it.
async fn transcribe(online: &Online<TranscriberArgs>, signals: &mut Signals) -> Done {
    let logins = Logins::new(online.login_timeout());
    let ends = Ends { logins: &logins, signals };
    on_mongodb(&online.mongodb, online.connect.timeout, ends, async |database: &Database, ends: Ends<'_>| {
        transcriber::run::run(online, database, &Refusals::default(), ends).await?;
        Ok(Finding::Good)
    })
    .await
}

/// Plays transcripts. They are read before a server is asked: what is wrong with one of them changes nothing anywhere.
async fn play(online: &Online<PlayArgs>, signals: &mut Signals) -> Done {
    let args = &online.args;
    let transcripts = source::read_all(&args.source, args.cues.into(), &logging::warning)?;
    play::check(&transcripts, args)?;
    let print = |played: &play::PlayedSession| print_played(played, args.json);
    if let Some(address) = &args.via {
        play::via::play(args, address, &transcripts, Clock::start().wall().as_millis(), print).await?;
        return Ok(Finding::Good);
    }
    on_servers(online, signals, async |servers: Servers<'_>| {
        play::play(&servers.js, servers.database, args, &transcripts, print).await?;
        Ok(Finding::Good)
    })
    .await
}

fn print_played(played: &play::PlayedSession, json: bool) -> io::Result<()> {
    let line = if json { serde_json::to_string(played)? } else { played.to_string() };
    writeln!(io::stdout().lock(), "{}", harmless_json(&line))
}

async fn show_summary(Stored { args, mongodb, connect, .. }: &Stored<ShowArgs>, signals: &mut Signals) -> Done {
    let logins = Logins::new(connect.timeout);
    let ends = Ends { logins: &logins, signals };
    on_mongodb(mongodb, connect.timeout, ends, async |database: &Database, _: Ends<'_>| {
        let session = args.call.session()?;
        if args.transcript {
            return show_transcript(&show::transcript(database, &session, None).await?, args.json);
        }
        let document = show::load(database, &session).await?;
        if args.json {
            writeln!(io::stdout().lock(), "{}", show::to_json(document))?;
        } else {
            print(&show::render(&document, textwrap::termwidth().min(WIDEST_SUMMARY))?)?;
        }
        Ok(Finding::Good)
    })
    .await
}

/// Serves the page on which people hold a call, until a signal comes.
async fn call_page(stored: &Stored<CallPageArgs>, signals: &mut Signals) -> Done {
    let logins = Logins::new(stored.login_timeout());
    let ends = Ends { logins: &logins, signals };
    on_mongodb(&stored.mongodb, stored.connect.timeout, ends, async |database: &Database, ends: Ends<'_>| {
        let ready = |address: &str| print(address);
        tokio::select! {
            served = call_page::serve(&stored.args, database.clone(), ready) => served?,
            (_, refused) = ends.first() => {
                if refused.is_some() {
                    return Ok(Finding::Bad);
                }
            }
        }
        Ok(Finding::Good)
    })
    .await
}

fn show_transcript(segments: &[Segment], json: bool) -> Done {
    if segments.is_empty() {
        return Err("no segment of the call is stored".into());
    }
    if json {
        let mut out = io::stdout().lock();
        for segment in segments {
            writeln!(out, "{}", show::json_line(segment)?)?;
        }
    } else {
        print(&show::render_transcript(segments))?;
    }
    Ok(Finding::Good)
}

async fn dead_letters(command: &DeadLettersCommand, signals: &mut Signals) -> Done {
    match command {
        DeadLettersCommand::List(list) => {
            on_servers(list, signals, async |at: Servers<'_>| {
                let dead_letters = dead_letters::list(&at.js, at.database).await?;
                match (list.args.json, dead_letters.is_empty()) {
                    (true, _) => print_json(&dead_letters)?,
                    (false, true) => print("no dead letters")?,
                    (false, false) => print(&dead_letters::table(&dead_letters, width()))?,
                }
                Ok(Finding::Good)
            })
            .await
        }
        DeadLettersCommand::Show(one) => {
            on_servers(one, signals, async |at: Servers<'_>| {
                let (dead_letter, payload) = dead_letters::show(&at.js, at.database, one.args.sequence).await?;
                if one.args.json {
                    print_json(&Whole::new(&dead_letter, &payload))?;
                } else {
                    print(&dead_letters::render(&dead_letter, &payload))?;
                }
                Ok(Finding::Good)
            })
            .await
        }
        DeadLettersCommand::Redrive(redrive) => {
            on_servers(redrive, signals, async |at: Servers<'_>| {
                let corrected = redrive.args.payload.as_deref().map(read_end).transpose()?;
                let which = redrive.args.which();
                let outcomes = dead_letters::redrive(&at.js, at.database, &which, corrected.as_ref()).await?;
                print_outcomes(&outcomes, redrive.args.json)
            })
            .await
        }
        DeadLettersCommand::Discard(discard) => {
            on_servers(discard, signals, async |at: Servers<'_>| {
                let outcomes = dead_letters::discard(&at.js, &discard.args.sequences).await?;
                print_outcomes(&outcomes, discard.args.json)
            })
            .await
        }
    }
}

fn print_outcomes(outcomes: &[Outcome], json: bool) -> Done {
    match (json, outcomes.is_empty()) {
        (true, _) => print_json(&outcomes)?,
        (false, true) => print("no open dead letters")?,
        (false, false) => print(&outcomes.iter().map(Outcome::to_string).collect::<Vec<_>>().join("\n"))?,
    }
    Ok(Finding::is(outcomes.iter().all(|outcome| outcome.done.is_success())))
}

/// The end of a call that a file holds; `-` is stdin.
fn read_end(path: &Path) -> Result<SessionEnded, Box<dyn Error>> {
    let name = path.display();
    let bytes = if path.as_os_str() == "-" {
        let mut bytes = vec![];
        io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        std::fs::read(path)
    };
    let bytes = bytes.map_err(|error| format!("cannot read --payload {name}: {error}"))?;
    SessionEnded::parse(&bytes).map_err(|error| format!("--payload {name} is no end of a call: {error}").into())
}

async fn audit(Servers { js, database, .. }: &Servers<'_>, args: &AuditArgs) -> Done {
    let now = Clock::start().wall();
    let since = args.since.map(|since| since.moment(now));
    if since.is_some_and(|since| since >= now) {
        return Err("--since names a moment that is not past".into());
    }
    let remedy = if args.repair { Remedy::Repair } else { Remedy::Tell };
    let incomplete = if args.incomplete { Incomplete::All } else { Incomplete::Some };
    let options = audit::Options { since, remedy, sessions_a_pass: SESSIONS_A_PASS, incomplete };
    let progress = if args.json { Progress::hidden() } else { Progress::on_stderr() };
    let audited = audit::audit(js, database, options, &progress).await;
    progress.end();
    let audit = audited?;
    if args.json {
        print_json(&audit)?;
    } else {
        print(&audit::render(&audit, incomplete))?;
    }
    Ok(Finding::is(audit.one_to_one))
}

async fn pause(Servers { js, .. }: &Servers<'_>, args: &PauseArgs) -> Done {
    let until = pause::pause(js, Clock::start().wall(), args.lasts).await?;
    print(&format!("paused until {until}: no call is handed out before; `resume` ends that"))?;
    Ok(Finding::Good)
}

async fn resume(Servers { js, .. }: &Servers<'_>) -> Done {
    let hands_out = pause::resume(js).await?;
    print(if hands_out { "resumed: calls are handed out" } else { "the consumer is still paused" })?;
    Ok(Finding::Good)
}

/// Tells one processor; MongoDB has no part in it.
async fn quiet(OnNats { args, nats, connect, .. }: &OnNats<QuietArgs>) -> Done {
    let (refusals, logins) = (Refusals::default(), Logins::new(connect.timeout));
    let connection = connect_nats(nats, connect.timeout, &refusals, &logins).await?;
    let ask = if args.off { Ask::Resume } else { Ask::Quiet };
    let Presence { name, in_hand, .. } = processes::tell(&connection.client, &args.name, ask).await?;
    let in_hand = in_hand.unwrap_or(0);
    print(&if args.off {
        format!("{name} takes calls again")
    } else {
        format!("{name} takes no more calls; it has {in_hand} in hand. `quiet {name} --off` ends that")
    })?;
    Ok(Finding::Good)
}

async fn reprocess(Servers { js, database, .. }: &Servers<'_>, args: &ReprocessArgs) -> Done {
    let requested = reprocess::request(js, database, &args.call.session()?).await?;
    if args.json {
        print_json(&requested)?;
        return Ok(Finding::Good);
    }
    let Requested { key, stream_sequence, before, revision, .. } = &requested;
    let is = if *before { "was asked for before and is not done yet" } else { "is asked for" };
    print(&format!(
        "processing {key} again {is} (message {stream_sequence}); its summary is revision {revision} now, and the next one is \
         announced on transcript.revised"
    ))?;
    Ok(Finding::Good)
}

/// Lists calls, and goes on where that is asked for until a signal ends the process.
async fn calls(Servers { js, database, .. }: &Servers<'_>, args: &CallsArgs) -> Done {
    let wanted = Wanted {
        since: args.since.moment(Clock::start().wall()),
        states: if args.incomplete { vec![CallState::Incomplete] } else { args.states.clone() },
        conversation: args.conversation.clone(),
        reason: args.reason.clone(),
    };
    let print = |line: &CallLine| {
        let text = if args.json { serde_json::to_string(line)? } else { line.to_string() };
        writeln!(io::stdout().lock(), "{}", harmless_json(&text))
    };
    let mut calls = Calls::open(js, database, &wanted).await?;
    calls.list(print).await?;
    if args.follow {
        calls.follow(print).await?;
    }
    Ok(Finding::Good)
}

/// How a running process says that it stands, or how the servers do.
async fn status(online: &Online<StatusArgs>, signals: &mut Signals) -> Done {
    let args = &online.args;
    match &args.from {
        Some(address) => status_of_process(address, args).await,
        None => on_servers(online, signals, async |servers: Servers<'_>| status_of_servers(&servers, args).await).await,
    }
}

/// With --watch it goes on until a signal ends the process.
async fn status_of_process(address: &str, args: &StatusArgs) -> Done {
    let token = args.token_file.as_ref().map(run::read_token).transpose()?;
    loop {
        match (fetch(address, token.as_ref()).await, args.watch) {
            (Ok(status), watch) => {
                let finding = print_status(&status, args)?;
                if !watch {
                    return Ok(finding);
                }
            }
            (Err(error), true) => logging::error(&error_line(&error)),
            (Err(error), false) => return Err(error.into()),
        }
        tokio::time::sleep(args.every).await;
    }
}

/// With --watch it goes on until a signal ends the process.
async fn status_of_servers(Servers { js, database, .. }: &Servers<'_>, args: &StatusArgs) -> Done {
    let clock = Clock::start();
    let looker = Looker::new(js, database, clock);
    loop {
        let status = Status::of_servers(clock.wall(), &looker.look().await);
        let finding = print_status(&serde_json::to_value(&status)?, args)?;
        if !args.watch {
            return Ok(finding);
        }
        tokio::time::sleep(args.every).await;
    }
}

fn print_status(status: &serde_json::Value, args: &StatusArgs) -> Done {
    match (args.json, args.watch) {
        (true, true) => writeln!(io::stdout().lock(), "{}", harmless_json(&status.to_string()))?,
        (true, false) => print_json(status)?,
        (false, watch) => {
            if watch && io::stdout().is_terminal() {
                // The screen begins anew.
                write!(io::stdout().lock(), "\u{1b}[2J\u{1b}[H")?;
            }
            print(&terminal::render(status))?;
        }
    }
    let findings = status.pointer("/findings").and_then(serde_json::Value::as_array);
    let blocks =
        |finding: &serde_json::Value| finding.pointer("/blocks").and_then(serde_json::Value::as_bool) == Some(true);
    Ok(if findings.is_some_and(|findings| findings.iter().any(blocks)) { Finding::Bad } else { Finding::Good })
}

/// Prints text, of which a terminal obeys nothing.
fn print(page: &str) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{}", harmless_lines(page.trim_end()))
}

fn print_json<T: serde::Serialize>(value: &T) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{}", show::json(value)?)
}
