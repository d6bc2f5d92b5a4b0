//! Who may connect: tokens, what they are bound to, signatures of engines, and origins of web pages.
//!
//! A refusal says its reason and repeats nothing of the token.

mod origin;
mod ring_provider;
mod signature;
mod signed;

use std::{fs, io};

use axum::http::{HeaderMap, StatusCode, header};
use ring::hmac;
use thiserror::Error;
use transcript_core::ids::Session;
use transcript_dialects::Dialect;
use transcript_transcriber::document::Transport;

pub use self::{
    origin::{BadOrigin, Origin},
    signature::SignedRequest,
};
use self::{signature::Signatures, signed::Signed};
use crate::{cli::TranscriberAccess, secret::SecretFile, service::clock::Clock};

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
    signatures: Signatures,
    origins: Vec<Origin>,
    clock: Clock,
}

/// What of a request its token is looked for in, and what is asked for.
#[derive(Debug, Clone, Copy)]
pub struct AccessRequest<'a> {
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// The value of the query parameter `token`.
    pub query: Option<&'a str>,
    /// The session that it is for.
    pub session: &'a Session,
    /// Whose frames it brings.
    pub dialect: Dialect,
    /// How it brings them.
    pub transport: Transport,
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
pub(crate) struct SharedSecret {
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
        let signatures = Signatures::read(settings)?;
        Ok(Self { tokens, signatures, origins: settings.allow_origin.clone(), clock: Clock::start() })
    }

    /// Whether anybody is let in.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.tokens, Tokens::NotNeeded)
    }

    /// Whether a request is let in, as far as its headers and its query say it: [`Self::check_signature`] comes after it. A
    /// request that must be signed needs no token; one that it brings all the same is checked, because it can bind the request to
    /// its session.
    ///
    /// # Errors
    ///
    /// Why it is not.
    pub fn check(&self, request: AccessRequest<'_>) -> Result<(), Refused> {
        let AccessRequest { headers, query, session, dialect, transport } = request;
        if headers.get_all(header::ORIGIN).iter().any(|origin| !self.origins.iter().any(|known| known.is(origin))) {
            return Err(Refused::Origin);
        }
        let token = token(headers).or(query).filter(|token| !token.is_empty());
        match (&self.tokens, token) {
            (Tokens::NotNeeded, _) => Ok(()),
            (Tokens::Shared(_) | Tokens::Signed(_), None) if self.signatures.are_required(dialect, transport) => Ok(()),
            (Tokens::Shared(_) | Tokens::Signed(_), None) => Err(Refused::Missing),
            (Tokens::Shared(secrets), Some(token)) => {
                // Every secret is compared, so that the time does not say which one it was.
                let known = secrets.iter().fold(false, |known, secret| secret.is(token.as_bytes()) | known);
                if known { Ok(()) } else { Err(Refused::Unknown) }
            }
            (Tokens::Signed(signed), Some(token)) => signed.check(token, session),
        }
    }

    /// Whether the signature of a request is good, where a client of this dialect must sign.
    ///
    /// # Errors
    ///
    /// Why it is not.
    pub fn check_signature(
        &self,
        dialect: Dialect,
        transport: Transport,
        request: SignedRequest<'_>,
    ) -> Result<(), Refused> {
        self.signatures.check(dialect, transport, request, self.clock.wall())
    }
}

impl SharedSecret {
    pub(crate) fn new(secret: &[u8]) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let tag = hmac::sign(&key, secret);
        Self { key, tag }
    }

    pub(crate) fn is(&self, token: &[u8]) -> bool {
        hmac::verify(&self.key, token, self.tag.as_ref()).is_ok()
    }
}

/// The token of the header `Authorization`. The name of a scheme has no case (RFC 9110, section 11.1).
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The token of the header `Authorization`, or else of a subprotocol.
fn token(headers: &HeaderMap) -> Option<&str> {
    bearer(headers).or_else(|| subprotocols(headers).find_map(|protocol| protocol.strip_prefix(TOKEN_PROTOCOL)))
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
    /// A file without a secret of an engine that can be used.
    #[error("{option} {file} {reason}")]
    Secret {
        /// The setting that names the file.
        option: &'static str,
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
    /// There is no signature of the engine whose dialect it is.
    #[error("a client of this dialect must sign, and the headers of its signature are missing")]
    Unsigned,
    /// The signature is not one of the engine's.
    #[error("the signature is not one that was made with the engine's secret of this service, for this request")]
    Forged,
    /// The signature was made too long ago, or one of the clocks is wrong.
    #[error("the time of the signature is more than five minutes away from that of this service")]
    Stale,
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
            | Self::Audience
            | Self::Unsigned
            | Self::Forged
            | Self::Stale => StatusCode::UNAUTHORIZED,
            Self::OtherSession | Self::Origin => StatusCode::FORBIDDEN,
        }
    }
}

#[cfg(test)]
mod tests;
