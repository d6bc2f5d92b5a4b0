//! The settings of `recording`.

use std::collections::BTreeSet;

use clap::{Args, Subcommand};
use serde_json::{Map, Value};
use transcript_publishing::MAX_EVENT_BYTES;

use super::parse;

/// The settings of `recording`.
#[derive(Debug, Clone, PartialEq, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct RecordingArgs {
    /// What to do, where it is not to publish.
    #[command(subcommand)]
    pub command: Option<RecordingCommand>,
    /// Name of the event, such as stored or stop-requested; one called watch is given behind --
    #[arg(value_name = "EVENT", required = true, value_parser = event)]
    pub event: Option<String>,
    /// Data of the event
    #[arg(value_name = "KEY=VALUE", value_parser = field)]
    pub fields: Vec<(String, Value)>,
}

/// What to do with the events of recordings.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum RecordingCommand {
    /// Print the events from the stream's start, and then as they come
    ///
    /// One line for each: when, what, and its data. Ends with a signal, or when nobody reads its output any more; where NATS is
    /// away it waits and goes on.
    Watch(WatchArgs),
}

/// The settings of `recording watch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub struct WatchArgs {
    /// Only events whose data has a reason: what went wrong
    #[arg(long)]
    pub failures: bool,
    /// Print one JSON object a line: sequence, event, storedAt, and data; payload in place of data where that is no object
    #[arg(long)]
    pub json: bool,
}

impl RecordingArgs {
    /// The data of the event.
    #[must_use]
    pub fn data(&self) -> Map<String, Value> {
        self.fields.iter().cloned().collect()
    }

    pub(super) fn check(&self) -> Result<(), String> {
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
        Ok(args)
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
        .unwrap();
        assert_eq!(args.event.as_deref(), Some("stored"));
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
        ] {
            assert!(read(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn watch_is_a_command_and_can_be_an_event() {
        let watch = |failures, json| Some(RecordingCommand::Watch(WatchArgs { failures, json }));
        assert_eq!(read(&["watch"]).unwrap().command, watch(false, false));
        assert_eq!(read(&["watch", "--failures", "--json"]).unwrap().command, watch(true, true));
        let args = read(&["--", "watch", "a=1"]).unwrap();
        assert_eq!((args.event.as_deref(), args.command.is_none()), (Some("watch"), true));
    }
}
