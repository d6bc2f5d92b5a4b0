//! The row of things that happen, and the servers.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    sync::Arc,
    time::Duration,
};

use transcript_core::{
    Failure, FailureKind, Time, WallTime,
    ids::{Key, Session},
};
use transcript_transcriber::{
    ClientFrame, CloseCode, Closure, ConnectionId, Effect, EffectId, EffectKind, Input, Report, ServerFrame, Settings,
    Source, StreamState, Unnamed,
    document::{SessionState, StoredSegment},
};

use super::{
    bug::Bug,
    client::ClientState,
    plan::{Moment, Plan, Trouble, When},
    process::{Link, Process},
    store::SessionStore,
    watch::{Violation, Watch},
};
use crate::rng::Rng;

/// The wall clock at the start of every world, in milliseconds since the Unix epoch.
const EPOCH_MS: i64 = 1_700_000_000_000;
/// How long a whole world may take to bring everything about.
const HEALED_FOR: Duration = Duration::from_secs(600);

/// What came of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The promise that was broken, if one was.
    pub violation: Option<Violation>,
    /// One line for each thing that happened, if it was recorded.
    pub trace: Option<String>,
    /// Numbers.
    pub stats: Stats,
}

/// Numbers of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// How long the world went on, in microseconds.
    pub virtual_us: u64,
    /// How many things happened.
    pub steps: u64,
    /// Segments acknowledged.
    pub acknowledged: u64,
    /// Ends in the stream.
    pub ends: u64,
    /// Faults that struck.
    pub faults: u64,
    /// How many effects of each kind each transcriber asked for.
    pub effects: BTreeMap<(usize, EffectKind), u32>,
}

/// Something that happens.
#[derive(Debug)]
pub(super) enum Happening {
    Start { process: usize },
    Input { process: usize, life: u32, input: Input, of: Option<(EffectKind, u32)> },
    Woken { process: usize, life: u32 },
    Arrive { process: usize, life: u32, id: EffectId, effect: Effect, nth: u32, is_answered: bool },
    Act { client: usize },
    Connect { client: usize },
    Patience { client: usize, link: ConnectionId, heard: u64 },
    Deliver { link: ConnectionId, frame: ClientFrame },
    LinkClosed { link: ConnectionId, closure: Closure },
    Tell { link: ConnectionId, frame: ServerFrame, text: Option<Arc<str>> },
    Hangup { link: ConnectionId, code: Option<CloseCode> },
    Fault { number: usize },
    Thaw { process: usize },
    StreamBack,
    Heal,
    Look,
}

/// Everything.
pub(super) struct World<'a> {
    pub(super) plan: &'a Plan,
    pub(super) now: Time,
    queue: BTreeMap<(Time, u64), Happening>,
    made: u64,
    rng: Rng,
    pub(super) processes: Vec<Process>,
    pub(super) clients: Vec<ClientState>,
    pub(super) links: BTreeMap<ConnectionId, Link>,
    pub(super) store: SessionStore,
    store_away_until: Time,
    stream_away_until: Time,
    pub(super) is_whole: bool,
    struck: BTreeSet<usize>,
    pub(super) watch: Watch,
    pub(super) stats: Stats,
    pub(super) received: BTreeMap<Key, u64>,
    pub(super) opened: BTreeSet<Key>,
    pub(super) somebody_died: bool,
    trace: Option<String>,
}

impl Plan {
    /// Plays the plan.
    #[must_use]
    pub fn run(&self, is_recorded: bool) -> Outcome {
        World::new(self, is_recorded).run()
    }
}

impl<'a> World<'a> {
    fn new(plan: &'a Plan, is_recorded: bool) -> Self {
        let mut world = Self {
            plan,
            now: Time::ZERO,
            queue: BTreeMap::new(),
            made: 0,
            rng: Rng::split(plan.seed, 2),
            processes: (0..plan.instances).map(|_| Process::default()).collect(),
            clients: plan.clients.iter().map(ClientState::new).collect(),
            links: BTreeMap::new(),
            store: SessionStore::new(plan.bug),
            store_away_until: Time::ZERO,
            stream_away_until: Time::ZERO,
            is_whole: false,
            struck: BTreeSet::new(),
            watch: Watch::default(),
            stats: Stats::default(),
            received: BTreeMap::new(),
            opened: BTreeSet::new(),
            somebody_died: false,
            trace: is_recorded.then(String::new),
        };
        world.put_foreign_segments();
        for process in 0..plan.instances {
            world.later(Duration::ZERO, Happening::Start { process });
        }
        for (client, planned) in plan.clients.iter().enumerate() {
            let first = planned.acts.first().map_or(0, |act| act.at_ms);
            world.at(millis(first), Happening::Act { client });
        }
        for (number, fault) in plan.faults.iter().enumerate() {
            if let When::At { ms } = fault.when {
                world.at(millis(ms), Happening::Fault { number });
            }
        }
        world.at(millis(plan.heals_at_ms), Happening::Heal);
        world
    }

