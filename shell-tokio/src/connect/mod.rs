//! Connections to NATS and MongoDB.

mod credentials;
mod fault;
mod login;
mod mongodb;
mod nats;
mod warnings;

use std::io;

use thiserror::Error;
use transcript_core::Server;

use crate::secret::{BadMongodbUri, BadNatsUrl, SecretFile};

pub use self::{
    fault::Fault,
    login::{LoginRefused, Logins},
    mongodb::connect_mongodb,
    nats::{ConnectionEvents, NatsConnection, connect_nats},
};

/// The name under which servers list these connections.
const NAME: &str = "transcript-processor";

/// Why there is no connection. No text of it holds a password, or what a server said.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// A file that the settings name cannot be read.
    #[error("cannot read {what} {file}")]
    File {
        /// The option.
        what: &'static str,
        /// The file.
        file: SecretFile,
        /// Why.
        source: io::Error,
    },
    /// A file that the settings name does not hold what it should.
    #[error("{what} {file} holds no {missing}")]
    Content {
        /// The option.
        what: &'static str,
        /// The file.
        file: SecretFile,
        /// What is not in it.
        missing: &'static str,
    },
    /// The addresses are none.
    #[error("--nats-url {url}: {reason}")]
    NatsUrl {
        /// The addresses, without user and password.
        url: String,
        /// Why.
        reason: BadNatsUrl,
    },
    /// No NATS server let us in, or none could be used.
    #[error("cannot connect to NATS at {url} (--nats-url): {}", fault.explain(Server::Nats))]
    Nats {
        /// The addresses, without user and password.
        url: String,
        /// What the last attempt met.
        fault: Fault,
    },
    /// The MongoDB connection string is none.
    #[error("--mongodb-uri {uri}: {reason}")]
    MongodbUri {
        /// The servers, without user, password and options.
        uri: String,
        /// Why.
        reason: BadMongodbUri,
    },
    /// No MongoDB server let us in, or none could be used.
    #[error("cannot connect to MongoDB at {uri} (--mongodb-uri): {}", fault.explain(Server::Mongodb))]
    Mongodb {
        /// The servers, without user, password and options.
        uri: String,
        /// What the last attempt met.
        fault: Fault,
    },
}
