//! `cargo crash-table`: kills the real binary at every point of its job, starts it again, and tells what came of it.
//!
//! Real servers, the product's own settings. Ends with code 1 where anything is not as promised.

use std::{
    error::Error,
    fs,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::Parser;
use mongodb::bson::{DateTime, doc};
use tokio::time::Instant;
use transcript_tests::{
    cargo::{self, Version},
    crash::{
        Crash, CrashError, Observed,
        prediction::Predictions,
        table::{Measured, Row, Table, measure, rows},
    },
    world::TestWorld,
};

/// Where the manual has the table.
const BEGIN: &str = "<!-- cargo crash-table --readme: begin -->\n";
const END: &str = "<!-- cargo crash-table --readme: end -->\n";

/// Kills the processor at every point of its job, and counts what is stored and announced in the end
#[derive(Debug, Parser)]
#[command(name = "cargo crash-table", max_term_width = 120)]
struct Options {
    /// Runs of each row; at most three of those whose processor stays down for long
    #[arg(long, default_value_t = 10)]
    runs: usize,
    /// Only rows whose name has one of these in it, as `after-notify` or `first version`
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    rows: Vec<String>,
    /// Runs at the same time
    #[arg(long, default_value_t = 4)]
    jobs: usize,
    /// Where the table goes as Markdown [default: crash-table.md in the target directory]
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Where the table goes as JSON, with every run [default: crash-table.json in the target directory]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// What `transcript-sim --json table` has printed [default: what it prints now]
    #[arg(long, value_name = "FILE")]
    predictions: Option<PathBuf>,
    /// Put the table into the operator's manual too
    #[arg(long)]
    readme: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(&Options::parse()).await {
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

/// Everything that is not as promised.
async fn run(options: &Options) -> Result<Vec<String>, CrashError> {
    let chosen = chosen(options);
    if chosen.is_empty() {
        return Err("no row has such a name".into());
    }
    for version in [Version::Product, Version::First] {
        if chosen.iter().any(|row| row.crash.version == version) {
            let name = if version == Version::First { "the first version" } else { "the processor" };
            say(&format!("building {name}"));
            cargo::processor(version).await?;
        }
    }
    let predictions = predictions(options).await?;
    let mut progress = Progress::begin(&chosen);
    let measured = measure(&chosen, options.jobs, |row, outcome| progress.ended(row, outcome)).await;
    progress.end();
    let (nats_server, mongod) = versions().await?;
    let predicted = |row: &Row| predictions.as_ref().and_then(|predictions| predictions.of(&row.crash));
    let with_prediction = |measured: Measured| (predicted(&measured.row), measured);
    let rows = measured.into_iter().map(with_prediction).collect();
    let table = Table { date: today(), nats_server, mongod, rows };
    write_files(options, &table)?;
    writeln!(io::stdout(), "{}", table.markdown())?;
    Ok(table.problems())
}

async fn predictions(options: &Options) -> Result<Option<Predictions>, CrashError> {
    match &options.predictions {
        Some(file) => Ok(Some(Predictions::read(&fs::read(file)?)?)),
        None => {
            let predictions = Predictions::of_simulator().await?;
            if predictions.is_none() {
                say("nothing is predicted: there is no simulator in this workspace");
            }
            Ok(predictions)
        }
    }
}

fn chosen(options: &Options) -> Vec<Row> {
    let named = |crash: &Crash| {
        let name = crash.to_string();
        options.rows.is_empty() || options.rows.iter().any(|wanted| name.contains(wanted.as_str()))
    };
    rows(options.runs).into_iter().filter(|row| named(&row.crash)).collect()
}

async fn versions() -> Result<(String, String), CrashError> {
    let world = TestWorld::start().await?;
    let mongod = world.database().run_command(doc! { "buildInfo": 1 }).await?;
    Ok((world.client.server_info().version, mongod.get_str("version")?.to_owned()))
}

fn today() -> String {
    DateTime::now().try_to_rfc3339_string().map(|now| now.chars().take(10).collect()).unwrap_or_default()
}

fn write_files(options: &Options, table: &Table) -> Result<(), CrashError> {
    let target = cargo::target_dir();
    let file = |named: &Option<PathBuf>, name| named.clone().unwrap_or_else(|| target.join(name));
    let page = table.markdown();
    write(&file(&options.markdown, "crash-table.md"), &page)?;
    write(&file(&options.json, "crash-table.json"), &format!("{:#}\n", table.json()))?;
    if options.readme {
        let readme = cargo::workspace().join("shell-tokio/README.md");
        let text = fs::read_to_string(&readme)?;
        let places = text.find(BEGIN).zip(text.find(END)).ok_or("the README has no place for the table")?;
        let (before, after) = (&text[..places.0 + BEGIN.len()], &text[places.1..]);
        write(&readme, &format!("{before}{page}{after}"))?;
    }
    Ok(())
}

fn write(file: &Path, text: &str) -> Result<(), CrashError> {
    fs::write(file, text).map_err(|error| -> Box<dyn Error + Send + Sync> {
        format!("{} cannot be written: {error}", file.display()).into()
    })
}

/// What is told while it runs: a line that changes on a terminal, a line a run elsewhere.
struct Progress {
    begun: Instant,
    all: usize,
    done: usize,
    on_terminal: bool,
}

impl Progress {
    fn begin(rows: &[Row]) -> Self {
        let all = rows.iter().map(|row| row.runs).sum();
        let longest = rows.iter().map(|row| row.crash.outage).max().unwrap_or_default();
        say(&format!("{all} runs; the longest outage is {longest:?}"));
        Self { begun: Instant::now(), all, done: 0, on_terminal: io::stderr().is_terminal() }
    }

    fn ended(&mut self, row: &Row, outcome: &Result<Observed, CrashError>) {
        self.done += 1;
        let what = match outcome {
            Ok(seen) => format!(
                "{} summaries, {} notifications, {} redeliveries",
                seen.summaries, seen.notifications, seen.redeliveries
            ),
            Err(error) => format!("failed: {error}"),
        };
        let time = Duration::from_secs(self.begun.elapsed().as_secs());
        let line = format!("{:>3} of {} after {time:?}: {}: {what}", self.done, self.all, row.crash);
        if self.on_terminal && outcome.is_ok() {
            // Where nobody reads it, the table still tells.
            write!(io::stderr(), "\r\x1b[K{line}").ok();
        } else {
            say(&line);
        }
    }

    fn end(&self) {
        if self.on_terminal {
            say("");
        }
    }
}

fn say(line: &str) {
    // Where nobody reads it, the exit code still tells.
    writeln!(io::stderr(), "{line}").ok();
}
