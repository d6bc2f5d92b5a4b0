//! From bytes to text, whatever the encoding.

use std::mem;

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{DecoderResult, Encoding, UTF_8, UTF_16BE, UTF_16LE};

use crate::{Broken, broken::quoted, reader::Faults, sink::Sink};

/// How much of a file that is not UTF-8 is looked at before its encoding is guessed.
const GUESS_BYTES: usize = 64 * 1024;
/// The first bytes tell UTF-16, with and without a byte order mark.
const MARK_BYTES: usize = 4;

/// Turns a file's bytes into text.
///
/// A byte order mark decides, then the zero bytes of UTF-16. Otherwise a file is UTF-8 until a byte says that it is not. Where
/// everything before that byte is ASCII, the bytes after it tell the encoding; where the file has characters of UTF-8, the byte
/// is a broken one.
pub(crate) struct Decoder {
    state: State,
    /// What was pushed and not decoded yet.
    pending: Vec<u8>,
    /// Bytes before the first of `pending`.
    offset: u64,
    lines: Lines,
}

enum State {
    Start,
    Utf8 { is_sure: bool },
    Other(Box<encoding_rs::Decoder>, &'static Encoding),
}

impl Decoder {
    pub(crate) fn new() -> Self {
        Self { state: State::Start, pending: Vec::new(), offset: 0, lines: Lines::default() }
    }

    /// Decodes the next bytes and appends their text.
    pub(crate) fn push(
        &mut self,
        bytes: &[u8],
        is_last: bool,
        faults: Faults,
        text: &mut String,
        sink: &mut Sink,
    ) -> Result<(), Broken> {
        self.pending.extend_from_slice(bytes);
        if matches!(self.state, State::Start) {
            if self.pending.len() < MARK_BYTES && !is_last {
                return Ok(());
            }
            self.start();
        }
        let before = text.len();
        let mut pending = mem::take(&mut self.pending);
        let read = match &mut self.state {
            State::Start => Ok(0),
            State::Utf8 { .. } => self.utf8(&pending, is_last, faults, text, sink, before),
            State::Other(..) => self.other(&pending, is_last, faults, text, sink, before).map(|()| pending.len()),
        }?;
        self.lines.count(text.get(before..).unwrap_or_default());
        self.offset += read as u64;
        pending.drain(..read);
        self.pending = pending;
        // What was found to be no UTF-8 on the way is decoded by what it was found to be.
        if matches!(self.state, State::Other(..)) && !self.pending.is_empty() {
            return self.push(&[], is_last, faults, text, sink);
        }
        Ok(())
    }

    fn start(&mut self) {
        let (encoding, mark) = match Encoding::for_bom(&self.pending) {
            Some((encoding, mark)) => (encoding, mark),
            None => match self.pending.as_slice() {
                [0, a, 0, b, ..] if *a != 0 && *b != 0 => (UTF_16BE, 0),
                [a, 0, b, 0, ..] if *a != 0 && *b != 0 => (UTF_16LE, 0),
                _ => (UTF_8, 0),
            },
        };
        self.pending.drain(..mark);
        self.offset += mark as u64;
        self.state = if encoding == UTF_8 {
            State::Utf8 { is_sure: mark > 0 }
        } else {
            State::Other(Box::new(encoding.new_decoder_without_bom_handling()), encoding)
        };
    }

    /// How many bytes were decoded: all but a character that is not whole yet, or those whose encoding is not known yet.
    fn utf8(
        &mut self,
        mut bytes: &[u8],
        is_last: bool,
        faults: Faults,
        text: &mut String,
        sink: &mut Sink,
        before: usize,
    ) -> Result<usize, Broken> {
        let State::Utf8 { is_sure } = &mut self.state else { return Ok(0) };
        let mut read = 0;
        loop {
            let error = match std::str::from_utf8(bytes) {
                Ok(valid) => {
                    *is_sure |= !valid.is_ascii();
                    text.push_str(valid);
                    return Ok(read + bytes.len());
                }
                Err(error) => error,
            };
            let (valid, rest) = bytes.split_at(error.valid_up_to());
            let valid = std::str::from_utf8(valid).unwrap_or_default();
            *is_sure |= !valid.is_ascii();
            text.push_str(valid);
            read += valid.len();
            let is_cut = error.error_len().is_none();
            if is_cut && !is_last {
                return Ok(read);
            }
            if !*is_sure && !is_cut {
                if rest.len() < GUESS_BYTES && !is_last {
                    return Ok(read);
                }
                if let Some(encoding) = guess(rest.get(..GUESS_BYTES).unwrap_or(rest)) {
                    self.state = State::Other(Box::new(encoding.new_decoder_without_bom_handling()), encoding);
                    return Ok(read);
                }
                *is_sure = true;
            }
            let length = error.error_len().unwrap_or(rest.len());
            let (invalid, after) = rest.split_at(length);
            let line = self.lines.clone().counting(text.get(before..).unwrap_or_default());
            let what = if is_cut {
                "expected the rest of a character, found the end of the file".to_owned()
            } else {
                format!("expected UTF-8, found byte {:#04x} at offset {}", invalid[0], self.offset + read as u64)
            };
            broken(Broken::new(line, what), faults, text, sink)?;
            read += length;
            bytes = after;
        }
    }

