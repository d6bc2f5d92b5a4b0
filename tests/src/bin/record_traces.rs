//! `cargo record-traces`: records the traces of `fixtures/traces` on real servers.
//!
//! Each one is checked to show what it is meant to show. Ends with code 1 where one does not.

use std::{
    error::Error,
    fs,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use clap::Parser;
use transcript_tests::{
    cargo::{self, Version},
    crash::CrashError,
    recording::{Scenario, fixtures},
};

/// Records the traces of fixtures/traces, by real processors on real servers
#[derive(Debug, Parser)]
#[command(name = "cargo record-traces", max_term_width = 120)]
struct Options {
    /// Only these, as `killed-wait` [default: all]
    #[arg(value_name = "NAME", value_parser = scenario)]
    scenarios: Vec<Scenario>,
    /// Where they go [default: fixtures/traces]
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("FAILED: {error}"));
            let mut cause = error.source();
            while let Some(reason) = cause {
                say(&format!("  because: {reason}"));
                cause = reason.source();
            }
            ExitCode::FAILURE
        }
    }
}

async fn run(options: &Options) -> Result<(), CrashError> {
    say("building the processor");
    cargo::processor(Version::Product).await?;
    let directory = options.into.clone().unwrap_or_else(fixtures);
    fs::create_dir_all(&directory)?;
    let scenarios = if options.scenarios.is_empty() { &Scenario::ALL[..] } else { &options.scenarios[..] };
    for scenario in scenarios {
        let text = scenario.record().await?.text()?;
        fs::write(directory.join(scenario.file_name()), &text)?;
        say(&format!("{scenario:24} {:>6} bytes: {}", text.len(), scenario.about()));
    }
    Ok(())
}

fn scenario(name: &str) -> Result<Scenario, Box<dyn Error + Send + Sync>> {
    let names = || Scenario::ALL.map(Scenario::name).join(", ");
    let found = Scenario::ALL.into_iter().find(|scenario| scenario.name() == name);
    found.ok_or_else(|| format!("there are: {}", names()).into())
}

fn say(line: &str) {
    // Where nobody reads it, the exit code still tells.
    writeln!(io::stderr(), "{line}").ok();
}
