//! What may be written to a terminal, and how.

use std::{
    env,
    ffi::OsStr,
    io::{self, IsTerminal, Write},
};

use textwrap::core::display_width;

/// Stands for what a terminal would obey.
const REPLACED: char = '\u{fffd}';

/// Whether a terminal may obey the character instead of showing it: control characters, and the marks that turn the direction
/// of what follows.
#[must_use]
pub fn obeyed(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || c.is_control()
}

/// The text in one line, without what a terminal would obey. White space of any kind becomes a space.
#[must_use]
pub fn harmless(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            c if c.is_whitespace() => ' ',
            c if obeyed(c) => REPLACED,
            c => c,
        })
        .collect()
}

/// The same for text of several lines, whose line breaks and tabs stay.
#[must_use]
pub fn harmless_lines(text: &str) -> String {
    text.chars().map(|c| if !matches!(c, '\n' | '\t') && obeyed(c) { REPLACED } else { c }).collect()
}

/// JSON with everything escaped that a terminal would obey. It says the same: such characters stand only inside texts, but for
/// the line breaks between values, which stay.
#[must_use]
pub fn harmless_json(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        if c != '\n' && obeyed(c) {
            let mut units = [0; 2];
            c.encode_utf16(&mut units).iter().for_each(|unit| shown.push_str(&format!("\\u{unit:04x}")));
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Passes lines of JSON on, each as [`harmless_json`] has it.
#[derive(Debug)]
pub struct HarmlessJson<W: Write> {
    out: W,
    line: Vec<u8>,
}

impl<W: Write> HarmlessJson<W> {
    /// Nothing yet.
    #[must_use]
    pub fn new(out: W) -> Self {
        Self { out, line: vec![] }
    }
}

impl<W: Write> Write for HarmlessJson<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                self.out.write_all(harmless_json(&String::from_utf8_lossy(&line)).as_bytes())?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Whether what goes to stderr is coloured: on a terminal that knows colours, and of which nobody says that it shall have none
/// (`NO_COLOR`, <https://no-color.org>).
#[must_use]
pub fn is_coloured() -> bool {
    wants_colours(env::var_os("NO_COLOR").as_deref(), env::var_os("TERM").as_deref()) && io::stderr().is_terminal()
}

/// Whether the terminal says that it can do nothing but print (`TERM=dumb`), and so cannot draw a line anew.
#[must_use]
pub fn is_dumb() -> bool {
    env::var_os("TERM").is_some_and(|term| term == "dumb")
}

fn wants_colours(no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    no_color.is_none_or(OsStr::is_empty) && term.is_none_or(|term| term != "dumb")
}

/// The columns of a line: those of the terminal, and as many as it takes where the output goes elsewhere.
#[must_use]
pub fn width() -> usize {
    if io::stdout().is_terminal() { textwrap::termwidth() } else { usize::MAX }
}

/// The text, cut where it takes more than `columns`.
#[must_use]
pub fn shortened(text: &str, columns: usize) -> String {
    if display_width(text) <= columns {
        return text.to_owned();
    }
    let mut short = String::new();
    for c in text.chars() {
        if display_width(&short) + display_width(c.encode_utf8(&mut [0; 4])) >= columns {
            break;
        }
        short.push(c);
    }
    short + "…"
}

/// Columns, not characters: a Japanese character takes two, a combining accent none.
#[must_use]
pub fn padded(text: &str, columns: usize) -> String {
    format!("{text}{}", " ".repeat(columns.saturating_sub(display_width(text))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_text_moves_the_terminal() {
        let hostile = "a\u{1b}]0;x\u{7}\r\nb\u{9b}\u{202e}c\u{2067}\td";
        assert_eq!(harmless(hostile), "a\u{fffd}]0;x\u{fffd}  b\u{fffd}\u{fffd}c\u{fffd} d");
        assert_eq!(harmless_lines("a\u{1b}\u{9b}\n\u{202e}b\u{7}"), "a\u{fffd}\u{fffd}\n\u{fffd}b\u{fffd}");
        assert_eq!(harmless("שלום é 👩‍👩‍👧 日本語"), "שלום é 👩‍👩‍👧 日本語");
    }

    #[test]
    fn harmless_json_says_the_same() {
        let text = "a\u{9b}\u{202e}\u{7f}b";
        let json = harmless_json(&serde_json::to_string(text).unwrap());
        assert_eq!(json, "\"a\\u009b\\u202e\\u007fb\"");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }

    #[test]
    fn lines_of_json_are_passed_on_harmless() {
        let mut out = HarmlessJson::new(vec![]);
        for piece in ["{\"a\":\"\u{202e}", "b\"}\n{\"c", "\":1}\n"] {
            out.write_all(piece.as_bytes()).unwrap();
        }
        assert_eq!(String::from_utf8(out.out).unwrap(), "{\"a\":\"\\u202eb\"}\n{\"c\":1}\n");
    }

    #[test]
    fn colours_are_for_terminals_that_have_them_and_users_who_want_them() {
        let os = OsStr::new;
        assert!(wants_colours(None, None) && wants_colours(Some(os("")), Some(os("xterm"))));
        assert!(!wants_colours(Some(os("1")), Some(os("xterm"))) && !wants_colours(None, Some(os("dumb"))));
    }
}
