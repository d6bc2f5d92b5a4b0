//! The world of one plan: the servers, the network, the people, and the processors in their processes.
//!
//! A kill drops a process's executor, and with it its tasks and its core, at that instant; what it had sent still
//! arrives. A frozen process is not run, while everything for it queues.

mod chores;
mod faults;
mod finders;
mod link;
mod mongo;
mod nats;
mod operator;
mod outcome;
#[cfg(feature = "planted-bugs")]
mod planted;
mod run;
mod shell;
mod store_socket;
mod tape;
mod transcriber;
pub(crate) mod watch;

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use jetstream_model::{
    ApiCall, Broker, ClientId, ConsumerAction, ConsumerConfig, Inbox, Input, Request, StreamConfig, Tuning,
};
use smol::LocalExecutor;
use transcript_core::{
    Time, WallTime,
    contract::{CONSUMER, SESSION_ENDED_SUBJECT, TRANSCRIPTION_STREAM, TRANSCRIPTION_SUBJECTS},
    ids::Key,
};

pub use self::{
    faults::Points,
    outcome::{Outcome, Stats},
    watch::{Recording, Violation},
};
use self::{
    faults::{Faults, Point, Twist},
    mongo::Mongo,
    nats::Nats,
    run::{SURROUNDINGS, executor_of},
    shell::Handles,
    tape::Tape,
    watch::Watch,
};
use crate::{
    bug::Bug,
    ledger::Exhaustion,
    observation::{Ending, Observation},
    plan::{Options, Plan, Trigger, at_ms, millis},
    property::TheEnd,
    rng::Rng,
    runtime::{self, Clock},
};

/// The servers' calendar at the start of a world, in milliseconds since the Unix epoch.
const EPOCH_MS: i64 = 1_700_000_000_000;
/// The window of the planted bug.
const TWO_MINUTES_MS: u64 = 120_000;

pub(crate) struct World {
    pub(crate) clock: Rc<Clock>,
    pub(crate) plan: Rc<Plan>,
    nats: Nats,
    mongo: Mongo,
    pub(crate) watch: RefCell<Watch>,
    tape: Option<RefCell<Tape>>,
    /// How everything is set now: the servers have it at once, processors learn it when they start.
    pub(crate) settings: RefCell<Options>,
    faults: Faults,
    delays: RefCell<Rng>,
    lags: RefCell<Rng>,
    /// Everything that is no process of ours.
    surroundings: RefCell<LocalExecutor<'static>>,
    processes: Vec<RefCell<Process>>,
    somebody_is_doomed: Cell<bool>,
    /// Faults that are effective and not yet mended.
    under_way: Cell<u32>,
    last_mended: Cell<Time>,
    transcribers: Cell<u32>,
    steps: Cell<u64>,
    /// When each fault of the plan happened; those behind the last one that did are not there.
    happened: RefCell<Vec<Option<Time>>>,
    /// How long the store failed some jobs while it served others, and how long it served nobody, all faults together.
    store_troubles: Cell<(Duration, Duration)>,
    /// What the operator has yet to do.
    chores_left: Cell<usize>,
    /// When the broker last gave a message up.
    given_up: Cell<Option<Time>>,
}

/// One processor's place: its process comes and goes.
#[derive(Default)]
struct Process {
    executor: Option<Rc<LocalExecutor<'static>>>,
    handles: Option<Handles>,
    starts: u64,
    frozen: u32,
    doomed: bool,
    restart_after: Option<Duration>,
}

impl Process {
    fn in_flight(&self) -> usize {
        self.handles.as_ref().map_or(0, |handles| handles.core.borrow().in_flight())
    }

    /// The jobs in words; `None` where the process is down.
    fn jobs(&self) -> Option<String> {
        let states = self.handles.as_ref()?.core.borrow().states();
        Some(states.iter().map(|(state, count)| format!("{count} {state} ")).collect())
    }
}

impl Plan {
    /// Plays the plan.
    ///
    /// # Panics
    ///
    /// Where the plan has a planted bug and none is compiled in.
    #[must_use]
    pub fn run(&self, recording: Recording) -> Outcome {
        self.play(recording, Taping::Off).0
    }

    /// Plays the plan and writes it down as production does, in the format of [`transcript_trace`]: a part for each process
    /// in the order of their starts, and one without a processor of what no core saw.
    ///
    /// # Panics
    ///
    /// Where the plan has a planted bug and none is compiled in.
    #[must_use]
    pub fn record(&self, recording: Recording) -> (Outcome, Vec<u8>) {
        let (outcome, trace) = self.play(recording, Taping::On);
        (outcome, trace.unwrap_or_default())
    }

