//! Makes a failing plan smaller while it breaks the same promise.

use super::hunt::is_kept_without_the_bug;
use crate::{
    plan::{Action, EndPayload, Options, Plan, Trigger, Verdict},
    world::{Recording, Violation},
};

/// The most plans that are tried.
const TRIES: usize = 4_000;

/// The smallest plan that it can find which breaks the same promise, and how that one breaks it.
#[must_use]
pub fn shrink(plan: &Plan, violation: &Violation) -> (Plan, Violation) {
    let mut shrinker = Shrinker { best: plan.clone(), violation: violation.clone(), tries: 0 };
    loop {
        let before = shrinker.best.clone();
        shrinker.drop_parts();
        shrinker.drop_and_count_anew();
        shrinker.deliver_less();
        shrinker.simplify();
        if shrinker.best == before || shrinker.tries >= TRIES {
            return (shrinker.best, shrinker.violation);
        }
    }
}

struct Shrinker {
    best: Plan,
    violation: Violation,
    tries: usize,
}

impl Shrinker {
    /// Takes the plan for the best one if it breaks the same promise.
    fn offer(&mut self, plan: Plan) -> bool {
        if plan == self.best || self.tries >= TRIES {
            return false;
        }
        self.tries += 1;
        match plan.run(Recording::Off).violation {
            Some(violation)
                if violation.property == self.violation.property
                    && (plan.bug.is_none() || is_kept_without_the_bug(&plan)) =>
            {
                self.best = plan;
                self.violation = violation;
                true
            }
            Some(_) | None => false,
        }
    }

    fn change(&mut self, change: impl FnOnce(&mut Plan)) -> bool {
        let mut plan = self.best.clone();
        change(&mut plan);
        self.offer(plan)
    }

    /// Leaves out faults, calls, segments, ends: halves first, then smaller runs of them, then each alone.
    fn drop_parts(&mut self) {
        self.drop_from(|plan| &mut plan.faults);
        self.drop_from(|plan| &mut plan.chores);
        self.drop_from(|plan| &mut plan.calls);
        for call in 0..self.best.calls.len() {
            self.drop_from(|plan| plan.calls.get_mut(call).map_or_else(|| unreachable!(), |call| &mut call.segments));
            self.drop_from(|plan| plan.calls.get_mut(call).map_or_else(|| unreachable!(), |call| &mut call.ends));
        }
    }

    /// Leaves out a call or a fault together with what arrived because of it.
    fn drop_and_count_anew(&mut self) {
        let mut call = 0;
        while call < self.best.calls.len() {
            call += usize::from(!self.change_and_count_anew(|plan| {
                plan.calls.remove(call);
            }));
        }
        let mut fault = 0;
        while fault < self.best.faults.len() {
            fault += usize::from(!self.change_and_count_anew(|plan| {
                plan.faults.remove(fault);
            }));
        }
    }

    /// Changes the plan, and has a fault that comes with the n-th arrival come with an earlier one, where the change leaves out
    /// arrivals.
    fn change_and_count_anew(&mut self, change: impl Fn(&mut Plan)) -> bool {
        let counted = |plan: &Plan| plan.faults.iter().position(|fault| matches!(fault.when, Trigger::Arrival { .. }));
        let mut changed = self.best.clone();
        change(&mut changed);
        let Some(place) = counted(&changed) else { return self.offer(changed) };
        let with = |nth_arrival: u64| {
            let mut plan = changed.clone();
            if let Some(Trigger::Arrival { nth, .. }) = plan.faults.get_mut(place).map(|fault| &mut fault.when) {
                *nth = nth_arrival;
            }
            plan
        };
        let Some(Trigger::Arrival { nth, .. }) = changed.faults.get(place).map(|fault| &fault.when) else {
            return false;
        };
        (1..=*nth).rev().any(|earlier| self.offer(with(earlier)))
    }

    fn drop_from<T>(&mut self, part: impl Fn(&mut Plan) -> &mut Vec<T>) {
        let mut size = part(&mut self.best.clone()).len();
        while size > 0 {
            let mut start = 0;
            while start < part(&mut self.best.clone()).len() {
                let dropped = self.change(|plan| {
                    let items = part(plan);
                    items.drain(start..items.len().min(start + size));
                });
                if !dropped {
                    start += size;
                }
            }
            size /= 2;
        }
    }

    /// Fewer deliveries are used up by fewer faults: where that leaves out nothing more, the limit stays what it was.
    fn deliver_less(&mut self) {
        let before = (self.best.clone(), self.violation.clone());
        if self.change(|plan| plan.options.max_deliver = 1) {
            self.drop_parts();
            if self.best.events() == before.0.events() {
                (self.best, self.violation) = before;
            }
        }
    }

    fn simplify(&mut self) {
        while self.best.processors > 1 && self.change(|plan| plan.processors -= 1) {}
        self.simplify_options();
        for place in 0..self.best.faults.len() {
            self.simplify_fault(place);
        }
        for place in 0..self.best.chores.len() {
            self.simplify_chore(place);
        }
        for place in 0..self.best.calls.len() {
            self.simplify_call(place);
        }
    }

