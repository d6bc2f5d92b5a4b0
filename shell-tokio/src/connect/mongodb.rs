//! The connection to MongoDB.

use std::{collections::BTreeMap, fs, sync::Arc, time::Duration};

use mongodb::{
    Client,
    bson::doc,
    error::ErrorKind,
    event::{
        EventHandler,
        cmap::{CmapEvent, ConnectionCheckoutFailedReason},
        sdam::SdamEvent,
    },
    options::{
        Acknowledgment, ClientOptions, ReadConcern, ReadConcernLevel, ReadPreference, SelectionCriteria, ServerAddress,
        WriteConcern,
    },
};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use transcript_core::Server;

use super::{ConnectError, Fault, Logins, NAME, warnings::Warnings};
use crate::cli::MongodbArgs;

/// The driver's own defaults; they hold for as long as the process runs, and so must not grow with the time for the start.
const LONGEST_SELECTION: Duration = Duration::from_secs(30);
const LONGEST_HANDSHAKE: Duration = Duration::from_secs(10);
/// How often a login that was refused is tried again, to see whether it still is.
const LOGIN_RETRY: Duration = Duration::from_secs(1);

/// Connects to MongoDB and waits for a primary, for `within` at most. Writes are acknowledged by a majority of the servers'
/// journals unless an operation asks for something else. `logins` is told while the login is refused: the driver keeps the
/// password that it was given.
///
/// # Errors
///
/// The connection string or the password's file cannot be used, the servers do not let us in or no TLS can be spoken with
/// them (at once), or no primary was found in time.
pub async fn connect_mongodb(args: &MongodbArgs, within: Duration, logins: &Logins) -> Result<Client, ConnectError> {
    let failed = |fault| ConnectError::Mongodb { uri: args.uri.to_string(), fault };
    let mut options = options(args).await?;
    options.app_name.get_or_insert_with(|| NAME.to_owned());
    options.server_selection_timeout.get_or_insert(within.min(LONGEST_SELECTION));
    options.connect_timeout.get_or_insert(within.min(LONGEST_HANDSHAKE));
    for (what, asked) in read_from_the_primary(&mut options) {
        tracing::warn!(
            "the connection string asks for {what} {asked}: it is not used, because a call is summarised from what the \
             primary has and a majority keeps"
        );
    }
    options.write_concern = Some(WriteConcern::builder().w(Acknowledgment::Majority).journal(true).build());
    let hosts = options.hosts.clone();
    let watch = Watch::default();
    watch.listen(&mut options);
    let client = Client::with_options(options).map_err(|error| failed(setting_fault(&error)))?;
    let answered = first_answer(&client, &args.database, &watch, within);
    tokio::select! {
        answered = answered => answered.map_err(failed)?,
        fault = watch.all_are_lasting(&hosts) => return Err(failed(fault)),
    }
    tokio::spawn(watch_login(client.clone(), args.database.clone(), watch, logins.clone()));
    Ok(client)
}

