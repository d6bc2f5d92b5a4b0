//! What the checks know of a world: drawn from what was seen, not from the models.

use std::{collections::BTreeMap, rc::Rc, sync::Arc, time::Duration};

use jetstream_model::{AckBody, StoredMessage};
use transcript_core::{Time, TranscriptVersion, contract::Announcement, event::SessionEnded, ids::Key};

use crate::{
    observation::{Cause, Fate, Observation},
    plan::{Action, EndPayload, Options, Plan, Task, Verdict, millis},
};

/// How long a processor that nothing disturbs takes to listen to the broker, at most.
const SUBSCRIBES_WITHIN: Duration = Duration::from_secs(5);

/// Everything that was seen, put in order.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) plan: Rc<Plan>,
    /// The ends of calls by their place in the stream.
    pub(crate) ends: BTreeMap<u64, EndRecord>,
    ends_of: BTreeMap<Key, Vec<u64>>,
    /// Which version of its segments each stored summary is of.
    pub(crate) summaries: BTreeMap<Key, TranscriptVersion>,
    /// When each key was announced, its revisions left out.
    pub(crate) notifications: BTreeMap<Key, Vec<Time>>,
    /// When each stored summary got the mark that it was announced.
    pub(crate) marks: BTreeMap<Key, Time>,
    /// How many messages the broker gave up.
    pub(crate) given_up: usize,
    /// The most segments of a call.
    pub(crate) longest_call: u64,
    /// How many revisions are in the stream.
    pub(crate) revisions: u64,
    /// The dead letters, in the order in which they were stored.
    pub(crate) dead_letters: Vec<StoredDeadLetter>,
    /// When the stream was purged.
    pub(crate) purges: Vec<Time>,
    /// Since when each processor is up; one that drains is not.
    up: BTreeMap<usize, Time>,
    /// When processors ended.
    endings: Vec<(usize, Time)>,
    /// When each segment was first stored, by session.
    pub(crate) segments: BTreeMap<Arc<str>, BTreeMap<String, Time>>,
    pub(crate) promises: Promises,
    disturbances: Vec<Disturbance>,
}

/// What is promised under the settings that there were: the weakest of them, for a processor may not have learnt the last.
#[derive(Debug)]
pub(crate) struct Promises {
    /// The shortest quiet period.
    pub(crate) quiet_period: Duration,
    /// The most jobs of one processor.
    pub(crate) max_in_flight: usize,
    /// The largest page.
    pub(crate) page_size: u32,
    /// The fewest deliveries after which a message is given up.
    pub(crate) max_deliver: u64,
    /// The duplicate windows, each from when it was given.
    windows: Vec<(Time, Duration)>,
}

impl Promises {
    fn new(options: &Options) -> Self {
        Self {
            quiet_period: millis(options.quiet_period_ms),
            max_in_flight: options.max_in_flight,
            page_size: options.page_size,
            max_deliver: options.max_deliver,
            windows: vec![(Time::ZERO, millis(options.window_ms))],
        }
    }

    fn change(&mut self, now: Time, change: &Action) {
        if let Action::SetMaxDeliver { max_deliver } = change {
            self.max_deliver = self.max_deliver.min(*max_deliver);
        } else if let Action::LengthenWindow { window_ms } = change {
            self.windows.push((now, millis(*window_ms)));
        } else if let Action::SetProcessors { quiet_period_ms, page_size, max_in_flight } = change {
            self.page_size = self.page_size.max(*page_size);
            self.quiet_period = self.quiet_period.min(millis(*quiet_period_ms));
            self.max_in_flight = self.max_in_flight.max(*max_in_flight);
        }
    }

    /// Until when a notification that was stored then is the only one: a longer window counts for what is remembered when
    /// it is given.
    pub(crate) fn only_until(&self, stored: Time) -> Time {
        let longer = |until: Time, (at, window): &(Time, Duration)| {
            if *at <= until { until.max(stored.after(*window)) } else { until }
        };
        self.windows.iter().fold(stored, longer)
    }
}

