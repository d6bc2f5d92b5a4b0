//! Faults put into the product on purpose. Each must be found, or the simulator is worth nothing.
//!
//! The names are always there, so that plans can be read; the code behind them is compiled only with the feature
//! `planted-bugs`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Bug {
    /// Summaries are inserted, not upserted: the first version's fault.
    InsertInsteadOfUpsert,
    /// The notification has no `Nats-Msg-Id`.
    NoMessageId,
    /// The stream was given a window of two minutes.
    WindowOfTwoMinutes,
    /// The acknowledgement goes out before the notification.
    AckBeforePublish,
    /// The notification goes out before the summary.
    PublishBeforeSave,
    /// The acknowledgement goes out before the summary.
    AckBeforeSave,
    /// No heartbeat ever goes out.
    NoHeartbeat,
    /// A job that failed is never asked about again, while its heartbeats go on.
    HeartbeatsAfterFailure,
    /// What fails is given back at once, without a delay.
    BareNak,
    /// Whether a summary is complete is judged by the first count.
    CompleteByFirstCount,
    /// The first count is taken for the last, without a quiet period.
    NoSettling,
    /// A save replaces whatever is stored.
    SaveGoesBackwards,
    /// Separators inside ids are not escaped in the key.
    UnescapedKey,
    /// The client pulls ahead, and what it holds has no heartbeat.
    ClientBuffer,
    /// A report that never comes is waited for without end.
    ReportsAwaitedForEver,
    /// Pages are read from a replica that lags.
    StalePage,
    /// A job that fails for good is terminated without a dead letter.
    NoDeadLetter,
    /// A message that used up its deliveries is left alone.
    ExhaustedIgnored,
    /// A draining processor gives every job back with a nak.
    DrainBurnsAttempts,
    /// A summary that was announced is announced again.
    MarkIgnored,
    /// The retry timeout ends also while a server serves nobody.
    GivesUpInOutages,
    /// A pull request of whose end the server says nothing is kept for ever.
    SilentPullKept,
    /// Pull requests are kept when the connection is made anew.
    PullsKeptOverReconnect,
    /// Any duplicate counts as the notification.
    DuplicateCountsAsPublished,
    /// A process that stands still goes on pulling.
    StandstillPulls,
    /// One write that is refused fails every other one of its command.
    RefusedMemberFailsBatch,
    /// Writes that are answered with a `writeConcernError` count as done.
    WriteConcernErrorIgnored,
    /// A success of one kind of effect is evidence for every other kind of its server.
    AnySuccessIsEvidence,
    /// A notification is published however long ago its summary was not announced.
    MarkNotReadAgain,
    /// What the notification in the stream does not tell is not announced.
    DifferenceNotAnnounced,
    /// A dead letter that could not be stored counts as stored.
    RefusedDeadLetterCounts,
    /// Ends that wait for another end of their call take the room of other calls.
    RepeatsTakeRoom,
    /// What the consumer is changed to while a process runs is not learnt.
    ConsumerChangeIgnored,
    /// Whoever hears that a message used up its deliveries makes a dead letter of it, also while a job has it in hand.
    AdvisoryBelieved,
    /// A draining processor does not wait for the end of its deliveries before it gives back.
    GivesBackTooSoon,
    /// A request is sent however long ago it was asked for.
    LateRequestSent,
    /// A call is ordered by start although a start is not on the session's clock.
    OneMarkIsEnough,
    /// A call is read by index although all its starts are on the session's clock.
    MarksNotRead,
    /// Only a larger count makes a summary stale, and no change of a segment.
    EditNotNoticed,
    /// A request to process a call again is taken for another end of the call.
    AskedAgainIgnored,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 40] = [
        Self::InsertInsteadOfUpsert,
        Self::NoMessageId,
        Self::WindowOfTwoMinutes,
        Self::AckBeforePublish,
        Self::PublishBeforeSave,
        Self::AckBeforeSave,
        Self::NoHeartbeat,
        Self::HeartbeatsAfterFailure,
        Self::BareNak,
        Self::CompleteByFirstCount,
        Self::NoSettling,
        Self::SaveGoesBackwards,
        Self::UnescapedKey,
        Self::ClientBuffer,
        Self::ReportsAwaitedForEver,
        Self::StalePage,
        Self::NoDeadLetter,
        Self::ExhaustedIgnored,
        Self::DrainBurnsAttempts,
        Self::MarkIgnored,
        Self::GivesUpInOutages,
        Self::RefusedMemberFailsBatch,
        Self::WriteConcernErrorIgnored,
        Self::SilentPullKept,
        Self::PullsKeptOverReconnect,
        Self::DuplicateCountsAsPublished,
        Self::StandstillPulls,
        Self::AnySuccessIsEvidence,
        Self::MarkNotReadAgain,
        Self::DifferenceNotAnnounced,
        Self::RefusedDeadLetterCounts,
        Self::RepeatsTakeRoom,
        Self::ConsumerChangeIgnored,
        Self::AdvisoryBelieved,
        Self::GivesBackTooSoon,
        Self::LateRequestSent,
        Self::OneMarkIsEnough,
        Self::MarksNotRead,
        Self::EditNotNoticed,
        Self::AskedAgainIgnored,
    ];

    /// Whether bugs are compiled in.
    #[must_use]
    pub const fn are_compiled() -> bool {
        cfg!(feature = "planted-bugs")
    }

    /// The core's part of the bug, where it has one.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn core(self) -> Option<transcript_core::Bug> {
        if matches!(self, Self::BareNak | Self::GivesUpInOutages) {
            Some(transcript_core::Bug::GivesUpInOutages)
        } else {
            (self == Self::AnySuccessIsEvidence).then_some(transcript_core::Bug::AnySuccessIsEvidence)
        }
    }
}

