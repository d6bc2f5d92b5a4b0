//! Who we are to NATS. Files are read before each connection, so that what was replaced on disk is used by the next one.

use std::{fs, io, sync::Arc};

use async_nats::{Auth, AuthError};
use nkeys::KeyPair;

use super::ConnectError;
use crate::{
    cli::NatsArgs,
    secret::{NatsLogin, Secret, SecretFile},
};

/// How we log in.
#[derive(Debug, Clone)]
pub(super) enum Credentials {
    /// User and password that do not change.
    User(String, Secret),
    /// A user whose password is in a file.
    UserWithFile(String, Source),
    /// A token.
    Token(Secret),
    /// A seed in a file.
    Nkey(Source),
    /// A JWT and a seed in a file.
    Creds(Source),
}

/// A file with a secret.
#[derive(Debug, Clone)]
pub(super) struct Source {
    option: &'static str,
    file: SecretFile,
    /// What was read of a pipe, which can be read only once.
    read: Option<Arc<Secret>>,
}

impl Credentials {
    /// How the settings say that we log in; `None` where they say nothing. Sees whether the files hold what they must.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or does not hold it.
    pub(super) fn of(args: &NatsArgs) -> Result<Option<Self>, ConnectError> {
        let url = |reason| ConnectError::NatsUrl { url: args.url.to_string(), reason };
        let source = |option, file: &SecretFile| Source::open(option, file.clone());
        let credentials = if let Some(file) = &args.creds {
            Self::Creds(source("--nats-creds", file)?)
        } else if let Some(file) = &args.nkey {
            Self::Nkey(source("--nats-nkey", file)?)
        } else if let (Some(user), Some(file)) = (&args.user, &args.password_file) {
            Self::UserWithFile(user.clone(), source("--nats-password-file", file)?)
        } else if let (Some(user), Some(password)) = (&args.user, &args.password) {
            Self::User(user.clone(), password.clone())
        } else {
            match args.url.login().map_err(url)? {
                Some(NatsLogin::User(user, password)) => Self::User(user, password),
                Some(NatsLogin::Token(token)) => Self::Token(token),
                None => return Ok(None),
            }
        };
        credentials.auth(&[])?;
        Ok(Some(credentials))
    }

    /// What to send to a server that gave this to be signed.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or does not hold what it must.
    fn auth(&self, nonce: &[u8]) -> Result<Auth, ConnectError> {
        let mut auth = Auth::new();
        match self {
            Self::User(user, password) => {
                auth.username = Some(user.clone());
                auth.password = Some(password.reveal().to_owned());
            }
            Self::UserWithFile(user, source) => {
                auth.username = Some(user.clone());
                auth.password = Some(source.read()?.trim_end_matches(['\r', '\n']).to_owned());
            }
            Self::Token(token) => auth.token = Some(token.reveal().to_owned()),
            Self::Nkey(source) => {
                let key = source.key(&source.read()?)?;
                auth.nkey = Some(key.public_key());
                auth.signature = Some(source.sign(&key, nonce)?);
            }
            Self::Creds(source) => {
                let text = source.read()?;
                auth.jwt = Some(jwt(&text).ok_or_else(|| source.holds_no("JWT of a user"))?);
                auth.signature = Some(source.sign(&source.key(&text)?, nonce)?);
            }
        }
        Ok(auth)
    }

    /// The same, for async-nats, which tells nobody why.
    pub(super) fn auth_for_client(&self, nonce: &[u8]) -> Result<Auth, AuthError> {
        self.auth(nonce).map_err(|error| {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
            tracing::warn!("NATS credentials: {error}{}", cause.unwrap_or_default());
            AuthError::new(error)
        })
    }
}

impl Source {
    fn open(option: &'static str, file: SecretFile) -> Result<Self, ConnectError> {
        let mut source = Self { option, file, read: None };
        let metadata = fs::metadata(source.file.path()).map_err(|error| source.unreadable(error))?;
        if !metadata.is_file() {
            source.read = Some(Arc::new(Secret::from(source.read()?)));
        }
        Ok(source)
    }

    fn read(&self) -> Result<String, ConnectError> {
        match &self.read {
            Some(text) => Ok(text.reveal().to_owned()),
            None => fs::read_to_string(self.file.path()).map_err(|error| self.unreadable(error)),
        }
    }

    fn key(&self, text: &str) -> Result<KeyPair, ConnectError> {
        let key = nkey_seed(text).and_then(|seed| KeyPair::from_seed(seed).ok());
        key.ok_or_else(|| self.holds_no("seed of a user (it begins with SU)"))
    }

    fn sign(&self, key: &KeyPair, nonce: &[u8]) -> Result<Vec<u8>, ConnectError> {
        key.sign(nonce).map_err(|_| self.holds_no("seed that can sign"))
    }

    fn unreadable(&self, source: io::Error) -> ConnectError {
        ConnectError::File { what: self.option, file: self.file.clone(), source }
    }

    fn holds_no(&self, missing: &'static str) -> ConnectError {
        ConnectError::Content { what: self.option, file: self.file.clone(), missing }
    }
}

/// The seed of a user begins with `SU`; tools write comments and frames around it.
fn nkey_seed(file: &str) -> Option<&str> {
    file.lines().map(str::trim).find(|line| line.starts_with("SU"))
}

/// A JWT is three parts in base64 of which the first is a JSON object, and so begins with `eyJ`.
fn jwt(file: &str) -> Option<String> {
    let is_jwt = |line: &&str| line.starts_with("eyJ") && line.split('.').count() == 3;
    file.lines().map(str::trim).find(is_jwt).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_and_a_jwt_are_found_within_their_frames() {
        let file = "# ann\n-----BEGIN NATS USER JWT-----\neyJ0.eyJq.sig\n---\n-----BEGIN SEED-----\n SUABC \n---";
        assert_eq!((nkey_seed(file), jwt(file)), (Some("SUABC"), Some("eyJ0.eyJq.sig".to_owned())));
        assert_eq!((nkey_seed("UABC\n"), jwt("eyJ0\n")), (None, None));
    }

    #[test]
    fn a_file_that_was_replaced_is_used() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("password");
        fs::write(&path, "first\n").unwrap();
        let file: SecretFile = path.to_str().unwrap().parse().unwrap();
        let source = Source::open("--nats-password-file", file).unwrap();
        let credentials = Credentials::UserWithFile("ann".to_owned(), source);
        assert_eq!(credentials.auth(b"nonce").unwrap().password.as_deref(), Some("first"));
        fs::write(&path, "second").unwrap();
        assert_eq!(credentials.auth(b"nonce").unwrap().password.as_deref(), Some("second"));
    }

    #[test]
    fn a_key_signs_what_the_server_gives() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nkey");
        let key = KeyPair::new_user();
        fs::write(&path, key.seed().unwrap()).unwrap();
        let source = Source::open("--nats-nkey", path.to_str().unwrap().parse().unwrap()).unwrap();
        let auth = Credentials::Nkey(source).auth(b"nonce").unwrap();
        assert_eq!(auth.nkey, Some(key.public_key()));
        assert!(key.verify(b"nonce", &auth.signature.unwrap()).is_ok());
    }
}
