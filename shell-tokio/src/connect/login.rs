//! Logins that stay refused.
//!
//! Credentials are replaced while the process runs. Files are read again before each connection to NATS, so what was
//! replaced on disk is used; everything else needs a new process. A server that goes on refusing the login for
//! `--login-timeout` ends the process, so that it is started again with the new credentials, and people are told.

use std::{future, sync::Arc, time::Duration};

use thiserror::Error;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use transcript_core::Server;

use super::Fault;

/// Which logins are refused, for all who connect and for the one who ends the process.
#[derive(Debug, Clone)]
pub struct Logins {
    limit: Duration,
    refused: Arc<watch::Sender<Refused>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Refused {
    nats: Option<Refusal>,
    mongodb: Option<Refusal>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Refusal {
    since: Instant,
    fault: Fault,
}

/// A login was refused for so long that the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "{server} has refused the login for {} (--login-timeout): {}; ended, so that it is started again with the credentials \
     that hold now",
    humantime::format_duration(*limit), fault.explain(*server)
)]
pub struct LoginRefused {
    /// Which server.
    pub server: Server,
    /// For how long.
    pub limit: Duration,
    /// What the last attempt met.
    pub fault: Fault,
}

impl Logins {
    /// Nothing is refused; what is refused for longer than this ends the process.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self { limit, refused: Arc::new(watch::Sender::default()) }
    }

    /// The server refused the login, or there is nothing to log in with.
    pub(super) fn refused(&self, server: Server, fault: Fault) {
        let refusal = |before: Option<Refusal>| Refusal { since: before.map_or_else(Instant::now, |r| r.since), fault };
        self.refused.send_modify(|refused| {
            let of_server = refused.of(server);
            *of_server = Some(refusal(*of_server));
        });
    }

    /// The server let us in.
    pub(super) fn accepted(&self, server: Server) {
        self.refused.send_if_modified(|refused| refused.of(server).take().is_some());
    }

    /// Waits until a login has been refused for too long.
    pub async fn refused_for_too_long(&self) -> LoginRefused {
        let mut refused = self.refused.subscribe();
        loop {
            let oldest = refused.borrow_and_update().oldest();
            tokio::select! {
                changed = refused.changed() => if changed.is_err() {
                    // Cannot be: this holds a sender.
                    future::pending::<()>().await;
                },
                ended = self.end(oldest) => return ended,
            }
        }
    }

    async fn end(&self, oldest: Option<(Server, Refusal)>) -> LoginRefused {
        match oldest {
            Some((server, Refusal { since, fault })) => {
                sleep_until(since + self.limit).await;
                LoginRefused { server, limit: self.limit, fault }
            }
            None => future::pending().await,
        }
    }
}

impl Refused {
    fn of(&mut self, server: Server) -> &mut Option<Refusal> {
        match server {
            Server::Nats => &mut self.nats,
            Server::Mongodb => &mut self.mongodb,
        }
    }

    fn oldest(self) -> Option<(Server, Refusal)> {
        let both = [(Server::Nats, self.nats), (Server::Mongodb, self.mongodb)];
        both.into_iter()
            .filter_map(|(server, refusal)| Some((server, refusal?)))
            .min_by_key(|(_, refusal)| refusal.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_login_that_stays_refused_ends_the_process() {
        let logins = Logins::new(LIMIT);
        let start = Instant::now();
        let ended = tokio::spawn({
            let logins = logins.clone();
            async move { logins.refused_for_too_long().await }
        });
        logins.refused(Server::Nats, Fault::Login);
        tokio::time::sleep(LIMIT / 2).await;
        logins.refused(Server::Nats, Fault::Credentials);
        logins.refused(Server::Mongodb, Fault::Login);
        let ended = ended.await.unwrap();
        assert_eq!((ended.server, ended.fault, start.elapsed()), (Server::Nats, Fault::Credentials, LIMIT));
    }

    #[tokio::test(start_paused = true)]
    async fn a_login_that_is_accepted_in_time_does_not() {
        let logins = Logins::new(LIMIT);
        logins.refused(Server::Nats, Fault::Login);
        tokio::time::sleep(LIMIT / 2).await;
        logins.accepted(Server::Nats);
        let ended = tokio::time::timeout(LIMIT * 3, logins.refused_for_too_long()).await;
        assert!(ended.is_err(), "{ended:?}");
    }
}
