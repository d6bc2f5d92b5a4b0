//! The broker and the connections to it.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, VecDeque},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use jetstream_model::{
    AdvisoryKind, Broker, ClientId, Event, Headers, Inbox, Input, Message, Pull, Request, StoredMessage, wire,
};
use serde::Deserialize;
use smol::future;
use transcript_client::jetstream::{self, Address, Frame};
use transcript_core::{
    Time, WallTime,
    contract::{
        Announcement, CONSUMER, DEAD_LETTER_SUBJECT, Notification, PROCESSED_SUBJECT, REDRIVE_OF_HEADER,
        REVISED_SUBJECT, SESSION_ENDED_SUBJECT, STREAM_SEQUENCE_HEADER, TRANSCRIPTION_STREAM,
    },
};

use super::{World, faults::Point, link::Link, operator, shell::Event as ProcessEvent};
use crate::{
    bug::Bug,
    observation::{Fate, Observation},
    plan::{Moment, Server},
    runtime::{Bell, Queue},
};

/// How long a client goes on with a connection that is dead: three pings of one second.
pub(super) const CLIENT_NOTICES: Duration = Duration::from_secs(3);
/// The longest pause between two attempts to connect, as in async-nats.
const LONGEST_PAUSE: Duration = Duration::from_secs(4);
/// The inbox that stands for the subscription to advisories; those of requests are counted from 1.
const ADVISORIES: u64 = 0;
/// The largest message that the server takes: nats-server's default.
const MAX_PAYLOAD: usize = 1 << 20;

/// The broker's side.
pub(super) struct Nats {
    pub(super) model: RefCell<Broker>,
    connections: RefCell<BTreeMap<ClientId, Rc<Connection>>>,
    earlier: Bell,
    sleeps_until: Cell<Option<Time>>,
    clients: Cell<u64>,
    /// For each processor, how many faults keep it from connecting.
    pub(super) unreachable: RefCell<Vec<u32>>,
}

/// One connection of one client.
pub(super) struct Connection {
    pub(super) id: ClientId,
    processor: usize,
    pub(super) up: Rc<Link<Up>>,
    pub(super) down: Rc<Link<Down>>,
}

/// What goes to the broker.
#[derive(Debug)]
pub(super) enum Up {
    Input(Box<Input>),
    /// The client's end is closed.
    Fin,
}

/// What comes from the broker.
#[derive(Debug)]
pub(super) enum Down {
    Message(u64, Box<Message>),
    Closed,
}

impl Nats {
    pub(super) fn new(model: Broker, processors: usize) -> Self {
        Self {
            model: RefCell::new(model),
            connections: RefCell::default(),
            earlier: Bell::default(),
            sleeps_until: Cell::new(None),
            // Clients 1 and up; 0 is the transcribers'.
            clients: Cell::new(0),
            unreachable: RefCell::new(vec![0; processors]),
        }
    }

    /// Messages that are delivered or to be delivered, and not settled.
    pub(super) fn unsettled(&self) -> u64 {
        self.model.borrow().unsettled(TRANSCRIPTION_STREAM, CONSUMER)
    }

    pub(super) fn forget_all(&self) {
        self.connections.take();
    }

    fn accepts(&self, processor: usize) -> bool {
        let blocked = self.unreachable.borrow().get(processor).is_some_and(|count| *count > 0);
        self.model.borrow().is_up() && !blocked
    }

    /// When the model does something by itself.
    fn next_deadline(&self) -> Option<Time> {
        self.model.borrow().next_deadline().map(|due| Time::ZERO.after(due))
    }

    fn next_id(&self) -> ClientId {
        self.clients.set(self.clients.get() + 1);
        ClientId(self.clients.get())
    }
}

/// Runs the broker's own timers.
pub(super) async fn timers(world: Rc<World>) {
    let nats = &world.nats;
    loop {
        let due = nats.next_deadline();
        nats.sleeps_until.set(due);
        match due {
            Some(at) if at <= world.clock.now() => {
                let now = world.clock.now();
                tune(&world);
                deliver(&world, None, false);
                if nats.next_deadline().is_some_and(|next| next <= now) {
                    return world.fail("DeadlinesMove", format!("the broker's deadline {at:?} does not move"));
                }
            }
            Some(at) => future::or(world.clock.sleep_until(at), nats.earlier.take()).await,
            None => nats.earlier.take().await,
        }
    }
}

