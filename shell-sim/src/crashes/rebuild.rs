//! Makes a plan of what a trace tells of one session.
//!
//! A trace does not say everything. What it leaves open is filled in as the product's users would expect it, and what cannot
//! be rebuilt is said.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use transcript_client::jetstream;
use transcript_core::{EffectKind, FailureKind, Settings, SettingsError};
use transcript_trace::Reader;

use super::{
    MOST_SEGMENTS,
    story::{Came, EndTold, StepEvent, Story, server},
};
use crate::{
    plan::{
        Action, Call, Chore, EffectPattern, End, EndPayload, Fault, Options, Plan, SegmentSaved, Server, Task, Trigger,
        Verdict,
    },
    world::Recording,
};

/// How long before its first end the call's world begins, in microseconds.
const LEAD_US: i64 = 1_000_000;
/// From how late a first delivery on nobody was there to take it, in microseconds.
const LATE_US: i64 = 50_000;
/// Room for more jobs makes no difference to one call.
const MOST_JOBS: usize = 1 << 20;
/// Nor does room for more bytes.
const MOST_BYTES: u64 = 1 << 40;
/// How long a killed processor is gone of which nothing more is known, in milliseconds.
pub(super) const GONE_MS: u64 = 600_000;
/// How many processors there are: those that had the call, and one more, but no more than this.
const MOST_PROCESSORS: usize = 8;
/// The shortest and the longest delay of a message, in microseconds.
const DELAYS_US: (u64, u64) = (150, 100_000);
/// What failed within this time was refused by somebody, in microseconds.
const AT_ONCE_US: i64 = 1_000_000;
/// How long a server that comes back takes to serve, in milliseconds: its election.
const ELECTION_MS: u64 = 500;

/// The name of an effect in its story: which job's it is, its kind, how many of the job's effects of this kind had succeeded
/// before, and which try it is since.
pub(super) type Name = (usize, EffectPattern, u32, u32);

/// A call of a trace as a plan.
#[derive(Debug)]
pub(super) struct Rebuilt {
    pub(super) plan: Plan,
    pub(super) story: Story,
    /// What the plan does otherwise than the trace, or takes for granted.
    pub(super) otherwise: Vec<String>,
    /// Microseconds since the Unix epoch at the plan's beginning.
    origin: i64,
}

impl Rebuilt {
    pub(super) fn new(story: Story) -> Result<Self, SettingsError> {
        story.settings.check()?;
        let options = options(&story.settings, story.pull_expires);
        options.core().check()?;
        let otherwise = unlike(&story.settings, &options.core());
        let starts = story.ends.values().map(|end| end.stored_at.min(end.first_delivered_at));
        let first = starts.min().unwrap_or(0);
        let origin = first.saturating_sub(LEAD_US);
        let origin = origin.saturating_sub(origin.rem_euclid(1_000));
        let delay = story.round_trip().map(|trip| u64::try_from(trip / 2).unwrap_or(0).clamp(DELAYS_US.0, DELAYS_US.1));
        let held = story.steps.iter().filter_map(|step| story.processes.get(step.process));
        let names: BTreeSet<_> = held.map(|process| &process.processor).collect();
        let plan = Plan {
            seed: 0,
            processors: (names.len() + 1).min(MOST_PROCESSORS),
            options: Options { delay_us: delay.unwrap_or(DELAYS_US.0), ..options },
            calls: vec![],
            faults: vec![],
            chores: vec![],
            heals_at_ms: None,
            bug: None,
        };
        let mut rebuilt = Self { plan, story, otherwise, origin };
        rebuilt.begin_late();
        rebuilt.break_servers();
        let arrivals = rebuilt.arrivals();
        rebuilt.plan.calls = vec![rebuilt.call(&arrivals, None)];
        rebuilt.redrive();
        rebuilt.end_processes();
        rebuilt.store_just_in_time(&arrivals);
        Ok(rebuilt)
    }

    pub(super) fn at_ms(&self, at: i64) -> u64 {
        u64::try_from(at.saturating_sub(self.origin) / 1_000).unwrap_or(0)
    }

    /// Where an end waited for its first delivery, nobody was there until then.
    fn begin_late(&mut self) {
        let Some(end) = self.story.ends.values().min_by_key(|end| end.first_delivered_at) else { return };
        if end.first_delivered_at.saturating_sub(end.stored_at) > LATE_US {
            let outage_ms = self.at_ms(end.first_delivered_at);
            let killed = |processor| Fault { when: Trigger::AtMs(0), what: Action::Kill { processor, outage_ms } };
            self.plan.faults.extend((0..self.plan.processors).map(killed));
        }
    }

