//! What must not be seen: passwords, and addresses that can hold one.

use std::{convert::Infallible, fmt, io, str::FromStr};

use async_nats::ServerAddr;
use percent_encoding::percent_decode_str;

/// A password. It has no `Display`, and its `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The password itself, for whoever has to send it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

impl FromStr for Secret {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

/// One or several addresses of NATS servers, separated by commas; shown without user and password.
///
/// Reading it from text never fails, because whoever reports such a failure repeats the text.
#[derive(Clone, PartialEq, Eq)]
pub struct NatsUrls(String);

impl NatsUrls {
    /// The addresses in the order given, without user and password.
    ///
    /// # Errors
    ///
    /// No address at all, or one that is no NATS URL; the error does not repeat it.
    pub fn servers(&self) -> io::Result<Vec<ServerAddr>> {
        let servers = self.parsed()?;
        if servers.is_empty() {
            return Err(invalid("no address given"));
        }
        servers.into_iter().map(without_login).collect()
    }

    /// The user and password, or the token, that the addresses name. async-nats 0.51 reads them and never sends them, so they
    /// have to be given to it apart.
    ///
    /// # Errors
    ///
    /// Addresses that name different ones, and one that is no NATS URL.
    pub fn login(&self) -> io::Result<Option<NatsLogin>> {
        let mut logins: Vec<NatsLogin> = self.parsed()?.iter().filter_map(NatsLogin::of).collect();
        logins.dedup();
        match logins.len() {
            0 | 1 => Ok(logins.pop()),
            _ => Err(invalid("the addresses name different users; all servers must let in the same one")),
        }
    }

    fn parsed(&self) -> io::Result<Vec<ServerAddr>> {
        self.pieces().map(str::parse).collect()
    }

    fn pieces(&self) -> impl Iterator<Item = &str> {
        self.0.split(',').map(str::trim).filter(|piece| !piece.is_empty())
    }
}

impl fmt::Display for NatsUrls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<String> = self.pieces().map(without_userinfo).collect();
        f.write_str(&shown.join(","))
    }
}

impl fmt::Debug for NatsUrls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for NatsUrls {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

/// What an address says in front of its `@`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NatsLogin {
    /// `user:password@`.
    User(String, Secret),
    /// `token@`.
    Token(Secret),
}

impl NatsLogin {
    fn of(server: &ServerAddr) -> Option<Self> {
        let decoded = |text| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let name = decoded(server.username()?);
        Some(match server.password() {
            Some(password) => Self::User(name, Secret(decoded(password))),
            None => Self::Token(Secret(name)),
        })
    }
}

fn without_login(server: ServerAddr) -> io::Result<ServerAddr> {
    let mut url = server.into_inner();
    if url.set_username("").and_then(|()| url.set_password(None)).is_err() {
        return Err(invalid("it names no host"));
    }
    ServerAddr::from_url(url)
}

fn invalid(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}

/// A MongoDB connection string; shown without user, password and options, because options can hold secrets too.
#[derive(Clone, PartialEq, Eq)]
pub struct MongodbUri(String);

impl MongodbUri {
    /// Whether the driver can read it.
    ///
    /// # Errors
    ///
    /// What is wrong with it, in words that hold no part of it that must not be shown.
    pub fn check(&self) -> Result<(), &'static str> {
        mongodb::options::ConnectionString::parse(&self.0).map(drop).map_err(|_| "is not a MongoDB connection string")
    }

    /// The whole connection string, for the driver.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for MongodbUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = without_userinfo(&self.0);
        f.write_str(shown.split('?').next().unwrap_or(&shown))
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

/// Everything up to the last `@` goes: a password with an unescaped `@` or `/` in it must not be shown in part.
fn without_userinfo(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
    let separator = if scheme.is_empty() { "" } else { "://" };
    match rest.rsplit_once('@') {
        Some((_, place)) => format!("{scheme}{separator}***@{place}"),
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nats(text: &str) -> NatsUrls {
        text.parse().unwrap()
    }

    fn mongodb(text: &str) -> String {
        text.parse::<MongodbUri>().unwrap().to_string()
    }

    #[test]
    fn a_password_is_never_shown() {
        let secret: Secret = "hunter2".parse().unwrap();
        assert_eq!(format!("{secret:?}"), "[hidden]");
        assert_eq!(secret.reveal(), "hunter2");
    }

    #[test]
    fn nats_addresses_are_shown_without_user_and_password() {
        let urls = nats("nats://ann:hunter2@a:4222, tls://token@b,c:4223");
        assert_eq!(urls.to_string(), "nats://***@a:4222,tls://***@b,c:4223");
        assert_eq!(format!("{urls:?}"), urls.to_string());
        assert_eq!(nats("ann:hunter2@a").to_string(), "***@a");
        assert_eq!(nats("nats://ann:hun@ter2@a").to_string(), "nats://***@a");
    }

    #[test]
    fn nats_addresses_are_read_as_a_list() {
        let servers = nats("nats://a:1, b:2,").servers().unwrap();
        assert_eq!(servers.iter().map(|s| format!("{}:{}", s.host(), s.port())).collect::<Vec<_>>(), ["a:1", "b:2"]);
        let with_login = nats("nats://ann:hunter2@a").servers().unwrap();
        assert_eq!(with_login[0].as_url_str(), "nats://a");
        assert_eq!(nats("nats:///a").servers().unwrap_err().to_string(), "it names no host");
        assert_eq!(nats(" ,").servers().unwrap_err().to_string(), "no address given");
    }

    #[test]
    fn a_login_is_read_from_the_addresses() {
        let secret = |text: &str| text.parse::<Secret>().unwrap();
        let ann = NatsLogin::User("ann".to_owned(), secret("p@ss word"));
        assert_eq!(nats("nats://ann:p%40ss%20word@a, nats://b").login().unwrap(), Some(ann.clone()));
        assert_eq!(nats("ann:p%40ss%20word@a,tls://ann:p%40ss%20word@b").login().unwrap(), Some(ann));
        assert_eq!(nats("nats://t0ken@a").login().unwrap(), Some(NatsLogin::Token(secret("t0ken"))));
        assert_eq!(nats("nats://a").login().unwrap(), None);
        assert!(nats("nats://ann:x@a,nats://bob:y@b").login().is_err());
    }

    #[test]
    fn a_bad_nats_address_is_not_repeated() {
        let error = nats("http://ann:hunter2@a").servers().unwrap_err().to_string();
        assert_eq!(error, "invalid scheme for NATS server URL: http");
        assert!(!nats("nats://ann:hunter2@:x y").servers().unwrap_err().to_string().contains("hunter2"));
    }

    #[test]
    fn a_mongodb_uri_is_shown_without_user_password_and_options() {
        assert_eq!(mongodb("mongodb://ann:hunter2@a:1,b:2/db?authSource=x"), "mongodb://***@a:1,b:2/db");
        assert_eq!(mongodb("mongodb+srv://ann:hun/ter@2@a"), "mongodb+srv://***@a");
        assert_eq!(mongodb("mongodb://a?tlsCertificateKeyFilePassword=hunter2"), "mongodb://a");
        assert_eq!(mongodb("mongodb://127.0.0.1:27017"), "mongodb://127.0.0.1:27017");
    }
}
