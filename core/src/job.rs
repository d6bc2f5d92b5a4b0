//! One delivery, from hand-over to its last acknowledgement.
//!
//! Before its delivery a job is as little there as when it is over. It is over when it has left this table: its acknowledgement is confirmed, or it was given up and JetStream will
//! deliver the message again. Where the table says *give up*, an effect has failed in a way that trying again cannot
//! mend, or for longer than the job's patience; but a job of the last delivery is never given back for failures that pass.
//!
//! | from | on | to | when |
//! |---|---|---|---|
//! | over | delivered | acknowledging | the payload can never be processed (term), or the processor drains (nak) |
//! | over | delivered | queued | everything else |
//! | queued | turn | quiet | no earlier job has the same key |
//! | queued | drain | acknowledging | nak |
//! | quiet | quiet over | counting | |
//! | quiet | drain | acknowledging | nak |
//! | counting | counted | quiet | the count differs from the one before |
//! | counting | counted | loading | two counts agree, or it was the last round |
//! | counting | failed | counting | again, after a pause |
//! | counting | failed | acknowledging | give up: nak with a delay |
//! | counting | drain | acknowledging | nak |
//! | loading | loaded | loading | there are more pages |
//! | loading | loaded | saving | it was the last page |
//! | loading | failed | loading | again, after a pause |
//! | loading | failed | acknowledging | give up: nak with a delay |
//! | loading | drain | acknowledging | nak |
//! | saving | saved | publishing | the summary carries no mark |
//! | saving | saved | acknowledging | it was announced before: ack |
//! | saving | failed | saving | again, after a pause |
//! | saving | failed | acknowledging | give up: nak with a delay |
//! | publishing | published | marking | |
//! | publishing | failed | publishing | again, after a pause |
//! | publishing | failed | acknowledging | give up: nak with a delay |
//! | marking | marked | acknowledging | ack |
//! | marking | failed | marking | again, after a pause |
//! | marking | failed | acknowledging | give up: nak with a delay |
//! | acknowledging | acknowledged | over | |
//! | acknowledging | failed | acknowledging | again, after a pause |
//! | acknowledging | failed | over | give up: left to redelivery |
//!
//! When a pause is over the job asks again and stays where it is. When the grace time of a draining processor ends, every
//! job that is left is over.

use std::{fmt, mem, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    contract::Notification,
    event::SessionEnded,
    failure::{Failure, Remedy, classify},
    ids::{EffectId, JobId, Key},
    input::{Cursor, Delivery, Notified, Report, Stored},
    output::{Acknowledgement, Effect, Timer},
    settings::Settings,
    summary::{Summarizer, Summary},
    time::{Time, WallTime},
    timers::Timers,
};

/// The record of one delivery.
#[derive(Debug)]
pub(crate) struct Job {
    id: JobId,
    stream_sequence: u64,
    attempt: u64,
    reply: Arc<str>,
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
    #[cfg(feature = "planted-bugs")]
    bug: Option<crate::Bug>,
    #[cfg(feature = "planted-bugs")]
    first_count: Option<u64>,
}

/// Where a job stands, in the order of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// Its last effect was confirmed or given up; the job is no more.
    Over,
    /// An earlier job has the same key.
    Queued,
    /// Waits for a quiet period to end.
    Quiet,
    /// Has asked for a count.
    Counting,
    /// Has asked for a page.
    Loading,
    /// Has asked for the summary to be stored.
    Saving,
    /// Has asked for the notification to be published.
    Publishing,
    /// Has asked for the summary to be marked.
    Marking,
    /// Has asked for its acknowledgement.
    Acknowledging,
}

/// What can happen to a job.
#[derive(Debug)]
pub(crate) enum Event {
    /// No earlier job has the same key.
    Turn,
    QuietOver,
    Reported(Report),
    /// The pause after a failure is over.
    Again,
    Drain,
}

/// What a job does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Asks for the effect of its phase.
    Ask,
    /// Waits for a timer.
    Wait(Timer, Time),
    /// Goes on as before.
    Stay,
    /// Is over.
    End,
}

#[derive(Debug)]
enum Phase {
    Over,
    Queued { call: SessionEnded },
    Quiet { call: SessionEnded, settling: Settling },
    Counting { call: SessionEnded, settling: Settling },
    Loading { call: SessionEnded, loading: Box<Loading> },
    Saving { call: SessionEnded, summary: Arc<Summary> },
    Publishing { call: SessionEnded, stored: Stored },
    Marking { notified: Notified },
    Acknowledging { acknowledgement: Acknowledgement },
}