    fn other(
        &mut self,
        bytes: &[u8],
        is_last: bool,
        faults: Faults,
        text: &mut String,
        sink: &mut Sink,
        before: usize,
    ) -> Result<(), Broken> {
        let State::Other(decoder, encoding) = &mut self.state else { return Ok(()) };
        let mut read = 0;
        loop {
            let rest = bytes.get(read..).unwrap_or_default();
            let room = decoder.max_utf8_buffer_length_without_replacement(rest.len()).unwrap_or(rest.len() * 3 + 16);
            text.reserve(room);
            let (result, taken) = decoder.decode_to_string_without_replacement(rest, text, is_last);
            read += taken;
            match result {
                DecoderResult::InputEmpty => return Ok(()),
                DecoderResult::OutputFull => {}
                DecoderResult::Malformed(length, after) => {
                    let line = self.lines.clone().counting(text.get(before..).unwrap_or_default());
                    let at = (self.offset + read as u64).saturating_sub(u64::from(length) + u64::from(after));
                    let what = format!("expected {}, found broken bytes at offset {at}", encoding.name());
                    broken(Broken::new(line, what), faults, text, sink)?;
                }
            }
        }
    }
}

/// Bytes that are no text: refused, or replaced and counted.
fn broken(broken: Broken, faults: Faults, text: &mut String, sink: &mut Sink) -> Result<(), Broken> {
    match faults {
        Faults::Refuse => Err(broken),
        Faults::LeaveOut => {
            sink.left_out(broken);
            text.push(char::REPLACEMENT_CHARACTER);
            Ok(())
        }
    }
}

/// The encoding of bytes that are not UTF-8 from their first on; `None` where they rather are UTF-8 with something broken.
fn guess(bytes: &[u8]) -> Option<&'static Encoding> {
    let mut valid = 0;
    let mut invalid = 0;
    for chunk in bytes.utf8_chunks() {
        valid += chunk.valid().chars().filter(|c| !c.is_ascii()).count();
        invalid += usize::from(!chunk.invalid().is_empty());
    }
    // These four never occur in UTF-8 and hardly in a text of one byte a character. Alone, they are damage.
    let is_damage = invalid == 1 && matches!(bytes, [0xC0 | 0xC1 | 0xFE | 0xFF, ..]);
    if is_damage || valid >= invalid {
        return None;
    }
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Deny);
    detector.feed(bytes, true);
    Some(detector.guess(None, Utf8Detection::Deny))
}

/// Counts lines that end in LF, CRLF or CR.
#[derive(Debug, Clone, Default)]
struct Lines {
    ended: u64,
    after_cr: bool,
}

impl Lines {
    fn count(&mut self, text: &str) {
        let bytes = text.as_bytes();
        for at in memchr::memchr2_iter(b'\n', b'\r', bytes) {
            let follows_cr = if at == 0 { self.after_cr } else { bytes.get(at - 1) == Some(&b'\r') };
            self.ended += u64::from(!(bytes.get(at) == Some(&b'\n') && follows_cr));
        }
        if let Some(last) = bytes.last() {
            self.after_cr = *last == b'\r';
        }
    }

    /// The line, counted from 1, on which the text after `text` stands.
    fn counting(mut self, text: &str) -> u64 {
        self.count(text);
        self.ended + 1
    }
}

/// Whether a text is none: it holds a character that no text has.
pub(crate) fn binary(beginning: &str) -> Option<Broken> {
    let is_odd = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t' | '\u{b}' | '\u{c}' | '\u{1b}' | '\u{85}');
    let odd = beginning.chars().filter(|c| is_odd(*c)).count();
    // One stray control character is an oddity of a text; many are a recording, an archive, an image.
    (odd > 2 && odd * 50 > beginning.chars().count()).then(|| {
        let line = beginning.chars().take_while(|c| !is_odd(*c)).filter(|c| *c == '\n').count() as u64 + 1;
        Broken::new(line, format!("expected a text, found binary data that begins with {}", quoted(beginning)))
            .with(crate::Remedy::ExportAgain)
    })
}
