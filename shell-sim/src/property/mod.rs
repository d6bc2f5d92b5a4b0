//! What must be true whatever happens: one object for each promise, its name a sentence.
//!
//! | property | says |
//! |---|---|
//! | `AckOnlyAfterSummaryAndNotification` | when an ack comes to the broker, the call's summary is stored and announced, or its end was published again |
//! | `OneNotificationPerKeyWithinTheWindow` | two notifications of a key are at least the promised window apart, unless the stream was purged between |
//! | `AMarkedSummaryIsNotAnnouncedAgain` | whatever its age: after a reset, a purge, an end published again |
//! | `AnnounceOnceKnowsNoTimeLimit` | on a subject of its own, a key is announced once for as long as the stream is not purged |
//! | `ANotificationTellsAStoredSummary` | a notification tells of a summary that is stored, with no more segments |
//! | `SummaryNeverGoesBack` | no save leaves an earlier version of the segments than was stored, or takes a mark away |
//! | `CompleteIsTrueOnlyWhenItIs` | `complete` is what the stored summary's own numbers say |
//! | `SummaryIsWhatItsSegmentsGive` | a saved summary is what the pages that its job loaded give |
//! | `SummaryIsInTheOrderOfTheCall` | a summary of all segments of a call is what they give by start, where all starts are on the session's clock, and by index otherwise |
//! | `WhatCameInTheQuietPeriodIsCounted` | a summary has every segment that was stored in the quiet period after the end and not lost since |
//! | `AMarkThatIsReportedIsStored` | a processor that is told that its mark is written finds it on the summary |
//! | `AMarkedSummaryStaysUntilItIsStale` | only one of more segments, or of changed ones, replaces it, as the next revision, and keeps its marks |
//! | `ARevisionIsAnnouncedOnce` | and only where that is asked for, and never before it is stored |
//! | `EveryStaleSummaryIsRevised` | where it is asked for, when the world has been whole for long enough |
//! | `WhatIsStoredIsAnnounced` | where revisions are asked for, nobody misses segments of an announced summary |
//! | `ADeadLetterHasACause` | a refused document, deliveries used up by faults, a redriven payload that is still malformed; neither rollouts nor outages |
//! | `ADeadLetterWaitsForACallInHand` | used-up deliveries make no dead letter before another process had time to announce the call |
//! | `ADrainGivesBackFirstDeliveriesOnly` | later ones it publishes again, so that a row of rollouts costs one attempt |
//! | `OneJobAMessage` | a message that comes again while a job is at work on it is taken over by that job |
//! | `EveryRedeliveryHasACause` | a healthy run is delivered once: every further delivery follows a fault that explains it |
//! | `NobodyGetsBackWhatItGaveBack` | what a draining processor gives back is not delivered to it again |
//! | `HeartbeatWhileAlive` | no message is longer than a third of the ack wait with a living process without a heartbeat |
//! | `OnlyTheImpossibleIsTerminated` | a term comes with a reason, for payloads that nobody can process and for dead letters |
//! | `EverySessionEndsOnceFaultsStop` | what was owed has arrived when the world has been whole for long enough, or is a dead letter; only what nobody could hear of is missing |
//! | `DeadlinesMove` | a wake-up that was served is not asked for again |
//! | `RepeatsDelayNoOtherCall` | while fewer calls are under way than there is room for, an end is delivered at once |
//! | `MemoryStaysWithinBounds` | no more jobs than asked for, and none left over at the end |
//! | `BytesInFlightStayWithinBounds` | the texts of summaries under way are bounded |

mod announced;
mod bounds;
mod dead_letters;
mod delivered;
mod revised;
mod summarised;

use transcript_core::{Time, ids::Key};

use crate::{ledger::Ledger, observation::Observation};

/// A promise that is checked as the run goes and at its end.
pub(crate) trait Property {
    /// Its name, a sentence.
    fn name(&self) -> &'static str;

    /// Looks at what happened, after the ledger has it; an error says how the promise is broken.
    fn saw(&mut self, now: Time, seen: &Observation<'_>, ledger: &Ledger) -> Result<(), String>;

    /// Whether it looks at processes that wait, which are seen more often than everything else together. Without this it is
    /// not told of them.
    fn looks_at_waits(&self) -> bool {
        false
    }

    /// Looks at the world when it has come to rest, or should have.
    fn at_end(&mut self, now: Time, ledger: &Ledger, end: &TheEnd) -> Result<(), String> {
        let _ = (now, ledger, end);
        Ok(())
    }
}

/// How a world stands at its end.
#[derive(Debug)]
pub(crate) struct TheEnd {
    /// Messages that the broker has yet to see the end of.
    pub(crate) unsettled: u64,
    /// The jobs of each processor in words; `None` where it is down.
    pub(crate) jobs: Vec<Option<String>>,
    /// Where summaries are to be revised, those that are not.
    pub(crate) stale: Vec<Key>,
}

/// All promises.
pub(crate) fn all() -> Vec<Box<dyn Property>> {
    vec![
        Box::new(announced::AckOnlyAfterSummaryAndNotification),
        Box::new(announced::OneNotificationPerKeyWithinTheWindow),
        Box::<announced::AMarkedSummaryIsNotAnnouncedAgain>::default(),
        Box::new(announced::AnnounceOnceKnowsNoTimeLimit),
        Box::new(announced::ANotificationTellsAStoredSummary),
        Box::<summarised::SummaryNeverGoesBack>::default(),
        Box::new(summarised::CompleteIsTrueOnlyWhenItIs),
        Box::<summarised::SummaryIsWhatItsSegmentsGive>::default(),
        Box::<summarised::SummaryIsInTheOrderOfTheCall>::default(),
        Box::new(summarised::WhatCameInTheQuietPeriodIsCounted),
        Box::<summarised::AMarkThatIsReportedIsStored>::default(),
        Box::new(revised::AMarkedSummaryStaysUntilItIsStale),
        Box::<revised::ARevisionIsAnnouncedOnce>::default(),
        Box::<revised::WhatIsStoredIsAnnounced>::default(),
        Box::new(revised::EveryStaleSummaryIsRevised),
        Box::new(dead_letters::ADeadLetterHasACause),
        Box::<dead_letters::ADeadLetterWaitsForACallInHand>::default(),
        Box::<dead_letters::ADrainGivesBackFirstDeliveriesOnly>::default(),
        Box::<delivered::OneJobAMessage>::default(),
        Box::new(delivered::EveryRedeliveryHasACause),
        Box::<delivered::NobodyGetsBackWhatItGaveBack>::default(),
        Box::<delivered::HeartbeatWhileAlive>::default(),
        Box::new(delivered::OnlyTheImpossibleIsTerminated),
        Box::new(delivered::EverySessionEndsOnceFaultsStop),
        Box::new(bounds::DeadlinesMove),
        Box::new(bounds::RepeatsDelayNoOtherCall),
        Box::new(bounds::MemoryStaysWithinBounds),
        Box::new(bounds::BytesInFlightStayWithinBounds),
    ]
}
