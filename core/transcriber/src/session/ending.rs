//! Publications, and the end as the last of them.

use std::sync::Arc;

use transcript_core::{Failure, FailureKind, event::SessionEnded};

use super::{End, Phase, Session, segments::cost};
use crate::{
    around::{Around, Owner},
    document::{PublishedEnd, StoredSegment},
    ids::{EffectId, end_message_id, segment_message_id},
    input::{Report, StreamState},
    kind::EffectKind,
    output::{Effect, Notice, PublishedSegment},
};

impl Session {
    /// An effect on the stream was reported.
    pub(crate) fn stream_reported(&mut self, around: &mut Around, id: EffectId, kind: EffectKind, report: &Report) {
        let before = self.state();
        self.stream.reported(id);
        match report {
            Report::Failed(failure) => self.stream_failed(around, kind, failure),
            Report::EndPublished { stream_sequence } => {
                self.stream.succeeded();
                around.say_works(kind);
                self.end_published(*stream_sequence);
            }
            Report::SegmentsPublished => {
                self.stream.succeeded();
                around.say_works(kind);
                around.counters.published += self.publishing as u64;
                self.drop_published(around);
            }
            // The transcriber hands over only reports that fit the effect.
            Report::LeaseHeld
            | Report::LeaseLost
            | Report::LeaseReleased
            | Report::Orphans(_)
            | Report::Joined(_)
            | Report::Reserved { .. }
            | Report::Saved(_)
            | Report::Left(_)
            | Report::Counted { .. }
            | Report::Finished
            | Report::Reopened
            | Report::TakenOver(_)
            | Report::Gone => {}
        }
        self.settle(around, before, "published");
    }

    pub(super) fn stream_failed(&mut self, around: &mut Around, kind: EffectKind, failure: &Failure) {
        around.say_failing(kind, failure);
        let is_refused = failure.kind == FailureKind::Rejected;
        if kind == EffectKind::PublishSegments && is_refused {
            // They are stored, which is what counts; what the stream refuses it will refuse again.
            around.counters.unpublished += self.publishing as u64;
            self.drop_published(around);
        } else {
            self.publishing = 0;
            self.stream.failed(around.now, &around.settings, self.number);
        }
    }

    /// Queues a stored segment for the stream; `false` where nothing is published.
    pub(super) fn queue_publication(&mut self, around: &Around, segment: &StoredSegment, index: u64) -> bool {
        match around.stream {
            StreamState::Absent => false,
            StreamState::Away | StreamState::Available => {
                let replaced_by = (index != segment.index).then_some(segment.write);
                let message_id = segment_message_id(&self.ids.session_id, index, replaced_by).into();
                let segment = StoredSegment { index, ..segment.clone() };
                self.publications.push_back(PublishedSegment { segment, message_id });
                true
            }
        }
    }

    /// Publishes what there is to publish: segments first, and the end after them.
    pub(super) fn publish(&mut self, around: &mut Around) {
        if !self.stream.is_free() || !self.can_publish(around) {
            return;
        }
        let owner = Owner::Stream(self.number);
        if !self.publications.is_empty() {
            let most = around.settings.max_batch_segments;
            let segments: Vec<_> = self.publications.iter().take(most).cloned().collect();
            self.publishing = segments.len();
            let (session, segments) = (self.ids.clone(), Arc::new(segments));
            around.ask(&mut self.stream, owner, |_| Effect::PublishSegments { session, segments });
        } else if let Phase::Publishing(end) = &self.phase {
            let ended = SessionEnded { session: self.ids.clone(), published_segments: end.segments, reprocess: 0 };
            let message_id = end_message_id(&self.key, end.generation).into();
            self.publishing_end = Some(end.generation);
            around.ask(&mut self.stream, owner, |_| Effect::PublishEnd { ended, message_id });
        }
    }

    pub(super) fn can_publish(&self, around: &Around) -> bool {
        around.stream == StreamState::Available
    }

    pub(super) fn finished(&mut self, around: &mut Around) {
        if let Phase::Finishing(End { generation, segments, .. }, published) = &self.phase {
            let stream_sequence = published.as_ref().map(|published| published.stream_sequence);
            around.counters.ended += 1;
            around.notice(Notice::Ended {
                key: self.key.clone(),
                generation: *generation,
                segments: *segments,
                stream_sequence,
            });
        }
        self.membership = None;
        self.phase = Phase::Serving;
    }

    /// The end is in the stream: the one that is being published, unless the session was opened again meanwhile.
    fn end_published(&mut self, stream_sequence: u64) {
        if let Phase::Publishing(end) = self.phase
            && self.publishing_end == Some(end.generation)
        {
            let message_id = end_message_id(&self.key, end.generation).into();
            self.phase = Phase::Finishing(end, Some(PublishedEnd { message_id, stream_sequence }));
        }
    }

    fn drop_published(&mut self, around: &mut Around) {
        let published: Vec<_> = self.publications.drain(..self.publishing.min(self.publications.len())).collect();
        self.publishing = 0;
        self.release(around, published.iter().map(|published| cost(&published.segment)).sum());
    }
}
