//! What a consumer does when messages leave the stream.

use super::{
    ack::AckSubject,
    consumer::{Consumer, Share, counted, terminated},
    log::Log,
    message::Context,
    saved::{Change, Pending},
    stamp::Stamp,
};

const REMOVED: &str = "Unacknowledged message was deleted";

impl Consumer {
    /// Whether the consumer is told of a message of the subject that is stored or removed.
    pub(super) fn hears(&self, subject: &str) -> bool {
        !self.deaf && self.config.takes(subject)
    }

    /// A message that this consumer hears of was stored.
    pub(super) fn stored(&mut self) {
        self.unsent += 1;
    }

    /// A message that this consumer hears of left the stream: where it was out, it is to be terminated with the consumer
    /// sequence and the deliveries given back.
    pub(super) fn removed(&mut self, sequence: u64, now: Stamp) -> Option<(u64, u64)> {
        if sequence >= self.next_stream {
            self.unsent -= 1;
        }
        if let Some(pending) = self.pending.get(&sequence) {
            return Some((pending.consumer_seq, self.redelivered.get(&sequence).copied().unwrap_or(0).max(1)));
        }
        if self.redelivered.remove(&sequence).is_some() {
            self.save_acked(0, sequence, now);
        }
        None
    }

    /// Terminates a message that left the stream.
    pub(super) fn terminate_removed(
        &mut self,
        sequence: u64,
        consumer_seq: u64,
        deliveries: u64,
        ctx: &mut Context<'_>,
    ) {
        let subject = AckSubject {
            stream: self.stream.clone(),
            consumer: self.config.name.clone(),
            deliveries,
            stream_seq: sequence,
            consumer_seq,
            stored_at_nanos: 0,
            pending: 0,
        };
        self.ack(&subject, ctx);
        self.advise(sequence, deliveries, terminated(consumer_seq, REMOVED.into()), ctx);
    }

    /// Messages of the stream were purged, all of this consumer's before `first` among them.
    pub(super) fn purged(&mut self, first: u64, share: Share, log: &Log, ctx: &mut Context<'_>) {
        self.next_stream = self.next_stream.max(first);
        if self.floor.stream < first {
            self.floor.stream = first - 1;
            let gone: Vec<(u64, Pending)> = self
                .pending
                .iter()
                .filter(|(sequence, _)| **sequence < first || (share == Share::Part && log.get(**sequence).is_none()))
                .map(|(sequence, pending)| (*sequence, *pending))
                .collect();
            for (sequence, pending) in gone {
                self.pending.remove(&sequence);
                self.redelivered.remove(&sequence);
                self.floor.consumer = self.floor.consumer.max(pending.consumer_seq);
                self.save_acked(pending.consumer_seq, sequence, ctx.now);
            }
        }
        if self.pending.is_empty() {
            self.redelivered.clear();
            self.floor = self.delivered();
        }
        let queued = std::mem::take(&mut self.again);
        for sequence in queued.into_iter().filter(|sequence| *sequence >= self.next_stream) {
            self.again.push(sequence);
        }
        self.save_all(ctx.now);
    }

    /// The stream's messages before `first` were removed all at once.
    pub(super) fn recount(&mut self, log: &Log, now: Stamp) {
        self.unsent = counted(log, self.next_stream, &self.config);
        let kept = self.redelivered.split_off(&log.first());
        for sequence in std::mem::replace(&mut self.redelivered, kept).into_keys() {
            self.again.remove(sequence);
        }
        self.saved.apply(now, Change::RedeliveredBelow(log.first()));
    }
}
