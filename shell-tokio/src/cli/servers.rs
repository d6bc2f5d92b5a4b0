//! Where the servers are, and what every command on them has in common.

use std::time::Duration;

use clap::{
    Args,
    builder::{BoolishValueParser, NonEmptyStringValueParser},
};

use super::{LogArgs, both_or_none, given::Given, parse};
use crate::secret::{MongodbUri, NatsUrls, Secret, SecretFile};

/// The heading of these options in `--help`.
pub(super) const SERVERS: &str = "Servers";

/// The options of one command, besides those of its servers and of its log.
pub trait Options: Args {
    /// Checks settings against each other.
    ///
    /// # Errors
    ///
    /// They cannot be used together, or one of them has no effect.
    fn check(&self, _given: &mut Given<'_>) -> Result<(), String> {
        Ok(())
    }

    /// Whether it connects to its servers, so that what is said about them must be right.
    fn connects(&self) -> bool {
        true
    }

    /// How long a service lets a server refuse its login while it runs; `None` for a command that ends by itself.
    fn login_timeout(&self) -> Option<Duration> {
        None
    }
}

/// What every command is asked, whatever its options are.
pub(super) trait AnyCommand {
    /// Checks all settings against each other.
    fn check(&self, given: &mut Given<'_>) -> Result<(), String>;

    /// What is logged, as far as somebody says.
    fn log(&self) -> LogArgs;

    /// Whether it goes on until it is told to stop.
    fn is_service(&self) -> bool {
        false
    }
}

/// A command on NATS and MongoDB.
#[derive(Debug, Clone, Args)]
pub struct Online<A: Options> {
    /// Its own settings.
    #[command(flatten)]
    pub args: A,
    /// Where NATS is.
    #[command(flatten)]
    pub nats: NatsArgs,
    /// Where MongoDB is.
    #[command(flatten)]
    pub mongodb: MongodbArgs,
    /// How they are reached.
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// What is logged.
    #[command(flatten)]
    pub log: LogArgs,
}

/// A command on NATS alone.
#[derive(Debug, Clone, Args)]
pub struct OnNats<A: Options> {
    /// Its own settings.
    #[command(flatten)]
    pub args: A,
    /// Where NATS is.
    #[command(flatten)]
    pub nats: NatsArgs,
    /// How it is reached.
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// What is logged.
    #[command(flatten)]
    pub log: LogArgs,
}

/// A command on MongoDB alone.
#[derive(Debug, Clone, Args)]
pub struct Stored<A: Options> {
    /// Its own settings.
    #[command(flatten)]
    pub args: A,
    /// Where MongoDB is.
    #[command(flatten)]
    pub mongodb: MongodbArgs,
    /// How it is reached.
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// What is logged.
    #[command(flatten)]
    pub log: LogArgs,
}

impl<A: Options> Online<A> {
    /// How long a server may refuse the login. Only a service lives long enough to wait for one that holds.
    #[must_use]
    pub fn login_timeout(&self) -> Duration {
        self.args.login_timeout().unwrap_or(self.connect.timeout)
    }
}

impl<A: Options> Stored<A> {
    /// How long MongoDB may refuse the login; see [`Online::login_timeout`].
    #[must_use]
    pub fn login_timeout(&self) -> Duration {
        self.args.login_timeout().unwrap_or(self.connect.timeout)
    }
}

impl<A: Options> AnyCommand for Online<A> {
    fn check(&self, given: &mut Given<'_>) -> Result<(), String> {
        if self.args.connects() {
            self.nats.check()?;
            self.mongodb.check(given)?;
        }
        self.args.check(given)
    }

    fn log(&self) -> LogArgs {
        self.log.clone()
    }

    fn is_service(&self) -> bool {
        self.args.login_timeout().is_some()
    }
}

impl<A: Options> AnyCommand for OnNats<A> {
    fn check(&self, given: &mut Given<'_>) -> Result<(), String> {
        self.nats.check()?;
        self.args.check(given)
    }

