//! What a processor takes for proof, on real servers: neither what it read before it stood still, nor what a secondary tells, nor
//! a notification that tells less than is stored.

use std::time::Duration;

use mongodb::{
    Client,
    bson::{Document, doc},
};
use tokio::time::Instant;
use transcript_core::contract::{PROCESSED_SUBJECT, REVISED_SUBJECT, SEGMENTS_COLLECTION, TRANSCRIPTION_STREAM};
use transcript_tests::{
    by_hand,
    calls::Call,
    processor::Processor,
    proxy::{Fate, NatsProxy, NatsTraffic},
    servers::{Mongod, NatsOptions},
    wait::wait_until,
    world::TestWorld,
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(120);
const SHORT: [&str; 4] = ["--quiet-period", "100ms", "--ack-wait", "3s"];

async fn notifications(world: &TestWorld, processor: &Processor, count: usize) -> Outcome {
    wait_until(format!("{count} notifications"), LONG, || async {
        let stored = world.notifications().await.map_err(|error| error.to_string())?.len();
        if stored == count { Ok(()) } else { Err(format!("{stored}: {}", processor.logs())) }
    })
    .await?;
    Ok(())
}

/// The process is stopped with its notification on the way, which is lost. Another one announces the call, and the stream
/// forgets that. What the first one sends when it goes on must not be the notification.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_stood_still_beyond_the_window_announces_nothing_again() -> Outcome {
    let world = TestWorld::start().await?;
    let arguments =
        ["--quiet-period", "100ms", "--ack-wait", "2s", "--duplicate-window", "12s", "--request-timeout", "1s"];
    let proxy = NatsProxy::start(world.nats.process().address()).await?;
    let held = proxy.hold(NatsTraffic::to(PROCESSED_SUBJECT));
    let command = world.processor("run").arguments(arguments);
    let stopped = command.clone().environment("NATS_URL", proxy.url()).start_ready(LONG).await?;
    let call = Call::of("conversation", "session", 3)?;
    world.insert_segments(&call.segments).await?;
    world.publish_session_end(&call.session, 3).await?;
    proxy.held().await;
    stopped.freeze().await?;
    let other = command.start_ready(LONG).await?;
    notifications(&world, &other, 1).await?;
    other.logged("summarised and announced", LONG).await?;
    // What the stream forgets after the notification was announced later.
    by_hand::publish_until_forgotten(&world, LONG).await?;
    // What it had sent is lost with its connection.
    proxy.cut();
    drop(held);
    stopped.thaw().await?;
    // It asks for more once it has seen to what it had in hand.
    let next = Call::of("conversation", "next", 0)?;
    other.terminate().await?;
    world.publish_session_end(&next.session, 0).await?;
    notifications(&world, &stopped, 2).await?;
    stopped.terminate().await?;
    let all = world.notifications().await?;
    let of_the_call = all.iter().filter(|it| it.notification.session == call.session).count();
    assert_eq!(of_the_call, 1, "{all:?}: {}", stopped.logs());
    Ok(())
}

/// Killed between the notification and the mark; a segment comes before the next run.
#[tokio::test(flavor = "multi_thread")]
async fn a_segment_between_the_notification_and_the_mark_makes_a_revision() -> Outcome {
    let world = TestWorld::start().await?;
    let proxy = NatsProxy::start(world.nats.process().address()).await?;
    let notification = NatsTraffic::to(PROCESSED_SUBJECT);
    let lost = proxy.discard(notification.clone().answer());
    let begun = Instant::now();
    let command = world.processor("run").arguments(SHORT).argument("--revise");
    let killed = command.clone().environment("NATS_URL", proxy.url()).start_ready(LONG).await?;
    let mut call = Call::of("conversation", "session", 3)?;
    let late = call.segments.split_off(2);
    world.insert_segments(&call.segments).await?;
    world.publish_session_end(&call.session, 3).await?;
    proxy.seen(&notification.answer(), Fate::Discarded, begun).await;
    killed.kill().await?;
    drop(lost);
    world.insert_segments(&late).await?;
    let processor = command.start_ready(LONG).await?;
    let stream = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?;
    let told = wait_until("the difference is announced", LONG, || async {
        let told = stream.get_last_raw_message_by_subject(REVISED_SUBJECT).await;
        told.map_err(|error| format!("{error}: {}", processor.logs()))
    })
    .await?;
    assert_eq!(
        String::from_utf8_lossy(&told.payload),
        r#"{"key":"conversation:session","conversationId":"conversation","sessionId":"session","segments":3,"complete":true,"revision":2}"#
    );
    let first = world.notifications().await?;
    assert_eq!(first.iter().map(|it| it.notification.segments).collect::<Vec<_>>(), [2]);
    let summary = wait_until("the revision is marked", LONG, || async {
        let summary = world.summary(&call.session.key()).await.map_err(|error| error.to_string())?;
        summary.filter(|summary| summary.contains_key("revised")).ok_or_else(|| processor.logs())
    })
    .await?;
    assert_eq!(summary.get_i64("segments")?, 3, "{summary}");
    processor.terminate().await?;
    Ok(())
}

/// The secondary has three of five segments of each call, and the connection string asks for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_secondary_that_lags_is_not_believed() -> Outcome {
    let primary = Mongod::replica_set().await?;
    let secondary = primary.add_secondary().await?;
    let world = TestWorld::start_on(primary, NatsOptions::default()).await?;
    let mut calls = vec![];
    let mut late = vec![];
    for number in 0..5 {
        let mut call = Call::of("conversation", &format!("session {number}"), 5)?;
        late.push(call.segments.split_off(3));
        world.insert_segments(&call.segments).await?;
        calls.push(call);
    }
    let behind = Client::with_uri_str(secondary.direct_uri()).await?;
    let segments = behind.database(world.database().name()).collection::<Document>(SEGMENTS_COLLECTION);
    wait_until("the secondary has them", LONG, || async {
        let found = segments.count_documents(doc! {}).await.map_err(|error| error.to_string())?;
        if found == 15 { Ok(()) } else { Err(format!("{found}")) }
    })
    .await?;
    let stop = doc! { "configureFailPoint": "rsSyncApplyStop", "mode": "alwaysOn" };
    behind.database("admin").run_command(stop).await?;
    for segments in &late {
        world.insert_segments(segments).await?;
    }
    let asked = format!("{}&readPreference=secondary", world.mongodb_uri());
    let command = world.processor("run").arguments(SHORT).arguments(["--mongodb-uri", &asked]);
    let processor = command.start_ready(LONG).await?;
    for call in &calls {
        world.publish_session_end(&call.session, 5).await?;
    }
    notifications(&world, &processor, calls.len()).await?;
    assert_eq!(segments.count_documents(doc! {}).await?, 15, "the secondary lags");
    for told in world.notifications().await? {
        assert_eq!((told.notification.segments, told.notification.complete), (5, true), "{told:?}");
    }
    processor.terminate().await?;
    Ok(())
}
