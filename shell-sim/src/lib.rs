//! The simulated world: everything around the processor's core, deterministic and without I/O.

mod bug;
pub mod crashes;
pub mod explore;
mod generate;
mod ledger;
pub mod plan;
mod property;
mod rng;
mod runtime;
mod seen;
pub mod store;
mod world;

pub use self::{
    bug::Bug,
    plan::Plan,
    world::{Outcome, Points, Recording, Stats, Violation},
};
