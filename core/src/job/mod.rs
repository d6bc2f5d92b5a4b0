//! One delivery, from hand-over to its last acknowledgement.
//!
//! Before its delivery a job is as little there as when it is over. It is over when it has left this table: its
//! acknowledgement is confirmed, or it was given up and JetStream will deliver the message again. Two kinds of job have no
//! delivery: one about a message that used up its deliveries, which becomes a dead letter unless its call is announced, and
//! one that replaces a summary of fewer segments than its session has. They end where others acknowledge.
//!
//! Where the table says *give up*, an effect has failed for longer than the retry timeout while effects of the same kind
//! succeeded for others. Then the job is given back. Of the last attempt it becomes a dead letter; where JetStream has used
//! up its deliveries while the job lived, it is published again. What its server refuses becomes a dead letter at once,
//! because no attempt would end otherwise. A dead letter is tried without end, since without it the call would be lost. A
//! mark is tried until it is refused, since its call is announced.
//!
//! | from | on | to | when |
//! |---|---|---|---|
//! | over | delivered | acknowledging | the processor drains: nak |
//! | over | delivered | dead-lettering | the payload can never be processed |
//! | over | delivered | republishing | the processor drains, and attempts are few |
//! | over | delivered | queued | everything else |
//! | over | exhausted | checking | the message names its call |
//! | over | exhausted | dead-lettering | everything else |
//! | over | stale | queued | |
//! | queued | first of its key | quiet | no earlier job of the same key is at work |
//! | queued | first of its key | checking | the same, and this processor has just been done with the call |
//! | queued | covered | acknowledging | an earlier end has brought everything about: ack |
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
//! | counting | failed | republishing | give up, and the deliveries are used up |
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
//! | loading | failed | republishing | give up, and the deliveries are used up |
//! | loading | failed | dead-lettering | give up, or refused |
//! | loading | failed | over | give up, or refused, without a delivery |
//! | loading | drain | acknowledging | nak |
//! | loading | drain | republishing | attempts are few |
//! | loading | drain | over | there is no delivery |
//! | saving | saved | publishing | the summary carries no mark, or one of an earlier revision |
//! | saving | saved | checking | the same, but that was long ago |
//! | saving | saved | acknowledging | it was announced before: ack |
//! | saving | saved | over | there is nothing to announce, without a delivery |
//! | saving | failed | saving | again, after a pause |
//! | saving | failed | acknowledging | give up: nak with a delay |
//! | saving | failed | republishing | give up, and the deliveries are used up |
//! | saving | failed | dead-lettering | give up, or refused |
//! | saving | failed | over | give up, or refused, without a delivery |
//! | saving | grace over | acknowledging | nak |
//! | saving | grace over | republishing | attempts are few |
//! | saving | grace over | over | there is no delivery |
//! | checking | checked | quiet | not everything is there: the call settles |
//! | checking | checked | counting | the summary was removed |
//! | checking | checked | publishing | it is still not announced |
//! | checking | checked | dead-lettering | the call of used-up deliveries is not announced |
//! | checking | checked | acknowledging | it is announced: ack |
//! | checking | checked | over | the same, without a delivery |
//! | checking | failed | checking | again, after a pause |
//! | checking | failed | quiet | give up, or refused: the call settles |
//! | checking | failed | acknowledging | give up: nak with a delay |
//! | checking | failed | republishing | give up, and the deliveries are used up |
//! | checking | failed | dead-lettering | give up, or refused |
//! | checking | failed | over | give up, or refused, without a delivery |
//! | checking | drain | acknowledging | nak |
//! | checking | drain | republishing | attempts are few |
//! | checking | grace over | acknowledging | nak |
//! | checking | grace over | republishing | attempts are few |
//! | checking | grace over | dead-lettering | deliveries are used up, and nobody knows whether the call is announced |
//! | checking | grace over | over | there is no delivery |
//! | publishing | published | marking | |
//! | publishing | pause over | checking | it was long ago that the summary was not announced |
//! | publishing | failed | publishing | again, after a pause |
//! | publishing | failed | acknowledging | give up: nak with a delay |
//! | publishing | failed | republishing | give up, and the deliveries are used up |
//! | publishing | failed | dead-lettering | give up, or refused |
//! | publishing | failed | over | give up, or refused, without a delivery |
//! | publishing | grace over | acknowledging | nak |
//! | publishing | grace over | republishing | attempts are few |
//! | publishing | grace over | over | there is no delivery |
//! | marking | marked | acknowledging | ack |
//! | marking | marked | publishing | the announcement in the stream is of fewer segments: a revision |
//! | marking | marked | over | there is no delivery |
//! | marking | failed | marking | again, after a pause |
//! | marking | failed | acknowledging | refused: ack |
//! | marking | failed | over | refused, without a delivery |
//! | marking | grace over | acknowledging | nak |
//! | marking | grace over | republishing | attempts are few |
//! | marking | grace over | over | there is no delivery |
//! | dead-lettering | dead-lettered | acknowledging | term |
//! | dead-lettering | dead-lettered | over | there is no delivery |
//! | dead-lettering | failed | dead-lettering | again, after a pause |
//! | dead-lettering | failed | acknowledging | there is nothing to keep: term |
//! | dead-lettering | failed | over | there is nothing to keep, without a delivery |
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
//! When a pause is over the job asks again and stays where it is, but for the row above. A job whose message is delivered again goes on where it
//! is, with the new delivery in place of the one before. When the grace time of a draining processor ends, what has begun
//! to save is given back too; what is left a moment later is over. Attempts are few from the second delivery on, and where
//! there are no more than three.

