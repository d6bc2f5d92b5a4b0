//! How each trace comes about.

use std::{fs, time::Duration};

use futures::TryFutureExt;
use mongodb::bson::doc;
use tokio::time::{sleep, timeout};
use transcript_core::contract::{SESSION_ENDED_SUBJECT, SUMMARIES_COLLECTION};
use transcript_trace::Server;

use super::{
    recorded_world::{RecordedWorld, Way},
    trace::Trace,
};
use crate::{
    calls::{Call, fixture},
    crash::{CrashError, StopPoint, stop},
    proxy::MongoTraffic,
    world::StoreOf,
};

/// How long anything may take. Reached only where something is broken.
const WITHIN: Duration = Duration::from_secs(60);
/// For a call to which something is done between two counts, also on a busy machine.
const TIME_TO_ACT: &str = "--quiet-period=1s";
/// The ack wait of the recorded world's processors, and half a second more.
const BEYOND_ACK_WAIT: Duration = Duration::from_secs(2);
/// What no core sees where it is killed while it saves.
const SAVE_LOST: &str = "the summary did not arrive at MongoDB";
/// Late segments.
const LATE: usize = 3;

type Recorded = Result<Trace, CrashError>;

pub(super) async fn plain_call(about: &str) -> Recorded {
    let mut world = RecordedWorld::open(StoreOf::AllWorlds, Way::Straight, &[]).await?;
    world.start("a").await?;
    world.play(&transcript("olive-oil")?).await?;
    world.until_all_is_done().await?;
    world.close(about).await
}

pub(super) async fn late_segments(about: &str) -> Recorded {
    let mut world = RecordedWorld::open(StoreOf::AllWorlds, Way::Straight, &[TIME_TO_ACT]).await?;
    world.start("a").await?;
    let call = transcript("festival-lineup")?;
    let (early, late) = call.segments.split_at(call.segments.len() - LATE);
    world.store(&call.session, early).await?;
    world.end(&call).await?;
    world.until("a", "a count", |shown| shown.counts.len() == 1).await?;
    world.store(&call.session, late).await?;
    world.until_all_is_done().await?;
    world.close(about).await
}

pub(super) async fn slow_segments(about: &str) -> Recorded {
    let mut world = RecordedWorld::open(StoreOf::AllWorlds, Way::Straight, &["--settle-rounds=3", TIME_TO_ACT]).await?;
    world.start("a").await?;
    let call = small_call("slow segments", 8)?;
    let (early, slow) = call.segments.split_at(call.segments.len() - LATE);
    world.store(&call.session, early).await?;
    world.end(&call).await?;
    // One after each count but the last. The third does not come in time.
    for (counts, segment) in (1..LATE).zip(slow.chunks(1)) {
        world.until("a", "the next count", |shown| shown.counts.len() == counts).await?;
        world.store(&call.session, segment).await?;
    }
    world.until_all_is_done().await?;
    world.close(about).await
}

pub(super) async fn lost_segment(about: &str) -> Recorded {
    let mut world = RecordedWorld::open(StoreOf::AllWorlds, Way::Straight, &[]).await?;
    world.start("a").await?;
    let call = transcript("olive-oil")?;
    world.store(&call.session, &call.segments[..call.segments.len() - 1]).await?;
    world.observer.remark("the last segment was lost on its way to MongoDB");
    world.end(&call).await?;
    world.until_all_is_done().await?;
    world.close(about).await
}

pub(super) async fn silent_call(about: &str) -> Recorded {
    let mut world = RecordedWorld::open(StoreOf::AllWorlds, Way::Straight, &[]).await?;
    world.start("a").await?;
    world.play(&transcript("nobody-spoke")?).await?;
    world.until_all_is_done().await?;
    world.close(about).await
}

/// What no core sees where it is killed.
pub(super) fn remark(stop: StopPoint) -> Option<&'static str> {
    match stop {
        StopPoint::None | StopPoint::Wait | StopPoint::AfterAck => None,
        StopPoint::BeforeStore => Some(SAVE_LOST),
        StopPoint::AfterStore => Some("the notification did not arrive at NATS"),
        StopPoint::AfterNotify => Some("the notification arrived at NATS, and its answer was lost"),
        StopPoint::AfterMark => Some("the acknowledgement did not arrive at NATS"),
    }
}

