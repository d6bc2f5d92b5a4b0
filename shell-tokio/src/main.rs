//! `transcript-processor`: reads the command line and does what it says.

mod commands;

use std::{error::Error, io, process::ExitCode};

use transcript_processor::{
    cli::{Cli, Command, LogFormat, Refusal, unknown_variables},
    error_line::error_line,
    logging,
    service::signals::{self, First},
    terminal::{harmless_lines, obeyed},
    traces,
    transcripts::{play, source},
};

/// Reading segments and writing updates is many small allocations on all threads at once.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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

impl Finding {
    fn is(good: bool) -> Self {
        if good { Self::Good } else { Self::Bad }
    }
}

fn main() -> ExitCode {
    let cli = match Cli::read(std::env::args_os()) {
        Ok(cli) => cli,
        Err(refusal) => return refused(&refusal),
    };
    let done = start(&cli);
    logging::flush();
    match done {
        Ok(Finding::Good) => ExitCode::SUCCESS,
        Ok(Finding::Bad) => ExitCode::from(FAILED),
        Err(e) if is_broken_pipe(e.as_ref()) => ExitCode::SUCCESS,
        Err(e) => {
            logging::error(&error_line(e.as_ref()));
            ExitCode::from(if e.is::<traces::Unreadable>() { USAGE } else { FAILED })
        }
    }
}

fn start(cli: &Cli) -> Result<Finding, Box<dyn Error>> {
    let first = if let Command::Run(_) | Command::Transcriber(_) = cli.command { First::Drains } else { First::Ends };
    let mut signals = signals::listen(first)?;
    logging::init(&cli.command.log())?;
    logging::log_panics();
    if let Command::Offline(offline) = &cli.command {
        return commands::offline(offline);
    }
    for warning in &cli.warnings {
        tracing::warn!("{warning}");
    }
    for variable in unknown_variables(std::env::vars_os().map(|(name, _)| name)) {
        tracing::warn!(
            "the environment variable {variable} is not known and has no effect: correct its name, or remove it"
        );
    }
    // Files are read before a server is asked: what is wrong with one of them changes nothing anywhere.
    let transcripts = if let Command::Play(play) = &cli.command {
        let transcripts = source::read_all(&play.args.source, play.args.cues.into(), &logging::warning)?;
        play::check(&transcripts, &play.args)?;
        transcripts
    } else {
        vec![]
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let done = runtime.block_on(commands::online(&cli.command, &transcripts, &mut signals));
    // The process ends here. Tasks of the MongoDB driver that still wait for a server would panic if the runtime ended first.
    std::mem::forget(runtime);
    done
}

/// Help and version are asked for, and go to stdout; everything else is wrong usage.
fn refused(refusal: &Refusal) -> ExitCode {
    let text = refusal.to_string();
    let is_asked_for = refusal.exit_code() == 0;
    let printed = match (refusal.format(), is_asked_for) {
        (LogFormat::Json, false) => {
            let text = text.trim_end();
            logging::error_before_the_start(text.strip_prefix("error: ").unwrap_or(text), LogFormat::Json);
            Ok(())
        }
        // It repeats what it was given, such as the name of a file.
        (LogFormat::Plain, false) if text.chars().any(|c| c != '\n' && obeyed(c)) => {
            let text = harmless_lines(text.trim_end());
            logging::error_before_the_start(text.strip_prefix("error: ").unwrap_or(&text), LogFormat::Plain);
            Ok(())
        }
        (LogFormat::Json | LogFormat::Plain, _) => refusal.error().print(),
    };
    if printed.is_ok() && is_asked_for { ExitCode::SUCCESS } else { ExitCode::from(USAGE) }
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
