//! Whisper and its kin, and the Podcast namespace: lists of segments.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Document, Keys, Unit, Value};
use crate::{
    Broken,
    sink::{Draft, Sink},
    times::Millis,
    words::{Grouper, Word},
};

/// Whisper's and `WhisperX`'s result: segments, or words only, or the text only.
pub(super) fn read<'a>(document: &mut Document<'a>, keys: &Keys<'a>, line: u64, sink: &mut Sink) -> Result<(), Broken> {
    let elements = document.list_of(keys.segments)?;
    if !elements.is_empty() {
        return segments(document, &elements, sink);
    }
    let mut words = document.list_of(keys.words)?;
    if words.is_empty() {
        words = document.list_of(keys.word_segments)?;
    }
    if words.is_empty() {
        sink.draft(untimed(&keys.text, line));
        return Ok(());
    }
    grouped(document, &words, Unit::Seconds, None, sink)?.into_iter().for_each(|draft| sink.draft(draft));
    Ok(())
}

/// A list of Whisper's segments.
pub(super) fn segments<'a>(document: &mut Document<'a>, list: &[&'a RawValue], sink: &mut Sink) -> Result<(), Broken> {
    document.each(list, sink, |segment: Segment<'a>, line, document, sink| {
        let speaker = match segment.speaker.label() {
            Some(speaker) => Some(speaker),
            None => speaker_of_words(document, segment.words, sink)?,
        };
        let (start, end) = (segment.start.time(Unit::Seconds), segment.end.time(Unit::Seconds));
        sink.draft(Draft { speaker, text: segment.text.text().into_owned(), start, end, line });
        Ok(())
    })
}

/// `transcription` of whisper.cpp: times in milliseconds, and once more as stamps.
pub(super) fn read_cpp<'a>(document: &mut Document<'a>, keys: &Keys<'a>, sink: &mut Sink) -> Result<(), Broken> {
    let elements = document.list_of(keys.transcription)?;
    document.each(&elements, sink, |segment: CppSegment<'a>, line, _, sink| {
        let offsets = segment.offsets.unwrap_or_default();
        let stamps = segment.timestamps.unwrap_or_default();
        let start = offsets.from.time(Unit::Milliseconds).or(stamps.from.time(Unit::Milliseconds));
        let end = offsets.to.time(Unit::Milliseconds).or(stamps.to.time(Unit::Milliseconds));
        // A question mark says that both channels were as loud.
        let speaker = segment.speaker.label().filter(|speaker| speaker != "?");
        sink.draft(Draft { speaker, text: segment.text.text().into_owned(), start, end, line });
        Ok(())
    })
}

/// `segments` of the Podcast namespace.
pub(super) fn read_podcast<'a>(document: &mut Document<'a>, keys: &Keys<'a>, sink: &mut Sink) -> Result<(), Broken> {
    let elements = document.list_of(keys.segments)?;
    document.each(&elements, sink, |segment: PodcastSegment<'a>, line, _, sink| {
        let (start, end) = (segment.start_time.time(Unit::Seconds), segment.end_time.time(Unit::Seconds));
        let speaker = segment.speaker.label();
        sink.draft(Draft { speaker, text: segment.body.text().into_owned(), start, end, line });
        Ok(())
    })
}

/// Segments made of words. A word of which nothing names the speaker is spoken by `speaker`.
pub(super) fn grouped<'a>(
    document: &mut Document<'a>,
    words: &[&'a RawValue],
    unit: Unit,
    speaker: Option<&str>,
    sink: &mut Sink,
) -> Result<Vec<Draft>, Broken> {
    let mut grouper = Grouper::default();
    let mut drafts = Vec::new();
    document.each(words, sink, |word: WordElement<'a>, line, _, _| {
        let text = [&word.punctuated_word, &word.word, &word.text].into_iter().find(|text| !text.is_absent());
        let text = text.map(Value::text).unwrap_or_default();
        let speaker = word.speaker.label().or_else(|| speaker.map(str::to_owned));
        let (start, end) = (word.start.time(unit), word.end.time(unit));
        let is_mark = is_lone_mark(&text) && start == Millis::NONE;
        drafts.extend(grouper.push(Word { text: &text, start, end, speaker, is_mark, line }));
        Ok(())
    })?;
    drafts.extend(grouper.finish());
    Ok(drafts)
}

/// A whole text without times.
pub(super) fn untimed(text: &Value<'_>, line: u64) -> Draft {
    Draft { speaker: None, text: text.text().trim().to_owned(), start: Millis::NONE, end: Millis::NONE, line }
}

/// The speaker of most words, the first of several.
fn speaker_of_words<'a>(
    document: &mut Document<'a>,
    words: Option<&'a RawValue>,
    sink: &mut Sink,
) -> Result<Option<String>, Broken> {
    let Some(words) = words.filter(|words| words.get().contains("\"speaker\"")) else { return Ok(None) };
    let words = document.list(words)?;
    let mut speakers: Vec<(String, usize)> = Vec::new();
    document.each(&words, sink, |word: WordElement<'a>, _, _, _| {
        if let Some(speaker) = word.speaker.label() {
            match speakers.iter_mut().find(|(known, _)| *known == speaker) {
                Some((_, count)) => *count += 1,
                None => speakers.push((speaker, 1)),
            }
        }
        Ok(())
    })?;
    Ok(speakers.into_iter().rev().max_by_key(|(_, count)| *count).map(|(speaker, _)| speaker))
}

fn is_lone_mark(text: &str) -> bool {
    !text.trim().is_empty() && !text.chars().any(char::is_alphanumeric)
}

#[derive(Deserialize)]
struct Segment<'a> {
    #[serde(borrow, default)]
    start: Value<'a>,
    #[serde(borrow, default)]
    end: Value<'a>,
    #[serde(borrow, default)]
    text: Value<'a>,
    #[serde(borrow, default)]
    speaker: Value<'a>,
    #[serde(borrow)]
    words: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct CppSegment<'a> {
    #[serde(borrow)]
    offsets: Option<Span<'a>>,
    #[serde(borrow)]
    timestamps: Option<Span<'a>>,
    #[serde(borrow, default)]
    text: Value<'a>,
    #[serde(borrow, default)]
    speaker: Value<'a>,
}

#[derive(Deserialize, Default)]
struct Span<'a> {
    #[serde(borrow, default)]
    from: Value<'a>,
    #[serde(borrow, default)]
    to: Value<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodcastSegment<'a> {
    #[serde(borrow, default)]
    speaker: Value<'a>,
    #[serde(borrow, default)]
    start_time: Value<'a>,
    #[serde(borrow, default)]
    end_time: Value<'a>,
    #[serde(borrow, default)]
    body: Value<'a>,
}

/// A word of Whisper, Deepgram (`punctuated_word`) or `AssemblyAI` (`text`).
#[derive(Deserialize)]
struct WordElement<'a> {
    #[serde(borrow, default)]
    word: Value<'a>,
    #[serde(borrow, default)]
    punctuated_word: Value<'a>,
    #[serde(borrow, default)]
    text: Value<'a>,
    #[serde(borrow, default)]
    start: Value<'a>,
    #[serde(borrow, default)]
    end: Value<'a>,
    #[serde(borrow, default)]
    speaker: Value<'a>,
}