pub(super) async fn killed(stop: StopPoint, about: &str) -> Recorded {
    let arguments = if stop == StopPoint::Wait { &[TIME_TO_ACT][..] } else { &[] };
    let mut world = RecordedWorld::open(StoreOf::AllWorlds, Way::ThroughProxies, arguments).await?;
    let started = world.start("a").await?;
    let call = small_call("killed", 8)?;
    let late = if stop == StopPoint::Wait { LATE } else { 0 };
    let (early, late) = call.segments.split_at(call.segments.len() - late);
    world.store(&call.session, early).await?;
    let fault = stop::Fault::arm(stop, &world.nats, &world.mongo);
    world.end(&call).await?;
    let reached = timeout(WITHIN, stop::reach(stop, &world.nats, &world.mongo, started));
    reached.map_err(|_| format!("{stop} was not reached within {WITHIN:?}")).await?;
    // What the servers have seen may not be written yet.
    let unanswered = match stop {
        StopPoint::None | StopPoint::Wait | StopPoint::AfterAck => None,
        StopPoint::BeforeStore => Some("save"),
        StopPoint::AfterStore | StopPoint::AfterNotify => Some("publish"),
        StopPoint::AfterMark => Some("ack"),
    };
    world
        .until("a", "how far it was", |shown| match (stop, unanswered) {
            (StopPoint::Wait, _) => shown.counts.len() == 1,
            (_, Some(effect)) => shown.unanswered == [effect],
            (_, None) => shown.confirmed("ack") == 1,
        })
        .await?;
    world.processor("a")?.kill().await?;
    if let Some(remark) = remark(stop) {
        world.observer.remark(remark);
    }
    cut(&world);
    drop(fault);
    stop::check(stop, &world.world, &call).await?;
    world.store(&call.session, late).await?;
    world.start("a").await?;
    if stop == StopPoint::AfterAck {
        sleep(BEYOND_ACK_WAIT).await;
    }
    world.until_all_is_done().await?;
    world.close(about).await
}

pub(super) async fn deliveries_used_up(about: &str) -> Recorded {
    let mut world = RecordedWorld::open(StoreOf::AllWorlds, Way::ThroughProxies, &["--max-deliver=2"]).await?;
    let call = small_call("used up", 3)?;
    world.start("a").await?;
    // Each start tries whether it may write, so the saves are held only from then on.
    let mut held = world.mongo.hold(save());
    world.play(&call).await?;
    for deliveries in 1..=2 {
        let saves = vec!["save"; deliveries];
        world.until("a", "a save", |shown| shown.unanswered == saves).await?;
        world.processor("a")?.kill().await?;
        world.observer.remark(SAVE_LOST);
        cut(&world);
        drop(held);
        world.start("a").await?;
        held = world.mongo.hold(save());
    }
    drop(held);
    world.until("a", "a dead letter", |shown| shown.dead_lettered == 1).await?;
    world.close(about).await
}

pub(super) async fn mongodb_away(about: &str) -> Recorded {
    // Much less than it is away.
    let mut world =
        RecordedWorld::open(StoreOf::ThisWorld, Way::Straight, &["--retry-timeout=5s", TIME_TO_ACT]).await?;
    two_calls_in_hand(&mut world).await?;
    let noticed = async |world: &RecordedWorld| {
        world.until("a", "that both calls failed for longer than that", |shown| shown.failures("count") >= 8).await
    };
    world.kill_server(Server::Mongodb, noticed).await?;
    world.until_all_is_done().await?;
    world.close(about).await
}

pub(super) async fn nats_away(about: &str) -> Recorded {
    let mut world = RecordedWorld::open(StoreOf::AllWorlds, Way::Straight, &[TIME_TO_ACT]).await?;
    two_calls_in_hand(&mut world).await?;
    let noticed = async |world: &RecordedWorld| {
        // What is not answered in time is asked for again.
        world.until("a", "that neither is announced", |shown| shown.without_answer("publish") >= 4).await
    };
    world.kill_server(Server::Nats, noticed).await?;
    world.until("a", "that both are announced", |shown| shown.confirmed("ack") >= 2).await?;
    world.until_all_is_done().await?;
    world.close(about).await
}

