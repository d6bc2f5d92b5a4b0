//! The command line.

mod progress;
mod report;
mod table;
mod traces;
mod transcribers;

use std::{
    io::{self, Write},
    num::NonZero,
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::{Args, Parser, Subcommand};
use transcript_sim::{
    Bug, Plan, Recording,
    explore::{self, Found, Until},
};

use self::{
    progress::{Progress, Stopwatch},
    report::{Kept, Report},
};

/// Tries the transcript processor in simulated worlds: every crash, in virtual time.
#[derive(Debug, Parser)]
#[command(name = "transcript-sim", version)]
struct Cli {
    /// Prints one JSON object instead of text.
    #[arg(long, global = true)]
    json: bool,
    /// Where the plan and the trace of a failure go.
    #[arg(long, global = true, default_value = "target/transcript-sim")]
    out: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs all small worlds: every kill, every pair of kills, every lost answer, every freeze.
    Explore(ExploreArgs),
    /// Draws worlds until one breaks a promise or the time is over.
    Search(SearchArgs),
    /// Runs one world and prints its trace.
    Run(RunArgs),
    /// Looks for every planted bug; needs the feature `planted-bugs`.
    Bugs(BugsArgs),
    /// Prints what a kill at each stop point of the crash test leads to.
    Table,
    /// Feeds a trace to the core and compares what it says; a plan is run.
    Replay(traces::ReplayArgs),
    /// Takes the trace of a call and kills its process at each of its points, in the simulator.
    CrashEverywhere(traces::CrashArgs),
    /// Tries the transcriber: every fault at every point of a small world, then drawn worlds.
    Transcribers(transcribers::TranscribersArgs),
}

#[derive(Debug, Args)]
struct ExploreArgs {
    /// How many threads run worlds.
    #[arg(long)]
    threads: Option<usize>,
    /// Leaves out the pairs of kills.
    #[arg(long)]
    single_faults: bool,
}

#[derive(Debug, Args)]
struct SearchArgs {
    /// For how long.
    #[arg(long = "for", default_value = "60s", value_parser = humantime::parse_duration)]
    span: Duration,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// How many threads run worlds.
    #[arg(long)]
    threads: Option<usize>,
}

#[derive(Debug, Args)]
struct RunArgs {
    /// The seed of the plan.
    #[arg(long, required_unless_present_any = ["plan", "large"], conflicts_with_all = ["plan"])]
    seed: Option<u64>,
    /// A file with a plan, as a failure leaves it.
    #[arg(long)]
    plan: Option<PathBuf>,
    /// A large world of so many calls, three processors and forty faults, without its trace.
    #[arg(long, conflicts_with = "plan")]
    large: Option<usize>,
    /// Runs the world so often on one thread, to measure the rate; only the last run keeps a trace.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    times: u64,
    /// Writes what every core was told and said into this file, in the format in which production records.
    #[arg(long)]
    trace: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct BugsArgs {
    /// How often each bug is searched for, each time from other seeds.
    #[arg(long, default_value_t = 10)]
    searches: u64,
}

/// Runs the command that was given. Promises that were broken give 1, everything that cannot be run gives 2.
pub(crate) fn main() -> ExitCode {
    let cli = Cli::parse();
    let code = match &cli.command {
        Command::Explore(args) => explore(&cli, args),
        Command::Search(args) => search(&cli, args),
        Command::Run(args) => run(&cli, args),
        Command::Bugs(args) => bugs(&cli, args),
        Command::Table => table::print(cli.json).map(|()| ExitCode::SUCCESS),
        Command::Replay(args) => traces::replay(&cli, args),
        Command::CrashEverywhere(args) => traces::crash_everywhere(&cli, args),
        Command::Transcribers(args) => transcribers::run(&cli, args),
    };
    code.unwrap_or_else(|error| {
        report::complain(&error);
        ExitCode::from(2)
    })
}

fn threads(chosen: Option<usize>) -> usize {
    chosen.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, NonZero::get))
}

