//! The segments of a session on their way into the store.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use transcript_core::Time;

use crate::{
    connection::Clock,
    document::StoredSegment,
    ids::{ConnectionId, EpochId},
    settings::Settings,
};

/// What a segment takes beside its texts, in bytes: about what its bookkeeping takes.
const AROUND_A_SEGMENT: usize = 256;

/// A segment that is not in a batch yet.
#[derive(Debug)]
pub(super) struct Waiting {
    /// The segment; its times are its client's.
    pub(super) segment: StoredSegment,
    /// Which clock its times are of; `None` where they are as they are to be stored.
    pub(super) clock: Option<Clock>,
    /// Who is told of it.
    pub(super) receipt: Option<Receipt>,
}

/// Who is told of a segment.
#[derive(Debug, Clone)]
pub(super) struct Receipt {
    pub(super) connection: ConnectionId,
    /// The segment's number on the connection.
    pub(super) number: u64,
    /// The client's id of it.
    pub(super) id: Option<Arc<str>>,
    /// When it was received.
    pub(super) received: Time,
}

/// Segments that are stored together.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) segments: Arc<Vec<StoredSegment>>,
    /// One for each segment.
    pub(super) receipts: Vec<Option<Receipt>>,
}

/// The session's clock: how old the session was, on the store's clock, at a moment of this instance's.
#[derive(Debug, Clone, Copy)]
pub(super) struct SessionClock {
    pub(super) at: Time,
    pub(super) age: Duration,
}

/// The zero of an epoch that a client named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Epoch {
    /// The session's document is to be asked. The epoch's connection opened then.
    Unasked(Time),
    /// In milliseconds of the session's clock.
    At(i64),
    /// The document holds too many.
    Unmapped,
}

impl Batch {
    /// A batch that was another instance's: nobody is told of it.
    pub(super) fn recovered(pending: Vec<StoredSegment>) -> Self {
        let receipts = pending.iter().map(|_| None).collect();
        Self { segments: Arc::new(pending), receipts }
    }

    /// Takes as many waiting segments as one batch may have. A source comes once in a batch: upserts of one command are
    /// not in order among each other.
    pub(super) fn take(
        waiting: &mut VecDeque<Waiting>,
        settings: &Settings,
        mut mapped: impl FnMut(Waiting) -> (StoredSegment, Option<Receipt>),
    ) -> Self {
        let (mut segments, mut receipts, mut bytes) = (vec![], vec![], 0_usize);
        while let Some(next) = waiting.front() {
            let more = cost(&next.segment);
            let is_full = segments.len() >= settings.max_batch_segments
                || (!segments.is_empty() && bytes.saturating_add(more) > settings.max_batch_bytes)
                || segments.iter().any(|taken: &StoredSegment| taken.source == next.segment.source);
            if is_full {
                break;
            }
            let Some(next) = waiting.pop_front() else { break };
            let (mut segment, receipt) = mapped(next);
            segment.index = segments.len() as u64;
            segment.write = 0;
            segments.push(segment);
            receipts.push(receipt);
            bytes += more;
        }
        Self { segments: Arc::new(segments), receipts }
    }

    /// Gives the segments their indexes and their number.
    pub(super) fn reserved(&mut self, first_index: u64, write: u64) {
        let segments = Arc::make_mut(&mut self.segments);
        for (place, segment) in segments.iter_mut().enumerate() {
            segment.index = first_index.saturating_add(place as u64);
            segment.write = write;
        }
    }

    /// Puts the segments back in front of those that wait.
    pub(super) fn put_back(self, waiting: &mut VecDeque<Waiting>) {
        let segments = self.segments.iter().cloned().zip(self.receipts);
        for (segment, receipt) in segments.collect::<Vec<_>>().into_iter().rev() {
            waiting.push_front(Waiting { segment, clock: None, receipt });
        }
    }
}

/// The memory that a segment takes, in bytes.
///
/// The name of its client is within [`AROUND_A_SEGMENT`]: no decision depends on it, so that a trace in which it is replaced
/// replays.
pub(super) fn cost(segment: &StoredSegment) -> usize {
    let behind_the_client = segment.source.as_str().split_once(':').map_or(0, |(_, rest)| rest.len());
    segment.text.len()
        + segment.speaker.as_ref().map_or(0, |speaker| speaker.len())
        + behind_the_client
        + AROUND_A_SEGMENT
}

/// Puts the times of a segment onto the session's clock, where its own clock is known.
pub(super) fn on_session_clock(
    segment: &mut StoredSegment,
    clock: &Clock,
    session: Option<SessionClock>,
    epochs: &BTreeMap<EpochId, Epoch>,
) {
    let zero = match clock {
        Clock::Opened(opened) => session.map(|session| session.at_ms(*opened)),
        Clock::Epoch(epoch) => epochs.get(epoch).and_then(|epoch| match epoch {
            Epoch::At(ms) => Some(*ms),
            Epoch::Unasked(_) | Epoch::Unmapped => None,
        }),
        Clock::Unknown => None,
    };
    let Some(zero) = zero else { return };
    segment.on_session_clock = segment.start_ms.is_some();
    segment.start_ms = segment.start_ms.map(|ms| ms.saturating_add(zero));
    segment.end_ms = segment.end_ms.map(|ms| ms.saturating_add(zero));
}

impl SessionClock {
    /// A moment in milliseconds of the session's clock. The first connection opens a round trip before its session does: that
    /// is zero, too.
    fn at_ms(self, moment: Time) -> i64 {
        let age = self.age + moment.since(self.at);
        let age = age.saturating_sub(self.at.since(moment));
        i64::try_from(age.as_millis()).unwrap_or(i64::MAX)
    }
}
