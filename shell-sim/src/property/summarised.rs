//! What summaries say.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use transcript_core::{
    Effect, Report, Stored, Time,
    contract::Announcement,
    ids::{EffectId, JobId, Key},
    summary::{Order, Segment, Summarizer, Summary},
};

use super::Property;
use crate::{ledger::Ledger, observation::Observation, store::Document};

/// No save leaves an earlier version of the segments than was stored, or takes a mark away; and nothing that was answered is lost.
#[derive(Default)]
pub(super) struct SummaryNeverGoesBack {
    stored: BTreeMap<Key, Stored>,
}

impl Property for SummaryNeverGoesBack {
    fn name(&self) -> &'static str {
        "SummaryNeverGoesBack"
    }

    fn saw(&mut self, _: Time, seen: &Observation<'_>, _: &Ledger) -> Result<(), String> {
        let Observation::Saved { key, before, after } = seen else { return Ok(()) };
        let known = self.stored.insert((*key).clone(), after.stored());
        let before = before.map(Document::stored);
        for earlier in [known, before].into_iter().flatten() {
            let (had, has) = (earlier.version(), after.summary.version());
            if has < had {
                return Err(format!("{key} had {had:?} and has {has:?}"));
            }
            if before.is_some_and(|before| before.notified.is_some()) && after.notified.is_none() {
                return Err(format!("{key} lost the mark that it was announced"));
            }
        }
        Ok(())
    }
}

/// `complete` is what the stored summary's own numbers say, and those announced are a transcriber's.
#[derive(Default)]
pub(super) struct CompleteIsTrueOnlyWhenItIs;

impl Property for CompleteIsTrueOnlyWhenItIs {
    fn name(&self) -> &'static str {
        "CompleteIsTrueOnlyWhenItIs"
    }

    fn saw(&mut self, _: Time, seen: &Observation<'_>, ledger: &Ledger) -> Result<(), String> {
        let Observation::Saved { key, after, .. } = seen else { return Ok(()) };
        let summary = &after.summary;
        let complete = summary.segments >= summary.published_segments;
        if summary.complete != complete {
            let (has, announced) = (summary.segments, summary.published_segments);
            return Err(format!("{key} says complete: {}, with {has} of {announced} segments", summary.complete));
        }
        let announced = ledger.ends_of(&summary.session.key()).any(|end| end.announced == summary.published_segments);
        if announced { Ok(()) } else { Err(format!("{key}: nobody announced {} segments", summary.published_segments)) }
    }
}

/// A saved summary is what the pages that its job loaded give.
#[derive(Default)]
pub(super) struct SummaryIsWhatItsSegmentsGive {
    /// A fold over nothing; to copy it is cheaper than to look for the dictionaries again.
    empty: Option<Summarizer>,
    loaded: BTreeMap<(usize, JobId), Summarizer>,
    /// What there was of a job before its last page.
    before: Option<((usize, JobId), Summarizer)>,
}

impl Property for SummaryIsWhatItsSegmentsGive {
    fn name(&self) -> &'static str {
        "SummaryIsWhatItsSegmentsGive"
    }

    fn saw(&mut self, _: Time, seen: &Observation<'_>, ledger: &Ledger) -> Result<(), String> {
        if let Observation::Ended { processor, .. } = seen {
            self.loaded.retain(|(of, _), _| of != processor);
        }
        if let Observation::Reported { .. } = seen {
            self.before = None;
        }
        // A load begins, or begins anew.
        if let Observation::Asked { processor, id, effect: Effect::Load { after: None, .. } } = seen {
            self.loaded.remove(&(*processor, id.job));
        }
        if let Observation::Reported { processor, id, report: Report::Loaded(page) } = seen {
            let limits = ledger.plan.options.core().limits;
            let job = (*processor, id.job);
            let empty = self.empty.get_or_insert_with(|| Summarizer::new(limits));
            let summarizer = self.loaded.entry(job).or_insert_with(|| empty.clone());
            self.before = Some((job, summarizer.clone()));
            for segment in &page.segments {
                summarizer.push(segment);
            }
            summarizer.note_damaged(page.damaged);
        }
        if let Observation::Ignored { processor, id } = seen
            && let Some((job, summarizer)) = self.before.take_if(|(job, _)| *job == (*processor, id.job))
        {
            self.loaded.insert(job, summarizer);
        }
        let Observation::Asked { processor, id, effect: Effect::Save { summary } } = seen else { return Ok(()) };
        let Some(summarizer) = self.loaded.remove(&(*processor, id.job)) else { return Ok(()) };
        if says_the_same(summary, summarizer) {
            Ok(())
        } else {
            Err(format!("{} is not what its pages give", summary.key))
        }
    }
}

/// Whether a summary says what the segments folded so far give.
fn says_the_same(summary: &Summary, given: Summarizer) -> bool {
    let given = given.finish(&summary.session, summary.published_segments, summary.updated_at);
    given.segments == summary.segments
        && given.words == summary.words
        && given.damaged == summary.damaged
        && given.edits == summary.edits
        && given.speakers == summary.speakers
        && given.longest_turns == summary.longest_turns
        && given.questions == summary.questions
}