    fn play(&self, recording: Recording, taping: Taping) -> (Outcome, Option<Vec<u8>>) {
        assert!(self.bug.is_none() || Bug::are_compiled(), "build with --features planted-bugs to run this plan");
        let world = World::new(self, recording, taping);
        world.set_up();
        world.go_on();
        let outcome = world.finish();
        let tape = world.tape.as_ref().map(|tape| tape.borrow_mut().take());
        (outcome, tape)
    }
}

/// Whether a run is written down in the format of production.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taping {
    Off,
    On,
}

impl World {
    fn new(plan: &Plan, recording: Recording, taping: Taping) -> Rc<Self> {
        let plan = Rc::new(plan.clone());
        let broker = Broker::new(EPOCH_MS, Tuning::default());
        Rc::new(Self {
            clock: Rc::default(),
            nats: Nats::new(broker, plan.processors),
            mongo: Mongo::new(&plan),
            watch: RefCell::new(Watch::new(Rc::clone(&plan), recording)),
            tape: (taping == Taping::On).then(|| RefCell::new(Tape::new(&plan))),
            settings: RefCell::new(plan.options.clone()),
            faults: Faults::new(&plan),
            delays: RefCell::new(Rng::split(plan.seed, 1)),
            lags: RefCell::new(Rng::split(plan.seed, 2)),
            surroundings: RefCell::default(),
            processes: (0..plan.processors).map(|_| RefCell::default()).collect(),
            somebody_is_doomed: Cell::new(false),
            under_way: Cell::new(0),
            last_mended: Cell::new(Time::ZERO),
            transcribers: Cell::new(u32::try_from(plan.calls.len()).unwrap_or(u32::MAX)),
            steps: Cell::new(0),
            happened: RefCell::default(),
            store_troubles: Cell::new((Duration::ZERO, Duration::ZERO)),
            chores_left: Cell::new(plan.chores.len()),
            given_up: Cell::new(None),
            plan,
        })
    }

    fn set_up(self: &Rc<Self>) {
        let window = if self.has_bug(Bug::WindowOfTwoMinutes) { TWO_MINUTES_MS } else { self.plan.options.window_ms };
        self.call(ApiCall::CreateStream(stream(window)));
        self.configure_consumer();
        self.spawn(nats::timers(Rc::clone(self)));
        for call in 0..self.plan.calls.len() {
            self.spawn(transcriber::play(Rc::clone(self), call));
        }
        for (number, fault) in self.plan.faults.iter().enumerate() {
            if let Trigger::AtMs(at) = fault.when {
                self.spawn(operator::wait_and_act(Rc::clone(self), number, at_ms(at)));
            }
        }
        for chore in &self.plan.chores {
            self.spawn(chores::wait_and_do(Rc::clone(self), *chore));
        }
        if let Some(at) = self.plan.heals_at_ms {
            let world = Rc::clone(self);
            self.spawn(async move {
                world.clock.sleep_until(at_ms(at)).await;
                world.faults.healed.set(true);
            });
        }
        for processor in 0..self.plan.processors {
            self.start(processor);
        }
    }

    /// Gives the consumer what the operator wants it to be.
    fn configure_consumer(&self) {
        let settings = self.settings.borrow();
        let config = ConsumerConfig {
            filters: vec![SESSION_ENDED_SUBJECT.into()],
            ack_wait: millis(settings.ack_wait_ms),
            max_deliver: Some(settings.max_deliver),
            max_ack_pending: settings.max_ack_pending,
            ..ConsumerConfig::durable(CONSUMER)
        };
        drop(settings);
        let action = ConsumerAction::CreateOrUpdate;
        self.call(ApiCall::CreateConsumer { stream: TRANSCRIPTION_STREAM.into(), config, action });
    }

    /// Gives the stream another duplicate window.
    fn lengthen_window(&self, window_ms: u64) {
        self.call(ApiCall::UpdateStream(stream(window_ms)));
    }

    /// A call of the operator's tools, whose answer nobody waits for.
    fn call(&self, call: ApiCall) {
        let reply = Inbox { client: ClientId(0), token: 0 };
        nats::handle(self, Input::Request(Request::Api { reply, call: Box::new(call) }), None, false);
    }

