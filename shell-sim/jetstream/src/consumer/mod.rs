//! A durable pull consumer with explicit acks: what is out, what comes back, and what it says about it.

mod delivery;
mod lifecycle;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{
    ack::{AckBody, AckSubject},
    advisory::{Advisory, AdvisoryKind},
    again::Again,
    config::{ConsumerConfig, DeliverPolicy},
    log::Log,
    message::{ConsumerInfo, Context, Inbox, Message, Pause, SequencePair, StatusHeaders},
    saved::{Change, Pending, Saved, SavedState},
    stamp::Stamp,
    waiting::{Supply, Waiting},
};

/// The ack-wait timer runs this much longer than the wait itself, so that bursts share one check.
const CHECK_SLACK: Duration = Duration::from_millis(1);
/// How soon deliveries are checked after a nak with a delay.
const CHECK_AFTER_DELAYED_NAK: Duration = Duration::from_millis(10);
/// How soon deliveries are checked after the ack wait was changed.
const CHECK_AFTER_UPDATE: Duration = Duration::from_millis(100);

/// One consumer. What it does with pull requests is in [`delivery`], and what happens to it as a whole in [`lifecycle`].
#[derive(Debug, Clone)]
pub(super) struct Consumer {
    pub(super) config: ConsumerConfig,
    pub(super) stream: Arc<str>,
    /// The next stream sequence to look at.
    pub(super) next_stream: u64,
    /// The consumer sequence of the next delivery.
    pub(super) next_consumer: u64,
    pub(super) floor: SequencePair,
    pub(super) pending: BTreeMap<u64, Pending>,
    /// How often a message was redelivered; kept for a message that is given up, until it is acknowledged or leaves.
    pub(super) redelivered: BTreeMap<u64, u64>,
    /// What is to be delivered again, before anything new.
    pub(super) again: Again,
    /// Messages not yet delivered, as the server counts along; it can fall below zero.
    pub(super) unsent: i64,
    /// The filters were removed from a running consumer: no new or removed message is noticed until a restart.
    pub(super) deaf: bool,
    pub(super) waiting: Waiting,
    pub(super) waiting_due: Option<Stamp>,
    check_due: Option<Stamp>,
    /// When the pause ends.
    pause_due: Option<Stamp>,
    /// Something happened after which the server looks whether there is something to deliver.
    awake: bool,
    pub(super) saved: Saved,
    /// What the consumer said of itself when the server started: the next create or update is answered with it.
    at_start: Option<ConsumerInfo>,
    created: Stamp,
    last_delivered: Option<Stamp>,
    last_acked: Option<Stamp>,
}

/// How many of the messages that a consumer gets were purged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    /// All that were stored by then.
    All,
    /// Some; those after the first one left may be gone too.
    Part,
}

impl Consumer {
    pub(super) fn new(stream: Arc<str>, config: ConsumerConfig, log: &Log, now: Stamp) -> Self {
        let chosen = match config.deliver {
            DeliverPolicy::All => log.first(),
            DeliverPolicy::New => log.last() + 1,
            DeliverPolicy::Last => log
                .from(0)
                .rev()
                .find(|entry| config.takes(&entry.message.subject))
                .map_or(log.last() + 1, |entry| entry.message.sequence),
            DeliverPolicy::FromSequence(sequence) => sequence,
        };
        let next_stream = chosen.max(log.first()).max(1);
        let pause_due = pause_end(&config, now);
        Self {
            unsent: counted(log, next_stream, &config),
            deaf: false,
            saved: Saved::starting(next_stream - 1),
            config,
            stream,
            next_stream,
            next_consumer: 1,
            floor: SequencePair { consumer: 0, stream: next_stream - 1 },
            pending: BTreeMap::new(),
            redelivered: BTreeMap::new(),
            again: Again::default(),
            waiting: Waiting::default(),
            waiting_due: None,
            check_due: None,
            pause_due,
            awake: false,
            at_start: None,
            created: now,
            last_delivered: None,
            last_acked: None,
        }
    }

    /// When a timer of this consumer fires next.
    pub(super) fn due(&self) -> Option<Stamp> {
        [self.check_due, self.waiting_due, self.pause_due].into_iter().flatten().min()
    }

