//! The main job on real servers: one summary and one notification for every call, whatever the call is like.

use std::{collections::BTreeSet, fs, time::Duration};

use futures::StreamExt;
use mongodb::bson::{Bson, Decimal128, Document, doc};
use serde_json::{Value, json};
use tokio::time::Instant;
use transcript_core::{contract::SESSION_ENDED_SUBJECT, event::SessionEnded, ids::Session};
use transcript_tests::{
    calls::{Call, fixture},
    process_guard::Exit,
    servers::Mongod,
    wait::wait_until,
    world::TestWorld,
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(90);
/// Short times, for tests that are not about them.
const SHORT: [&str; 4] = ["--quiet-period", "100ms", "--ack-wait", "3s"];

/// Waits until every message is acknowledged and this many notifications are in the stream.
async fn all_done(world: &TestWorld, notifications: usize) -> Outcome {
    wait_until(format!("{notifications} calls are announced and acknowledged"), LONG, || async {
        let consumer = world.consumer().await.map_err(|error| error.to_string())?;
        let announced = world.notifications().await.map_err(|error| error.to_string())?.len();
        let state = format!(
            "{announced} announced, {} pending, {} not acknowledged",
            consumer.num_pending, consumer.num_ack_pending
        );
        let done = announced >= notifications && consumer.num_pending == 0 && consumer.num_ack_pending == 0;
        if done { Ok(()) } else { Err(state) }
    })
    .await?;
    assert_eq!(world.notifications().await?.len(), notifications);
    Ok(())
}

async fn summary(world: &TestWorld, session: &Session) -> Result<Document, Box<dyn std::error::Error>> {
    Ok(world.summary(&session.key()).await?.ok_or_else(|| format!("no summary of {}", session.key()))?)
}

/// A field of a summary as JSON, to compare.
fn field(summary: &Document, name: &str) -> Value {
    summary.get(name).cloned().map_or(Value::Null, Bson::into_relaxed_extjson)
}

#[tokio::test(flavor = "multi_thread")]
async fn late_segments_are_waited_for_and_lost_ones_are_told() -> Outcome {
    let world = TestWorld::start().await?;
    let processor = world.processor("run").arguments(["--quiet-period", "1s"]).start_ready(LONG).await?;
    let [plain, late, silent] =
        ["olive-oil", "festival-lineup", "nobody-spoke"].map(|name| fixture(&format!("transcripts/{name}.ndjson")));
    world.processor("play").argument(&plain).run(LONG).await?;
    world.processor("play").argument(&late).arguments(["--late", "5", "--late-by", "300ms"]).run(LONG).await?;
    world.processor("play").argument(&silent).run(LONG).await?;
    all_done(&world, 3).await?;
    for file in [&plain, &late, &silent] {
        let call = Call::read(file)?;
        let summary = summary(&world, &call.session).await?;
        let segments = json!(call.segments.len());
        assert_eq!((field(&summary, "segments"), field(&summary, "complete")), (segments.clone(), json!(true)));
        assert_eq!(field(&summary, "publishedSegments"), segments);
        assert!(summary.get_document("notified").is_ok(), "the summary carries its mark");
    }

    let lost = Call::of("conversation", "lost", 12)?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("lost.ndjson");
    let lines = lost.segments.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
    fs::write(&file, lines.join("\n"))?;
    world.processor("play").argument(&file).arguments(["--lose", "3"]).run(LONG).await?;
    all_done(&world, 4).await?;
    let summary = summary(&world, &lost.session).await?;
    assert_eq!(field(&summary, "segments"), json!(9));
    assert_eq!((field(&summary, "publishedSegments"), field(&summary, "complete")), (json!(12), json!(false)));
    let notification = world.notifications().await?.pop().expect("there are four").notification;
    assert_eq!((notification.segments, notification.complete), (9, false));
    processor.terminate().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_published_twice_gives_one_summary_and_one_notification() -> Outcome {
    let world = TestWorld::start().await?;
    let _processor = world.processor("run").arguments(SHORT).start_ready(LONG).await?;
    let file = fixture("transcripts/olive-oil.ndjson");
    world.processor("play").argument(&file).argument("--repeat-end").run(LONG).await?;
    wait_until("both ends are acknowledged", LONG, || async {
        let consumer = world.consumer().await.map_err(|error| error.to_string())?;
        let state = (consumer.ack_floor.consumer_sequence, consumer.num_ack_pending);
        if state == (2, 0) { Ok(()) } else { Err(format!("{state:?}")) }
    })
    .await?;
    all_done(&world, 1).await?;
    assert_eq!(world.summaries().await?.len(), 1);
    assert_eq!(
        world.notifications().await?.pop().and_then(|n| n.id),
        Some(Call::read(&file)?.session.key().to_string())
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_that_can_never_be_processed_are_terminated_with_their_reasons() -> Outcome {
    let world = TestWorld::start().await?;
    let advisory = "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.TRANSCRIPTION.transcript-processor";
    let processor = world.processor("run").arguments(SHORT).start_ready(LONG).await?;
    let mut terminated = world.client.subscribe(advisory).await?;
    world.client.flush().await?;
    let mut payloads = vec![vec![b'x'; 900_000], [b"{\"a\":\"".as_slice(), &[b'y'; 900_000], b"\"}"].concat()];
    for file in fs::read_dir(fixture("messages/refused"))? {
        payloads.push(fs::read(file?.path())?);
    }
    let mut reasons = BTreeSet::new();
    for payload in &payloads {
        let reason = SessionEnded::parse(payload).expect_err("the payload is refused").to_string();
        reasons.insert((world.publish(SESSION_ENDED_SUBJECT, payload.clone()).await?, reason));
    }
    let call = Call::of("conversation", "the next good one", 2)?;
    world.insert_segments(&call.segments).await?;
    world.publish_session_end(&call.session, 2).await?;
    all_done(&world, 1).await?;
    let mut told = BTreeSet::new();
    while told.len() < reasons.len() {
        let message = tokio::time::timeout(LONG, terminated.next()).await?.ok_or("the subscription ended")?;
        let advisory: Value = serde_json::from_slice(&message.payload)?;
        let reason = advisory["reason"].as_str().ok_or("no reason")?.to_owned();
        told.insert((advisory["stream_seq"].as_u64().ok_or("no sequence")?, reason));
    }
    assert_eq!(told, reasons);
    assert_eq!(world.consumer().await?.num_redelivered, 0);
    assert_eq!(processor.exit(), None, "it never stopped");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn unusual_ids_keep_their_sessions_apart_and_are_stored_as_given() -> Outcome {
    let world = TestWorld::start().await?;
    let _processor = world.processor("run").arguments(SHORT).start_ready(LONG).await?;
    let ids = [
        ("a:b", "c"),
        ("a", "b:c"),
        ("a%3Ab", "c2"),
        (" a b ", " c "),
        ("a b", "c\u{a0}"),
        ("🦀.$x", "'\""),
        ("..", "$set"),
        ("line\r\nNats-Msg-Id: x", "tab\t"),
        ("a", "%"),
        ("null", "\0"),
    ];
    let mut sessions = vec![];
    for (number, (conversation, session)) in ids.into_iter().enumerate() {
        let call = Call::of(conversation, session, u32::try_from(number)?)?;
        world.insert_segments(&call.segments).await?;
        world.publish_session_end(&call.session, u64::try_from(number)?).await?;
        sessions.push(call.session);
    }
    all_done(&world, ids.len()).await?;
    for (number, session) in sessions.iter().enumerate() {
        let summary = summary(&world, session).await?;
        assert_eq!(summary.get_str("conversationId")?, &*session.conversation_id);
        assert_eq!(summary.get_str("sessionId")?, &*session.session_id);
        assert_eq!(field(&summary, "segments"), json!(number), "{session:?}");
    }
    let announced: BTreeSet<Session> =
        world.notifications().await?.into_iter().map(|n| n.notification.session).collect();
    assert_eq!(announced, sessions.into_iter().collect());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn unusual_segments_are_summarised_as_they_are() -> Outcome {
    let world = TestWorld::start().await?;
    let _processor = world.processor("run").arguments(SHORT).arguments(["--page-size", "3"]).start_ready(LONG).await?;
    let long = "x".repeat(5_000);
    let labels = ["a.b", "$set", "", &long];
    let mut documents: Vec<Document> = labels
        .iter()
        .enumerate()
        .map(|(index, label)| {
            doc! { "_id": format!("s:{index}"), "sessionId": "s", "index": i32::try_from(index).expect("few"),
            "speaker": *label, "text": "so it is", "unknown": 1 }
        })
        .collect();
    // Without an index, or with one that is shared, they are ordered by start and `_id`; a missing field comes last.
    for (id, start) in [("z", Some(5)), ("y", Some(5)), ("x", None), ("w", Some(1)), ("v", None)] {
        let mut document = doc! { "_id": id, "sessionId": "s", "speaker": id, "text": "one two three four" };
        if let Some(start) = start {
            document.insert("startMs", start);
        }
        documents.push(document.clone());
        document.insert("_id", format!("{id} with an index"));
        document.insert("index", 7_i64);
        document.insert("speaker", format!("{id} with an index"));
        documents.push(document);
    }
    world.segments().insert_many(&documents).await?;
    let session = Session::new("c", "s")?;
    world.publish_session_end(&session, 14).await?;
    all_done(&world, 1).await?;
    let summary = summary(&world, &session).await?;
    assert_eq!((field(&summary, "segments"), field(&summary, "complete")), (json!(14), json!(true)));
    let speakers: Vec<&str> =
        summary.get_array("speakers")?.iter().filter_map(|s| s.as_document()?.get_str("speaker").ok()).collect();
    let tied = ["w", "y", "z", "v", "x"];
    let with_index = tied.map(|id| format!("{id} with an index"));
    let expected: Vec<&str> = with_index.iter().map(String::as_str).chain(tied).chain(labels).collect();
    assert_eq!(speakers, expected, "by words, then by first appearance in the order of the call");
    Ok(())
}

/// Nothing that lies in the collections makes a segment vanish or a call fail, in calls of one page and of many.
#[tokio::test(flavor = "multi_thread")]
async fn documents_of_other_types_are_no_obstacle() -> Outcome {
    let world = TestWorld::start().await?;
    let _processor = world.processor("run").arguments(SHORT).arguments(["--page-size", "4"]).start_ready(LONG).await?;
    let decimal = |number: &str| number.parse::<Decimal128>().map(Bson::Decimal128);
    let indexes: [(&str, Vec<Bson>); 5] = [
        ("decimals", (0..12).map(|n| decimal(&n.to_string())).collect::<Result<_, _>>()?),
        ("one decimal", (0..11).map(Bson::Int32).chain([decimal("1")?]).collect()),
        ("arrays", (0..12).map(|n| Bson::from(vec![n, n + 1])).collect()),
        ("one array", (0..11).map(Bson::Int32).chain([Bson::from(vec![1, 2])]).collect()),
        (
            "a mixture",
            [f64::NAN, f64::INFINITY, 2.5, 1e300]
                .map(Bson::Double)
                .into_iter()
                .chain([Bson::Int64(i64::MAX), Bson::Int64(i64::MAX - 1), Bson::Null, "3".into(), true.into()])
                .chain([Bson::Int32(-1), Bson::Int32(2), Bson::Double(2.0)])
                .collect(),
        ),
    ];
    let mut sessions = vec![];
    for (name, indexes) in indexes {
        for (number, index) in indexes.into_iter().enumerate() {
            let id = format!("{name} {number}");
            world
                .segments()
                .insert_one(doc! { "_id": id, "sessionId": name, "index": index, "text": "a word" })
                .await?;
        }
        // A document of several sessions is none of any.
        let foreign = doc! { "_id": name, "sessionId": [name, "zzz"], "index": 5, "text": "not ours" };
        world.segments().insert_one(foreign).await?;
        sessions.push((Session::new("c", name)?, 12));
    }
    let short = Call::of("c", "short", 4)?;
    world.insert_segments(&short.segments).await?;
    world
        .segments()
        .insert_one(doc! { "_id": "short", "sessionId": ["short", "zzz"], "index": 2, "text": "x" })
        .await?;
    sessions.push((short.session.clone(), 4));
    for (number, stored) in
        ["many".into(), Bson::Double(1.0), decimal("2")?, Bson::Null, true.into()].into_iter().enumerate()
    {
        let call = Call::of("c", &format!("stored before {number}"), 3)?;
        world.insert_segments(&call.segments).await?;
        let before = doc! { "_id": call.session.key().as_str(), "segments": stored };
        world.database().collection::<Document>("transcriptsummaries").insert_one(before).await?;
        sessions.push((call.session, 3));
    }
    for (session, segments) in &sessions {
        world.publish_session_end(session, *segments).await?;
    }
    all_done(&world, sessions.len()).await?;
    for (session, segments) in &sessions {
        let summary = summary(&world, session).await?;
        assert_eq!(
            (field(&summary, "segments"), field(&summary, "complete")),
            (json!(segments), json!(true)),
            "{session:?}"
        );
    }
    for told in world.notifications().await? {
        assert!(told.notification.complete, "{told:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn giant_calls_are_summarised_within_256_mib() -> Outcome {
    let world = TestWorld::start().await?;
    let processor = world.processor("run").arguments(SHORT).start_ready(LONG).await?;
    let long = Call::of("conversation", "fifty thousand", 50_000)?;
    for part in long.segments.chunks(10_000) {
        world.insert_segments(part).await?;
    }
    let mut heavy = Call::of("conversation", "a megabyte each", 40)?;
    for segment in &mut heavy.segments {
        segment.text = "weighty words, ".repeat(70_000);
    }
    for part in heavy.segments.chunks(10) {
        world.insert_segments(part).await?;
    }
    world.publish_session_end(&long.session, 50_000).await?;
    world.publish_session_end(&heavy.session, 40).await?;
    all_done(&world, 2).await?;
    let summary_of_long = summary(&world, &long.session).await?;
    assert_eq!(
        (field(&summary_of_long, "segments"), field(&summary_of_long, "complete")),
        (json!(50_000), json!(true))
    );
    assert_eq!(field(&summary_of_long, "words"), json!(400_000));
    let summary_of_heavy = summary(&world, &heavy.session).await?;
    assert_eq!(field(&summary_of_heavy, "words"), json!(40 * 140_000));
    assert_eq!(field(&summary_of_heavy, "cut")["turns"], json!(3));
    let status = fs::read_to_string(format!("/proc/{}/status", processor.pid()))?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no peak")?;
    let kib: u64 = peak.trim().trim_end_matches(" kB").parse()?;
    assert!(kib < 256 * 1024, "{kib} KiB at the peak");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_without_a_quiet_period_is_delivered_once() -> Outcome {
    burst(&["--quiet-period", "0s"], 200).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_with_the_production_settings_is_delivered_once() -> Outcome {
    burst(&[], 1_000).await
}

async fn burst(settings: &[&str], sessions: usize) -> Outcome {
    let world = TestWorld::start().await?;
    let _processor = world.processor("run").arguments(settings).start_ready(LONG).await?;
    let calls: Vec<Call> =
        (0..sessions).map(|n| Call::of("conversation", &format!("session {n}"), 12)).collect::<Result<_, _>>()?;
    let segments: Vec<_> = calls.iter().flat_map(|call| call.segments.clone()).collect();
    world.insert_segments(&segments).await?;
    for call in &calls {
        world.publish_session_end(&call.session, 12).await?;
    }
    all_done(&world, sessions).await?;
    assert_eq!(world.summaries().await?.len(), sessions);
    assert_eq!(world.consumer().await?.delivered.consumer_sequence, u64::try_from(sessions)?, "no redelivery");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mongod_that_is_no_replica_set_will_do() -> Outcome {
    let world = TestWorld::start_with(Mongod::standalone().await?).await?;
    let _processor = world.processor("run").arguments(SHORT).start_ready(LONG).await?;
    let call = Call::of("conversation", "session", 12)?;
    world.insert_segments(&call.segments).await?;
    world.publish_session_end(&call.session, 12).await?;
    all_done(&world, 1).await?;
    assert_eq!(field(&summary(&world, &call.session).await?, "segments"), json!(12));
    Ok(())
}

/// Both servers away in turn, for longer than the ack wait, in the middle of settling.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_costs_no_call() -> Outcome {
    let mut world = TestWorld::start_with_own_mongod().await?;
    let settings = ["--quiet-period", "1s", "--ack-wait", "1s", "--request-timeout", "1s"];
    let processor = world.processor("run").arguments(settings).start_ready(LONG).await?;
    let calls: Vec<Call> =
        (0..20).map(|n| Call::of("conversation", &format!("session {n}"), 3)).collect::<Result<_, _>>()?;
    for call in &calls {
        world.insert_segments(&call.segments).await?;
        world.publish_session_end(&call.session, 3).await?;
    }
    wait_until("all are delivered", LONG, || async {
        let delivered = world.consumer().await.map_err(|error| error.to_string())?.num_ack_pending;
        if delivered == calls.len() { Ok(()) } else { Err(delivered.to_string()) }
    })
    .await?;
    world.mongod().process().terminate().await?;
    let away = Instant::now();
    wait_until("MongoDB was away for four times the ack wait", LONG, || async {
        let heard = processor.logs();
        let long_enough = away.elapsed() > Duration::from_secs(4);
        if long_enough && heard.contains("MongoDB cannot be used") { Ok(()) } else { Err(heard) }
    })
    .await?;
    let before = world.consumer().await?;
    assert_eq!(before.delivered.consumer_sequence, 20, "heartbeats kept all of them");
    world.mongod().start_again().await?;
    all_done(&world, calls.len()).await?;
    assert_eq!(world.consumer().await?.delivered.consumer_sequence, 20, "no delivery beyond the first");
    assert_eq!(world.summaries().await?.len(), calls.len());
    assert!(processor.logs().contains("MongoDB can be used again"));

    let more: Vec<Call> =
        (20..40).map(|n| Call::of("conversation", &format!("session {n}"), 3)).collect::<Result<_, _>>()?;
    for call in &more {
        world.insert_segments(&call.segments).await?;
        world.publish_session_end(&call.session, 3).await?;
    }
    wait_until("all are delivered", LONG, || async {
        let delivered = world.consumer().await.map_err(|error| error.to_string())?.delivered.consumer_sequence;
        if delivered >= 40 { Ok(()) } else { Err(delivered.to_string()) }
    })
    .await?;
    world.nats.process().terminate().await?;
    let away = Instant::now();
    wait_until("NATS was away for three times the ack wait", LONG, || async {
        if away.elapsed() > Duration::from_secs(3) { Ok(()) } else { Err(processor.logs()) }
    })
    .await?;
    world.nats.start_again().await?;
    all_done(&world, 40).await?;
    assert_eq!(world.summaries().await?.len(), 40);
    Ok(())
}

/// A job that has not begun to save is given back at once, and another processor takes it up.
#[tokio::test(flavor = "multi_thread")]
async fn a_drained_processor_gives_its_jobs_back_at_once() -> Outcome {
    let world = TestWorld::start().await?;
    let settings = ["--quiet-period", "30s", "--ack-wait", "30s"];
    let processor = world.processor("run").arguments(settings).start_ready(LONG).await?;
    let call = Call::of("conversation", "session", 3)?;
    world.insert_segments(&call.segments).await?;
    world.publish_session_end(&call.session, 3).await?;
    wait_until("it is delivered", LONG, || async {
        let pending = world.consumer().await.map_err(|error| error.to_string())?.num_ack_pending;
        if pending == 1 { Ok(()) } else { Err(pending.to_string()) }
    })
    .await?;
    assert_eq!(processor.terminate().await?, Exit::Code(0));
    let _other =
        world.processor("run").arguments(["--quiet-period", "100ms", "--ack-wait", "30s"]).start_ready(LONG).await?;
    all_done(&world, 1).await?;
    assert_eq!(world.consumer().await?.delivered.consumer_sequence, 2);
    Ok(())
}