    /// When how many segments more were there: between the count before and the one that saw them.
    fn arrivals(&mut self) -> Vec<Arrival> {
        let story = &self.story;
        let mut arrivals = vec![];
        let (mut known, mut since) = (0, None);
        for (place, step) in story.steps.iter().enumerate() {
            let StepEvent::Reported { came: Came::Counted(segments), .. } = step.what else { continue };
            if segments < known {
                let (entry, part) = (step.entry, step.part);
                self.otherwise.push(format!("entry {entry} of part {part} counts fewer segments than before"));
            }
            let asked = story.asked(place).map_or(step.at, |asked| asked.at);
            let between = since.map(|since| (since, asked));
            arrivals.push(Arrival { segments: segments.saturating_sub(known), between });
            known = known.max(segments);
            since = Some(step.at);
        }
        let loaded = story.segments.len() as u64;
        let announced = story.ends.values().map(|end| end.published_segments).max().unwrap_or(0);
        let all = if arrivals.is_empty() { announced } else { known.max(loaded) };
        if all > MOST_SEGMENTS {
            self.otherwise.push(format!("{all} segments are more than the {MOST_SEGMENTS} that are rebuilt"));
        }
        if all > known {
            match arrivals.last_mut() {
                Some(last) => last.segments += all - known,
                None => arrivals.push(Arrival { segments: all, between: None }),
            }
        }
        arrivals
    }

    /// The call, whose later segments come when `own` says, or else half-way between two counts.
    fn call(&self, arrivals: &[Arrival], own: Option<&[u64]>) -> Call {
        let story = &self.story;
        let mut times = vec![];
        for (number, arrival) in arrivals.iter().enumerate() {
            let room = MOST_SEGMENTS.saturating_sub(times.len() as u64);
            let at = match (arrival.between, own.and_then(|own| own.get(number))) {
                (None, _) => 0,
                (Some(_), Some(at)) => *at,
                (Some((from, to)), None) => self.at_ms(from + to.saturating_sub(from) / 2),
            };
            times.extend((0..arrival.segments.min(room)).map(|_| at));
        }
        let mut known: Vec<_> = story.segments.values().collect();
        known.sort_by_key(|segment| (segment.index.unwrap_or(i64::MAX), &segment.id));
        let mut indices: Vec<i64> = known.iter().filter_map(|segment| segment.index).collect();
        indices.dedup();
        let named = indices.len() == times.len();
        let segments = times.iter().enumerate().map(|(place, at_ms)| {
            let segment = known.get(place);
            let own = segment.and_then(|segment| segment.index).filter(|_| named);
            SegmentSaved {
                at_ms: *at_ms,
                index: own.unwrap_or_else(|| i64::try_from(place).unwrap_or(i64::MAX)),
                speaker: segment.and_then(|segment| segment.speaker.clone()),
                text: segment.map_or_else(|| "Yes.".to_owned(), |segment| segment.text.clone()),
                session_start_ms: segment.and_then(|segment| segment.session_start()),
                edits: 0,
            }
        });
        let ends = story
            .ends
            .values()
            .filter(|end| end.redrive_of.is_none())
            .map(|end| End { at_ms: self.at_ms(end.stored_at.min(end.first_delivered_at)), payload: payload(end) });
        let refused = story.steps.iter().any(|step| {
            let refusal = Came::Failed(FailureKind::Rejected);
            matches!(step.what, StepEvent::Reported { kind: EffectPattern::Of(EffectKind::Save), came, .. } if came == refusal)
        });
        Call {
            conversation: story.session.conversation_id.to_string(),
            session: story.session.session_id.to_string(),
            segments: segments.collect(),
            ends: ends.collect(),
            verdict: if refused { Verdict::Refused } else { Verdict::Taken },
        }
    }

    /// An end that was made from a dead letter is the operator's work; one that was made from an end is a drain's.
    fn redrive(&mut self) {
        let ends = &self.story.ends;
        let by_hand = ends.values().filter(|end| end.redrive_of.is_some_and(|of| !ends.contains_key(&of)));
        let chores = by_hand.map(|end| Chore { at_ms: self.at_ms(end.stored_at), what: Task::Redrive });
        self.plan.chores = chores.collect();
        if self.plan.calls.iter().all(|call| call.ends.is_empty()) {
            // Nothing is known of the end that the dead letter was made from: this one stands for it.
            let end = ends
                .values()
                .next()
                .map(|end| End { at_ms: self.at_ms(end.stored_at.min(end.first_delivered_at)), payload: payload(end) });
            self.plan.chores.clear();
            self.plan.calls.iter_mut().for_each(|call| call.ends.extend(end.clone()));
        }
    }

