//! A processor on a bench: what a test tells it, and what it asks for.

use super::*;

pub(super) const STORED_AT: i64 = 1_700_000_000_000;
/// A window of which half is soon over, less the time that an effect may take.
pub(super) const SHORT_WINDOW: Duration = Duration::from_secs(200);
pub(super) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A processor, what it asked for and was not told about yet, and the time.
pub(super) struct Bench {
    pub(super) processor: Processor,
    pub(super) now: Time,
    pub(super) asked: VecDeque<(EffectId, Effect)>,
    pub(super) heartbeats: Vec<(Time, Arc<str>)>,
    pub(super) wake_up: Option<WakeUp>,
    pub(super) drained: bool,
    pub(super) stops: bool,
    pub(super) notices: Vec<Notice>,
}

impl Bench {
    pub(super) fn new(settings: Settings) -> Self {
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

    pub(super) fn handle(&mut self, input: Input) -> &mut Self {
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
    pub(super) fn drain(&mut self) -> &mut Self {
        self.handle(Input::Drain).handle(Input::DeliveriesStopped)
    }

    /// A delivery of `payload`, `age_ms` after it was stored.
    pub(super) fn deliver_payload(&mut self, sequence: u64, age_ms: i64, payload: &[u8]) -> &mut Self {
        let received_at = WallTime::from_millis(STORED_AT + age_ms);
        self.handle(Input::Delivered(Delivery { received_at, ..delivery(sequence, 1, payload) }))
    }

    pub(super) fn deliver(&mut self, sequence: u64, session: &str, published: u64) -> &mut Self {
        self.deliver_payload(sequence, 0, ended(session, published).as_bytes())
    }

    pub(super) fn deliver_again(&mut self, sequence: u64, attempt: u64, session: &str) -> &mut Self {
        self.handle(Input::Delivered(delivery(sequence, attempt, ended(session, 2).as_bytes())))
    }

    pub(super) fn exhaust(&mut self, sequence: u64) -> &mut Self {
        let received_at = WallTime::from_millis(STORED_AT);
        self.handle(Input::Exhausted(Exhausted { stream_sequence: sequence, attempts: 5, received_at, payload: None }))
    }

    pub(super) fn exhaust_with(&mut self, sequence: u64, payload: &str) -> &mut Self {
        let received_at = WallTime::from_millis(STORED_AT);
        let payload = Some(Payload(payload.as_bytes().to_vec()));
        self.handle(Input::Exhausted(Exhausted { stream_sequence: sequence, attempts: 5, received_at, payload }))
    }

    pub(super) fn outgrow(&mut self, session: &str) -> &mut Self {
        let session = Session::new("c", session).expect("ids are valid");
        let received_at = WallTime::from_millis(STORED_AT);
        self.handle(Input::Stale(StaleSummary { session, published_segments: 2, received_at }))
    }

    /// Effects of this kind succeed for others.
    pub(super) fn others_succeed(&mut self, kind: EffectKind) -> &mut Self {
        self.serves(Service::of(kind))
    }

    /// Effects that need the same as this one succeed for others.
    pub(super) fn others_succeed_with(&mut self, effect: &Effect) -> &mut Self {
        let Effect::Publish { announcement, .. } = effect else { return self.others_succeed(effect.kind()) };
        self.serves(Service::of_publishing(*announcement))
    }

    pub(super) fn serves(&mut self, service: Service) -> &mut Self {
        let silence = self.processor.settings.longest_silence();
        self.processor.served.succeeded(self.now, service, silence);
        self
    }

    /// Lets an effect fail, and others of its kind succeed, until the job asks for something else.
    pub(super) fn fail_until_given_up(&mut self, what: ExpectedEffect<'_>, kind: EffectKind) -> &mut Self {
        while self.others_succeed(kind).fail(what, FailureKind::Busy).asked.is_empty() {
            self.wake(Timer::Retry);
        }
        self
    }

    /// Lets the time pass until the earliest timer of this kind is served, serving others on the way.
    pub(super) fn wake(&mut self, timer: Timer) -> &mut Self {
        let of_jobs = self.processor.jobs.values().filter_map(|job| job.timers.deadline(timer)).min();
        let at = of_jobs.or(self.processor.stage.deadline().map(|wake_up| wake_up.at)).expect("the timer is set");
        self.sleep(at.since(self.now))
    }

    pub(super) fn sleep(&mut self, span: Duration) -> &mut Self {
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
    pub(super) fn report(&mut self, what: ExpectedEffect<'_>, report: Report) -> &mut Self {
        let (id, asked) = self.asked.pop_front().expect("an effect was asked for");
        assert!(what.is(&asked), "{what:?} was expected, not: {asked}");
        self.handle(Input::Reported { effect: id, report })
    }

    pub(super) fn fail(&mut self, what: ExpectedEffect<'_>, kind: FailureKind) -> &mut Self {
        self.report(what, Report::Failed(Failure { kind, detail: "as the test wants".into() }))
    }

    /// Whether the oldest effect is this one.
    pub(super) fn asks(&self, what: ExpectedEffect<'_>) -> bool {
        self.asked.front().is_some_and(|(_, asked)| what.is(asked))
    }

    /// The reason of the dead letter, or of the term, that was asked for.
    pub(super) fn reason(&self) -> String {
        let effect = &self.asked.front().expect("an effect was asked for").1;
        if let Effect::DeadLetter { dead_letter } = effect {
            return dead_letter.reason.clone();
        }
        let Effect::Acknowledge { acknowledgement: Acknowledgement::Term { reason }, .. } = effect else {
            panic!("it has no reason: {effect}")
        };
        reason.clone()
    }

    pub(super) fn nothing_asked(&mut self) -> &mut Self {
        assert!(self.asked.is_empty(), "{:?}", self.asked);
        self
    }

    pub(super) fn settle(&mut self, session: &str, counts: &[u64]) -> &mut Self {
        for count in counts {
            self.count();
            self.report(Of(EffectKind::Count, session), Report::Counted { segments: *count });
        }
        self
    }

    /// Lets a quiet period pass, where one is waited for.
    pub(super) fn count(&mut self) -> &mut Self {
        if self.asked.is_empty() && self.processor.in_flight() > 0 { self.wake(Timer::Settle) } else { self }
    }

    /// A job of session `s` that has just asked for its only page.
    pub(super) fn loading(settings: Settings) -> Self {
        let mut bench = Self::new(settings);
        bench.deliver(7, "s", 2).settle("s", &[2, 2]);
        bench
    }

    pub(super) fn saving(settings: Settings) -> Self {
        let mut bench = Self::loading(settings);
        bench.report(LOAD, Report::Loaded(page(0..2, None)));
        bench
    }

    pub(super) fn publishing(settings: Settings) -> Self {
        let mut bench = Self::saving(settings);
        bench.report(SAVE, Report::Saved(STORED));
        bench
    }

    pub(super) fn marking(settings: Settings) -> Self {
        let mut bench = Self::publishing(settings);
        bench.report(PUBLISH, Report::Published { stream_sequence: 9, segments: 2, edits: 0 });
        bench
    }

    pub(super) fn acknowledging(settings: Settings) -> Self {
        let mut bench = Self::marking(settings);
        bench.report(MARK, Report::Marked);
        bench
    }

    /// A second end of a call that this processor has just been done with: it asks whether everything is there.
    pub(super) fn checking_a_repeat() -> Self {
        let mut bench = Self::acknowledging(settings());
        bench.report(Ack, Report::Acknowledged).deliver(8, "s", 2);
        bench
    }

    /// A notification that could not be published for most of the duplicate window.
    pub(super) fn checking_before_a_publish() -> Self {
        Self::publishing(Settings { duplicate_window: SHORT_WINDOW, ..settings() }).checking()
    }

    /// The same, of a job without a delivery.
    pub(super) fn without_delivery_before_a_publish() -> Self {
        let mut bench = Self::new(Settings { revise: true, duplicate_window: SHORT_WINDOW, ..settings() });
        bench.outgrow("s").settle("s", &[2, 2]).report(LOAD, Report::Loaded(page(0..2, None)));
        bench.report(SAVE, Report::Saved(Stored { notified: NOTIFIED, revision: 2, ..STORED }));
        bench.checking()
    }

    pub(super) fn checking(mut self) -> Self {
        while self.asks(PUBLISH) {
            self.fail(PUBLISH, FailureKind::Unreachable).wake(Timer::Retry);
        }
        self
    }

    /// A message that used up its deliveries, and is still in the stream.
    pub(super) fn checking_an_exhausted() -> Self {
        let mut bench = Self::new(settings());
        bench.exhaust_with(7, &ended("s", 2));
        bench
    }

    /// Answers what is stored, for as long as that is asked, and gives the time that it took.
    pub(super) fn check_until_dead_letter(&mut self, stored: Option<Stored>) -> Duration {
        let begun = self.now;
        self.report(CHECK, Report::Checked(stored));
        while !self.asks(DEAD_LETTER) {
            self.nothing_asked().wake(Timer::Settle).report(CHECK, Report::Checked(stored));
        }
        self.now.since(begun)
    }

    pub(super) fn state(&self) -> Vec<State> {
        self.processor.states().into_keys().collect()
    }
}

/// An effect as a test names it.
#[derive(Debug, Clone, Copy)]
pub(super) enum ExpectedEffect<'a> {
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

pub(super) use ExpectedEffect::{About, Ack, Kind, Nak, Of, Revision, Term};

impl ExpectedEffect<'_> {
    pub(super) fn is(self, effect: &Effect) -> bool {
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

pub(super) const COUNT: ExpectedEffect<'_> = Kind(EffectKind::Count);
pub(super) const LOAD: ExpectedEffect<'_> = Kind(EffectKind::Load);
pub(super) const SAVE: ExpectedEffect<'_> = Kind(EffectKind::Save);
pub(super) const CHECK: ExpectedEffect<'_> = Kind(EffectKind::Check);
pub(super) const PUBLISH: ExpectedEffect<'_> = Kind(EffectKind::Publish);
pub(super) const MARK: ExpectedEffect<'_> = Kind(EffectKind::Mark);
pub(super) const DEAD_LETTER: ExpectedEffect<'_> = Kind(EffectKind::DeadLetter);
pub(super) const REPUBLISH: ExpectedEffect<'_> = Kind(EffectKind::Republish);
pub(super) const AT_ONCE: ExpectedEffect<'_> = Nak(Duration::ZERO);
pub(super) const LATER: ExpectedEffect<'_> = Nak(Duration::from_secs(30));
/// What comes to nothing is a dead letter before it is terminated.
pub(super) const DEAD_LETTERED: Report = Report::DeadLettered { stream_sequence: 9 };
pub(super) const STORED: Stored =
    Stored { segments: 2, complete: true, notified: None, revision: 1, revised: None, edits: 0, reprocess: 0 };
pub(super) const NOTIFIED: Option<Notified> = Some(Notified { stream_sequence: 4, at: WallTime::from_millis(1) });

pub(super) fn delivery(sequence: u64, attempt: u64, payload: &[u8]) -> Delivery {
    Delivery {
        stream_sequence: sequence,
        attempt,
        stored_at: WallTime::from_millis(STORED_AT),
        received_at: WallTime::from_millis(STORED_AT),
        reply: if attempt == 1 { format!("reply.{sequence}") } else { format!("reply.{sequence}.{attempt}") }.into(),
        redrive_of: None,
        trace_context: None,
        payload: Payload(payload.to_vec()),
    }
}

pub(super) fn ended(session: &str, published: u64) -> String {
    format!(r#"{{"conversationId":"c","sessionId":"{session}","publishedSegments":{published}}}"#)
}

/// The end by which an operator asks for the call to be processed again.
pub(super) fn asked_again(session: &str, request: u64) -> String {
    format!(r#"{{"conversationId":"c","sessionId":"{session}","publishedSegments":2,"reprocess":{request}}}"#)
}

pub(super) fn dead_letter(bench: &Bench) -> Arc<DeadLetter> {
    let Effect::DeadLetter { dead_letter } = &bench.asked.front().expect("an effect was asked for").1 else {
        panic!("a dead letter was expected: {:?}", bench.asked)
    };
    Arc::clone(dead_letter)
}

pub(super) fn settings() -> Settings {
    Settings::default()
}

pub(super) fn page(places: std::ops::Range<i64>, next: Option<&str>) -> Page {
    let segment = |index: i64| Segment {
        id: format!("s:{index}"),
        index: Some(index),
        speaker: None,
        text: format!("word {index}"),
        start_ms: None,
        end_ms: None,
        ..Segment::default()
    };
    Page { segments: places.map(segment).collect(), next: next.map(|n| Cursor(n.into())), ..Page::default() }
}

pub(super) fn saved_summary(bench: &Bench) -> Arc<Summary> {
    let Effect::Save { summary } = &bench.asked.front().expect("an effect was asked for").1 else {
        panic!("a save was expected: {:?}", bench.asked)
    };
    Arc::clone(summary)
}
