//! Connections to NATS and MongoDB.

use std::{
    future, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, ServerAddr, ServerError};
use mongodb::{
    bson::doc,
    error::ErrorKind,
    options::{
        Acknowledgment, ClientOptions, ReadConcern, ReadConcernLevel, ReadPreference, SelectionCriteria, WriteConcern,
    },
};
use thiserror::Error;
use tokio::{sync::watch, time::Instant};

use crate::{
    cli::{MongodbArgs, NatsArgs},
    operate::setup::permissions::Refusals,
    secret::NatsLogin,
};

/// The name under which servers list these connections.
const NAME: &str = "transcript-processor";
/// async-nats gives a connection up when it would send a third ping and the first two are unanswered, so a peer that is
/// gone without a word is noticed after three of these: within 3 s, well within the ack wait.
const PING_INTERVAL: Duration = Duration::from_millis(900);
const FIRST_RECONNECT_DELAY: Duration = Duration::from_millis(10);
/// Short beside the ack wait: calls in hand must not be given away because of a server that was restarted.
const LONGEST_RECONNECT_DELAY: Duration = Duration::from_secs(1);
/// The driver's own defaults; they hold for as long as the process runs, and so must not grow with the time for the start.
const LONGEST_SELECTION: Duration = Duration::from_secs(30);
const LONGEST_HANDSHAKE: Duration = Duration::from_secs(10);
/// Between two attempts at the first connection.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Why there is no connection. No text of it holds a password.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// A file that the settings name cannot be used.
    #[error("cannot read {what} {}", path.display())]
    File {
        /// What the file is for.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The addresses are none.
    #[error("{url} does not name a NATS server")]
    NatsUrl {
        /// The addresses, without user and password.
        url: String,
        /// Why.
        source: io::Error,
    },
    /// No NATS server let us in, or none answered in time.
    #[error("cannot connect to NATS at {url} (--nats-url)")]
    Nats {
        /// The addresses, without user and password.
        url: String,
        /// The last failure.
        source: async_nats::ConnectError,
    },
    /// No NATS server answered in time.
    #[error("cannot connect to NATS at {url} (--nats-url): no answer within {}", humantime::format_duration(*within))]
    NatsSilent {
        /// The addresses, without user and password.
        url: String,
        /// How long it was tried for.
        within: Duration,
    },
    /// The MongoDB connection string is none, or no server answered in time.
    #[error("cannot connect to MongoDB at {uri} (--mongodb-uri)")]
    Mongodb {
        /// The connection string, without user, password and options.
        uri: String,
        /// The driver's error.
        source: mongodb::error::Error,
    },
}

/// A connection to NATS, and what becomes of it.
#[derive(Debug, Clone)]
pub struct NatsConnection {
    /// The client.
    pub client: Client,
    /// Changes with every event of the connection.
    pub events: watch::Receiver<ConnectionEvents>,
    /// What the subjects of JetStream's API begin with.
    pub api_prefix: String,
}

impl From<Client> for NatsConnection {
    /// A connection of which no events are told: changes are seen a little later.
    fn from(client: Client) -> Self {
        let (_, events) = watch::channel(ConnectionEvents::default());
        Self { client, events, api_prefix: "$JS.API".to_owned() }
    }
}

/// What has happened to a connection, counted; the numbers go round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionEvents {
    /// Events of any kind.
    pub events: u32,
    /// Attempts to connect that failed.
    pub failed_attempts: u32,
}

/// Connects to NATS. The first connection is tried for `within`; afterwards a lost one is made anew for ever. `refusals` is
/// told what the server refuses.
///
/// # Errors
///
/// A file or an address that cannot be used and a server that does not let us in are reported at once; a server that
/// cannot be reached when `within` is over.
pub async fn connect_nats(
    args: &NatsArgs,
    within: Duration,
    refusals: &Refusals,
) -> Result<NatsConnection, ConnectError> {
    let url = args.url.to_string();
    let servers = args.url.servers().map_err(|source| ConnectError::NatsUrl { url: url.clone(), source })?;
    let (counter, events) = watch::channel(ConnectionEvents::default());
    let options = options(args, counter, refusals).await?;
    let mut last = None;
    match tokio::time::timeout(within, first_connection(&options, &servers, &mut last)).await {
        Ok(Ok(client)) => Ok(NatsConnection { client, events, api_prefix: args.js_api_prefix() }),
        Ok(Err(source)) => Err(ConnectError::Nats { url, source }),
        Err(_elapsed) => Err(match last {
            Some(source) => ConnectError::Nats { url, source },
            None => ConnectError::NatsSilent { url, within },
        }),
    }
}

