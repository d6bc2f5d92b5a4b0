//! Faults of servers and outages: what they cost, and whom.

use super::*;

/// One end that is published many times must not delay other calls.
#[test]
fn repeated_ends_of_a_call_take_no_room_and_are_acknowledged_with_the_first() {
    let mut bench = Bench::new(Settings { max_in_flight: 100, ..settings() });
    for sequence in 1..=300 {
        bench.deliver(sequence, "s", 2);
    }
    assert_eq!((bench.processor.room(), bench.processor.in_flight()), (99, 300));
    bench.settle("s", &[2, 2]).report(LOAD, Report::Loaded(page(0..2, None)));
    bench
        .report(SAVE, Report::Saved(STORED))
        .report(PUBLISH, Report::Published { stream_sequence: 900, segments: 2, edits: 0 });
    assert!(bench.asks(MARK) && bench.asked.len() == 1, "nothing is acknowledged before the mark");
    bench.report(MARK, Report::Marked);
    assert_eq!((bench.asked.len(), bench.processor.room()), (300, 100));
    for _ in 0..300 {
        bench.report(Ack, Report::Acknowledged);
    }
    bench.nothing_asked();
    assert_eq!((bench.processor.in_flight(), bench.processor.counters().repeated), (0, 299));
    let done = bench.notices.iter().filter(|notice| matches!(notice, Notice::Done(_))).count();
    assert_eq!(done, 1, "one call is done once");
}

#[test]
fn an_end_that_announces_more_or_came_after_the_segments_were_loaded_settles_anew() {
    let mut bench = Bench::new(settings());
    bench.deliver(7, "s", 2).deliver(8, "s", 3).settle("s", &[2, 2]);
    bench.deliver_payload(9, 0, ended("s", 2).as_bytes());
    bench.now = bench.now.after(Duration::from_millis(1));
    bench.deliver_payload(10, 0, ended("s", 2).as_bytes());
    bench.report(LOAD, Report::Loaded(page(0..2, None))).report(SAVE, Report::Saved(STORED));
    bench
        .report(PUBLISH, Report::Published { stream_sequence: 99, segments: 2, edits: 0 })
        .report(MARK, Report::Marked);
    assert_eq!(bench.asked.iter().filter(|(_, effect)| Ack.is(effect)).count(), 2, "7 and 9: {:?}", bench.asked);
    assert_eq!(bench.state(), [State::Queued, State::Counting, State::Acknowledging], "10 waits for 8");
}

#[test]
fn a_repeated_end_that_comes_when_the_call_is_done_looks_whether_everything_is_there() {
    let notified = Some(Stored { notified: NOTIFIED, ..STORED });
    for (stored, is_covered) in [
        (notified, true),
        (Some(STORED), false),
        (None, false),
        (notified.map(|stored| Stored { segments: 1, ..stored }), false),
    ] {
        let mut bench = Bench::checking_a_repeat();
        bench.report(CHECK, Report::Checked(stored));
        assert_eq!(bench.asks(Ack), is_covered, "{stored:?}");
        assert_eq!(bench.processor.counters().repeated, u64::from(is_covered));
    }
    // Published by hand later, it is looked at anew.
    let mut bench = Bench::acknowledging(settings());
    bench.report(Ack, Report::Acknowledged).sleep(Duration::from_secs(9));
    bench.deliver(8, "s", 2).nothing_asked();
    assert_eq!(bench.state(), [State::Quiet]);
}

/// The stream forgets what was published; the mark does not.
#[test]
fn a_notification_is_not_published_on_old_news() {
    let mut bench = Bench::publishing(settings());
    let begun = bench.now;
    while bench.asks(PUBLISH) {
        bench.fail(PUBLISH, FailureKind::TimedOut).wake(Timer::Retry);
    }
    let half = settings().mark_is_fresh_for();
    assert!(bench.now.since(begun) > half && bench.now.since(begun) <= half + settings().retry_cap);
    bench.report(CHECK, Report::Checked(Some(Stored { notified: NOTIFIED, ..STORED })));
    bench.report(Ack, Report::Acknowledged).nothing_asked();

    let mut bench = Bench::saving(settings());
    bench.now = bench.now.after(DAY);
    bench.report(SAVE, Report::Saved(STORED));
    bench.report(CHECK, Report::Checked(Some(STORED)));
    assert!(bench.asks(PUBLISH), "a process that stood still for a day: {:?}", bench.asked);

    let mut bench = Bench::checking_before_a_publish();
    bench.report(CHECK, Report::Checked(None));
    assert!(bench.asks(COUNT), "a summary that was removed is made again: {:?}", bench.asked);
}

