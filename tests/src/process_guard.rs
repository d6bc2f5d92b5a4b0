//! A process that cannot outlive the test that started it.

use std::{
    ffi::OsString,
    fmt,
    fs::{self, File},
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    thread,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;
use thiserror::Error;
use tokio::sync::watch;

use crate::cargo::{self, BuildError};

/// How much of a log an error shows, in lines.
const TAIL_LINES: usize = 25;

/// A process under a guarding one (`bin/process_guard.rs`), which kills it and removes its directory when this handle is dropped,
/// when the test panics, and when the test process itself is killed.
///
/// Signals go to the process itself, not to its guard.
#[derive(Debug)]
pub struct GuardedProcess {
    name: String,
    pid: Pid,
    state: watch::Receiver<State>,
    guard: Child,
    hold: Option<ChildStdin>,
    log: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Stopped,
    Ended(Exit),
}

/// What to start.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// Removed at the end.
    pub(crate) directory: PathBuf,
    /// Standard output is appended to it.
    pub(crate) output: PathBuf,
    /// Standard error is appended to it; may be the same file.
    pub(crate) log: PathBuf,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It returned this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(number) => match Signal::try_from(*number) {
                Ok(signal) => f.write_str(signal.as_str()),
                Err(_) => write!(f, "signal {number}"),
            },
        }
    }
}

impl GuardedProcess {
    pub(crate) async fn start(launch: Launch) -> Result<Self, ProcessGuardError> {
        let name = launch.program.file_name().unwrap_or(launch.program.as_os_str()).to_string_lossy().into_owned();
        let failed = |source| ProcessGuardError::Start { name: name.clone(), source };
        let log = File::options().create(true).append(true).open(&launch.log).map_err(failed)?;
        let mut guard = Command::new(cargo::process_guard().await?)
            .arg(&launch.directory)
            .arg(&launch.output)
            .arg(&launch.program)
            .args(&launch.arguments)
            .envs(launch.environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(failed)?;
        let hold = guard.stdin.take();
        let mut news = BufReader::new(guard.stdout.take().expect("the standard output is piped"));
        let pid = match read_news(&mut news).map_err(failed)? {
            News::Started(pid) => Pid::from_raw(pid),
            News::Failed(reason) => return Err(failed(io::Error::other(reason))),
            News::State(state) => return Err(failed(io::Error::other(format!("{state:?} before it began")))),
        };
        let (changed, state) = watch::channel(State::Running);
        thread::spawn(move || {
            while let Ok(News::State(state)) = read_news(&mut news) {
                changed.send_replace(state);
            }
        });
        Ok(Self { name, pid, state, guard, hold, log: launch.log })
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.as_raw().unsigned_abs()
    }

    /// How it ended; `None` while it runs.
    #[must_use]
    pub fn exit(&self) -> Option<Exit> {
        match *self.state.borrow() {
            State::Running | State::Stopped => None,
            State::Ended(exit) => Some(exit),
        }
    }

    /// Waits for its end, however long that takes.
    ///
    /// # Errors
    ///
    /// The guard was killed, so nobody knows.
    pub async fn ended(&self) -> Result<Exit, ProcessGuardError> {
        loop {
            if let State::Ended(exit) = self.reaches(|state| matches!(state, State::Ended(_))).await? {
                return Ok(exit);
            }
        }
    }

    /// Kills it (`SIGKILL`) and waits until it is gone. Does nothing to one that has ended.
    ///
    /// # Errors
    ///
    /// See [`Self::ended`].
    pub async fn kill(&self) -> Result<Exit, ProcessGuardError> {
        self.signal_and_wait(Signal::SIGKILL).await
    }

    /// Asks it to end (`SIGTERM`) and waits until it is gone. Does nothing to one that has ended.
    ///
    /// # Errors
    ///
    /// See [`Self::ended`].
    pub async fn terminate(&self) -> Result<Exit, ProcessGuardError> {
        self.signal_and_wait(Signal::SIGTERM).await
    }

    /// Asks it to end (`SIGTERM`) without waiting for it.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub fn ask_to_end(&self) -> Result<(), ProcessGuardError> {
        self.signal(Signal::SIGTERM)
    }

    /// Has it read its configuration again (`SIGHUP`).
    pub(crate) fn reload(&self) -> Result<(), ProcessGuardError> {
        self.signal(Signal::SIGHUP)
    }

