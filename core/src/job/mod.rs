//! One delivery, from hand-over to its last acknowledgement.
//!
//! Before its delivery a job is as little there as when it is over. It is over when it has left this table: its
//! acknowledgement is confirmed, or it was given up and JetStream will deliver the message again. Two kinds of job have no
//! delivery: one that keeps a message which used up its deliveries as a dead letter, and one that replaces a summary which
//! its session has made stale. They end where others acknowledge.
//!
//! Where the table says *give up*, an effect has failed for longer than the job's retry timeout while its server served others:
//! the job is given back, or, of the last delivery, kept as a dead letter. What its server refuses is kept as a dead letter
//! at once, because no attempt would end otherwise.
//!
//! | from | on | to | when |
//! |---|---|---|---|
//! | over | delivered | acknowledging | the payload can never be processed (term), or the processor drains (nak) |
//! | over | delivered | dead-lettering | a payload that was published again can still not be processed |
//! | over | delivered | republishing | the processor drains, and attempts are few |
//! | over | delivered | queued | everything else |
//! | over | exhausted | dead-lettering | |
//! | over | stale | queued | |
//! | queued | first of its key | quiet | no earlier job of the same key is at work |
//! | queued | drain | acknowledging | nak |
//! | queued | drain | republishing | attempts are few |
//! | quiet | quiet over | counting | |
//! | quiet | drain | acknowledging | nak |
//! | quiet | drain | republishing | attempts are few |
//! | quiet | drain | over | there is no delivery |
//! | counting | counted | quiet | the count differs from the one before |
//! | counting | counted | loading | two counts agree, or it was the last round |
//! | counting | failed | counting | again, after a pause |
//! | counting | failed | acknowledging | give up: nak with a delay |
//! | counting | failed | dead-lettering | give up, or refused |
//! | counting | failed | over | give up, or refused, without a delivery |
//! | counting | drain | acknowledging | nak |
//! | counting | drain | republishing | attempts are few |
//! | counting | drain | over | there is no delivery |
//! | loading | loaded | loading | there are more pages |
//! | loading | loaded | saving | it was the last page |
//! | loading | loaded | dead-lettering | the summary step panicked |
//! | loading | loaded | over | the summary step panicked, without a delivery |
//! | loading | failed | loading | again, after a pause |
//! | loading | failed | acknowledging | give up: nak with a delay |
//! | loading | failed | dead-lettering | give up, or refused |
//! | loading | failed | over | give up, or refused, without a delivery |
//! | loading | drain | acknowledging | nak |
//! | loading | drain | republishing | attempts are few |
//! | loading | drain | over | there is no delivery |
//! | saving | saved | publishing | the summary carries no mark, or one of an earlier revision |
//! | saving | saved | acknowledging | it was announced before: ack |
//! | saving | saved | over | there is nothing to announce, without a delivery |
//! | saving | failed | saving | again, after a pause |
//! | saving | failed | acknowledging | give up: nak with a delay |
//! | saving | failed | dead-lettering | give up, or refused |
//! | saving | failed | over | give up, or refused, without a delivery |
//! | saving | grace over | acknowledging | nak |
//! | saving | grace over | republishing | attempts are few |
//! | saving | grace over | over | there is no delivery |
//! | publishing | published | marking | |
//! | publishing | failed | publishing | again, after a pause |
//! | publishing | failed | acknowledging | give up: nak with a delay |
//! | publishing | failed | dead-lettering | give up, or refused |
//! | publishing | failed | over | give up, or refused, without a delivery |
//! | publishing | grace over | acknowledging | nak |
//! | publishing | grace over | republishing | attempts are few |
//! | publishing | grace over | over | there is no delivery |
//! | marking | marked | acknowledging | ack |
//! | marking | marked | over | there is no delivery |
//! | marking | failed | marking | again, after a pause |
//! | marking | failed | acknowledging | give up: nak with a delay |
//! | marking | failed | dead-lettering | give up, or refused |
//! | marking | failed | over | give up, or refused, without a delivery |
//! | marking | grace over | acknowledging | nak |
//! | marking | grace over | republishing | attempts are few |
//! | marking | grace over | over | there is no delivery |
//! | dead-lettering | dead-lettered | acknowledging | term |
//! | dead-lettering | dead-lettered | over | there is no delivery |
//! | dead-lettering | failed | dead-lettering | again, after a pause |
//! | dead-lettering | failed | acknowledging | give up, or refused: nak with a delay |
//! | dead-lettering | failed | over | give up, or refused, without a delivery |
//! | republishing | republished | acknowledging | ack |
//! | republishing | failed | republishing | again, after a pause |
//! | republishing | failed | acknowledging | give up, or refused: nak |
//! | acknowledging | acknowledged | over | |
//! | acknowledging | redelivered | acknowledging | again, on the new delivery |
//! | acknowledging | redelivered | over | the nak is what brought it: a new job begins |
//! | acknowledging | failed | acknowledging | again, after a pause |
//! | acknowledging | failed | over | give up, or refused: left to redelivery |
//!
//! A job that is to load a page while there is no room for its bytes waits until there is.
//! When a pause is over the job asks again and stays where it is. A job whose message is delivered again goes on where it
//! is, with the new delivery in place of the one before. When the grace time of a draining processor ends, what has begun
//! to save is given back too; what is left a moment later is over. Attempts are few from the second delivery on, and where
//! there are no more than three.

