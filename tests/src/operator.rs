//! NATS in operator mode: an operator, an account and its users, made for a test.
//!
//! A JWT of NATS is a header, the claims and a signature of both by the key of who issues it, each in base64url
//! (<https://docs.nats.io/running-a-nats-service/configuration/securing_nats/auth_intro/jwt>).

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use nkeys::KeyPair;
use serde_json::{Value, json};
use thiserror::Error;
use transcript_processor::service::clock::Clock;

/// An operator with one account for calls, which may use JetStream, and the system's account.
pub struct Operator {
    operator: KeyPair,
    account: KeyPair,
    system: KeyPair,
}

/// A user of the account.
pub struct User {
    /// Its public key.
    pub public_key: String,
    /// What a file of credentials holds: JWT and seed.
    pub credentials: String,
}

/// A key that cannot sign, or has no seed.
#[derive(Debug, Error)]
#[error("a key of NATS cannot be used: {0}")]
pub struct KeyError(#[from] nkeys::error::Error);

impl Default for Operator {
    fn default() -> Self {
        Self { operator: KeyPair::new_operator(), account: KeyPair::new_account(), system: KeyPair::new_account() }
    }
}

impl Operator {
    /// What the server's configuration says about all this. The `revoked` users of the account are not let in.
    ///
    /// # Errors
    ///
    /// See [`KeyError`].
    pub fn config(&self, revoked: &[&User]) -> Result<String, KeyError> {
        let now = seconds();
        let revocations: serde_json::Map<String, Value> =
            revoked.iter().map(|user| (user.public_key.clone(), json!(now))).collect();
        let operator = jwt(
            &self.operator,
            &self.operator,
            &json!({ "type": "operator", "version": 2, "system_account": self.system.public_key() }),
        )?;
        let account = |revocations: Value| {
            json!({
                "type": "account", "version": 2, "revocations": revocations, "default_permissions": {},
                "limits": {
                    "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1,
                    "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1,
                },
            })
        };
        // The system's account has no JetStream.
        let mut of_system = account(json!({}));
        for limit in ["mem_storage", "disk_storage", "streams", "consumer"] {
            of_system["limits"][limit] = json!(0);
        }
        let system = jwt(&self.operator, &self.system, &of_system)?;
        let account = jwt(&self.operator, &self.account, &account(revocations.into()))?;
        Ok(format!(
            "operator: {operator}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{\n {}: {system}\n {}: \
             {account}\n}}\n",
            self.system.public_key(),
            self.system.public_key(),
            self.account.public_key(),
        ))
    }

    /// A new user of the account.
    ///
    /// # Errors
    ///
    /// See [`KeyError`].
    pub fn user(&self) -> Result<User, KeyError> {
        let user = KeyPair::new_user();
        let claims =
            json!({ "type": "user", "version": 2, "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1 });
        let jwt = jwt(&self.account, &user, &claims)?;
        let credentials = format!(
            "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
            user.seed()?
        );
        Ok(User { public_key: user.public_key(), credentials })
    }
}

fn jwt(issuer: &KeyPair, subject: &KeyPair, claims: &Value) -> Result<String, KeyError> {
    let encoded = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let header = encoded(&json!({ "typ": "JWT", "alg": "ed25519-nkey" }));
    let body = encoded(&json!({
        "jti": subject.public_key(), "iat": seconds(), "iss": issuer.public_key(), "sub": subject.public_key(),
        "name": "test", "nats": claims,
    }));
    let signed = format!("{header}.{body}");
    let signature = URL_SAFE_NO_PAD.encode(issuer.sign(signed.as_bytes())?);
    Ok(format!("{signed}.{signature}"))
}

/// Since the Unix epoch.
fn seconds() -> i64 {
    Clock::start().wall().as_millis() / 1000
}
