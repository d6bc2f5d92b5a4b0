//! Traces: what the state machine of a processor or of a transcriber was told and what it said, one JSON object a line.
//!
//! A state machine decides by its inputs alone, so a trace is a whole account of a run: fed to a state machine again, its
//! inputs give its outputs, byte for byte. [`Recorder`] and [`TranscriberRecorder`] write traces, [`Reader`] reads them,
//! [`replay`](replay::replay) feeds them to state machines, [`cut`] takes one session out, [`stats`] counts. The package
//! `transcript-timeline` draws.
//!
//! # The format
//!
//! A trace is one or more **parts**, so that traces can be strung together by `cat`. A part begins with a [`Header`] and goes
//! on with [`Entry`] lines that are numbered from 1:
//!
//! ```text
//! {"transcriptTrace":2,"program":"transcript-processor 0.1.0","processor":"a","startedAt":1764400000000,"content":"redacted","settings":{…}}
//! {"n":1,"at":1500,"job":1,"in":{"delivered":{…}}}
//! {"n":2,"out":{"perform":{"id":{"job":1,"number":1},"effect":{"count":{"sessionId":"s"}}}}}
//! {"n":3,"at":3100,"job":1,"in":{"reported":{"effect":{"job":1,"number":1},"report":{"counted":{"segments":4}}}}}
//! ```
//!
//! | field | meaning |
//! |---|---|
//! | `n` | the entry's number; one that is missing is a line that is missing |
//! | `at` | microseconds since the processor started, at `startedAt` (milliseconds since the Unix epoch); entries without one belong to the time of the one before |
//! | `job` | the job that took the input; absent where it was for no single one or nobody took it |
//! | `in` | an [`Input`](transcript_core::Input) of the core |
//! | `out` | an [`Output`](transcript_core::Output) of the core, said in answer to the input before it; its waits are not written |
//! | `leftOut` | something is missing here, and the jobs that it concerns are not told any further: [`LeftOut`] |
//! | `note` | something that no core saw, for people: [`Note`] |
//!
//! `settings` in the header are the core's, all durations in microseconds. `pullExpires` says for how long the broker keeps a
//! pull request of the processor.
//!
//! The header of a **transcriber** has `transcriber`, its name, in place of `processor`. The settings, `in` and `out` of its
//! part are those of the package `transcript-transcriber`, and its entries have no `job`. Parts of processors and of
//! transcribers can stand in one trace.
//!
//! ```text
//! {"transcriptTrace":2,"program":"transcript-processor 0.1.0","transcriber":"t1","startedAt":1764400000000,"content":"redacted","settings":{…}}
//! {"n":1,"at":0,"out":{"perform":{"id":1,"effect":{"openLease":{…}}}}}
//! {"n":2,"at":900,"in":{"reported":{"effect":1,"report":"leaseHeld"}}}
//! ```
//!
//! A part that **continues** another file of the same processor says so in its header; its numbers go on from there. Given
//! alone, it replays from its first new job on. [`Processes`] finds which part goes on where. A transcriber's sessions share
//! what they may hold in memory and one numbering of effects, so that its trace replays from its first file only, and up to the
//! first input that is missing; the rest can be drawn and counted.
//!
//! # Words
//!
//! Unless the header says `"content":"kept"`, no word of a call is in a trace. Texts are there as their
//! [`shape`](transcript_core::summary::shape), labels of speakers as placeholders of the same length, and a message's payload
//! without what no contract names. Ids are kept. The outputs are those of a second core that was told the same inputs
//! without their words, which is why they replay. Where dictionaries divide a text into words, a redacted trace counts
//! other words than the call had. The outputs of a transcriber are its own, with the same placeholders in place of its words:
//! it decides by their lengths alone. The names of its clients are replaced by pseudonyms, which differ from trace to trace;
//! epochs and the clients' ids of segments are ids.
//!
//! # Compatibility
//!
//! [`FORMAT`] is counted up when a reader of the old one would misread the new one; new fields are no such change, since
//! readers pass over fields that they do not know. A program reads its own format only; the error names the program that wrote
//! another one. Decisions of the core may change between versions: then an older trace shows a difference, and its header
//! names the program that made it, which replays it.

pub mod cut;
mod files;
mod follow;
mod format;
mod json_error;
mod lines;
mod processes;
mod read;
mod record;
mod redact;
pub mod replay;
pub mod stats;
mod transcriber;

pub use transcript_core::Server;

pub use self::{
    files::{FilesError, TraceFiles, is_read_in_directory},
    follow::{Followed, Follower},
    format::{
        Content, Continues, Entry, FORMAT, Header, LeftOut, Line, Note, Said, Servers, TranscriberEntry,
        TranscriberHeader,
    },
    json_error::json_error,
    processes::{Begin, ProcessHeader, ProcessLine, Processes},
    read::{ReadError, Reader},
    record::Recorder,
    transcriber::{Count, Span, TranscriberRecorder, TranscriberStats, is_recorded},
};
