//! What the checks know of a world: drawn from what was seen, not from the models.

use std::{collections::BTreeMap, rc::Rc, sync::Arc, time::Duration};

use transcript_core::{Time, ids::Key};

use crate::{
    broker::AckBody,
    plan::{Action, EndPayload, Options, Plan, millis},
    seen::Seen,
};

/// Everything that was seen, put in order.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) plan: Rc<Plan>,
    /// The ends of calls by their place in the stream.
    pub(crate) ends: BTreeMap<u64, EndRecord>,
    ends_of: BTreeMap<Key, Vec<u64>>,
    /// How many segments each stored summary has.
    pub(crate) summaries: BTreeMap<Key, u64>,
    /// When each key was announced.
    pub(crate) notifications: BTreeMap<Key, Vec<Time>>,
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
            max_deliver: options.max_deliver,
            windows: vec![(Time::ZERO, millis(options.window_ms))],
        }
    }

    fn change(&mut self, now: Time, change: &Action) {
        if let Action::SetMaxDeliver { max_deliver } = change {
            self.max_deliver = self.max_deliver.min(*max_deliver);
        } else if let Action::LengthenWindow { window_ms } = change {
            self.windows.push((now, millis(*window_ms)));
        } else if let Action::SetProcessors { quiet_period_ms, max_in_flight, .. } = change {
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
    pub(crate) stored_at: Time,
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) acknowledged: bool,
    pub(crate) terminated: bool,
    pub(crate) given_up: Option<Time>,
    /// When it was last acknowledged or terminated.
    pub(crate) settled_at: Option<Time>,
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
}

impl Ledger {
    pub(crate) fn new(plan: Rc<Plan>) -> Self {
        Self {
            ends: BTreeMap::new(),
            ends_of: BTreeMap::new(),
            summaries: BTreeMap::new(),
            notifications: BTreeMap::new(),
            segments: BTreeMap::new(),
            promises: Promises::new(&plan.options),
            disturbances: vec![],
            plan,
        }
    }

    /// Enters what was seen; the checks look afterwards.
    pub(crate) fn enter(&mut self, now: Time, seen: &Seen<'_>) {
        match seen {
            Seen::Disturbed { processor, from, until } => {
                self.disturbances.push(Disturbance { processor: *processor, from: *from, until: *until });
            }
            Seen::SegmentStored { session, segment } => {
                let known = self.segments.entry(Arc::clone(session)).or_default();
                if !known.contains_key(&segment.id) {
                    known.insert(segment.id.clone(), now);
                }
            }
            Seen::SegmentLost { session, id } => {
                if let Some(known) = self.segments.get_mut(*session) {
                    known.remove(*id);
                }
            }
            Seen::Fault(fault) => self.promises.change(now, &fault.what),
            Seen::EndStored { call, end, sequence } => self.end_stored(now, *call, *end, *sequence),
            Seen::Sent { processor, sequence, .. } => {
                if let Some(end) = self.ends.get_mut(sequence) {
                    end.attempts.push(Attempt { processor: *processor, at: now });
                }
            }
            Seen::Saved { key, after, .. } => {
                self.summaries.insert((*key).clone(), after.summary.segments);
            }
            Seen::NotificationStored { notification, .. } => {
                self.notifications.entry(notification.session.key()).or_default().push(now);
            }
            Seen::AckArrived { sequence, body } => {
                if let Some(end) = self.ends.get_mut(sequence) {
                    end.acknowledged |= **body == AckBody::Ack;
                    end.terminated |= matches!(body, AckBody::Term(_));
                    if matches!(body, AckBody::Ack | AckBody::Term(_)) {
                        end.settled_at = Some(now);
                    }
                }
            }
            Seen::GivenUp { sequence } => {
                if let Some(end) = self.ends.get_mut(sequence) {
                    end.given_up = Some(now);
                }
            }
            Seen::Started { .. }
            | Seen::Ended { .. }
            | Seen::Thawed { .. }
            | Seen::Arrived { .. }
            | Seen::Delivered { .. }
            | Seen::Asked { .. }
            | Seen::InProgress { .. }
            | Seen::Reported { .. }
            | Seen::Ignored { .. }
            | Seen::Waits { .. } => {}
        }
    }

    fn end_stored(&mut self, now: Time, call: usize, end: usize, sequence: u64) {
        let call = self.plan.calls.get(call).expect("the plan's call");
        let (key, announced) = match &call.ends.get(end).expect("the plan's end").payload {
            EndPayload::Announces(count) => (Some(call.ids().key()), *count),
            EndPayload::Malformed(_) => (None, 0),
        };
        if let Some(key) = &key {
            self.ends_of.entry(key.clone()).or_default().push(sequence);
        }
        let record = EndRecord {
            key,
            announced,
            stored_at: now,
            attempts: vec![],
            acknowledged: false,
            terminated: false,
            given_up: None,
            settled_at: None,
        };
        self.ends.insert(sequence, record);
    }

    /// Whether something that went wrong explains that the attempt at a place came to nothing by `until`: with its own
    /// processor, or with one that had the message before, whose belated word the broker takes as well.
    pub(crate) fn explains(&self, attempts: &[Attempt], place: usize, until: Time) -> bool {
        let Some(attempt) = attempts.get(place) else { return true };
        let holders = attempts.iter().take(place + 1);
        self.disturbances.iter().any(|disturbance| {
            let holder = disturbance.processor.is_none_or(|it| holders.clone().any(|held| held.processor == it));
            holder && disturbance.from <= until && disturbance.until >= attempt.at
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
