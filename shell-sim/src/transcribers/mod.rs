//! Worlds of transcribers: clients that break and come back, several instances on one session, kills at every point of every
//! effect, instances that stand still until they were succeeded, elections, an unreachable stream.
//!
//! The machine is without I/O, and so are the models: a world is a row of things that happen, in the order of their time. It needs
//! no tasks, and shares the processor's simulator only its [seeds](crate::Plan). What is checked is in the table of
//! `watch.rs`.

mod bug;
mod client;
mod explore;
mod plan;
mod process;
mod store;
mod watch;
mod world;

pub use self::{
    bug::Bug,
    explore::{Failure, Found, exhaustive, hunt, search, shrink},
    plan::{Act, Client, Fault, Moment, Plan, Trouble, What, When},
    watch::Violation,
    world::{Outcome, Stats},
};