/// One processor, with two calls that it has counted once.
async fn two_calls_in_hand(world: &mut RecordedWorld) -> Result<(), CrashError> {
    world.start("a").await?;
    for session in ["first", "second"] {
        world.play(&small_call(session, 4)?).await?;
    }
    world.until("a", "a count of each call", |shown| shown.counts.len() == 2).await
}

/// `given_back` is how the call that had not begun to save is acknowledged.
pub(super) async fn rollout(arguments: &[&str], given_back: &str, about: &str) -> Recorded {
    // The save is held for longer than the requests of the other worlds may take.
    let arguments = [arguments, &[TIME_TO_ACT, "--request-timeout=20s"]].concat();
    let mut world = RecordedWorld::open(StoreOf::AllWorlds, Way::ThroughProxies, &arguments).await?;
    world.start("a").await?;
    let held = world.mongo.hold(save());
    world.play(&small_call("saving", 4)?).await?;
    world.until("a", "a save", |shown| shown.unanswered == ["save"]).await?;
    world.observer.remark("the summary is held up on its way to MongoDB");
    world.play(&small_call("settling", 4)?).await?;
    world.until("a", "the other call", |shown| shown.attempts.len() == 2).await?;
    let asked = world.processor("a")?.processor().map(|process| process.ask_to_end());
    asked.ok_or("it does not run")??;
    world.until("a", "what it gives back", |shown| shown.confirmed(given_back) == 1).await?;
    world.observer.remark("the summary goes on to MongoDB");
    drop(held);
    world.start("b").await?;
    let first = world.processor("a")?;
    first.processor().ok_or("it does not run")?.wait(WITHIN).await?;
    // It has ended; this takes note of it.
    first.kill().await?;
    world.until_all_is_done().await?;
    world.close(about).await
}

pub(super) async fn frozen_processor(about: &str) -> Recorded {
    let mut world = RecordedWorld::open(StoreOf::AllWorlds, Way::Straight, &[TIME_TO_ACT]).await?;
    world.start("a").await?;
    world.play(&small_call("frozen", 4)?).await?;
    world.until("a", "the call", |shown| shown.attempts.len() == 1).await?;
    world.start("b").await?;
    world.until("a", "a count", |shown| shown.counts.len() == 1).await?;
    world.processor("a")?.freeze().await?;
    world.until("b", "that the call is done", |shown| shown.confirmed("ack") == 1).await?;
    world.processor("a")?.thaw().await?;
    world.until("a", "that it is done there too", |shown| shown.confirmed("ack") == 1).await?;
    world.until_all_is_done().await?;
    world.close(about).await
}

pub(super) async fn poisoned_payload(about: &str) -> Recorded {
    let mut world = RecordedWorld::open(StoreOf::AllWorlds, Way::Straight, &[]).await?;
    world.start("a").await?;
    let poison = fs::read(fixture("messages/refused/no-session-id.json"))?;
    world.world.publish(SESSION_ENDED_SUBJECT, poison).await?;
    world.play(&Call::of("a:b", "c:d", 4)?).await?;
    world.until_all_is_done().await?;
    world.close(about).await
}

pub(super) async fn refused_summary(about: &str) -> Recorded {
    let mut world = RecordedWorld::open(StoreOf::AllWorlds, Way::Straight, &[]).await?;
    let few = doc! { "segments": { "$lt": 5 } };
    world.world.database().create_collection(SUMMARIES_COLLECTION).validator(few).await?;
    world.observer.remark("MongoDB was told to take no summary of five segments or more");
    world.start("a").await?;
    world.play(&small_call("refused", 8)?).await?;
    world.play(&small_call("beside", 4)?).await?;
    world.until_all_is_done().await?;
    world.close(about).await
}

/// A call of `fixtures/transcripts`.
fn transcript(name: &str) -> Result<Call, CrashError> {
    Ok(Call::read(&fixture("transcripts").join(name).with_extension("ndjson"))?)
}

/// A call that is read at a glance.
fn small_call(session: &str, segments: u32) -> Result<Call, CrashError> {
    Ok(Call::of("conversation", session, segments)?)
}

/// The command that stores summaries.
fn save() -> MongoTraffic {
    MongoTraffic::command("update", SUMMARIES_COLLECTION)
}

/// Loses what is on its way.
fn cut(world: &RecordedWorld) {
    world.nats.cut();
    world.mongo.cut();
}
