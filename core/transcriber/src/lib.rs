//! The decisions of the transcriber, without I/O, clock, threads or randomness.
//!
//! A [`Transcriber`] takes segments from the connections of many sessions, has each one stored, tells its client once it is,
//! publishes it, and announces a session's end when the last connection on any instance has closed. It is told what happened
//! ([`Input`], with the time) and is asked what to do ([`Output`]) until it has nothing more to say; then it names the
//! moment at which it wants to be told that time has passed, and what for.
//!
//! What it rests on is in [`document`]: a session is one document, in which each instance that serves it has an entry. Every
//! write of an instance is checked against its entry; what is to be stored is in the entry first; a successor takes the entry
//! before it does anything else. So an instance that was thought dead can neither change the count of an ended session nor have
//! a segment acknowledged that is not counted.
//!
//! What a shell must do, and nothing else:
//!
//! - give each start a [nonce](Settings::nonce) that no other one has;
//! - say [`Input::Opened`] of each connection whose ids and token are good, [`Input::Frame`] of what it says, in its order, and
//!   [`Input::Closed`] of it once and last, whoever closed it;
//! - perform each [effect](Effect) as its documentation says, and report once what became of it, within
//!   [`Settings::answer_timeout`];
//! - carry out [`Output::Send`], [`Output::Close`] and [`Output::Read`] in the order in which they are said;
//! - say [`Input::Stream`] when the stream comes and goes;
//! - write each [`Output::Notice`] into the log;
//! - hand over [`Input::Woken`] when the wake-up of [`Output::Wait`] is due, with a time that never goes back;
//! - after [`Input::Shutdown`] go on until [`Output::Stopped`];
//! - decide nothing about a session.
//!
//! ```
//! use std::{collections::VecDeque, time::Duration};
//! use transcript_core::{Time, ids::Session};
//! use transcript_transcriber::{
//!     ClientFrame, ClientSegment, ConnectionId, Departure, Effect, EffectKind, Finality, Input, Joined, Opening, Output, Report,
//!     SavedSegment, ServerFrame, Settings, StreamState, Transcriber, document::Transport,
//! };
//!
//! // Servers at which everything goes well at once, and which nobody else uses.
//! fn perform(effect: &Effect) -> Report {
//!     match effect {
//!         Effect::OpenLease { .. } | Effect::RenewLease { .. } => Report::LeaseHeld,
//!         Effect::ReleaseLease { .. } => Report::LeaseReleased,
//!         Effect::FindOrphans { .. } => Report::Orphans(vec![]),
//!         Effect::Join { .. } => Report::Joined(Joined { next_index: 0, age: Duration::ZERO, epochs: vec![] }),
//!         Effect::Reserve { .. } => Report::Reserved { first_index: 0, write: 1 },
//!         Effect::Save { segments, .. } => {
//!             Report::Saved(segments.iter().map(|segment| SavedSegment::Stored { index: segment.index }).collect())
//!         }
//!         Effect::Leave { .. } => Report::Left(Departure::Ending { generation: 1, pending: vec![] }),
//!         Effect::Count { .. } => Report::Counted { segments: 1, edits: 0 },
//!         Effect::Finish { .. } => Report::Finished,
//!         Effect::TakeOver { .. } => Report::Gone,
//!         Effect::PublishSegments { .. } => Report::SegmentsPublished,
//!         Effect::PublishEnd { .. } => Report::EndPublished { stream_sequence: 2 },
//!     }
//! }
//!
//! let mut transcriber = Transcriber::new(Settings::new("t1", "5b0c7f", StreamState::Available))?;
//! let connection = ConnectionId(1);
//! let session = Session::new("c", "s").expect("the ids are short");
//! let said = ClientSegment {
//!     id: None, speaker: None, text: "Hello.".into(), start_ms: None, end_ms: None, finality: Finality::Final,
//! };
//! let opening = Opening { connection, session, client: None, epoch: None, transport: Transport::Socket };
//! let mut inputs = VecDeque::from([
//!     Input::Opened(opening),
//!     Input::Frame { connection, frame: ClientFrame::Segment(said) },
//!     Input::Frame { connection, frame: ClientFrame::CloseStream },
//! ]);
//! let (mut now, mut performed, mut sent) = (Time::ZERO, vec![], vec![]);
//! // Until the end is done: by then the lease was renewed, and other instances were looked for, some times.
//! while !performed.contains(&EffectKind::Finish) {
//!     if let Some(input) = inputs.pop_front() {
//!         transcriber.handle(now, input);
//!     }
//!     loop {
//!         match transcriber.poll_output() {
//!             Output::Perform { id, effect } => {
//!                 inputs.push_back(Input::Reported { effect: id, report: perform(&effect) });
//!                 performed.push(effect.kind());
//!             }
//!             Output::Send { frame, .. } => sent.push(frame),
//!             Output::Close { .. } | Output::Read { .. } | Output::Notice(_) => {}
//!             Output::Wait(Some(wake_up)) if inputs.is_empty() => {
//!                 now = wake_up.at;
//!                 inputs.push_back(Input::Woken);
//!                 break;
//!             }
//!             Output::Wait(_) | Output::Stopped => break,
//!         }
//!     }
//! }
//! assert_eq!(
//!     sent,
//!     [ServerFrame::Ready, ServerFrame::Ack { id: None, index: 0 }, ServerFrame::Saved { count: 1 }]
//! );
//! let of_session = |kind: &EffectKind| *kind >= EffectKind::Join;
//! performed.retain(of_session);
//! use EffectKind::{Count, Finish, Join, Leave, PublishEnd, PublishSegments, Reserve, Save};
//! assert_eq!(performed, [Join, Reserve, Save, PublishSegments, Leave, Count, PublishEnd, Finish]);
//! assert!(now >= Time::ZERO.after(Duration::from_secs(2)), "the last socket has been closed for long enough");
//! # Ok::<(), transcript_transcriber::SettingsError>(())
//! ```

mod acknowledged;
mod around;
mod connection;
pub mod document;
mod frame;
mod ids;
mod input;
mod kind;
mod lane;
mod lease;
mod output;
mod session;
mod settings;
#[cfg(test)]
mod tests;
mod transcriber;

pub use self::{
    acknowledged::AcknowledgementTimes,
    around::Counters,
    frame::{ClientFrame, ClientSegment, CloseCode, Finality, ServerFrame},
    ids::{ConnectionId, EffectId, EpochId, InstanceId, Source, Unnamed, end_message_id, segment_message_id},
    input::{Closure, Departure, Input, Joined, Opening, Orphan, Report, SavedSegment, StreamState, TakenOver},
    kind::EffectKind,
    output::{
        Effect, EpochOpened, Fence, IdleOthers, Notice, Output, PublishedSegment, Reading, Silence, Timer, WakeUp,
    },
    session::State,
    settings::{Settings, SettingsError},
    transcriber::Transcriber,
};
