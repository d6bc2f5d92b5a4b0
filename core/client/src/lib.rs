//! What stands between the core and the sockets: how to ask the servers for what the core decides.
//!
//! Two state machines without I/O, clock, threads or randomness. Both shells drive them: one with the sockets of the real
//! servers, one with models.

pub mod jetstream;
pub mod mongodb;
