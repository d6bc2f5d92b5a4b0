//! The table of everything the model does, in the README of its package.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::cargo;

const BEGIN: &str = "<!-- The table is written by `cargo conformance-table`. -->\n";
const END: &str = "<!-- Here it ends. -->\n";

/// One thing that the model does because nats-server does it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Behaviour {
    /// What.
    pub behaviour: String,
    /// Where the fact is from. A file without a repository is in nats-server's `server/`.
    pub source: String,
    /// The cases that hold it against nats-server, as `<topic>/<name>` in `fixtures/conformance`.
    pub cases: Vec<String>,
    /// The model's own tests of it, where a case cannot show it.
    #[serde(default)]
    pub tests: Vec<String>,
}

/// Every behaviour, in the order of `fixtures/conformance/behaviours.json`.
///
/// # Errors
///
/// The file cannot be read.
pub fn behaviours() -> io::Result<Vec<Behaviour>> {
    let text = fs::read_to_string(cargo::workspace().join("fixtures/conformance/behaviours.json"))?;
    serde_json::from_str(&text).map_err(io::Error::other)
}

/// The README of the model's package.
#[must_use]
pub fn readme() -> PathBuf {
    cargo::workspace().join("shell-sim/jetstream/README.md")
}

/// The README's text with the table of `behaviours` in its place.
///
/// # Errors
///
/// The README has no place for it.
pub fn with_table(readme: &str, behaviours: &[Behaviour]) -> io::Result<String> {
    let (before, rest) = readme.split_once(BEGIN).ok_or_else(|| io::Error::other("no place for the table"))?;
    let (_, after) = rest.split_once(END).ok_or_else(|| io::Error::other("the place for the table has no end"))?;
    let mut table = String::from("\n| behaviour | source | held against nats-server by |\n|---|---|---|\n");
    for Behaviour { behaviour, source, cases, tests } in behaviours {
        let cases = cases.iter().map(|case| {
            let name = case.rsplit('/').next().unwrap_or(case);
            format!("[{name}](../../fixtures/conformance/{case}.json)")
        });
        let tests = tests.iter().map(|test| format!("model only: `{test}`"));
        let shown: Vec<String> = cases.chain(tests).collect();
        writeln!(table, "| {behaviour} | {source} | {} |", shown.join("<br>")).map_err(io::Error::other)?;
    }
    Ok(format!("{before}{BEGIN}{table}\n{END}{after}"))
}

/// What is wrong with the behaviours: cases and tests that are not there, cases that no behaviour names, behaviours that
/// nothing shows.
///
/// # Errors
///
/// The cases or the model's sources cannot be read.
pub fn faults(behaviours: &[Behaviour]) -> io::Result<Vec<String>> {
    let there = cases()?;
    let tests = model_tests()?;
    let mut faults = vec![];
    for Behaviour { behaviour, cases, tests: named, .. } in behaviours {
        faults.extend(cases.iter().filter(|case| !there.contains(*case)).map(|case| format!("no case {case}")));
        faults.extend(named.iter().filter(|test| !tests.contains(*test)).map(|test| format!("no test {test}")));
        if cases.is_empty() && named.is_empty() {
            faults.push(format!("nothing shows: {behaviour}"));
        }
    }
    let named: BTreeSet<&String> = behaviours.iter().flat_map(|behaviour| &behaviour.cases).collect();
    faults.extend(there.iter().filter(|case| !named.contains(case)).map(|case| format!("no behaviour names {case}")));
    Ok(faults)
}

fn cases() -> io::Result<BTreeSet<String>> {
    let mut cases = BTreeSet::new();
    for topic in fs::read_dir(cargo::workspace().join("fixtures/conformance"))? {
        let topic = topic?.path();
        if topic.is_dir() {
            for case in fs::read_dir(&topic)? {
                let case = case?.path();
                cases.insert(format!("{}/{}", stem(&topic), stem(&case)));
            }
        }
    }
    Ok(cases)
}

fn stem(path: &Path) -> String {
    path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn model_tests() -> io::Result<BTreeSet<String>> {
    let mut tests = BTreeSet::new();
    for file in fs::read_dir(cargo::workspace().join("shell-sim/jetstream/src/tests"))? {
        let text = fs::read_to_string(file?.path())?;
        let named = text.lines().filter_map(|line| line.strip_prefix("fn ")?.split('(').next());
        tests.extend(named.map(str::to_owned));
    }
    Ok(tests)
}
