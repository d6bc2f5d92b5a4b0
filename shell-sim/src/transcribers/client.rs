//! Clients: what they send, and what they do when a connection breaks.
//!
//! A client keeps what is not acknowledged, and sends it again on its next connection. One that hears nothing for a while
//! takes its connection for broken. A client that sends requests puts everything that it has to say into each one.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use transcript_transcriber::{
    ClientFrame, ClientSegment, CloseCode, Closure, ConnectionId, Finality, Input, Opening, ServerFrame,
    document::Transport,
};

use super::{
    plan::{Client, What},
    process::Link,
    world::{Happening, World, millis, session_ids},
};

/// How long a client waits for a word that it is owed.
const PATIENCE: Duration = Duration::from_secs(8);
/// How long it waits before it tries another transcriber.
const TRIES_AGAIN_AFTER: Duration = Duration::from_millis(300);

/// Where a client stands.
#[derive(Debug)]
pub(super) struct ClientState {
    /// Whether it wants nothing more.
    pub(super) is_done: bool,
    next_act: usize,
    said: Vec<Said>,
    /// The numbers of what is not acknowledged.
    unacknowledged: BTreeSet<usize>,
    link: Option<ConnectionId>,
    is_ready: bool,
    connects: bool,
    next_process: usize,
    finishes: bool,
    /// What it has heard, counted.
    heard: u64,
    /// Whether the request under way asks for the end.
    asks_for_end: bool,
}

/// A segment that a client has to say.
#[derive(Debug, Clone, Default)]
struct Said {
    version: u64,
    acknowledged: Option<u64>,
    /// Texts that it sent on connections that it gave up. Nobody can say whether, and when, they arrive.
    given_up: BTreeSet<u64>,
}

impl ClientState {
    pub(super) fn new(plan: &Client) -> Self {
        Self {
            is_done: false,
            next_act: 0,
            said: vec![],
            unacknowledged: BTreeSet::new(),
            link: None,
            is_ready: false,
            connects: false,
            next_process: plan.tries_first,
            finishes: false,
            heard: 0,
            asks_for_end: false,
        }
    }

    /// Its connection is gone.
    fn give_up(&mut self) -> Option<ConnectionId> {
        self.is_ready = false;
        for number in &self.unacknowledged {
            if let Some(said) = self.said.get_mut(*number) {
                said.given_up.insert(said.version);
            }
        }
        self.link.take()
    }

    /// Whether it waits for a word.
    fn is_owed(&self) -> bool {
        !self.is_ready || self.finishes || !self.unacknowledged.is_empty()
    }
}