    fn log(&self) -> LogArgs {
        self.log.clone()
    }
}

impl<A: Options> AnyCommand for Stored<A> {
    fn check(&self, given: &mut Given<'_>) -> Result<(), String> {
        self.mongodb.check(given)?;
        self.args.check(given)
    }

    fn log(&self) -> LogArgs {
        self.log.clone()
    }

    fn is_service(&self) -> bool {
        self.args.login_timeout().is_some()
    }
}

/// How servers are reached.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = SERVERS)]
pub struct ConnectArgs {
    /// How long to try to reach the servers at the start, 100ms to 1h
    #[arg(
        id = "connect-timeout", long, env = "TRANSCRIPT_CONNECT_TIMEOUT", value_name = "DURATION", default_value = "10s",
        value_parser = parse::duration("100ms", "1h")
    )]
    pub timeout: Duration,
}

/// Where NATS is, and how to be let in.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = SERVERS)]
pub struct NatsArgs {
    /// NATS server, nats://HOST:PORT or tls://USER:PASSWORD@HOST:PORT; several of one cluster are separated by commas. Where
    /// one says tls://, every connection requires TLS, also to servers that the cluster advertises
    #[arg(id = "nats-url", long, env = "NATS_URL", value_name = "URL", default_value = "nats://127.0.0.1:4222")]
    pub url: NatsUrls,
    /// Whether somebody named the server. Only the transcriber asks: it does without one.
    #[arg(skip)]
    pub is_named: bool,
    /// NATS credentials file (JWT and seed), read again before each connection
    #[arg(id = "nats-creds", long, env = "NATS_CREDS", value_name = "FILE")]
    pub creds: Option<SecretFile>,
    /// File with the seed of a NATS nkey, read again before each connection
    #[arg(id = "nats-nkey", long, env = "NATS_NKEY", value_name = "FILE")]
    pub nkey: Option<SecretFile>,
    /// NATS user
    #[arg(
        id = "nats-user", long, env = "NATS_USER", value_name = "NAME",
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub user: Option<String>,
    /// NATS password; better given by environment than by command line, which every user of a machine can read
    #[arg(id = "nats-password", long, env = "NATS_PASSWORD", value_name = "PASSWORD", allow_hyphen_values = true)]
    pub password: Option<Secret>,
    /// File with the NATS password, read again before each connection, so that it can be replaced while this runs
    #[arg(id = "nats-password-file", long, env = "NATS_PASSWORD_FILE", value_name = "FILE")]
    pub password_file: Option<SecretFile>,
    /// File with the certificates (PEM) that a NATS server's certificate is checked against, instead of the system's;
    /// requires TLS, and is read again before each connection
    #[arg(id = "nats-tls-ca", long, env = "NATS_TLS_CA", value_name = "FILE")]
    pub tls_ca: Option<SecretFile>,
    /// File with the certificate (PEM) to show to NATS; requires TLS
    #[arg(id = "nats-tls-cert", long, env = "NATS_TLS_CERT", value_name = "FILE")]
    pub tls_cert: Option<SecretFile>,
    /// File with the private key (PEM) of --nats-tls-cert
    #[arg(id = "nats-tls-key", long, env = "NATS_TLS_KEY", value_name = "FILE")]
    pub tls_key: Option<SecretFile>,
    /// Never talk to NATS without TLS
    #[arg(id = "nats-require-tls", long, env = "NATS_REQUIRE_TLS", value_parser = BoolishValueParser::new())]
    pub require_tls: bool,
    /// JetStream domain that holds the streams, where it is not that of the NATS server; a leaf node often has its own
    #[arg(
        id = "js-domain", long, env = "NATS_JS_DOMAIN", value_name = "DOMAIN",
        value_parser = parse::subject_token
    )]
    pub js_domain: Option<String>,
    /// Prefix of JetStream's API, where an account imports it under another one than $JS.API
    #[arg(
        id = "js-api-prefix", long, env = "NATS_JS_API_PREFIX", value_name = "SUBJECT",
        conflicts_with = "js-domain", value_parser = parse::subject
    )]
    pub js_api_prefix: Option<String>,
    /// What the subjects on which answers are received begin with: with one for each user, no user needs the permission to
    /// subscribe to what others are answered
    #[arg(
        id = "nats-inbox-prefix", long, env = "NATS_INBOX_PREFIX", value_name = "SUBJECT", default_value = "_INBOX",
        value_parser = parse::subject
    )]
    pub inbox_prefix: String,
    /// Begin TLS before the NATS server has said anything, as a server with handshake_first wants it
    #[arg(id = "nats-tls-first", long, env = "NATS_TLS_FIRST", value_parser = BoolishValueParser::new())]
    pub tls_first: bool,
}