mod loading;
mod state;

use std::{mem, sync::Arc, time::Duration};

use self::loading::{Loading, Panicked};
pub use self::state::State;
pub(crate) use self::state::{Event, Next};
use crate::{
    contract::{Announcement, DeadLetter, Notification},
    event::SessionEnded,
    failure::{Failure, Remedy, classify},
    ids::{EffectId, JobId, Key},
    input::{Delivery, Exhausted, Notified, Page, Report, StaleSummary, Stored},
    kind::EffectKind,
    output::{Acknowledgement, Effect, Timer},
    served::Served,
    settings::Settings,
    summary::Summary,
    time::{Time, WallTime},
    timers::Timers,
};

/// What the texts of a job take.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Weight {
    /// How many bytes it holds, and has to be ready for.
    pub(crate) bytes: u64,
    /// Whether it waits for a page.
    pub(crate) awaits_page: bool,
}

/// What a page may bring for each segment that was counted, up to the most that any page may bring.
const SEGMENT_BYTES: u64 = 4 << 10;

/// The record of one delivery.
#[derive(Debug)]
pub(crate) struct Job {
    id: JobId,
    stream_sequence: u64,
    attempt: u64,
    /// Where it is acknowledged; `None` for a job without a delivery.
    reply: Option<Arc<str>>,
    /// `None` where the payload named no call.
    key: Option<Key>,
    delivered: Time,
    received_at: WallTime,
    /// When the first quiet period ends: it began when the event was stored.
    settles_at: Time,
    phase: Phase,
    asked: u32,
    /// The number of the effect whose report is awaited.
    awaited: Option<u32>,
    retries: u32,
    failing_since: Option<Time>,
    pub(crate) timers: Timers,
    /// Under which deadline the processor's queue has this job.
    pub(crate) scheduled: Option<Time>,
    /// With what weight the processor reckons it.
    pub(crate) weighed: Weight,
    #[cfg(feature = "planted-bugs")]
    bug: Option<crate::Bug>,
    #[cfg(feature = "planted-bugs")]
    first_count: Option<u64>,
}

#[derive(Debug)]
enum Phase {
    Over,
    Queued { call: SessionEnded },
    Quiet { call: SessionEnded, settling: Settling },
    Counting { call: SessionEnded, settling: Settling },
    Loading { call: SessionEnded, loading: Box<Loading> },
    Saving { call: SessionEnded, summary: Arc<Summary>, bytes: usize },
    Publishing { call: SessionEnded, announcement: Announcement, stored: Stored },
    Marking { call: SessionEnded, announcement: Announcement, segments: u64, notified: Notified },
    DeadLettering { dead_letter: Arc<DeadLetter> },
    Republishing { call: SessionEnded },
    Acknowledging { acknowledgement: Acknowledgement },
}

#[derive(Debug, Default, Clone, Copy)]
struct Settling {
    rounds: u32,
    last: Option<u64>,
}

impl Job {
    /// A job about the call that ended, which waits behind the earlier jobs of its key.
    pub(crate) fn new(
        id: JobId,
        now: Time,
        delivery: &Delivery,
        key: Key,
        call: SessionEnded,
        settings: &Settings,
    ) -> Self {
        let age = delivery.received_at.since(delivery.stored_at);
        let settles_at = now.after(settings.quiet_period.saturating_sub(age));
        Self { key: Some(key), settles_at, ..Self::delivered(id, now, delivery, Phase::Queued { call }, settings) }
    }

