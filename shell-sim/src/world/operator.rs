//! The operator, the supervisor and bad luck: what planned faults do.

use std::{rc::Rc, time::Duration};

use jetstream_model::{self as broker, AckBody, ClientId, Request};
use transcript_core::Time;

use super::{
    World,
    faults::Twist,
    mongo, nats,
    nats::{CLIENT_NOTICES, Known},
    shell::Event,
};
use crate::{
    observation::{Cause, Ending, Observation},
    plan::{Action, Direction, Server, StoreFault, at_ms, millis},
    store::{Fate, StoreError, Writes},
};

/// How long a fault of a connection goes on to explain what is lost: a puller notices a new connection at most that much
/// later, and a message that it lost is out for one ack wait.
const AFTERMATH: Duration = Duration::from_secs(6);
/// How long a server keeps the connection of a process that stands still: nats-server sends a ping every 2 minutes and
/// closes after two that were not answered.
const STANDSTILL: Duration = Duration::from_secs(240);
/// How long a single MongoDB server takes to become primary.
pub(super) const ELECTION: Duration = Duration::from_millis(500);
/// The longest that a draining processor takes: the core's default grace time.
const GRACE: Duration = Duration::from_secs(21);

/// Waits for its time, and then lets a fault happen.
pub(super) async fn wait_and_act(world: Rc<World>, number: usize, at: Time) {
    world.clock.sleep_until(at).await;
    if world.faults.take(number) {
        act(&world, number, &mut Twist::default());
    }
}

/// Lets a fault happen. What is tied to a message or an effect goes into `twist`.
pub(super) fn act(world: &Rc<World>, number: usize, twist: &mut Twist) {
    let plan = Rc::clone(&world.plan);
    let Some(fault) = plan.faults.get(number) else { return };
    world.saw(&Observation::Fault(fault));
    world.happened(number);
    match &fault.what {
        Action::Kill { processor, outage_ms } => kill(world, *processor, span(world, *outage_ms)),
        Action::Freeze { processor, span_ms } => freeze(world, *processor, span(world, *span_ms)),
        Action::Rollout { processor, outage_ms } => roll_out(world, *processor, span(world, *outage_ms)),
        Action::KillServer { server, outage_ms, lag_ms } => {
            stop(world, *server, span(world, *outage_ms), Stop::Kill(millis(*lag_ms)));
        }
        Action::StopServer { server, outage_ms } => stop(world, *server, span(world, *outage_ms), Stop::Terminate),
        Action::StepDown { span_ms } => step_down(world, span(world, *span_ms)),
        Action::Reset { processor, server } => reset(world, *processor, *server),
        Action::Sever { processor, server, span_ms, server_notices_ms } => {
            sever(world, *processor, *server, span(world, *span_ms), millis(*server_notices_ms));
        }
        Action::FreezeLink { processor, server, direction, span_ms } => {
            freeze_link(world, *processor, *server, *direction, span(world, *span_ms));
        }
        Action::LoseAnswer => {
            disturb(world, None, AFTERMATH);
            fail_some(world, millis(plan.options.request_timeout_ms));
            twist.lose_answer = true;
        }
        Action::FailBefore(fault) => twist.fate = Some(Fate::FailsBefore(error(*fault))),
        Action::FailAfter(fault) => twist.fate = Some(Fate::FailsAfter(error(*fault))),
        Action::Race => twist.fate = Some(Fate::Races),
        Action::FailMember(fault) => twist.fate = Some(Fate::MemberFails(error(*fault))),
        Action::FailConcern { rolled_back } => {
            let writes = if *rolled_back { Writes::RolledBack } else { Writes::Kept };
            twist.fate = Some(Fate::ConcernFails(writes));
        }
        Action::Garble => twist.fate = Some(Fate::Garbled),
        Action::FailWrites { span_ms } => fail_writes(world, span(world, *span_ms)),
        Action::Slow { span_ms } => {
            fail_some(world, millis(*span_ms));
            twist.slow_ms = *span_ms;
        }
        Action::LoseReport => {
            // The core waits for it, and that uses up its retry timeout as well.
            fail_some(world, plan.options.core().answer_timeout());
            twist.lose_report = true;
        }
        Action::Duplicate { after_ms } => twist.again_after_ms = Some(*after_ms),
        Action::SetAckWait { .. }
        | Action::SetMaxDeliver { .. }
        | Action::SetMaxAckPending { .. }
        | Action::LengthenWindow { .. }
        | Action::SetProcessors { .. } => change_settings(world, &fault.what),
    }
}

