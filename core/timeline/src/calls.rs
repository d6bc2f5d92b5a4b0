//! Which calls are kept while a trace is read, and what of them.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use transcript_core::{Acknowledgement, Effect};

use super::model::{CallName, Moment, Step, StepKind, Work};

/// How many heartbeats in a row are kept one by one, so that something between two of them can be drawn there.
const BEATS: u32 = 64;

/// How many calls are drawn to which nothing happened, where not all calls can be: to see what is usual.
const ORDINARY: usize = 3;

/// The most notes of stored segments that are kept, of all sessions together: it is not known yet whose are drawn.
const MOST_NOTES: usize = 20_000;

/// The calls under way, and of those that are over the most telling ones.
#[derive(Debug)]
pub(super) struct Calls {
    kept: BTreeMap<CallName, Kept>,
    /// Those of which no job is under way, the most telling first.
    over: BTreeSet<(Rank, CallName)>,
    /// Which kept call a message of the stream is about.
    messages: BTreeMap<u64, CallName>,
    /// All calls, by a hash of their names.
    seen: BTreeSet<u64>,
    most_calls: usize,
    most_steps: usize,
    notes: BTreeMap<Arc<str>, Vec<Step>>,
    note_count: usize,
    pub(super) forgotten_notes: u64,
}

/// The most telling first, then the earliest.
type Rank = (Reverse<u32>, Moment, u64);

/// What happened to a call that makes it worth a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mark {
    Killed,
    TranscriberKilled,
    DeadLetter,
    GivenBack,
    Redelivered,
    Failed,
    Unanswered,
    Missing,
    Incomplete,
}

/// A call that may be drawn.
#[derive(Debug)]
pub(super) struct Kept {
    running: BTreeSet<Work>,
    pub(super) marks: BTreeSet<Mark>,
    pub(super) steps: Steps,
    first: (Moment, u64),
    /// The ends in the stream, each with how it is drawn where no transcriber told of it.
    ended: BTreeMap<u64, Option<Step>>,
    /// The notifications whose arrival is told.
    announced: BTreeSet<u64>,
}

/// A call's steps, without its middle where there are too many.
#[derive(Debug)]
pub(super) struct Steps {
    head: Vec<Step>,
    tail: VecDeque<Step>,
    most: usize,
    beats: u32,
    /// How many are not there.
    pub(super) dropped: u64,
}

impl Mark {
    /// What asking for an effect says about its call.
    pub(super) fn of(effect: &Effect) -> Option<Self> {
        if matches!(effect, Effect::DeadLetter { .. }) {
            return Some(Self::DeadLetter);
        }
        if matches!(effect, Effect::Republish { .. }) {
            return Some(Self::GivenBack);
        }
        if matches!(effect, Effect::Publish { notification, .. } if !notification.complete) {
            return Some(Self::Incomplete);
        }
        let Effect::Acknowledge { acknowledgement, .. } = effect else { return None };
        match acknowledgement {
            Acknowledgement::Ack => None,
            Acknowledgement::Nak { .. } => Some(Self::GivenBack),
            Acknowledgement::Term { .. } => Some(Self::DeadLetter),
        }
    }

    fn weight(self) -> u32 {
        match self {
            Self::Killed | Self::TranscriberKilled | Self::DeadLetter => 8,
            Self::Redelivered | Self::GivenBack => 4,
            Self::Failed | Self::Unanswered => 2,
            Self::Missing | Self::Incomplete => 1,
        }
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Killed => "its processor died",
            Self::TranscriberKilled => "its transcriber died",
            Self::DeadLetter => "given up",
            Self::GivenBack => "given back",
            Self::Redelivered => "delivered again",
            Self::Failed => "failures",
            Self::Unanswered => "no answer",
            Self::Missing => "not told to its end",
            Self::Incomplete => "incomplete: fewer segments than its end announced",
        }
    }
}

impl Calls {
    pub(super) fn new(most_calls: usize, most_steps: usize) -> Self {
        Self {
            kept: BTreeMap::new(),
            over: BTreeSet::new(),
            messages: BTreeMap::new(),
            seen: BTreeSet::new(),
            most_calls: most_calls.max(1),
            most_steps: most_steps.max(16),
            notes: BTreeMap::new(),
            note_count: 0,
            forgotten_notes: 0,
        }
    }

    /// How many different calls there were.
    pub(super) fn seen(&self) -> u64 {
        self.seen.len() as u64
    }

