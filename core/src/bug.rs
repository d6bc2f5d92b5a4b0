//! Faults put in on purpose, for the simulator to find. No production build has them; with the feature `planted-bugs` on
//! and no bug chosen, nothing changes.

use std::fmt;

use crate::ids::{Key, Session};

/// A fault of the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// No heartbeat ever goes out.
    NoHeartbeat,
    /// A job that fails is never asked about again, while its heartbeats go on.
    HeartbeatsAfterFailure,
    /// What fails is given back at once, without a delay.
    BareNak,
    /// Whether a summary is complete is judged by the first count.
    CompleteByFirstCount,
    /// The first count is taken for the last, without a quiet period.
    NoSettling,
    /// Separators inside ids are not escaped in the key.
    UnescapedKey,
    /// A report that never comes is waited for without end.
    ReportsAwaitedForEver,
    /// The summary step panics on a segment whose text is [`Bug::PANIC`].
    SummaryPanics,
    /// A job that fails for good is terminated without a dead letter.
    NoDeadLetter,
    /// A message that used up its deliveries is left alone.
    ExhaustedIgnored,
    /// A draining processor gives every job back with a nak, also one of a later delivery.
    DrainBurnsAttempts,
    /// A summary that was announced is announced again.
    MarkIgnored,
    /// The retry timeout ends also while a server serves nobody.
    GivesUpInOutages,
}

impl Bug {
    /// The text on which [`Bug::SummaryPanics`] panics.
    pub const PANIC: &'static str = "the summary step panics on this";
}

impl Key {
    /// The key of [`Bug::UnescapedKey`].
    pub(crate) fn unescaped(session: &Session) -> Self {
        Self::verbatim(format_args!("{}:{}", session.conversation_id, session.session_id))
    }

    fn verbatim(text: fmt::Arguments<'_>) -> Self {
        serde_json::from_value(serde_json::Value::String(text.to_string())).expect("a key is a text")
    }
}
