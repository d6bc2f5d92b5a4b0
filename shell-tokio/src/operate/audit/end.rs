//! Ends sessions that have no end, as a transcriber does that takes them over from a dead one.
//!
//! It is the state machine of the transcriber that does it: it takes the entries of dead transcribers, stores what they had
//! not stored, counts, publishes the end and records it. So a transcriber that was thought dead and wakes up meanwhile, or a
//! client that connects to another one, meets what it would meet after any other take-over.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_nats::jetstream::Context;
use futures::{StreamExt, stream};
use mongodb::Database;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use transcript_core::{Failure, FailureKind, ids::Session};
use transcript_transcriber::{ClientFrame, Opening, Settings, StreamState, Transcriber, document::Transport};

use super::sessions::{Sessions, Standing};
use crate::{
    service::{
        clock::Clock,
        driver::{Signal, questions},
        run::own_name,
    },
    transcriber::{
        driver::Driver,
        hub::{Answer, Connection, Hub},
        run::nonce,
        store::Store,
        stream::Stream,
    },
};

/// How many sessions are opened at the same time, of those that no transcriber is listed in.
const AT_ONCE: usize = 64;
/// How long nothing may get better before what is left is given up.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks at what is left.
const LOOK: Duration = Duration::from_millis(100);
/// How long one answer of a server is waited for.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Ends these sessions. Gives those that could not be ended.
///
/// # Errors
///
/// MongoDB cannot be asked.
pub(super) async fn end(
    js: &Context,
    database: &Database,
    looker: &Sessions,
    sessions: &[Session],
) -> Result<Vec<Session>, Failure> {
    let settings = settings(looker).await?;
    let machine = Transcriber::new(settings.clone()).map_err(|error| rejected(&error))?;
    let (hub, mut events) = Hub::new();
    let store = Store::new(database, REQUEST_TIMEOUT);
    let (_nobody_asks, questions) = questions();
    let stream = Stream::over(js.clone());
    let driver = Driver::new(machine, &settings, Clock::start(), store, stream, questions, None);
    let (stop, mut signals) = mpsc::unbounded_channel();
    let ending = async {
        let left = Ending { looker, hub, sessions }.all().await;
        // Its lease expires at once then, and nobody waits for it.
        stop.send(Signal::Drain).ok();
        left
    };
    let (_, left) = tokio::join!(driver.run(&mut events, &mut signals), ending);
    left
}

/// Nobody is waited for, because no client can connect; unless other transcribers run, whose business the rest is.
async fn settings(looker: &Sessions) -> Result<Settings, Failure> {
    let nonce = nonce().map_err(|error| rejected(&error))?;
    let settings = Settings::new(&format!("audit-{}", own_name()), &nonce, StreamState::Available);
    if !looker.living().await?.is_empty() {
        return Ok(settings);
    }
    let none = Duration::ZERO;
    Ok(Settings {
        end_after_close: none,
        end_after_break: none,
        end_after_silence: none,
        end_after_idle: none,
        orphans_interval: LOOK,
        ..settings
    })
}

fn rejected(error: &dyn std::error::Error) -> Failure {
    Failure { kind: FailureKind::Rejected, detail: error.to_string() }
}

struct Ending<'a> {
    looker: &'a Sessions,
    hub: Hub,
    sessions: &'a [Session],
}

impl Ending<'_> {
    /// Ends all of them; gives those that are left when nothing gets better any more.
    async fn all(&self) -> Result<Vec<Session>, Failure> {
        let mut left: BTreeMap<String, &Session> =
            self.sessions.iter().map(|session| (session.key().as_str().to_owned(), session)).collect();
        let before = self.standing(&left).await?;
        // The state machine finds for itself where a dead transcriber is listed.
        let unlisted = left.iter().filter(|(key, _)| before.get(*key).is_some_and(|standing| !standing.is_listed));
        stream::iter(unlisted).for_each_concurrent(AT_ONCE, |(_, session)| ask_for_the_end(&self.hub, session)).await;
        let mut since = Instant::now();
        loop {
            let now = self.standing(&left).await?;
            let most = left.len();
            left.retain(|key, _| {
                let (was, is) = (before.get(key).and_then(|was| was.ended), now.get(key));
                is.is_some_and(|is| is.ended.is_none() || is.ended == was)
            });
            if left.len() < most {
                since = Instant::now();
            }
            if left.is_empty() || since.elapsed() > PATIENCE {
                return Ok(left.into_values().cloned().collect());
            }
            sleep(LOOK).await;
        }
    }

    async fn standing(&self, left: &BTreeMap<String, &Session>) -> Result<BTreeMap<String, Standing>, Failure> {
        self.looker.standing(&left.keys().map(String::as_str).collect::<Vec<_>>()).await
    }
}

/// Asks the state machine to end a session, as a service asks that delivers by requests.
async fn ask_for_the_end(hub: &Hub, session: &Session) {
    let opening = Opening {
        connection: hub.next_id(),
        session: session.clone(),
        client: None,
        epoch: None,
        transport: Transport::Post,
    };
    let mut connection = hub.open(opening);
    let place = Connection::place(Arc::clone(&connection.places())).await;
    if let Some(place) = place {
        connection.frame(ClientFrame::EndSession, place);
    }
    let closed = async {
        while let Some(answer) = connection.answers.recv().await {
            if let Answer::Close(..) = answer {
                return;
            }
        }
    };
    // What does not end is seen in its document.
    tokio::time::timeout(PATIENCE, closed).await.ok();
    connection.ends_cleanly();
}
