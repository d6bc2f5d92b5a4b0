//! A pre-recorded result of Deepgram: utterances where they were asked for, words of channels otherwise.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Document, Keys, Unit, Value, whisper};
use crate::{
    Broken,
    sink::{Draft, Sink},
};

/// Reads `results`.
pub(super) fn read<'a>(document: &mut Document<'a>, keys: &Keys<'a>, line: u64, sink: &mut Sink) -> Result<(), Broken> {
    let Some(results) = keys.results else { return Ok(()) };
    let results: Results<'a> = document.element(results)?;
    let channels = document.list_of(results.channels)?;
    let utterances = document.list_of(results.utterances)?;
    if utterances.is_empty() {
        return read_channels(document, &channels, line, sink);
    }
    let has_channels = channels.len() > 1;
    document.each(&utterances, sink, |utterance: Utterance<'a>, line, _, sink| {
        let speaker = label(utterance.speaker.label(), has_channels.then(|| utterance.channel.label()).flatten());
        let (start, end) = (utterance.start.time(Unit::Seconds), utterance.end.time(Unit::Seconds));
        sink.draft(Draft { speaker, text: utterance.transcript.text().into_owned(), start, end, line });
        Ok(())
    })
}

fn read_channels<'a>(
    document: &mut Document<'a>,
    channels: &[&'a RawValue],
    line: u64,
    sink: &mut Sink,
) -> Result<(), Broken> {
    let mut drafts = Vec::new();
    let mut number = 0;
    document.each(channels, sink, |channel: Channel<'a>, _, document, sink| {
        let name = (channels.len() > 1).then(|| number.to_string());
        number += 1;
        let alternatives = document.list_of(channel.alternatives)?;
        // The first alternative is the likeliest one.
        let best = alternatives.get(..1).unwrap_or_default();
        document.each(best, sink, |best: Alternative<'a>, _, document, sink| {
            let words = document.list_of(best.words)?;
            let said = whisper::grouped(document, &words, Unit::Seconds, None, sink)?;
            let whole = words.is_empty().then(|| whisper::untimed(&best.transcript, line));
            drafts.extend(
                said.into_iter()
                    .chain(whole)
                    .map(|draft| Draft { speaker: label(draft.speaker.clone(), name.clone()), ..draft }),
            );
            Ok(())
        })
    })?;
    in_order(drafts).into_iter().for_each(|draft| sink.draft(draft));
    Ok(())
}

/// What several channels say, in order of time. A stable sort keeps what has no time at the end.
pub(super) fn in_order(mut drafts: Vec<Draft>) -> Vec<Draft> {
    let start = |draft: &Draft| draft.start.value().unwrap_or(f64::INFINITY);
    drafts.sort_by(|a, b| start(a).total_cmp(&start(b)));
    drafts
}

/// Channels stand for speakers where no speaker is named, and tell speakers of the same number apart.
fn label(speaker: Option<String>, channel: Option<String>) -> Option<String> {
    match (speaker, channel) {
        (speaker, None) => speaker,
        (None, Some(channel)) => Some(format!("ch_{channel}")),
        (Some(speaker), Some(channel)) => Some(format!("ch_{channel}/{speaker}")),
    }
}

#[derive(Deserialize)]
struct Results<'a> {
    #[serde(borrow)]
    channels: Option<&'a RawValue>,
    #[serde(borrow)]
    utterances: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Channel<'a> {
    #[serde(borrow)]
    alternatives: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Alternative<'a> {
    #[serde(borrow, default)]
    transcript: Value<'a>,
    #[serde(borrow)]
    words: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Utterance<'a> {
    #[serde(borrow, default)]
    start: Value<'a>,
    #[serde(borrow, default)]
    end: Value<'a>,
    #[serde(borrow, default)]
    transcript: Value<'a>,
    #[serde(borrow, default)]
    speaker: Value<'a>,
    #[serde(borrow, default)]
    channel: Value<'a>,
}
