//! A proxy before a server that injects faults: it can hold messages back, lose them, delay, freeze and cut.
//!
//! Both directions are read frame by frame, however the stream is cut into pieces, so what is held or lost is always a
//! whole message, and what passed when is written down. It is for connections without TLS.

mod mongo;
mod nats;
mod tcp;

use std::{
    fmt::Debug,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::BytesMut;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep_until},
};

pub use self::{
    mongo::{Mongo, MongoFrame, MongoTraffic},
    nats::{Message, Nats, NatsFrame, NatsTraffic, Operation},
    tcp::Tcp,
};

/// Frames of one direction of a connection that are read while an earlier one waits. More than that stays with the sender,
/// as behind any link.
const READ_AHEAD: usize = 4096;

/// A proxy before a nats-server.
pub type NatsProxy = Proxy<Nats>;
/// A proxy before a mongod. Clients must be told to connect to it alone (`directConnection=true`), or the server names itself.
pub type MongoProxy = Proxy<Mongo>;
/// A proxy before any server.
pub type TcpProxy = Proxy<Tcp>;

/// What is known of one connection's protocol.
pub trait Wire: Default + Debug + Send + 'static {
    /// What is passed on or not as a whole.
    type Frame: AsRef<[u8]> + Clone + Debug + Send + Sync;
    /// What rules and the log tell frames apart by.
    type Traffic: Clone + PartialEq + Debug + Send + Sync;

    /// Takes the first frame from what has been read so far; `None` where there is no whole one yet.
    ///
    /// # Errors
    ///
    /// The bytes are none of this protocol.
    fn split(read: &mut BytesMut) -> io::Result<Option<Self::Frame>>;

    /// What the frame is. Called once for every frame of the connection, in the order of each direction.
    fn sort(&mut self, frame: &Self::Frame, direction: Direction) -> Self::Traffic;
}

/// A proxy on a port of its own; it and its connections end when this is dropped.
#[derive(Debug)]
pub struct Proxy<W: Wire> {
    address: SocketAddr,
    shared: Arc<Shared<W>>,
    accepting: AbortHandle,
}

/// A direction through the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// What clients send.
    ToServer,
    /// What the server sends.
    ToClient,
}

/// What happens to all that is sent in one direction, on connections that are open and on those to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// It goes through.
    Pass,
    /// It waits, and the connection stays open, as behind a link that is down.
    Freeze,
    /// It goes through this much later.
    Delay(Duration),
}

/// What became of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It was passed on.
    Passed,
    /// It waits, and on its connection all that comes after it. Where it passes later, the log says that too.
    Held,
    /// It was lost, and what came after it went on.
    Discarded,
}

/// A line of the log.
#[derive(Debug, Clone, PartialEq)]
pub struct LogLine<T> {
    /// When it got its fate.
    pub at: Instant,
    /// The connection, counted from 1 in the order in which they were accepted.
    pub connection: u64,
    /// The direction.
    pub direction: Direction,
    /// What it was.
    pub traffic: T,
    /// What became of it.
    pub fate: Fate,
}

/// What is being done to one kind of traffic, until this is dropped. What was held then passes, unless its connection was cut.
#[derive(Debug)]
#[must_use = "the rule ends when this is dropped"]
pub struct Rule<W: Wire> {
    id: u64,
    shared: Arc<Shared<W>>,
}

