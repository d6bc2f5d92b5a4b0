//! The NATS client protocol in both directions: <https://docs.nats.io/reference/reference-protocols/nats-protocol>.

use std::{collections::BTreeMap, io};

use bytes::{Bytes, BytesMut};

use super::{Direction, Wire};

/// The longest control line. `CONNECT` and `INFO` can carry tokens and lists, everything else is short.
const MAX_LINE: usize = 1024 * 1024;
/// The largest payload: more than any server is configured to take.
const MAX_PAYLOAD: usize = 64 * 1024 * 1024;
const CRLF: &[u8] = b"\r\n";

/// What a connection's frames mean.
#[derive(Debug, Default)]
pub struct Nats {
    /// What was asked with each inbox.
    requests: BTreeMap<String, NatsTraffic>,
    /// The inboxes of subscriptions, to forget what was asked with them.
    subscriptions: BTreeMap<String, String>,
}

/// A control line and, where it has one, its payload, exactly as they came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatsFrame {
    bytes: Bytes,
    operation: Operation,
}

/// What a frame says, in either direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// `CONNECT`
    Connect,
    /// `INFO`
    Info,
    /// `SUB`
    Subscribe {
        /// The subject, with its wildcards.
        subject: String,
        /// The client's number for it.
        sid: String,
    },
    /// `UNSUB`
    Unsubscribe {
        /// The client's number for it.
        sid: String,
    },
    /// `PUB`, `HPUB`, `MSG`, `HMSG`
    Message(Message),
    /// `PING`
    Ping,
    /// `PONG`
    Pong,
    /// `+OK`
    Ok,
    /// `-ERR`
    Error(String),
}

/// A message, whoever sent it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    subject: String,
    reply: Option<String>,
    headers: String,
    payload: Bytes,
}

/// What a frame is, to the processor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NatsTraffic {
    /// A client's acknowledgement of a delivery.
    Ack,
    /// A delivery given back.
    Nak,
    /// A delivery terminated.
    Term,
    /// A delivery still worked on.
    InProgress,
    /// A request for deliveries.
    Pull,
    /// A delivery.
    Delivery,
    /// What came to the inbox of such a request and is no delivery: an answer, or a status.
    Answer(Box<NatsTraffic>),
    /// Any other message to this subject.
    Message(String),
    /// A frame without a message.
    Protocol,
}

impl NatsTraffic {
    /// Messages to this subject.
    #[must_use]
    pub fn to(subject: &str) -> Self {
        Self::Message(subject.to_owned())
    }

    /// The answers to such requests.
    #[must_use]
    pub fn answer(self) -> Self {
        Self::Answer(Box::new(self))
    }
}

impl NatsFrame {
    /// What it says.
    #[must_use]
    pub fn operation(&self) -> &Operation {
        &self.operation
    }

    /// The message that it carries, if it is of that kind.
    #[must_use]
    pub fn message(&self) -> Option<&Message> {
        match &self.operation {
            Operation::Message(message) => Some(message),
            Operation::Connect
            | Operation::Info
            | Operation::Subscribe { .. }
            | Operation::Unsubscribe { .. }
            | Operation::Ping
            | Operation::Pong
            | Operation::Ok
            | Operation::Error(_) => None,
        }
    }
}

impl AsRef<[u8]> for NatsFrame {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Message {
    /// The subject it was published to.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// Where an answer to it goes.
    #[must_use]
    pub fn reply(&self) -> Option<&str> {
        self.reply.as_deref()
    }

    /// The first value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.headers.split("\r\n").skip(1);
        let mut values = lines.filter_map(|line| line.split_once(':')).filter(|(named, _)| *named == name);
        values.next().map(|(_, value)| value.trim_start())
    }

    /// The payload, without the headers.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    fn sent_by_client(&self) -> NatsTraffic {
        if self.subject.starts_with("$JS.API.CONSUMER.MSG.NEXT.") {
            return NatsTraffic::Pull;
        }
        if !self.subject.starts_with("$JS.ACK.") {
            return NatsTraffic::to(&self.subject);
        }
        match &*self.payload {
            b"" | b"+ACK" | b"+OK" => NatsTraffic::Ack,
            b"+WPI" => NatsTraffic::InProgress,
            body if body.starts_with(b"-NAK") => NatsTraffic::Nak,
            body if body.starts_with(b"+TERM") => NatsTraffic::Term,
            _ => NatsTraffic::to(&self.subject),
        }
    }
}

