//! The formats, and how a file's content tells which it is.

use std::{fmt, str::FromStr};

use serde::{Deserialize, de::IgnoredAny};
use thiserror::Error;

use crate::times;

/// A format of transcripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// Our own lines: one JSON object a line, or an array of them.
    Ndjson,
    /// W3C's WebVTT, with the variants of Zoom and Teams.
    WebVtt,
    /// SubRip.
    Srt,
    /// JSON of `OpenAI`'s Whisper and of what writes like it: faster-whisper, whisper-timestamped, `verbose_json`.
    Whisper,
    /// JSON of whisper.cpp (`-oj`, `-ojf`).
    WhisperCpp,
    /// JSON of `WhisperX`.
    WhisperX,
    /// A pre-recorded result of Deepgram.
    Deepgram,
    /// A transcript of `AssemblyAI`.
    AssemblyAi,
    /// A batch result of Amazon Transcribe.
    AwsTranscribe,
    /// A result of Amazon Transcribe Call Analytics.
    AwsCallAnalytics,
    /// JSON of the Podcast namespace.
    Podcast,
}

impl Format {
    /// Every format, in the order in which help lists them.
    pub const ALL: [Self; 11] = [
        Self::Ndjson,
        Self::WebVtt,
        Self::Srt,
        Self::Whisper,
        Self::WhisperCpp,
        Self::WhisperX,
        Self::Deepgram,
        Self::AssemblyAi,
        Self::AwsTranscribe,
        Self::AwsCallAnalytics,
        Self::Podcast,
    ];

    /// The name on a command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ndjson => "ndjson",
            Self::WebVtt => "webvtt",
            Self::Srt => "srt",
            Self::Whisper => "whisper",
            Self::WhisperCpp => "whisper-cpp",
            Self::WhisperX => "whisperx",
            Self::Deepgram => "deepgram",
            Self::AssemblyAi => "assemblyai",
            Self::AwsTranscribe => "aws-transcribe",
            Self::AwsCallAnalytics => "aws-call-analytics",
            Self::Podcast => "podcast",
        }
    }

    /// Whether a file is made of cues with times.
    #[must_use]
    pub const fn is_cues(self) -> bool {
        matches!(self, Self::WebVtt | Self::Srt)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        Self::ALL.into_iter().find(|format| format.name() == name).ok_or(UnknownFormat)
    }
}

/// A name that is none of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("must be one of {}", Format::ALL.map(Format::name).join(", "))]
pub struct UnknownFormat;

/// What the beginning of a file looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// Lines that are read one by one.
    Lines(Format),
    /// One JSON document; its keys tell the format.
    Document,
    /// Nothing but white space.
    Blank,
    /// None of the formats.
    Unknown,
}

/// Recognises a file by its beginning, of which the last line may be cut.
pub(crate) fn look(beginning: &str) -> Look {
    let text = beginning.trim_start();
    if text.is_empty() {
        return Look::Blank;
    }
    if text.starts_with("WEBVTT") {
        return Look::Lines(Format::WebVtt);
    }
    if text.starts_with('[') {
        // A label in brackets can begin a caption; a JSON array goes on with a value.
        return if beginning.lines().any(is_timing) { Look::Lines(Format::Srt) } else { Look::Document };
    }
    if text.starts_with('{') {
        let first = text.lines().next().unwrap_or(text);
        return if is_own_line(first) { Look::Lines(Format::Ndjson) } else { Look::Document };
    }
    if beginning.lines().any(is_timing) { Look::Lines(Format::Srt) } else { Look::Unknown }
}

fn is_timing(line: &str) -> bool {
    times::timing(line).is_some()
}

/// Whether a line is, or was meant to be, one of our own.
fn is_own_line(line: &str) -> bool {
    match serde_json::from_str::<Ids>(line) {
        Ok(Ids { session_id, conversation_id }) => session_id.is_some() || conversation_id.is_some(),
        // A line of its own that is broken. The first line of a document that spans many lines holds little.
        Err(_) => line.contains("\"sessionId\"") || line.contains("\"conversationId\""),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Ids {
    session_id: Option<IgnoredAny>,
    conversation_id: Option<IgnoredAny>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_has_one_name() {
        for format in Format::ALL {
            assert_eq!(format.name().parse(), Ok(format));
        }
        assert!("vtt2".parse::<Format>().unwrap_err().to_string().contains("webvtt, srt"));
    }

    #[test]
    fn the_beginning_tells_the_format() {
        for (text, expected) in [
            ("", Look::Blank),
            ("\n \n", Look::Blank),
            ("WEBVTT - from a call", Look::Lines(Format::WebVtt)),
            ("1\n00:00:01,000 --> 00:00:02,000\nHi", Look::Lines(Format::Srt)),
            ("00:01.000 --> 00:02.000\nHi", Look::Lines(Format::Srt)),
            ("[music]\n1\n00:00:01,000 --> 00:00:02,000\nHi", Look::Lines(Format::Srt)),
            ("{\"sessionId\":\"s\",\"text\":\"x\"}\n{", Look::Lines(Format::Ndjson)),
            ("{\"conversationId\":\"s\",\"text\":\"x", Look::Lines(Format::Ndjson)),
            ("{\"text\":\"sessionId\"}", Look::Document),
            ("{\n \"sessionId\": \"s\"", Look::Document),
            ("[{}]", Look::Document),
            ("Dear all,", Look::Unknown),
        ] {
            assert_eq!(look(text), expected, "{text:?}");
        }
    }
}
