//! One run of a processor, while its trace is read.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use transcript_core::{
    Input, Output, Processor, Time, WakeUp,
    ids::{EffectId, JobId},
};

use super::{
    model::{CallName, Lane, Moment, Step},
    read::tolerance,
};
use transcript_trace::{Followed, Follower, Header, LeftOut};

/// A part of a trace, with those that continue it.
#[derive(Debug)]
pub(super) struct DrawnPart {
    /// `None` for an observer's.
    pub(super) name: Option<Arc<str>>,
    /// See [`ProcessHeader`](transcript_trace::ProcessHeader).
    pub(super) process: usize,
    /// Which run of this processor it is, from 1.
    pub(super) run: usize,
    pub(super) started: Moment,
    pub(super) now: Moment,
    /// The number of the last entry.
    pub(super) last_entry: u64,
    /// How late a wake-up may be.
    pub(super) tolerance: Duration,
    program: String,
    /// What the follower said and the trace has not said yet.
    expected: VecDeque<Output>,
    /// Whether the follower has said all along what the trace says. A core that decides otherwise wants to be woken up at
    /// other times.
    pub(super) in_step: bool,
    /// A core that is told the same, which knows which jobs are under way and when it wants to be woken up.
    follower: Option<Follower>,
    pub(super) jobs: BTreeMap<JobId, Job>,
    /// Jobs that the follower cannot follow.
    unfollowed: usize,
    /// Jobs that were over with the last input.
    over: Vec<JobId>,
    /// The job that each delivery is of.
    pub(super) replies: BTreeMap<Arc<str>, JobId>,
    /// Servers that do not answer, since when, and what was said first.
    pub(super) failing: BTreeMap<Lane, (Moment, String)>,
    pub(super) drained: bool,
    pub(super) end: Option<End>,
    pub(super) closed: bool,
}

/// How a part ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Its process died, then.
    Killed(Moment),
    /// It came to its end.
    Over,
}

/// A job under way.
#[derive(Debug, Default)]
pub(super) struct Job {
    /// `None` where it is not drawn.
    pub(super) call: Option<CallName>,
    reply: Option<Arc<str>>,
    /// The effect that was asked for.
    pub(super) open: Option<Open>,
    /// What failed last, and how often in a row.
    pub(super) tries: Option<(String, u64)>,
    /// The tries that are drawn as one.
    pub(super) folded: Option<Step>,
    is_followed: bool,
}

/// An effect that was asked for and not reported yet.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) number: u32,
    pub(super) step: Step,
    pub(super) what: String,
    /// What subscribers will hear, in short and in full.
    pub(super) announces: Option<(String, String)>,
}

impl DrawnPart {
    pub(super) fn new(header: Header, process: usize, run: usize, core: Option<Processor>) -> Self {
        let started = Moment::of_wall(header.started_at);
        let last_job = header.continues.as_ref().and_then(|before| before.last_job);
        let last_entry = header.continues.as_ref().map_or(0, |before| before.entries);
        let follower = core.filter(|_| header.processor.is_some()).map(|core| Follower::new(core, last_job));
        Self {
            name: header.processor,
            process,
            run,
            started,
            now: started,
            last_entry,
            tolerance: tolerance(header.settings.heartbeat_interval()),
            program: header.program,
            expected: VecDeque::new(),
            in_step: last_entry == 0,
            follower,
            jobs: BTreeMap::new(),
            unfollowed: 0,
            over: vec![],
            replies: BTreeMap::new(),
            failing: BTreeMap::new(),
            drained: false,
            end: None,
            closed: false,
        }
    }

    /// What starts.
    pub(super) fn about_start(&self) -> String {
        format!("the process starts: {}", self.program)
    }

    /// The name of its lane.
    pub(super) fn title(&self) -> String {
        let name = self.name.as_deref().unwrap_or("observer");
        if self.run > 1 { format!("{name} ({})", self.run) } else { name.to_owned() }
    }

    /// When the core wants to be woken up, as far as that is known.
    pub(super) fn wake_up(&self) -> Option<WakeUp> {
        self.follower.as_ref().filter(|_| self.in_step).and_then(Follower::wake_up)
    }

    /// Whether the follower has said this too; only the first difference is news.
    pub(super) fn differs(&mut self, output: Option<&Output>) -> bool {
        let differs = self.follower.is_some() && self.expected.pop_front().as_ref() != output;
        differs && std::mem::take(&mut self.in_step)
    }