impl<W: Wire> Proxy<W> {
    /// A proxy before the server at `server` that lets everything through. The server need not be there yet.
    ///
    /// # Errors
    ///
    /// No port can be had.
    pub async fn start(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            control: watch::Sender::new(Control {
                to_server: Flow::Pass,
                to_client: Flow::Pass,
                rules: Vec::new(),
                ruled: 0,
                silent_up_to: 0,
            }),
            connections: watch::Sender::new(Connections { accepted: 0, open: 0, cut_up_to: 0 }),
            held: watch::Sender::new(Vec::new()),
            log: watch::Sender::new(Vec::new()),
        });
        let accepting = tokio::spawn(accept(listener, server, shared.clone())).abort_handle();
        Ok(Self { address, shared, accepting })
    }

    /// Where clients reach the server through the proxy.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets what happens in one direction from now on. What waits and may now pass, passes.
    pub fn set(&self, direction: Direction, flow: Flow) {
        self.shared.control.send_modify(|control| *control.flow(direction) = flow);
    }

    /// Makes every open connection silent in both directions without closing it, as when a machine or a firewall on the
    /// way has forgotten it. Connections to come are as before.
    pub fn silence(&self) {
        let accepted = self.shared.connections.borrow().accepted;
        self.shared.control.send_modify(|control| control.silent_up_to = accepted);
    }

    /// Ends the silence of [`Self::silence`]: what was sent meanwhile arrives.
    pub fn end_silence(&self) {
        self.shared.control.send_modify(|control| control.silent_up_to = 0);
    }

    /// Closes every open connection. What waits on them is lost, even if the rule that held it ends right after.
    pub fn cut(&self) {
        self.shared.connections.send_modify(|connections| connections.cut_up_to = connections.accepted);
    }

    /// How many connections are open.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        self.shared.connections.borrow().open
    }

    /// Holds back what is like `traffic`, and on its connection all that comes after it.
    pub fn hold(&self, traffic: W::Traffic) -> Rule<W> {
        self.rule(traffic, Fate::Held)
    }

    /// Loses what is like `traffic`.
    pub fn discard(&self, traffic: W::Traffic) -> Rule<W> {
        self.rule(traffic, Fate::Discarded)
    }

    /// Waits until a frame is held back by [`Self::hold`], and returns the first that is.
    pub async fn held(&self) -> W::Frame {
        let mut held = self.shared.held.subscribe();
        let first = |held: &[Held<W>]| {
            let cut_up_to = self.shared.connections.borrow().cut_up_to;
            held.iter().find(|held| held.connection > cut_up_to).map(|held| held.frame.clone())
        };
        let held = held.wait_for(|held| first(held).is_some()).await.expect("the sender is in `shared`");
        first(&held).expect("it was awaited that there is one")
    }

    /// Everything that has passed, was held or was lost so far, in this order.
    #[must_use]
    pub fn log(&self) -> Vec<LogLine<W::Traffic>> {
        self.shared.log.borrow().clone()
    }

    /// How often that became of such traffic so far.
    #[must_use]
    pub fn count(&self, traffic: &W::Traffic, fate: Fate) -> usize {
        self.shared.log.borrow().iter().filter(|seen| seen.traffic == *traffic && seen.fate == fate).count()
    }

    /// When that last became of such traffic; `None` where it has not yet.
    #[must_use]
    pub fn last(&self, traffic: &W::Traffic, fate: Fate) -> Option<Instant> {
        let log = self.shared.log.borrow();
        log.iter().rev().find(|seen| seen.traffic == *traffic && seen.fate == fate).map(|seen| seen.at)
    }

    /// Waits until that becomes of such traffic, and returns the first time after `since` that it did.
    pub async fn seen(&self, traffic: &W::Traffic, fate: Fate, since: Instant) -> Instant {
        let mut log = self.shared.log.subscribe();
        let first = |log: &Vec<LogLine<W::Traffic>>| {
            let seen = log.iter().find(|seen| seen.at >= since && seen.traffic == *traffic && seen.fate == fate)?;
            Some(seen.at)
        };
        let log = log.wait_for(|log| first(log).is_some()).await.expect("the sender is in `shared`");
        first(&log).expect("it was awaited that there is one")
    }

    fn rule(&self, traffic: W::Traffic, fate: Fate) -> Rule<W> {
        let mut id = 0;
        self.shared.control.send_modify(|control| {
            control.ruled += 1;
            id = control.ruled;
            control.rules.push((id, traffic, fate));
        });
        Rule { id, shared: self.shared.clone() }
    }
}

impl NatsProxy {
    /// Where clients reach the server through the proxy.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://{}", self.address)
    }
}

impl MongoProxy {
    /// Where clients reach the server through the proxy.
    #[must_use]
    pub fn uri(&self) -> String {
        format!("mongodb://{}/?directConnection=true", self.address)
    }
}

