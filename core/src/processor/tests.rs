use std::{fmt::Write as _, time::Duration};

use super::*;
use crate::{
    Cursor, Effect, Notified, Page, Payload, Stored,
    summary::{Segment, Summary},
    time::WallTime,
};

const STORED_AT: i64 = 1_700_000_000_000;

/// A processor, what it asked for and was not told about yet, and the time.
struct Bench {
    processor: Processor,
    now: Time,
    asked: VecDeque<(EffectId, Effect)>,
    heartbeats: Vec<(Time, Arc<str>)>,
    wake_up: Option<WakeUp>,
    drained: bool,
}

impl Bench {
    fn new(settings: Settings) -> Self {
        Self {
            processor: Processor::new(settings).expect("settings can work"),
            now: Time::ZERO,
            asked: VecDeque::new(),
            heartbeats: vec![],
            wake_up: None,
            drained: false,
        }
    }

    fn handle(&mut self, input: Input) -> &mut Self {
        self.processor.handle(self.now, input);
        loop {
            match self.processor.poll_output() {
                Output::Perform { id, effect } => self.asked.push_back((id, effect)),
                Output::InProgress { reply } => self.heartbeats.push((self.now, reply)),
                Output::Wait(wake_up) => {
                    self.wake_up = wake_up;
                    return self;
                }
                Output::Drained => {
                    self.drained = true;
                    self.wake_up = None;
                    return self;
                }
            }
        }
    }

    /// A delivery of `payload`, `age_ms` after it was stored.
    fn deliver_payload(&mut self, sequence: u64, age_ms: i64, payload: &[u8]) -> &mut Self {
        self.handle(Input::Delivered(Delivery {
            stream_sequence: sequence,
            attempt: 1,
            stored_at: WallTime::from_millis(STORED_AT),
            received_at: WallTime::from_millis(STORED_AT + age_ms),
            reply: format!("reply.{sequence}").into(),
            payload: Payload(payload.to_vec()),
        }))
    }

