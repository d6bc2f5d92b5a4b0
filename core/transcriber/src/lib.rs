//! The decisions of the transcriber, without I/O, clock, threads or randomness.

mod around;
mod connection;
pub mod document;
mod frame;
mod ids;
mod input;
mod kind;
mod lane;
mod lease;
mod output;
mod session;
mod settings;
mod transcriber;

pub use self::{
    around::Counters,
    frame::{ClientFrame, ClientSegment, CloseCode, Finality, ServerFrame},
    ids::{ConnectionId, EffectId, EpochId, InstanceId, Source, Unnamed, end_message_id, segment_message_id},
    input::{Closure, Departure, Input, Joined, Opening, Orphan, Report, SavedSegment, StreamState, TakenOver},
    kind::EffectKind,
    output::{
        Effect, EpochOpened, Fence, IdleOthers, Notice, Output, PublishedSegment, Reading, Silence, Timer, WakeUp,
    },
    session::State,
    settings::{Settings, SettingsError},
    transcriber::Transcriber,
};