impl NatsArgs {
    /// The prefix of JetStream's API.
    #[must_use]
    pub fn js_api_prefix(&self) -> String {
        match (&self.js_domain, &self.js_api_prefix) {
            (Some(domain), _) => format!("$JS.{domain}.API"),
            (None, Some(prefix)) => prefix.clone(),
            (None, None) => "$JS.API".to_owned(),
        }
    }

    fn check(&self) -> Result<(), String> {
        let bad_url = |e| format!("--nats-url {}: {e}", self.url);
        self.url.servers().map_err(bad_url)?;
        let ways = [
            ("a user or token in --nats-url", self.url.login().map_err(bad_url)?.is_some()),
            ("--nats-creds", self.creds.is_some()),
            ("--nats-nkey", self.nkey.is_some()),
            ("--nats-user", self.user.is_some()),
        ];
        let given: Vec<_> = ways.into_iter().filter(|(_, given)| *given).map(|(flag, _)| flag).collect();
        if given.len() > 1 {
            return Err(format!("{} exclude each other: give one of them", given.join(" and ")));
        }
        let password = match (&self.password, &self.password_file) {
            (Some(_), Some(_)) => {
                return Err("--nats-password and --nats-password-file exclude each other: give one of them".to_owned());
            }
            (None, Some(_)) => ("--nats-password-file", true),
            (Some(_), None) => ("--nats-password", true),
            (None, None) => ("--nats-password or --nats-password-file", false),
        };
        both_or_none(("--nats-user", self.user.is_some()), password)?;
        both_or_none(("--nats-tls-cert", self.tls_cert.is_some()), ("--nats-tls-key", self.tls_key.is_some()))
    }
}

/// Where MongoDB is.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = SERVERS)]
pub struct MongodbArgs {
    /// MongoDB connection string
    #[arg(
        id = "mongodb-uri",
        long,
        env = "MONGODB_URI",
        value_name = "URI",
        default_value = "mongodb://127.0.0.1:27017"
    )]
    pub uri: MongodbUri,
    /// File with the MongoDB password of the user in --mongodb-uri, read at the start
    #[arg(id = "mongodb-password-file", long, env = "MONGODB_PASSWORD_FILE", value_name = "FILE")]
    pub password_file: Option<SecretFile>,
    /// MongoDB database that holds segments and summaries; a database in --mongodb-uri is for the login only
    #[arg(
        id = "mongodb-database", long, env = "MONGODB_DATABASE", value_name = "NAME", default_value = "transcripts",
        value_parser = parse::database_name
    )]
    pub database: String,
}

impl MongodbArgs {
    fn check(&self, given: &Given<'_>) -> Result<(), String> {
        self.uri.check().map_err(|e| format!("--mongodb-uri {}: {e}", self.uri))?;
        if let Some(named) = self.uri.database()
            && !given.is_given("mongodb-database")
        {
            return Err(format!(
                "--mongodb-uri {} names the database {named:?}, which is for the login only: say with --mongodb-database \
                 which one holds segments and summaries, {named} or {}",
                self.uri, self.database
            ));
        }
        match (self.password_file.is_some(), self.uri.credentials()) {
            (true, (false, _)) => Err("--mongodb-password-file is given without a user in --mongodb-uri".to_owned()),
            (true, (true, true)) => {
                Err("--mongodb-password-file and a password in --mongodb-uri exclude each other: give one of them"
                    .to_owned())
            }
            (true, (true, false)) | (false, _) => Ok(()),
        }
    }
}
