//! Counts what the traces of transcribers tell: how long segments took, how sessions ended, what was refused.

use std::{collections::BTreeMap, fmt};

use hdrhistogram::Histogram;
use serde::Serialize;
use transcript_core::{Time, ids::Key};
use transcript_transcriber::{
    ClientFrame, Closure, ConnectionId, Effect, EffectId, EffectKind, Finality, Input, Notice, Output, Report,
    SavedSegment, ServerFrame,
};

use crate::{
    format::{Said, TranscriberEntry, TranscriberHeader},
    processes::{Begin, ProcessHeader},
    stats::{ShownDistribution, counting::micros, recorded, row, span, table_header},
};

/// How many effects and connections may be under way: more than a transcriber has.
const MOST: usize = 1 << 20;

/// What the traces of transcribers tell.
#[derive(Debug, Clone, Default)]
pub struct TranscriberStats {
    pub(crate) parts: u64,
    pub(crate) entries: u64,
    pub(crate) left_out: u64,
    counts: BTreeMap<Count, u64>,
    times: BTreeMap<Span, Histogram<u64>>,
}

/// What is counted, in the order in which it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Count {
    /// Connections that opened.
    Opened,
    /// Connections that the transcriber refused or closed.
    Closed,
    /// Connections that broke.
    Broken,
    /// Final segments that came.
    Received,
    /// Segments that were stored.
    Stored,
    /// Segments or connections that were refused.
    Refused,
    /// Ends of sessions that were done.
    Ended,
    /// Sessions that were taken over from dead transcribers.
    TakenOver,
    /// Effects that failed.
    Failed,
}

/// What is timed, in the order of a session; in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Span {
    /// From the request for a session's document until the instance was listed.
    Joining,
    /// From the request for indexes until they were taken.
    Reserving,
    /// From the request to store a batch until it was stored.
    Saving,
    /// From the request to publish a batch until the stream had it.
    Publishing,
    /// From the last close of a session until its end was recorded, with the wait for another connection.
    Ending,
}

impl TranscriberStats {
    /// How often it happened.
    #[must_use]
    pub fn count(&self, what: Count) -> u64 {
        self.counts.get(&what).copied().unwrap_or(0)
    }

    /// The times of a kind, to three digits.
    #[must_use]
    pub fn times(&self, what: Span) -> Option<&Histogram<u64>> {
        self.times.get(&what)
    }

    /// Whether there was no transcriber.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts == 0
    }

    fn add(&mut self, what: Count, more: usize) {
        *self.counts.entry(what).or_default() += u64::try_from(more).unwrap_or(u64::MAX);
    }
}

impl fmt::Display for TranscriberStats {
    /// Tables of at most 80 columns.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "transcribers: {} entries", self.entries)?;
        if self.left_out > 0 {
            write!(f, "; {} inputs left out", self.left_out)?;
        }
        for (what, count) in &self.counts {
            write!(f, "\n  {:55}{count:>10}", what.name())?;
        }
        write!(f, "\n\n{}", table_header().trim_end())?;
        self.times.iter().try_for_each(|(what, values)| write!(f, "\n{}", row(what.name(), values, span)))
    }
}

impl Serialize for TranscriberStats {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Json {
            parts: u64,
            entries: u64,
            left_out: u64,
            counts: BTreeMap<&'static str, u64>,
            times: Vec<ShownDistribution>,
        }
        let counts = self.counts.iter().map(|(what, count)| (what.name(), *count)).collect();
        let times =
            self.times.iter().map(|(what, values)| ShownDistribution::named(what.name(), Some("us"), values)).collect();
        Json { parts: self.parts, entries: self.entries, left_out: self.left_out, counts, times }.serialize(serializer)
    }
}

impl Count {
    fn name(self) -> &'static str {
        match self {
            Self::Opened => "connections opened",
            Self::Closed => "connections that the transcriber closed",
            Self::Broken => "connections that broke",
            Self::Received => "final segments received",
            Self::Stored => "segments stored",
            Self::Refused => "errors told to clients",
            Self::Ended => "sessions ended",
            Self::TakenOver => "sessions taken over from dead transcribers",
            Self::Failed => "effects that failed",
        }
    }
}

impl Span {
    fn name(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Reserving => "reserving",
            Self::Saving => "saving segments",
            Self::Publishing => "publishing segments",
            Self::Ending => "ending",
        }
    }

    fn of(kind: EffectKind) -> Option<Self> {
        match kind {
            EffectKind::Join => Some(Self::Joining),
            EffectKind::Reserve => Some(Self::Reserving),
            EffectKind::Save => Some(Self::Saving),
            EffectKind::PublishSegments => Some(Self::Publishing),
            EffectKind::OpenLease
            | EffectKind::RenewLease
            | EffectKind::ReleaseLease
            | EffectKind::FindOrphans
            | EffectKind::Leave
            | EffectKind::Count
            | EffectKind::Finish
            | EffectKind::TakeOver
            | EffectKind::PublishEnd => None,
        }
    }
}

