//! All sessions of one instance: which connection is whose, what is due, and what is said.

use std::collections::{BTreeMap, BTreeSet};

use transcript_core::{
    Time,
    ids::{Key, Session as Ids},
};

use crate::{
    acknowledged::AcknowledgementTimes,
    around::{Around, Counters, Owner, SessionNumber},
    frame::{CloseCode, ServerFrame},
    ids::{ConnectionId, EffectId, InstanceId},
    input::{Closure, Input, Opening, Orphan, Report, StreamState},
    kind::EffectKind,
    lease::{Lease, OrphanSearch},
    output::{Notice, Output, Timer, WakeUp},
    session::{Session, State},
    settings::{Settings, SettingsError},
};

/// The state machine that decides everything about every session; see the crate's first page.
#[derive(Debug)]
pub struct Transcriber {
    around: Around,
    lease: Lease,
    orphans: OrphanSearch,
    sessions: BTreeMap<SessionNumber, Box<Session>>,
    by_key: BTreeMap<Key, SessionNumber>,
    connections: BTreeMap<ConnectionId, SessionNumber>,
    /// The next deadline of each session.
    due: BTreeSet<(Time, SessionNumber)>,
    scheduled: BTreeMap<SessionNumber, Time>,
    last_session: SessionNumber,
    /// When a shutdown waits no longer.
    stops_by: Option<Time>,
    #[cfg(test)]
    pub(crate) edges: BTreeSet<(State, &'static str, State)>,
}

impl Transcriber {
    /// A transcriber without a session.
    ///
    /// # Errors
    ///
    /// Settings that cannot work.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        settings.check()?;
        let mut around = Around::new(settings);
        if around.stream == StreamState::Absent {
            around.notice(Notice::NothingIsPublished);
        }
        let mut transcriber = Self {
            around,
            lease: Lease::new(),
            orphans: OrphanSearch::new(),
            sessions: BTreeMap::new(),
            by_key: BTreeMap::new(),
            connections: BTreeMap::new(),
            due: BTreeSet::new(),
            scheduled: BTreeMap::new(),
            last_session: 0,
            stops_by: None,
            #[cfg(test)]
            edges: BTreeSet::new(),
        };
        transcriber.lease.look(&mut transcriber.around);
        Ok(transcriber)
    }

    /// Takes what has happened, at a time that is not before that of the last call.
    pub fn handle(&mut self, now: Time, input: Input) {
        self.around.now = self.around.now.max(now);
        match input {
            Input::Opened(opening) => self.open(opening),
            Input::Frame { connection, frame } => {
                let number = self.connections.get(&connection).copied();
                self.with(number, |session, around| session.frame(around, connection, frame));
            }
            Input::Closed { connection, closure } => self.close(connection, closure),
            Input::Reported { effect, report } => self.report(effect, report),
            Input::Stream(state) => self.stream(state),
            Input::Woken => {}
            Input::Shutdown => self.shut_down(),
        }
        self.serve_timers();
        self.read_on();
    }

    /// The next thing to do, until it is [`Output::Wait`] or [`Output::Stopped`].
    pub fn poll_output(&mut self) -> Output {
        if let Some(output) = self.around.outputs.pop_front() {
            return output;
        }
        if self.lease.is_released() {
            return Output::Stopped;
        }
        let session = self.due.first().and_then(|(at, number)| {
            let timer = self.sessions.get(number)?.wake_up(&self.around)?.timer;
            Some(WakeUp { at: *at, timer })
        });
        let grace = self.stops_by.map(|at| WakeUp { at, timer: Timer::Grace });
        let all = [session, self.lease.wake_up(), self.orphans.wake_up(&self.around), grace];
        Output::Wait(all.into_iter().flatten().min_by_key(|wake_up| wake_up.at))
    }

    /// This instance, by its present id.
    #[must_use]
    pub fn instance(&self) -> &InstanceId {
        &self.around.instance
    }

    /// How many connections are open: those that the shell has not said to be closed.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// How many sessions are served.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// How many sessions stand where.
    #[must_use]
    pub fn states(&self) -> BTreeMap<State, usize> {
        let mut states = BTreeMap::new();
        for session in self.sessions.values() {
            *states.entry(session.state()).or_default() += 1;
        }
        states
    }

