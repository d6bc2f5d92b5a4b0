//! The connection string of MongoDB.

use std::{convert::Infallible, fmt, str::FromStr};

use mongodb::options::{ConnectionString, HostInfo};
use thiserror::Error;

use super::{HIDDEN, is_percent_encoded};

/// A MongoDB connection string; of one that the driver can read the servers are shown, of any other nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct MongodbUri(String);

/// Why a connection string cannot be used. No text of it holds a part of a password: the name of an option is repeated only
/// where no password can be in its place.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadMongodbUri {
    /// It is for something else.
    #[error("it begins with neither mongodb:// nor mongodb+srv://")]
    Scheme,
    /// A raw `%`.
    #[error("within its user or password a % is written as %25")]
    Percent,
    /// A character that separates its parts.
    #[error(
        "within its user or password write : as %3A, / as %2F, ? as %3F, # as %23, [ as %5B, ] as %5D and @ as %40, each \
         except the : between the two and the @ behind them"
    )]
    Encoding,
    /// What follows the user is no host and port.
    #[error("it names no server: what follows the user and its @ is HOST:PORT, several of them separated by commas")]
    Hosts,
    /// Something else than one name.
    #[error("with mongodb+srv:// it names one host, without a port")]
    Srv,
    /// A way to log in that this program does not have.
    #[error("its authMechanism is unknown: this program can use SCRAM-SHA-256, SCRAM-SHA-1, MONGODB-X509 and PLAIN")]
    Mechanism,
    /// An option's value.
    #[error("its option {0} has a value that cannot be used")]
    Value(String),
    /// An option that the driver does not know.
    #[error("its option {0} is unknown to the MongoDB driver of this program: correct its name, or leave it out")]
    Option(String),
    /// The same, where the name may be part of a password.
    #[error("one of its options cannot be used: an option is NAME=VALUE, and & separates two")]
    SomeOption,
    /// Options that do not go together, or with the user.
    #[error("its options do not go together: one is given twice, contradicts another, or needs another or a user")]
    Together,
}

impl MongodbUri {
    /// Whether the driver can read it.
    ///
    /// # Errors
    ///
    /// What is wrong with it, in words that hold no part of it that must not be shown.
    pub fn check(&self) -> Result<(), BadMongodbUri> {
        if self.has_raw_slash() {
            return Err(BadMongodbUri::Encoding);
        }
        ConnectionString::parse(&self.0).map(drop).map_err(|_| self.fault())
    }

    /// Whether it names a user, and whether it has a password.
    #[must_use]
    pub fn credentials(&self) -> (bool, bool) {
        let credential = ConnectionString::parse(&self.0).ok().and_then(|parsed| parsed.credential);
        credential.map_or((false, false), |login| (login.username.is_some(), login.password.is_some()))
    }

    /// The database that it names; the driver logs in there unless `authSource` says otherwise.
    #[must_use]
    pub fn database(&self) -> Option<String> {
        ConnectionString::parse(&self.0).ok()?.default_database
    }

    /// The whole connection string, for the driver.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether its user or password has a `/` as it is. The driver takes what stands before it for hosts, where that can be
    /// hosts, and the rest for a database (mongodb 3.9): both are parts of the password.
    fn has_raw_slash(&self) -> bool {
        self.database().is_some_and(|database| database.contains('@'))
    }

