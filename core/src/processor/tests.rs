use std::{fmt::Write as _, time::Duration};

use super::*;
use crate::{
    Cursor, Effect, Notice, Notified, Page, Payload, Stored,
    contract::DeadLetter,
    ids::Session,
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
    stops: bool,
    notices: Vec<Notice>,
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
            stops: false,
            notices: vec![],
        }
    }

    fn handle(&mut self, input: Input) -> &mut Self {
        self.processor.handle(self.now, input);
        loop {
            match self.processor.poll_output() {
                Output::Perform { id, effect } => self.asked.push_back((id, effect)),
                Output::InProgress { reply } => self.heartbeats.push((self.now, reply)),
                Output::StopDeliveries => self.stops = true,
                Output::Notice(notice) => self.notices.push(notice),
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

    /// Drains it: the deliveries end at once.
    fn drain(&mut self) -> &mut Self {
        self.handle(Input::Drain).handle(Input::DeliveriesStopped)
    }

    /// A delivery of `payload`, `age_ms` after it was stored.
    fn deliver_payload(&mut self, sequence: u64, age_ms: i64, payload: &[u8]) -> &mut Self {
        let received_at = WallTime::from_millis(STORED_AT + age_ms);
        self.handle(Input::Delivered(Delivery { received_at, ..delivery(sequence, 1, payload) }))
    }

    fn deliver(&mut self, sequence: u64, session: &str, published: u64) -> &mut Self {
        self.deliver_payload(sequence, 0, ended(session, published).as_bytes())
    }

    fn deliver_again(&mut self, sequence: u64, attempt: u64, session: &str) -> &mut Self {
        self.handle(Input::Delivered(delivery(sequence, attempt, ended(session, 2).as_bytes())))
    }

    fn exhaust(&mut self, sequence: u64) -> &mut Self {
        let received_at = WallTime::from_millis(STORED_AT);
        self.handle(Input::Exhausted(Exhausted { stream_sequence: sequence, attempts: 5, received_at, payload: None }))
    }

    fn outgrow(&mut self, session: &str) -> &mut Self {
        let session = Session::new("c", session).expect("ids are valid");
        let received_at = WallTime::from_millis(STORED_AT);
        self.handle(Input::Stale(StaleSummary { session, published_segments: 2, received_at }))
    }

    /// Another job, which shows that both servers serve: it is counted, and its acknowledgement confirmed.
    fn served(&mut self) -> &mut Self {
        let sequence = 1000 + self.processor.last_job;
        let session = format!("other {sequence}");
        self.deliver_payload(sequence, 9000, ended(&session, 0).as_bytes());
        let (id, effect) = self.asked.pop_back().expect("it counts");
        assert_eq!(effect.to_string(), format!("count the segments of {session:?}"));
        self.handle(Input::Reported { effect: id, report: Report::Counted { segments: 0 } })
    }

    /// Lets the time pass until the earliest timer of this kind is served, serving others on the way.
    fn wake(&mut self, timer: Timer) -> &mut Self {
        let of_jobs = self.processor.jobs.values().filter_map(|job| job.timers.deadline(timer)).min();
        let at = of_jobs.or(self.processor.stage.deadline().map(|wake_up| wake_up.at)).expect("the timer is set");
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
            let effect = format!("count the segments of {session:?}");
            self.count();
            self.report(&effect, Report::Counted { segments: *count });
        }
        self
    }

    /// Lets a quiet period pass, where one is waited for.
    fn count(&mut self) -> &mut Self {
        if self.asked.is_empty() && self.processor.in_flight() > 0 { self.wake(Timer::Settle) } else { self }
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
        bench.report(PUBLISH, Report::Published { stream_sequence: 9, segments: 2 });
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
const TERM: &str = "term: rejected: as the test wants";
const DEAD_LETTER: &str = "keep message 7 as a dead letter: rejected: as the test wants";
const STORED: Stored = Stored { segments: 2, complete: true, notified: None, revision: 1, revised: None };
const NOTIFIED: Option<Notified> = Some(Notified { stream_sequence: 4, at: WallTime::from_millis(1) });

fn delivery(sequence: u64, attempt: u64, payload: &[u8]) -> Delivery {
    Delivery {
        stream_sequence: sequence,
        attempt,
        stored_at: WallTime::from_millis(STORED_AT),
        received_at: WallTime::from_millis(STORED_AT),
        reply: if attempt == 1 { format!("reply.{sequence}") } else { format!("reply.{sequence}.{attempt}") }.into(),
        redrive_of: None,
        payload: Payload(payload.to_vec()),
    }
}

fn ended(session: &str, published: u64) -> String {
    format!(r#"{{"conversationId":"c","sessionId":"{session}","publishedSegments":{published}}}"#)
}

fn dead_letter(bench: &Bench) -> Arc<DeadLetter> {
    let Effect::DeadLetter { dead_letter } = &bench.asked.front().expect("an effect was asked for").1 else {
        panic!("a dead letter was expected: {:?}", bench.asked)
    };
    Arc::clone(dead_letter)
}

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
    Page { segments: places.map(segment).collect(), next: next.map(|n| Cursor(n.into())), ..Page::default() }
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
    bench.report(SAVE, Report::Saved(Stored { segments: 5, complete: false, ..STORED }));
    let (_, effect) = bench.asked.front().expect("it publishes").clone();
    let Effect::Publish { key, announcement, notification } = effect else { panic!("{effect}") };
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
fn a_job_past_its_retry_timeout_is_given_back_with_a_delay_and_without_a_heartbeat() {
    let mut bench = Bench::publishing(Settings { retry_timeout: Duration::from_secs(60), ..settings() });
    let begun = bench.now;
    loop {
        bench.fail(PUBLISH, FailureKind::TimedOut);
        if !bench.asked.is_empty() {
            break;
        }
        bench.deliver_payload(8, 0, b"").report("term: not JSON: line 1, column 0", Report::Acknowledged);
        bench.wake(Timer::Retry);
    }
    assert!(bench.now.since(begun) >= Duration::from_secs(60));
    let reply: Arc<str> = "reply.7".into();
    let beats = |bench: &Bench| bench.heartbeats.iter().filter(|(_, to)| *to == reply).count();
    let before = beats(&bench);
    bench.sleep(Duration::from_secs(20));
    assert_eq!(beats(&bench), before);
    bench.report("nak for 30s", Report::Acknowledged);
    assert_eq!(bench.processor.counters().given_back, 1);
}

#[test]
fn while_a_server_serves_nobody_no_job_is_given_back() {
    let mut bench = Bench::saving(Settings { retry_timeout: Duration::from_secs(60), ..settings() });
    while bench.now.since(Time::ZERO) < Duration::from_secs(3600) {
        bench.fail(SAVE, FailureKind::Unreachable).nothing_asked().wake(Timer::Retry);
    }
    let back = bench.now;
    loop {
        bench.served().asked.retain(|(_, effect)| effect.to_string() == SAVE);
        bench.fail(SAVE, FailureKind::Unreachable);
        if !bench.asked.is_empty() {
            break;
        }
        bench.wake(Timer::Retry);
    }
    bench.report("nak for 30s", Report::Acknowledged);
    let waited = bench.now.since(back);
    assert!(waited >= Duration::from_secs(60), "the retry timeout begins when the server serves again: {waited:?}");
}

#[test]
fn a_job_of_the_last_delivery_is_kept_as_a_dead_letter_when_its_retry_timeout_is_over() {
    let mut bench = Bench::new(Settings { retry_timeout: Duration::ZERO, max_deliver: 3, ..settings() });
    bench.deliver_again(7, 3, "s").wake(Timer::Settle).fail(COUNT, FailureKind::Denied).nothing_asked();
    bench.served().wake(Timer::Retry).fail(COUNT, FailureKind::Denied);
    let dead_letter = dead_letter(&bench);
    assert_eq!((dead_letter.stream_sequence, dead_letter.attempts), (7, 3));
    assert_eq!(dead_letter.reason, "denied: as the test wants");
    assert_eq!(dead_letter.at, WallTime::from_millis(STORED_AT).after(bench.now.since(Time::ZERO)));
    assert_eq!(dead_letter.ended.as_ref().map(|ended| ended.published_segments), Some(2));
    bench.report(
        "keep message 7 as a dead letter: denied: as the test wants",
        Report::DeadLettered { stream_sequence: 9 },
    );
    bench.report("term: denied: as the test wants", Report::Acknowledged);
    assert_eq!(bench.processor.counters().dead_lettered, 1);
}

#[test]
fn what_a_server_will_never_take_is_kept_as_a_dead_letter_at_once() {
    let mut bench = Bench::saving(settings());
    bench.fail(SAVE, FailureKind::Rejected).report(DEAD_LETTER, Report::DeadLettered { stream_sequence: 9 });
    bench.report(TERM, Report::Acknowledged);
    assert_eq!((bench.processor.in_flight(), bench.processor.counters().dead_lettered), (0, 1));
}

#[test]
fn a_dead_letter_that_cannot_be_kept_leaves_the_message_to_another_attempt() {
    let mut bench = Bench::saving(settings());
    bench.fail(SAVE, FailureKind::Rejected).fail(DEAD_LETTER, FailureKind::Busy).nothing_asked().wake(Timer::Retry);
    bench.fail(DEAD_LETTER, FailureKind::Rejected).report("nak for 30s", Report::Acknowledged);
    assert_eq!((bench.processor.in_flight(), bench.processor.counters().dead_lettered), (0, 0));
}

#[cfg(feature = "planted-bugs")]
#[test]
fn a_summary_step_that_panics_ends_one_job() {
    let mut bench = Bench::new(settings());
    bench.processor.bug = Some(crate::Bug::SummaryPanics);
    bench.deliver(7, "s", 1).deliver(8, "other", 0).wake(Timer::Settle);
    bench.report(COUNT, Report::Counted { segments: 1 });
    bench.report("count the segments of \"other\"", Report::Counted { segments: 0 }).wake(Timer::Settle);
    bench.report(COUNT, Report::Counted { segments: 1 });
    bench.report("count the segments of \"other\"", Report::Counted { segments: 0 });
    let mut poisoned = page(0..1, None);
    poisoned.segments[0].text = crate::Bug::PANIC.to_owned();
    bench.report(LOAD, Report::Loaded(poisoned));
    bench.report("load the segments of \"other\"", Report::Loaded(page(0..0, None)));
    let reason = "the summary step panicked: the processor's log says where";
    bench.report(&format!("keep message 7 as a dead letter: {reason}"), Report::DeadLettered { stream_sequence: 9 });
    bench.report("save c:other with 0 segments", Report::Saved(STORED));
    bench.report(&format!("term: {reason}"), Report::Acknowledged);
    assert_eq!(bench.state(), [State::Publishing]);
}

#[test]
fn a_message_that_used_up_its_deliveries_is_kept_as_a_dead_letter() {
    let mut bench = Bench::new(settings());
    let effect = "keep message 7 as a dead letter: handed over 5 times, and each time its process died or was cut off";
    bench.exhaust(7).fail(effect, FailureKind::Unreachable).nothing_asked().wake(Timer::Retry);
    bench.report(effect, Report::DeadLettered { stream_sequence: 9 }).nothing_asked();
    assert_eq!((bench.processor.in_flight(), bench.processor.counters().dead_lettered), (0, 1));
    assert!(bench.heartbeats.is_empty());
}

#[test]
fn a_payload_that_was_published_again_and_still_cannot_be_processed_goes_back_to_the_dead_letters() {
    let mut bench = Bench::new(settings());
    bench.handle(Input::Delivered(Delivery { redrive_of: Some(3), ..delivery(7, 1, b"{}") }));
    let effect = "keep message 7 as a dead letter: conversationId is missing";
    bench.report(effect, Report::DeadLettered { stream_sequence: 9 });
    bench.report("term: conversationId is missing", Report::Acknowledged).nothing_asked();
}

#[test]
fn a_job_goes_on_with_the_new_delivery_of_its_message() {
    let mut bench = Bench::saving(settings());
    bench.deliver_again(7, 2, "s");
    assert_eq!((bench.processor.in_flight(), bench.processor.counters().redelivered), (1, 1));
    bench.report(SAVE, Report::Saved(STORED)).report(PUBLISH, Report::Published { stream_sequence: 9, segments: 2 });
    bench.report(MARK, Report::Marked);
    let reply = |bench: &Bench| {
        let (_, effect) = bench.asked.back().expect("an acknowledgement");
        let Effect::Acknowledge { reply, .. } = effect else { panic!("{effect}") };
        reply.to_string()
    };
    assert_eq!(reply(&bench), "reply.7.2");
    bench.deliver_again(7, 3, "s");
    assert_eq!(reply(&bench), "reply.7.3", "an acknowledgement that was lost is said again");
    let (first, _) = bench.asked.pop_front().expect("the first acknowledgement");
    bench.handle(Input::Reported { effect: first, report: Report::Acknowledged });
    assert_eq!(bench.processor.in_flight(), 1);
    bench.report("ack", Report::Acknowledged).nothing_asked();
    assert_eq!(bench.processor.in_flight(), 0);
}

#[test]
fn a_message_that_comes_back_after_its_nak_begins_anew() {
    let mut bench = Bench::new(Settings { retry_timeout: Duration::ZERO, ..settings() });
    bench.deliver(7, "s", 2).wake(Timer::Settle).served().fail(COUNT, FailureKind::Busy);
    assert_eq!(bench.asked.front().expect("a nak").1.to_string(), "nak for 30s");
    bench.deliver_again(7, 2, "s");
    assert_eq!(bench.processor.states().get(&State::Acknowledging), None);
    assert_eq!(bench.processor.states().get(&State::Quiet), Some(&2));
}

#[test]
fn a_stale_summary_is_replaced_and_the_new_one_announced() {
    let mut bench = Bench::new(Settings { revise: true, ..settings() });
    bench.outgrow("s").outgrow("s");
    assert_eq!(bench.processor.in_flight(), 1);
    bench.settle("s", &[2, 2]).report(LOAD, Report::Loaded(page(0..2, None)));
    bench.report(SAVE, Report::Saved(Stored { notified: NOTIFIED, revision: 3, revised: Some(2), ..STORED }));
    let (_, effect) = bench.asked.front().expect("it publishes").clone();
    let Effect::Publish { key, announcement, notification } = effect else { panic!("{effect}") };
    assert_eq!(announcement.message_id(&key), "c:s%r3");
    assert_eq!(notification.revision, Some(3));
    bench.report("publish revision 3 of c:s", Report::Published { stream_sequence: 9, segments: 2 });
    bench.report("mark revision 3 of c:s as announced", Report::Marked).nothing_asked();
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
    for (revise, next) in [(true, "publish revision 2 of c:s"), (false, "ack")] {
        let mut bench = Bench::saving(Settings { revise, ..settings() });
        bench.report(SAVE, Report::Saved(Stored { notified: NOTIFIED, revision: 2, ..STORED }));
        assert_eq!(bench.asked.front().expect("it goes on").1.to_string(), next);
    }
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
    bench.deliver(8, "s", 2).deliver(9, "other", 2);
    assert_eq!(bench.state(), [State::Queued, State::Quiet, State::Marking]);
    bench.report(MARK, Report::Marked);
    assert_eq!(bench.state(), [State::Quiet, State::Acknowledging], "nobody waits for a confirmation");
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
    bench.drain().report("nak", Report::Acknowledged);
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
fn no_job_but_the_oldest_asks_for_a_page_while_there_is_no_room_for_its_bytes() {
    let settings = Settings { max_bytes_in_flight: 1, page_size: 2, ..settings() };
    let mut bench = Bench::new(settings);
    for (sequence, session) in [(1, "a"), (2, "b"), (3, "c")] {
        bench.deliver(sequence, session, 2);
    }
    for _ in 0..2 {
        bench.wake(Timer::Settle);
        for session in ["a", "b", "c"] {
            bench.report(&format!("count the segments of {session:?}"), Report::Counted { segments: 2 });
        }
    }
    assert_eq!((bench.asked.len(), bench.processor.bytes_in_flight()), (1, 8192));
    bench.report("load the segments of \"a\"", Report::Loaded(page(0..2, Some("x"))));
    bench.report("load more segments of \"a\"", Report::Loaded(page(2..3, None)));
    // Nobody waits for a page now, so the next one goes on, although the summary of the first is still held.
    bench.report("save c:a with 3 segments", Report::Saved(STORED));
    bench.report("load the segments of \"b\"", Report::Failed(Failure { kind: FailureKind::Busy, detail: "".into() }));
    bench.report("publish c:a", Report::Published { stream_sequence: 9, segments: 2 });
    bench.report("load the segments of \"c\"", Report::Loaded(page(0..2, None)));
    bench.drain();
    let mut asked: Vec<_> = bench.asked.iter().map(|(_, effect)| effect.to_string()).collect();
    asked.sort();
    assert_eq!(asked, ["mark c:a as announced", "nak", "save c:c with 2 segments"]);
    while let Some((effect, what)) = bench.asked.pop_front() {
        let report = match what {
            Effect::Save { .. } => Report::Saved(STORED),
            Effect::Publish { .. } => Report::Published { stream_sequence: 9, segments: 2 },
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

#[test]
fn draining_gives_back_what_has_not_begun_to_save_and_finishes_the_rest() {
    let mut bench = Bench::saving(settings());
    bench.deliver(8, "s", 2).deliver(9, "other", 0).drain();
    assert_eq!(bench.processor.room(), 0);
    bench.deliver(10, "late", 0);
    bench.report(SAVE, Report::Saved(STORED));
    for _ in 0..3 {
        bench.report("nak", Report::Acknowledged);
    }
    assert!(!bench.drained);
    bench.report(PUBLISH, Report::Published { stream_sequence: 1, segments: 2 }).report(MARK, Report::Marked);
    bench.report("ack", Report::Acknowledged);
    assert!(bench.drained);
    assert_eq!(bench.processor.counters().given_back, 3);
}

#[test]
fn a_drain_publishes_again_what_is_not_of_the_first_delivery() {
    let mut bench = Bench::new(settings());
    bench.deliver(7, "a", 0).deliver_again(8, 2, "b").drain().deliver_again(9, 3, "c");
    bench.report("nak", Report::Acknowledged);
    bench.report("publish message 8 again", Report::Republished { stream_sequence: 20 });
    bench.fail("publish message 9 again", FailureKind::Unreachable);
    bench.report("ack", Report::Acknowledged).wake(Timer::Retry);
    bench.fail("publish message 9 again", FailureKind::Rejected);
    bench.report("nak", Report::Acknowledged);
    assert!(bench.drained);
    assert_eq!((bench.processor.counters().given_back, bench.processor.counters().republished), (2, 1));
}

#[test]
fn the_grace_time_ends_a_drain() {
    let mut bench = Bench::saving(settings());
    bench.deliver_again(8, 2, "t").settle("t", &[]);
    bench.drain().drain();
    bench.asked.retain(|(_, effect)| !matches!(effect, Effect::Save { .. }));
    bench.report("publish message 8 again", Report::Republished { stream_sequence: 9 });
    bench.report("ack", Report::Acknowledged).nothing_asked().wake(Timer::Grace);
    assert_eq!(bench.now, Time::ZERO.after(4 * Duration::from_secs(1) + settings().grace), "settled after 4 s");
    assert!(!bench.drained, "there is a moment to give it back");
    assert_eq!(bench.asked.front().expect("it is given back").1.to_string(), "nak");
    bench.wake(Timer::Grace);
    assert!(bench.drained);
    assert_eq!((bench.processor.in_flight(), bench.processor.counters().abandoned), (0, 1));
}

#[test]
fn where_attempts_are_few_no_nak_costs_one() {
    for (max_deliver, effect) in [(1, "publish message 7 again"), (3, "publish message 7 again"), (4, "nak")] {
        let mut bench = Bench::new(Settings { max_deliver, ..settings() });
        bench.deliver(7, "s", 0).drain();
        assert_eq!(bench.asked.front().expect("it is given back").1.to_string(), effect, "{max_deliver}");
    }
}

#[test]
fn an_acknowledgement_that_is_never_confirmed_is_left_to_redelivery() {
    let mut bench = Bench::acknowledging(Settings { retry_timeout: Duration::ZERO, ..settings() });
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
    let settings = || Settings { revise: true, ..settings() };
    let giving_up_at_once = || Settings { retry_timeout: Duration::ZERO, ..settings() };

    let mut bench = Bench::new(settings());
    bench.deliver_payload(1, 0, b"{").report("term: not JSON: line 1, column 1", Report::Acknowledged);
    bench.deliver(2, "s", 0).deliver(3, "s", 0).drain().deliver(4, "t", 0).deliver_again(5, 2, "u");
    bench.report("nak", Report::Acknowledged).deliver_again(3, 2, "s").asked.clear();
    bench.deliver_again(3, 3, "s");
    keep(&bench);
    for effect in ["publish message 7 again", ""] {
        let mut bench = Bench::new(settings());
        bench.deliver_again(7, 2, "s").drain();
        if effect.is_empty() {
            bench.report("publish message 7 again", Report::Republished { stream_sequence: 9 });
        } else {
            bench.fail(effect, FailureKind::Busy).wake(Timer::Retry).fail(effect, FailureKind::Rejected);
        }
        keep(&bench);
    }
    // Where a drain finds a job: queued, before a count, at a count and at a page, of each kind.
    type Take = fn(&mut Bench);
    let takes: [Take; 3] = [
        |bench| {
            bench.deliver(7, "s", 2);
        },
        |bench| {
            bench.deliver_again(7, 2, "s");
        },
        |bench| {
            bench.outgrow("s");
        },
    ];
    let pages = || Report::Loaded(page(0..2, None));
    for take in takes {
        let mut bench = Bench::new(settings());
        bench.deliver(6, "s", 2);
        take(&mut bench);
        bench.drain();
        keep(&bench);
        for counts in [&[] as &[u64], &[1], &[1, 2, 2]] {
            let mut bench = Bench::new(settings());
            take(&mut bench);
            bench.settle("s", counts).drain();
            keep(&bench);
        }
        let mut bench = Bench::new(settings());
        take(&mut bench);
        bench.count().drain();
        keep(&bench);
        // What has begun to save when the grace time ends.
        let stored = Stored { notified: NOTIFIED, revision: 2, ..STORED };
        let begun = [pages(), Report::Saved(stored), Report::Published { stream_sequence: 9, segments: 2 }];
        for reported in 1..=begun.len() {
            let mut bench = Bench::new(settings());
            take(&mut bench);
            bench.settle("s", &[2, 2]);
            for report in begun.iter().take(reported) {
                let (effect, _) = bench.asked.pop_front().expect("an effect");
                bench.handle(Input::Reported { effect, report: report.clone() });
            }
            bench.drain().wake(Timer::Grace);
            keep(&bench);
        }
        // Every failure of every effect: once more, given up, refused.
        for (kind, settings) in [
            (FailureKind::Busy, settings()),
            (FailureKind::Busy, Settings { max_deliver: 1, ..giving_up_at_once() }),
            (FailureKind::Busy, giving_up_at_once()),
            (FailureKind::Rejected, settings()),
        ] {
            let reports = [
                Report::Counted { segments: 2 },
                Report::Counted { segments: 2 },
                Report::Loaded(page(0..2, Some("x"))),
                pages(),
                Report::Saved(Stored { notified: NOTIFIED, revision: 2, ..STORED }),
                Report::Published { stream_sequence: 9, segments: 2 },
                Report::Marked,
            ];
            for reported in 0..=reports.len() {
                let mut bench = Bench::new(settings.clone());
                take(&mut bench);
                for report in reports.iter().take(reported) {
                    bench.count();
                    let (effect, _) = bench.asked.pop_front().expect("an effect");
                    bench.handle(Input::Reported { effect, report: report.clone() });
                }
                bench.count().served();
                let Some((effect, _)) = bench.asked.pop_front() else {
                    keep(&bench);
                    continue;
                };
                let report = Report::Failed(Failure { kind, detail: "as the test wants".into() });
                bench.handle(Input::Reported { effect, report });
                keep(&bench);
            }
        }
    }
    for (kind, retry_timeout) in
        [(FailureKind::Busy, settings()), (FailureKind::Busy, giving_up_at_once()), (FailureKind::Rejected, settings())]
    {
        let mut bench = Bench::saving(retry_timeout.clone());
        bench.fail(SAVE, FailureKind::Rejected).fail(DEAD_LETTER, kind);
        keep(&bench);
        let mut bench = Bench::new(retry_timeout);
        bench.exhaust(7).deliver_payload(8, 0, b"").asked.pop_back();
        bench.fail(
            "keep message 7 as a dead letter: handed over 5 times, and each time its process died or was cut off",
            kind,
        );
        keep(&bench);
    }
    let mut bench = Bench::saving(settings());
    bench.fail(SAVE, FailureKind::Rejected).report(DEAD_LETTER, Report::DeadLettered { stream_sequence: 9 });
    keep(&bench);
    let mut bench = Bench::new(settings());
    bench.exhaust(7);
    let (effect, _) = bench.asked.pop_front().expect("a dead letter");
    bench.handle(Input::Reported { effect, report: Report::DeadLettered { stream_sequence: 9 } });
    bench.handle(Input::Delivered(Delivery { redrive_of: Some(3), ..delivery(7, 1, b"{}") }));
    keep(&bench);
    for stored in [Stored { notified: NOTIFIED, ..STORED }, STORED] {
        for take in takes {
            let mut bench = Bench::new(settings());
            take(&mut bench);
            bench.settle("s", &[2, 2]).report(LOAD, pages()).report(SAVE, Report::Saved(stored));
            if bench.asked.front().is_some_and(|(_, effect)| effect.to_string() == "ack") {
                bench.deliver_again(7, 3, "s").report("ack", Report::Acknowledged);
                bench.report("ack", Report::Acknowledged);
            }
            keep(&bench);
        }
    }
    #[cfg(feature = "planted-bugs")]
    for take in takes {
        let mut bench = Bench::new(settings());
        bench.processor.bug = Some(crate::Bug::SummaryPanics);
        take(&mut bench);
        let mut poisoned = page(0..1, None);
        poisoned.segments[0].text = crate::Bug::PANIC.to_owned();
        bench.settle("s", &[1, 1]).report(LOAD, Report::Loaded(poisoned));
        keep(&bench);
    }

    let mut rows = String::new();
    for (from, on, to) in &taken {
        writeln!(rows, "{from} | {on} | {to}").expect("a string takes everything");
    }
    let table: BTreeSet<String> = include_str!("../job/mod.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! | ")?.rsplit_once(" |")?.0.rsplit_once(" |"))
        .map(|(edge, _)| edge.to_owned())
        .filter(|edge| !edge.starts_with("from") && !edge.starts_with("--"))
        .collect();
    let taken: BTreeSet<String> = rows.lines().map(str::to_owned).collect();
    // A panic can only be planted.
    let table: BTreeSet<String> = table
        .into_iter()
        .filter(|edge| {
            cfg!(feature = "planted-bugs")
                || !["loading | loaded | dead-lettering", "loading | loaded | over"].contains(&&**edge)
        })
        .collect();
    assert!(table.len() > 60, "the table was read: {table:?}");
    let difference: Vec<_> = table.symmetric_difference(&taken).collect();
    assert!(difference.is_empty(), "in the table or taken, not both: {difference:#?}");
}
