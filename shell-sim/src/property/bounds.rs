//! What never grows, and what never stands still.

use std::time::Duration;

use transcript_core::Time;

use super::{Property, TheEnd};
use crate::{
    ledger::{Ledger, Origin},
    observation::Observation,
    plan::{Action, EndPayload, Fault, Plan},
};

/// A wake-up that was served is not asked for again.
#[derive(Default)]
pub(super) struct DeadlinesMove;

impl Property for DeadlinesMove {
    fn name(&self) -> &'static str {
        "DeadlinesMove"
    }

    fn looks_at_waits(&self) -> bool {
        true
    }

    fn saw(&mut self, now: Time, seen: &Observation<'_>, _: &Ledger) -> Result<(), String> {
        let Observation::Waits { served: Some(served), next: Some(next), .. } = seen else { return Ok(()) };
        if served == next {
            return Err(format!("{served:?} was served at {now:?} and is asked for again"));
        }
        Ok(())
    }
}

/// While fewer calls are under way than a processor has room for, an end is delivered at once, however often the ends of
/// other calls are repeated.
#[derive(Default)]
pub(super) struct RepeatsDelayNoOtherCall;

/// How long a delivery may take besides the network.
const AT_ONCE: Duration = Duration::from_secs(1);
/// How long everything must have been well before, so that nobody is busy with the past.
const CALM: Duration = Duration::from_secs(20);
/// When the processors have been started.
const STARTED: Duration = Duration::from_secs(3);

impl Property for RepeatsDelayNoOtherCall {
    fn name(&self) -> &'static str {
        "RepeatsDelayNoOtherCall"
    }

    fn saw(&mut self, now: Time, seen: &Observation<'_>, ledger: &Ledger) -> Result<(), String> {
        let Observation::Sent { sequence, .. } = seen else { return Ok(()) };
        let Some(end) = ledger.ends.get(sequence) else { return Ok(()) };
        let is_first = end.attempts.len() == 1 && matches!(end.origin, Origin::Transcriber { .. });
        let since = end.stored_at.max(Time::ZERO.after(STARTED));
        let options = &ledger.plan.options;
        let within = AT_ONCE + Duration::from_micros(options.delay_us + options.jitter_us) * 4;
        if !is_first || now.since(since) <= within || !has_room_for_every_call(&ledger.plan) {
            return Ok(());
        }
        if !ledger.is_undisturbed(since.before(CALM), now) {
            return Ok(());
        }
        Err(format!(
            "message {sequence} was delivered {:?} after it was stored, though there was room",
            now.since(since)
        ))
    }
}

/// Whether each processor always has room for all calls of the plan at the same time, and for one end more.
fn has_room_for_every_call(plan: &Plan) -> bool {
    let room = |fault: &Fault| {
        if let Action::SetProcessors { max_in_flight, .. } = fault.what {
            max_in_flight
        } else if let Action::SetMaxAckPending { max_ack_pending: Some(_) } = fault.what {
            0
        } else {
            usize::MAX
        }
    };
    let room = plan.faults.iter().map(room).fold(plan.options.max_in_flight, usize::min);
    let ends = || plan.calls.iter().flat_map(|call| &call.ends);
    let malformed = ends().filter(|end| matches!(end.payload, EndPayload::Malformed(_))).count();
    // All jobs together are at most four times as many.
    let fits = plan.calls.len() + malformed < room && ends().count() <= room.saturating_mul(4);
    fits && plan.options.max_ack_pending.is_none() && plan.chores.is_empty()
}

/// No more jobs than asked for, those without a delivery aside, no delivery turned away, and no job left over at the end.
#[derive(Default)]
pub(super) struct MemoryStaysWithinBounds;

impl Property for MemoryStaysWithinBounds {
    fn name(&self) -> &'static str {
        "MemoryStaysWithinBounds"
    }

    fn looks_at_waits(&self) -> bool {
        true
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
#[derive(Default)]
pub(super) struct BytesInFlightStayWithinBounds;

/// What a core reserves for each segment that it is about to load.
const SEGMENT_BYTES: u64 = 4 << 10;

impl Property for BytesInFlightStayWithinBounds {
    fn name(&self) -> &'static str {
        "BytesInFlightStayWithinBounds"
    }

    fn looks_at_waits(&self) -> bool {
        true
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
