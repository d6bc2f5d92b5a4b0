//! The settings of `recording`.

use std::collections::BTreeSet;

use clap::Args;
use serde_json::{Map, Value};
use transcript_publishing::MAX_EVENT_BYTES;

use super::{Given, Options, parse};

/// What is given in the place of an event to watch events.
const WATCH: &str = "watch";

/// The settings of `recording`.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct RecordingArgs {
    /// Name of the event, such as stored or stop-requested; or watch
    #[arg(value_name = "EVENT|watch", value_parser = event)]
    event: String,
    /// Data of the event
    #[arg(value_name = "KEY=VALUE", value_parser = field)]
    fields: Vec<(String, Value)>,
    /// With watch: only events whose data has a reason, which says what went wrong
    #[arg(long)]
    failures: bool,
    /// Print JSON: an object with event and sequence; with watch one object a line, with sequence, event, storedAt, and data, or
    /// payload where that is no object
    #[arg(long)]
    pub json: bool,
}

/// What to do with events of recordings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordingAction<'a> {
    /// Publish one of this name.
    Publish(&'a str),
    /// Print them.
    Watch(WatchArgs),
}

/// Which events are printed, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchArgs {
    /// Only those that say what went wrong.
    pub failures: bool,
    /// In JSON.
    pub json: bool,
}

impl RecordingArgs {
    /// What is to be done.
    #[must_use]
    pub fn action(&self) -> RecordingAction<'_> {
        if self.event == WATCH {
            RecordingAction::Watch(WatchArgs { failures: self.failures, json: self.json })
        } else {
            RecordingAction::Publish(&self.event)
        }
    }

    /// The data of the event.
    #[must_use]
    pub fn data(&self) -> Map<String, Value> {
        self.fields.iter().cloned().collect()
    }
}

impl Options for RecordingArgs {
    fn check(&self, _given: &mut Given<'_>) -> Result<(), String> {
        match self.action() {
            RecordingAction::Watch(_) if !self.fields.is_empty() => {
                return Err("watch takes no KEY=VALUE: it prints events, and publishes none".to_owned());
            }
            RecordingAction::Publish(_) if self.failures => {
                return Err("--failures is for watch".to_owned());
            }
            RecordingAction::Watch(_) | RecordingAction::Publish(_) => {}
        }
        let mut keys = BTreeSet::new();
        if let Some((key, _)) = self.fields.iter().find(|(key, _)| !keys.insert(key)) {
            return Err(format!("{key:?} is given twice"));
        }
        match self.fields.iter().find(|(key, _)| key == "ts") {
            Some((_, ts)) if ts.as_u64().is_none() => {
                Err("ts must be a time in milliseconds since the Unix epoch, such as 1795939200000".to_owned())
            }
            Some(_) | None => Ok(()),
        }
    }
}

fn event(text: &str) -> Result<String, String> {
    if text.len() > MAX_EVENT_BYTES {
        return Err(format!("must have at most {MAX_EVENT_BYTES} bytes"));
    }
    parse::subject(text)
}

fn field(text: &str) -> Result<(String, Value), String> {
    match text.split_once('=') {
        None | Some(("", _)) => Err("must be KEY=VALUE, such as file=monday.webm or bytes=48211900".to_owned()),
        Some((key, value)) => Ok((key.to_owned(), value_of(value))),
    }
}

/// JSON where it is JSON and nothing of it is lost by reading it, else the text.
fn value_of(text: &str) -> Value {
    let is_long = |number: &serde_json::Number| number.is_f64() && !text.contains(['.', 'e', 'E']);
    match serde_json::from_str(text) {
        Ok(Value::Number(number)) if is_long(&number) => Value::from(text),
        Ok(value) => value,
        Err(_) => Value::from(text),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::{Cli, Command};

    fn read(line: &[&str]) -> Result<RecordingArgs, String> {
        let line = ["transcript-processor", "recording"].iter().chain(line).map(|&part| part.into());
        let command = Cli::read(line).map_err(|error| error.to_string())?.command;
        let Command::Recording(args) = command else { return Err(format!("{command:?}")) };
        Ok(args.args)
    }

    #[test]
    fn values_are_json_where_they_are_json() {
        let args = read(&[
            "stored",
            "bytes=48211900",
            "done=true",
            "ratio=1.50",
            "by=null",
            "file=a=b.webm",
            "id=007",
            "day=2026-12-01",
            "long=12345678901234567890123",
            "quoted=\"42\"",
            "tags=[1,\"a\"]",
            "empty=",
            "broken={\"a\":",
            "ts=5",
        ])
        .expect("each is KEY=VALUE");
        assert_eq!(args.action(), RecordingAction::Publish("stored"));
        assert_eq!(
            Value::Object(args.data()),
            json!({
                "bytes": 48_211_900, "done": true, "ratio": 1.5, "by": null, "file": "a=b.webm", "id": "007",
                "day": "2026-12-01", "long": "12345678901234567890123", "quoted": "42", "tags": [1, "a"], "empty": "",
                "broken": "{\"a\":", "ts": 5,
            })
        );
    }

    #[test]
    fn wrong_usage_is_refused() {
        let long = "a".repeat(MAX_EVENT_BYTES + 1);
        for line in [
            &[][..],
            &["a b"],
            &["*"],
            &["a..b"],
            &[&long],
            &["stored", "file"],
            &["stored", "=a"],
            &["stored", "a=1", "a=2"],
            &["stored", "ts=monday"],
            &["stored", "ts=-1"],
            &["watch", "a=1"],
            &["stored", "watch"],
            &["stored", "--failures"],
        ] {
            assert!(read(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn watch_stands_in_the_place_of_an_event() {
        let action = |line: &[&str]| match read(line).expect("settings are good").action() {
            RecordingAction::Watch(args) => Some((args.failures, args.json)),
            RecordingAction::Publish(_) => None,
        };
        assert_eq!(action(&["watch"]), Some((false, false)));
        assert_eq!(action(&["watch", "--failures", "--json"]), Some((true, true)));
        assert_eq!(action(&["watching"]), None);
    }
}
