//! What becomes of deliveries.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jetstream_model::{AckBody, AckSubject};
use transcript_core::{
    Acknowledgement, DELIVERIES_STOP_WITHIN, Effect, Report, Time,
    ids::{EffectId, JobId},
};

use super::{Property, TheEnd};
use crate::{
    ledger::{Exhaustion, Ledger, Origin},
    observation::{Fate, Observation},
    plan::{Action, Fault, millis},
};

/// Every further delivery of a message follows a fault that explains it.
#[derive(Default)]
pub(super) struct EveryRedeliveryHasACause;

impl Property for EveryRedeliveryHasACause {
    fn name(&self) -> &'static str {
        "EveryRedeliveryHasACause"
    }

    fn saw(&mut self, now: Time, seen: &Observation<'_>, ledger: &Ledger) -> Result<(), String> {
        let (sequence, before) = if let Observation::Sent { sequence, .. } = seen {
            (*sequence, 2)
        } else if let Observation::GivenUp { sequence } = seen {
            (*sequence, 1)
        } else {
            return Ok(());
        };
        let Some(end) = ledger.ends.get(&sequence) else { return Ok(()) };
        let place = end.attempts.len().checked_sub(before).filter(|place| *place >= end.life);
        let Some(place) = place else { return Ok(()) };
        match end.attempts.get(place) {
            Some(attempt) if !ledger.explains(&end.attempts, place, now) => {
                let processor = attempt.processor;
                Err(format!("message {sequence} came to nothing with processor {processor} though nothing was wrong"))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// What a draining processor gives back is not delivered to it again: it would give it back again, and burn all attempts. It
/// may be where the link stood still for longer than the end of the deliveries is waited for.
#[derive(Default)]
pub(super) struct NobodyGetsBackWhatItGaveBack {
    said: BTreeSet<(usize, u64)>,
    /// Those of which the broker has heard.
    given_back: BTreeSet<(usize, u64)>,
    /// Until when requests of a processor may be under way that it takes for lost.
    late_until: BTreeMap<usize, Time>,
}

impl Property for NobodyGetsBackWhatItGaveBack {
    fn name(&self) -> &'static str {
        "NobodyGetsBackWhatItGaveBack"
    }

    fn saw(&mut self, now: Time, seen: &Observation<'_>, _: &Ledger) -> Result<(), String> {
        if let Observation::Fault(Fault { what: Action::FreezeLink { processor, span_ms, .. }, .. }) = seen
            && millis(*span_ms) > DELIVERIES_STOP_WITHIN
        {
            self.late_until.insert(*processor, now.after(millis(*span_ms) + DELIVERIES_STOP_WITHIN));
        }
        if let Observation::Ended { processor, .. } = seen {
            self.said.retain(|(by, _)| by != processor);
            self.given_back.retain(|(by, _)| by != processor);
        }
        if let Observation::Asked { processor, effect: Effect::Acknowledge { reply, acknowledgement, .. }, .. } = seen
            && matches!(acknowledgement, Acknowledgement::Nak { delay, .. } if delay.is_zero())
        {
            self.said.insert((*processor, sequence(reply)));
        }
        if let Observation::AckArrived { sequence, body: AckBody::Nak(None) } = seen {
            self.given_back.extend(self.said.iter().filter(|(_, said)| said == sequence));
        }
        let Observation::Sent { processor, sequence, fate: Fate::UnderWay, .. } = seen else { return Ok(()) };
        let is_late = self.late_until.get(processor).is_some_and(|until| now <= *until);
        if !is_late && self.given_back.contains(&(*processor, *sequence)) {
            return Err(format!("processor {processor} gave message {sequence} back and gets it again"));
        }
        Ok(())
    }
}

/// The stream sequence of the message that a delivery brought.
fn sequence(reply: &str) -> u64 {
    AckSubject::stream_seq_of(reply).expect("the reply subject of a delivery")
}

/// No message is longer than a third of the ack wait with a living process without a heartbeat. The broker takes one for
/// any delivery of the message, and so does this.
#[derive(Default)]
pub(super) struct HeartbeatWhileAlive {
    held: BTreeMap<usize, Held>,
    heartbeats: BTreeMap<usize, Duration>,
}

/// What a processor holds, and since when each message had no sign of life.
#[derive(Default)]
struct Held {
    since: BTreeMap<u64, Time>,
    oldest: BTreeSet<(Time, u64)>,
    /// The last acknowledgement that each job asked for, and its message. It settles a delivery that it crosses as well.
    acknowledging: BTreeMap<JobId, (EffectId, u64)>,
}

impl Held {
    fn sign(&mut self, message: u64, now: Time) {
        self.release(message);
        self.since.insert(message, now);
        self.oldest.insert((now, message));
    }

    fn sign_all(&mut self, now: Time) {
        let messages: Vec<u64> = self.since.keys().copied().collect();
        for message in messages {
            self.sign(message, now);
        }
    }

    fn release(&mut self, message: u64) {
        if let Some(before) = self.since.remove(&message) {
            self.oldest.remove(&(before, message));
        }
    }

    fn overdue(&self, now: Time, most: Duration) -> Result<(), String> {
        match self.oldest.first() {
            Some((since, message)) if now.since(*since) > most => {
                Err(format!("message {message} has had no heartbeat for {:?}", now.since(*since)))
            }
            Some(_) | None => Ok(()),
        }
    }
}

impl Property for HeartbeatWhileAlive {
    fn name(&self) -> &'static str {
        "HeartbeatWhileAlive"
    }

    fn saw(&mut self, now: Time, seen: &Observation<'_>, _: &Ledger) -> Result<(), String> {
        if let Observation::Started { processor, heartbeat } | Observation::ConsumerLearnt { processor, heartbeat } =
            seen
        {
            self.heartbeats.insert(*processor, *heartbeat + Duration::from_millis(1));
            // What it owed before was by another measure.
            self.held.entry(*processor).or_default().sign_all(now);
        }
        if let Observation::Ended { processor, .. } = seen {
            self.held.remove(processor);
        }
        if let Observation::Thawed { processor } = seen {
            self.held.entry(*processor).or_default().sign_all(now);
        }
        if let Observation::Arrived { processor, reply } = seen {
            self.held.entry(*processor).or_default().sign(sequence(reply), now);
        }
        if let Observation::InProgress { processor, reply } = seen {
            let held = self.held.entry(*processor).or_default();
            held.overdue(now, self.heartbeats.get(processor).copied().unwrap_or(Duration::MAX))?;
            let message = sequence(reply);
            if held.since.contains_key(&message) {
                held.sign(message, now);
            }
        }
        if let Observation::Asked { processor, id, effect } = seen {
            let held = self.held.entry(*processor).or_default();
            held.overdue(now, self.heartbeats.get(processor).copied().unwrap_or(Duration::MAX))?;
            if let Effect::Acknowledge { reply, acknowledgement, .. } = effect {
                let message = sequence(reply);
                held.release(message);
                if !matches!(acknowledgement, Acknowledgement::Nak { .. }) {
                    held.acknowledging.insert(id.job, (*id, message));
                }
            }
        }
        if let Observation::Reported { processor, id, report: Report::Acknowledged } = seen
            && let Some(held) = self.held.get_mut(processor)
            && let Some((_, message)) = held.acknowledging.get(&id.job).copied().filter(|(asked, _)| *asked == *id)
        {
            held.acknowledging.remove(&id.job);
            held.release(message);
        }
        Ok(())
    }
}

/// A message that comes again while a job of the processor is at work on it is taken over by that job.
#[derive(Default)]
pub(super) struct OneJobAMessage {
    steps: u64,
    /// When each delivery came to a core, in steps.
    delivered: BTreeMap<(usize, Arc<str>), u64>,
    /// Which job had the last word on each message, and when it had it.
    spoken: BTreeMap<(usize, u64), (JobId, u64)>,
}

impl Property for OneJobAMessage {
    fn name(&self) -> &'static str {
        "OneJobAMessage"
    }

    fn saw(&mut self, _: Time, seen: &Observation<'_>, _: &Ledger) -> Result<(), String> {
        self.steps += 1;
        if let Observation::Ended { processor, .. } = seen {
            self.delivered.retain(|(to, _), _| to != processor);
            self.spoken.retain(|(by, _), _| by != processor);
        }
        if let Observation::Delivered { processor, delivery } = seen {
            self.delivered.insert((*processor, Arc::clone(&delivery.reply)), self.steps);
        }
        // Where there is no key nobody works.
        let Observation::Asked { processor, id, effect: Effect::Acknowledge { reply, key: Some(_), .. } } = seen else {
            return Ok(());
        };
        let message = sequence(reply);
        let spoken = self.spoken.get(&(*processor, message)).filter(|(job, _)| *job != id.job);
        let came = self.delivered.get(&(*processor, Arc::clone(reply)));
        if let (Some((job, spoken)), Some(came)) = (spoken, came)
            && came < spoken
        {
            return Err(format!(
                "message {message} came again to processor {processor} while {job:?} was at work on it"
            ));
        }
        self.spoken
            .entry((*processor, message))
            .and_modify(|last| {
                if last.0 != id.job {
                    *last = (id.job, self.steps);
                }
            })
            .or_insert((id.job, self.steps));
        Ok(())
    }
}

