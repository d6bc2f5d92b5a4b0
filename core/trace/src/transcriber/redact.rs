//! Takes the words out of what a transcriber is told, and of what it says.
//!
//! A transcriber decides by the lengths of texts and of labels, never by what they say, and by whether two clients have the same
//! name, never by the name. So the same placeholders in its inputs and in its outputs leave a trace that replays.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use serde::de::DeserializeOwned;
use transcript_core::summary::shape;
use transcript_transcriber::{
    ClientFrame, ClientSegment, Departure, Effect, EffectId, EpochId, EpochOpened, Input, Joined, Opening, Output,
    PublishedSegment, Report, Source, TakenOver, document::StoredSegment,
};

/// Replaces words and names.
#[derive(Debug)]
pub(super) struct Redaction {
    /// Nobody who reads the trace may know it: it is what keeps names from being guessed.
    secret: Box<str>,
    /// In which order the epochs of joins under way are told, where that is another one than the state machine has.
    orders: BTreeMap<EffectId, Vec<usize>>,
}

impl Redaction {
    pub(super) fn new(secret: &str) -> Self {
        Self { secret: secret.into(), orders: BTreeMap::new() }
    }

    /// The input without a word.
    pub(super) fn input(&mut self, input: Input) -> Input {
        match input {
            Input::Frame { connection, frame: ClientFrame::Segment(segment) } => {
                let (speaker, text) = (segment.speaker.as_ref().map(shaped), shaped(&segment.text));
                Input::Frame { connection, frame: ClientFrame::Segment(ClientSegment { speaker, text, ..segment }) }
            }
            Input::Reported { effect, report } => {
                let order = self.orders.remove(&effect);
                Input::Reported { effect, report: self.report(report, order.as_deref()) }
            }
            Input::Opened(opening) => {
                let client = opening.client.as_ref().map(|client| self.client(client).into());
                Input::Opened(Opening { client, ..opening })
            }
            Input::Frame {
                frame:
                    ClientFrame::Finalize | ClientFrame::CloseStream | ClientFrame::EndSession | ClientFrame::KeepAlive,
                ..
            }
            | Input::Closed { .. }
            | Input::Stream(_)
            | Input::Woken
            | Input::Shutdown => input,
        }
    }

    /// The output without a word.
    pub(super) fn output(&mut self, output: Output) -> Output {
        match output {
            Output::Perform { id, effect } => Output::Perform { id, effect: self.effect(id, effect) },
            // Frames to clients say ids, places and reasons.
            Output::Send { .. }
            | Output::Close { .. }
            | Output::Read { .. }
            | Output::Notice(_)
            | Output::Wait(_)
            | Output::Stopped => output,
        }
    }

    /// `order` is that of the epochs of the join.
    fn report(&self, report: Report, order: Option<&[usize]>) -> Report {
        match report {
            Report::Joined(joined) => {
                let told = |place: &usize| joined.epochs.get(*place).copied().flatten();
                let epochs = order.map_or_else(|| joined.epochs.clone(), |order| order.iter().map(told).collect());
                Report::Joined(Joined { epochs, ..joined })
            }
            Report::Left(Departure::Ending { generation, pending }) => {
                Report::Left(Departure::Ending { generation, pending: self.segments(&pending) })
            }
            Report::TakenOver(taken) => {
                let pending = self.segments(&taken.pending);
                Report::TakenOver(TakenOver { pending, ..taken })
            }
            Report::Left(Departure::Others | Departure::Silent)
            | Report::LeaseHeld
            | Report::LeaseLost
            | Report::LeaseReleased
            | Report::Orphans(_)
            | Report::Reserved { .. }
            | Report::Saved(_)
            | Report::Counted { .. }
            | Report::SegmentsPublished
            | Report::EndPublished { .. }
            | Report::Finished
            | Report::Reopened
            | Report::Gone
            | Report::Failed(_) => report,
        }
    }

    fn effect(&mut self, id: EffectId, effect: Effect) -> Effect {
        match effect {
            Effect::Join { session, fence, transport, epochs } => {
                // The state machine tells them in the order of their names.
                let named = |epoch: &EpochOpened| EpochOpened { epoch: self.epoch(&epoch.epoch), ago: epoch.ago };
                let mut renamed: Vec<(EpochOpened, usize)> = epochs.iter().map(named).zip(0..).collect();
                renamed.sort_by(|(one, _), (other, _)| one.epoch.cmp(&other.epoch));
                let (epochs, order): (Vec<EpochOpened>, Vec<usize>) = renamed.into_iter().unzip();
                if !order.is_sorted() {
                    self.orders.insert(id, order);
                }
                Effect::Join { session, fence, transport, epochs }
            }
            Effect::Reserve { session, fence, segments: batch, from } => {
                Effect::Reserve { session, fence, segments: Arc::new(self.segments(&batch)), from }
            }
            Effect::Save { session, segments: batch } => {
                Effect::Save { session, segments: Arc::new(self.segments(&batch)) }
            }
            Effect::PublishSegments { session, segments } => {
                let published = segments.iter().map(|published| PublishedSegment {
                    segment: self.segment(&published.segment),
                    message_id: Arc::clone(&published.message_id),
                });
                Effect::PublishSegments { session, segments: Arc::new(published.collect()) }
            }
            Effect::OpenLease { .. }
            | Effect::RenewLease { .. }
            | Effect::ReleaseLease { .. }
            | Effect::FindOrphans { .. }
            | Effect::Leave { .. }
            | Effect::Count { .. }
            | Effect::Finish { .. }
            | Effect::TakeOver { .. }
            | Effect::PublishEnd { .. } => effect,
        }
    }

    fn segments(&self, batch: &[StoredSegment]) -> Vec<StoredSegment> {
        batch.iter().map(|segment| self.segment(segment)).collect()
    }

    fn segment(&self, said: &StoredSegment) -> StoredSegment {
        let (speaker, source) = (said.speaker.as_ref().map(shaped), self.source(&said.source));
        StoredSegment { speaker, source, text: shaped(&said.text), ..said.clone() }
    }

    /// The name of a client, replaced by one that is always the same within a trace.
    fn client(&self, name: &str) -> String {
        let mut hasher = DefaultHasher::new();
        (&*self.secret, name).hash(&mut hasher);
        format!("client-{:016x}", hasher.finish())
    }

    fn epoch(&self, epoch: &EpochId) -> EpochId {
        self.renamed(epoch.as_str()).unwrap_or_else(|| epoch.clone())
    }

    fn source(&self, source: &Source) -> Source {
        self.renamed(source.as_str()).unwrap_or_else(|| source.clone())
    }

    /// An epoch or a source with another name of its client; `None` where it names none.
    fn renamed<T: DeserializeOwned>(&self, text: &str) -> Option<T> {
        let (client, rest) = text.split_once(':').filter(|(client, _)| !client.is_empty())?;
        // As it was before it was written into the epoch.
        let client = client.replace("%3A", ":").replace("%25", "%");
        serde_json::from_value(format!("{}:{rest}", self.client(&client)).into()).ok()
    }
}

fn shaped(text: &Arc<str>) -> Arc<str> {
    shape(text).into()
}
