//! What happens to a consumer as a whole: it is changed, reset, recovered, looked at and ended.

use std::collections::BTreeMap;

use super::{CHECK_AFTER_UPDATE, Consumer, counted, pause_end};
use crate::{
    again::Again,
    config::ConsumerConfig,
    log::Log,
    message::{ConsumerInfo, Context, Inbox, StatusHeaders},
    saved::Saved,
    stamp::Stamp,
    waiting::{Supply, Waiter, Waiting},
};

impl Consumer {
    /// Becomes another; the answer is how it is before it makes use of more room.
    pub(crate) fn update(&mut self, next: ConsumerConfig, log: &Log, ctx: &mut Context<'_>) -> ConsumerInfo {
        let refiltered = next.filters != self.config.filters;
        if next.ack_wait != self.config.ack_wait && self.check_due.is_some() {
            self.check_in(CHECK_AFTER_UPDATE, ctx);
        }
        let roomier = next.max_ack_pending != self.config.max_ack_pending;
        let repaused = next.pause_until_nanos != self.config.pause_until_nanos;
        self.config = next;
        if repaused {
            self.pause_due = pause_end(&self.config, ctx.now);
            self.advise_pause(ctx);
        }
        if refiltered {
            self.deaf = self.config.filters.is_empty();
            self.unsent = counted(log, self.next_stream, &self.config);
        }
        let answer = self.at_start.take().unwrap_or_else(|| self.info(log, ctx));
        if roomier {
            self.pump(log, ctx);
        }
        answer
    }

    /// Goes back, or forward, to `sequence`, or to what follows the ack floor, with counts and sequences new.
    pub(crate) fn reset(&mut self, sequence: Option<u64>, log: &Log, ctx: &mut Context<'_>) {
        let next = sequence.unwrap_or(self.floor.stream + 1).max(1);
        self.pending.clear();
        self.redelivered.clear();
        self.again = Again::default();
        self.next_stream = next;
        self.next_consumer = 1;
        self.floor = self.delivered();
        self.saved = Saved::starting(next - 1);
        (self.last_delivered, self.last_acked) = (None, None);
        self.unsent = counted(log, next, &self.config);
        self.pump(log, ctx);
    }

    /// The server starts again: what the consumer knows is what its file has.
    pub(crate) fn recover(&mut self, log: &Log, ctx: &mut Context<'_>) {
        let state = self.saved.state().clone();
        self.next_stream = state.delivered.stream + 1;
        self.next_consumer = state.delivered.consumer + 1;
        self.floor = state.floor;
        self.pending = state.pending;
        self.redelivered = state.redelivered.into_iter().filter(|(sequence, _)| *sequence >= log.first()).collect();
        self.again = Again::default();
        self.awake = false;
        (self.last_delivered, self.last_acked) = (None, None);
        self.deaf = false;
        self.waiting = Waiting::default();
        self.waiting_due = None;
        self.check_due = None;
        self.pause_due = pause_end(&self.config, ctx.now);
        self.unsent = counted(log, self.next_stream, &self.config);
        if !self.pending.is_empty() {
            self.check_pending(log, ctx);
        }
        self.at_start = Some(self.info(log, ctx));
    }

    pub(crate) fn info(&mut self, log: &Log, ctx: &mut Context<'_>) -> ConsumerInfo {
        self.review_waiting(Supply::Unknown, ctx);
        if self.next_stream > log.last() {
            self.unsent = 0;
        } else if self.unsent > 0 {
            let most = log.messages().min(log.last() - self.next_stream + 1);
            self.unsent = self.unsent.min(i64::try_from(most).unwrap_or(i64::MAX));
        }
        let saved = self.saved.state();
        let once = self.config.max_deliver == Some(1);
        ConsumerInfo {
            stream: self.stream.clone(),
            config: self.config.clone(),
            delivered: saved.delivered,
            ack_floor: saved.floor,
            num_ack_pending: self.pending.len() as u64,
            num_redelivered: if once { 0 } else { self.redelivered.len() as u64 },
            num_waiting: self.waiting.len(),
            num_pending: self.unsent(),
            pause_left: self.pause_left(ctx.now),
            created_nanos: self.created.nanos(),
            last_delivered_nanos: self.last_delivered.map(Stamp::nanos),
            last_acked_nanos: self.last_acked.map(Stamp::nanos),
            now_nanos: ctx.now.nanos(),
        }
    }

    /// Messages not yet delivered, as they are reported.
    pub(crate) fn unsent(&self) -> u64 {
        u64::try_from(self.unsent).unwrap_or(0)
    }

    /// The consumer is deleted: waiting requests are told.
    pub(crate) fn deleted(&mut self, ctx: &mut Context<'_>) {
        for waiter in self.waiting.take_all() {
            ctx.status(waiter.reply, 409, "Consumer Deleted", StatusHeaders::None);
        }
    }

    /// The server stops gracefully: waiting requests are told, and the exact state is written.
    pub(crate) fn stopped(&mut self, ctx: &mut Context<'_>) {
        // Kept by inbox: of several requests with one inbox, only the last is told.
        let by_inbox: BTreeMap<Inbox, Waiter> = self.waiting.take_all().map(|waiter| (waiter.reply, waiter)).collect();
        for waiter in by_inbox.into_values() {
            ctx.status(waiter.reply, 409, "Server Shutdown", waiter.pending());
        }
        self.saved.stop();
    }
}