impl<W: Wire> Drop for Proxy<W> {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl<W: Wire> Drop for Rule<W> {
    fn drop(&mut self) {
        self.shared.control.send_modify(|control| control.rules.retain(|(id, ..)| *id != self.id));
    }
}

#[derive(Debug)]
struct Shared<W: Wire> {
    control: watch::Sender<Control<W::Traffic>>,
    connections: watch::Sender<Connections>,
    /// What is held at this time.
    held: watch::Sender<Vec<Held<W>>>,
    log: watch::Sender<Vec<LogLine<W::Traffic>>>,
}

#[derive(Debug)]
struct Control<T> {
    to_server: Flow,
    to_client: Flow,
    /// The first that fits counts.
    rules: Vec<(u64, T, Fate)>,
    /// How many rules there were.
    ruled: u64,
    /// Connections with a number up to this one are silent.
    silent_up_to: u64,
}

#[derive(Debug)]
struct Connections {
    accepted: u64,
    open: usize,
    /// Connections with a number up to this one are dead, whether their tasks know already or not.
    cut_up_to: u64,
}

#[derive(Debug)]
struct Held<W: Wire> {
    connection: u64,
    direction: Direction,
    frame: W::Frame,
}

/// What is to become of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Pass,
    PassLater(Duration),
    Wait,
    Hold,
    Discard,
}

impl<T: PartialEq> Control<T> {
    fn flow(&mut self, direction: Direction) -> &mut Flow {
        match direction {
            Direction::ToServer => &mut self.to_server,
            Direction::ToClient => &mut self.to_client,
        }
    }

    fn verdict(&self, connection: u64, direction: Direction, traffic: &T) -> Verdict {
        if connection <= self.silent_up_to {
            return Verdict::Wait;
        }
        let flow = match direction {
            Direction::ToServer => self.to_server,
            Direction::ToClient => self.to_client,
        };
        let rule = self.rules.iter().find(|(_, ruled, _)| ruled == traffic).map(|(.., fate)| *fate);
        match (flow, rule) {
            (Flow::Freeze, _) => Verdict::Wait,
            (_, Some(Fate::Held)) => Verdict::Hold,
            (_, Some(Fate::Discarded)) => Verdict::Discard,
            (Flow::Pass, Some(Fate::Passed) | None) => Verdict::Pass,
            (Flow::Delay(delay), Some(Fate::Passed) | None) => Verdict::PassLater(delay),
        }
    }
}

/// A frame on its way.
struct Parcel<W: Wire> {
    frame: W::Frame,
    traffic: W::Traffic,
    read_at: Instant,
}

/// One direction of one connection.
struct Gate<'a, W: Wire> {
    shared: &'a Shared<W>,
    wire: &'a Mutex<W>,
    direction: Direction,
    connection: u64,
}

impl<W: Wire> Gate<'_, W> {
    /// Returns when it is known what becomes of the frame: whether it goes on.
    async fn pass(&self, parcel: &Parcel<W>) -> bool {
        let mut control = self.shared.control.subscribe();
        let mut holding = None;
        let verdict = loop {
            let verdict = control.borrow_and_update().verdict(self.connection, self.direction, &parcel.traffic);
            // The rule that held the frame can end before the task of a connection that was cut: it must not pass then.
            if self.shared.connections.borrow().cut_up_to >= self.connection {
                break Verdict::Discard;
            }
            match verdict {
                Verdict::Pass | Verdict::Discard => break verdict,
                Verdict::PassLater(delay) => {
                    sleep_until(parcel.read_at + delay).await;
                    break verdict;
                }
                Verdict::Hold if holding.is_none() => {
                    self.log(&parcel.traffic, Fate::Held);
                    holding = Some(self.hold(&parcel.frame));
                }
                Verdict::Hold | Verdict::Wait => {}
            }
            control.changed().await.expect("the sender is in `shared`");
        };
        let passes = verdict != Verdict::Discard;
        self.log(&parcel.traffic, if passes { Fate::Passed } else { Fate::Discarded });
        passes
    }

    fn log(&self, traffic: &W::Traffic, fate: Fate) {
        let (connection, direction, traffic) = (self.connection, self.direction, traffic.clone());
        let seen = LogLine { at: Instant::now(), connection, direction, traffic, fate };
        self.shared.log.send_modify(|log| log.push(seen));
    }

    fn hold(&self, frame: &W::Frame) -> Holding<'_, W> {
        let (connection, direction) = (self.connection, self.direction);
        self.shared.held.send_modify(|all| all.push(Held { connection, direction, frame: frame.clone() }));
        Holding { shared: self.shared, connection, direction }
    }
}