/// One end of a call in the stream.
#[derive(Debug)]
pub(crate) struct EndRecord {
    /// Whose end it is; `None` where no processor can tell.
    pub(crate) key: Option<Key>,
    pub(crate) announced: u64,
    /// Which request to process the call again it is; 0 for none.
    pub(crate) reprocess: u64,
    pub(crate) stored_at: Time,
    pub(crate) origin: Origin,
    pub(crate) attempts: Vec<Attempt>,
    /// The attempts before this one were of an earlier life: the consumer was set back.
    pub(crate) life: usize,
    pub(crate) acknowledged: bool,
    pub(crate) terminated: bool,
    /// A draining processor has published it again: another message carries on.
    pub(crate) handed_on: bool,
    /// The operator has purged the stream of it.
    pub(crate) purged: bool,
    pub(crate) given_up: Option<GivenUp>,
    /// Whether it was given up in this life or an earlier one.
    pub(crate) given_up_once: bool,
    /// When it was last acknowledged or terminated.
    pub(crate) settled_at: Option<Time>,
}

/// Who published an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Its transcriber: which end of which call it is.
    Transcriber { call: usize, end: usize },
    /// The operator, from a copy of the stream.
    Copy,
    /// The operator from a dead letter, or a draining processor.
    Message,
}

/// The broker delivers a message no more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GivenUp {
    pub(crate) at: Time,
    pub(crate) told: AdvisoryReceiver,
    /// When that processor's core heard it.
    pub(crate) heard: Option<Time>,
}

/// Whom the broker told that it gave a message up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AdvisoryReceiver {
    /// Nobody listened.
    Nobody,
    /// A connection that was over, which the broker had not seen.
    Ghost,
    Processor(usize),
}

/// A dead letter.
#[derive(Debug)]
pub(crate) struct StoredDeadLetter {
    /// Its place in the stream.
    pub(crate) sequence: u64,
    /// The end that it is about.
    pub(crate) of: u64,
    pub(crate) payload: Arc<[u8]>,
    pub(crate) at: Time,
    /// Whether the stream was purged since.
    pub(crate) purged: bool,
}

/// What became of a message that was given up and that nobody settled.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Exhaustion {
    /// It is kept as a dead letter.
    Kept,
    /// Nobody heard of it, or who heard came to an end over it: only the audit can tell that it is missing.
    Missing,
    /// Somebody heard of it and was well.
    Neglected(String),
}

/// One hand-over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    pub(crate) processor: usize,
    pub(crate) at: Time,
}

#[derive(Debug, Clone, Copy)]
struct Disturbance {
    processor: Option<usize>,
    from: Time,
    until: Time,
    cause: Cause,
}

impl Ledger {
    pub(crate) fn new(plan: Rc<Plan>) -> Self {
        Self {
            ends: BTreeMap::new(),
            ends_of: BTreeMap::new(),
            summaries: BTreeMap::new(),
            notifications: BTreeMap::new(),
            marks: BTreeMap::new(),
            given_up: 0,
            longest_call: plan.calls.iter().map(|call| call.segments.len() as u64).max().unwrap_or(0),
            revisions: 0,
            dead_letters: vec![],
            purges: vec![],
            up: BTreeMap::new(),
            endings: vec![],
            segments: BTreeMap::new(),
            promises: Promises::new(&plan.options),
            disturbances: vec![],
            plan,
        }
    }

