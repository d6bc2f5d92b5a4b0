//! `transcript-processor`: reads the command line and does what it says.

use std::{
    error::Error,
    io::{self, IsTerminal, Read, Write},
    path::Path,
    process::ExitCode,
    time::Duration,
};

use async_nats::jetstream;
use mongodb::Database;
use tokio::sync::mpsc;
use transcript_core::event::SessionEnded;
use transcript_processor::{
    cli::{AuditArgs, Cli, Command, DeadLettersCommand, NatsArgs, SetupArgs, ShowArgs, Which},
    connect::{Logins, NatsConnection, connect_mongodb, connect_nats},
    error_line::error_line,
    logging,
    operate::audit::{self, Incomplete, Options, Progress, Remedy, SESSIONS_A_PASS},
    operate::dead_letters::{self, Outcome, Whole},
    operate::setup::{
        self, Api, Pause, Request,
        permissions::{Permissions, Refusals},
    },
    service::clock::Clock,
    service::driver::Signal,
    service::run::{self, Ends},
    service::signals::{self, First},
    traces, transcriber,
    transcripts::convert,
    transcripts::play,
    transcripts::show,
    transcripts::source::{self, Transcript},
};

/// Reading segments and writing updates is many small allocations on all threads at once.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long ending the connections to MongoDB may take.
const GOODBYE: Duration = Duration::from_millis(500);
/// The command did not do what it was asked.
const FAILED: u8 = 1;
/// The command line or a setting is wrong.
const USAGE: u8 = 2;

/// What a command that did its work has to say by its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finding {
    /// All is well.
    Good,
    /// Something is not as it should be, and was told.
    Bad,
}

fn main() -> ExitCode {
    let cli = match Cli::read(std::env::args_os()) {
        Ok(cli) => cli,
        Err(e) => return usage(&e),
    };
    let done = start(&cli);
    logging::flush();
    match done {
        Ok(Finding::Good) => ExitCode::SUCCESS,
        Ok(Finding::Bad) => ExitCode::from(FAILED),
        Err(e) if is_broken_pipe(e.as_ref()) => ExitCode::SUCCESS,
        Err(e) => {
            logging::report(&format!("error: {}", error_line(e.as_ref())));
            ExitCode::from(if e.is::<traces::Unreadable>() { USAGE } else { FAILED })
        }
    }
}

