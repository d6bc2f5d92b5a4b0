//! MongoDB, as the service uses it: the client of [`transcript_client`] decides, and a `Socket` runs its commands.

mod batches;
pub(crate) mod driver_error;
mod page;
pub(crate) mod reply;
pub(crate) mod segment;
mod small;
pub(crate) mod socket;
pub mod stale;
pub mod statement;

use std::{collections::HashMap, time::Duration};

use mongodb::Database;
use tokio::{
    sync::mpsc,
    task::{Id, JoinError, JoinSet},
};
use transcript_client::mongodb::{
    Client, CommandError, CommandId, Input as ClientInput, Notice, Output, Reply, Request,
};
use transcript_core::{Input, ids::EffectId};

pub(crate) use self::page::tally;
use self::socket::Socket;
pub use self::{
    batches::{BatchSizes, Distribution},
    driver_error::describe,
};
use super::clock::Clock;

/// The most requests that are taken at once.
const REQUESTS: usize = 1024;

/// Hands effects to the client.
#[derive(Debug, Clone)]
pub struct Store {
    requests: mpsc::UnboundedSender<(EffectId, Request)>,
}

impl Store {
    /// Starts the client; it ends when every clone of the store is gone. What became of the effects is sent to `reports`.
    #[must_use]
    pub fn start(
        database: &Database,
        reports: &mpsc::UnboundedSender<Input>,
        clock: Clock,
        request_timeout: Duration,
        batches: BatchSizes,
    ) -> Self {
        let (requests, asked) = mpsc::unbounded_channel();
        let socket = Socket::new(database, request_timeout);
        let connection = Connection {
            client: Client::new(request_timeout),
            socket,
            clock,
            reports: reports.clone(),
            running: Running::default(),
            batches,
        };
        tokio::spawn(connection.run(asked));
        Self { requests }
    }

    /// Asks for an effect.
    pub fn ask(&self, id: EffectId, request: Request) {
        // A client that is gone reports nothing: the core asks again and gives the job back in the end.
        self.requests.send((id, request)).ok();
    }
}

/// The client and what it needs.
struct Connection {
    client: Client,
    socket: Socket,
    clock: Clock,
    reports: mpsc::UnboundedSender<Input>,
    running: Running,
    batches: BatchSizes,
}

/// The commands under way, each in a task of its own, so that documents are decoded side by side.
#[derive(Default)]
struct Running {
    tasks: JoinSet<Reply>,
    commands: HashMap<Id, CommandId, std::hash::BuildHasherDefault<std::hash::DefaultHasher>>,
}

impl Connection {
    async fn run(mut self, mut asked: mpsc::UnboundedReceiver<(EffectId, Request)>) {
        let mut requests = Vec::with_capacity(REQUESTS);
        loop {
            tokio::select! {
                taken = asked.recv_many(&mut requests, REQUESTS) => {
                    if taken == 0 {
                        return;
                    }
                    for (id, request) in requests.drain(..) {
                        self.client.handle(self.clock.now(), ClientInput::Asked { id, request });
                    }
                }
                Some((id, reply)) = self.running.next() => {
                    self.client.handle(self.clock.now(), ClientInput::Answered { id, reply });
                }
            }
            while let Some(output) = self.client.poll_output() {
                match output {
                    Output::Run { id, command } => {
                        self.batches.count(&command);
                        let socket = self.socket.clone();
                        let task = self.running.tasks.spawn(async move { socket.run(command).await });
                        self.running.commands.insert(task.id(), id);
                    }
                    // The driver loop is gone once the processor has drained; nobody needs the report then.
                    Output::Report { effect, report } => drop(self.reports.send(Input::Reported { effect, report })),
                    Output::Notice(notice) => log(&notice),
                }
            }
        }
    }
}

impl Running {
    /// The next reply; `None` while no command is under way.
    async fn next(&mut self) -> Option<(CommandId, Reply)> {
        let ended = self.tasks.join_next_with_id().await?;
        let (task, reply) = match ended {
            Ok((task, reply)) => (task, reply),
            // A bug in the socket; the client asks again.
            Err(error) => (JoinError::id(&error), Reply::Failed(CommandError::Driver)),
        };
        Some((self.commands.remove(&task)?, reply))
    }
}

fn log(notice: &Notice) {
    match notice {
        Notice::Failing { .. } | Notice::Damaged { .. } => tracing::warn!("{notice}"),
        Notice::WorksAgain { .. } => tracing::info!("{notice}"),
    }
}
