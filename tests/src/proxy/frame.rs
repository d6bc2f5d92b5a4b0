//! One operation of the NATS client protocol, in either direction.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

/// The longest control line. `CONNECT` and `INFO` can carry tokens and lists, everything else is short.
const MAX_LINE: u64 = 1024 * 1024;
/// The largest payload: more than any server is configured to take.
const MAX_PAYLOAD: usize = 64 * 1024 * 1024;
const CRLF: &[u8] = b"\r\n";

/// A control line and, where it has one, its payload, exactly as they came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    bytes: Vec<u8>,
    message: Option<Message>,
}

/// What a frame that carries a message says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    subject: String,
    headers: String,
    payload: Vec<u8>,
}

impl Frame {
    /// The next frame; `None` where the connection ended between two.
    pub(crate) async fn read(from: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Self>> {
        let mut bytes = Vec::new();
        let length = from.take(MAX_LINE).read_until(b'\n', &mut bytes).await?;
        if length == 0 {
            return Ok(None);
        }
        let line = bytes.strip_suffix(CRLF).ok_or_else(|| wrong("a control line does not end"))?;
        let line = str::from_utf8(line).map_err(io::Error::other)?.to_owned();
        let Some(announced) = Announced::by(&line)? else {
            return Ok(Some(Self { bytes, message: None }));
        };
        bytes.resize(length + announced.total + CRLF.len(), 0);
        from.read_exact(&mut bytes[length..]).await?;
        let body = bytes[length..].strip_suffix(CRLF).ok_or_else(|| wrong("a payload is longer than announced"))?;
        let (headers, payload) = body.split_at(announced.headers);
        let message = Message {
            subject: announced.subject,
            headers: String::from_utf8_lossy(headers).into_owned(),
            payload: payload.to_owned(),
        };
        Ok(Some(Self { bytes, message: Some(message) }))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn message(&self) -> Option<&Message> {
        self.message.as_ref()
    }
}

impl Message {
    /// The subject it was published to.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
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
}

/// What a control line says about the payload that follows.
struct Announced {
    subject: String,
    headers: usize,
    total: usize,
}

impl Announced {
    /// `PUB <subject> [reply] <total>`, `MSG <subject> <sid> [reply] <total>`; with an `H` before, the length of the headers
    /// stands before the total.
    fn by(line: &str) -> io::Result<Option<Self>> {
        let mut words = line.split_ascii_whitespace();
        let operation = words.next().unwrap_or_default().to_ascii_uppercase();
        let with_headers = match operation.as_str() {
            "PUB" | "MSG" => false,
            "HPUB" | "HMSG" => true,
            _ => return Ok(None),
        };
        let subject = words.next().ok_or_else(|| wrong("a message without a subject"))?;
        let total = size(words.next_back())?;
        let headers = if with_headers { size(words.next_back())? } else { 0 };
        if headers > total || total > MAX_PAYLOAD {
            return Err(wrong("a message of an impossible size"));
        }
        Ok(Some(Self { subject: subject.to_owned(), headers, total }))
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

    async fn frames(mut bytes: &[u8]) -> io::Result<Vec<Frame>> {
        let mut frames = Vec::new();
        while let Some(frame) = Frame::read(&mut bytes).await? {
            frames.push(frame);
        }
        Ok(frames)
    }

    #[tokio::test]
    async fn payloads_are_not_taken_for_control_lines() -> io::Result<()> {
        let bytes = b"PUB a 14\r\nPUB b 5\r\nPING\r\r\nPING\r\nhpub c _INBOX.1 21 26\r\nNATS/1.0\r\nId: 7:8\r\n\r\n\r\nhi\0\r\nPONG\r\n";
        let bytes = &bytes[..];
        let read = frames(bytes).await?;
        let subjects: Vec<_> = read.iter().map(|frame| frame.message().map(Message::subject)).collect();
        assert_eq!(subjects, [Some("a"), None, Some("c"), None]);
        assert_eq!(read.iter().flat_map(|frame| frame.bytes().to_vec()).collect::<Vec<_>>(), bytes);
        let message = read[2].message().expect("it is one");
        assert_eq!(
            (message.header("Id"), message.header("id"), message.payload()),
            (Some("7:8"), None, &b"\r\nhi\0"[..])
        );
        Ok(())
    }

    #[tokio::test]
    async fn what_is_no_frame_is_refused() {
        let wrong: [&[u8]; 8] = [
            b"PING",
            b"PING\n",
            b"PUB a\r\n",
            b"PUB a x\r\n",
            b"PUB a 3\r\nabcd\r\n",
            b"PUB a 3\r\nab",
            b"HPUB a 5 3\r\nabc\r\n",
            b"PUB a 99999999999\r\n",
        ];
        for bytes in wrong {
            assert!(frames(bytes).await.is_err(), "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    proptest! {
        #[test]
        fn any_message_is_read_as_it_was_written(
            payload in proptest::collection::vec(any::<u8>(), 0..64), reply in proptest::option::of("[a-z.]{1,8}"),
        ) {
            let reply = reply.map(|reply| format!("{reply} ")).unwrap_or_default();
            let mut bytes = format!("PUB some.subject {reply}{}\r\n", payload.len()).into_bytes();
            bytes.extend_from_slice(&payload);
            bytes.extend_from_slice(b"\r\nPING\r\n");
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be built");
            let read = runtime.block_on(frames(&bytes)).expect("it is well formed");
            prop_assert_eq!(read.len(), 2);
            prop_assert_eq!(read[0].message().map(Message::payload), Some(&payload[..]));
        }
    }
}
