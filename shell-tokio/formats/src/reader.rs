//! The reader: bytes in, records out.

use crate::{
    Broken, Format, Record, Remedy,
    cues::CueReader,
    decode::{self, Decoder},
    format::{Look, look},
    json, ndjson,
    sink::Sink,
};

/// Most bytes of a JSON document of an engine, which is held whole: 64 MiB, a day and more with a time for each word.
pub const MAX_DOCUMENT: usize = 64 * 1024 * 1024;
/// Most bytes of a line of the other formats: 1 MiB.
pub const MAX_LINE: usize = 1024 * 1024;
/// How much of a file is looked at before its format is told.
const LOOK_BYTES: usize = 64 * 1024;
/// What is decoded at once.
const PIECE: usize = 64 * 1024;

/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// The format; without it, the content tells.
    pub format: Option<Format>,
    /// What happens where something cannot be read.
    pub faults: Faults,
    /// Whom `NAME:` at the beginning of a line of a cue names.
    pub labels: Labels,
    /// Whether cues stay as they are cut.
    pub cues: Cues,
}

/// What happens where something cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Faults {
    /// Reading ends with an error.
    #[default]
    Refuse,
    /// The place is left out, and [`Record::LeftOut`] says so.
    LeaveOut,
}

/// Whom `NAME:` at the beginning of a line of a cue names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Labels {
    /// The speaker of this line and of all lines until the next label.
    #[default]
    Hold,
    /// The speaker of the rest of its cue.
    OneCue,
    /// Nobody; it stays in the text.
    Ignore,
}

/// Whether cues stay as they are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cues {
    /// Each cue is a segment.
    #[default]
    Keep,
    /// The cues of one speaker are joined, and each sentence is a segment.
    Join,
}

/// Reads one file.
pub struct Reader {
    options: Options,
    decoder: Decoder,
    /// What was decoded and not read yet.
    text: String,
    /// The number of the first line of `text`.
    line: u64,
    mode: Mode,
    sink: Sink,
}

enum Mode {
    /// The format is not known yet.
    Look,
    Cues(CueReader),
    Ndjson,
    Document,
}

