//! The messages between MongoDB and its clients: <https://www.mongodb.com/docs/manual/reference/mongodb-wire-protocol/>.

use std::{collections::BTreeMap, io};

use bytes::{Bytes, BytesMut};
use mongodb::bson::{RawBsonRef, RawDocument};

use super::{Direction, Wire};

/// Length, request id, id of the request that is answered, kind; each a little-endian `i32`.
const HEADER: usize = 16;
/// `OP_MSG`.
const MESSAGE: i32 = 2013;
/// The flags and the kind of the first section, after the header.
const BODY: usize = HEADER + 5;
/// What a server takes at most: 48 MB.
const MAX_LENGTH: usize = 48_000_000;

/// What a connection's frames mean.
#[derive(Debug, Default)]
pub struct Mongo {
    /// Commands that are not answered yet.
    asked: BTreeMap<i32, MongoTraffic>,
}

/// A message, exactly as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MongoFrame {
    bytes: Bytes,
}

/// What a message is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MongoTraffic {
    /// A command of a client.
    Command {
        /// Its name.
        name: String,
        /// The collection that it is about; empty where it is about none.
        collection: String,
    },
    /// The server's answer to one.
    Answer(Box<MongoTraffic>),
    /// Handshakes, and what the server says of itself.
    Other,
}

impl MongoTraffic {
    /// A command about a collection.
    #[must_use]
    pub fn command(name: &str, collection: &str) -> Self {
        Self::Command { name: name.to_owned(), collection: collection.to_owned() }
    }

    /// The server's answer to it.
    #[must_use]
    pub fn answer(self) -> Self {
        Self::Answer(Box::new(self))
    }
}

impl MongoFrame {
    /// The `i32` at this place; the length of a frame is checked before.
    fn number(&self, at: usize) -> i32 {
        number(&self.bytes, at).expect("a frame has a whole header")
    }

    fn command(&self) -> Option<MongoTraffic> {
        if self.number(12) != MESSAGE || self.bytes.get(BODY - 1) != Some(&0) {
            return None;
        }
        let length = usize::try_from(number(&self.bytes, BODY)?).ok()?;
        let document = RawDocument::from_bytes(self.bytes.get(BODY..BODY + length)?).ok()?;
        let (name, value) = document.into_iter().next()?.ok()?;
        #[expect(clippy::wildcard_enum_match_arm, reason = "every other type names no collection")]
        let collection = match value {
            RawBsonRef::String(collection) => collection,
            _ => "",
        };
        Some(MongoTraffic::command(name.as_str(), collection))
    }
}

impl AsRef<[u8]> for MongoFrame {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Wire for Mongo {
    type Frame = MongoFrame;
    type Traffic = MongoTraffic;

    fn split(read: &mut BytesMut) -> io::Result<Option<MongoFrame>> {
        let Some(length) = number(read, 0) else { return Ok(None) };
        let length = usize::try_from(length).unwrap_or(0);
        if !(HEADER..=MAX_LENGTH).contains(&length) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message of an impossible size"));
        }
        Ok((read.len() >= length).then(|| MongoFrame { bytes: read.split_to(length).freeze() }))
    }

    fn sort(&mut self, frame: &MongoFrame, direction: Direction) -> MongoTraffic {
        match direction {
            Direction::ToServer => {
                let Some(command) = frame.command() else { return MongoTraffic::Other };
                self.asked.insert(frame.number(4), command.clone());
                command
            }
            Direction::ToClient => {
                self.asked.remove(&frame.number(8)).map_or(MongoTraffic::Other, MongoTraffic::answer)
            }
        }
    }
}

fn number(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use mongodb::bson::rawdoc;

    use super::*;

    fn message(request: i32, answers: i32, document: &RawDocument) -> Vec<u8> {
        let length = i32::try_from(BODY + document.as_bytes().len()).unwrap();
        let header = [length, request, answers, MESSAGE, 0].map(i32::to_le_bytes).concat();
        [&header, &[0][..], document.as_bytes()].concat()
    }

    #[test]
    fn an_answer_is_known_by_its_command() {
        let asked = message(7, 0, &rawdoc! { "update": "sums", "ordered": false });
        let answered = message(1, 7, &rawdoc! { "ok": 1 });
        let mut read = BytesMut::from(&asked[..10]);
        assert_eq!(Mongo::split(&mut read).unwrap(), None);
        read.extend_from_slice(&asked[10..]);
        read.extend_from_slice(&answered);
        let mut mongo = Mongo::default();
        let first = Mongo::split(&mut read).unwrap().unwrap();
        let second = Mongo::split(&mut read).unwrap().unwrap();
        let update = MongoTraffic::command("update", "sums");
        assert_eq!(mongo.sort(&first, Direction::ToServer), update);
        assert_eq!(mongo.sort(&second, Direction::ToClient), update.answer());
        assert_eq!(mongo.sort(&second, Direction::ToClient), MongoTraffic::Other);
        assert!(Mongo::split(&mut BytesMut::from(&[9, 0, 0, 0][..])).is_err());
    }
}
