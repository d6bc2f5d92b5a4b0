//! What becomes of deliveries.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use transcript_core::{Acknowledgement, Effect, Time};

use super::{Property, TheEnd};
use crate::{
    broker::{AckBody, AckSubject},
    ledger::Ledger,
    plan::millis,
    seen::{Fate, Seen},
};

/// Every further delivery of a message follows a fault that explains it.
pub(super) struct EveryRedeliveryHasACause;

impl Property for EveryRedeliveryHasACause {
    fn name(&self) -> &'static str {
        "EveryRedeliveryHasACause"
    }

    fn saw(&mut self, now: Time, seen: &Seen<'_>, ledger: &Ledger) -> Result<(), String> {
        let (sequence, before) = if let Seen::Sent { sequence, .. } = seen {
            (*sequence, 2)
        } else if let Seen::GivenUp { sequence } = seen {
            (*sequence, 1)
        } else {
            return Ok(());
        };
        let Some(end) = ledger.ends.get(&sequence) else { return Ok(()) };
        let Some(place) = end.attempts.len().checked_sub(before) else { return Ok(()) };
        match end.attempts.get(place) {
            Some(attempt) if !ledger.explains(&end.attempts, place, now) => {
                let processor = attempt.processor;
                Err(format!("message {sequence} came to nothing with processor {processor} though nothing was wrong"))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// What a draining processor gives back is not delivered to it again: it would give it back again, and burn all attempts.
#[derive(Default)]
pub(super) struct NobodyGetsBackWhatItGaveBack {
    said: BTreeSet<(usize, u64)>,
    /// Those of which the broker has heard.
    given_back: BTreeSet<(usize, u64)>,
}

impl Property for NobodyGetsBackWhatItGaveBack {
    fn name(&self) -> &'static str {
        "NobodyGetsBackWhatItGaveBack"
    }

    fn saw(&mut self, _: Time, seen: &Seen<'_>, _: &Ledger) -> Result<(), String> {
        if let Seen::Ended { processor, .. } = seen {
            self.said.retain(|(by, _)| by != processor);
            self.given_back.retain(|(by, _)| by != processor);
        }
        if let Seen::Asked { processor, effect: Effect::Acknowledge { reply, acknowledgement, .. }, .. } = seen
            && matches!(acknowledgement, Acknowledgement::Nak { delay, .. } if delay.is_zero())
        {
            let subject: AckSubject = reply.parse().expect("the reply subject of a delivery");
            self.said.insert((*processor, subject.stream_seq));
        }
        if let Seen::AckArrived { sequence, body: AckBody::Nak(None) } = seen {
            self.given_back.extend(self.said.iter().filter(|(_, said)| said == sequence));
        }
        let Seen::Sent { processor, sequence, fate: Fate::UnderWay, .. } = seen else { return Ok(()) };
        if self.given_back.contains(&(*processor, *sequence)) {
            return Err(format!("processor {processor} gave message {sequence} back and gets it again"));
        }
        Ok(())
    }
}

/// No message is longer than a third of the ack wait with a living process without a heartbeat.
#[derive(Default)]
pub(super) struct HeartbeatWhileAlive {
    held: BTreeMap<usize, Held>,
    heartbeats: BTreeMap<usize, Duration>,
}

/// What a processor holds, and since when each message had no sign of life.
#[derive(Default)]
struct Held {
    since: BTreeMap<Arc<str>, Time>,
    oldest: BTreeSet<(Time, Arc<str>)>,
}

impl Held {
    fn sign(&mut self, reply: &Arc<str>, now: Time) {
        self.release(reply);
        self.since.insert(Arc::clone(reply), now);
        self.oldest.insert((now, Arc::clone(reply)));
    }

    fn sign_all(&mut self, now: Time) {
        let replies: Vec<Arc<str>> = self.since.keys().cloned().collect();
        for reply in replies {
            self.sign(&reply, now);
        }
    }

    fn release(&mut self, reply: &Arc<str>) {
        if let Some(before) = self.since.remove(reply) {
            self.oldest.remove(&(before, Arc::clone(reply)));
        }
    }

    fn overdue(&self, now: Time, most: Duration) -> Result<(), String> {
        match self.oldest.first() {
            Some((since, reply)) if now.since(*since) > most => {
                Err(format!("{reply} has had no heartbeat for {:?}", now.since(*since)))
            }
            Some(_) | None => Ok(()),
        }
    }
}

impl Property for HeartbeatWhileAlive {
    fn name(&self) -> &'static str {
        "HeartbeatWhileAlive"
    }

    fn saw(&mut self, now: Time, seen: &Seen<'_>, _: &Ledger) -> Result<(), String> {
        if let Seen::Started { processor, heartbeat } = seen {
            self.heartbeats.insert(*processor, *heartbeat + Duration::from_millis(1));
        }
        if let Seen::Ended { processor, .. } = seen {
            self.held.remove(processor);
        }
        if let Seen::Thawed { processor } = seen {
            self.held.entry(*processor).or_default().sign_all(now);
        }
        if let Seen::Arrived { processor, reply } = seen {
            self.held.entry(*processor).or_default().sign(reply, now);
        }
        if let Seen::InProgress { processor, reply } = seen {
            let held = self.held.entry(*processor).or_default();
            held.overdue(now, self.heartbeats.get(processor).copied().unwrap_or(Duration::MAX))?;
            if held.since.contains_key(*reply) {
                held.sign(reply, now);
            }
        }
        if let Seen::Asked { processor, effect, .. } = seen {
            let held = self.held.entry(*processor).or_default();
            held.overdue(now, self.heartbeats.get(processor).copied().unwrap_or(Duration::MAX))?;
            if let Effect::Acknowledge { reply, .. } = effect {
                held.release(reply);
            }
        }
        Ok(())
    }
}

/// A term comes with a reason, for payloads that nobody can process, which get nothing else.
pub(super) struct OnlyTheImpossibleIsTerminated;

impl Property for OnlyTheImpossibleIsTerminated {
    fn name(&self) -> &'static str {
        "OnlyTheImpossibleIsTerminated"
    }

    fn saw(&mut self, _: Time, seen: &Seen<'_>, ledger: &Ledger) -> Result<(), String> {
        let Seen::AckArrived { sequence, body } = seen else { return Ok(()) };
        let Some(end) = ledger.ends.get(sequence) else { return Ok(()) };
        match (body, &end.key) {
            (AckBody::Term(Some(_)), None) | (AckBody::Nak(_) | AckBody::Progress, _) | (AckBody::Ack, Some(_)) => {
                Ok(())
            }
            (AckBody::Ack | AckBody::Next(_) | AckBody::Term(_) | AckBody::Unknown, _) => {
                Err(format!("message {sequence} got {body:?}"))
            }
        }
    }
}

