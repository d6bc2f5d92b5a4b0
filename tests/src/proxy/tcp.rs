//! Bytes of any protocol, for tests that do something to whole connections.

use std::io;

use bytes::{Bytes, BytesMut};

use super::{Direction, Wire};

/// Nothing is known of the bytes.
#[derive(Debug, Default)]
pub struct Tcp;

impl Wire for Tcp {
    type Frame = Bytes;
    type Traffic = ();

    fn split(read: &mut BytesMut) -> io::Result<Option<Bytes>> {
        Ok(if read.is_empty() { None } else { Some(read.split().freeze()) })
    }

    fn sort(&mut self, _: &Bytes, _: Direction) {}
}
