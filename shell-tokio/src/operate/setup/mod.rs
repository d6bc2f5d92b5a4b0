//! Makes the streams, the consumer and the index what the data contract says, and tells what it had to change.
//!
//! What exists is changed in place and never made anew, so that messages and acknowledgements stay. Only the settings
//! that the processor relies on are touched; everything else (limits, description, placement …) stays as it is, also
//! settings that this version knows nothing of, because configurations are read and written back as the server's own JSON.

mod index;
mod objects;
mod plan;

use std::{fmt, time::Duration};

use async_nats::jetstream::{
    Context, Error as ApiError, ErrorCode,
    context::{RequestError, RequestErrorKind},
    response::Response,
};
use mongodb::Database;
use serde_json::{Value, json};
use thiserror::Error;

use self::{
    objects::Object,
    plan::{Config, Difference, Plan},
};
use crate::cli::StreamSettings;

/// How often an object is looked at again because another process changed it at the same moment.
const ROUNDS: usize = 10;
/// How long JetStream may take to get ready: a cluster elects its leaders after it has begun to take connections.
const READY_WITHIN: Duration = Duration::from_secs(10);
const READY_POLL: Duration = Duration::from_millis(250);

/// Creates what is missing and updates what differs. A second run changes nothing.
///
/// Any number of processes may do this at the same time.
///
/// # Errors
///
/// Whatever keeps the contract from being met; nothing that already exists is then lost, but objects that come before the
/// one that the error names (in the order of the [`Report`]) may have been changed.
pub async fn ensure(js: &Context, db: &Database, settings: &StreamSettings) -> Result<Report, SetupError> {
    let mut report = ensure_jetstream(js, settings).await?;
    index::ensure(db, &mut report).await?;
    Ok(report)
}

/// The part of [`ensure`] that is about JetStream.
///
/// # Errors
///
/// See [`ensure`].
pub async fn ensure_jetstream(js: &Context, settings: &StreamSettings) -> Result<Report, SetupError> {
    let mut report = Report::default();
    for object in [Object::transcription(settings), Object::recording(settings), Object::consumer(settings)] {
        ensure_object(js, &object, &mut report).await?;
    }
    Ok(report)
}

/// The index by which [`Watch`](crate::service::mongodb::stale::Watch) finds the summaries of the last while.
///
/// # Errors
///
/// See [`ensure`].
pub async fn ensure_watched(db: &Database, report: &mut Report) -> Result<(), SetupError> {
    index::ensure_watched(db, report).await
}

/// What a run of [`ensure`] found and did.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Report {
    /// What was changed, in the order in which it was done.
    pub changes: Vec<Change>,
    /// What was left as it is although it weakens what the processor promises; one sentence each.
    pub warnings: Vec<String>,
}

