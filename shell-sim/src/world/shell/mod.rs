//! A processor's process: the very core that production runs, and a shell that does what the real one does.
//!
//! NATS and MongoDB are asked by the very clients that production runs; only the sockets are others.

#[cfg(feature = "planted-bugs")]
mod misbehave;

#[cfg(feature = "planted-bugs")]
use std::sync::Arc;
use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::Rc,
    time::Duration,
};

use jetstream_model::wire;
use smol::future;
use transcript_client::{
    jetstream::{self, Address, JetStream},
    mongodb::Request,
};
use transcript_core::{
    Delivery, Effect, Input, Output, Processor, Report, State, Time, WakeUp, WallTime, ids::EffectId,
};

#[cfg(feature = "planted-bugs")]
use super::planted;
use super::{
    World, faults::Point, finders, mongo::MongoClient, nats, nats::NatsClient, store_socket::StoreSocket,
    tape::ProcessTape,
};
use crate::{
    bug::Bug,
    observation::{Ending, Observation},
    plan::{EffectPattern, Moment, millis},
    runtime::{Queue, Slot},
    store::{self, Command, StoreError},
};

/// How often the consumer is looked at: less often than in production, because a world is mostly idle. What is decided about it
/// is the same.
const CONSUMER_EVERY: Duration = Duration::from_secs(60);
/// What the planted bug of the client's buffer asks for beyond what there is room for.
const PREFETCH: u64 = 200;

/// How long planted bugs wait for the end of a request.
const FOR_EVER: Duration = Duration::from_secs(1 << 30);

/// Something that happened to a process.
pub(super) enum Event {
    /// The core is told.
    Core(Input),
    /// The connection to the broker was made or lost.
    Nats(jetstream::Input),
    /// A message came from the broker.
    Received { to: Address, received: wire::Received },
    /// SIGTERM.
    Drain,
}

/// What the world needs of a process to disturb it.
#[derive(Clone)]
pub(super) struct Handles {
    pub(super) events: Rc<Queue<Event>>,
    pub(super) nats: Rc<NatsClient>,
    pub(super) mongo: Rc<MongoClient>,
    pub(super) core: Rc<RefCell<Processor>>,
    /// The ack wait that the process has learnt last.
    pub(super) ack_wait: Rc<Cell<Duration>>,
}

/// What the parts of a process share.
pub(super) struct Shared {
    pub(super) world: Rc<World>,
    pub(super) processor: usize,
    pub(super) started: Time,
    pub(super) events: Rc<Queue<Event>>,
    nats: Rc<NatsClient>,
    pub(super) mongo: Rc<MongoClient>,
    pub(super) store: StoreSocket,
    request_timeout: Duration,
    ack_wait: Rc<Cell<Duration>>,
    /// It has been told to take no more work.
    draining: Cell<bool>,
    /// Where what the core is told is written down.
    tape: Option<ProcessTape>,
}

/// The driver's own state.
struct Driver {
    shared: Rc<Shared>,
    core: Rc<RefCell<Processor>>,
    client: JetStream,
    /// Whether the client was told of a connection; for planted bugs only.
    knows_connection: bool,
    /// What the client has told the core, and the core has not been told.
    told: VecDeque<Input>,
    /// Messages that wait for room; for the planted bug of the client's buffer only.
    held: VecDeque<Delivery>,
    /// Where each call was acknowledged last; for planted bugs only.
    #[cfg(feature = "planted-bugs")]
    replies: std::collections::BTreeMap<transcript_core::ids::Key, Arc<str>>,
    #[cfg(feature = "planted-bugs")]
    planted: planted::Planted,
}

/// Which wake-ups have been served.
#[derive(Debug, Clone, Copy, Default)]
struct WakeUps {
    core: Option<WakeUp>,
    client: Option<jetstream::WakeUp>,
}

