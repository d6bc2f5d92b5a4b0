//! The store and the connections to it.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, sync::Arc, time::Duration};

use transcript_core::{WallTime, ids::Key};

use super::{World, faults::Point, link::Link, nats::Known};
use crate::{
    bug::Bug,
    observation::Observation,
    plan::{Moment, Plan, Server, Verdict, millis},
    runtime::Slot,
    store::{Answer, Command, Document, Fate, Store, StoreError},
};

/// How often a driver that has no server looks for one.
const LOOKS_EVERY: Duration = Duration::from_millis(500);
/// How far behind the replica of [`Bug::StalePage`] is.
const REPLICA_LAG: Duration = Duration::from_secs(3);

/// The store's side.
pub(super) struct Mongo {
    pub(super) model: RefCell<Store>,
    connections: RefCell<Vec<Rc<Connection>>>,
    pub(super) up: RefCell<bool>,
    /// For each processor, how many faults keep it from connecting.
    pub(super) unreachable: RefCell<Vec<u32>>,
    /// The summaries that a rule of the collection refuses.
    refused: Vec<Key>,
}

/// One connection of one driver.
pub(super) struct Connection {
    processor: usize,
    pub(super) up: Rc<Link<(u64, Command)>>,
    pub(super) down: Rc<Link<Down>>,
}

#[derive(Debug)]
pub(super) enum Down {
    Answer(u64, Result<Answer, StoreError>),
    Closed,
}

impl Mongo {
    pub(super) fn new(plan: &Plan) -> Self {
        let refused = plan.calls.iter().filter(|call| call.verdict == Verdict::Refused);
        Self {
            refused: refused.map(|call| call.ids().key()).collect(),
            model: RefCell::new(Store::new()),
            connections: RefCell::default(),
            up: RefCell::new(true),
            unreachable: RefCell::new(vec![0; plan.processors]),
        }
    }

    pub(super) fn forget_all(&self) {
        self.connections.take();
    }

    /// The announced summaries that have changed since then.
    pub(super) fn watched(&self, since: WallTime) -> Vec<Document> {
        let store = self.model.borrow();
        let watched = |document: &&Document| document.notified.is_some() && document.summary.updated_at >= since;
        store.summaries().map(|(_, document)| document).filter(watched).cloned().collect()
    }

    /// The announced summaries that are behind their segments, or of which nobody knows that they were replaced.
    pub(super) fn stale(&self) -> Vec<Key> {
        let store = self.model.borrow();
        let behind = |document: &Document| {
            let (stored, segments) = (document.stored(), store.segments_of(&document.summary.session.session_id));
            document.notified.is_some() && (stored.is_stale_with(segments) || stored.unannounced_revision().is_some())
        };
        let stale = store.summaries().filter(|(_, document)| behind(document)).map(|(key, _)| key.clone());
        stale.collect()
    }

    fn accepts(&self, processor: usize) -> bool {
        let blocked = self.unreachable.borrow().get(processor).is_some_and(|count| *count > 0);
        *self.up.borrow() && !blocked
    }

    /// The server is gone: every connection ends.
    pub(super) fn close_all(&self, world: &World) {
        *self.up.borrow_mut() = false;
        for connection in self.connections.take() {
            connection.up.cut();
            connection.down.send(world.clock.now(), world.delay(), Down::Closed);
        }
    }
}

/// Tells which segments a kill has lost: for everybody else they never were there.
pub(super) fn miss_segments(world: &World) {
    let lost: Vec<(Arc<str>, String)> = {
        let (watch, store) = (world.watch.borrow(), world.mongo.model.borrow());
        let known = watch.ledger.segments.iter().flat_map(|(of, ids)| ids.keys().map(move |id| (of, id)));
        known.filter(|(_, id)| !store.has_segment(id)).map(|(of, id)| (Arc::clone(of), id.clone())).collect()
    };
    for (session, id) in &lost {
        world.saw(&Observation::SegmentLost { session, id });
    }
}

async fn uplink(world: Rc<World>, connection: Rc<Connection>) {
    while let Some((id, command)) = connection.up.arrival(&world.clock).await {
        let server = Server::Store;
        let twist = world.pass(Point::Arrival { server, moment: Moment::Before });
        if connection.up.is_over() {
            return;
        }
        let answer = perform(&world, command, twist.fate.unwrap_or(Fate::Done));
        if !twist.lose_answer {
            let delay = world.delay() + millis(twist.slow_ms);
            connection.down.send(world.clock.now(), delay, Down::Answer(id, answer));
        }
        world.pass(Point::Arrival { server, moment: Moment::After });
    }
}

