//! How `play` and `convert` read their files.

use std::path::PathBuf;

use clap::{
    Args, ValueEnum,
    builder::{NonEmptyStringValueParser, TypedValueParser},
};
use transcript_formats::{Cues, Format, Labels};

const READING: &str = "Reading";

/// Which files are read, and how.
#[derive(Debug, Clone, Args)]
pub struct SourceArgs {
    /// Transcripts: WebVTT, SRT, JSON of Whisper, whisper.cpp, WhisperX, Deepgram, AssemblyAI, Amazon Transcribe or the
    /// Podcast namespace, or our own lines; - is stdin
    ///
    /// Our own lines are {"conversationId","sessionId","index","speaker"?,"text","startMs"?,"endMs"?}; a line
    /// {"conversationId","sessionId","publishedSegments"} says what the end of that call announces.
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// What the files are; without it, their content tells
    #[arg(long, value_name = "FORMAT", help_heading = READING, value_parser = format_parser())]
    pub format: Option<Format>,
    /// Leave out what cannot be read, and say how much it was; otherwise a broken file is not used at all
    #[arg(long, help_heading = READING)]
    pub keep_going: bool,
    /// Whom NAME: at the beginning of a caption's line names
    #[arg(long, value_enum, value_name = "HOW", default_value_t = LabelsArg::Hold, help_heading = READING)]
    pub labels: LabelsArg,
    /// conversationId of a file that names no call; without it, the file's name without its ending
    #[arg(
        id = "source-conversation", long = "conversation", value_name = "ID", help_heading = READING,
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub conversation: Option<String>,
    /// sessionId of a file that names no call; without it, the file's name without its ending
    #[arg(
        id = "source-session", long = "session", value_name = "ID", help_heading = READING,
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub session: Option<String>,
}

impl SourceArgs {
    pub(super) fn check(&self) -> Result<(), String> {
        if self.session.is_some() && self.files.len() > 1 {
            return Err("--session names one call: give one file with it".to_owned());
        }
        let is_stdin = |file: &&PathBuf| file.as_os_str() == "-";
        if self.files.iter().filter(is_stdin).count() > 1 {
            return Err("stdin (-) can be read once only".to_owned());
        }
        Ok(())
    }
}

fn format_parser() -> impl TypedValueParser<Value = Format> {
    let names = clap::builder::PossibleValuesParser::new(Format::ALL.map(Format::name));
    names.try_map(|name| name.parse::<Format>())
}

/// Whom `NAME:` at the beginning of a caption's line names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LabelsArg {
    /// The speaker of this line and of those after it, until the next label
    Hold,
    /// The speaker of the rest of its caption
    OneCue,
    /// Nobody: it stays in the text
    Ignore,
}

impl From<LabelsArg> for Labels {
    fn from(labels: LabelsArg) -> Self {
        match labels {
            LabelsArg::Hold => Self::Hold,
            LabelsArg::OneCue => Self::OneCue,
            LabelsArg::Ignore => Self::Ignore,
        }
    }
}

/// Whether captions stay as they are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CuesArg {
    /// A caption is a segment
    Keep,
    /// The captions of one speaker are joined, and a sentence is a segment
    Join,
}

impl From<CuesArg> for Cues {
    fn from(cues: CuesArg) -> Self {
        match cues {
            CuesArg::Keep => Self::Keep,
            CuesArg::Join => Self::Join,
        }
    }
}
