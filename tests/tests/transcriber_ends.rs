//! Sessions that have no end: `audit` names them, and `audit --repair` ends them as a transcriber does that takes them over.

use std::{error::Error, time::Duration};

use mongodb::bson::{Document, doc};
use serde_json::Value;
use transcript_core::contract::{SESSION_ENDED_SUBJECT, TRANSCRIPTION_STREAM};
use transcript_tests::{
    process_guard::Exit,
    transcriber::{RunningTranscriber, without_nats},
    wait::wait_until,
    world::TestWorld,
};
use transcript_transcriber::document::SESSIONS_COLLECTION;

type Outcome = Result<(), Box<dyn Error>>;

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(60);
const LEASE: [&str; 2] = ["--lease", "1s"];

async fn told(world: &TestWorld, line: &str) -> Result<(Exit, Value), Box<dyn Error>> {
    let command = world.processor("audit").arguments(line.split_whitespace()).argument("--json").start().await?;
    let exit = command.wait(LONG).await?;
    let read = serde_json::from_str(&command.output());
    Ok((exit, read.map_err(|error| format!("{error}: {}{}", command.output(), command.logs()))?))
}

/// Waits until the audit names so many sessions without an end: a lease has to expire first.
async fn without_end(world: &TestWorld, expected: u64) -> Result<Value, Box<dyn Error>> {
    let found = wait_until(format!("{expected} sessions without an end"), LONG, || async {
        let (exit, audit) = told(world, "").await.map_err(|error| error.to_string())?;
        if audit["withoutEnd"]["total"] == expected && audit["toBeEnded"] == 0 {
            let is_good = exit == Exit::Code(0);
            return if is_good == (expected == 0) { Ok(audit) } else { Err(format!("{exit}")) };
        }
        Err(audit.to_string())
    });
    Ok(found.await?)
}

async fn one_to_one(world: &TestWorld, summarised: u64) -> Outcome {
    let clean = wait_until("the audit is clean and nothing is under way", LONG, || async {
        let (exit, audit) = told(world, "").await.map_err(|error| error.to_string())?;
        let is_clean = exit == Exit::Code(0) && audit["underWay"] == 0 && audit["summarised"] == summarised;
        if is_clean { Ok(()) } else { Err(audit.to_string()) }
    });
    Ok(clean.await?)
}

fn keys(names: &Value) -> Vec<&str> {
    let named = names["named"].as_array().map(Vec::as_slice).unwrap_or_default();
    named.iter().filter_map(|name| name["key"].as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_of_transcribers_that_are_dead_for_good_are_ended_and_summarised() -> Outcome {
    let world = TestWorld::start().await?;
    world.processor("setup").run(LONG).await?;
    let command = world.processor("transcriber").arguments(LEASE);
    let one = RunningTranscriber::start(command.clone()).await?;
    let two = RunningTranscriber::start(command).await?;
    let mut sockets = vec![];
    for session in ["s1", "s2"] {
        for transcriber in [&one, &two] {
            let mut client = transcriber.connect("c", session, "").await?;
            client.say("1", "Is anybody there?").await?;
            assert_eq!(client.finalize().await?, 1);
            sockets.push(client);
        }
    }
    let mut silent = one.connect("c", "silent", "").await?;
    silent.finalize().await?;
    assert_eq!(told(&world, "").await?.1["withoutEnd"]["total"], 0, "they are served");
    one.process.kill().await?;
    two.process.kill().await?;

    let audit = without_end(&world, 3).await?;
    assert_eq!(keys(&audit["withoutEnd"]), ["c:s1", "c:s2", "c:silent"]);
    assert_eq!(world.payloads(SESSION_ENDED_SUBJECT).await?.len(), 0);

    let (_, repaired) = told(&world, "--repair").await?;
    assert_eq!((&repaired["repair"]["ended"], &repaired["repair"]["failed"]["total"]), (&3.into(), &0.into()));
    let mut ends = world.payloads(SESSION_ENDED_SUBJECT).await?;
    ends.sort_by_key(|end| end["sessionId"].to_string());
    let counts: Vec<_> = ends.iter().map(|end| end["publishedSegments"].as_u64()).collect();
    assert_eq!(counts, [Some(2), Some(2), Some(0)], "{ends:?}");
    let sessions = world.database().collection::<Document>(SESSIONS_COLLECTION);
    let ended =
        doc! { "state": "ended", "instances": [], "generation": 1_i64, "published.messageId": { "$exists": true } };
    assert_eq!(sessions.count_documents(ended).await?, 3);
    // Once more changes nothing.
    let (_, again) = told(&world, "--repair").await?;
    assert_eq!((&again["repair"]["ended"], world.payloads(SESSION_ENDED_SUBJECT).await?.len()), (&0.into(), 3));

    let processor = world.processor("run").arguments(["--quiet-period", "50ms"]).start_ready(LONG).await?;
    one_to_one(&world, 3).await?;
    assert_eq!(world.notifications().await?.len(), 3);
    processor.terminate().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_is_not_in_the_stream_is_published_unless_the_call_was_processed() -> Outcome {
    let world = TestWorld::start().await?;
    world.processor("setup").run(LONG).await?;
    let delays = ["--end-after-close", "0s"];
    // Nothing is published of the first one, and the end of the second one is lost.
    let alone = RunningTranscriber::start(without_nats(&world).arguments(LEASE).arguments(delays)).await?;
    let published =
        RunningTranscriber::start(world.processor("transcriber").arguments(LEASE).arguments(delays)).await?;
    let sessions = world.database().collection::<Document>(SESSIONS_COLLECTION);
    let processor = world.processor("run").arguments(["--quiet-period", "50ms"]);
    let first = processor.start_ready(LONG).await?;
    for (place, (transcriber, session)) in
        [(&published, "done"), (&published, "lost"), (&alone, "unpublished")].iter().enumerate()
    {
        let mut client = transcriber.connect("c", session, "").await?;
        client.say("1", "Is anybody there?").await?;
        client.finalize().await?;
        client.close().await?;
        wait_until(format!("{session} has ended"), LONG, || async {
            match sessions.count_documents(doc! { "state": "ended" }).await {
                Ok(ended) if ended == place as u64 + 1 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await?;
        if *session == "done" {
            one_to_one(&world, 1).await?;
            first.terminate().await?;
        }
    }
    // As if the stream had kept less than it was told, before any processor saw it; of "done" the summary is there.
    world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?.purge().await?;

    let audit = without_end(&world, 2).await?;
    assert_eq!(keys(&audit["withoutEnd"]), ["c:lost", "c:unpublished"]);
    // The transcribers that run do not look for what has ended.
    let (_, repaired) = told(&world, "--repair").await?;
    assert_eq!((&repaired["repair"]["ended"], &repaired["repair"]["failed"]["total"]), (&2.into(), &0.into()));
    let processor = processor.start_ready(LONG).await?;
    one_to_one(&world, 2).await?;
    assert_eq!(world.summaries().await?.len(), 3);
    assert_eq!(world.payloads(SESSION_ENDED_SUBJECT).await?.len(), 2);
    for process in [&alone.process, &published.process, &processor] {
        process.terminate().await?;
    }
    Ok(())
}
