//! The client against a store that answers as it is told.
#![expect(clippy::wildcard_enum_match_arm, reason = "a server that has its own way with one kind of command")]

mod batches;
mod loads;
mod timeouts;

use std::{collections::BTreeMap, sync::Arc};

use transcript_core::{
    Failure, FailureKind, Notified, Report, Stored, Tally, Time, TranscriptVersion, WallTime,
    contract::Announcement,
    ids::{EffectId, JobId, Session},
    summary::{Limits, Order, Summarizer, Summary},
};

use super::*;

/// An id as the core gives them; nobody else can make one.
fn effect(job: u64) -> EffectId {
    let job: JobId = serde_json::from_value(job.into()).expect("a job's id is a number");
    EffectId { job, number: 1 }
}

fn job(effect: EffectId) -> u64 {
    serde_json::from_value(serde_json::to_value(effect.job).expect("an id is JSON")).expect("a job's id is a number")
}

fn summary(number: u64, segments: u64) -> Arc<Summary> {
    let session = Session::new("c", &format!("s{number}")).expect("ids");
    let empty = Summarizer::new(Limits::default()).finish(&session, 0, WallTime::from_millis(0));
    Arc::new(Summary { segments, ..empty })
}

fn mark(number: u64) -> Request {
    let notified = Notified { stream_sequence: number, at: WallTime::from_millis(0) };
    Request::Mark(Mark {
        key: summary(number, 0).key.clone(),
        announcement: Announcement::Processed,
        announced: TranscriptVersion { segments: 3, edits: 0 },
        notified,
    })
}

fn stored(segments: u64) -> Stored {
    Stored { segments, complete: true, notified: None, revision: 1, revised: None, edits: 0, reprocess: 0 }
}

/// A client, with what it said sorted.
struct Driven {
    client: Client,
    running: Vec<(CommandId, Command)>,
    reports: BTreeMap<u64, Report>,
    notices: Vec<String>,
}

impl Default for Driven {
    fn default() -> Self {
        let client = Client::new(std::time::Duration::from_secs(10));
        Self { client, running: vec![], reports: BTreeMap::new(), notices: vec![] }
    }
}

impl Driven {
    fn ask(&mut self, job: u64, request: Request) {
        self.client.handle(Time::ZERO, Input::Asked { id: effect(job), request });
    }

    fn answer(&mut self, id: CommandId, reply: Reply) {
        self.client.handle(Time::ZERO, Input::Answered { id, reply });
    }

    /// Takes everything that it has to say.
    fn poll(&mut self) {
        while let Some(output) = self.client.poll_output() {
            match output {
                Output::Run { id, command } => self.running.push((id, command)),
                Output::Report { effect, report } => {
                    assert!(self.reports.insert(job(effect), report).is_none(), "reported once");
                }
                Output::Notice(notice) => self.notices.push(notice.to_string()),
            }
        }
    }

    /// Answers every command until there is none, and tells which commands there were.
    fn run(&mut self, mut server: impl FnMut(&Command) -> Reply) -> Vec<Command> {
        let mut commands = vec![];
        loop {
            self.poll();
            let Some((id, command)) = self.running.pop() else { return commands };
            let reply = server(&command);
            commands.push(command);
            self.answer(id, reply);
        }
    }

    fn failure(&self, job: u64) -> &Failure {
        match self.reports.get(&job) {
            Some(Report::Failed(failure)) => failure,
            other => panic!("job {job} did not fail: {other:?}"),
        }
    }
}

/// A server on which every write succeeds and every summary has as many segments as were saved.
fn well(command: &Command) -> Reply {
    match command {
        Command::Count { sessions } => Reply::Counted(vec![1; sessions.len()]),
        Command::LoadSmall { .. } => Reply::Small { sessions: vec![], end: SmallEnd::All },
        Command::Tally { .. } => Reply::Tallied(Tally { segments: 11, ..Tally::default() }),
        Command::Page { .. } => Reply::Page(PageRead::default()),
        Command::Save { .. } | Command::Mark { .. } => Reply::Written(WriteErrors::default()),
        Command::ReadBack { keys } => {
            Reply::ReadBack(keys.iter().map(|key| (key.as_str().to_owned(), stored(9))).collect())
        }
    }
}

/// How many members a command has.
fn members(command: &Command) -> usize {
    match command {
        Command::Count { sessions } => sessions.len(),
        Command::LoadSmall { calls, .. } => calls.len(),
        Command::Tally { .. } | Command::Page { .. } => 1,
        Command::Save { summaries, .. } => summaries.len(),
        Command::ReadBack { keys } => keys.len(),
        Command::Mark { marks } => marks.len(),
    }
}

/// Whether a command writes the summary of this number.
fn writes(command: &Command, number: u64) -> bool {
    let key = summary(number, 0).key.clone();
    match command {
        Command::Save { summaries, .. } => summaries.iter().any(|summary| summary.key == key),
        Command::Mark { marks } => marks.iter().any(|mark| mark.key == key),
        Command::Count { .. }
        | Command::LoadSmall { .. }
        | Command::Tally { .. }
        | Command::Page { .. }
        | Command::ReadBack { .. } => false,
    }
}

fn rejected(failure: &Failure) -> bool {
    failure.kind == FailureKind::Rejected
}
