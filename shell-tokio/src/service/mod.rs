//! The service itself, `transcript-processor run`.
//!
//! [`run`] sets up and starts everything, [`driver`] carries out what the core decides, [`record`] writes a trace of it,
//! [`mongodb`] runs the commands of the MongoDB client, [`signals`] says when it ends, and [`clock`] is the one place where a
//! clock is read.

pub mod clock;
pub mod driver;
pub mod mongodb;
pub mod record;
pub mod run;
pub mod signals;
