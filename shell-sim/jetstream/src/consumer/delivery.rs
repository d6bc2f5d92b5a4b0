//! How a consumer serves pull requests.

use std::{sync::Arc, time::Duration};

use super::Consumer;
use crate::{
    ack::AckSubject,
    advisory::AdvisoryKind,
    config::{PriorityGroups, PriorityPolicy},
    log::{Entry, Log},
    message::{Context, Delivery, Inbox, Message, StatusHeaders, StoredMessage, decimal_digits},
    pull::{PriorityRequest, Pull, WhenEmpty},
    waiting::{Heartbeat, Supply, Waiter},
};

/// A full queue of requests is gone through at most this often.
const REVIEW_OF_FULL_QUEUE: Duration = Duration::from_secs(1);

impl Consumer {
    /// Takes a pull request in; what can be delivered is delivered by the next [`Consumer::pump`].
    pub(crate) fn pull(&mut self, reply: Inbox, pull: &Pull, ctx: &mut Context<'_>) {
        if let Some((code, text)) = self.refusal(pull) {
            ctx.status(reply, code, text, StatusHeaders::None);
            return;
        }
        let full = |consumer: &Self| consumer.waiting.len() >= consumer.config.max_waiting;
        if full(self) && !self.waiting.checked_within(ctx.now, REVIEW_OF_FULL_QUEUE) {
            self.review_waiting(Supply::Unknown, ctx);
        }
        if pull.when_empty == WhenEmpty::Answer {
            let there = self.unsent() + self.again.len();
            if there == 0 && pull.expires.is_none() {
                ctx.status(reply, 404, "No Messages", StatusHeaders::None);
                return;
            }
            if there > 0 && there < self.review_waiting(Supply::Unknown, ctx) {
                ctx.status(reply, 408, "Requests Pending", StatusHeaders::None);
                return;
            }
        }
        if full(self) {
            if pull.heartbeat.is_none() {
                ctx.status(reply, 409, "Exceeded MaxWaiting", StatusHeaders::None);
            }
            return;
        }
        self.waiting.push(Waiter {
            reply,
            left: pull.batch,
            delivered: 0,
            bytes_left: pull.max_bytes,
            expires: pull.expires.map(|expires| ctx.now.after(expires)),
            heartbeat: pull.heartbeat.map(|every| Heartbeat { every, due: ctx.now.after(every) }),
            when_empty: pull.when_empty,
        });
        self.wake();
    }

    fn refusal(&self, pull: &Pull) -> Option<(u16, String)> {
        let config = &self.config;
        if pull.heartbeat.is_some_and(|every| every * 2 > pull.expires.unwrap_or(Duration::ZERO)) {
            return Some((400, "Bad Request - heartbeat value too large".to_owned()));
        }
        if let Some(most) = config.max_batch.filter(|most| pull.batch > *most) {
            return Some((409, format!("Exceeded MaxRequestBatch of {most}")));
        }
        if let Some(most) = config.max_expires.filter(|most| pull.expires.is_some_and(|expires| expires > *most)) {
            return Some((409, format!("Exceeded MaxRequestExpires of {}", go_duration(most))));
        }
        if let Some(most) = config.max_bytes.filter(|most| pull.max_bytes.is_some_and(|bytes| bytes > *most)) {
            return Some((409, format!("Exceeded MaxRequestMaxBytes of {most}")));
        }
        let refused = pull.priority.as_ref().and_then(|asked| refused_priority(asked, config.priority.as_ref()))?;
        Some((400, format!("Bad Request - {refused}")))
    }

    /// Delivers while there is a message and a request that waits for one.
    pub(crate) fn pump(&mut self, log: &Log, ctx: &mut Context<'_>) {
        if self.waiting.is_empty() {
            self.waiting_due = None;
            return;
        }
        if self.pause_left(ctx.now).is_some() {
            self.review_waiting(Supply::Exhausted, ctx);
            return;
        }
        let mut supply = Supply::Unknown;
        while !self.waiting.is_empty() {
            let (entry, deliveries) = match self.next_message(log, ctx) {
                Next::Message(entry, deliveries) => (entry, deliveries),
                Next::Nothing => {
                    supply = Supply::Exhausted;
                    break;
                }
                Next::Stalled => break,
            };
            if !self.deliver(entry, deliveries, ctx) {
                supply = Supply::Exhausted;
                break;
            }
        }
        self.review_waiting(supply, ctx);
    }