/// Something happens to the broker; `from` whom, if from a client.
pub(super) fn handle(world: &World, input: Input, from: Option<ClientId>, lose_answer: bool) {
    let now = world.clock.now();
    let published = match &input {
        Input::Request(Request::Ack { subject, body, .. }) => {
            world.saw(&Observation::AckArrived { sequence: subject.stream_seq, body });
            None
        }
        Input::Request(Request::Publish { subject, headers, payload, .. }) => {
            let before = world.nats.model.borrow().last_sequence(TRANSCRIPTION_STREAM);
            Some((before, (Arc::clone(subject), headers.clone(), Arc::clone(payload))))
        }
        Input::Request(_)
        | Input::Connect(_)
        | Input::Disconnect(_)
        | Input::Subscribe { .. }
        | Input::Unsubscribe(_)
        | Input::Limit(_)
        | Input::Terminate
        | Input::Kill { .. }
        | Input::Start => None,
    };
    tune(world);
    world.nats.model.borrow_mut().handle(now.since(Time::ZERO), input);
    if let Some((before, (subject, headers, payload))) = published {
        let sequence = world.nats.model.borrow().last_sequence(TRANSCRIPTION_STREAM);
        if sequence > before {
            let stored_at_nanos = world.calendar().as_millis() * 1_000_000;
            saw_stored(world, &StoredMessage { subject, sequence, headers, payload, stored_at_nanos });
        }
    }
    deliver(world, from, lose_answer);
    let nats = &world.nats;
    let next = nats.next_deadline();
    if next.is_some_and(|next| nats.sleeps_until.get().is_none_or(|until| next < until)) {
        nats.earlier.put(());
    }
}

/// What was stored, as the checks see it. The ends that transcribers publish are seen where they do.
fn saw_stored(world: &World, message: &StoredMessage) {
    let StoredMessage { subject, sequence, headers, payload, .. } = message;
    let number = |name: &str| headers.get(name)?.parse().ok();
    if **subject == *DEAD_LETTER_SUBJECT {
        let of = number(STREAM_SEQUENCE_HEADER).expect("a dead letter names its message");
        world.saw(&Observation::DeadLetterStored { message, of });
    } else if **subject == *SESSION_ENDED_SUBJECT {
        if let Some(of) = number(REDRIVE_OF_HEADER) {
            world.saw(&Observation::EndRedriven { message, of });
        }
    } else if **subject == *REVISED_SUBJECT || subject.starts_with(PROCESSED_SUBJECT) {
        let notification: Notification = serde_json::from_slice(payload).expect("the shell writes its contract");
        let announcement = match notification.revision {
            Some(revision) => Announcement::Revised { revision },
            None if **subject == *PROCESSED_SUBJECT => Announcement::Processed,
            None => Announcement::ProcessedOnce,
        };
        world.saw(&Observation::NotificationStored { sequence: *sequence, announcement, notification: &notification });
    }
}

fn tune(world: &World) {
    if let Some(tuning) = world.draw_lags() {
        world.nats.model.borrow_mut().tune(tuning);
    }
}

fn deliver(world: &World, from: Option<ClientId>, lose_answer: bool) {
    loop {
        let event = world.nats.model.borrow_mut().poll(world.clock.now().since(Time::ZERO));
        match event {
            Some(Event::Send { to, message }) => send(world, to, message, lose_answer && from == Some(to.client)),
            Some(Event::Closed(client)) => {
                let closed = world.nats.connections.borrow_mut().remove(&client);
                if let Some(connection) = closed {
                    connection.up.cut();
                    connection.down.send(world.clock.now(), world.delay(), Down::Closed);
                }
            }
            Some(Event::Advisory(advisory)) => {
                if advisory.kind == AdvisoryKind::MaxDeliveries {
                    world.saw(&Observation::GivenUp { sequence: advisory.stream_seq });
                    world.given_up.set(Some(world.clock.now()));
                }
            }
            None => return,
        }
    }
}

fn send(world: &World, to: Inbox, message: Message, lost: bool) {
    let connection = world.nats.connections.borrow().get(&to.client).map(Rc::clone);
    let Some(connection) = connection else { return };
    let fate = if lost || connection.down.is_over() { Fate::Lost } else { Fate::UnderWay };
    if let Message::Core { payload, .. } = &message
        && let Some(MaxDeliver { stream_seq: sequence, .. }) = MaxDeliver::read(payload)
    {
        world.saw(&Observation::AdvisorySent { processor: connection.processor, sequence, fate });
    }
    if let Message::Delivery(delivery) = &message {
        let (processor, sequence, attempt) =
            (connection.processor, delivery.message.sequence, delivery.reply.deliveries);
        world.saw(&Observation::Sent { processor, sequence, attempt, fate });
    }
    if fate == Fate::UnderWay {
        connection.down.send(world.clock.now(), world.delay(), Down::Message(to.token, Box::new(message)));
    }
}