/// What was owed has arrived when the world has been whole for long enough.
pub(super) struct EverySessionEndsOnceFaultsStop;

impl Property for EverySessionEndsOnceFaultsStop {
    fn name(&self) -> &'static str {
        "EverySessionEndsOnceFaultsStop"
    }

    fn saw(&mut self, _: Time, _: &Seen<'_>, _: &Ledger) -> Result<(), String> {
        Ok(())
    }

    fn at_end(&mut self, now: Time, ledger: &Ledger, end: &TheEnd) -> Result<(), String> {
        for (sequence, message) in &ledger.ends {
            if message.acknowledged || message.terminated {
                continue;
            }
            let key = message.key.as_ref().map_or("a malformed end".to_owned(), ToString::to_string);
            let attempts = message.attempts.len();
            let Some(given_up) = message.given_up else {
                let jobs = &end.jobs;
                return Err(format!("{key} (message {sequence}) is owed after {attempts} attempt(s); jobs: {jobs:?}"));
            };
            let most = ledger.promises.max_deliver;
            let enough = u64::try_from(attempts).is_ok_and(|attempts| attempts >= most);
            if !enough || !(0..attempts).all(|place| ledger.explains(&message.attempts, place, given_up)) {
                return Err(format!(
                    "{key} (message {sequence}) was given up after {attempts} attempt(s) without a cause"
                ));
            }
        }
        let planned: usize = ledger.plan.calls.iter().map(|call| call.ends.len()).sum();
        if ledger.ends.len() < planned {
            return Err(format!("{} end(s) were never published", planned - ledger.ends.len()));
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