    fn deliver(&mut self, sequence: u64, session: &str, published: u64) -> &mut Self {
        let payload = format!(r#"{{"conversationId":"c","sessionId":"{session}","publishedSegments":{published}}}"#);
        self.deliver_payload(sequence, 0, payload.as_bytes())
    }

    /// Lets the time pass until the earliest timer of this kind is served, serving others on the way.
    fn wake(&mut self, timer: Timer) -> &mut Self {
        let of_jobs = self.processor.jobs.values().filter_map(|job| job.timers.deadline(timer)).min();
        let at = of_jobs.or(self.processor.grace_ends).expect("the timer is set");
        self.sleep(at.since(self.now))
    }

    fn sleep(&mut self, span: Duration) -> &mut Self {
        let until = self.now.after(span);
        while let Some(wake_up) = self.wake_up.filter(|w| w.at <= until) {
            self.now = wake_up.at;
            self.handle(Input::Woken);
            assert!(self.wake_up.is_none_or(|w| w.at > self.now), "a deadline that was served did not move");
        }
        self.now = until;
        self
    }

    /// Reports the oldest effect, which must read as `effect`.
    fn report(&mut self, effect: &str, report: Report) -> &mut Self {
        let (id, asked) = self.asked.pop_front().expect(effect);
        assert_eq!(asked.to_string(), effect);
        self.handle(Input::Reported { effect: id, report })
    }

    fn fail(&mut self, effect: &str, kind: FailureKind) -> &mut Self {
        self.report(effect, Report::Failed(Failure { kind, detail: "as the test wants".into() }))
    }

    fn nothing_asked(&mut self) -> &mut Self {
        assert!(self.asked.is_empty(), "{:?}", self.asked);
        self
    }

    fn settle(&mut self, session: &str, counts: &[u64]) -> &mut Self {
        for count in counts {
            self.wake(Timer::Settle);
            let effect = format!("count the segments of {session:?}");
            self.report(&effect, Report::Counted { segments: *count });
        }
        self
    }

    /// A job of session `s` that has just asked for its only page.
    fn loading(settings: Settings) -> Self {
        let mut bench = Self::new(settings);
        bench.deliver(7, "s", 2).settle("s", &[2, 2]);
        bench
    }

    fn saving(settings: Settings) -> Self {
        let mut bench = Self::loading(settings);
        bench.report(LOAD, Report::Loaded(page(0..2, None)));
        bench
    }

    fn publishing(settings: Settings) -> Self {
        let mut bench = Self::saving(settings);
        bench.report(SAVE, Report::Saved(STORED));
        bench
    }

    fn marking(settings: Settings) -> Self {
        let mut bench = Self::publishing(settings);
        bench.report(PUBLISH, Report::Published { stream_sequence: 9 });
        bench
    }

    fn acknowledging(settings: Settings) -> Self {
        let mut bench = Self::marking(settings);
        bench.report(MARK, Report::Marked);
        bench
    }

    fn state(&self) -> Vec<State> {
        self.processor.states().into_keys().collect()
    }
}

const COUNT: &str = "count the segments of \"s\"";
const LOAD: &str = "load the segments of \"s\"";
const SAVE: &str = "save c:s with 2 segments";
const PUBLISH: &str = "publish c:s";
const MARK: &str = "mark c:s as announced";
const STORED: Stored = Stored { segments: 2, complete: true, notified: None };

fn settings() -> Settings {
    Settings::default()
}

fn page(places: std::ops::Range<i64>, next: Option<&str>) -> Page {
    let segment = |index: i64| Segment {
        id: format!("s:{index}"),
        index: Some(index),
        speaker: None,
        text: format!("word {index}"),
        start_ms: None,
        end_ms: None,
    };
    Page { segments: places.map(segment).collect(), next: next.map(|n| Cursor(n.into())) }
}

fn saved_summary(bench: &Bench) -> Arc<Summary> {
    let Effect::Save { summary } = &bench.asked.front().expect("an effect was asked for").1 else {
        panic!("a save was expected: {:?}", bench.asked)
    };
    Arc::clone(summary)
}

#[test]
fn a_plain_job_goes_through_its_phases_in_order() {
    let mut bench = Bench::acknowledging(settings());
    assert_eq!(bench.state(), [State::Acknowledging]);
    bench.report("ack", Report::Acknowledged).nothing_asked();
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
    assert_eq!(bench.asked.front().expect("it loads").1.to_string(), LOAD);

    let mut bench = Bench::new(settings());
    bench.deliver(1, "s", 3).settle("s", &[1, 2, 3, 4, 5]);
    assert_eq!(bench.asked.front().expect("it loads").1.to_string(), LOAD);
    assert_eq!(bench.now, Time::ZERO.after(5 * settings().quiet_period));
}

#[test]
fn pages_are_folded_into_one_summary() {
    let mut bench = Bench::loading(settings());
    bench.report(LOAD, Report::Loaded(page(0..2, Some("after 1"))));
    let more = bench.asked.front().expect("it loads on").1.clone();
    assert!(matches!(more, Effect::Load { after: Some(Cursor(place)), counted: 2, .. } if place == "after 1"));
    bench.report("load more segments of \"s\"", Report::Loaded(page(2..3, None)));
    let summary = saved_summary(&bench);
    assert_eq!((summary.segments, summary.published_segments, summary.complete), (3, 2, true));
    assert_eq!(summary.words, 6);
    assert_eq!(summary.updated_at, WallTime::from_millis(STORED_AT + 4000));
}

#[test]
fn the_notification_tells_of_the_summary_that_is_stored() {
    let mut bench = Bench::saving(settings());
    bench.report(SAVE, Report::Saved(Stored { segments: 5, complete: false, notified: None }));
    let (_, effect) = bench.asked.front().expect("it publishes").clone();
    let Effect::Publish { message_id, notification } = effect else { panic!("{effect}") };
    assert_eq!(message_id.as_str(), "c:s");
    assert_eq!((notification.segments, notification.complete), (5, false));
}

#[test]
fn a_summary_that_was_announced_is_not_announced_again() {
    let mut bench = Bench::saving(settings());
    let notified = Some(Notified { stream_sequence: 4, at: WallTime::from_millis(1) });
    bench.report(SAVE, Report::Saved(Stored { notified, ..STORED }));
    bench.report("ack", Report::Acknowledged).nothing_asked();
}

#[test]
fn a_payload_that_can_never_be_processed_is_terminated_with_its_reason() {
    let mut bench = Bench::new(settings());
    bench.deliver_payload(1, 0, b"[]").deliver(2, "s", 0);
    bench.report("term: not a JSON object with each field once", Report::Acknowledged).nothing_asked();
    assert_eq!(bench.processor.counters().rejected, 1);
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
fn a_job_out_of_patience_is_given_back_with_a_delay_and_without_a_heartbeat() {
    let mut bench = Bench::publishing(Settings { patience: Duration::from_secs(60), ..settings() });
    let begun = bench.now;
    loop {
        bench.fail(PUBLISH, FailureKind::TimedOut);
        if !bench.asked.is_empty() {
            break;
        }
        bench.wake(Timer::Retry);
    }
    assert!(bench.now.since(begun) >= Duration::from_secs(60));
    let beats = bench.heartbeats.len();
    bench.sleep(Duration::from_secs(20));
    assert_eq!(bench.heartbeats.len(), beats);
    bench.report("nak for 30s", Report::Acknowledged);
    assert_eq!((bench.processor.in_flight(), bench.processor.counters().given_back), (0, 1));
}

#[test]
fn a_job_of_the_last_delivery_is_not_given_back_for_failures_that_pass() {
    let mut bench = Bench::saving(Settings { patience: Duration::ZERO, max_deliver: 1, ..settings() });
    for _ in 0..50 {
        bench.fail(SAVE, FailureKind::Unreachable).nothing_asked().wake(Timer::Retry);
    }
    bench.fail(SAVE, FailureKind::Rejected).report("nak for 30s", Report::Acknowledged);
}

#[test]
fn what_the_store_will_never_take_is_given_back_at_once() {
    let mut bench = Bench::saving(settings());
    bench.fail(SAVE, FailureKind::Rejected).report("nak for 30s", Report::Acknowledged);
    assert_eq!(bench.processor.in_flight(), 0);
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
    bench.deliver(8, "s", 2).deliver(9, "other", 2);
    bench.report(MARK, Report::Marked);
    assert_eq!(bench.state(), [State::Queued, State::Quiet, State::Acknowledging]);
    bench.report("ack", Report::Acknowledged);
    assert_eq!(bench.state(), [State::Quiet]);
    assert_eq!(bench.processor.in_flight(), 2);
}

#[test]
fn a_job_that_only_waits_for_its_confirmation_takes_no_room() {
    let mut bench = Bench::new(Settings { max_in_flight: 1, ..Settings::default() });
    bench.deliver_payload(1, 0, b"{}");
    assert_eq!((bench.processor.room(), bench.processor.in_flight()), (1, 1));
    bench.deliver(2, "s", 0);
    assert_eq!((bench.processor.room(), bench.processor.in_flight()), (0, 2), "as many as may be all together");
    bench.report("term: conversationId is missing", Report::Acknowledged);
    assert_eq!((bench.processor.room(), bench.processor.in_flight()), (0, 1), "the other one works");
    bench.handle(Input::Drain).report("nak", Report::Acknowledged);
    assert_eq!((bench.processor.room(), bench.processor.in_flight(), bench.drained), (0, 0, true));
}

#[test]
fn room_is_what_is_left_of_the_most_in_flight() {
    let mut bench = Bench::new(Settings { max_in_flight: 2, ..settings() });
    assert_eq!(bench.processor.room(), 2);
    bench.deliver(1, "a", 0).deliver(2, "b", 0);
    assert_eq!(bench.processor.room(), 0);
    bench.deliver(3, "c", 0).deliver(4, "d", 0).deliver(5, "e", 0);
    assert_eq!((bench.processor.room(), bench.processor.in_flight()), (0, 4));
    assert_eq!(bench.processor.counters().overflowed, 1);
}

#[test]
fn draining_gives_back_what_has_not_begun_to_save_and_finishes_the_rest() {
    let mut bench = Bench::saving(settings());
    bench.deliver(8, "s", 2).deliver(9, "other", 0).handle(Input::Drain);
    assert_eq!(bench.processor.room(), 0);
    bench.deliver(10, "late", 0);
    bench.report(SAVE, Report::Saved(STORED));
    for _ in 0..3 {
        bench.report("nak", Report::Acknowledged);
    }
    assert!(!bench.drained);
    bench.report(PUBLISH, Report::Published { stream_sequence: 1 }).report(MARK, Report::Marked);
    bench.report("ack", Report::Acknowledged);
    assert!(bench.drained);
    assert_eq!(bench.processor.counters().given_back, 3);
}

#[test]
fn the_grace_time_ends_a_drain() {
    let mut bench = Bench::saving(settings());
    bench.handle(Input::Drain).handle(Input::Drain).wake(Timer::Grace);
    assert!(bench.drained);
    assert_eq!((bench.processor.in_flight(), bench.processor.counters().abandoned), (0, 1));
}

#[test]
fn an_acknowledgement_that_is_never_confirmed_is_left_to_redelivery() {
    let mut bench = Bench::acknowledging(Settings { patience: Duration::ZERO, ..settings() });
    bench.fail("ack", FailureKind::TimedOut).nothing_asked();
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

/// Every row of the table in `job.rs` is taken by some script here, and no edge is taken that has no row.
#[test]
fn the_table_of_transitions_is_the_truth() {
    let mut taken = BTreeSet::new();
    let mut keep = |bench: &Bench| taken.extend(bench.processor.edges.iter().copied());
    let impatient = || Settings { patience: Duration::ZERO, ..settings() };

    let mut bench = Bench::new(settings());
    bench.deliver_payload(1, 0, b"{").report("term: not JSON: line 1, column 1", Report::Acknowledged);
    bench.deliver(2, "s", 0).deliver(3, "s", 0).handle(Input::Drain);
    keep(&bench);
    let mut bench = Bench::new(settings());
    bench.deliver(1, "s", 2).settle("s", &[1, 2, 2]).handle(Input::Drain);
    keep(&bench);
    let mut bench = Bench::new(settings());
    bench.deliver(1, "s", 2).wake(Timer::Settle).handle(Input::Drain);
    keep(&bench);
    for settings in [settings(), impatient()] {
        let mut bench = Bench::new(settings.clone());
        bench.deliver(1, "s", 2).wake(Timer::Settle).fail(COUNT, FailureKind::Busy);
        keep(&bench);
        let mut bench = Bench::loading(settings.clone());
        bench
            .report(LOAD, Report::Loaded(page(0..2, Some("x"))))
            .fail("load more segments of \"s\"", FailureKind::Busy);
        keep(&bench);
        for (mut bench, effect) in [
            (Bench::saving(settings.clone()), SAVE),
            (Bench::publishing(settings.clone()), PUBLISH),
            (Bench::marking(settings.clone()), MARK),
            (Bench::acknowledging(settings), "ack"),
        ] {
            bench.fail(effect, FailureKind::Denied);
            keep(&bench);
        }
    }
    let mut bench = Bench::saving(settings());
    let notified = Some(Notified { stream_sequence: 4, at: WallTime::from_millis(1) });
    bench.report(SAVE, Report::Saved(Stored { notified, ..STORED })).report("ack", Report::Acknowledged);
    keep(&bench);

    let mut rows = String::new();
    for (from, on, to) in &taken {
        writeln!(rows, "{from} | {on} | {to}").expect("a string takes everything");
    }
    let table: BTreeSet<String> = include_str!("../job.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! | ")?.rsplit_once(" |")?.0.rsplit_once(" |"))
        .map(|(edge, _)| edge.to_owned())
        .filter(|edge| !edge.starts_with("from") && !edge.starts_with("--"))
        .collect();
    let taken: BTreeSet<String> = rows.lines().map(str::to_owned).collect();
    assert!(table.len() > 25, "the table was read: {table:?}");
    let difference: Vec<_> = table.symmetric_difference(&taken).collect();
    assert!(difference.is_empty(), "in the table or taken, not both: {difference:#?}");
}
