//! What would have happened to a call that was really taken, had its process been killed: at each point of its trace.
//!
//! The trace of one session becomes a [`Plan`]: the call, when its segments were there, when its ends were handed over, what
//! the servers did to it, and which processes died over it. This plan runs once as it is, and then once for each point of
//! the trace, with the process killed there, for good, beside another one that takes the call up. Every promise of the
//! simulator is checked each time.

mod endings;
mod rebuild;
mod story;
mod table;

use std::{collections::BTreeMap, fmt};

use serde::Serialize;
use thiserror::Error;
use transcript_core::{SettingsError, ids::Session};
use transcript_trace::{Line, ReadError, cut::Wanted};

use self::{
    rebuild::{GONE_MS, Rebuilt},
    story::{Came, Step, StepEvent, Story},
};
use crate::{
    bug::Bug,
    plan::{Action, EffectPattern, Fault, Moment, Plan, Trigger},
    world::{Outcome, Recording, Violation},
};

/// The most points that are tried; of more, those in the middle are left out.
pub const MOST_POINTS: usize = 1_000;
/// The most segments of a rebuilt call.
pub const MOST_SEGMENTS: u64 = 20_000;
/// The shortest wait that is a point of its own, in microseconds.
const SHORTEST_WAIT_US: i64 = 10_000;

/// Why nothing can be made of a trace.
#[derive(Debug, Error)]
pub enum Unfit {
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It has nothing of the session that is wanted, or of any.
    #[error("the trace has no call{}", .session.as_ref().map(|id| format!(" of session {id:?}")).unwrap_or_default())]
    Nothing {
        /// The session that was asked for.
        session: Option<String>,
    },
    /// More than one session is in it, and nobody said which is meant.
    #[error(
        "the trace has more than one session: say which ({:?} of {:?}, {:?} of {:?}, …)",
        .one.session_id, .one.conversation_id, .other.session_id, .other.conversation_id
    )]
    Several {
        /// The first one.
        one: Box<Session>,
        /// The second one.
        other: Box<Session>,
    },
    /// It was recorded with settings that no core of the simulator can have: there they are whole milliseconds.
    #[error("the settings of the trace cannot be had in the simulator")]
    Settings(#[from] SettingsError),
    /// Its end was never handed over to a process of the trace.
    #[error("the trace has no delivery of the end of session {:?}", .session.session_id)]
    NoEnd {
        /// The session.
        session: Box<Session>,
    },
}

/// What a kill at each point of a trace leads to.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The session.
    pub session: Session,
    /// The call as it was rebuilt.
    pub plan: Plan,
    /// What comes of it without a further kill.
    pub rebuilt: Consequence,
    /// In what the rebuilt call is not as the trace has it, in words.
    pub otherwise: Vec<String>,
    /// Every point that was tried, in the order of the trace.
    pub crashes: Vec<Crash>,
    /// How many points were not tried, because there are more than [`MOST_POINTS`].
    pub left_out: usize,
}

/// One point, and what a kill there leads to.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Crash {
    /// The part of the trace, from 1.
    pub part: u64,
    /// Its entry.
    pub entry: u64,
    /// When it is in the trace, in microseconds since the first delivery.
    pub at_us: i64,
    /// The point in words: `after save, before publish was asked`.
    pub killed: String,
    /// What came of it; `None` where the rebuilt call never comes to this point.
    pub came: Option<Consequence>,
    /// The plan, where a promise is broken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,
}

/// What came of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Consequence {
    /// Hand-overs of the ends.
    pub deliveries: u64,
    /// Summaries stored.
    pub summaries: u64,
    /// Notifications in the stream.
    pub notifications: u64,
    /// Revisions of the summary in the stream.
    pub revisions: u64,
    /// Dead letters in the stream.
    pub dead_letters: u64,
    /// From the kill until the last end was settled, in microseconds; `None` where that was before, or nobody was killed.
    pub recovery_us: Option<u64>,
    /// The promise that was broken, if one was.
    pub violation: Option<Violation>,
}

impl Report {
    /// Whether every promise was kept.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.rebuilt.violation.is_none() && self.broken().next().is_none()
    }

    /// The kills that break a promise.
    pub fn broken(&self) -> impl Iterator<Item = &Crash> {
        self.crashes.iter().filter(|crash| crash.plan.is_some())
    }
}

