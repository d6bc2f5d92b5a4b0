//! A processor's process: the very core that production runs, and a shell that does what the real one does.
//!
//! Its requests to NATS are not those of `transcript-processor`: nothing is batched there. MongoDB is asked by the very
//! client that production runs.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use jetstream_model::{AckBody, Answer, Headers, Message, Which};
use smol::future;
use transcript_client::mongodb::{Load, Mark, Request};
use transcript_core::{
    Acknowledgement, Effect, Failure, FailureKind, Input, Output, Payload, Processor, Report, Time, WakeUp, WallTime,
    contract::{
        ATTEMPTS_HEADER, Announcement, DEAD_LETTER_SUBJECT, DeadLetter, Notification, REASON_HEADER, REDRIVE_OF_HEADER,
        SESSION_ENDED_SUBJECT, STREAM_SEQUENCE_HEADER, TRANSCRIPTION_STREAM, redrive_id,
    },
    event::SessionEnded,
    ids::{EffectId, Key},
};

#[cfg(feature = "planted-bugs")]
use super::planted;
use super::{
    World,
    faults::Point,
    finders,
    mongo::MongoClient,
    nats::{Awaited, Frame, NatsClient},
    puller::Puller,
    store_socket::StoreSocket,
    tape::ProcessTape,
};
use crate::{
    bug::Bug,
    observation::{Ending, Observation},
    plan::{Kind, Moment, millis},
    runtime::{Bell, Queue, Slot},
    store::{self, Command, StoreError},
};

/// JetStream's error where a subject holds a message already.
const WRONG_LAST_SEQUENCE: u16 = 10_071;
/// JetStream's error where a stream does not hold a message.
const NO_MESSAGE_FOUND: u16 = 10_037;

/// What the world needs of a process to disturb it.
#[derive(Clone)]
pub(super) struct Handles {
    pub(super) inputs: Rc<Queue<Input>>,
    pub(super) nats: Rc<NatsClient>,
    pub(super) mongo: Rc<MongoClient>,
    pub(super) core: Rc<RefCell<Processor>>,
    /// The ack wait that the process learnt at its start.
    pub(super) ack_wait: Duration,
}

/// What the parts of a process share.
pub(super) struct Shared {
    pub(super) world: Rc<World>,
    pub(super) processor: usize,
    pub(super) started: Time,
    pub(super) inputs: Rc<Queue<Input>>,
    pub(super) nats: Rc<NatsClient>,
    pub(super) mongo: Rc<MongoClient>,
    pub(super) store: StoreSocket,
    /// The ack wait that the process learnt at its start.
    pub(super) ack_wait: Duration,
    answer_timeout: Duration,
    /// How many deliveries the core has taken and wants, all together since the start.
    pub(super) allowance: Cell<u64>,
    pub(super) allowed: Bell,
    /// The inboxes of the pull requests that are open; `None` once the process drains.
    pub(super) open_pulls: RefCell<Option<Vec<u64>>>,
    /// Where what the core is told is written down.
    tape: Option<ProcessTape>,
}

/// The driver's own state.
struct Driver {
    shared: Rc<Shared>,
    core: Rc<RefCell<Processor>>,
    /// Where each call was acknowledged last; for planted bugs only.
    #[cfg(feature = "planted-bugs")]
    replies: std::collections::BTreeMap<Key, Arc<str>>,
    #[cfg(feature = "planted-bugs")]
    planted: planted::Planted,
}

