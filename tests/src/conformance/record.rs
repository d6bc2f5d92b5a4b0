//! What a broker did.

use std::{collections::BTreeMap, fmt};

use super::TOLERANCE_MS;

/// Lanes of observations, each in its order: `step <n>` for the answer to a step, `client <n>` for what came to a client's
/// inbox, `advisories <kind>`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    lanes: BTreeMap<String, Vec<Observation>>,
}

/// One thing that a broker did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// Milliseconds since the start of the script.
    pub at_ms: u64,
    /// What.
    pub seen: BrokerEvent,
}

/// What a broker did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrokerEvent {
    /// A publish was taken.
    PubAck {
        /// Where it is stored.
        sequence: u64,
        /// Whether the id was remembered.
        duplicate: bool,
    },
    /// A publish or a call was refused with the server's error code.
    Refused(u64),
    /// A call was answered.
    Answered,
    /// How many messages were purged.
    Purged(u64),
    /// What a consumer says about itself.
    Info {
        /// Consumer and stream sequence last delivered.
        delivered: (u64, u64),
        /// Consumer and stream sequence of the ack floor.
        floor: (u64, u64),
        /// Unacknowledged.
        ack_pending: u64,
        /// Redelivered.
        redelivered: u64,
        /// Waiting requests.
        waiting: u64,
        /// Not yet delivered.
        pending: u64,
    },
    /// A double ack was confirmed.
    Confirmed,
    /// Nobody listens.
    NoResponders,
    /// A message was delivered.
    Delivered {
        /// Its sequence.
        sequence: u64,
        /// The attempt.
        attempt: u64,
        /// The consumer's sequence.
        consumer_seq: u64,
        /// How many more there are.
        pending: u64,
    },
    /// A status came.
    Status {
        /// The code.
        code: u16,
        /// The text.
        text: String,
        /// The headers that matter, as text.
        headers: String,
    },
    /// The broker told something.
    Advisory {
        /// The token of its subject.
        kind: String,
        /// The message.
        sequence: u64,
        /// How often it had been delivered.
        deliveries: u64,
        /// Why.
        reason: String,
    },
}

/// Where two records differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disagreement {
    /// The lane.
    pub lane: String,
    /// How.
    pub how: String,
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.lane, self.how)
    }
}

impl Record {
    /// Adds what was seen in a lane.
    pub fn see(&mut self, lane: String, at_ms: u64, seen: BrokerEvent) {
        self.lanes.entry(lane).or_default().push(Observation { at_ms, seen });
    }

    /// When the first observation of a lane was made.
    #[must_use]
    pub fn first_at_ms(&self, lane: &str) -> Option<u64> {
        self.lanes.get(lane)?.first().map(|first| first.at_ms)
    }

    /// How many observations there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lanes.values().map(Vec::len).sum()
    }

    /// Whether nothing was seen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Whether both are the same but for the times.
    #[must_use]
    pub fn same_events(&self, other: &Self) -> bool {
        let bare = |record: &Self| -> Vec<(String, Vec<BrokerEvent>)> {
            let lanes = record.lanes.iter();
            lanes.map(|(lane, seen)| (lane.clone(), seen.iter().map(|one| one.seen.clone()).collect())).collect()
        };
        bare(self) == bare(other)
    }

    /// The first difference between what was expected and this record; times may differ by the tolerance.
    #[must_use]
    pub fn disagreement(&self, expected: &Self) -> Option<Disagreement> {
        let lanes = self.lanes.keys().chain(expected.lanes.keys());
        let nothing = vec![];
        for lane in lanes {
            let ours = self.lanes.get(lane).unwrap_or(&nothing);
            let theirs = expected.lanes.get(lane).unwrap_or(&nothing);
            for place in 0..ours.len().max(theirs.len()) {
                let how = match (ours.get(place), theirs.get(place)) {
                    (Some(ours), Some(theirs)) if ours.seen != theirs.seen => {
                        format!("#{place} is {ours}, expected {theirs}")
                    }
                    (Some(ours), Some(theirs)) if ours.at_ms.abs_diff(theirs.at_ms) > TOLERANCE_MS => {
                        format!("#{place} {ours} should have come at {}", theirs.at_ms)
                    }
                    (Some(_), Some(_)) | (None, None) => continue,
                    (Some(ours), None) => format!("#{place} {ours} was not expected"),
                    (None, Some(theirs)) => format!("#{place} {theirs} is missing"),
                };
                return Some(Disagreement { lane: lane.clone(), how });
            }
        }
        None
    }

    /// The largest difference in time between observations at the same place, in milliseconds.
    #[must_use]
    pub fn largest_gap_ms(&self, other: &Self) -> u64 {
        let pairs = self.lanes.iter().filter_map(|(lane, ours)| Some((ours, other.lanes.get(lane)?)));
        pairs
            .flat_map(|(ours, theirs)| ours.iter().zip(theirs))
            .map(|(a, b)| a.at_ms.abs_diff(b.at_ms))
            .max()
            .unwrap_or(0)
    }
}

impl fmt::Display for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {}", self.seen, self.at_ms)
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (lane, observations) in &self.lanes {
            writeln!(f, "  {lane}")?;
            for observation in observations {
                writeln!(f, "    {:>6} {:?}", observation.at_ms, observation.seen)?;
            }
        }
        Ok(())
    }
}
