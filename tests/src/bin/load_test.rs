//! `cargo load-test`: how fast calls that have ended are worked off, on real servers that are started for it.
//!
//! Ends with code 1 where the processor did what it may not do, such as work on a call twice. A figure that is not reached is
//! only told: it needs a machine that does nothing else.

use std::{
    env, fs,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::Parser;
use mongodb::bson::DateTime;
use transcript_tests::{
    cargo::{self, Version},
    load::{
        LoadEnvironment, LoadTest, LoadTestError, Machine, Runner, ceiling,
        giant::GiantRace,
        table::{Table, name},
    },
};

/// Where the README of the benchmarks has the table.
const BEGIN: &str = "<!-- cargo load-test --readme: begin -->\n";
const END: &str = "<!-- cargo load-test --readme: end -->\n";
/// What this program is started with to be the runner of the ceiling.
const CEILING: &str = "--as-ceiling";

/// Load tests the processor over ended calls, beside the bare commands and other workers
#[derive(Debug, Parser)]
#[command(name = "cargo load-test", max_term_width = 120)]
struct Options {
    /// Only these load tests: quiet-0, ceiling, two-instances, four-instances, burst-10000, burst-1000, waiting-50000, giant,
    /// giant-settling, or a peer's name
    #[arg(long, value_name = "NAME", num_args = 1.., value_delimiter = ',')]
    only: Vec<String>,
    /// Sessions of the load tests at quiet period 0
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = parse_sessions)]
    sessions: usize,
    /// Another worker to measure at quiet period 0; it is told NATS_URL, MONGODB_URI, MONGODB_DATABASE, and QUIET in seconds
    #[arg(long, value_name = "NAME=COMMAND", value_parser = parse_peer)]
    peer: Vec<Peer>,
    /// How often each load test is run, one after the other; the table tells of the median
    #[arg(long, value_name = "N", default_value_t = 1)]
    runs: usize,
    /// Where the table goes as JSON, with every run [default: load-test.json in the target directory]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where the table goes as Markdown [default: load-test.md in the target directory]
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Put the table into the README of the benchmarks too
    #[arg(long)]
    readme: bool,
    /// Be the runner of the ceiling
    #[arg(long = "as-ceiling", hide = true)]
    as_ceiling: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Peer {
    name: String,
    command: String,
}

fn parse_sessions(text: &str) -> Result<usize, String> {
    let sessions = text.parse().ok().filter(|sessions| *sessions > 0);
    sessions.ok_or_else(|| "a number from 1 is needed".to_owned())
}

