//! JSON documents: of engines, and of our own.
//!
//! A document is looked through once for its structure, and each element of its list is read by itself: so an element that
//! cannot be read costs no other, and everything that is wrong has a line.

mod assemblyai;
mod aws;
mod deepgram;
mod document;
pub(crate) mod repair;
mod value;
mod whisper;

use serde::Deserialize;
use serde_json::value::RawValue;

pub(crate) use self::{
    document::{Document, syntax},
    value::{Unit, Value},
};
use crate::{Broken, Format, Remedy, ndjson, reader::Faults, sink::Sink};

/// Reads a whole document.
pub(crate) fn read(text: &str, format: Option<Format>, faults: Faults, sink: &mut Sink) -> Result<(), Broken> {
    let values = match document::values(text) {
        Ok(values) => values,
        Err(_) => return read_repaired(text, format, faults, sink),
    };
    read_values(text, &values, format, sink)
}

/// Reads what can be made a document: Python writes `NaN`, and a file can be cut.
fn read_repaired(text: &str, format: Option<Format>, faults: Faults, sink: &mut Sink) -> Result<(), Broken> {
    let mut text = repair::without_nan(text);
    let error = match document::values(&text) {
        Ok(values) => return read_values(&text, &values, format, sink),
        Err(error) => error,
    };
    let broken = syntax(&error, 1);
    let remedy = if error.is_eof() { Remedy::ExportAgain } else { broken.remedy };
    if faults == Faults::Refuse {
        return Err(broken.with(remedy));
    }
    text = repair::up_to_the_fault(&text, document::offset_of(&text, &error));
    let values = document::values(&text).map_err(|_| broken.clone().with(Remedy::ExportAgain))?;
    sink.left_out(broken.with(remedy));
    read_values(&text, &values, format, sink)
}

fn read_values<'a>(
    text: &'a str,
    values: &[&'a RawValue],
    format: Option<Format>,
    sink: &mut Sink,
) -> Result<(), Broken> {
    let mut document = Document::new(text);
    let [value] = values else {
        // Several documents in one file are our own lines, written over several lines each.
        return own(&mut document, values, sink);
    };
    if value.get().starts_with('[') {
        let elements = document.list(value)?;
        return match format.unwrap_or_else(|| format_of_elements(&elements)) {
            Format::Ndjson => own(&mut document, &elements, sink),
            Format::AssemblyAi => assemblyai::utterances(&mut document, &elements, sink),
            Format::AwsCallAnalytics => aws::turns(&mut document, &elements, sink),
            Format::Podcast
            | Format::Whisper
            | Format::WhisperX
            | Format::WhisperCpp
            | Format::WebVtt
            | Format::Srt
            | Format::Deepgram
            | Format::AwsTranscribe => whisper::segments(&mut document, &elements, sink),
        };
    }
    let keys: Keys<'_> = document.element(value)?;
    let line = document.line_of(value);
    let Some(format) = format.or_else(|| keys.format()) else {
        let what = "expected the JSON of a known engine, found other keys";
        return Err(Broken::new(line, what).with(Remedy::NameTheFormat));
    };
    match format {
        Format::Ndjson => own(&mut document, values, sink),
        Format::Whisper | Format::WhisperX => whisper::read(&mut document, &keys, line, sink),
        Format::WhisperCpp => whisper::read_cpp(&mut document, &keys, sink),
        Format::Podcast => whisper::read_podcast(&mut document, &keys, sink),
        Format::Deepgram => deepgram::read(&mut document, &keys, line, sink),
        Format::AssemblyAi => assemblyai::read(&mut document, &keys, line, sink),
        Format::AwsTranscribe => aws::read(&mut document, &keys, line, sink),
        Format::AwsCallAnalytics => aws::read_calls(&mut document, &keys, sink),
        Format::WebVtt | Format::Srt => Err(Broken::new(line, format!("expected {format}, found JSON"))),
    }
}

fn own<'a>(document: &mut Document<'a>, elements: &[&'a RawValue], sink: &mut Sink) -> Result<(), Broken> {
    document.each(elements, sink, |own: ndjson::Own<'a>, line, _, sink| ndjson::element(&own, line, sink))
}

/// The keys by which a document is recognised and read. Everything else is passed over.
#[derive(Deserialize)]
pub(crate) struct Keys<'a> {
    #[serde(borrow)]
    pub results: Option<&'a RawValue>,
    #[serde(borrow)]
    pub segments: Option<&'a RawValue>,
    #[serde(borrow)]
    pub word_segments: Option<&'a RawValue>,
    #[serde(borrow)]
    pub words: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub text: Value<'a>,
    #[serde(borrow)]
    pub transcription: Option<&'a RawValue>,
    #[serde(borrow)]
    pub utterances: Option<&'a RawValue>,
    #[serde(borrow, rename = "Transcript")]
    pub turns: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub status: Value<'a>,
    #[serde(borrow, default)]
    pub error: Value<'a>,
    #[serde(borrow, default, rename = "JobStatus")]
    job_status: Value<'a>,
    #[serde(borrow, default, rename = "sessionId")]
    session_id: Value<'a>,
    #[serde(borrow, default)]
    audio_url: Value<'a>,
    #[serde(borrow, default)]
    acoustic_model: Value<'a>,
    #[serde(borrow, default)]
    language: Value<'a>,
    #[serde(borrow, default)]
    version: Value<'a>,
}

impl Keys<'_> {
    fn format(&self) -> Option<Format> {
        let results = |key: &str| self.results.is_some_and(|results| results.get().contains(key));
        if !self.session_id.is_absent() {
            Some(Format::Ndjson)
        } else if self.turns.is_some() || !self.job_status.is_absent() {
            Some(Format::AwsCallAnalytics)
        } else if self.results.is_some() {
            let is_aws = results("\"transcripts\"") || results("\"items\"") || results("\"audio_segments\"");
            Some(if is_aws { Format::AwsTranscribe } else { Format::Deepgram })
        } else if self.transcription.is_some() {
            Some(Format::WhisperCpp)
        } else if self.word_segments.is_some() {
            Some(Format::WhisperX)
        } else if self.utterances.is_some() || !self.audio_url.is_absent() || !self.acoustic_model.is_absent() {
            Some(Format::AssemblyAi)
        } else if let Some(segments) = self.segments {
            let segments = segments.get();
            let is_podcast = segments.contains("\"startTime\"") || segments.contains("\"body\"");
            let is_podcast =
                is_podcast || (!self.version.is_absent() && self.text.is_absent() && self.language.is_absent());
            Some(if is_podcast { Format::Podcast } else { Format::Whisper })
        } else if self.words.is_some() && !self.status.is_absent() {
            Some(Format::AssemblyAi)
        } else if self.words.is_some() || !self.text.is_absent() {
            Some(Format::Whisper)
        } else if !self.status.is_absent() && !self.error.is_absent() {
            Some(Format::AssemblyAi)
        } else {
            None
        }
    }
}

fn format_of_elements(elements: &[&RawValue]) -> Format {
    let first = elements.first().map_or("", |first| first.get());
    if first.contains("\"sessionId\"") || first.contains("\"conversationId\"") {
        Format::Ndjson
    } else if first.contains("\"ParticipantRole\"") {
        Format::AwsCallAnalytics
    } else {
        Format::Whisper
    }
}