/// A term comes with a reason: for payloads that nobody can process, which get nothing else, and for messages that are kept
/// as dead letters.
#[derive(Default)]
pub(super) struct OnlyTheImpossibleIsTerminated;

impl Property for OnlyTheImpossibleIsTerminated {
    fn name(&self) -> &'static str {
        "OnlyTheImpossibleIsTerminated"
    }

    fn saw(&mut self, _: Time, seen: &Observation<'_>, ledger: &Ledger) -> Result<(), String> {
        let Observation::AckArrived { sequence, body } = seen else { return Ok(()) };
        let Some(end) = ledger.ends.get(sequence) else { return Ok(()) };
        match (body, &end.key) {
            (AckBody::Term(Some(_)), _) => {
                if end.purged || ledger.dead_letters.iter().any(|dead_letter| dead_letter.of == *sequence) {
                    Ok(())
                } else {
                    Err(format!("message {sequence} was terminated, and no dead letter tells of it"))
                }
            }
            (AckBody::Nak(_) | AckBody::Progress, _) | (AckBody::Ack, Some(_)) => Ok(()),
            (AckBody::Ack | AckBody::Next(_) | AckBody::Term(_) | AckBody::Unknown, _) => {
                Err(format!("message {sequence} got {body:?}"))
            }
        }
    }
}

