//! The settings of `completions` and `man`, which describe the command line itself.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

/// The settings of `completions`.
#[derive(Debug, Clone, Args)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// The settings of `man`.
#[derive(Debug, Clone, Args)]
pub struct ManArgs {
    /// The command that the page is about, such as `run` or `dead-letters redrive`; the program if not given
    #[arg(value_name = "COMMAND", conflicts_with = "output")]
    pub command: Vec<String>,
    /// Write all pages into this directory, which is made if it is not there
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
}
