//! The store and the connections to it.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, sync::Arc, time::Duration};

use transcript_client::mongodb::{self, Reply};
use transcript_core::{WallTime, ids::Key};

use super::{World, faults::Point, link::Link, nats::Known};
use crate::{
    bug::Bug,
    observation::Observation,
    plan::{Moment, Plan, Server, Verdict, millis},
    runtime::Slot,
    store::{Answer, Command, Document, Fate, Rule, Store, StoreError, Writes, written_keys},
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
        let mut model = Store::new();
        for call in &plan.calls {
            match call.verdict {
                Verdict::Taken => {}
                Verdict::Refused => model.rule(call.ids().key(), Rule::Refuses),
                Verdict::RefusesCommand => model.rule(call.ids().key(), Rule::RefusesCommand),
            }
        }
        Self {
            model: RefCell::new(model),
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
            let (stored, version) = (document.stored(), store.version_of(&document.summary.session.session_id));
            document.notified.is_some() && (stored.is_stale_with(version) || stored.unannounced_revision().is_some())
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
    let written = match &command {
        Command::Client(command) => written_keys(command),
        Command::WriteSegments { .. }
        | Command::Count { .. }
        | Command::Save { .. }
        | Command::Mark { .. }
        | Command::Read { .. } => BTreeMap::new(),
    };
    let store = &world.mongo.model;
    let before: BTreeMap<Key, Document> =
        written.keys().filter_map(|key| Some((key.clone(), store.borrow().summary(key)?.clone()))).collect();
    let answer = carry_out(world, command, fate);
    let failed = match &answer {
        Ok(Answer::Client(Reply::Written(errors))) if fate != Fate::ConcernFails(Writes::RolledBack) => {
            Some(errors.members.iter().map(|error| error.place).collect::<Vec<_>>())
        }
        Ok(_) | Err(_) => None,
    };
    for (key, (places, announcement)) in &written {
        let Some(after) = store.borrow().summary(key).cloned() else { continue };
        let before = before.get(key);
        // What nobody was told counts where it shows.
        let done = match &failed {
            Some(failed) => places.iter().any(|place| !failed.contains(place)),
            None => before != Some(&after),
        };
        match announcement {
            _ if !done => {}
            None => world.saw(&Observation::Saved { key, before, after: &after }),
            Some(announcement) => {
                let (announcement, revision) = (*announcement, after.revision);
                world.saw(&Observation::Marked { key, announcement, revision });
            }
        }
    }
    answer.map(|answer| if world.has_bug(Bug::StalePage) { stale(world, answer) } else { answer })
}

#[cfg(feature = "planted-bugs")]
fn carry_out(world: &World, command: Command, fate: Fate) -> Result<Answer, StoreError> {
    let (now, mut store) = (world.clock.now(), world.mongo.model.borrow_mut());
    match &command {
        Command::Client(mongodb::Command::Save { summaries, .. }) if world.has_bug(Bug::InsertInsteadOfUpsert) => {
            store.insert(now, summaries, fate)
        }
        Command::Client(mongodb::Command::Save { summaries, .. }) if world.has_bug(Bug::SaveGoesBackwards) => {
            store.replace(now, summaries, fate)
        }
        Command::Client(_)
        | Command::WriteSegments { .. }
        | Command::Count { .. }
        | Command::Save { .. }
        | Command::Mark { .. }
        | Command::Read { .. } => store.perform(now, command, fate),
    }
}

#[cfg(not(feature = "planted-bugs"))]
fn carry_out(world: &World, command: Command, fate: Fate) -> Result<Answer, StoreError> {
    world.mongo.model.borrow_mut().perform(world.clock.now(), command, fate)
}

/// What a replica would have answered that is [`REPLICA_LAG`] behind.
fn stale(world: &World, answer: Answer) -> Answer {
    let now = world.clock.now();
    let watch = world.watch.borrow();
    let is_there = |document: &mongodb::Document| {
        let stored = watch.ledger.segments.values().find_map(|session| session.get(&document.segment.id));
        stored.is_none_or(|at| now >= at.after(REPLICA_LAG))
    };
    match answer {
        Answer::Client(Reply::Page(mut page)) => {
            page.documents.retain(is_there);
            Answer::Client(Reply::Page(page))
        }
        Answer::Client(Reply::Small { mut sessions, end }) => {
            for session in &mut sessions {
                session.documents.retain(is_there);
            }
            Answer::Client(Reply::Small { sessions, end })
        }
        other @ (Answer::Written { .. }
        | Answer::Versions(_)
        | Answer::Stored(_)
        | Answer::Marked
        | Answer::Client(
            Reply::Counted(_) | Reply::Tallied(_) | Reply::Written(_) | Reply::ReadBack(_) | Reply::Failed(_),
        )) => other,
    }
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