    /// The summaries that are yet to be replaced, or announced once more.
    fn stale(&self) -> Vec<Key> {
        if self.plan.options.revise { self.mongo.stale() } else { vec![] }
    }

    fn finish(&self) -> Outcome {
        let now = self.clock.now();
        let jobs = self.processes.iter().map(|process| process.borrow().jobs());
        let end = TheEnd { unsettled: self.nats.unsettled(), jobs: jobs.collect(), stale: self.stale() };
        let mut watch = self.watch.borrow_mut();
        watch.end(now, &end);
        let (points, at_first_fault) = self.faults.points();
        let ledger = &watch.ledger;
        let count = |len: usize| u64::try_from(len).unwrap_or(u64::MAX);
        let stats = Stats {
            virtual_us: now.as_micros(),
            steps: self.steps.get(),
            deliveries: ledger.ends.values().map(|end| count(end.attempts.len())).sum(),
            summaries: count(ledger.summaries.len()),
            notifications: ledger.notifications.values().map(|times| count(times.len())).sum(),
            revisions: ledger.revisions,
            exhausted: count(ledger.ends.values().filter(|end| end.given_up.is_some() && !end.acknowledged).count()),
            missing: count(ledger.exhausted().filter(|(_, _, what)| *what == Exhaustion::Missing).count()),
            dead_letters: count(ledger.dead_letters.len()),
            settled_us: ledger.ends.values().filter_map(|end| end.settled_at).max().map_or(0, Time::as_micros),
            faults_us: self.happened.take().into_iter().map(|at| at.map(Time::as_micros)).collect(),
            points,
            at_first_fault,
        };
        let outcome = Outcome { violation: watch.violation.take(), trace: watch.trace.take(), stats };
        if let (Some(tape), Some(Violation { property, what, .. })) = (&self.tape, &outcome.violation) {
            tape.borrow_mut().remark(now, &format_args!("broken: {property}: {what}"));
        }
        drop(watch);
        self.take_down();
        outcome
    }

    /// The tasks hold the world, and the world their executors: without this no world would ever be freed.
    fn take_down(&self) {
        let surroundings = self.surroundings.take();
        drop(surroundings);
        for process in &self.processes {
            let Process { executor, handles, .. } = std::mem::take(&mut *process.borrow_mut());
            drop(executor);
            drop(handles);
        }
        self.nats.forget_all();
        self.mongo.forget_all();
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.surroundings.borrow().spawn(task).detach();
        runtime::has_woken(SURROUNDINGS);
    }

    /// Runs a task in a processor's process, while that lives.
    pub(crate) fn spawn_on(&self, processor: usize, task: impl Future<Output = ()> + 'static) {
        let executor = self.processes.get(processor).and_then(|process| process.borrow().executor.clone());
        if let Some(executor) = executor {
            executor.spawn(task).detach();
            runtime::has_woken(executor_of(processor));
        }
    }

    fn start(self: &Rc<Self>, processor: usize) {
        let Some(process) = self.processes.get(processor) else { return };
        {
            let mut process = process.borrow_mut();
            process.executor = Some(Rc::new(LocalExecutor::new()));
            process.starts += 1;
            process.frozen = 0;
            process.doomed = false;
        }
        self.saw(&Observation::Started { processor, heartbeat: millis(self.settings.borrow().ack_wait_ms) / 3 });
        let handles = shell::start(self, processor);
        process.borrow_mut().handles = Some(handles);
    }

    /// A process is over at this instant, and starts again after its outage. What it sent still arrives.
    pub(crate) fn end(self: &Rc<Self>, processor: usize, how: Ending) {
        let Some(process) = self.processes.get(processor) else { return };
        let (handles, restart) = {
            let mut process = process.borrow_mut();
            if process.executor.is_none() || process.doomed {
                return;
            }
            process.doomed = true;
            (process.handles.take(), process.restart_after.take())
        };
        self.somebody_is_doomed.set(true);
        self.saw(&Observation::Ended { processor, how });
        if let Some(handles) = handles {
            if let Some(connection) = handles.nats.connection() {
                connection.down.cut();
                connection.up.send(self.clock.now(), self.delay(), nats::Up::Fin);
            }
            if let Some(connection) = handles.mongo.connection() {
                connection.orphan(self);
            }
        }
        let world = Rc::clone(self);
        let outage = restart.unwrap_or(Duration::ZERO);
        self.spawn(async move {
            world.clock.sleep(outage).await;
            world.start(processor);
            world.mended();
        });
    }

