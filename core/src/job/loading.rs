//! The summary step: pages are folded into a summary as they come.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{
    WallTime,
    bug::{Bug, Planted},
    event::SessionEnded,
    input::{Cursor, Page, Tally},
    settings::Settings,
    summary::{Order, Segment, Summarizer, Summary},
    time::Time,
};

/// A summary under way.
#[derive(Debug)]
pub(super) struct Loading {
    summarizer: Summarizer,
    /// In which order it asks for the segments; `None` where it does not know.
    pub(super) order: Option<Order>,
    met: Met,
    /// What the store had at the end, where the load told it.
    tally: Option<Tally>,
    /// Whether that is something else than at the beginning.
    has_changed: bool,
    /// Where the next page starts.
    pub(super) after: Option<Cursor>,
    /// How many bytes the next segment takes, where it alone is larger than the page before was allowed to be.
    pub(super) needs: Option<u64>,
    /// Whether the last page was folded in.
    pub(super) is_over: bool,
    /// How many segments the last count found.
    pub(super) counted: u64,
    /// When it began.
    pub(super) begun: Time,
    /// How often the call was loaded, this time included.
    pub(super) round: u32,
}

/// In which orders the segments came.
#[derive(Debug)]
struct Met {
    last: Option<Segment>,
    segments: u64,
    /// Whether each has its start on the session's clock.
    all_have_starts: bool,
    by_index: bool,
    by_start: bool,
}

/// What a load is worth once its last page is folded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loaded {
    /// It has the segments in the order of the call, each once.
    Rightly,
    /// It has not: load the call again, in this order.
    Again(Order),
}

/// The summary step panicked. What it said may hold words of the call and is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Panicked;

impl Panicked {
    /// For people.
    pub(super) const REASON: &'static str = "the summary step panicked: the processor's log says where";
}

impl Loading {
    pub(super) fn new(now: Time, counted: u64, settings: &Settings) -> Self {
        Self {
            summarizer: Summarizer::new(settings.limits),
            order: None,
            met: Met::default(),
            tally: None,
            has_changed: false,
            after: None,
            needs: None,
            is_over: false,
            counted,
            begun: now,
            round: 1,
        }
    }

    /// The same from the first page on, in this order.
    pub(super) fn again(&self, now: Time, order: Order, settings: &Settings) -> Self {
        Self { order: Some(order), round: self.round.saturating_add(1), ..Self::new(now, self.counted, settings) }
    }

    /// Folds a page in.
    ///
    /// # Errors
    ///
    /// A panic; what is folded so far is then worth nothing.
    pub(super) fn fold(&mut self, page: Page, planted: Planted) -> Result<(), Panicked> {
        let Self { summarizer, met, .. } = self;
        page.segments.iter().for_each(|segment| met.take(segment));
        caught(|| {
            for segment in &page.segments {
                assert!(!planted.has_bug(Bug::SummaryPanics) || segment.text != Bug::PANIC, "a planted bug");
                summarizer.push(segment);
            }
            summarizer.note_damaged(page.damaged);
        })?;
        if page.next.is_some() || page.needs.is_none() {
            self.after = page.next;
        }
        self.is_over = self.after.is_none() && page.needs.is_none();
        self.needs = page.needs;
        self.tally = page.tally;
        self.has_changed = page.tally.is_some() && page.tally_before.is_some_and(|before| Some(before) != page.tally);
        Ok(())
    }

    /// Whether the segments came in the order of the call, each once. Which order the call has shows only at its end: a segment
    /// that was stored or changed while the pages were read may have changed it. An order that was asked for by its name is
    /// believed, so that each new load needs a new change. One that a late segment makes needed has an end, as settling has.
    pub(super) fn outcome(&self, settings: &Settings) -> Loaded {
        let Met { last, segments, all_have_starts, by_index, by_start } = &self.met;
        match self.tally {
            Some(tally) if tally.without_start > 0 => return Loaded::Again(Order::Index),
            // One was changed and came a second time.
            Some(tally) if *segments > tally.segments => return Loaded::Again(Order::Start),
            // One was changed and did not come, or is late; or one came twice and another one did not.
            Some(tally) if (self.has_changed || *segments < tally.segments) && self.round < settings.settle_rounds => {
                return Loaded::Again(Order::Start);
            }
            Some(_) | None => {}
        }
        let (order, came) = match last {
            Some(_) if *all_have_starts => (Order::Start, *by_start),
            Some(_) | None => (Order::Index, *by_index),
        };
        if came || self.order == Some(order) { Loaded::Rightly } else { Loaded::Again(order) }
    }

    /// How many bytes of text it holds.
    pub(super) fn held_bytes(&self) -> usize {
        self.summarizer.held_bytes()
    }

    /// The summary of everything that was folded in.
    ///
    /// # Errors
    ///
    /// A panic.
    pub(super) fn finish(self, call: &SessionEnded, built_at: WallTime) -> Result<Summary, Panicked> {
        let reprocess = call.reprocess;
        caught(move || Summary {
            reprocess,
            ..self.summarizer.finish(&call.session, call.published_segments, built_at)
        })
    }
}

impl Default for Met {
    fn default() -> Self {
        Self { last: None, segments: 0, all_have_starts: true, by_index: true, by_start: true }
    }
}

impl Met {
    fn take(&mut self, segment: &Segment) {
        let Segment { index, start_ms, .. } = *segment;
        // Without its texts.
        let segment = Segment { index, start_ms, on_session_clock: segment.on_session_clock, ..Segment::default() };
        if let Some(last) = &self.last {
            self.by_index &= Order::Index.compare_places(last, &segment).is_le();
            self.by_start &= Order::Start.compare_places(last, &segment).is_le();
        }
        self.segments += 1;
        self.all_have_starts &= segment.session_start().is_some();
        self.last = Some(segment);
    }
}

/// One call that the summary step cannot take must not end the jobs beside it.
fn caught<T>(step: impl FnOnce() -> T) -> Result<T, Panicked> {
    // A panic leaves nothing behind that is looked at again: the summarizer is dropped with its job.
    catch_unwind(AssertUnwindSafe(step)).map_err(|_| Panicked)
}