/// One thing that was created or changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// It did not exist.
    Created {
        /// The kind and the name of it.
        object: String,
    },
    /// A setting of it was another.
    Updated {
        /// The kind and the name of it.
        object: String,
        /// The setting, as the server's API calls it.
        field: &'static str,
        /// The value that was found.
        from: String,
        /// The value that it has now.
        to: String,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Created { object } => write!(f, "{object}: created"),
            Self::Updated { object, field, from, to } => write!(f, "{object}: {field} changed from {from} to {to}"),
        }
    }
}

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
        "JetStream is not enabled on the NATS server {server}: start it with -js, or with a jetstream block in its configuration"
    )]
    Disabled {
        /// The server's own name.
        server: String,
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

async fn ensure_object(js: &Context, object: &Object, report: &mut Report) -> Result<(), SetupError> {
    for _ in 0..ROUNDS {
        let Some(existing) = read(js, object).await? else {
            if let Some(config) = submit(js, object, "create", &object.blank()).await? {
                object.verify(&config)?;
                report.changes.push(Change::Created { object: object.name.clone() });
                return Ok(());
            }
            continue;
        };
        let Plan { config, differences } = object.plan(&existing)?;
        if !differences.is_empty() {
            let Some(answer) = submit(js, object, "update", &config).await? else { continue };
            object.verify(&answer)?;
            report.changes.extend(differences.into_iter().map(|difference| object.change(difference)));
        }
        report.warnings.extend(object.warnings(&existing));
        return Ok(());
    }
    Err(SetupError::Contended { object: object.name.clone() })
}

/// The configuration of the object, if it exists.
async fn read(js: &Context, object: &Object) -> Result<Option<Config>, SetupError> {
    match request(js, object, "read", &object.info_subject, &json!({})).await {
        Ok(config) => Ok(Some(config)),
        Err(Failure::Answered(e)) if object.is_missing(e.error_code()) => Ok(None),
        Err(failure) => Err(failure.into_error("read", object)),
    }
}

/// The configuration that the server made of the request; nothing if another process was faster and a look is due again.
async fn submit(
    js: &Context,
    object: &Object,
    action: &'static str,
    config: &Config,
) -> Result<Option<Config>, SetupError> {
    let (subject, body) = object.submission(action, config);
    match request(js, object, action, &subject, &body).await {
        Ok(config) => Ok(Some(config)),
        Err(Failure::Answered(e)) if action == "create" && object.is_taken(e.error_code()) => Ok(None),
        Err(Failure::Answered(e)) if action == "update" && object.is_missing(e.error_code()) => Ok(None),
        Err(failure) => Err(failure.into_error(action, object)),
    }
}

/// One call of the JetStream API, repeated while JetStream gets ready.
///
/// Every call made here can be repeated: reading changes nothing, and creating or updating with the same configuration
/// is answered like the first time.
async fn request(
    js: &Context,
    object: &Object,
    action: &'static str,
    subject: &str,
    body: &Value,
) -> Result<Config, Failure> {
    let deadline = tokio::time::Instant::now() + READY_WITHIN;
    loop {
        let failure = match js.request::<_, _, Response<Value>>(subject.to_owned(), body).await {
            Ok(Response::Ok(mut answer)) => match answer.get_mut("config").map(Value::take) {
                Some(Value::Object(config)) => return Ok(config),
                Some(_) | None => return Err(Failure::Silent(RequestError::new(RequestErrorKind::Other))),
            },
            Ok(Response::Err { error }) if is_passing(error.error_code()) => Failure::Answered(error),
            Ok(Response::Err { error }) => return Err(Failure::Answered(error)),
            Err(e) => match e.kind() {
                RequestErrorKind::NoResponders if !js.client().server_info().jetstream => {
                    return Err(Failure::Disabled(js.client().server_info().server_name));
                }
                RequestErrorKind::NoResponders | RequestErrorKind::TimedOut => Failure::Silent(e),
                RequestErrorKind::InvalidSubject | RequestErrorKind::Other => return Err(Failure::Silent(e)),
            },
        };
        if tokio::time::Instant::now() >= deadline {
            return Err(failure);
        }
        tracing::debug!(object = %object.name, action, "JetStream is not ready yet");
        tokio::time::sleep(READY_POLL).await;
    }
}

/// What goes away by itself while a cluster elects a leader.
fn is_passing(code: ErrorCode) -> bool {
    code == ErrorCode::CLUSTER_NOT_AVAILABLE || code == ErrorCode::CLUSTER_NOT_LEADER
}

enum Failure {
    Answered(ApiError),
    Silent(RequestError),
    Disabled(String),
}

impl Failure {
    fn into_error(self, action: &'static str, object: &Object) -> SetupError {
        let object = object.name.clone();
        match self {
            Self::Answered(source) => SetupError::JetStream { action, object, source },
            Self::Silent(source) => SetupError::Unavailable { action, object, source },
            Self::Disabled(server) => SetupError::Disabled { server },
        }
    }
}

impl Object {
    fn change(&self, difference: Difference) -> Change {
        let Difference { field, existing, wanted } = difference;
        Change::Updated { object: self.name.clone(), field, from: existing, to: wanted }
    }
}
