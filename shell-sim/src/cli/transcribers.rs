//! Worlds of transcribers.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use serde_json::json;
use transcript_sim::transcribers::{Bug, Failure, Found, Plan, exhaustive, hunt, search, shrink};

use super::{Cli, progress::Stopwatch, report, threads};

/// Lines of what happened that are printed; the whole is in a file.
const TAIL: usize = 60;

#[derive(Debug, Args)]
pub(super) struct TranscribersArgs {
    /// How many worlds are drawn.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// How many threads run worlds.
    #[arg(long)]
    threads: Option<usize>,
    /// Leaves out the small world with its faults at every point.
    #[arg(long)]
    drawn_only: bool,
    /// Looks for every planted bug instead.
    #[arg(long, conflicts_with_all = ["seeds", "drawn_only", "plan"])]
    bugs: bool,
    /// Runs one world from a file, as a failure leaves it, and prints what happened.
    #[arg(long, conflicts_with_all = ["seeds", "from", "drawn_only"])]
    plan: Option<PathBuf>,
}

/// Runs what was asked for. Promises that were broken give 1.
pub(super) fn run(cli: &Cli, args: &TranscribersArgs) -> io::Result<ExitCode> {
    if let Some(path) = &args.plan {
        return replay(cli, path);
    }
    if args.bugs {
        return bugs(cli, args);
    }
    let watch = Stopwatch::start();
    let mut all = vec![];
    if !args.drawn_only {
        all.push(("every fault at every point", exhaustive(threads(args.threads))));
    }
    if all.iter().all(|(_, found)| found.failure.is_none()) {
        all.push(("drawn", search(args.from, args.seeds, threads(args.threads))));
    }
    let seconds = watch.seconds();
    let failure = all.iter().find_map(|(_, found)| found.failure.as_ref());
    if cli.json {
        let families: Vec<_> = all.iter().map(|(name, found)| json!({ "name": name, "found": found })).collect();
        report::json(&json!({ "command": "transcribers", "seconds": seconds, "families": families }))?;
    } else {
        for (name, found) in &all {
            let Found { worlds, virtual_us, acknowledged, ends, faults, .. } = found;
            report::line(&format!(
                "{name}: {worlds} worlds, {faults} faults, {acknowledged} acknowledged segments, {ends} ends, {:.0} s of their time",
                super::micros(*virtual_us)
            ))?;
        }
        report::line(&format!("{seconds:.1} s"))?;
    }
    match failure {
        Some(failure) => {
            tell(cli, &shrink(&failure.plan, &failure.violation))?;
            Ok(ExitCode::FAILURE)
        }
        None => Ok(ExitCode::SUCCESS),
    }
}

fn bugs(cli: &Cli, args: &TranscribersArgs) -> io::Result<ExitCode> {
    let mut missed = 0;
    let mut rows = vec![];
    for bug in Bug::ALL {
        let found = hunt(bug, args.from);
        missed += u64::from(found.is_none());
        if !cli.json {
            report::line(&match &found {
                Some((seeds, failure)) => format!("{bug}: {} after {seeds} seeds", failure.violation.property),
                None => format!("{bug}: NOT FOUND"),
            })?;
        }
        rows.push(json!({ "bug": bug, "seeds": found.as_ref().map(|(seeds, _)| seeds), "failure": found.map(|(_, failure)| failure) }));
    }
    if cli.json {
        report::json(&json!({ "command": "transcribers", "bugs": rows }))?;
    }
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn replay(cli: &Cli, path: &Path) -> io::Result<ExitCode> {
    let plan: Plan = serde_json::from_slice(&std::fs::read(path)?)?;
    let outcome = plan.run(true);
    if cli.json {
        report::json(&json!({ "command": "transcribers", "violation": outcome.violation }))?;
    } else {
        let mut out = io::stdout().lock();
        write!(out, "{plan}\n{}", outcome.trace.as_deref().unwrap_or_default())?;
    }
    Ok(if outcome.violation.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Keeps a failure in files, and tells everything about it.
fn tell(cli: &Cli, failure: &Failure) -> io::Result<()> {
    std::fs::create_dir_all(&cli.out)?;
    let plan = cli.out.join(format!("transcribers-{}.plan.json", failure.plan.seed));
    std::fs::write(&plan, serde_json::to_vec_pretty(&failure.plan)?)?;
    let trace = failure.plan.run(true).trace.unwrap_or_default();
    std::fs::write(plan.with_extension("txt"), &trace)?;
    if cli.json {
        return Ok(());
    }
    let mut out = io::stdout().lock();
    writeln!(out, "BROKEN: {}\n  {}", failure.violation.property, failure.violation.what)?;
    writeln!(out, "the shrunk plan:\n{}", failure.plan)?;
    let lines: Vec<&str> = trace.lines().collect();
    for line in lines.iter().skip(lines.len().saturating_sub(TAIL)) {
        writeln!(out, "  {line}")?;
    }
    writeln!(out, "repeat with: cargo run -p transcript-sim -- transcribers --plan {}", plan.display())
}