    /// Fires what is due.
    pub(super) fn fire(&mut self, log: &Log, ctx: &mut Context<'_>) {
        if self.check_due.is_some_and(|due| due <= ctx.now) {
            self.check_pending(log, ctx);
            self.pump_if_awake(log, ctx);
        }
        if self.pause_due.is_some_and(|due| due <= ctx.now) {
            self.pause_due = None;
            self.advise_pause(ctx);
            self.pump(log, ctx);
        }
        if self.waiting_due.is_some_and(|due| due <= ctx.now) {
            self.review_waiting(Supply::Exhausted, ctx);
            self.pump(log, ctx);
        }
    }

    /// Delivers, if something happened that wakes the server's loop; most of what happens does not.
    pub(super) fn pump_if_awake(&mut self, log: &Log, ctx: &mut Context<'_>) {
        if std::mem::take(&mut self.awake) {
            self.pump(log, ctx);
        }
    }

    pub(super) fn wake(&mut self) {
        self.awake = true;
    }

    /// Wakes the loop where the limit of unacknowledged messages is reached, so that what makes room is used.
    fn wake_if_stalled(&mut self) {
        self.awake |= self.config.max_ack_pending.is_some_and(|most| self.pending.len() as u64 >= most);
    }

    /// A message to the reply subject of a delivery.
    pub(super) fn acknowledge(
        &mut self,
        subject: &AckSubject,
        body: AckBody,
        reply: Option<Inbox>,
        log: &Log,
        ctx: &mut Context<'_>,
    ) {
        let taken = match body {
            AckBody::Ack => self.ack(subject, ctx),
            AckBody::Next(pull) => {
                self.ack(subject, ctx);
                match (reply, pull) {
                    (Some(reply), Ok(pull)) => self.pull(reply, &pull, ctx),
                    (Some(reply), Err(why)) => refuse_pull(reply, &why, ctx),
                    (None, _) => {}
                }
                false
            }
            AckBody::Nak(delay) => {
                self.nak(subject, delay, ctx);
                true
            }
            AckBody::Progress => {
                self.progress(subject.stream_seq, ctx);
                true
            }
            AckBody::Term(reason) => {
                let taken = self.ack(subject, ctx);
                let kind = terminated(subject.consumer_seq, reason.unwrap_or_default());
                self.advise(subject.stream_seq, subject.deliveries, kind, ctx);
                taken
            }
            AckBody::Unknown => true,
        };
        if let Some(reply) = reply.filter(|_| taken) {
            ctx.send(reply, Message::AckConfirmed);
        }
        self.pump_if_awake(log, ctx);
    }

    /// Takes an ack of any delivery of a message; says whether it is answered. Only the stream sequence is looked at: not
    /// which delivery it was, and not whether the message is still out.
    pub(super) fn ack(&mut self, subject: &AckSubject, ctx: &mut Context<'_>) -> bool {
        let sequence = subject.stream_seq;
        if sequence >= self.next_stream {
            return false;
        }
        let mut consumer_seq = subject.consumer_seq;
        if let Some(pending) = self.pending.get(&sequence).copied() {
            self.wake_if_stalled();
            self.pending.remove(&sequence);
            consumer_seq = pending.consumer_seq;
            self.move_floor(consumer_seq, sequence);
        }
        self.redelivered.remove(&sequence);
        self.again.remove(sequence);
        self.save_acked(consumer_seq, sequence, ctx.now);
        true
    }

    fn nak(&mut self, subject: &AckSubject, delay: Option<Duration>, ctx: &mut Context<'_>) {
        let sequence = subject.stream_seq;
        if subject.consumer_seq <= self.floor.consumer || subject.consumer_seq > self.next_consumer {
            return;
        }
        let Some(pending) = self.pending.get_mut(&sequence) else {
            return;
        };
        let consumer_seq = subject.consumer_seq;
        if let Some(delay) = delay {
            self.again.remove(sequence);
            pending.since = ctx.now.before(self.config.ack_wait).after(delay);
            let (first_seq, since) = (pending.consumer_seq, pending.since);
            self.save_delivered(first_seq, sequence, subject.deliveries, since, ctx.now);
            if self.check_due.is_some() {
                self.check_in(CHECK_AFTER_DELAYED_NAK, ctx);
            }
        } else {
            self.again.push(sequence);
            self.awake = true;
        }
        self.advise(sequence, subject.deliveries, AdvisoryKind::Naked { consumer_seq }, ctx);
    }