/// The part of `io.nats.jetstream.advisory.v1.max_deliver` that is needed.
#[derive(Debug, Deserialize)]
struct MaxDeliver {
    stream_seq: u64,
}

impl MaxDeliver {
    fn read(payload: &[u8]) -> Option<Self> {
        serde_json::from_slice(payload).ok()
    }
}

async fn uplink(world: Rc<World>, connection: Rc<Connection>) {
    while let Some(up) = connection.up.arrival(&world.clock).await {
        match up {
            Up::Input(input) if matches!(*input, Input::Request(_)) => {
                let server = Server::Broker;
                let twist = world.pass(Point::Arrival { server, moment: Moment::Before });
                if connection.up.is_over() {
                    return;
                }
                if let Some(after_ms) = twist.again_after_ms {
                    operator::arrives_again(&world, &input, connection.id, after_ms);
                }
                handle(&world, *input, Some(connection.id), twist.lose_answer);
                world.pass(Point::Arrival { server, moment: Moment::After });
            }
            Up::Input(input) => handle(&world, *input, Some(connection.id), false),
            Up::Fin => {
                disconnect(&world, &connection);
                return;
            }
        }
    }
}

/// The broker sees that a connection is over.
pub(super) fn disconnect(world: &World, connection: &Rc<Connection>) {
    let current = world.nats.connections.borrow().get(&connection.id).is_some_and(|it| Rc::ptr_eq(it, connection));
    if current {
        world.nats.connections.borrow_mut().remove(&connection.id);
        handle(world, Input::Disconnect(connection.id), None, false);
    }
}

/// The sockets of one processor: they connect, write frames and hand over what comes, as those of the service do. What is
/// written without a connection is kept and sent later, as async-nats does.
pub(super) struct NatsClient {
    world: Rc<World>,
    processor: usize,
    /// Where what happens goes to.
    events: Rc<Queue<ProcessEvent>>,
    state: RefCell<State>,
    lost: Bell,
}

/// What the server reads in a pull request, but for where it is to be answered.
#[derive(Clone)]
struct PullRead {
    stream: Arc<str>,
    consumer: Arc<str>,
    pull: Pull,
}

#[derive(Default)]
struct State {
    connection: Option<Rc<Connection>>,
    id: Option<ClientId>,
    outbox: VecDeque<Frame>,
    /// The last pull request; for a planted bug only.
    last_pull: Option<Frame>,
    /// The last pull request, and what the server reads in it: most of them are alike.
    read_pull: Option<(Arc<str>, Vec<u8>, PullRead)>,
}

impl NatsClient {
    pub(super) fn new(world: &Rc<World>, processor: usize, events: &Rc<Queue<ProcessEvent>>) -> Rc<Self> {
        let (world, events) = (Rc::clone(world), Rc::clone(events));
        Rc::new(Self { world, processor, events, state: RefCell::default(), lost: Bell::default() })
    }

    pub(super) fn connection(&self) -> Option<Rc<Connection>> {
        self.state.borrow().connection.clone()
    }

    /// Connects, and again whenever the connection is lost.
    pub(super) async fn keep_connected(self: Rc<Self>) {
        loop {
            let (mut pause, mut failed_attempts) = (Duration::ZERO, 0);
            while !self.connect(pause, failed_attempts).await {
                pause = (pause * 2).clamp(Duration::from_millis(2), LONGEST_PAUSE);
                failed_attempts += 1;
            }
            self.lost.take().await;
        }
    }

    async fn connect(self: &Rc<Self>, pause: Duration, failed_attempts: u32) -> bool {
        let world = &self.world;
        world.clock.sleep(pause + world.delay() + world.delay()).await;
        if !world.nats.accepts(self.processor) {
            return false;
        }
        let mut state = self.state.borrow_mut();
        let id = *state.id.get_or_insert_with(|| world.nats.next_id());
        let connection = Rc::new(Connection { id, processor: self.processor, up: Link::new(), down: Link::new() });
        world.nats.connections.borrow_mut().insert(id, Rc::clone(&connection));
        state.connection = Some(Rc::clone(&connection));
        let waiting = std::mem::take(&mut state.outbox);
        drop(state);
        handle(world, Input::Connect(id), Some(id), false);
        world.spawn(uplink(Rc::clone(world), Rc::clone(&connection)));
        world.spawn(downlink(Rc::clone(self), Rc::clone(&connection)));
        let to = Inbox { client: id, token: ADVISORIES };
        let subject = Some(jetstream::advisories(&jetstream::Settings::default()).into());
        let subscribe = Input::Subscribe { to, subject, group: None };
        connection.up.send(world.clock.now(), world.delay(), Up::Input(Box::new(subscribe)));
        for frame in waiting {
            self.send(frame);
        }
        let connected = jetstream::Input::Connected { max_payload: MAX_PAYLOAD, failed_attempts };
        self.events.push(ProcessEvent::Nats(connected));
        true
    }

