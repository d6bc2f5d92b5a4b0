//! `transcript-processor`: reads the command line and does what it says.

use std::{
    error::Error,
    io::{self, Write},
    process::ExitCode,
};

use async_nats::{Client, jetstream};
use mongodb::Database;
use transcript_processor::{
    cli::{Cli, Command, PlayArgs, ShowArgs, StreamSettings},
    connect::{ConnectError, connect_mongodb, connect_nats},
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
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match &cli.command {
            Command::Run(args) => {
                let (nats, database) = connect(cli).await?;
                Ok(run::run(nats, database, args).await?)
            }
            Command::Setup(settings) => set_up(cli, settings).await,
            Command::Play(args) => play_files(cli, args).await,
            Command::Show(args) => show_summary(cli, args).await,
        }
    })
}

async fn set_up(cli: &Cli, settings: &StreamSettings) -> Result<(), Box<dyn Error>> {
    let (nats, database) = connect(cli).await?;
    let report = setup::ensure(&jetstream::new(nats), &database, settings).await?;
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

async fn play_files(cli: &Cli, args: &PlayArgs) -> Result<(), Box<dyn Error>> {
    let (nats, database) = connect(cli).await?;
    let print = |played: &play::Played| writeln!(io::stdout().lock(), "{played}");
    Ok(play::play(&jetstream::new(nats), &database, args, print).await?)
}

async fn show_summary(cli: &Cli, args: &ShowArgs) -> Result<(), Box<dyn Error>> {
    let database = connect_database(cli).await?;
    let document = show::load(&database, &args.session()?).await?;
    let page =
        if args.json { show::to_json(document) } else { show::render(&document, textwrap::termwidth().min(100))? };
    writeln!(io::stdout().lock(), "{}", page.trim_end())?;
    Ok(())
}

async fn connect(cli: &Cli) -> Result<(Client, Database), ConnectError> {
    tokio::try_join!(connect_nats(&cli.nats, cli.connect_timeout), connect_database(cli))
}

async fn connect_database(cli: &Cli) -> Result<Database, ConnectError> {
    Ok(connect_mongodb(&cli.mongodb, cli.connect_timeout).await?.database(&cli.mongodb.database))
}

/// Help and version are asked for, and go to stdout; everything else is wrong usage.
fn usage(error: &clap::Error) -> ExitCode {
    if error.print().is_err() || error.exit_code() != 0 { ExitCode::from(USAGE) } else { ExitCode::SUCCESS }
}

/// The error and its causes in one line. Some errors repeat their cause in their own text; it is then not said twice.
fn with_causes(error: &dyn Error) -> String {
    let mut line = one_line(&error.to_string());
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = one_line(&error.to_string());
        if !line.contains(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        cause = error.source();
    }
    line
}

fn one_line(text: &str) -> String {
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