    /// Goes through the waiting requests; says how many messages they ask for.
    pub(super) fn review_waiting(&mut self, supply: Supply, ctx: &mut Context<'_>) -> u64 {
        let last = StatusHeaders::Last { consumer: self.next_consumer - 1, stream: self.next_stream - 1 };
        let review = self.waiting.review(supply, last, ctx);
        self.waiting_due = review.due;
        review.asked
    }

    /// Redeliveries first, whatever the limit of unacknowledged messages; then new messages in the order of the stream.
    fn next_message<'l>(&mut self, log: &'l Log, ctx: &mut Context<'_>) -> Next<'l> {
        while let Some(sequence) = self.again.pop() {
            let times = self.redelivered.entry(sequence).or_default();
            *times += 1;
            let deliveries = *times + 1;
            if self.config.max_deliver.is_some_and(|most| deliveries > most) {
                self.advise(sequence, deliveries - 1, AdvisoryKind::MaxDeliveries, ctx);
                self.give_up(sequence, deliveries, ctx.now);
                continue;
            }
            if let Some(entry) = log.get(sequence) {
                return Next::Message(entry, deliveries);
            }
            self.undo_redelivery(sequence);
            if let Some(pending) = self.pending.get(&sequence) {
                let consumer_seq = pending.consumer_seq;
                self.terminate_removed(sequence, consumer_seq, deliveries - 1, ctx);
            }
        }
        if self.config.max_ack_pending.is_some_and(|most| self.pending.len() as u64 >= most) {
            return Next::Stalled;
        }
        let found = log.next_for(self.next_stream, &self.config);
        let looked_at = found.map_or(log.last(), |entry| entry.message.sequence);
        self.next_stream = self.next_stream.max(looked_at + 1);
        match found {
            Some(entry) => {
                self.unsent -= 1;
                Next::Message(entry, 1)
            }
            None => {
                self.unsent = 0;
                Next::Nothing
            }
        }
    }

    /// Hands a message to the request whose turn it is; takes it back where none could take it.
    fn deliver(&mut self, entry: &Entry, deliveries: u64, ctx: &mut Context<'_>) -> bool {
        let message = &if self.config.headers_only { without_payload(&entry.message) } else { entry.message.clone() };
        let reply = AckSubject {
            stream: self.stream.clone(),
            consumer: self.config.name.clone(),
            deliveries,
            stream_seq: message.sequence,
            consumer_seq: self.next_consumer,
            stored_at_nanos: entry.at.nanos(),
            pending: self.unsent(),
        };
        let Some(waiter) = self.waiting.next(|| wire_size(message, &reply), ctx) else {
            if deliveries == 1 && message.sequence + 1 == self.next_stream {
                self.next_stream -= 1;
                self.unsent += 1;
            } else {
                self.undo_redelivery(message.sequence);
                self.again.push(message.sequence);
            }
            return false;
        };
        let consumer_seq = self.next_consumer;
        self.next_consumer += 1;
        // The file dates a delivery with the time the message was stored, not with the time it was delivered.
        self.save_delivered(consumer_seq, message.sequence, deliveries, entry.at, ctx.now);
        self.track(consumer_seq, message.sequence, ctx);
        ctx.send(waiter.reply, Message::Delivery(Delivery { message: message.clone(), reply }));
        if waiter.left == 0 && waiter.bytes_left.is_some_and(|bytes| bytes > 0) {
            ctx.status(waiter.reply, 409, "Batch Completed", waiter.pending());
        }
        true
    }