/// What was owed has arrived when the world has been whole for long enough: every end was settled, or is kept as a dead
/// dead letter; one that was given up when nobody could hear of it is what an audit names as missing.
#[derive(Default)]
pub(super) struct EverySessionEndsOnceFaultsStop;

impl Property for EverySessionEndsOnceFaultsStop {
    fn name(&self) -> &'static str {
        "EverySessionEndsOnceFaultsStop"
    }

    fn saw(&mut self, _: Time, _: &Observation<'_>, _: &Ledger) -> Result<(), String> {
        Ok(())
    }

    fn at_end(&mut self, now: Time, ledger: &Ledger, end: &TheEnd) -> Result<(), String> {
        for (sequence, message) in &ledger.ends {
            if message.acknowledged || message.terminated || message.purged {
                continue;
            }
            let key = message.key.as_ref().map_or("a malformed end".to_owned(), ToString::to_string);
            let attempts = message.attempts.len() - message.life;
            let Some(given_up) = message.given_up else {
                let jobs = &end.jobs;
                return Err(format!("{key} (message {sequence}) is owed after {attempts} attempt(s); jobs: {jobs:?}"));
            };
            let most = ledger.promises.max_deliver;
            let enough = u64::try_from(attempts).is_ok_and(|attempts| attempts >= most);
            let mut places = message.life..message.attempts.len();
            let explained = places.all(|place| ledger.explains(&message.attempts, place, given_up.at));
            if !enough || !explained {
                return Err(format!(
                    "{key} (message {sequence}) was given up after {attempts} attempt(s) without a cause"
                ));
            }
            if ledger.is_exhausted_by_rollouts(message, given_up.at) {
                return Err(format!("{key} (message {sequence}) was given up after nothing but rollouts"));
            }
            if let Exhaustion::Neglected(how) = ledger.exhaustion(*sequence, &given_up) {
                return Err(format!("{key} (message {sequence}) was given up and is no dead letter: {how}"));
            }
        }
        let planned: usize = ledger.plan.calls.iter().map(|call| call.ends.len()).sum();
        let transcribers = |origin| matches!(origin, Origin::Transcriber { .. });
        let published = ledger.ends.values().filter(|end| transcribers(end.origin)).count();
        if published < planned {
            return Err(format!("{} end(s) were never published", planned - published));
        }
        if end.unsettled > 0 {
            let whole = millis(ledger.plan.options.ack_wait_ms);
            let (left, jobs) = (end.unsettled, &end.jobs);
            return Err(format!(
                "{left} message(s) are unsettled at {now:?} with an ack wait of {whole:?}; jobs: {jobs:?}"
            ));
        }
        Ok(())
    }
}
