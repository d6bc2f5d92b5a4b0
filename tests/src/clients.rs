//! Clients in other languages, those of `fixtures/clients` and the examples of documents: where their interpreters and libraries
//! come from, and their runs.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use crate::{calls::fixture, cargo};

/// A language.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// JavaScript on Node.
    Node,
    /// Python 3.
    Python,
}

/// A client that can run.
#[derive(Debug)]
pub struct Client {
    language: Language,
    /// What the program imports.
    libraries: PathBuf,
    /// The program where its libraries are found.
    directory: tempfile::TempDir,
}

impl Client {
    /// The client of `fixtures/clients` in this language.
    ///
    /// # Errors
    ///
    /// See [`Self::of_program`].
    pub fn of(language: Language) -> io::Result<Self> {
        Self::of_program(language, &fs::read_to_string(fixture(language.program()))?)
    }

    /// A client with the pinned libraries of its language, which are fetched once into the target directory.
    ///
    /// # Errors
    ///
    /// Why it cannot run here: there is no interpreter, or the libraries can neither be found nor fetched.
    pub fn of_program(language: Language, program: &str) -> io::Result<Self> {
        succeeded(Command::new(language.interpreter()).arg("--version"))?;
        let libraries = libraries(language)?;
        let directory = tempfile::tempdir()?;
        fs::write(directory.path().join(language.file()), program)?;
        if language == Language::Node {
            std::os::unix::fs::symlink(libraries.join("node_modules"), directory.path().join("node_modules"))?;
        }
        Ok(Self { language, libraries, directory })
    }

    /// Runs it to its end, and gives what it wrote.
    ///
    /// # Errors
    ///
    /// It cannot be started, or ends otherwise than with code 0: the error has what it wrote to its standard error.
    pub async fn run(&self, nats_url: &str, arguments: &[&Path], command: &str) -> io::Result<String> {
        let mut process = self.process();
        process.arg(command).args(arguments).env("NATS_URL", nats_url);
        written(&format!("{:?} {command}", self.language), &process.output().await?)
    }

    /// The same without arguments, in an environment that says where the servers are.
    ///
    /// # Errors
    ///
    /// See [`Self::run`].
    pub async fn run_in(&self, environment: [(&'static str, String); 3]) -> io::Result<String> {
        let output = self.process().envs(environment).output().await?;
        written(&format!("{:?}", self.language), &output)
    }

    fn process(&self) -> tokio::process::Command {
        let mut process = tokio::process::Command::new(self.language.interpreter());
        process.arg(self.directory.path().join(self.language.file())).stdin(Stdio::null()).kill_on_drop(true);
        if self.language == Language::Python {
            process.env("PYTHONPATH", &self.libraries).env("PYTHONDONTWRITEBYTECODE", "1");
        }
        process
    }
}

impl Language {
    const fn interpreter(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Python => "python3",
        }
    }

    const fn file(self) -> &'static str {
        match self {
            Self::Node => "call.mjs",
            Self::Python => "call.py",
        }
    }

    /// The program in `fixtures/`.
    const fn program(self) -> &'static str {
        match self {
            Self::Node => "clients/node/call.mjs",
            Self::Python => "clients/python/call.py",
        }
    }

    /// What pins the libraries, with their hashes.
    const fn pins(self) -> &'static str {
        match self {
            Self::Node => include_str!("../../fixtures/clients/node/package-lock.json"),
            Self::Python => include_str!("../../fixtures/clients/python/requirements.txt"),
        }
    }
}

/// The directory of the libraries. Many processes may do this at once: one fetches, the others wait for it.
fn libraries(language: Language) -> io::Result<PathBuf> {
    let clients = cargo::target_dir().join("clients");
    fs::create_dir_all(&clients)?;
    let directory = clients.join(language.interpreter());
    // What was fetched for other pins is fetched again.
    let is_fetched = || fs::read_to_string(directory.join("pins")).is_ok_and(|pins| pins == language.pins());
    let lock = File::create(clients.join("lock"))?;
    lock.lock()?;
    if !is_fetched() {
        let fetched = tempfile::tempdir_in(&clients)?;
        fetch(language, fetched.path())?;
        fs::write(fetched.path().join("pins"), language.pins())?;
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        // What stands under this name is whole, whenever a process is killed.
        fs::rename(fetched.keep(), &directory)?;
    }
    Ok(directory)
}

fn fetch(language: Language, into: &Path) -> io::Result<()> {
    match language {
        Language::Node => {
            for file in ["package.json", "package-lock.json"] {
                fs::copy(fixture("clients/node").join(file), into.join(file))?;
            }
            let mut npm = Command::new("npm");
            npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(into);
            succeeded(&mut npm).map(drop)
        }
        Language::Python => {
            let mut pip = Command::new("python3");
            pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes"]);
            pip.arg("--target").arg(into).arg("-r").arg(fixture("clients/python/requirements.txt"));
            succeeded(&mut pip).map(drop)
        }
    }
}

fn succeeded(command: &mut Command) -> io::Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    written(&format!("{command:?}"), &output)
}

fn written(what: &str, output: &Output) -> io::Result<String> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{what}: {}: {}", output.status, said.trim())))
}