    /// Starts the ack wait again, whichever delivery it was said to; a redelivery that is queued already stays queued.
    fn progress(&mut self, sequence: u64, ctx: &mut Context<'_>) {
        if let Some(pending) = self.pending.get_mut(&sequence) {
            pending.since = ctx.now;
            let first_seq = pending.consumer_seq;
            self.save_delivered(first_seq, sequence, 1, ctx.now, ctx.now);
        }
    }

    /// Records a delivery that leaves now.
    pub(super) fn track(&mut self, consumer_seq: u64, stream_seq: u64, ctx: &mut Context<'_>) {
        let now = ctx.now;
        self.pending
            .entry(stream_seq)
            .and_modify(|pending| pending.since = now)
            .or_insert(Pending { consumer_seq, since: now });
        let times = self.redelivered.get(&stream_seq).copied().unwrap_or(0);
        let wait = self.config.wait_after(times) + CHECK_SLACK;
        if self.check_due.is_none_or(|due| due > now.after(wait)) {
            self.check_in(wait, ctx);
        }
    }

    pub(super) fn save_delivered(
        &mut self,
        consumer_seq: u64,
        stream_seq: u64,
        deliveries: u64,
        since: Stamp,
        now: Stamp,
    ) {
        let max_deliver = self.config.max_deliver;
        self.last_delivered = Some(now);
        self.saved.apply(now, Change::Delivered { consumer_seq, stream_seq, deliveries, since, max_deliver });
    }

    pub(super) fn advise_pause(&self, ctx: &mut Context<'_>) {
        let (until_nanos, left) = (self.config.pause_until_nanos, self.pause_left(ctx.now));
        self.advise_of_itself(AdvisoryKind::Pause(Pause { until_nanos, left }), ctx);
    }

    /// Tells something that is about no message.
    pub(super) fn advise_of_itself(&self, kind: AdvisoryKind, ctx: &mut Context<'_>) {
        let (stream, consumer) = (self.stream.clone(), self.config.name.clone());
        ctx.advisories.push(Advisory { stream, consumer, stream_seq: 0, deliveries: 0, kind });
    }

    /// How much is left of the pause; `None` where the consumer is not paused.
    pub(super) fn pause_left(&self, now: Stamp) -> Option<Duration> {
        Some(pause_end(&self.config, now)?.since(now))
    }

    pub(super) fn save_acked(&mut self, consumer_seq: u64, stream_seq: u64, now: Stamp) {
        self.last_acked = Some(now);
        self.saved.apply(now, Change::Acked { consumer_seq, stream_seq });
    }

    pub(super) fn advise(&mut self, stream_seq: u64, deliveries: u64, kind: AdvisoryKind, ctx: &mut Context<'_>) {
        let (stream, consumer) = (self.stream.clone(), self.config.name.clone());
        ctx.advisories.push(Advisory { stream, consumer, stream_seq, deliveries, kind });
    }

    fn check_in(&mut self, wait: Duration, ctx: &Context<'_>) {
        self.check_due = Some(ctx.now.after(wait + ctx.check_lag));
    }

    /// Looks at everything that is out: what waited long enough is queued for redelivery, or given up.
    pub(super) fn check_pending(&mut self, log: &Log, ctx: &mut Context<'_>) {
        self.forget_removed(log, ctx);
        let mut wait = self.config.backoff.last().copied().unwrap_or(self.config.ack_wait + CHECK_SLACK);
        let mut expired = Vec::new();
        for (sequence, pending) in &self.pending {
            let times = self.redelivered.get(sequence).copied().unwrap_or(0);
            let deadline = self.config.wait_after(times);
            if !self.config.backoff.is_empty() {
                wait = wait.min(self.config.wait_after(times + 1));
            }
            let elapsed = ctx.now.since(pending.since);
            if elapsed < deadline {
                let ahead = pending.since.since(ctx.now);
                wait = wait.min(deadline - elapsed + ahead);
            } else if !self.again.contains(*sequence) {
                expired.push(*sequence);
            }
        }
        expired.retain(|sequence| !self.give_up_if_spent(*sequence, ctx));
        if let Some(oldest) = expired.first().and_then(|first| self.pending.get(first)).map(|pending| pending.since) {
            self.awake = true;
            for sequence in expired {
                self.again.push(sequence);
                if let Some(pending) = self.pending.get_mut(&sequence) {
                    pending.since = pending.since.shifted(oldest, ctx.now);
                }
            }
        }
        if self.pending.is_empty() {
            self.check_due = None;
            self.again = Again::default();
            self.floor = self.delivered();
        } else {
            self.check_in(wait, ctx);
        }
    }