#[test]
fn an_announced_call_is_not_given_up_because_it_cannot_be_marked() {
    let mut bench = Bench::marking(Settings { retry_timeout: Duration::ZERO, max_deliver: 1, ..settings() });
    let begun = bench.now;
    while bench.now.since(begun) < DAY {
        bench.others_succeed(EffectKind::Mark).fail(MARK, FailureKind::Busy).nothing_asked().wake(Timer::Retry);
    }
    bench.fail(MARK, FailureKind::Rejected);
    assert_eq!(bench.processor.counters().unmarked, 1);
    bench.report(Ack, Report::Acknowledged).nothing_asked();
    assert_eq!(bench.processor.counters().dead_lettered, 0);
}

/// A processor was killed between the notification and the mark, and a segment came before the next one.
#[test]
fn what_the_notification_in_the_stream_does_not_tell_is_announced_as_a_revision() {
    for revise in [true, false] {
        let mut bench = Bench::publishing(Settings { revise, ..settings() });
        bench.report(PUBLISH, Report::Published { stream_sequence: 9, segments: 1, edits: 0 });
        let (_, mark) = bench.asked.front().expect("a mark").clone();
        assert!(matches!(mark, Effect::Mark { segments: 1, .. }), "{mark:?}");
        bench.report(MARK, Report::Marked);
        if revise {
            let (_, effect) = bench.asked.front().expect("a revision").clone();
            let Effect::Publish { notification, .. } = effect else { panic!("{effect}") };
            assert_eq!((notification.segments, notification.revision), (2, Some(2)));
            bench.report(
                Revision(EffectKind::Publish, 2),
                Report::Published { stream_sequence: 10, segments: 2, edits: 0 },
            );
            bench.report(Revision(EffectKind::Mark, 2), Report::Marked);
        }
        bench.report(Ack, Report::Acknowledged).nothing_asked();
    }
}

#[test]
fn a_refused_document_is_given_up_alone_and_at_once_also_after_a_restart() {
    let mut bench = Bench::new(settings());
    bench.deliver(7, "bad", 2).deliver(8, "good", 2).wake(Timer::Settle);
    for _ in 0..2 {
        bench.count();
        for session in ["bad", "good"] {
            bench.report(Of(EffectKind::Count, session), Report::Counted { segments: 2 });
        }
    }
    bench.report(Of(EffectKind::Load, "bad"), Report::Loaded(page(0..2, None)));
    bench.report(Of(EffectKind::Load, "good"), Report::Loaded(page(0..2, None)));
    bench.fail(Of(EffectKind::Save, "bad"), FailureKind::Rejected);
    bench.fail(Of(EffectKind::Save, "good"), FailureKind::Busy);
    bench.report(About(EffectKind::DeadLetter, 7), DEAD_LETTERED).report(Term, Report::Acknowledged);
    assert_eq!(bench.wake(Timer::Retry).state(), [State::Saving]);
}

/// A quiet period of ten minutes, and five restarts of nats-server: JetStream counts its own deliveries.
#[test]
fn what_is_handed_over_again_while_a_job_lives_is_no_attempt() {
    let mut bench = Bench::saving(Settings { retry_timeout: Duration::from_secs(60), ..settings() });
    for attempt in 2..=5 {
        bench.deliver_again(7, attempt, "s");
    }
    bench.exhaust(7).fail_until_given_up(SAVE, EffectKind::Save);
    bench.report(REPUBLISH, Report::Republished { stream_sequence: 20 });
    bench.report(Ack, Report::Acknowledged).nothing_asked();
    assert_eq!(bench.processor.counters().dead_lettered, 0);

    // A crash loop stays one.
    let mut bench = Bench::new(Settings { retry_timeout: Duration::ZERO, ..settings() });
    bench.deliver_again(7, 5, "s").wake(Timer::Settle).fail_until_given_up(COUNT, EffectKind::Count);
    assert!(bench.asks(DEAD_LETTER));
}

