//! The order of a call, and changes of its segments: from documents, and through the transcriber.

use std::{error::Error, time::Duration};

use mongodb::bson::{Bson, Document, doc};
use serde_json::json;
use transcript_core::{
    contract::REVISED_SUBJECT,
    ids::{Key, Session},
};
use transcript_tests::{processor::Processor, transcriber::RunningTranscriber, wait::wait_until, world::TestWorld};

type Outcome = Result<(), Box<dyn Error>>;

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(120);
/// Segments that make some pages, where a page has four.
const SEGMENTS: i64 = 12;
const SHORT: [&str; 4] = ["--quiet-period", "100ms", "--ack-wait", "3s"];

/// The summary, once it fits.
async fn summary(
    world: &TestWorld,
    processor: &Processor,
    key: &Key,
    fits: impl Fn(&Document) -> bool,
) -> Result<Document, Box<dyn Error>> {
    Ok(wait_until("the summary is stored", LONG, || async {
        let found = world.summary(key).await.map_err(|error| error.to_string())?;
        let is_there = found.as_ref().is_some_and(|summary| summary.contains_key("notified") && fits(summary));
        found.clone().filter(|_| is_there).ok_or_else(|| format!("{found:?}: {}", processor.logs()))
    })
    .await?)
}

/// The questions, in the order of the call.
fn questions(summary: &Document) -> Vec<String> {
    let questions = summary.get_array("questions").map(Vec::as_slice).unwrap_or_default();
    questions.iter().filter_map(|question| Some(question.as_document()?.get_str("text").ok()?.to_owned())).collect()
}

/// A segment that asks its own name, on the session's clock.
fn segment(session: &str, index: i64, start: impl Into<Bson>) -> Document {
    doc! {
        "_id": format!("{session}:{index}"), "conversationId": "c", "sessionId": session, "index": index,
        "text": format!("{index}?"), "startMs": start.into(), "onSessionClock": true,
    }
}

/// Overlapping speakers: who speaks longest is stored last, some start together, and starts go down where indexes go up.
fn starts() -> impl Iterator<Item = (i64, i64)> {
    (0..SEGMENTS).map(|index| (index, if index == SEGMENTS - 1 { 0 } else { 60_000 - (index / 3) * 1_000 }))
}

fn by_start() -> Vec<String> {
    let mut order: Vec<(i64, i64)> = starts().map(|(index, start)| (start, index)).collect();
    order.sort_unstable();
    order.into_iter().map(|(_, index)| format!("{index}?")).collect()
}

fn by_index() -> Vec<String> {
    (0..SEGMENTS).map(|index| format!("{index}?")).collect()
}

