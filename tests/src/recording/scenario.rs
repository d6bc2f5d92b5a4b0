//! The traces of `fixtures/traces`: what each shows.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use transcript_trace::Server;

use super::{play, shown::Shown, trace::Trace};
use crate::{
    calls::fixture,
    crash::{CrashError, StopPoint},
};

/// What is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// A call whose segments are all there when it ends.
    PlainCall,
    /// Segments come after the end.
    LateSegments,
    /// Segments come so slowly that the counts are used up.
    SlowSegments,
    /// A segment never comes.
    LostSegment,
    /// A call without a segment.
    SilentCall,
    /// The processor is killed in the middle, and started again.
    Killed(StopPoint),
    /// A call is killed with its processor as often as it may be delivered.
    DeliveriesUsedUp,
    /// MongoDB is killed, and comes back.
    MongodbAway,
    /// NATS is killed, and comes back.
    NatsAway,
    /// A processor is asked to end while it has calls in hand; another one takes over.
    Rollout,
    /// The same, where calls have few attempts.
    RolloutOfFewAttempts,
    /// A processor stands still longer than the ack wait, and then goes on.
    FrozenProcessor,
    /// A payload that can never be processed.
    PoisonedPayload,
    /// A summary that the store will never take.
    RefusedSummary,
}

/// The directory of the traces.
#[must_use]
pub fn fixtures() -> PathBuf {
    fixture("traces")
}

impl Scenario {
    /// All of them, in the order in which they are best read.
    pub const ALL: [Self; 19] = [
        Self::PlainCall,
        Self::LateSegments,
        Self::SlowSegments,
        Self::LostSegment,
        Self::SilentCall,
        Self::Killed(StopPoint::Wait),
        Self::Killed(StopPoint::BeforeStore),
        Self::Killed(StopPoint::AfterStore),
        Self::Killed(StopPoint::AfterNotify),
        Self::Killed(StopPoint::AfterMark),
        Self::Killed(StopPoint::AfterAck),
        Self::DeliveriesUsedUp,
        Self::MongodbAway,
        Self::NatsAway,
        Self::Rollout,
        Self::RolloutOfFewAttempts,
        Self::FrozenProcessor,
        Self::PoisonedPayload,
        Self::RefusedSummary,
    ];

