//! Makes the streams, the consumer and the index what the data contract says, and tells what it had to change.
//!
//! What exists is changed in place and never made anew, so that messages and acknowledgements stay. Of what exists only two
//! kinds of settings are changed: those that somebody asked for, and those that keep processors from working. Everything else
//! (limits, description, placement …) stays as it is, also settings that this version knows nothing of, because
//! configurations are read and written back as the server's own JSON. Other processors may use what is there: where it
//! differs from the default and nobody asked for a change, that is told and kept.

mod collections;
mod elsewhere;
mod error;
mod index;
mod objects;
pub mod permissions;
mod plan;

use std::{fmt, time::Duration};

use async_nats::jetstream::{
    Context, Error as ApiError, ErrorCode,
    context::{RequestError, RequestErrorKind},
    response::Response,
};
use mongodb::Database;
use serde_json::{Value, json};

pub use self::error::SetupError;
use self::{
    objects::Object,
    plan::{Config, Difference, Plan},
};
use crate::{
    cli::{StreamSettings, StreamValues},
    service::clock::Clock,
};

/// How often an object is looked at again because another process changed it at the same moment.
const ROUNDS: usize = 10;
/// How long JetStream may take to get ready: a cluster elects its leaders after it has begun to take connections.
const READY_WITHIN: Duration = Duration::from_secs(10);
const READY_POLL: Duration = Duration::from_millis(250);

/// What is to be set up, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// What is asked for.
    pub settings: StreamSettings,
    /// The values for what is not asked for and does not exist yet.
    pub defaults: StreamValues,
    /// Which JetStream is meant.
    pub api: Api,
    /// What is done about a paused consumer.
    pub pause: Pause,
}

impl Request {
    /// What is asked for, and the defaults for the rest.
    fn values(&self) -> StreamValues {
        self.settings.or(self.defaults)
    }
}

/// Which JetStream is meant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Api {
    /// The one of the server that the client is connected to, by default. No stream is made there where another JetStream may
    /// have it.
    #[default]
    Nearest,
    /// One that was named, by its domain or the prefix of its API.
    Named,
    /// One that had the streams before.
    Known,
}

/// What is done about a paused consumer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pause {
    /// It stays paused, and that is told: somebody wanted it.
    #[default]
    Keep,
    /// The pause ends.
    End,
}

/// Creates what is missing and updates what has to be another. A second run changes nothing.
///
/// Any number of processes may do this at the same time. What can be refused is refused before anything is changed.
///
/// # Errors
///
/// Whatever keeps the contract from being met; nothing that already exists is then lost, but objects that come before the
/// one that the error names (in the order of the [`Report`]) may have been changed.
pub async fn ensure(js: &Context, db: &Database, request: &Request) -> Result<Report, SetupError> {
    let mut report = Report::default();
    collections::check_privileges(db, &mut report).await?;
    collections::check(db, &mut report).await?;
    set_up_jetstream(js, request, &mut report).await?;
    index::ensure(db, &mut report).await?;
    Ok(report)
}

/// The part of [`ensure`] that is about JetStream.
///
/// # Errors
///
/// See [`ensure`].
pub async fn ensure_jetstream(js: &Context, request: &Request) -> Result<Report, SetupError> {
    let mut report = Report::default();
    set_up_jetstream(js, request, &mut report).await?;
    Ok(report)
}

async fn set_up_jetstream(js: &Context, request: &Request, report: &mut Report) -> Result<(), SetupError> {
    for object in [Object::transcription(request), Object::recording(request), Object::consumer(request)] {
        ensure_object(js, &object, request, report).await?;
    }
    Ok(())
}

/// The index by which [`Watch`](crate::service::mongodb::stale::Watch) finds the summaries of the last while.
///
/// # Errors
///
/// See [`ensure`].
pub async fn ensure_watched(db: &Database, report: &mut Report) -> Result<(), SetupError> {
    index::ensure_watched(db, report).await
}

/// The indexes that a transcriber needs.
///
/// # Errors
///
/// MongoDB cannot list or create them.
pub async fn ensure_transcriber(db: &Database, report: &mut Report) -> Result<(), SetupError> {
    index::ensure_transcriber(db, report).await
}

/// What a run of [`ensure`] found and did.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Report {
    /// What was changed, in the order in which it was done.
    pub changes: Vec<Change>,
    /// What was kept although the default is another.
    pub kept: Vec<Kept>,
    /// What the streams and the consumer are like now.
    pub values: StreamValues,
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