impl World<'_> {
    /// The next thing that a client does.
    pub(super) fn act(&mut self, client: usize) {
        let plan = self.plan;
        let Some(planned) = plan.clients.get(client) else { return };
        let Some(it) = self.clients.get_mut(client).filter(|it| !it.is_done) else { return };
        let Some(act) = planned.acts.get(it.next_act) else { return };
        it.next_act += 1;
        let following = planned.acts.get(it.next_act).map(|act| millis(act.at_ms));
        match act.what {
            What::Say => {
                it.said.push(Said::default());
                let number = it.said.len() - 1;
                it.unacknowledged.insert(number);
                self.say_now(client, number);
            }
            What::Edit { back } => {
                if let Some(number) = it.said.len().checked_sub(back + 1)
                    && let Some(said) = it.said.get_mut(number)
                {
                    said.version += 1;
                    it.unacknowledged.insert(number);
                    self.say_now(client, number);
                }
            }
            What::Interim => {
                if let Some(link) = it.link.filter(|_| it.is_ready) {
                    self.send(
                        link,
                        Happening::Deliver { link, frame: segment("interim".into(), None, Finality::Interim) },
                    );
                }
            }
            What::Break { away_ms, unnoticed_ms, next } => {
                it.next_process = next;
                self.break_off(client, Duration::from_millis(unnoticed_ms), Duration::from_millis(away_ms));
            }
            What::Finish => {
                it.finishes = true;
                match it.link.filter(|_| it.is_ready && !planned.posts) {
                    Some(link) => self.send(link, Happening::Deliver { link, frame: ClientFrame::CloseStream }),
                    None => self.want_connection(client, Duration::ZERO),
                }
            }
            What::Vanish => {
                it.is_done = true;
                self.break_off(client, Duration::from_millis(5), Duration::ZERO);
            }
        }
        self.want_connection(client, Duration::ZERO);
        if let Some(at) = following {
            self.at(at, Happening::Act { client });
        }
    }

    /// A client connects to a transcriber, or to the next one where that is down.
    pub(super) fn connect(&mut self, client: usize) {
        let plan = self.plan;
        let Some(planned) = plan.clients.get(client) else { return };
        let Some(it) = self.clients.get_mut(client) else { return };
        it.connects = false;
        if it.is_done || it.link.is_some() {
            return;
        }
        let process = it.next_process % plan.instances;
        if !self.is_up(process) {
            self.try_next(client);
            return self.want_connection(client, TRIES_AGAIN_AFTER);
        }
        let (session, life) = (session_ids(planned.session), self.life(process));
        let transport = if planned.posts { Transport::Post } else { Transport::Socket };
        let connection = ConnectionId(self.links.len() as u64 + 1);
        self.links.insert(connection, Link::new(client, process, life, session.key(), transport));
        let name = planned.is_named.then(|| Arc::from(format!("client{client}")));
        let epoch = name.as_ref().map(|_| Arc::from("1"));
        let opening = Opening { connection, session, client: name, epoch, transport };
        self.tell_trace(|| format!("client {client} connects to t{process} as {connection}"));
        self.send(connection, Happening::Input { process, life, input: Input::Opened(opening), of: None });
        let Some(it) = self.clients.get_mut(client) else { return };
        (it.link, it.is_ready) = (Some(connection), !planned.waits_for_ready || planned.posts);
        let heard = it.heard;
        if it.is_ready {
            self.say_everything(client);
        }
        self.later(PATIENCE, Happening::Patience { client, link: connection, heard });
    }

    /// A client has waited for a while.
    pub(super) fn lose_patience(&mut self, client: usize, link: ConnectionId, heard: u64) {
        let Some(it) = self.clients.get(client).filter(|it| it.link == Some(link) && !it.is_done) else { return };
        let heard_now = it.heard;
        if heard_now == heard && it.is_owed() {
            self.tell_trace(|| format!("client {client} takes {link} for broken"));
            self.try_next(client);
            self.break_off(client, Duration::from_secs(3), TRIES_AGAIN_AFTER);
        } else {
            self.later(PATIENCE, Happening::Patience { client, link, heard: heard_now });
        }
    }

    /// A transcriber has said something.
    pub(super) fn told(&mut self, link: ConnectionId, frame: &ServerFrame, text: Option<&str>) {
        let Some(client) = self.links.get(&link).map(|link| link.client) else { return };
        let Some(it) = self.clients.get_mut(client).filter(|it| it.link == Some(link)) else { return };
        it.heard += 1;
        match frame {
            ServerFrame::Ready => {
                if !std::mem::replace(&mut it.is_ready, true) {
                    self.say_everything(client);
                }
            }
            ServerFrame::Ack { .. } => {
                let Some((_, number, version)) = text.and_then(parse) else { return };
                let Some(said) = it.said.get_mut(number) else { return };
                said.acknowledged = said.acknowledged.max(Some(version));
                if said.acknowledged == Some(said.version) {
                    it.unacknowledged.remove(&number);
                }
            }
            ServerFrame::Error { .. } | ServerFrame::Saved { .. } => {}
        }
    }

    /// A connection is gone, as its client sees it.
    pub(super) fn hung_up(&mut self, link: ConnectionId, code: Option<CloseCode>) {
        let Some(client) = self.links.get(&link).map(|link| link.client) else { return };
        let posts = self.plan.clients.get(client).is_some_and(|planned| planned.posts);
        let Some(it) = self.clients.get_mut(client).filter(|it| it.link == Some(link)) else { return };
        it.give_up();
        match code {
            Some(CloseCode::Normal) if !posts || it.asks_for_end => it.is_done = true,
            Some(CloseCode::Normal) => self.want_connection(client, Duration::ZERO),
            Some(CloseCode::Policy | CloseCode::Internal) => it.is_done = true,
            Some(CloseCode::Restart | CloseCode::TryAgainLater) | None => {
                self.try_next(client);
                self.want_connection(client, TRIES_AGAIN_AFTER);
            }
        }
    }

    /// Whether a stored text is one of this connection's client.
    pub(super) fn is_text_of(&self, link: ConnectionId, text: Option<&str>) -> bool {
        let client = self.links.get(&link).map(|link| link.client);
        text.and_then(parse).is_some_and(|(of, ..)| Some(of) == client)
    }

    /// Checks at the end that everything is stored that a client was told is.
    pub(super) fn check_acknowledged(&mut self, client: usize) {
        let plan = self.plan;
        let (Some(it), Some(planned)) = (self.clients.get(client), plan.clients.get(client)) else { return };
        let key = session_ids(planned.session).key();
        let stored: Vec<(usize, u64)> = self
            .store
            .segments(&key)
            .filter_map(|segment| parse(&segment.text))
            .filter(|(of, ..)| *of == client)
            .map(|(_, number, version)| (number, version))
            .collect();
        for (number, said) in it.said.iter().enumerate() {
            let is_kept = said.acknowledged.is_none_or(|acknowledged| {
                let is_good = |version: u64| version >= acknowledged || said.given_up.contains(&version);
                stored.iter().any(|(of, version)| *of == number && is_good(*version))
            });
            if !is_kept {
                let what = format!("segment {number} of client {client} is gone: {said:?}, stored: {stored:?}");
                return self.watch.broken("EveryAcknowledgedSegmentIsStored", what);
            }
        }
        if !it.is_done {
            let what = format!("client {client} still waits: {it:?}");
            self.watch.broken("EverySessionEndsAndItsLastEndCountsWhatIsStored", what);
        }
    }

    fn try_next(&mut self, client: usize) {
        if let Some(it) = self.clients.get_mut(client) {
            it.next_process += 1;
        }
    }

    /// Sends a segment, if the client may send.
    fn say_now(&mut self, client: usize, number: usize) {
        let plan = self.plan;
        let (Some(it), Some(planned)) = (self.clients.get(client), plan.clients.get(client)) else { return };
        let Some(link) = it.link.filter(|_| it.is_ready && !planned.posts) else { return };
        let version = it.said.get(number).map_or(0, |said| said.version);
        let id = planned.has_ids.then(|| Arc::from(number.to_string()));
        let frame = segment(text(client, number, version), id, Finality::Final);
        self.send(link, Happening::Deliver { link, frame });
    }

    /// Sends everything that is not acknowledged, on a new connection.
    fn say_everything(&mut self, client: usize) {
        let plan = self.plan;
        let (Some(it), Some(planned)) = (self.clients.get_mut(client), plan.clients.get(client)) else { return };
        let Some(link) = it.link else { return };
        let finishes = it.finishes;
        it.asks_for_end = planned.posts && finishes;
        let frames: Vec<ClientFrame> = it
            .unacknowledged
            .iter()
            .map(|number| {
                let version = it.said.get(*number).map_or(0, |said| said.version);
                let id = planned.has_ids.then(|| Arc::from(number.to_string()));
                segment(text(client, *number, version), id, Finality::Final)
            })
            .collect();
        for frame in frames {
            self.send(link, Happening::Deliver { link, frame });
        }
        let last = match (planned.posts, finishes) {
            (true, true) => Some(ClientFrame::EndSession),
            (true, false) | (false, true) => Some(ClientFrame::CloseStream),
            (false, false) => None,
        };
        if let Some(frame) = last {
            self.send(link, Happening::Deliver { link, frame });
        }
    }

    /// Connects after a while, where the client is not connected and has something to say. A client of a socket is always
    /// connected.
    fn want_connection(&mut self, client: usize, after: Duration) {
        let posts = self.plan.clients.get(client).is_some_and(|planned| planned.posts);
        let Some(it) = self.clients.get_mut(client) else { return };
        let has_to_say = !posts || it.finishes || !it.unacknowledged.is_empty();
        if !it.is_done && it.link.is_none() && !it.connects && has_to_say {
            it.connects = true;
            self.later(after, Happening::Connect { client });
        }
    }

    /// The connection breaks; the transcriber notices later.
    fn break_off(&mut self, client: usize, unnoticed: Duration, away: Duration) {
        let Some(it) = self.clients.get_mut(client) else { return };
        if let Some(link) = it.give_up() {
            self.send_no_sooner(link, unnoticed, Happening::LinkClosed { link, closure: Closure::Broken });
        }
        self.want_connection(client, away);
    }
}

fn segment(text: Arc<str>, id: Option<Arc<str>>, finality: Finality) -> ClientFrame {
    ClientFrame::Segment(ClientSegment { id, speaker: None, text, start_ms: None, end_ms: None, finality })
}

/// What a client says, so that everybody can tell whose it is.
fn text(client: usize, number: usize, version: u64) -> Arc<str> {
    format!("{client} {number} {version}").into()
}

fn parse(text: &str) -> Option<(usize, usize, u64)> {
    let mut parts = text.split(' ');
    let parsed = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next().is_none().then_some(parsed)
}