/// Traces of transcribers that are being counted.
#[derive(Debug, Default)]
pub(crate) struct CountingTranscribers {
    pub(crate) stats: TranscriberStats,
    process: Option<usize>,
    now: Time,
    effects: BTreeMap<EffectId, (EffectKind, Option<Key>, Time)>,
    connections: BTreeMap<ConnectionId, Key>,
    last_close: BTreeMap<Key, Time>,
}

impl CountingTranscribers {
    pub(crate) fn header(&mut self, begun: &ProcessHeader<TranscriberHeader>) {
        if begun.begin != Begin::GoesOn || self.process != Some(begun.process) {
            // What another one had under way is over: nobody can tell when it went on.
            (self.effects, self.connections, self.last_close) = Default::default();
            self.now = Time::ZERO;
        }
        self.stats.parts += 1;
        self.process = Some(begun.process);
    }

    pub(crate) fn entry(&mut self, entry: TranscriberEntry) {
        self.stats.entries += 1;
        self.now = entry.at.unwrap_or(self.now);
        match entry.said {
            Said::In(input) => self.told(input),
            Said::Out(output) => self.says(output),
            Said::LeftOut(left_out) => {
                self.stats.left_out += left_out.inputs;
                (self.effects, self.connections, self.last_close) = Default::default();
            }
            Said::Note(_) => {}
        }
    }

    fn told(&mut self, input: Input) {
        match input {
            Input::Opened(opening) => {
                self.stats.add(Count::Opened, 1);
                let key = opening.session.key();
                self.last_close.remove(&key);
                if self.connections.len() < MOST {
                    self.connections.insert(opening.connection, key);
                }
            }
            Input::Frame { frame: ClientFrame::Segment(segment), .. } => {
                self.stats.add(Count::Received, usize::from(segment.finality == Finality::Final));
            }
            Input::Closed { connection, closure } => {
                self.stats.add(Count::Broken, usize::from(closure == Closure::Broken));
                self.closed(connection);
            }
            Input::Reported { effect, report } => self.reported(effect, &report),
            Input::Frame {
                frame:
                    ClientFrame::Finalize | ClientFrame::CloseStream | ClientFrame::EndSession | ClientFrame::KeepAlive,
                ..
            }
            | Input::Stream(_)
            | Input::Woken
            | Input::Shutdown => {}
        }
    }

    fn closed(&mut self, connection: ConnectionId) {
        if let Some(key) = self.connections.remove(&connection) {
            self.last_close.insert(key, self.now);
        }
    }

    fn reported(&mut self, id: EffectId, report: &Report) {
        let Some((kind, key, since)) = self.effects.remove(&id) else { return };
        match report {
            Report::Failed(_) => {
                self.stats.add(Count::Failed, 1);
                return;
            }
            Report::Saved(segments) => {
                let is_stored = |saved: &&SavedSegment| matches!(saved, SavedSegment::Stored { .. });
                self.stats.add(Count::Stored, segments.iter().filter(is_stored).count());
            }
            Report::Finished => {
                if let Some(closed) = key.and_then(|key| self.last_close.remove(&key)) {
                    self.time(Span::Ending, closed);
                }
            }
            Report::LeaseHeld
            | Report::LeaseLost
            | Report::LeaseReleased
            | Report::Orphans(_)
            | Report::Joined(_)
            | Report::Reserved { .. }
            | Report::Left(_)
            | Report::Counted { .. }
            | Report::SegmentsPublished
            | Report::EndPublished { .. }
            | Report::Reopened
            | Report::TakenOver(_)
            | Report::Gone => {}
        }
        if let Some(span) = Span::of(kind) {
            self.time(span, since);
        }
    }

    fn says(&mut self, output: Output) {
        match output {
            Output::Perform { id, effect } => self.asks(id, &effect),
            Output::Send { frame: ServerFrame::Error { .. }, .. } => self.stats.add(Count::Refused, 1),
            Output::Close { connection, .. } => {
                self.stats.add(Count::Closed, 1);
                self.closed(connection);
            }
            Output::Notice(Notice::Ended { .. }) => self.stats.add(Count::Ended, 1),
            Output::Notice(Notice::TookOver { .. }) => self.stats.add(Count::TakenOver, 1),
            Output::Send {
                frame: ServerFrame::Ready | ServerFrame::Ack { .. } | ServerFrame::Saved { .. }, ..
            }
            | Output::Read { .. }
            | Output::Notice(
                Notice::NothingIsPublished
                | Notice::LeaseLost { .. }
                | Notice::Failing { .. }
                | Notice::Works { .. }
                | Notice::Limited { .. },
            )
            | Output::Wait(_)
            | Output::Stopped => {}
        }
    }

    fn asks(&mut self, id: EffectId, effect: &Effect) {
        if self.effects.len() >= MOST {
            self.effects.pop_first();
        }
        let key = effect.session().map(|session| session.key());
        self.effects.insert(id, (effect.kind(), key, self.now));
    }

    fn time(&mut self, what: Span, since: Time) {
        recorded(self.stats.times.entry(what), micros(self.now.since(since)));
    }
}
