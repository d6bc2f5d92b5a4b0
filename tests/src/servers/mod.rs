//! Real servers: where their binaries come from, and what they have in common.

mod fetch;
mod mongod;
mod nats;
pub(crate) mod port;
mod process;

use std::{io, time::Duration};

use thiserror::Error;

pub use self::{
    fetch::{BinaryError, Program},
    mongod::{Mongod, Secondary, TestDatabase},
    nats::{Login, NatsOptions, NatsServer},
    process::ServerProcess,
};
use crate::{
    process_guard::{Exit, ProcessGuardError},
    wait::NotReached,
};

/// How long a server may take to be ready. Far more than it needs, so that only a broken one reaches it on a busy machine.
pub(crate) const READY_WITHIN: Duration = Duration::from_secs(60);

/// Why a server is not there.
#[derive(Debug, Error)]
pub enum ServerError {
    /// There is no binary to start.
    #[error(transparent)]
    Binary(#[from] BinaryError),
    /// The process could not be started, reached or followed.
    #[error(transparent)]
    Guard(#[from] ProcessGuardError),
    /// Its directory could not be prepared.
    #[error("the directory of {server} could not be prepared")]
    Directory {
        /// The server.
        server: Program,
        /// What the system said.
        source: io::Error,
    },
    /// It ended instead of getting ready.
    #[error("{server} ended ({exit}) before it was ready; the end of its log:\n{log}")]
    Ended {
        /// The server.
        server: Program,
        /// How it ended.
        exit: Exit,
        /// The last lines of its log.
        log: String,
    },
    /// It runs, but did not get ready in time.
    #[error("{server}: {source}; the end of its log:\n{log}")]
    NotReady {
        /// The server.
        server: Program,
        /// What was awaited, and the last state.
        source: NotReached,
        /// The last lines of its log.
        log: String,
    },
    /// No port was free, however often another was tried.
    #[error("{server} found no free port in {tried} tries")]
    NoPort {
        /// The server.
        server: Program,
        /// How many ports were tried.
        tried: u32,
    },
    /// A database could not be prepared.
    #[error("the database could not be prepared")]
    Database(#[from] mongodb::error::Error),
}

impl ServerError {
    /// Whether another process had the port; another port may then do.
    fn is_port_in_use(&self) -> bool {
        matches!(self, Self::Ended { log, .. } if log.to_lowercase().contains("address already in use"))
    }
}
