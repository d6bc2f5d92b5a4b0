//! What the processor asks about a job.

use std::{sync::Arc, time::Duration};

use super::{Event, Job, Outcome, Phase, State, Weight, effect::page_bytes};
use crate::{
    contract::Announcement,
    counters::{JobView, Settled},
    ids::{EffectId, Key},
    input::Report,
    journal::{JobBegan, JobMoved},
    kind::EffectKind,
    output::{Acknowledgement, Done},
    served::Service,
    settings::Settings,
    time::Time,
};

impl Job {
    pub(crate) fn state(&self) -> State {
        match self.phase {
            Phase::Over => State::Over,
            Phase::Queued { .. } => State::Queued,
            Phase::Quiet { .. } => State::Quiet,
            Phase::Counting { .. } => State::Counting,
            Phase::Loading { .. } => State::Loading,
            Phase::Saving { .. } => State::Saving,
            Phase::Checking { .. } => State::Checking,
            Phase::Publishing { .. } => State::Publishing,
            Phase::Marking { .. } => State::Marking,
            Phase::DeadLettering { .. } => State::DeadLettering,
            Phase::Republishing { .. } => State::Republishing,
            Phase::Acknowledging { .. } => State::Acknowledging,
        }
    }

    pub(crate) fn reply(&self) -> Option<&Arc<str>> {
        self.reply.as_ref()
    }

    /// Whether it is about a message that used up its deliveries: it has no delivery, and names a message all the same.
    pub(crate) fn is_about_exhausted(&self) -> bool {
        self.reply.is_none() && self.stream_sequence > 0
    }

    pub(crate) fn stream_sequence(&self) -> u64 {
        self.stream_sequence
    }

    pub(crate) fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// The kind of effect that it has asked for, or is about to.
    pub(crate) fn kind(&self) -> Option<EffectKind> {
        self.phase.kind()
    }

    /// What it needs of a server for that.
    pub(crate) fn service(&self) -> Option<Service> {
        self.phase.service()
    }

    /// Whether it is about to ask for a page.
    pub(crate) fn is_loading(&self) -> bool {
        matches!(self.phase, Phase::Loading { .. })
    }

    /// How many bytes the page may bring that it is about to ask for.
    pub(crate) fn next_page_bytes(&self, settings: &Settings) -> Option<u64> {
        let Phase::Loading { loading, .. } = &self.phase else { return None };
        Some(page_bytes(loading, settings))
    }

    /// What it has to be reckoned with for.
    pub(crate) fn weight(&self, settings: &Settings) -> Weight {
        let awaits_page = self.is_loading() && self.awaited.is_some();
        let (held, awaited) = match &self.phase {
            Phase::Loading { loading, .. } => {
                (loading.held_bytes(), if awaits_page { page_bytes(loading, settings) } else { 0 })
            }
            Phase::Saving { bytes, .. } => (*bytes, 0),
            Phase::Over
            | Phase::Queued { .. }
            | Phase::Quiet { .. }
            | Phase::Counting { .. }
            | Phase::Checking { .. }
            | Phase::Publishing { .. }
            | Phase::Marking { .. }
            | Phase::DeadLettering { .. }
            | Phase::Republishing { .. }
            | Phase::Acknowledging { .. } => (0, 0),
        };
        Weight { bytes: u64::try_from(held).unwrap_or(u64::MAX).saturating_add(awaited), awaits_page }
    }

    /// Whether it is about to be given back to JetStream.
    pub(crate) fn gives_back(&self) -> bool {
        matches!(self.phase, Phase::Acknowledging { acknowledgement: Acknowledgement::Nak { .. } })
    }

    /// Whether `report` is what this job waits for.
    pub(crate) fn awaits(&self, effect: EffectId, report: &Report) -> bool {
        self.awaited == Some(effect.number) && (matches!(report, Report::Failed(_)) || self.expects(report))
    }

    fn expects(&self, report: &Report) -> bool {
        matches!(
            (&self.phase, report),
            (Phase::Counting { .. }, Report::Counted { .. })
                | (Phase::Loading { .. }, Report::Loaded(_))
                | (Phase::Saving { .. }, Report::Saved(_))
                | (Phase::Checking { .. }, Report::Checked(_))
                | (Phase::Publishing { .. }, Report::Published { .. })
                | (Phase::Marking { .. }, Report::Marked)
                | (Phase::DeadLettering { .. }, Report::DeadLettered { .. })
                | (Phase::Republishing { .. }, Report::Republished { .. })
                | (Phase::Acknowledging { .. }, Report::Acknowledged)
        )
    }

