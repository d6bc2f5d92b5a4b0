//! The summary step: pages are folded into a summary as they come.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{
    WallTime,
    bug::{Bug, Planted},
    event::SessionEnded,
    input::{Cursor, Page},
    settings::Settings,
    summary::{Summarizer, Summary},
    time::Time,
};

/// A summary under way.
#[derive(Debug)]
pub(super) struct Loading {
    summarizer: Summarizer,
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
        let summarizer = Summarizer::new(settings.limits);
        Self { summarizer, after: None, needs: None, is_over: false, counted, begun: now }
    }

    /// Folds a page in.
    ///
    /// # Errors
    ///
    /// A panic; what is folded so far is then worth nothing.
    pub(super) fn fold(&mut self, page: Page, planted: Planted) -> Result<(), Panicked> {
        let Self { summarizer, .. } = self;
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
        Ok(())
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

/// One call that the summary step cannot take must not end the jobs beside it.
fn caught<T>(step: impl FnOnce() -> T) -> Result<T, Panicked> {
    // A panic leaves nothing behind that is looked at again: the summarizer is dropped with its job.
    catch_unwind(AssertUnwindSafe(step)).map_err(|_| Panicked)
}
