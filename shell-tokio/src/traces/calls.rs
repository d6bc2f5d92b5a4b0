//! Which calls are in traces.

use std::collections::{BTreeMap, btree_map::Entry};

use serde::Serialize;
use transcript_core::{
    Acknowledgement, Effect, Input, Output, Time, WallTime,
    event::SessionEnded,
    ids::{JobId, Key, Session},
};
use transcript_trace::{Line, ProcessHeader, ProcessLine, Processes, ReadError, Said};

use super::list::moment;
use crate::terminal::harmless;

/// What became of a call.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Call {
    /// What the call is known by.
    key: Key,
    #[serde(flatten)]
    session: Session,
    /// Milliseconds since the Unix epoch.
    delivered_at: WallTime,
    deliveries: u64,
    jobs: u64,
    last: &'static str,
}

/// The calls, in the order of their first deliveries.
pub(super) fn calls(lines: impl Iterator<Item = Result<Line, ReadError>>) -> Result<Vec<Call>, ReadError> {
    let mut calls: BTreeMap<Session, Call> = BTreeMap::new();
    let mut jobs: BTreeMap<JobId, Session> = BTreeMap::new();
    let (mut started_at, mut at) = (WallTime::from_millis(0), Time::ZERO);
    let mut current = None;
    for line in Processes::of(lines) {
        let entry = match line {
            Err(ReadError::CutOff { .. }) => continue,
            Err(error) => return Err(error),
            Ok(ProcessLine::Header(ProcessHeader { header, process, .. })) => {
                if current.replace(process) != Some(process) {
                    jobs.clear();
                }
                started_at = header.started_at;
                continue;
            }
            Ok(ProcessLine::Entry(entry)) => entry,
            Ok(ProcessLine::TranscriberHeader(_) | ProcessLine::TranscriberEntry(_)) => continue,
        };
        at = entry.at.unwrap_or(at);
        match entry.said {
            Said::In(Input::Delivered(delivery)) => {
                let Ok(SessionEnded { session, .. }) = SessionEnded::parse(&delivery.payload.0) else { continue };
                let delivered_at = started_at.after(at.since(Time::ZERO));
                let call = calls.entry(session.clone()).or_insert_with(|| Call {
                    key: session.key(),
                    session: session.clone(),
                    delivered_at,
                    deliveries: 0,
                    jobs: 0,
                    last: "under way",
                });
                call.deliveries += 1;
                if let Some(Entry::Vacant(job)) = entry.job.map(|job| jobs.entry(job)) {
                    call.jobs += 1;
                    call.last = "under way";
                    job.insert(session);
                }
            }
            Said::Out(Output::Perform { id, effect }) => {
                let call = jobs.get(&id.job).and_then(|session| calls.get_mut(session));
                if let (Some(call), Some(last)) = (call, last_word(&effect)) {
                    call.last = last;
                }
            }
            Said::In(_) | Said::Out(_) | Said::LeftOut(_) | Said::Note(_) => {}
        }
    }
    let mut calls: Vec<_> = calls.into_values().collect();
    calls.sort_by_key(|call| call.delivered_at);
    Ok(calls)
}

/// A line for each call.
pub(super) fn table(calls: &[Call]) -> String {
    let mut text = format!("{:<20}  {:>10}  {:>4}  {:<15}  call\n", "delivered", "deliveries", "jobs", "last");
    for Call { key, delivered_at, deliveries, jobs, last, .. } in calls {
        let delivered = moment(*delivered_at);
        text += &format!("{delivered:<20}  {deliveries:>10}  {jobs:>4}  {last:<15}  {}\n", harmless(key.as_str()));
    }
    text
}

/// What an effect makes of a call, in a word.
fn last_word(effect: &Effect) -> Option<&'static str> {
    if matches!(effect, Effect::DeadLetter { .. }) {
        return Some("dead letter");
    }
    if matches!(effect, Effect::Republish { .. }) {
        return Some("published again");
    }
    let Effect::Acknowledge { acknowledgement, .. } = effect else { return None };
    match acknowledgement {
        Acknowledgement::Ack => Some("done"),
        Acknowledgement::Nak { .. } => Some("given back"),
        // A dead letter, and an end that was published again, are terminated.
        Acknowledgement::Term { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::BufReader, path::Path};

    use transcript_trace::Reader;

    use super::*;

    fn calls_of(trace: &str) -> Vec<String> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/traces").join(trace);
        let lines = Reader::new(BufReader::new(File::open(path).expect("the fixture is there")));
        let text = table(&calls(lines).expect("it can be read"));
        text.lines().skip(1).map(|line| line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn each_call_has_its_line() {
        assert_eq!(calls_of("plain-call.jsonl"), ["1 1 done olive-oil:2024-11-05"]);
        assert_eq!(calls_of("killed-after-notify.jsonl"), ["2 2 done conversation:killed"]);
        assert_eq!(calls_of("mongodb-away.jsonl").len(), 2);
        let few = calls_of("rollout-of-few-attempts.jsonl");
        assert!(few.iter().any(|call| call.starts_with("2 2 done")), "{few:?}");
    }
}
