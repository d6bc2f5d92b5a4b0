//! What must not be shown: passwords, and the settings that can hold one.
//!
//! A setting is shown only where it was understood. Of one that was not understood nothing is shown: a password that was
//! written in the wrong place, or with a character that ends it too early, is in there somewhere.

mod mongodb_uri;
mod nats_urls;

use std::{
    convert::Infallible,
    fmt,
    path::{Component, Path, PathBuf},
    str::FromStr,
};

pub use self::{
    mongodb_uri::{BadMongodbUri, MongodbUri},
    nats_urls::{BadNatsUrl, NatsLogin, NatsUrls},
};

/// What is shown in place of what must not be shown.
const HIDDEN: &str = "[hidden]";

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
        f.write_str(HIDDEN)
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl FromStr for Secret {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

/// The name of a file that holds a secret. People give the secret itself instead, so the name is shown only where it is
/// likely to be one: the file is there, or a directory that it would be in.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretFile(PathBuf);

impl SecretFile {
    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    fn is_a_name(&self) -> bool {
        let is_named = |path: &&Path| path.components().any(|part| matches!(part, Component::Normal(_)));
        let mut directories = self.0.ancestors().skip(1).filter(is_named);
        self.0.exists() || directories.any(Path::is_dir)
    }
}

impl fmt::Display for SecretFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_a_name() {
            write!(f, "{}", self.0.display())
        } else {
            write!(f, "{HIDDEN}, which names no file (it may be the secret itself, which belongs into a file)")
        }
    }
}

impl fmt::Debug for SecretFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for SecretFile {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(PathBuf::from(text)))
    }
}

/// Whether every `%` begins an escape: what percent-decoding would otherwise take as it is, or refuse.
fn is_percent_encoded(text: &str) -> bool {
    let is_escape = |part: &str| part.as_bytes().get(..2).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit));
    text.split('%').skip(1).all(is_escape)
}

#[cfg(test)]
mod tests;