    /// A job about a payload that can never be processed. One that somebody published again goes back to the dead letters,
    /// with the reason of today.
    pub(crate) fn rejected(id: JobId, now: Time, delivery: &Delivery, reason: String, settings: &Settings) -> Self {
        let phase = match delivery.redrive_of {
            None => Phase::Acknowledging { acknowledgement: Acknowledgement::Term { reason } },
            Some(_) => Phase::DeadLettering {
                dead_letter: Arc::new(DeadLetter {
                    stream_sequence: delivery.stream_sequence,
                    attempts: delivery.attempt,
                    reason,
                    at: delivery.received_at,
                    ended: None,
                }),
            },
        };
        Self::delivered(id, now, delivery, phase, settings)
    }

    /// A job about a call that came while the processor drains.
    pub(crate) fn handed_on(
        id: JobId,
        now: Time,
        delivery: &Delivery,
        call: SessionEnded,
        settings: &Settings,
    ) -> Self {
        let phase = if are_few(delivery.attempt, settings) {
            Phase::Republishing { call }
        } else {
            Phase::Acknowledging { acknowledgement: Acknowledgement::drained() }
        };
        Self::delivered(id, now, delivery, phase, settings)
    }

    /// A job about a message that used up its deliveries.
    pub(crate) fn exhausted(id: JobId, now: Time, exhausted: &Exhausted) -> Self {
        let Exhausted { stream_sequence, attempts, received_at, payload: _ } = *exhausted;
        let reason = format!("handed over {attempts} times, and each time its process died or was cut off");
        let dead_letter = DeadLetter { stream_sequence, attempts, reason, at: received_at, ended: None };
        let phase = Phase::DeadLettering { dead_letter: Arc::new(dead_letter) };
        Self { stream_sequence, attempt: attempts, ..Self::in_phase(id, now, received_at, phase) }
    }

    /// A job about a session that has more segments than its summary, which waits behind the earlier jobs of its key.
    pub(crate) fn stale(id: JobId, now: Time, key: Key, stale: StaleSummary) -> Self {
        let StaleSummary { session, published_segments, received_at } = stale;
        let phase = Phase::Queued { call: SessionEnded { session, published_segments } };
        Self { key: Some(key), ..Self::in_phase(id, now, received_at, phase) }
    }

    fn delivered(id: JobId, now: Time, delivery: &Delivery, phase: Phase, settings: &Settings) -> Self {
        let mut job = Self::in_phase(id, now, delivery.received_at, phase);
        job.stream_sequence = delivery.stream_sequence;
        job.attempt = delivery.attempt;
        job.reply = Some(Arc::clone(&delivery.reply));
        job.timers.set(Timer::Heartbeat, now.after(settings.heartbeat_interval()));
        job
    }

    fn in_phase(id: JobId, now: Time, received_at: WallTime, phase: Phase) -> Self {
        Self {
            id,
            stream_sequence: 0,
            attempt: 0,
            reply: None,
            key: None,
            delivered: now,
            received_at,
            settles_at: now,
            phase,
            asked: 0,
            awaited: None,
            retries: 0,
            failing_since: None,
            timers: Timers::default(),
            scheduled: None,
            weighed: Weight::default(),
            #[cfg(feature = "planted-bugs")]
            bug: None,
            #[cfg(feature = "planted-bugs")]
            first_count: None,
        }
    }

    #[cfg(feature = "planted-bugs")]
    pub(crate) fn with_bug(self, bug: Option<crate::Bug>) -> Self {
        Self { bug, ..self }
    }

