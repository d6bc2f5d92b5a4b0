//! The loop of a world: everything that can run runs, and the clock jumps to the next timer, until all has come to rest.

use std::{rc::Rc, time::Duration};

use smol::LocalExecutor;
use transcript_core::Time;

use super::World;
use crate::runtime;

/// How long a whole world may take to deliver what it owes: longer than all pauses of the product together.
const OWED_WITHIN: Duration = Duration::from_secs(300);
/// The most steps of a run without the clock moving.
const STEPS_AT_ONE_TIME: u64 = 5_000_000;
/// How long it takes until whoever the broker tells something has a job about it, if nothing is wrong.
const WORD_GETS_AROUND: Duration = Duration::from_secs(1);

/// The number of the executor of everything that is no process of ours.
pub(super) const SURROUNDINGS: usize = 0;

/// The number of a process's executor.
pub(super) fn executor_of(processor: usize) -> usize {
    processor + 1
}

/// Runs one task of an executor, where one is awake.
fn runs_one(executor: &LocalExecutor<'_>, number: usize) -> bool {
    if !runtime::may_run(number) {
        debug_assert!(!executor.try_tick(), "a task of executor {number} was woken and nobody said so");
        return false;
    }
    runtime::runs(number);
    let ran = executor.try_tick();
    if !ran {
        runtime::is_asleep(number);
    }
    ran
}

impl World {
    /// Runs until everything has come to rest, a promise is broken, or what is owed is late.
    pub(super) fn go_on(&self) {
        let mut steps_before = 0;
        loop {
            self.run_what_can();
            if self.watch.borrow().violation.is_some() || self.has_come_to_rest() {
                return;
            }
            let Some(next) = self.clock.next_timer() else { return };
            if self.is_whole() && next > self.last_mended.get().after(OWED_WITHIN) {
                return;
            }
            if next > self.clock.now() {
                steps_before = self.steps.get();
            } else if self.steps.get() - steps_before > STEPS_AT_ONE_TIME {
                return self.fail("DeadlinesMove", "the world does not come to rest".to_owned());
            }
            self.clock.jump(next);
        }
    }

    /// Runs the surroundings and then each process in turn, until none of them has anything to run.
    pub(super) fn run_what_can(&self) {
        let executors = self.processes.len() + 1;
        let (mut steps, mut idle) = (0, 0);
        for turn in (0..executors).cycle() {
            let ran = match turn.checked_sub(1) {
                Some(processor) => self.run_process(processor),
                None => self.run_surroundings(),
            };
            steps += ran;
            idle = if ran == 0 { idle + 1 } else { 1 };
            if idle >= executors {
                break;
            }
            if ran >= STEPS_AT_ONE_TIME {
                self.fail("DeadlinesMove", "the world does not come to rest".to_owned());
                break;
            }
        }
        self.steps.set(self.steps.get() + steps);
    }

    pub(super) fn run_surroundings(&self) -> u64 {
        let mut steps = 0;
        let surroundings = self.surroundings.borrow();
        while steps < STEPS_AT_ONE_TIME && runs_one(&surroundings, SURROUNDINGS) {
            steps += 1;
            self.drop_killed();
        }
        steps
    }

    /// Runs what can run in a process, until it can no more, is frozen or killed.
    pub(super) fn run_process(&self, processor: usize) -> u64 {
        let (number, mut steps) = (executor_of(processor), 0);
        let Some(process) = self.processes.get(processor) else { return steps };
        let executor = {
            let process = process.borrow();
            process.executor.clone().filter(|_| process.frozen == 0)
        };
        let Some(executor) = executor else { return steps };
        while steps < STEPS_AT_ONE_TIME && runs_one(&executor, number) {
            steps += 1;
            self.drop_killed();
            let process = process.borrow();
            let goes_on = process.frozen == 0 && process.executor.as_ref().is_some_and(|it| Rc::ptr_eq(it, &executor));
            if !goes_on {
                break;
            }
        }
        steps
    }

    /// Drops the processes that were killed.
    pub(super) fn drop_killed(&self) {
        if self.somebody_is_doomed.replace(false) {
            for process in &self.processes {
                let mut process = process.borrow_mut();
                if std::mem::take(&mut process.doomed) {
                    let executor = process.executor.take();
                    drop(process);
                    drop(executor);
                }
            }
        }
    }

    /// Everything was published, nothing is broken, and nothing that was planned for a time is to come.
    pub(super) fn is_whole(&self) -> bool {
        self.under_way.get() == 0
            && self.transcribers.get() == 0
            && self.chores_left.get() == 0
            && !self.faults.timed_are_left(&self.plan)
    }

    /// Nothing is owed any more. A process that is still gone is not waited for.
    pub(super) fn has_come_to_rest(&self) -> bool {
        self.transcribers.get() == 0
            && self.chores_left.get() == 0
            && !self.faults.timed_are_left(&self.plan)
            && self.processes.iter().all(|process| process.borrow().in_flight() == 0)
            && self.nats.unsettled() == 0
            && self.given_up.get().is_none_or(|at| self.has_got_around(at))
            && self.stale().is_empty()
    }

    /// Whether whoever was told something at that time, and can hear at all, has heard it: also who stands still.
    pub(super) fn has_got_around(&self, said: Time) -> bool {
        self.under_way.get() == 0 && self.clock.now() >= said.max(self.last_mended.get()).after(WORD_GETS_AROUND)
    }
}
