//! Who is connected, and who listens to what.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    message::{ClientId, Inbox},
    subject,
};

/// The connections of the broker.
#[derive(Debug, Clone, Default)]
pub(super) struct Clients {
    connected: BTreeMap<ClientId, Connection>,
}

#[derive(Debug, Clone, Default)]
struct Connection {
    closed: BTreeSet<u64>,
    listening: Vec<(u64, Arc<str>)>,
}

impl Clients {
    pub(super) fn connect(&mut self, client: ClientId) {
        self.connected.insert(client, Connection::default());
    }

    pub(super) fn disconnect(&mut self, client: ClientId) {
        self.connected.remove(&client);
    }

    /// Ends all connections and says whose they were.
    pub(super) fn close_all(&mut self) -> impl Iterator<Item = ClientId> + use<> {
        std::mem::take(&mut self.connected).into_keys()
    }

    pub(super) fn subscribe(&mut self, to: Inbox, subject: Option<Arc<str>>) {
        if let Some(connection) = self.connected.get_mut(&to.client) {
            connection.closed.remove(&to.token);
            connection.listening.extend(subject.map(|subject| (to.token, subject)));
        }
    }

    pub(super) fn unsubscribe(&mut self, inbox: Inbox) {
        if let Some(connection) = self.connected.get_mut(&inbox.client) {
            connection.closed.insert(inbox.token);
            connection.listening.retain(|(token, _)| *token != inbox.token);
        }
    }

    pub(super) fn is_connected(&self, client: ClientId) -> bool {
        self.connected.contains_key(&client)
    }

    pub(super) fn has_interest(&self, inbox: Inbox) -> bool {
        self.connected.get(&inbox.client).is_some_and(|connection| !connection.closed.contains(&inbox.token))
    }

    /// The core subscriptions that match, in the order of the clients and then of their subscriptions.
    pub(super) fn listeners(&self, subject: &str) -> Vec<Inbox> {
        let mut found = Vec::new();
        for (client, connection) in &self.connected {
            for (token, pattern) in &connection.listening {
                if subject::matches(pattern, subject) {
                    found.push(Inbox { client: *client, token: *token });
                }
            }
        }
        found
    }
}