    fn is_frozen(&self, processor: usize) -> bool {
        self.processes.get(processor).is_some_and(|process| process.borrow().frozen > 0)
    }

    pub(crate) fn is_doomed(&self, processor: usize) -> bool {
        self.processes.get(processor).is_some_and(|process| process.borrow().doomed)
    }

    pub(crate) fn saw(&self, seen: &Observation<'_>) {
        if let Some(tape) = &self.tape {
            tape.borrow_mut().saw(self.clock.now(), seen, &self.watch.borrow().ledger);
        }
        self.watch.borrow_mut().saw(self.clock.now(), seen);
    }

    pub(crate) fn fail(&self, property: &str, what: String) {
        self.watch.borrow_mut().fail(self.clock.now(), property, what);
    }

    /// How late the broker's timers are that are set next.
    fn draw_lags(&self) -> Option<Tuning> {
        let most = self.plan.options.timer_lag_ms.checked_mul(1_000).filter(|most| *most > 0)?;
        let mut lags = self.lags.borrow_mut();
        let mut lag = || Duration::from_micros(lags.between(0, most));
        Some(Tuning { purge_lag: lag(), check_lag: lag(), age_lag: Duration::ZERO })
    }

    /// How long the next message takes.
    pub(crate) fn delay(&self) -> Duration {
        let options = &self.plan.options;
        let jitter = match options.jitter_us {
            0 => 0,
            most => self.delays.borrow_mut().between(0, most),
        };
        Duration::from_micros(options.delay_us + jitter)
    }

    /// The longest that a message takes while nothing is wrong with its connection.
    pub(crate) fn longest_delay(&self) -> Duration {
        let options = &self.plan.options;
        Duration::from_micros(options.delay_us + options.jitter_us)
    }

    /// The servers' calendar.
    pub(crate) fn calendar(&self) -> WallTime {
        WallTime::from_millis(EPOCH_MS).after(self.clock.now().since(Time::ZERO))
    }

    #[cfg(feature = "planted-bugs")]
    pub(crate) fn has_bug(&self, bug: Bug) -> bool {
        self.plan.bug == Some(bug)
    }

    #[cfg(not(feature = "planted-bugs"))]
    #[expect(clippy::unused_self, reason = "bugs are chosen by the plan where they are compiled in")]
    pub(crate) const fn has_bug(&self, _: Bug) -> bool {
        false
    }

    /// A point of the run is passed: what waits for it happens.
    fn pass(self: &Rc<Self>, point: Point) -> Twist {
        let mut twist = Twist::default();
        for number in self.faults.pass(&self.plan, point) {
            operator::act(self, number, &mut twist);
        }
        twist
    }

    fn happened(&self, fault: usize) {
        let mut happened = self.happened.borrow_mut();
        let known = happened.len().max(fault + 1);
        happened.resize(known, None);
        if let Some(at) = happened.get_mut(fault) {
            *at = Some(self.clock.now());
        }
    }

    /// A fault begins that has an end.
    fn broken(&self) {
        self.under_way.set(self.under_way.get() + 1);
    }

    fn mended(&self) {
        self.under_way.set(self.under_way.get().saturating_sub(1));
        self.last_mended.set(self.clock.now());
    }
}

fn stream(window_ms: u64) -> StreamConfig {
    StreamConfig {
        duplicate_window: millis(window_ms),
        ..StreamConfig::new(TRANSCRIPTION_STREAM, &TRANSCRIPTION_SUBJECTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Action, Call, Fault, Options};

    #[test]
    fn a_world_that_is_over_is_freed() {
        let what = Action::Kill { processor: 0, outage_ms: 130_000 };
        let plan = Plan {
            seed: 0,
            processors: 2,
            options: Options::quick(),
            calls: vec![Call::short("c", "s", 1_000)],
            faults: vec![Fault { when: Trigger::AtMs(1_500), what }],
            chores: vec![],
            heals_at_ms: Some(600_000),
            bug: None,
        };
        let world = World::new(&plan, Recording::Off, Taping::On);
        world.set_up();
        world.go_on();
        assert_eq!(world.finish().violation, None);
        let gone = Rc::downgrade(&world);
        drop(world);
        assert!(gone.upgrade().is_none(), "{} hold it", gone.strong_count());
    }
}