fn perform(world: &World, command: Command, fate: Fate) -> Result<Answer, StoreError> {
    let now = world.clock.now();
    let store = &world.mongo.model;
    let saved: Option<Key> = match &command {
        Command::Save { summary, .. } => Some(summary.key.clone()),
        Command::WriteSegments { .. }
        | Command::Count { .. }
        | Command::Load { .. }
        | Command::Mark { .. }
        | Command::Read { .. } => None,
    };
    let marked = match &command {
        Command::Mark { key, announcement, .. } => Some((key.clone(), *announcement)),
        Command::WriteSegments { .. }
        | Command::Count { .. }
        | Command::Load { .. }
        | Command::Save { .. }
        | Command::Read { .. } => None,
    };
    let before = saved.as_ref().and_then(|key| store.borrow().summary(key).cloned());
    let refused = saved.as_ref().is_some_and(|key| world.mongo.refused.contains(key));
    let fate = if refused { Fate::FailsBefore(StoreError::Rejected) } else { fate };
    #[cfg(feature = "planted-bugs")]
    let answer = match &command {
        Command::Save { summary, .. } if world.has_bug(Bug::InsertInsteadOfUpsert) => {
            store.borrow_mut().insert(now, Arc::clone(summary), fate)
        }
        Command::Save { summary, .. } if world.has_bug(Bug::SaveGoesBackwards) => {
            store.borrow_mut().replace(now, Arc::clone(summary), fate)
        }
        Command::Save { .. }
        | Command::WriteSegments { .. }
        | Command::Count { .. }
        | Command::Load { .. }
        | Command::Mark { .. }
        | Command::Read { .. } => store.borrow_mut().perform(now, command, fate),
    };
    #[cfg(not(feature = "planted-bugs"))]
    let answer = store.borrow_mut().perform(now, command, fate);
    let done = answer.is_ok() || matches!(fate, Fate::FailsAfter(_));
    if let Some(key) = saved.filter(|_| done) {
        let after = store.borrow().summary(&key).cloned();
        if let Some(after) = after {
            world.saw(&Observation::Saved { key: &key, before: before.as_ref(), after: &after });
        }
    }
    if let Some((key, announcement)) = marked.filter(|(key, _)| done && store.borrow().summary(key).is_some()) {
        world.saw(&Observation::Marked { key: &key, announcement });
    }
    answer.map(|answer| if world.has_bug(Bug::StalePage) { stale(world, answer) } else { answer })
}

/// What a replica would have answered that is [`REPLICA_LAG`] behind.
fn stale(world: &World, answer: Answer) -> Answer {
    let Answer::Page(mut page) = answer else { return answer };
    let now = world.clock.now();
    let watch = world.watch.borrow();
    page.segments.retain(|segment| {
        let stored = watch.ledger.segments.values().find_map(|session| session.get(&segment.id));
        stored.is_none_or(|at| now >= at.after(REPLICA_LAG))
    });
    drop(watch);
    Answer::Page(page)
}

/// The driver of one processor.
pub(super) struct MongoClient {
    world: Rc<World>,
    processor: usize,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    connection: Option<Rc<Connection>>,
    answers: BTreeMap<u64, Rc<Slot<Result<Answer, StoreError>>>>,
    last: u64,
}

impl MongoClient {
    pub(super) fn new(world: &Rc<World>, processor: usize) -> Rc<Self> {
        Rc::new(Self { world: Rc::clone(world), processor, state: RefCell::default() })
    }

    pub(super) fn connection(&self) -> Option<Rc<Connection>> {
        self.state.borrow().connection.clone()
    }

    /// Sends a command if there is a connection.
    pub(super) fn try_send(&self, command: &Command) -> Option<Rc<Slot<Result<Answer, StoreError>>>> {
        let mut state = self.state.borrow_mut();
        let connection = state.connection.clone()?;
        state.last += 1;
        let (id, slot) = (state.last, Rc::new(Slot::default()));
        state.answers.insert(id, Rc::clone(&slot));
        drop(state);
        let world = &self.world;
        connection.up.send(world.clock.now(), world.delay(), (id, command.clone()));
        Some(slot)
    }

    /// Runs a command; `sent` where it is under way already. Without a server it looks for one for as long as it is let.
    pub(super) async fn run(
        self: &Rc<Self>,
        command: Command,
        sent: Option<Rc<Slot<Result<Answer, StoreError>>>>,
    ) -> Result<Answer, StoreError> {
        let mut sent = sent;
        loop {
            if let Some(slot) = sent.take().or_else(|| self.try_send(&command)) {
                return slot.take().await;
            }
            let world = &self.world;
            world.clock.sleep(world.delay() + world.delay()).await;
            if self.connection().is_none() && !self.connect() {
                world.clock.sleep(LOOKS_EVERY).await;
            }
        }
    }

    pub(super) fn connect(self: &Rc<Self>) -> bool {
        let world = &self.world;
        if !world.mongo.accepts(self.processor) {
            return false;
        }
        let connection = Rc::new(Connection { processor: self.processor, up: Link::new(), down: Link::new() });
        world.mongo.connections.borrow_mut().push(Rc::clone(&connection));
        self.state.borrow_mut().connection = Some(Rc::clone(&connection));
        world.spawn(uplink(Rc::clone(world), Rc::clone(&connection)));
        world.spawn(downlink(Rc::clone(self), connection));
        true
    }

    /// The connection is over: where this end sees it, what is under way fails.
    pub(super) fn lose(&self, connection: &Rc<Connection>, known: Known) {
        let mut state = self.state.borrow_mut();
        if state.connection.as_ref().is_some_and(|it| Rc::ptr_eq(it, connection)) {
            state.connection = None;
            let answers = std::mem::take(&mut state.answers);
            drop(state);
            connection.up.cut();
            connection.down.cut();
            self.world.mongo.connections.borrow_mut().retain(|it| !Rc::ptr_eq(it, connection));
            if known == Known::Over {
                for slot in answers.into_values() {
                    slot.put(Err(StoreError::Unreachable));
                }
            }
        }
    }
}

impl Connection {
    /// The process at the client's end is gone: what it sent still arrives.
    pub(super) fn orphan(self: &Rc<Self>, world: &World) {
        self.down.cut();
        world.mongo.connections.borrow_mut().retain(|it| !Rc::ptr_eq(it, self));
    }
}

async fn downlink(client: Rc<MongoClient>, connection: Rc<Connection>) {
    debug_assert_eq!(client.processor, connection.processor);
    while let Some(down) = connection.down.arrival(&client.world.clock).await {
        match down {
            Down::Answer(id, answer) => {
                let awaited = client.state.borrow_mut().answers.remove(&id);
                if let Some(slot) = awaited {
                    slot.put(answer);
                }
            }
            Down::Closed => return client.lose(&connection, Known::Over),
        }
    }
}