/// Takes the trace of one session and kills its process at each of its points, before and after each effect that was asked
/// for and in each wait. Without a session that is wanted, the trace must have only one.
///
/// # Errors
///
/// A trace that cannot be read, or does not have the session.
pub fn everywhere(
    lines: impl Iterator<Item = Result<Line, ReadError>>,
    wanted: Option<&Wanted>,
) -> Result<Report, Unfit> {
    everywhere_with(lines, wanted, None)
}

/// The same with a fault put into the product that takes the call up, to see that it is found.
///
/// # Errors
///
/// As [`everywhere`].
///
/// # Panics
///
/// Where a bug is given and none is compiled in.
pub fn everywhere_with(
    lines: impl Iterator<Item = Result<Line, ReadError>>,
    wanted: Option<&Wanted>,
    bug: Option<Bug>,
) -> Result<Report, Unfit> {
    let Rebuilt { plan, story, mut otherwise, .. } = Rebuilt::new(Story::read(lines, wanted)?)?;
    otherwise.extend(difference(&story, &rebuild::play(&plan, &story)));
    otherwise.dedup();
    let plan = Plan { bug, ..plan };
    let outcome = plan.run(Recording::Off);
    let mut points = points(&story, &rebuild::play(&plan, &story));
    let left_out = points.len().saturating_sub(MOST_POINTS);
    if left_out > 0 {
        points.drain(MOST_POINTS / 2..MOST_POINTS / 2 + left_out);
    }
    let first = story.steps.first().map_or(0, |step| step.at);
    let crashes = points.into_iter().map(|point| crash(&plan, point, first)).collect();
    Ok(Report { session: story.session, rebuilt: consequence(outcome, None), plan, otherwise, crashes, left_out })
}

/// A point of the trace.
struct Point {
    part: u64,
    entry: u64,
    at: i64,
    killed: String,
    /// Whom to kill, and when; `None` where the rebuilt call does not come there.
    kill: Option<(usize, Trigger)>,
}

/// The points of a story, each found again in that of the rebuilt call.
fn points(story: &Story, own: &Story) -> Vec<Point> {
    let (names, labels) = (story.names(), labels(story));
    let mut points = vec![];
    for (place, step) in story.steps.iter().enumerate() {
        let (Some(name), Some(label)) = (names.get(place).copied().flatten(), labels.get(place)) else { continue };
        if matches!(step.what, StepEvent::Heartbeat) {
            continue;
        }
        let before = story.before(place);
        let there = own.find(name);
        let mut point = |killed: String, kill| {
            let Step { part, entry, at, .. } = *step;
            points.push(Point { part, entry, at, killed, kill });
        };
        let wait =
            before.and_then(|before| story.steps.get(before)).map_or(0, |before| step.at.saturating_sub(before.at));
        if wait >= SHORTEST_WAIT_US {
            let kill = there.and_then(|there| half_way(own, there));
            point(format!("in the wait of {} before {label}", Seconds(wait)), kill);
        }
        let nth = there.and_then(|there| own.nth(there));
        let kill = |moment| nth.map(|(processor, kind, nth)| (processor, effect(processor, kind, nth, moment)));
        let after = before.and_then(|before| labels.get(before)).map_or("nothing", String::as_str);
        point(format!("after {after}, before {label} was asked"), kill(Moment::Before));
        point(format!("after {label} was asked, before its answer"), kill(Moment::After));
    }
    points
}

fn effect(processor: usize, kind: EffectPattern, nth: u64, moment: Moment) -> Trigger {
    Trigger::Effect { processor, kind, nth, moment }
}

/// The middle of the wait before a step of the rebuilt call.
fn half_way(own: &Story, place: usize) -> Option<(usize, Trigger)> {
    let step = own.steps.get(place)?;
    let before = own.steps.get(own.before(place)?)?;
    if step.at - before.at < SHORTEST_WAIT_US {
        return None;
    }
    let at = before.at + (step.at - before.at) / 2 - own.origin();
    Some((own.processor(step.process)?, Trigger::AtMs(u64::try_from(at / 1_000).ok()?)))
}

