//! The tokio shell of the transcript processor: it wires the decisions of `transcript-core` to NATS JetStream and MongoDB.
//!
//! Services that publish segments, the ends of calls or recordings use [`publishing`]; [`setup`] makes the streams, the
//! consumer and the index what the data contract says. Everything else is what the binary `transcript-processor` is made of.

pub mod audit;
mod batch;
pub mod broker;
pub mod cli;
pub mod clock;
pub mod connect;
pub mod dead_letters;
pub mod driver;
pub mod error_line;
pub mod history;
pub mod logging;
pub mod play;
pub mod private;
pub mod publishing;
pub mod record;
pub mod run;
pub mod secret;
pub mod setup;
pub mod show;
pub mod signals;
pub mod store;
pub mod traces;