    pub(crate) fn state(&self) -> State {
        match self.phase {
            Phase::Over => State::Over,
            Phase::Queued { .. } => State::Queued,
            Phase::Quiet { .. } => State::Quiet,
            Phase::Counting { .. } => State::Counting,
            Phase::Loading { .. } => State::Loading,
            Phase::Saving { .. } => State::Saving,
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

    /// Whether it is about to ask for a page.
    pub(crate) fn is_loading(&self) -> bool {
        matches!(self.phase, Phase::Loading { .. })
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
                | (Phase::Publishing { .. }, Report::Published { .. })
                | (Phase::Marking { .. }, Report::Marked)
                | (Phase::DeadLettering { .. }, Report::DeadLettered { .. })
                | (Phase::Republishing { .. }, Report::Republished { .. })
                | (Phase::Acknowledging { .. }, Report::Acknowledged)
        )
    }

    /// The one place where a job changes its state; the table above says how.
    pub(crate) fn advance(&mut self, now: Time, event: Event, served: &Served, settings: &Settings) -> Next {
        if let Event::Reported(report) = &event {
            self.settle_account(report);
        }
        let (phase, next) = match (mem::replace(&mut self.phase, Phase::Over), event) {
            (Phase::Queued { call }, Event::FirstOfKey) => {
                let settling = Settling::default();
                #[cfg(feature = "planted-bugs")]
                if self.bug == Some(crate::Bug::NoSettling) {
                    self.settles_at = now;
                }
                (Phase::Quiet { call, settling }, Next::Wait(Timer::Settle, self.settles_at))
            }
            (Phase::Quiet { call, settling }, Event::QuietOver) => (Phase::Counting { call, settling }, Next::Ask),
            (Phase::Counting { call, settling }, Event::Reported(Report::Counted { segments })) => {
                #[cfg(feature = "planted-bugs")]
                let settling = {
                    self.first_count.get_or_insert(segments);
                    let last = settling.last.or((self.bug == Some(crate::Bug::NoSettling)).then_some(segments));
                    Settling { last, ..settling }
                };
                counted(now, call, settling, segments, settings)
            }
            (Phase::Loading { call, loading }, Event::Reported(Report::Loaded(page))) => self
                .loaded(now, call, loading, page)
                .unwrap_or_else(|(call, Panicked)| self.dead_letter(now, Some(call), Panicked::REASON.to_owned())),
            (Phase::Saving { call, .. }, Event::Reported(Report::Saved(stored))) => self.saved(call, stored, settings),
            (
                Phase::Publishing { call, announcement, .. },
                Event::Reported(Report::Published { stream_sequence, segments }),
            ) => {
                let notified = Notified { stream_sequence, at: self.wall(now) };
                (Phase::Marking { call, announcement, segments, notified }, Next::Ask)
            }
            (Phase::Marking { .. }, Event::Reported(Report::Marked)) => self.finished(Acknowledgement::Ack),
            (Phase::DeadLettering { dead_letter }, Event::Reported(Report::DeadLettered { .. })) => {
                self.finished(Acknowledgement::Term { reason: dead_letter.reason.clone() })
            }
            (Phase::Republishing { .. }, Event::Reported(Report::Republished { .. })) => {
                self.finished(Acknowledgement::Ack)
            }
            (Phase::Acknowledging { .. }, Event::Reported(Report::Acknowledged)) => (Phase::Over, Next::End),
            (phase, Event::Reported(Report::Failed(failure))) => self.failed(now, phase, &failure, served, settings),
            (Phase::Acknowledging { acknowledgement: Acknowledgement::Nak { .. } }, Event::Redelivered { .. }) => {
                (Phase::Over, Next::End)
            }
            (phase, Event::Redelivered { reply, attempt }) => {
                self.reply = Some(reply);
                self.attempt = self.attempt.max(attempt);
                let next = if matches!(phase, Phase::Acknowledging { .. }) { Next::Ask } else { Next::Stay };
                (phase, next)
            }
            (phase, Event::PauseOver) => (phase, Next::Ask),
            (
                Phase::Queued { call }
                | Phase::Quiet { call, .. }
                | Phase::Counting { call, .. }
                | Phase::Loading { call, .. },
                Event::Drain,
            )
            | (
                Phase::Saving { call, .. } | Phase::Publishing { call, .. } | Phase::Marking { call, .. },
                Event::GraceOver,
            ) => self.given_back(call, settings),
            (phase, Event::FirstOfKey | Event::QuietOver | Event::Reported(_) | Event::Drain | Event::GraceOver) => {
                (phase, Next::Stay)
            }
        };
        self.phase = phase;
        next
    }

    fn loaded(
        &mut self,
        now: Time,
        call: SessionEnded,
        mut loading: Box<Loading>,
        page: Page,
    ) -> Result<(Phase, Next), (SessionEnded, Panicked)> {
        let folded = loading.fold(
            page,
            #[cfg(feature = "planted-bugs")]
            self.bug,
        );
        if let Err(panicked) = folded {
            return Err((call, panicked));
        }
        if loading.after.is_some() {
            return Ok((Phase::Loading { call, loading }, Next::Ask));
        }
        let bytes = loading.held_bytes();
        match loading.finish(&call, self.wall(now)) {
            Ok(summary) => {
                #[cfg(feature = "planted-bugs")]
                let summary = self.spoil(summary);
                Ok((Phase::Saving { call, summary: Arc::new(summary), bytes }, Next::Ask))
            }
            Err(panicked) => Err((call, panicked)),
        }
    }

    /// A summary is stored: announces it, unless that was done before. A job without a delivery only announces what
    /// replaced an announced summary; the first announcement is the business of the job that has the delivery.
    fn saved(&self, call: SessionEnded, stored: Stored, settings: &Settings) -> (Phase, Next) {
        let announcement = match stored.notified {
            None if self.reply.is_none() => None,
            None if settings.announce_once => Some(Announcement::ProcessedOnce),
            None => Some(Announcement::Processed),
            #[cfg(feature = "planted-bugs")]
            Some(_) if self.bug == Some(crate::Bug::MarkIgnored) => Some(Announcement::Processed),
            Some(_) if settings.revise => {
                stored.unannounced_revision().map(|revision| Announcement::Revised { revision })
            }
            Some(_) => None,
        };
        match announcement {
            Some(announcement) => (Phase::Publishing { call, announcement, stored }, Next::Ask),
            None => self.finished(Acknowledgement::Ack),
        }
    }

    /// The end of the work: the last word on the delivery, where there is one.
    fn finished(&self, acknowledgement: Acknowledgement) -> (Phase, Next) {
        if self.reply.is_some() {
            (Phase::Acknowledging { acknowledgement }, Next::Ask)
        } else {
            (Phase::Over, Next::End)
        }
    }

    /// A draining processor gives the job back. A nak costs an attempt, and a row of rollouts must not use them up: where
    /// they are few the end is published again, and counts from the beginning.
    fn given_back(&self, call: SessionEnded, settings: &Settings) -> (Phase, Next) {
        #[cfg(feature = "planted-bugs")]
        if self.bug == Some(crate::Bug::DrainBurnsAttempts) {
            return self.finished(Acknowledgement::drained());
        }
        if self.reply.is_some() && are_few(self.attempt, settings) {
            (Phase::Republishing { call }, Next::Ask)
        } else {
            self.finished(Acknowledgement::drained())
        }
    }

    /// No attempt will end otherwise: the message is kept for people.
    fn dead_letter(&self, now: Time, ended: Option<SessionEnded>, reason: String) -> (Phase, Next) {
        #[cfg(feature = "planted-bugs")]
        if self.bug == Some(crate::Bug::NoDeadLetter) {
            return self.finished(Acknowledgement::Term { reason });
        }
        if self.reply.is_none() {
            return (Phase::Over, Next::End);
        }
        let Self { stream_sequence, attempt: attempts, .. } = *self;
        let dead_letter = DeadLetter { stream_sequence, attempts, reason, at: self.wall(now), ended };
        (Phase::DeadLettering { dead_letter: Arc::new(dead_letter) }, Next::Ask)
    }

    /// Asks for the effect of the phase. Whatever the job waited for before, it waits for this one's report now.
    pub(crate) fn ask(&mut self, now: Time, settings: &Settings) -> Option<(EffectId, Effect)> {
        let effect = self.effect(settings)?;
        self.asked += 1;
        self.awaited = Some(self.asked);
        self.timers.clear(Timer::Settle);
        self.timers.clear(Timer::Retry);
        self.timers.set(Timer::Answer, now.after(settings.answer_timeout()));
        #[cfg(feature = "planted-bugs")]
        if self.bug == Some(crate::Bug::ReportsAwaitedForEver) {
            self.timers.clear(Timer::Answer);
        }
        if self.gives_back() {
            // A heartbeat would override the delay of the nak: nats-server, consumer.go, progressUpdate.
            self.timers.clear(Timer::Heartbeat);
        }
        Some((EffectId { job: self.id, number: self.asked }, effect))
    }

    fn effect(&self, settings: &Settings) -> Option<Effect> {
        match &self.phase {
            Phase::Over | Phase::Queued { .. } | Phase::Quiet { .. } => None,
            Phase::Counting { call, .. } => Some(Effect::Count { session_id: Arc::clone(&call.session.session_id) }),
            Phase::Loading { call, loading } => Some(Effect::Load {
                session_id: Arc::clone(&call.session.session_id),
                after: loading.after.clone(),
                limit: settings.page_size,
                max_bytes: page_bytes(loading, settings),
                counted: loading.counted,
            }),
            Phase::Saving { summary, .. } => Some(Effect::Save { summary: Arc::clone(summary) }),
            Phase::Publishing { call, announcement, stored } => Some(Effect::Publish {
                key: self.key.clone()?,
                announcement: *announcement,
                notification: Notification {
                    session: call.session.clone(),
                    segments: stored.segments,
                    complete: stored.complete,
                    revision: matches!(announcement, Announcement::Revised { .. }).then_some(stored.revision),
                },
            }),
            Phase::Marking { announcement, segments, notified, .. } => Some(Effect::Mark {
                key: self.key.clone()?,
                announcement: *announcement,
                segments: *segments,
                notified: *notified,
            }),
            Phase::DeadLettering { dead_letter } => Some(Effect::DeadLetter { dead_letter: Arc::clone(dead_letter) }),
            Phase::Republishing { call } => {
                Some(Effect::Republish { stream_sequence: self.stream_sequence, ended: call.clone() })
            }
            Phase::Acknowledging { acknowledgement } => Some(Effect::Acknowledge {
                reply: self.reply.clone()?,
                key: self.key.clone(),
                acknowledgement: acknowledgement.clone(),
            }),
        }
    }

    /// A report has come: nothing is awaited any more, and a success ends a row of failures.
    fn settle_account(&mut self, report: &Report) {
        self.awaited = None;
        self.timers.clear(Timer::Answer);
        if !matches!(report, Report::Failed(_)) {
            self.retries = 0;
            self.failing_since = None;
        }
    }

    fn failed(
        &mut self,
        now: Time,
        phase: Phase,
        failure: &Failure,
        served: &Served,
        settings: &Settings,
    ) -> (Phase, Next) {
        let since = *self.failing_since.get_or_insert(now);
        #[cfg(feature = "planted-bugs")]
        match self.bug {
            Some(crate::Bug::HeartbeatsAfterFailure) => return (phase, Next::Stay),
            Some(crate::Bug::BareNak) if !matches!(phase, Phase::Acknowledging { .. }) => {
                let acknowledgement = Acknowledgement::Nak { delay: Duration::ZERO, reason: failure.to_string() };
                return (Phase::Acknowledging { acknowledgement }, Next::Ask);
            }
            Some(_) | None => {}
        }
        let tried_enough = phase.kind().is_some_and(|kind| {
            let serving = self.serving_since(served, kind, now, settings);
            serving.is_some_and(|serving| now.since(since.max(serving)) >= settings.retry_timeout)
        });
        let remedy = classify(failure.kind);
        if remedy == Remedy::TryAgain && !tried_enough {
            let pause = pause(self.stream_sequence, self.retries, settings);
            self.retries += 1;
            return (phase, Next::Wait(Timer::Retry, now.after(pause)));
        }
        self.retries = 0;
        self.failing_since = None;
        let nak = |delay| Acknowledgement::Nak { delay, reason: failure.to_string() };
        match phase {
            Phase::Acknowledging { .. } | Phase::Over => (Phase::Over, Next::End),
            Phase::Republishing { .. } => self.finished(nak(Duration::ZERO)),
            Phase::DeadLettering { .. } => self.finished(nak(settings.nak_delay)),
            Phase::Queued { call }
            | Phase::Quiet { call, .. }
            | Phase::Counting { call, .. }
            | Phase::Loading { call, .. }
            | Phase::Saving { call, .. }
            | Phase::Publishing { call, .. }
            | Phase::Marking { call, .. } => match remedy {
                Remedy::TryAgain if self.attempt < settings.max_deliver => self.finished(nak(settings.nak_delay)),
                Remedy::TryAgain | Remedy::DeadLetter => self.dead_letter(now, Some(call), failure.to_string()),
            },
        }
    }

    /// Since when the server has served others while this job fails, without a pause of more than the half of its retry timeout, or
    /// than the longest pause between two tries where that is longer.
    fn serving_since(&self, served: &Served, kind: EffectKind, now: Time, settings: &Settings) -> Option<Time> {
        #[cfg(feature = "planted-bugs")]
        if self.bug == Some(crate::Bug::GivesUpInOutages) {
            return Some(Time::ZERO);
        }
        served.since(kind, now, settings.longest_silence())
    }

    #[cfg(feature = "planted-bugs")]
    fn spoil(&self, summary: Summary) -> Summary {
        let complete = match (self.bug, self.first_count) {
            (Some(crate::Bug::CompleteByFirstCount), Some(first)) => first >= summary.published_segments,
            (Some(_) | None, _) => summary.complete,
        };
        let key = self.key.clone().unwrap_or_else(|| summary.key.clone());
        Summary { complete, key, ..summary }
    }

    /// The shell's wall clock, carried on from the delivery by the clock that never goes back.
    fn wall(&self, now: Time) -> WallTime {
        self.received_at.after(now.since(self.delivered))
    }
}

impl Phase {
    /// The kind of the phase's effect.
    fn kind(&self) -> Option<EffectKind> {
        match self {
            Self::Over | Self::Queued { .. } | Self::Quiet { .. } => None,
            Self::Counting { .. } => Some(EffectKind::Count),
            Self::Loading { .. } => Some(EffectKind::Load),
            Self::Saving { .. } => Some(EffectKind::Save),
            Self::Publishing { .. } => Some(EffectKind::Publish),
            Self::Marking { .. } => Some(EffectKind::Mark),
            Self::DeadLettering { .. } => Some(EffectKind::DeadLetter),
            Self::Republishing { .. } => Some(EffectKind::Republish),
            Self::Acknowledging { .. } => Some(EffectKind::Acknowledge),
        }
    }
}

fn counted(now: Time, call: SessionEnded, settling: Settling, segments: u64, settings: &Settings) -> (Phase, Next) {
    let rounds = settling.rounds + 1;
    if settling.last == Some(segments) || rounds >= settings.settle_rounds {
        (Phase::Loading { call, loading: Box::new(Loading::new(segments, settings)) }, Next::Ask)
    } else {
        let settling = Settling { rounds, last: Some(segments) };
        (Phase::Quiet { call, settling }, Next::Wait(Timer::Settle, now.after(settings.quiet_period)))
    }
}

/// What the next page may bring.
fn page_bytes(loading: &Loading, settings: &Settings) -> u64 {
    let expected = loading.counted.clamp(1, settings.page_size.into()).saturating_mul(SEGMENT_BYTES);
    expected.min(settings.max_page_bytes)
}

/// Whether the job should not cost its message another attempt: it is not the first, or there are no more than three.
fn are_few(attempt: u64, settings: &Settings) -> bool {
    attempt > 1 || settings.max_deliver <= 3
}

/// The pause before a retry: doubled each time up to the cap, and between half and all of that, so that many jobs that
/// failed together do not come back together. Derived from the job, not drawn: the same job pauses the same way.
fn pause(stream_sequence: u64, retries: u32, settings: &Settings) -> Duration {
    let full =
        settings.retry_base.saturating_mul(1_u32.checked_shl(retries).unwrap_or(u32::MAX)).min(settings.retry_cap);
    let part = mix(stream_sequence ^ (u64::from(retries) << 48)) % 1024;
    full / 2 + full / 2 * u32::try_from(part).unwrap_or(0) / 1024
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(seed: u64) -> u64 {
    let a = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let b = (a ^ (a >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let c = (b ^ (b >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    c ^ (c >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_cap_and_differ_between_jobs() {
        let settings = Settings::default();
        for retries in 0..40 {
            let full = Duration::from_millis(100 << retries.min(6)).min(settings.retry_cap);
            for sequence in 0..50 {
                let pause = pause(sequence, retries, &settings);
                assert!(pause >= full / 2 && pause <= full, "{retries}: {pause:?} of {full:?}");
            }
        }
        assert_ne!(pause(1, 3, &settings), pause(2, 3, &settings));
        assert_eq!(pause(1, 3, &settings), pause(1, 3, &settings));
    }
}
