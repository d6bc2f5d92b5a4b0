//! What the reports of effects on the store lead to.

use transcript_core::{Failure, FailureKind, Time};

use super::{
    AfterSave, End, Membership, Phase, Session,
    segments::{Epoch, SessionClock},
};
use crate::{
    around::Around,
    document::SessionState,
    frame::{CloseCode, ServerFrame},
    ids::EffectId,
    input::{Departure, Joined, Report, StreamState, TakenOver},
    kind::EffectKind,
    output::Notice,
};

impl Session {
    /// An effect on the store was reported.
    pub(crate) fn store_reported(&mut self, around: &mut Around, id: EffectId, kind: EffectKind, report: Report) {
        let before = self.state();
        self.store.reported(id);
        let what = if let Report::Failed(failure) = &report {
            self.store_failed(around, kind, failure);
            "failed"
        } else {
            self.store.succeeded();
            around.say_works(kind);
            self.store_done(around, report)
        };
        self.settle(around, before, what);
    }

    fn store_done(&mut self, around: &mut Around, report: Report) -> &'static str {
        match report {
            Report::Joined(joined) => {
                self.joined(around, &joined);
                "joined"
            }
            Report::Reserved { first_index, write } => {
                self.batch.reserved(first_index, write);
                self.end.spoken();
                self.next_index = self.next_index.max(first_index.saturating_add(self.batch.receipts.len() as u64));
                self.phase = Phase::Saving(AfterSave::Serve);
                "reserved"
            }
            Report::Saved(outcomes) => {
                self.saved(around, outcomes);
                "saved"
            }
            Report::Left(departure) => self.left(around, departure),
            Report::Counted { segments, edits } => {
                if let Phase::Counting { generation } = self.phase {
                    let end = End { generation, segments, edits };
                    self.phase = match around.stream {
                        StreamState::Absent => Phase::Finishing(end, None),
                        StreamState::Away | StreamState::Available => Phase::Publishing(end),
                    };
                }
                "counted"
            }
            Report::Finished => {
                self.finished(around);
                "finished"
            }
            Report::Reopened => {
                self.phase = Phase::Serving;
                "reopened"
            }
            Report::TakenOver(taken) => {
                self.taken_over(around, taken);
                "taken over"
            }
            Report::Gone => {
                self.gone();
                "gone"
            }
            // The transcriber hands over only reports that fit the effect.
            Report::LeaseHeld
            | Report::LeaseLost
            | Report::LeaseReleased
            | Report::Orphans(_)
            | Report::SegmentsPublished
            | Report::EndPublished { .. }
            | Report::Failed(_) => "nothing",
        }
    }

    fn joined(&mut self, around: &Around, joined: &Joined) {
        let Phase::Joining(join) = std::mem::replace(&mut self.phase, Phase::Serving) else { return };
        for (epoch, zero) in join.epochs.into_iter().zip(&joined.epochs) {
            self.epochs.insert(epoch, zero.map_or(Epoch::Unmapped, Epoch::At));
        }
        if let (Some(instance), Some(transport)) = (join.instance, join.transport) {
            self.membership = Some(Membership { instance, transport });
        }
        self.learn(around.now, joined);
    }

    fn learn(&mut self, now: Time, joined: &Joined) {
        self.clock = Some(SessionClock { at: now, age: joined.age });
        self.next_index = self.next_index.max(joined.next_index);
    }

    fn taken_over(&mut self, around: &mut Around, taken: TakenOver) {
        let Some(from) = self.dead.pop_front() else { return };
        around.counters.taken_over += 1;
        around.notice(Notice::TookOver { key: self.key.clone(), from });
        self.learn(around.now, &taken.joined);
        self.end.taken_over(around.now, taken.transport, &around.settings);
        let before = self.membership.take().filter(|membership| membership.instance == around.instance);
        let transport = before.map_or(taken.transport, |before| before.transport.max(taken.transport));
        // Somebody who is connected opens the session again, by another join.
        let ends = taken.state == SessionState::Ending;
        if !(ends && self.is_used()) {
            self.membership = Some(Membership { instance: around.instance.clone(), transport });
        }
        let then =
            if ends && !self.is_used() { AfterSave::Count { generation: taken.generation } } else { AfterSave::Serve };
        self.save_recovered(around, taken.pending, then);
    }

    fn left(&mut self, around: &mut Around, departure: Departure) -> &'static str {
        match departure {
            Departure::Others => {
                self.membership = None;
                self.phase = Phase::Serving;
                "left to others"
            }
            Departure::Silent => {
                self.end.silent();
                self.phase = Phase::Lingering;
                "left nobody spoke"
            }
            Departure::Ending { generation, pending } => {
                self.save_recovered(around, pending, AfterSave::Count { generation });
                "left last"
            }
        }
    }

    fn gone(&mut self) {
        match self.phase {
            Phase::TakingOver => {
                self.dead.pop_front();
            }
            Phase::Reserving => {
                self.membership = None;
                std::mem::take(&mut self.batch).put_back(&mut self.waiting);
            }
            Phase::Over
            | Phase::Joining(_)
            | Phase::Serving
            | Phase::Saving(_)
            | Phase::Lingering
            | Phase::Leaving
            | Phase::Counting { .. }
            | Phase::Publishing(_)
            | Phase::Finishing(..) => self.membership = None,
        }
        self.phase = Phase::Serving;
    }

    /// What an effect's failure leads to. What the store refuses it will refuse again; everything else is tried again.
    pub(super) fn store_failed(&mut self, around: &mut Around, kind: EffectKind, failure: &Failure) {
        around.say_failing(kind, failure);
        if kind == EffectKind::Join && failure.kind == FailureKind::TimedOut {
            around.joins_arrive_until = around.now.after(around.settings.answer_timeout());
        }
        let is_refused = match failure.kind {
            FailureKind::Rejected => true,
            FailureKind::Unreachable
            | FailureKind::TimedOut
            | FailureKind::Busy
            | FailureKind::Denied
            | FailureKind::Missing => false,
        };
        match self.phase {
            Phase::Joining(_) if is_refused => {
                self.refuse_everybody(around, "the store refuses this session");
                self.phase = Phase::Over;
            }
            Phase::Reserving | Phase::Saving(_) if is_refused => {
                let refused = std::mem::take(&mut self.batch);
                self.phase = self.after_batch();
                self.refuse_batch(around, refused, "the store refuses this segment");
            }
            Phase::Over
            | Phase::TakingOver
            | Phase::Joining(_)
            | Phase::Serving
            | Phase::Reserving
            | Phase::Saving(_)
            | Phase::Lingering
            | Phase::Leaving
            | Phase::Counting { .. }
            | Phase::Publishing(_)
            | Phase::Finishing(..) => self.store.failed(around.now, &around.settings, self.number),
        }
    }

    /// What comes after a batch is stored or refused.
    pub(super) fn after_batch(&self) -> Phase {
        match self.phase {
            Phase::Saving(AfterSave::Count { generation }) => Phase::Counting { generation },
            Phase::Saving(AfterSave::Serve)
            | Phase::Over
            | Phase::TakingOver
            | Phase::Joining(_)
            | Phase::Serving
            | Phase::Reserving
            | Phase::Lingering
            | Phase::Leaving
            | Phase::Counting { .. }
            | Phase::Publishing(_)
            | Phase::Finishing(..) => Phase::Serving,
        }
    }

    fn refuse_everybody(&mut self, around: &mut Around, reason: &str) {
        self.waiting.clear();
        for id in std::mem::take(&mut self.connections).into_keys() {
            around.send(id, ServerFrame::Error { id: None, reason: reason.to_owned(), retryable: false });
            around.close(id, CloseCode::Internal, reason);
        }
    }
}
