//! What becomes of a summary once it was announced.

use std::collections::BTreeMap;

use jetstream_model::AckBody;
use transcript_core::{Time, TranscriptVersion, contract::Announcement, ids::Key};

use super::{Property, TheEnd};
use crate::{ledger::Ledger, observation::Observation, plan::SegmentWrites};

/// An announced summary is replaced only by one of a later version of the segments, or of the same that an operator has asked
/// for since. It is the next revision and keeps its marks.
#[derive(Default)]
pub(super) struct AMarkedSummaryStaysUntilItIsStale;

impl Property for AMarkedSummaryStaysUntilItIsStale {
    fn name(&self) -> &'static str {
        "AMarkedSummaryStaysUntilItIsStale"
    }

    fn saw(&mut self, _: Time, seen: &Observation<'_>, _: &Ledger) -> Result<(), String> {
        let Observation::Saved { key, before: Some(before), after } = seen else { return Ok(()) };
        if before.notified.is_none() {
            let first = after.revision == 1 && after.revised.is_none();
            return if first {
                Ok(())
            } else {
                Err(format!("{key} was never announced and is revision {}", after.revision))
            };
        }
        let was_asked_for =
            after.summary.version() == before.summary.version() && after.summary.reprocess > before.summary.reprocess;
        if after.summary.version() <= before.summary.version() && !was_asked_for {
            return if before == after { Ok(()) } else { Err(format!("{key} was announced and has changed")) };
        }
        let kept = after.notified == before.notified && after.revised == before.revised;
        if kept && after.revision == before.revision + 1 {
            return Ok(());
        }
        Err(format!("{key} was revision {} and is {}, marks kept: {kept}", before.revision, after.revision))
    }
}

/// Each revision of a summary is announced at most once within the window, never before the summary has it, and only where
/// that is asked for.
#[derive(Default)]
pub(super) struct ARevisionIsAnnouncedOnce {
    stored: BTreeMap<Key, u64>,
    marked: BTreeMap<Key, u64>,
    announced: BTreeMap<(Key, u64), Time>,
}

impl Property for ARevisionIsAnnouncedOnce {
    fn name(&self) -> &'static str {
        "ARevisionIsAnnouncedOnce"
    }

    fn saw(&mut self, now: Time, seen: &Observation<'_>, ledger: &Ledger) -> Result<(), String> {
        if let Observation::Saved { key, after, .. } = seen {
            self.stored.insert((*key).clone(), after.revision);
        }
        // What was announced may be less than what is stored, which then is the next revision.
        if let Observation::Marked { key, revision, .. } = seen {
            self.stored.insert((*key).clone(), *revision);
        }
        if let Observation::Marked { key, announcement: Announcement::Revised { revision }, .. } = seen {
            let marked = self.marked.entry((*key).clone()).or_default();
            *marked = (*marked).max(*revision);
        }
        let Observation::NotificationStored { announcement: Announcement::Revised { revision }, notification, .. } =
            seen
        else {
            return Ok(());
        };
        let key = notification.session.key();
        let (stored, marked) = (self.stored.get(&key).copied(), self.marked.get(&key).copied());
        let before = self.announced.insert((key.clone(), *revision), now);
        let is_wanted = ledger.plan.options.revise || ledger.ends_of(&key).any(|end| end.reprocess > 0);
        if !is_wanted || *revision < 2 || stored.is_none_or(|stored| *revision > stored) {
            return Err(format!("revision {revision} of {key} was announced, and {stored:?} is stored"));
        }
        let again = before.is_some_and(|before| {
            let forgotten = now >= ledger.promises.only_until(before) || ledger.is_purged_since(before);
            !forgotten || marked >= Some(*revision)
        });
        if again { Err(format!("revision {revision} of {key} was announced again")) } else { Ok(()) }
    }
}

/// Where it is asked for, no announced summary is behind its segments when the world has been whole for long enough, and
/// every revision is known.
#[derive(Default)]
pub(super) struct EveryStaleSummaryIsRevised;

impl Property for EveryStaleSummaryIsRevised {
    fn name(&self) -> &'static str {
        "EveryStaleSummaryIsRevised"
    }

    fn saw(&mut self, _: Time, _: &Observation<'_>, _: &Ledger) -> Result<(), String> {
        Ok(())
    }

    fn at_end(&mut self, _: Time, _: &Ledger, end: &TheEnd) -> Result<(), String> {
        match end.stale.first() {
            Some(key) => Err(format!("{key} is behind its segments, or nobody knows of its last revision")),
            None => Ok(()),
        }
    }
}

