//! The addresses of NATS servers.

use std::{convert::Infallible, fmt, str::FromStr};

use async_nats::ServerAddr;
use percent_encoding::percent_decode_str;
use thiserror::Error;

use super::{HIDDEN, Secret, is_percent_encoded};

/// One or several addresses of NATS servers, separated by commas; shown without user and password.
///
/// Reading it from text never fails, because whoever reports such a failure repeats the text.
#[derive(Clone, PartialEq, Eq)]
pub struct NatsUrls(String);

/// Why addresses cannot be used. No text of it holds a part of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BadNatsUrl {
    /// Nothing, or commas only.
    #[error("no address is given")]
    Empty,
    /// A scheme of another protocol. WebSocket is one: its addresses would be dialled without TLS.
    #[error("an address begins with nats:// or tls://")]
    Scheme,
    /// What follows the user is no host and port.
    #[error(
        "an address is nats://HOST:PORT, tls://HOST:PORT or nats://USER:PASSWORD@HOST:PORT, without a path and without \
         options, and a comma separates two addresses: within a password write it as %2C"
    )]
    Place,
    /// A character that ends a password too early.
    #[error("within a user or password write / as %2F, ? as %3F, # as %23 and % as %25")]
    Encoding,
    /// A comma that may belong to a password.
    #[error(
        "an address with a user begins with nats:// or tls://, where it is not the first; a comma within a password is \
         written %2C"
    )]
    Comma,
    /// More than one user.
    #[error("the addresses name different users: all servers must let in the same one")]
    Users,
}

impl NatsUrls {
    /// The addresses in the order given, without user and password.
    ///
    /// # Errors
    ///
    /// No address at all, or one that is no NATS URL; the error does not repeat it.
    pub fn servers(&self) -> Result<Vec<ServerAddr>, BadNatsUrl> {
        self.pieces()?.iter().map(|piece| piece.place().parse().map_err(|_| BadNatsUrl::Place)).collect()
    }

    /// The user and password, or the token, that the addresses name. async-nats 0.51 reads them and never sends them, so they
    /// have to be given to it apart.
    ///
    /// # Errors
    ///
    /// Addresses that name different ones, and one that is no NATS URL.
    pub fn login(&self) -> Result<Option<NatsLogin>, BadNatsUrl> {
        let mut logins: Vec<NatsLogin> = self.pieces()?.iter().filter_map(|piece| piece.login()).collect();
        logins.dedup();
        match logins.len() {
            0 | 1 => Ok(logins.pop()),
            _ => Err(BadNatsUrl::Users),
        }
    }

    /// Whether one of the addresses says `tls://`. Then no connection may do without TLS: servers that the cluster
    /// advertises come without a scheme, and get the same user and password.
    #[must_use]
    pub fn require_tls(&self) -> bool {
        self.pieces().is_ok_and(|pieces| pieces.iter().any(|piece| piece.scheme == Some(TLS)))
    }

    fn pieces(&self) -> Result<Vec<Piece<'_>>, BadNatsUrl> {
        let texts = self.0.split(',').map(str::trim).filter(|piece| !piece.is_empty());
        let pieces = texts.map(Piece::read).collect::<Result<Vec<_>, _>>()?;
        if pieces.is_empty() {
            return Err(BadNatsUrl::Empty);
        }
        let is_ambiguous = |piece: &Piece<'_>| piece.userinfo.is_some() && piece.scheme.is_none();
        if pieces.iter().skip(1).any(is_ambiguous) {
            return Err(BadNatsUrl::Comma);
        }
        Ok(pieces)
    }
}

const NATS: &str = "nats";
const TLS: &str = "tls";

/// One address.
#[derive(Debug, Clone, Copy)]
struct Piece<'a> {
    scheme: Option<&'a str>,
    userinfo: Option<&'a str>,
    /// The host, and the port if it is given.
    host: &'a str,
}

impl<'a> Piece<'a> {
    fn read(text: &'a str) -> Result<Self, BadNatsUrl> {
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme @ (NATS | TLS), rest)) => (Some(scheme), rest),
            Some(_) => return Err(BadNatsUrl::Scheme),
            None => (None, text),
        };
        let (userinfo, host) = match rest.rsplit_once('@') {
            Some((userinfo, host)) => (Some(userinfo), host),
            None => (None, rest),
        };
        if userinfo.is_some_and(|text| text.contains(['/', '?', '#']) || !is_percent_encoded(text)) {
            return Err(BadNatsUrl::Encoding);
        }
        let host = host.strip_suffix('/').unwrap_or(host);
        let is_host = |c: char| c.is_alphanumeric() || "-._:[]".contains(c);
        if host.is_empty() || !host.chars().all(is_host) {
            return Err(BadNatsUrl::Place);
        }
        Ok(Self { scheme, userinfo, host })
    }

    fn place(&self) -> String {
        format!("{}://{}", self.scheme.unwrap_or(NATS), self.host)
    }

    fn login(&self) -> Option<NatsLogin> {
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        Some(match self.userinfo?.split_once(':') {
            Some((user, password)) => NatsLogin::User(decoded(user), Secret(decoded(password))),
            None => NatsLogin::Token(Secret(decoded(self.userinfo?))),
        })
    }
}

impl fmt::Display for NatsUrls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What the client cannot read may be a password: a port that is no number, for example.
        let Some(pieces) = self.servers().ok().and_then(|_| self.pieces().ok()) else { return f.write_str(HIDDEN) };
        let shown: Vec<String> = pieces
            .iter()
            .map(|Piece { scheme, userinfo, host }| {
                let (scheme, separator) = scheme.map_or(("", ""), |scheme| (scheme, "://"));
                format!("{scheme}{separator}{}{host}", if userinfo.is_some() { "***@" } else { "" })
            })
            .collect();
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

/// What an address says in front of its `@`. Its `Debug` shows nothing of it: a token with a `:` in it is taken for a user.
#[derive(Clone, PartialEq, Eq)]
pub enum NatsLogin {
    /// `user:password@`.
    User(String, Secret),
    /// `token@`.
    Token(Secret),
}

impl fmt::Debug for NatsLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}
