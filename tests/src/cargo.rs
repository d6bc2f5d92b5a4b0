//! Where cargo puts what it builds, and how to have it build the binaries that the tests run.

use std::{
    env, io,
    path::{Path, PathBuf},
    process::Stdio,
};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::{process::Command, sync::OnceCell};

/// Names the processor's binary; without it, the workspace's own is built.
pub const PROCESSOR_VARIABLE: &str = "TRANSCRIPT_PROCESSOR_BIN";

/// Which processor is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Version {
    /// The product.
    #[default]
    Product,
    /// A worker with the faults of the first version: [`crate::crash::first_version`].
    First,
}

/// The processor's binary, built from the sources as they are now: cargo runs once a process, and for the product not at
/// all where [`PROCESSOR_VARIABLE`] names one.
///
/// # Errors
///
/// Cargo cannot be run, or the sources do not compile: the error has what cargo said.
pub async fn processor(version: Version) -> Result<PathBuf, BuildError> {
    static PRODUCT: OnceCell<PathBuf> = OnceCell::const_new();
    static FIRST: OnceCell<PathBuf> = OnceCell::const_new();
    match version {
        Version::Product => {
            if let Some(named) = env::var_os(PROCESSOR_VARIABLE) {
                return Ok(named.into());
            }
            PRODUCT.get_or_try_init(|| build("transcript-processor")).await.cloned()
        }
        Version::First => FIRST.get_or_try_init(|| build("first_version")).await.cloned(),
    }
}

/// Builds a binary in the profile of the running executable.
///
/// Cargo alone knows whether a binary is older than its sources, and its own lock lets many do this at once. Where
/// nothing has changed it takes a fraction of a second. All packages that have such binaries are named each time, so that
/// cargo builds their dependencies with the same features for all of them, and once.
async fn build(binary: &str) -> Result<PathBuf, BuildError> {
    let place = Place::of_this_executable()?;
    let packages = ["transcript-processor", "transcript-sim", "transcript-tests"];
    let packages = packages.iter().flat_map(|package| ["--package", package]);
    run_cargo(&place, &packages.chain(["--bin", binary]).collect::<Vec<_>>()).await?;
    Ok(place.directory().join(binary))
}

/// Builds the simulator; `None` where this workspace has none.
///
/// # Errors
///
/// See [`processor`].
pub async fn simulator() -> Result<Option<PathBuf>, BuildError> {
    if !workspace().join("shell-sim/src/main.rs").is_file() {
        return Ok(None);
    }
    build("transcript-sim").await.map(Some)
}

async fn run_cargo(place: &Place, what: &[&str]) -> Result<(), BuildError> {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--quiet", "--profile", &place.profile]).args(what);
    command.arg("--target-dir").arg(&place.target_dir);
    if let Some(triple) = &place.triple {
        command.args(["--target", triple]);
    }
    // What cargo tells the program it runs is no setting of its own, but some build scripts would take it for a change.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let told =
            ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_NAME", "CARGO_PRIMARY_PACKAGE", "OUT_DIR"];
        if told.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    let output = command.current_dir(workspace()).stdin(Stdio::null()).output().await.map_err(BuildError::Run)?;
    if output.status.success() {
        Ok(())
    } else {
        Err(BuildError::Failed(String::from_utf8_lossy(&output.stderr).into_owned()))
    }
}

/// The guard's binary. Cargo builds it before it runs this package's tests, and [`build`] where that was not so.
pub(crate) async fn process_guard() -> Result<PathBuf, BuildError> {
    static FOUND: OnceCell<PathBuf> = OnceCell::const_new();
    let find = || async {
        let process_guard = Place::of_this_executable()?.directory().join("process_guard");
        if process_guard.is_file() { Ok(process_guard) } else { build("process_guard").await }
    };
    FOUND.get_or_try_init(find).await.cloned()
}

/// The target directory of the running executable; else that of the environment; else the workspace's own.
#[must_use]
pub fn target_dir() -> PathBuf {
    if let Ok(place) = Place::of_this_executable() {
        return place.target_dir;
    }
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

/// The directory of the workspace's `Cargo.toml`.
#[must_use]
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member's directory stands in the workspace's")
}

/// Why a binary is not to be had.
#[derive(Debug, Error)]
pub enum BuildError {
    /// The running executable was not built by cargo, or has been moved.
    #[error("{} does not stand in a target directory of cargo", .0.display())]
    NotInTargetDir(PathBuf),
    /// The running executable cannot be found.
    #[error("the running executable cannot be found")]
    Executable(#[source] io::Error),
    /// Cargo cannot be run.
    #[error("cargo cannot be run")]
    Run(#[source] io::Error),
    /// The sources do not compile.
    #[error("cargo build failed:\n{0}")]
    Failed(String),
}

/// `<target directory>/[<triple>/]<profile's directory>`
#[derive(Debug, PartialEq, Eq)]
struct Place {
    target_dir: PathBuf,
    triple: Option<String>,
    profile: String,
}

impl Place {
    fn of_this_executable() -> Result<Self, BuildError> {
        let executable = env::current_exe().map_err(BuildError::Executable)?;
        // Cargo marks a target directory with this file, see https://bford.info/cachedir/.
        let target_dir = executable.ancestors().find(|directory| directory.join("CACHEDIR.TAG").is_file());
        target_dir
            .and_then(|target_dir| Self::of(target_dir, &executable))
            .ok_or(BuildError::NotInTargetDir(executable))
    }

    fn of(target_dir: &Path, executable: &Path) -> Option<Self> {
        let inside = executable.strip_prefix(target_dir).ok()?.parent()?;
        let mut names: Vec<_> = inside.iter().map(|name| name.to_str()).collect::<Option<Vec<_>>>()?;
        names.retain(|name| !["deps", "examples"].contains(name));
        let profile = names.pop()?;
        // The profile `dev` is the one whose directory has another name.
        let profile = if profile == "debug" { "dev" } else { profile }.to_owned();
        Some(Self { target_dir: target_dir.to_owned(), triple: names.pop().map(str::to_owned), profile })
    }

    fn directory(&self) -> PathBuf {
        let profile = if self.profile == "dev" { "debug" } else { &self.profile };
        self.target_dir.join(self.triple.as_deref().unwrap_or_default()).join(profile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(executable: &str) -> Option<(Option<String>, String, PathBuf)> {
        let place = Place::of(Path::new("/t"), Path::new(executable))?;
        Some((place.triple.clone(), place.profile.clone(), place.directory()))
    }

    #[test]
    fn profile_and_triple_are_read_from_the_path() {
        assert_eq!(place("/t/debug/demo"), Some((None, "dev".to_owned(), "/t/debug".into())));
        assert_eq!(place("/t/release/deps/harness-1"), Some((None, "release".to_owned(), "/t/release".into())));
        let triple = "x86_64-unknown-linux-musl";
        assert_eq!(
            place("/t/x86_64-unknown-linux-musl/ci/deps/harness-1"),
            Some((Some(triple.to_owned()), "ci".to_owned(), Path::new("/t").join(triple).join("ci")))
        );
        assert_eq!(place("/t/demo"), None);
    }
}
