//! The settings of `audit`.

use std::time::Duration;

use clap::Args;
use transcript_core::WallTime;

use super::{Options, parse};

/// The settings of `audit`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct AuditArgs {
    /// Look only at what was stored in the stream since then: a time span that ends now, such as 24h, or a moment such as
    /// 2026-11-29T08:00:00Z. A call whose end was published again counts by its latest end; notifications from before
    /// are not seen, nor summaries whose end is no longer in the stream. Sessions that no transcriber serves are found all the
    /// same
    #[arg(long, value_name = "DURATION|TIMESTAMP", value_parser = parse::since)]
    pub since: Option<Since>,
    /// Publish the ends of the missing, the never announced and the stale calls again, for a running processor; correct
    /// marks that name a message which does not announce the call; end sessions of dead transcribers, and those whose end is
    /// not in the stream; keep ends that can never be processed as dead letters.
    /// Harmless to repeat
    #[arg(long)]
    pub repair: bool,
    /// Name all incomplete calls, not only the first ones
    #[arg(long)]
    pub incomplete: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

impl Options for AuditArgs {}

/// From when on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// So long before now.
    Ago(Duration),
    /// From this moment on.
    At(WallTime),
}

impl Since {
    /// The moment that is meant at `now`.
    #[must_use]
    pub fn moment(self, now: WallTime) -> WallTime {
        match self {
            Self::Ago(span) => {
                let millis = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
                WallTime::from_millis(now.as_millis().saturating_sub(millis).max(0))
            }
            Self::At(moment) => moment,
        }
    }
}
