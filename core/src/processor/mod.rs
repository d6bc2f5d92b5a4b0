//! All jobs of one process: which of a key runs, what is due, and what is said.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use crate::{
    bug::Planted,
    counters::{Counters, JobView},
    event::SessionEnded,
    failure::{Failure, FailureKind},
    ids::{EffectId, JobId, Key},
    input::{ConsumerSettings, Delivery, Exhausted, Input, Report, StaleSummary},
    job::{Around, Event, Job, Next, Outcome, State, Weight},
    kind::EffectKind,
    output::{Notice, Output, Timer, WakeUp},
    served::Served,
    settings::{Settings, SettingsError},
    time::Time,
};

/// How long jobs that the grace time has left may take to be given back; no longer than the grace time itself.
const LAST_MOMENT: Duration = Duration::from_secs(1);
/// How long the end of the deliveries is waited for. A shell needs no longer than its last pull request is open, and less
/// than that where the server is away; after this time, what it was asked is taken for lost.
pub const DELIVERIES_STOP_WITHIN: Duration = Duration::from_secs(5);

/// The state machine that decides everything about every job; see the crate's first page.
#[derive(Debug)]
pub struct Processor {
    settings: Settings,
    now: Time,
    /// Boxed: the map's nodes are half empty where ids only grow, and move what is in them.
    jobs: BTreeMap<JobId, Box<Job>>,
    /// The job of each message that was delivered; the last one, where an earlier one waits for its last confirmation.
    messages: BTreeMap<u64, JobId>,
    /// The jobs of each key, in the order of their delivery: the first one runs that has not done its work.
    key_queues: BTreeSet<(Digest, JobId)>,
    /// The next deadline of each job.
    due: BTreeSet<(Time, JobId)>,
    stage: Stage,
    last_job: u64,
    /// Jobs that wait for nothing but the confirmation of their acknowledgement.
    acknowledging: usize,
    /// Jobs that wait for another one of the same key.
    queued: usize,
    /// Jobs without a delivery.
    without_delivery: usize,
    done: DoneCalls,
    bytes: Bytes,
    served: Served,
    outputs: VecDeque<Output>,
    counters: Counters,
    planted: Planted,
    #[cfg(test)]
    pub(crate) edges: BTreeSet<(State, &'static str, State)>,
}

/// Where a processor stands between its start and its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It takes deliveries.
    Running,
    /// It wants no more of them, and waits until they have ended.
    Stopping {
        /// When it waits no longer.
        until: Time,
    },
    /// It gives back what has not begun to save, and lets the others finish.
    Draining {
        /// When the grace time ends.
        until: Time,
    },
    /// It has given back everything else.
    LastMoment {
        /// When it waits for confirmations no longer.
        until: Time,
    },
}

impl Stage {
    /// What it waits for at last.
    fn deadline(self) -> Option<WakeUp> {
        match self {
            Self::Running => None,
            Self::Stopping { until } => Some(WakeUp { at: until, timer: Timer::StopDeliveries }),
            Self::Draining { until } | Self::LastMoment { until } => Some(WakeUp { at: until, timer: Timer::Grace }),
        }
    }

    /// Whether no job is begun any more.
    fn drains(self) -> bool {
        match self {
            Self::Running | Self::Stopping { .. } => false,
            Self::Draining { .. } | Self::LastMoment { .. } => true,
        }
    }
}

/// Stands for a key where many are compared: equal keys have equal digests, others may.
type Digest = u64;

/// The texts of all summaries under way.
#[derive(Debug, Default)]
struct Bytes {
    /// The bytes that the jobs hold, and have to be ready for.
    held: u64,
    /// How many jobs wait for a page.
    awaiting: usize,
    /// Jobs that would ask for one if there were room, oldest first.
    waiting: BTreeSet<JobId>,
}

/// The calls that were done last, with the time when their segments were loaded.
#[derive(Debug, Default)]
struct DoneCalls {
    loaded_at: BTreeMap<Digest, Time>,
    oldest_first: VecDeque<Digest>,
}

/// How many of them are remembered.
const DONE_CALLS: usize = 4096;

