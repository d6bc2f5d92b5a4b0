//! Traces of real runs: the real binary records itself, and what was done to it and to its servers is noted beside.
//!
//! `cargo record-traces` makes `fixtures/traces` this way.

mod observer;
mod play;
mod scenario;
mod shown;
mod studio;
mod trace;

pub use self::{
    observer::Observer,
    scenario::{Scenario, fixtures},
    shown::Shown,
    studio::{Studio, Way},
    trace::{Part, Trace, TraceError},
};
