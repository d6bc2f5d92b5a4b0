//! What is wrong with a file.

use std::fmt;

use thiserror::Error;

/// Most characters of a file that a message repeats. It repeats times and what engines say, and no word of a call.
const QUOTED_CHARS: usize = 40;

/// A place that cannot be read: where it is, what is wrong with it, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub struct Broken {
    /// Counted from 1.
    pub line: u64,
    /// What was expected, and what is there. Characters that would steer a terminal are escaped.
    pub what: String,
    /// What to do.
    pub remedy: Remedy,
}

/// What a user can do about a place that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// Correct it, or have it left out.
    CorrectOrLeaveOut,
    /// Say what the file is, because it was not recognised.
    NameTheFormat,
    /// Get a file that holds a whole transcript.
    ExportAgain,
    /// Make smaller files of it.
    Split,
}

impl Broken {
    pub(crate) fn new(line: u64, what: impl Into<String>) -> Self {
        Self { line, what: what.into(), remedy: Remedy::CorrectOrLeaveOut }
    }

    pub(crate) fn expected(line: u64, expected: &str, found: &str) -> Self {
        Self::new(line, format!("expected {expected}, found {}", quoted(found)))
    }

    pub(crate) fn with(self, remedy: Remedy) -> Self {
        Self { remedy, ..self }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, what, remedy } = self;
        write!(f, "line {line}: {what}; {remedy}")
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CorrectOrLeaveOut => "correct it, or leave it out with --keep-going",
            Self::NameTheFormat => "name the format with --format",
            Self::ExportAgain => "export the transcript again",
            Self::Split => "split the file",
        })
    }
}

/// The beginning of a text in quotes, with control and formatting characters escaped.
pub(crate) fn quoted(text: &str) -> String {
    let mut short: String = text.chars().take(QUOTED_CHARS).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    format!("{short:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_where_what_and_what_to_do() {
        let broken = Broken::expected(7, "two times", "\u{1b}[31m00:\u{202e}");
        let told = "line 7: expected two times, found \"\\u{1b}[31m00:\\u{202e}\"; correct it, or leave it out with --keep-going";
        assert_eq!(broken.to_string(), told);
    }

    #[test]
    fn a_message_repeats_little_of_a_file() {
        assert_eq!(quoted(&"é".repeat(1000)).chars().count(), QUOTED_CHARS + 3);
    }
}
