//! The service itself, `transcript-processor run`.
//!
//! [`run`] connects and starts everything, [`driver`] carries out what the core decides, [`record`] writes a trace of it,
//! [`mongodb`] runs the commands of the MongoDB client, and [`clock`] is the one place where a clock is read.

pub mod clock;
pub mod driver;
pub mod mongodb;
pub mod record;
pub mod run;