fn start(cli: &Cli) -> Result<Finding, Box<dyn Error>> {
    let first = if let Command::Run(_) | Command::Transcriber(_) = cli.command { First::Drains } else { First::Ends };
    let mut signals = signals::listen(first)?;
    logging::init(&cli.log)?;
    logging::log_panics();
    if let Some(done) = read_traces(&cli.command) {
        return done;
    }
    // Files are read before a server is asked: what is wrong with one of them changes nothing anywhere.
    let transcripts = match read_transcripts(&cli.command)? {
        Transcripts::ToPlay(transcripts) => transcripts,
        Transcripts::Converted => return Ok(Finding::Good),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let done = runtime.block_on(command(cli, &transcripts, &mut signals));
    // The process ends here. Tasks of the MongoDB driver that still wait for a server would panic if the runtime ended first.
    std::mem::forget(runtime);
    done
}

async fn command(
    cli: &Cli,
    transcripts: &[Transcript],
    signals: &mut mpsc::UnboundedReceiver<Signal>,
) -> Result<Finding, Box<dyn Error>> {
    if let Command::Play(args) = &cli.command
        && let Some(address) = &args.via
    {
        let print = |played: &play::PlayedSession| writeln!(io::stdout().lock(), "{played}");
        play::via::play(args, address, transcripts, Clock::start().wall().as_millis(), print).await?;
        return Ok(Finding::Good);
    }
    let refusals = Refusals::default();
    let logins = Logins::new(cli.login_timeout);
    let nats = async {
        match &cli.command {
            Command::Show(_)
            | Command::Convert(_)
            | Command::Replay(_)
            | Command::Trace(_)
            | Command::Timeline(_)
            | Command::Transcriber(_) => Ok(None),
            Command::Run(_) | Command::Setup(_) | Command::Play(_) | Command::DeadLetters(_) | Command::Audit(_) => {
                connect_nats(&cli.nats, cli.connect_timeout, &refusals, &logins).await.map(Some)
            }
        }
    };
    let connected = async { tokio::join!(nats, connect_mongodb(&cli.mongodb, cli.connect_timeout, &logins)) };
    let (nats, mongodb) = tokio::select! {
        connected = connected => connected,
        Some(Signal::Drain | Signal::Stop) = signals.recv() => {
            tracing::info!("stopped before it had begun");
            return Ok(Finding::Good);
        }
    };
    let mongodb = mongodb?;
    let done = match nats {
        Ok(nats) => {
            let ends = Ends { logins: &logins, signals };
            perform(cli, nats, &refusals, &mongodb.database(&cli.mongodb.database), transcripts, ends).await
        }
        Err(error) => Err(error.into()),
    };
    // A server that does not answer keeps the driver's tasks, and must not keep the process.
    if tokio::time::timeout(GOODBYE, mongodb.shutdown().immediate(true)).await.is_err() {
        tracing::debug!("MongoDB was left without a goodbye");
    }
    done
}

async fn perform(
    cli: &Cli,
    nats: Option<NatsConnection>,
    refusals: &Refusals,
    database: &Database,
    transcripts: &[Transcript],
    ends: Ends<'_>,
) -> Result<Finding, Box<dyn Error>> {
    let Some(nats) = nats else {
        if let Command::Show(args) = &cli.command {
            show_summary(database, args).await?;
        }
        if let Command::Transcriber(args) = &cli.command {
            transcriber::run::run(cli, args, database, refusals, ends).await?;
        }
        return Ok(Finding::Good);
    };
    let (js, api) = jetstream_of(&cli.nats, &nats.client);
    match &cli.command {
        Command::Run(args) => {
            let permissions = Permissions { refusals, api_prefix: cli.nats.js_api_prefix() };
            run::run(nats, js, api, permissions, database.clone(), args, ends).await?;
        }
        Command::Setup(args) => {
            let permissions = Permissions { refusals, api_prefix: cli.nats.js_api_prefix() };
            set_up(&js, database, args, api, &permissions).await?;
        }
        Command::Play(args) => {
            let print = |played: &play::PlayedSession| writeln!(io::stdout().lock(), "{played}");
            play::play(&js, database, args, transcripts, print).await?;
        }
        Command::Show(args) => show_summary(database, args).await?,
        Command::DeadLetters(args) => return dead_letters(&js, database, &args.command).await,
        Command::Audit(args) => return audit(&js, database, args).await,
        Command::Convert(_)
        | Command::Replay(_)
        | Command::Trace(_)
        | Command::Timeline(_)
        | Command::Transcriber(_) => {}
    }
    Ok(Finding::Good)
}

/// Does what needs no server; `None` where the command is another one.
fn read_traces(command: &Command) -> Option<Result<Finding, Box<dyn Error>>> {
    let warn = |warning: &str| logging::report(&format!("warning: {warning}"));
    let done = match command {
        Command::Replay(args) => traces::replay(args, &warn),
        Command::Trace(args) => traces::trace(args, &warn),
        Command::Timeline(args) => traces::timeline(args, &warn),
        Command::Run(_)
        | Command::Setup(_)
        | Command::Play(_)
        | Command::Convert(_)
        | Command::Show(_)
        | Command::DeadLetters(_)
        | Command::Audit(_)
        | Command::Transcriber(_) => return None,
    };
    Some(done.and_then(|answer| {
        // A cut that went to stdout is all that there is to be.
        if !answer.text.is_empty() {
            print(&answer.text)?;
        }
        Ok(if answer.is_good { Finding::Good } else { Finding::Bad })
    }))
}

enum Transcripts {
    /// Of `play`; none of another command.
    ToPlay(Vec<Transcript>),
    /// `convert` has printed them.
    Converted,
}

/// Reads the files of `play`, and does `convert`.
fn read_transcripts(command: &Command) -> Result<Transcripts, Box<dyn Error>> {
    let warn = |warning: &str| logging::report(&format!("warning: {warning}"));
    match command {
        Command::Play(args) => {
            let transcripts = source::read_all(&args.source, args.cues.into(), &warn)?;
            play::check(&transcripts, args)?;
            Ok(Transcripts::ToPlay(transcripts))
        }
        Command::Convert(args) => {
            let transcripts = source::read_all(&args.source, args.cues.into(), &warn)?;
            let pages = transcripts.iter().map(convert::lines).collect::<Result<Vec<_>, _>>()?;
            let mut out = io::stdout().lock();
            pages.iter().try_for_each(|page| out.write_all(page.as_bytes()))?;
            out.flush()?;
            Ok(Transcripts::Converted)
        }
        Command::Run(_)
        | Command::Setup(_)
        | Command::Show(_)
        | Command::DeadLetters(_)
        | Command::Audit(_)
        | Command::Replay(_)
        | Command::Trace(_)
        | Command::Timeline(_)
        | Command::Transcriber(_) => Ok(Transcripts::ToPlay(Vec::new())),
    }
}

/// The JetStream that is meant.
fn jetstream_of(args: &NatsArgs, client: &async_nats::Client) -> (jetstream::Context, Api) {
    match (&args.js_domain, &args.js_api_prefix) {
        (Some(domain), _) => (jetstream::with_domain(client.clone(), domain), Api::Named),
        (None, Some(prefix)) => (jetstream::with_prefix(client.clone(), prefix), Api::Named),
        (None, None) => (jetstream::new(client.clone()), Api::Nearest),
    }
}

async fn set_up(
    js: &jetstream::Context,
    database: &Database,
    args: &SetupArgs,
    api: Api,
    permissions: &Permissions<'_>,
) -> Result<(), Box<dyn Error>> {
    let lacking = permissions.check_setup(&js.client()).await?;
    let pause = if args.resume { Pause::End } else { Pause::Keep };
    let request = Request { settings: args.stream.clone(), api, pause, ..Request::default() };
    let mut report = setup::ensure(js, database, &request).await?;
    if let Err(error) = setup::ensure_transcriber(database, &mut report).await {
        report.warnings.push(format!("the transcriber's indexes are not there: {}", error_line(&error)));
    }
    report.warnings.extend(lacking);
    let mut out = io::stdout().lock();
    for change in &report.changes {
        writeln!(out, "{change}")?;
    }
    for kept in &report.kept {
        writeln!(out, "{kept}")?;
    }
    if report.changes.is_empty() {
        writeln!(out, "nothing to change")?;
    }
    for warning in &report.warnings {
        tracing::warn!("{warning}");
    }
    Ok(())
}

async fn show_summary(database: &Database, args: &ShowArgs) -> Result<(), Box<dyn Error>> {
    let document = show::load(database, &args.session()?).await?;
    let page =
        if args.json { show::to_json(document) } else { show::render(&document, textwrap::termwidth().min(100))? };
    writeln!(io::stdout().lock(), "{}", page.trim_end())?;
    Ok(())
}

async fn dead_letters(
    js: &jetstream::Context,
    database: &Database,
    command: &DeadLettersCommand,
) -> Result<Finding, Box<dyn Error>> {
    let (outcomes, json) = match command {
        DeadLettersCommand::List { json } => {
            let dead_letters = dead_letters::list(js, database).await?;
            let page = match (json, dead_letters.is_empty()) {
                (true, _) => show::json(&dead_letters)?,
                (false, true) => "no dead letters".to_owned(),
                (false, false) => dead_letters::table(&dead_letters, width()),
            };
            print(&page)?;
            return Ok(Finding::Good);
        }
        DeadLettersCommand::Show { sequence, json } => {
            let (dead_letter, payload) = dead_letters::show(js, database, *sequence).await?;
            let whole = || show::json(&Whole::new(&dead_letter, &payload));
            print(&if *json { whole()? } else { dead_letters::render(&dead_letter, &payload) })?;
            return Ok(Finding::Good);
        }
        DeadLettersCommand::Redrive { sequences, all, payload, json } => {
            let which = if *all { Which::AllOpen } else { Which::These(sequences.clone()) };
            let corrected = payload.as_deref().map(read_end).transpose()?;
            (dead_letters::redrive(js, database, &which, corrected.as_ref()).await?, *json)
        }
        DeadLettersCommand::Discard { sequences, json } => (dead_letters::discard(js, sequences).await?, *json),
    };
    let told = outcomes.iter().map(Outcome::to_string).collect::<Vec<_>>().join("\n");
    match (json, outcomes.is_empty()) {
        (true, _) => print(&show::json(&outcomes)?)?,
        (false, true) => print("no open dead letters")?,
        (false, false) => print(&told)?,
    }
    Ok(if outcomes.iter().all(|outcome| outcome.done.is_success()) { Finding::Good } else { Finding::Bad })
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

async fn audit(js: &jetstream::Context, database: &Database, args: &AuditArgs) -> Result<Finding, Box<dyn Error>> {
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
    print(&if args.json { show::json(&audit)? } else { audit::render(&audit, incomplete) })?;
    Ok(if audit.one_to_one { Finding::Good } else { Finding::Bad })
}

fn print(page: &str) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{}", page.trim_end())
}

/// The columns of a line: those of the terminal, and as many as it takes where the output goes elsewhere.
fn width() -> usize {
    if io::stdout().is_terminal() { textwrap::termwidth() } else { usize::MAX }
}

/// Help and version are asked for, and go to stdout; everything else is wrong usage.
fn usage(error: &clap::Error) -> ExitCode {
    if error.print().is_err() || error.exit_code() != 0 { ExitCode::from(USAGE) } else { ExitCode::SUCCESS }
}

/// Whoever read the output has had enough of it, as `head` does.
fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    let mut error = Some(error);
    while let Some(e) = error {
        if e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) {
            return true;
        }
        error = e.source();
    }
    false
}