/// Starts a process on a processor's executor.
pub(super) fn start(world: &Rc<World>, processor: usize) -> Handles {
    let options = &world.plan.options;
    let (inputs, ack_wait) = (Rc::new(Queue::default()), millis(world.settings.borrow().ack_wait_ms));
    let (nats, mongo) = (NatsClient::new(world, processor), MongoClient::new(world, processor));
    let shared = Rc::new(Shared {
        world: Rc::clone(world),
        processor,
        started: world.clock.now(),
        inputs: Rc::clone(&inputs),
        nats: Rc::clone(&nats),
        mongo: Rc::clone(&mongo),
        store: StoreSocket::new(options.core().request_timeout),
        ack_wait,
        answer_timeout: options.core().request_timeout,
        allowance: Cell::new(0),
        allowed: Bell::default(),
        open_pulls: RefCell::new(Some(vec![])),
        tape: begin_tape(world, processor),
    });
    let core = Rc::new(RefCell::new(new_core(world)));
    let kept = Rc::clone(&core);
    mongo.connect();
    // Before anything is pulled: it is a pull that makes the broker notice.
    nats.listen();
    world.spawn_on(processor, finders::hear(Rc::clone(&shared)));
    if options.revise {
        world.spawn_on(processor, finders::watch(Rc::clone(&shared)));
    }
    world.spawn_on(processor, Rc::clone(&nats).keep_connected());
    world.spawn_on(processor, Puller::new(&shared).run());
    #[cfg(feature = "planted-bugs")]
    let driver = Driver {
        shared,
        core,
        replies: std::collections::BTreeMap::new(),
        planted: planted::Planted::new(world.plan.bug),
    };
    #[cfg(not(feature = "planted-bugs"))]
    let driver = Driver { shared, core };
    world.spawn_on(processor, driver.run());
    Handles { inputs, nats, mongo, core: kept, ack_wait }
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
        self.open_pulls.borrow().is_none()
    }

    /// Before jobs are given back: a request that is still open would get them again, at once and again.
    fn stop_pulling(&self) {
        self.nats.stop_listening();
        let open = self.open_pulls.borrow_mut().take();
        for inbox in open.into_iter().flatten() {
            self.nats.drop_inbox(inbox);
        }
    }

    pub(super) fn report(&self, effect: EffectId, report: Report) {
        self.inputs.push(Input::Reported { effect, report });
    }

    async fn within<T>(&self, answer: impl Future<Output = T>) -> Option<T> {
        let late = async {
            self.world.clock.sleep(self.answer_timeout).await;
            None
        };
        future::or(async { Some(answer.await) }, late).await
    }

    pub(super) async fn run(&self, command: Command, sent: Option<Sent>) -> Result<store::Answer, StoreError> {
        self.within(self.mongo.run(command, sent)).await.unwrap_or(Err(StoreError::TimedOut))
    }
}

/// What a copy of a message of the stream is made of.
impl Shared {
    /// Asks for a message of the stream.
    fn original(&self, stream_sequence: u64) -> Awaited {
        self.nats.ask(|answer| Frame::Get { answer, which: Which::Sequence(stream_sequence) })
    }

    /// The bytes of a message of the stream; `None` where it holds none, or cannot be read.
    pub(super) async fn payload(&self, stream_sequence: u64) -> Option<Payload> {
        match self.within(self.original(stream_sequence).answer()).await {
            Some(Message::Answer { answer: Answer::Message(message), .. }) => Some(Payload(message.payload.to_vec())),
            Some(_) | None => None,
        }
    }

    /// Its own bytes, or what is known of the call where the stream no longer holds it.
    async fn copy(&self, original: Awaited, known: Option<&SessionEnded>) -> Result<Arc<[u8]>, Failure> {
        match self.within(original.answer()).await {
            Some(Message::Answer { answer: Answer::Message(message), .. }) => return Ok(Arc::clone(&message.payload)),
            Some(Message::Refused { error, .. }) if error.err_code == NO_MESSAGE_FOUND => {}
            None => return Err(Failure { kind: FailureKind::TimedOut, detail: "NATS: timed out".to_owned() }),
            Some(_) => return Err(Failure { kind: FailureKind::Busy, detail: "the stream cannot be read".to_owned() }),
        }
        let known = known.ok_or_else(|| Failure {
            kind: FailureKind::Missing,
            detail: "the message is no longer in the stream".to_owned(),
        })?;
        Ok(serde_json::to_vec(known).expect("an end is JSON").into())
    }

    async fn dead_letter(&self, original: Awaited, dead_letter: &DeadLetter) -> Result<Report, Failure> {
        let payload = self.copy(original, dead_letter.ended.as_ref()).await?;
        let headers = expecting_the_stream(Some(dead_letter.message_id()))
            .with(STREAM_SEQUENCE_HEADER, dead_letter.stream_sequence.to_string())
            .with(ATTEMPTS_HEADER, dead_letter.attempts.to_string())
            .with(REASON_HEADER, dead_letter.reason.as_str());
        let stream_sequence = self.publish(DEAD_LETTER_SUBJECT, headers, payload).await?;
        Ok(Report::DeadLettered { stream_sequence })
    }

