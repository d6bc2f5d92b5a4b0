//! What is announced and acknowledged, and in which order.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jetstream_model::AckBody;
use transcript_core::{
    Effect, Report, Time, TranscriptVersion,
    contract::Announcement,
    ids::{JobId, Key},
};

use super::Property;
use crate::{
    ledger::Ledger,
    observation::Observation,
    plan::{Action, Call, EndPayload, Fault, millis},
};

/// When an ack comes to the broker, the call's summary is stored and announced, or its end was published again.
#[derive(Default)]
pub(super) struct AckOnlyAfterSummaryAndNotification;

impl Property for AckOnlyAfterSummaryAndNotification {
    fn name(&self) -> &'static str {
        "AckOnlyAfterSummaryAndNotification"
    }

    fn saw(&mut self, _: Time, seen: &Observation<'_>, ledger: &Ledger) -> Result<(), String> {
        let Observation::AckArrived { sequence, body: AckBody::Ack } = seen else { return Ok(()) };
        let end = ledger.ends.get(sequence).filter(|end| !end.handed_on);
        let Some(key) = end.and_then(|end| end.key.as_ref()) else { return Ok(()) };
        if !ledger.summaries.contains_key(key) {
            return Err(format!("message {sequence} was acknowledged and no summary {key} is stored"));
        }
        if !ledger.notifications.contains_key(key) {
            return Err(format!("message {sequence} was acknowledged and {key} was never announced"));
        }
        Ok(())
    }
}

/// Two notifications of a key are at least the promised window apart, unless the ids were forgotten with a purged stream, or
/// the id was another message's for a while: once the stream forgets that one, it takes the id for new.
#[derive(Default)]
pub(super) struct OneNotificationPerKeyWithinTheWindow;

impl Property for OneNotificationPerKeyWithinTheWindow {
    fn name(&self) -> &'static str {
        "OneNotificationPerKeyWithinTheWindow"
    }

    fn saw(&mut self, now: Time, seen: &Observation<'_>, ledger: &Ledger) -> Result<(), String> {
        let Some(key) = announced(seen) else { return Ok(()) };
        let times = ledger.notifications.get(&key).map(Vec::as_slice).unwrap_or_default();
        let [.., before, _] = times else { return Ok(()) };
        let is_claimed = |call: &&Call| {
            call.ids().key() == key && call.ends.iter().any(|end| matches!(end.payload, EndPayload::Claims(_)))
        };
        let is_free_again = ledger.plan.calls.iter().any(|call| is_claimed(&call))
            && ledger.ends_of(&key).any(|end| now >= ledger.promises.only_until(end.stored_at));
        if is_free_again {
            return Ok(());
        }
        let apart = now.since(*before);
        if now < ledger.promises.only_until(*before) && !ledger.is_purged_since(*before) {
            return Err(format!("{key} was announced twice, {apart:?} apart"));
        }
        Ok(())
    }
}

/// The key of a first announcement that came to the stream.
fn announced(seen: &Observation<'_>) -> Option<Key> {
    let Observation::NotificationStored { announcement, notification, .. } = seen else { return None };
    match announcement {
        Announcement::Processed | Announcement::ProcessedOnce => Some(notification.session.key()),
        Announcement::Revised { .. } => None,
    }
}

/// A summary with its mark is not announced again, whatever its age: not by a job that was told of the mark, and not at
/// all where only one job ever was not.
#[derive(Default)]
pub(super) struct AMarkedSummaryIsNotAnnouncedAgain {
    /// Whether each job that has stored its summary was told of a mark.
    told: BTreeMap<(usize, JobId), (Mark, Time)>,
    /// The jobs that may have announced a key, all together.
    entitled: BTreeMap<Key, BTreeSet<(usize, u64, JobId)>>,
    /// When the last job was told that a key has no mark which may have announced it.
    news: BTreeMap<Key, Time>,
    starts: BTreeMap<usize, u64>,
    /// Whether some message may have arrived twice, the second time when its id was forgotten.
    twice: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    There,
    Missing,
}