    /// Its name, which is that of its file without its ending.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PlainCall => "plain-call",
            Self::LateSegments => "late-segments",
            Self::SlowSegments => "slow-segments",
            Self::LostSegment => "lost-segment",
            Self::SilentCall => "silent-call",
            Self::Killed(stop) => match stop {
                StopPoint::None => "killed-nowhere",
                StopPoint::Wait => "killed-wait",
                StopPoint::BeforeStore => "killed-before-store",
                StopPoint::AfterStore => "killed-after-store",
                StopPoint::AfterNotify => "killed-after-notify",
                StopPoint::AfterMark => "killed-after-mark",
                StopPoint::AfterAck => "killed-after-ack",
            },
            Self::DeliveriesUsedUp => "deliveries-used-up",
            Self::MongodbAway => "mongodb-away",
            Self::NatsAway => "nats-away",
            Self::Rollout => "rollout",
            Self::RolloutOfFewAttempts => "rollout-of-few-attempts",
            Self::FrozenProcessor => "frozen-processor",
            Self::PoisonedPayload => "poisoned-payload",
            Self::RefusedSummary => "refused-summary",
        }
    }

    /// What its trace shows, in a line.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::PlainCall => "a call whose segments are all there when it ends: two equal counts, and done",
            Self::LateSegments => {
                "the last three segments come after the first count: three counts, and nothing is missing"
            }
            Self::SlowSegments => {
                "segments come one by one until all three counts are used up: the summary is of those that are there"
            }
            Self::LostSegment => "a segment was published and never stored: the summary says that it is not complete",
            Self::SilentCall => "a call in which nobody spoke: a summary of no segments, announced like any other",
            Self::Killed(stop) => match stop {
                StopPoint::None => "nobody is killed",
                StopPoint::Wait => {
                    "killed between two counts: the next process begins anew, after one quiet period less"
                }
                StopPoint::BeforeStore => "killed while the summary was on its way: the next process saves it",
                StopPoint::AfterStore => {
                    "killed between save and publish: the next process saves the same, and announces it"
                }
                StopPoint::AfterNotify => {
                    "killed before it was told that the notification is in the stream: published again, it is known by its id"
                }
                StopPoint::AfterMark => {
                    "killed before the acknowledgement: the mark keeps the next process from announcing again"
                }
                StopPoint::AfterAck => "killed when all was done: nothing is delivered again",
            },
            Self::DeliveriesUsedUp => {
                "both deliveries that a call may have end in a kill: the third process keeps its end as a dead letter"
            }
            Self::MongodbAway => {
                "MongoDB is killed with two calls in hand: they are tried again in place, beyond their retry timeout, and it costs no attempt"
            }
            Self::NatsAway => "NATS is killed with two calls in hand: they are saved, and announced once it is back",
            Self::Rollout => {
                "asked to end with two calls in hand: one that is being saved is finished, the other is given to the next process"
            }
            Self::RolloutOfFewAttempts => {
                "asked to end where a call has few attempts: its end is published again, so that it costs none"
            }
            Self::FrozenProcessor => {
                "a process stands still longer than the ack wait: another one does its call, and when it goes on it does no harm"
            }
            Self::PoisonedPayload => {
                "an end without a session is kept as a dead letter; the call beside it, with colons in its ids, is not held up"
            }
            Self::RefusedSummary => {
                "MongoDB refuses a summary for good: its end is kept as a dead letter; the call beside it is done"
            }
        }
    }

    /// The name of its file.
    #[must_use]
    pub fn file_name(self) -> String {
        format!("{self}.jsonl")
    }

    /// Its file.
    #[must_use]
    pub fn file(self) -> PathBuf {
        fixtures().join(self.file_name())
    }

    /// Records it on real servers, and checks that the trace shows what it is meant to show.
    ///
    /// # Errors
    ///
    /// It could not be played, or the trace shows something else.
    pub async fn record(self) -> Result<Trace, CrashError> {
        let failed = |error| format!("{self}: {error}");
        let trace = match self {
            Self::PlainCall => play::plain_call(self.about()).await,
            Self::LateSegments => play::late_segments(self.about()).await,
            Self::SlowSegments => play::slow_segments(self.about()).await,
            Self::LostSegment => play::lost_segment(self.about()).await,
            Self::SilentCall => play::silent_call(self.about()).await,
            Self::Killed(stop) => play::killed(stop, self.about()).await,
            Self::DeliveriesUsedUp => play::deliveries_used_up(self.about()).await,
            Self::MongodbAway => play::mongodb_away(self.about()).await,
            Self::NatsAway => play::nats_away(self.about()).await,
            Self::Rollout => play::rollout(&[], "nak", self.about()).await,
            Self::RolloutOfFewAttempts => play::rollout(&["--max-deliver=3"], "ack", self.about()).await,
            Self::FrozenProcessor => play::frozen_processor(self.about()).await,
            Self::PoisonedPayload => play::poisoned_payload(self.about()).await,
            Self::RefusedSummary => play::refused_summary(self.about()).await,
        }
        .map_err(failed)?;
        self.check(&trace).map_err(|error| failed(error.into()))?;
        Ok(trace)
    }

    /// Whether a trace shows what this one's is meant to show.
    ///
    /// # Errors
    ///
    /// It does not: says what it shows.
    pub fn check(self, trace: &Trace) -> Result<(), String> {
        let shown = Shown::of(trace);
        let about = trace.parts.first().and_then(|part| part.header.about.as_deref());
        if about != Some(self.about()) {
            Err(format!("the trace says that it is about {about:?}"))
        } else if self.is_shown(&shown) {
            Ok(())
        } else {
            Err(format!("the trace shows something else: {shown:?}"))
        }
    }

    fn is_shown(self, shown: &Shown) -> bool {
        let attempts = |expected: &[u64]| shown.attempts == expected;
        let summaries = |expected: &[(u64, bool)]| shown.summaries == expected;
        let acknowledged = |expected: &[(&'static str, u64)]| {
            shown.acknowledged == expected.iter().copied().collect::<BTreeMap<_, _>>()
        };
        let undisturbed = shown.killed == 0 && shown.frozen == 0 && shown.away.is_empty() && shown.failed.is_empty();
        // One call, one process, nothing that could go wrong.
        let alone = undisturbed && attempts(&[1]) && acknowledged(&[("ack", 1)]) && shown.published.len() == 1;
        match self {
            Self::PlainCall => alone && shown.counts == [39, 39] && summaries(&[(39, true)]) && shown.heartbeats > 0,
            Self::LateSegments => {
                alone && shown.stored == [27, 3] && shown.counts == [27, 30, 30] && summaries(&[(30, true)])
            }
            Self::SlowSegments => {
                alone && shown.stored == [5, 1, 1] && shown.counts == [5, 6, 7] && summaries(&[(7, false)])
            }
            Self::LostSegment => alone && shown.counts == [38, 38] && summaries(&[(38, false)]),
            Self::SilentCall => alone && shown.counts == [0, 0] && summaries(&[(0, true)]),
            Self::Killed(stop) => is_killed_at(stop, shown),
            Self::DeliveriesUsedUp => {
                shown.killed == 2
                    && attempts(&[1, 2])
                    && shown.unanswered == ["save", "save"]
                    && (shown.exhausted, shown.dead_lettered) == (1, 1)
                    && shown.published.is_empty()
            }
            Self::MongodbAway => {
                shown.away == [Server::Mongodb]
                    && attempts(&[1, 1])
                    && shown.failures("count") >= 8
                    && acknowledged(&[("ack", 2)])
            }
            Self::NatsAway => {
                shown.away == [Server::Nats]
                    && shown.attempts.starts_with(&[1, 1])
                    && shown.without_answer("publish") >= 2
                    && shown.dead_lettered == 0
                    && shown.published.len() >= 2
                    && shown.confirmed("ack") >= 2
            }
            Self::Rollout => {
                undisturbed
                    && attempts(&[1, 1, 2])
                    && acknowledged(&[("ack", 2), ("nak", 1)])
                    && (shown.republished, shown.drained) == (0, 2)
            }
            Self::RolloutOfFewAttempts => {
                undisturbed
                    && attempts(&[1, 1, 1])
                    && acknowledged(&[("ack", 3)])
                    && (shown.republished, shown.redriven, shown.drained) == (1, 1, 2)
            }
            Self::FrozenProcessor => {
                shown.frozen == 1
                    && shown.attempts.starts_with(&[1, 2])
                    && shown.summaries.len() == 2
                    && shown.published.len() == 1
                    && acknowledged(&[("ack", 2)])
            }
            Self::PoisonedPayload => {
                undisturbed
                    && attempts(&[1, 1])
                    && acknowledged(&[("ack", 1), ("term", 1)])
                    && shown.terminated.iter().any(|reason| reason.contains("sessionId"))
                    && shown.dead_lettered == 1
            }
            Self::RefusedSummary => {
                attempts(&[1, 1])
                    && shown.failures("save") == 1
                    && shown.dead_lettered == 1
                    && acknowledged(&[("ack", 1), ("term", 1)])
            }
        }
    }
}

