//! Signed tokens (JSON Web Tokens, RFC 7519): `HS256` and `EdDSA` only, `exp` required.
//!
//! `conversationId` and `sessionId` bind a token to one conversation or one session. `aud` is checked where the service has an
//! audience; a token with `aud` is refused where it has none.

use async_nats::rustls::pki_types::{SubjectPublicKeyInfoDer, pem::PemObject};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, errors::ErrorKind};
use serde::Deserialize;
use transcript_core::ids::Session;

use super::{Refused, ring_provider};

/// RFC 7518, section 3.2: a key of HS256 has at least as many bits as its hash.
const SHORTEST_KEY: usize = 32;
/// What the DER form of an Ed25519 public key has before the 32 bytes of the key (RFC 8410, section 4).
const ED25519_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
/// The bytes of an Ed25519 public key.
const ED25519_BYTES: usize = 32;
/// By how many seconds the clocks of issuer and service may differ.
const LEEWAY: u64 = 5;

/// What tokens are checked against.
#[derive(Debug)]
pub(super) struct Signed {
    key: DecodingKey,
    validation: Validation,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Claims {
    conversation_id: Option<String>,
    session_id: Option<String>,
}

/// The key of a file: an Ed25519 public key in PEM form, or the bytes of an HS256 key.
pub(super) fn key(text: &str) -> Result<(Algorithm, DecodingKey), &'static str> {
    if text.contains("-----BEGIN") {
        let der = SubjectPublicKeyInfoDer::from_pem_slice(text.as_bytes()).map_err(|_| "holds no PUBLIC KEY")?;
        let key = der.strip_prefix(&ED25519_PREFIX).filter(|key| key.len() == ED25519_BYTES);
        let key = key.ok_or("holds a public key that is not an Ed25519 key")?;
        return Ok((Algorithm::EdDSA, DecodingKey::from_ed_der(key)));
    }
    let secret = text.trim_end_matches(['\r', '\n']);
    if secret.len() < SHORTEST_KEY {
        return Err("holds less than 32 bytes, which is too short for HS256, and no PUBLIC KEY");
    }
    let key = DecodingKey::from_secret(secret.as_bytes()).map_err(|_| "holds no key")?;
    Ok((Algorithm::HS256, key))
}

impl Signed {
    /// Tokens that were signed with this key, for this audience.
    pub(super) fn new((algorithm, key): (Algorithm, DecodingKey), audience: Option<&str>) -> Self {
        ring_provider::install();
        let mut validation = Validation::new(algorithm);
        validation.leeway = LEEWAY;
        validation.validate_nbf = true;
        if let Some(audience) = audience {
            validation.set_audience(&[audience]);
            validation.set_required_spec_claims(&["exp", "aud"]);
        }
        Self { key, validation }
    }

    /// Whether this token is valid for this session.
    pub(super) fn check(&self, token: &str, session: &Session) -> Result<(), Refused> {
        let decoded = jsonwebtoken::decode::<Claims>(token, &self.key, &self.validation);
        let claims = decoded.map_err(|error| refused(error.kind()))?.claims;
        let is_bound_elsewhere = |claim: Option<String>, id: &str| claim.is_some_and(|claim| claim != id);
        if is_bound_elsewhere(claims.conversation_id, &session.conversation_id)
            || is_bound_elsewhere(claims.session_id, &session.session_id)
        {
            return Err(Refused::OtherSession);
        }
        Ok(())
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the rest are ways in which a text is no token of ours")]
fn refused(kind: &ErrorKind) -> Refused {
    match kind {
        ErrorKind::ExpiredSignature => Refused::Expired,
        ErrorKind::ImmatureSignature => Refused::TooEarly,
        ErrorKind::InvalidAudience => Refused::Audience,
        ErrorKind::MissingRequiredClaim(claim) if claim == "exp" => Refused::NoExpiry,
        ErrorKind::MissingRequiredClaim(_) => Refused::Audience,
        _ => Refused::Signature,
    }
}