    fn simplify_options(&mut self) {
        self.change(|plan| plan.options = Options::quick());
        self.change(|plan| plan.heals_at_ms = None);
        self.change(|plan| plan.seed = 0);
        let quick = Options::quick();
        self.change(|plan| plan.options.skews_ms.clear());
        self.change(|plan| plan.options.jitter_us = 0);
        self.change(|plan| plan.options.delay_us = quick.delay_us);
        self.change(|plan| plan.options.page_size = quick.page_size);
        self.change(|plan| plan.options.max_in_flight = quick.max_in_flight);
        self.change(|plan| plan.options.quiet_period_ms = quick.quiet_period_ms);
        self.change(|plan| plan.options.settle_rounds = quick.settle_rounds);
        self.change(|plan| plan.options.ack_wait_ms = quick.ack_wait_ms);
        self.change(|plan| plan.options.retry_timeout_ms = quick.retry_timeout_ms);
        self.change(|plan| plan.options.request_timeout_ms = quick.request_timeout_ms);
        self.change(|plan| plan.options.max_deliver = quick.max_deliver);
        self.change(|plan| plan.options.window_ms = quick.window_ms);
        self.change(|plan| plan.options.timer_lag_ms = quick.timer_lag_ms);
        self.change(|plan| plan.options.segment_writes = quick.segment_writes);
        self.change(|plan| plan.options.announce_once = quick.announce_once);
        self.change(|plan| plan.options.revise = quick.revise);
        self.change(|plan| plan.options.max_bytes_in_flight = quick.max_bytes_in_flight);
    }

    fn simplify_fault(&mut self, place: usize) {
        for round in [60_000, 10_000, 1_000, 100] {
            self.change(|plan| {
                if let Some(Trigger::AtMs(at)) = plan.faults.get_mut(place).map(|fault| &mut fault.when) {
                    *at -= *at % round;
                }
            });
        }
        for smaller in [0, 1_000, 6_100, 10_000, 30_000, 130_000] {
            if self.change(|plan| {
                if let Some(span) = plan.faults.get_mut(place).and_then(|fault| span(&mut fault.what)) {
                    *span = smaller.min(*span);
                }
            }) {
                break;
            }
        }
        while self.change(|plan| match plan.faults.get_mut(place).map(|fault| &mut fault.when) {
            Some(Trigger::Effect { nth, .. } | Trigger::Arrival { nth, .. }) => *nth = (*nth - 1).max(1),
            Some(Trigger::AtMs(_)) | None => {}
        }) {}
    }

    fn simplify_chore(&mut self, place: usize) {
        for at in [10_000, 100_000, 700_000] {
            if self.change(|plan| {
                if let Some(chore) = plan.chores.get_mut(place) {
                    chore.at_ms = at.min(chore.at_ms);
                }
            }) {
                break;
            }
        }
    }

    fn simplify_call(&mut self, place: usize) {
        let call = |plan: &mut Plan| plan.calls.get(place).cloned();
        let Some(now) = call(&mut self.best) else { return };
        let start = now.segments.iter().map(|it| it.at_ms).chain(now.ends.iter().map(|it| it.at_ms)).min().unwrap_or(0);
        for back in [start, start - start % 1_000, start % 1_000] {
            self.change(|plan| {
                if let Some(call) = plan.calls.get_mut(place) {
                    call.segments.iter_mut().for_each(|it| it.at_ms = it.at_ms.saturating_sub(back));
                    call.ends.iter_mut().for_each(|it| it.at_ms = it.at_ms.saturating_sub(back));
                }
            });
        }
        for round in [1_000, 100] {
            for number in 0..now.segments.len() {
                self.change(|plan| {
                    if let Some(it) = plan.calls.get_mut(place).and_then(|call| call.segments.get_mut(number)) {
                        it.at_ms -= it.at_ms % round;
                        it.text = "Yes.".to_owned();
                        it.speaker = None;
                    }
                });
            }
            for number in 0..now.ends.len() {
                self.change(|plan| {
                    if let Some(it) = plan.calls.get_mut(place).and_then(|call| call.ends.get_mut(number)) {
                        it.at_ms -= it.at_ms % round;
                    }
                });
            }
        }
        self.change(|plan| {
            if let Some(call) = plan.calls.get_mut(place) {
                let segments = u64::try_from(call.segments.len()).unwrap_or(0);
                for end in &mut call.ends {
                    if let EndPayload::Announces(count) = &mut end.payload {
                        *count = segments;
                    }
                }
            }
        });
        self.change(|plan| {
            if let Some(call) = plan.calls.get_mut(place) {
                call.verdict = Verdict::Taken;
            }
        });
        self.change(|plan| {
            if let Some(call) = plan.calls.get_mut(place) {
                (call.conversation, call.session) = (format!("c{place}"), format!("s{place}"));
            }
        });
    }
}

fn span(action: &mut Action) -> Option<&mut u64> {
    match action {
        Action::Kill { outage_ms: span, .. }
        | Action::Rollout { outage_ms: span, .. }
        | Action::KillServer { outage_ms: span, .. }
        | Action::StopServer { outage_ms: span, .. }
        | Action::Freeze { span_ms: span, .. }
        | Action::StepDown { span_ms: span }
        | Action::FailWrites { span_ms: span }
        | Action::Sever { span_ms: span, .. }
        | Action::FreezeLink { span_ms: span, .. }
        | Action::Slow { span_ms: span }
        | Action::Duplicate { after_ms: span } => Some(span),
        Action::Reset { .. }
        | Action::LoseAnswer
        | Action::FailBefore(_)
        | Action::FailAfter(_)
        | Action::Race
        | Action::FailMember(_)
        | Action::FailConcern { .. }
        | Action::Garble
        | Action::LoseReport
        | Action::SetAckWait { .. }
        | Action::SetMaxDeliver { .. }
        | Action::SetMaxAckPending { .. }
        | Action::LengthenWindow { .. }
        | Action::SetProcessors { .. } => None,
    }
}
