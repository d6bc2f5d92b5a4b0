//! The simulated broker held against the real one: one script, run against both, and what both did compared.
//!
//! A [`Script`] is a list of steps with times. [`model::run`] runs it in virtual time against
//! [`jetstream_model::Broker`], [`real::run`] against a nats-server. What either did is a [`Record`]: lanes of
//! observations, each in its order. The server must have done what the model does under one of its [`model::Variation`]s:
//! same lanes, same observations, same order, and the times within [`TOLERANCE_MS`].
//!
//! # Why noise flips nothing
//!
//! - Steps happen at their times in the script, not after the step before is answered, so that lateness does not add up.
//! - A script is only compared where the model does the same whether timers and steps are late by up to
//!   [`model::MARGIN_MS`] or not ([`model::is_robust`]): no step is close to anything that happens by itself. What is *meant*
//!   to depend on chance, as what a kill loses, is in the variations instead.
//! - While a script runs, the connection to the server is watched. A run in which the machine stood still for longer than the
//!   margin, or in which a step was answered only after the next one, says nothing and is done again.
//! - A disagreement counts when it was seen three times: what a busy machine does once is no property of the server.

pub mod compare;
pub mod exchange;
pub mod fixtures;
pub mod model;
pub mod real;
mod record;
mod script;
pub mod steps;
pub mod table;

pub use self::{
    record::{BrokerEvent, Disagreement, Observation, Record},
    script::{Action, ConsumerPlan, Script, Step, Stop},
};

/// How far the times of the same observation may lie apart, in milliseconds.
pub const TOLERANCE_MS: u64 = 150;

/// The time between two steps that are not told to wait, in milliseconds: long enough for the server to be done with the first.
pub const STEP_MS: u64 = 40;