    /// Stops it where it stands (`SIGSTOP`), its connections left open, and waits until every thread of it stands.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub async fn freeze(&self) -> Result<(), ProcessGuardError> {
        self.signal(Signal::SIGSTOP)?;
        self.reaches(|state| *state != State::Running).await.map(|_| ())
    }

    /// Lets it go on after [`Self::freeze`].
    ///
    /// # Errors
    ///
    /// It has ended.
    pub async fn thaw(&self) -> Result<(), ProcessGuardError> {
        self.signal(Signal::SIGCONT)?;
        self.reaches(|state| *state != State::Stopped).await.map(|_| ())
    }

    /// All it has written to its log so far.
    #[must_use]
    pub fn log(&self) -> String {
        read(&self.log)
    }

    /// The last lines of its log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }

    /// Ends it but leaves its directory, which another guard now holds.
    pub(crate) fn hand_over(mut self) {
        if let Some(hold) = &mut self.hold {
            // An error says that the guard is gone, and then it removes nothing either.
            hold.write_all(b"keep").ok();
        }
    }

    async fn reaches(&self, wanted: impl FnMut(&State) -> bool) -> Result<State, ProcessGuardError> {
        let mut state = self.state.clone();
        let reached = state.wait_for(wanted).await.map(|state| *state);
        reached.map_err(|_| ProcessGuardError::Lost { name: self.name.clone() })
    }

    async fn signal_and_wait(&self, signal: Signal) -> Result<Exit, ProcessGuardError> {
        match self.signal(signal) {
            Ok(()) | Err(ProcessGuardError::Ended { .. }) => self.ended().await,
            Err(error) => Err(error),
        }
    }

    fn signal(&self, signal: Signal) -> Result<(), ProcessGuardError> {
        if let Some(exit) = self.exit() {
            return Err(ProcessGuardError::Ended { name: self.name.clone(), exit });
        }
        match kill(self.pid, signal) {
            // It ended an instant ago and the news is on its way.
            Ok(()) | Err(nix::errno::Errno::ESRCH) => Ok(()),
            Err(error) => Err(ProcessGuardError::Signal { name: self.name.clone(), signal, source: error.into() }),
        }
    }
}

impl Drop for GuardedProcess {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- the end of the log of {} (pid {}):\n{}\n---", self.name, self.pid, self.log_tail());
        }
        drop(self.hold.take());
        // The wait is what makes a dropped server a dead one; an error says that there is nothing to wait for.
        self.guard.wait().ok();
    }
}

/// Why a process could not be started, reached or followed.
#[derive(Debug, Error)]
pub enum ProcessGuardError {
    /// The guard is not there and could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The process could not be started.
    #[error("{name} could not be started")]
    Start {
        /// The program.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// The process has ended, so it can be sent nothing.
    #[error("{name} has ended: {exit}")]
    Ended {
        /// The program.
        name: String,
        /// How it ended.
        exit: Exit,
    },
    /// A signal could not be sent.
    #[error("{name} could not be sent {signal}")]
    Signal {
        /// The program.
        name: String,
        /// The signal.
        signal: Signal,
        /// What the system said.
        source: io::Error,
    },
    /// The guard ended before the process did.
    #[error("the guard of {name} was killed")]
    Lost {
        /// The program.
        name: String,
    },
}

/// A directory of its own for a process, named so that a person who finds it knows whose it was. It is the guard's
/// to remove once that is started; until then it goes with the [`TempDir`].
pub(crate) fn directory(of: &str) -> io::Result<TempDir> {
    tempfile::Builder::new().prefix(&format!("transcript-tests-{of}-")).tempdir()
}

/// The text of a log, or of as much as is readable.
pub(crate) fn read(log: &Path) -> String {
    fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// A line from the guard.
enum News {
    Started(i32),
    State(State),
    Failed(String),
}

fn read_news(from: &mut impl BufRead) -> io::Result<News> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    let (word, rest) = line.trim_end().split_once(' ').unwrap_or((line.trim_end(), ""));
    let number = || rest.parse().map_err(|_| io::Error::other(format!("the guard said {line:?}")));
    match word {
        "started" => Ok(News::Started(number()?)),
        "stopped" => Ok(News::State(State::Stopped)),
        "continued" => Ok(News::State(State::Running)),
        "exited" => Ok(News::State(State::Ended(Exit::Code(number()?)))),
        "killed" => Ok(News::State(State::Ended(Exit::Signal(number()?)))),
        "failed" => Ok(News::Failed(rest.to_owned())),
        _ => Err(io::Error::other(format!("the guard said {line:?}"))),
    }
}
