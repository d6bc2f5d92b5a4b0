//! What has happened in a processor, counted: the numbers of its metrics, its status and its log.
//!
//! Counting decides nothing: no output of the core depends on a number in here but those that it would need anyway.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    failure::FailureKind,
    ids::{JobId, Key},
    job::State,
    kind::EffectKind,
};

/// What has happened since the start, counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Deliveries taken.
    pub delivered: u64,
    /// Those of them that JetStream had handed over before.
    pub redelivered: u64,
    /// Payloads that can never be processed.
    pub rejected: u64,
    /// Messages kept as dead letters.
    pub dead_lettered: u64,
    /// Ends published again by a draining processor.
    pub republished: u64,
    /// Jobs given back to JetStream.
    pub given_back: u64,
    /// Jobs whose acknowledgement was confirmed.
    pub acknowledged: u64,
    /// Effects asked for again.
    pub retried: u64,
    /// Jobs whose acknowledgement was never confirmed; they are left to redelivery.
    pub unconfirmed: u64,
    /// Jobs that the grace time of a draining processor left to redelivery.
    pub abandoned: u64,
    /// Reports of unknown or finished effects, or of another kind than the effect.
    pub ignored_reports: u64,
    /// Deliveries not taken because four times as many jobs as asked for were there; they are left to redelivery.
    pub overflowed: u64,
    /// Ends acknowledged because an earlier end of the same call had brought everything about.
    pub repeated: u64,
    /// Calls that are announced, and whose summary the store would not mark as announced.
    pub unmarked: u64,
    /// Tries to store a dead letter that failed. Their calls are not given up: they are tried again without end.
    pub dead_letters_failed: u64,
    /// Messages that used up their deliveries while a job worked on them, or after their call was announced: no dead letter
    /// is needed.
    pub outlived: u64,
    /// Calls that this processor announced, with all of their segments.
    pub complete: u64,
    /// Calls that this processor announced although segments were missing.
    pub incomplete: u64,
    /// Ends of calls that were announced before: by an earlier end, or by another processor.
    pub announced_before: u64,
    /// Announcements of summaries that replaced an announced one.
    pub revised: u64,
    /// Segments that ends announced and that their announced summaries lack.
    pub missing_segments: u64,
    /// Segments that the last count of a settling call found and the first did not.
    pub late_segments: u64,
    /// Counts of settling calls, of those that have settled.
    pub settle_rounds: u64,
    /// From the hand-over of an end until its call had settled.
    pub settling: DurationHistogram,
    /// From when an end was stored until the notification of its call was. Announcements of revisions are left out.
    pub notification: DurationHistogram,
    /// Heartbeats.
    pub heartbeats: u64,
    /// The longest time between two heartbeats of one job.
    pub longest_heartbeat_gap: Duration,
    retries: BTreeMap<(EffectKind, FailureKind), u64>,
}

/// How many durations were how long, in buckets of fixed bounds, as Prometheus' histograms have them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DurationHistogram {
    buckets: [u64; DurationHistogram::BOUNDS.len() + 1],
    sum: Duration,
}

/// What is known of a job under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobView {
    /// The job.
    pub job: JobId,
    /// The call, where the payload named one.
    pub key: Option<Key>,
    /// Where it stands.
    pub state: State,
    /// How often its end was handed over, as JetStream counts; 0 for a job without a delivery.
    pub attempt: u64,
    /// How often its step has failed in a row.
    pub failures: u32,
    /// How long ago its end was stored; how long ago it began, for a job without a delivery.
    pub age: Duration,
}

/// What became of a settling call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settled {
    pub(crate) rounds: u32,
    pub(crate) late_segments: u64,
    pub(crate) took: Duration,
}

impl Counters {
    /// Tries of a step that failed and that are made again, by kind and cause.
    pub fn retries(&self) -> impl Iterator<Item = (EffectKind, FailureKind, u64)> {
        self.retries.iter().map(|(&(kind, cause), &tries)| (kind, cause, tries))
    }

    pub(crate) fn retry(&mut self, kind: EffectKind, cause: FailureKind) {
        *self.retries.entry((kind, cause)).or_default() += 1;
    }

    pub(crate) fn heartbeat(&mut self, gap: Duration) {
        self.heartbeats += 1;
        self.longest_heartbeat_gap = self.longest_heartbeat_gap.max(gap);
    }

    pub(crate) fn settled(&mut self, settled: Option<Settled>) {
        let Some(Settled { rounds, late_segments, took }) = settled else { return };
        self.settle_rounds += u64::from(rounds);
        self.late_segments += late_segments;
        self.settling.observe(took);
    }

    pub(crate) fn notified(&mut self, after: Option<Duration>) {
        if let Some(after) = after {
            self.notification.observe(after);
        }
    }

    pub(crate) fn outcome(&mut self, segments: u64, complete: bool, published: u64, announced_now: bool) {
        if !announced_now {
            self.announced_before += 1;
            return;
        }
        let counter = if complete { &mut self.complete } else { &mut self.incomplete };
        *counter += 1;
        self.missing_segments += published.saturating_sub(segments);
    }
}

impl DurationHistogram {
    /// The upper bounds of the buckets but the last one, which has none.
    pub const BOUNDS: [Duration; 16] = [
        Duration::from_millis(100),
        Duration::from_millis(250),
        Duration::from_millis(500),
        Duration::from_secs(1),
        Duration::from_millis(2500),
        Duration::from_secs(5),
        Duration::from_millis(7500),
        Duration::from_secs(10),
        Duration::from_secs(15),
        Duration::from_secs(30),
        Duration::from_secs(60),
        Duration::from_secs(120),
        Duration::from_secs(300),
        Duration::from_secs(600),
        Duration::from_secs(1800),
        Duration::from_secs(3600),
    ];

    /// How many durations there are up to each bound and above the one before it; the last number is of those above all.
    #[must_use]
    pub fn buckets(&self) -> &[u64] {
        &self.buckets
    }

    /// How many durations there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// All durations together.
    #[must_use]
    pub fn sum(&self) -> Duration {
        self.sum
    }

    fn observe(&mut self, duration: Duration) {
        let place = Self::BOUNDS.partition_point(|bound| *bound < duration);
        if let Some(bucket) = self.buckets.get_mut(place) {
            *bucket += 1;
        }
        self.sum = self.sum.saturating_add(duration);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_bucket_of_the_least_bound_that_it_does_not_exceed() {
        let mut histogram = DurationHistogram::default();
        for millis in [0, 100, 101, 250, 3_600_000, 3_600_001] {
            histogram.observe(Duration::from_millis(millis));
        }
        let buckets = histogram.buckets();
        assert_eq!((buckets.first(), buckets.get(1)), (Some(&2), Some(&2)));
        assert_eq!((buckets.get(15), buckets.get(16)), (Some(&1), Some(&1)));
        assert_eq!((histogram.count(), histogram.sum()), (6, Duration::from_millis(7_200_452)));
    }
}