mod loading;
mod state;

use std::{mem, sync::Arc, time::Duration};

use self::loading::{Loading, Panicked};
pub use self::state::State;
pub(crate) use self::state::{Event, Next, Outcome};
use crate::{
    bug::Planted,
    contract::{Announcement, DeadLetter, Notification},
    counters::{JobView, Settled},
    event::SessionEnded,
    failure::{Failure, FailureKind, Remedy, classify},
    ids::{EffectId, JobId, Key},
    input::{Delivery, Exhausted, Notified, Page, Report, StaleSummary, Stored},
    kind::EffectKind,
    output::{Acknowledgement, Done, Effect, Timer},
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
    /// How often the message was handed over, as JetStream counts.
    attempt: u64,
    /// Which of those attempts this job is. What JetStream handed over again while the job lived was no attempt.
    began_as: u64,
    /// JetStream will hand the message over no more.
    exhausted: bool,
    /// Where it is acknowledged; `None` for a job without a delivery.
    reply: Option<Arc<str>>,
    /// `None` where the payload named no call.
    key: Option<Key>,
    delivered: Time,
    received_at: WallTime,
    /// How long before its hand-over the event was stored.
    age: Duration,
    /// What is to be counted of its settling.
    settled: Option<Settled>,
    /// When the event was stored, if that was since the start.
    ended_at: Time,
    /// When the first quiet period ends: it began when the event was stored.
    settles_at: Time,
    /// Whether this processor has just been done with the call.
    is_repeat: bool,
    phase: Phase,
    asked: u32,
    asked_at: Time,
    /// The number of the effect whose report is awaited.
    awaited: Option<u32>,
    retries: u32,
    failing_since: Option<Time>,
    outcome: Option<Outcome>,
    pub(crate) timers: Timers,
    /// Under which deadline the processor's queue has this job.
    pub(crate) scheduled: Option<Time>,
    /// With what weight the processor reckons it.
    pub(crate) weighed: Weight,
}

/// What a job is decided by, besides itself.
#[derive(Clone, Copy)]
pub(crate) struct Around<'a> {
    pub(crate) now: Time,
    pub(crate) served: &'a Served,
    pub(crate) settings: &'a Settings,
    pub(crate) planted: Planted,
}

#[derive(Debug)]
enum Phase {
    Over,
    Queued { call: SessionEnded },
    Quiet { call: SessionEnded, settling: Settling },
    Counting { call: SessionEnded, settling: Settling },
    Loading { call: SessionEnded, loading: Box<Loading> },
    Saving { call: SessionEnded, summary: Arc<Summary>, bytes: usize, loaded_at: Time },
    Checking { call: SessionEnded, question: Question },
    Publishing { call: SessionEnded, announcement: Announcement, news: News },
    Marking { call: SessionEnded, announcement: Announcement, news: News, segments: u64, notified: Notified },
    DeadLettering { dead_letter: Arc<DeadLetter> },
    Republishing { call: SessionEnded },
    Acknowledging { acknowledgement: Acknowledgement },
}