    /// The kept call that a message is about.
    pub(super) fn of_message(&self, sequence: u64) -> Option<&CallName> {
        self.messages.get(&sequence)
    }

    /// Somebody begins to do something about the call.
    pub(super) fn begin(&mut self, name: &CallName, work: impl Into<Work>, at: Moment, order: u64) {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        self.seen.insert(hasher.finish());
        let most = self.most_steps;
        let kept = self.kept.entry(name.clone()).or_insert_with(|| Kept::new(at, order, most));
        if kept.running.is_empty() {
            self.over.remove(&(kept.rank(), name.clone()));
        }
        kept.running.insert(work.into());
    }

    /// Nothing more comes of it.
    pub(super) fn end(&mut self, name: &CallName, work: impl Into<Work>) {
        let Some(kept) = self.kept.get_mut(name) else { return };
        if kept.running.remove(&work.into()) && kept.running.is_empty() {
            self.over.insert((kept.rank(), name.clone()));
            if self.over.len() > self.most_calls {
                self.forget_last();
            }
        }
    }

    /// The call, while a job about it is under way.
    pub(super) fn get(&mut self, name: &CallName) -> Option<&mut Kept> {
        self.kept.get_mut(name)
    }

    /// A message about the call was stored, as a processor tells that it is delivered to: drawn like this where nobody else
    /// tells of it. Says whether that is news.
    pub(super) fn ended(&mut self, name: &CallName, sequence: u64, step: Step) -> bool {
        let Some(kept) = self.kept.get_mut(name) else { return false };
        let is_news = !kept.ended.contains_key(&sequence);
        kept.ended.entry(sequence).or_insert(Some(step));
        self.messages.insert(sequence, name.clone());
        is_news
    }

    /// The same, as the transcriber tells that published it, and that is drawn.
    pub(super) fn ended_by_transcriber(&mut self, name: &CallName, sequence: u64) {
        let Some(kept) = self.kept.get_mut(name) else { return };
        kept.ended.insert(sequence, None);
        self.messages.insert(sequence, name.clone());
    }

    /// Segments of a session were stored.
    pub(super) fn note(&mut self, session_id: &Arc<str>, step: Step) {
        let is_full = self.note_count >= MOST_NOTES;
        if is_full && !self.notes.contains_key(session_id) {
            self.forgotten_notes += 1;
            return;
        }
        let notes = self.notes.entry(Arc::clone(session_id)).or_default();
        let is_full = is_full || notes.len() >= self.most_steps / 2;
        if let Some(last) = notes.last_mut().filter(|_| is_full) {
            last.count += step.count;
            last.until = step.until;
        } else {
            notes.push(step);
            self.note_count += 1;
        }
    }

    /// The calls to draw, as many as there are steps for, in the order of their beginnings.
    pub(super) fn finish(mut self) -> Vec<(CallName, Kept)> {
        let mut room = self.most_steps;
        let mut ordinary = if self.seen.len() > self.most_calls { ORDINARY } else { self.most_calls };
        let mut drawn = vec![];
        for (_, name) in std::mem::take(&mut self.over) {
            let Some(mut kept) = self.kept.remove(&name) else { continue };
            if let CallName::Session(session) = &name
                && let Some(notes) = self.notes.remove(&session.session_id)
            {
                kept.steps.head.extend(notes);
            }
            kept.steps.head.extend(std::mem::take(&mut kept.ended).into_values().flatten());
            let steps = kept.steps.len();
            if kept.marks.is_empty() {
                let Some(fewer) = ordinary.checked_sub(1) else { continue };
                ordinary = fewer;
            }
            if steps <= room || drawn.is_empty() {
                room = room.saturating_sub(steps);
                drawn.push((name, kept));
            }
        }
        drawn.sort_by_key(|(_, kept)| kept.first);
        drawn
    }

    fn forget_last(&mut self) {
        let Some((_, name)) = self.over.pop_last() else { return };
        let Some(kept) = self.kept.remove(&name) else { return };
        for sequence in kept.ended.keys() {
            self.messages.remove(sequence);
        }
    }
}

impl Kept {
    fn new(at: Moment, order: u64, most: usize) -> Self {
        Self {
            running: BTreeSet::new(),
            marks: BTreeSet::new(),
            steps: Steps { head: vec![], tail: VecDeque::new(), most, beats: 0, dropped: 0 },
            first: (at, order),
            ended: BTreeMap::new(),
            announced: BTreeSet::new(),
        }
    }

