//! What operators are told, at a rate that they can read.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use transcript_core::{Failure, Time};

use super::command::CommandKind;

/// How often a cause that lasts is told.
const REPEAT_EVERY: Duration = Duration::from_secs(60);
/// The most causes that are kept in mind.
const MOST: usize = 64;

/// Something to log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Commands of a kind, or members of them, fail.
    Failing {
        /// What is not done.
        what: CommandKind,
        /// Why.
        failure: Failure,
        /// How often that happened since it was told last.
        unsaid: u64,
    },
    /// What failed as a whole is done again.
    WorksAgain {
        /// What is done.
        what: CommandKind,
    },
    /// Texts or labels of a call are not valid UTF-8, or no text at all. The summary is made of what can be read.
    Damaged {
        /// The call.
        session_id: Arc<str>,
        /// How many segments.
        segments: u64,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failing { what, failure, unsaid } => {
                write!(f, "MongoDB cannot be used to {what}: {failure}")?;
                if *unsaid > 0 { write!(f, " ({unsaid} more since this was said last)") } else { Ok(()) }
            }
            Self::WorksAgain { what } => write!(f, "MongoDB can be used again to {what}"),
            Self::Damaged { session_id, segments } => write!(
                f,
                "{segments} segment(s) of session {session_id:?} have a text or a label that is not valid UTF-8, or no text"
            ),
        }
    }
}

/// Tells each cause once, and again at a low rate while it lasts.
#[derive(Debug, Default)]
pub(super) struct Notices {
    causes: BTreeMap<Cause, Said>,
    /// The kinds of commands of which a failure as a whole was told last.
    failing: BTreeSet<CommandKind>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    Failure(CommandKind, String),
    Damaged(Arc<str>),
}

#[derive(Debug, Clone, Copy)]
struct Said {
    at: Time,
    unsaid: u64,
}

impl Notices {
    /// A command failed as a whole.
    pub(super) fn failed(&mut self, now: Time, what: CommandKind, failure: &Failure) -> Option<Notice> {
        let notice = self.member_failed(now, what, failure)?;
        self.failing.insert(what);
        Some(notice)
    }

    /// A member of a command failed.
    pub(super) fn member_failed(&mut self, now: Time, what: CommandKind, failure: &Failure) -> Option<Notice> {
        let unsaid = self.due(now, Cause::Failure(what, failure.to_string()))?;
        Some(Notice::Failing { what, failure: failure.clone(), unsaid })
    }

    /// A command was carried out.
    pub(super) fn worked(&mut self, what: CommandKind) -> Option<Notice> {
        self.failing.remove(&what).then_some(Notice::WorksAgain { what })
    }

    /// Segments of a call are damaged.
    pub(super) fn damaged(&mut self, now: Time, session_id: &Arc<str>, segments: u64) -> Option<Notice> {
        if segments == 0 {
            return None;
        }
        self.due(now, Cause::Damaged(Arc::clone(session_id)))?;
        Some(Notice::Damaged { session_id: Arc::clone(session_id), segments })
    }

    /// Whether a cause is to be told now, and how often it was not.
    fn due(&mut self, now: Time, cause: Cause) -> Option<u64> {
        if let Some(said) = self.causes.get_mut(&cause) {
            if now.since(said.at) < REPEAT_EVERY {
                said.unsaid += 1;
                return None;
            }
            let unsaid = std::mem::take(&mut said.unsaid);
            said.at = now;
            return Some(unsaid);
        }
        if self.causes.len() >= MOST {
            let oldest = self.causes.iter().min_by_key(|(_, said)| said.at).map(|(cause, _)| cause.clone());
            oldest.and_then(|oldest| self.causes.remove(&oldest));
        }
        self.causes.insert(cause, Said { at: now, unsaid: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use transcript_core::FailureKind;

    use super::*;

    #[test]
    fn a_cause_that_lasts_is_told_once_a_minute() {
        let mut notices = Notices::default();
        let failure = Failure { kind: FailureKind::Busy, detail: "it is a view".to_owned() };
        let told: Vec<u64> = (0..150)
            .filter_map(|second| {
                let now = Time::ZERO.after(Duration::from_secs(second));
                let notice = notices.failed(now, CommandKind::Save, &failure)?;
                assert_eq!(notices.worked(CommandKind::Save), Some(Notice::WorksAgain { what: CommandKind::Save }));
                assert_eq!(notices.worked(CommandKind::Save), None, "told once");
                match notice {
                    Notice::Failing { unsaid, .. } => Some(unsaid),
                    Notice::WorksAgain { .. } | Notice::Damaged { .. } => None,
                }
            })
            .collect();
        assert_eq!(told, [0, 59, 59]);
    }

    #[test]
    fn more_causes_than_are_kept_in_mind_take_no_more_room() {
        let mut notices = Notices::default();
        for number in 0..1_000_u64 {
            let session: Arc<str> = number.to_string().into();
            assert!(notices.damaged(Time::from_micros(number), &session, 1).is_some());
        }
        assert_eq!(notices.causes.len(), MOST);
    }
}
