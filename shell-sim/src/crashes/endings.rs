//! What became of the processes that had the call, as faults of the plan.

use std::collections::{BTreeMap, BTreeSet};

use transcript_core::ids::JobId;

use super::{
    rebuild::{GONE_MS, Rebuilt, play},
    story::{Step, StepEvent, Story},
};
use crate::plan::{Action, EffectPattern, Fault, Moment, Trigger};

#[derive(Debug, Clone, Copy)]
enum Ending {
    Killed,
    Frozen { until: i64 },
    Drained,
}

impl Rebuilt {
    /// What became of the processes that had the call: each kill, freeze and rollout is put into the plan after a look at
    /// who has the call by then.
    pub(super) fn end_processes(&mut self) {
        let mut endings: Vec<(i64, usize, Ending)> = vec![];
        for (number, process) in self.story.processes.iter().enumerate() {
            if self.story.was_killed(number) {
                endings.push((process.last_at, number, Ending::Killed));
            }
        }
        endings.extend(self.freezes());
        let drained = self.story.steps.iter().filter(|step| matches!(step.what, StepEvent::Drained));
        endings.extend(drained.map(|step| (step.at, step.process, Ending::Drained)));
        endings.sort_by_key(|(at, _, _)| *at);
        for (at, process, how) in endings {
            let faults = self.ending(at, process, how);
            if faults.is_empty() {
                self.otherwise.push(format!("{} is not rebuilt", how.name()));
            }
            self.plan.faults.extend(faults);
        }
    }

    /// The stretches in which a job's process said nothing, not even a heartbeat, for longer than the ack wait.
    fn freezes(&self) -> Vec<(i64, usize, Ending)> {
        let ack_wait = i64::try_from(self.story.settings.ack_wait.as_micros()).unwrap_or(i64::MAX);
        let mut freezes = vec![];
        let delivered = self.story.steps.iter().filter(|step| matches!(step.what, StepEvent::Delivered { .. }));
        let with_heart: BTreeSet<_> = delivered.map(|step| (step.process, step.job)).collect();
        let mut last: BTreeMap<_, &Step> = BTreeMap::new();
        for step in &self.story.steps {
            let key = (step.process, step.job);
            let before = last.insert(key, step);
            let Some(before) = before else { continue };
            let quiet = matches!(before.what, StepEvent::Asked { word: "nak", .. });
            if with_heart.contains(&key) && !quiet && step.at.saturating_sub(before.at) > ack_wait {
                freezes.push((before.at, step.process, Ending::Frozen { until: step.at }));
            }
        }
        freezes
    }

    /// The end of a process, for everybody who has by then what that process had: two can have here what one had in the trace.
    fn ending(&self, at: i64, process: usize, how: Ending) -> Vec<Fault> {
        let own = play(&self.plan, &self.story);
        let held = self.story.held_deliveries(process, at).into_iter();
        let holders: BTreeSet<usize> = held.filter_map(|nth| own.processor(own.holder_of_delivery(nth)?)).collect();
        let at_ms = self.at_ms(at);
        let faults = holders.into_iter().flat_map(|processor| match how {
            Ending::Killed => self.kill(at, process, &own, processor),
            Ending::Frozen { until } => {
                let span_ms = self.at_ms(until).saturating_sub(at_ms + 1);
                vec![Fault { when: Trigger::AtMs(at_ms + 1), what: Action::Freeze { processor, span_ms } }]
            }
            Ending::Drained => {
                // Before it leaves, the deliveries end and the jobs come to theirs.
                let left_at = self.story.processes.get(process).map_or(at, |process| process.last_at.max(at));
                let outage_ms = self.gone_ms(process, left_at);
                vec![Fault { when: Trigger::AtMs(at_ms), what: Action::Rollout { processor, outage_ms } }]
            }
        });
        faults.collect()
    }

    /// A kill over the effect that the process had asked for and had no report of. Where it lived on without the report, this
    /// one is lost, and the kill comes at its time.
    fn kill(&self, at: i64, process: usize, own: &Story, processor: usize) -> Vec<Fault> {
        let what = Action::Kill { processor, outage_ms: self.gone_ms(process, at) };
        let at_its_time = Trigger::AtMs(self.at_ms(at) + 1);
        let Some((asked, kind, nth)) = self.pending(process, own, processor) else {
            return vec![Fault { when: at_its_time, what }];
        };
        let around = |moment| Trigger::Effect { processor, kind, nth, moment };
        if self.story.steps.iter().skip(asked + 1).any(|step| step.process == process) {
            let lost = Fault { when: around(Moment::Before), what: Action::LoseReport };
            return vec![lost, Fault { when: at_its_time, what }];
        }
        vec![Fault { when: around(Moment::After), what }]
    }

    /// The effect that a killed process had asked for and never heard of: its place in the trace, and which it is here.
    fn pending(&self, process: usize, own: &Story, processor: usize) -> Option<(usize, EffectPattern, u64)> {
        let last = self.story.steps.iter().rposition(|step| {
            step.process == process && matches!(step.what, StepEvent::Asked { .. } | StepEvent::Reported { .. })
        })?;
        let name = self.story.names().get(last).copied().flatten()?;
        let (by, kind, nth) = own.nth(own.find(name)?)?;
        (by == processor).then_some((last, kind, nth))
    }

    fn gone_ms(&self, process: usize, at: i64) -> u64 {
        let name = self.story.processes.get(process).map(|process| &process.processor);
        let next = self.story.processes.iter().filter(|next| Some(&next.processor) == name && next.started_at >= at);
        next.map(|next| self.at_ms(next.started_at).saturating_sub(self.at_ms(at))).min().unwrap_or(GONE_MS)
    }
}

impl Story {
    /// The deliveries that a process had not settled at a moment, by their places among all.
    fn held_deliveries(&self, process: usize, at: i64) -> Vec<usize> {
        let is_before = |step: &&Step| step.process == process && step.at <= at;
        let settled = self.steps.iter().filter(is_before).filter(|step| step.is_the_last_word());
        let settled: BTreeSet<JobId> = settled.map(|step| step.job).collect();
        let delivered = self.steps.iter().filter(|step| matches!(step.what, StepEvent::Delivered { .. })).enumerate();
        let held = delivered.filter(|(_, step)| is_before(step) && !settled.contains(&step.job));
        held.map(|(nth, _)| nth).collect()
    }
}

impl Ending {
    fn name(self) -> &'static str {
        match self {
            Self::Killed => "a kill of the trace",
            Self::Frozen { .. } => "a freeze of the trace",
            Self::Drained => "a rollout of the trace",
        }
    }
}