#[derive(Debug, Default, Clone, Copy)]
struct Settling {
    rounds: u32,
    last: Option<u64>,
}

#[derive(Debug)]
struct Loading {
    summarizer: Summarizer,
    after: Option<Cursor>,
    counted: u64,
}

impl Job {
    /// A job about the call that ended, which waits for its turn.
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
        Self { key: Some(key), settles_at, ..Self::in_phase(id, now, delivery, Phase::Queued { call }, settings) }
    }

    /// A job about a delivery that is not worked on, only acknowledged.
    pub(crate) fn refused(
        id: JobId,
        now: Time,
        delivery: &Delivery,
        acknowledgement: Acknowledgement,
        settings: &Settings,
    ) -> Self {
        Self::in_phase(id, now, delivery, Phase::Acknowledging { acknowledgement }, settings)
    }

    fn in_phase(id: JobId, now: Time, delivery: &Delivery, phase: Phase, settings: &Settings) -> Self {
        let mut timers = Timers::default();
        timers.set(Timer::Heartbeat, now.after(settings.heartbeat_interval()));
        Self {
            id,
            stream_sequence: delivery.stream_sequence,
            attempt: delivery.attempt,
            reply: Arc::clone(&delivery.reply),
            key: None,
            delivered: now,
            received_at: delivery.received_at,
            settles_at: now,
            phase,
            asked: 0,
            awaited: None,
            retries: 0,
            failing_since: None,
            timers,
            scheduled: None,
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
            Phase::Acknowledging { .. } => State::Acknowledging,
        }
    }

    pub(crate) fn reply(&self) -> &Arc<str> {
        &self.reply
    }

    pub(crate) fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    pub(crate) fn acknowledgement(&self) -> Option<&Acknowledgement> {
        match &self.phase {
            Phase::Acknowledging { acknowledgement } => Some(acknowledgement),
            Phase::Over
            | Phase::Queued { .. }
            | Phase::Quiet { .. }
            | Phase::Counting { .. }
            | Phase::Loading { .. }
            | Phase::Saving { .. }
            | Phase::Publishing { .. }
            | Phase::Marking { .. } => None,
        }
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
                | (Phase::Acknowledging { .. }, Report::Acknowledged)
        )
    }

    /// The one place where a job changes its state; the table above says how.
    pub(crate) fn advance(&mut self, now: Time, event: Event, settings: &Settings) -> Next {
        if let Event::Reported(report) = &event {
            self.settle_account(report);
        }
        let (phase, next) = match (mem::replace(&mut self.phase, Phase::Over), event) {
            (Phase::Queued { call }, Event::Turn) => {
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
            (Phase::Loading { call, mut loading }, Event::Reported(Report::Loaded(page))) => {
                for segment in &page.segments {
                    loading.summarizer.push(segment);
                }
                if page.next.is_some() {
                    loading.after = page.next;
                    (Phase::Loading { call, loading }, Next::Ask)
                } else {
                    let built_at = self.wall(now);
                    let summary = loading.summarizer.finish(&call.session, call.published_segments, built_at);
                    #[cfg(feature = "planted-bugs")]
                    let summary = self.spoil(summary);
                    (Phase::Saving { call, summary: Arc::new(summary) }, Next::Ask)
                }
            }
            (Phase::Saving { call, .. }, Event::Reported(Report::Saved(stored))) => match stored.notified {
                None => (Phase::Publishing { call, stored }, Next::Ask),
                Some(_) => (Phase::Acknowledging { acknowledgement: Acknowledgement::Ack }, Next::Ask),
            },
            (Phase::Publishing { .. }, Event::Reported(Report::Published { stream_sequence })) => {
                let notified = Notified { stream_sequence, at: self.wall(now) };
                (Phase::Marking { notified }, Next::Ask)
            }
            (Phase::Marking { .. }, Event::Reported(Report::Marked)) => {
                (Phase::Acknowledging { acknowledgement: Acknowledgement::Ack }, Next::Ask)
            }
            (Phase::Acknowledging { .. }, Event::Reported(Report::Acknowledged)) => (Phase::Over, Next::End),
            (phase, Event::Reported(Report::Failed(failure))) => self.failed(now, phase, &failure, settings),
            (phase, Event::Again) => (phase, Next::Ask),
            (
                Phase::Queued { .. } | Phase::Quiet { .. } | Phase::Counting { .. } | Phase::Loading { .. },
                Event::Drain,
            ) => (Phase::Acknowledging { acknowledgement: Acknowledgement::drained() }, Next::Ask),
            (phase, Event::Turn | Event::QuietOver | Event::Reported(_) | Event::Drain) => (phase, Next::Stay),
        };
        self.phase = phase;
        next
    }

    /// Asks for the effect of the phase. Whatever the job waited for before, it waits for this one's report now.
    pub(crate) fn ask(&mut self, now: Time, settings: &Settings) -> Option<(EffectId, Effect)> {
        let effect = self.effect(settings)?;
        self.asked += 1;
        self.awaited = Some(self.asked);
        self.timers.clear(Timer::Settle);
        self.timers.clear(Timer::Retry);
        self.timers.set(Timer::Answer, now.after(settings.answer_timeout));
        #[cfg(feature = "planted-bugs")]
        if self.bug == Some(crate::Bug::ReportsAwaitedForEver) {
            self.timers.clear(Timer::Answer);
        }
        if matches!(self.acknowledgement(), Some(Acknowledgement::Nak { .. })) {
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
                counted: loading.counted,
            }),
            Phase::Saving { summary, .. } => Some(Effect::Save { summary: Arc::clone(summary) }),
            Phase::Publishing { call, stored } => Some(Effect::Publish {
                message_id: self.key.clone()?,
                notification: Notification {
                    session: call.session.clone(),
                    segments: stored.segments,
                    complete: stored.complete,
                },
            }),
            Phase::Marking { notified } => Some(Effect::Mark { key: self.key.clone()?, notified: *notified }),
            Phase::Acknowledging { acknowledgement } => Some(Effect::Acknowledge {
                reply: Arc::clone(&self.reply),
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

    fn failed(&mut self, now: Time, phase: Phase, failure: &Failure, settings: &Settings) -> (Phase, Next) {
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
        let acknowledging = matches!(phase, Phase::Acknowledging { .. });
        let last = self.attempt >= settings.max_deliver && !acknowledging;
        match classify(failure.kind) {
            Remedy::TryAgain if last || now.since(since) < settings.patience => {
                let pause = pause(self.stream_sequence, self.retries, settings);
                self.retries += 1;
                (phase, Next::Wait(Timer::Retry, now.after(pause)))
            }
            Remedy::TryAgain | Remedy::GiveBack => {
                self.retries = 0;
                self.failing_since = None;
                if acknowledging {
                    (Phase::Over, Next::End)
                } else {
                    let acknowledgement =
                        Acknowledgement::Nak { delay: settings.nak_delay, reason: failure.to_string() };
                    (Phase::Acknowledging { acknowledgement }, Next::Ask)
                }
            }
        }
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

impl Event {
    /// The event's name in the table.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Turn => "turn",
            Self::QuietOver => "quiet over",
            Self::Reported(Report::Counted { .. }) => "counted",
            Self::Reported(Report::Loaded(_)) => "loaded",
            Self::Reported(Report::Saved(_)) => "saved",
            Self::Reported(Report::Published { .. }) => "published",
            Self::Reported(Report::Marked) => "marked",
            Self::Reported(Report::Acknowledged) => "acknowledged",
            Self::Reported(Report::Failed(_)) => "failed",
            Self::Again => "again",
            Self::Drain => "drain",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Over => "over",
            Self::Queued => "queued",
            Self::Quiet => "quiet",
            Self::Counting => "counting",
            Self::Loading => "loading",
            Self::Saving => "saving",
            Self::Publishing => "publishing",
            Self::Marking => "marking",
            Self::Acknowledging => "acknowledging",
        })
    }
}

fn counted(now: Time, call: SessionEnded, settling: Settling, segments: u64, settings: &Settings) -> (Phase, Next) {
    let rounds = settling.rounds + 1;
    if settling.last == Some(segments) || rounds >= settings.settle_rounds {
        let loading = Loading { summarizer: Summarizer::new(settings.limits), after: None, counted: segments };
        (Phase::Loading { call, loading: Box::new(loading) }, Next::Ask)
    } else {
        let settling = Settling { rounds, last: Some(segments) };
        (Phase::Quiet { call, settling }, Next::Wait(Timer::Settle, now.after(settings.quiet_period)))
    }
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