fn explore(cli: &Cli, args: &ExploreArgs) -> io::Result<ExitCode> {
    let watch = Stopwatch::start();
    let mut all = Found::default();
    let mut families = vec![];
    for family in explore::families() {
        if args.single_faults && family.has_pairs() {
            continue;
        }
        let (progress, lap) = (Progress::start(family.name, cli.json), Stopwatch::start());
        let found = family.run(threads(args.threads), &|worlds| progress.add(worlds));
        progress.end();
        if !cli.json {
            report::line(&format!(
                "{:<45} {:>8} worlds  {}",
                family.name,
                found.worlds,
                if found.failure.is_some() { "BROKEN" } else { "kept" }
            ))?;
            report::timing(&format!("{:<45} {:>8.1} s", family.name, lap.seconds()));
        }
        families.push((family.name, found.worlds));
        all.add(found);
        if all.failure.is_some() {
            break;
        }
    }
    Report { command: "explore", cli, watch, families, digest: None }.finish(&all)
}

fn search(cli: &Cli, args: &SearchArgs) -> io::Result<ExitCode> {
    let watch = Stopwatch::start();
    let progress = Progress::start("search", cli.json);
    let over = || watch.seconds() >= args.span.as_secs_f64();
    let found = explore::search(args.from, threads(args.threads), &Until::AdvisoryReceiver(&over), &|worlds| {
        progress.add(worlds);
    });
    progress.end();
    Report { command: "search", cli, watch, families: vec![], digest: None }.finish(&found)
}

fn run(cli: &Cli, args: &RunArgs) -> io::Result<ExitCode> {
    let plan = match (&args.plan, args.large) {
        (Some(path), _) => traces::read_plan(path)?,
        (None, Some(calls)) => Plan::large(args.seed.unwrap_or(0), calls, 3, 40),
        (None, None) => Plan::of_seed(args.seed.unwrap_or(0)),
    };
    run_plan(cli, args, &plan)
}

fn run_plan(cli: &Cli, args: &RunArgs, plan: &Plan) -> io::Result<ExitCode> {
    let recording = if args.large.is_some() { Recording::Off } else { Recording::On };
    if plan.bug.is_some() && !Bug::are_compiled() {
        return Err(io::Error::other("the plan has a planted bug: build with --features planted-bugs"));
    }
    let watch = Stopwatch::start();
    let mut found = Found::default();
    for _ in 1..args.times {
        found.enter(plan, &plan.run(Recording::Off));
    }
    let outcome = match &args.trace {
        None => plan.run(recording),
        Some(path) => {
            let (outcome, trace) = plan.record(recording);
            report::write_private(path, trace).map_err(|error| traces::named(path, &error))?;
            outcome
        }
    };
    let digest = outcome.digest();
    if !cli.json {
        let mut out = io::stdout().lock();
        if args.large.is_none() {
            writeln!(out, "{plan}")?;
        }
        write!(out, "{}", outcome.trace.as_deref().unwrap_or_default())?;
        let stats = &outcome.stats;
        writeln!(
            out,
            "{} deliveries, {} summaries, {} notifications, {} revisions, {} exhausted, {} dead letters; {:.3} s of the \
             world, {} steps",
            stats.deliveries,
            stats.summaries,
            stats.notifications,
            stats.revisions,
            stats.exhausted,
            stats.dead_letters,
            micros(stats.virtual_us),
            stats.steps,
        )?;
        if let Some(digest) = &digest {
            writeln!(out, "digest of the trace: {digest}")?;
        }
    }
    found.enter(plan, &outcome);
    Report { command: "run", cli, watch, families: vec![], digest }.finish(&found)
}

fn bugs(cli: &Cli, args: &BugsArgs) -> io::Result<ExitCode> {
    if !Bug::are_compiled() {
        return Err(io::Error::other("no bug is compiled in: run with --features planted-bugs"));
    }
    let mut all = vec![];
    for bug in Bug::ALL {
        let hunted = explore::hunt(bug, args.searches);
        let kept = hunted.shrunk.as_ref().map(|shrunk| Kept::new(&cli.out, &format!("bugs-{bug:?}"), &shrunk.plan));
        let kept = kept.transpose()?;
        if !cli.json {
            report::hunted(&hunted, kept.as_ref())?;
        }
        all.push(hunted);
    }
    let found = all.iter().filter(|hunted| hunted.is_found()).count();
    if cli.json {
        report::json(&serde_json::json!({ "command": "bugs", "bugs": all }))?;
    } else {
        report::line(&format!("{found} of {} planted bugs were found in every search", all.len()))?;
    }
    Ok(if found == all.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn micros(micros: u64) -> f64 {
    micros as f64 / 1e6
}
