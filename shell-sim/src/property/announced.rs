//! What is announced and acknowledged, and in which order.

use transcript_core::Time;

use super::Property;
use crate::{broker::AckBody, ledger::Ledger, seen::Seen};

/// When an ack comes to the broker, the call's summary is stored and announced.
pub(super) struct AckOnlyAfterSummaryAndNotification;

impl Property for AckOnlyAfterSummaryAndNotification {
    fn name(&self) -> &'static str {
        "AckOnlyAfterSummaryAndNotification"
    }

    fn saw(&mut self, _: Time, seen: &Seen<'_>, ledger: &Ledger) -> Result<(), String> {
        let Seen::AckArrived { sequence, body: AckBody::Ack } = seen else { return Ok(()) };
        let Some(key) = ledger.ends.get(sequence).and_then(|end| end.key.as_ref()) else { return Ok(()) };
        if !ledger.summaries.contains_key(key) {
            return Err(format!("message {sequence} was acknowledged and no summary {key} is stored"));
        }
        if !ledger.notifications.contains_key(key) {
            return Err(format!("message {sequence} was acknowledged and {key} was never announced"));
        }
        Ok(())
    }
}

/// Two notifications of a key are at least the promised window apart.
pub(super) struct OneNotificationPerKeyWithinTheWindow;

impl Property for OneNotificationPerKeyWithinTheWindow {
    fn name(&self) -> &'static str {
        "OneNotificationPerKeyWithinTheWindow"
    }

    fn saw(&mut self, now: Time, seen: &Seen<'_>, ledger: &Ledger) -> Result<(), String> {
        let Seen::NotificationStored { notification, .. } = seen else { return Ok(()) };
        let key = notification.session.key();
        let times = ledger.notifications.get(&key).map(Vec::as_slice).unwrap_or_default();
        let [.., before, _] = times else { return Ok(()) };
        let apart = now.since(*before);
        if now < ledger.promises.only_until(*before) {
            return Err(format!("{key} was announced twice, {apart:?} apart"));
        }
        Ok(())
    }
}

/// A notification tells of a summary that is stored, with no more segments than that has.
pub(super) struct ANotificationTellsAStoredSummary;

impl Property for ANotificationTellsAStoredSummary {
    fn name(&self) -> &'static str {
        "ANotificationTellsAStoredSummary"
    }

    fn saw(&mut self, _: Time, seen: &Seen<'_>, ledger: &Ledger) -> Result<(), String> {
        let Seen::NotificationStored { notification, .. } = seen else { return Ok(()) };
        let key = notification.session.key();
        match ledger.summaries.get(&key) {
            None => Err(format!("{key} was announced and no such summary is stored")),
            Some(stored) if *stored < notification.segments => {
                Err(format!("{key} was announced with {} segments, {stored} are stored", notification.segments))
            }
            Some(_) => Ok(()),
        }
    }
}
