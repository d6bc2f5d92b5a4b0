//! The messages of a stream.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use super::{config::ConsumerConfig, message::StoredMessage, stamp::Stamp, subject};

/// The messages of a stream by sequence; a removed one leaves a gap.
#[derive(Debug, Clone)]
pub(super) struct Log {
    /// The sequence of the first slot, which is never a gap; one more than the last sequence where nothing is stored.
    first: u64,
    slots: VecDeque<Option<Entry>>,
    messages: u64,
    bytes: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) message: Arc<StoredMessage>,
    pub(super) at: Stamp,
}

impl Default for Log {
    fn default() -> Self {
        Self { first: 1, slots: VecDeque::new(), messages: 0, bytes: 0 }
    }
}

impl Log {
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    pub(super) fn last(&self) -> u64 {
        self.first + self.slots.len() as u64 - 1
    }

    pub(super) fn messages(&self) -> u64 {
        self.messages
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn get(&self, sequence: u64) -> Option<&Entry> {
        self.slots.get(self.slot(sequence)?)?.as_ref()
    }

    /// Everything stored from `sequence` on, in order.
    pub(super) fn from(&self, sequence: u64) -> impl DoubleEndedIterator<Item = &Entry> {
        let start = self.slot(sequence.max(self.first)).unwrap_or(0).min(self.slots.len());
        self.slots.range(start..).flatten()
    }

    /// The first message from `sequence` on that the consumer takes.
    pub(super) fn next_for(&self, sequence: u64, config: &ConsumerConfig) -> Option<&Entry> {
        self.from(sequence).find(|entry| config.takes(&entry.message.subject))
    }

    /// How many messages from `sequence` on the consumer takes.
    pub(super) fn count_for(&self, sequence: u64, config: &ConsumerConfig) -> u64 {
        self.from(sequence).filter(|entry| config.takes(&entry.message.subject)).count() as u64
    }

    /// The sequence of the last message of a subject; zero where there is none.
    pub(super) fn last_of(&self, subject: &str) -> u64 {
        self.from(0).rev().find(|entry| *entry.message.subject == *subject).map_or(0, |entry| entry.message.sequence)
    }

    /// Whether the last sequence given is a gap, while others are stored.
    pub(super) fn last_is_deleted(&self) -> bool {
        matches!(self.slots.back(), Some(None))
    }

    pub(super) fn oldest(&self) -> Option<Stamp> {
        self.slots.front().and_then(Option::as_ref).map(|entry| entry.at)
    }

    /// How many subjects the messages stored have.
    pub(super) fn subjects(&self) -> u64 {
        self.from(0).map(|entry| &entry.message.subject).collect::<BTreeSet<_>>().len() as u64
    }

    pub(super) fn push(&mut self, entry: Entry) {
        self.messages += 1;
        self.bytes += size_of(&entry.message);
        self.slots.push_back(Some(entry));
    }

    pub(super) fn remove(&mut self, sequence: u64) -> Option<Entry> {
        let slot = self.slot(sequence)?;
        let entry = self.slots.get_mut(slot)?.take()?;
        self.messages -= 1;
        self.bytes -= size_of(&entry.message);
        while matches!(self.slots.front(), Some(None)) {
            self.slots.pop_front();
            self.first += 1;
        }
        Some(entry)
    }

    /// Removes everything before `sequence` that matches, and says what that was.
    pub(super) fn purge(&mut self, before: u64, pattern: &str) -> Vec<u64> {
        let doomed: Vec<u64> = self
            .from(0)
            .map(|entry| &entry.message)
            .take_while(|message| message.sequence < before)
            .filter(|message| subject::matches(pattern, &message.subject))
            .map(|message| message.sequence)
            .collect();
        for sequence in &doomed {
            self.remove(*sequence);
        }
        doomed
    }

    fn slot(&self, sequence: u64) -> Option<usize> {
        usize::try_from(sequence.checked_sub(self.first)?).ok()
    }
}

/// What a message takes in the file of the stream. Source: `server/filestore.go`, `fileStoreMsgSizeRaw`.
pub(super) fn size_of(message: &StoredMessage) -> u64 {
    let headers = match message.headers.wire_len() {
        0 => 0,
        len => 4 + len,
    };
    (22 + message.subject.len() + headers + message.payload.len() + 8) as u64
}
