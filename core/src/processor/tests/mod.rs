use std::{fmt::Write as _, time::Duration};

use super::*;
use crate::{
    Acknowledgement, Cursor, Delivery, Effect, Exhausted, Notice, Notified, Page, Payload, StaleSummary, Stored,
    WallTime,
    contract::{Announcement, DeadLetter},
    ids::{Key, Session},
    summary::{Segment, Summary},
};

mod faults;
mod table;

const STORED_AT: i64 = 1_700_000_000_000;
/// A window of which half is soon over, less the time that an effect may take.
const SHORT_WINDOW: Duration = Duration::from_secs(200);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

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

    fn exhaust_with(&mut self, sequence: u64, payload: &str) -> &mut Self {
        let received_at = WallTime::from_millis(STORED_AT);
        let payload = Some(Payload(payload.as_bytes().to_vec()));
        self.handle(Input::Exhausted(Exhausted { stream_sequence: sequence, attempts: 5, received_at, payload }))
    }

    fn outgrow(&mut self, session: &str) -> &mut Self {
        let session = Session::new("c", session).expect("ids are valid");
        let received_at = WallTime::from_millis(STORED_AT);
        self.handle(Input::Stale(StaleSummary { session, published_segments: 2, received_at }))
    }

    /// Effects of this kind succeed for others.
    fn others_succeed(&mut self, kind: EffectKind) -> &mut Self {
        self.serves(Service::of(kind))
    }

    /// Effects that need the same as this one succeed for others.
    fn others_succeed_with(&mut self, effect: &Effect) -> &mut Self {
        let Effect::Publish { announcement, .. } = effect else { return self.others_succeed(effect.kind()) };
        self.serves(Service::of_publishing(*announcement))
    }

    fn serves(&mut self, service: Service) -> &mut Self {
        let silence = self.processor.settings.longest_silence();
        self.processor.served.succeeded(self.now, service, silence);
        self
    }

    /// Lets an effect fail, and others of its kind succeed, until the job asks for something else.
    fn fail_until_given_up(&mut self, what: ExpectedEffect<'_>, kind: EffectKind) -> &mut Self {
        while self.others_succeed(kind).fail(what, FailureKind::Busy).asked.is_empty() {
            self.wake(Timer::Retry);
        }
        self
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

    /// Reports the oldest effect, which must be this one.
    fn report(&mut self, what: ExpectedEffect<'_>, report: Report) -> &mut Self {
        let (id, asked) = self.asked.pop_front().expect("an effect was asked for");
        assert!(what.is(&asked), "{what:?} was expected, not: {asked}");
        self.handle(Input::Reported { effect: id, report })
    }

    fn fail(&mut self, what: ExpectedEffect<'_>, kind: FailureKind) -> &mut Self {
        self.report(what, Report::Failed(Failure { kind, detail: "as the test wants".into() }))
    }

    /// Whether the oldest effect is this one.
    fn asks(&self, what: ExpectedEffect<'_>) -> bool {
        self.asked.front().is_some_and(|(_, asked)| what.is(asked))
    }

    /// The reason of the dead letter, or of the term, that was asked for.
    fn reason(&self) -> String {
        let effect = &self.asked.front().expect("an effect was asked for").1;
        if let Effect::DeadLetter { dead_letter } = effect {
            return dead_letter.reason.clone();
        }
        let Effect::Acknowledge { acknowledgement: Acknowledgement::Term { reason }, .. } = effect else {
            panic!("it has no reason: {effect}")
        };
        reason.clone()
    }

    fn nothing_asked(&mut self) -> &mut Self {
        assert!(self.asked.is_empty(), "{:?}", self.asked);
        self
    }

    fn settle(&mut self, session: &str, counts: &[u64]) -> &mut Self {
        for count in counts {
            self.count();
            self.report(Of(EffectKind::Count, session), Report::Counted { segments: *count });
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

    /// A second end of a call that this processor has just been done with: it asks whether everything is there.
    fn checking_a_repeat() -> Self {
        let mut bench = Self::acknowledging(settings());
        bench.report(Ack, Report::Acknowledged).deliver(8, "s", 2);
        bench
    }

    /// A notification that could not be published for most of the duplicate window.
    fn checking_before_a_publish() -> Self {
        Self::publishing(Settings { duplicate_window: SHORT_WINDOW, ..settings() }).checking()
    }

    /// The same, of a job without a delivery.
    fn without_delivery_before_a_publish() -> Self {
        let mut bench = Self::new(Settings { revise: true, duplicate_window: SHORT_WINDOW, ..settings() });
        bench.outgrow("s").settle("s", &[2, 2]).report(LOAD, Report::Loaded(page(0..2, None)));
        bench.report(SAVE, Report::Saved(Stored { notified: NOTIFIED, revision: 2, ..STORED }));
        bench.checking()
    }

    fn checking(mut self) -> Self {
        while self.asks(PUBLISH) {
            self.fail(PUBLISH, FailureKind::Unreachable).wake(Timer::Retry);
        }
        self
    }

    /// A message that used up its deliveries, and is still in the stream.
    fn checking_an_exhausted() -> Self {
        let mut bench = Self::new(settings());
        bench.exhaust_with(7, &ended("s", 2));
        bench
    }

    /// Answers what is stored, for as long as that is asked, and gives the time that it took.
    fn check_until_dead_letter(&mut self, stored: Option<Stored>) -> Duration {
        let begun = self.now;
        self.report(CHECK, Report::Checked(stored));
        while !self.asks(DEAD_LETTER) {
            self.nothing_asked().wake(Timer::Settle).report(CHECK, Report::Checked(stored));
        }
        self.now.since(begun)
    }

    fn state(&self) -> Vec<State> {
        self.processor.states().into_keys().collect()
    }
}

/// An effect as a test names it.
#[derive(Debug, Clone, Copy)]
enum ExpectedEffect<'a> {
    Kind(EffectKind),
    /// Of a session.
    Of(EffectKind, &'a str),
    /// About a message.
    About(EffectKind, u64),
    Revision(EffectKind, u64),
    Ack,
    Nak(Duration),
    Term,
}

use ExpectedEffect::{About, Ack, Kind, Nak, Of, Revision, Term};

impl ExpectedEffect<'_> {
    fn is(self, effect: &Effect) -> bool {
        match self {
            Kind(kind) => effect.kind() == kind,
            Of(kind, session) => {
                let key = |key: &Key| key.as_str() == format!("c:{session}");
                effect.kind() == kind
                    && match effect {
                        Effect::Count { session_id } | Effect::Load { session_id, .. } => **session_id == *session,
                        Effect::Save { summary } => key(&summary.key),
                        Effect::Check { key: of } | Effect::Publish { key: of, .. } | Effect::Mark { key: of, .. } => {
                            key(of)
                        }
                        Effect::Acknowledge { key: of, .. } => of.as_ref().is_some_and(key),
                        Effect::DeadLetter { .. } | Effect::Republish { .. } => false,
                    }
            }
            About(kind, message) => {
                effect.kind() == kind
                    && (matches!(effect, Effect::DeadLetter { dead_letter } if dead_letter.stream_sequence == message)
                        || matches!(effect, Effect::Republish { stream_sequence, .. } if *stream_sequence == message))
            }
            Revision(kind, revision) => {
                let (Effect::Publish { announcement, .. } | Effect::Mark { announcement, .. }) = effect else {
                    return false;
                };
                effect.kind() == kind && *announcement == Announcement::Revised { revision }
            }
            Ack => matches!(effect, Effect::Acknowledge { acknowledgement: Acknowledgement::Ack, .. }),
            Nak(span) => {
                matches!(effect, Effect::Acknowledge { acknowledgement: Acknowledgement::Nak { delay, .. }, .. } if *delay == span)
            }
            Term => matches!(effect, Effect::Acknowledge { acknowledgement: Acknowledgement::Term { .. }, .. }),
        }
    }
}

const COUNT: ExpectedEffect<'_> = Kind(EffectKind::Count);
const LOAD: ExpectedEffect<'_> = Kind(EffectKind::Load);
const SAVE: ExpectedEffect<'_> = Kind(EffectKind::Save);
const CHECK: ExpectedEffect<'_> = Kind(EffectKind::Check);
const PUBLISH: ExpectedEffect<'_> = Kind(EffectKind::Publish);
const MARK: ExpectedEffect<'_> = Kind(EffectKind::Mark);
const DEAD_LETTER: ExpectedEffect<'_> = Kind(EffectKind::DeadLetter);
const REPUBLISH: ExpectedEffect<'_> = Kind(EffectKind::Republish);
const AT_ONCE: ExpectedEffect<'_> = Nak(Duration::ZERO);
const LATER: ExpectedEffect<'_> = Nak(Duration::from_secs(30));
/// ExpectedEffect came to nothing is a dead letter before it is terminated.
const DEAD_LETTERED: Report = Report::DeadLettered { stream_sequence: 9 };
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
    bench.report(SAVE, Report::Saved(STORED)).report(PUBLISH, Report::Published { stream_sequence: 9, segments: 2 });
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
    bench.report(SAVE, Report::Saved(STORED)).report(PUBLISH, Report::Published { stream_sequence: 9, segments: 2 });
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
    let Effect::Publish { key, announcement, notification } = effect else { panic!("{effect}") };
    assert_eq!(announcement.message_id(&key), "c:s%r3");
    assert_eq!(notification.revision, Some(3));
    bench.report(Revision(EffectKind::Publish, 3), Report::Published { stream_sequence: 9, segments: 2 });
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
    bench.report(Of(EffectKind::Publish, "a"), Report::Published { stream_sequence: 9, segments: 2 });
    bench.report(Of(EffectKind::Load, "c"), Report::Loaded(page(0..2, None)));
    bench.drain();
    let asked = |what: ExpectedEffect<'_>| bench.asked.iter().any(|(_, effect)| what.is(effect));
    let expected = [Of(EffectKind::Mark, "a"), AT_ONCE, Of(EffectKind::Save, "c")];
    assert!(expected.into_iter().all(asked) && bench.asked.len() == 3, "{:?}", bench.asked);
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
        bench.report(AT_ONCE, Report::Acknowledged);
    }
    assert!(!bench.drained);
    bench.report(PUBLISH, Report::Published { stream_sequence: 1, segments: 2 }).report(MARK, Report::Marked);
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
