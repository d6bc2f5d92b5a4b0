//! Transcripts and their summaries on the command line: [`play`] publishes recorded transcripts, [`show`] prints a summary.

pub mod play;
pub mod show;
