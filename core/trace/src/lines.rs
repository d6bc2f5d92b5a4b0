//! Lines that are numbered and written one after the other.

use std::io::{self, Write};

use serde::Serialize;

/// Where the lines of a part go, and how many entries there are.
#[derive(Debug)]
pub(crate) struct Lines<W> {
    to: W,
    entries: u64,
}

impl<W: Write> Lines<W> {
    /// Begins a part with its header.
    pub(crate) fn begin(mut to: W, header: &impl Serialize) -> io::Result<Self> {
        write(&mut to, header)?;
        Ok(Self { to, entries: 0 })
    }

    /// The number of the last entry.
    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }

    /// The next entry, made of its number.
    pub(crate) fn entry<T: Serialize>(&mut self, entry: impl FnOnce(u64) -> T) -> io::Result<()> {
        self.entries += 1;
        write(&mut self.to, &entry(self.entries))
    }

    /// The next entry, which was written into a buffer with the number after [`Self::entries`].
    pub(crate) fn whole_entry(&mut self, line: &[u8]) -> io::Result<()> {
        self.entries += 1;
        self.to.write_all(line)
    }

    /// Goes on in another file, under its header; gives back the one before.
    pub(crate) fn go_on(&mut self, mut to: W, header: &impl Serialize) -> io::Result<W> {
        write(&mut to, header)?;
        Ok(std::mem::replace(&mut self.to, to))
    }

    pub(crate) fn get_mut(&mut self) -> &mut W {
        &mut self.to
    }

    pub(crate) fn into_inner(self) -> W {
        self.to
    }
}

/// One line.
pub(crate) fn write(to: &mut impl Write, line: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *to, line)?;
    to.write_all(b"\n")
}
