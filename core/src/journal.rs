//! What jobs do, step by step, for whoever makes spans of it.
//!
//! Nothing is decided by it: a processor that keeps no journal says the same.

use std::{sync::Arc, time::Duration};

use crate::{
    contract::{
        Announcement,
        trace_context::{SpanId, TraceContext, TraceId},
    },
    failure::FailureKind,
    ids::{JobId, Key},
    job::State,
    output::{Acknowledgement, Done},
    time::Time,
};

/// Something that a job did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalEntry {
    /// The job.
    pub job: JobId,
    /// When.
    pub at: Time,
    /// What.
    pub event: JournalEvent,
}

/// What a job did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JournalEvent {
    /// It began.
    Began(Box<JobBegan>),
    /// It stands elsewhere from now on; [`State::Over`] is the last entry of a job.
    Moved(JobMoved),
    /// Its step failed. It is tried again, unless the next entry says otherwise.
    Failed(FailureKind),
    /// Its message was handed over again.
    Redelivered,
}

/// A job that began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobBegan {
    /// Where it stands.
    pub state: State,
    /// The call, where the payload named one.
    pub key: Option<Key>,
    /// Its message's place in the stream; `None` where it is about no message.
    pub stream_sequence: Option<u64>,
    /// How often the message was handed over, as JetStream counts.
    pub attempt: u64,
    /// How long before its hand-over the message was stored.
    pub age: Duration,
    /// The trace that the message belongs to.
    pub trace_context: Option<Arc<TraceContext>>,
}

/// Where a job stands from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobMoved {
    /// Where.
    pub to: State,
    /// What it publishes, of [`State::Publishing`].
    pub announcement: Option<Announcement>,
    /// How it acknowledges, of [`State::Acknowledging`].
    pub acknowledgement: Option<AcknowledgementKind>,
    /// Its call is done.
    pub done: Option<Done>,
}

/// A kind of [`Acknowledgement`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcknowledgementKind {
    /// Done.
    Ack,
    /// To be delivered again.
    Nak,
    /// Never to be delivered again.
    Term,
}

impl AcknowledgementKind {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ack => "ack",
            Self::Nak => "nak",
            Self::Term => "term",
        }
    }
}

impl From<&Acknowledgement> for AcknowledgementKind {
    fn from(acknowledgement: &Acknowledgement) -> Self {
        match acknowledgement {
            Acknowledgement::Ack => Self::Ack,
            Acknowledgement::Nak { .. } => Self::Nak,
            Acknowledgement::Term { .. } => Self::Term,
        }
    }
}

/// The numbers of the spans of one process. They are derived and not drawn, so that whoever sends a message and whoever
/// tells the span of sending it name the same span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanIds {
    seed: u64,
}

/// What a derived number is for.
#[derive(Debug, Clone, Copy)]
enum Purpose {
    Trace,
    Job,
    Step,
    Announcement,
}

impl SpanIds {
    /// The numbers of a process, of a seed that no other start of a process has.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// The trace of a job whose message belongs to none.
    #[must_use]
    pub fn trace(self, job: JobId) -> TraceId {
        let (high, low) = (self.derived(job, Purpose::Trace, 0), self.derived(job, Purpose::Trace, 1));
        TraceId::new(u128::from(high) << 64 | u128::from(low))
    }

    /// The span of a whole job.
    #[must_use]
    pub fn job(self, job: JobId) -> SpanId {
        SpanId::new(self.derived(job, Purpose::Job, 0))
    }

    /// The span of the job's step of this number.
    #[must_use]
    pub fn step(self, job: JobId, number: u64) -> SpanId {
        SpanId::new(self.derived(job, Purpose::Step, number))
    }

    /// The span of the step in which the job publishes this.
    #[must_use]
    pub fn announcement(self, job: JobId, announcement: Announcement) -> SpanId {
        let revision = match announcement {
            Announcement::Processed | Announcement::ProcessedOnce => 1,
            Announcement::Revised { revision } => revision,
        };
        SpanId::new(self.derived(job, Purpose::Announcement, revision))
    }

    /// The context of a notification. One of a trace that is not kept goes on as it came.
    #[must_use]
    pub fn of_announcement(
        self,
        job: JobId,
        announcement: Announcement,
        of_end: Option<&TraceContext>,
    ) -> TraceContext {
        match of_end {
            Some(context) if !context.is_sampled() => context.clone(),
            Some(context) => context.sent_by(self.announcement(job, announcement)),
            None => TraceContext::begin(self.trace(job), self.announcement(job, announcement)),
        }
    }

    /// The mixing function of `SplitMix64`, over everything that a number depends on: no two of its inputs are mixed to one.
    fn derived(self, job: JobId, purpose: Purpose, number: u64) -> u64 {
        let purpose = match purpose {
            Purpose::Trace => 1,
            Purpose::Job => 2,
            Purpose::Step => 3,
            Purpose::Announcement => 4,
        };
        [job.0, purpose, number].into_iter().fold(self.seed, |sum, part| mixed(sum ^ part))
    }
}

fn mixed(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_spans_of_a_process_have_the_same_number() {
        let ids = SpanIds::new(7);
        let mut spans = BTreeSet::new();
        for job in (1..1000).map(JobId) {
            assert!(spans.insert(ids.job(job)));
            assert!((0..10).all(|step| spans.insert(ids.step(job, step))));
            assert!(spans.insert(ids.announcement(job, Announcement::Processed)));
            assert!(spans.insert(ids.announcement(job, Announcement::Revised { revision: 2 })));
        }
        assert_ne!(ids.trace(JobId(1)), ids.trace(JobId(2)));
        assert_ne!(ids.trace(JobId(1)), SpanIds::new(8).trace(JobId(1)));
    }

    #[test]
    fn a_notification_is_of_the_trace_of_its_end() {
        let (ids, job) = (SpanIds::new(7), JobId(3));
        let of_end = TraceContext::begin(TraceId::new(1), SpanId::new(2));
        let context = ids.of_announcement(job, Announcement::Processed, Some(&of_end));
        assert_eq!(context.trace, of_end.trace);
        assert_eq!(context.span, ids.announcement(job, Announcement::Processed));
        let not_kept = TraceContext { flags: 0, ..of_end };
        assert_eq!(ids.of_announcement(job, Announcement::Processed, Some(&not_kept)), not_kept);
        assert_eq!(ids.of_announcement(job, Announcement::Processed, None).trace, ids.trace(job));
    }
}
