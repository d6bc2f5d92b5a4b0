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
