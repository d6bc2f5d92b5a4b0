//! What happens to servers and network while many calls end and processors are killed at random instants.
//!
//! `TRANSCRIPT_TESTS_SEED` repeats the instants of a run that failed, `TRANSCRIPT_TESTS_SESSIONS=40` makes it a small and quick one.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};
use transcript_core::contract::{CONSUMER, PROCESSED_SUBJECT, TRANSCRIPTION_STREAM};
use transcript_tests::{
    crash::CrashError,
    proxy::{Fate, NatsTraffic},
    storm::{Act, Storm},
    wait::wait_until,
    world::StoreOf,
};

type Outcome = Result<(), CrashError>;

/// Within which a deleted consumer is there again, and work goes on.
const MENDED_WITHIN: Duration = Duration::from_secs(5);
/// Within which a connection that went silent is given up.
const NOTICED_WITHIN: Duration = Duration::from_secs(3);
/// How long a connection stays silent without closing.
const SILENT_FOR: Duration = Duration::from_secs(30);
const LONG: Duration = Duration::from_secs(60);

/// nats-server writes a consumer's state every 100 ms at most, so it comes back having forgotten deliveries and even confirmed
/// acknowledgements.
#[tokio::test(flavor = "multi_thread")]
async fn nats_server_is_killed() -> Outcome {
    let mut storm = Storm::begin(StoreOf::AllWorlds, 2, &[]).await?;
    let cues = storm.restarts(1);
    let (calls, acting, begun) = (storm.end_calls(), storm.act(cues), Instant::now());
    let mut kills = [storm.instant(), storm.instant()];
    kills.sort_unstable();
    for kill in kills {
        sleep_until(begun + kill).await;
        storm.world.nats.start_again().await?;
    }
    storm.acted(acting).await?;
    storm.end(calls).await
}

#[tokio::test(flavor = "multi_thread")]
async fn jetstream_comes_up_three_seconds_after_the_port() -> Outcome {
    let mut storm = Storm::begin(StoreOf::AllWorlds, 2, &[]).await?;
    let cues = storm.restarts(1);
    let (calls, acting) = (storm.end_calls(), storm.act(cues));
    let kill = storm.instant();
    sleep(kill).await;
    storm.world.nats.start_again_without_jetstream().await?;
    sleep(Duration::from_secs(3)).await;
    storm.world.nats.enable_jetstream().await?;
    storm.acted(acting).await?;
    // One that was started meanwhile may have given up, as its connect timeout says.
    for processor in &mut storm.processors {
        if processor.processor().is_none_or(|processor| processor.exit().is_some()) {
            processor.start().await?;
        }
    }
    storm.end(calls).await
}

