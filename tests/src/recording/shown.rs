//! What a trace shows, counted.

use std::collections::BTreeMap;

use transcript_core::{Acknowledgement, Effect, Input, Output, Report, ids::EffectId};
use transcript_trace::{Note, Said, Server};

use super::trace::{Trace, TracePart};

/// What a trace shows. Of several processors, or lives of one, everything together in the order of the parts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shown {
    /// Of each delivery.
    pub attempts: Vec<u64>,
    /// Deliveries of ends that were published again.
    pub redriven: u64,
    /// Messages that used up their deliveries.
    pub exhausted: u64,
    /// What each count found.
    pub counts: Vec<u64>,
    /// The summaries that were to be saved: their segments, and whether they were complete.
    pub summaries: Vec<(u64, bool)>,
    /// The places of notifications in the stream, as they were confirmed.
    pub published: Vec<u64>,
    /// Marks that were confirmed.
    pub marked: u64,
    /// Dead letters that were confirmed.
    pub dead_lettered: u64,
    /// Ends published again.
    pub republished: u64,
    /// Acknowledgements that were confirmed, by their names.
    pub acknowledged: BTreeMap<&'static str, u64>,
    /// Why deliveries were terminated.
    pub terminated: Vec<String>,
    /// Effects that failed, by their names.
    pub failed: BTreeMap<&'static str, u64>,
    /// Effects of which no report ever came, by their names.
    pub unanswered: Vec<&'static str>,
    /// Heartbeats.
    pub heartbeats: u64,
    /// How often a processor was asked to drain, and did.
    pub drained: u64,
    /// Kills.
    pub killed: u64,
    /// Freezes.
    pub frozen: u64,
    /// Servers that were away.
    pub away: Vec<Server>,
    /// Segments that were stored, each time that some were.
    pub stored: Vec<u64>,
    /// What else was noted.
    pub remarks: Vec<String>,
}

impl Shown {
    /// All of a trace.
    #[must_use]
    pub fn of(trace: &Trace) -> Self {
        let mut shown = Self::default();
        trace.parts.iter().for_each(|part| shown.part(part));
        shown
    }

    /// How many of these acknowledgements were confirmed.
    #[must_use]
    pub fn confirmed(&self, acknowledgement: &str) -> u64 {
        self.acknowledged.get(acknowledgement).copied().unwrap_or(0)
    }

    /// How many of these effects failed.
    #[must_use]
    pub fn failures(&self, effect: &str) -> u64 {
        self.failed.get(effect).copied().unwrap_or(0)
    }

    /// How many of these effects had no report.
    #[must_use]
    pub fn without_answer(&self, effect: &str) -> usize {
        self.unanswered.iter().filter(|unanswered| **unanswered == effect).count()
    }

    fn part(&mut self, part: &TracePart) {
        let mut asked = BTreeMap::<EffectId, &'static str>::new();
        for entry in &part.entries {
            match &entry.said {
                Said::In(Input::Reported { effect, report }) => self.reported(asked.remove(effect), report),
                Said::In(input) => self.told(input),
                Said::Out(Output::Perform { id, effect }) => {
                    self.asks(effect);
                    asked.insert(*id, effect.word());
                }
                Said::Out(Output::InProgress { .. }) => self.heartbeats += 1,
                Said::Out(Output::Drained) => self.drained += 1,
                Said::Out(Output::StopDeliveries | Output::Notice(_) | Output::Wait(_)) | Said::LeftOut(_) => {}
                Said::Note(note) => self.noted(note),
            }
        }
        self.unanswered.extend(asked.into_values());
    }

    fn told(&mut self, input: &Input) {
        match input {
            Input::Delivered(delivery) => {
                self.attempts.push(delivery.attempt);
                self.redriven += u64::from(delivery.redrive_of.is_some());
            }
            Input::Exhausted(_) => self.exhausted += 1,
            Input::Reported { .. }
            | Input::Stale(_)
            | Input::Consumer(_)
            | Input::Woken
            | Input::Quiet
            | Input::Resume
            | Input::Drain
            | Input::DeliveriesStopped => {}
        }
    }

    fn asks(&mut self, effect: &Effect) {
        match effect {
            Effect::Save { summary } => self.summaries.push((summary.segments, summary.complete)),
            Effect::Acknowledge { acknowledgement: Acknowledgement::Term { reason }, .. } => {
                self.terminated.push(reason.clone());
            }
            Effect::Count { .. }
            | Effect::Load { .. }
            | Effect::Check { .. }
            | Effect::Publish { .. }
            | Effect::Mark { .. }
            | Effect::DeadLetter { .. }
            | Effect::Republish { .. }
            | Effect::Acknowledge { .. } => {}
        }
    }

    fn reported(&mut self, effect: Option<&'static str>, report: &Report) {
        let effect = effect.unwrap_or("nothing");
        match report {
            Report::Counted { segments } => self.counts.push(*segments),
            Report::Published { stream_sequence, .. } => self.published.push(*stream_sequence),
            Report::Marked => self.marked += 1,
            Report::DeadLettered { .. } => self.dead_lettered += 1,
            Report::Republished { .. } => self.republished += 1,
            Report::Acknowledged => *self.acknowledged.entry(effect).or_default() += 1,
            Report::Failed(_) => *self.failed.entry(effect).or_default() += 1,
            Report::Loaded(_) | Report::Saved(_) | Report::Checked(_) => {}
        }
    }

    fn noted(&mut self, note: &Note) {
        match note {
            Note::Stored { segments, .. } => self.stored.push(*segments),
            Note::Killed => self.killed += 1,
            Note::Frozen { .. } => self.frozen += 1,
            Note::Away { server, .. } => self.away.push(*server),
            Note::Remark(remark) => self.remarks.push(remark.clone()),
        }
    }
}