/// A request to process an announced call again is acknowledged only once a summary that was made for it is stored and
/// announced as a revision. A run that loads fewer segments than the stored summary has changes nothing.
#[derive(Default)]
pub(super) struct ARequestIsAnsweredByARevision {
    /// The last request that each stored summary was made for, and the revision that it was first; none where the call was
    /// not announced before.
    made: BTreeMap<Key, (u64, Option<u64>)>,
    announced: BTreeMap<Key, u64>,
}

impl Property for ARequestIsAnsweredByARevision {
    fn name(&self) -> &'static str {
        "ARequestIsAnsweredByARevision"
    }

    fn saw(&mut self, now: Time, seen: &Observation<'_>, ledger: &Ledger) -> Result<(), String> {
        if let Observation::Saved { key, before, after } = seen {
            let earlier = before.map_or(0, |before| before.summary.reprocess);
            if after.summary.reprocess > earlier {
                let is_revision = before.is_some_and(|before| before.notified.is_some());
                let revision = is_revision.then_some(after.revision);
                self.made.insert((*key).clone(), (after.summary.reprocess, revision));
            } else if after.summary.reprocess < earlier {
                return Err(format!("{key} was made for request {earlier}, and that is forgotten"));
            }
        }
        if let Observation::NotificationStored {
            announcement: Announcement::Revised { revision }, notification, ..
        } = seen
        {
            let announced = self.announced.entry(notification.session.key()).or_default();
            *announced = (*announced).max(*revision);
        }
        let Observation::AckArrived { sequence, body: AckBody::Ack } = seen else { return Ok(()) };
        let end = ledger.ends.get(sequence).filter(|end| end.reprocess > 0 && !end.handed_on);
        let Some((end, key)) = end.and_then(|end| Some((end, end.key.as_ref()?))) else { return Ok(()) };
        let session = ledger.plan.calls.iter().find(|call| call.ids().key() == *key).map(|call| call.ids().session_id);
        let segments = session.map_or(0, |session| ledger.segments_by(&session, now));
        // A kill loses segments that are on no journal, and changes of them.
        let loses_edits = ledger.plan.options.segment_writes == SegmentWrites::Unjournaled;
        let is_ahead = |stored: &TranscriptVersion| stored.segments > segments || (stored.edits > 0 && loses_edits);
        if ledger.summaries.get(key).is_some_and(is_ahead) {
            return Ok(());
        }
        let (made, revision) = self.made.get(key).copied().unwrap_or_default();
        if made < end.reprocess {
            return Err(format!("request {} to process {key} again is acknowledged, and was not done", end.reprocess));
        }
        match revision.filter(|revision| self.announced.get(key).is_none_or(|announced| announced < revision)) {
            Some(revision) => Err(format!("{key} was processed again, and revision {revision} is not announced")),
            None => Ok(()),
        }
    }
}

/// Where revisions are asked for, an announced summary of a later version than was ever announced does not stay unknown.
#[derive(Default)]
pub(super) struct WhatIsStoredIsAnnounced {
    announced: BTreeMap<Key, TranscriptVersion>,
}

impl Property for WhatIsStoredIsAnnounced {
    fn name(&self) -> &'static str {
        "WhatIsStoredIsAnnounced"
    }

    fn saw(&mut self, _: Time, seen: &Observation<'_>, _: &Ledger) -> Result<(), String> {
        if let Observation::NotificationStored { notification, .. } = seen {
            let announced = self.announced.entry(notification.session.key()).or_default();
            let (segments, edits) = (notification.segments, notification.edits);
            *announced = (*announced).max(TranscriptVersion { segments, edits });
        }
        Ok(())
    }

    fn at_end(&mut self, _: Time, ledger: &Ledger, _: &TheEnd) -> Result<(), String> {
        if !ledger.plan.options.revise {
            return Ok(());
        }
        for (key, announced) in &self.announced {
            let stored = ledger.summaries.get(key).copied().unwrap_or_default();
            if ledger.marks.contains_key(key) && stored > *announced {
                return Err(format!("{key} is stored with {stored:?}, and {announced:?} was announced"));
            }
        }
        Ok(())
    }
}