    /// Enters what was seen; the checks look afterwards.
    pub(crate) fn enter(&mut self, now: Time, seen: &Observation<'_>) {
        match seen {
            Observation::Disturbed { processor, from, until, cause } => {
                if let (Some(processor), Cause::Rollout) = (processor, cause) {
                    self.up.remove(processor);
                }
                let (processor, from, until, cause) = (*processor, *from, *until, *cause);
                self.disturbances.push(Disturbance { processor, from, until, cause });
            }
            Observation::Started { processor, .. } => drop(self.up.insert(*processor, now)),
            Observation::Ended { processor, .. } => {
                self.up.remove(processor);
                self.endings.push((*processor, now));
            }
            Observation::SegmentStored { session, segment } => {
                let known = self.segments.entry(Arc::clone(session)).or_default();
                if !known.contains_key(&segment.id) {
                    known.insert(segment.id.clone(), now);
                }
            }
            Observation::SegmentLost { session, id } => {
                if let Some(known) = self.segments.get_mut(*session) {
                    known.remove(*id);
                }
            }
            Observation::Fault(fault) => self.promises.change(now, &fault.what),
            Observation::Chore(task) => self.chore(now, *task),
            Observation::EndStored { call, end, sequence } => {
                let origin = Origin::Transcriber { call: *call, end: *end };
                self.end_stored(now, *call, *end, *sequence, origin);
            }
            Observation::EndRestored { call, end, sequence } => {
                self.end_stored(now, *call, *end, *sequence, Origin::Copy);
            }
            Observation::EndRedriven { message, of } => self.end_redriven(now, message, *of),
            Observation::DeadLetterStored { message, of } => self.dead_letters.push(StoredDeadLetter {
                sequence: message.sequence,
                of: *of,
                payload: Arc::clone(&message.payload),
                at: now,
                purged: false,
            }),
            Observation::Sent { processor, sequence, .. } => {
                if let Some(end) = self.ends.get_mut(sequence) {
                    end.attempts.push(Attempt { processor: *processor, at: now });
                }
            }
            Observation::Saved { key, after, .. } => {
                self.summaries.insert((*key).clone(), after.summary.version());
            }
            Observation::Marked {
                key, announcement: Announcement::Processed | Announcement::ProcessedOnce, ..
            } => {
                self.marks.entry((*key).clone()).or_insert(now);
            }
            Observation::NotificationStored {
                announcement: Announcement::Processed | Announcement::ProcessedOnce,
                notification,
                ..
            } => {
                self.notifications.entry(notification.session.key()).or_default().push(now);
            }
            Observation::AckArrived { sequence, body } => {
                if let Some(end) = self.ends.get_mut(sequence) {
                    end.acknowledged |= **body == AckBody::Ack;
                    end.terminated |= matches!(body, AckBody::Term(_));
                    if matches!(body, AckBody::Ack | AckBody::Term(_)) {
                        end.settled_at = Some(now);
                    }
                }
            }
            Observation::GivenUp { sequence } => {
                self.given_up += 1;
                if let Some(end) = self.ends.get_mut(sequence) {
                    end.given_up = Some(GivenUp { at: now, told: AdvisoryReceiver::Nobody, heard: None });
                    end.given_up_once = true;
                }
            }
            Observation::AdvisorySent { processor, sequence, fate } => {
                if let Some(given_up) = self.ends.get_mut(sequence).and_then(|end| end.given_up.as_mut()) {
                    given_up.told = match fate {
                        Fate::UnderWay => AdvisoryReceiver::Processor(*processor),
                        Fate::Lost => AdvisoryReceiver::Ghost,
                    };
                }
            }
            Observation::Heard { processor, sequence } => {
                if let Some(given_up) = self.ends.get_mut(sequence).and_then(|end| end.given_up.as_mut())
                    && given_up.told == AdvisoryReceiver::Processor(*processor)
                {
                    given_up.heard = given_up.heard.or(Some(now));
                }
            }
            Observation::NotificationStored { announcement: Announcement::Revised { .. }, .. } => self.revisions += 1,
            Observation::Marked { announcement: Announcement::Revised { .. }, .. }
            | Observation::StaleSummary { .. }
            | Observation::ConsumerLearnt { .. }
            | Observation::Thawed { .. }
            | Observation::Arrived { .. }
            | Observation::Delivered { .. }
            | Observation::Asked { .. }
            | Observation::InProgress { .. }
            | Observation::Reported { .. }
            | Observation::Ignored { .. }
            | Observation::Waits { .. } => {}
        }
    }

