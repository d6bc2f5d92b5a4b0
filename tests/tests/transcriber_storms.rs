//! A small storm; `cargo transcriber-storm` has large ones. `TRANSCRIPT_TESTS_SEED` repeats what is random in a run.

use std::{env, error::Error, time::Duration};

use transcript_tests::{storm::SEED_VARIABLE, transcriber_storm::StormPlan};

#[tokio::test(flavor = "multi_thread")]
async fn transcribers_are_killed_nats_goes_away_and_the_network_swallows() -> Result<(), Box<dyn Error + Send + Sync>> {
    let seed = match env::var(SEED_VARIABLE) {
        Ok(seed) => seed.parse()?,
        Err(_) => fastrand::u64(..),
    };
    eprintln!("{SEED_VARIABLE}={seed}");
    let plan = StormPlan {
        sessions: 12,
        sockets: 4,
        segments: 8,
        lasts: Duration::from_secs(3),
        transcribers: 2,
        kills: 1,
        nats_away: Some(Duration::from_millis(1500)),
        mongod_kills: 0,
        swallows: 1,
        seed,
    };
    let report = plan.run().await?;
    assert_eq!(report.acknowledged, 12 * 4 * 8);
    Ok(())
}
