//! What `audit` and `dead-letters` find in messages that no client can take, in marks that are wrong, and in ends that can
//! never be processed, on real servers.

use std::time::Duration;

use async_nats::jetstream::consumer::{DeliverPolicy, pull};
use mongodb::bson::doc;
use serde_json::{Value, json};
use transcript_core::{
    contract::{
        Announcement, CONSUMER, DEAD_LETTER_SUBJECT, PROCESSED_SUBJECT, SESSION_ENDED_SUBJECT, TRANSCRIPTION_STREAM,
    },
    ids::Session,
};
use transcript_tests::{
    by_hand::{self, Mark},
    calls::Call,
    process_guard::Exit,
    processor::Processor,
    wait::wait_until,
    world::TestWorld,
};

type TestResult = Result<(), Box<dyn std::error::Error>>;
type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

const SOON: Duration = Duration::from_secs(90);
/// Header blocks that nats-server stores, and that async-nats cannot parse or takes for a status of the server.
const BLOCKS: [&[u8]; 9] = [
    b"NATS/1.0\r\nX:\xff\r\n\r\n",
    b"NATS/1.0\r\nno colon\r\n\r\n",
    b"NATS/1.0\r\nwhite space: x\r\n\r\n",
    b"NATS/1.0 503\n\n",
    b"NATS/1.0 404 No Messages\n\n",
    b"NATS/1.0 409 Consumer Deleted\n\n",
    b"NATS/1.0 100 Idle Heartbeat\n\n",
    b"NATS/1.0 none\n\n",
    b"NATS/2.0\r\n\r\n",
];

async fn world() -> Fallible<TestWorld> {
    let world = TestWorld::start().await?;
    world.processor("setup").run(SOON).await?;
    Ok(world)
}

fn session(session_id: &str) -> Session {
    Session::new("room", session_id).expect("the ids are valid")
}

fn ended(session_id: &str) -> Vec<u8> {
    json!({ "conversationId": "room", "sessionId": session_id, "publishedSegments": 1 }).to_string().into_bytes()
}

/// Runs a command and gives how it ended, what it printed, and what it logged.
async fn command(world: &TestWorld, name: &str, line: &str) -> Fallible<(Exit, String, String)> {
    let command = world.processor(name).arguments(line.split_whitespace()).start().await?;
    Ok((command.wait(SOON).await?, command.output(), command.logs()))
}

async fn told(world: &TestWorld, name: &str, line: &str) -> Fallible<(Exit, Value)> {
    let (exit, output, logs) = command(world, name, &format!("{line} --json")).await?;
    Ok((exit, serde_json::from_str(&output).map_err(|error| format!("{error}: {output}{logs}"))?))
}

async fn processor(world: &TestWorld) -> Fallible<Processor> {
    let command = world.processor("run").arguments(["--quiet-period", "50ms", "--ack-wait", "3s"]);
    Ok(command.start_ready(SOON).await?)
}

/// A world whose streams are there, and whose consumer is not yet.
async fn without_consumer() -> Fallible<TestWorld> {
    let world = TestWorld::start().await?;
    world.create_streams().await?;
    Ok(world)
}

/// A consumer that has everything behind it that is in the stream, as after a processor that has terminated what it could
/// not use.
async fn everything_was_handed_out(world: &TestWorld) -> TestResult {
    let consumer = pull::Config {
        durable_name: Some(CONSUMER.to_owned()),
        filter_subject: SESSION_ENDED_SUBJECT.to_owned(),
        deliver_policy: DeliverPolicy::New,
        ..pull::Config::default()
    };
    world.jetstream.create_consumer_on_stream(consumer, TRANSCRIPTION_STREAM).await?;
    Ok(())
}