/// A summary of all segments of a call is what they give in the order that the data contract names.
#[derive(Default)]
pub(super) struct SummaryIsInTheOrderOfTheCall {
    /// A fold over nothing.
    empty: Option<Summarizer>,
    /// What is stored of each session; `None` where a kill has lost some of it, or somebody has changed some without
    /// counting that, so that two sets of the same version can differ.
    stored: BTreeMap<Arc<str>, Option<BTreeMap<String, Segment>>>,
}

impl Property for SummaryIsInTheOrderOfTheCall {
    fn name(&self) -> &'static str {
        "SummaryIsInTheOrderOfTheCall"
    }

    fn saw(&mut self, _: Time, seen: &Observation<'_>, ledger: &Ledger) -> Result<(), String> {
        if let Observation::SegmentStored { session, segment } = seen {
            let known = self.stored.entry(Arc::clone(session)).or_insert_with(|| Some(BTreeMap::new()));
            // A change that nobody counted: two sets of the same version differ.
            let is_uncounted = |known: &BTreeMap<String, Segment>| {
                known.get(&segment.id).is_some_and(|known| known.edits >= segment.edits && known != *segment)
            };
            known.take_if(|known| is_uncounted(known));
            if let Some(known) = known {
                known.insert(segment.id.clone(), Segment::clone(segment));
            }
        }
        if let Observation::SegmentLost { session, .. } = seen {
            self.stored.insert(Arc::clone(session), None);
        }
        let Observation::Saved { key, after, .. } = seen else { return Ok(()) };
        let summary = &after.summary;
        let Some(Some(stored)) = self.stored.get(&summary.session.session_id) else { return Ok(()) };
        let mut segments: Vec<&Segment> = stored.values().collect();
        let edits = segments.iter().map(|segment| segment.edits).sum::<u64>();
        if summary.segments != segments.len() as u64 || summary.edits != edits {
            return Ok(());
        }
        let order = Order::of(segments.iter().copied());
        segments.sort_by(|a, b| order.compare(a, b));
        let limits = ledger.plan.options.core().limits;
        let mut given = self.empty.get_or_insert_with(|| Summarizer::new(limits)).clone();
        segments.into_iter().for_each(|segment| given.push(segment));
        if says_the_same(summary, given) { Ok(()) } else { Err(format!("{key} is not in the order of its call")) }
    }
}

/// A processor that is told that its mark is written finds it on the summary: nobody announces the call again then.
#[derive(Default)]
pub(super) struct AMarkThatIsReportedIsStored {
    asked: BTreeMap<(usize, EffectId), (Key, u64)>,
    stored: BTreeSet<(Key, u64)>,
}

impl Property for AMarkThatIsReportedIsStored {
    fn name(&self) -> &'static str {
        "AMarkThatIsReportedIsStored"
    }

    fn saw(&mut self, _: Time, seen: &Observation<'_>, ledger: &Ledger) -> Result<(), String> {
        if let Observation::Ended { processor, .. } = seen {
            self.asked.retain(|(of, _), _| of != processor);
        }
        if let Observation::Asked { processor, id, effect: Effect::Mark { key, announcement, .. } } = seen {
            self.asked.insert((*processor, *id), (key.clone(), revision(*announcement)));
        }
        if let Observation::Marked { key, announcement, .. } = seen {
            self.stored.insert(((*key).clone(), revision(*announcement)));
        }
        let Observation::Reported { processor, id, report: Report::Marked } = seen else { return Ok(()) };
        let Some(mark) = self.asked.remove(&(*processor, *id)) else { return Ok(()) };
        if self.stored.contains(&mark) || !ledger.summaries.contains_key(&mark.0) {
            return Ok(());
        }
        Err(format!("processor {processor} was told that {} is marked, and it is not", mark.0))
    }
}

/// The revision that is announced.
fn revision(announcement: Announcement) -> u64 {
    match announcement {
        Announcement::Processed | Announcement::ProcessedOnce => 1,
        Announcement::Revised { revision } => revision,
    }
}

/// A summary has every segment that was stored in the quiet period after the end, and that no kill has lost since.
#[derive(Default)]
pub(super) struct WhatCameInTheQuietPeriodIsCounted;

/// The two calendars that a job compares are read in whole milliseconds.
const CALENDAR: Duration = Duration::from_millis(2);

impl Property for WhatCameInTheQuietPeriodIsCounted {
    fn name(&self) -> &'static str {
        "WhatCameInTheQuietPeriodIsCounted"
    }

    fn saw(&mut self, _: Time, seen: &Observation<'_>, ledger: &Ledger) -> Result<(), String> {
        let Observation::Saved { key, after, .. } = seen else { return Ok(()) };
        let options = &ledger.plan.options;
        if options.skews_ms.iter().any(|skew| *skew != 0) {
            return Ok(());
        }
        let session = &after.summary.session.session_id;
        let ended = ledger.ends_of(key).map(|end| end.stored_at).min();
        let Some(ended) = ended else { return Ok(()) };
        let quiet = ledger.promises.quiet_period.saturating_sub(CALENDAR);
        let stored = ledger.segments_by(session, ended.after(quiet));
        let has = after.summary.segments;
        if has < stored {
            return Err(format!("{key} has {has} segments, {stored} were there when its quiet period ended"));
        }
        Ok(())
    }
}
