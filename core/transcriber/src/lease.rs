//! This instance's lease, and the look for instances that have lost theirs.

use transcript_core::{Failure, FailureKind, Time};

use crate::{
    around::{Around, Owner},
    ids::{EffectId, InstanceId},
    input::{Orphan, Report},
    kind::EffectKind,
    lane::Lane,
    output::{Effect, Notice, Timer, WakeUp},
};

/// This instance's lease.
#[derive(Debug)]
pub(crate) struct Lease {
    lane: Lane,
    incarnation: u32,
    renew_at: Time,
    stage: Stage,
}

/// Where a lease stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It is to be inserted.
    Opening,
    /// It is renewed from time to time.
    Held,
    /// It is to expire at once.
    Releasing,
    /// It has expired, or is left to expire.
    Released,
}

impl Lease {
    pub(crate) fn new() -> Self {
        Self { lane: Lane::default(), incarnation: 1, renew_at: Time::ZERO, stage: Stage::Opening }
    }

    pub(crate) fn is_released(&self) -> bool {
        self.stage == Stage::Released
    }

    /// Lets the lease expire, so that the sessions are taken over at once.
    pub(crate) fn release(&mut self) {
        self.stage = match self.stage {
            // An insert that is under way may arrive. Its lease expires by itself.
            Stage::Opening => Stage::Released,
            Stage::Held => Stage::Releasing,
            stage @ (Stage::Releasing | Stage::Released) => stage,
        };
    }

    pub(crate) fn wake_up(&self) -> Option<WakeUp> {
        let renew = (self.stage == Stage::Held && self.lane.is_free())
            .then_some(WakeUp { at: self.renew_at, timer: Timer::Renew });
        self.lane.wake_up().or(renew)
    }

    /// Time has passed; asks for what is due.
    pub(crate) fn look(&mut self, around: &mut Around) {
        if let Some(kind) = self.lane.take_unanswered(around.now).and_then(|id| around.forget(id)) {
            let failure = Failure { kind: FailureKind::TimedOut, detail: "no report in time".to_owned() };
            self.failed(around, kind, &failure);
        }
        self.lane.end_pause(around.now);
        if !self.lane.is_free() {
            return;
        }
        let duration = around.settings.lease;
        match self.stage {
            Stage::Opening => around
                .ask(&mut self.lane, Owner::Lease, |fence| Effect::OpenLease { instance: fence.instance, duration }),
            Stage::Held if self.renew_at <= around.now => {
                around.ask(&mut self.lane, Owner::Lease, |fence| Effect::RenewLease {
                    instance: fence.instance,
                    duration,
                });
            }
            Stage::Held | Stage::Released => {}
            Stage::Releasing => {
                around.ask(&mut self.lane, Owner::Lease, |fence| Effect::ReleaseLease { instance: fence.instance });
            }
        }
    }

    /// An effect on the lease was reported; says whether every session has to be looked at.
    pub(crate) fn reported(&mut self, around: &mut Around, id: EffectId, kind: EffectKind, report: &Report) -> bool {
        self.lane.reported(id);
        match report {
            Report::Failed(failure) => {
                self.failed(around, kind, failure);
                return false;
            }
            Report::LeaseHeld if self.stage == Stage::Opening || self.stage == Stage::Held => {
                self.stage = Stage::Held;
                self.renew_at = around.now.after(around.settings.renew_interval());
                around.has_lease = true;
            }
            Report::LeaseLost if self.stage == Stage::Held => self.lost(around),
            Report::LeaseReleased => self.stage = Stage::Released,
            Report::LeaseHeld
            | Report::LeaseLost
            | Report::Orphans(_)
            | Report::Joined(_)
            | Report::Reserved { .. }
            | Report::Saved(_)
            | Report::Left(_)
            | Report::Counted { .. }
            | Report::SegmentsPublished
            | Report::EndPublished { .. }
            | Report::Finished
            | Report::Reopened
            | Report::TakenOver(_)
            | Report::Gone => {}
        }
        self.lane.succeeded();
        around.say_works(kind);
        matches!(kind, EffectKind::OpenLease | EffectKind::RenewLease)
            && (kind == EffectKind::OpenLease || !around.has_lease)
    }

    /// This instance was thought dead: it goes on as another one.
    fn lost(&mut self, around: &mut Around) {
        self.incarnation = self.incarnation.saturating_add(1);
        around.instance = InstanceId::new(&around.settings.name, &around.settings.nonce, self.incarnation);
        around.has_lease = false;
        around.counters.leases_lost += 1;
        around.notice(Notice::LeaseLost { instance: around.instance.clone() });
        self.stage = Stage::Opening;
    }

    fn failed(&mut self, around: &mut Around, kind: EffectKind, failure: &Failure) {
        around.say_failing(kind, failure);
        if self.stage == Stage::Releasing {
            // It expires by itself, a little later.
            self.stage = Stage::Released;
        } else {
            self.lane.failed(around.now, &around.settings, u64::from(self.incarnation));
        }
    }
}

/// The look for entries of dead instances.
#[derive(Debug)]
pub(crate) struct OrphanSearch {
    lane: Lane,
    at: Time,
}

impl OrphanSearch {
    pub(crate) fn new() -> Self {
        Self { lane: Lane::default(), at: Time::ZERO }
    }

    pub(crate) fn wake_up(&self, around: &Around) -> Option<WakeUp> {
        let next = (self.lane.is_free() && around.has_lease && !around.stops)
            .then_some(WakeUp { at: self.at, timer: Timer::Orphans });
        self.lane.wake_up().or(next)
    }

    pub(crate) fn look(&mut self, around: &mut Around) {
        if let Some(kind) = self.lane.take_unanswered(around.now).and_then(|id| around.forget(id)) {
            let failure = Failure { kind: FailureKind::TimedOut, detail: "no report in time".to_owned() };
            self.failed(around, kind, &failure);
        }
        self.lane.end_pause(around.now);
        if self.lane.is_free() && around.has_lease && !around.stops && self.at <= around.now {
            let limit = around.settings.orphans_limit;
            let own = (around.now < around.joins_arrive_until).then(|| around.instance.clone());
            around.ask(&mut self.lane, Owner::Orphans, |_| Effect::FindOrphans { limit, own });
        }
    }

    /// The look was reported; gives what it found.
    pub(crate) fn reported(
        &mut self,
        around: &mut Around,
        id: EffectId,
        kind: EffectKind,
        report: Report,
    ) -> Vec<Orphan> {
        self.lane.reported(id);
        match report {
            Report::Orphans(orphans) => {
                self.lane.succeeded();
                around.say_works(kind);
                self.at = around.now.after(around.settings.orphans_interval);
                orphans
            }
            Report::Failed(failure) => {
                self.failed(around, kind, &failure);
                vec![]
            }
            Report::LeaseHeld
            | Report::LeaseLost
            | Report::LeaseReleased
            | Report::Joined(_)
            | Report::Reserved { .. }
            | Report::Saved(_)
            | Report::Left(_)
            | Report::Counted { .. }
            | Report::SegmentsPublished
            | Report::EndPublished { .. }
            | Report::Finished
            | Report::Reopened
            | Report::TakenOver(_)
            | Report::Gone => vec![],
        }
    }

    fn failed(&mut self, around: &mut Around, kind: EffectKind, failure: &Failure) {
        around.say_failing(kind, failure);
        self.lane.failed(around.now, &around.settings, 0);
    }
}