    /// The connection is over; on a new one the server knows the client again, unless it still holds the old one.
    pub(super) fn lose(&self, connection: &Rc<Connection>, known: Known) {
        let mut state = self.state.borrow_mut();
        if state.connection.as_ref().is_some_and(|it| Rc::ptr_eq(it, connection)) {
            state.connection = None;
            if known == Known::StillAlive {
                state.id = None;
            }
            drop(state);
            connection.up.cut();
            connection.down.cut();
            self.events.push(ProcessEvent::Nats(jetstream::Input::Disconnected));
            self.lost.put(());
        }
    }

    /// Sends now, or after the next connect.
    pub(super) fn send(&self, frame: Frame) {
        let mut state = self.state.borrow_mut();
        if self.world.has_bug(Bug::StandstillPulls) && frame.subject.contains(".CONSUMER.MSG.NEXT.") {
            state.last_pull = Some(frame.clone());
        }
        let Some(connection) = state.connection.clone() else {
            state.outbox.push_back(frame);
            return;
        };
        let request = request(connection.id, frame, &mut state.read_pull);
        drop(state);
        let world = &self.world;
        let Some(request) = request else { return };
        connection.up.send(world.clock.now(), world.delay(), Up::Input(Box::new(Input::Request(request))));
    }

    /// Takes a message that came. One that cannot be parsed ends the connection, with everything behind it.
    fn receive(&self, connection: &Rc<Connection>, token: u64, message: Message) {
        let Ok(received) = wire::Received::from(message).parsed() else {
            disconnect(&self.world, connection);
            return self.lose(connection, Known::Over);
        };
        if self.world.has_bug(Bug::StandstillPulls) && received.status.is_some() && self.world.is_frozen(self.processor)
        {
            let again = self.state.borrow().last_pull.clone();
            again.into_iter().for_each(|frame| self.send(frame));
        }
        let to = match &received.subject {
            _ if token == ADVISORIES => Address::Advisories,
            Some(_) => Address::Published,
            None => Address::Inbox(token),
        };
        self.events.push(ProcessEvent::Received { to, received });
    }
}

fn request(client: ClientId, frame: Frame, known: &mut Option<(Arc<str>, Vec<u8>, PullRead)>) -> Option<Request> {
    let Frame { subject, reply, headers, payload } = frame;
    let reply = reply.map(|token| Inbox { client, token });
    if let (Some(reply), Some((asked, body, read))) = (reply, &*known)
        && Arc::ptr_eq(asked, &subject)
        && *body == payload
    {
        let PullRead { stream, consumer, pull } = read.clone();
        return Some(Request::Pull { stream, consumer, reply, pull });
    }
    let headers = headers.into_iter().fold(Headers::default(), |headers, (name, value)| headers.with(name, value));
    let request = wire::request(Arc::clone(&subject), reply, headers, payload.as_slice().into());
    if let Some(Request::Pull { stream, consumer, pull, .. }) = &request {
        let read = PullRead { stream: Arc::clone(stream), consumer: Arc::clone(consumer), pull: pull.clone() };
        *known = Some((subject, payload, read));
    }
    request
}

/// What came, as the client takes it.
pub(super) fn message(to: Address, received: wire::Received, received_at: WallTime) -> jetstream::Message {
    let wire::Received { reply, status, headers, payload, .. } = received;
    let lines = headers.lines().unwrap_or_default().iter();
    jetstream::Message {
        to,
        reply,
        status: status.map(|line| jetstream::Status { code: line.code, description: line.text }),
        headers: lines.map(|(name, value)| (name.clone(), value.to_string())).collect(),
        payload: payload.to_vec(),
        received_at,
    }
}

/// Whether the server has seen the end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    Over,
    StillAlive,
}

async fn downlink(client: Rc<NatsClient>, connection: Rc<Connection>) {
    while let Some(down) = connection.down.arrival(&client.world.clock).await {
        match down {
            Down::Message(inbox, message) => client.receive(&connection, inbox, *message),
            Down::Closed => return client.lose(&connection, Known::Over),
        }
    }
}