#[tokio::test(flavor = "multi_thread")]
async fn mongod_is_killed() -> Outcome {
    let mut storm = Storm::begin(StoreOf::ThisWorld, 2, &[]).await?;
    let cues = storm.restarts(1);
    let (calls, acting) = (storm.end_calls(), storm.act(cues));
    let kill = storm.instant();
    sleep(kill).await;
    storm.world.mongod().start_again().await?;
    storm.acted(acting).await?;
    storm.end(calls).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_processor_is_frozen_for_longer_than_the_ack_wait_and_thaws() -> Outcome {
    let mut storm = Storm::begin(StoreOf::AllWorlds, 2, &[]).await?;
    let freeze = storm.spread() / 4;
    let thaw = freeze + Duration::from_millis(2_500);
    let mut cues = vec![(freeze, 0, Act::Freeze), (thaw, 0, Act::Thaw)];
    for _ in 0..2 {
        cues.push((storm.instant(), 1, Act::Restart));
    }
    let (calls, acting) = (storm.end_calls(), storm.act(cues));
    storm.acted(acting).await?;
    storm.end(calls).await
}

/// Without heartbeats a call that takes longer than the ack wait is delivered again while it is worked on.
#[tokio::test(flavor = "multi_thread")]
async fn every_heartbeat_is_lost() -> Outcome {
    let mut storm = Storm::begin(StoreOf::AllWorlds, 2, &["--quiet-period=800ms"]).await?;
    let lost = storm.nats.discard(NatsTraffic::InProgress);
    let cues = storm.restarts(1);
    let (calls, acting) = (storm.end_calls(), storm.act(cues));
    storm.acted(acting).await?;
    storm.calls_are_done().await?;
    assert!(storm.nats.count(&NatsTraffic::InProgress, Fate::Discarded) > 0, "there were heartbeats");
    drop(lost);
    storm.end(calls).await
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledgements_are_lost_for_a_while() -> Outcome {
    losing(NatsTraffic::Ack).await
}

/// The notifications were stored, and nobody told the processors.
#[tokio::test(flavor = "multi_thread")]
async fn answers_to_notifications_are_lost_for_a_while() -> Outcome {
    losing(NatsTraffic::to(PROCESSED_SUBJECT).answer()).await
}

async fn losing(traffic: NatsTraffic) -> Outcome {
    let mut storm = Storm::begin(StoreOf::AllWorlds, 2, &[]).await?;
    // Whoever is killed meanwhile has done what nobody knows of; whoever is not asks again, and there is no second delivery.
    let cues = storm.restarts(1).into_iter().map(|(at, which, act)| (at / 2, which, act)).collect();
    let (calls, acting) = (storm.end_calls(), storm.act(cues));
    let lost = storm.nats.discard(traffic.clone());
    sleep(storm.spread() / 2).await;
    assert!(storm.nats.count(&traffic, Fate::Discarded) > 0, "some were lost");
    drop(lost);
    storm.acted(acting).await?;
    storm.end(calls).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_goes_silent_without_closing() -> Outcome {
    let mut storm = Storm::begin(StoreOf::AllWorlds, 1, &[]).await?;
    let calls = storm.end_calls();
    storm.nats.seen(&NatsTraffic::Ack, Fate::Passed, Instant::now()).await;
    let silent = Instant::now();
    storm.nats.silence();
    wait_until("the processor notices", NOTICED_WITHIN, || async {
        let noticed = storm.processors[0].logs().contains("NATS disconnected");
        if noticed { Ok(()) } else { Err(format!("nothing after {:?}", silent.elapsed())) }
    })
    .await?;
    // It works on a new connection while the server still believes in the old one.
    timeout(LONG, storm.nats.seen(&NatsTraffic::Ack.answer(), Fate::Passed, silent)).await?;
    let cues = storm.restarts(2);
    let acting = storm.act(cues);
    storm.acted(acting).await?;
    sleep_until(silent + SILENT_FOR).await;
    storm.nats.end_silence();
    storm.end(calls).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_consumer_is_deleted_while_idle() -> Outcome {
    let storm = Storm::begin(StoreOf::AllWorlds, 1, &[]).await?;
    let calls = storm.end_calls();
    storm.calls_are_done().await?;

    let deleted = delete_consumer(&storm).await?;
    is_mended(&storm, deleted).await?;
    let log = storm.processors[0].logs();
    assert!(log.contains("consumer transcript-processor: created"), "it is told loudly: {log}");

    // While it cannot be made again, it is asked for in ever longer intervals only.
    storm.calls_are_done().await?;
    let setup = storm.nats.discard(NatsTraffic::to(&format!("$JS.API.STREAM.INFO.{TRANSCRIPTION_STREAM}")));
    let deleted = delete_consumer(&storm).await?;
    sleep(Duration::from_secs(3)).await;
    let log = storm.nats.log();
    let asked = log.iter().filter(|seen| seen.at >= deleted && seen.traffic == NatsTraffic::Pull).count();
    assert!((1..=12).contains(&asked), "asked {asked} times in 3 s");
    assert!(storm.world.consumer().await.is_err(), "nobody could make it again");
    drop(setup);
    timeout(LONG, storm.nats.seen(&NatsTraffic::Delivery, Fate::Passed, deleted)).await?;
    storm.end(calls).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_consumer_is_deleted_while_jobs_are_under_way() -> Outcome {
    let mut storm = Storm::begin(StoreOf::AllWorlds, 2, &[]).await?;
    let calls = storm.end_calls();
    let cues = storm.restarts(1);
    storm.nats.seen(&NatsTraffic::Delivery, Fate::Passed, Instant::now()).await;
    let deleted = delete_consumer(&storm).await?;
    is_mended(&storm, deleted).await?;
    let acting = storm.act(cues);
    storm.acted(acting).await?;
    storm.end(calls).await
}

async fn delete_consumer(storm: &Storm) -> Result<Instant, CrashError> {
    storm.world.jetstream.delete_consumer_from_stream(CONSUMER, TRANSCRIPTION_STREAM).await?;
    Ok(Instant::now())
}

/// Waits until it is there again and hands out calls: all that the stream holds, for it knows nothing of what was done.
async fn is_mended(storm: &Storm, deleted: Instant) -> Outcome {
    wait_until("the consumer is there again", MENDED_WITHIN, || async {
        storm.world.consumer().await.map(|_| ()).map_err(|error| error.to_string())
    })
    .await?;
    let left = MENDED_WITHIN.saturating_sub(deleted.elapsed());
    timeout(left, storm.nats.seen(&NatsTraffic::Delivery, Fate::Passed, deleted)).await?;
    Ok(())
}

/// The servers too come back having forgotten the last 100 ms, so that calls are under way again that were done.
///
/// A restart costs a call that is under way an attempt, and one whose acknowledgement is forgotten as well. More than the five
/// of the default can be used up by ten, which is what `--max-deliver` is for: with it a call may be interrupted every time.
#[tokio::test(flavor = "multi_thread")]
async fn everything_is_restarted_ten_times() -> Outcome {
    const RESTARTS: u32 = 10;
    let mut storm = Storm::begin(StoreOf::ThisWorld, 2, &["--max-deliver=12"]).await?;
    let calls = storm.end_calls();
    for _ in 0..RESTARTS {
        let life = storm.instant() / RESTARTS;
        sleep(life).await;
        storm.restart_everything().await?;
    }
    storm.calls_are_done().await?;
    let deliveries = storm.world.consumer().await?.delivered.consumer_sequence;
    assert!(deliveries > storm.calls(), "{deliveries} deliveries: the restarts interrupted nothing");
    storm.end(calls).await
}