impl DoneCalls {
    fn add(&mut self, key: &Key, loaded_at: Time) {
        let digest = digest(key);
        if self.loaded_at.insert(digest, loaded_at).is_none() {
            self.oldest_first.push_back(digest);
        }
        if self.oldest_first.len() > DONE_CALLS
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            self.loaded_at.remove(&oldest);
        }
    }

    /// When the segments of a call were loaded. Other calls have the same digest at times: what is found is only a hint.
    fn loaded_at(&self, key: &Key) -> Option<Time> {
        self.loaded_at.get(&digest(key)).copied()
    }
}

impl Processor {
    /// A processor without a job.
    ///
    /// # Errors
    ///
    /// Settings that cannot work.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        settings.check()?;
        Ok(Self {
            settings,
            now: Time::ZERO,
            jobs: BTreeMap::new(),
            messages: BTreeMap::new(),
            key_queues: BTreeSet::new(),
            due: BTreeSet::new(),
            stage: Stage::Running,
            last_job: 0,
            acknowledging: 0,
            queued: 0,
            without_delivery: 0,
            done: DoneCalls::default(),
            bytes: Bytes::default(),
            served: Served::default(),
            outputs: VecDeque::new(),
            counters: Counters::default(),
            planted: Planted::default(),
            #[cfg(test)]
            edges: BTreeSet::new(),
        })
    }

    /// A processor with a fault.
    ///
    /// # Errors
    ///
    /// Settings that cannot work.
    #[cfg(feature = "planted-bugs")]
    pub fn with_bug(settings: Settings, bug: crate::Bug) -> Result<Self, SettingsError> {
        Ok(Self { planted: Planted(Some(bug)), ..Self::new(settings)? })
    }

    /// Takes what has happened, at a time that is not before that of the last call. Gives the job that it was for; `None`
    /// where it was for no single one, or where nobody took it.
    pub fn handle(&mut self, now: Time, input: Input) -> Option<JobId> {
        self.now = self.now.max(now);
        let job = match input {
            Input::Delivered(delivery) => self.deliver(&delivery),
            Input::Reported { effect, report } => self.report(effect, report),
            Input::Exhausted(exhausted) => self.exhausted(&exhausted),
            Input::Stale(stale) => self.stale(stale),
            Input::Consumer(consumer) => {
                self.follow_consumer(consumer);
                None
            }
            Input::Woken => None,
            Input::Drain => {
                self.stop_deliveries();
                None
            }
            Input::DeliveriesStopped => {
                self.drain();
                None
            }
        };
        self.serve_timers();
        job
    }

    /// Gives the next job this number, which no job under way may have: for a core that is told of some jobs only, those of
    /// a trace.
    pub fn number_next_job(&mut self, id: JobId) {
        self.last_job = id.0.saturating_sub(1);
    }

    /// Ends a job without a word, for a core that will not be told what becomes of it. Its key's next job goes on.
    pub fn forget(&mut self, id: JobId) {
        if let Some(state) = self.jobs.get(&id).map(|job| job.state()) {
            self.count_state(state, usize::saturating_sub);
        }
        self.end(id);
    }

    /// The jobs under way, oldest first.
    pub fn jobs(&self) -> impl Iterator<Item = JobId> {
        self.jobs.keys().copied()
    }

    /// Whether a job is under way.
    #[must_use]
    pub fn has(&self, id: JobId) -> bool {
        self.jobs.contains_key(&id)
    }

    /// The next thing to do, until it is [`Output::Wait`] or [`Output::Drained`].
    pub fn poll_output(&mut self) -> Output {
        if let Some(output) = self.outputs.pop_front() {
            return output;
        }
        if self.stage.drains() && self.jobs.is_empty() {
            return Output::Drained;
        }
        let job = self.due.first().and_then(|(at, job)| {
            let timer = self.jobs.get(job)?.timers.next()?.1;
            Some(WakeUp { at: *at, timer })
        });
        Output::Wait(job.into_iter().chain(self.stage.deadline()).min_by_key(|wake_up| wake_up.at))
    }

    /// How many more deliveries it wants.
    ///
    /// A job that only waits for the confirmation of its acknowledgement takes no room: a server that was killed forgets
    /// its last deliveries, answers no acknowledgement of them, and delivers them again only to whoever asks. Nor does one
    /// that waits for another one of the same key: one end that is published many times must not delay other calls. All
    /// together there are four times as many jobs as asked for, at the most.
    #[must_use]
    pub fn room(&self) -> usize {
        let most = self.settings.max_in_flight;
        let working = self.jobs.len().saturating_sub(self.acknowledging + self.queued);
        match self.stage {
            Stage::Stopping { .. } | Stage::Draining { .. } | Stage::LastMoment { .. } => 0,
            Stage::Running => most.saturating_sub(working).min(most.saturating_mul(4).saturating_sub(self.jobs.len())),
        }
    }

    /// How many deliveries it has taken and wants, all together since the start. It is the one number by which a shell asks
    /// for more: it grows only, but where the processor drains.
    #[must_use]
    pub fn allowance(&self) -> u64 {
        let Counters { delivered, overflowed, .. } = &self.counters;
        delivered + overflowed + u64::try_from(self.room()).unwrap_or(u64::MAX)
    }

    /// The kind of effect that a job has asked for, or is about to; `None` where there is no such job, or it waits.
    #[must_use]
    pub fn kind_of(&self, id: JobId) -> Option<EffectKind> {
        self.jobs.get(&id)?.kind()
    }

    /// How many bytes of text the summaries under way hold, and have to be ready for.
    #[must_use]
    pub fn bytes_in_flight(&self) -> u64 {
        self.bytes.held
    }

    /// How many jobs are under way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.jobs.len()
    }

    /// How many jobs stand where.
    #[must_use]
    pub fn states(&self) -> BTreeMap<State, usize> {
        let mut states = BTreeMap::new();
        for job in self.jobs.values() {
            *states.entry(job.state()).or_default() += 1;
        }
        states
    }

    /// What has happened since the start.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Which kinds of effects fail now, since when, and how: no effect of the kind has succeeded since then. A document or
    /// message that its server refuses is a failure of its own call and not named here.
    pub fn failing(&self) -> impl Iterator<Item = (EffectKind, Time, &Failure)> {
        self.served.failing()
    }

    /// How long ago the oldest end was stored that this processor has in hand and has not done its work for; `None` where
    /// it has none.
    #[must_use]
    pub fn oldest_end(&self, now: Time) -> Option<Duration> {
        let unsettled = self.jobs.values().filter(|job| job.reply().is_some() && job.state() != State::Acknowledging);
        unsettled.map(|job| job.age(now)).max()
    }

    /// What is known of the `most` jobs that were begun first, oldest first.
    pub fn views(&self, now: Time, most: usize) -> impl Iterator<Item = JobView> {
        self.jobs.values().take(most).map(move |job| job.view(now))
    }

    /// Whether it has been told to come to an end.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.stage != Stage::Running
    }

    fn deliver(&mut self, delivery: &Delivery) -> Option<JobId> {
        let ended = SessionEnded::parse(&delivery.payload.0).map(|ended| (ended.session.key(), ended));
        if let Some(id) = self.redelivered(ended.as_ref().ok().map(|(key, _)| key), delivery) {
            return Some(id);
        }
        // Jobs without a delivery must not take the place of one that was asked for.
        if self.jobs.len() - self.without_delivery >= self.settings.max_in_flight.saturating_mul(4) {
            self.counters.overflowed += 1;
            return None;
        }
        self.counters.delivered += 1;
        self.counters.redelivered += u64::from(delivery.attempt > 1);
        self.counters.rejected += u64::from(ended.is_err());
        let id = self.next_id();
        match ended {
            Err(rejection) => {
                let job = Job::rejected(id, self.now, delivery, rejection.to_string(), &self.settings);
                self.begin(id, "delivered", job, Next::Ask);
            }
            Ok((_, ended)) if self.stage.drains() => {
                let job = Job::handed_on(id, self.now, delivery, ended, &self.settings);
                self.begin(id, "delivered", job, Next::Ask);
            }
            Ok((key, ended)) => {
                let mut job = Job::new(id, self.now, delivery, key.clone(), ended, &self.settings);
                if let Some(loaded_at) = self.done.loaded_at(&key) {
                    job = job.after(loaded_at);
                }
                self.begin(id, "delivered", job, Next::Stay);
                self.queue(id, &key);
            }
        }
        Some(id)
    }

    /// The job that is under way about the same message and takes the delivery over. A second one would only do the same
    /// again, and its acknowledgement would settle the first one's delivery.
    fn redelivered(&mut self, key: Option<&Key>, delivery: &Delivery) -> Option<JobId> {
        let id = self.messages.get(&delivery.stream_sequence).copied()?;
        // A stream that was made anew counts from the beginning.
        self.jobs.get(&id).filter(|job| job.key() == key)?;
        self.advance(id, Event::Redelivered { reply: Arc::clone(&delivery.reply), attempt: delivery.attempt });
        let taken = self.jobs.contains_key(&id);
        if taken {
            self.counters.delivered += 1;
            self.counters.redelivered += 1;
        }
        taken.then_some(id)
    }

    /// JetStream counts the deliveries that were due to its own outages too. A job that works on the message knows better:
    /// its acknowledgement is taken as before, however late (nats-server, consumer.go, processAckMsgLocked).
    fn exhausted(&mut self, exhausted: &Exhausted) -> Option<JobId> {
        let in_hand = self.messages.get(&exhausted.stream_sequence).copied();
        if let Some(id) = in_hand.filter(|id| self.jobs.get(id).is_some_and(|job| !job.gives_back())) {
            self.counters.outlived += 1;
            self.advance(id, Event::Exhausted);
            return Some(id);
        }
        let id = self.next_id();
        self.begin(id, "exhausted", Job::exhausted(id, self.now, exhausted), Next::Ask);
        Some(id)
    }

    /// Takes up a session that has more segments than its summary, unless there is no room, or a job about it is under way already.
    fn stale(&mut self, stale: StaleSummary) -> Option<JobId> {
        let key = stale.session.key();
        if self.room() == 0 || self.first_of_key(&key).is_some() {
            return None;
        }
        let id = self.next_id();
        self.begin(id, "stale", Job::stale(id, self.now, key.clone(), stale), Next::Stay);
        self.queue(id, &key);
        Some(id)
    }

    fn next_id(&mut self) -> JobId {
        self.last_job += 1;
        JobId(self.last_job)
    }

    fn begin(&mut self, id: JobId, on: &'static str, job: Job, next: Next) {
        self.took(State::Over, on, job.state());
        self.counters.given_back += u64::from(job.gives_back());
        self.count_state(job.state(), usize::saturating_add);
        if job.reply().is_some() {
            self.messages.insert(job.stream_sequence(), id);
        }
        self.without_delivery += usize::from(job.reply().is_none());
        self.jobs.insert(id, Box::new(job));
        self.go_on(id, next);
    }

    /// Puts the job behind those of the same key; the first one runs.
    fn queue(&mut self, id: JobId, key: &Key) {
        self.key_queues.insert((digest(key), id));
        if self.first_of_key(key) == Some(id) {
            self.advance(id, Event::FirstOfKey);
        }
    }

    fn report(&mut self, effect: EffectId, report: Report) -> Option<JobId> {
        if self.jobs.get(&effect.job).is_some_and(|job| job.awaits(effect, &report)) {
            self.counters.dead_lettered += u64::from(matches!(report, Report::DeadLettered { .. }));
            self.counters.republished += u64::from(matches!(report, Report::Republished { .. }));
            self.counters.revised += u64::from(self.publishes_revision(effect.job, &report));
            self.advance(effect.job, Event::Reported(report));
            Some(effect.job)
        } else {
            self.counters.ignored_reports += 1;
            None
        }
    }

    fn publishes_revision(&self, id: JobId, report: &Report) -> bool {
        matches!(report, Report::Published { .. }) && self.jobs.get(&id).is_some_and(|job| job.announces_revision())
    }

    /// Before anything is given back: an open pull request would get it again, at once and again.
    fn stop_deliveries(&mut self) {
        if self.stage == Stage::Running {
            self.stage = Stage::Stopping { until: self.now.after(DELIVERIES_STOP_WITHIN) };
            self.outputs.push_back(Output::StopDeliveries);
        }
    }

    /// The consumer's own settings count from now on, for jobs under way too: a server that is told of a shorter ack wait
    /// applies it to what it has handed over before (nats-server, consumer.go, updateConfig).
    fn follow_consumer(&mut self, consumer: ConsumerSettings) {
        let before = self.settings.heartbeat_interval();
        let settings =
            Settings { ack_wait: consumer.ack_wait, max_deliver: consumer.max_deliver.max(1), ..self.settings.clone() };
        if settings.check().is_err() {
            return;
        }
        self.settings = settings;
        if self.settings.heartbeat_interval() >= before {
            return;
        }
        for (id, job) in &mut self.jobs {
            if job.timers.is_set(Timer::Heartbeat) {
                job.timers.set(Timer::Heartbeat, self.now);
                schedule(&mut self.due, *id, job);
            }
        }
    }

    fn drain(&mut self) {
        let (Stage::Running | Stage::Stopping { .. }) = self.stage else { return };
        self.stage = Stage::Draining { until: self.now.after(self.settings.grace) };
        let jobs: Vec<JobId> = self.jobs.keys().copied().collect();
        for id in jobs {
            self.advance(id, Event::Drain);
        }
    }

    fn serve_timers(&mut self) {
        while let Some((at, id)) = self.due.first().copied().filter(|(at, _)| *at <= self.now) {
            match self.jobs.get_mut(&id).and_then(|job| job.timers.take_due(self.now)) {
                Some(Timer::Heartbeat) => self.heartbeat(id, at),
                Some(Timer::Settle) => self.advance(id, Event::QuietOver),
                Some(Timer::Retry) => {
                    self.counters.retried += 1;
                    self.advance(id, Event::PauseOver);
                }
                Some(Timer::Answer) => {
                    let detail = format!("no report within {:?}", self.settings.answer_timeout());
                    let failure = Failure { kind: FailureKind::TimedOut, detail };
                    self.advance(id, Event::Reported(Report::Failed(failure)));
                }
                Some(Timer::StopDeliveries | Timer::Grace) | None => {
                    if let Some(job) = self.jobs.get_mut(&id) {
                        schedule(&mut self.due, id, job);
                    }
                }
            }
        }
        match self.stage {
            Stage::Stopping { until } if until <= self.now => self.drain(),
            Stage::Draining { until } if until <= self.now => self.end_grace(),
            Stage::LastMoment { until } if until <= self.now => self.abandon(),
            Stage::Running | Stage::Stopping { .. } | Stage::Draining { .. } | Stage::LastMoment { .. } => {}
        }
    }

    /// Leaves everything to redelivery.
    fn abandon(&mut self) {
        self.counters.abandoned += u64::try_from(self.jobs.len()).unwrap_or(u64::MAX);
        self.jobs.clear();
        self.bytes = Bytes::default();
        (self.acknowledging, self.queued, self.without_delivery) = (0, 0, 0);
        self.messages.clear();
        self.key_queues.clear();
        self.due.clear();
    }

    /// Gives back what did not come to its end within the grace time, for which there is a moment more.
    fn end_grace(&mut self) {
        self.stage = Stage::LastMoment { until: self.now.after(self.settings.grace.min(LAST_MOMENT)) };
        let jobs: Vec<JobId> = self.jobs.keys().copied().collect();
        for id in jobs {
            self.advance(id, Event::GraceOver);
        }
    }

    /// Sends the heartbeat that was due `at` this time.
    fn heartbeat(&mut self, id: JobId, at: Time) {
        let interval = self.settings.heartbeat_interval();
        let next = self.now.after(interval);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.timers.set(Timer::Heartbeat, next);
        schedule(&mut self.due, id, job);
        if let Some(reply) = job.reply() {
            self.counters.heartbeat(interval + self.now.since(at));
            self.outputs.push_back(Output::InProgress { reply: Arc::clone(reply) });
        }
    }

    fn advance(&mut self, id: JobId, event: Event) {
        self.learn_from(id, &event);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let (from, on, published) = (job.state(), event.name(), job.published_segments());
        let acknowledged = matches!(event, Event::Reported(Report::Acknowledged));
        let failure = if let Event::Reported(Report::Failed(failure)) = &event { Some(failure.kind) } else { None };
        let (kind, notified_after) = (job.kind(), job.first_notification(&event, self.now));
        let around = Around { now: self.now, served: &self.served, settings: &self.settings, planted: self.planted };
        let next = job.advance(event, around);
        self.counters.settled(job.take_settled());
        self.counters.notified(notified_after);
        if let (Next::Wait(Timer::Retry, _), Some(kind), Some(failure)) = (next, kind, failure) {
            self.counters.retry(kind, failure);
        }
        let has_delivery = job.reply().is_some();
        let (to, gives_back) = (job.state(), job.gives_back());
        let is_done = from != to && matches!(to, State::Acknowledging | State::Over);
        let outcome = if is_done && from != State::Acknowledging { job.outcome() } else { None };
        let done = outcome.and_then(|_| job.done(self.now, published?));
        let key = if is_done && from != State::Acknowledging { job.key().cloned() } else { None };
        if from != to {
            self.counters.given_back += u64::from(gives_back);
            self.counters.acknowledged += u64::from(acknowledged);
            self.counters.unconfirmed += u64::from(from == State::Acknowledging && !acknowledged);
            self.count_state(from, usize::saturating_sub);
            self.count_state(to, usize::saturating_add);
        }
        if next != Next::Stay && (on != "pause over" || from != to) {
            self.took(from, on, to);
        }
        let is_repeat = outcome.is_some_and(|outcome| outcome.loaded_at.is_none()) && from != State::Marking;
        self.counters.repeated += u64::from(is_repeat);
        self.counters.unmarked += u64::from(from == State::Marking && failure.is_some() && is_done);
        self.counters.outlived += u64::from(on == "checked" && to == State::Over && outcome.is_none());
        if let Some(outcome) = outcome.filter(|_| has_delivery) {
            let announced_now = from == State::Marking;
            self.counters.outcome(outcome.segments, outcome.complete, published.unwrap_or(0), announced_now);
        }
        if !is_repeat {
            self.outputs.extend(done.map(|done| Output::Notice(Notice::Done(done))));
        }
        let Some(key) = key else { return self.go_on(id, next) };
        self.key_queues.remove(&(digest(&key), id));
        if on == "covered" {
            return self.go_on(id, next);
        }
        // The end of a job starts the next one, unless that is done before.
        if to == State::Over {
            self.cover(&key, outcome);
            self.go_on(id, next);
        } else {
            self.go_on(id, next);
            self.cover(&key, outcome);
            self.start_next_of_key(&key);
        }
    }

    /// What a report says of its kind of effect.
    fn learn_from(&mut self, id: JobId, event: &Event) {
        let Event::Reported(report) = event else { return };
        let Some(kind) = self.jobs.get(&id).and_then(|job| job.kind()) else { return };
        let notice = match report {
            Report::Failed(failure) => {
                self.counters.dead_letters_failed += u64::from(kind == EffectKind::DeadLetter);
                self.served.failed(self.now, kind, failure)
            }
            Report::Counted { .. }
            | Report::Loaded(_)
            | Report::Saved(_)
            | Report::Checked(_)
            | Report::Published { .. }
            | Report::Marked
            | Report::DeadLettered { .. }
            | Report::Republished { .. }
            | Report::Acknowledged => self.served.succeeded(self.now, kind, self.settings.longest_silence()),
        };
        self.outputs.extend(notice.map(Output::Notice));
    }

    /// A job is done with its call. Other ends of the call may wait behind it, to which that is all that they ask for.
    fn cover(&mut self, key: &Key, outcome: Option<Outcome>) {
        let Some(outcome) = outcome else { return };
        let Some(loaded_at) = outcome.loaded_at else { return };
        self.done.add(key, loaded_at);
        let waiting: Vec<JobId> = self.jobs_of_key(key).collect();
        for id in waiting {
            self.advance(id, Event::Covered(outcome));
        }
    }

    fn count_state(&mut self, state: State, change: fn(usize, usize) -> usize) {
        match state {
            State::Queued => self.queued = change(self.queued, 1),
            State::Acknowledging => self.acknowledging = change(self.acknowledging, 1),
            State::Over
            | State::Quiet
            | State::Counting
            | State::Loading
            | State::Saving
            | State::Checking
            | State::Publishing
            | State::Marking
            | State::DeadLettering
            | State::Republishing => {}
        }
    }

    fn go_on(&mut self, id: JobId, next: Next) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        match next {
            Next::Ask if !self.bytes.have_room(job.next_page_bytes(&self.settings), &self.settings) => {
                self.bytes.waiting.insert(id);
            }
            Next::Ask => {
                if let Some((id, effect)) = job.ask(self.now, &self.settings) {
                    self.outputs.push_back(Output::Perform { id, effect });
                }
            }
            Next::Wait(timer, at) => job.timers.set(timer, at),
            Next::Stay => {}
            Next::End => return self.end(id),
        }
        // The account of bytes is kept in step with the job, and others go on where there is room again.
        if !job.is_loading() {
            self.bytes.waiting.remove(&id);
        }
        let weight = job.weight(&self.settings);
        let weighed = std::mem::replace(&mut job.weighed, weight);
        schedule(&mut self.due, id, job);
        if weight != weighed {
            self.bytes.change(weighed, weight);
            self.admit();
        }
    }

    fn admit(&mut self) {
        while let Some(id) = self.bytes.waiting.first().copied() {
            let page = self.jobs.get(&id).and_then(|job| job.next_page_bytes(&self.settings));
            if !self.bytes.have_room(page, &self.settings) {
                return;
            }
            self.bytes.waiting.remove(&id);
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            if let Some((effect, what)) = job.ask(self.now, &self.settings) {
                self.outputs.push_back(Output::Perform { id: effect, effect: what });
            }
            let weight = job.weight(&self.settings);
            self.bytes.change(std::mem::replace(&mut job.weighed, weight), weight);
            schedule(&mut self.due, id, job);
        }
    }

    fn end(&mut self, id: JobId) {
        let Some(job) = self.jobs.remove(&id) else { return };
        self.without_delivery -= usize::from(job.reply().is_none());
        if self.messages.get(&job.stream_sequence()) == Some(&id) {
            self.messages.remove(&job.stream_sequence());
        }
        self.bytes.change(job.weighed, Weight::default());
        self.bytes.waiting.remove(&id);
        self.admit();
        if let Some(at) = job.scheduled {
            self.due.remove(&(at, id));
        }
        if let Some(key) = job.key() {
            self.key_queues.remove(&(digest(key), id));
            self.start_next_of_key(key);
        }
    }

    /// The next job of the key goes on, unless it does already. It does not wait for an acknowledgement to be confirmed: a
    /// server that forgot the delivery in a crash answers none, and delivers it again only where there is room.
    fn start_next_of_key(&mut self, key: &Key) {
        // A draining processor begins nothing.
        if !self.stage.drains()
            && let Some(next) = self.first_of_key(key)
        {
            self.advance(next, Event::FirstOfKey);
        }
    }

    fn first_of_key(&self, key: &Key) -> Option<JobId> {
        self.jobs_of_key(key).next()
    }

    /// The jobs of a key that have not done their work, in the order of their delivery.
    fn jobs_of_key(&self, key: &Key) -> impl Iterator<Item = JobId> {
        let digest = digest(key);
        let alike = self.key_queues.range((digest, JobId(0))..=(digest, JobId(u64::MAX))).map(|(_, id)| *id);
        alike.filter(move |id| self.jobs.get(id).is_some_and(|job| job.key() == Some(key)))
    }

    #[cfg(test)]
    fn took(&mut self, from: State, on: &'static str, to: State) {
        self.edges.insert((from, on, to));
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "the tests keep a record of the edges taken")]
    fn took(&self, _from: State, _on: &'static str, _to: State) {}
}

/// Keeps the queue of deadlines in step with the job's own.
fn schedule(due: &mut BTreeSet<(Time, JobId)>, id: JobId, job: &mut Job) {
    let next = job.timers.next().map(|(at, _)| at);
    if job.scheduled != next {
        if let Some(at) = job.scheduled {
            due.remove(&(at, id));
        }
        if let Some(at) = next {
            due.insert((at, id));
        }
        job.scheduled = next;
    }
}

fn digest(key: &Key) -> Digest {
    // Without a random state it is the same in each run, and nothing that is said depends on it.
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

impl Bytes {
    /// Whether a page of so many bytes may be asked for; whatever else is asked for may. When nobody waits for a page there
    /// is no other way on.
    fn have_room(&self, page: Option<u64>, settings: &Settings) -> bool {
        page.is_none_or(|page| self.held.saturating_add(page) <= settings.max_bytes_in_flight) || self.awaiting == 0
    }

    fn change(&mut self, from: Weight, to: Weight) {
        self.held = self.held.saturating_add(to.bytes).saturating_sub(from.bytes);
        self.awaiting = (self.awaiting + usize::from(to.awaits_page)).saturating_sub(usize::from(from.awaits_page));
    }
}

#[cfg(test)]
mod tests;