    /// Drops what is out but no longer in the stream, or below the floor.
    fn forget_removed(&mut self, log: &Log, ctx: &Context<'_>) {
        let keep = log.first().max(self.floor.stream + 1);
        if self.pending.first_key_value().is_none_or(|(sequence, _)| *sequence >= keep) {
            return;
        }
        let kept = self.pending.split_off(&keep);
        for (sequence, pending) in std::mem::replace(&mut self.pending, kept) {
            self.redelivered.remove(&sequence);
            self.again.remove(sequence);
            self.floor.stream = self.floor.stream.max(sequence);
            self.floor.consumer = self.floor.consumer.max(pending.consumer_seq);
        }
        self.save_all(ctx.now);
    }

    /// Gives a message up whose redeliveries have reached the limit already: with a limit of one delivery when its first wait
    /// is over, otherwise only where the limit was lowered below its deliveries.
    fn give_up_if_spent(&mut self, sequence: u64, ctx: &mut Context<'_>) -> bool {
        let times = self.redelivered.get(&sequence).copied().unwrap_or(0);
        let counted = times.max(1);
        if self.config.max_deliver.is_none_or(|most| counted < most) {
            return false;
        }
        self.advise(sequence, times + 1, AdvisoryKind::MaxDeliveries, ctx);
        self.wake_if_stalled();
        self.redelivered.insert(sequence, counted);
        self.give_up(sequence, counted + 1, ctx.now);
        true
    }

    /// Takes a message out of those that are out, without an ack.
    pub(super) fn give_up(&mut self, sequence: u64, deliveries: u64, now: Stamp) {
        if let Some(pending) = self.pending.remove(&sequence) {
            self.save_delivered(pending.consumer_seq, sequence, deliveries, pending.since, now);
            self.move_floor(pending.consumer_seq, sequence);
        }
    }

    fn move_floor(&mut self, consumer_seq: u64, stream_seq: u64) {
        if self.pending.is_empty() {
            self.floor = self.delivered();
        } else if consumer_seq == self.floor.consumer + 1 {
            self.floor = SequencePair { consumer: consumer_seq, stream: stream_seq };
            if let Some((next, pending)) = self.pending.range(stream_seq + 1..).next() {
                self.floor = SequencePair { consumer: pending.consumer_seq - 1, stream: next - 1 };
            }
        }
    }

    pub(super) fn delivered(&self) -> SequencePair {
        SequencePair { consumer: self.next_consumer - 1, stream: self.next_stream - 1 }
    }

    pub(super) fn save_all(&mut self, now: Stamp) {
        let state = SavedState {
            delivered: self.delivered(),
            floor: self.floor,
            pending: self.pending.clone(),
            redelivered: self.redelivered.clone(),
        };
        self.saved.apply(now, Change::Replaced(Box::new(state)));
    }
}

/// Answers a pull request that cannot be read.
pub(super) fn refuse_pull(reply: Inbox, why: &str, ctx: &mut Context<'_>) {
    ctx.status(reply, 400, format!("Bad Request - {why}"), StatusHeaders::None);
}

/// When the consumer's pause ends; `None` where it has.
fn pause_end(config: &ConsumerConfig, now: Stamp) -> Option<Stamp> {
    config.pause_until_nanos.map(Stamp::from_nanos).filter(|end| *end > now)
}

pub(super) fn terminated(consumer_seq: u64, reason: Arc<str>) -> AdvisoryKind {
    AdvisoryKind::Terminated { consumer_seq, reason }
}

pub(super) fn counted(log: &Log, from: u64, config: &ConsumerConfig) -> i64 {
    i64::try_from(log.count_for(from, config)).unwrap_or(i64::MAX)
}
