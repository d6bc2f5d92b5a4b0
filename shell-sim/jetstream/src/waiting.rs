//! The pull requests that wait for messages.

use std::{collections::VecDeque, time::Duration};

use super::{
    message::{Context, Inbox, Message, Status, StatusHeaders},
    pull::WhenEmpty,
    stamp::Stamp,
};

/// Pull requests in the order of their turn: one message each, then to the end of the queue.
#[derive(Debug, Clone, Default)]
pub(super) struct Waiting {
    queue: VecDeque<Waiter>,
    /// When the queue was last gone through.
    checked: Option<Stamp>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Waiter {
    pub(super) reply: Inbox,
    pub(super) left: u64,
    pub(super) delivered: u64,
    /// What is left of the bytes; `None` where no limit was named.
    pub(super) bytes_left: Option<u64>,
    pub(super) expires: Option<Stamp>,
    pub(super) heartbeat: Option<Heartbeat>,
    pub(super) when_empty: WhenEmpty,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Heartbeat {
    pub(super) every: Duration,
    pub(super) due: Stamp,
}

/// What going through the queue found.
pub(super) struct Review {
    /// The messages that all waiting requests still ask for.
    pub(super) asked: u64,
    /// When to go through it again.
    pub(super) due: Option<Stamp>,
}

/// Whether there is anything left to deliver to a request that does not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Supply {
    /// Nothing: requests that do not wait are answered.
    Exhausted,
    /// There may be something.
    Unknown,
}

impl Waiter {
    pub(super) fn pending(&self) -> StatusHeaders {
        StatusHeaders::Pending { messages: self.left, bytes: self.bytes_left.unwrap_or(0) }
    }
}

impl Waiting {
    pub(super) fn len(&self) -> u64 {
        self.queue.len() as u64
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn push(&mut self, waiter: Waiter) {
        self.queue.push_back(waiter);
    }

    /// Ends all requests and gives them out, so that somebody can tell them.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Waiter> + use<> {
        std::mem::take(&mut self.queue).into_iter()
    }

    pub(super) fn checked_within(&self, now: Stamp, span: Duration) -> bool {
        self.checked.is_some_and(|checked| now.since(checked) <= span)
    }

    /// The request whose turn it is, charged with one message of `size` bytes; requests on the way that cannot take it end.
    /// The request that is given back shows what it has left.
    pub(super) fn next(&mut self, size: impl Fn() -> u64, ctx: &mut Context<'_>) -> Option<Waiter> {
        while let Some(mut waiter) = self.queue.pop_front() {
            if waiter.expires.is_some_and(|expires| ctx.now >= expires) {
                ctx.status(waiter.reply, 408, "Request Timeout", waiter.pending());
                continue;
            }
            if let Some(bytes) = waiter.bytes_left {
                let Some(rest) = bytes.checked_sub(size()) else {
                    ctx.status(waiter.reply, 409, "Message Size Exceeds MaxBytes", waiter.pending());
                    continue;
                };
                waiter.bytes_left = Some(rest);
                if rest == 0 {
                    waiter.left = 1;
                }
            }
            if !ctx.clients.has_interest(waiter.reply) {
                continue;
            }
            waiter.delivered += 1;
            waiter.left = waiter.left.saturating_sub(1);
            if waiter.left > 0 {
                if let Some(heartbeat) = &mut waiter.heartbeat {
                    heartbeat.due = ctx.now.after(heartbeat.every);
                }
                self.queue.push_back(waiter);
            }
            return Some(waiter);
        }
        None
    }

    /// Ends requests that are over, sends the heartbeats that are due, with `last` in them.
    pub(super) fn review(&mut self, supply: Supply, last: StatusHeaders, ctx: &mut Context<'_>) -> Review {
        let mut review = Review { asked: 0, due: None };
        if self.queue.is_empty() {
            return review;
        }
        self.checked = Some(ctx.now);
        self.queue.retain_mut(|waiter| {
            if waiter.expires.is_some_and(|expires| ctx.now >= expires) {
                ctx.status(waiter.reply, 408, "Request Timeout", waiter.pending());
                return false;
            }
            let one_shot = waiter.when_empty == WhenEmpty::Answer && supply == Supply::Exhausted;
            if one_shot && (waiter.expires.is_none() || waiter.delivered > 0) {
                ctx.status(waiter.reply, 404, "No Messages", StatusHeaders::None);
                return false;
            }
            if !ctx.clients.has_interest(waiter.reply) {
                return false;
            }
            review.asked += waiter.left;
            let mut due = waiter.expires;
            if let Some(heartbeat) = &mut waiter.heartbeat {
                if ctx.now >= heartbeat.due {
                    let text = "Idle Heartbeat".into();
                    ctx.send(waiter.reply, Message::Status(Status { code: 100, text, headers: last }));
                    heartbeat.due = ctx.now.after(heartbeat.every);
                }
                due = Some(due.map_or(heartbeat.due, |expires| expires.min(heartbeat.due)));
            }
            review.due = [review.due, due].into_iter().flatten().min();
            true
        });
        review
    }
}