/// Starts a process on a processor's executor.
pub(super) fn start(world: &Rc<World>, processor: usize) -> Handles {
    let options = &world.plan.options;
    let ack_wait = Rc::new(Cell::new(millis(world.settings.borrow().ack_wait_ms)));
    let events = Rc::new(Queue::default());
    let (nats, mongo) = (NatsClient::new(world, processor, &events), MongoClient::new(world, processor));
    let shared = Rc::new(Shared {
        world: Rc::clone(world),
        processor,
        started: world.clock.now(),
        events: Rc::clone(&events),
        nats: Rc::clone(&nats),
        mongo: Rc::clone(&mongo),
        store: StoreSocket::new(options.core().request_timeout),
        request_timeout: options.core().request_timeout,
        ack_wait: Rc::clone(&ack_wait),
        draining: Cell::new(false),
        tape: begin_tape(world, processor),
    });
    let core = Rc::new(RefCell::new(new_core(world)));
    let kept = Rc::clone(&core);
    mongo.connect();
    if options.revise {
        world.spawn_on(processor, finders::watch(Rc::clone(&shared)));
    }
    world.spawn_on(processor, Rc::clone(&nats).keep_connected());
    let standard = jetstream::Settings::with_request_timeout(shared.request_timeout);
    let settings = jetstream::Settings {
        name: format!("processor {processor}").into(),
        sends_within: if world.has_bug(Bug::LateRequestSent) { FOR_EVER } else { standard.sends_within },
        pull_expires: options.pull_expires(),
        pull_margin: pull_margin(world),
        consumer_every: CONSUMER_EVERY,
        ..standard
    };
    #[cfg(feature = "planted-bugs")]
    let bug = world.plan.bug;
    let driver = Driver {
        shared,
        core,
        client: JetStream::new(settings),
        knows_connection: false,
        told: VecDeque::new(),
        held: VecDeque::new(),
        #[cfg(feature = "planted-bugs")]
        replies: std::collections::BTreeMap::new(),
        #[cfg(feature = "planted-bugs")]
        planted: planted::Planted::new(bug),
    };
    world.spawn_on(processor, driver.run());
    Handles { events, nats, mongo, core: kept, ack_wait }
}

fn pull_margin(world: &World) -> Duration {
    let keeps = world.has_bug(Bug::SilentPullKept) || world.has_bug(Bug::PullsKeptOverReconnect);
    if keeps { FOR_EVER } else { jetstream::Settings::default().pull_margin }
}

fn new_core(world: &World) -> Processor {
    let settings = world.settings.borrow().core();
    #[cfg(feature = "planted-bugs")]
    let settings = planted::settings(world.plan.bug, settings);
    #[cfg(feature = "planted-bugs")]
    if let Some(bug) = world.plan.bug.and_then(Bug::core) {
        return Processor::with_bug(settings, bug).expect("the plan's settings can work");
    }
    Processor::new(settings).expect("the plan's settings can work")
}

fn begin_tape(world: &World, processor: usize) -> Option<ProcessTape> {
    let tape = world.tape.as_ref()?;
    let started = (world.clock.now(), calendar_of(world, processor));
    let settings = world.settings.borrow().core();
    Some(tape.borrow_mut().begin(processor, started, settings, new_core(world)))
}

/// A processor's calendar.
fn calendar_of(world: &World, processor: usize) -> WallTime {
    let skew = world.plan.options.skews_ms.get(processor).copied().unwrap_or(0);
    WallTime::from_millis(world.calendar().as_millis() + skew)
}

impl Shared {
    /// The core's time: since the process started.
    pub(super) fn time(&self) -> Time {
        Time::from_micros(self.world.clock.now().since(self.started).as_micros().try_into().unwrap_or(u64::MAX))
    }

    pub(super) fn calendar(&self) -> WallTime {
        calendar_of(&self.world, self.processor)
    }

    /// Whether it has been told to take no more work.
    pub(super) fn drains(&self) -> bool {
        self.draining.get()
    }

    pub(super) fn report(&self, effect: EffectId, report: Report) {
        self.events.push(Event::Core(Input::Reported { effect, report }));
    }

