//! One delivery, from hand-over to its last acknowledgement.
//!
//! Before its delivery a job is as little there as when it is over. It is over when it has left this table: its
//! acknowledgement is confirmed, or it was given up and JetStream will deliver the message again. Two kinds of job have no
//! delivery: one about a message that used up its deliveries, which becomes a dead letter unless its call is announced in
//! good time, and one that replaces a summary that is behind its segments. They end where others acknowledge.
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
//! | loading | loaded | loading | there are more pages, or the call changed meanwhile so that its order is another one: from the first page again |
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
//! | saving | saved | counting | another job has stored more, and an operator has asked for this one |
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
//! | checking | checked | counting | the summary was removed, or replaced by one that does not answer an operator's request |
//! | checking | checked | publishing | it is still not announced |
//! | checking | checked | checking | the call of used-up deliveries is not announced yet: another process may be at work on it |
//! | checking | quiet over | checking | is it announced by now? |
//! | checking | drain | checking | the same, for the last time |
//! | checking | checked | dead-lettering | it is not announced, and others had time enough |
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
//! | marking | marked | publishing | the announcement in the stream is of an earlier version of the segments: a revision |
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
//! | acknowledging | redelivered | acknowledging | again, on the new delivery; after a pause, where one is under way |
//! | acknowledging | redelivered | over | the nak is what brought it: a new job begins |
//! | acknowledging | failed | acknowledging | again, after a pause |
//! | acknowledging | failed | over | give up, or refused: left to redelivery |
//!
//! A job that is to load a page while there is no room for its bytes waits until there is.
//! When a pause is over the job asks again and stays where it is, but for the row above. A job whose message is delivered again goes on where it
//! is, with the new delivery in place of the one before. When the grace time of a draining processor ends, what has begun
//! to save is given back too; what is left a moment later is over. Attempts are few from the second delivery on, and where
//! there are no more than three.

mod announcing;
mod begin;
mod effect;
mod failing;
mod inspect;
mod loading;
mod state;

use std::{mem, sync::Arc, time::Duration};

use self::loading::{Loaded, Loading, Panicked};
pub use self::state::State;
pub(crate) use self::state::{Event, Next, Outcome};
use crate::{
    WallTime,
    bug::Planted,
    contract::{Announcement, DeadLetter, trace_context::TraceContext},
    counters::Settled,
    event::SessionEnded,
    ids::{JobId, Key},
    input::{Notified, Page, Report, Stored, TranscriptVersion},
    output::{Acknowledgement, Timer},
    served::Served,
    settings::Settings,
    summary::Summary,
    time::Time,
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
    /// The trace that its message belongs to.
    trace_context: Option<Arc<TraceContext>>,
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
    /// What stands for the key where the processor compares many; 0 without a key.
    pub(crate) key_digest: u64,
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
    Marking { call: SessionEnded, announcement: Announcement, news: News, told: TranscriptVersion, notified: Notified },
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
    /// Whether it is announced, so that this dead letter is not needed. Until that time, a job in another process may do it.
    Announced { dead_letter: Arc<DeadLetter>, until: Option<Time> },
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
            (phase @ Phase::Checking { .. }, Event::QuietOver) => (phase, Next::Ask),
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
                Event::Reported(Report::Published { stream_sequence, segments, edits }),
            ) => {
                let notified = Notified { stream_sequence, at: self.wall(now) };
                let told = TranscriptVersion { segments, edits };
                (Phase::Marking { call, announcement, news, told, notified }, Next::Ask)
            }
            (Phase::Marking { call, announcement, news, told, .. }, Event::Reported(Report::Marked)) => {
                self.announced(call, announcement, news, told, around)
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
                let next = match (&phase, self.awaited) {
                    // What is under way settles this delivery as well. Only a server that came back without the earlier one
                    // drops it unheard (nats-server, consumer.go, processAckMsgLocked): so it is asked again, but not at once.
                    (Phase::Acknowledging { .. }, Some(_)) => Next::Wait(Timer::Retry, now.after(settings.retry_cap)),
                    (Phase::Acknowledging { .. }, None) => Next::Ask,
                    _ => Next::Stay,
                };
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
            (Phase::Checking { call, question: Question::Announced { dead_letter, .. } }, Event::Drain) => {
                let question = Question::Announced { dead_letter, until: Some(now) };
                let next = if self.timers.is_set(Timer::Settle) { Next::Ask } else { Next::Stay };
                (Phase::Checking { call, question }, next)
            }
            // Better a dead letter too many than a message that is lost.
            (Phase::Checking { question: Question::Announced { dead_letter, .. }, .. }, Event::GraceOver) => {
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
    /// than it found, has nothing to add. A request to process the call again has: what that job loaded may not be stored.
    fn covered(&mut self, call: SessionEnded, outcome: Outcome) -> (Phase, Next) {
        let is_older = outcome.loaded_at.is_some_and(|loaded_at| self.ended_at <= loaded_at);
        let asks_again = call.reprocess > 0;
        if !is_older || asks_again || self.reply.is_none() || call.published_segments > outcome.segments {
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
        if let Loaded::Again(order) = loading.outcome(around.settings) {
            let again = loading.again(around.now, order, around.settings);
            return Ok((Phase::Loading { call, loading: Box::new(again) }, Next::Ask));
        }
        let (bytes, loaded_at) = (loading.held_bytes(), loading.begun);
        match loading.finish(&call, self.wall(around.now)) {
            Ok(summary) => Ok((Phase::Saving { call, summary: Arc::new(summary), bytes, loaded_at }, Next::Ask)),
            Err(panicked) => Err((call, panicked)),
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

    /// A report has come: nothing is awaited any more, and a success ends a row of failures.
    fn settle_account(&mut self, report: &Report) {
        self.awaited = None;
        self.timers.clear(Timer::Answer);
        if !matches!(report, Report::Failed(_)) {
            self.retries = 0;
            self.failing_since = None;
        }
    }

    /// The shell's wall clock, carried on from the delivery by the clock that never goes back.
    fn wall(&self, now: Time) -> WallTime {
        self.received_at.after(now.since(self.delivered))
    }
}
