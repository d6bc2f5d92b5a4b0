//! The real binary, killed at every point of its job, with short times. `cargo crash-table` does the same with the product's.

use std::time::Duration;

use futures::future::try_join_all;
use transcript_tests::{
    cargo::Version,
    crash::{
        Crash, CrashError, Observed, StopPoint, Times,
        prediction::Predictions,
        table::{Row, rows},
    },
};

type Outcome = Result<(), CrashError>;

/// Runs of each crash, all at the same time.
const RUNS: usize = 3;

async fn runs(stop: StopPoint, times: Times, outage: Duration) -> Result<Vec<Observed>, CrashError> {
    let crash = Crash { version: Version::Product, stop, times, outage };
    try_join_all((0..RUNS).map(|_| crash.run())).await
}

/// One summary, one notification, and a redelivery only where the call was not acknowledged.
async fn comes_out_once(stop: StopPoint, redeliveries: u64) -> Outcome {
    for observed in runs(stop, Times::short(), Duration::ZERO).await? {
        let counts = (observed.summaries, observed.notifications, observed.redeliveries);
        assert_eq!(counts, (1, 1, redeliveries), "{observed:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_healthy_run_is_delivered_once() -> Outcome {
    comes_out_once(StopPoint::None, 0).await
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_it_waits_for_late_segments() -> Outcome {
    comes_out_once(StopPoint::Wait, 1).await
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_before_the_summary_is_stored() -> Outcome {
    comes_out_once(StopPoint::BeforeStore, 1).await
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_the_summary_is_stored() -> Outcome {
    comes_out_once(StopPoint::AfterStore, 1).await
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_the_notification_is_stored() -> Outcome {
    comes_out_once(StopPoint::AfterNotify, 1).await
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_the_summary_is_marked() -> Outcome {
    comes_out_once(StopPoint::AfterMark, 1).await
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_the_acknowledgement() -> Outcome {
    comes_out_once(StopPoint::AfterAck, 0).await
}

/// The one limit that is left: the stream has forgotten the notification, and no mark was written that would remember it.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_longer_than_the_window_repeats_a_notification_that_was_not_marked() -> Outcome {
    let (window, outage) = (Duration::from_secs(2), Duration::from_secs(3));
    for observed in runs(StopPoint::AfterNotify, Times::short().window(window), outage).await? {
        assert_eq!((observed.summaries, observed.notifications), (1, 2), "{observed:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mark_outlives_the_window() -> Outcome {
    let (window, outage) = (Duration::from_secs(2), Duration::from_secs(3));
    for observed in runs(StopPoint::AfterMark, Times::short().window(window), outage).await? {
        assert_eq!((observed.summaries, observed.notifications), (1, 1), "{observed:?}");
        assert_eq!(observed.notified_after, None, "it was not even sent again");
    }
    Ok(())
}

/// What the simulator says of each crash is what was promised, and it has something to say of each.
#[tokio::test]
async fn every_row_of_the_crash_table_is_predicted() -> Outcome {
    let predictions = Predictions::of_simulator().await?.ok_or("there is no simulator")?;
    for Row { crash, promised, .. } in rows(1).into_iter().filter(|row| row.crash.version == Version::Product) {
        assert_eq!(predictions.of(&crash), Some(promised), "{crash}");
    }
    Ok(())
}