    fn run(mut self) -> Outcome {
        let gives_up_at = millis(self.plan.heals_at_ms).after(HEALED_FOR);
        while let Some(((at, _), happening)) = self.queue.pop_first() {
            self.now = at;
            self.stats.steps += 1;
            if self.watch.violation.is_some() || at > gives_up_at || self.is_over(&happening) {
                break;
            }
            self.happen(happening);
        }
        if self.watch.violation.is_none() {
            self.check_the_end();
        }
        self.stats.virtual_us = self.now.as_micros();
        self.stats.ends = self.watch.ends();
        if let (Some(trace), Some(violation)) = (&mut self.trace, &self.watch.violation) {
            writeln!(trace, "BROKEN: {}: {}", violation.property, violation.what).expect("a string takes everything");
        }
        Outcome { violation: self.watch.violation, trace: self.trace, stats: self.stats }
    }

    /// Whether nothing is left to be brought about.
    fn is_over(&mut self, happening: &Happening) -> bool {
        if !matches!(happening, Happening::Look) {
            return false;
        }
        let is_idle = self.clients.iter().all(|client| client.is_done)
            && self.processes.iter().all(|process| process.holds_nothing())
            && self.store.sessions().all(|document| document.state == SessionState::Ended);
        if !is_idle {
            self.later(Duration::from_secs(1), Happening::Look);
        }
        is_idle
    }

    fn check_the_end(&mut self) {
        let owed: Vec<Key> = self.opened.iter().cloned().collect();
        self.watch.at_end(&self.store, &owed, self.plan.has_stream, !self.somebody_died);
        for number in 0..self.clients.len() {
            self.check_acknowledged(number);
        }
        if let Some(held) = self.processes.iter().find(|process| !process.holds_nothing()) {
            let what = format!("at the end a transcriber holds {}", held.describe());
            self.watch.broken("MemoryIsBounded", what);
        }
    }

