//! `transcript-sim`: tries the processor in simulated worlds.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
