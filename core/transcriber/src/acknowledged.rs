//! How long segments take from their receipt to their acknowledgement.

use std::time::Duration;

/// How many acknowledgements took how long, in buckets of fixed bounds, as Prometheus' histograms have them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AcknowledgementTimes {
    buckets: [u64; AcknowledgementTimes::BOUNDS.len() + 1],
    sum: Duration,
}

impl AcknowledgementTimes {
    /// The upper bounds of the buckets but the last one, which has none.
    pub const BOUNDS: [Duration; 12] = [
        Duration::from_millis(5),
        Duration::from_millis(10),
        Duration::from_millis(25),
        Duration::from_millis(50),
        Duration::from_millis(100),
        Duration::from_millis(250),
        Duration::from_millis(500),
        Duration::from_secs(1),
        Duration::from_millis(2500),
        Duration::from_secs(5),
        Duration::from_secs(10),
        Duration::from_secs(30),
    ];

    /// How many there are up to each bound and above the one before it; the last number is of those above all.
    #[must_use]
    pub fn buckets(&self) -> &[u64] {
        &self.buckets
    }

    /// All of them together.
    #[must_use]
    pub fn sum(&self) -> Duration {
        self.sum
    }

    pub(crate) fn observe(&mut self, took: Duration) {
        let place = Self::BOUNDS.partition_point(|bound| *bound < took);
        if let Some(bucket) = self.buckets.get_mut(place) {
            *bucket += 1;
        }
        self.sum = self.sum.saturating_add(took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_bucket_of_the_least_bound_that_it_does_not_exceed() {
        let mut times = AcknowledgementTimes::default();
        for millis in [0, 5, 6, 30_000, 30_001] {
            times.observe(Duration::from_millis(millis));
        }
        let buckets = times.buckets();
        assert_eq!((buckets[0], buckets[1], buckets[11], buckets[12]), (2, 1, 1, 1));
        assert_eq!(times.sum(), Duration::from_millis(60_012));
    }
}
