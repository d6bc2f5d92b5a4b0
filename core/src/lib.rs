//! The decisions of the transcript processor, without I/O, clock, threads or randomness.
//!
//! A [`Processor`] is told what happened ([`Input`], with the [`Time`]) and is asked what to do ([`Output`]) until it has
//! nothing more to say; then it names the moment at which it wants to be told that time has passed, and what for. The
//! same inputs give the same outputs, byte for byte, on every machine.
//!
//! What a shell must do, and nothing else:
//!
//! - perform each [effect](Effect) and report once what became of it, in any order, and within
//!   [`Settings::answer_timeout`], whose documentation is the one rule about time: the core asks for a job's next effect
//!   only after the report of the one before it, and asks again when a report never comes;
//! - send a heartbeat for each [`Output::InProgress`], at once or never;
//! - have taken no more deliveries since the start than [`Processor::allowance`] says, and hand over each one;
//! - end a page at the segments and bytes that [`Effect::Load`] names;
//! - on [`Output::StopDeliveries`] end the deliveries, hand over what was under way, and say
//!   [`Input::DeliveriesStopped`];
//! - tell what it learns: advisories of messages that used up their deliveries ([`Input::Exhausted`]), summaries that are
//!   behind ([`Input::Stale`]), what the consumer is set to ([`Input::Consumer`]);
//! - write each [`Output::Notice`] into the log;
//! - hand over [`Input::Woken`] when the wake-up of [`Output::Wait`] is due, with a time that never goes back;
//! - decide nothing about a job.
//!
//! ```
//! use std::{collections::VecDeque, time::Duration};
//! use transcript_core::{Acknowledgement, Delivery, Effect, Input, Output, Page, Payload, Processor, Report, Settings, Stored};
//! use transcript_core::{Time, WallTime};
//!
//! // A world in which everything goes well at once: a call of which no segment was published.
//! fn perform(effect: &Effect) -> Report {
//!     match effect {
//!         Effect::Count { .. } => Report::Counted { segments: 0 },
//!         Effect::Load { .. } => Report::Loaded(Page::default()),
//!         Effect::Save { .. } => {
//!             Report::Saved(Stored { segments: 0, complete: true, notified: None, revision: 1, revised: None, edits: 0, reprocess: 0 })
//!         }
//!         Effect::Check { .. } => Report::Checked(None),
//!         Effect::Publish { notification, .. } => {
//!             Report::Published { stream_sequence: 2, segments: notification.segments, edits: 0 }
//!         }
//!         Effect::Mark { .. } => Report::Marked,
//!         Effect::DeadLetter { .. } => Report::DeadLettered { stream_sequence: 3 },
//!         Effect::Republish { .. } => Report::Republished { stream_sequence: 3 },
//!         Effect::Acknowledge { .. } => Report::Acknowledged,
//!     }
//! }
//!
//! let mut processor = Processor::new(Settings::default())?;
//! let ended = br#"{"conversationId":"c","sessionId":"s","publishedSegments":0}"#;
//! let mut inputs = VecDeque::from([Input::Delivered(Delivery {
//!     stream_sequence: 1,
//!     attempt: 1,
//!     stored_at: WallTime::from_millis(1_700_000_000_000),
//!     received_at: WallTime::from_millis(1_700_000_000_001),
//!     reply: "$JS.ACK.TRANSCRIPTION.transcript-processor.1.1.1.1700000000000000000.0".into(),
//!     redrive_of: None,
//!     trace_context: None,
//!     payload: Payload(ended.to_vec()),
//! })]);
//! let (mut now, mut performed) = (Time::ZERO, vec![]);
//! while let Some(input) = inputs.pop_front() {
//!     processor.handle(now, input);
//!     loop {
//!         match processor.poll_output() {
//!             Output::Perform { id, effect } => {
//!                 inputs.push_back(Input::Reported { effect: id, report: perform(&effect) });
//!                 performed.push(effect);
//!             }
//!             Output::InProgress { .. } | Output::Notice(_) => {}
//!             Output::StopDeliveries => inputs.push_back(Input::DeliveriesStopped),
//!             Output::Wait(Some(wake_up)) if inputs.is_empty() => {
//!                 now = wake_up.at;
//!                 inputs.push_back(Input::Woken);
//!                 break;
//!             }
//!             Output::Wait(_) | Output::Drained => break,
//!         }
//!     }
//! }
//! assert!(matches!(performed.last(), Some(Effect::Acknowledge { acknowledgement: Acknowledgement::Ack, .. })));
//! assert_eq!(performed.len(), 7, "two counts, a page, a summary, a notification, a mark, an acknowledgement");
//! assert_eq!(processor.in_flight(), 0);
//! # Ok::<(), transcript_core::SettingsError>(())
//! ```

mod bug;
mod counters;
pub mod failure;
pub mod ids;
mod input;
mod job;
mod journal;
mod kind;
pub mod micros;
mod output;
mod processor;
mod served;
mod settings;
pub mod summary;
mod time;
mod timers;

pub use transcript_contract::{self as contract, WallTime, event};

pub use self::{
    bug::Bug,
    counters::{Counters, DurationHistogram, JobView},
    failure::{Failure, FailureKind},
    input::{
        ConsumerSettings, Cursor, Delivery, Exhausted, Input, Notified, Page, Payload, Report, StaleSummary, Stored,
        Tally, TranscriptVersion,
    },
    job::State,
    journal::{AcknowledgementKind, JobBegan, JobMoved, JournalEntry, JournalEvent, SpanIds},
    kind::{EffectKind, Server},
    output::{Acknowledgement, Done, Effect, Notice, Output, Timer, WakeUp},
    processor::{DELIVERIES_STOP_WITHIN, Processor},
    settings::{Settings, SettingsError},
    time::Time,
};
