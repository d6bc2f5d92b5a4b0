//! Traces of real runs: the real binary records itself, and what was done to it and to its servers is noted beside.
//!
//! `cargo record-traces` makes `fixtures/traces` this way.

mod observer;
mod play;
mod recorded_world;
mod scenario;
mod shown;
mod trace;

pub use self::{
    observer::Observer,
    recorded_world::{RecordedWorld, Way},
    scenario::{Scenario, fixtures},
    shown::Shown,
    trace::{Trace, TraceError, TracePart},
};