fn change_settings(world: &World, change: &Action) {
    let mut settings = world.settings.borrow_mut();
    if let Action::SetAckWait { ack_wait_ms } = change {
        settings.ack_wait_ms = *ack_wait_ms;
        too_few_heartbeats(world, millis(*ack_wait_ms));
    } else if let Action::SetMaxDeliver { max_deliver } = change {
        settings.max_deliver = *max_deliver;
    } else if let Action::SetMaxAckPending { max_ack_pending } = change {
        settings.max_ack_pending = *max_ack_pending;
    } else if let Action::LengthenWindow { window_ms } = change {
        world.lengthen_window(*window_ms);
        return;
    } else if let Action::SetProcessors { quiet_period_ms, page_size, max_in_flight } = change {
        settings.quiet_period_ms = *quiet_period_ms;
        settings.page_size = *page_size;
        settings.max_in_flight = *max_in_flight;
        return;
    }
    drop(settings);
    world.configure_consumer();
}

/// Processors go on with the heartbeats of the ack wait that they know, which may be too few for a shorter one.
fn too_few_heartbeats(world: &World, ack_wait: Duration) {
    for (processor, process) in world.processes.iter().enumerate() {
        let known = process.borrow().handles.as_ref().map(|handles| handles.ack_wait.get());
        if known.is_some_and(|known| known / 3 + world.longest_delay() >= ack_wait) {
            disturb(world, Some(processor), Duration::MAX);
        }
    }
}

/// A publish or an acknowledgement arrives once more after a while.
pub(super) fn arrives_again(world: &Rc<World>, input: &broker::Input, from: ClientId, after_ms: u64) {
    let span = millis(after_ms);
    match input {
        broker::Input::Request(Request::Ack { body: AckBody::Nak(_), .. }) => disturb(world, None, span + AFTERMATH),
        broker::Input::Request(Request::Ack { .. } | Request::Publish { .. }) => {}
        broker::Input::Request(Request::Pull { .. } | Request::UnreadablePull { .. } | Request::Api { .. })
        | broker::Input::Connect(_)
        | broker::Input::Disconnect(_)
        | broker::Input::Subscribe { .. }
        | broker::Input::Unsubscribe(_)
        | broker::Input::Limit(_)
        | broker::Input::Terminate
        | broker::Input::Kill { .. }
        | broker::Input::Start => return,
    }
    let again = input.clone();
    later(world, span, move |world| nats::handle(world, again, Some(from), false));
}

/// A fault's span, cut where the world heals.
fn span(world: &World, span_ms: u64) -> Duration {
    let span = millis(span_ms);
    world.plan.heals_at_ms.map_or(span, |heals| span.min(at_ms(heals).since(world.clock.now())))
}

pub(super) fn disturb(world: &World, processor: Option<usize>, span: Duration) {
    disturb_by(world, Cause::Fault, processor, span);
}

fn disturb_by(world: &World, cause: Cause, processor: Option<usize>, span: Duration) {
    let from = world.clock.now();
    world.saw(&Observation::Disturbed { processor, from, until: from.after(span), cause });
}

/// Mends something after a while.
fn later(world: &Rc<World>, span: Duration, mend: impl FnOnce(&Rc<World>) + 'static) {
    world.broken();
    let own = Rc::clone(world);
    world.spawn(async move {
        own.clock.sleep(span).await;
        mend(&own);
        own.mended();
    });
}

fn kill(world: &Rc<World>, processor: usize, outage: Duration) {
    let Some(process) = world.processes.get(processor) else { return };
    {
        let mut process = process.borrow_mut();
        if process.executor.is_none() || process.doomed {
            return;
        }
        // A rollout that is under way has counted itself already.
        if process.restart_after.replace(outage).is_none() {
            world.broken();
        }
    }
    // Until the server hears of its end, it sends to nobody.
    disturb(world, Some(processor), outage.max(world.longest_delay()));
    world.end(processor, Ending::Killed);
}

fn roll_out(world: &Rc<World>, processor: usize, outage: Duration) {
    let Some(process) = world.processes.get(processor) else { return };
    let mut process = process.borrow_mut();
    if process.executor.is_none() || process.doomed || process.restart_after.is_some() {
        return;
    }
    process.restart_after = Some(outage);
    let events = process.handles.as_ref().map(|handles| Rc::clone(&handles.events));
    drop(process);
    world.broken();
    disturb_by(world, Cause::Rollout, Some(processor), GRACE + outage);
    if let Some(events) = events {
        events.push(Event::Drain);
    }
}

