//! Signatures of tokens, checked by ring, which TLS brings along. It signs nothing.

use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey, EncodingKey,
    crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils},
    errors::{Error, ErrorKind},
    signature::{self, Verifier},
};
use ring::{hmac, signature as ring_signature};

static PROVIDER: CryptoProvider =
    CryptoProvider { signer_factory: no_signer, verifier_factory: verifier, key_utils: KeyUtils::new_unimplemented() };

/// Makes it the provider of this process. One that was installed before stays: it can only have been this one.
pub(super) fn install() {
    PROVIDER.install_default().ok();
}

fn no_signer(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>, Error> {
    Err(ErrorKind::UnsupportedAlgorithm.into())
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    let bytes = key.try_get_as_bytes()?;
    match (algorithm, key.family()) {
        (Algorithm::HS256, AlgorithmFamily::Hmac) => Ok(Box::new(Hs256(hmac::Key::new(hmac::HMAC_SHA256, bytes)))),
        (Algorithm::EdDSA, AlgorithmFamily::Ed) => Ok(Box::new(Ed25519(bytes.to_vec()))),
        _ => Err(ErrorKind::InvalidAlgorithm.into()),
    }
}

struct Hs256(hmac::Key);

struct Ed25519(Vec<u8>);

impl Verifier<Vec<u8>> for Hs256 {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        hmac::verify(&self.0, message, signature).map_err(|_| signature::Error::new())
    }
}

impl Verifier<Vec<u8>> for Ed25519 {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        let key = ring_signature::UnparsedPublicKey::new(&ring_signature::ED25519, &self.0);
        key.verify(message, signature).map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for Hs256 {
    fn algorithm(&self) -> Algorithm {
        Algorithm::HS256
    }
}

impl JwtVerifier for Ed25519 {
    fn algorithm(&self) -> Algorithm {
        Algorithm::EdDSA
    }
}
