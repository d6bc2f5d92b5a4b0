//! What operators run beside the service.
//!
//! [`setup`] makes the streams, the consumer and the index, [`audit`] compares the stream with the store, and
//! [`dead_letters`] lists and redrives what was given up. [`history`] reads the stream for both.
//! [`calls`] lists what became of calls, [`reprocess`] has one processed again, [`pause`] pauses and resumes the consumer, and
//! [`processes`] knows who is alive and makes one quiet.

pub mod audit;
pub mod calls;
pub mod dead_letters;
pub mod history;
pub mod pause;
pub mod processes;
pub mod reprocess;
pub mod setup;
