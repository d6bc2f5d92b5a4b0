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
use transcript_core::event::SessionEnded;
use transcript_processor::{
    call_page,
    cli::{
        AuditArgs, CallsArgs, Command, ConvertArgs, DeadLettersCommand, NatsArgs, Needs, Offline, OnNats, PauseArgs,
        RecordingAction, RecordingArgs, RunArgs, SetupArgs, ShowArgs, StatusArgs,
    },
    connect::{ConnectError, Logins, NatsConnection, connect_mongodb, connect_nats},
    error_line::error_line,
    logging,
    monitor::{
        servers::Looker,
        status::Status,
        terminal::{self, fetch},
    },
    operate::audit::{self, Incomplete, Options, Progress, Remedy, SESSIONS_A_PASS},
    operate::calls::{CallLine, CallState, Calls, Wanted},
    operate::dead_letters::{self, Outcome, Whole},
    operate::pause,
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
    transcripts::source::{self, Transcript},
};

use super::Finding;

/// How long ending the connections to MongoDB may take.
const GOODBYE: Duration = Duration::from_millis(500);
/// A summary is not laid out wider.
const WIDEST_SUMMARY: usize = 100;

type Done = Result<Finding, Box<dyn Error>>;

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

/// Does what needs servers, or stops where a signal says so before they are reached.
pub(super) async fn online(
    command: &Command,
    transcripts: &[Transcript],
    signals: &mut mpsc::UnboundedReceiver<Signal>,
) -> Done {
    if let Command::Recording(args) = command {
        return recording(args).await;
    }
    let Some(needs) = command.needs() else {
        return if let Command::Status(status) = command {
            status_of_process(&status.args, signals).await
        } else {
            play_via(command, transcripts).await
        };
    };
    let refusals = Refusals::default();
    // Only services live long enough to wait for a login.
    let logins_within = match command {
        Command::Run(run) => run.args.login_timeout,
        Command::Transcriber(transcriber) => transcriber.args.login_timeout,
        Command::Setup(_)
        | Command::Play(_)
        | Command::Show(_)
        | Command::DeadLetters(_)
        | Command::Audit(_)
        | Command::Calls(_)
        | Command::Status(_)
        | Command::Pause(_)
        | Command::Resume(_)
        | Command::Recording(_)
        | Command::CallPage(_)
        | Command::Offline(_) => needs.connect.timeout,
    };
    let logins = Logins::new(logins_within);
    let connected = tokio::select! {
        connected = connect(needs, &refusals, &logins) => connected,
        Some(Signal::Drain | Signal::Stop) = signals.recv() => {
            tracing::info!("stopped before it had begun");
            return Ok(Finding::Good);
        }
    };
    let (nats, mongodb) = connected?;
    let database = mongodb.database(&needs.mongodb.database);
    let done = match (needs.nats, nats) {
        (Some(args), Some(nats)) => {
            let servers = Servers::new(args, nats, &database, &refusals);
            servers.perform(command, transcripts, Ends { logins: &logins, signals }).await
        }
        (None, _) | (_, None) => match command {
            Command::Show(show) => show_summary(&database, &show.args).await,
            Command::CallPage(page) => {
                call_page::serve(&page.args, database.clone(), print).await.map(|()| Finding::Good).map_err(Into::into)
            }
            Command::Transcriber(settings) => {
                let ends = Ends { logins: &logins, signals };
                transcriber::run::run(settings, &database, &refusals, ends)
                    .await
                    .map(|()| Finding::Good)
                    .map_err(Into::into)
            }
            Command::Run(_)
            | Command::Setup(_)
            | Command::Play(_)
            | Command::DeadLetters(_)
            | Command::Audit(_)
            | Command::Calls(_)
            | Command::Status(_)
            | Command::Pause(_)
            | Command::Resume(_)
            | Command::Recording(_)
            | Command::Offline(_) => Ok(Finding::Good),
        },
    };
    // A server that does not answer keeps the driver's tasks, and must not keep the process.
    if tokio::time::timeout(GOODBYE, mongodb.shutdown().immediate(true)).await.is_err() {
        tracing::debug!("MongoDB was left without a goodbye");
    }
    done
}

