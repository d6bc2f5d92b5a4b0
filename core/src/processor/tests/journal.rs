//! The journal, and the trace that goes on.

use super::*;
use crate::{
    contract::trace_context::{SpanId, TraceContext, TraceId},
    journal::{AcknowledgementKind, JobMoved, JournalEntry, JournalEvent},
};

fn journal(bench: &mut Bench) -> Vec<JournalEntry> {
    bench.processor.take_journal().collect()
}

/// Where the jobs went, and when.
fn moves(journal: &[JournalEntry]) -> Vec<(State, Time)> {
    let moves = journal.iter().filter_map(|entry| match &entry.event {
        JournalEvent::Began(began) => Some((began.state, entry.at)),
        JournalEvent::Moved(moved) => Some((moved.to, entry.at)),
        JournalEvent::Failed(_) | JournalEvent::Redelivered => None,
    });
    moves.collect()
}

#[test]
fn a_journal_has_each_step_of_a_job_with_its_time() {
    let mut bench = Bench::new(settings());
    bench.processor.keep_journal();
    bench.deliver(1, "s", 2).settle("s", &[2, 2]);
    bench.report(LOAD, Report::Loaded(page(0..2, None)));
    bench.fail(SAVE, FailureKind::Busy).deliver_again(1, 2, "s").wake(Timer::Retry);
    let saved_at = bench.now;
    bench.report(SAVE, Report::Saved(STORED));
    bench.report(PUBLISH, Report::Published { stream_sequence: 4, segments: 2, edits: 0 });
    bench.report(MARK, Report::Marked).report(Ack, Report::Acknowledged);
    let journal = journal(&mut bench);
    let quiet = settings().quiet_period;
    let (one, two) = (Time::ZERO.after(quiet), Time::ZERO.after(2 * quiet));
    let expected = [
        (State::Queued, Time::ZERO),
        (State::Quiet, Time::ZERO),
        (State::Counting, one),
        (State::Quiet, one),
        (State::Counting, two),
        (State::Loading, two),
        (State::Saving, two),
        (State::Publishing, saved_at),
        (State::Marking, saved_at),
        (State::Acknowledging, saved_at),
        (State::Over, saved_at),
    ];
    assert_eq!(moves(&journal), expected);
    assert!(saved_at > two, "a failure has its pause");
    let events: Vec<&JournalEvent> = journal.iter().map(|entry| &entry.event).collect();
    assert!(events.contains(&&JournalEvent::Failed(FailureKind::Busy)) && events.contains(&&JournalEvent::Redelivered));
    let acknowledging = events.iter().find_map(|event| match event {
        JournalEvent::Moved(moved @ JobMoved { to: State::Acknowledging, .. }) => Some(moved),
        JournalEvent::Began(_) | JournalEvent::Moved(_) | JournalEvent::Failed(_) | JournalEvent::Redelivered => None,
    });
    let acknowledging = acknowledging.expect("it was acknowledged");
    assert_eq!(acknowledging.acknowledgement, Some(AcknowledgementKind::Ack));
    let done = acknowledging.done.as_ref().expect("its call is done");
    assert_eq!((done.segments, done.complete), (2, true));
}

#[test]
fn a_processor_that_keeps_no_journal_has_none() {
    let mut bench = Bench::saving(settings());
    assert_eq!(journal(&mut bench), []);
}

#[test]
fn jobs_that_are_left_at_the_end_are_over() {
    let mut bench = Bench::new(settings());
    bench.processor.keep_journal();
    bench.deliver(1, "s", 2).drain().wake(Timer::Grace).wake(Timer::Grace);
    assert_eq!(moves(&journal(&mut bench)).last().map(|(state, _)| *state), Some(State::Over));
}

#[test]
fn the_trace_of_an_end_goes_on_in_its_notification() {
    let mut bench = Bench::new(settings());
    let context = Arc::new(TraceContext::begin(TraceId::new(7), SpanId::new(8)));
    let end = delivery(1, 1, ended("s", 2).as_bytes());
    bench.handle(Input::Delivered(Delivery { trace_context: Some(Arc::clone(&context)), ..end }));
    bench.settle("s", &[2, 2]).report(LOAD, Report::Loaded(page(0..2, None)));
    bench.report(SAVE, Report::Saved(STORED));
    for _ in 0..2 {
        let (_, effect) = bench.asked.front().expect("it publishes").clone();
        let Effect::Publish { trace_context, .. } = effect else { panic!("{effect}") };
        assert_eq!(trace_context.as_ref(), Some(&context));
        bench.fail(PUBLISH, FailureKind::Busy).wake(Timer::Retry);
    }
}
