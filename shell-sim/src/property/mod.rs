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
//! | `AMarkedSummaryStaysUntilItIsStale` | only one of more segments, or of changed ones, or one that was asked for, replaces it, as the next revision, and keeps its marks |
//! | `ARequestIsAnsweredByARevision` | an operator who asks for a call again gets a new summary, announced as a revision |
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

/// Makes one object of all promises: each call of a promise is a direct one, since there are many calls and most of them end
/// at the first look.
macro_rules! properties {
    ($($name:ident: $promise:ty,)+) => {
        /// All promises.
        #[derive(Default)]
        pub(crate) struct Properties {
            $($name: $promise,)+
        }

        impl Properties {
            /// Looks at what happened, with each of them; the name of the first that is broken, and how it is broken.
            pub(crate) fn saw(
                &mut self,
                now: Time,
                seen: &Observation<'_>,
                ledger: &Ledger,
            ) -> Result<(), (&'static str, String)> {
                let waits = matches!(seen, Observation::Waits { .. });
                $(if !waits || self.$name.looks_at_waits() {
                    self.$name.saw(now, seen, ledger).map_err(|what| (self.$name.name(), what))?;
                })+
                Ok(())
            }

            /// Looks at the end of a world, with each of them; as [`saw`](Self::saw).
            pub(crate) fn at_end(
                &mut self,
                now: Time,
                ledger: &Ledger,
                end: &TheEnd,
            ) -> Result<(), (&'static str, String)> {
                $(self.$name.at_end(now, ledger, end).map_err(|what| (self.$name.name(), what))?;)+
                Ok(())
            }
        }
    };
}

properties! {
    ack_only_after_summary_and_notification: announced::AckOnlyAfterSummaryAndNotification,
    one_notification_per_key_within_the_window: announced::OneNotificationPerKeyWithinTheWindow,
    a_marked_summary_is_not_announced_again: announced::AMarkedSummaryIsNotAnnouncedAgain,
    announce_once_knows_no_time_limit: announced::AnnounceOnceKnowsNoTimeLimit,
    a_notification_tells_a_stored_summary: announced::ANotificationTellsAStoredSummary,
    summary_never_goes_back: summarised::SummaryNeverGoesBack,
    complete_is_true_only_when_it_is: summarised::CompleteIsTrueOnlyWhenItIs,
    summary_is_what_its_segments_give: summarised::SummaryIsWhatItsSegmentsGive,
    summary_is_in_the_order_of_the_call: summarised::SummaryIsInTheOrderOfTheCall,
    what_came_in_the_quiet_period_is_counted: summarised::WhatCameInTheQuietPeriodIsCounted,
    a_mark_that_is_reported_is_stored: summarised::AMarkThatIsReportedIsStored,
    a_marked_summary_stays_until_it_is_stale: revised::AMarkedSummaryStaysUntilItIsStale,
    a_request_is_answered_by_a_revision: revised::ARequestIsAnsweredByARevision,
    a_revision_is_announced_once: revised::ARevisionIsAnnouncedOnce,
    what_is_stored_is_announced: revised::WhatIsStoredIsAnnounced,
    every_stale_summary_is_revised: revised::EveryStaleSummaryIsRevised,
    a_dead_letter_has_a_cause: dead_letters::ADeadLetterHasACause,
    a_dead_letter_waits_for_a_call_in_hand: dead_letters::ADeadLetterWaitsForACallInHand,
    a_drain_gives_back_first_deliveries_only: dead_letters::ADrainGivesBackFirstDeliveriesOnly,
    one_job_a_message: delivered::OneJobAMessage,
    every_redelivery_has_a_cause: delivered::EveryRedeliveryHasACause,
    nobody_gets_back_what_it_gave_back: delivered::NobodyGetsBackWhatItGaveBack,
    heartbeat_while_alive: delivered::HeartbeatWhileAlive,
    only_the_impossible_is_terminated: delivered::OnlyTheImpossibleIsTerminated,
    every_session_ends_once_faults_stop: delivered::EverySessionEndsOnceFaultsStop,
    deadlines_move: bounds::DeadlinesMove,
    repeats_delay_no_other_call: bounds::RepeatsDelayNoOtherCall,
    memory_stays_within_bounds: bounds::MemoryStaysWithinBounds,
    bytes_in_flight_stay_within_bounds: bounds::BytesInFlightStayWithinBounds,
}