    async fn republish(&self, original: Awaited, of: u64, ended: &SessionEnded) -> Result<Report, Failure> {
        let payload = self.copy(original, Some(ended)).await?;
        let headers = expecting_the_stream(Some(redrive_id(of))).with(REDRIVE_OF_HEADER, of.to_string());
        let stream_sequence = self.publish(SESSION_ENDED_SUBJECT, headers, payload).await?;
        Ok(Report::Republished { stream_sequence })
    }

    async fn publish(&self, subject: &str, headers: Headers, payload: Arc<[u8]>) -> Result<u64, Failure> {
        let subject = subject.into();
        let awaited = self.nats.ask(|answer| Frame::Publish { answer, subject, headers, payload });
        published(self.within(awaited.answer()).await)
    }

    /// The message that is why the stream did not take another one, and what it announces.
    async fn announced_before(&self, which: Which, ours: u64) -> Result<Report, Failure> {
        let place = if let Which::Sequence(sequence) = &which { Some(*sequence) } else { None };
        let awaited = self.nats.ask(|answer| Frame::Get { answer, which });
        match (self.within(awaited.answer()).await, place) {
            (Some(Message::Answer { answer: Answer::Message(message), .. }), _) => {
                let announced = serde_json::from_slice::<Notification>(&message.payload);
                let segments = announced.map_or(ours, |announced| announced.segments);
                Ok(Report::Published { stream_sequence: message.sequence, segments })
            }
            // It was deleted since.
            (Some(Message::Refused { error, .. }), Some(stream_sequence)) if error.err_code == NO_MESSAGE_FOUND => {
                Ok(Report::Published { stream_sequence, segments: ours })
            }
            (Some(_) | None, _) => {
                Err(Failure { kind: FailureKind::Busy, detail: "the stream cannot be read".to_owned() })
            }
        }
    }
}

fn expecting_the_stream(message_id: Option<String>) -> Headers {
    message_id.map_or_else(Headers::default, Headers::id).with("Nats-Expected-Stream", TRANSCRIPTION_STREAM)
}

pub(super) type Sent = Rc<Slot<Result<store::Answer, StoreError>>>;

impl Driver {
    async fn run(mut self) {
        let mut served = None;
        loop {
            let Some(next) = self.carry_out(served) else { return };
            let Some(wake_up) = next else { return self.shared.world.end(self.shared.processor, Ending::Drained) };
            self.allow();
            served = self.wait(wake_up).await;
        }
    }

