//! When a session ends that nobody is connected to.

use std::sync::Arc;

use transcript_core::Time;

use crate::{
    connection::Connection,
    document::Transport,
    input::Closure,
    output::{IdleOthers, Silence},
    settings::Settings,
};

/// When a session ends that nobody is connected to, as far as this instance knows.
#[derive(Debug, Default)]
pub(super) struct EndTimer {
    /// When the last connection closed.
    closed_at: Time,
    /// When the delay after that is over.
    at: Time,
    /// Clients whose sockets broke, and until when they are waited for.
    absent: Vec<(Option<Arc<str>>, Time)>,
    /// Whether a client delivered by a socket.
    had_sockets: bool,
    /// Whether a service asked for the end.
    pub(super) is_requested: bool,
    /// Whether the store said that nobody ever said anything.
    is_silent: bool,
}

impl EndTimer {
    /// A client has connected.
    pub(super) fn opened(&mut self, connection: &Connection) {
        self.is_silent = false;
        match connection.transport {
            // Services send requests side by side: one that comes after the request for the end does not take it back.
            Transport::Post => {}
            Transport::Socket => {
                (self.had_sockets, self.is_requested) = (true, false);
                let returned = self.absent.iter().rposition(|(client, _)| *client == connection.client);
                if let Some(place) = returned {
                    self.absent.swap_remove(place);
                }
            }
        }
    }

    /// A connection is closed. `is_replaced` says that its client has another one.
    pub(super) fn closed(
        &mut self,
        now: Time,
        connection: &Connection,
        closure: Closure,
        is_replaced: bool,
        settings: &Settings,
    ) {
        self.absent.retain(|(_, until)| *until > now);
        self.closed_at = now;
        match (connection.transport, closure) {
            (Transport::Socket, Closure::Broken) if !is_replaced => {
                self.at = now;
                self.absent.push((connection.client.clone(), now.after(settings.end_after_break)));
            }
            (Transport::Socket, Closure::Clean | Closure::Broken) => self.at = now.after(settings.end_after_close),
            (Transport::Post, _) if self.had_sockets => self.at = self.at.max(now.after(settings.end_after_close)),
            (Transport::Post, _) => self.at = now.after(settings.end_after_idle),
        }
    }

    /// The session was another instance's, whose clients may come.
    pub(super) fn taken_over(&mut self, now: Time, transport: Transport, settings: &Settings) {
        self.closed_at = now;
        self.had_sockets |= transport == Transport::Socket;
        self.at = now.after(match transport {
            Transport::Post => settings.end_after_idle,
            Transport::Socket => settings.end_after_break,
        });
    }

    /// The store says that nobody ever said anything.
    pub(super) fn silent(&mut self) {
        self.is_silent = true;
    }

    /// Somebody has said something. The store may have been asked before that, and have answered after it.
    pub(super) fn spoken(&mut self) {
        self.is_silent = false;
    }

    /// When to leave the session.
    pub(super) fn leave_at(&self, settings: &Settings) -> Time {
        if self.is_requested {
            return self.closed_at;
        }
        let absent = self.absent.iter().map(|(_, until)| *until).max();
        let at = absent.map_or(self.at, |until| self.at.max(until));
        if self.is_silent { at.max(self.silence_ends(settings)) } else { at }
    }

    /// What a leave at `now` does about a session in which nobody ever said anything.
    pub(super) fn silence(&self, now: Time, settings: &Settings) -> Silence {
        if self.is_requested || now >= self.silence_ends(settings) { Silence::Ends } else { Silence::Waits }
    }

    /// What a leave does about other instances that are only delivered to by requests.
    pub(super) fn idle_others(&self) -> IdleOthers {
        if self.is_requested { IdleOthers::Removed } else { IdleOthers::Stay }
    }

    fn silence_ends(&self, settings: &Settings) -> Time {
        self.closed_at.after(settings.end_after_silence)
    }
}