/// Connects to the servers that are needed. Where several cannot be reached, each is told of.
async fn connect(
    needs: Needs<'_>,
    refusals: &Refusals,
    logins: &Logins,
) -> Result<(Option<NatsConnection>, mongodb::Client), ConnectError> {
    let within = needs.connect.timeout;
    let nats = async {
        match needs.nats {
            Some(args) => connect_nats(args, within, refusals, logins).await.map(Some),
            None => Ok(None),
        }
    };
    match tokio::join!(nats, connect_mongodb(needs.mongodb, within, logins)) {
        (Ok(nats), Ok(mongodb)) => Ok((nats, mongodb)),
        (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
        (Err(nats), Err(mongodb)) => {
            logging::error(&error_line(&nats));
            Err(mongodb)
        }
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
}

impl<'a> Servers<'a> {
    fn new(args: &'a NatsArgs, nats: NatsConnection, database: &'a Database, refusals: &'a Refusals) -> Self {
        let (js, api) = jetstream_of(args, nats.client.clone());
        Self { args, nats, js, api, database, refusals }
    }

    async fn perform(self, command: &Command, transcripts: &[Transcript], ends: Ends<'_>) -> Done {
        match command {
            Command::Run(run) => self.run(&run.args, ends).await,
            Command::Setup(setup) => self.set_up(&setup.args).await,
            Command::Play(play) => {
                let print = |played: &play::PlayedSession| print_played(played, play.args.json);
                play::play(&self.js, self.database, &play.args, transcripts, print).await?;
                Ok(Finding::Good)
            }
            Command::DeadLetters(args) => dead_letters(&self.js, self.database, &args.command).await,
            Command::Audit(audited) => audit(&self.js, self.database, &audited.args).await,
            Command::Calls(listed) => calls(&self.js, self.database, &listed.args, ends).await,
            Command::Status(status) => status_of_servers(&self.js, self.database, &status.args, ends).await,
            Command::Pause(paused) => pause(&self.js, &paused.args).await,
            Command::Resume(_) => resume(&self.js).await,
            Command::Show(show) => show_summary(self.database, &show.args).await,
            Command::Transcriber(_) | Command::Recording(_) | Command::CallPage(_) | Command::Offline(_) => {
                Ok(Finding::Good)
            }
        }
    }

    fn permissions(&self) -> Permissions<'a> {
        Permissions { refusals: self.refusals, api_prefix: self.args.js_api_prefix() }
    }

    async fn run(self, args: &RunArgs, ends: Ends<'_>) -> Done {
        let permissions = self.permissions();
        run::run(self.nats, self.js, self.api, permissions, self.database.clone(), args, ends).await?;
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

/// Plays transcripts where neither NATS nor MongoDB is connected to.
async fn play_via(command: &Command, transcripts: &[Transcript]) -> Done {
    if let Command::Play(play) = command
        && let Some(address) = &play.args.via
    {
        let print = |played: &play::PlayedSession| print_played(played, play.args.json);
        play::via::play(&play.args, address, transcripts, Clock::start().wall().as_millis(), print).await?;
    }
    Ok(Finding::Good)
}

fn print_played(played: &play::PlayedSession, json: bool) -> io::Result<()> {
    let line = if json { serde_json::to_string(played)? } else { played.to_string() };
    writeln!(io::stdout().lock(), "{}", harmless_json(&line))
}

async fn show_summary(database: &Database, args: &ShowArgs) -> Done {
    let document = show::load(database, &args.call.session()?).await?;
    if args.json {
        writeln!(io::stdout().lock(), "{}", show::to_json(document))?;
    } else {
        print(&show::render(&document, textwrap::termwidth().min(WIDEST_SUMMARY))?)?;
    }
    Ok(Finding::Good)
}

async fn dead_letters(js: &jetstream::Context, database: &Database, command: &DeadLettersCommand) -> Done {
    let (outcomes, json) = match command {
        DeadLettersCommand::List(list) => {
            let dead_letters = dead_letters::list(js, database).await?;
            match (list.args.json, dead_letters.is_empty()) {
                (true, _) => print_json(&dead_letters)?,
                (false, true) => print("no dead letters")?,
                (false, false) => print(&dead_letters::table(&dead_letters, width()))?,
            }
            return Ok(Finding::Good);
        }
        DeadLettersCommand::Show(one) => {
            let (dead_letter, payload) = dead_letters::show(js, database, one.args.sequence).await?;
            if one.args.json {
                print_json(&Whole::new(&dead_letter, &payload))?;
            } else {
                print(&dead_letters::render(&dead_letter, &payload))?;
            }
            return Ok(Finding::Good);
        }
        DeadLettersCommand::Redrive(redrive) => {
            let corrected = redrive.args.payload.as_deref().map(read_end).transpose()?;
            let which = redrive.args.which();
            (dead_letters::redrive(js, database, &which, corrected.as_ref()).await?, redrive.args.json)
        }
        DeadLettersCommand::Discard(discard) => {
            (dead_letters::discard(js, &discard.args.sequences).await?, discard.args.json)
        }
    };
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

async fn audit(js: &jetstream::Context, database: &Database, args: &AuditArgs) -> Done {
    let now = Clock::start().wall();
    let since = args.since.map(|since| since.moment(now));
    if since.is_some_and(|since| since >= now) {
        return Err("--since names a moment that is not past".into());
    }
    let remedy = if args.repair { Remedy::Repair } else { Remedy::Tell };
    let incomplete = if args.incomplete { Incomplete::All } else { Incomplete::Some };
    let options = Options { since, remedy, sessions_a_pass: SESSIONS_A_PASS, incomplete };
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

async fn pause(js: &jetstream::Context, args: &PauseArgs) -> Done {
    let until = pause::pause(js, Clock::start().wall(), args.lasts).await?;
    print(&format!("paused until {until}: no call is handed out before; `resume` ends that"))?;
    Ok(Finding::Good)
}

async fn resume(js: &jetstream::Context) -> Done {
    let hands_out = pause::resume(js).await?;
    print(if hands_out { "resumed: calls are handed out" } else { "the consumer is still paused" })?;
    Ok(Finding::Good)
}

/// Lists calls, and goes on where that is asked for until somebody wants no more of it.
async fn calls(js: &jetstream::Context, database: &Database, args: &CallsArgs, ends: Ends<'_>) -> Done {
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
    let listed = async {
        calls.list(print).await?;
        if args.follow { calls.follow(print).await } else { Ok(()) }
    };
    tokio::select! {
        listed = listed => listed?,
        _ = ends.signals.recv() => {}
    }
    Ok(Finding::Good)
}

/// How a running process says that it stands.
async fn status_of_process(args: &StatusArgs, signals: &mut mpsc::UnboundedReceiver<Signal>) -> Done {
    let Some(address) = &args.from else { return Ok(Finding::Good) };
    let token = args.token_file.as_ref().map(run::read_token).transpose()?;
    loop {
        let status = fetch(address, token.as_ref()).await;
        match (status, args.watch) {
            (Ok(status), _) => {
                let finding = print_status(&status, args)?;
                if !args.watch {
                    return Ok(finding);
                }
            }
            (Err(error), true) => logging::error(&error_line(&error)),
            (Err(error), false) => return Err(error.into()),
        }
        if is_interrupted(args, signals).await {
            return Ok(Finding::Good);
        }
    }
}

/// How the servers stand, as they say themselves.
async fn status_of_servers(js: &jetstream::Context, database: &Database, args: &StatusArgs, ends: Ends<'_>) -> Done {
    let clock = Clock::start();
    let looker = Looker::new(js, database, clock);
    loop {
        let status = Status::of_servers(clock.wall(), &looker.look().await);
        let finding = print_status(&serde_json::to_value(&status)?, args)?;
        if !args.watch {
            return Ok(finding);
        }
        if is_interrupted(args, ends.signals).await {
            return Ok(Finding::Good);
        }
    }
}

/// Waits until the next time, or until somebody wants no more of it.
async fn is_interrupted(args: &StatusArgs, signals: &mut mpsc::UnboundedReceiver<Signal>) -> bool {
    tokio::select! {
        () = tokio::time::sleep(args.every) => false,
        _ = signals.recv() => true,
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