    fn end_stored(&mut self, now: Time, call: usize, end: usize, sequence: u64, origin: Origin) {
        let call = self.plan.calls.get(call).expect("the plan's call");
        let (key, announced, reprocess) = match &call.ends.get(end).expect("the plan's end").payload {
            EndPayload::Announces(count) | EndPayload::Claims(count) => (Some(call.ids().key()), *count, 0),
            EndPayload::AsksAgain { announces, request } => (Some(call.ids().key()), *announces, *request),
            EndPayload::Malformed(_) => (None, 0, 0),
        };
        self.enter_end(now, sequence, key, (announced, reprocess), origin);
    }

    /// A message that was made from a dead letter, or from an end: which of them does not matter to what is in it.
    fn end_redriven(&mut self, now: Time, message: &StoredMessage, of: u64) {
        if let Some(end) = self.ends.get_mut(&of) {
            end.handed_on = true;
        }
        let ended = SessionEnded::parse(&message.payload).ok();
        let numbers = ended.as_ref().map_or((0, 0), |ended| (ended.published_segments, ended.reprocess));
        let key = ended.map(|ended| ended.session.key());
        self.enter_end(now, message.sequence, key, numbers, Origin::Message);
    }

    fn enter_end(
        &mut self,
        now: Time,
        sequence: u64,
        key: Option<Key>,
        (announced, reprocess): (u64, u64),
        origin: Origin,
    ) {
        if let Some(key) = &key {
            self.ends_of.entry(key.clone()).or_default().push(sequence);
        }
        let record = EndRecord {
            key,
            announced,
            reprocess,
            stored_at: now,
            origin,
            attempts: vec![],
            life: 0,
            acknowledged: false,
            terminated: false,
            handed_on: false,
            purged: false,
            given_up: None,
            given_up_once: false,
            settled_at: None,
        };
        self.ends.insert(sequence, record);
    }

    fn chore(&mut self, now: Time, task: Task) {
        match task {
            Task::ResetConsumer => {
                for end in self.ends.values_mut().filter(|end| !end.purged) {
                    end.life = end.attempts.len();
                    (end.acknowledged, end.terminated, end.given_up) = (false, false, None);
                }
            }
            Task::PurgeAndRestart => {
                self.purges.push(now);
                self.ends.values_mut().for_each(|end| end.purged = true);
                self.dead_letters.iter_mut().for_each(|dead_letter| dead_letter.purged = true);
            }
            Task::Redrive | Task::PublishAgain => {}
        }
    }

    /// Whether something that went wrong explains that the attempt at a place came to nothing by `until`: with its own
    /// processor, or with one that had the message before, whose belated word the broker takes as well.
    pub(crate) fn explains(&self, attempts: &[Attempt], place: usize, until: Time) -> bool {
        self.is_disturbed(attempts, place, until, |cause| cause != Cause::Outage)
    }

    /// The same, of some causes only.
    pub(crate) fn is_disturbed(
        &self,
        attempts: &[Attempt],
        place: usize,
        until: Time,
        counts: impl Fn(Cause) -> bool,
    ) -> bool {
        let Some(attempt) = attempts.get(place) else { return true };
        let holders = attempts.iter().take(place + 1);
        self.disturbances.iter().any(|disturbance| {
            let holder = disturbance.processor.is_none_or(|it| holders.clone().any(|held| held.processor == it));
            counts(disturbance.cause) && holder && disturbance.from <= until && disturbance.until >= attempt.at
        })
    }

    /// Whether nothing was wrong between these times, with anybody.
    pub(crate) fn is_undisturbed(&self, from: Time, until: Time) -> bool {
        self.disturbances.iter().all(|it| it.from > until || it.until < from)
    }

