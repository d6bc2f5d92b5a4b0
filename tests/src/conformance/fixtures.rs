//! The cases in `fixtures/conformance`.

use std::{fs, path::PathBuf};

use serde::de::DeserializeOwned;

use crate::cargo;

/// Where the cases of a topic are.
#[must_use]
pub fn directory(topic: &str) -> PathBuf {
    cargo::workspace().join("fixtures/conformance").join(topic)
}

/// Every case of a topic, in the order of the files' names.
///
/// # Panics
///
/// There is none, or one cannot be read.
#[must_use]
pub fn read<T: DeserializeOwned>(topic: &str) -> Vec<T> {
    let entries = fs::read_dir(directory(topic)).unwrap_or_else(|error| panic!("{topic}: {error}"));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "no case of {topic}");
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a fixture");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    paths.into_iter().map(read).collect()
}
