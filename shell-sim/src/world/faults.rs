//! Which planned faults are still to come, and the points that they wait for.

use std::cell::{Cell, RefCell};

use crate::{
    plan::{EffectPattern, Moment, Plan, Server, Trigger},
    store,
};

/// A point of the run around which a fault can happen.
#[derive(Debug, Clone, Copy)]
pub(super) enum Point {
    Effect { processor: usize, kind: EffectPattern, moment: Moment },
    Arrival { server: Server, moment: Moment },
}

/// What faults do to the very thing they are tied to.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Twist {
    pub(super) lose_answer: bool,
    pub(super) lose_report: bool,
    pub(super) fate: Option<store::Fate>,
    pub(super) slow_ms: u64,
    pub(super) again_after_ms: Option<u64>,
}

/// How often each point was passed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Points {
    /// Effects by processor and kind.
    pub effects: Vec<[u64; EffectPattern::COUNT]>,
    /// Arrivals at the broker and at the store.
    pub arrivals: [u64; 2],
}

#[derive(Debug)]
pub(super) struct Faults {
    armed: RefCell<Vec<usize>>,
    points: RefCell<Points>,
    /// The points that had been passed when the first fault happened.
    at_first: RefCell<Option<Points>>,
    pub(super) healed: Cell<bool>,
}

impl Faults {
    pub(super) fn new(plan: &Plan) -> Self {
        let effects = vec![[0; EffectPattern::COUNT]; plan.processors];
        Self {
            armed: RefCell::new((0..plan.faults.len()).collect()),
            points: RefCell::new(Points { effects, arrivals: [0; 2] }),
            at_first: RefCell::default(),
            healed: Cell::new(false),
        }
    }

    /// Counts the point, and takes out the faults that wait for it.
    pub(super) fn pass(&self, plan: &Plan, point: Point) -> Vec<usize> {
        let mut points = self.points.borrow_mut();
        match point {
            Point::Effect { processor, kind, moment: Moment::Before } => {
                for counted in [EffectPattern::Any, kind] {
                    let counts = points.effects.get_mut(processor);
                    if let Some(count) = counts.and_then(|counts| counts.get_mut(counted.place())) {
                        *count += 1;
                    }
                }
            }
            Point::Arrival { server, moment: Moment::Before } => {
                if let Some(count) = points.arrivals.get_mut(server as usize) {
                    *count += 1;
                }
            }
            Point::Effect { moment: Moment::After, .. } | Point::Arrival { moment: Moment::After, .. } => {}
        }
        let mut armed = self.armed.borrow_mut();
        let meets = |fault: &usize| plan.faults.get(*fault).is_some_and(|it| points.meets(it.when, point));
        // Most points meet none.
        if self.healed.get() || !armed.iter().any(meets) {
            return vec![];
        }
        let due: Vec<usize> = armed.extract_if(.., |fault| meets(fault)).collect();
        if self.at_first.borrow().is_none() {
            self.at_first.replace(Some(points.clone()));
        }
        due
    }

    /// Takes a timed fault out, if it is still to come.
    pub(super) fn take(&self, fault: usize) -> bool {
        let mut armed = self.armed.borrow_mut();
        let found = armed.iter().position(|it| *it == fault).filter(|_| !self.healed.get());
        if let Some(place) = found {
            armed.remove(place);
            let points = self.points.borrow().clone();
            self.at_first.borrow_mut().get_or_insert(points);
        }
        found.is_some()
    }

    /// Whether a timed fault is still to come.
    pub(super) fn timed_are_left(&self, plan: &Plan) -> bool {
        let timed = |fault: &usize| plan.faults.get(*fault).is_some_and(|it| matches!(it.when, Trigger::AtMs(_)));
        !self.healed.get() && self.armed.borrow().iter().any(timed)
    }

    pub(super) fn points(&self) -> (Points, Option<Points>) {
        (self.points.borrow().clone(), self.at_first.borrow().clone())
    }
}

impl Points {
    fn meets(&self, trigger: Trigger, point: Point) -> bool {
        match (trigger, point) {
            (
                Trigger::Effect { processor, kind, nth, moment },
                Point::Effect { processor: at, kind: this, moment: when },
            ) => {
                let counted = kind == EffectPattern::Any || kind == this;
                processor == at && counted && moment == when && self.effects(at, kind) == nth
            }
            (Trigger::Arrival { server, nth, moment }, Point::Arrival { server: at, moment: when }) => {
                server == at && moment == when && self.arrivals(at) == nth
            }
            (Trigger::AtMs(_) | Trigger::Effect { .. } | Trigger::Arrival { .. }, _) => false,
        }
    }

    /// How many effects of a kind a processor has begun.
    #[must_use]
    pub fn effects(&self, processor: usize, kind: EffectPattern) -> u64 {
        self.effects.get(processor).and_then(|counts| counts.get(kind.place())).copied().unwrap_or(0)
    }

    /// How many messages have come to a server.
    #[must_use]
    pub fn arrivals(&self, server: Server) -> u64 {
        self.arrivals.get(server as usize).copied().unwrap_or(0)
    }
}
