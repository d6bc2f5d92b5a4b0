//! A core that is told some of what another one was told.

use transcript_core::{Input, Output, Processor, Time, WakeUp, ids::JobId};

use crate::format::LeftOut;

/// A core that follows another one by what that one was told.
///
/// It need not be told everything: jobs are numbered as the other core did, and what concerns a job that it was never told
/// of passes it by.
#[derive(Debug)]
pub struct Follower {
    core: Processor,
    /// The last job that the other core began, as far as this one knows.
    newest: Option<JobId>,
    wake_up: Option<WakeUp>,
    drained: bool,
}

/// What became of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Followed {
    /// It was taken as the other core took it, and the core said this.
    Taken(Vec<Output>),
    /// It concerns a job that this core was not told of, or nobody.
    Unknown,
    /// The two cores did not take it alike. These jobs go different ways from here on.
    OtherJob {
        /// The job that took it here.
        taken: Option<JobId>,
        /// What the core said.
        outputs: Vec<Output>,
        /// Those of the jobs concerned that are under way.
        jobs: Vec<JobId>,
    },
}

impl Follower {
    /// Follows with a core that has not begun, from the job after `newest` on.
    #[must_use]
    pub fn new(core: Processor, newest: Option<JobId>) -> Self {
        Self { core, newest, wake_up: None, drained: false }
    }

    /// The core.
    #[must_use]
    pub fn core(&self) -> &Processor {
        &self.core
    }

    /// When the core wants to be told that time has passed.
    #[must_use]
    pub fn wake_up(&self) -> Option<WakeUp> {
        self.wake_up
    }

    /// Whether it follows the job.
    #[must_use]
    pub fn knows(&self, job: JobId) -> bool {
        self.core.has(job)
    }

    /// Takes an input that the other core took for `job`.
    pub fn follow(&mut self, at: Time, job: Option<JobId>, input: Input) -> Followed {
        let mut concerns = None;
        match (&input, job) {
            (Input::Delivered(_) | Input::Exhausted(_) | Input::Stale(_), Some(id)) => {
                if !self.core.has(id) {
                    if Some(id) <= self.newest {
                        return Followed::Unknown;
                    }
                    self.core.number_next_job(id);
                }
                self.newest = self.newest.max(job);
            }
            // A core with fewer jobs would have taken it.
            (Input::Delivered(_) | Input::Stale(_) | Input::Exhausted(_), None) => return Followed::Unknown,
            (Input::Reported { effect, .. }, _) if self.core.has(effect.job) => concerns = Some(effect.job),
            (Input::Reported { .. }, _) => return Followed::Unknown,
            (
                Input::Consumer(_)
                | Input::Woken
                | Input::Quiet
                | Input::Resume
                | Input::Drain
                | Input::DeliveriesStopped,
                _,
            ) => {}
        }
        let taken = self.core.handle(at, input);
        let outputs = self.outputs();
        if taken == job {
            return Followed::Taken(outputs);
        }
        let mut jobs: Vec<JobId> =
            [job, taken, concerns].into_iter().flatten().filter(|job| self.knows(*job)).collect();
        jobs.sort_unstable();
        jobs.dedup();
        Followed::OtherJob { taken, outputs, jobs }
    }

    /// Takes note that some jobs are not told any further.
    pub fn leave_out(&mut self, left_out: &LeftOut) -> Vec<Output> {
        left_out.jobs.iter().for_each(|job| self.core.forget(*job));
        self.outputs()
    }

    fn outputs(&mut self) -> Vec<Output> {
        let mut outputs = vec![];
        loop {
            match self.core.poll_output() {
                Output::Wait(wake_up) => {
                    self.wake_up = wake_up;
                    return outputs;
                }
                Output::Drained => {
                    // It goes on saying so.
                    if !std::mem::replace(&mut self.drained, true) {
                        outputs.push(Output::Drained);
                    }
                    self.wake_up = None;
                    return outputs;
                }
                output @ (Output::Perform { .. } | Output::InProgress { .. } | Output::StopDeliveries) => {
                    outputs.push(output);
                }
                // They are for the log. What is said of failures depends on jobs that a trace may leave out.
                Output::Notice(_) => {}
            }
        }
    }
}
