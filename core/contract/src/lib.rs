//! The data contract: the names of streams, subjects, headers and collections, the ids of calls, and the messages.
//!
//! The processor, its clients and every application that publishes to it use it. It depends on serde alone.

pub mod event;
pub mod ids;
pub mod trace_context;
mod wall_time;

use serde::{Deserialize, Serialize, Serializer};

pub use self::wall_time::WallTime;
use self::{
    event::SessionEnded,
    ids::{Key, Session},
};

/// The stream that holds the transcripts' events.
pub const TRANSCRIPTION_STREAM: &str = "TRANSCRIPTION";
/// The subjects of [`TRANSCRIPTION_STREAM`].
pub const TRANSCRIPTION_SUBJECTS: [&str; 2] = ["transcription.>", "transcript.>"];
/// The stream that holds the recordings' events.
pub const RECORDING_STREAM: &str = "RECORDING";
/// The subjects of [`RECORDING_STREAM`].
pub const RECORDING_SUBJECTS: [&str; 1] = ["recording.>"];
/// The durable consumer that all processors share.
pub const CONSUMER: &str = "transcript-processor";
/// A finished segment of a running call.
pub const SEGMENT_SUBJECT: &str = "transcription.segment";
/// The end of a call: what the processor waits for.
pub const SESSION_ENDED_SUBJECT: &str = "transcription.session-ended";
/// The notification: a summary is stored.
pub const PROCESSED_SUBJECT: &str = "transcript.processed";
/// A summary of more segments has replaced one that was announced.
pub const REVISED_SUBJECT: &str = "transcript.revised";
/// The end of a call that could not be processed, kept with the reason.
pub const DEAD_LETTER_SUBJECT: &str = "transcription.dead-letter";
/// The record that somebody discarded a dead letter: the call of its payload is not to be processed any more.
pub const DISCARDED_SUBJECT: &str = "transcription.discarded";
/// On an end that was published again: the place in the stream of the message that it was made from.
pub const REDRIVE_OF_HEADER: &str = "Transcript-Redrive-Of";
/// On a dead letter, and on the record of a discarded one: the place in the stream of the end that it is about.
pub const STREAM_SEQUENCE_HEADER: &str = "Transcript-Stream-Sequence";
/// On a dead letter: how often the end was handed over.
pub const ATTEMPTS_HEADER: &str = "Transcript-Attempts";
/// On a dead letter: why it is one.
pub const REASON_HEADER: &str = "Transcript-Reason";
/// On a dead letter: when it was given up, in milliseconds since the Unix epoch.
pub const TIME_HEADER: &str = "Transcript-Time";
/// On a dead letter: the processor that gave it up.
pub const PROCESSOR_HEADER: &str = "Transcript-Processor";
/// The most bytes that a dead letter has of a message that can never be processed. The stream keeps the message itself for
/// as long as it keeps any; the dead letters of a flood of such messages must not take as much again.
pub const DEAD_LETTER_BYTES: usize = 16 << 10;
/// Where every process is asked how it stands. The stream's subjects do not cover it: nothing of this is stored.
pub const PROCESSES_SUBJECT: &str = "transcript-processes";
/// The collection of segments.
pub const SEGMENTS_COLLECTION: &str = "transcriptsegments";
/// The collection of summaries.
pub const SUMMARIES_COLLECTION: &str = "transcriptsummaries";

/// The notification: the payload of `transcript.processed`. On the wire it begins with the session's `key`, the `_id` of the
/// stored summary, so that nobody who reads it needs to escape ids.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Notification {
    /// The session whose summary is stored.
    #[serde(flatten)]
    pub session: Session,
    /// How many segments the stored summary counts.
    pub segments: u64,
    /// Whether those are at least as many as were announced.
    pub complete: bool,
    /// How often those segments were changed, all together; absent where none was.
    #[serde(default)]
    pub edits: u64,
    /// Which summary of the session this is, counted from 1; only `transcript.revised` says it.
    #[serde(default)]
    pub revision: Option<u64>,
}

impl Serialize for Notification {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct WithKey<'a> {
            key: Key,
            #[serde(flatten)]
            session: &'a Session,
            segments: u64,
            complete: bool,
            #[serde(skip_serializing_if = "is_zero")]
            edits: u64,
            #[serde(skip_serializing_if = "Option::is_none")]
            revision: Option<u64>,
        }
        let Self { session, segments, complete, edits, revision } = self;
        let (key, segments, complete) = (session.key(), *segments, *complete);
        WithKey { key, session, segments, complete, edits: *edits, revision: *revision }.serialize(serializer)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What is announced, and how it is known again.
///
/// Message ids are the stream's, whatever the subject. The contract lets one clash happen: a segment's id, `<session>:<index>`,
/// is also the key of a session `<index>` in a conversation of that session's name. Then [another id](free_message_id) is
/// used. Apart from that, no two ids of different meaning are equal: a key has exactly one colon and no `%` that is not an escape, and a
/// segment's id ends in a colon and digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Announcement {
    /// A summary, on [`PROCESSED_SUBJECT`]: known again within the stream's duplicate window.
    Processed,
    /// A summary, on a subject of its own below [`PROCESSED_SUBJECT`], which the stream takes once for as long as it keeps
    /// the message.
    ProcessedOnce,
    /// A summary that replaced an announced one, on [`REVISED_SUBJECT`]: known again within the duplicate window.
    Revised {
        /// Which summary of the session it is.
        revision: u64,
    },
}