/// What takes a segment off the session's clock, by its name.
fn blemishes() -> [(&'static str, Document); 8] {
    [
        ("no mark", doc! { "onSessionClock": Bson::Null }),
        ("a mark that says no", doc! { "onSessionClock": false }),
        ("a mark that is a text", doc! { "onSessionClock": "true" }),
        ("a mark in an array", doc! { "onSessionClock": [true] }),
        ("no start", doc! { "startMs": Bson::Null }),
        ("a start that is a decimal", doc! { "startMs": Bson::Decimal128("5".parse().expect("a decimal")) }),
        ("a start in an array", doc! { "startMs": [5] }),
        ("a start beyond all", doc! { "startMs": 1e300 }),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_by_start_where_each_start_is_on_the_sessions_clock_and_by_index_otherwise() -> Outcome {
    let world = TestWorld::start().await?;
    world.processor("setup").run(LONG).await?;
    let mut calls = vec![("marked".to_owned(), by_start())];
    let all = |session: &str| starts().map(|(index, start)| segment(session, index, start)).collect::<Vec<_>>();
    world.segments().insert_many(all("marked")).await?;
    for (name, blemish) in blemishes() {
        let mut segments = all(name);
        segments[5].extend(blemish);
        world.segments().insert_many(segments).await?;
        calls.push((name.to_owned(), by_index()));
    }
    // Doubles and whole numbers are compared as numbers.
    let mut mixed = all("numbers");
    mixed[0].insert("startMs", 59_999.5);
    world.segments().insert_many(mixed).await?;
    let mut order = by_start();
    order.retain(|text| text != "0?");
    order.insert(order.iter().position(|text| text == "1?").ok_or("it is there")?, "0?".to_owned());
    calls.push(("numbers".to_owned(), order));

    // As whole calls, and in pages.
    for page in ["1000", "4", "1"] {
        world.database().collection::<Document>("transcriptsummaries").delete_many(doc! {}).await?;
        let settings = ["--page-size", page, "--quiet-period", "0s", "--ack-wait", "3s"];
        let processor = world.processor("run").arguments(settings).start_ready(LONG).await?;
        for (session, _) in &calls {
            world.publish_session_end(&Session::new("c", session)?, u64::try_from(SEGMENTS)?).await?;
        }
        for (session, expected) in &calls {
            let key = Session::new("c", session)?.key();
            let stored = summary(&world, &processor, &key, |_| true).await?;
            assert_eq!(questions(&stored), *expected, "{session}, {page} segments a page");
            assert_eq!(stored.get_i64("segments")?, SEGMENTS, "{session}, {page} segments a page");
        }
        processor.terminate().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_transcriber_stores_is_summed_up_in_the_order_of_speech_and_again_after_a_change() -> Outcome {
    let world = TestWorld::start().await?;
    world.processor("setup").argument("--revise").run(LONG).await?;
    let revise = ["--page-size", "2", "--revise", "--revise-every", "200ms"];
    let processor = world.processor("run").arguments(SHORT).arguments(revise).start_ready(LONG).await?;
    let delays = ["--end-after-close", "300ms", "--end-after-break", "30s", "--lease", "1s"];
    let transcriber = RunningTranscriber::start(world.processor("transcriber").arguments(delays)).await?;
    let said =
        |id: &str, text: &str, start: i64| json!({ "id": id, "text": text, "startMs": start, "endMs": start + 500 });

    let mut tom = transcriber.connect("c", "s", "?speaker=Tom&client=tom&epoch=1").await?;
    let mut ana = transcriber.connect("c", "s", "?speaker=Ana").await?;
    ana.send(&said("a", "second?", 20_000)).await?;
    ana.finalize().await?;
    ana.break_off()?;
    // Her engine counts from 0 again; the new connection is some milliseconds younger than the first one.
    let mut ana = transcriber.connect("c", "s", "?speaker=Ana").await?;
    ana.send(&said("a", "third?", 40_000)).await?;
    ana.send(&said("b", "fourth?", 60_000)).await?;
    ana.finalize().await?;
    // He has spoken all the time.
    tom.send(&said("t", "first?", 1_000)).await?;
    tom.finalize().await?;
    ana.close().await?;
    tom.close().await?;

    let key = Session::new("c", "s")?.key();
    let stored = summary(&world, &processor, &key, |_| true).await?;
    assert_eq!(questions(&stored), ["first?", "second?", "third?", "fourth?"]);
    assert!(!stored.contains_key("edits"), "{stored}");

    // The same id of the same epoch, after the summary: it says something else, and was said last.
    let mut tom = transcriber.connect("c", "s", "?speaker=Tom&client=tom&epoch=1").await?;
    tom.send(&said("t", "last?", 70_000)).await?;
    tom.finalize().await?;
    let changed = |summary: &Document| summary.get_document("revised").is_ok();
    let stored = summary(&world, &processor, &key, changed).await?;
    assert_eq!(questions(&stored), ["second?", "third?", "fourth?", "last?"]);
    assert_eq!((stored.get_i64("segments")?, stored.get_i64("edits")?), (4, 1));
    let told = world.payloads(REVISED_SUBJECT).await?;
    let revision = json!({
        "key": "c:s", "conversationId": "c", "sessionId": "s", "segments": 4, "complete": true, "edits": 1,
        "revision": 2,
    });
    assert_eq!(told, [revision]);
    tom.close().await?;
    transcriber.process.terminate().await?;
    processor.terminate().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_after_the_summary_makes_it_stale_and_a_repair_has_it_made_anew() -> Outcome {
    let world = TestWorld::start().await?;
    let processor = world.processor("run").arguments(SHORT).start_ready(LONG).await?;
    let session = Session::new("c", "s")?;
    world.segments().insert_many((0..3).map(|index| segment("s", index, index))).await?;
    world.publish_session_end(&session, 3).await?;
    assert_eq!(questions(&summary(&world, &processor, &session.key(), |_| true).await?), ["0?", "1?", "2?"]);
    wait_until("the end is acknowledged", LONG, || async {
        let open = world.consumer().await.map_err(|error| error.to_string())?.num_ack_pending;
        if open == 0 { Ok(()) } else { Err(open.to_string()) }
    })
    .await?;
    let one = doc! { "_id": "s:1" };
    world.segments().update_one(one.clone(), doc! { "$set": { "text": "one?" }, "$inc": { "edits": 1 } }).await?;
    let audit = world.processor("audit").argument("--json").start().await?;
    audit.wait(LONG).await?;
    let found: serde_json::Value = serde_json::from_str(&audit.output())?;
    assert_eq!(found["stale"]["total"], 1, "{found}");
    assert_eq!(found["stale"]["named"][0]["edits"], 1, "{found}");
    world.processor("audit").argument("--repair").start().await?.wait(LONG).await?;
    let changed = |summary: &Document| summary.get_i64("edits").is_ok();
    let stored = summary(&world, &processor, &session.key(), changed).await?;
    assert_eq!(questions(&stored), ["0?", "one?", "2?"]);
    assert_eq!((stored.get_i64("edits")?, stored.get_i32("revision")?), (1, 2));
    processor.terminate().await?;
    Ok(())
}