    async fn within<T>(&self, answer: impl Future<Output = T>) -> Option<T> {
        let late = async {
            self.world.clock.sleep(self.request_timeout).await;
            None
        };
        future::or(async { Some(answer.await) }, late).await
    }

    pub(super) async fn run(&self, command: Command, sent: Option<Sent>) -> Result<store::Answer, StoreError> {
        self.within(self.mongo.run(command, sent)).await.unwrap_or(Err(StoreError::TimedOut))
    }
}

pub(super) type Sent = Rc<Slot<Result<store::Answer, StoreError>>>;

impl Driver {
    async fn run(mut self) {
        let mut served = WakeUps::default();
        loop {
            let Some(next) = self.carry_out(served) else { return };
            let Some(next) = next else { return self.shared.world.end(self.shared.processor, Ending::Drained) };
            served = self.wait(next).await;
        }
    }

    /// Waits for an event or for a wake-up, and gives the wake-ups back that were served.
    async fn wait(&mut self, next: WakeUps) -> WakeUps {
        let shared = Rc::clone(&self.shared);
        let at = |at: Time| shared.started.after(at.since(Time::ZERO));
        let first = next.core.map(|it| it.at).into_iter().chain(next.client.map(|it| it.at)).min();
        let woken = async {
            match first {
                Some(first) => shared.world.clock.sleep_until(at(first)).await,
                None => future::pending().await,
            }
            None
        };
        match future::or(async { Some(shared.events.take().await) }, woken).await {
            None => {
                let now = shared.time();
                let core = next.core.filter(|it| it.at <= now);
                if core.is_some() {
                    self.tell(Input::Woken);
                }
                self.client.handle(now, jetstream::Input::Woken);
                WakeUps { core, client: next.client.filter(|it| it.at <= now) }
            }
            Some(event) => {
                self.take(event);
                WakeUps::default()
            }
        }
    }

    fn take(&mut self, event: Event) {
        let now = self.shared.time();
        match event {
            Event::Core(input) => self.handle(input),
            // The first connection is told, and nothing of it afterwards.
            Event::Nats(_) if self.knows_connection && self.has_bug(Bug::PullsKeptOverReconnect) => {}
            Event::Nats(input) => {
                self.knows_connection = true;
                self.client.handle(now, input);
            }
            Event::Received { to, received } => {
                let mut message = nats::message(to, received, self.shared.calendar());
                if self.has_bug(Bug::DuplicateCountsAsPublished) {
                    message.payload = without_duplicate(message.payload);
                }
                if let Some(reply) = message.reply.as_ref() {
                    let processor = self.shared.processor;
                    self.shared.world.saw(&Observation::Arrived { processor, reply });
                }
                self.client.handle(now, jetstream::Input::Received(message));
            }
            Event::Drain => self.handle(Input::Drain),
        }
    }

