//! The connection to NATS.

use std::{
    collections::BTreeMap,
    future, io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_nats::{
    Client, ClientError, ConnectOptions, Event, ServerAddr, ServerError,
    rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio::sync::watch;
use transcript_core::Server;

use super::{ConnectError, Fault, Logins, NAME, credentials::Credentials, warnings::Warnings};
use crate::{cli::NatsArgs, operate::setup::permissions::Refusals, secret::SecretFile};

/// async-nats gives a connection up when it would send a third ping and the first two are unanswered, so a peer that is
/// gone without a word is noticed after three of these: within 3 s, well within the ack wait.
const PING_INTERVAL: Duration = Duration::from_millis(900);
const FIRST_RECONNECT_DELAY: Duration = Duration::from_millis(10);
/// Short beside the ack wait: calls in hand must not be given away because of a server that was restarted.
const LONGEST_RECONNECT_DELAY: Duration = Duration::from_secs(1);
/// Between two attempts at the first connection.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

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

/// Connects to NATS. The first connection is tried for `within`; afterwards a lost one is made anew for ever, each time with
/// the credentials that the files hold then. `logins` is told while they are refused, `refusals` what else the server refuses.
///
/// # Errors
///
/// A file or an address that cannot be used, and servers that do not let us in or with which no TLS can be spoken, are
/// reported at once; a server that cannot be reached when `within` is over.
pub async fn connect_nats(
    args: &NatsArgs,
    within: Duration,
    refusals: &Refusals,
    logins: &Logins,
) -> Result<NatsConnection, ConnectError> {
    let url = args.url.to_string();
    let servers = args.url.servers().map_err(|reason| ConnectError::NatsUrl { url: url.clone(), reason })?;
    let (counter, events) = watch::channel(ConnectionEvents::default());
    let watch = Watch {
        url: url.clone(),
        logins: logins.clone(),
        refusals: refusals.clone(),
        counter,
        failures: Mutex::default(),
        warnings: Warnings::default(),
    };
    let options = options(args, Arc::new(watch))?;
    let mut last = Fault::Silent;
    match tokio::time::timeout(within, first_connection(&options, &servers, &mut last)).await {
        Ok(Ok(client)) => Ok(NatsConnection { client, events, api_prefix: args.js_api_prefix() }),
        Ok(Err(fault)) => Err(ConnectError::Nats { url, fault }),
        Err(_elapsed) => Err(ConnectError::Nats { url, fault: last }),
    }
}

async fn first_connection(options: &ConnectOptions, servers: &[ServerAddr], last: &mut Fault) -> Result<Client, Fault> {
    loop {
        match attempt(options, servers).await {
            Ok(client) => return Ok(client),
            Err(fault) => *last = fault,
        }
        if last.is_lasting() && all_are_lasting(options, servers).await {
            return Err(*last);
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

async fn attempt(options: &ConnectOptions, servers: &[ServerAddr]) -> Result<Client, Fault> {
    options.clone().connect(servers).await.map_err(|error| {
        tracing::debug!(%error, "NATS cannot be reached yet");
        Fault::of_nats(&error)
    })
}

/// The client tells of one server only, and another one may be about to start.
async fn all_are_lasting(options: &ConnectOptions, servers: &[ServerAddr]) -> bool {
    if servers.len() == 1 {
        return true;
    }
    for server in servers {
        if !attempt(options, std::slice::from_ref(server)).await.is_err_and(Fault::is_lasting) {
            return false;
        }
    }
    true
}

fn options(args: &NatsArgs, watch: Arc<Watch>) -> Result<ConnectOptions, ConnectError> {
    let require_tls = args.require_tls
        || args.tls_first
        || args.tls_ca.is_some()
        || args.tls_cert.is_some()
        // Servers that the cluster advertises come without a scheme, and get the same credentials.
        || args.url.require_tls();
    let options = match Credentials::of(args)? {
        Some(credentials) => {
            ConnectOptions::with_auth_callback(move |nonce| future::ready(credentials.auth_for_client(&nonce)))
        }
        None => ConnectOptions::new(),
    };
    let events = Arc::clone(&watch);
    let mut options = options
        .name(NAME)
        .custom_inbox_prefix(&args.inbox_prefix)
        .ping_interval(PING_INTERVAL)
        .reconnect_delay_callback(reconnect_delay)
        .reconnect_to_server_callback(move |servers, _| {
            watch.failed(&servers);
            // Which server is next stays the client's choice.
            future::ready(None)
        })
        .event_callback(move |event| {
            events.event(&event);
            future::ready(())
        })
        .require_tls(require_tls);
    if let Some(file) = &args.tls_ca {
        certificates("--nats-tls-ca", file)?;
        options = options.add_root_certificates(file.path().to_owned());
    }
    if let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) {
        certificates("--nats-tls-cert", certificate)?;
        let what = "--nats-tls-key";
        PrivateKeyDer::from_pem_slice(&read(what, key)?).map_err(|_| ConnectError::Content {
            what,
            file: key.clone(),
            missing: "private key in PEM",
        })?;
        options = options.add_client_certificate(certificate.path().to_owned(), key.path().to_owned());
    }
    Ok(if args.tls_first { options.tls_first() } else { options })
}

/// The client takes a file without a certificate for an authority that nobody has signed with.
fn certificates(what: &'static str, file: &SecretFile) -> Result<(), ConnectError> {
    let text = read(what, file)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(()),
        Ok(_) | Err(_) => Err(ConnectError::Content { what, file: file.clone(), missing: "certificate in PEM" }),
    }
}

fn read(what: &'static str, file: &SecretFile) -> Result<Vec<u8>, ConnectError> {
    let failed = |source| ConnectError::File { what, file: file.clone(), source };
    let metadata = std::fs::metadata(file.path()).map_err(failed)?;
    if !metadata.is_file() {
        // The client reads it again for each connection, which a pipe does not allow.
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")));
    }
    std::fs::read(file.path()).map_err(failed)
}

fn reconnect_delay(attempts: usize) -> Duration {
    let doublings = u32::try_from(attempts.saturating_sub(1)).unwrap_or(u32::MAX).min(16);
    if attempts == 0 {
        Duration::ZERO
    } else {
        (FIRST_RECONNECT_DELAY * 2_u32.pow(doublings)).min(LONGEST_RECONNECT_DELAY)
    }
}

/// Logs what becomes of the connection. async-nats says to its events only of what kind a failure was; what happened it
/// keeps with each server, and hands it to whoever is asked for the next one.
#[derive(Debug)]
struct Watch {
    url: String,
    logins: Logins,
    refusals: Refusals,
    counter: watch::Sender<ConnectionEvents>,
    failures: Mutex<Failures>,
    warnings: Warnings,
}

#[derive(Debug, Default)]
struct Failures {
    /// How often each server has failed, when it was last looked at.
    seen: BTreeMap<String, usize>,
}

impl Watch {
    /// Looks for attempts that failed since the last look.
    fn failed(&self, servers: &[async_nats::Server]) {
        for server in servers {
            let address = format!("{}:{}", server.addr.host(), server.addr.port());
            let Some(text) = self.failures().is_new(&address, server.failed_attempts).then_some(&server.last_error)
            else {
                continue;
            };
            let text = text.as_deref().unwrap_or_default();
            let fault = Fault::of_nats_text(text);
            tracing::debug!(server = address, error = text, "NATS cannot be reached");
            if fault.is_login() {
                self.logins.refused(Server::Nats, fault);
            }
            if self.warnings.is_due(&address, fault) {
                tracing::warn!(server = address, "cannot connect to NATS again: {}", fault.explain(Server::Nats));
            }
        }
    }

    fn event(&self, event: &Event) {
        if let Event::ServerError(ServerError::Other(error)) = event
            && self.refusals.heard(error)
        {
            return;
        }
        let failed = matches!(event, Event::ClientError(_));
        self.counter.send_modify(|counted| {
            counted.events = counted.events.wrapping_add(1);
            counted.failed_attempts = counted.failed_attempts.wrapping_add(u32::from(failed));
        });
        match event {
            Event::Connected => {
                self.logins.accepted(Server::Nats);
                self.warnings.forget_all();
                tracing::info!("NATS connected");
            }
            Event::Disconnected => tracing::warn!("NATS disconnected; connecting again"),
            Event::LameDuckMode => tracing::warn!("the NATS server is about to stop"),
            Event::Draining => tracing::info!("NATS connection drains"),
            Event::Closed => tracing::info!("NATS connection closed"),
            Event::SlowConsumer(subscription) => {
                tracing::error!(subscription, "messages from NATS were dropped because they were not read in time");
            }
            Event::ServerError(error) => {
                tracing::debug!(%error, "NATS server error");
                tracing::error!(url = self.url, "NATS: {}", server_error(error));
            }
            // What the client met is told by `failed`.
            Event::ClientError(error @ ClientError::Other(_)) => tracing::debug!(%error, "NATS client error"),
            Event::ClientError(error @ (ClientError::MaxReconnects | ClientError::ServerNotInPool)) => {
                tracing::error!(%error, "NATS client error");
            }
        }
    }

    fn failures(&self) -> std::sync::MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Failures {
    fn is_new(&mut self, server: &str, failed: usize) -> bool {
        let before = self.seen.insert(server.to_owned(), failed).unwrap_or(0);
        // It is counted from 0 again after each connection.
        failed != before && failed > 0
    }
}

/// What a server's error means. Its own text is not passed on, but for the subject that it refuses, which is ours.
fn server_error(error: &ServerError) -> String {
    let text = match error {
        ServerError::AuthorizationViolation => return "the server does not let this user in".to_owned(),
        ServerError::SlowConsumer(subscription) => return format!("subscription {subscription} is too slow"),
        ServerError::Other(text) => text,
    };
    if let Some((what, subject)) = refused_subject(text) {
        return format!(
            "this user may not {what} {subject}: grant it in the permissions of the server, or see which ones are needed \
             in the documentation"
        );
    }
    let lower = text.to_ascii_lowercase();
    let known = [
        ("authentication expired", "the credentials have expired: replace them"),
        ("authentication revoked", "the credentials were revoked: replace them"),
        ("account authentication", "the credentials of the account have expired or were revoked: replace them"),
        ("authentication timeout", "the login took too long"),
        ("maximum connections", "it has as many connections as it may have (max_connections)"),
        ("maximum payload", "a message is larger than it allows (max_payload)"),
        ("maximum subscriptions", "it has as many subscriptions as it may have (max_subscriptions)"),
        ("stale connection", "it gave the connection up because this program did not answer in time"),
        ("slow consumer", "it gave the connection up because this program did not read in time"),
        ("secure connection", "it requires TLS: give a tls:// address"),
        ("unknown protocol", "it does not understand this program: is it a NATS server, and where TLS begins at once?"),
    ];
    let told = known.iter().find(|(part, _)| lower.contains(part)).map(|(_, told)| *told);
    told.unwrap_or("the server reports an error (--log debug shows its text)").to_owned()
}

/// Out of `Permissions Violation for Publish to "SUBJECT"` and the same of a subscription
/// (nats-server, `client.go`: `pubPermissionViolation`, `subPermissionViolation`).
fn refused_subject(text: &str) -> Option<(&'static str, &str)> {
    let (what, rest) = [
        ("publish to", "Permissions Violation for Publish to "),
        ("subscribe to", "Permissions Violation for Subscription to "),
    ]
    .iter()
    .find_map(|(what, start)| Some((*what, text.strip_prefix(start)?)))?;
    let subject = rest.strip_prefix('"')?.split('"').next()?;
    let is_subject = subject.len() <= 255 && subject.bytes().all(|byte| byte.is_ascii_graphic());
    is_subject.then_some((what, subject))
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
    fn the_text_of_a_server_is_not_passed_on() {
        let told = |text: &str| server_error(&ServerError::Other(text.to_owned()));
        let refused = told("Permissions Violation for Publish to \"transcription.processed\"");
        assert!(refused.starts_with("this user may not publish to transcription.processed: grant"), "{refused}");
        assert!(!told("Permissions Violation for Publish to \"so much\nfor that\"").contains("for that"));
        assert!(told("User Authentication Expired").contains("replace them"));
        assert!(!told("so much for that").contains("so much"));
    }

    #[test]
    fn each_failed_attempt_is_seen_once() {
        let mut failures = Failures::default();
        assert!(!failures.is_new("a:1", 0));
        assert!(failures.is_new("a:1", 1) && failures.is_new("a:1", 2) && !failures.is_new("a:1", 2));
        assert!(!failures.is_new("a:1", 0) && failures.is_new("a:1", 1));
    }
}
