//! Deepgram's streaming results, which it sends to the WebSocket that `callback` names.
//!
//! | field | what |
//! |---|---|
//! | `type` | `Results` is read; `KeepAlive`, `Finalize` and `CloseStream`, which applications send to Deepgram, mean the same here; others are ignored |
//! | `is_final` | whether the text is final |
//! | `channel.alternatives[0].transcript` | the text; the first alternative is the likeliest one |
//! | `channel.alternatives[0].words[]` | `punctuated_word` or `word`, `speaker`, `start`, `end`: read where words name speakers, then each run of one speaker is an utterance |
//! | `channel_index` | `[channel, channels]`: of several channels, each is a speaker, `channel 0` … |
//! | `start`, `duration` | seconds |
//!
//! A result has no id. Source: Deepgram's API reference, "Live Audio" (`listen-streaming`), and the types of its SDKs.

use serde_json::{Map, Value};

use crate::{Frame, Problem, Utterance, field};

pub(crate) fn read(frame: &Map<String, Value>) -> Result<Frame, Problem> {
    match field::text(frame, "type")? {
        Some("Results") => results(frame),
        Some("KeepAlive") => Ok(Frame::KeepAlive),
        Some("Finalize") => Ok(Frame::Finalize),
        Some("CloseStream") => Ok(Frame::End),
        Some(_) => Ok(Frame::Ignored),
        None => Err(Problem::Missing("type")),
    }
}

fn results(frame: &Map<String, Value>) -> Result<Frame, Problem> {
    if !field::flag(frame, "is_final")?.unwrap_or(false) {
        return Ok(Frame::Interim);
    }
    let channel = field::required_object(frame, "channel")?;
    let alternatives = field::objects(channel, "alternatives")?;
    let best = alternatives.first().ok_or(Problem::Missing("alternatives"))?;
    let words = field::objects(best, "words")?;
    let channel = channel_name(frame)?;
    let mut utterances = by_speaker(&words, channel.as_deref())?;
    if utterances.len() > 1 || utterances.first().is_some_and(|utterance| utterance.speaker != channel) {
        utterances.retain(|utterance| !utterance.text.is_empty());
        return Ok(if utterances.is_empty() { Frame::Ignored } else { Frame::Final(utterances) });
    }
    let start = field::seconds(frame, "start")?;
    let end = start.zip(field::seconds(frame, "duration")?).map(|(start, lasts)| start.saturating_add(lasts));
    let text = field::required_text(best, "transcript")?.to_owned();
    Ok(Frame::said(Utterance { id: None, speaker: channel, text, start_ms: start, end_ms: end }))
}

/// Of several channels, the one of this result.
fn channel_name(frame: &Map<String, Value>) -> Result<Option<String>, Problem> {
    let index = field::list(frame, "channel_index")?;
    let number = |at: usize| index.get(at).and_then(Value::as_u64);
    Ok(match (number(0), number(1)) {
        (Some(channel), Some(channels)) if channels > 1 => Some(format!("channel {channel}")),
        (Some(_) | None, Some(_) | None) => None,
    })
}

/// The words, joined as long as one speaker goes on.
fn by_speaker(words: &[&Map<String, Value>], channel: Option<&str>) -> Result<Vec<Utterance>, Problem> {
    let mut utterances: Vec<Utterance> = Vec::new();
    for word in words {
        let text = field::text(word, "punctuated_word")?.or(field::text(word, "word")?).unwrap_or_default().trim();
        let speaker = field::speaker(word, "speaker")?.map(|number| match channel {
            Some(channel) => format!("{channel}, speaker {number}"),
            None => format!("speaker {number}"),
        });
        let speaker = speaker.or_else(|| channel.map(str::to_owned));
        let (start_ms, end_ms) = (field::seconds(word, "start")?, field::seconds(word, "end")?);
        match utterances.last_mut().filter(|last| last.speaker == speaker) {
            Some(last) => {
                if !text.is_empty() && !last.text.is_empty() {
                    last.text.push(' ');
                }
                last.text.push_str(text);
                last.end_ms = end_ms.or(last.end_ms);
            }
            None => utterances.push(Utterance { id: None, speaker, text: text.to_owned(), start_ms, end_ms }),
        }
    }
    Ok(utterances)
}