#[test]
fn an_advisory_about_a_message_in_hand_is_ignored_while_the_job_lives() {
    let mut bench = Bench::saving(settings());
    bench.exhaust(7).exhaust_with(7, &ended("s", 2));
    assert_eq!((bench.processor.in_flight(), bench.processor.counters().outlived), (1, 2));
    bench
        .report(SAVE, Report::Saved(STORED))
        .report(PUBLISH, Report::Published { stream_sequence: 9, segments: 2, edits: 0 });
    bench.report(MARK, Report::Marked).report(Ack, Report::Acknowledged).nothing_asked();

    // When it must be given back, a nak would be the end of it.
    let mut bench = Bench::loading(settings());
    bench.exhaust(7).asked.clear();
    bench.drain().report(REPUBLISH, Report::Republished { stream_sequence: 9 });
    bench.report(Ack, Report::Acknowledged);
    assert!(bench.drained);

    let mut bench = Bench::loading(settings());
    bench.exhaust(7).asked.clear();
    bench.drain();
    let begun = bench.now;
    while bench.now.since(begun) < Duration::from_secs(15) {
        bench.fail(REPUBLISH, FailureKind::Rejected).nothing_asked().wake(Timer::Retry);
    }

    // What was given back is in nobody's hands.
    let mut bench = Bench::new(settings());
    bench.deliver(7, "s", 2).drain().exhaust(7);
    assert!(bench.asked.iter().any(|(_, effect)| DEAD_LETTER.is(effect)), "{:?}", bench.asked);
}

#[test]
fn a_message_whose_deliveries_are_used_up_is_no_dead_letter_where_its_call_is_announced() {
    let announced = Stored { notified: NOTIFIED, ..STORED };
    for (stored, is_dead_letter) in [
        (Some(announced), false),
        (Some(Stored { segments: 1, complete: false, ..announced }), false),
        // Its end announces more than a complete summary has.
        (Some(Stored { segments: 1, ..announced }), true),
        (Some(STORED), true),
        (None, true),
    ] {
        let mut bench = Bench::checking_an_exhausted();
        if is_dead_letter {
            let waited = bench.check_until_dead_letter(stored);
            assert_eq!(waited, settings().others_finish_within(), "a job in another process may still do it");
        } else {
            bench.report(CHECK, Report::Checked(stored)).nothing_asked();
        }
        assert_eq!(bench.processor.counters().outlived, u64::from(!is_dead_letter));
        assert_eq!(bench.processor.in_flight(), usize::from(is_dead_letter));
    }
    // Another process had it in hand.
    let mut bench = Bench::checking_an_exhausted();
    bench.report(CHECK, Report::Checked(None)).nothing_asked().wake(Timer::Settle);
    bench.report(CHECK, Report::Checked(Some(announced))).nothing_asked();
    assert_eq!((bench.processor.in_flight(), bench.processor.counters().outlived), (0, 1));
    let mut bench = Bench::new(settings());
    bench.exhaust_with(7, "no JSON");
    assert!(bench.asks(DEAD_LETTER), "there is nothing to look for");
}

/// Where acknowledgements are not permitted, nobody's is confirmed.
#[test]
fn an_announced_call_whose_acknowledgement_is_not_permitted_is_never_a_dead_letter() {
    let mut bench = Bench::acknowledging(Settings { retry_timeout: Duration::ZERO, ..settings() });
    let begun = bench.now;
    let mut attempt = 1;
    while bench.now.since(begun) < Duration::from_secs(3600) {
        bench.fail(Ack, FailureKind::Denied).nothing_asked();
        if attempt < 5 {
            attempt += 1;
            bench.deliver_again(7, attempt, "s");
        } else {
            bench.exhaust(7).wake(Timer::Retry);
        }
    }
    assert_eq!((bench.processor.in_flight(), bench.processor.counters().dead_lettered), (1, 0));
}