/// Connects to MongoDB and waits for a primary, for `within` at most. Writes are acknowledged by a majority of the servers'
/// journals unless an operation asks for something else.
///
/// # Errors
///
/// The connection string cannot be read, the server does not let us in, or no primary was found in time.
pub async fn connect_mongodb(args: &MongodbArgs, within: Duration) -> Result<mongodb::Client, ConnectError> {
    let failed = |source| ConnectError::Mongodb { uri: args.uri.to_string(), source };
    let mut options = ClientOptions::parse(args.uri.reveal()).await.map_err(failed)?;
    options.app_name.get_or_insert_with(|| NAME.to_owned());
    options.server_selection_timeout.get_or_insert(within.min(LONGEST_SELECTION));
    options.connect_timeout.get_or_insert(within.min(LONGEST_HANDSHAKE));
    for (what, asked) in read_from_the_primary(&mut options) {
        tracing::warn!(
            "the connection string asks for {what} {asked}: it is not used, because a call is summarised from what \
                        the primary has and a majority keeps"
        );
    }
    options.write_concern = Some(WriteConcern::builder().w(Acknowledgment::Majority).journal(true).build());
    let client = mongodb::Client::with_options(options).map_err(failed)?;
    let deadline = Instant::now() + within;
    while let Err(error) = client.database(&args.database).run_command(doc! { "ping": 1 }).await {
        if !matches!(*error.kind, ErrorKind::ServerSelection { .. }) || Instant::now() >= deadline {
            return Err(failed(error));
        }
    }
    Ok(client)
}