    /// Waits for inputs or for the wake-up, and gives the wake-up back if it was served.
    async fn wait(&mut self, wake_up: Option<WakeUp>) -> Option<WakeUp> {
        let shared = Rc::clone(&self.shared);
        let woken = async {
            match wake_up {
                Some(wake_up) => {
                    let at = shared.started.after(wake_up.at.since(Time::ZERO));
                    shared.world.clock.sleep_until(at).await;
                }
                None => future::pending().await,
            }
            None
        };
        match future::or(async { Some(shared.inputs.take().await) }, woken).await {
            None => {
                self.tell(Input::Woken);
                wake_up
            }
            Some(input) => {
                self.handle(input);
                None
            }
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
            Input::Woken => {}
            Input::Consumer(_) | Input::Drain | Input::DeliveriesStopped => {}
        }
        #[cfg(feature = "planted-bugs")]
        if let Input::Delivered(delivery) = &input
            && let Ok(ended) = SessionEnded::parse(&delivery.payload.0)
        {
            self.replies.insert(ended.session.key(), Arc::clone(&delivery.reply));
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

    /// Carries out everything that the core has to say, and gives its wake-up; the inner `None` once it has drained, the
    /// outer one where the process was killed over it.
    #[expect(clippy::option_option, reason = "two ends that have nothing in common")]
    fn carry_out(&mut self, served: Option<WakeUp>) -> Option<Option<Option<WakeUp>>> {
        let shared = Rc::clone(&self.shared);
        let Shared { world, processor, .. } = &*shared;
        let processor = *processor;
        loop {
            let output = self.core.borrow_mut().poll_output();
            #[cfg(feature = "planted-bugs")]
            let output = if world.plan.bug.is_some() {
                let said = self.planted.output(output);
                std::mem::take(&mut self.planted.also).into_iter().for_each(|input| shared.inputs.push(input));
                let Some(said) = said else { continue };
                said
            } else {
                output
            };
            match output {
                Output::Perform { id, effect } => {
                    world.saw(&Observation::Asked { processor, id, effect: &effect });
                    let kind = Kind::of(&effect);
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
                    let kind = Kind::Heartbeat;
                    world.pass(Point::Effect { processor, kind, moment: Moment::Before });
                    // What cannot be sent now would be late.
                    if !world.is_doomed(processor) && shared.nats.is_connected() {
                        shared.nats.send(Frame::Ack { answer: None, reply, body: AckBody::Progress });
                    }
                    world.pass(Point::Effect { processor, kind, moment: Moment::After });
                }
                Output::StopDeliveries => {
                    shared.stop_pulling();
                    shared.inputs.push(Input::DeliveriesStopped);
                }
                Output::Notice(_) => {}
                Output::Wait(next) => {
                    let core = self.core.borrow();
                    let (jobs, bytes) = (core.in_flight(), core.bytes_in_flight());
                    let overflowed = core.counters().overflowed;
                    drop(core);
                    world.saw(&Observation::Waits { processor, jobs, bytes, overflowed, served, next });
                    return Some(Some(next));
                }
                Output::Drained => return Some(None),
            }
            if world.is_doomed(processor) {
                return None;
            }
        }
    }

    fn allow(&self) {
        let allowance = self.core.borrow().allowance();
        if self.shared.allowance.replace(allowance) != allowance {
            self.shared.allowed.put(());
        }
    }

    /// Begins an effect: its first message leaves at once.
    fn perform(&mut self, id: EffectId, effect: Effect) {
        #[cfg(feature = "planted-bugs")]
        self.misbehave(&effect);
        let shared = Rc::clone(&self.shared);
        let processor = shared.processor;
        let world = Rc::clone(&shared.world);
        match effect {
            Effect::Count { session_id } => shared.store.ask(&shared, id, Request::Count { session_id }),
            Effect::Load { session_id, after, limit, max_bytes, counted } => {
                let load = Load { session_id, after, limit, max_bytes, counted };
                shared.store.ask(&shared, id, Request::Load(load));
            }
            Effect::Save { summary } => shared.store.ask(&shared, id, Request::Save { summary }),
            Effect::Check { key } => shared.store.ask(&shared, id, Request::Check { key }),
            Effect::Mark { key, announcement, segments, notified } => {
                shared.store.ask(&shared, id, Request::Mark(Mark { key, announcement, segments, notified }));
            }
            Effect::Publish { key, announcement, notification } => {
                let awaited = shared.nats.ask(|answer| self.publication(answer, &key, announcement, &notification));
                world.spawn_on(processor, async move {
                    let which = match shared.within(awaited.answer()).await {
                        Some(Message::PublishRefused { error, .. }) if error.err_code == WRONG_LAST_SEQUENCE => {
                            Ok(Which::LastOf(announcement.subject(&key).into()))
                        }
                        Some(Message::PubAck(ack)) if ack.duplicate => Ok(Which::Sequence(ack.sequence)),
                        answer => Err(published(answer)),
                    };
                    let report = match which {
                        Ok(which) => shared.announced_before(which, notification.segments).await,
                        Err(published) => published.map(|stream_sequence| Report::Published {
                            stream_sequence,
                            segments: notification.segments,
                        }),
                    };
                    shared.report(id, report.unwrap_or_else(Report::Failed));
                });
            }
            Effect::DeadLetter { dead_letter } => {
                let original = shared.original(dead_letter.stream_sequence);
                world.spawn_on(processor, async move {
                    let report = shared.dead_letter(original, &dead_letter).await;
                    shared.report(id, report.unwrap_or_else(Report::Failed));
                });
            }
            Effect::Republish { stream_sequence, ended } => {
                let original = shared.original(stream_sequence);
                world.spawn_on(processor, async move {
                    let report = shared.republish(original, stream_sequence, &ended).await;
                    shared.report(id, report.unwrap_or_else(Report::Failed));
                });
            }
            Effect::Acknowledge { reply, acknowledgement, .. } => {
                let body = body(acknowledgement);
                let awaited = shared.nats.ask(|answer| Frame::Ack { answer: Some(answer), reply, body });
                world.spawn_on(processor, async move {
                    let report = acknowledged(shared.within(awaited.answer()).await.as_ref());
                    shared.report(id, report);
                });
            }
        }
    }

    fn publication(&self, answer: u64, key: &Key, announcement: Announcement, notification: &Notification) -> Frame {
        let msg_id = (!self.shared.world.has_bug(Bug::NoMessageId)).then(|| announcement.message_id(key));
        let mut headers = expecting_the_stream(msg_id);
        if announcement == Announcement::ProcessedOnce {
            headers = headers.with("Nats-Expected-Last-Subject-Sequence", "0");
        }
        let payload = serde_json::to_vec(notification).expect("a notification is JSON").into();
        Frame::Publish { answer, subject: announcement.subject(key).into(), headers, payload }
    }

    /// What the planted bugs of the order of effects do before their time.
    #[cfg(feature = "planted-bugs")]
    fn misbehave(&self, effect: &Effect) {
        let ack = |key: &Key| {
            if let Some(reply) = self.replies.get(key) {
                drop(self.shared.nats.ask(|answer| Frame::Ack {
                    answer: Some(answer),
                    reply: Arc::clone(reply),
                    body: AckBody::Ack,
                }));
            }
        };
        match (self.shared.world.plan.bug, effect) {
            (Some(Bug::AckBeforePublish), Effect::Publish { key, .. }) => ack(key),
            (Some(Bug::AckBeforeSave), Effect::Save { summary }) => ack(&summary.key),
            (Some(Bug::PublishBeforeSave), Effect::Save { summary }) => {
                let notification = Notification {
                    session: summary.session.clone(),
                    segments: summary.segments,
                    complete: summary.complete,
                    revision: None,
                };
                let announcement = Announcement::Processed;
                drop(
                    self.shared.nats.ask(|answer| self.publication(answer, &summary.key, announcement, &notification)),
                );
            }
            (Some(_) | None, _) => {}
        }
    }
}

/// The place in the stream of what was published.
fn published(answer: Option<Message>) -> Result<u64, Failure> {
    let failure = |kind, detail: &str| Err(Failure { kind, detail: detail.to_owned() });
    match answer {
        None => failure(FailureKind::TimedOut, "NATS: timed out"),
        Some(Message::PubAck(ack)) => Ok(ack.sequence),
        Some(Message::NoResponders { .. }) => failure(FailureKind::Unreachable, "NATS: no responders"),
        Some(Message::PublishRefused { error, .. }) => {
            let kind = match error.code {
                401 | 403 => FailureKind::Denied,
                409 | 429 | 500.. => FailureKind::Busy,
                _ => FailureKind::Rejected,
            };
            failure(kind, &error.description)
        }
        Some(
            Message::Delivery(_)
            | Message::Status(_)
            | Message::AckConfirmed
            | Message::Refused { .. }
            | Message::Answer { .. }
            | Message::Core { .. },
        ) => failure(FailureKind::Busy, "no publish acknowledgement"),
    }
}

/// Any answer is a yes, but that nobody listens.
fn acknowledged(answer: Option<&Message>) -> Report {
    match answer {
        None => failure(FailureKind::TimedOut, "NATS: timed out"),
        Some(Message::NoResponders { .. }) => failure(FailureKind::Unreachable, "NATS: no responders"),
        Some(
            Message::Delivery(_)
            | Message::Status(_)
            | Message::PubAck(_)
            | Message::AckConfirmed
            | Message::PublishRefused { .. }
            | Message::Refused { .. }
            | Message::Answer { .. }
            | Message::Core { .. },
        ) => Report::Acknowledged,
    }
}

fn body(acknowledgement: Acknowledgement) -> AckBody {
    match acknowledgement {
        Acknowledgement::Ack => AckBody::Ack,
        Acknowledgement::Nak { delay, .. } => AckBody::Nak((!delay.is_zero()).then_some(delay)),
        Acknowledgement::Term { reason } => AckBody::Term(Some(reason.into())),
    }
}

fn failure(kind: FailureKind, detail: &str) -> Report {
    Report::Failed(Failure { kind, detail: detail.to_owned() })
}
