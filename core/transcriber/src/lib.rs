//! The decisions of the transcriber, without I/O, clock, threads or randomness.

pub mod document;
mod frame;
mod ids;
mod input;
mod kind;
mod output;
mod settings;

pub use self::{
    frame::{ClientFrame, ClientSegment, CloseCode, Finality, ServerFrame},
    ids::{ConnectionId, EffectId, EpochId, InstanceId, Source, Unnamed, end_message_id, segment_message_id},
    input::{Closure, Departure, Input, Joined, Opening, Orphan, Report, SavedSegment, StreamState, TakenOver},
    output::{
        Effect, EpochOpened, Fence, IdleOthers, Notice, Output, PublishedSegment, Reading, Silence, Timer, WakeUp,
    },
    settings::{Settings, SettingsError},
};
pub use kind::EffectKind;
