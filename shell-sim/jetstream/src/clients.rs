//! Who is connected, and who listens to what.

use std::{
    cell::Cell,
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
    /// How many messages queue groups have got: whose turn it is.
    turns: Cell<usize>,
}

#[derive(Debug, Clone, Default)]
struct Connection {
    closed: BTreeSet<u64>,
    listening: Vec<Subscription>,
}

#[derive(Debug, Clone)]
struct Subscription {
    token: u64,
    pattern: Arc<str>,
    group: Option<Arc<str>>,
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

    pub(super) fn subscribe(&mut self, to: Inbox, subject: Option<Arc<str>>, group: Option<Arc<str>>) {
        if let Some(connection) = self.connected.get_mut(&to.client) {
            connection.closed.remove(&to.token);
            let subscription = subject.map(|pattern| Subscription { token: to.token, pattern, group });
            connection.listening.extend(subscription);
        }
    }

    pub(super) fn unsubscribe(&mut self, inbox: Inbox) {
        if let Some(connection) = self.connected.get_mut(&inbox.client) {
            connection.closed.insert(inbox.token);
            connection.listening.retain(|subscription| subscription.token != inbox.token);
        }
    }

    pub(super) fn is_connected(&self, client: ClientId) -> bool {
        self.connected.contains_key(&client)
    }

    pub(super) fn has_interest(&self, inbox: Inbox) -> bool {
        self.connected.get(&inbox.client).is_some_and(|connection| !connection.closed.contains(&inbox.token))
    }

    /// The core subscriptions that match, in the order of the clients and then of their subscriptions; of each queue group
    /// one.
    pub(super) fn listeners(&self, subject: &str) -> Vec<Inbox> {
        let mut found = Vec::new();
        let mut groups: BTreeMap<(&str, &str), Vec<Inbox>> = BTreeMap::new();
        for (client, connection) in &self.connected {
            for Subscription { token, pattern, group } in &connection.listening {
                if subject::matches(pattern, subject) {
                    let inbox = Inbox { client: *client, token: *token };
                    match group {
                        Some(group) => groups.entry((pattern, group)).or_default().push(inbox),
                        None => found.push(inbox),
                    }
                }
            }
        }
        for members in groups.into_values() {
            let turn = self.turns.get();
            self.turns.set(turn.wrapping_add(1));
            found.extend(members.get(turn % members.len()));
        }
        found
    }
}
