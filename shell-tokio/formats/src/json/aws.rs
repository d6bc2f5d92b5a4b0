//! Amazon Transcribe: batch results and Call Analytics.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Document, Keys, Unit, Value, deepgram::in_order, whisper};
use crate::{
    Broken, Remedy,
    sink::{Draft, Sink},
    times::Millis,
    words::{Grouper, Word},
};

/// Reads a batch result: its audio segments where it has them, its items otherwise.
pub(super) fn read<'a>(document: &mut Document<'a>, keys: &Keys<'a>, line: u64, sink: &mut Sink) -> Result<(), Broken> {
    check(&keys.status, line)?;
    let Some(results) = keys.results else { return Ok(()) };
    let results: Results<'a> = document.element(results)?;
    let is_labelled = results.speaker_labels.is_some() || results.channel_labels.is_some();
    let parts = document.list_of(results.audio_segments)?;
    // Results of before 2024 have audio segments without labels beside items with labels.
    if parts.iter().any(|part| !is_labelled || part.get().contains("_label\"")) {
        return read_parts(document, &parts, sink);
    }
    let channels = results.channel_labels.and_then(|labels| labels.channels);
    let mut drafts = Vec::new();
    for channel in document.list_of(channels)? {
        let channel: Channel<'a> = document.element(channel)?;
        let items = document.list_of(channel.items)?;
        let label = channel.channel_label.label();
        drafts.extend(grouped(document, &items, &BTreeMap::new(), label.as_deref(), sink)?);
    }
    if drafts.is_empty() {
        let speakers = match results.speaker_labels.and_then(|labels| labels.segments) {
            Some(segments) => speakers(document, segments, sink)?,
            None => BTreeMap::new(),
        };
        let items = document.list_of(results.items)?;
        drafts = grouped(document, &items, &speakers, None, sink)?;
    }
    if drafts.is_empty() {
        let transcripts = document.list_of(results.transcripts)?;
        return document.each(&transcripts, sink, |whole: Transcript<'a>, line, _, sink| {
            sink.draft(whisper::untimed(&whole.transcript, line));
            Ok(())
        });
    }
    in_order(drafts).into_iter().for_each(|draft| sink.draft(draft));
    Ok(())
}

/// Reads a result of Call Analytics.
pub(super) fn read_calls<'a>(document: &mut Document<'a>, keys: &Keys<'a>, sink: &mut Sink) -> Result<(), Broken> {
    let list = document.list_of(keys.turns)?;
    turns(document, &list, sink)
}

/// `Transcript` of Call Analytics: what a participant says until the other one speaks.
pub(super) fn turns<'a>(document: &mut Document<'a>, list: &[&'a RawValue], sink: &mut Sink) -> Result<(), Broken> {
    document.each(list, sink, |turn: Turn<'a>, line, _, sink| {
        let speaker = turn.participant_role.label().or_else(|| turn.participant_id.label());
        let start = turn.begin_offset_millis.time(Unit::Milliseconds);
        let end = turn.end_offset_millis.time(Unit::Milliseconds);
        sink.draft(Draft { speaker, text: turn.content.text().into_owned(), start, end, line });
        Ok(())
    })
}

fn read_parts<'a>(document: &mut Document<'a>, parts: &[&'a RawValue], sink: &mut Sink) -> Result<(), Broken> {
    let mut drafts = Vec::new();
    document.each(parts, sink, |part: AudioSegment<'a>, line, _, _| {
        let speaker = part.speaker_label.label().or_else(|| part.channel_label.label());
        let (start, end) = (part.start_time.time(Unit::Seconds), part.end_time.time(Unit::Seconds));
        drafts.push(Draft { speaker, text: part.transcript.text().into_owned(), start, end, line });
        Ok(())
    })?;
    in_order(drafts).into_iter().for_each(|draft| sink.draft(draft));
    Ok(())
}