/// What a job wants to know of a stored summary.
#[derive(Debug, Clone)]
enum Question {
    /// Whether it has everything that this end can know of, and is announced.
    Covered,
    /// Whether it is still not announced.
    News { loaded_at: Option<Time> },
    /// Whether it is announced, so that this dead letter is not needed.
    Announced { dead_letter: Arc<DeadLetter> },
}

/// What is known of a stored summary that is to be announced.
#[derive(Debug, Clone, Copy)]
struct News {
    stored: Stored,
    /// When it was asked for: it may have changed since.
    read_at: Time,
    loaded_at: Option<Time>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Settling {
    rounds: u32,
    first: Option<u64>,
    last: Option<u64>,
}

impl Job {
    /// A job about the call that ended, which waits until it is the first of its key.
    pub(crate) fn new(
        id: JobId,
        now: Time,
        delivery: &Delivery,
        key: Key,
        call: SessionEnded,
        settings: &Settings,
    ) -> Self {
        let age = delivery.received_at.since(delivery.stored_at);
        Self {
            key: Some(key),
            ended_at: now.before(age),
            settles_at: now.after(settings.quiet_period.saturating_sub(age)),
            ..Self::delivered(id, now, delivery, Phase::Queued { call }, settings)
        }
    }

    /// The same, where this processor was done with the call at that time.
    pub(crate) fn after(self, loaded_at: Time) -> Self {
        Self { is_repeat: self.ended_at <= loaded_at, ..self }
    }

