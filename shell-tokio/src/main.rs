//! `transcript-processor`: reads the command line and does what it says.

use std::{
    error::Error,
    io::{self, Write},
    process::ExitCode,
};

use async_nats::{Client, jetstream};
use mongodb::Database;
use transcript_processor::{
    cli::{Cli, Command, ShowArgs, StreamSettings},
    connect::{connect_mongodb, connect_nats},
    logging, play, run, setup, show,
};

/// The command did not do what it was asked.
const FAILED: u8 = 1;
/// The command line or a setting is wrong.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let cli = match Cli::read(std::env::args_os()) {
        Ok(cli) => cli,
        Err(e) => return usage(&e),
    };
    match start(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) if is_broken_pipe(e.as_ref()) => ExitCode::SUCCESS,
        Err(e) => {
            report(&format!("error: {}", with_causes(e.as_ref())));
            ExitCode::from(FAILED)
        }
    }
}

fn start(cli: &Cli) -> Result<(), Box<dyn Error>> {
    logging::init(&cli.log)?;
    logging::log_panics();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(command(cli))
}

async fn command(cli: &Cli) -> Result<(), Box<dyn Error>> {
    let nats = async {
        match &cli.command {
            Command::Show(_) => Ok(None),
            Command::Run(_) | Command::Setup(_) | Command::Play(_) => {
                connect_nats(&cli.nats, cli.connect_timeout).await.map(Some)
            }
        }
    };
    let (nats, mongodb) = tokio::join!(nats, connect_mongodb(&cli.mongodb, cli.connect_timeout));
    let mongodb = mongodb?;
    let done = match nats {
        Ok(nats) => perform(cli, nats, &mongodb.database(&cli.mongodb.database)).await,
        Err(error) => Err(error.into()),
    };
    // The driver's tasks must not outlive the runtime: they panic where it ends under them.
    mongodb.shutdown().immediate(true).await;
    done
}

async fn perform(cli: &Cli, nats: Option<Client>, database: &Database) -> Result<(), Box<dyn Error>> {
    match (&cli.command, nats) {
        (Command::Run(args), Some(nats)) => Ok(run::run(nats, database.clone(), args).await?),
        (Command::Setup(settings), Some(nats)) => set_up(&jetstream::new(nats), database, settings).await,
        (Command::Play(args), Some(nats)) => {
            let print = |played: &play::Played| writeln!(io::stdout().lock(), "{played}");
            Ok(play::play(&jetstream::new(nats), database, args, print).await?)
        }
        (Command::Show(args), _) => show_summary(database, args).await,
        (Command::Run(_) | Command::Setup(_) | Command::Play(_), None) => Ok(()),
    }
}

async fn set_up(js: &jetstream::Context, database: &Database, settings: &StreamSettings) -> Result<(), Box<dyn Error>> {
    let report = setup::ensure(js, database, settings).await?;
    let mut out = io::stdout().lock();
    for change in &report.changes {
        writeln!(out, "{change}")?;
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

/// Help and version are asked for, and go to stdout; everything else is wrong usage.
fn usage(error: &clap::Error) -> ExitCode {
    if error.print().is_err() || error.exit_code() != 0 { ExitCode::from(USAGE) } else { ExitCode::SUCCESS }
}

/// The error and its causes in one line. Some errors repeat their cause in their own text; it is then not said twice.
fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut line = told(error);
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = told(error);
        if !line.contains(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        cause = error.source();
    }
    line
}

/// The error's own text, in one line. The MongoDB driver's adds fields for debugging, of which its kind is the text.
fn told(error: &(dyn Error + 'static)) -> String {
    let mongodb = error
        .downcast_ref::<mongodb::error::Error>()
        .or_else(|| error.downcast_ref::<Box<mongodb::error::Error>>().map(Box::as_ref));
    let text = mongodb.map_or_else(|| error.to_string(), |error| error.kind.to_string());
    text.split_whitespace().collect::<Vec<_>>().join(" ")
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

fn report(line: &str) {
    // Where stderr is closed there is nobody left to tell.
    drop(writeln!(io::stderr().lock(), "{line}"));
}
