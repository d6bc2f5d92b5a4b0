//! Why the contract cannot be met, and what to do about it.

use async_nats::jetstream::{Error as ApiError, context::RequestError};
use thiserror::Error;

use super::{READY_WITHIN, ROUNDS};

/// Why the contract cannot be met.
#[derive(Debug, Error)]
pub enum SetupError {
    /// An existing object has a setting that cannot be changed, or must not be without somebody deciding so.
    #[error("{object} has {field} {existing}, but {wanted} is needed, and {why}")]
    Refused {
        /// The kind and the name of it.
        object: String,
        /// The setting, as the server's API calls it.
        field: &'static str,
        /// The value that was found.
        existing: String,
        /// The value that is needed.
        wanted: String,
        /// Why it is not changed, and what to do.
        why: &'static str,
    },
    /// The duplicate window is longer than messages are kept.
    #[error(
        "{object} keeps messages for max_age {max_age}, but a duplicate window of {window} is wanted, and JetStream \
         remembers no id for longer than its message: raise the stream's max_age or lower --duplicate-window"
    )]
    WindowBeyondAge {
        /// The kind and the name of it.
        object: String,
        /// How long messages are kept.
        max_age: String,
        /// The window that is wanted.
        window: String,
    },
    /// A limit makes the stream drop messages that are still needed.
    #[error(
        "{object} has {field} {limit} and drops its oldest messages when that is reached, also ends that nobody has processed \
         and notifications within the duplicate window: remove the limit, or let the stream refuse new messages instead \
         (discard new{})",
        if *field == "max_msgs_per_subject" { ", discard_new_per_subject" } else { "" }
    )]
    Evicts {
        /// The kind and the name of it.
        object: String,
        /// The limit, as the server's API calls it.
        field: &'static str,
        /// What it is set to.
        limit: i64,
    },
    /// The server took the change, but the setting is not what was asked for.
    #[error("{object} was given {field} {wanted}, but the server made it {got}")]
    NotTaken {
        /// The kind and the name of it.
        object: String,
        /// The setting, as the server's API calls it.
        field: &'static str,
        /// The value that was asked for.
        wanted: String,
        /// The value that the server answered.
        got: String,
    },
    /// JetStream answered with an error.
    #[error("JetStream refused to {action} {object}")]
    JetStream {
        /// What was asked for: to read, create or update.
        action: &'static str,
        /// The kind and the name of it.
        object: String,
        /// The server's answer.
        source: ApiError,
    },
    /// The server answers, but has no JetStream.
    #[error(
        "the NATS server {server} has no JetStream, and no server behind it answers in its place: where it is a leaf node, \
         check its link to the hub and give --js-domain with the hub's domain; otherwise enable JetStream in its configuration"
    )]
    Disabled {
        /// The server's own name.
        server: String,
    },
    /// The JetStream that was named does not answer.
    #[error(
        "no JetStream answers under the name that --js-domain or --js-api-prefix gives: check the name, and the link from the \
         NATS server {server} to the servers of that domain"
    )]
    NamedSilent {
        /// The server's own name.
        server: String,
    },
    /// A stream is missing in a domain that nobody named.
    #[error(
        "there is no {object} in JetStream's domain {domain}, to which the NATS server belongs: if other members keep it in \
         another domain, give that with --js-domain; if it is to be made here, give --js-domain {domain}"
    )]
    Domain {
        /// The kind and the name of the stream.
        object: String,
        /// The domain.
        domain: String,
    },
    /// A stream is missing here, and another one takes its messages.
    #[error(
        "there is no {object} in the JetStream of this NATS server, but the stream {stream} takes its messages: give the \
         domain of that one with --js-domain, or remove it"
    )]
    Elsewhere {
        /// The kind and the name of the missing stream.
        object: String,
        /// The stream that takes its messages.
        stream: String,
    },
    /// A collection cannot hold what it has to.
    #[error("the collection {name} {what}, and {why}: move its documents to a plain collection of that name")]
    Collection {
        /// The collection.
        name: String,
        /// What it is or has.
        what: String,
        /// Why that hinders.
        why: &'static str,
    },
    /// An index lets only one of several calls be stored.
    #[error(
        "the index {index} {keys} on {name} is unique, and summaries of different calls can have the same keys: the second \
         one could never be stored; make the index not unique, or remove it"
    )]
    UniqueIndex {
        /// The collection.
        name: String,
        /// The name of the index.
        index: String,
        /// Its keys.
        keys: String,
    },
    /// The user of NATS may not do what a processor has to do.
    #[error("this user of NATS may not {missing}: grant it in the permissions of the server")]
    Permissions {
        /// The directions, the subjects, and what fails without them.
        missing: String,
    },
    /// The user of MongoDB may not do what a processor has to do.
    #[error(
        "this user of MongoDB may not do what is needed in the database {database}: {missing}; the role readWrite has it"
    )]
    Privileges {
        /// The database.
        database: String,
        /// The actions, the collections, and what fails without them.
        missing: String,
    },
    /// JetStream did not answer in time.
    #[error(
        "JetStream did not answer within {}s when asked to {action} {object}: is it running, and may this user publish \
         to $JS.API.>?",
        READY_WITHIN.as_secs()
    )]
    Unavailable {
        /// What was asked for: to read, create or update.
        action: &'static str,
        /// The kind and the name of it.
        object: String,
        /// The last failure.
        source: RequestError,
    },
    /// Other processes changed an object again and again.
    #[error(
        "{object} was changed by others {ROUNDS} times in a row while it was being set up: is another version running with other settings?"
    )]
    Contended {
        /// The kind and the name of it.
        object: String,
    },
    /// MongoDB did not do what it was asked.
    #[error("MongoDB failed to {action}")]
    Mongodb {
        /// What was asked for.
        action: String,
        /// The driver's error.
        source: mongodb::error::Error,
    },
}
