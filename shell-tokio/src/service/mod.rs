//! The service itself, `transcript-processor run`.
//!
//! [`run`] sets up and starts everything, [`driver`] carries out what the core decides, [`nats`] is the sockets of the
//! JetStream client and [`mongodb`] those of the MongoDB client, [`signals`] says when it ends, [`watchdog`] reports a loop that
//! stands still, [`systemd`] hears of all that, [`record`] writes a trace, and [`clock`] is the one place where a clock is read.

pub mod clock;
pub mod driver;
pub mod mongodb;
pub mod nats;
pub mod record;
pub mod run;
pub mod signals;
pub mod systemd;
pub mod watchdog;
