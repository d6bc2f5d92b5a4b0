//! Recall.ai's real-time endpoints: one socket carries all speakers of a meeting.
//!
//! | field | what |
//! |---|---|
//! | `event` | `transcript.data` is final, `transcript.partial_data` is interim, others are ignored |
//! | `data.data.words[]` | `text`, joined by spaces; `start_timestamp.relative` of the first and `end_timestamp.relative` (which may be null) of the last one, in seconds since the recording's start |
//! | `data.data.participant` | `name`, which may be null; then `id` names the speaker: `participant 7` |
//!
//! An utterance has no id. Source: Recall.ai's documentation, "Real-Time Event Payloads".

use serde_json::{Map, Value};

use crate::{Frame, Problem, Utterance, field};

pub(crate) fn read(frame: &Map<String, Value>) -> Result<Frame, Problem> {
    match field::required_text(frame, "event")? {
        "transcript.data" => utterance(frame),
        "transcript.partial_data" => Ok(Frame::Interim),
        _ => Ok(Frame::Ignored),
    }
}

fn utterance(frame: &Map<String, Value>) -> Result<Frame, Problem> {
    let data = field::required_object(field::required_object(frame, "data")?, "data")?;
    let words = field::objects(data, "words")?;
    let texts: Vec<&str> = words
        .iter()
        .map(|word| field::text(word, "text").map(|text| text.unwrap_or_default().trim()))
        .collect::<Result<_, _>>()?;
    let moment = |word: Option<&&Map<String, Value>>, name: &'static str| {
        let moment = word.map(|word| field::object(word, name)).transpose()?.flatten();
        moment.map(|moment| field::seconds(moment, "relative")).transpose().map(Option::flatten)
    };
    Ok(Frame::said(Utterance {
        id: None,
        speaker: speaker(data)?,
        text: texts.iter().filter(|text| !text.is_empty()).copied().collect::<Vec<_>>().join(" "),
        start_ms: moment(words.first(), "start_timestamp")?,
        end_ms: moment(words.last(), "end_timestamp")?,
    }))
}

fn speaker(data: &Map<String, Value>) -> Result<Option<String>, Problem> {
    let Some(participant) = field::object(data, "participant")? else { return Ok(None) };
    let name = field::speaker(participant, "name")?;
    let number = field::id(participant, "id")?;
    Ok(name.or_else(|| number.map(|number| format!("participant {number}"))))
}
