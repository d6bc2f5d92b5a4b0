//! What goes wrong in a run, and when.

use std::fmt;

use serde::{Deserialize, Serialize};
use transcript_core::EffectKind;

/// Something that goes wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fault {
    /// When.
    pub when: Trigger,
    /// What.
    pub what: Action,
}

/// When a fault happens. Places are counted from 1, over the whole run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Trigger {
    /// At a time.
    AtMs(u64),
    /// Around an effect that a processor performs, heartbeats included.
    Effect {
        /// The processor.
        processor: usize,
        /// Which kind is counted.
        kind: EffectPattern,
        /// Which of them.
        nth: u64,
        /// Before it or after it.
        moment: Moment,
    },
    /// Around the arrival of something at a server.
    Arrival {
        /// Where.
        server: Server,
        /// Which arrival.
        nth: u64,
        /// Before it or after it.
        moment: Moment,
    },
}

/// On which side of a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Moment {
    /// Just before.
    Before,
    /// Just after.
    After,
}

/// Which of the things that a processor does: effects, and heartbeats, which are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EffectPattern {
    /// Every one.
    Any,
    /// `+WPI`.
    Heartbeat,
    /// Effects of one kind.
    #[serde(untagged)]
    Of(EffectKind),
}

impl fmt::Display for EffectPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Heartbeat => f.write_str("heartbeat"),
            Self::Of(kind) => kind.fmt(f),
        }
    }
}

impl EffectPattern {
    /// How many there are.
    pub(crate) const COUNT: usize = EffectKind::ALL.len() + 2;

    /// All of them, in the order of a job.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        [Self::Any].into_iter().chain(EffectKind::ALL.map(Self::Of)).chain([Self::Heartbeat])
    }

    /// Its place among all.
    pub(crate) fn place(self) -> usize {
        match self {
            Self::Any => 0,
            Self::Of(kind) => 1 + kind as usize,
            Self::Heartbeat => Self::COUNT - 1,
        }
    }
}

/// One of the two servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Server {
    /// NATS.
    Broker,
    /// MongoDB.
    Store,
}

/// Which way a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Direction {
    /// From the processor to the server.
    Up,
    /// From the server to the processor.
    Down,
}

/// What goes wrong, and why it can. Spans and outages are the time until it is mended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Action {
    /// SIGKILL; its supervisor starts it again.
    Kill {
        /// The processor.
        processor: usize,
        /// How long it is gone.
        outage_ms: u64,
    },
    /// SIGSTOP, and SIGCONT.
    Freeze {
        /// The processor.
        processor: usize,
        /// How long it stands still.
        span_ms: u64,
    },
    /// SIGTERM, and a new one once it has drained.
    Rollout {
        /// The processor.
        processor: usize,
        /// How long it is gone.
        outage_ms: u64,
    },
    /// A server is killed: what it had not written is lost.
    KillServer {
        /// Which.
        server: Server,
        /// How long it is gone.
        outage_ms: u64,
        /// How far back its last write was; the real servers write every 100 ms at the latest.
        lag_ms: u64,
    },
    /// A server stops in order.
    StopServer {
        /// Which.
        server: Server,
        /// How long it is gone.
        outage_ms: u64,
    },
    /// MongoDB's primary steps down.
    StepDown {
        /// How long there is none.
        span_ms: u64,
    },
    /// A connection is reset: both ends see it.
    Reset {
        /// The processor.
        processor: usize,
        /// To which server.
        server: Server,
    },
    /// A connection dies silently, as when a router forgets it: each end finds out by itself.
    Sever {
        /// The processor.
        processor: usize,
        /// To which server.
        server: Server,
        /// How long no new connection can be made.
        span_ms: u64,
        /// When the server finds out.
        server_notices_ms: u64,
    },
    /// Nothing arrives in one direction until it thaws, as when packets are lost and sent again.
    FreezeLink {
        /// The processor.
        processor: usize,
        /// To or from which server.
        server: Server,
        /// Which way.
        direction: Direction,
        /// For how long.
        span_ms: u64,
    },
    /// The answer to the arrival that this is tied to is lost; everything else happens.
    LoseAnswer,
    /// The command that arrives at MongoDB fails, undone.
    FailBefore(StoreFault),
    /// The command that arrives at MongoDB is done and fails all the same.
    FailAfter(StoreFault),
    /// The save that arrives at MongoDB loses a race with another upsert of the same `_id`.
    Race,
    /// The first write of the command that arrives at MongoDB fails, undone; the others are done.
    FailMember(StoreFault),
    /// The writes that arrive at MongoDB are answered with a `writeConcernError`.
    FailConcern {
        /// Whether they are rolled back; else they last.
        rolled_back: bool,
    },
    /// The command that arrives at MongoDB is done, and its reply cannot be read.
    Garble,
    /// MongoDB serves reads, and takes no writes of processors.
    FailWrites {
        /// For how long.
        span_ms: u64,
    },
    /// The command that arrives at MongoDB is answered late.
    Slow {
        /// How late.
        span_ms: u64,
    },
    /// A worker of the shell dies over the effect that this is tied to: its report never comes.
    LoseReport,
    /// The operator gives the consumer another ack wait; processors learn it when they start.
    SetAckWait {
        /// The new one.
        ack_wait_ms: u64,
    },
    /// The operator lets messages be delivered more often or less often; processors learn it when they start.
    SetMaxDeliver {
        /// The new limit.
        max_deliver: u64,
    },
    /// The operator lets more or fewer deliveries be unacknowledged.
    SetMaxAckPending {
        /// The new limit; `None` for none.
        max_ack_pending: Option<u64>,
    },
    /// The operator gives the stream a longer duplicate window.
    LengthenWindow {
        /// The new one.
        window_ms: u64,
    },
    /// The operator gives the processors other settings, which each learns when it starts.
    SetProcessors {
        /// The new quiet period.
        quiet_period_ms: u64,
        /// The new page size.
        page_size: u32,
        /// The new most jobs of one processor.
        max_in_flight: usize,
    },
    /// What arrives at NATS arrives once more, if it is a publish or an acknowledgement. TCP does not do that, and
    /// async-nats sends nothing twice; proxies, leaf connections and other clients that are not sure do.
    Duplicate {
        /// How much later.
        after_ms: u64,
    },
}

/// How a command at MongoDB fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StoreFault {
    /// No primary.
    NotPrimary,
    /// The storage engine gave up on a conflict.
    WriteConflict,
    /// The wait for a majority ran out.
    TimedOut,
    /// Permissions were taken away.
    Unauthorized,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.when {
            Trigger::AtMs(at) => write!(f, "at {at} ms: ")?,
            Trigger::Effect { processor, kind, nth, moment } => {
                write!(f, "{moment:?} effect {nth} ({kind}) of processor {processor}: ")?;
            }
            Trigger::Arrival { server, nth, moment } => write!(f, "{moment:?} arrival {nth} at the {server:?}: ")?,
        }
        write!(f, "{:?}", self.what)
    }
}