/// Whether a process was killed there, and the next one did what was left.
fn is_killed_at(stop: StopPoint, shown: &Shown) -> bool {
    let twice = || (vec![1, 2], vec![8; 4], vec![(8, true); 2]);
    let once = || (vec![1], vec![8; 2], vec![(8, true)]);
    let ((attempts, counts, summaries), unanswered) = match stop {
        StopPoint::None => return false,
        StopPoint::Wait => ((vec![1, 2], vec![5, 8, 8], vec![(8, true)]), vec![]),
        StopPoint::BeforeStore => (twice(), vec!["save"]),
        StopPoint::AfterStore | StopPoint::AfterNotify => (twice(), vec!["publish"]),
        StopPoint::AfterMark => (twice(), vec!["ack"]),
        StopPoint::AfterAck => (once(), vec![]),
    };
    let expected = Shown {
        attempts,
        counts,
        summaries,
        unanswered,
        marked: 1,
        acknowledged: [("ack", 1)].into(),
        killed: 1,
        // The process that was killed did not.
        drained: 1,
        // What tells those apart that are the same to a core.
        remarks: play::remark(stop).map(str::to_owned).into_iter().collect(),
        ..Shown::default()
    };
    // How many heartbeats there are is a matter of time; which place the notification has, of the stream.
    let found = Shown { heartbeats: 0, published: vec![], stored: vec![], ..shown.clone() };
    found == expected && shown.published.len() == 1
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
