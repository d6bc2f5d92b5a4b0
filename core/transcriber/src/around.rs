//! What a session sees of everything else: the time, the settings, and where its requests go.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use transcript_core::{Failure, Time};

use crate::{
    acknowledged::AcknowledgementTimes,
    frame::{CloseCode, ServerFrame},
    ids::{ConnectionId, EffectId, InstanceId},
    input::StreamState,
    kind::EffectKind,
    lane::Lane,
    output::{Effect, Fence, Notice, Output},
    settings::Settings,
};

/// How often people are told that effects of a kind fail.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// Names a session within one transcriber.
pub(crate) type SessionNumber = u64;

/// Who waits for the report of an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The lease.
    Lease,
    /// The look for orphans.
    Orphans,
    /// A session, about its document and its segments.
    Store(SessionNumber),
    /// A session, about its publications.
    Stream(SessionNumber),
}

/// What a session sees of everything else.
#[derive(Debug)]
pub(crate) struct Around {
    pub(crate) settings: Settings,
    pub(crate) now: Time,
    pub(crate) instance: InstanceId,
    /// Whether the lease of this instance is in the store: nothing may be joined before.
    pub(crate) has_lease: bool,
    pub(crate) stream: StreamState,
    pub(crate) stops: bool,
    /// Bytes that all sessions hold.
    pub(crate) bytes: usize,
    /// Until when a join that was given up may still arrive, so that own entries are looked for.
    pub(crate) joins_arrive_until: Time,
    /// Sessions with connections that are not read because all sessions together hold too much.
    pub(crate) waits_for_memory: BTreeSet<SessionNumber>,
    pub(crate) outputs: VecDeque<Output>,
    pub(crate) counters: Counters,
    pub(crate) acknowledged: AcknowledgementTimes,
    effects: BTreeMap<EffectId, (Owner, EffectKind)>,
    last_effect: u64,
    said: BTreeMap<EffectKind, Said>,
}

/// What people were told of a kind of effect.
#[derive(Debug, Clone, Copy)]
struct Said {
    at: Time,
    fails: bool,
}

/// What has happened since the start, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counters {
    /// Connections opened.
    pub opened: u64,
    /// Connections refused because of a limit, or during a shutdown.
    pub refused_connections: u64,
    /// Final segments received.
    pub received: u64,
    /// Interim segments, which are not stored.
    pub interim: u64,
    /// Segments refused: too large, too many, or by the store.
    pub refused_segments: u64,
    /// Segments stored, repetitions included.
    pub stored: u64,
    /// Segment messages published.
    pub published: u64,
    /// Segment messages that the stream refused, or that a shutdown left unpublished. Their segments are stored.
    pub unpublished: u64,
    /// Segments that were not stored here when a shutdown waited no longer. Their clients were not told that they are.
    pub unstored: u64,
    /// Ends done.
    pub ended: u64,
    /// Sessions opened again while their end was under way on this instance.
    pub reopened: u64,
    /// Entries of dead instances taken over.
    pub taken_over: u64,
    /// Times that this instance was thought dead.
    pub leases_lost: u64,
    /// Effects asked for again.
    pub retried: u64,
    /// Reports of unknown or finished effects, or of another kind than the effect.
    pub ignored_reports: u64,
}

impl Around {
    pub(crate) fn new(settings: Settings) -> Self {
        let instance = InstanceId::new(&settings.name, &settings.nonce, 1);
        let stream = settings.stream;
        Self {
            settings,
            now: Time::ZERO,
            instance,
            has_lease: false,
            stream,
            stops: false,
            bytes: 0,
            joins_arrive_until: Time::ZERO,
            waits_for_memory: BTreeSet::new(),
            outputs: VecDeque::new(),
            counters: Counters::default(),
            acknowledged: AcknowledgementTimes::default(),
            effects: BTreeMap::new(),
            last_effect: 0,
            said: BTreeMap::new(),
        }
    }

    /// Asks for an effect. It is built for its own number, which is the step of its fence.
    pub(crate) fn ask(&mut self, lane: &mut Lane, owner: Owner, build: impl FnOnce(Fence) -> Effect) {
        self.last_effect += 1;
        let id = EffectId(self.last_effect);
        let effect = build(Fence { instance: self.instance.clone(), step: id.0 });
        self.effects.insert(id, (owner, effect.kind()));
        lane.ask(id, self.now.after(self.settings.answer_timeout()));
        self.outputs.push_back(Output::Perform { id, effect });
    }

    /// Who asked for an effect, and which kind it is of.
    pub(crate) fn owner(&self, id: EffectId) -> Option<(Owner, EffectKind)> {
        self.effects.get(&id).copied()
    }

    /// Nobody waits for an effect any more; its kind, if somebody did.
    pub(crate) fn forget(&mut self, id: EffectId) -> Option<EffectKind> {
        self.effects.remove(&id).map(|(_, kind)| kind)
    }

    pub(crate) fn send(&mut self, connection: ConnectionId, frame: ServerFrame) {
        self.outputs.push_back(Output::Send { connection, frame });
    }

    pub(crate) fn close(&mut self, connection: ConnectionId, code: CloseCode, reason: &str) {
        self.outputs.push_back(Output::Close { connection, code, reason: reason.to_owned() });
    }

    pub(crate) fn notice(&mut self, notice: Notice) {
        self.outputs.push_back(Output::Notice(notice));
    }

    /// Tells people of a failure, if they were not told lately.
    pub(crate) fn say_failing(&mut self, kind: EffectKind, failure: &Failure) {
        self.counters.retried += 1;
        if self.said.get(&kind).is_some_and(|said| self.now.since(said.at) < SAID_EVERY) {
            return;
        }
        self.said.insert(kind, Said { at: self.now, fails: true });
        self.notice(Notice::Failing { kind, failure: failure.clone() });
    }

    /// The kinds of effects of which none has succeeded since people were told that they fail.
    pub(crate) fn failing(&self) -> impl Iterator<Item = EffectKind> {
        self.said.iter().filter(|(_, said)| said.fails).map(|(kind, _)| *kind)
    }

    /// Tells people that effects of a kind succeed again, if they were told that they fail.
    pub(crate) fn say_works(&mut self, kind: EffectKind) {
        if let Some(said) = self.said.get_mut(&kind)
            && std::mem::take(&mut said.fails)
        {
            self.notice(Notice::Works { kind });
        }
    }
}