impl Wire for Nats {
    type Frame = NatsFrame;
    type Traffic = NatsTraffic;

    fn split(read: &mut BytesMut) -> io::Result<Option<NatsFrame>> {
        let Some(end) = read.iter().position(|byte| *byte == b'\n') else {
            return if read.len() > MAX_LINE { Err(wrong("a control line does not end")) } else { Ok(None) };
        };
        let line =
            read[..=end].strip_suffix(CRLF).ok_or_else(|| wrong("a control line ends otherwise than in CRLF"))?;
        let line = str::from_utf8(line).map_err(io::Error::other)?;
        let announced = match Announced::by(line)? {
            Line::Whole(operation) => {
                return Ok(Some(NatsFrame { bytes: read.split_to(end + 1).freeze(), operation }));
            }
            Line::WithPayload(announced) => announced,
        };
        if read.len() < end + 1 + announced.total + CRLF.len() {
            return Ok(None);
        }
        let bytes = read.split_to(end + 1 + announced.total + CRLF.len()).freeze();
        let body = bytes.slice(end + 1..bytes.len() - CRLF.len());
        if !bytes.ends_with(CRLF) {
            return Err(wrong("a payload is longer than announced"));
        }
        let operation = Operation::Message(Message {
            subject: announced.subject,
            reply: announced.reply,
            headers: String::from_utf8_lossy(&body[..announced.headers]).into_owned(),
            payload: body.slice(announced.headers..),
        });
        Ok(Some(NatsFrame { bytes, operation }))
    }

    fn sort(&mut self, frame: &NatsFrame, direction: Direction) -> NatsTraffic {
        match (&frame.operation, direction) {
            (Operation::Message(message), Direction::ToServer) => {
                let traffic = message.sent_by_client();
                if let Some(inbox) = &message.reply {
                    self.requests.insert(inbox.clone(), traffic.clone());
                }
                traffic
            }
            (Operation::Message(message), Direction::ToClient) => {
                let is_delivery = message.reply.as_deref().is_some_and(|reply| reply.starts_with("$JS.ACK."));
                match self.requests.get(&message.subject) {
                    _ if is_delivery => NatsTraffic::Delivery,
                    Some(request) => request.clone().answer(),
                    None => NatsTraffic::to(&message.subject),
                }
            }
            (Operation::Subscribe { subject, sid }, _) => {
                self.subscriptions.insert(sid.clone(), subject.clone());
                NatsTraffic::Protocol
            }
            (Operation::Unsubscribe { sid }, _) => {
                // What the server had sent before it read this is still known by its reply subject.
                if let Some(subject) = self.subscriptions.remove(sid) {
                    self.requests.remove(&subject);
                }
                NatsTraffic::Protocol
            }
            (
                Operation::Connect
                | Operation::Info
                | Operation::Ping
                | Operation::Pong
                | Operation::Ok
                | Operation::Error(_),
                _,
            ) => NatsTraffic::Protocol,
        }
    }
}

/// What a control line says.
enum Line {
    Whole(Operation),
    WithPayload(Announced),
}

/// What a control line says about the payload that follows.
struct Announced {
    subject: String,
    reply: Option<String>,
    headers: usize,
    total: usize,
}

impl Announced {
    /// `PUB <subject> [reply] <total>`, `MSG <subject> <sid> [reply] <total>`; with an `H` before, the length of the headers
    /// stands before the total.
    fn by(line: &str) -> io::Result<Line> {
        let mut words = line.split_ascii_whitespace();
        let name = words.next().unwrap_or_default().to_ascii_uppercase();
        let (with_headers, with_sid) = match name.as_str() {
            "PUB" => (false, false),
            "HPUB" => (true, false),
            "MSG" => (false, true),
            "HMSG" => (true, true),
            _ => return whole(&name, words.collect::<Vec<_>>().as_slice(), line).map(Line::Whole),
        };
        let subject = words.next().ok_or_else(|| wrong("a message without a subject"))?.to_owned();
        if with_sid {
            words.next().ok_or_else(|| wrong("a message without its subscription"))?;
        }
        let total = size(words.next_back())?;
        let headers = if with_headers { size(words.next_back())? } else { 0 };
        let reply = words.next().map(str::to_owned);
        if headers > total || total > MAX_PAYLOAD || words.next().is_some() {
            return Err(wrong("a message of an impossible size or of too many words"));
        }
        Ok(Line::WithPayload(Self { subject, reply, headers, total }))
    }
}

