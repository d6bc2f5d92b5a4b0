//! Files for their owner only: traces and drawings tell who called whom and when, and with `--record-content` every word.

use std::{
    fs::{self, DirBuilder, File, Metadata, OpenOptions},
    io::{self, BufWriter, Write},
    os::{
        fd::AsFd,
        unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use nix::fcntl::OFlag;
use tempfile::NamedTempFile;

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

/// A file that replaces what is at its path once it is whole, and that is for its owner only even where a file of another mode
/// was there. Until [`Self::keep`] nothing at the path changes; dropped before, it leaves no trace.
///
/// A pipe or a device is written to as it is.
#[derive(Debug)]
pub(crate) enum NewFile {
    /// Beside the file that it is to be.
    Beside(BufWriter<NamedTempFile>, PathBuf),
    /// No regular file.
    Stream(BufWriter<File>),
}

impl NewFile {
    /// Begins it.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub(crate) fn begin(path: &Path) -> io::Result<Self> {
        let target = match fs::metadata(path) {
            Ok(there) if !there.is_file() => {
                return Ok(Self::Stream(BufWriter::new(OpenOptions::new().write(true).open(path)?)));
            }
            // A link stays a link: what it leads to is replaced.
            Ok(_) => fs::canonicalize(path)?,
            Err(_) => path.to_owned(),
        };
        let directory = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Made with mode 0600 (tempfile 3, `NamedTempFile`).
        Ok(Self::Beside(BufWriter::new(NamedTempFile::new_in(directory)?), target))
    }

    /// Puts it in its place.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub(crate) fn keep(self) -> io::Result<()> {
        match self {
            Self::Beside(file, target) => {
                let file = file.into_inner()?;
                file.persist(target)?;
                Ok(())
            }
            Self::Stream(mut stream) => stream.flush(),
        }
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Beside(file, _) => file.write(bytes),
            Self::Stream(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Beside(file, _) => file.flush(),
            Self::Stream(stream) => stream.flush(),
        }
    }
}

/// What tells a file from every other one, whatever it is called: its device and its inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileId(u64, u64);

impl FileId {
    /// That of the regular file which the path leads to; `None` where it leads to none.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        fs::metadata(path).ok().and_then(|metadata| Self::of_metadata(&metadata))
    }

    /// That of the regular file which stdin is read from.
    pub(crate) fn of_stdin() -> Option<Self> {
        let stdin = File::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
        stdin.metadata().ok().and_then(|metadata| Self::of_metadata(&metadata))
    }

    fn of_metadata(metadata: &Metadata) -> Option<Self> {
        metadata.is_file().then(|| Self(metadata.dev(), metadata.ino()))
    }
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
    use std::os::unix::fs::{PermissionsExt, symlink};

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
        NewFile::begin(&other).unwrap().keep().unwrap();
        assert_eq!([&inner, inner.parent().unwrap(), &file, &other].map(mode), [0o700, 0o700, 0o600, 0o600]);
    }

    #[test]
    fn a_file_is_replaced_once_it_is_whole_and_is_for_its_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("file"), directory.path().join("link"));
        fs::write(&file, "before").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        symlink(&file, &link).unwrap();
        let mut unfinished = NewFile::begin(&link).unwrap();
        unfinished.write_all(b"half").unwrap();
        drop(unfinished);
        assert_eq!(fs::read_to_string(&file).unwrap(), "before");
        let mut new = NewFile::begin(&link).unwrap();
        new.write_all(b"after").unwrap();
        new.keep().unwrap();
        assert_eq!((fs::read_to_string(&file).unwrap().as_str(), mode(&file)), ("after", 0o600));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "nothing else is left");
        assert!(NewFile::begin(Path::new("/dev/null")).unwrap().keep().is_ok());
        assert!(NewFile::begin(directory.path()).is_err());
    }

    #[test]
    fn a_file_is_the_same_whatever_it_is_called() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("file"), "x").unwrap();
        fs::write(path("other"), "x").unwrap();
        fs::hard_link(path("file"), path("hard")).unwrap();
        symlink(path("file"), path("soft")).unwrap();
        let file = FileId::of(&path("file"));
        assert!(file.is_some() && file == FileId::of(&path("hard")) && file == FileId::of(&path("soft")));
        assert!(file != FileId::of(&path("other")) && FileId::of(directory.path()).is_none());
    }

    #[test]
    fn only_a_regular_file_is_opened() {
        let directory = tempfile::tempdir().unwrap();
        let (pipe, file, link) =
            (directory.path().join("pipe"), directory.path().join("file"), directory.path().join("link"));
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        fs::write(&file, "x").unwrap();
        symlink(&pipe, &link).unwrap();
        assert!(open_regular(&pipe).unwrap().is_none());
        assert!(open_regular(directory.path()).unwrap().is_none());
        assert!(open_regular(&file).unwrap().is_some());
        assert!(open_regular(&link).is_err());
    }
}