#[test]
fn heartbeats_and_the_last_delivery_follow_the_consumer_for_jobs_under_way_too() {
    let mut bench =
        Bench::saving(Settings { ack_wait: Duration::from_secs(60), retry_timeout: Duration::ZERO, ..settings() });
    let before = bench.heartbeats.len();
    bench.handle(Input::Consumer(ConsumerSettings { ack_wait: Duration::from_secs(3), max_deliver: 1 }));
    assert_eq!(bench.heartbeats.len(), before + 1, "the server counts from the last one");
    bench.sleep(Duration::from_secs(10));
    assert_eq!(bench.heartbeats.len(), before + 11);
    bench.others_succeed(EffectKind::Save).fail(SAVE, FailureKind::Busy);
    assert!(bench.asks(DEAD_LETTER), "it was the last delivery: {:?}", bench.asked);
    bench.handle(Input::Consumer(ConsumerSettings { ack_wait: Duration::from_secs(300), max_deliver: 0 }));
    bench.sleep(Duration::from_secs(100));
    assert_eq!(bench.heartbeats.len(), before + 12, "a longer one is taken up with the next heartbeat");
    bench.handle(Input::Consumer(ConsumerSettings { ack_wait: Duration::ZERO, max_deliver: 5 }));
    bench.sleep(Duration::from_secs(1));
}

/// What is given back while a pull request is open comes back at once.
#[test]
fn nothing_is_given_back_before_the_deliveries_have_ended() {
    let mut bench = Bench::new(Settings { max_deliver: 1, ..settings() });
    bench.deliver(7, "s", 2).handle(Input::Drain).handle(Input::Drain).nothing_asked();
    assert!(bench.stops && bench.processor.room() == 0);
    bench.deliver(8, "late", 2).nothing_asked().handle(Input::DeliveriesStopped);
    bench.report(About(EffectKind::Republish, 7), Report::Republished { stream_sequence: 20 });
    bench.report(About(EffectKind::Republish, 8), Report::Republished { stream_sequence: 21 });
    bench.report(Ack, Report::Acknowledged).report(Ack, Report::Acknowledged);
    assert!(bench.drained);

    let mut bench = Bench::new(settings());
    bench.deliver(7, "s", 2).handle(Input::Drain);
    let wake_up = bench.wake_up.expect("it does not wait for ever");
    bench.sleep(Duration::from_secs(1)).nothing_asked().sleep(DELIVERIES_STOP_WITHIN);
    assert!(bench.asked.iter().any(|(_, effect)| AT_ONCE.is(effect)), "the last resort: {wake_up:?}");
    assert_eq!(bench.processor.stage.deadline().map(|wake_up| wake_up.timer), Some(Timer::Grace));
}

#[test]
fn a_page_brings_no_more_than_was_reserved_for_it() {
    let mut bench = Bench::loading(Settings { max_bytes_in_flight: 32 << 20, ..settings() });
    let asked = |bench: &Bench| {
        let (_, effect) = bench.asked.front().expect("a page");
        let Effect::Load { max_bytes, after, .. } = effect else { panic!("{effect}") };
        (*max_bytes, after.clone())
    };
    assert_eq!(asked(&bench), (8 << 10, None), "4 KiB for each of the two that were counted");
    bench.report(LOAD, Report::Loaded(Page { needs: Some(1 << 20), ..page(0..0, None) }));
    assert_eq!((asked(&bench), bench.processor.bytes_in_flight()), ((1 << 20, None), 1 << 20));
    let next = Page { needs: Some(12 << 20), ..page(0..1, Some("x")) };
    bench.report(LOAD, Report::Loaded(next));
    assert_eq!(asked(&bench), (12 << 20, Some(Cursor("x".into()))));
    bench.report(LOAD, Report::Loaded(page(1..2, None)));
    assert_eq!(saved_summary(&bench).segments, 2);
}