    /// How long ago its end was stored; how long ago it began, for a job without a delivery.
    pub(crate) fn age(&self, now: Time) -> Duration {
        self.age + now.since(self.delivered)
    }

    /// What is known of it.
    pub(crate) fn view(&self, now: Time) -> JobView {
        let Self { id: job, attempt, retries: failures, .. } = *self;
        JobView { job, key: self.key.clone(), state: self.state(), attempt, failures, age: self.age(now) }
    }

    /// What is to be counted of its settling, once.
    pub(crate) fn take_settled(&mut self) -> Option<Settled> {
        self.settled.take()
    }

    /// How long after its end was stored the first notification of its call was, where this event says that it was.
    pub(crate) fn first_notification(&self, event: &Event, now: Time) -> Option<Duration> {
        let is_published = matches!(event, Event::Reported(Report::Published { .. }));
        (is_published && !self.announces_revision()).then(|| self.age(now))
    }

    /// Whether it publishes that a summary was replaced.
    pub(crate) fn announces_revision(&self) -> bool {
        matches!(self.phase, Phase::Publishing { announcement: Announcement::Revised { .. }, .. })
    }

    /// What became of its call, once that is announced.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    /// What is said of a call that is done.
    pub(crate) fn done(&self, now: Time, published_segments: u64) -> Option<Done> {
        let Outcome { segments, complete, .. } = self.outcome?;
        Some(Done {
            job: self.id,
            key: self.key.clone()?,
            stream_sequence: self.reply.as_ref().map(|_| self.stream_sequence),
            segments,
            published_segments,
            complete,
            attempts: self.attempt,
            took: now.since(self.delivered),
        })
    }

    /// How its journal begins.
    pub(crate) fn began(&self) -> JobBegan {
        JobBegan {
            state: self.state(),
            key: self.key.clone(),
            stream_sequence: (self.stream_sequence > 0).then_some(self.stream_sequence),
            attempt: self.attempt,
            age: self.age,
            trace_context: self.trace_context.clone(),
        }
    }

    /// Where it stands, for its journal.
    pub(crate) fn moved(&self, done: Option<Done>) -> JobMoved {
        let announcement =
            if let Phase::Publishing { announcement, .. } = &self.phase { Some(*announcement) } else { None };
        let acknowledgement = if let Phase::Acknowledging { acknowledgement } = &self.phase {
            Some(acknowledgement.into())
        } else {
            None
        };
        JobMoved { to: self.state(), announcement, acknowledgement, done }
    }

    /// How many segments its end announced.
    pub(crate) fn published_segments(&self) -> Option<u64> {
        match &self.phase {
            Phase::Queued { call }
            | Phase::Quiet { call, .. }
            | Phase::Counting { call, .. }
            | Phase::Loading { call, .. }
            | Phase::Saving { call, .. }
            | Phase::Checking { call, .. }
            | Phase::Publishing { call, .. }
            | Phase::Marking { call, .. }
            | Phase::Republishing { call } => Some(call.published_segments),
            Phase::Over | Phase::DeadLettering { .. } | Phase::Acknowledging { .. } => None,
        }
    }
}

impl Phase {
    /// The kind of the phase's effect.
    pub(super) fn kind(&self) -> Option<EffectKind> {
        match self {
            Self::Over | Self::Queued { .. } | Self::Quiet { .. } => None,
            Self::Counting { .. } => Some(EffectKind::Count),
            Self::Loading { .. } => Some(EffectKind::Load),
            Self::Saving { .. } => Some(EffectKind::Save),
            Self::Checking { .. } => Some(EffectKind::Check),
            Self::Publishing { .. } => Some(EffectKind::Publish),
            Self::Marking { .. } => Some(EffectKind::Mark),
            Self::DeadLettering { .. } => Some(EffectKind::DeadLetter),
            Self::Republishing { .. } => Some(EffectKind::Republish),
            Self::Acknowledging { .. } => Some(EffectKind::Acknowledge),
        }
    }

    /// What the phase's effect needs of its server.
    pub(super) fn service(&self) -> Option<Service> {
        match self {
            Self::Publishing { announcement, .. } => Some(Service::of_publishing(*announcement)),
            Self::Over
            | Self::Queued { .. }
            | Self::Quiet { .. }
            | Self::Counting { .. }
            | Self::Loading { .. }
            | Self::Saving { .. }
            | Self::Checking { .. }
            | Self::Marking { .. }
            | Self::DeadLettering { .. }
            | Self::Republishing { .. }
            | Self::Acknowledging { .. } => self.kind().map(Service::of),
        }
    }
}