    pub(super) fn begin(&mut self, job: JobId, call: Option<CallName>, reply: Option<Arc<str>>) {
        let entry = self.jobs.entry(job).or_insert_with(|| {
            self.unfollowed += 1;
            Job { call, ..Job::default() }
        });
        if let Some(reply) = reply {
            if let Some(before) = entry.reply.replace(Arc::clone(&reply)) {
                self.replies.remove(&before);
            }
            self.replies.insert(reply, job);
        }
    }

    /// The effect's request, unless it was reported before.
    pub(super) fn take_open(&mut self, effect: EffectId) -> Option<Open> {
        let job = self.jobs.get_mut(&effect.job)?;
        job.open.take_if(|open| open.number == effect.number)
    }

    /// How often the job has failed in a row to do this.
    pub(super) fn fails_alike(&mut self, job: JobId, what: &str) -> u64 {
        let Some(job) = self.jobs.get_mut(&job) else { return 0 };
        match &mut job.tries {
            Some((before, tries)) if before == what => {
                *tries += 1;
                *tries
            }
            Some(_) | None => {
                job.tries = Some((what.to_owned(), 1));
                1
            }
        }
    }

    /// Tells the follower.
    pub(super) fn follow(&mut self, at: Time, job: Option<JobId>, input: Input) {
        let Some(follower) = &mut self.follower else { return };
        match follower.follow(at, job, input) {
            Followed::Unknown => {}
            Followed::Taken(outputs) => self.expected.extend(outputs),
            Followed::OtherJob { outputs, jobs, .. } => {
                self.expected.extend(outputs);
                self.expected.extend(follower.leave_out(&LeftOut {
                    inputs: 0,
                    jobs: jobs.clone(),
                    why: String::new(),
                }));
                for job in jobs {
                    self.unfollow(job);
                }
            }
        }
        let Some(follower) = &self.follower else { return };
        if let Some((id, entry)) = job.and_then(|id| Some((id, self.jobs.get_mut(&id)?))) {
            if !entry.is_followed && follower.knows(id) {
                entry.is_followed = true;
                self.unfollowed -= 1;
            } else if entry.is_followed && !follower.knows(id) {
                self.over.push(id);
            }
        }
        // Time alone can end jobs too; it is rare, and there is no telling which.
        let is_followed = |id: &JobId| self.jobs.get(id).is_some_and(|entry| entry.is_followed);
        let followed_over = self.over.iter().filter(|id| is_followed(id)).count();
        if self.jobs.len() - self.unfollowed > follower.core().in_flight() + followed_over {
            let over = self.jobs.iter().filter(|(id, entry)| entry.is_followed && !follower.knows(**id));
            let mut over: Vec<JobId> = over.map(|(id, _)| *id).collect();
            over.extend(self.over.iter().filter(|id| !is_followed(id)));
            self.over = over;
        }
    }

    /// An acknowledgement ends a job; the follower tells it of those that it follows.
    pub(super) fn acknowledged(&mut self, job: JobId) {
        if self.jobs.get(&job).is_some_and(|entry| !entry.is_followed) {
            self.over.push(job);
        }
    }

    /// The jobs that were over with the last input.
    pub(super) fn ended(&mut self) -> Vec<JobId> {
        std::mem::take(&mut self.over)
    }

    pub(super) fn leave_out(&mut self, left_out: &LeftOut) {
        if let Some(follower) = &mut self.follower {
            self.expected.extend(follower.leave_out(left_out));
        }
    }

    pub(super) fn remove(&mut self, job: JobId) -> Option<Job> {
        let removed = self.jobs.remove(&job)?;
        self.unfollowed -= usize::from(!removed.is_followed);
        if let Some(reply) = &removed.reply {
            self.replies.remove(reply);
        }
        Some(removed)
    }

    /// When its process was killed.
    pub(super) fn killed_at(&self) -> Option<Moment> {
        match self.end? {
            End::Killed(at) => Some(at),
            End::Over => None,
        }
    }

    /// Nothing more comes; what only a part under way needs is given back.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.follower = None;
        self.replies.clear();
        if self.drained {
            self.end.get_or_insert(End::Over);
        }
    }

    fn unfollow(&mut self, job: JobId) {
        if let Some(entry) = self.jobs.get_mut(&job)
            && std::mem::take(&mut entry.is_followed)
        {
            self.unfollowed += 1;
        }
    }
}
