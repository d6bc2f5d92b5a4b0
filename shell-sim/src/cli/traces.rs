//! The commands that read traces.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use serde::Deserialize;
use serde_json::{Value, json};
use transcript_core::Processor;
use transcript_sim::{
    Plan,
    crashes::{self, Unfit},
};
use transcript_trace::{
    ReadError, Reader, TraceFiles,
    cut::Wanted,
    replay::{Problem, replay as replay_trace},
};

use super::{
    Cli, RunArgs,
    report::{self, Kept},
};

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// A trace, of production or of the simulator; or a plan.
    file: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct CrashArgs {
    /// Traces, of production or of the simulator: files, directories of *.jsonl, or - for the standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The session; not needed where the trace has only one.
    #[arg(long)]
    session: Option<String>,
    /// The session's conversation, where more than one has a session of this name.
    #[arg(long, requires = "session")]
    conversation: Option<String>,
}

/// Feeds a trace to the core, or runs a plan. A difference or a broken promise gives 1.
pub(super) fn replay(cli: &Cli, args: &ReplayArgs) -> io::Result<ExitCode> {
    let path = &args.file;
    if !is_trace(path)? {
        let run = RunArgs { seed: None, plan: Some(path.clone()), large: None, times: 1, trace: None };
        return super::run(cli, &run);
    }
    let new_core = |header: &transcript_trace::Header| Processor::new(header.settings.clone());
    let said = match replay_trace(Reader::new(open(path)?), new_core) {
        Ok(replayed) => {
            tell(cli, &replayed.to_string(), || json!({ "command": "replay", "difference": null }))?;
            ExitCode::SUCCESS
        }
        Err(Problem::Difference(difference)) => {
            let text = difference.to_string();
            tell(cli, &text, || json!({ "command": "replay", "difference": text }))?;
            ExitCode::FAILURE
        }
        Err(problem @ (Problem::Read(_) | Problem::Settings { .. } | Problem::TranscriberSettings { .. })) => {
            return Err(named(path, &problem));
        }
    };
    Ok(said)
}

/// Kills the call of a trace everywhere, and keeps the plan of each kill that breaks a promise.
pub(super) fn crash_everywhere(cli: &Cli, args: &CrashArgs) -> io::Result<ExitCode> {
    let conversation_id = args.conversation.clone();
    let wanted = args.session.clone().map(|session_id| Wanted { session_id, conversation_id });
    let warn = |warning: &str| report::warn(warning);
    let mut lines = TraceFiles::open(&args.files, &warn).map_err(io::Error::other)?;
    let found = match crashes::everywhere(&mut lines, wanted.as_ref()) {
        Ok(found) => found,
        Err(Unfit::Read(ReadError::Io(source))) => return Err(named(Path::new(lines.file()), &source)),
        Err(Unfit::Read(source)) => return Err(io::Error::other(lines.unreadable(source))),
        Err(unfit) => return Err(io::Error::other(format!("{}: {unfit}", lines.file()))),
    };
    tell(cli, &found.to_string(), || json!({ "command": "crash-everywhere", "report": found }))?;
    for (crash, number) in found.broken().zip(1..) {
        let Some(plan) = &crash.plan else { continue };
        let kept = Kept::new(&cli.out, &format!("crash-{}-{}-{number}", crash.part, crash.entry), plan)?;
        if !cli.json {
            let (plan, page) = (kept.plan.display(), kept.timeline.display());
            report::line(&format!("{plan}, {page}: killed {}", crash.killed))?;
        }
    }
    Ok(if found.is_kept() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A plan out of a file, as a failure leaves it.
pub(super) fn read_plan(path: &Path) -> io::Result<Plan> {
    if is_trace(path)? {
        return Err(named(path, &"this is a trace: `transcript-sim replay` reads it"));
    }
    serde_json::from_reader(open(path)?).map_err(|error| named(path, &error))
}

/// An error with the file that it is about.
pub(super) fn named(path: &Path, error: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {error}", path.display()))
}

fn tell(cli: &Cli, text: &str, object: impl FnOnce() -> Value) -> io::Result<()> {
    if cli.json { report::json(&object()) } else { report::line(text) }
}

fn open(path: &Path) -> io::Result<BufReader<File>> {
    File::open(path).map(BufReader::new).map_err(|error| named(path, &error))
}

/// Whether the file's first line is that of a trace, of whatever format.
fn is_trace(path: &Path) -> io::Result<bool> {
    #[derive(Deserialize)]
    struct Header {
        #[serde(rename = "transcriptTrace")]
        _format: u64,
    }
    let mut first = vec![];
    open(path)?.read_until(b'\n', &mut first).map_err(|error| named(path, &error))?;
    Ok(serde_json::from_slice::<Header>(&first).is_ok())
}
