//! The tokio shell of the transcript processor: it wires the decisions of `transcript-core` to NATS JetStream and MongoDB.
//!
//! | module | what a person looks for |
//! |---|---|
//! | [`service`] | the service: start, loop, sockets of NATS and MongoDB, recording |
//! | [`monitor`] | health, readiness, metrics, the status page, `status` |
//! | [`operate`] | setup, audit, dead letters, pause |
//! | [`transcriber`] | the service that takes segments from WebSockets and requests |
//! | [`transcripts`] | playing transcripts, showing summaries |
//! | [`call_page`] | a page on which people hold a call in the browser |
//! | [`recordings`] | publishing and watching the events of recordings |
//! | [`traces`] | commands that read traces |
//! | [`cli`], [`connect`], [`logging`], [`secret`], [`terminal`] | settings, connections, logs, passwords, terminals |

pub mod call_page;
pub mod cli;
pub mod connect;
pub mod error_line;
pub mod logging;
pub mod monitor;
pub mod operate;
mod private_files;
pub mod recordings;
pub mod reference;
pub mod secret;
pub mod service;
pub mod terminal;
pub mod traces;
pub mod transcriber;
pub mod transcripts;