    /// A job about a payload that can never be processed: it becomes a dead letter with the reason.
    pub(crate) fn rejected(id: JobId, now: Time, delivery: &Delivery, reason: String, settings: &Settings) -> Self {
        let dead_letter = DeadLetter {
            stream_sequence: delivery.stream_sequence,
            attempts: delivery.attempt,
            reason,
            at: delivery.received_at,
            ended: None,
        };
        Self::delivered(id, now, delivery, Phase::DeadLettering { dead_letter: Arc::new(dead_letter) }, settings)
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

    /// A job about a message that used up its deliveries. It becomes a dead letter, unless its call is announced.
    pub(crate) fn exhausted(id: JobId, now: Time, exhausted: &Exhausted) -> Self {
        let Exhausted { stream_sequence, attempts, received_at, payload } = exhausted;
        let reason = format!("handed over {attempts} times, and each time its process died or was cut off");
        let (stream_sequence, attempts, at) = (*stream_sequence, *attempts, *received_at);
        let letter = |ended| Arc::new(DeadLetter { stream_sequence, attempts, reason, at, ended });
        let ended = payload.as_ref().and_then(|payload| SessionEnded::parse(&payload.0).ok());
        let (key, phase) = match ended {
            Some(call) => {
                let question = Question::Announced { dead_letter: letter(Some(call.clone())) };
                (Some(call.session.key()), Phase::Checking { call, question })
            }
            None => (None, Phase::DeadLettering { dead_letter: letter(None) }),
        };
        Self { key, stream_sequence, attempt: attempts, began_as: attempts, ..Self::in_phase(id, now, at, phase) }
    }

    /// A job about a session that has more segments than its summary, which waits until it is the first of its key.
    pub(crate) fn stale(id: JobId, now: Time, key: Key, stale: StaleSummary) -> Self {
        let StaleSummary { session, published_segments, received_at } = stale;
        let phase = Phase::Queued { call: SessionEnded { session, published_segments } };
        Self { key: Some(key), ..Self::in_phase(id, now, received_at, phase) }
    }

    fn delivered(id: JobId, now: Time, delivery: &Delivery, phase: Phase, settings: &Settings) -> Self {
        let mut job = Self::in_phase(id, now, delivery.received_at, phase);
        job.stream_sequence = delivery.stream_sequence;
        job.attempt = delivery.attempt;
        job.began_as = delivery.attempt;
        job.reply = Some(Arc::clone(&delivery.reply));
        job.age = delivery.received_at.since(delivery.stored_at);
        job.timers.set(Timer::Heartbeat, now.after(settings.heartbeat_interval()));
        job
    }

    fn in_phase(id: JobId, now: Time, received_at: WallTime, phase: Phase) -> Self {
        Self {
            id,
            stream_sequence: 0,
            attempt: 0,
            began_as: 0,
            exhausted: false,
            reply: None,
            key: None,
            delivered: now,
            received_at,
            age: Duration::ZERO,
            settled: None,
            ended_at: now,
            settles_at: now,
            is_repeat: false,
            phase,
            asked: 0,
            asked_at: now,
            awaited: None,
            retries: 0,
            failing_since: None,
            outcome: None,
            timers: Timers::default(),
            scheduled: None,
            weighed: Weight::default(),
        }
    }

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

    /// The one place where a job changes its state; the table above says how.
    pub(crate) fn advance(&mut self, event: Event, around: Around<'_>) -> Next {
        let Around { now, settings, .. } = around;
        if let Event::Reported(report) = &event {
            self.settle_account(report);
        }
        let (phase, next) = match (mem::replace(&mut self.phase, Phase::Over), event) {
            (Phase::Queued { call }, Event::FirstOfKey) if self.is_repeat => {
                (Phase::Checking { call, question: Question::Covered }, Next::Ask)
            }
            (Phase::Queued { call }, Event::FirstOfKey) => self.settle(call),
            (Phase::Queued { call }, Event::Covered(outcome)) => self.covered(call, outcome),
            (Phase::Quiet { call, settling }, Event::QuietOver) => (Phase::Counting { call, settling }, Next::Ask),
            (Phase::Counting { call, settling }, Event::Reported(Report::Counted { segments })) => {
                self.counted(now, call, settling, segments, settings)
            }
            (Phase::Loading { call, loading }, Event::Reported(Report::Loaded(page))) => self
                .loaded(call, loading, page, around)
                .unwrap_or_else(|(call, Panicked)| self.dead_letter(now, call, Panicked::REASON.to_owned())),
            (Phase::Saving { call, loaded_at, .. }, Event::Reported(Report::Saved(stored))) => {
                self.stored(call, News { stored, read_at: self.asked_at, loaded_at: Some(loaded_at) }, around)
            }
            (Phase::Checking { call, question }, Event::Reported(Report::Checked(stored))) => {
                self.checked(call, question, stored, around)
            }
            (
                Phase::Publishing { call, announcement, news },
                Event::Reported(Report::Published { stream_sequence, segments }),
            ) => {
                let notified = Notified { stream_sequence, at: self.wall(now) };
                (Phase::Marking { call, announcement, news, segments, notified }, Next::Ask)
            }
            (Phase::Marking { call, announcement, news, segments, .. }, Event::Reported(Report::Marked)) => {
                self.announced(call, announcement, news, segments, around)
            }
            (Phase::DeadLettering { dead_letter }, Event::Reported(Report::DeadLettered { .. })) => {
                self.finished(Acknowledgement::Term { reason: dead_letter.reason.clone() })
            }
            (Phase::Republishing { .. }, Event::Reported(Report::Republished { .. })) => {
                self.finished(Acknowledgement::Ack)
            }
            (Phase::Acknowledging { .. }, Event::Reported(Report::Acknowledged)) => (Phase::Over, Next::End),
            (phase, Event::Reported(Report::Failed(failure))) => self.failed(phase, &failure, around),
            (Phase::Acknowledging { acknowledgement: Acknowledgement::Nak { .. } }, Event::Redelivered { .. }) => {
                (Phase::Over, Next::End)
            }
            (phase, Event::Redelivered { reply, attempt }) => {
                self.reply = Some(reply);
                self.attempt = self.attempt.max(attempt);
                let next = if matches!(phase, Phase::Acknowledging { .. }) { Next::Ask } else { Next::Stay };
                (phase, next)
            }
            (phase, Event::Exhausted) => {
                self.exhausted = true;
                (phase, Next::Stay)
            }
            (Phase::Publishing { call, news, .. }, Event::PauseOver) => self.stored(call, news, around),
            (phase, Event::PauseOver) => (phase, Next::Ask),
            (
                Phase::Queued { call }
                | Phase::Quiet { call, .. }
                | Phase::Counting { call, .. }
                | Phase::Loading { call, .. }
                | Phase::Checking { call, question: Question::Covered },
                Event::Drain,
            )
            | (
                Phase::Saving { call, .. }
                | Phase::Checking { call, question: Question::News { .. } }
                | Phase::Publishing { call, .. }
                | Phase::Marking { call, .. },
                Event::GraceOver,
            ) => self.given_back(call, settings),
            // Better a dead letter too many than a message that is lost.
            (Phase::Checking { question: Question::Announced { dead_letter }, .. }, Event::GraceOver) => {
                (Phase::DeadLettering { dead_letter }, Next::Ask)
            }
            (
                phase,
                Event::FirstOfKey
                | Event::QuietOver
                | Event::Covered(_)
                | Event::Reported(_)
                | Event::Drain
                | Event::GraceOver,
            ) => (phase, Next::Stay),
        };
        self.phase = phase;
        next
    }

    fn settle(&self, call: SessionEnded) -> (Phase, Next) {
        (Phase::Quiet { call, settling: Settling::default() }, Next::Wait(Timer::Settle, self.settles_at))
    }

    /// A count has come: the call has settled where it agrees with the one before, or where it was the last round.
    fn counted(
        &mut self,
        now: Time,
        call: SessionEnded,
        settling: Settling,
        segments: u64,
        settings: &Settings,
    ) -> (Phase, Next) {
        let rounds = settling.rounds + 1;
        let first = settling.first.unwrap_or(segments);
        if settling.last == Some(segments) || rounds >= settings.settle_rounds {
            let late_segments = segments.saturating_sub(first);
            self.settled = Some(Settled { rounds, late_segments, took: now.since(self.delivered) });
            (Phase::Loading { call, loading: Box::new(Loading::new(now, segments, settings)) }, Next::Ask)
        } else {
            let settling = Settling { rounds, first: Some(first), last: Some(segments) };
            (Phase::Quiet { call, settling }, Next::Wait(Timer::Settle, now.after(settings.quiet_period)))
        }
    }

    /// An earlier job of the key is done. An end that was stored before that one loaded the segments, and announces no more
    /// than it found, has nothing to add.
    fn covered(&mut self, call: SessionEnded, outcome: Outcome) -> (Phase, Next) {
        let is_older = outcome.loaded_at.is_some_and(|loaded_at| self.ended_at <= loaded_at);
        if !is_older || self.reply.is_none() || call.published_segments > outcome.segments {
            return (Phase::Queued { call }, Next::Stay);
        }
        self.outcome = Some(Outcome { loaded_at: None, ..outcome });
        self.finished(Acknowledgement::Ack)
    }

    fn loaded(
        &mut self,
        call: SessionEnded,
        mut loading: Box<Loading>,
        page: Page,
        around: Around<'_>,
    ) -> Result<(Phase, Next), (SessionEnded, Panicked)> {
        if let Err(panicked) = loading.fold(page, around.planted) {
            return Err((call, panicked));
        }
        if !loading.is_over {
            return Ok((Phase::Loading { call, loading }, Next::Ask));
        }
        let (bytes, loaded_at) = (loading.held_bytes(), loading.begun);
        match loading.finish(&call, self.wall(around.now)) {
            Ok(summary) => Ok((Phase::Saving { call, summary: Arc::new(summary), bytes, loaded_at }, Next::Ask)),
            Err(panicked) => Err((call, panicked)),
        }
    }

    /// A summary is stored: announces it, unless that was done before. What was read too long ago is read again: another
    /// processor may have announced it since, and the stream may have forgotten that.
    fn stored(&mut self, call: SessionEnded, news: News, around: Around<'_>) -> (Phase, Next) {
        let Around { now, settings, .. } = around;
        let Some(announcement) = self.announcement(news.stored, settings) else {
            return self.done_with(news);
        };
        if now.since(news.read_at) > settings.mark_is_fresh_for() {
            return (Phase::Checking { call, question: Question::News { loaded_at: news.loaded_at } }, Next::Ask);
        }
        (Phase::Publishing { call, announcement, news }, Next::Ask)
    }

    /// What is to be announced of a stored summary. A job without a delivery only announces what replaced an announced
    /// summary; the first announcement is the business of the job that has the delivery.
    fn announcement(&self, stored: Stored, settings: &Settings) -> Option<Announcement> {
        match stored.notified {
            None if self.reply.is_none() => None,
            None if settings.announce_once => Some(Announcement::ProcessedOnce),
            None => Some(Announcement::Processed),
            Some(_) if settings.revise => {
                stored.unannounced_revision().map(|revision| Announcement::Revised { revision })
            }
            Some(_) => None,
        }
    }

    fn checked(
        &mut self,
        call: SessionEnded,
        question: Question,
        stored: Option<Stored>,
        around: Around<'_>,
    ) -> (Phase, Next) {
        let read_at = self.asked_at;
        match (question, stored) {
            (Question::Covered, Some(stored))
                if stored.notified.is_some()
                    && stored.segments >= call.published_segments
                    && self.announcement(stored, around.settings).is_none() =>
            {
                self.done_with(News { stored, read_at, loaded_at: None })
            }
            (Question::Covered, _) => self.settle(call),
            (Question::News { loaded_at }, Some(stored)) => {
                let news = News { stored, read_at, loaded_at };
                match self.announcement(stored, around.settings) {
                    Some(announcement) => (Phase::Publishing { call, announcement, news }, Next::Ask),
                    None => self.done_with(news),
                }
            }
            // Somebody has removed it.
            (Question::News { .. }, None) => (Phase::Counting { call, settling: Settling::default() }, Next::Ask),
            (Question::Announced { .. }, Some(stored)) if is_done(stored, &call) => (Phase::Over, Next::End),
            (Question::Announced { dead_letter }, _) => (Phase::DeadLettering { dead_letter }, Next::Ask),
        }
    }

    /// The announcement is in the stream, and the summary has its mark. What was announced may be less than what is stored:
    /// an earlier job announced it, and more segments came before the mark. Then the difference is a revision.
    fn announced(
        &mut self,
        call: SessionEnded,
        announcement: Announcement,
        news: News,
        segments: u64,
        around: Around<'_>,
    ) -> (Phase, Next) {
        if segments >= news.stored.segments || !around.settings.revise {
            return self.done_with(news);
        }
        let announced = match announcement {
            Announcement::Processed | Announcement::ProcessedOnce => 1,
            Announcement::Revised { revision } => revision,
        };
        let revision = announced.saturating_add(1);
        let news = News { stored: Stored { revision, ..news.stored }, ..news };
        (Phase::Publishing { call, announcement: Announcement::Revised { revision }, news }, Next::Ask)
    }

    fn done_with(&mut self, news: News) -> (Phase, Next) {
        let Stored { segments, complete, notified, .. } = news.stored;
        // A job without a delivery leaves the first announcement to others.
        if self.reply.is_some() || notified.is_some() {
            self.outcome = Some(Outcome { segments, complete, loaded_at: news.loaded_at });
        }
        self.finished(Acknowledgement::Ack)
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
        if self.reply.is_some() && (self.exhausted || are_few(self.attempt, settings)) {
            (Phase::Republishing { call }, Next::Ask)
        } else {
            self.finished(Acknowledgement::drained())
        }
    }

    /// No attempt will end otherwise: the message is kept for people.
    fn dead_letter(&self, now: Time, call: SessionEnded, reason: String) -> (Phase, Next) {
        if self.reply.is_none() {
            return (Phase::Over, Next::End);
        }
        let Self { stream_sequence, attempt: attempts, .. } = *self;
        let dead_letter = DeadLetter { stream_sequence, attempts, reason, at: self.wall(now), ended: Some(call) };
        (Phase::DeadLettering { dead_letter: Arc::new(dead_letter) }, Next::Ask)
    }

    /// Asks for the effect of the phase. Whatever the job waited for before, it waits for this one's report now.
    pub(crate) fn ask(&mut self, now: Time, settings: &Settings) -> Option<(EffectId, Effect)> {
        let effect = self.effect(settings)?;
        (self.asked, self.asked_at) = (self.asked + 1, now);
        self.awaited = Some(self.asked);
        self.timers.clear(Timer::Settle);
        self.timers.clear(Timer::Retry);
        self.timers.set(Timer::Answer, now.after(settings.answer_timeout()));
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
            Phase::Checking { .. } => Some(Effect::Check { key: self.key.clone()? }),
            Phase::Publishing { call, announcement, news: News { stored, .. } } => Some(Effect::Publish {
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

    fn failed(&mut self, phase: Phase, failure: &Failure, around: Around<'_>) -> (Phase, Next) {
        let Around { now, served, settings, planted } = around;
        let since = *self.failing_since.get_or_insert(now);
        let serving = phase.kind().and_then(|kind| served.since(kind, now, settings.longest_silence(), planted));
        let tried_enough = serving.is_some_and(|serving| now.since(since.max(serving)) >= settings.retry_timeout);
        let remedy = classify(failure.kind);
        if (remedy == Remedy::TryAgain && !tried_enough) || self.must_go_on(&phase, failure.kind) {
            let pause = pause(self.stream_sequence, self.retries, settings);
            self.retries += 1;
            return (phase, Next::Wait(Timer::Retry, now.after(pause)));
        }
        self.retries = 0;
        self.failing_since = None;
        match phase {
            Phase::Acknowledging { .. } | Phase::Over => (Phase::Over, Next::End),
            Phase::Republishing { .. } => {
                self.finished(Acknowledgement::Nak { delay: Duration::ZERO, reason: failure.to_string() })
            }
            Phase::DeadLettering { dead_letter } => {
                self.finished(Acknowledgement::Term { reason: dead_letter.reason.clone() })
            }
            // It is announced: that it cannot be marked must not become a second announcement.
            Phase::Marking { news, .. } => self.done_with(news),
            Phase::Checking { call, question: Question::Covered } => self.settle(call),
            Phase::Checking { question: Question::Announced { dead_letter }, .. } => {
                (Phase::DeadLettering { dead_letter }, Next::Ask)
            }
            Phase::Queued { call }
            | Phase::Quiet { call, .. }
            | Phase::Counting { call, .. }
            | Phase::Loading { call, .. }
            | Phase::Saving { call, .. }
            | Phase::Checking { call, question: Question::News { .. } }
            | Phase::Publishing { call, .. } => match remedy {
                Remedy::TryAgain => self.given_up(call, failure, around),
                Remedy::DeadLetter => self.dead_letter(now, call, failure.to_string()),
            },
        }
    }

    /// What is tried without end: a dead letter, since without it the call would be lost; a mark, unless it is refused; and
    /// to publish an end again that JetStream hands over no more.
    fn must_go_on(&self, phase: &Phase, failure: FailureKind) -> bool {
        match phase {
            Phase::DeadLettering { .. } => failure != FailureKind::Missing,
            Phase::Marking { .. } => classify(failure) == Remedy::TryAgain,
            Phase::Republishing { .. } => self.exhausted,
            Phase::Over
            | Phase::Queued { .. }
            | Phase::Quiet { .. }
            | Phase::Counting { .. }
            | Phase::Loading { .. }
            | Phase::Saving { .. }
            | Phase::Checking { .. }
            | Phase::Publishing { .. }
            | Phase::Acknowledging { .. } => false,
        }
    }

    /// The retry timeout is over while others succeed. JetStream may have handed the message over so often meanwhile that a
    /// nak would be the end of it: then it is published again.
    fn given_up(&self, call: SessionEnded, failure: &Failure, around: Around<'_>) -> (Phase, Next) {
        let Around { now, settings, .. } = around;
        if self.reply.is_none() || self.began_as >= settings.max_deliver {
            self.dead_letter(now, call, failure.to_string())
        } else if self.exhausted || self.attempt >= settings.max_deliver {
            (Phase::Republishing { call }, Next::Ask)
        } else {
            self.finished(Acknowledgement::Nak { delay: settings.nak_delay, reason: failure.to_string() })
        }
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
            Self::Checking { .. } => Some(EffectKind::Check),
            Self::Publishing { .. } => Some(EffectKind::Publish),
            Self::Marking { .. } => Some(EffectKind::Mark),
            Self::DeadLettering { .. } => Some(EffectKind::DeadLetter),
            Self::Republishing { .. } => Some(EffectKind::Republish),
            Self::Acknowledging { .. } => Some(EffectKind::Acknowledge),
        }
    }
}

/// What the next page may bring.
fn page_bytes(loading: &Loading, settings: &Settings) -> u64 {
    let expected = loading.counted.clamp(1, settings.page_size.into()).saturating_mul(SEGMENT_BYTES);
    expected.min(settings.max_page_bytes).max(loading.needs.unwrap_or(0))
}

/// Whether nothing is owed for the end of a call of which this is stored. An end that announces more than a complete summary
/// has is not done.
fn is_done(stored: Stored, call: &SessionEnded) -> bool {
    stored.notified.is_some() && (!stored.complete || stored.segments >= call.published_segments)
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