fn freeze(world: &Rc<World>, processor: usize, span: Duration) {
    let Some(process) = world.processes.get(processor) else { return };
    let (starts, handles) = {
        let mut process = process.borrow_mut();
        if process.executor.is_none() || process.doomed {
            return;
        }
        process.frozen += 1;
        (process.starts, process.handles.clone())
    };
    if let Some(tape) = &world.tape {
        tape.borrow_mut().frozen(processor, world.clock.now(), span);
    }
    let connection = handles.as_ref().and_then(|handles| handles.nats.connection());
    // What is sent to it while its requests last waits in its socket, and what it held before comes to nothing as well.
    let sent_to = handles.map_or(span, |handles| span.min(handles.ack_wait.get() + AFTERMATH));
    disturb(world, Some(processor), sent_to);
    later(world, span, move |world| {
        let Some(process) = world.processes.get(processor) else { return };
        let mut process = process.borrow_mut();
        if process.starts == starts && process.executor.is_some() {
            process.frozen = process.frozen.saturating_sub(1);
            let goes_on = process.frozen == 0;
            let drains = process.restart_after.is_some();
            drop(process);
            if goes_on {
                world.saw(&Observation::Thawed { processor });
                // It says what it would have said long ago, to messages that others have by now; and where it was told to
                // stop, the signal waited for the thaw.
                disturb(world, Some(processor), if drains { GRACE } else { AFTERMATH });
            }
        }
    });
    if let Some(connection) = connection.filter(|_| span > STANDSTILL) {
        later(world, STANDSTILL, move |world| {
            // What it is told from now on, it is never told.
            disturb(world, Some(processor), Duration::ZERO);
            nats::disconnect(world, &connection);
            connection.down.send(world.clock.now(), world.delay(), nats::Down::Closed);
        });
    }
}

#[derive(Clone, Copy)]
enum Stop {
    Terminate,
    Kill(Duration),
}

fn stop(world: &Rc<World>, server: Server, outage: Duration, how: Stop) {
    match server {
        Server::Broker => {
            disturb(world, None, outage + AFTERMATH);
            let input = match how {
                Stop::Terminate => broker::Input::Terminate,
                Stop::Kill(lag) => broker::Input::Kill { lag },
            };
            nats::handle(world, input, None, false);
            later(world, outage, |world| nats::handle(world, broker::Input::Start, None, false));
        }
        Server::Store => {
            fail_all(world, None, outage);
            match how {
                Stop::Terminate => world.mongo.model.borrow_mut().terminate(),
                Stop::Kill(lag) => {
                    world.mongo.model.borrow_mut().kill(world.clock.now(), lag);
                    mongo::miss_segments(world);
                }
            }
            world.mongo.close_all(world);
            later(world, outage, |world| {
                world.mongo.model.borrow_mut().start();
                *world.mongo.up.borrow_mut() = true;
                later(world, ELECTION, |world| world.mongo.model.borrow_mut().elect());
            });
        }
    }
}

fn step_down(world: &Rc<World>, span: Duration) {
    fail_all(world, None, span);
    world.mongo.model.borrow_mut().step_down();
    later(world, span, |world| world.mongo.model.borrow_mut().elect());
}

/// The store serves reads and takes no writes. Reads that succeed are no evidence that writes work: it uses up no job's retry
/// timeout.
fn fail_writes(world: &Rc<World>, span: Duration) {
    fail_all(world, None, span);
    world.mongo.model.borrow_mut().refuse_writes();
    later(world, span, |world| world.mongo.model.borrow_mut().take_writes());
}

/// The store serves nobody, or not that processor: however long that lasts, it uses up no job's retry timeout.
fn fail_all(world: &Rc<World>, processor: Option<usize>, outage: Duration) {
    disturb_by(world, Cause::Outage, processor, outage + AFTERMATH * 3);
    let (some, all) = world.store_troubles.get();
    world.store_troubles.set((some, all + outage + AFTERMATH * 3));
    use_up_retry_timeout(world);
}

/// The store fails a job while it serves others.
fn fail_some(world: &Rc<World>, span: Duration) {
    let (some, all) = world.store_troubles.get();
    world.store_troubles.set((some + span + AFTERMATH * 3, all));
    use_up_retry_timeout(world);
}