/// Takes a held frame from the list when it passes, and when its connection ends. A direction of a connection has one at most.
struct Holding<'a, W: Wire> {
    shared: &'a Shared<W>,
    connection: u64,
    direction: Direction,
}

impl<W: Wire> Drop for Holding<'_, W> {
    fn drop(&mut self) {
        let this = |held: &Held<W>| (held.connection, held.direction) == (self.connection, self.direction);
        self.shared.held.send_modify(|all| all.retain(|held| !this(held)));
    }
}

/// Ends, and its connections with it, when it is aborted.
async fn accept<W: Wire>(listener: TcpListener, server: SocketAddr, shared: Arc<Shared<W>>) {
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { return };
                let mut number = 0;
                shared.connections.send_modify(|connections| {
                    connections.accepted += 1;
                    connections.open += 1;
                    number = connections.accepted;
                });
                let shared = shared.clone();
                tasks.spawn(async move {
                    // How a connection ended is for its two ends to see.
                    connect(client, server, &shared, number).await.ok();
                    shared.connections.send_modify(|connections| connections.open -= 1);
                });
            }
            Some(_) = tasks.join_next() => {}
        }
    }
}

async fn connect<W: Wire>(
    client: TcpStream,
    server: SocketAddr,
    shared: &Shared<W>,
    connection: u64,
) -> io::Result<()> {
    let mut connections = shared.connections.subscribe();
    let wire = Mutex::new(W::default());
    let relay = async {
        let server = TcpStream::connect(server).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let gate = |direction| Gate { shared, wire: &wire, direction, connection };
        tokio::try_join!(
            pump(from_client, to_server, gate(Direction::ToServer)),
            pump(from_server, to_client, gate(Direction::ToClient)),
        )?;
        Ok(())
    };
    tokio::select! {
        // Looked at first, so that nothing slips through between a cut and the end of the rule that held it.
        biased;
        _ = connections.wait_for(|connections| connections.cut_up_to >= connection) => Ok(()),
        ended = relay => ended,
    }
}

async fn pump<W: Wire>(from: impl AsyncRead + Unpin, to: impl AsyncWrite + Unpin, gate: Gate<'_, W>) -> io::Result<()> {
    let (read, waiting) = mpsc::channel(READ_AHEAD);
    tokio::try_join!(read_frames(from, read, &gate), write_frames(waiting, to, &gate)).map(|_| ())
}

/// Reads until the connection ends. What came whole before that still arrives.
async fn read_frames<W: Wire>(
    mut from: impl AsyncRead + Unpin,
    read: mpsc::Sender<Parcel<W>>,
    gate: &Gate<'_, W>,
) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    while matches!(from.read_buf(&mut buffer).await, Ok(1..)) {
        let read_at = Instant::now();
        while let Some(frame) = W::split(&mut buffer)? {
            let traffic = gate.wire.lock().unwrap_or_else(PoisonError::into_inner).sort(&frame, gate.direction);
            if read.send(Parcel { frame, traffic, read_at }).await.is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

async fn write_frames<W: Wire>(
    mut waiting: mpsc::Receiver<Parcel<W>>,
    mut to: impl AsyncWrite + Unpin,
    gate: &Gate<'_, W>,
) -> io::Result<()> {
    while let Some(parcel) = waiting.recv().await {
        if gate.pass(&parcel).await {
            to.write_all(parcel.frame.as_ref()).await?;
        }
    }
    to.shutdown().await
}