impl Property for AMarkedSummaryIsNotAnnouncedAgain {
    fn name(&self) -> &'static str {
        "AMarkedSummaryIsNotAnnouncedAgain"
    }

    fn saw(&mut self, now: Time, seen: &Observation<'_>, ledger: &Ledger) -> Result<(), String> {
        if let Observation::Started { processor, .. } = seen {
            *self.starts.entry(*processor).or_default() += 1;
            self.told.retain(|(of, _), _| of != processor);
        }
        if let Observation::Fault(Fault { what: Action::Duplicate { .. }, .. }) = seen {
            self.twice = true;
        }
        if let Observation::Reported { processor, id, report: Report::Saved(stored) | Report::Checked(Some(stored)) } =
            seen
        {
            let mark = if stored.notified.is_some() { Mark::There } else { Mark::Missing };
            self.told.insert((*processor, id.job), (mark, now));
        }
        if let Observation::Asked { processor, id, effect: Effect::Publish { key, announcement, .. } } = seen
            && !matches!(announcement, Announcement::Revised { .. })
        {
            match self.told.get(&(*processor, id.job)) {
                Some((Mark::There, _)) => {
                    return Err(format!("{key} has its mark, and {id} of processor {processor} announces it"));
                }
                // The stream may have forgotten an announcement since, and the mark may be there.
                Some((Mark::Missing, told)) if now.since(*told) > millis(ledger.plan.options.window_ms / 2) => {
                    return Err(format!("{key} is announced on news of {:?} ago", now.since(*told)));
                }
                Some((Mark::Missing, told)) => {
                    let news = self.news.entry(key.clone()).or_default();
                    *news = (*news).max(*told);
                }
                None => {}
            }
            let start = self.starts.get(processor).copied().unwrap_or(0);
            self.entitled.entry(key.clone()).or_default().insert((*processor, start, id.job));
        }
        let Some(key) = announced(seen) else { return Ok(()) };
        let marked = ledger.marks.contains_key(&key);
        let entitled = self.entitled.get(&key).map_or(0, BTreeSet::len);
        if marked && entitled <= 1 && !self.twice {
            return Err(format!("{key} has its mark and was announced again"));
        }
        // However long a process stood still in between: what it says then is checked first.
        let age = self.news.get(&key).map_or(Duration::ZERO, |told| now.since(*told));
        if marked && age > millis(ledger.plan.options.window_ms) && !self.twice {
            return Err(format!("{key} has its mark and was announced on news of {age:?} ago"));
        }
        Ok(())
    }
}

/// Where each notification has a subject of its own, the stream holds one of a key for as long as it is not purged.
#[derive(Default)]
pub(super) struct AnnounceOnceKnowsNoTimeLimit;

impl Property for AnnounceOnceKnowsNoTimeLimit {
    fn name(&self) -> &'static str {
        "AnnounceOnceKnowsNoTimeLimit"
    }

    fn saw(&mut self, now: Time, seen: &Observation<'_>, ledger: &Ledger) -> Result<(), String> {
        let Some(key) = announced(seen).filter(|_| ledger.plan.options.announce_once) else { return Ok(()) };
        let times = ledger.notifications.get(&key).map(Vec::as_slice).unwrap_or_default();
        let [.., before, _] = times else { return Ok(()) };
        if ledger.is_purged_since(*before) {
            return Ok(());
        }
        Err(format!("{key} was announced on a subject of its own, and again after {:?}", now.since(*before)))
    }
}

/// A notification tells of a summary that is stored, of no later version of the segments.
#[derive(Default)]
pub(super) struct ANotificationTellsAStoredSummary;

impl Property for ANotificationTellsAStoredSummary {
    fn name(&self) -> &'static str {
        "ANotificationTellsAStoredSummary"
    }

    fn saw(&mut self, _: Time, seen: &Observation<'_>, ledger: &Ledger) -> Result<(), String> {
        let Observation::NotificationStored { notification, .. } = seen else { return Ok(()) };
        let key = notification.session.key();
        let told = TranscriptVersion { segments: notification.segments, edits: notification.edits };
        match ledger.summaries.get(&key) {
            None => Err(format!("{key} was announced and no such summary is stored")),
            Some(stored) if *stored < told => Err(format!("{key} was announced with {told:?}, {stored:?} is stored")),
            Some(_) => Ok(()),
        }
    }
}
