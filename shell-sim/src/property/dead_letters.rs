//! Dead letters, and what must not become one.

use std::collections::BTreeSet;

use jetstream_model::AckSubject;
use transcript_core::{Acknowledgement, Effect, Settings, Time, contract::REASON_HEADER, ids::JobId};

use super::Property;
use crate::{
    ledger::Ledger,
    observation::{Cause, Observation},
};

/// A dead letter is about a call that MongoDB refuses, a message that used up its deliveries by faults, or a payload that
/// was published again and can still not be processed; never about one that rollouts or outages got in the way of. There is
/// one about a message.
#[derive(Default)]
pub(super) struct ADeadLetterHasACause;

impl Property for ADeadLetterHasACause {
    fn name(&self) -> &'static str {
        "ADeadLetterHasACause"
    }

    fn saw(&mut self, now: Time, seen: &Observation<'_>, ledger: &Ledger) -> Result<(), String> {
        let Observation::DeadLetterStored { message, of } = seen else { return Ok(()) };
        let mut earlier = ledger.dead_letters.iter().filter(|it| it.of == *of && it.sequence != message.sequence);
        if earlier.any(|dead_letter| now < ledger.promises.only_until(dead_letter.at) && !dead_letter.purged) {
            return Err(format!("message {of} has two dead letters"));
        }
        let Some(end) = ledger.ends.get(of) else { return Err(format!("a dead letter about {of}, which is no end")) };
        let reason = message.headers.get(REASON_HEADER).unwrap_or_default();
        let refused = end.key.as_ref().is_some_and(|key| ledger.is_refused(key));
        let last = end.attempts.len().checked_sub(1);
        let gave_up = last.is_some_and(|last| ledger.explains(&end.attempts, last, now));
        let has_cause = match &end.given_up {
            Some(given_up) => !ledger.is_exhausted_by_rollouts(end, given_up.at),
            None if end.given_up_once => true,
            None => end.key.is_none() || (refused && reason.starts_with("rejected")) || gave_up,
        };
        if has_cause && !reason.is_empty() {
            return Ok(());
        }
        Err(format!("message {of} became a dead letter without a cause: {reason:?}"))
    }
}

/// Used-up deliveries make no dead letter while a living process has the message in hand, before that had time to announce the
/// call: JetStream counts the deliveries that its own outages cost as well.
#[derive(Default)]
pub(super) struct ADeadLetterWaitsForACallInHand {
    in_hand: BTreeSet<(usize, u64)>,
    /// Messages that whoever has them in hand gives up.
    given_up: BTreeSet<u64>,
}

impl Property for ADeadLetterWaitsForACallInHand {
    fn name(&self) -> &'static str {
        "ADeadLetterWaitsForACallInHand"
    }

    fn saw(&mut self, now: Time, seen: &Observation<'_>, ledger: &Ledger) -> Result<(), String> {
        if let Observation::Ended { processor, .. } = seen {
            self.in_hand.retain(|(by, _)| by != processor);
        }
        if let Observation::Delivered { processor, delivery } = seen {
            self.in_hand.insert((*processor, delivery.stream_sequence));
        }
        if let Observation::Asked { processor, effect: Effect::Acknowledge { reply, .. }, .. } = seen {
            let message = AckSubject::stream_seq_of(reply).expect("the reply subject of a delivery");
            self.in_hand.remove(&(*processor, message));
        }
        if let Observation::Asked { processor, effect: Effect::DeadLetter { dead_letter }, .. } = seen
            && self.in_hand.contains(&(*processor, dead_letter.stream_sequence))
        {
            self.given_up.insert(dead_letter.stream_sequence);
        }
        let Observation::DeadLetterStored { of, .. } = seen else { return Ok(()) };
        let Some(end) = ledger.ends.get(of).filter(|end| end.key.is_some() && !self.given_up.contains(of)) else {
            return Ok(());
        };
        let Some(holder) = self.in_hand.iter().find(|(_, message)| message == of).map(|(by, _)| by) else {
            return Ok(());
        };
        let since = end.given_up.map_or(Time::ZERO, |given_up| given_up.at);
        // Who is told to stop waits for nobody; and what the operator does by hand begins anew.
        if ledger.is_rolled_out(since, now) || !ledger.plan.chores.is_empty() {
            return Ok(());
        }
        let settings = Settings { quiet_period: ledger.promises.quiet_period, ..ledger.plan.options.core() };
        let time_enough = settings.others_finish_within().min(settings.retry_timeout);
        if now.since(since) >= time_enough {
            return Ok(());
        }
        Err(format!(
            "message {of} is in hand at processor {holder}, and became a dead letter after {:?}",
            now.since(since)
        ))
    }
}

/// A draining processor gives a first delivery back with a nak, which costs an attempt, and publishes later ones again.
#[derive(Default)]
pub(super) struct ADrainGivesBackFirstDeliveriesOnly {
    draining: BTreeSet<usize>,
    /// The jobs that have tried to publish their message again.
    tried: BTreeSet<(usize, JobId)>,
}

impl Property for ADrainGivesBackFirstDeliveriesOnly {
    fn name(&self) -> &'static str {
        "ADrainGivesBackFirstDeliveriesOnly"
    }

    fn saw(&mut self, _: Time, seen: &Observation<'_>, _: &Ledger) -> Result<(), String> {
        if let Observation::Ended { processor, .. } = seen {
            self.draining.remove(processor);
            self.tried.retain(|(by, _)| by != processor);
        }
        if let Observation::Disturbed { processor: Some(processor), cause: Cause::Rollout, .. } = seen {
            self.draining.insert(*processor);
        }
        let Observation::Asked { processor, id, effect } = seen else { return Ok(()) };
        if !self.draining.contains(processor) {
            return Ok(());
        }
        if matches!(effect, Effect::Republish { .. }) {
            self.tried.insert((*processor, id.job));
        }
        let Effect::Acknowledge { reply, acknowledgement: Acknowledgement::Nak { delay, .. }, .. } = effect else {
            return Ok(());
        };
        let delivery: AckSubject = reply.parse().expect("the reply subject of a delivery");
        if delay.is_zero() && delivery.deliveries > 1 && !self.tried.contains(&(*processor, id.job)) {
            let (message, attempt) = (delivery.stream_seq, delivery.deliveries);
            return Err(format!("processor {processor} gives message {message} back with a nak in attempt {attempt}"));
        }
        Ok(())
    }
}