    /// A server was away from before the first failure of a row until before the next success.
    fn break_servers(&mut self) {
        for away in [Server::Broker, Server::Store] {
            let mut since: Option<(i64, Refusal)> = None;
            for (place, step) in self.story.steps.iter().enumerate() {
                let StepEvent::Reported { kind, came, .. } = step.what else { continue };
                if server(kind) != away {
                    continue;
                }
                let asked = self.story.asked(place).map_or(step.at, |asked| asked.at);
                if let Came::Failed(why) = came {
                    if why != FailureKind::Rejected {
                        let after = step.at.saturating_sub(asked);
                        since.get_or_insert((asked, if after < AT_ONCE_US { Refusal::AtOnce } else { Refusal::Late }));
                    } else if kind != EffectPattern::Of(EffectKind::Save) {
                        self.otherwise.push(format!("{kind} is refused in the trace, and here it is not"));
                    }
                } else if let Some((from, refusal)) = since.take() {
                    let fault = self.outage(away, refusal, from, asked);
                    self.plan.faults.push(fault);
                }
            }
            if let (Some((from, refusal)), Some(last)) = (since, self.story.steps.last()) {
                let fault = self.outage(away, refusal, from, last.at);
                self.plan.faults.push(fault);
            }
        }
    }

    /// A MongoDB without a primary refuses at once, as often as it is asked; one that is gone is waited for.
    fn outage(&self, away: Server, refusal: Refusal, from: i64, to: i64) -> Fault {
        let (from, to) = (self.at_ms(from).saturating_sub(1), self.at_ms(to).saturating_sub(1));
        let span_ms = to.saturating_sub(from).max(1);
        let what = match (away, refusal) {
            (Server::Store, Refusal::AtOnce) => Action::StepDown { span_ms },
            (Server::Store, Refusal::Late) => {
                Action::StopServer { server: Server::Store, outage_ms: span_ms.saturating_sub(ELECTION_MS) }
            }
            (Server::Broker, _) => Action::StopServer { server: Server::Broker, outage_ms: span_ms },
        };
        Fault { when: Trigger::AtMs(from), what }
    }

    /// Now that it is known when the plan counts, later segments come just before the count that sees them.
    fn store_just_in_time(&mut self, arrivals: &[Arrival]) {
        let counts = |story: &Story| -> Vec<(i64, u64)> {
            let steps = story.steps.iter().enumerate();
            let counted = steps.filter_map(|(place, step)| {
                let StepEvent::Reported { came: Came::Counted(segments), .. } = step.what else { return None };
                Some((story.asked(place)?.at, segments))
            });
            counted.collect()
        };
        let before = play(&self.plan, &self.story);
        let seen = counts(&before);
        let beginning = before.origin();
        let just_before: Vec<u64> = seen
            .iter()
            .map(|(asked, _)| u64::try_from((asked - beginning) / 1_000).unwrap_or(0).saturating_sub(1))
            .collect();
        if seen.len() < arrivals.len() {
            return;
        }
        let call = self.call(arrivals, Some(&just_before));
        let old = std::mem::replace(&mut self.plan.calls, vec![call]);
        if let (Some(call), Some(old)) = (self.plan.calls.first_mut(), old.first()) {
            call.ends.clone_from(&old.ends);
        }
        let numbers = |counts: &[(i64, u64)]| counts.iter().map(|(_, segments)| *segments).collect::<Vec<u64>>();
        if numbers(&counts(&play(&self.plan, &self.story))) != numbers(&seen) {
            self.plan.calls = old;
        }
    }
}

/// What comes of a plan, in the words of a trace; nothing where its end never comes to a process.
pub(super) fn play(plan: &Plan, story: &Story) -> Story {
    let (_, trace) = plan.record(Recording::Off);
    Story::read(Reader::new(trace.as_slice()), None).unwrap_or_else(|_| story.without_steps())
}

/// So many more segments, and the counts between which they came; `None` before the end.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    segments: u64,
    between: Option<(i64, i64)>,
}

/// How the first effect of a row of failures failed.
#[derive(Debug, Clone, Copy)]
enum Refusal {
    AtOnce,
    Late,
}

