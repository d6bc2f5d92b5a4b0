//! Faults put in on purpose, for the simulator to find. No production build has them. Most faults are planted from outside:
//! by other settings, inputs or outputs. These are the rest.

/// A fault of the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// The summary step panics on a segment whose text is [`Bug::PANIC`].
    SummaryPanics,
    /// The retry timeout ends also while nothing succeeds for anybody.
    GivesUpInOutages,
    /// A success is evidence for every kind of effect of its server.
    AnySuccessIsEvidence,
}

/// The fault of a core, where it has one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Planted(pub(crate) Option<Bug>);

impl Planted {
    /// Whether it has this fault: never, in a build without the feature `planted-bugs`.
    pub(crate) fn has_bug(self, bug: Bug) -> bool {
        cfg!(feature = "planted-bugs") && self.0 == Some(bug)
    }
}

impl Bug {
    /// The text on which [`Bug::SummaryPanics`] panics.
    pub const PANIC: &'static str = "the summary step panics on this";
}
