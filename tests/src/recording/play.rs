//! How each trace comes about.

use std::{fs, time::Duration};

use futures::TryFutureExt;
use mongodb::bson::doc;
use tokio::time::{sleep, timeout};
use transcript_core::contract::{SESSION_ENDED_SUBJECT, SUMMARIES_COLLECTION};
use transcript_trace::Server;

use super::{
    studio::{Studio, Way},
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
/// The ack wait of the studio's processors, and half a second more.
const BEYOND_ACK_WAIT: Duration = Duration::from_secs(2);
/// What no core sees where it is killed while it saves.
const SAVE_LOST: &str = "the summary did not arrive at MongoDB";
/// Late segments.
const LATE: usize = 3;

type Recorded = Result<Trace, CrashError>;

pub(super) async fn plain_call(about: &str) -> Recorded {
    let mut studio = Studio::open(StoreOf::AllWorlds, Way::Straight, &[]).await?;
    studio.start("a").await?;
    studio.play(&transcript("olive-oil")?).await?;
    studio.until_all_is_done().await?;
    studio.close(about).await
}

pub(super) async fn late_segments(about: &str) -> Recorded {
    let mut studio = Studio::open(StoreOf::AllWorlds, Way::Straight, &[TIME_TO_ACT]).await?;
    studio.start("a").await?;
    let call = transcript("festival-lineup")?;
    let (early, late) = call.segments.split_at(call.segments.len() - LATE);
    studio.store(&call.session, early).await?;
    studio.end(&call).await?;
    studio.until("a", "a count", |shown| shown.counts.len() == 1).await?;
    studio.store(&call.session, late).await?;
    studio.until_all_is_done().await?;
    studio.close(about).await
}

pub(super) async fn slow_segments(about: &str) -> Recorded {
    let mut studio = Studio::open(StoreOf::AllWorlds, Way::Straight, &["--settle-rounds=3", TIME_TO_ACT]).await?;
    studio.start("a").await?;
    let call = small_call("slow segments", 8)?;
    let (early, slow) = call.segments.split_at(call.segments.len() - LATE);
    studio.store(&call.session, early).await?;
    studio.end(&call).await?;
    // One after each count but the last. The third does not come in time.
    for (counts, segment) in (1..LATE).zip(slow.chunks(1)) {
        studio.until("a", "the next count", |shown| shown.counts.len() == counts).await?;
        studio.store(&call.session, segment).await?;
    }
    studio.until_all_is_done().await?;
    studio.close(about).await
}

pub(super) async fn lost_segment(about: &str) -> Recorded {
    let mut studio = Studio::open(StoreOf::AllWorlds, Way::Straight, &[]).await?;
    studio.start("a").await?;
    let call = transcript("olive-oil")?;
    studio.store(&call.session, &call.segments[..call.segments.len() - 1]).await?;
    studio.observer.remark("the last segment was lost on its way to MongoDB");
    studio.end(&call).await?;
    studio.until_all_is_done().await?;
    studio.close(about).await
}

pub(super) async fn silent_call(about: &str) -> Recorded {
    let mut studio = Studio::open(StoreOf::AllWorlds, Way::Straight, &[]).await?;
    studio.start("a").await?;
    studio.play(&transcript("nobody-spoke")?).await?;
    studio.until_all_is_done().await?;
    studio.close(about).await
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
    let mut studio = Studio::open(StoreOf::AllWorlds, Way::ThroughProxies, arguments).await?;
    let started = studio.start("a").await?;
    let call = small_call("killed", 8)?;
    let late = if stop == StopPoint::Wait { LATE } else { 0 };
    let (early, late) = call.segments.split_at(call.segments.len() - late);
    studio.store(&call.session, early).await?;
    let fault = stop::Fault::arm(stop, &studio.nats, &studio.mongo);
    studio.end(&call).await?;
    let reached = timeout(WITHIN, stop::reach(stop, &studio.nats, &studio.mongo, started));
    reached.map_err(|_| format!("{stop} was not reached within {WITHIN:?}")).await?;
    // What the servers have seen may not be written yet.
    let unanswered = match stop {
        StopPoint::None | StopPoint::Wait | StopPoint::AfterAck => None,
        StopPoint::BeforeStore => Some("save"),
        StopPoint::AfterStore | StopPoint::AfterNotify => Some("publish"),
        StopPoint::AfterMark => Some("ack"),
    };
    studio
        .until("a", "how far it was", |shown| match (stop, unanswered) {
            (StopPoint::Wait, _) => shown.counts.len() == 1,
            (_, Some(effect)) => shown.unanswered == [effect],
            (_, None) => shown.confirmed("ack") == 1,
        })
        .await?;
    studio.processor("a")?.kill().await?;
    if let Some(remark) = remark(stop) {
        studio.observer.remark(remark);
    }
    cut(&studio);
    drop(fault);
    stop::check(stop, &studio.world, &call).await?;
    studio.store(&call.session, late).await?;
    studio.start("a").await?;
    if stop == StopPoint::AfterAck {
        sleep(BEYOND_ACK_WAIT).await;
    }
    studio.until_all_is_done().await?;
    studio.close(about).await
}

pub(super) async fn deliveries_used_up(about: &str) -> Recorded {
    let mut studio = Studio::open(StoreOf::AllWorlds, Way::ThroughProxies, &["--max-deliver=2"]).await?;
    let call = small_call("used up", 3)?;
    studio.start("a").await?;
    let held = studio.mongo.hold(save());
    studio.play(&call).await?;
    for deliveries in 1..=2 {
        let saves = vec!["save"; deliveries];
        studio.until("a", "a save", |shown| shown.unanswered == saves).await?;
        studio.processor("a")?.kill().await?;
        studio.observer.remark(SAVE_LOST);
        cut(&studio);
        studio.start("a").await?;
    }
    drop(held);
    studio.until("a", "a dead letter", |shown| shown.dead_lettered == 1).await?;
    studio.close(about).await
}

pub(super) async fn mongodb_away(about: &str) -> Recorded {
    // Much less than it is away.
    let mut studio = Studio::open(StoreOf::ThisWorld, Way::Straight, &["--retry-timeout=1s", TIME_TO_ACT]).await?;
    two_calls_in_hand(&mut studio).await?;
    let noticed = async |studio: &Studio| {
        studio.until("a", "that both calls failed twice", |shown| shown.failures("count") >= 4).await
    };
    studio.kill_server(Server::Mongodb, noticed).await?;
    studio.until_all_is_done().await?;
    studio.close(about).await
}

pub(super) async fn nats_away(about: &str) -> Recorded {
    let mut studio = Studio::open(StoreOf::AllWorlds, Way::Straight, &[TIME_TO_ACT]).await?;
    two_calls_in_hand(&mut studio).await?;
    let noticed = async |studio: &Studio| {
        studio.until("a", "that neither is announced", |shown| shown.failures("publish") >= 2).await
    };
    studio.kill_server(Server::Nats, noticed).await?;
    studio.until("a", "that both are announced", |shown| shown.confirmed("ack") >= 2).await?;
    studio.until_all_is_done().await?;
    studio.close(about).await
}

/// One processor, with two calls that it has counted once.
async fn two_calls_in_hand(studio: &mut Studio) -> Result<(), CrashError> {
    studio.start("a").await?;
    for session in ["first", "second"] {
        studio.play(&small_call(session, 4)?).await?;
    }
    studio.until("a", "a count of each call", |shown| shown.counts.len() == 2).await
}

/// `given_back` is how the call that had not begun to save is acknowledged.
pub(super) async fn rollout(arguments: &[&str], given_back: &str, about: &str) -> Recorded {
    let arguments = [arguments, &[TIME_TO_ACT]].concat();
    let mut studio = Studio::open(StoreOf::AllWorlds, Way::ThroughProxies, &arguments).await?;
    studio.start("a").await?;
    let held = studio.mongo.hold(save());
    studio.play(&small_call("saving", 4)?).await?;
    studio.until("a", "a save", |shown| shown.unanswered == ["save"]).await?;
    studio.observer.remark("the summary is held up on its way to MongoDB");
    studio.play(&small_call("settling", 4)?).await?;
    studio.until("a", "the other call", |shown| shown.attempts.len() == 2).await?;
    let asked = studio.processor("a")?.processor().map(|process| process.ask_to_end());
    asked.ok_or("it does not run")??;
    studio.until("a", "what it gives back", |shown| shown.confirmed(given_back) == 1).await?;
    studio.observer.remark("the summary goes on to MongoDB");
    drop(held);
    studio.start("b").await?;
    let first = studio.processor("a")?;
    first.processor().ok_or("it does not run")?.wait(WITHIN).await?;
    // It has ended; this takes note of it.
    first.kill().await?;
    studio.until_all_is_done().await?;
    studio.close(about).await
}

pub(super) async fn frozen_processor(about: &str) -> Recorded {
    let mut studio = Studio::open(StoreOf::AllWorlds, Way::Straight, &[TIME_TO_ACT]).await?;
    studio.start("a").await?;
    studio.play(&small_call("frozen", 4)?).await?;
    studio.until("a", "the call", |shown| shown.attempts.len() == 1).await?;
    studio.start("b").await?;
    studio.until("a", "a count", |shown| shown.counts.len() == 1).await?;
    studio.processor("a")?.freeze().await?;
    studio.until("b", "that the call is done", |shown| shown.confirmed("ack") == 1).await?;
    studio.processor("a")?.thaw().await?;
    studio.until("a", "that it is done there too", |shown| shown.confirmed("ack") == 1).await?;
    studio.until_all_is_done().await?;
    studio.close(about).await
}

pub(super) async fn poisoned_payload(about: &str) -> Recorded {
    let mut studio = Studio::open(StoreOf::AllWorlds, Way::Straight, &[]).await?;
    studio.start("a").await?;
    let poison = fs::read(fixture("messages/refused/no-session-id.json"))?;
    studio.world.publish(SESSION_ENDED_SUBJECT, poison).await?;
    studio.play(&Call::of("a:b", "c:d", 4)?).await?;
    studio.until_all_is_done().await?;
    studio.close(about).await
}

pub(super) async fn refused_summary(about: &str) -> Recorded {
    let mut studio = Studio::open(StoreOf::AllWorlds, Way::Straight, &[]).await?;
    let few = doc! { "segments": { "$lt": 5 } };
    studio.world.database().create_collection(SUMMARIES_COLLECTION).validator(few).await?;
    studio.observer.remark("MongoDB was told to take no summary of five segments or more");
    studio.start("a").await?;
    studio.play(&small_call("refused", 8)?).await?;
    studio.play(&small_call("beside", 4)?).await?;
    studio.until_all_is_done().await?;
    studio.close(about).await
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
fn cut(studio: &Studio) {
    studio.nats.cut();
    studio.mongo.cut();
}
