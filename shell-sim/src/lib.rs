//! The simulated world: everything around the processor's core, deterministic and without I/O.

pub mod broker;
pub mod store;