impl Story {
    /// The names of the effects, by the places of the steps that ask for them.
    pub(super) fn names(&self) -> Vec<Option<Name>> {
        let jobs: BTreeMap<_, usize> = self.jobs().into_iter().zip(0..).collect();
        let mut done: BTreeMap<(usize, EffectPattern), (u32, u32)> = BTreeMap::new();
        let names = self.steps.iter().map(|step| {
            let job = *jobs.get(&(step.process, step.job))?;
            match step.what {
                StepEvent::Asked { kind, .. } => {
                    let (done, tries) = done.entry((job, kind)).or_default();
                    *tries += 1;
                    Some((job, kind, *done, *tries))
                }
                StepEvent::Heartbeat => {
                    let (_, beats) = done.entry((job, EffectPattern::Heartbeat)).or_default();
                    *beats += 1;
                    Some((job, EffectPattern::Heartbeat, 0, *beats))
                }
                StepEvent::Reported { kind, came: Came::Counted(_) | Came::Loaded(_) | Came::Done, .. } => {
                    let (done, tries) = done.entry((job, kind)).or_default();
                    (*done, *tries) = (*done + 1, 0);
                    None
                }
                StepEvent::Reported { came: Came::Failed(_), .. }
                | StepEvent::Delivered { .. }
                | StepEvent::Exhausted
                | StepEvent::StaleSummary
                | StepEvent::Drained => None,
            }
        });
        names.collect()
    }

    pub(super) fn find(&self, name: Name) -> Option<usize> {
        self.names().iter().position(|own| *own == Some(name))
    }

    /// Which effect of its kind, of which processor of the simulator, a step asks for.
    pub(super) fn nth(&self, place: usize) -> Option<(usize, EffectPattern, u64)> {
        let step = self.steps.get(place)?;
        let StepEvent::Asked { kind, .. } = step.what else { return None };
        let processor = self.processor(step.process)?;
        let same = self.steps.get(..=place)?.iter().filter(|it| {
            matches!(it.what, StepEvent::Asked { kind: own, .. } if own == kind)
                && self.processor(it.process) == Some(processor)
        });
        Some((processor, kind, same.count() as u64))
    }

    /// The simulator's number of a process's processor.
    pub(super) fn processor(&self, process: usize) -> Option<usize> {
        let name = self.processes.get(process)?.processor.as_deref()?;
        name.rsplit(' ').next()?.parse().ok()
    }

    /// When a story of the simulator begins.
    pub(super) fn origin(&self) -> i64 {
        self.processes.iter().map(|process| process.started_at).min().unwrap_or(0)
    }
}

fn payload(end: &EndTold) -> EndPayload {
    match end.reprocess {
        0 => EndPayload::Announces(end.published_segments),
        request => EndPayload::AsksAgain { announces: end.published_segments, request },
    }
}

fn options(settings: &Settings, pull_expires: Option<Duration>) -> Options {
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    Options {
        quiet_period_ms: millis(settings.quiet_period),
        settle_rounds: settings.settle_rounds,
        ack_wait_ms: millis(settings.ack_wait),
        max_deliver: settings.max_deliver,
        max_in_flight: settings.max_in_flight.min(MOST_JOBS),
        page_size: settings.page_size,
        retry_timeout_ms: millis(settings.retry_timeout),
        retry_cap_ms: Some(millis(settings.retry_cap)),
        request_timeout_ms: millis(settings.request_timeout),
        window_ms: millis(settings.duplicate_window),
        announce_once: settings.announce_once,
        revise: settings.revise,
        max_bytes_in_flight: Some(settings.max_bytes_in_flight.min(MOST_BYTES)),
        // A drain lasts as long as the last request. A trace that does not say how long comes from production.
        pull_expires_ms: Some(millis(pull_expires.unwrap_or(jetstream::Settings::default().pull_expires))),
        ..Options::quick()
    }
}

/// The settings of a trace that no plan has.
fn unlike(settings: &Settings, here: &Settings) -> Vec<String> {
    let differ = [
        ("quiet period", settings.quiet_period == here.quiet_period),
        ("ack wait", settings.ack_wait == here.ack_wait),
        ("retryTimeout", settings.retry_timeout == here.retry_timeout),
        ("request timeout", settings.request_timeout == here.request_timeout),
        ("duplicate window", settings.duplicate_window == here.duplicate_window),
        ("nak delay", settings.nak_delay == here.nak_delay),
        ("retry pause", (settings.retry_base, settings.retry_cap) == (here.retry_base, here.retry_cap)),
        ("grace time", settings.grace == here.grace),
        ("summary's bound", settings.limits == here.limits),
    ];
    let differ = differ.iter().filter(|(_, same)| !same);
    differ.map(|(name, _)| format!("the {name} is rounded, or the default")).collect()
}
