//! Transcripts and their summaries on the command line: [`play`] publishes recorded transcripts, [`convert`] prints them as
//! our own lines, [`show`] prints a summary.

pub mod convert;
pub mod play;
pub mod show;
pub mod source;
