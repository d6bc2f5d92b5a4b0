//! What connections and the driver tell each other.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use transcript_transcriber::{ClientFrame, CloseCode, Closure, ConnectionId, Opening, Reading, ServerFrame};

/// How many frames of one connection may wait for the driver. The state machine bounds their bytes; this bounds what it has not
/// seen yet.
const FRAMES: usize = 32;
/// How many answers may wait for one client to read them. A client that reads more slowly is closed: nothing is lost, because
/// what it was not told is stored all the same.
const ANSWERS: usize = 1024;

/// What a connection tells the driver.
#[derive(Debug)]
pub enum Event {
    /// It is open.
    Opened {
        /// Who it is.
        opening: Opening,
        /// Where its answers go.
        answers: mpsc::Sender<Answer>,
    },
    /// It said something.
    Frame {
        /// The connection.
        connection: ConnectionId,
        /// What it said.
        frame: ClientFrame,
        /// The place that it takes until the driver has it.
        place: OwnedSemaphorePermit,
    },
    /// It is gone.
    Closed {
        /// The connection.
        connection: ConnectionId,
        /// How.
        closure: Closure,
    },
}

/// What the driver tells a connection.
#[derive(Debug)]
pub enum Answer {
    /// Tell the client.
    Send(ServerFrame),
    /// Close it.
    Close(CloseCode, String),
    /// Read on, or not.
    Read(Reading),
}

/// Where connections begin.
#[derive(Debug, Clone)]
pub struct Hub {
    events: mpsc::UnboundedSender<Event>,
    last: Arc<AtomicU64>,
}

impl Hub {
    /// A hub, and what its connections say.
    #[must_use]
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Event>) {
        let (events, told) = mpsc::unbounded_channel();
        (Self { events, last: Arc::default() }, told)
    }

    /// The id of a new connection.
    #[must_use]
    pub fn next_id(&self) -> ConnectionId {
        ConnectionId(self.last.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Opens a connection.
    #[must_use]
    pub fn open(&self, opening: Opening) -> Connection {
        let (answers, told) = mpsc::channel(ANSWERS);
        let connection = opening.connection;
        self.tell(Event::Opened { opening, answers });
        Connection {
            hub: self.clone(),
            id: connection,
            places: Arc::new(Semaphore::new(FRAMES)),
            answers: told,
            closure: Closure::Broken,
        }
    }

    fn tell(&self, event: Event) {
        // A driver that is gone has closed everything.
        self.events.send(event).ok();
    }
}

/// An open connection. It is closed when this is dropped: broken, unless [`Self::ends_cleanly`] was called.
#[derive(Debug)]
pub struct Connection {
    hub: Hub,
    id: ConnectionId,
    places: Arc<Semaphore>,
    /// What the driver says; `None` once it has closed the connection, or given it up because it reads too slowly.
    pub answers: mpsc::Receiver<Answer>,
    closure: Closure,
}

impl Connection {
    /// A place for one frame, as soon as there is one.
    pub async fn place(places: Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
        places.acquire_owned().await.ok()
    }

    /// The places of its frames.
    #[must_use]
    pub fn places(&self) -> Arc<Semaphore> {
        Arc::clone(&self.places)
    }

    /// Hands a frame over.
    pub fn frame(&self, frame: ClientFrame, place: OwnedSemaphorePermit) {
        self.hub.tell(Event::Frame { connection: self.id, frame, place });
    }

    /// It ends as the client wanted.
    pub fn ends_cleanly(&mut self) {
        self.closure = Closure::Clean;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.hub.tell(Event::Closed { connection: self.id, closure: self.closure });
    }
}