/// A job whose retry timeout is over while others are served is given back, which costs an attempt. Several troubles can make
/// one long one, and an outage before or after them counts in.
fn use_up_retry_timeout(world: &Rc<World>) {
    let (some, all) = world.store_troubles.get();
    if !some.is_zero() && some + all >= millis(world.plan.options.retry_timeout_ms) {
        disturb(world, None, some + all);
    }
}

fn handles(world: &World, processor: usize) -> Option<super::Handles> {
    world.processes.get(processor).and_then(|process| process.borrow().handles.clone())
}

fn reset(world: &Rc<World>, processor: usize, server: Server) {
    let Some(handles) = handles(world, processor) else { return };
    match server {
        Server::Broker => {
            let Some(connection) = handles.nats.connection() else { return };
            disturb(world, Some(processor), AFTERMATH);
            nats::disconnect(world, &connection);
            handles.nats.lose(&connection, Known::Over);
        }
        Server::Store => {
            let Some(connection) = handles.mongo.connection() else { return };
            handles.mongo.lose(&connection, Known::Over);
        }
    }
}

fn sever(world: &Rc<World>, processor: usize, server: Server, span: Duration, server_notices: Duration) {
    let Some(handles) = handles(world, processor) else { return };
    match server {
        Server::Broker => {
            let Some(connection) = handles.nats.connection() else { return };
            // What the server still sends to the dead connection is lost, for as long as requests wait there.
            let to_nobody = server_notices.min(handles.ack_wait.get());
            disturb(world, Some(processor), span.max(to_nobody).max(CLIENT_NOTICES) + AFTERMATH);
            connection.up.cut();
            connection.down.cut();
            block(world, &world.nats.unreachable, processor, span, |world| &world.nats.unreachable);
            let client = Rc::downgrade(&handles.nats);
            let dead = Rc::clone(&connection);
            later(world, CLIENT_NOTICES, move |_| {
                if let Some(client) = client.upgrade() {
                    client.lose(&dead, Known::StillAlive);
                }
            });
            later(world, server_notices, move |world| nats::disconnect(world, &connection));
        }
        Server::Store => {
            let Some(connection) = handles.mongo.connection() else { return };
            fail_all(world, Some(processor), span);
            connection.up.cut();
            connection.down.cut();
            block(world, &world.mongo.unreachable, processor, span, |world| &world.mongo.unreachable);
            let client: std::rc::Weak<mongo::MongoClient> = Rc::downgrade(&handles.mongo);
            later(world, CLIENT_NOTICES, move |_| {
                if let Some(client) = client.upgrade() {
                    client.lose(&connection, Known::StillAlive);
                }
            });
        }
    }
}

type Blocked = std::cell::RefCell<Vec<u32>>;

/// Nobody can connect for a while.
fn block(world: &Rc<World>, blocked: &Blocked, processor: usize, span: Duration, of: fn(&World) -> &Blocked) {
    if let Some(count) = blocked.borrow_mut().get_mut(processor) {
        *count += 1;
    }
    later(world, span, move |world| {
        if let Some(count) = of(world).borrow_mut().get_mut(processor) {
            *count = count.saturating_sub(1);
        }
    });
}

fn freeze_link(world: &Rc<World>, processor: usize, server: Server, direction: Direction, span: Duration) {
    let Some(handles) = handles(world, processor) else { return };
    match server {
        Server::Broker => {
            let Some(connection) = handles.nats.connection() else { return };
            disturb(world, Some(processor), span + AFTERMATH);
            match direction {
                Direction::Up => connection.up.freeze(),
                Direction::Down => connection.down.freeze(),
            }
            later(world, span, move |_| {
                connection.up.thaw();
                connection.down.thaw();
            });
        }
        Server::Store => {
            let Some(connection) = handles.mongo.connection() else { return };
            fail_all(world, Some(processor), span);
            match direction {
                Direction::Up => connection.up.freeze(),
                Direction::Down => connection.down.freeze(),
            }
            later(world, span, move |_| {
                connection.up.thaw();
                connection.down.thaw();
            });
        }
    }
}

fn error(fault: StoreFault) -> StoreError {
    match fault {
        StoreFault::NotPrimary => StoreError::NotPrimary,
        StoreFault::WriteConflict => StoreError::WriteConflict,
        StoreFault::TimedOut => StoreError::TimedOut,
        StoreFault::Unauthorized => StoreError::Unauthorized,
    }
}