impl Reader {
    /// A reader of one file.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let mode = match options.format {
            // Our own segments come as lines and as a list; the content tells.
            None | Some(Format::Ndjson) => Mode::Look,
            Some(format) => Mode::of(format, options),
        };
        let sink = Sink::new(options.faults, options.cues);
        Self { options, decoder: Decoder::new(), text: String::new(), line: 1, mode, sink }
    }

    /// Takes the next bytes of the file.
    ///
    /// # Errors
    ///
    /// The first place that cannot be read. The reader is then of no further use.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        bytes.chunks(PIECE).try_for_each(|piece| self.piece(piece, false))
    }

    /// The file has ended.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push). In addition a file that is empty, and one whose format is not recognised.
    pub fn finish(&mut self) -> Result<(), Broken> {
        self.piece(&[], true)?;
        match &mut self.mode {
            Mode::Look | Mode::Ndjson => {}
            Mode::Cues(cues) => cues.finish(&mut self.sink)?,
            Mode::Document => json::read(&self.text, self.options.format, self.options.faults, &mut self.sink)?,
        }
        self.sink.finish();
        Ok(())
    }

    /// The next record that is ready. More can come until [`finish`](Self::finish).
    pub fn next_record(&mut self) -> Option<Record> {
        self.sink.next_record()
    }

    /// Decodes a piece, and reads what was decoded: what stands before a broken byte is read before it.
    fn piece(&mut self, bytes: &[u8], is_last: bool) -> Result<(), Broken> {
        let mut decoded = self.decoder.push(bytes, is_last, &mut self.text);
        while let Err(broken) = decoded {
            self.read_text(false)?;
            self.sink.broken(broken)?;
            self.text.push(char::REPLACEMENT_CHARACTER);
            decoded = self.decoder.push(&[], is_last, &mut self.text);
        }
        self.read_text(is_last)
    }

    fn read_text(&mut self, is_last: bool) -> Result<(), Broken> {
        if matches!(self.mode, Mode::Look) && (is_last || self.knows_enough()) {
            self.recognise(is_last)?;
        }
        match self.mode {
            Mode::Look => Ok(()),
            Mode::Cues(_) | Mode::Ndjson => self.lines(is_last),
            Mode::Document => self.check_size(),
        }
    }

    /// Whether the beginning of the file is long enough to tell its format. A line of our own is seen whole.
    fn knows_enough(&self) -> bool {
        let is_one_line = self.text.starts_with('{') && !self.text.contains('\n');
        self.text.len() >= if is_one_line { MAX_LINE } else { LOOK_BYTES }
    }

    fn recognise(&mut self, is_last: bool) -> Result<(), Broken> {
        if let Some(binary) = decode::binary(&self.text) {
            return Err(binary);
        }
        self.mode = match (look(&self.text), self.options.format) {
            (Look::Blank, _) if is_last => {
                return Err(Broken::new(1, "expected a transcript, found an empty file").with(Remedy::ExportAgain));
            }
            (Look::Document, _) => Mode::Document,
            (Look::Lines(_) | Look::Blank | Look::Unknown, Some(format)) | (Look::Lines(format), None) => {
                Mode::of(format, self.options)
            }
            (Look::Blank | Look::Unknown, None) => {
                let what = "expected WebVTT, SRT, or JSON of a known engine, found none of them";
                return Err(Broken::new(1, what).with(Remedy::NameTheFormat));
            }
        };
        Ok(())
    }

    fn lines(&mut self, is_last: bool) -> Result<(), Broken> {
        let mut read = 0;
        while let Some((line, next)) = next_line(&self.text, read, is_last) {
            if line.len() > MAX_LINE {
                return Err(too_long(self.line));
            }
            match &mut self.mode {
                Mode::Cues(cues) => cues.line(line, self.line, !is_last || next.is_ended, &mut self.sink)?,
                Mode::Ndjson => ndjson::line(line, self.line, &mut self.sink)?,
                Mode::Look | Mode::Document => {}
            }
            read = next.at;
            self.line += 1;
        }
        self.text.drain(..read);
        if self.text.len() > MAX_LINE { Err(too_long(self.line)) } else { Ok(()) }
    }

    fn check_size(&self) -> Result<(), Broken> {
        if self.text.len() <= MAX_DOCUMENT {
            return Ok(());
        }
        let what = format!("expected a JSON document of at most {} MiB, found a larger one", MAX_DOCUMENT >> 20);
        Err(Broken::new(1, what).with(Remedy::Split))
    }
}

impl Mode {
    fn of(format: Format, options: Options) -> Self {
        match format {
            Format::WebVtt | Format::Srt => Self::Cues(CueReader::new(format, options.labels)),
            Format::Ndjson => Self::Ndjson,
            Format::Whisper
            | Format::WhisperCpp
            | Format::WhisperX
            | Format::Deepgram
            | Format::AssemblyAi
            | Format::AwsTranscribe
            | Format::AwsCallAnalytics
            | Format::Podcast => Self::Document,
        }
    }
}

fn too_long(line: u64) -> Broken {
    Broken::new(line, format!("expected a line of at most {MAX_LINE} bytes, found a longer one")).with(Remedy::Split)
}

struct Next {
    at: usize,
    is_ended: bool,
}

/// The line that begins at `from`, and where the next one does. A line ends in LF, CRLF or CR; a CR at the end of what is there
/// may be half a CRLF.
fn next_line(text: &str, from: usize, is_last: bool) -> Option<(&str, Next)> {
    let rest = text.get(from..)?;
    let Some(end) = memchr::memchr2(b'\n', b'\r', rest.as_bytes()) else {
        return (is_last && !rest.is_empty()).then_some((rest, Next { at: text.len(), is_ended: false }));
    };
    let after = match rest.as_bytes().get(end..end + 2) {
        Some(b"\r\n") => end + 2,
        Some(_) => end + 1,
        None if rest.ends_with('\r') && !is_last => return None,
        None => end + 1,
    };
    Some((rest.get(..end)?, Next { at: from + after, is_ended: true }))
}
