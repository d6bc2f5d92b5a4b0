//! Transcribers and the connections that they hold.
//!
//! What was sent before a kill still arrives. A process that stands still takes nothing until it goes on; then it takes
//! everything at once, as a process does whose sockets have buffered. Its timers are late then, too.

use std::{collections::VecDeque, time::Duration};

use transcript_core::{Time, ids::Key};
use transcript_transcriber::{
    ClientFrame, Closure, ConnectionId, EffectKind, Finality, Input, Output, Reading, ServerFrame, Transcriber,
    document::Transport,
};

use super::{
    bug::Bug,
    plan::Moment,
    store::SessionStore,
    world::{Happening, World},
};

/// One transcriber.
#[derive(Debug, Default)]
pub(super) struct Process {
    machine: Option<Box<Transcriber>>,
    /// How often it was started.
    life: u32,
    started_at: Time,
    frozen_until: Time,
    /// What has arrived while it stands still, in that order.
    inbox: VecDeque<Happening>,
    /// When it is to be woken.
    wake_at: Option<Time>,
    /// How long after it has stopped it is started again.
    restarts_after: Option<Duration>,
}

/// A connection, as its transcriber sees it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) client: usize,
    pub(super) process: usize,
    life: u32,
    key: Key,
    transport: Transport,
    /// Whether the transcriber has neither closed it nor been told that it is closed.
    is_open: bool,
    is_ready: bool,
    /// What has arrived while it was not read.
    held: Option<VecDeque<ClientFrame>>,
    /// When what was sent last arrives: what is sent later arrives later.
    to_server: Time,
    to_client: Time,
}

impl Process {
    pub(super) fn is_up(&self) -> bool {
        self.machine.is_some()
    }

    pub(super) fn holds_nothing(&self) -> bool {
        self.machine.as_ref().is_none_or(|machine| machine.sessions() == 0 && machine.bytes() == 0)
    }

    pub(super) fn describe(&self) -> String {
        self.machine
            .as_ref()
            .map_or_else(String::new, |machine| format!("{:?}, {} bytes", machine.states(), machine.bytes()))
    }
}

impl Link {
    pub(super) fn new(client: usize, process: usize, life: u32, key: Key, transport: Transport) -> Self {
        Self {
            client,
            process,
            life,
            key,
            transport,
            is_open: true,
            is_ready: false,
            held: None,
            to_server: Time::ZERO,
            to_client: Time::ZERO,
        }
    }

    /// Whether a client of a session was told that it is connected, by an instance that nobody may succeed.
    pub(super) fn is_connected(&self, key: &Key, processes: &[Process], store: &SessionStore) -> bool {
        let machine = processes.get(self.process).filter(|process| process.life == self.life);
        let holds =
            machine.and_then(|process| process.machine.as_ref()).is_some_and(|machine| store.holds(machine.instance()));
        self.key == *key && self.transport == Transport::Socket && self.is_open && self.is_ready && holds
    }
}