    fn undo_redelivery(&mut self, sequence: u64) {
        if let Some(times) = self.redelivered.get_mut(&sequence) {
            *times = times.saturating_sub(1);
            if *times == 0 {
                self.redelivered.remove(&sequence);
            }
        }
    }
}

enum Next<'l> {
    Message(&'l Entry, u64),
    Nothing,
    /// As many are unacknowledged as may be.
    Stalled,
}

/// What the server's `processNextMsgRequest` refuses of what a request says about priority groups.
fn refused_priority(asked: &PriorityRequest, groups: Option<&PriorityGroups>) -> Option<&'static str> {
    let policy = groups.map(|groups| groups.policy);
    let waits_for_more = asked.min_pending != 0 || asked.min_ack_pending != 0;
    if waits_for_more && policy != Some(PriorityPolicy::Overflow) {
        return Some("Not a Overflow Priority consumer");
    }
    if asked.id.is_some() && policy != Some(PriorityPolicy::PinnedClient) {
        return Some("Not a Pinned Client Priority consumer");
    }
    if !(0..=9).contains(&asked.priority) {
        return Some("Priority must be between 0 and 9");
    }
    let groups = &groups?.groups;
    match &asked.group {
        None => Some("Priority Group missing"),
        Some(group) if !groups.contains(group) => Some("Invalid Priority Group"),
        Some(_) => None,
    }
}

/// A span of time as Go's `%v` writes it: `1m30s`, `500ms`.
fn go_duration(span: Duration) -> String {
    let nanos = span.as_nanos();
    let fraction = |unit: u128| {
        let digits = unit.ilog10() as usize;
        let rest = format!(".{:0digits$}", nanos % unit);
        format!("{}{}", nanos / unit, rest.trim_end_matches('0').trim_end_matches('.'))
    };
    match nanos {
        0 => "0s".to_owned(),
        1..1_000 => format!("{nanos}ns"),
        1_000..1_000_000 => format!("{}µs", fraction(1_000)),
        1_000_000..1_000_000_000 => format!("{}ms", fraction(1_000_000)),
        _ => {
            let (hours, minutes) = (span.as_secs() / 3_600, span.as_secs() / 60 % 60);
            let seconds = span.saturating_sub(Duration::from_secs(hours * 3_600 + minutes * 60));
            let rest = format!(".{:09}", seconds.subsec_nanos());
            let rest = format!("{}{}s", seconds.as_secs(), rest.trim_end_matches('0').trim_end_matches('.'));
            match (hours, minutes) {
                (0, 0) => rest,
                (0, _) => format!("{minutes}m{rest}"),
                (_, _) => format!("{hours}h{minutes}m{rest}"),
            }
        }
    }
}

/// What a consumer with `headers_only` delivers of a message.
fn without_payload(message: &StoredMessage) -> Arc<StoredMessage> {
    let headers = message.headers.with_size(message.payload.len());
    let subject = message.subject.clone();
    let StoredMessage { sequence, stored_at_nanos, .. } = *message;
    Arc::new(StoredMessage { subject, sequence, headers, payload: Arc::default(), stored_at_nanos })
}

/// What a delivery counts against a request's bytes.
fn wire_size(message: &Arc<StoredMessage>, reply: &AckSubject) -> u64 {
    let numbers =
        [reply.deliveries, reply.stream_seq, reply.consumer_seq, reply.stored_at_nanos.unsigned_abs(), reply.pending];
    let digits: usize = numbers.into_iter().map(decimal_digits).sum();
    let reply_len = "$JS.ACK.......".len() + reply.stream.len() + reply.consumer.len() + digits;
    (message.subject.len() + reply_len + message.headers.wire_len() + message.payload.len()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_written_as_go_does() {
        for (nanos, expected) in [
            (0, "0s"),
            (1_500, "1.5µs"),
            (250_000_000, "250ms"),
            (1_000_000_000, "1s"),
            (90_500_000_000, "1m30.5s"),
            (3_600_000_000_000, "1h0m0s"),
        ] {
            assert_eq!(go_duration(Duration::from_nanos(nanos)), expected);
        }
    }
}
