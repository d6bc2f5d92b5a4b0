//! The simulated world: everything around the processor's core, deterministic and without I/O.

mod bug;
pub mod crashes;
pub mod explore;
mod generate;
mod ledger;
mod observation;
pub mod plan;
mod property;
mod rng;
mod runtime;
pub mod store;
pub mod transcribers;
mod world;

pub use self::{
    bug::Bug,
    plan::Plan,
    world::{Outcome, Points, Recording, Stats, Violation},
};
