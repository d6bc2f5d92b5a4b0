//! What becomes of a call once its summary is stored.

use super::{Around, Job, News, Next, Outcome, Phase, Question, Settling};
use crate::{
    contract::Announcement,
    event::SessionEnded,
    input::{Stored, TranscriptVersion},
    output::{Acknowledgement, Timer},
    settings::Settings,
};

impl Job {
    /// A summary is stored: announces it, unless that was done before. What was read too long ago is read again: another
    /// processor may have announced it since, and the stream may have forgotten that.
    pub(super) fn stored(&mut self, call: SessionEnded, news: News, around: Around<'_>) -> (Phase, Next) {
        let Around { now, settings, .. } = around;
        // Another job has stored a summary of more, which no operator asked for: the request is done on top of it.
        if news.stored.reprocess < call.reprocess {
            return begins_anew(call);
        }
        let Some(announcement) = self.announcement(&call, news.stored, settings) else {
            return self.done_with(news);
        };
        if now.since(news.read_at) > settings.mark_is_fresh_for() {
            return (Phase::Checking { call, question: Question::News { loaded_at: news.loaded_at } }, Next::Ask);
        }
        (Phase::Publishing { call, announcement, news }, Next::Ask)
    }

    /// What is to be announced of a stored summary. A job without a delivery only announces what replaced an announced
    /// summary; the first announcement is the business of the job that has the delivery.
    fn announcement(&self, call: &SessionEnded, stored: Stored, settings: &Settings) -> Option<Announcement> {
        match stored.notified {
            None if self.reply.is_none() => None,
            None if settings.announce_once => Some(Announcement::ProcessedOnce),
            None => Some(Announcement::Processed),
            // What an operator asked for is announced by every processor.
            Some(_) if settings.revise || call.reprocess > 0 => {
                stored.unannounced_revision().map(|revision| Announcement::Revised { revision })
            }
            Some(_) => None,
        }
    }

    pub(super) fn checked(
        &mut self,
        call: SessionEnded,
        question: Question,
        stored: Option<Stored>,
        around: Around<'_>,
    ) -> (Phase, Next) {
        let read_at = self.asked_at;
        match (question, stored) {
            (Question::Covered, Some(stored))
                if stored.notified.is_some()
                    && stored.segments >= call.published_segments
                    && stored.reprocess >= call.reprocess
                    && self.announcement(&call, stored, around.settings).is_none() =>
            {
                self.done_with(News { stored, read_at, loaded_at: None })
            }
            (Question::Covered, _) => self.settle(call),
            (Question::News { loaded_at }, Some(stored)) if stored.reprocess >= call.reprocess => {
                let news = News { stored, read_at, loaded_at };
                match self.announcement(&call, stored, around.settings) {
                    Some(announcement) => (Phase::Publishing { call, announcement, news }, Next::Ask),
                    None => self.done_with(news),
                }
            }
            // Somebody has removed or replaced it.
            (Question::News { .. }, _) => begins_anew(call),
            (Question::Announced { .. }, Some(stored)) if is_done(stored, &call) => (Phase::Over, Next::End),
            (Question::Announced { dead_letter, until }, _) => {
                let Around { now, settings, .. } = around;
                let until = until.unwrap_or_else(|| now.after(settings.others_finish_within()));
                if now >= until {
                    return (Phase::DeadLettering { dead_letter }, Next::Ask);
                }
                let question = Question::Announced { dead_letter, until: Some(until) };
                let again = until.min(now.after(settings.retry_cap));
                (Phase::Checking { call, question }, Next::Wait(Timer::Settle, again))
            }
        }
    }

    /// The announcement is in the stream, and the summary has its mark. What was announced may be less than what is stored:
    /// an earlier job announced it, and segments came or were changed before the mark. Then the difference is a revision.
    pub(super) fn announced(
        &mut self,
        call: SessionEnded,
        announcement: Announcement,
        news: News,
        told: TranscriptVersion,
        around: Around<'_>,
    ) -> (Phase, Next) {
        if told >= news.stored.version() || !around.settings.revise {
            return self.done_with(news);
        }
        let announced = match announcement {
            Announcement::Processed | Announcement::ProcessedOnce => 1,
            Announcement::Revised { revision } => revision,
        };
        let revision = announced.saturating_add(1);
        let news = News { stored: Stored { revision, ..news.stored }, ..news };
        (Phase::Publishing { call, announcement: Announcement::Revised { revision }, news }, Next::Ask)
    }

    pub(super) fn done_with(&mut self, news: News) -> (Phase, Next) {
        let Stored { segments, complete, notified, .. } = news.stored;
        // A job without a delivery leaves the first announcement to others.
        if self.reply.is_some() || notified.is_some() {
            self.outcome = Some(Outcome { segments, complete, loaded_at: news.loaded_at });
        }
        self.finished(Acknowledgement::Ack)
    }
}

/// What is stored is not what this job stored: it counts, loads and stores once more.
fn begins_anew(call: SessionEnded) -> (Phase, Next) {
    (Phase::Counting { call, settling: Settling::default() }, Next::Ask)
}

/// Whether nothing is owed for the end of a call of which this is stored. An end that announces more than a complete summary
/// has is not done, nor is a request to process the call again of which the summary or its revision is missing.
fn is_done(stored: Stored, call: &SessionEnded) -> bool {
    let is_asked_for = call.reprocess > 0;
    let is_answered = stored.reprocess >= call.reprocess && stored.unannounced_revision().is_none();
    stored.notified.is_some()
        && (!stored.complete || stored.segments >= call.published_segments)
        && (!is_asked_for || is_answered)
}