    /// How many bytes of segments wait to be stored or published.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.around.bytes
    }

    /// Whether its lease is held: nothing can be stored before.
    #[must_use]
    pub fn has_lease(&self) -> bool {
        self.around.has_lease
    }

    /// Whether messages can be published now.
    #[must_use]
    pub fn stream_state(&self) -> StreamState {
        self.around.stream
    }

    /// Whether it has been told to come to its end.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.around.stops
    }

    /// The kinds of effects that fail now: none of the kind has succeeded since the first failure.
    pub fn failing(&self) -> impl Iterator<Item = EffectKind> {
        self.around.failing()
    }

    /// How long segments took from their receipt to their acknowledgement.
    #[must_use]
    pub fn acknowledgement_times(&self) -> AcknowledgementTimes {
        self.around.acknowledged
    }

    /// What has happened since the start.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.around.counters
    }

    fn open(&mut self, opening: Opening) {
        let key = opening.session.key();
        let limit = self.limit(&key);
        self.around.counters.opened += 1;
        if let Some((code, reason)) = limit {
            self.around.counters.refused_connections += 1;
            if code != CloseCode::Restart {
                self.around.notice(Notice::Limited { key, reason: reason.to_owned() });
            }
            let frame = ServerFrame::Error { id: None, reason: reason.to_owned(), retryable: true };
            self.around.send(opening.connection, frame);
            self.around.close(opening.connection, code, reason);
            return;
        }
        let number = self.session(key, &opening.session);
        self.connections.insert(opening.connection, number);
        self.with(Some(number), |session, around| session.open(around, opening));
    }

    /// Why a connection is refused, if it is.
    fn limit(&self, key: &Key) -> Option<(CloseCode, &'static str)> {
        let of_session = self.by_key.get(key).and_then(|number| self.sessions.get(number));
        let settings = &self.around.settings;
        if self.around.stops {
            Some((CloseCode::Restart, "the transcriber restarts"))
        } else if self.connections.len() >= settings.max_connections {
            Some((CloseCode::TryAgainLater, "the transcriber has as many connections as it may"))
        } else if of_session.is_none() && self.sessions.len() >= settings.max_sessions {
            Some((
                CloseCode::TryAgainLater,
                "the transcriber has as many sessions as it may, those that wait for their end included",
            ))
        } else if of_session.is_some_and(|session| session.connections() >= settings.max_session_connections) {
            Some((CloseCode::TryAgainLater, "the session has as many connections as it may"))
        } else {
            None
        }
    }

    fn session(&mut self, key: Key, ids: &Ids) -> SessionNumber {
        if let Some(number) = self.by_key.get(&key) {
            return *number;
        }
        self.last_session += 1;
        let session = Session::new(self.last_session, ids.clone());
        self.by_key.insert(key, self.last_session);
        self.sessions.insert(self.last_session, Box::new(session));
        self.last_session
    }

    fn close(&mut self, connection: ConnectionId, closure: Closure) {
        let number = self.connections.remove(&connection);
        self.with(number, |session, around| session.close(around, connection, closure));
    }

    fn report(&mut self, id: EffectId, report: Report) {
        let fits = self.around.owner(id).filter(|(_, kind)| kind.can_report(&report));
        let Some((owner, kind)) = fits else {
            self.around.counters.ignored_reports += 1;
            return;
        };
        self.around.forget(id);
        match owner {
            Owner::Lease => {
                if self.lease.reported(&mut self.around, id, kind, &report) {
                    self.look_at_all("lease");
                }
            }
            Owner::Orphans => {
                let orphans = self.orphans.reported(&mut self.around, id, kind, report);
                orphans.into_iter().for_each(|orphan| self.orphaned(orphan));
            }
            Owner::Store(number) => self.with(Some(number), |session, around| {
                session.store_reported(around, id, kind, report);
            }),
            Owner::Stream(number) => self.with(Some(number), |session, around| {
                session.stream_reported(around, id, kind, &report);
            }),
        }
    }

    fn orphaned(&mut self, Orphan { session, instance }: Orphan) {
        if self.around.stops {
            return;
        }
        let number = self.session(session.key(), &session);
        self.with(Some(number), |session, around| session.orphaned(around, instance));
    }

    fn stream(&mut self, state: StreamState) {
        if self.around.stream != state {
            self.around.stream = state;
            self.look_at_all("stream");
        }
    }

    fn shut_down(&mut self) {
        if !self.around.stops {
            self.around.stops = true;
            self.stops_by = Some(self.around.now.after(self.around.settings.grace));
            self.look_at_all("shutdown");
        }
    }

    fn look_at_all(&mut self, what: &'static str) {
        let numbers: Vec<SessionNumber> = self.sessions.keys().copied().collect();
        for number in numbers {
            self.with(Some(number), |session, around| session.look(around, what));
        }
    }

    fn serve_timers(&mut self) {
        self.lease.look(&mut self.around);
        self.orphans.look(&mut self.around, self.sessions.len());
        while let Some((_, number)) = self.due.first().copied().filter(|(at, _)| *at <= self.around.now) {
            self.with(Some(number), |session, around| session.look(around, "time"));
        }
        let grace_is_over = self.stops_by.is_some_and(|by| by <= self.around.now);
        if grace_is_over {
            let numbers: Vec<SessionNumber> = self.sessions.keys().copied().collect();
            for number in numbers {
                self.with(Some(number), Session::hand_over);
            }
        }
        if self.around.stops && self.sessions.is_empty() {
            self.stops_by = self.stops_by.filter(|by| *by > self.around.now);
            self.lease.release();
            self.lease.look(&mut self.around);
        }
    }

    /// Lets clients go on that waited for memory of all sessions together.
    fn read_on(&mut self) {
        if self.around.bytes > self.around.settings.max_bytes / 2 || self.around.waits_for_memory.is_empty() {
            return;
        }
        for number in std::mem::take(&mut self.around.waits_for_memory) {
            self.with(Some(number), |session, around| session.look(around, "time"));
        }
    }

    /// Has a session do something, and takes it out when it is over.
    fn with(&mut self, number: Option<SessionNumber>, act: impl FnOnce(&mut Session, &mut Around)) {
        let Some(number) = number else { return };
        let Some(session) = self.sessions.get_mut(&number) else { return };
        act(session, &mut self.around);
        #[cfg(test)]
        self.edges.extend(session.edges.iter().copied());
        let next = session.wake_up(&self.around).map(|wake_up| wake_up.at);
        let before = match next {
            Some(at) => self.scheduled.insert(number, at),
            None => self.scheduled.remove(&number),
        };
        if let Some(before) = before {
            self.due.remove(&(before, number));
        }
        if session.state() == State::Over {
            self.scheduled.remove(&number);
            if let Some(session) = self.sessions.remove(&number) {
                self.by_key.remove(session.key());
            }
        } else if let Some(at) = next {
            self.due.insert((at, number));
        }
    }
}
