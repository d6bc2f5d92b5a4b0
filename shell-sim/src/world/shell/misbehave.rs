//! What the planted bugs of the order of effects do before their time.

use std::sync::Arc;

use transcript_client::jetstream;
use transcript_core::Effect;

use super::Driver;
use crate::bug::Bug;

impl Driver {
    /// Does it before the effect is performed.
    pub(super) fn misbehave(&self, effect: &Effect) {
        let send = |subject: Arc<str>, headers, payload: Vec<u8>| {
            self.shared.nats.send(jetstream::Frame { subject, reply: None, headers, payload });
        };
        let ack = |key: &transcript_core::ids::Key| {
            if let Some(reply) = self.replies.get(key) {
                send(Arc::clone(reply), vec![], b"+ACK".to_vec());
            }
        };
        match (self.shared.world.plan.bug, effect) {
            (Some(Bug::AckBeforePublish), Effect::Publish { key, .. }) => ack(key),
            (Some(Bug::AckBeforeSave), Effect::Save { summary }) => ack(&summary.key),
            (Some(Bug::PublishBeforeSave), Effect::Save { summary }) => {
                let notification = transcript_core::contract::Notification {
                    session: summary.session.clone(),
                    segments: summary.segments,
                    complete: summary.complete,
                    edits: 0,
                    revision: None,
                };
                let announcement = transcript_core::contract::Announcement::Processed;
                let headers = vec![("Nats-Msg-Id".into(), announcement.message_id(&summary.key))];
                let payload = serde_json::to_vec(&notification).expect("a notification is JSON");
                send(announcement.subject(&summary.key).into(), headers, payload);
            }
            (Some(_) | None, _) => {}
        }
    }
}