async fn options(args: &MongodbArgs) -> Result<ClientOptions, ConnectError> {
    let uri = || args.uri.to_string();
    args.uri.check().map_err(|reason| ConnectError::MongodbUri { uri: uri(), reason })?;
    // What is left can fail by the DNS only, with mongodb+srv://.
    let parsed = ClientOptions::parse(args.uri.reveal()).await;
    let mut options = parsed.map_err(|error| {
        tracing::debug!(error = %error.kind, "the MongoDB servers cannot be found");
        ConnectError::Mongodb { uri: uri(), fault: Fault::of_mongodb(&error) }
    })?;
    if let Some(file) = &args.password_file {
        let what = "--mongodb-password-file";
        let failed = |source| ConnectError::File { what, file: file.clone(), source };
        let text = fs::read_to_string(file.path()).map_err(failed)?;
        if let Some(credential) = &mut options.credential {
            credential.password = Some(text.trim_end_matches(['\r', '\n']).to_owned());
        }
    }
    Ok(options)
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

async fn first_answer(client: &Client, database: &str, watch: &Watch, within: Duration) -> Result<(), Fault> {
    let deadline = Instant::now() + within;
    while let Err(error) = client.database(database).run_command(doc! { "ping": 1 }).await {
        tracing::debug!(error = %error.kind, "MongoDB cannot be reached yet");
        if !matches!(*error.kind, ErrorKind::ServerSelection { .. }) || Instant::now() >= deadline {
            let fault = Fault::of_mongodb(&error);
            return Err(if fault == Fault::NoPrimary { watch.worst().unwrap_or(fault) } else { fault });
        }
    }
    Ok(())
}

/// Of a client that could not be made, which reads the files that the connection string names.
fn setting_fault(error: &mongodb::error::Error) -> Fault {
    tracing::debug!(error = %error.kind, "the MongoDB driver refuses its settings");
    Fault::Settings
}

/// Tries a login that was refused again, until it is accepted; a login that goes on being refused ends the process.
async fn watch_login(client: Client, database: String, watch: Watch, logins: Logins) {
    loop {
        watch.refused.notified().await;
        while let Err(error) = client.database(&database).run_command(doc! { "ping": 1 }).await {
            let fault = Fault::of_mongodb(&error);
            if !fault.is_login() {
                break;
            }
            logins.refused(Server::Mongodb, fault);
            if watch.warnings.is_due("login", fault) {
                tracing::warn!("MongoDB: {}", fault.explain(Server::Mongodb));
            }
            tokio::time::sleep(LOGIN_RETRY).await;
        }
        logins.accepted(Server::Mongodb);
    }
}

/// What the driver's monitors meet. Its errors say only that no server could be selected, with a page of its own state.
#[derive(Debug, Clone, Default)]
struct Watch {
    warnings: Arc<Warnings>,
    faults: watch::Sender<BTreeMap<String, Fault>>,
    /// A connection could not be made ready; it may be the login.
    refused: Arc<Notify>,
}

impl Watch {
    fn listen(&self, options: &mut ClientOptions) {
        let watch = self.clone();
        options.sdam_event_handler = Some(EventHandler::callback(move |event| watch.server_event(&event)));
        let watch = self.clone();
        options.cmap_event_handler = Some(EventHandler::callback(move |event| watch.connection_event(&event)));
    }

    fn server_event(&self, event: &SdamEvent) {
        #[expect(clippy::wildcard_enum_match_arm, reason = "the driver's events are open-ended")]
        match event {
            SdamEvent::ServerHeartbeatFailed(event) => {
                let (server, fault) = (event.server_address.to_string(), Fault::of_mongodb(&event.failure));
                tracing::debug!(server, error = %event.failure.kind, "MongoDB cannot be reached");
                // The driver's monitors fail in a way of their own when the client ends.
                if fault != Fault::Other && self.warnings.is_due(&server, fault) {
                    tracing::warn!(server, "cannot reach MongoDB: {}", fault.explain(Server::Mongodb));
                }
                self.faults.send_modify(|faults| {
                    faults.insert(server, fault);
                });
            }
            SdamEvent::ServerHeartbeatSucceeded(event) => {
                let server = event.server_address.to_string();
                if self.faults.send_if_modified(|faults| faults.remove(&server).is_some()) {
                    self.warnings.forget(&server);
                    tracing::info!(server, "MongoDB can be reached again");
                }
            }
            _ => {}
        }
    }

    fn connection_event(&self, event: &CmapEvent) {
        if let CmapEvent::ConnectionCheckoutFailed(event) = event
            && event.reason == ConnectionCheckoutFailedReason::ConnectionError
        {
            self.refused.notify_one();
        }
    }

    /// Waits until trying again cannot help with any of the servers.
    async fn all_are_lasting(&self, hosts: &[ServerAddress]) -> Fault {
        let mut faults = self.faults.subscribe();
        loop {
            let of_hosts: Option<Vec<Fault>> = {
                let faults = faults.borrow_and_update();
                hosts.iter().map(|host| faults.get(&host.to_string()).copied()).collect()
            };
            if let Some(faults) = of_hosts
                && faults.iter().all(|fault| fault.is_lasting())
                && let Some(fault) = faults.first()
            {
                return *fault;
            }
            if faults.changed().await.is_err() {
                // Cannot be: this holds the sender.
                std::future::pending::<()>().await;
            }
        }
    }

    /// What is wrong with a server, a fault that lasts before others.
    fn worst(&self) -> Option<Fault> {
        let faults = self.faults.borrow();
        faults.values().copied().max_by_key(|fault| fault.is_lasting())
    }
}
