//! Who may connect: tokens, what they are bound to, and origins of web pages.
//!
//! A refusal says its reason and repeats nothing of the token.

mod origin;
mod ring_provider;
mod signed;

use std::{fs, io};

use axum::http::{HeaderMap, StatusCode, header};
use ring::hmac;
use thiserror::Error;
use transcript_core::ids::Session;

pub use self::origin::{BadOrigin, Origin};
use self::signed::Signed;
use crate::{cli::TranscriberAccess, secret::SecretFile};

/// The subprotocol that the server speaks.
pub const SUBPROTOCOL: &str = "transcript";
/// What a subprotocol that carries a token begins with.
const TOKEN_PROTOCOL: &str = "token.";
/// The shortest shared secret, in bytes: shorter ones can be guessed.
const SHORTEST_SECRET: usize = 16;

/// Who is let in.
#[derive(Debug)]
pub struct Access {
    tokens: Tokens,
    origins: Vec<Origin>,
}

#[derive(Debug)]
enum Tokens {
    /// Anybody: only on a loopback address.
    NotNeeded,
    /// Whoever knows one of these secrets.
    Shared(Vec<SharedSecret>),
    /// Whoever has a token that was signed with this key.
    Signed(Box<Signed>),
}

/// A secret, so that comparing takes the same time whatever is compared.
#[derive(Debug)]
struct SharedSecret {
    key: hmac::Key,
    tag: hmac::Tag,
}

impl Access {
    /// Reads the files of the settings.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or that holds no secret or no key.
    pub fn read(settings: &TranscriberAccess) -> Result<Self, AccessError> {
        let tokens = match (&settings.token_file, &settings.token_key_file) {
            (Some(file), _) => Tokens::Shared(shared_secrets(file)?),
            (None, Some(file)) => {
                let key =
                    signed::key(&read(file)?).map_err(|reason| AccessError::Key { file: file.clone(), reason })?;
                Tokens::Signed(Box::new(Signed::new(key, settings.token_audience.as_deref())))
            }
            (None, None) => Tokens::NotNeeded,
        };
        Ok(Self { tokens, origins: settings.allow_origin.clone() })
    }

    /// Whether anybody is let in.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.tokens, Tokens::NotNeeded)
    }

    /// Whether a request for this session is let in. `query` is the value of the query parameter `token`.
    ///
    /// # Errors
    ///
    /// Why it is not.
    pub fn check(&self, headers: &HeaderMap, query: Option<&str>, session: &Session) -> Result<(), Refused> {
        if headers.get_all(header::ORIGIN).iter().any(|origin| !self.origins.iter().any(|known| known.is(origin))) {
            return Err(Refused::Origin);
        }
        let token = || token(headers).or(query).filter(|token| !token.is_empty()).ok_or(Refused::Missing);
        match &self.tokens {
            Tokens::NotNeeded => Ok(()),
            Tokens::Shared(secrets) => {
                let token = token()?.as_bytes();
                // Every secret is compared, so that the time does not say which one it was.
                let known = secrets.iter().fold(false, |known, secret| secret.is(token) | known);
                if known { Ok(()) } else { Err(Refused::Unknown) }
            }
            Tokens::Signed(signed) => signed.check(token()?, session),
        }
    }
}

impl SharedSecret {
    fn new(secret: &[u8]) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let tag = hmac::sign(&key, secret);
        Self { key, tag }
    }

    fn is(&self, token: &[u8]) -> bool {
        hmac::verify(&self.key, token, self.tag.as_ref()).is_ok()
    }
}

/// The token of the header `Authorization`, or else of a subprotocol.
fn token(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    bearer.or_else(|| subprotocols(headers).find_map(|protocol| protocol.strip_prefix(TOKEN_PROTOCOL)))
}

/// The subprotocols that a client offers.
pub fn subprotocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// Each line that is not empty is a secret, so that an old and a new one can both be valid for a while.
fn shared_secrets(file: &SecretFile) -> Result<Vec<SharedSecret>, AccessError> {
    let text = read(file)?;
    let secrets: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match secrets.iter().map(|secret| secret.len()).min() {
        None => Err(AccessError::Empty { file: file.clone() }),
        Some(length) if length < SHORTEST_SECRET => Err(AccessError::Short { file: file.clone() }),
        Some(_) => Ok(secrets.iter().map(|secret| SharedSecret::new(secret.as_bytes())).collect()),
    }
}

fn read(file: &SecretFile) -> Result<String, AccessError> {
    fs::read_to_string(file.path()).map_err(|source| AccessError::File { file: file.clone(), source })
}

/// Why the settings cannot be used.
#[derive(Debug, Error)]
pub enum AccessError {
    /// A file cannot be read.
    #[error("cannot read the file of tokens {file}")]
    File {
        /// The file.
        file: SecretFile,
        /// Why.
        source: io::Error,
    },
    /// A file without a secret.
    #[error("--token-file {file} holds no secret")]
    Empty {
        /// The file.
        file: SecretFile,
    },
    /// A secret that can be guessed.
    #[error("--token-file {file} holds a secret of less than {SHORTEST_SECRET} bytes")]
    Short {
        /// The file.
        file: SecretFile,
    },
    /// A file without a key that can be used.
    #[error("--token-key-file {file}: {reason}")]
    Key {
        /// The file.
        file: SecretFile,
        /// Why.
        reason: &'static str,
    },
}

/// Why a request is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refused {
    /// There is no token.
    #[error("a token is required: as Authorization: Bearer TOKEN, as subprotocol token.TOKEN, or as ?token=TOKEN")]
    Missing,
    /// The token is none of the shared secrets.
    #[error("the token is not known")]
    Unknown,
    /// The token cannot be read, or was not signed with the key.
    #[error("the token is not one that was signed with the key of this service")]
    Signature,
    /// The token has expired.
    #[error("the token has expired")]
    Expired,
    /// The token does not say when it expires.
    #[error("the token has no exp")]
    NoExpiry,
    /// The token is not valid yet.
    #[error("the token is not valid yet (nbf)")]
    TooEarly,
    /// The token is for another service.
    #[error("the token is for another audience (aud)")]
    Audience,
    /// The token is for another conversation or session.
    #[error("the token is for another conversation or session")]
    OtherSession,
    /// A web page of an origin that is not allowed.
    #[error("the origin of the web page is not allowed: see --allow-origin")]
    Origin,
}

impl Refused {
    /// The status of the answer.
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Self::Missing
            | Self::Unknown
            | Self::Signature
            | Self::Expired
            | Self::NoExpiry
            | Self::TooEarly
            | Self::Audience => StatusCode::UNAUTHORIZED,
            Self::OtherSession | Self::Origin => StatusCode::FORBIDDEN,
        }
    }
}

#[cfg(test)]
mod tests;