    fn handle(&mut self, input: Input) {
        let Shared { world, processor, .. } = &*self.shared;
        let processor = *processor;
        let ignored = self.core.borrow().counters().ignored_reports;
        let mut reported = None;
        match &input {
            Input::Delivered(delivery) => world.saw(&Observation::Delivered { processor, delivery }),
            Input::Reported { effect, report } => {
                reported = Some(*effect);
                world.saw(&Observation::Reported { processor, id: *effect, report });
            }
            Input::Exhausted(exhausted) => {
                world.saw(&Observation::Heard { processor, sequence: exhausted.stream_sequence });
            }
            Input::Stale(stale) => world.saw(&Observation::StaleSummary { processor, key: &stale.session.key() }),
            Input::Consumer(consumer) => {
                self.shared.ack_wait.set(consumer.ack_wait);
                world.saw(&Observation::ConsumerLearnt { processor, heartbeat: consumer.ack_wait / 3 });
            }
            Input::Woken | Input::Quiet | Input::Resume | Input::Drain | Input::DeliveriesStopped => {}
        }
        #[cfg(feature = "planted-bugs")]
        if let Input::Delivered(delivery) = &input
            && let Ok(ended) = transcript_core::event::SessionEnded::parse(&delivery.payload.0)
        {
            self.replies.insert(ended.session.key(), Arc::clone(&delivery.reply));
        }
        #[cfg(feature = "planted-bugs")]
        if let Input::Exhausted(exhausted) = &input
            && self.has_bug(Bug::AdvisoryBelieved)
        {
            self.shared.nats.send(planted::believed(exhausted));
        }
        #[cfg(feature = "planted-bugs")]
        {
            let told = self.planted.input(&self.core.borrow(), input);
            told.into_iter().for_each(|input| self.tell(input));
            std::mem::take(&mut self.planted.also).into_iter().for_each(|input| self.tell(input));
        }
        #[cfg(not(feature = "planted-bugs"))]
        self.tell(input);
        if let Some(id) = reported.filter(|_| self.core.borrow().counters().ignored_reports > ignored) {
            world.saw(&Observation::Ignored { processor, id });
        }
    }

    fn tell(&self, input: Input) {
        let now = self.shared.time();
        match &self.shared.tape {
            None => {
                self.core.borrow_mut().handle(now, input);
            }
            Some(tape) => {
                let job = self.core.borrow_mut().handle(now, input.clone());
                tape.record(now, job, input);
            }
        }
    }

    /// Carries out everything that the core and the client have to say, and gives their wake-ups; the inner `None` once the
    /// core has drained, the outer one where the process was killed over it.
    #[expect(clippy::option_option, reason = "two ends that have nothing in common")]
    fn carry_out(&mut self, served: WakeUps) -> Option<Option<WakeUps>> {
        let processor = self.shared.processor;
        let world = Rc::clone(&self.shared.world);
        loop {
            let Some(core) = self.carry_out_core()? else { return Some(None) };
            self.allow();
            let client = self.carry_out_client();
            if let Some(input) = self.told.pop_front() {
                self.handle(input);
                continue;
            }
            if served.client.is_some_and(|it| client.is_some_and(|next| next.at <= it.at)) {
                world.fail("DeadlinesMove", format!("the client's deadline {client:?} does not move"));
                return None;
            }
            let core_is = self.core.borrow();
            let (jobs, bytes) = (core_is.in_flight(), core_is.bytes_in_flight());
            let overflowed = core_is.counters().overflowed;
            drop(core_is);
            world.saw(&Observation::Waits { processor, jobs, bytes, overflowed, served: served.core, next: core });
            return Some(Some(WakeUps { core, client }));
        }
    }

    /// Carries out everything that the core has to say, and gives its wake-up.
    #[expect(clippy::option_option, reason = "as above")]
    fn carry_out_core(&mut self) -> Option<Option<Option<WakeUp>>> {
        let shared = Rc::clone(&self.shared);
        let Shared { world, processor, .. } = &*shared;
        let processor = *processor;
        loop {
            let output = self.core.borrow_mut().poll_output();
            #[cfg(feature = "planted-bugs")]
            let output = if world.plan.bug.is_some() {
                let said = self.planted.output(output);
                self.told.extend(std::mem::take(&mut self.planted.also));
                let Some(said) = said else { continue };
                said
            } else {
                output
            };
            match output {
                Output::Perform { id, effect } => {
                    world.saw(&Observation::Asked { processor, id, effect: &effect });
                    let kind = EffectPattern::Of(effect.kind());
                    let twist = world.pass(Point::Effect { processor, kind, moment: Moment::Before });
                    if world.is_doomed(processor) {
                        return None;
                    }
                    if !twist.lose_report {
                        self.perform(id, effect);
                    }
                    world.pass(Point::Effect { processor, kind, moment: Moment::After });
                }
                Output::InProgress { reply } => {
                    world.saw(&Observation::InProgress { processor, reply: &reply });
                    let kind = EffectPattern::Heartbeat;
                    world.pass(Point::Effect { processor, kind, moment: Moment::Before });
                    if !world.is_doomed(processor) {
                        self.client.handle(shared.time(), jetstream::Input::InProgress { reply });
                        self.carry_out_client();
                    }
                    world.pass(Point::Effect { processor, kind, moment: Moment::After });
                }
                Output::StopDeliveries => {
                    shared.draining.set(true);
                    self.client.handle(shared.time(), jetstream::Input::StopDeliveries);
                }
                Output::Notice(_) => {}
                Output::Wait(next) => return Some(Some(next)),
                Output::Drained => return Some(None),
            }
            if world.is_doomed(processor) {
                return None;
            }
        }
    }

