//! From bytes to text, whatever the encoding.

use std::mem;

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{DecoderResult, Encoding, UTF_8, UTF_16BE, UTF_16LE};

use crate::Broken;

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
    ///
    /// # Errors
    ///
    /// Bytes that are no text. They are passed over; what follows them is decoded by the next call.
    pub(crate) fn push(&mut self, bytes: &[u8], is_last: bool, text: &mut String) -> Result<(), Broken> {
        self.pending.extend_from_slice(bytes);
        if matches!(self.state, State::Start) {
            if self.pending.len() < MARK_BYTES && !is_last {
                return Ok(());
            }
            self.start();
        }
        let before = text.len();
        let mut pending = mem::take(&mut self.pending);
        let utf8 = self.utf8(&pending, is_last, text);
        let decoded = utf8.and_then(|read| self.other(&pending, read, is_last, text));
        let (read, done) = match decoded {
            Ok(read) => (read, Ok(())),
            Err(fault) => (fault.read, Err(fault.what)),
        };
        self.lines.count(text.get(before..).unwrap_or_default());
        self.offset += read as u64;
        pending.drain(..read);
        self.pending = pending;
        done.map_err(|what| Broken::new(self.lines.ended + 1, what))
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

    /// How many bytes were decoded: all but a character that is not whole yet, and those whose encoding is not known yet.
    fn utf8(&mut self, bytes: &[u8], is_last: bool, text: &mut String) -> Result<usize, Fault> {
        let State::Utf8 { is_sure } = &mut self.state else { return Ok(0) };
        let (valid, error) = match std::str::from_utf8(bytes) {
            Ok(valid) => (valid, None),
            Err(error) => {
                let valid = bytes.get(..error.valid_up_to()).unwrap_or_default();
                (std::str::from_utf8(valid).unwrap_or_default(), Some(error))
            }
        };
        text.push_str(valid);
        *is_sure |= !valid.is_ascii();
        let read = valid.len();
        let rest = bytes.get(read..).unwrap_or_default();
        let Some(error) = error else { return Ok(read) };
        let Some(length) = error.error_len() else {
            if !is_last {
                return Ok(read);
            }
            let what = "expected the rest of a character, found the end of the file".to_owned();
            return Err(Fault { read: bytes.len(), what });
        };
        if !*is_sure {
            if rest.len() < GUESS_BYTES && !is_last {
                return Ok(read);
            }
            if let Some(encoding) = guess(rest.get(..GUESS_BYTES).unwrap_or(rest)) {
                self.state = State::Other(Box::new(encoding.new_decoder_without_bom_handling()), encoding);
                return Ok(read);
            }
            *is_sure = true;
        }
        let byte = rest.first().copied().unwrap_or_default();
        let what = format!("expected UTF-8, found byte {byte:#04x} at offset {}", self.offset + read as u64);
        Err(Fault { read: read + length, what })
    }

    /// How many bytes were decoded, those before `read` included.
    fn other(&mut self, bytes: &[u8], mut read: usize, is_last: bool, text: &mut String) -> Result<usize, Fault> {
        let State::Other(decoder, encoding) = &mut self.state else { return Ok(read) };
        loop {
            let rest = bytes.get(read..).unwrap_or_default();
            text.reserve(rest.len() * 3 + 16);
            let (result, taken) = decoder.decode_to_string_without_replacement(rest, text, is_last);
            read += taken;
            match result {
                DecoderResult::InputEmpty => return Ok(read),
                DecoderResult::OutputFull => {}
                DecoderResult::Malformed(length, after) => {
                    let at = (self.offset + read as u64).saturating_sub(u64::from(length) + u64::from(after));
                    let what = format!("expected {}, found broken bytes at offset {at}", encoding.name());
                    return Err(Fault { read, what });
                }
            }
        }
    }
}

/// Bytes that are no text, and how many bytes were read with them.
struct Fault {
    read: usize,
    what: String,
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
#[derive(Debug, Default)]
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
}

/// Whether a text is none: it holds a character that no text has.
pub(crate) fn binary(beginning: &str) -> Option<Broken> {
    let is_odd = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t' | '\u{b}' | '\u{c}' | '\u{1b}' | '\u{85}');
    let odd = beginning.chars().filter(|c| is_odd(*c)).count();
    // One stray control character is an oddity of a text; many are a recording, an archive, an image.
    (odd > 2 && odd * 50 > beginning.chars().count()).then(|| {
        let line = beginning.chars().take_while(|c| !is_odd(*c)).filter(|c| *c == '\n').count() as u64 + 1;
        Broken::new(line, "expected a text, found binary data").with(crate::Remedy::ExportAgain)
    })
}
