//! A proxy before a nats-server that can hold messages back, stop a direction, and cut connections.
//!
//! Both directions are read frame by frame, as <https://docs.nats.io/reference/reference-protocols/nats-protocol> has
//! them, so what is held is always a whole message. It is for connections without TLS.

mod frame;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{AbortHandle, JoinSet},
};

use self::frame::Frame;
pub use self::frame::Message;

/// A proxy on a port of its own; it and its connections end when this is dropped.
#[derive(Debug)]
pub struct NatsProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
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

/// What happens to what is sent in one direction, on connections that are open and on those to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flow {
    /// It goes through.
    Pass,
    /// It waits, and the connection stays open, as behind a link that is down.
    Freeze,
    /// A message to this subject waits, and on its connection all that comes after it. Everything else goes through.
    Hold {
        /// The subject, to the letter.
        subject: String,
    },
}

impl NatsProxy {
    /// A proxy before the server at `server` that lets everything through. The server need not be there yet.
    ///
    /// # Errors
    ///
    /// No port can be had.
    pub async fn start(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            to_server: watch::Sender::new(Flow::Pass),
            to_client: watch::Sender::new(Flow::Pass),
            held: watch::Sender::new(Vec::new()),
            cuts: watch::Sender::new(0),
        });
        let accepting = tokio::spawn(accept(listener, server, shared.clone())).abort_handle();
        Ok(Self { address, shared, accepting })
    }

    /// Where clients reach the server through the proxy.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Sets what happens in one direction from now on. What waits and may now pass, passes.
    pub fn set(&self, direction: Direction, flow: Flow) {
        self.shared.flow(direction).send_replace(flow);
    }

    /// Closes every open connection. What is held on them is lost, even if the flow is set to [`Flow::Pass`] right after.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Waits until a message is held back by [`Flow::Hold`], and returns the first that is.
    pub async fn held(&self) -> Message {
        let mut held = self.shared.held.subscribe();
        let first = |held: &[Held]| held.iter().find(|held| held.cuts == *self.shared.cuts.borrow()).cloned();
        let held = held.wait_for(|held| first(held).is_some()).await.expect("the sender is in `shared`");
        first(&held).expect("it was awaited that there is one").message
    }
}

impl Drop for NatsProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

#[derive(Debug)]
struct Shared {
    to_server: watch::Sender<Flow>,
    to_client: watch::Sender<Flow>,
    /// What is held at this time.
    held: watch::Sender<Vec<Held>>,
    /// How often connections were cut. One that was accepted at a lower count is dead, whether its task knows already or not.
    cuts: watch::Sender<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    /// The cuts before its connection was accepted.
    cuts: u64,
    message: Message,
}

/// Takes a held message from the list when it passes, and when its connection ends.
struct Holding<'a> {
    shared: &'a Shared,
    held: Held,
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        self.shared.held.send_modify(|all| all.retain(|other| *other != self.held));
    }
}

impl Shared {
    fn flow(&self, direction: Direction) -> &watch::Sender<Flow> {
        match direction {
            Direction::ToServer => &self.to_server,
            Direction::ToClient => &self.to_client,
        }
    }

    fn hold(&self, held: Held) -> Holding<'_> {
        self.held.send_modify(|all| all.push(held.clone()));
        Holding { shared: self, held }
    }
}

/// One direction of one connection.
struct Gate<'a> {
    shared: &'a Shared,
    direction: Direction,
    /// The cuts before the connection was accepted.
    cuts: u64,
}

impl Gate<'_> {
    /// Returns when the frame may go on.
    async fn pass(&self, frame: &Frame) {
        let mut flow = self.shared.flow(self.direction).subscribe();
        let mut holding = None;
        let may_pass = |flow: &Flow| {
            let held = match flow {
                Flow::Hold { subject } => frame.message().filter(|message| message.subject() == subject),
                Flow::Pass | Flow::Freeze => None,
            };
            if let (Some(message), None) = (held, &holding) {
                holding = Some(self.shared.hold(Held { cuts: self.cuts, message: message.clone() }));
            }
            *flow != Flow::Freeze && held.is_none()
        };
        flow.wait_for(may_pass).await.map(|_| ()).expect("the sender is in `shared`");
    }
}

/// Ends, and its connections with it, when it is aborted.
async fn accept(listener: TcpListener, server: SocketAddr, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { return };
                connections.spawn(connect(client, server, shared.clone()));
            }
            // How a connection ended is for its two ends to see.
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connect(client: TcpStream, server: SocketAddr, shared: Arc<Shared>) -> io::Result<()> {
    let mut cut = shared.cuts.subscribe();
    let cuts = *cut.borrow();
    let relay = async {
        let server = TcpStream::connect(server).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let gate = |direction| Gate { shared: &shared, direction, cuts };
        tokio::try_join!(
            pump(from_client, to_server, gate(Direction::ToServer)),
            pump(from_server, to_client, gate(Direction::ToClient)),
        )?;
        Ok(())
    };
    tokio::select! {
        // Looked at first, so that nothing slips through between a cut and a flow that lets everything pass.
        biased;
        _ = cut.wait_for(|now| *now != cuts) => Ok(()),
        ended = relay => ended,
    }
}

async fn pump(from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, gate: Gate<'_>) -> io::Result<()> {
    let mut from = BufReader::new(from);
    while let Some(frame) = Frame::read(&mut from).await? {
        gate.pass(&frame).await;
        to.write_all(frame.bytes()).await?;
    }
    to.shutdown().await
}
