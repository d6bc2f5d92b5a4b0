//! What all servers have in common: a process that comes back on the same port and in the same directory.

use std::{
    ffi::OsString,
    io,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
};

use super::{Program, ServerError, port};
use crate::{
    process_guard::{self, Exit, GuardedProcess, Launch, ProcessGuardError},
    wait::NotReached,
};

/// How many ports are tried.
const PORTS: u32 = 20;

/// The process of a server, over all its lives. Its directory is gone when this is dropped.
#[derive(Debug)]
pub struct ServerProcess {
    program: Program,
    port: u16,
    launch: Launch,
    guarded: GuardedProcess,
}

/// Where a server is to run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) directory: &'a Path,
    pub(super) port: u16,
}

impl ServerProcess {
    /// Has `start` start a server on ports that were free an instant ago, until it finds one that still is.
    pub(super) async fn on_a_free_port<S, Start: Future<Output = Result<S, ServerError>>>(
        program: Program,
        start: impl Fn(u16) -> Start,
    ) -> Result<S, ServerError> {
        for _ in 0..PORTS {
            match start(port::probably_free()).await {
                Err(error) if error.is_port_in_use() => {}
                other => return other,
            }
        }
        Err(ServerError::NoPort { server: program, tried: PORTS })
    }

    /// Starts it in a new directory, which `prepare` fills and for which it gives the arguments.
    pub(super) async fn start(
        program: Program,
        port: u16,
        prepare: impl FnOnce(Place<'_>) -> io::Result<Vec<OsString>>,
    ) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Directory { server: program, source };
        let temporary = process_guard::directory(&program.to_string()).map_err(failed)?;
        let arguments = prepare(Place { directory: temporary.path(), port }).map_err(failed)?;
        let log = temporary.path().join("log");
        let launch = Launch {
            program: program.binary().await?,
            arguments,
            environment: Vec::new(),
            directory: temporary.path().to_owned(),
            output: log.clone(),
            log,
        };
        let guarded = GuardedProcess::start(launch.clone()).await?;
        // The guard removes it.
        let _directory = temporary.keep();
        Ok(Self { program, port, launch, guarded })
    }

    /// Starts it as before. Kills it first if it runs.
    pub(super) async fn start_again(&mut self) -> Result<(), ServerError> {
        self.guarded.kill().await?;
        let next = GuardedProcess::start(self.launch.clone()).await?;
        std::mem::replace(&mut self.guarded, next).hand_over();
        Ok(())
    }

    /// What became of waiting for its readiness: that, or what stood in its way.
    pub(super) async fn ready(
        &self,
        readiness: impl Future<Output = Result<(), NotReached>>,
    ) -> Result<(), ServerError> {
        let (server, log) = (self.program, || self.guarded.log_tail());
        tokio::select! {
            reached = readiness => reached.map_err(|source| ServerError::NotReady { server, source, log: log() }),
            exit = self.guarded.ended() => Err(ServerError::Ended { server, exit: exit?, log: log() }),
        }
    }

    /// Has it read its configuration again (`SIGHUP`).
    pub(super) fn reload(&self) -> Result<(), ProcessGuardError> {
        self.guarded.reload()
    }

    /// Where it runs.
    pub(super) fn place(&self) -> Place<'_> {
        Place { directory: self.directory(), port: self.port }
    }

    /// Kills it (`SIGKILL`) and waits until it is gone.
    ///
    /// # Errors
    ///
    /// See [`GuardedProcess::kill`].
    pub async fn kill(&self) -> Result<Exit, ProcessGuardError> {
        self.guarded.kill().await
    }

    /// Asks it to end (`SIGTERM`) and waits until it is gone.
    ///
    /// # Errors
    ///
    /// See [`GuardedProcess::terminate`].
    pub async fn terminate(&self) -> Result<Exit, ProcessGuardError> {
        self.guarded.terminate().await
    }

    /// Stops it where it stands (`SIGSTOP`): connections stay open and nothing answers.
    ///
    /// # Errors
    ///
    /// See [`GuardedProcess::freeze`].
    pub async fn freeze(&self) -> Result<(), ProcessGuardError> {
        self.guarded.freeze().await
    }

    /// Lets it go on.
    ///
    /// # Errors
    ///
    /// See [`GuardedProcess::thaw`].
    pub async fn thaw(&self) -> Result<(), ProcessGuardError> {
        self.guarded.thaw().await
    }

    /// The process id of the server itself.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.guarded.pid()
    }

    /// Where its configuration, log and data are.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.launch.directory
    }

    /// What it has written to its log so far.
    #[must_use]
    pub fn log(&self) -> String {
        self.guarded.log()
    }

    /// Its address, for clients and for a proxy before it.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }
}