    /// A notification about the call is in the stream; whether that is news.
    pub(super) fn is_announced(&mut self, sequence: u64) -> bool {
        self.announced.insert(sequence)
    }

    fn rank(&self) -> Rank {
        let weight = self.marks.iter().map(|mark| mark.weight()).sum();
        (Reverse(weight), self.first.0, self.first.1)
    }
}

impl Steps {
    pub(super) fn push(&mut self, step: Step) {
        let last = if self.tail.is_empty() { self.head.last_mut() } else { self.tail.back_mut() };
        if step.kind == StepKind::Heartbeat {
            self.beats += 1;
            if let Some(last) = last.filter(|last| self.beats > BEATS && last.job == step.job && last.kind == step.kind)
            {
                last.count += step.count;
                last.until = step.until;
                return;
            }
        } else {
            self.beats = 0;
        }
        if self.head.len() < self.most / 2 {
            self.head.push(step);
            return;
        }
        self.tail.push_back(step);
        if self.tail.len() > self.most / 2 {
            self.tail.pop_front();
            self.dropped += 1;
        }
    }

    /// The steps before those that are missing, and those after them.
    pub(super) fn into_halves(self) -> (Vec<Step>, VecDeque<Step>) {
        (self.head, self.tail)
    }

    fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{JobOf, Lane};

    fn step(at: i64, kind: StepKind) -> Step {
        Step {
            at: Moment(at),
            until: Moment(at),
            count: 1,
            order: at.unsigned_abs(),
            call: None,
            job: None,
            from: Lane::Stream,
            to: Lane::Store,
            kind,
            label: String::new(),
            text: String::new(),
        }
    }

    fn job(number: u64) -> JobOf {
        JobOf { part: 0, job: serde_json::from_value(number.into()).expect("a job's id is a number") }
    }

    #[test]
    fn the_most_telling_calls_stay_and_then_the_earliest() {
        let mut calls = Calls::new(3, 100);
        for number in 1..=50 {
            let name = CallName::Message(number);
            calls.begin(&name, job(number), Moment(number.cast_signed()), number);
            let kept = calls.get(&name).expect("it is under way");
            match number {
                30 => _ = kept.marks.insert(Mark::Failed),
                40 => _ = kept.marks.insert(Mark::Killed),
                _ => {}
            }
            kept.steps.push(step(1, StepKind::Message));
            calls.end(&name, job(number));
        }
        assert_eq!(calls.seen(), 50);
        assert_eq!(calls.kept.len(), 3, "no more is held");
        let drawn: Vec<CallName> = calls.finish().into_iter().map(|(name, _)| name).collect();
        assert_eq!(drawn, [1, 30, 40].map(CallName::Message));
    }

    #[test]
    fn a_call_that_goes_on_is_kept_with_what_was_before() {
        let mut calls = Calls::new(1, 100);
        let name = CallName::Message(9);
        for number in 1..=2 {
            calls.begin(&name, job(number), Moment(5), 5);
            let kept = calls.get(&name).expect("it is under way");
            kept.marks.insert(Mark::Killed);
            kept.steps.push(step(5, StepKind::Message));
            calls.end(&name, job(number));
        }
        let drawn = calls.finish();
        assert_eq!(drawn.len(), 1);
        assert_eq!(drawn[0].1.steps.len(), 2);
    }

    #[test]
    fn a_call_of_too_many_steps_loses_its_middle() {
        let mut steps = Kept::new(Moment(0), 0, 10).steps;
        (0..100).for_each(|at| steps.push(step(at, StepKind::Message)));
        assert_eq!(steps.dropped, 90);
        let (head, tail) = steps.into_halves();
        let at: Vec<i64> = head.iter().chain(&tail).map(|step| step.at.0).collect();
        assert_eq!(at, [0, 1, 2, 3, 4, 95, 96, 97, 98, 99]);
    }

    #[test]
    fn a_long_row_of_heartbeats_takes_little() {
        let mut steps = Kept::new(Moment(0), 0, 400).steps;
        (0..10_000).for_each(|at| steps.push(step(at, StepKind::Heartbeat)));
        assert_eq!((steps.len(), steps.dropped), (64, 0));
        let last = steps.head.last().expect("there are steps");
        assert_eq!((last.count, last.until), (10_000 - 63, Moment(9_999)));
    }
}