/// Reads go to the primary and see what a majority has, whatever the connection string says: a member that lags would have
/// fewer segments than were stored. Tells what it asked for instead.
fn read_from_the_primary(options: &mut ClientOptions) -> Vec<(&'static str, String)> {
    let primary = SelectionCriteria::ReadPreference(ReadPreference::Primary);
    let asked = options.selection_criteria.replace(primary.clone()).filter(|asked| *asked != primary);
    let level = options.read_concern.replace(ReadConcern::majority()).filter(|asked| *asked != ReadConcern::majority());
    let asked = asked.map(|asked| ("readPreference", read_preference(&asked)));
    let level = level.map(|asked| ("readConcernLevel", read_concern(&asked.level)));
    asked.into_iter().chain(level).collect()
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the driver's enum grows")]
fn read_concern(level: &ReadConcernLevel) -> String {
    match level {
        ReadConcernLevel::Local => "local",
        ReadConcernLevel::Linearizable => "linearizable",
        ReadConcernLevel::Available => "available",
        ReadConcernLevel::Snapshot => "snapshot",
        _ => "of another kind",
    }
    .to_owned()
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the driver's enum grows")]
fn read_preference(asked: &SelectionCriteria) -> String {
    match asked {
        SelectionCriteria::ReadPreference(ReadPreference::Secondary { .. }) => "secondary",
        SelectionCriteria::ReadPreference(ReadPreference::PrimaryPreferred { .. }) => "primaryPreferred",
        SelectionCriteria::ReadPreference(ReadPreference::SecondaryPreferred { .. }) => "secondaryPreferred",
        SelectionCriteria::ReadPreference(ReadPreference::Nearest { .. }) => "nearest",
        // Nothing else can stand in a connection string.
        _ => "another server",
    }
    .to_owned()
}

async fn first_connection(
    options: &ConnectOptions,
    servers: &[ServerAddr],
    last: &mut Option<async_nats::ConnectError>,
) -> Result<Client, async_nats::ConnectError> {
    loop {
        let error = match options.clone().connect(servers).await {
            Ok(client) => return Ok(client),
            Err(error) => error,
        };
        match error.kind() {
            ConnectErrorKind::Io | ConnectErrorKind::Dns | ConnectErrorKind::TimedOut => {
                tracing::debug!(%error, "NATS cannot be reached yet");
                *last = Some(error);
            }
            ConnectErrorKind::ServerParse
            | ConnectErrorKind::Authentication
            | ConnectErrorKind::AuthorizationViolation
            | ConnectErrorKind::Tls
            | ConnectErrorKind::MaxReconnects => return Err(error),
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

async fn options(
    args: &NatsArgs,
    counter: watch::Sender<ConnectionEvents>,
    refusals: &Refusals,
) -> Result<ConnectOptions, ConnectError> {
    let mut options = ConnectOptions::new()
        .name(NAME)
        .ping_interval(PING_INTERVAL)
        .reconnect_delay_callback(reconnect_delay)
        .event_callback(log_events(args.url.to_string(), counter, refusals.clone()))
        .require_tls(args.require_tls || args.tls_ca.is_some() || args.tls_cert.is_some());
    if let Some(path) = &args.creds {
        let creds = read_file("--nats-creds", path).await?;
        options = options.credentials(&creds).map_err(|source| unusable("--nats-creds", path, source))?;
    }
    if let Some(path) = &args.nkey {
        let seed = nkey_seed(&read_file("--nats-nkey", path).await?)
            .ok_or_else(|| unusable("--nats-nkey", path, io::Error::other("it holds no seed of a user")))?;
        options = options.nkey(seed);
    }
    match args.url.login().map_err(|source| ConnectError::NatsUrl { url: args.url.to_string(), source })? {
        Some(NatsLogin::User(user, password)) => {
            options = options.user_and_password(user, password.reveal().to_owned());
        }
        Some(NatsLogin::Token(token)) => options = options.token(token.reveal().to_owned()),
        None => {}
    }
    if let (Some(user), Some(password)) = (&args.user, &args.password) {
        options = options.user_and_password(user.clone(), password.reveal().to_owned());
    }
    if let Some(path) = &args.tls_ca {
        read_file("--nats-tls-ca", path).await?;
        options = options.add_root_certificates(path.clone());
    }
    if let (Some(cert), Some(key)) = (&args.tls_cert, &args.tls_key) {
        read_file("--nats-tls-cert", cert).await?;
        read_file("--nats-tls-key", key).await?;
        options = options.add_client_certificate(cert.clone(), key.clone());
    }
    Ok(if args.tls_first { options.tls_first() } else { options })
}

async fn read_file(what: &'static str, path: &Path) -> Result<String, ConnectError> {
    tokio::fs::read_to_string(path).await.map_err(|source| unusable(what, path, source))
}

fn unusable(what: &'static str, path: &Path, source: io::Error) -> ConnectError {
    ConnectError::File { what, path: path.to_owned(), source }
}

/// The seed of a user begins with `SU`; tools write comments and frames around it.
fn nkey_seed(file: &str) -> Option<String> {
    file.lines().map(str::trim).find(|line| line.starts_with("SU")).map(str::to_owned)
}

fn reconnect_delay(attempts: usize) -> Duration {
    let doublings = u32::try_from(attempts.saturating_sub(1)).unwrap_or(u32::MAX).min(16);
    if attempts == 0 {
        Duration::ZERO
    } else {
        (FIRST_RECONNECT_DELAY * 2_u32.pow(doublings)).min(LONGEST_RECONNECT_DELAY)
    }
}

/// Counts and logs what becomes of the connection. While there is none, each attempt fails in the same way: only the first is told.
fn log_events(
    url: String,
    counter: watch::Sender<ConnectionEvents>,
    refusals: Refusals,
) -> impl Fn(Event) -> future::Ready<()> + Send + Sync + 'static {
    let told = AtomicBool::new(false);
    move |event| {
        if let Event::ServerError(ServerError::Other(error)) = &event
            && refusals.heard(error)
        {
            return future::ready(());
        }
        let is_error = matches!(event, Event::ClientError(_));
        counter.send_modify(|counted| {
            counted.events = counted.events.wrapping_add(1);
            counted.failed_attempts = counted.failed_attempts.wrapping_add(u32::from(is_error));
        });
        if is_error && told.swap(is_error, Ordering::Relaxed) {
            tracing::debug!("NATS: {event}");
        } else {
            told.store(is_error, Ordering::Relaxed);
            log_event(&event, &url);
        }
        future::ready(())
    }
}

fn log_event(event: &Event, url: &str) {
    match event {
        Event::Connected => tracing::info!("NATS connected"),
        Event::Disconnected => tracing::warn!("NATS disconnected; connecting again"),
        Event::LameDuckMode => tracing::warn!("the NATS server is about to stop"),
        Event::Draining => tracing::info!("NATS connection drains"),
        Event::Closed => tracing::info!("NATS connection closed"),
        Event::SlowConsumer(subscription) => {
            tracing::error!(subscription, "messages from NATS were dropped because they were not read in time");
        }
        Event::ServerError(error) => tracing::error!(%error, "NATS server error"),
        Event::ClientError(error) => tracing::warn!(%error, url, "NATS client error"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reconnecting_is_quick_at_first_and_never_slow() {
        let delays: Vec<_> = [0, 1, 2, 3, 7, 8, 1000, usize::MAX].map(|n| reconnect_delay(n).as_millis()).into();
        assert_eq!(delays, [0, 10, 20, 40, 640, 1000, 1000, 1000]);
    }

    #[test]
    fn a_seed_is_found_within_its_frame() {
        assert_eq!(nkey_seed("# ann\n-----BEGIN SEED-----\n SUABC \n---"), Some("SUABC".to_owned()));
        assert_eq!(nkey_seed("UABC\n"), None);
    }
}
