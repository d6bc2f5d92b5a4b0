//! The real binary, as a process that can be killed, frozen and read.

use std::{ffi::OsString, io, net::SocketAddr, path::PathBuf, time::Duration};

use thiserror::Error;

use crate::{
    cargo::{self, BuildError, Version},
    process_guard::{self, Exit, GuardedProcess, Launch, ProcessGuardError},
    wait::{NotReached, wait_until},
};

/// A run of `transcript-processor` to be started.
#[derive(Debug, Clone, Default)]
pub struct ProcessorCommand {
    version: Version,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
}

impl ProcessorCommand {
    /// A run of this subcommand.
    #[must_use]
    pub fn new(subcommand: &str) -> Self {
        Self::default().argument(subcommand)
    }

    /// The same with another version of the processor.
    #[must_use]
    pub fn version(mut self, version: Version) -> Self {
        self.version = version;
        self
    }

    /// One more argument.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// More arguments.
    #[must_use]
    pub fn arguments<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// An environment variable; the last one of a name counts. The rest of the environment is the test's.
    #[must_use]
    pub fn environment(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Starts it.
    ///
    /// # Errors
    ///
    /// The binary cannot be built or started.
    pub async fn start(&self) -> Result<Processor, ProcessorError> {
        let temporary = process_guard::directory("processor").map_err(ProcessorError::Directory)?;
        let output = temporary.path().join("output");
        let process = GuardedProcess::start(Launch {
            program: cargo::processor(self.version).await?,
            arguments: self.arguments.clone(),
            environment: self.environment.clone(),
            directory: temporary.path().to_owned(),
            output: output.clone(),
            log: temporary.path().join("log"),
        })
        .await?;
        // The guard removes it.
        let _directory = temporary.keep();
        Ok(Processor { process, output })
    }

    /// Starts it, and waits until it says that it is ready.
    ///
    /// # Errors
    ///
    /// See [`Self::start`]; it is not ready `within` that time.
    pub async fn start_ready(&self, within: Duration) -> Result<Processor, ProcessorError> {
        let processor = self.start().await?;
        processor.logged(" ready name=", within).await?;
        Ok(processor)
    }

    /// Starts it, waits for its end, and gives what it wrote to its standard output.
    ///
    /// # Errors
    ///
    /// It cannot be started, does not end `within` that time, or ends otherwise than with code 0: the error has its log.
    pub async fn run(&self, within: Duration) -> Result<String, ProcessorError> {
        let processor = self.start().await?;
        match processor.wait(within).await? {
            Exit::Code(0) => Ok(processor.output()),
            exit @ (Exit::Code(_) | Exit::Signal(_)) => {
                Err(ProcessorError::Unsuccessful { arguments: self.arguments.clone(), exit, log: processor.logs() })
            }
        }
    }
}

/// A running `transcript-processor`. It is killed when this is dropped or the test ends, however it ends.
#[derive(Debug)]
pub struct Processor {
    process: GuardedProcess,
    output: PathBuf,
}

impl Processor {
    /// Kills it (`SIGKILL`) and waits until it is gone.
    ///
    /// # Errors
    ///
    /// See [`GuardedProcess::kill`].
    pub async fn kill(&self) -> Result<Exit, ProcessGuardError> {
        self.process.kill().await
    }

    /// Asks it to end (`SIGTERM`) and waits until it is gone.
    ///
    /// # Errors
    ///
    /// See [`GuardedProcess::terminate`].
    pub async fn terminate(&self) -> Result<Exit, ProcessGuardError> {
        self.process.terminate().await
    }

    /// Asks it to end (`SIGTERM`) without waiting for it.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub fn ask_to_end(&self) -> Result<(), ProcessGuardError> {
        self.process.ask_to_end()
    }

    /// Stops it where it stands (`SIGSTOP`), as a machine that swaps or a paused virtual machine does.
    ///
    /// # Errors
    ///
    /// See [`GuardedProcess::freeze`].
    pub async fn freeze(&self) -> Result<(), ProcessGuardError> {
        self.process.freeze().await
    }

    /// Lets it go on.
    ///
    /// # Errors
    ///
    /// See [`GuardedProcess::thaw`].
    pub async fn thaw(&self) -> Result<(), ProcessGuardError> {
        self.process.thaw().await
    }

    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// It did not end `within` that time.
    pub async fn wait(&self, within: Duration) -> Result<Exit, ProcessorError> {
        let ended = wait_until("the processor ends", within, || async { self.process.exit().ok_or("it runs") }).await;
        ended.map_err(|source| ProcessorError::NotEnded { source, log: self.process.log_tail() })
    }

    /// Waits until its log says this.
    ///
    /// # Errors
    ///
    /// It does not say it `within` that time: the error has its log.
    pub async fn logged(&self, text: &str, within: Duration) -> Result<(), NotReached> {
        wait_until(format!("the log says {text:?}"), within, || async {
            let log = self.logs();
            if log.contains(text) { Ok(()) } else { Err(log) }
        })
        .await
    }

    /// Waits until its standard output has this.
    ///
    /// # Errors
    ///
    /// It does not have it `within` that time: the error has what it has written.
    pub async fn printed(&self, text: &str, within: Duration) -> Result<(), NotReached> {
        wait_until(format!("the output has {text:?}"), within, || async {
            let output = self.output();
            if output.contains(text) { Ok(()) } else { Err(format!("{output}\n{}", self.logs())) }
        })
        .await
    }

    /// Where it listens, once a line of its log that has this text names the address.
    ///
    /// # Errors
    ///
    /// There is no such line `within` that time: the error has its log.
    pub async fn address(&self, text: &str, within: Duration) -> Result<SocketAddr, NotReached> {
        wait_until(format!("the log has an address and {text:?}"), within, || async {
            let log = self.logs();
            let line = log.lines().find(|line| line.contains(text));
            let address = line.and_then(|line| line.split("address=").nth(1)?.split_whitespace().next());
            address.and_then(|address| address.parse().ok()).ok_or(log)
        })
        .await
    }

    /// How it ended; `None` while it runs.
    #[must_use]
    pub fn exit(&self) -> Option<Exit> {
        self.process.exit()
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// What it has written to its standard error so far.
    #[must_use]
    pub fn logs(&self) -> String {
        self.process.log()
    }

    /// What it has written to its standard output so far.
    #[must_use]
    pub fn output(&self) -> String {
        process_guard::read(&self.output)
    }
}

/// Why a processor could not be started, or did not end as it should.
#[derive(Debug, Error)]
pub enum ProcessorError {
    /// The binary could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The process could not be started or reached.
    #[error(transparent)]
    Guard(#[from] ProcessGuardError),
    /// There is no directory for its output.
    #[error("the directory for the processor's output could not be made")]
    Directory(#[source] io::Error),
    /// It does not say what it was to say.
    #[error(transparent)]
    NotSaid(#[from] NotReached),
    /// It went on.
    #[error("{source}; the end of its log:\n{log}")]
    NotEnded {
        /// What was awaited.
        source: NotReached,
        /// The last lines of its log.
        log: String,
    },
    /// It ended, and not well.
    #[error("transcript-processor {arguments:?} ended with {exit}; its log:\n{log}")]
    Unsuccessful {
        /// The arguments.
        arguments: Vec<OsString>,
        /// How it ended.
        exit: Exit,
        /// Its log.
        log: String,
    },
}
