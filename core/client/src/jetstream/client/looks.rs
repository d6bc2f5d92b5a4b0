//! What a look at the consumer shows, and the search for messages that no client can be given.

use std::time::Duration;

use transcript_core::{ConsumerSettings, WallTime};

use super::{JetStream, TaskId, Work};
use crate::jetstream::{
    Note, Output,
    consumer::{Answer, Consumer},
    publication::{Content, Publication},
    raw::{RawMessage, ReadError},
    search::Found,
};

/// How soon a consumer is looked at again that is missing or cannot be looked at.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl JetStream {
    pub(super) fn looked(&mut self, answer: Answer) {
        self.look_at = self.now.after(self.settings.consumer_every);
        match answer {
            Answer::Consumer(consumer) => {
                self.knows_deliveries(consumer.delivered);
                if self.search.is_wanted() {
                    self.begin_search(&consumer);
                }
                let Consumer { max_batch, max_bytes, max_expires, .. } = *consumer;
                self.pulls.bound(&self.settings, max_batch, max_bytes, max_expires);
                if !consumer.differences.is_empty() {
                    let problem = format!("the consumer is not as it must be: {}", consumer.differences.join("; "));
                    self.outputs.push_back(Output::SetUp { problem });
                }
                let settings = ConsumerSettings {
                    ack_wait: consumer.ack_wait,
                    max_deliver: consumer.max_deliver.unwrap_or(u64::MAX),
                };
                if self.consumer.replace(settings) != Some(settings) {
                    self.tell(transcript_core::Input::Consumer(settings));
                }
            }
            Answer::Missing => {
                self.assume_deliveries_known();
                self.look_at = self.now.after(LOOK_AGAIN);
                let problem = "the consumer or its stream is missing".to_owned();
                self.outputs.push_back(Output::SetUp { problem });
                self.end_search();
            }
            Answer::Failed(why) => {
                self.assume_deliveries_known();
                self.look_at = self.now.after(LOOK_AGAIN);
                self.note(Note::ConsumerUnknown { why });
                if self.search.is_wanted() && !self.search.goes_on_without_consumer() {
                    self.note(Note::SearchGivenUp);
                }
            }
        }
    }

    pub(super) fn begin_search(&mut self, consumer: &Consumer) {
        let parts = self.search.begin(consumer.ack_floor, consumer.delivered);
        if parts == 0 {
            self.note(Note::SearchEnded);
        }
        for part in 0..parts {
            self.begin(TaskId::Search(part), Work::Search { part });
        }
    }

    pub(super) fn searched(&mut self, part: usize, answer: Result<RawMessage, ReadError>, at: WallTime) {
        let was_on = self.search.is_on();
        match self.search.answered(part, answer) {
            Found::More | Found::Again => self.goes_on(TaskId::Search(part), Work::Search { part }),
            Found::Undeliverable(message) => {
                let stream_sequence = message.sequence;
                self.note(Note::Undeliverable { stream_sequence });
                let publication = Publication::new(Content::Undeliverable { message, at });
                self.begin(TaskId::Undeliverable(stream_sequence), Work::Keep { publication });
                self.goes_on(TaskId::Search(part), Work::Search { part });
            }
            Found::End => {}
            Found::GivenUp => return self.note(Note::SearchGivenUp),
        }
        if was_on && !self.search.is_on() {
            self.note(Note::SearchEnded);
        }
    }

    pub(super) fn end_search(&mut self) {
        if self.search.is_on() {
            self.search.stop();
            self.note(Note::SearchEnded);
        }
    }
}
