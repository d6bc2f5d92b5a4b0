//! The service itself, `transcript-processor run`.
//!
//! [`run`] connects and starts everything, [`driver`] carries out what the core decides, [`record`] writes a trace of it,
//! and [`clock`] is the one place where a clock is read.

pub mod clock;
pub mod driver;
pub mod record;
pub mod run;