    pub(super) fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Start { process } => self.start(process),
            Happening::Input { process, life, input, of } => self.input(process, life, input, of),
            Happening::Woken { process, life } => self.woken(process, life),
            Happening::Arrive { process, life, id, effect, nth, is_answered } => {
                self.arrive(process, life, id, &effect, nth, is_answered);
            }
            Happening::Act { client } => self.act(client),
            Happening::Connect { client } => self.connect(client),
            Happening::Patience { client, link, heard } => self.lose_patience(client, link, heard),
            Happening::Deliver { link, frame } => self.deliver(link, frame),
            Happening::LinkClosed { link, closure } => self.link_closed(link, closure),
            Happening::Tell { link, frame, text } => self.told(link, &frame, text.as_deref()),
            Happening::Hangup { link, code } => self.hung_up(link, code),
            Happening::Fault { number } => self.strike(number),
            Happening::StreamBack => {
                if self.stream_away_until <= self.now {
                    self.tell_stream(StreamState::Available);
                }
            }
            Happening::Thaw { process } => self.thaw(process),
            Happening::Heal => self.heal(),
            Happening::Look => {}
        }
    }

    pub(super) fn settings(&self, process: usize, life: u32) -> Settings {
        let stream = match (self.plan.has_stream, self.stream_away_until > self.now) {
            (false, _) => StreamState::Absent,
            (true, true) => StreamState::Away,
            (true, false) => StreamState::Available,
        };
        let seconds = Duration::from_secs;
        let settings = Settings {
            end_after_silence: seconds(40),
            end_after_idle: seconds(30),
            lease: seconds(6),
            orphans_interval: seconds(2),
            retry_cap: seconds(1),
            request_timeout: seconds(2),
            grace: seconds(10),
            ..Settings::new(&format!("t{process}"), &format!("n{life}-{process}"), stream)
        };
        if !self.plan.is_tiny {
            return settings;
        }
        Settings {
            max_batch_segments: 2,
            max_connection_bytes: 700,
            max_session_bytes: 1_200,
            max_bytes: 1_500,
            orphans_limit: 1,
            ..settings
        }
    }

    /// An effect was asked for.
    pub(super) fn perform(&mut self, process: usize, id: EffectId, mut effect: Effect) {
        let kind = effect.kind();
        let nth = self.stats.effects.entry((process, kind)).or_insert(0);
        *nth += 1;
        let nth = *nth;
        let life = self.life(process);
        self.tell_trace(|| format!("t{process} asks {id}: {effect}"));
        self.plant(process, life, id, &mut effect);
        if self.strike_at(process, kind, nth, Moment::Asked) {
            return;
        }
        let given_up = self.timed_out();
        let gives_up = |input| Happening::Input { process, life, input, of: None };
        match self.link_trouble(process, kind, nth) {
            Some(Trouble::LoseRequest) => self.later(given_up.0, gives_up(reported(id, given_up.1))),
            Some(Trouble::LoseAnswer) => {
                self.later(given_up.0, gives_up(reported(id, given_up.1)));
                self.soon(Happening::Arrive { process, life, id, effect, nth, is_answered: false });
            }
            Some(Trouble::Delay { late_ms }) => {
                self.later(given_up.0, gives_up(reported(id, given_up.1)));
                let late = Happening::Arrive { process, life, id, effect, nth, is_answered: false };
                self.later(Duration::from_millis(late_ms), late);
            }
            Some(_) | None => self.soon(Happening::Arrive { process, life, id, effect, nth, is_answered: true }),
        }
    }

    fn timed_out(&self) -> (Duration, Report) {
        let failure = Failure { kind: FailureKind::TimedOut, detail: "no answer".to_owned() };
        (Duration::from_secs(2), Report::Failed(failure))
    }

    /// What happens to this effect alone, if anything does.
    fn link_trouble(&mut self, process: usize, kind: EffectKind, nth: u32) -> Option<Trouble> {
        if self.is_whole {
            return None;
        }
        let is_of_link =
            |what: &Trouble| matches!(what, Trouble::LoseRequest | Trouble::LoseAnswer | Trouble::Delay { .. });
        let plan = self.plan;
        let (number, fault) = plan.faults.iter().enumerate().find(|(_, fault)| {
            let is_here = matches!(fault.when, When::Effect { instance, kind: of, nth: n, .. }
                if (instance, of, n) == (process, kind, nth));
            is_of_link(&fault.what) && is_here
        })?;
        self.struck.insert(number);
        self.stats.faults += 1;
        Some(fault.what)
    }

    fn arrive(&mut self, process: usize, life: u32, id: EffectId, effect: &Effect, nth: u32, is_answered: bool) {
        let kind = effect.kind();
        self.strike_at(process, kind, nth, Moment::Before);
        let report = if kind.server() == transcript_core::Server::Mongodb {
            self.at_store(effect)
        } else {
            self.at_stream(effect)
        };
        self.tell_trace(|| format!("t{process}'s {id} is done: {effect}: {report}"));
        self.strike_at(process, kind, nth, Moment::After);
        if is_answered {
            self.soon(Happening::Input { process, life, input: reported(id, report), of: Some((kind, nth)) });
        }
    }

    fn at_store(&mut self, effect: &Effect) -> Report {
        if self.store_away_until > self.now {
            let failure = Failure { kind: FailureKind::Busy, detail: "there is no primary".to_owned() };
            return Report::Failed(failure);
        }
        let report = self.store.perform(self.wall(), effect);
        for change in self.store.take_changes() {
            let (links, processes, store) = (&self.links, &self.processes, &self.store);
            let connected = |key: &Key| {
                let open = links.iter().find(|(_, link)| link.is_connected(key, processes, store));
                open.map(|(id, link)| format!("connection {id} of client {} is open", link.client))
            };
            self.watch.changed(&self.store, change, connected);
        }
        report.unwrap_or(Report::Gone)
    }

    fn at_stream(&mut self, effect: &Effect) -> Report {
        if self.stream_away_until > self.now {
            let failure = Failure { kind: FailureKind::Unreachable, detail: "the stream is away".to_owned() };
            return Report::Failed(failure);
        }
        if let Effect::PublishSegments { session, segments } = effect {
            for published in segments.iter() {
                self.watch.segment_published(&session.key(), published.segment.index);
            }
            return Report::SegmentsPublished;
        }
        if let Effect::PublishEnd { ended, message_id } = effect {
            self.watch.end_published(&ended.session.key(), message_id, ended.published_segments);
        }
        Report::EndPublished { stream_sequence: self.stats.steps }
    }

    /// Changes an effect, or what is reported of it, as the planted bug does.
    fn plant(&mut self, process: usize, life: u32, id: EffectId, effect: &mut Effect) {
        match (self.plan.bug, effect) {
            (Some(Bug::CountsReceived), Effect::PublishEnd { ended, .. }) => {
                ended.published_segments = self.received.get(&ended.session.key()).copied().unwrap_or(0);
            }
            (Some(Bug::EndsBeforeTheLastSave), Effect::Save { segments, .. }) => {
                let stored = segments
                    .iter()
                    .map(|segment| transcript_transcriber::SavedSegment::Stored { index: segment.index });
                let report = Report::Saved(stored.collect());
                self.soon(Happening::Input { process, life, input: reported(id, report), of: None });
            }
            _ => {}
        }
    }

    /// Whether a fault at this point has killed the process that asked.
    pub(super) fn strike_at(&mut self, process: usize, kind: EffectKind, nth: u32, moment: Moment) -> bool {
        let life = self.life(process);
        let here = When::Effect { instance: process, kind, nth, moment };
        let plan = self.plan;
        for (number, fault) in plan.faults.iter().enumerate() {
            if fault.when == here {
                self.strike(number);
            }
        }
        self.life(process) != life || !self.processes.get(process).is_some_and(Process::is_up)
    }

    fn strike(&mut self, number: usize) {
        let plan = self.plan;
        let Some(fault) = plan.faults.get(number).filter(|_| !self.is_whole && !self.struck.contains(&number)) else {
            return;
        };
        let until = |span_ms| self.now.after(Duration::from_millis(span_ms));
        match fault.what {
            Trouble::Kill { instance, outage_ms } => self.kill(instance, Duration::from_millis(outage_ms)),
            Trouble::Restart { instance, outage_ms } => self.shut_down(instance, Duration::from_millis(outage_ms)),
            Trouble::Freeze { instance, span_ms } => self.freeze(instance, until(span_ms)),
            Trouble::StoreAway { span_ms } => self.store_away_until = until(span_ms),
            Trouble::StreamAway { span_ms } => {
                self.stream_away_until = until(span_ms);
                self.tell_stream(StreamState::Away);
                self.later(Duration::from_millis(span_ms), Happening::StreamBack);
            }
            // They strike when their effect is asked for.
            Trouble::LoseRequest | Trouble::LoseAnswer | Trouble::Delay { .. } => return,
        }
        self.struck.insert(number);
        self.stats.faults += 1;
        self.tell_trace(|| format!("fault {number}: {:?}", fault.what));
    }

    fn tell_stream(&mut self, state: StreamState) {
        if !self.plan.has_stream {
            return;
        }
        for process in 0..self.processes.len() {
            let life = self.life(process);
            self.soon(Happening::Input { process, life, input: Input::Stream(state), of: None });
        }
    }

    /// Everything is whole from now on.
    fn heal(&mut self) {
        self.is_whole = true;
        (self.store_away_until, self.stream_away_until) = (self.now, self.now);
        self.tell_stream(StreamState::Available);
        for process in 0..self.processes.len() {
            self.mend(process);
        }
        self.later(Duration::from_secs(1), Happening::Look);
    }

    fn put_foreign_segments(&mut self) {
        for session in 0..self.plan.sessions {
            let ids = session_ids(session);
            for index in 0..self.plan.foreign {
                let number = Unnamed { nonce: "foreign", connection: ConnectionId(0), number: index };
                let epoch = transcript_transcriber::EpochId::of_requests("foreign");
                let segment = StoredSegment {
                    index,
                    source: Source::new(&epoch, Err(number)),
                    write: 0,
                    speaker: None,
                    text: "stored before".into(),
                    start_ms: None,
                    end_ms: None,
                    on_session_clock: false,
                };
                self.store.put_foreign(&ids, segment);
            }
        }
    }

    pub(super) fn wall(&self) -> WallTime {
        WallTime::from_millis(EPOCH_MS).after(self.now.since(Time::ZERO))
    }

    pub(super) fn at(&mut self, at: Time, happening: Happening) {
        self.made += 1;
        self.queue.insert((at.max(self.now), self.made), happening);
    }

    pub(super) fn later(&mut self, span: Duration, happening: Happening) {
        self.at(self.now.after(span), happening);
    }

    /// After the time that a message takes.
    pub(super) fn soon(&mut self, happening: Happening) {
        let span = self.latency();
        self.later(span, happening);
    }

    pub(super) fn latency(&mut self) -> Duration {
        let slow = self.rng.chance(3);
        Duration::from_micros(if slow { self.rng.between(20_000, 300_000) } else { self.rng.between(200, 5_000) })
    }

    pub(super) fn tell_trace(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            let seconds = Duration::from_micros(self.now.as_micros()).as_secs_f64();
            writeln!(trace, "{seconds:>10.6} {}", line()).expect("a string takes everything");
        }
    }
}

/// A session of the plan.
pub(super) fn session_ids(number: usize) -> Session {
    Session::new("c", &format!("s{number}")).expect("the ids are short")
}

pub(super) fn millis(ms: u64) -> Time {
    Time::ZERO.after(Duration::from_millis(ms))
}

fn reported(effect: EffectId, report: Report) -> Input {
    Input::Reported { effect, report }
}