fn whole(name: &str, words: &[&str], line: &str) -> io::Result<Operation> {
    match (name, words) {
        ("CONNECT", _) => Ok(Operation::Connect),
        ("INFO", _) => Ok(Operation::Info),
        ("SUB", [subject, .., sid]) => {
            Ok(Operation::Subscribe { subject: (*subject).to_owned(), sid: (*sid).to_owned() })
        }
        ("UNSUB", [sid, ..]) => Ok(Operation::Unsubscribe { sid: (*sid).to_owned() }),
        ("PING", []) => Ok(Operation::Ping),
        ("PONG", []) => Ok(Operation::Pong),
        ("+OK", []) => Ok(Operation::Ok),
        ("-ERR", _) => Ok(Operation::Error(line.to_owned())),
        _ => Err(wrong("a control line of no known operation")),
    }
}

fn size(word: Option<&str>) -> io::Result<usize> {
    word.and_then(|word| word.parse().ok()).ok_or_else(|| wrong("a message without its size"))
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What each side of a connection says when the processor works: a start, a pull, a delivery, a notification, an ack.
    const TO_SERVER: &[u8] = b"CONNECT {\"verbose\":false}\r\nPING\r\nSUB _INBOX.a.* 1\r\nSUB _INBOX.b 2\r\n\
        PUB $JS.API.CONSUMER.MSG.NEXT.S.C _INBOX.b 11\r\n{\"batch\":1}\r\n\
        HPUB t.done _INBOX.a.1 21 26\r\nNATS/1.0\r\nId: 7:8\r\n\r\n\r\nPUB\r\n\
        PUB $JS.ACK.S.C.1.1.1.1.0 4\r\n+WPI\r\nPUB $JS.ACK.S.C.1.1.1.1.0 _INBOX.a.2 4\r\n+ACK\r\n\
        PUB $JS.ACK.S.C.1.2.2.1.0 14\r\n-NAK {\"delay\"}\r\nPUB $JS.ACK.S.C.1.3.3.1.0 _INBOX.a.3 9\r\n+TERM why\r\n\
        UNSUB 2\r\nPONG\r\n";
    const TO_CLIENT: &[u8] = b"INFO {\"server_id\":\"x\"}\r\nPONG\r\n\
        MSG t.ended 2 $JS.ACK.S.C.1.1.1.1.0 6\r\n\r\nMSG \r\nHMSG _INBOX.b 2 31 31\r\nNATS/1.0 100 Idle Heartbeat\r\n\r\n\r\n\
        MSG _INBOX.a.1 1 2\r\n{}\r\nMSG _INBOX.a.2 1 0\r\n\r\nMSG other 9 1\r\n.\r\n+OK\r\n-ERR 'Stale Connection'\r\nPING\r\n";

    fn frames(pieces: &[&[u8]]) -> io::Result<Vec<NatsFrame>> {
        let (mut read, mut frames) = (BytesMut::new(), Vec::new());
        for piece in pieces {
            read.extend_from_slice(piece);
            while let Some(frame) = Nats::split(&mut read)? {
                frames.push(frame);
            }
        }
        if read.is_empty() { Ok(frames) } else { Err(wrong("something is left over")) }
    }

    #[test]
    fn every_operation_is_told_from_the_others() -> io::Result<()> {
        let mut nats = Nats::default();
        let mut sort = |bytes: &[u8], direction| -> io::Result<Vec<NatsTraffic>> {
            Ok(frames(&[bytes])?.iter().map(|frame| nats.sort(frame, direction)).collect())
        };
        use NatsTraffic::{Ack, Delivery, InProgress, Nak, Protocol, Pull, Term};
        let done = NatsTraffic::to("t.done");
        // All but the last two, after which the pull's inbox is forgotten.
        let before_unsubscribe = TO_SERVER.len() - b"UNSUB 2\r\nPONG\r\n".len();
        assert_eq!(
            sort(&TO_SERVER[..before_unsubscribe], Direction::ToServer)?,
            [Protocol, Protocol, Protocol, Protocol, Pull, done.clone(), InProgress, Ack, Nak, Term]
        );
        assert_eq!(
            sort(TO_CLIENT, Direction::ToClient)?,
            [
                Protocol,
                Protocol,
                Delivery,
                Pull.answer(),
                done.answer(),
                Ack.answer(),
                NatsTraffic::to("other"),
                Protocol,
                Protocol,
                Protocol
            ]
        );
        sort(b"UNSUB 2\r\n", Direction::ToServer)?;
        assert_eq!(sort(b"MSG _INBOX.b 2 0\r\n\r\n", Direction::ToClient)?, [NatsTraffic::to("_INBOX.b")]);
        Ok(())
    }

    #[test]
    fn payloads_are_not_taken_for_control_lines() -> io::Result<()> {
        let bytes = b"PUB a 14\r\nPUB b 5\r\nPING\r\r\nPING\r\nhpub c _INBOX.1 21 26\r\nNATS/1.0\r\nId: 7:8\r\n\r\n\r\nhi\0\r\nPONG\r\n";
        let read = frames(&[bytes])?;
        let subjects: Vec<_> = read.iter().map(|frame| frame.message().map(Message::subject)).collect();
        assert_eq!(subjects, [Some("a"), None, Some("c"), None]);
        assert_eq!(read.iter().flat_map(|frame| frame.as_ref().to_vec()).collect::<Vec<_>>(), bytes);
        let message = read[2].message().expect("it is one");
        assert_eq!(
            (message.header("Id"), message.header("id"), message.payload(), message.reply()),
            (Some("7:8"), None, &b"\r\nhi\0"[..], Some("_INBOX.1"))
        );
        Ok(())
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        let wrong: [&[u8]; 11] = [
            b"PING",
            b"PING\n",
            b"PINGS\r\n",
            b"SUB\r\n",
            b"PUB a\r\n",
            b"PUB a x\r\n",
            b"PUB a b c 0\r\n\r\n",
            b"PUB a 3\r\nabcd\r\n",
            b"PUB a 3\r\nab",
            b"HPUB a 5 3\r\nabc\r\n",
            b"PUB a 99999999999\r\n",
        ];
        for bytes in wrong {
            assert!(frames(&[bytes]).is_err(), "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    proptest! {
        #[test]
        fn a_stream_is_read_the_same_however_it_is_cut(cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..40)) {
            for stream in [TO_SERVER, TO_CLIENT] {
                let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len())).collect();
                places.extend([0, stream.len()]);
                places.sort_unstable();
                let pieces: Vec<&[u8]> = places.windows(2).map(|ends| &stream[ends[0]..ends[1]]).collect();
                prop_assert_eq!(frames(&pieces).expect("it is well formed"), frames(&[stream]).expect("it is well formed"));
            }
        }

        #[test]
        fn any_message_is_read_as_it_was_written(
            payload in proptest::collection::vec(any::<u8>(), 0..64), reply in proptest::option::of("[a-z.]{1,8}"),
        ) {
            let word = reply.clone().map(|reply| format!("{reply} ")).unwrap_or_default();
            let mut bytes = format!("PUB some.subject {word}{}\r\n", payload.len()).into_bytes();
            bytes.extend_from_slice(&payload);
            bytes.extend_from_slice(b"\r\nPING\r\n");
            let bytewise: Vec<&[u8]> = bytes.chunks(1).collect();
            let read = frames(&bytewise).expect("it is well formed");
            prop_assert_eq!(read.len(), 2);
            prop_assert_eq!(read[0].message().map(Message::payload), Some(&payload[..]));
            prop_assert_eq!(read[0].message().and_then(Message::reply), reply.as_deref());
        }
    }
}
