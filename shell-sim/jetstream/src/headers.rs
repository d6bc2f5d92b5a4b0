//! Header blocks: the bytes between the subject and the payload of a message.

use std::{borrow::Cow, sync::Arc};

const VERSION: &str = "NATS/1.0";
const MESSAGE_ID: &str = "Nats-Msg-Id";

/// The header block of a message, in the order in which it was sent.
///
/// The server stores a block as it comes and never checks it: [`Headers::raw`] keeps bytes that no strict client can parse,
/// and status lines that a publisher made up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Headers(Block);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Block {
    /// Names and values without line breaks. No block at all where there is none.
    Lines(Vec<(Cow<'static, str>, Arc<str>)>),
    /// Anything else.
    Raw(Arc<[u8]>),
}

impl Default for Headers {
    fn default() -> Self {
        Self(Block::Lines(Vec::new()))
    }
}

impl Headers {
    /// `Nats-Msg-Id` alone.
    #[must_use]
    pub fn id(id: impl Into<Arc<str>>) -> Self {
        Self::default().with(MESSAGE_ID, id)
    }

    /// Numbers, which hold no line break.
    pub(crate) fn numbers(lines: [(&'static str, u64); 2]) -> Self {
        Self(Block::Lines(lines.into_iter().map(|(name, number)| (name.into(), decimal(number))).collect()))
    }

    /// These headers and one more at the end. A value with a line break makes the block a raw one.
    #[must_use]
    pub fn with(self, name: impl Into<Cow<'static, str>>, value: impl Into<Arc<str>>) -> Self {
        let (name, value) = (name.into(), value.into());
        match self.0 {
            Block::Lines(mut lines) if is_one_line(&name) && is_one_line(&value) => {
                lines.push((name, value));
                Self(Block::Lines(lines))
            }
            Block::Lines(_) | Block::Raw(_) => {
                let mut block = self.to_bytes().into_owned();
                if block.is_empty() {
                    block.extend_from_slice(b"NATS/1.0\r\n\r\n");
                }
                block.truncate(block.len().saturating_sub(2));
                write_line(&mut block, name.as_bytes(), value.as_bytes());
                block.extend_from_slice(b"\r\n");
                Self::raw(block)
            }
        }
    }

    /// The block that a client writes for a list of names and values, whatever bytes they hold.
    pub fn from_pairs<N: AsRef<[u8]>, V: AsRef<[u8]>>(pairs: impl IntoIterator<Item = (N, V)>) -> Self {
        let pairs: Vec<(N, V)> = pairs.into_iter().collect();
        let line = |(name, value): &(N, V)| {
            Some((Cow::Owned(one_line(name.as_ref())?.to_owned()), one_line(value.as_ref())?.into()))
        };
        let lines: Option<Vec<(Cow<'static, str>, Arc<str>)>> = pairs.iter().map(line).collect();
        let Some(lines) = lines else {
            let mut block = format!("{VERSION}\r\n").into_bytes();
            for (name, value) in &pairs {
                write_line(&mut block, name.as_ref(), value.as_ref());
            }
            block.extend_from_slice(b"\r\n");
            return Self::raw(block);
        };
        Self(Block::Lines(lines))
    }

    /// A block of any bytes, stored and delivered as it is. A well-formed one is `NATS/1.0`, lines of `name: value` and an
    /// empty line, each ended by CR LF. An empty one is no block.
    #[must_use]
    pub fn raw(block: impl Into<Arc<[u8]>>) -> Self {
        let block = block.into();
        if block.is_empty() { Self::default() } else { Self(Block::Raw(block)) }
    }

    /// Whether the message has no header block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(&self.0, Block::Lines(lines) if lines.is_empty())
    }

    /// Names and values in their order; `None` where the block is a raw one.
    #[must_use]
    pub fn lines(&self) -> Option<&[(Cow<'static, str>, Arc<str>)]> {
        match &self.0 {
            Block::Lines(lines) => Some(lines),
            Block::Raw(_) => None,
        }
    }

    /// The first value of a header, as the server finds it: letter by letter, also in a block that clients cannot parse. Bytes
    /// that are no UTF-8 become U+FFFD. Source: `server/client.go` of nats-server, `sliceHeader` and `getHeaderKeyIndex`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Cow<'_, str>> {
        match &self.0 {
            Block::Lines(lines) => {
                let (_, value) = lines.iter().find(|(known, _)| known == name)?;
                Some(Cow::Borrowed(value))
            }
            Block::Raw(block) => raw_value(block, name.as_bytes()).map(String::from_utf8_lossy),
        }
    }

    /// The message id; an empty one is none.
    pub(crate) fn message_id(&self) -> Option<Arc<str>> {
        let id = match &self.0 {
            Block::Lines(lines) => lines.iter().find(|(known, _)| known == MESSAGE_ID).map(|(_, id)| Arc::clone(id)),
            Block::Raw(_) => self.get(MESSAGE_ID).map(|id| id.as_ref().into()),
        };
        id.filter(|id| !id.is_empty())
    }

    /// The number in a header, as the server reads it: what is no number is the largest one there is. Source:
    /// `server/stream.go` of nats-server, `getExpectedLastSeq`.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        let value = self.get(name).filter(|value| !value.is_empty())?;
        let is_number = value.bytes().all(|digit| digit.is_ascii_digit());
        Some(value.parse().ok().filter(|_| is_number).unwrap_or(u64::MAX))
    }

    /// The block as bytes of the protocol; empty where there is none.
    #[must_use]
    pub fn to_bytes(&self) -> Cow<'_, [u8]> {
        match &self.0 {
            Block::Raw(block) => Cow::Borrowed(block),
            Block::Lines(lines) if lines.is_empty() => Cow::Borrowed(&[]),
            Block::Lines(lines) => {
                let mut block = Vec::with_capacity(self.wire_len());
                block.extend_from_slice(b"NATS/1.0\r\n");
                for (name, value) in lines {
                    write_line(&mut block, name.as_bytes(), value.as_bytes());
                }
                block.extend_from_slice(b"\r\n");
                Cow::Owned(block)
            }
        }
    }

    /// The length of the block as bytes of the protocol; zero where there is none.
    pub(crate) fn wire_len(&self) -> usize {
        match &self.0 {
            Block::Raw(block) => block.len(),
            Block::Lines(lines) if lines.is_empty() => 0,
            Block::Lines(lines) => {
                let lines = lines.iter().map(|(name, value)| name.len() + value.len() + ": \r\n".len());
                VERSION.len() + "\r\n".len() + lines.sum::<usize>() + "\r\n".len()
            }
        }
    }

    /// These headers without the status in the first line, which a stream removes. Source: `server/client.go` of nats-server,
    /// `removeHeaderStatusIfPresent`.
    pub(crate) fn without_status(self) -> Self {
        let Block::Raw(block) = &self.0 else { return self };
        let Some(status) = block.strip_prefix(VERSION.as_bytes()) else { return self };
        match status.iter().position(|byte| *byte == b'\r') {
            None | Some(0) => self,
            Some(end) if status[end..] == *b"\r\n\r\n" => Self::default(),
            Some(end) => Self::raw([VERSION.as_bytes(), &status[end..]].concat()),
        }
    }

    /// These headers and the size of the payload, which a consumer with `headers_only` sends in its place. Source:
    /// `server/consumer.go` of nats-server, `convertToHeadersOnly`.
    pub(crate) fn with_size(&self, payload: usize) -> Self {
        self.clone().with("Nats-Msg-Size", payload.to_string())
    }
}

fn is_one_line(text: &str) -> bool {
    !text.bytes().any(|byte| byte == b'\r' || byte == b'\n')
}

fn one_line(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| is_one_line(text))
}

