//! How a strict client reads a header block: async-nats 0.51, `connection.rs` (`try_read_op`), `header.rs`
//! (`validate_header_name`) and `status.rs` (`from_bytes`).

use std::{error::Error, fmt};

use super::StatusLine;
use crate::headers::Headers;

/// A header block that a strict client cannot parse, so that it drops the connection, with everything sent behind the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unparsable {
    /// The block is no UTF-8.
    NotUtf8,
    /// The first line is not `NATS/1.0`, with or without a status of three digits.
    FirstLine,
    /// A line has no colon.
    NoColon,
    /// A name has a character that is not printable ASCII.
    Name,
}

impl fmt::Display for Unparsable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotUtf8 => "the header block is not UTF-8",
            Self::FirstLine => "the header block does not start with NATS/1.0 and a status",
            Self::NoColon => "a header has no colon",
            Self::Name => "the name of a header has a character that is not printable ASCII",
        })
    }
}

impl Error for Unparsable {}

pub(super) fn parse(block: &[u8]) -> Result<(Option<StatusLine>, Headers), Unparsable> {
    let text = std::str::from_utf8(block).map_err(|_| Unparsable::NotUtf8)?;
    let mut lines = text.lines().peekable();
    let first = lines.next().and_then(|line| line.strip_prefix("NATS/1.0")).ok_or(Unparsable::FirstLine)?;
    let status = status(first.trim())?;
    let mut headers: Vec<(&str, String)> = Vec::new();
    while let Some(line) = lines.next() {
        if line.is_empty() {
            continue;
        }
        let (name, value) = line.split_once(':').ok_or(Unparsable::NoColon)?;
        if !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Unparsable::Name);
        }
        let mut value = value.trim_start().to_owned();
        while let Some(more) = lines.next_if(|line| line.starts_with(char::is_whitespace)) {
            value.push_str(more);
        }
        value.truncate(value.trim_end().len());
        headers.push((name, value));
    }
    Ok((status, Headers::from_pairs(headers)))
}

fn status(line: &str) -> Result<Option<StatusLine>, Unparsable> {
    if line.is_empty() {
        return Ok(None);
    }
    let (code, text) = line.split_once(' ').unwrap_or((line, ""));
    let digits = code.trim();
    let is_code = digits.len() == 3 && digits.bytes().all(|digit| digit.is_ascii_digit()) && !digits.starts_with('0');
    let code = digits.parse().ok().filter(|_| is_code).ok_or(Unparsable::FirstLine)?;
    let text = text.trim().to_owned().into();
    Ok(Some(StatusLine { code, text }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_read_as_async_nats_reads_them() {
        let ok = |code: Option<u16>, text: &str, pairs: &[(&str, &str)]| {
            let status = code.map(|code| StatusLine { code, text: text.to_owned().into() });
            Ok((status, Headers::from_pairs(pairs.iter().copied())))
        };
        let cases: [(&[u8], _); 11] = [
            (b"NATS/1.0\r\n\r\n", ok(None, "", &[])),
            (b"NATS/1.0\r\nX:  1 \r\nY: 2\r\n\r\n", ok(None, "", &[("X", "1"), ("Y", "2")])),
            (b"NATS/1.0\r\nX: a\r\n folded\r\n\r\n", ok(None, "", &[("X", "a folded")])),
            (b"NATS/1.0 503\n\n", ok(Some(503), "", &[])),
            (b"NATS/1.0 408 Request Timeout\r\n\r\n", ok(Some(408), "Request Timeout", &[])),
            (b"NATS/1.0\r\nX:\xff\r\n\r\n", Err(Unparsable::NotUtf8)),
            (b"NATS/1.0\r\nno colon\r\n\r\n", Err(Unparsable::NoColon)),
            (b"NATS/1.0\r\nX Y: 1\r\n\r\n", Err(Unparsable::Name)),
            (b"NATS/1.0 5x3\r\n\r\n", Err(Unparsable::FirstLine)),
            (b"NATS/2.0\r\n\r\n", Err(Unparsable::FirstLine)),
            (b"\r\n\r\n", Err(Unparsable::FirstLine)),
        ];
        for (block, expected) in cases {
            assert_eq!(parse(block), expected, "{}", block.escape_ascii());
        }
    }
}