/// What each step is called; what happens more than once is numbered.
fn labels(story: &Story) -> Vec<String> {
    let word = |what: &StepEvent| match what {
        StepEvent::Asked { word, .. } => Some(*word),
        StepEvent::Heartbeat => Some("heartbeat"),
        StepEvent::Delivered { .. } => Some("delivery"),
        StepEvent::Exhausted | StepEvent::StaleSummary | StepEvent::Reported { .. } | StepEvent::Drained => None,
    };
    let mut all: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
    story.steps.iter().filter_map(|step| word(&step.what)).for_each(|word| all.entry(word).or_default().0 += 1);
    let mut labels: Vec<String> = vec![];
    for (place, step) in story.steps.iter().enumerate() {
        let label = match (&step.what, word(&step.what)) {
            (StepEvent::Reported { came, .. }, _) => {
                let asked = story.asked_place(place).and_then(|asked| labels.get(asked));
                let asked = asked.map_or("an effect", String::as_str);
                match came {
                    Came::Failed(why) => format!("{asked} failed ({why})"),
                    Came::Counted(_) | Came::Loaded(_) | Came::Done => asked.to_owned(),
                }
            }
            (StepEvent::Exhausted, _) => "word of used-up deliveries".to_owned(),
            (StepEvent::StaleSummary, _) => "word of more segments".to_owned(),
            (StepEvent::Drained, _) => "word to drain".to_owned(),
            (_, Some(word)) => {
                let (all, before) = all.entry(word).or_default();
                *before += 1;
                if *all > 1 { format!("{word} {before}") } else { word.to_owned() }
            }
            (_, None) => String::new(),
        };
        labels.push(label);
    }
    labels
}

/// Runs the plan with a kill at a point.
fn crash(plan: &Plan, point: Point, first: i64) -> Crash {
    let Point { part, entry, at, killed, kill } = point;
    let mut crash = Crash { part, entry, at_us: at.saturating_sub(first), killed, came: None, plan: None };
    let Some((processor, when)) = kill else { return crash };
    let mut plan = plan.clone();
    let number = plan.faults.len();
    plan.faults.push(Fault { when, what: Action::Kill { processor, outage_ms: GONE_MS } });
    let outcome = plan.run(Recording::Off);
    let Some(at_us) = outcome.stats.faults_us.get(number).copied().flatten() else { return crash };
    let came = consequence(outcome, Some(at_us));
    crash.plan = came.violation.is_some().then_some(plan);
    crash.came = Some(came);
    crash
}

fn consequence(outcome: Outcome, killed_us: Option<u64>) -> Consequence {
    let Outcome { violation, stats, .. } = outcome;
    Consequence {
        deliveries: stats.deliveries,
        summaries: stats.summaries,
        notifications: stats.notifications,
        revisions: stats.revisions,
        dead_letters: stats.dead_letters,
        recovery_us: killed_us.and_then(|killed| stats.settled_us.checked_sub(killed)),
        violation,
    }
}

/// Where the rebuilt call first goes another way, as far as the trace goes.
fn difference(story: &Story, own: &Story) -> Option<String> {
    let mut own_jobs = own.jobs().into_iter();
    for job in story.jobs() {
        let mut here = own_jobs.next().map(|job| own.successes(job)).unwrap_or_default().into_iter();
        for (place, kind, came) in story.successes(job) {
            let Some(Step { part, entry, .. }) = story.steps.get(place) else { continue };
            let there = format!("entry {entry} of part {part}");
            match here.next() {
                None => return Some(format!("the rebuilt call is over before {there}")),
                Some((_, own, _)) if own != kind => {
                    return Some(format!("from {there} on the rebuilt call goes another way ({own}, not {kind})"));
                }
                Some((_, _, own)) if own != came => {
                    return Some(format!("at {there} the rebuilt call has {own:?}, not {came:?}"));
                }
                Some(_) => {}
            }
        }
    }
    None
}

/// A span of microseconds in seconds.
struct Seconds(i64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let micros = self.0.unsigned_abs();
        write!(f, "{sign}{}.{:03} s", micros / 1_000_000, micros / 1_000 % 1_000)
    }
}