fn totals(told: &Value, problems: &[&str]) -> Vec<u64> {
    problems.iter().map(|problem| told[*problem]["total"].as_u64().unwrap_or(99)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_no_client_can_take_are_read_past_and_named() -> TestResult {
    let world = without_consumer().await?;
    let mut flawed = vec![];
    for (number, block) in BLOCKS.into_iter().enumerate() {
        for good in 0..20 {
            world.publish(SESSION_ENDED_SUBJECT, ended(&format!("good-{number}-{good}"))).await?;
        }
        let session_id = format!("flawed-{number}");
        flawed.push(by_hand::publish_block(&world, SESSION_ENDED_SUBJECT, block, &ended(&session_id)).await?);
        // A dead letter and a notification of that kind, and one whose payload is no end either.
        flawed.push(by_hand::publish_block(&world, DEAD_LETTER_SUBJECT, block, b"\xff\x00").await?);
        flawed.push(by_hand::publish_block(&world, PROCESSED_SUBJECT, block, &ended(&session_id)).await?);
    }
    let last = world.publish(SESSION_ENDED_SUBJECT, ended("last")).await?;
    everything_was_handed_out(&world).await?;

    let (exit, found) = told(&world, "audit", "").await?;
    assert_eq!(exit, Exit::Code(1));
    let ends = u64::try_from(BLOCKS.len() * 21 + 1)?;
    assert_eq!((found["ended"].as_u64(), found["missing"]["total"].as_u64()), (Some(ends), Some(ends)), "{found}");
    let named = found["unreadableHeaders"]["named"].as_array().ok_or("no names")?;
    let places: Vec<u64> = named.iter().filter_map(|name| name["message"].as_u64()).collect();
    assert_eq!(places, flawed);
    assert_eq!(named[0]["subject"], SESSION_ENDED_SUBJECT);
    assert_eq!(named[0]["error"], "its headers are not UTF-8");
    assert!(found["missing"]["named"].as_array().is_some_and(|named| named.iter().any(|name| name["end"] == last)));
    let (_, page, _) = command(&world, "audit", "").await?;
    assert!(
        page.contains(&format!("    message {} (transcription.session-ended): its headers are", flawed[0])),
        "{page}"
    );

    let (exit, letters) = told(&world, "dead-letters", "list").await?;
    assert_eq!((exit, letters.as_array().map(Vec::len)), (Exit::Code(0), Some(BLOCKS.len())), "{letters}");
    let (exit, letter, _) = command(&world, "dead-letters", &format!("show {}", flawed[1])).await?;
    assert!(exit == Exit::Code(0) && letter.ends_with("\\xff\\x00\n"), "{letter}");
    let (exit, output, _) = command(&world, "dead-letters", &format!("discard {}", flawed[1])).await?;
    assert_eq!((exit, output), (Exit::Code(0), format!("{} discarded\n", flawed[1])));
    let (exit, again) = told(&world, "audit", "--repair").await?;
    assert_eq!((exit, again["repair"]["redriven"].as_u64()), (Exit::Code(1), Some(ends)), "{again}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mark_that_names_another_message_is_found_and_corrected() -> TestResult {
    let world = world().await?;
    let mut ends = vec![];
    for name in ["right", "forged", "removed", "told", "beyond", "other-call"] {
        let call = Call::of("room", name, 1)?;
        world.insert_segments(&call.segments).await?;
        ends.push(i64::try_from(world.publish_session_end(&call.session, 1).await?)?);
    }
    by_hand::acknowledge(&world, ends.len()).await?;
    let announce = async |name: &str| {
        let place = by_hand::announce(&world, &session(name), Announcement::Processed, &format!("{name}-id")).await?;
        Fallible::Ok(i64::try_from(place)?)
    };
    let (right, removed, told_at) = (announce("right").await?, announce("removed").await?, announce("told").await?);
    let stream = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?;
    stream.delete_message(u64::try_from(removed)?).await?;
    let marks = [
        ("right", right),
        // The end of the call itself, published with the id that its notification would have had.
        ("forged", ends[1]),
        ("removed", removed),
        ("told", ends[0]),
        ("beyond", 999_999),
        ("other-call", right),
    ];
    let summaries = marks.map(|(name, place)| by_hand::summary(&session(name), 1, Mark::At(place)));
    by_hand::store(&world, summaries.to_vec()).await?;

    let (exit, found) = told(&world, "audit", "").await?;
    assert_eq!((exit, totals(&found, &["wrongMark", "neverAnnounced", "missing"])), (Exit::Code(1), vec![5, 0, 0]));
    let named = found["wrongMark"]["named"].as_array().ok_or("no names")?;
    assert_eq!(named[0], json!({ "key": "room:beyond", "end": ends[4], "marked": 999_999 }), "{found}");
    assert_eq!(found["announced"], 2, "a wrong mark is no announcement");

    let (exit, repaired) = told(&world, "audit", "--repair").await?;
    assert_eq!(exit, Exit::Code(1));
    let repair = &repaired["repair"];
    assert_eq!((&repair["marksCorrected"], &repair["redriven"]), (&json!(5), &json!(4)), "{repaired}");
    let mark = world.summary(&session("told").key()).await?.ok_or("no summary")?;
    assert_eq!(mark.get_document("notified")?.get_i64("streamSequence")?, told_at);

    let _processor = processor(&world).await?;
    wait_until("all of them are announced once", SOON, || async {
        match told(&world, "audit", "").await {
            Ok((Exit::Code(0), found)) if found["underWay"] == 0 && found["announced"] == 6 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_can_never_be_processed_is_somebodys_business() -> TestResult {
    let world = without_consumer().await?;
    let mut ends = vec![];
    for payload in [&b"hello"[..], b"{}", b"\xff\xfe"] {
        ends.push(world.publish(SESSION_ENDED_SUBJECT, payload.to_vec()).await?);
    }
    everything_was_handed_out(&world).await?;
    let call = Call::of("room", "mended", 1)?;
    world.insert_segments(&call.segments).await?;

    // A processor of an older version terminated them and kept nothing.
    let (exit, found) = told(&world, "audit", "").await?;
    assert_eq!((exit, totals(&found, &["notKept", "deadLetters"])), (Exit::Code(1), vec![3, 0]), "{found}");
    assert_eq!(found["notKept"]["named"][1], json!({ "message": ends[1], "error": "conversationId is missing" }));
    let (_, repaired) = told(&world, "audit", "--repair").await?;
    assert_eq!(repaired["repair"]["kept"], 3);
    let (exit, found) = told(&world, "audit", "").await?;
    assert_eq!((exit, totals(&found, &["notKept", "deadLetters"])), (Exit::Code(1), vec![0, 3]), "{found}");
    let (_, letters) = told(&world, "dead-letters", "list").await?;
    let place = |number: usize| letters[number]["sequence"].as_u64().unwrap_or(0);
    assert_eq!(letters[0]["streamSequence"], ends[0]);
    assert!(letters[0]["reason"].as_str().is_some_and(|reason| reason.starts_with("not JSON")), "{letters}");

    // Two are of no use, and the publisher tells what the third one was to say.
    let (exit, ..) = command(&world, "dead-letters", &format!("discard {} {}", place(0), place(2))).await?;
    assert_eq!(exit, Exit::Code(0));
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("end.json");
    std::fs::write(&file, b"{\"conversationId\":\"room\"}")?;
    let redrive = format!("redrive {} --payload {}", place(1), file.display());
    let (exit, _, logs) = command(&world, "dead-letters", &redrive).await?;
    assert!(exit == Exit::Code(1) && logs.contains("is no end of a call: sessionId is missing"), "{logs}");
    std::fs::write(&file, ended("mended"))?;
    let (exit, output, _) = command(&world, "dead-letters", &redrive).await?;
    assert!(exit == Exit::Code(0) && output.contains("redriven as message"), "{output}");
    let _processor = {
        // The consumer that was made by hand stands for an old one: its deliver policy is not the contract's.
        world.jetstream.delete_consumer_from_stream(CONSUMER, TRANSCRIPTION_STREAM).await?;
        let stream = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?;
        for end in &ends {
            stream.delete_message(*end).await?;
        }
        processor(&world).await?
    };
    wait_until("the audit is green", SOON, || async {
        match told(&world, "audit", "").await {
            Ok((Exit::Code(0), found)) if found["underWay"] == 0 && found["announced"] == 1 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    wait_until("the dead letter is settled", SOON, || async {
        match told(&world, "dead-letters", "list").await {
            Ok((_, letters)) if letters[0]["state"] == "settled" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn incomplete_calls_are_named() -> TestResult {
    let world = world().await?;
    let summaries = (0..30).map(|number| {
        let mut summary = by_hand::summary(&session(&format!("s-{number:02}")), 2, Mark::There);
        summary.extend(doc! { "publishedSegments": 5_i64, "complete": false });
        summary
    });
    by_hand::store(&world, summaries.collect()).await?;
    for number in 0..30 {
        world.publish_session_end(&session(&format!("s-{number:02}")), 5).await?;
    }
    let (exit, found) = told(&world, "audit", "").await?;
    assert_eq!((exit, found["incomplete"]["total"].as_u64()), (Exit::Code(0), Some(30)), "it is no problem: {found}");
    let first = json!({ "key": "room:s-00", "end": 1, "counted": 2, "announced": 5 });
    assert_eq!(found["incomplete"]["named"][0], first);
    let (_, page, _) = command(&world, "audit", "").await?;
    assert!(
        page.contains("incomplete                30\n    room:s-00, ended at 1, 2 segments of 5 announced\n"),
        "{page}"
    );
    assert!(page.contains("    and 10 more\n") && !page.contains("room:s-29"), "{page}");
    let (_, page, _) = command(&world, "audit", "--incomplete").await?;
    assert!(page.contains("    room:s-29, ended at 30, 2 segments of 5 announced\n"), "{page}");
    let (_, page, _) = command(&world, "show", "room s-00").await?;
    assert!(page.contains("2 of 5, INCOMPLETE"), "{page}");
    Ok(())
}
