//! Files for their owner only: traces and drawings tell who called whom and when, and with `--record-content` every word.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
};

use nix::fcntl::OFlag;

/// Read and written by the owner.
const FILE: u32 = 0o600;
/// The same for a directory, which the owner also enters.
const DIRECTORY: u32 = 0o700;

/// Makes a file that is not there yet, with mode 0600.
///
/// # Errors
///
/// What the system says; something of this name is there already.
pub(crate) fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(FILE).open(path)
}

/// Makes a file with mode 0600, or empties the one that is there, whose mode stays.
///
/// # Errors
///
/// What the system says.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(FILE).open(path)
}

/// Makes a directory and those above it, unless they are there, with mode 0700.
///
/// # Errors
///
/// What the system says.
pub(crate) fn create_directories(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY).create(path)
}

/// Opens a regular file for reading, and nothing else: to open a pipe waits for somebody who writes, and to follow a link
/// leads elsewhere. `None` where it is not a regular file.
///
/// # Errors
///
/// What the system says.
pub(crate) fn open_regular(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    Ok(file.metadata()?.is_file().then_some(file))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn what_is_made_is_for_the_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let (inner, file, other) =
            (directory.path().join("a/b"), directory.path().join("a/b/file"), directory.path().join("a/b/other"));
        create_directories(&inner).unwrap();
        create_new(&file).unwrap();
        create(&other).unwrap();
        assert_eq!([&inner, inner.parent().unwrap(), &file, &other].map(mode), [0o700, 0o700, 0o600, 0o600]);
    }

    #[test]
    fn only_a_regular_file_is_opened() {
        let directory = tempfile::tempdir().unwrap();
        let (pipe, file, link) =
            (directory.path().join("pipe"), directory.path().join("file"), directory.path().join("link"));
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        fs::write(&file, "x").unwrap();
        std::os::unix::fs::symlink(&pipe, &link).unwrap();
        assert!(open_regular(&pipe).unwrap().is_none());
        assert!(open_regular(directory.path()).unwrap().is_none());
        assert!(open_regular(&file).unwrap().is_some());
        assert!(open_regular(&link).is_err());
    }
}
