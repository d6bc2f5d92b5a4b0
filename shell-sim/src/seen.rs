//! What happens in a world, as its checks and its trace see it.

use std::{fmt, sync::Arc, time::Duration};

use transcript_core::{
    Delivery, Effect, Report, Stored, Time, WakeUp,
    contract::Notification,
    ids::{EffectId, Key},
    summary::Segment,
};

use crate::{broker::AckBody, plan::Fault, store::Document};

/// Something that happened.
#[derive(Debug)]
pub(crate) enum Seen<'a> {
    /// A processor started; each of its jobs owes a heartbeat that often.
    Started { processor: usize, heartbeat: Duration },
    /// A processor is no more: killed, or drained and gone.
    Ended { processor: usize, how: Ending },
    /// A processor goes on after it was frozen.
    Thawed { processor: usize },
    /// A planned fault happens.
    Fault(&'a Fault),
    /// A fault that can cost a delivery, on one processor or on all, is effective for a while.
    Disturbed { processor: Option<usize>, from: Time, until: Time },
    /// A transcriber saved a segment.
    SegmentStored { session: &'a Arc<str>, segment: &'a Segment },
    /// A kill of the store lost a segment that was saved.
    SegmentLost { session: &'a Arc<str>, id: &'a str },
    /// The end of a call is in the stream.
    EndStored { call: usize, end: usize, sequence: u64 },
    /// The broker handed a message over.
    Sent { processor: usize, sequence: u64, attempt: u64, fate: Fate },
    /// A message came to a processor's client.
    Arrived { processor: usize, reply: &'a Arc<str> },
    /// A processor's core took a message.
    Delivered { processor: usize, delivery: &'a Delivery },
    /// A core asked for an effect.
    Asked { processor: usize, id: EffectId, effect: &'a Effect },
    /// A core said that a delivery is worked on.
    InProgress { processor: usize, reply: &'a Arc<str> },
    /// A core learnt what became of an effect.
    Reported { processor: usize, id: EffectId, report: &'a Report },
    /// A core took no notice of the report that it was told last: it had given up waiting for it.
    Ignored { processor: usize, id: EffectId },
    /// A core has said everything: where it stands.
    Waits { processor: usize, jobs: usize, overflowed: u64, served: Option<WakeUp>, next: Option<WakeUp> },
    /// A summary was saved, or a stored one kept.
    Saved { key: &'a Key, before: Option<Stored>, after: &'a Document },
    /// A notification is in the stream.
    NotificationStored { sequence: u64, notification: &'a Notification },
    /// An acknowledgement of any kind came to the broker.
    AckArrived { sequence: u64, body: &'a AckBody },
    /// The broker will not deliver a message again.
    GivenUp { sequence: u64 },
}

/// Whether what was sent arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    UnderWay,
    Lost,
}

/// How a processor came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Killed,
    Drained,
}

impl fmt::Display for Seen<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { processor, .. } => write!(f, "processor {processor}: started"),
            Self::Ended { processor, how: Ending::Killed } => write!(f, "processor {processor}: killed"),
            Self::Ended { processor, how: Ending::Drained } => write!(f, "processor {processor}: drained"),
            Self::Thawed { processor } => write!(f, "processor {processor}: thawed"),
            Self::Fault(fault) => write!(f, "fault: {fault}"),
            Self::Disturbed { processor: Some(processor), until, .. } => {
                write!(f, "processor {processor}: disturbed until {until}", until = Clock(*until))
            }
            Self::Disturbed { processor: None, until, .. } => write!(f, "everybody disturbed until {}", Clock(*until)),
            Self::SegmentStored { session, segment } => {
                write!(f, "transcriber: segment {:?} of {session:?} stored", segment.id)
            }
            Self::SegmentLost { session, id } => write!(f, "store: segment {id:?} of {session:?} is lost"),
            Self::EndStored { call, end, sequence } => {
                write!(f, "transcriber: end {end} of call {call} stored as {sequence}")
            }
            Self::Sent { processor, sequence, attempt, fate } => {
                write!(f, "broker: {sequence} to processor {processor}, attempt {attempt}, {fate:?}")
            }
            Self::Arrived { processor, reply } => write!(f, "processor {processor}: arrived {reply}"),
            Self::Delivered { processor, delivery } => {
                write!(f, "processor {processor}: delivered {}, attempt {}", delivery.stream_sequence, delivery.attempt)
            }
            Self::Asked { processor, id, effect } => write!(f, "processor {processor}: {id} {effect}"),
            Self::InProgress { processor, reply } => write!(f, "processor {processor}: in progress {reply}"),
            Self::Reported { processor, id, report } => write!(f, "processor {processor}: {id} {report}"),
            Self::Ignored { processor, id } => write!(f, "processor {processor}: {id} comes too late"),
            Self::Waits { processor, jobs, next, .. } => {
                let wake_up = next.map(|next| format!(" until {} ({:?})", Clock(next.at), next.timer));
                write!(f, "processor {processor}: waits with {jobs} job(s){}", wake_up.unwrap_or_default())
            }
            Self::Saved { key, before, after } => write!(
                f,
                "store: {key} has {} segment(s), complete {}, words {}, had {:?}",
                after.summary.segments,
                after.summary.complete,
                after.summary.words,
                before.map(|before| before.segments)
            ),
            Self::NotificationStored { sequence, notification } => {
                write!(f, "broker: notification of {} stored as {sequence}", notification.session.key())
            }
            Self::AckArrived { sequence, body } => write!(f, "broker: {body:?} for {sequence}"),
            Self::GivenUp { sequence } => write!(f, "broker: {sequence} is given up"),
        }
    }
}

/// A time of the world in seconds.
pub(crate) struct Clock(pub(crate) Time);

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        write!(f, "{}.{:06} s", micros / 1_000_000, micros % 1_000_000)
    }
}
