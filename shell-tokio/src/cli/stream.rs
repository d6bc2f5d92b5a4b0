//! What the streams and the consumer have to be like.

use std::time::Duration;

use clap::Args;

use super::parse;

const STREAM: &str = "Stream and consumer";

/// What the streams and the consumer have to be like, as far as it is asked for. What is not asked for stays as it is; what
/// does not exist yet is made with the values of [`StreamValues::default`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = STREAM)]
pub struct StreamSettings {
    /// How long the stream knows a message id again, 100ms to 365d; a notification is not repeated within it. Not given: as the
    /// stream has it, 24h for a new one
    #[arg(
        long, env = "TRANSCRIPT_DUPLICATE_WINDOW", value_name = "DURATION",
        value_parser = parse::duration("100ms", "365d")
    )]
    pub duplicate_window: Option<Duration>,
    /// On how many servers of a NATS cluster the streams are kept: 1, 3 or 5. Not given: as the streams have it, 1 for new ones
    #[arg(long, env = "TRANSCRIPT_REPLICAS", value_name = "N", value_parser = parse::replicas)]
    pub replicas: Option<u8>,
    /// How long after its processor's last sign of life a call is given to another, 300ms to 1h. All processors share it. Not
    /// given: as the consumer has it, 6s for a new one
    #[arg(
        long, env = "TRANSCRIPT_ACK_WAIT", value_name = "DURATION",
        value_parser = parse::duration("300ms", "1h")
    )]
    pub ack_wait: Option<Duration>,
    /// How many times a call is handed out at most, 1 to 1000. All processors share it. Not given: as the consumer has it, 5
    /// for a new one
    #[arg(
        long, env = "TRANSCRIPT_MAX_DELIVER", value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=1000)
    )]
    pub max_deliver: Option<u16>,
    /// How many calls all processors together may have in hand, 1 to 10000000. Not given: as the consumer has it, 65536 for a
    /// new one
    #[arg(
        long, env = "TRANSCRIPT_MAX_ACK_PENDING", value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=10_000_000)
    )]
    pub max_ack_pending: Option<u32>,
}

/// What the streams and the consumer are like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamValues {
    /// How long the stream knows a message id again.
    pub duplicate_window: Duration,
    /// On how many servers the stream is kept.
    pub replicas: u64,
    /// How long the consumer waits for a sign of life.
    pub ack_wait: Duration,
    /// How often the consumer hands a call out at most.
    pub max_deliver: u64,
    /// How many calls the consumer has handed out at most without an acknowledgement; `u64::MAX` where there is no limit.
    pub max_ack_pending: u64,
}

impl Default for StreamValues {
    fn default() -> Self {
        Self {
            duplicate_window: Duration::from_secs(24 * 60 * 60),
            replicas: 1,
            ack_wait: Duration::from_secs(6),
            max_deliver: 5,
            max_ack_pending: 65_536,
        }
    }
}

impl StreamSettings {
    /// What is asked for, and `values` for the rest.
    #[must_use]
    pub fn or(&self, values: StreamValues) -> StreamValues {
        StreamValues {
            duplicate_window: self.duplicate_window.unwrap_or(values.duplicate_window),
            replicas: self.replicas.map_or(values.replicas, u64::from),
            ack_wait: self.ack_wait.unwrap_or(values.ack_wait),
            max_deliver: self.max_deliver.map_or(values.max_deliver, u64::from),
            max_ack_pending: self.max_ack_pending.map_or(values.max_ack_pending, u64::from),
        }
    }
}