/// A setting that was kept because nobody asked for a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The kind and the name of what has it.
    pub object: String,
    /// The setting, as the server's API calls it.
    pub field: &'static str,
    /// The value that it has.
    pub existing: String,
    /// The value that it would have been made with.
    pub default: String,
    /// The option that changes it.
    pub option: &'static str,
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, field, existing, default, option } = self;
        write!(f, "{object}: {field} stays {existing}, the default is {default}: {option} changes it")
    }
}

async fn ensure_object(
    js: &Context,
    object: &Object,
    request: &Request,
    report: &mut Report,
) -> Result<(), SetupError> {
    let mut not_taken = None;
    for _ in 0..ROUNDS {
        let Some(existing) = read(js, object, request.api).await? else {
            if let Err(refusal) = elsewhere::check(js, object, request).await {
                // Another process may have made it since.
                match read(js, object, request.api).await? {
                    Some(_) => continue,
                    None => return Err(refusal),
                }
            }
            if let Some(config) = submit(js, object, "create", &object.blank()).await? {
                object.verify(&config)?;
                object.values(&config, &mut report.values);
                report.changes.push(Change::Created { object: object.name.clone() });
                return Ok(());
            }
            continue;
        };
        let Plan { config, differences, kept } = object.plan(&existing)?;
        let mut config = config;
        if !differences.is_empty() {
            let Some(answer) = submit(js, object, "update", &config).await? else { continue };
            if let Err(error) = object.verify(&answer) {
                // The answer may tell of another process's update.
                not_taken = Some(error);
                continue;
            }
            report.changes.extend(differences.into_iter().map(|difference| object.change(difference)));
            config = answer;
        }
        object.values(&config, &mut report.values);
        report.kept.extend(kept.into_iter().map(|(difference, option)| object.kept(difference, option)));
        report.warnings.extend(object.warnings(&config));
        return pause(js, object, &config, request, report).await;
    }
    Err(not_taken.unwrap_or_else(|| SetupError::Contended { object: object.name.clone() }))
}

/// Ends the pause of a consumer where that is asked for, and tells of it otherwise. It is not part of what an update changes
/// (nats-server, `jetstream_api.go`, `jsConsumerCreateRequest`).
async fn pause(
    js: &Context,
    object: &Object,
    config: &Config,
    wanted: &Request,
    report: &mut Report,
) -> Result<(), SetupError> {
    let Some(until) = object.paused_until(config, Clock::start().wall()) else { return Ok(()) };
    match wanted.pause {
        Pause::Keep => report.warnings.push(format!(
            "{} is paused until {until}: no call is handed out before; `setup --resume` ends that",
            object.name
        )),
        Pause::End => {
            let subject = object.info_subject.replace("INFO", "PAUSE");
            let failed = |source| SetupError::Unavailable { action: "resume", object: object.name.clone(), source };
            let answer: Response<Value> = js.request(subject, &json!({})).await.map_err(failed)?;
            if let Response::Err { error: source } = answer {
                return Err(SetupError::JetStream { action: "resume", object: object.name.clone(), source });
            }
            let (existing, wanted) = (until, "none".to_owned());
            report.changes.push(object.change(Difference { field: "pause_until", existing, wanted }));
        }
    }
    Ok(())
}

/// The configuration of the object, if it exists.
async fn read(js: &Context, object: &Object, api: Api) -> Result<Option<Config>, SetupError> {
    match request(js, object, "read", &object.info_subject, &json!({}), api).await {
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
    match request(js, object, action, &subject, &body, Api::Nearest).await {
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
    api: Api,
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
                RequestErrorKind::NoResponders if api == Api::Named => {
                    Failure::NamedSilent(js.client().server_info().server_name)
                }
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
    NamedSilent(String),
}

impl Failure {
    fn into_error(self, action: &'static str, object: &Object) -> SetupError {
        let object = object.name.clone();
        match self {
            Self::Answered(source) => SetupError::JetStream { action, object, source },
            Self::Silent(source) => SetupError::Unavailable { action, object, source },
            Self::Disabled(server) => SetupError::Disabled { server },
            Self::NamedSilent(server) => SetupError::NamedSilent { server },
        }
    }
}

impl Object {
    fn kept(&self, difference: Difference, option: &'static str) -> Kept {
        let Difference { field, existing, wanted } = difference;
        Kept { object: self.name.clone(), field, existing, default: wanted, option }
    }

    fn change(&self, difference: Difference) -> Change {
        let Difference { field, existing, wanted } = difference;
        Change::Updated { object: self.name.clone(), field, from: existing, to: wanted }
    }
}
