//! What a drain gives back, publishes again, or finishes.

use super::*;

#[test]
fn draining_gives_back_what_has_not_begun_to_save_and_finishes_the_rest() {
    let mut bench = Bench::saving(settings());
    bench.deliver(8, "s", 2).deliver(9, "other", 0).drain();
    assert_eq!(bench.processor.room(), 0);
    bench.deliver(10, "late", 0);
    bench.report(SAVE, Report::Saved(STORED));
    for _ in 0..3 {
        bench.report(AT_ONCE, Report::Acknowledged);
    }
    assert!(!bench.drained);
    bench.report(PUBLISH, Report::Published { stream_sequence: 1, segments: 2, edits: 0 }).report(MARK, Report::Marked);
    bench.report(Ack, Report::Acknowledged);
    assert!(bench.drained);
    assert_eq!(bench.processor.counters().given_back, 3);
}

#[test]
fn a_drain_publishes_again_what_is_not_of_the_first_delivery() {
    let mut bench = Bench::new(settings());
    bench.deliver(7, "a", 0).deliver_again(8, 2, "b").drain().deliver_again(9, 3, "c");
    bench.report(AT_ONCE, Report::Acknowledged);
    bench.report(About(EffectKind::Republish, 8), Report::Republished { stream_sequence: 20 });
    bench.fail(About(EffectKind::Republish, 9), FailureKind::Unreachable);
    bench.report(Ack, Report::Acknowledged).wake(Timer::Retry);
    bench.fail(About(EffectKind::Republish, 9), FailureKind::Rejected);
    bench.report(AT_ONCE, Report::Acknowledged);
    assert!(bench.drained);
    assert_eq!((bench.processor.counters().given_back, bench.processor.counters().republished), (2, 1));
}

#[test]
fn the_grace_time_ends_a_drain() {
    let mut bench = Bench::saving(settings());
    bench.deliver_again(8, 2, "t").settle("t", &[]);
    bench.drain().drain();
    bench.asked.retain(|(_, effect)| !matches!(effect, Effect::Save { .. }));
    bench.report(About(EffectKind::Republish, 8), Report::Republished { stream_sequence: 9 });
    bench.report(Ack, Report::Acknowledged).nothing_asked().wake(Timer::Grace);
    assert_eq!(bench.now, Time::ZERO.after(4 * Duration::from_secs(1) + settings().grace), "settled after 4 s");
    assert!(!bench.drained, "there is a moment to give it back");
    assert!(bench.asks(AT_ONCE), "{:?}", bench.asked);
    bench.wake(Timer::Grace);
    assert!(bench.drained);
    assert_eq!((bench.processor.in_flight(), bench.processor.counters().abandoned), (0, 1));
}

#[test]
fn where_attempts_are_few_no_nak_costs_one() {
    for (max_deliver, effect) in
        [(1, About(EffectKind::Republish, 7)), (3, About(EffectKind::Republish, 7)), (4, AT_ONCE)]
    {
        let mut bench = Bench::new(Settings { max_deliver, ..settings() });
        bench.deliver(7, "s", 0).drain();
        assert!(bench.asks(effect), "{:?}", bench.asked);
    }
}

#[test]
fn an_acknowledgement_that_is_never_confirmed_is_left_to_redelivery() {
    let mut bench = Bench::acknowledging(Settings { retry_timeout: Duration::ZERO, ..settings() });
    bench.others_succeed(EffectKind::Acknowledge).fail(Ack, FailureKind::TimedOut).nothing_asked();
    assert_eq!((bench.processor.in_flight(), bench.processor.counters().unconfirmed), (0, 1));
}

#[test]
fn a_frozen_process_that_wakes_up_sends_one_heartbeat_a_job_and_goes_on() {
    let mut bench = Bench::new(settings());
    bench.deliver(1, "s", 0);
    bench.now = bench.now.after(Duration::from_secs(3600));
    bench.handle(Input::Woken);
    assert_eq!(bench.heartbeats.len(), 1);
    assert_eq!(bench.wake_up.expect("a heartbeat is due").at, bench.now.after(Duration::from_secs(2)));
}
