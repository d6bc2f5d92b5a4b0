//! All jobs of one process: which of a key runs, what is due, and what is said.

mod arrivals;
mod bytes;
mod journal;
mod keys;
mod stage;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

pub use self::stage::DELIVERIES_STOP_WITHIN;
use self::{
    bytes::Bytes,
    keys::{Digest, Digested, DoneCalls},
    stage::Stage,
};
use crate::{
    bug::Planted,
    counters::{Counters, JobView},
    failure::{Failure, FailureKind},
    ids::{EffectId, JobId},
    input::{ConsumerSettings, Input, Report},
    job::{Around, Event, Job, Next, State, Weight},
    journal::{JournalEntry, JournalEvent},
    kind::EffectKind,
    output::{Notice, Output, Timer, WakeUp},
    served::{Served, Service},
    settings::{Settings, SettingsError},
    time::Time,
};

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
    /// Those of them about a message that used up its deliveries.
    exhausted: usize,
    done: DoneCalls,
    bytes: Bytes,
    served: Served,
    outputs: VecDeque<Output>,
    counters: Counters,
    /// What jobs did since somebody took the journal; `None` where none is kept.
    journal: Option<Vec<JournalEntry>>,
    planted: Planted,
    #[cfg(test)]
    pub(crate) edges: BTreeSet<(State, &'static str, State)>,
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
            exhausted: 0,
            done: DoneCalls::default(),
            bytes: Bytes::default(),
            served: Served::default(),
            outputs: VecDeque::new(),
            counters: Counters::default(),
            journal: None,
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
            Input::Quiet => {
                self.quiet();
                None
            }
            Input::Resume => {
                self.resume();
                None
            }
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
    /// that waits for another one of the same key: one end that is published many times must not delay other calls. Nor does
    /// one about a message that used up its deliveries, which mostly waits. The others are together at most four times as many
    /// jobs as asked for.
    #[must_use]
    pub fn room(&self) -> usize {
        let most = self.settings.max_in_flight;
        let jobs = self.jobs.len().saturating_sub(self.exhausted);
        let working = jobs.saturating_sub(self.acknowledging + self.queued);
        match self.stage {
            Stage::Quiet | Stage::Stopping { .. } | Stage::Draining { .. } | Stage::LastMoment { .. } => 0,
            Stage::Running => most.saturating_sub(working).min(most.saturating_mul(4).saturating_sub(jobs)),
        }
    }

    /// How many deliveries it has taken and wants, all together since the start. It is the one number by which a shell asks
    /// for more: it grows only, but where the processor is quiet or drains.
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
        !matches!(self.stage, Stage::Running | Stage::Quiet)
    }

    /// Whether it takes no deliveries until it is told to go on.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.stage == Stage::Quiet
    }

    fn report(&mut self, effect: EffectId, report: Report) -> Option<JobId> {
        let job = self.jobs.get(&effect.job).filter(|job| job.awaits(effect, &report));
        let Some(service) = job.map(|job| job.service()) else {
            self.counters.ignored_reports += 1;
            return None;
        };
        self.counters.dead_lettered += u64::from(matches!(report, Report::DeadLettered { .. }));
        self.counters.republished += u64::from(matches!(report, Report::Republished { .. }));
        self.counters.revised += u64::from(self.publishes_revision(effect.job, &report));
        self.reported(effect.job, service, report);
        Some(effect.job)
    }

    fn publishes_revision(&self, id: JobId, report: &Report) -> bool {
        matches!(report, Report::Published { .. }) && self.jobs.get(&id).is_some_and(|job| job.announces_revision())
    }

    fn reported(&mut self, id: JobId, service: Option<Service>, report: Report) {
        if let Some(service) = service {
            self.learn_from(service, &report);
        }
        self.advance(id, Event::Reported(report));
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

    fn serve_timers(&mut self) {
        while let Some((at, id)) = self.due.first().copied().filter(|(at, _)| *at <= self.now) {
            let mut job = self.jobs.get_mut(&id);
            match job.as_mut().and_then(|job| job.timers.take_due(self.now)) {
                Some(Timer::Heartbeat) => self.heartbeat(id, at),
                Some(Timer::Settle) => self.advance(id, Event::QuietOver),
                Some(Timer::Retry) => {
                    self.counters.retried += 1;
                    self.advance(id, Event::PauseOver);
                }
                Some(Timer::Answer) => {
                    let detail = format!("no report within {:?}", self.settings.answer_timeout());
                    let failure = Failure { kind: FailureKind::TimedOut, detail };
                    let service = job.and_then(|job| job.service());
                    self.reported(id, service, Report::Failed(failure));
                }
                Some(Timer::StopDeliveries | Timer::Grace) | None => {
                    if let Some(job) = job {
                        schedule(&mut self.due, id, job);
                    }
                }
            }
        }
        match self.stage {
            Stage::Stopping { until } if until <= self.now => self.drain(),
            Stage::Draining { until } if until <= self.now => self.end_grace(),
            Stage::LastMoment { until } if until <= self.now => self.abandon(),
            Stage::Running
            | Stage::Quiet
            | Stage::Stopping { .. }
            | Stage::Draining { .. }
            | Stage::LastMoment { .. } => {}
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
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let (from, on, published) = (job.state(), event.name(), job.published_segments());
        let acknowledged = matches!(event, Event::Reported(Report::Acknowledged));
        let failure = if let Event::Reported(Report::Failed(failure)) = &event { Some(failure.kind) } else { None };
        let (kind, notified_after) = (job.kind(), job.first_notification(&event, self.now));
        let redelivered = matches!(event, Event::Redelivered { .. });
        let around = Around { now: self.now, served: &self.served, settings: &self.settings, planted: self.planted };
        let next = job.advance(event, around);
        self.counters.settled(job.take_settled());
        self.counters.notified(notified_after);
        if let (Next::Wait(Timer::Retry, _), Some(kind), Some(failure)) = (next, kind, failure) {
            self.counters.retry(kind, failure);
        }
        let has_delivery = job.reply().is_some();
        let (to, gives_back, digest) = (job.state(), job.gives_back(), job.key_digest);
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
        let did = failure.map(JournalEvent::Failed).or(redelivered.then_some(JournalEvent::Redelivered));
        self.keep(id, did, from != to, done.as_ref());
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
        let key = Digested { key: &key, digest };
        self.key_queues.remove(&(digest, id));
        if on == "covered" {
            return self.go_on(id, next);
        }
        // The end of a job starts the next one, unless that is done before.
        if to == State::Over {
            self.cover(key, outcome);
            self.go_on(id, next);
        } else {
            self.go_on(id, next);
            self.cover(key, outcome);
            self.start_next_of_key(key);
        }
    }

    /// What a report says of its kind of effect.
    fn learn_from(&mut self, service: Service, report: &Report) {
        let notice = if let Report::Failed(failure) = report {
            self.counters.dead_letters_failed += u64::from(service == Service::of(EffectKind::DeadLetter));
            self.served.failed(self.now, service, failure)
        } else {
            self.served.succeeded(self.now, service, self.settings.longest_silence())
        };
        self.outputs.extend(notice.map(Output::Notice));
    }

    fn count_state(&mut self, state: State, change: fn(usize, usize) -> usize) {
        if state == State::Queued {
            self.queued = change(self.queued, 1);
        } else if state == State::Acknowledging {
            self.acknowledging = change(self.acknowledging, 1);
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

    fn end(&mut self, id: JobId) {
        let Some(job) = self.jobs.remove(&id) else { return };
        self.without_delivery -= usize::from(job.reply().is_none());
        self.exhausted -= usize::from(job.is_about_exhausted());
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
            self.key_queues.remove(&(job.key_digest, id));
            self.start_next_of_key(Digested { key, digest: job.key_digest });
        }
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

#[cfg(test)]
mod tests;
