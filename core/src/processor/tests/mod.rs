use std::{fmt::Write as _, time::Duration};

use super::*;
use crate::{
    Acknowledgement, Cursor, Delivery, Effect, Exhausted, Notice, Notified, Page, Payload, StaleSummary, Stored,
    WallTime,
    contract::{Announcement, DeadLetter},
    ids::{Key, Session},
    summary::{Segment, Summary},
};

mod bench;
mod drain;
mod faults;
mod journal;
mod orders;
mod table;

use self::bench::*;

#[test]
fn a_plain_job_goes_through_its_phases_in_order() {
    let mut bench = Bench::acknowledging(settings());
    assert_eq!(bench.state(), [State::Acknowledging]);
    bench.report(Ack, Report::Acknowledged).nothing_asked();
    assert_eq!(bench.processor.in_flight(), 0);
    assert_eq!(bench.wake_up, None);
    assert_eq!(bench.processor.counters().acknowledged, 1);
}

#[test]
fn the_first_quiet_period_runs_from_when_the_event_was_stored() {
    let quiet_period = settings().quiet_period;
    for (age, left) in
        [(0, quiet_period), (500, Duration::from_millis(1500)), (2000, Duration::ZERO), (86_400_000, Duration::ZERO)]
    {
        let mut bench = Bench::new(settings());
        bench.deliver_payload(1, age, br#"{"conversationId":"c","sessionId":"s","publishedSegments":0}"#);
        if left > Duration::ZERO {
            bench.nothing_asked().wake(Timer::Settle);
        }
        assert_eq!(bench.now, Time::ZERO.after(left));
        bench.report(COUNT, Report::Counted { segments: 0 }).nothing_asked().wake(Timer::Settle);
        assert_eq!(bench.now, Time::ZERO.after(left + quiet_period));
    }
}

#[test]
fn an_event_from_a_clock_that_is_ahead_waits_one_quiet_period() {
    let mut bench = Bench::new(settings());
    bench.deliver_payload(1, -60_000, br#"{"conversationId":"c","sessionId":"s","publishedSegments":0}"#);
    bench.wake(Timer::Settle);
    assert_eq!(bench.now, Time::ZERO.after(settings().quiet_period));
}

#[test]
fn settling_ends_when_two_counts_agree_or_rounds_are_used_up() {
    let mut bench = Bench::new(settings());
    bench.deliver(1, "s", 3).settle("s", &[1, 3, 3]);
    assert!(bench.asks(LOAD), "{:?}", bench.asked);

    let mut bench = Bench::new(settings());
    bench.deliver(1, "s", 3).settle("s", &[1, 2, 3, 4, 5]);
    assert!(bench.asks(LOAD), "{:?}", bench.asked);
    assert_eq!(bench.now, Time::ZERO.after(5 * settings().quiet_period));
}

#[test]
fn pages_are_folded_into_one_summary() {
    let mut bench = Bench::loading(settings());
    bench.report(LOAD, Report::Loaded(page(0..2, Some("after 1"))));
    let more = bench.asked.front().expect("it loads on").1.clone();
    assert!(matches!(more, Effect::Load { after: Some(Cursor(place)), counted: 2, .. } if place == "after 1"));
    bench.report(Of(EffectKind::Load, "s"), Report::Loaded(page(2..3, None)));
    let summary = saved_summary(&bench);
    assert_eq!((summary.segments, summary.published_segments, summary.complete), (3, 2, true));
    assert_eq!(summary.words, 6);
    assert_eq!(summary.updated_at, WallTime::from_millis(STORED_AT + 4000));
}

#[test]
fn the_notification_tells_of_the_summary_that_is_stored() {
    let mut bench = Bench::saving(settings());
    bench.report(SAVE, Report::Saved(Stored { segments: 5, complete: false, ..STORED }));
    let (_, effect) = bench.asked.front().expect("it publishes").clone();
    let Effect::Publish { key, announcement, notification, .. } = effect else { panic!("{effect}") };
    assert_eq!(
        (announcement.message_id(&key), announcement.subject(&key)),
        ("c:s".into(), "transcript.processed".into())
    );
    assert_eq!((notification.segments, notification.complete, notification.revision), (5, false, None));
}

#[test]
fn a_summary_that_was_announced_is_not_announced_again() {
    let mut bench = Bench::saving(settings());
    bench.report(SAVE, Report::Saved(Stored { notified: NOTIFIED, ..STORED }));
    bench.report(Ack, Report::Acknowledged).nothing_asked();
}

#[test]
fn a_payload_that_can_never_be_processed_is_kept_as_a_dead_letter_with_its_reason() {
    let mut bench = Bench::new(settings());
    bench.deliver_payload(1, 0, b"[]").deliver(2, "s", 0);
    assert_eq!(bench.reason(), "not a JSON object with each field once");
    bench.report(DEAD_LETTER, DEAD_LETTERED);
    assert_eq!(bench.reason(), "not a JSON object with each field once");
    bench.report(Term, Report::Acknowledged).nothing_asked();
    assert_eq!((bench.processor.counters().rejected, bench.processor.counters().dead_lettered), (1, 1));
    assert_eq!(bench.state(), [State::Quiet]);
}

#[test]
fn heartbeats_go_out_every_third_of_the_ack_wait_from_hand_over_to_the_end() {
    let mut bench = Bench::new(Settings { quiet_period: Duration::from_secs(9), ..settings() });
    bench.deliver(1, "s", 0).sleep(Duration::from_secs(9));
    bench.report(COUNT, Report::Counted { segments: 0 }).sleep(Duration::from_secs(9));
    bench.report(COUNT, Report::Counted { segments: 0 }).sleep(Duration::from_secs(3));
    let at: Vec<_> = bench.heartbeats.iter().map(|(at, _)| at.as_micros() / 1_000_000).collect();
    assert_eq!(at, [2, 4, 6, 8, 10, 12, 14, 16, 18, 20]);
    assert!(bench.heartbeats.iter().all(|(_, reply)| &**reply == "reply.1"));
}

#[test]
fn a_failed_effect_is_asked_for_again_while_heartbeats_go_on() {
    let mut bench = Bench::saving(settings());
    let begun = bench.now;
    let mut tries = 0;
    while bench.now.since(begun) < Duration::from_secs(60) {
        bench.fail(SAVE, FailureKind::Unreachable).nothing_asked().wake(Timer::Retry);
        tries += 1;
    }
    assert!((12..40).contains(&tries), "{tries}");
    assert!(bench.heartbeats.len() >= 30, "{}", bench.heartbeats.len());
    bench.report(SAVE, Report::Saved(STORED));
    assert_eq!(bench.state(), [State::Publishing]);
    assert_eq!(bench.processor.counters().retried, tries);
}

#[test]
fn a_job_whose_retry_timeout_is_over_is_given_back_with_a_delay_and_without_a_heartbeat() {
    let mut bench = Bench::publishing(Settings { retry_timeout: Duration::from_secs(60), ..settings() });
    let begun = bench.now;
    bench.fail_until_given_up(PUBLISH, EffectKind::Publish);
    assert!(bench.now.since(begun) >= Duration::from_secs(60));
    let reply: Arc<str> = "reply.7".into();
    let beats = |bench: &Bench| bench.heartbeats.iter().filter(|(_, to)| *to == reply).count();
    let before = beats(&bench);
    bench.sleep(Duration::from_secs(20));
    assert_eq!(beats(&bench), before);
    bench.report(LATER, Report::Acknowledged);
    assert_eq!(bench.processor.counters().given_back, 1);
}

/// A primary without a majority serves reads and takes no write; and so on for each pair of kinds.
#[test]
fn only_a_success_of_the_same_kind_shows_that_a_failure_is_the_jobs_own() {
    type Begin = fn(Settings) -> Bench;
    let begins: [(EffectKind, Begin); 4] = [
        (EffectKind::Load, Bench::loading),
        (EffectKind::Save, Bench::saving),
        (EffectKind::Publish, Bench::publishing),
        (EffectKind::Acknowledge, Bench::acknowledging),
    ];
    for (kind, begin) in begins {
        let mut bench = begin(Settings { retry_timeout: Duration::from_secs(60), ..settings() });
        let begun = bench.now;
        while bench.now.since(begun) < Duration::from_secs(3600) {
            for other in EffectKind::ALL.into_iter().filter(|other| *other != kind) {
                bench.others_succeed(other);
            }
            bench.fail(Kind(kind), FailureKind::Busy).nothing_asked().wake(Timer::Retry);
        }
        let back = bench.now;
        while bench.others_succeed(kind).fail(Kind(kind), FailureKind::Busy).asked.is_empty()
            && bench.processor.in_flight() > 0
        {
            bench.wake(Timer::Retry);
        }
        let waited = bench.now.since(back);
        assert!(waited >= Duration::from_secs(60), "{kind}: it begins when others succeed again: {waited:?}");
        assert!(waited < Duration::from_secs(90), "{kind}: {waited:?}");
    }
}

#[test]
fn a_job_of_the_last_delivery_is_kept_as_a_dead_letter_when_its_retry_timeout_is_over() {
    let mut bench = Bench::new(Settings { retry_timeout: Duration::ZERO, max_deliver: 3, ..settings() });
    bench.deliver_again(7, 3, "s").wake(Timer::Settle).fail(COUNT, FailureKind::Denied).nothing_asked();
    bench.others_succeed(EffectKind::Count).wake(Timer::Retry).fail(COUNT, FailureKind::Denied);
    let dead_letter = dead_letter(&bench);
    assert_eq!((dead_letter.stream_sequence, dead_letter.attempts), (7, 3));
    assert_eq!(dead_letter.reason, "denied: as the test wants");
    assert_eq!(dead_letter.at, WallTime::from_millis(STORED_AT).after(bench.now.since(Time::ZERO)));
    assert_eq!(dead_letter.ended.as_ref().map(|ended| ended.published_segments), Some(2));
    bench.report(DEAD_LETTER, DEAD_LETTERED);
    assert_eq!(bench.reason(), "denied: as the test wants");
    bench.report(Term, Report::Acknowledged);
    assert_eq!(bench.processor.counters().dead_lettered, 1);
}

#[test]
fn what_a_server_will_never_take_is_kept_as_a_dead_letter_at_once() {
    let mut bench = Bench::saving(settings());
    bench.fail(SAVE, FailureKind::Rejected).report(DEAD_LETTER, Report::DeadLettered { stream_sequence: 9 });
    bench.report(Term, Report::Acknowledged);
    assert_eq!((bench.processor.in_flight(), bench.processor.counters().dead_lettered), (0, 1));
}

/// Without the dead letter the call would be lost: not even a refusal ends the tries, and it is said at once.
#[test]
fn a_call_is_not_given_up_while_its_dead_letter_cannot_be_stored() {
    let mut bench = Bench::saving(Settings { retry_timeout: Duration::ZERO, ..settings() });
    bench.fail(SAVE, FailureKind::Rejected);
    let begun = bench.now;
    let mut tries = 0;
    while bench.now.since(begun) < Duration::from_secs(3600) {
        let kind = if tries % 2 == 0 { FailureKind::Busy } else { FailureKind::Rejected };
        bench.fail(DEAD_LETTER, kind).nothing_asked().wake(Timer::Retry);
        tries += 1;
    }
    assert_eq!(bench.processor.counters().dead_letters_failed, tries);
    let last = bench.heartbeats.last().expect("heartbeats go on").0;
    assert!(bench.now.since(last) <= settings().heartbeat_interval());
    let failing = |notice: &&Notice| matches!(notice, Notice::Failing { kind: EffectKind::DeadLetter, .. });
    let said = bench.notices.iter().filter(failing).count();
    assert!((55..=60).contains(&said), "at once, and once a minute: {said}");
    bench.report(DEAD_LETTER, DEAD_LETTERED).report(Term, Report::Acknowledged).nothing_asked();
    assert_eq!(bench.notices.last(), Some(&Notice::Works { kind: EffectKind::DeadLetter }));
}

#[test]
fn a_dead_letter_of_a_message_that_is_gone_is_none() {
    let mut bench = Bench::saving(settings());
    bench.fail(SAVE, FailureKind::Rejected).fail(DEAD_LETTER, FailureKind::Missing);
    bench.report(Term, Report::Acknowledged).nothing_asked();
    let mut bench = Bench::new(settings());
    bench.exhaust(7).fail(DEAD_LETTER, FailureKind::Missing).nothing_asked();
    assert_eq!(bench.processor.in_flight(), 0);
}

#[cfg(feature = "planted-bugs")]
#[test]
fn a_summary_step_that_panics_ends_one_job() {
    let mut bench = Bench::new(settings());
    bench.processor.planted = Planted(Some(crate::Bug::SummaryPanics));
    bench.deliver(7, "s", 1).deliver(8, "other", 0).wake(Timer::Settle);
    bench.report(COUNT, Report::Counted { segments: 1 });
    bench.report(Of(EffectKind::Count, "other"), Report::Counted { segments: 0 }).wake(Timer::Settle);
    bench.report(COUNT, Report::Counted { segments: 1 });
    bench.report(Of(EffectKind::Count, "other"), Report::Counted { segments: 0 });
    let mut poisoned = page(0..1, None);
    poisoned.segments[0].text = crate::Bug::PANIC.to_owned();
    bench.report(LOAD, Report::Loaded(poisoned));
    bench.report(Of(EffectKind::Load, "other"), Report::Loaded(page(0..0, None)));
    assert_eq!(bench.reason(), "the summary step panicked: the processor's log says where");
    bench.report(DEAD_LETTER, DEAD_LETTERED);
    bench.report(Of(EffectKind::Save, "other"), Report::Saved(STORED));
    bench.report(Term, Report::Acknowledged);
    assert_eq!(bench.state(), [State::Publishing]);
}

#[test]
fn a_message_that_used_up_its_deliveries_is_kept_as_a_dead_letter() {
    let mut bench = Bench::new(settings());
    let effect = About(EffectKind::DeadLetter, 7);
    bench.exhaust(7).fail(effect, FailureKind::Unreachable).nothing_asked().wake(Timer::Retry);
    bench.report(effect, Report::DeadLettered { stream_sequence: 9 }).nothing_asked();
    assert_eq!((bench.processor.in_flight(), bench.processor.counters().dead_lettered), (0, 1));
    assert!(bench.heartbeats.is_empty());
}

#[test]
fn a_job_goes_on_with_the_new_delivery_of_its_message() {
    let mut bench = Bench::saving(settings());
    bench.deliver_again(7, 2, "s");
    assert_eq!((bench.processor.in_flight(), bench.processor.counters().redelivered), (1, 1));
    bench
        .report(SAVE, Report::Saved(STORED))
        .report(PUBLISH, Report::Published { stream_sequence: 9, segments: 2, edits: 0 });
    bench.report(MARK, Report::Marked);
    let reply = |bench: &Bench| {
        let (_, effect) = bench.asked.back().expect("an acknowledgement");
        let Effect::Acknowledge { reply, .. } = effect else { panic!("{effect}") };
        reply.to_string()
    };
    assert_eq!(reply(&bench), "reply.7.2");
    bench.deliver_again(7, 3, "s");
    assert_eq!(bench.asked.len(), 1, "what is under way settles this delivery too");
    bench.wake(Timer::Retry);
    assert_eq!(reply(&bench), "reply.7.3", "an acknowledgement that was lost is said again");
    let (first, _) = bench.asked.pop_front().expect("the first acknowledgement");
    bench.handle(Input::Reported { effect: first, report: Report::Acknowledged });
    assert_eq!(bench.processor.in_flight(), 1);
    bench.report(Ack, Report::Acknowledged).nothing_asked();
    assert_eq!(bench.processor.in_flight(), 0);
}

#[test]
fn an_acknowledgement_that_crosses_a_delivery_is_said_once() {
    let mut bench = Bench::saving(settings());
    bench
        .report(SAVE, Report::Saved(STORED))
        .report(PUBLISH, Report::Published { stream_sequence: 9, segments: 2, edits: 0 });
    bench.report(MARK, Report::Marked).deliver_again(7, 2, "s").report(Ack, Report::Acknowledged).nothing_asked();
    assert_eq!(bench.processor.in_flight(), 0);
    bench.sleep(settings().retry_cap * 2).nothing_asked();
}

#[test]
fn a_message_that_comes_back_after_its_nak_begins_anew() {
    let mut bench = Bench::new(Settings { retry_timeout: Duration::ZERO, ..settings() });
    bench.deliver(7, "s", 2).wake(Timer::Settle).others_succeed(EffectKind::Count).fail(COUNT, FailureKind::Busy);
    assert!(bench.asks(LATER), "{:?}", bench.asked);
    bench.deliver_again(7, 2, "s");
    assert_eq!(bench.processor.states().get(&State::Acknowledging), None);
    assert_eq!(bench.processor.states().get(&State::Quiet), Some(&1));
}

#[test]
fn a_stale_summary_is_replaced_and_the_new_one_announced() {
    let mut bench = Bench::new(Settings { revise: true, ..settings() });
    bench.outgrow("s").outgrow("s");
    assert_eq!(bench.processor.in_flight(), 1);
    bench.settle("s", &[2, 2]).report(LOAD, Report::Loaded(page(0..2, None)));
    bench.report(SAVE, Report::Saved(Stored { notified: NOTIFIED, revision: 3, revised: Some(2), ..STORED }));
    let (_, effect) = bench.asked.front().expect("it publishes").clone();
    let Effect::Publish { key, announcement, notification, .. } = effect else { panic!("{effect}") };
    assert_eq!(announcement.message_id(&key), "c:s%r3");
    assert_eq!(notification.revision, Some(3));
    bench.report(Revision(EffectKind::Publish, 3), Report::Published { stream_sequence: 9, segments: 2, edits: 0 });
    bench.report(Revision(EffectKind::Mark, 3), Report::Marked).nothing_asked();
    assert_eq!(bench.processor.in_flight(), 0);
    assert!(bench.heartbeats.is_empty());
}

#[test]
fn a_revision_that_has_nothing_to_announce_is_over() {
    for stored in [STORED, Stored { notified: NOTIFIED, ..STORED }] {
        let mut bench = Bench::new(Settings { revise: true, ..settings() });
        bench.outgrow("s").settle("s", &[2, 2]).report(LOAD, Report::Loaded(page(0..2, None)));
        bench.report(SAVE, Report::Saved(stored)).nothing_asked();
        assert_eq!(bench.processor.in_flight(), 0);
    }
}

#[test]
fn a_summary_replaced_by_a_second_delivery_is_announced_as_a_revision_where_that_is_asked_for() {
    for (revise, next) in [(true, Revision(EffectKind::Publish, 2)), (false, Ack)] {
        let mut bench = Bench::saving(Settings { revise, ..settings() });
        bench.report(SAVE, Report::Saved(Stored { notified: NOTIFIED, revision: 2, ..STORED }));
        assert!(bench.asks(next), "{:?}", bench.asked);
    }
}

#[test]
fn a_call_that_is_asked_for_again_is_summarised_again_and_announced_by_every_processor() {
    for revise in [true, false] {
        let mut bench = Bench::new(Settings { revise, ..settings() });
        bench.deliver_payload(8, 0, asked_again("s", 1).as_bytes()).settle("s", &[2, 2]);
        bench.report(LOAD, Report::Loaded(page(0..2, None)));
        assert_eq!(saved_summary(&bench).reprocess, 1);
        let stored = Stored { notified: NOTIFIED, revision: 2, reprocess: 1, ..STORED };
        bench.report(SAVE, Report::Saved(stored));
        bench.report(Revision(EffectKind::Publish, 2), Report::Published { stream_sequence: 9, segments: 2, edits: 0 });
        bench.report(Revision(EffectKind::Mark, 2), Report::Marked).report(Ack, Report::Acknowledged).nothing_asked();
    }
}

#[test]
fn a_request_is_not_answered_by_a_summary_of_more_that_nobody_asked_for() {
    let mut bench = Bench::new(settings());
    bench.deliver_payload(8, 0, asked_again("s", 1).as_bytes()).settle("s", &[2, 2]);
    bench.report(LOAD, Report::Loaded(page(0..2, None)));
    // Another job has stored and announced three segments meanwhile.
    let other = Stored { segments: 3, notified: NOTIFIED, revision: 2, revised: Some(2), ..STORED };
    bench.report(SAVE, Report::Saved(other));
    assert_eq!(bench.state(), [State::Counting], "{:?}", bench.asked);
}

/// What this processor has just been done with may have been summarised before it was corrected.
#[test]
fn a_request_to_process_a_call_again_is_not_covered_by_an_end_without_one() {
    let announced = Stored { notified: NOTIFIED, ..STORED };
    for (stored, is_answered) in
        [(announced, false), (Stored { reprocess: 1, ..announced }, true), (Stored { reprocess: 2, ..announced }, true)]
    {
        let mut bench = Bench::acknowledging(settings());
        bench.report(Ack, Report::Acknowledged).deliver_payload(8, 0, asked_again("s", 1).as_bytes());
        bench.report(CHECK, Report::Checked(Some(stored)));
        assert_eq!(bench.asks(Ack), is_answered, "{:?}", bench.asked);
    }
    // The same while the first job is still at work.
    let mut bench = Bench::marking(settings());
    bench.deliver_payload(8, 0, asked_again("s", 1).as_bytes());
    bench.report(MARK, Report::Marked).report(Ack, Report::Acknowledged);
    assert_eq!(bench.state(), [State::Quiet], "{:?}", bench.asked);
}

#[test]
fn a_request_that_used_up_its_deliveries_is_a_dead_letter_unless_it_is_answered() {
    let announced = Stored { notified: NOTIFIED, ..STORED };
    let answered = Stored { reprocess: 1, revision: 2, revised: Some(2), ..announced };
    for (stored, is_kept) in [(announced, true), (Stored { revised: None, ..answered }, true), (answered, false)] {
        let mut bench = Bench::new(settings());
        bench.exhaust_with(7, &asked_again("s", 1));
        if is_kept {
            bench.check_until_dead_letter(Some(stored));
        } else {
            bench.report(CHECK, Report::Checked(Some(stored))).nothing_asked();
            assert_eq!(bench.processor.in_flight(), 0);
        }
    }
}

#[test]
fn a_quiet_processor_wants_nothing_finishes_what_it_has_and_goes_on_when_told() {
    let mut bench = Bench::saving(Settings { revise: true, ..settings() });
    let before = bench.processor.allowance();
    bench.handle(Input::Quiet).handle(Input::Quiet);
    assert!(bench.processor.is_quiet() && !bench.processor.is_draining());
    assert_eq!((bench.processor.room(), bench.processor.allowance()), (0, 1));
    bench.outgrow("other");
    assert_eq!(bench.processor.in_flight(), 1, "nothing is begun");
    bench
        .report(SAVE, Report::Saved(STORED))
        .report(PUBLISH, Report::Published { stream_sequence: 9, segments: 2, edits: 0 });
    bench.report(MARK, Report::Marked).report(Ack, Report::Acknowledged).nothing_asked();
    // What JetStream had sent by then is not refused.
    bench.deliver(8, "late", 2);
    assert_eq!((bench.processor.in_flight(), bench.processor.room()), (1, 0));
    bench.handle(Input::Resume);
    assert!(!bench.processor.is_quiet() && bench.processor.allowance() > before);
}

#[test]
fn a_quiet_processor_drains_like_any_other() {
    let mut bench = Bench::saving(settings());
    bench.handle(Input::Quiet).handle(Input::Drain).handle(Input::Resume);
    assert!(bench.processor.is_draining(), "who drains does not go on");
    assert_eq!(bench.processor.room(), 0);
}

#[test]
fn each_notification_has_its_own_subject_where_that_is_asked_for() {
    let mut bench = Bench::publishing(Settings { announce_once: true, ..settings() });
    let (_, effect) = bench.asked.pop_front().expect("it publishes");
    let Effect::Publish { key, announcement, .. } = effect else { panic!("{effect}") };
    assert_eq!(announcement.subject(&key), "transcript.processed.c:s");
}

#[test]
fn an_effect_without_a_report_is_asked_for_again_and_its_late_report_ignored() {
    let mut bench = Bench::saving(settings());
    let (first, _) = bench.asked.pop_front().expect("a save");
    bench.wake(Timer::Answer).wake(Timer::Retry);
    bench.handle(Input::Reported { effect: first, report: Report::Saved(STORED) });
    assert_eq!((bench.state(), bench.processor.counters().ignored_reports), (vec![State::Saving], 1));
    bench.report(SAVE, Report::Saved(STORED));
    assert_eq!(bench.state(), [State::Publishing]);
}

#[test]
fn reports_of_another_kind_and_of_unknown_effects_are_counted_and_ignored() {
    let mut bench = Bench::saving(settings());
    let id = bench.asked.front().expect("a save").0;
    bench.handle(Input::Reported { effect: id, report: Report::Marked });
    let unknown = EffectId { job: JobId(99), number: 1 };
    bench.handle(Input::Reported { effect: unknown, report: Report::Saved(STORED) });
    assert_eq!((bench.state(), bench.processor.counters().ignored_reports), (vec![State::Saving], 2));
    bench.report(SAVE, Report::Saved(STORED));
    assert_eq!(bench.state(), [State::Publishing]);
}

#[test]
fn two_jobs_of_one_key_run_one_after_the_other() {
    let mut bench = Bench::marking(settings());
    bench.deliver(8, "s", 3).deliver(9, "other", 2);
    assert_eq!(bench.state(), [State::Queued, State::Quiet, State::Marking]);
    bench.report(MARK, Report::Marked);
    assert_eq!(bench.state(), [State::Quiet, State::Acknowledging], "nobody waits for a confirmation");
    bench.report(Ack, Report::Acknowledged);
    assert_eq!(bench.state(), [State::Quiet]);
    assert_eq!(bench.processor.in_flight(), 2);
}

#[test]
fn a_job_that_only_waits_for_its_confirmation_takes_no_room() {
    let mut bench = Bench::new(Settings { max_in_flight: 1, ..Settings::default() });
    bench.deliver_payload(1, 0, b"{}").report(DEAD_LETTER, DEAD_LETTERED);
    assert_eq!((bench.processor.room(), bench.processor.in_flight()), (1, 1));
    bench.deliver(2, "s", 0);
    assert_eq!((bench.processor.room(), bench.processor.in_flight()), (0, 2), "as many as may be all together");
    bench.report(Term, Report::Acknowledged);
    assert_eq!((bench.processor.room(), bench.processor.in_flight()), (0, 1), "the other one works");
    bench.drain().report(AT_ONCE, Report::Acknowledged);
    assert_eq!((bench.processor.room(), bench.processor.in_flight(), bench.drained), (0, 0, true));
}

#[test]
fn room_is_what_is_left_of_the_most_in_flight() {
    let mut bench = Bench::new(Settings { max_in_flight: 2, ..settings() });
    assert_eq!((bench.processor.room(), bench.processor.allowance()), (2, 2));
    bench.deliver(1, "a", 0).deliver(2, "b", 0);
    assert_eq!((bench.processor.room(), bench.processor.allowance()), (0, 2));
    for sequence in 3..=9 {
        bench.deliver(sequence, &sequence.to_string(), 0);
    }
    assert_eq!((bench.processor.room(), bench.processor.in_flight()), (0, 8));
    assert_eq!((bench.processor.counters().overflowed, bench.processor.allowance()), (1, 9));
}

#[test]
fn no_job_but_the_oldest_asks_for_a_page_while_there_is_no_room_for_its_bytes() {
    let settings = Settings { max_bytes_in_flight: 1, page_size: 2, ..settings() };
    let mut bench = Bench::new(settings);
    for (sequence, session) in [(1, "a"), (2, "b"), (3, "c")] {
        bench.deliver(sequence, session, 2);
    }
    for _ in 0..2 {
        bench.wake(Timer::Settle);
        for session in ["a", "b", "c"] {
            bench.report(Of(EffectKind::Count, session), Report::Counted { segments: 2 });
        }
    }
    assert_eq!((bench.asked.len(), bench.processor.bytes_in_flight()), (1, 8192));
    bench.report(Of(EffectKind::Load, "a"), Report::Loaded(page(0..2, Some("x"))));
    bench.report(Of(EffectKind::Load, "a"), Report::Loaded(page(2..3, None)));
    // Nobody waits for a page now, so the next one goes on, although the summary of the first is still held.
    bench.report(Of(EffectKind::Save, "a"), Report::Saved(STORED));
    bench.report(Of(EffectKind::Load, "b"), Report::Failed(Failure { kind: FailureKind::Busy, detail: "".into() }));
    bench.report(Of(EffectKind::Publish, "a"), Report::Published { stream_sequence: 9, segments: 2, edits: 0 });
    bench.report(Of(EffectKind::Load, "c"), Report::Loaded(page(0..2, None)));
    bench.drain();
    let asked = |what: ExpectedEffect<'_>| bench.asked.iter().any(|(_, effect)| what.is(effect));
    let expected = [Of(EffectKind::Mark, "a"), AT_ONCE, Of(EffectKind::Save, "c")];
    assert!(expected.into_iter().all(asked) && bench.asked.len() == 3, "{:?}", bench.asked);
    while let Some((effect, what)) = bench.asked.pop_front() {
        let report = match what {
            Effect::Save { .. } => Report::Saved(STORED),
            Effect::Publish { .. } => Report::Published { stream_sequence: 9, segments: 2, edits: 0 },
            Effect::Mark { .. } => Report::Marked,
            Effect::Acknowledge { .. } => Report::Acknowledged,
            Effect::Count { .. }
            | Effect::Load { .. }
            | Effect::Check { .. }
            | Effect::DeadLetter { .. }
            | Effect::Republish { .. } => {
                panic!("{what}")
            }
        };
        bench.handle(Input::Reported { effect, report });
    }
    assert_eq!((bench.drained, bench.processor.bytes_in_flight()), (true, 0));
}
