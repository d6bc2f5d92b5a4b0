//! What never grows, and what never stands still.

use transcript_core::Time;

use super::{Property, TheEnd};
use crate::{ledger::Ledger, observation::Observation};

/// A wake-up that was served is not asked for again.
pub(super) struct DeadlinesMove;

impl Property for DeadlinesMove {
    fn name(&self) -> &'static str {
        "DeadlinesMove"
    }

    fn saw(&mut self, now: Time, seen: &Observation<'_>, _: &Ledger) -> Result<(), String> {
        let Observation::Waits { served: Some(served), next: Some(next), .. } = seen else { return Ok(()) };
        if served == next {
            return Err(format!("{served:?} was served at {now:?} and is asked for again"));
        }
        Ok(())
    }
}

/// No more jobs than asked for, those without a delivery aside, no delivery turned away, and no job left over at the end.
pub(super) struct MemoryStaysWithinBounds;

impl Property for MemoryStaysWithinBounds {
    fn name(&self) -> &'static str {
        "MemoryStaysWithinBounds"
    }

    fn saw(&mut self, _: Time, seen: &Observation<'_>, ledger: &Ledger) -> Result<(), String> {
        let Observation::Waits { processor, jobs, overflowed, .. } = seen else { return Ok(()) };
        // A pull that was served just before its connection broke may come on top of the next one.
        let stale = if ledger.plan.options.revise { ledger.promises.max_in_flight } else { 0 };
        let most = ledger.promises.max_in_flight * 4 + ledger.given_up + stale;
        if *jobs > most || *overflowed > 0 {
            return Err(format!("processor {processor} has {jobs} jobs, {overflowed} overflowed; {most} are allowed"));
        }
        Ok(())
    }

    fn at_end(&mut self, _: Time, _: &Ledger, end: &TheEnd) -> Result<(), String> {
        let left = end.jobs.iter().flatten().find(|jobs| !jobs.is_empty());
        match left {
            Some(jobs) if end.unsettled == 0 => Err(format!("jobs are left over: {jobs}")),
            Some(_) | None => Ok(()),
        }
    }
}

/// The texts of summaries under way are bounded: by the setting, and a page for whoever has to go on all the same.
pub(super) struct BytesInFlightStayWithinBounds;

/// What a core reserves for each segment that it is about to load.
const SEGMENT_BYTES: u64 = 4 << 10;

impl Property for BytesInFlightStayWithinBounds {
    fn name(&self) -> &'static str {
        "BytesInFlightStayWithinBounds"
    }

    fn saw(&mut self, _: Time, seen: &Observation<'_>, ledger: &Ledger) -> Result<(), String> {
        let Observation::Waits { processor, jobs, bytes, .. } = seen else { return Ok(()) };
        let Some(bound) = ledger.plan.options.max_bytes_in_flight else { return Ok(()) };
        let page = ledger.longest_call.clamp(1, ledger.promises.page_size.into());
        let most = bound + page * SEGMENT_BYTES * 2;
        if *bytes > most || (*jobs == 0 && *bytes > 0) {
            return Err(format!("processor {processor} holds {bytes} bytes in {jobs} jobs; {most} are allowed"));
        }
        Ok(())
    }
}