    /// Whether a processor was told to stop between these times.
    pub(crate) fn is_rolled_out(&self, from: Time, until: Time) -> bool {
        self.disturbances.iter().any(|it| it.cause == Cause::Rollout && it.from <= until && it.until >= from)
    }

    /// Whether MongoDB refuses the call's summary.
    pub(crate) fn is_refused(&self, key: &Key) -> bool {
        self.plan.calls.iter().any(|call| call.verdict != Verdict::Taken && call.ids().key() == *key)
    }

    /// What became of a message that was given up.
    pub(crate) fn exhaustion(&self, sequence: u64, given_up: &GivenUp) -> Exhaustion {
        if self.dead_letters.iter().any(|dead_letter| dead_letter.of == sequence) {
            return Exhaustion::Kept;
        }
        // Nothing is owed for a call that is announced.
        let key = self.ends.get(&sequence).and_then(|end| end.key.as_ref());
        if key.is_some_and(|key| self.marks.contains_key(key)) {
            return Exhaustion::Kept;
        }
        let at = given_up.at;
        let ended = |processor, since| self.endings.iter().any(|(it, when)| *it == processor && *when >= since);
        let disturbed = |processor: usize, since: Time| {
            self.disturbances.iter().any(|it| it.processor.is_none_or(|it| it == processor) && it.until >= since)
        };
        match (given_up.told, given_up.heard) {
            (AdvisoryReceiver::Processor(processor), Some(heard)) if !ended(processor, heard) => {
                Exhaustion::Neglected(format!("processor {processor} heard of it"))
            }
            (AdvisoryReceiver::Processor(processor), None) if !disturbed(processor, at) && !ended(processor, at) => {
                Exhaustion::Neglected(format!("processor {processor} was told"))
            }
            (AdvisoryReceiver::Processor(_) | AdvisoryReceiver::Ghost, _) => Exhaustion::Missing,
            (AdvisoryReceiver::Nobody, _) => {
                let listens = |(processor, since): (&usize, &Time)| {
                    since.after(SUBSCRIBES_WITHIN) <= at && !disturbed(*processor, *since)
                };
                match self.up.iter().find(|it| listens(*it)) {
                    Some((processor, _)) => Exhaustion::Neglected(format!("processor {processor} did not listen")),
                    None => Exhaustion::Missing,
                }
            }
        }
    }

    /// Whether a message that was given up owes it to rollouts alone: each may cost it one attempt, and all of them not all.
    pub(crate) fn is_exhausted_by_rollouts(&self, end: &EndRecord, given_up: Time) -> bool {
        let until = |place: usize| end.attempts.get(place + 1).map_or(given_up, |next| next.at);
        let other = |place| self.is_disturbed(&end.attempts, place, until(place), |cause| cause != Cause::Rollout);
        !(end.life..end.attempts.len()).any(other)
    }

    /// Whether the stream was purged since then: message ids and messages of the time before count no more.
    pub(crate) fn is_purged_since(&self, then: Time) -> bool {
        self.purges.iter().any(|at| *at >= then)
    }

    /// The ends that were given up and that nobody settled, with what became of them.
    pub(crate) fn exhausted(&self) -> impl Iterator<Item = (u64, &EndRecord, Exhaustion)> {
        self.ends.iter().filter_map(|(sequence, end)| {
            let given_up = end.given_up.filter(|_| !end.acknowledged && !end.terminated)?;
            Some((*sequence, end, self.exhaustion(*sequence, &given_up)))
        })
    }

    /// The ends of one call.
    pub(crate) fn ends_of(&self, key: &Key) -> impl Iterator<Item = &EndRecord> {
        self.ends_of.get(key).into_iter().flatten().filter_map(|sequence| self.ends.get(sequence))
    }

    /// How many segments of a session were stored by then.
    pub(crate) fn segments_by(&self, session: &str, then: Time) -> u64 {
        let stored = self.segments.get(session).map_or(0, |all| all.values().filter(|at| **at <= then).count());
        u64::try_from(stored).unwrap_or(u64::MAX)
    }
}