fn parse_peer(text: &str) -> Result<Peer, String> {
    let (name, command) = text.split_once('=').ok_or("NAME=COMMAND is needed")?;
    if name.is_empty() || name::ALL.contains(&name) {
        return Err(format!("a peer cannot be called {name:?}"));
    }
    Ok(Peer { name: name.to_owned(), command: command.to_owned() })
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    let problems = if options.as_ceiling { ceiling::run().await.map(|()| vec![]) } else { run(&options).await };
    match problems {
        Ok(problems) if problems.is_empty() => ExitCode::SUCCESS,
        Ok(problems) => {
            problems.iter().for_each(|problem| say(&format!("WRONG: {problem}")));
            ExitCode::FAILURE
        }
        Err(error) => {
            say(&format!("FAILED: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Everything that the processor did and may not do.
async fn run(options: &Options) -> Result<Vec<String>, LoadTestError> {
    let (load_tests, giants) = chosen(options)?;
    say("the processor is built");
    cargo::processor(Version::Product).await?;
    let (nats_server, mongod) = LoadEnvironment::start().await?.versions().await?;
    let (machine, settings) = (Machine::this()?, settings());
    let mut table = Table { date: today(), machine, nats_server, mongod, settings, load_tests: vec![], giants: vec![] };
    let progress = Progress { on_terminal: io::stderr().is_terminal() };
    for _ in 0..options.runs {
        for load_test in &load_tests {
            let outcome = load_test.run(&|what| progress.at(what)).await?;
            progress
                .done(&format!("{}: {:.0} sessions/s, {:.2} s", load_test.name, outcome.per_second, outcome.seconds));
            table.load_tests.push(outcome);
            // What was measured stays, whatever becomes of the rest.
            write_files(options, &table)?;
        }
    }
    for load_test in &giants {
        let outcome = load_test.run(&|what| progress.at(what)).await?;
        progress.done(&format!("{}: {:.2} times the median without", load_test.name, outcome.ratio()));
        table.giants.push(outcome);
    }
    write_files(options, &table)?;
    if options.readme {
        write_readme(&table)?;
    }
    writeln!(io::stdout(), "{}", table.markdown())?;
    Ok(table.problems())
}

fn chosen(options: &Options) -> Result<(Vec<LoadTest>, Vec<GiantRace>), LoadTestError> {
    let unknown = |wanted: &&String| {
        !name::ALL.contains(&wanted.as_str()) && options.peer.iter().all(|peer| peer.name != **wanted)
    };
    if let Some(wanted) = options.only.iter().find(unknown) {
        return Err(format!("no load test is called {wanted:?}: there are {}", name::ALL.join(", ")).into());
    }
    let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|only| only == name);
    let mut load_tests = load_tests(options);
    load_tests.retain(|load_test| wanted(&load_test.name));
    let mut giants = giants();
    giants.retain(|load_test| wanted(&load_test.name));
    Ok((load_tests, giants))
}

fn load_tests(options: &Options) -> Vec<LoadTest> {
    let no_wait = |name: &str| LoadTest::of_product(name, options.sessions, Duration::ZERO);
    let burst = |name: &str, sessions| LoadTest::of_product(name, sessions, Duration::from_secs(2));
    let mut load_tests =
        vec![no_wait(name::QUIET_0), LoadTest { runner: Runner::Ceiling(CEILING), ..no_wait(name::CEILING) }];
    let peers = options.peer.iter();
    load_tests.extend(peers.map(|peer| LoadTest { runner: Runner::Peer(peer.command.clone()), ..no_wait(&peer.name) }));
    load_tests.extend([
        LoadTest { instances: 2, ..no_wait(name::TWO) },
        LoadTest { instances: 4, ..no_wait(name::FOUR) },
        burst(name::BURST, 10_000),
        burst(name::SMALL_BURST, 1_000),
        LoadTest {
            arguments: ["--ack-wait=6s", "--max-in-flight=50000", "--max-ack-pending=100000"].map(str::to_owned).into(),
            // Four ack waits.
            watched: Some(Duration::from_secs(24)),
            ..LoadTest::of_product(name::WAITING, 50_000, Duration::from_secs(30))
        },
    ]);
    load_tests
}

fn giants() -> Vec<GiantRace> {
    let giant =
        |name: &str, quiet| GiantRace { name: name.to_owned(), sessions: 2_000, segments: 50_000, quiet, rounds: 5 };
    vec![giant(name::GIANT, Duration::ZERO), giant(name::SETTLING_GIANT, Duration::from_millis(200))]
}

/// What the environment says to the processor, besides where its binary is.
fn settings() -> Vec<String> {
    let given = env::vars().filter(|(name, _)| name.starts_with("TRANSCRIPT_") && name != cargo::PROCESSOR_VARIABLE);
    let mut given: Vec<String> = given.map(|(name, value)| format!("`{name}={value}`")).collect();
    given.sort_unstable();
    given
}

fn today() -> String {
    DateTime::now().try_to_rfc3339_string().map(|now| now.chars().take(10).collect()).unwrap_or_default()
}

fn write_files(options: &Options, table: &Table) -> Result<(), LoadTestError> {
    let target = cargo::target_dir();
    let file = |named: &Option<PathBuf>, name| named.clone().unwrap_or_else(|| target.join(name));
    write(&file(&options.markdown, "load-test.md"), &table.markdown())?;
    write(&file(&options.json, "load-test.json"), &format!("{:#}\n", table.json()))
}

fn write_readme(table: &Table) -> Result<(), LoadTestError> {
    let readme = cargo::workspace().join("shell-tokio/benches/README.md");
    let text = fs::read_to_string(&readme)?;
    let places = text.find(BEGIN).zip(text.find(END)).ok_or("the README has no place for the table")?;
    let (before, after) = (&text[..places.0 + BEGIN.len()], &text[places.1..]);
    write(&readme, &format!("{before}{}{after}", table.markdown()))
}

fn write(file: &Path, text: &str) -> Result<(), LoadTestError> {
    fs::write(file, text).map_err(|error| format!("{} cannot be written: {error}", file.display()).into())
}

/// What is told while it runs: a line that changes on a terminal, the results elsewhere.
struct Progress {
    on_terminal: bool,
}

impl Progress {
    fn at(&self, what: &str) {
        if self.on_terminal {
            // Where nobody reads it, the table still tells.
            write!(io::stderr(), "\r\x1b[K{what}").ok();
        }
    }

    fn done(&self, what: &str) {
        self.at("");
        say(what);
    }
}

fn say(line: &str) {
    // Where nobody reads it, the exit code still tells.
    writeln!(io::stderr(), "{line}").ok();
}