/// Segments made of items. An item names its speaker, or its start does, or its channel does.
fn grouped<'a>(
    document: &mut Document<'a>,
    items: &[&'a RawValue],
    speakers: &BTreeMap<String, String>,
    channel: Option<&str>,
    sink: &mut Sink,
) -> Result<Vec<Draft>, Broken> {
    let mut grouper = Grouper::default();
    let mut drafts = Vec::new();
    document.each(items, sink, |item: Item<'a>, line, document, sink| {
        let alternatives = document.list_of(item.alternatives)?;
        let mut text = String::new();
        document.each(alternatives.get(..1).unwrap_or_default(), sink, |best: Content<'a>, _, _, _| {
            text = best.content.text().into_owned();
            Ok(())
        })?;
        let by_start = || speakers.get(item.start_time.text().as_ref()).cloned();
        let by_channel = || item.channel_label.label().or_else(|| channel.map(str::to_owned));
        let speaker = item.speaker_label.label().or_else(by_start).or_else(by_channel);
        let (start, end) = (item.start_time.time(Unit::Seconds), item.end_time.time(Unit::Seconds));
        let is_mark = item.kind.text() == "punctuation" && start == Millis::NONE;
        drafts.extend(grouper.push(Word { text: &text, start, end, speaker, is_mark, line }));
        Ok(())
    })?;
    drafts.extend(grouper.finish());
    Ok(drafts)
}

/// The speaker of each item, by the item's start as it is written.
fn speakers<'a>(
    document: &mut Document<'a>,
    segments: &'a RawValue,
    sink: &mut Sink,
) -> Result<BTreeMap<String, String>, Broken> {
    let mut speakers = BTreeMap::new();
    let segments = document.list(segments)?;
    document.each(&segments, sink, |segment: Labelled<'a>, _, document, sink| {
        let items = document.list_of(segment.items)?;
        document.each(&items, sink, |item: Labelled<'a>, _, _, _| {
            if let Some(label) = item.speaker_label.label().or_else(|| segment.speaker_label.label()) {
                speakers.insert(item.start_time.text().into_owned(), label);
            }
            Ok(())
        })
    })?;
    Ok(speakers)
}

/// A job that is not done, or failed, has no words, and is no silent call.
fn check(status: &Value<'_>, line: u64) -> Result<(), Broken> {
    match status.text().as_ref() {
        status @ ("FAILED" | "IN_PROGRESS" | "QUEUED") => {
            let what = format!("expected a transcript, found a job that is {status}");
            Err(Broken::new(line, what).with(Remedy::ExportAgain))
        }
        _ => Ok(()),
    }
}

#[derive(Deserialize)]
struct Results<'a> {
    #[serde(borrow)]
    transcripts: Option<&'a RawValue>,
    #[serde(borrow)]
    items: Option<&'a RawValue>,
    #[serde(borrow)]
    audio_segments: Option<&'a RawValue>,
    #[serde(borrow)]
    speaker_labels: Option<SpeakerLabels<'a>>,
    #[serde(borrow)]
    channel_labels: Option<ChannelLabels<'a>>,
}

#[derive(Deserialize)]
struct SpeakerLabels<'a> {
    #[serde(borrow)]
    segments: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ChannelLabels<'a> {
    #[serde(borrow)]
    channels: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Channel<'a> {
    #[serde(borrow, default)]
    channel_label: Value<'a>,
    #[serde(borrow)]
    items: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Labelled<'a> {
    #[serde(borrow, default)]
    start_time: Value<'a>,
    #[serde(borrow, default)]
    speaker_label: Value<'a>,
    #[serde(borrow)]
    items: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Transcript<'a> {
    #[serde(borrow, default)]
    transcript: Value<'a>,
}

#[derive(Deserialize)]
struct AudioSegment<'a> {
    #[serde(borrow, default)]
    transcript: Value<'a>,
    #[serde(borrow, default)]
    start_time: Value<'a>,
    #[serde(borrow, default)]
    end_time: Value<'a>,
    #[serde(borrow, default)]
    speaker_label: Value<'a>,
    #[serde(borrow, default)]
    channel_label: Value<'a>,
}

#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Value<'a>,
    #[serde(borrow)]
    alternatives: Option<&'a RawValue>,
    #[serde(borrow, default)]
    start_time: Value<'a>,
    #[serde(borrow, default)]
    end_time: Value<'a>,
    #[serde(borrow, default)]
    speaker_label: Value<'a>,
    #[serde(borrow, default)]
    channel_label: Value<'a>,
}

#[derive(Deserialize)]
struct Content<'a> {
    #[serde(borrow, default)]
    content: Value<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Turn<'a> {
    #[serde(borrow, default)]
    content: Value<'a>,
    #[serde(borrow, default)]
    begin_offset_millis: Value<'a>,
    #[serde(borrow, default)]
    end_offset_millis: Value<'a>,
    #[serde(borrow, default)]
    participant_role: Value<'a>,
    #[serde(borrow, default)]
    participant_id: Value<'a>,
}
