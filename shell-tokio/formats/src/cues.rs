//! WebVTT and SRT: one reader, line by line.
//!
//! It follows the recovering algorithm of W3C's WebVTT (section 6.1, "WebVTT file parsing"): a line of times begins a cue
//! wherever it stands. It departs from it where real files lose words: what follows a blank line belongs to the cue before it,
//! unless a line of times follows, and a line of times that is broken is an error and no text.

use crate::{
    Broken, Format, Remedy,
    cue_text::CueText,
    reader::{Labels, MAX_LINE},
    sink::{Draft, Sink},
    times::{self, Timing},
};

/// Reads the lines of a file of cues.
pub(crate) struct CueReader {
    format: Format,
    texts: CueText,
    place: Place,
    /// The cue whose text is being read.
    cue: Option<Cue>,
    /// A line that names the next cue if a line of times follows, and is text otherwise.
    held: Option<Held>,
    follows_blank: bool,
    has_cues: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Start,
    /// From `WEBVTT` to the first blank line.
    Header,
    Cues,
    /// In a comment, a style sheet, a region, or in what is left of a broken cue: up to the next blank line or times.
    Aside,
}

struct Cue {
    timing: Timing,
    line: u64,
    id: Option<u64>,
    text: String,
}

struct Held {
    text: String,
    number: Option<u64>,
    follows_blank: bool,
    /// It was the last line of the file, and not ended.
    is_cut: bool,
}

impl CueReader {
    pub(crate) fn new(format: Format, labels: Labels) -> Self {
        Self {
            format,
            texts: CueText::new(labels),
            place: Place::Start,
            cue: None,
            held: None,
            follows_blank: true,
            has_cues: false,
        }
    }

    /// Takes the next line. The last line of a file may not be ended.
    pub(crate) fn line(&mut self, line: &str, number: u64, is_ended: bool, sink: &mut Sink) -> Result<(), Broken> {
        let text = line.trim();
        if text.is_empty() {
            if self.place != Place::Start {
                self.place = Place::Cues;
            }
            self.follows_blank = true;
            return Ok(());
        }
        if self.place == Place::Start {
            self.place = if text.starts_with("WEBVTT") { Place::Header } else { Place::Cues };
        }
        if let Some(timing) = times::timing(text) {
            self.begin(timing, number, sink);
            return Ok(());
        }
        if matches!(self.place, Place::Header | Place::Aside) {
            return Ok(());
        }
        if self.follows_blank && self.format == Format::WebVtt && is_aside(text) {
            self.keep_held();
            self.place = Place::Aside;
            return Ok(());
        }
        if self.expects_times() && times::is_broken_timing(text) {
            return self.broken_times(text, number, sink);
        }
        if !is_ended && self.is_cut_times(text) {
            let what = "expected the times of a cue, found the end of the file within them";
            self.held = None;
            return sink.broken(Broken::new(number, what).with(Remedy::ExportAgain));
        }
        self.text(text, number, is_ended, sink)
    }

    /// The file has ended.
    pub(crate) fn finish(&mut self, sink: &mut Sink) -> Result<(), Broken> {
        if let Some(held) = self.held.take() {
            let names_a_cue = held.follows_blank && self.cue.as_ref().is_some_and(|cue| names_the_next(cue, &held));
            if !names_a_cue {
                self.append(&held.text);
            }
        }
        self.end_cue(sink);
        if !self.has_cues && self.format == Format::Srt {
            return sink.broken(Broken::new(1, "expected a cue, found none").with(Remedy::ExportAgain));
        }
        Ok(())
    }

    fn begin(&mut self, timing: Timing, line: u64, sink: &mut Sink) {
        let id = match self.held.take() {
            Some(held) if self.is_id(&held) => held.number,
            Some(held) => {
                self.append(&held.text);
                None
            }
            None => None,
        };
        self.end_cue(sink);
        self.cue = Some(Cue { timing, line, id, text: String::new() });
        self.place = Place::Cues;
        self.follows_blank = false;
        self.has_cues = true;
    }

