//! A transcript of `AssemblyAI`: utterances where speakers or channels were asked for, words otherwise. Times in milliseconds.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Document, Keys, Unit, Value, whisper};
use crate::{
    Broken, Remedy,
    sink::{Draft, Sink},
};

/// Reads a transcript.
pub(super) fn read<'a>(document: &mut Document<'a>, keys: &Keys<'a>, line: u64, sink: &mut Sink) -> Result<(), Broken> {
    check(keys, line)?;
    let list = document.list_of(keys.utterances)?;
    if !list.is_empty() {
        return utterances(document, &list, sink);
    }
    let words = document.list_of(keys.words)?;
    if words.is_empty() {
        sink.draft(whisper::untimed(&keys.text, line));
        return Ok(());
    }
    whisper::grouped(document, &words, Unit::Milliseconds, None, sink)?.into_iter().for_each(|draft| sink.draft(draft));
    Ok(())
}

/// A list of utterances.
pub(super) fn utterances<'a>(
    document: &mut Document<'a>,
    list: &[&'a RawValue],
    sink: &mut Sink,
) -> Result<(), Broken> {
    document.each(list, sink, |utterance: Utterance<'a>, line, _, sink| {
        // Where channels were asked for, the speaker is the channel's number already.
        let channel = || utterance.channel.label().map(|channel| format!("ch_{channel}"));
        let speaker = utterance.speaker.label().or_else(channel);
        let (start, end) = (utterance.start.time(Unit::Milliseconds), utterance.end.time(Unit::Milliseconds));
        sink.draft(Draft { speaker, text: utterance.text.text().into_owned(), start, end, line });
        Ok(())
    })
}

/// A transcript that is not done, or failed, has no words, and is no silent call.
fn check(keys: &Keys<'_>, line: u64) -> Result<(), Broken> {
    let status = keys.status.text();
    let what = match status.as_ref() {
        "error" => format!(
            "expected a transcript, found an error of the engine: {}",
            crate::broken::quoted(&keys.error.text())
        ),
        "queued" | "processing" => format!("expected a transcript, found one that is still {status}"),
        _ => return Ok(()),
    };
    Err(Broken::new(line, what).with(Remedy::ExportAgain))
}

#[derive(Deserialize)]
struct Utterance<'a> {
    #[serde(borrow, default)]
    start: Value<'a>,
    #[serde(borrow, default)]
    end: Value<'a>,
    #[serde(borrow, default)]
    text: Value<'a>,
    #[serde(borrow, default)]
    speaker: Value<'a>,
    #[serde(borrow, default)]
    channel: Value<'a>,
}