impl Announcement {
    /// Where it is published.
    #[must_use]
    pub fn subject(self, key: &Key) -> String {
        match self {
            Self::Processed => PROCESSED_SUBJECT.to_owned(),
            Self::ProcessedOnce => format!("{PROCESSED_SUBJECT}.{}", key.subject_token()),
            Self::Revised { .. } => REVISED_SUBJECT.to_owned(),
        }
    }

    /// `Nats-Msg-Id`.
    #[must_use]
    pub fn message_id(self, key: &Key) -> String {
        match self {
            Self::Processed | Self::ProcessedOnce => key.as_str().to_owned(),
            Self::Revised { revision } => format!("{key}%r{revision}"),
        }
    }
}

/// The `Nats-Msg-Id` of a message of which so many ids belong to other messages: anybody can publish under any id.
#[must_use]
pub fn free_message_id(id: String, taken: u32) -> String {
    match taken {
        0 => id,
        1 => format!("{id}%n"),
        more => format!("{id}%n{more}"),
    }
}

/// The end of a call that was given up, for people to look at: the payload of [`DEAD_LETTER_SUBJECT`] is the original
/// message, and its headers say the rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetter {
    /// The end's place in the stream.
    pub stream_sequence: u64,
    /// How often it was handed over.
    pub attempts: u64,
    /// Why it was given up; never a word of the call.
    pub reason: String,
    /// When.
    pub at: WallTime,
    /// What it said, where that is known: the stream may no longer hold it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<SessionEnded>,
}

impl DeadLetter {
    /// `Nats-Msg-Id`: one dead letter for each message of the stream.
    #[must_use]
    pub fn message_id(&self) -> String {
        format!("dead-letter-{}", self.stream_sequence)
    }
}

/// `Nats-Msg-Id` of the record that a dead letter was discarded.
#[must_use]
pub fn discard_id(stream_sequence: u64) -> String {
    format!("discard-{stream_sequence}")
}

/// `Nats-Msg-Id` of an end that is published again: one for each message that it can be made from.
#[must_use]
pub fn redrive_id(stream_sequence: u64) -> String {
    format!("redrive-{stream_sequence}")
}

/// `Nats-Msg-Id` of an end that asks for a call to be processed again, for the `number`th time: asking twice for the same
/// time is asking once.
#[must_use]
pub fn reprocess_id(key: &Key, number: u64) -> String {
    format!("{key}%p{number}")
}

/// Where the processes of this name are asked, and told what to do.
#[must_use]
pub fn process_subject(name: &str) -> String {
    format!("{PROCESSES_SUBJECT}.{}", ids::subject_token(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_different_meaning_differ() {
        let key = Session::new("c", "s").expect("ids are valid").key();
        assert_eq!(Announcement::Processed.message_id(&key), "c:s");
        assert_eq!(Announcement::Revised { revision: 2 }.message_id(&key), "c:s%r2");
        let other = Session::new("c", "s%r2").expect("ids are valid").key();
        assert_ne!(Announcement::Processed.message_id(&other), Announcement::Revised { revision: 2 }.message_id(&key));
        let free = |taken| free_message_id(Announcement::Processed.message_id(&key), taken);
        assert_eq!([free(0), free(1), free(2)], ["c:s", "c:s%n", "c:s%n2"]);
        assert_eq!(redrive_id(7), "redrive-7");
        assert_eq!(process_subject("host-a.example 7"), "transcript-processes.host-a%2Eexample%207");
        assert_eq!(reprocess_id(&key, 2), "c:s%p2");
    }

    #[test]
    fn a_notification_names_its_key_and_is_read_without_it() {
        let session = Session::new("c:d", "s").expect("ids are valid");
        let notification = Notification { session, segments: 3, complete: false, edits: 0, revision: None };
        let written = serde_json::to_value(&notification).expect("it is JSON");
        let mut told = serde_json::json!({
            "key": "c%3Ad:s", "conversationId": "c:d", "sessionId": "s", "segments": 3, "complete": false
        });
        assert_eq!(written, told);
        told.as_object_mut().expect("an object").remove("key");
        assert_eq!(serde_json::from_value::<Notification>(told).expect("older ones have none"), notification);
    }

    #[test]
    fn the_subject_of_a_key_is_one_token() {
        for (conversation, session, token) in [
            ("c", "s-1_x", "c:s-1_x"),
            ("a.b", "*", "a%2Eb:%2A"),
            ("a:b", ">", "a%253Ab:%3E"),
            ("ä", "x y", "%C3%A4:x%20y"),
        ] {
            let key = Session::new(conversation, session).expect("ids are valid").key();
            let subject = Announcement::ProcessedOnce.subject(&key);
            assert_eq!(subject, format!("transcript.processed.{token}"));
        }
        let long = "\u{1}".repeat(256);
        let subject = Announcement::ProcessedOnce.subject(&Session::new(&long, &long).expect("ids are valid").key());
        assert!(subject.len() < 3000, "nats-server takes control lines of 4096 bytes: {}", subject.len());
    }
}
