//! Which deliveries the server knows, and the acknowledgements that wait until it knows theirs.
//!
//! A server that was killed forgets the deliveries of its last moments. It drops an acknowledgement of one without an
//! answer, and hands the message over again as a new one (nats-server, `server/consumer.go`: `processAckMsgLocked`). An
//! acknowledgement that is sent in between is lost, and has to be sent again. So after each connect an acknowledgement waits
//! until the server has said that it handed its message over: by what it tells of the consumer, or by a delivery of this
//! message or of a later one. nats-server looks at the place in the stream only.

use std::{collections::BTreeMap, mem};

use super::{JetStream, TaskId, TaskState};

/// Up to where the server has handed messages over, as far as it has said so since the last connect.
#[derive(Debug, Default)]
pub(super) struct KnownDeliveries {
    up_to: u64,
    /// The acknowledgements that wait, by the place of their message in the stream. An entry whose task is no longer held
    /// means nothing.
    held: BTreeMap<u64, TaskId>,
}

impl KnownDeliveries {
    /// The next connection may be to a server that has forgotten deliveries.
    pub(super) fn forget(&mut self) {
        self.up_to = 0;
    }

    /// Whether the server knows that it handed the message at this place over.
    pub(super) fn include(&self, stream_sequence: u64) -> bool {
        stream_sequence <= self.up_to
    }

    pub(super) fn hold(&mut self, stream_sequence: u64, id: TaskId) {
        self.held.insert(stream_sequence, id);
    }

    /// Takes the server's word; gives the acknowledgements that it can take now.
    fn learn(&mut self, up_to: u64) -> BTreeMap<u64, TaskId> {
        self.up_to = self.up_to.max(up_to);
        let later = self.up_to.checked_add(1).map(|next| self.held.split_off(&next)).unwrap_or_default();
        mem::replace(&mut self.held, later)
    }
}

impl JetStream {
    /// The server has handed over messages up to this place of the stream.
    pub(super) fn knows_deliveries(&mut self, up_to: u64) {
        for id in self.known.learn(up_to).into_values() {
            if let Some(task) = self.tasks.get_mut(&id)
                && task.state == TaskState::Held
            {
                task.state = TaskState::Queued;
                self.queue.push_back(id);
            }
        }
    }

    /// Nobody can tell which deliveries the server knows: no acknowledgement waits for that.
    pub(super) fn assume_deliveries_known(&mut self) {
        self.knows_deliveries(u64::MAX);
    }
}