/// A number in decimal digits.
fn decimal(number: u64) -> Arc<str> {
    let mut digits = [b'0'; 20];
    let (mut rest, mut first) = (number, digits.len());
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + u8::try_from(rest % 10).expect("a digit");
        rest /= 10;
        first -= 1;
        if rest == 0 {
            break;
        }
    }
    std::str::from_utf8(&digits[first..]).expect("digits are ASCII").into()
}

fn write_line(block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for part in [name, b": ", value, b"\r\n"] {
        block.extend_from_slice(part);
    }
}

/// The value of the first line of the block that begins with the name and a colon.
fn raw_value<'b>(block: &'b [u8], name: &[u8]) -> Option<&'b [u8]> {
    let starts = block.windows(2).enumerate().filter(|(_, pair)| *pair == b"\r\n").map(|(at, _)| at + 2);
    let mut values = starts.filter_map(|start| block[start..].strip_prefix(name)?.strip_prefix(b":"));
    let value = values.next()?;
    let spaces = value.iter().take_while(|byte| **byte == b' ').count();
    let value = &value[spaces..];
    let end = value.windows(2).position(|pair| pair == b"\r\n").unwrap_or(value.len());
    Some(&value[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_written_as_clients_write_it() {
        let headers = Headers::id("x").with("A", "1").with("A", "2");
        let block: &[u8] = b"NATS/1.0\r\nNats-Msg-Id: x\r\nA: 1\r\nA: 2\r\n\r\n";
        assert_eq!(*headers.to_bytes(), *block);
        assert_eq!(headers.wire_len(), block.len());
        assert_eq!(headers.get("A").as_deref(), Some("1"));
        assert_eq!(headers.get("a"), None);
        assert_eq!(Headers::from_pairs([("Nats-Msg-Id", "x"), ("A", "1"), ("A", "2")]), headers);
        assert_eq!((Headers::default().wire_len(), Headers::raw(Vec::new())), (0, Headers::default()));
    }

    #[test]
    fn any_bytes_are_kept_and_searched_as_the_server_does() {
        let block: &[u8] = b"NATS/1.0 503\r\nno colon\r\nX-Nats-Msg-Id: no\r\nNats-Msg-Id:  \xff1\r\n\r\n";
        let headers = Headers::raw(block);
        assert_eq!(*headers.to_bytes(), *block);
        assert_eq!(headers.message_id().as_deref(), Some("\u{fffd}1"));
        assert_eq!((headers.lines(), headers.wire_len()), (None, block.len()));
        let pairs = Headers::from_pairs([(&b"A"[..], &b"\xfe"[..])]);
        assert_eq!(*pairs.to_bytes(), *b"NATS/1.0\r\nA: \xfe\r\n\r\n");
        let forged = Headers::default().with("A", "1\r\nNats-Msg-Id: 2");
        assert_eq!(forged.message_id().as_deref(), Some("2"));
    }

    #[test]
    fn a_stream_removes_the_status_of_a_block_and_nothing_else() {
        for (sent, stored) in [
            ("NATS/1.0 503\r\n\r\n", ""),
            ("NATS/1.0 503 Forged\r\nA: 1\r\n\r\n", "NATS/1.0\r\nA: 1\r\n\r\n"),
            ("NATS/1.0\r\n\r\n", "NATS/1.0\r\n\r\n"),
            ("other 503\r\n\r\n", "other 503\r\n\r\n"),
        ] {
            assert_eq!(*Headers::raw(sent.as_bytes()).without_status().to_bytes(), *stored.as_bytes(), "{sent:?}");
        }
    }

    #[test]
    fn what_is_no_number_expects_what_cannot_be() {
        let expected = |value: &str| Headers::default().with("N", value).number("N");
        assert_eq!([expected("7"), expected("-1"), expected("")], [Some(7), Some(u64::MAX), None]);
    }

    #[test]
    fn numbers_are_written_in_decimal_digits() {
        for number in [0, 7, 10, 4_194_304, u64::MAX] {
            assert_eq!(*decimal(number), number.to_string());
        }
    }

    #[test]
    fn the_size_of_a_payload_follows_the_headers() {
        assert_eq!(*Headers::default().with_size(3).to_bytes(), *b"NATS/1.0\r\nNats-Msg-Size: 3\r\n\r\n");
        let raw = Headers::raw(&b"NATS/1.0\r\nbad\r\n\r\n"[..]).with_size(3);
        assert_eq!(*raw.to_bytes(), *b"NATS/1.0\r\nbad\r\nNats-Msg-Size: 3\r\n\r\n");
    }
}
