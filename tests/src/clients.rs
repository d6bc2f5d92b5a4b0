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
    /// Go.
    Go,
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
    /// A client of this program. The libraries of Node and Python are pinned, and fetched once into the target directory; those
    /// of Go are Debian's packages.
    ///
    /// # Errors
    ///
    /// Why it cannot run here: there is no interpreter, or the libraries can neither be found nor fetched.
    pub fn of_program(language: Language, program: &str) -> io::Result<Self> {
        succeeded(Command::new(language.interpreter()).arg(language.version()))?;
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
        match self.language {
            Language::Node => {}
            Language::Python => {
                process.env("PYTHONPATH", &self.libraries).env("PYTHONDONTWRITEBYTECODE", "1");
            }
            Language::Go => {
                process.arg("run").envs([("GO111MODULE", "off"), ("GOFLAGS", "")]).env("GOPATH", &self.libraries);
                process.env("GOCACHE", cargo::target_dir().join("clients/go-build"));
            }
        }
        process.arg(self.directory.path().join(self.language.file())).stdin(Stdio::null()).kill_on_drop(true);
        process
    }
}

impl Language {
    const fn interpreter(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Python => "python3",
            Self::Go => "go",
        }
    }

    /// The argument with which the interpreter tells its version.
    const fn version(self) -> &'static str {
        match self {
            Self::Node | Self::Python => "--version",
            Self::Go => "version",
        }
    }

    const fn file(self) -> &'static str {
        match self {
            Self::Node => "call.mjs",
            Self::Python => "call.py",
            Self::Go => "call.go",
        }
    }
}

/// The directory of the libraries.
fn libraries(language: Language) -> io::Result<PathBuf> {
    match language {
        Language::Node => {
            fetched(language, include_str!("../../fixtures/clients/node/package-lock.json"), install_node)
        }
        Language::Python => {
            fetched(language, include_str!("../../fixtures/clients/python/requirements.txt"), install_python)
        }
        Language::Go => {
            for library in ["github.com/nats-io/nats.go", "go.mongodb.org/mongo-driver"] {
                fs::metadata(Path::new(GO_LIBRARIES).join("src").join(library)).map_err(|error| {
                    io::Error::other(format!("{library} is not below {GO_LIBRARIES}/src ({error}): {GO_PACKAGES}"))
                })?;
            }
            Ok(GO_LIBRARIES.into())
        }
    }
}

/// Where Debian's packages put the sources of Go's libraries.
const GO_LIBRARIES: &str = "/usr/share/gocode";
const GO_PACKAGES: &str = "install golang-github-nats-io-go-nats-dev and golang-mongodb-mongo-driver-dev";

/// The directory of libraries that are fetched. Many processes may do this at once: one fetches, the others wait for it.
fn fetched(language: Language, pins: &str, install: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<PathBuf> {
    let clients = cargo::target_dir().join("clients");
    fs::create_dir_all(&clients)?;
    let directory = clients.join(language.interpreter());
    // What was fetched for other pins is fetched again.
    let is_fetched = || fs::read_to_string(directory.join("pins")).is_ok_and(|of| of == pins);
    let lock = File::create(clients.join("lock"))?;
    lock.lock()?;
    if !is_fetched() {
        let fetched = tempfile::tempdir_in(&clients)?;
        install(fetched.path())?;
        fs::write(fetched.path().join("pins"), pins)?;
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        // What stands under this name is whole, whenever a process is killed.
        fs::rename(fetched.keep(), &directory)?;
    }
    Ok(directory)
}

fn install_node(into: &Path) -> io::Result<()> {
    for file in ["package.json", "package-lock.json"] {
        fs::copy(fixture("clients/node").join(file), into.join(file))?;
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(into);
    succeeded(&mut npm).map(drop)
}

fn install_python(into: &Path) -> io::Result<()> {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes"]);
    pip.arg("--target").arg(into).arg("-r").arg(fixture("clients/python/requirements.txt"));
    succeeded(&mut pip).map(drop)
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