impl fmt::Display for Bug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InsertInsteadOfUpsert => "insert instead of upsert",
            Self::NoMessageId => "no message id",
            Self::WindowOfTwoMinutes => "window of two minutes",
            Self::AckBeforePublish => "ack before publish",
            Self::PublishBeforeSave => "publish before save",
            Self::AckBeforeSave => "ack before save",
            Self::NoHeartbeat => "no heartbeat",
            Self::HeartbeatsAfterFailure => "heartbeats after a failure for ever",
            Self::BareNak => "bare nak",
            Self::CompleteByFirstCount => "complete by the first count",
            Self::NoSettling => "no settling",
            Self::SaveGoesBackwards => "save goes backwards",
            Self::UnescapedKey => "unescaped key",
            Self::ClientBuffer => "client buffer without heartbeats",
            Self::ReportsAwaitedForEver => "lost report never asked again",
            Self::StalePage => "stale page",
            Self::NoDeadLetter => "no dead letter",
            Self::ExhaustedIgnored => "used-up deliveries ignored",
            Self::DrainBurnsAttempts => "a drain burns attempts",
            Self::MarkIgnored => "mark ignored",
            Self::GivesUpInOutages => "gives up in outages",
            Self::RefusedMemberFailsBatch => "one refused member fails its batch",
            Self::WriteConcernErrorIgnored => "writeConcernError counts as success",
            Self::SilentPullKept => "silent pull kept",
            Self::PullsKeptOverReconnect => "pulls kept over a reconnect",
            Self::DuplicateCountsAsPublished => "any duplicate counts as published",
            Self::StandstillPulls => "pulls while it stands still",
            Self::AnySuccessIsEvidence => "any success is evidence",
            Self::MarkNotReadAgain => "mark not read again",
            Self::DifferenceNotAnnounced => "difference not announced",
            Self::RefusedDeadLetterCounts => "failed dead letter counts as stored",
            Self::RepeatsTakeRoom => "repeated ends take room",
            Self::ConsumerChangeIgnored => "consumer change ignored",
            Self::AdvisoryBelieved => "advisory believed",
            Self::GivesBackTooSoon => "gives back too soon",
            Self::LateRequestSent => "late request sent",
            Self::OneMarkIsEnough => "one mark is enough",
            Self::MarksNotRead => "marks not read",
            Self::EditNotNoticed => "edit not noticed",
            Self::AskedAgainIgnored => "asked again ignored",
        })
    }
}