impl World<'_> {
    pub(super) fn life(&self, process: usize) -> u32 {
        self.processes.get(process).map_or(0, |process| process.life)
    }

    pub(super) fn is_up(&self, process: usize) -> bool {
        self.processes.get(process).is_some_and(Process::is_up)
    }

    pub(super) fn start(&mut self, process: usize) {
        if self.is_up(process) {
            return;
        }
        let settings = self.settings(process, self.life(process) + 1);
        let now = self.now;
        let Some(it) = self.processes.get_mut(process) else { return };
        it.life += 1;
        (it.started_at, it.frozen_until, it.wake_at, it.restarts_after) = (now, now, None, None);
        it.inbox.clear();
        it.machine = Some(Box::new(Transcriber::new(settings).expect("the settings can work")));
        self.tell_trace(|| format!("t{process} starts"));
        self.drain(process);
    }

    pub(super) fn kill(&mut self, process: usize, outage: Duration) {
        let Some(it) = self.processes.get_mut(process).filter(|it| it.is_up()) else { return };
        it.machine = None;
        self.somebody_died = true;
        self.tell_trace(|| format!("t{process} is killed"));
        self.break_links(process);
        self.later(outage, Happening::Start { process });
    }

    pub(super) fn shut_down(&mut self, process: usize, outage: Duration) {
        let Some(it) = self.processes.get_mut(process).filter(|it| it.is_up()) else { return };
        it.restarts_after = Some(outage);
        let life = it.life;
        self.somebody_died = true;
        self.soon(Happening::Input { process, life, input: Input::Shutdown, of: None });
    }

    pub(super) fn freeze(&mut self, process: usize, until: Time) {
        if let Some(it) = self.processes.get_mut(process) {
            it.frozen_until = it.frozen_until.max(until);
        }
        self.somebody_died = true;
        self.at(until, Happening::Thaw { process });
    }

    /// It goes on, if nothing has frozen it again, and takes what has arrived.
    pub(super) fn thaw(&mut self, process: usize) {
        while !self.is_frozen(process) {
            let next = self.processes.get_mut(process).and_then(|it| it.inbox.pop_front());
            let Some(happening) = next else { return };
            self.happen(happening);
        }
    }

    /// Nothing freezes it any more, and it runs.
    pub(super) fn mend(&mut self, process: usize) {
        if let Some(it) = self.processes.get_mut(process) {
            it.frozen_until = Time::ZERO;
        }
        self.thaw(process);
        self.start(process);
    }

    pub(super) fn input(&mut self, process: usize, life: u32, input: Input, of: Option<(EffectKind, u32)>) {
        if self.life(process) != life || !self.is_up(process) {
            return;
        }
        if self.is_frozen(process) {
            return self.defer(process, Happening::Input { process, life, input, of });
        }
        self.handle(process, input);
        if let Some((kind, nth)) = of {
            self.strike_at(process, kind, nth, Moment::Reported);
        }
    }

    pub(super) fn woken(&mut self, process: usize, life: u32) {
        let now = self.now;
        if self.life(process) != life || !self.is_up(process) {
            return;
        }
        if self.is_frozen(process) {
            return self.defer(process, Happening::Woken { process, life });
        }
        let Some(it) = self.processes.get_mut(process).filter(|it| it.wake_at.is_some_and(|at| at <= now)) else {
            return;
        };
        it.wake_at = None;
        self.handle(process, Input::Woken);
        let is_asked_again = self.processes.get(process).and_then(|it| it.wake_at).is_some_and(|at| at <= now);
        if is_asked_again {
            self.watch.broken("DeadlinesMove", format!("t{process} wants to be woken at {now:?} again"));
        }
    }

    /// A frame has arrived.
    pub(super) fn deliver(&mut self, link: ConnectionId, frame: ClientFrame) {
        let Some((process, life)) = self.links.get(&link).map(|it| (it.process, it.life)) else { return };
        if self.life(process) != life || !self.is_up(process) {
            return;
        }
        if self.is_frozen(process) {
            return self.defer(process, Happening::Deliver { link, frame });
        }
        let Some(it) = self.links.get_mut(&link).filter(|it| it.is_open) else { return };
        match &mut it.held {
            Some(held) => held.push_back(frame),
            None => self.hand_over(link, frame),
        }
    }

    /// A transcriber notices that a connection is gone.
    pub(super) fn link_closed(&mut self, link: ConnectionId, closure: Closure) {
        let Some((process, life)) = self.links.get(&link).map(|it| (it.process, it.life)) else { return };
        if self.life(process) != life || !self.is_up(process) {
            return;
        }
        if self.is_frozen(process) {
            return self.defer(process, Happening::LinkClosed { link, closure });
        }
        let Some(it) = self.links.get_mut(&link) else { return };
        it.is_open = false;
        // What has arrived before the close is read before it.
        let (held, key) = (it.held.take().unwrap_or_default(), it.key.clone());
        for frame in held {
            self.hand_over(link, frame);
        }
        self.handle(process, Input::Closed { connection: link, closure });
        if self.plan.bug == Some(Bug::EndsOnTheFirstClose) {
            let others: Vec<ConnectionId> =
                self.links.iter().filter(|(_, it)| it.process == process && it.key == key).map(|(id, _)| *id).collect();
            for connection in others {
                self.handle(process, Input::Closed { connection, closure });
            }
        }
    }

    /// Sends what a client says: it arrives after everything that the client said before.
    pub(super) fn send(&mut self, link: ConnectionId, happening: Happening) {
        let span = self.latency();
        self.send_no_sooner(link, span, happening);
    }

    /// The same, for something that takes longer.
    pub(super) fn send_no_sooner(&mut self, link: ConnectionId, span: Duration, happening: Happening) {
        let earliest = self.now.after(span);
        let Some(it) = self.links.get_mut(&link) else { return };
        it.to_server = earliest.max(it.to_server.after(Duration::from_micros(1)));
        let at = it.to_server;
        self.at(at, happening);
    }

    fn is_frozen(&self, process: usize) -> bool {
        self.processes.get(process).is_some_and(|it| it.frozen_until > self.now)
    }

    fn defer(&mut self, process: usize, happening: Happening) {
        if let Some(it) = self.processes.get_mut(process) {
            it.inbox.push_back(happening);
        }
    }

    fn hand_over(&mut self, link: ConnectionId, mut frame: ClientFrame) {
        let Some((process, key)) = self.links.get(&link).map(|it| (it.process, it.key.clone())) else { return };
        if let ClientFrame::Segment(segment) = &mut frame {
            if self.plan.bug == Some(Bug::StoresInterim) {
                segment.finality = Finality::Final;
            }
            *self.received.entry(key).or_default() += u64::from(segment.finality == Finality::Final);
        }
        self.handle(process, Input::Frame { connection: link, frame });
    }

    fn handle(&mut self, process: usize, input: Input) {
        let now = self.now;
        let Some(it) = self.processes.get_mut(process) else { return };
        let Some(machine) = &mut it.machine else { return };
        machine.handle(Time::ZERO.after(now.since(it.started_at)), input);
        if machine.bytes() > self.plan.most_bytes() {
            let what = format!("t{process} holds {} bytes", machine.bytes());
            self.watch.broken("MemoryIsBounded", what);
        }
        self.drain(process);
    }

    /// Does what a transcriber says.
    fn drain(&mut self, process: usize) {
        loop {
            let Some(it) = self.processes.get_mut(process) else { return };
            let Some(machine) = &mut it.machine else { return };
            match machine.poll_output() {
                Output::Perform { id, effect } => self.perform(process, id, effect),
                Output::Send { connection, frame } => self.say(connection, frame),
                Output::Close { connection, code, reason } => {
                    self.tell_trace(|| format!("t{process} closes {connection}: {code:?} {reason}"));
                    self.close(connection, code);
                }
                Output::Read { connection, reading } => self.read(connection, reading),
                Output::Notice(notice) => self.tell_trace(|| format!("t{process} says {notice:?}")),
                Output::Wait(wake_up) => {
                    let at = wake_up.map(|wake_up| it.started_at.after(wake_up.at.since(Time::ZERO)));
                    let (life, is_new) = (it.life, it.wake_at != at);
                    it.wake_at = at;
                    if let Some(at) = at.filter(|_| is_new) {
                        self.at(at, Happening::Woken { process, life });
                    }
                    return;
                }
                Output::Stopped => {
                    let outage = it.restarts_after.take().unwrap_or_default();
                    it.machine = None;
                    self.tell_trace(|| format!("t{process} has stopped"));
                    self.break_links(process);
                    return self.later(outage, Happening::Start { process });
                }
            }
        }
    }

    fn say(&mut self, link: ConnectionId, frame: ServerFrame) {
        let text = match &frame {
            ServerFrame::Ack { index, .. } => {
                self.stats.acknowledged += 1;
                let key = self.links.get(&link).map(|it| it.key.clone());
                key.and_then(|key| self.store.segment(&key, *index).map(|segment| segment.text.clone()))
            }
            ServerFrame::Ready => {
                if let Some(it) = self.links.get_mut(&link) {
                    it.is_ready = true;
                    self.opened.insert(it.key.clone());
                }
                None
            }
            ServerFrame::Error { .. } | ServerFrame::Saved { .. } => None,
        };
        if let ServerFrame::Ack { index, .. } = &frame
            && !self.is_text_of(link, text.as_deref())
        {
            let what = format!("connection {link} is told of index {index}, where {text:?} is stored");
            self.watch.broken("EveryAcknowledgedSegmentIsStored", what);
        }
        self.answer(link, |link| Happening::Tell { link, frame, text });
    }

    fn close(&mut self, link: ConnectionId, code: transcript_transcriber::CloseCode) {
        let Some(it) = self.links.get_mut(&link) else { return };
        it.is_open = false;
        let (process, life) = (it.process, it.life);
        self.answer(link, |link| Happening::Hangup { link, code: Some(code) });
        let input = Input::Closed { connection: link, closure: Closure::Clean };
        self.soon(Happening::Input { process, life, input, of: None });
    }

    fn read(&mut self, link: ConnectionId, reading: Reading) {
        let Some(it) = self.links.get_mut(&link) else { return };
        match reading {
            Reading::Paused => it.held = Some(it.held.take().unwrap_or_default()),
            // It is handed over once the transcriber has said everything; what arrives from now on comes after it.
            Reading::Resumed => {
                for frame in it.held.take().unwrap_or_default() {
                    self.later(Duration::ZERO, Happening::Deliver { link, frame });
                }
            }
        }
    }

    /// Sends an answer: it arrives after every earlier one.
    fn answer(&mut self, link: ConnectionId, happening: impl FnOnce(ConnectionId) -> Happening) {
        let span = self.latency();
        let earliest = self.now.after(span);
        let Some(it) = self.links.get_mut(&link) else { return };
        it.to_client = earliest.max(it.to_client.after(Duration::from_micros(1)));
        let at = it.to_client;
        self.at(at, happening(link));
    }

    fn break_links(&mut self, process: usize) {
        let life = self.life(process);
        let links: Vec<ConnectionId> =
            self.links.iter().filter(|(_, it)| (it.process, it.life) == (process, life)).map(|(id, _)| *id).collect();
        for link in links {
            if let Some(it) = self.links.get_mut(&link) {
                it.is_open = false;
            }
            self.answer(link, |link| Happening::Hangup { link, code: None });
        }
    }
}
