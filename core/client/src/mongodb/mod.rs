//! Asking MongoDB.
//!
//! A [`Client`] is told what the core asks for and what the server answered ([`Input`]), and says which command to run next
//! and what to report to the core ([`Output`]). It decides what goes into one command, how a call is read page by page, what
//! a reply proves for each member of a command, and what a failure means. The same inputs give the same outputs.
//!
//! What a socket must do, and nothing else:
//!
//! - run each [`Command`] and answer it exactly once, in any order; at the latest when the answer timeout is over, which it
//!   answers with [`CommandError::TimedOut`];
//! - read from the primary with majority read concern, and write with `w: majority, j: true`;
//! - translate: it decides nothing about a call, and passes on no text of the server.
//!
//! # Batches
//!
//! While a command of a kind is under way, the next batch of that kind gathers. Nothing waits for a timer. A job has one
//! place in each queue: where it asks again, because it waited for long, its last request takes the place of the first.
//! Pages of large calls give way to the small calls: see [`gate`].
//!
//! # One bad document must not fail others
//!
//! | reply | what it means |
//! |---|---|
//! | a write error of a member | this member failed; the others are done |
//! | `writeConcernError` | nobody knows whether the members without an error of their own will last: they failed |
//! | the server cannot serve anybody, or refuses the user | every member failed |
//! | any other refusal, an unreadable or too large reply | the batch is split in two, until the one at fault is alone |
//! | a refusal of a read | never [`Rejected`](transcript_core::FailureKind::Rejected): a read refuses no document |

mod batch;
mod client;
mod command;
pub mod error_codes;
mod failure;
pub mod gate;
mod notice;
mod pages;
mod queue;
mod small;
#[cfg(test)]
mod tests;

pub use self::{
    client::{Client, Input, Load, MOST_MEMBERS, Mark, Output, Request},
    command::{
        Command, CommandId, CommandKind, Document, DocumentId, IndexedNumbers, Missing, OtherId, PageRead, Place,
        Reply, SmallCall, SmallEnd, SmallRead, SortKey, StoredId, TEXT_ORDER, WriteError, WriteErrors,
    },
    failure::CommandError,
    notice::Notice,
    pages::order,
};