    /// Whether the line before a line of times names that cue, or is the last line of the cue before it.
    fn is_id(&self, held: &Held) -> bool {
        let Some(cue) = &self.cue else { return true };
        match (held.number, self.follows_blank, held.follows_blank) {
            // Between two blank lines, or in the middle of a text: only if the count goes on.
            (Some(number), true, _) => cue.id.is_some_and(|id| id.checked_add(1) == Some(number)),
            (Some(_), false, true) => true,
            (Some(number), false, false) => {
                cue.id.is_some_and(|id| id.checked_add(1) == Some(number) || !cue.text.is_empty())
            }
            (None, follows_blank, _) => !follows_blank,
        }
    }

    fn end_cue(&mut self, sink: &mut Sink) {
        let Some(cue) = self.cue.take() else { return };
        let Timing { start_ms, end_ms } = cue.timing;
        for (speaker, text) in self.texts.read(&cue.text, cue.timing) {
            sink.cue(Draft { speaker, text, start: start_ms.into(), end: end_ms.into(), line: cue.line });
        }
    }

    fn expects_times(&self) -> bool {
        self.follows_blank || self.held.is_some()
    }

    fn broken_times(&mut self, text: &str, number: u64, sink: &mut Sink) -> Result<(), Broken> {
        self.held = None;
        self.end_cue(sink);
        self.has_cues = true;
        self.place = Place::Aside;
        sink.broken(Broken::expected(number, "times such as 00:01:02.500 --> 00:01:04.000", text))
    }

    /// Whether the last line of a file is the beginning of a line of times.
    fn is_cut_times(&self, text: &str) -> bool {
        let is_times = text.starts_with(|c: char| c.is_ascii_digit())
            && text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b':' | b'.' | b',' | b'-' | b'>' | b' '));
        self.expects_times() && is_times && self.cue.is_some()
    }

    fn text(&mut self, text: &str, line: u64, is_ended: bool, sink: &mut Sink) -> Result<(), Broken> {
        self.keep_held();
        let number = text.parse().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()));
        let may_be_id = number.is_some() || (self.follows_blank && self.format == Format::WebVtt);
        if may_be_id {
            let (text, follows_blank) = (text.to_owned(), self.follows_blank);
            self.held = Some(Held { text, number, follows_blank, is_cut: !is_ended });
        } else if self.cue.is_some() {
            self.append(text);
        } else if !self.has_cues {
            // Once is enough: with faults left out, the rest of it is only passed over.
            self.place = Place::Aside;
            self.has_cues = true;
            sink.broken(Broken::new(line, "expected the times of a cue, found other text"))?;
        }
        self.follows_blank = false;
        match &self.cue {
            Some(cue) if cue.text.len() > MAX_LINE => {
                let what = format!("expected a cue of at most {MAX_LINE} bytes, found a longer one");
                Err(Broken::new(cue.line, what).with(Remedy::Split))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// What is held was no name of a cue.
    fn keep_held(&mut self) {
        if let Some(held) = self.held.take() {
            self.append(&held.text);
        }
    }

    fn append(&mut self, text: &str) {
        if let Some(cue) = &mut self.cue {
            if !cue.text.is_empty() {
                cue.text.push('\n');
            }
            cue.text.push_str(text);
        }
    }
}

/// Whether a number at the end of a file is that of a cue of which nothing else is left.
fn names_the_next(cue: &Cue, held: &Held) -> bool {
    let Some((id, number)) = cue.id.zip(held.number) else { return false };
    let next = id.saturating_add(1);
    next == number || (held.is_cut && next.to_string().starts_with(&held.text))
}

/// Whether a line after a blank one begins a block of WebVTT that is no cue.
fn is_aside(line: &str) -> bool {
    let first = line.split([' ', '\t']).next().unwrap_or_default();
    first == "NOTE" || line == "STYLE" || line == "REGION" || line.starts_with("X-TIMESTAMP-MAP=")
}