/// 100 calls of 100 KB each, which together are more than twice what may be held.
#[test]
fn large_segments_stay_within_the_bytes_in_flight() {
    let most: u64 = 4 << 20;
    let mut bench = Bench::new(Settings { max_bytes_in_flight: most, ..settings() });
    let text = "word ".repeat(20_000);
    let large = || {
        let mut page = page(0..1, None);
        page.segments.iter_mut().for_each(|segment| segment.text.clone_from(&text));
        page
    };
    for sequence in 0..100 {
        bench.deliver(sequence + 1, &sequence.to_string(), 1);
    }
    let (mut peak, mut left, mut heaviest) = (0, 100, 0);
    while left > 0 {
        if bench.asked.is_empty() {
            bench.wake(Timer::Settle);
        }
        let Some((effect, what)) = bench.asked.pop_front() else { continue };
        let report = match &what {
            Effect::Count { .. } => Report::Counted { segments: 1 },
            Effect::Load { max_bytes, .. } if *max_bytes < 100_000 => {
                Report::Loaded(Page { needs: Some(100_000), ..page(0..0, None) })
            }
            Effect::Load { .. } => Report::Loaded(large()),
            Effect::Save { .. } => Report::Saved(STORED),
            Effect::Publish { .. } => Report::Published { stream_sequence: 1, segments: 2, edits: 0 },
            Effect::Mark { .. } => Report::Marked,
            Effect::Acknowledge { .. } => {
                left -= 1;
                Report::Acknowledged
            }
            Effect::Check { .. } | Effect::DeadLetter { .. } | Effect::Republish { .. } => panic!("{what}"),
        };
        bench.handle(Input::Reported { effect, report });
        peak = peak.max(bench.processor.bytes_in_flight());
        let loads = bench.asked.iter().filter(|(_, effect)| LOAD.is(effect)).count();
        heaviest = heaviest.max(loads);
    }
    assert!(peak <= most + 100_000, "{peak} bytes, {heaviest} pages at a time");
}

#[test]
fn a_job_that_is_done_says_what_its_log_line_needs() {
    let mut bench = Bench::publishing(settings());
    bench.report(PUBLISH, Report::Published { stream_sequence: 9, segments: 2, edits: 0 });
    assert!(bench.notices.is_empty());
    bench.report(MARK, Report::Marked);
    let Some(Notice::Done(done)) = bench.notices.first() else { panic!("{:?}", bench.notices) };
    assert_eq!((done.key.as_str(), done.stream_sequence, done.attempts), ("c:s", Some(7), 1));
    assert_eq!((done.segments, done.published_segments, done.complete), (2, 2, true));
    assert_eq!(done.took, Duration::from_secs(4));
}

/// Whatever is counted is counted once, and of the right call.
#[test]
fn outcomes_settling_and_the_time_to_the_notification_are_counted() {
    let mut bench = Bench::new(settings());
    bench.deliver_payload(7, 3000, ended("s", 5).as_bytes()).settle("s", &[1, 2, 2]);
    bench.report(LOAD, Report::Loaded(page(0..2, None))).report(SAVE, Report::Saved(STORED));
    bench.sleep(Duration::from_millis(500));
    let told = bench.now.since(Time::ZERO) + Duration::from_secs(3);
    bench
        .report(PUBLISH, Report::Published { stream_sequence: 9, segments: 2, edits: 0 })
        .fail(MARK, FailureKind::Busy);
    bench.wake(Timer::Retry).report(MARK, Report::Marked);
    let counters = bench.processor.counters();
    assert_eq!((counters.complete, counters.incomplete), (u64::from(STORED.complete), u64::from(!STORED.complete)));
    assert_eq!((counters.settle_rounds, counters.late_segments, counters.missing_segments), (3, 1, 3));
    assert_eq!((counters.notification.count(), counters.notification.sum()), (1, told));
    let retries: Vec<_> = counters.retries().collect();
    assert_eq!(retries, [(EffectKind::Mark, FailureKind::Busy, 1)]);
    assert!(counters.longest_heartbeat_gap <= Duration::from_secs(2), "{:?}", counters.longest_heartbeat_gap);
    assert_eq!(bench.processor.failing().count(), 0, "a success ends a row of failures");
}

#[test]
fn a_kind_fails_until_it_succeeds_and_the_oldest_end_is_known() {
    let mut bench = Bench::saving(settings());
    assert_eq!(bench.processor.oldest_end(bench.now), Some(bench.now.since(Time::ZERO)));
    bench.fail(SAVE, FailureKind::Unreachable);
    let since = bench.now;
    bench.wake(Timer::Retry).fail(SAVE, FailureKind::TimedOut);
    let failing: Vec<_> = bench.processor.failing().map(|(kind, since, failure)| (kind, since, failure.kind)).collect();
    assert_eq!(failing, [(EffectKind::Save, since, FailureKind::Unreachable)]);
    bench.wake(Timer::Retry).report(SAVE, Report::Saved(STORED));
    assert_eq!(bench.processor.failing().count(), 0);
    let view = bench.processor.views(bench.now, 1).next().expect("there is a job");
    assert_eq!((view.state, view.attempt, view.failures), (State::Publishing, 1, 0));
}
