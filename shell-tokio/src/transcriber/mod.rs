//! The transcriber: the service that WebSockets and requests deliver segments to.
//!
//! ```text
//! socket ─┐ frames             ┌─ store (MongoDB) ─ reports ─┐
//! socket ─┼─► dialect ─► driver ─ state machine ◄────────────┤
//! POST  ──┘                    └─ stream (NATS) ── reports ──┘
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | [`listen`] | takes connections, and gives each a limited time for its header |
//! | [`http`] | the routes; who is let in |
//! | [`socket`] | one WebSocket: frames in, answers out |
//! | [`post`] | one request that delivers segments |
//! | [`access`] | tokens and origins |
//! | [`driver`] | the loop around the state machine of `transcript-transcriber`, which decides everything |
//! | [`store`] | the statements of MongoDB |
//! | [`stream`] | what is published |
//! | [`run`] | starts all of it, and ends it |

pub mod access;
pub mod driver;
pub mod http;
pub mod hub;
pub mod listen;
pub mod post;
pub mod run;
pub mod socket;
pub mod store;
pub mod stream;