    /// Carries out what the client has to say. What it tells the core waits until the core has nothing to say.
    fn carry_out_client(&mut self) -> Option<jetstream::WakeUp> {
        let now = self.shared.time();
        let mut frames = 0;
        let wake_up = loop {
            match self.client.poll_output() {
                jetstream::Output::Send(frame) => {
                    frames += 1;
                    self.shared.nats.send(self.spoiled(frame));
                }
                jetstream::Output::Tell(Input::Delivered(delivery)) if self.has_bug(Bug::ClientBuffer) => {
                    self.held.push_back(delivery);
                }
                jetstream::Output::Tell(input) => self.told.push_back(input),
                // The consumer of a world is set up once, and the operator changes it.
                jetstream::Output::SetUp { .. } | jetstream::Output::Note(_) => {}
                jetstream::Output::Wait(_) if frames > 0 => {
                    self.client.handle(now, jetstream::Input::Written { frames: std::mem::take(&mut frames) });
                }
                jetstream::Output::Wait(wake_up) => break wake_up,
            }
        };
        while self.core.borrow().room() > self.told.len()
            && let Some(delivery) = self.held.pop_front()
        {
            self.told.push_back(Input::Delivered(delivery));
        }
        wake_up
    }

    fn allow(&mut self) {
        let buffer = if self.has_bug(Bug::ClientBuffer) { PREFETCH } else { 0 };
        let core = self.core.borrow();
        let queued = if self.has_bug(Bug::RepeatsTakeRoom) { core.states().get(&State::Queued).copied() } else { None };
        let taken = queued.and_then(|count| u64::try_from(count).ok()).unwrap_or(0);
        let deliveries = (core.allowance() + buffer).saturating_sub(taken);
        drop(core);
        self.client.handle(self.shared.time(), jetstream::Input::Allow { deliveries });
    }

    fn has_bug(&self, bug: Bug) -> bool {
        self.shared.world.has_bug(bug)
    }

    /// The frame as a planted bug has it.
    fn spoiled(&self, mut frame: jetstream::Frame) -> jetstream::Frame {
        if self.has_bug(Bug::NoMessageId) && frame.subject.starts_with("transcript.") {
            frame.headers.retain(|(name, _)| name != "Nats-Msg-Id");
        }
        frame
    }

    /// Begins an effect: its first message leaves at once.
    fn perform(&mut self, id: EffectId, effect: Effect) {
        #[cfg(feature = "planted-bugs")]
        self.misbehave(&effect);
        let shared = Rc::clone(&self.shared);
        match Request::of(effect) {
            Ok(request) => shared.store.ask(&shared, id, request),
            Err(effect) => {
                self.client.handle(shared.time(), jetstream::Input::Perform { id, effect });
                self.carry_out_client();
            }
        }
    }
}

/// A publish acknowledgement that does not say that the message is a duplicate.
fn without_duplicate(payload: Vec<u8>) -> Vec<u8> {
    match String::from_utf8(payload) {
        Ok(text) => text
            .replace(r#""duplicate":true"#, r#""duplicate":false"#)
            .replace(r#""duplicate": true"#, r#""duplicate":false"#)
            .into_bytes(),
        Err(error) => error.into_bytes(),
    }
}