    /// Looks for what the driver refuses. The driver's own texts repeat what they are about.
    fn fault(&self) -> BadMongodbUri {
        let Some((scheme @ ("mongodb" | "mongodb+srv"), rest)) = self.0.split_once("://") else {
            return BadMongodbUri::Scheme;
        };
        let (login_and_hosts, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (login, hosts) = login_and_hosts.rsplit_once('@').unwrap_or(("", login_and_hosts));
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let is_raw = |text: &str| text.contains([':', '/', '?', '#', '[', ']', '@']);
        // The driver takes an @ behind a ? for an option's: a password with a raw ? ends there.
        if is_raw(user) || is_raw(password) || options.contains('@') {
            return BadMongodbUri::Encoding;
        }
        if !is_percent_encoded(login) {
            return BadMongodbUri::Percent;
        }
        if ConnectionString::parse(format!("mongodb://{hosts}")).is_err() {
            return BadMongodbUri::Hosts;
        }
        if ConnectionString::parse(format!("{scheme}://{hosts}")).is_err() {
            return BadMongodbUri::Srv;
        }
        options.split('&').find_map(option_fault).unwrap_or(BadMongodbUri::Together)
    }
}

/// What is wrong with an option by itself.
fn option_fault(option: &str) -> Option<BadMongodbUri> {
    // Some options need a user, or a read preference.
    let is_taken = |before: &str, with: &str| {
        let servers = if option.starts_with("srv") { "mongodb+srv://host" } else { "mongodb://host" };
        let uri = servers.replacen("://", &format!("://{before}"), 1);
        ConnectionString::parse(format!("{uri}/?{with}{option}")).is_ok()
    };
    let logins = ["", "user@", "user:password@"];
    if option.is_empty() || logins.iter().any(|login| is_taken(login, "") || is_taken(login, "readPreference=nearest&"))
    {
        return None;
    }
    let Some((name, _)) = option.split_once('=') else { return Some(BadMongodbUri::SomeOption) };
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphabetic()) {
        return Some(BadMongodbUri::SomeOption);
    }
    Some(if name.eq_ignore_ascii_case("authMechanism") {
        BadMongodbUri::Mechanism
    } else if OPTIONS.iter().any(|known| known.eq_ignore_ascii_case(name)) {
        BadMongodbUri::Value(name.to_owned())
    } else {
        BadMongodbUri::Option(name.to_owned())
    })
}

/// The options of a connection string with values that can be wrong, as the driver lists them (mongodb 3.9, `URI_OPTIONS`).
const OPTIONS: &[&str] = &[
    "appName",
    "authMechanismProperties",
    "authSource",
    "compressors",
    "connectTimeoutMS",
    "directConnection",
    "heartbeatFrequencyMS",
    "journal",
    "loadBalanced",
    "localThresholdMS",
    "maxConnecting",
    "maxIdleTimeMS",
    "maxPoolSize",
    "maxStalenessSeconds",
    "minPoolSize",
    "readConcernLevel",
    "readPreference",
    "readPreferenceTags",
    "replicaSet",
    "retryReads",
    "retryWrites",
    "serverMonitoringMode",
    "serverSelectionTimeoutMS",
    "serverSelectionTryOnce",
    "socketTimeoutMS",
    "srvMaxHosts",
    "srvServiceName",
    "ssl",
    "timeoutMS",
    "tls",
    "tlsAllowInvalidCertificates",
    "tlsAllowInvalidHostnames",
    "tlsCAFile",
    "tlsCertificateKeyFile",
    "tlsCertificateKeyFilePassword",
    "tlsInsecure",
    "uuidRepresentation",
    "w",
    "waitQueueTimeoutMS",
    "wTimeoutMS",
    "zlibCompressionLevel",
];

impl fmt::Display for MongodbUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(parsed) = ConnectionString::parse(&self.0).ok().filter(|_| !self.has_raw_slash()) else {
            return f.write_str(HIDDEN);
        };
        let login = if parsed.credential.is_some_and(|login| login.username.is_some()) { "***@" } else { "" };
        match parsed.host_info {
            HostInfo::DnsRecord(host) => write!(f, "mongodb+srv://{login}{host}"),
            HostInfo::HostIdentifiers(hosts) => {
                let hosts = hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
                // The driver takes any text for a host; a password with an @ ends there.
                let is_host = |c: char| c.is_alphanumeric() || "-._:,[]".contains(c);
                let hosts = if hosts.chars().all(is_host) { &hosts } else { HIDDEN };
                write!(f, "mongodb://{login}{hosts}")
            }
            _ => f.write_str(HIDDEN),
        }
    }
}

impl fmt::Debug for MongodbUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MongodbUri {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}
