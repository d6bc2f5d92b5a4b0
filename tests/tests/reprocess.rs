//! A call that is processed again on purpose: once for each request, and whoever dies over it.

use std::{collections::BTreeMap, time::Duration};

use mongodb::bson::{Document, doc};
use serde_json::Value;
use transcript_core::{contract::REVISED_SUBJECT, ids::Session};
use transcript_processor::operate::reprocess;
use transcript_tests::{calls::Call, process_guard::Exit, wait::wait_until, world::TestWorld};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(90);
const SHORT: [&str; 4] = ["--quiet-period", "100ms", "--ack-wait", "3s"];

/// Waits until every end is acknowledged.
async fn idle(world: &TestWorld, ends: u64) -> Outcome {
    wait_until("every end is acknowledged", LONG, || async {
        let consumer = world.consumer().await.map_err(|error| error.to_string())?;
        let state = (consumer.delivered.stream_sequence, consumer.num_pending, consumer.num_ack_pending);
        let done = world.payloads("transcription.session-ended").await.map_err(|error| error.to_string())?.len();
        if state.1 == 0 && state.2 == 0 && u64::try_from(done) == Ok(ends) { Ok(()) } else { Err(format!("{state:?}")) }
    })
    .await?;
    Ok(())
}

/// Somebody corrects what was said first.
async fn correct(world: &TestWorld, session: &Session) -> Outcome {
    let segments = world.database().collection::<Document>("transcriptsegments");
    let first = doc! { "sessionId": &*session.session_id, "index": 0 };
    let corrected = doc! { "$set": { "text": "Is it as corrected?", "speaker": "Ada" } };
    assert_eq!(segments.update_one(first, corrected).await?.modified_count, 1);
    Ok(())
}

async fn summary(world: &TestWorld, session: &Session) -> Result<Document, Box<dyn std::error::Error>> {
    Ok(world.summary(&session.key()).await?.ok_or("no summary")?)
}

/// The revisions that were announced, by session.
async fn revisions(world: &TestWorld) -> Result<BTreeMap<String, Vec<u64>>, Box<dyn std::error::Error>> {
    let mut revisions = BTreeMap::<_, Vec<u64>>::new();
    for told in world.payloads(REVISED_SUBJECT).await? {
        let session = told["sessionId"].as_str().ok_or("no id")?.to_owned();
        revisions.entry(session).or_default().push(told["revision"].as_u64().ok_or("no revision")?);
    }
    Ok(revisions)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_corrected_call_is_processed_again_and_announced_as_a_revision() -> Outcome {
    let world = TestWorld::start().await?;
    let processor = world.processor("run").arguments(SHORT).start_ready(LONG).await?;
    let call = Call::of("conversation", "corrected", 3)?;
    world.insert_segments(&call.segments).await?;
    let key = call.session.key().to_string();
    let command = || world.processor("reprocess").argument(&key);
    let refused = command().start().await?;
    assert_eq!(refused.wait(LONG).await?, Exit::Code(1));
    assert!(refused.logs().contains("there is no summary of conversation:corrected"), "{}", refused.logs());

    world.publish_session_end(&call.session, 3).await?;
    idle(&world, 1).await?;
    correct(&world, &call.session).await?;
    let asked: Value = serde_json::from_str(&command().argument("--json").run(LONG).await?)?;
    assert_eq!((&asked["request"], &asked["revision"], &asked["before"]), (&1.into(), &1.into(), &false.into()));
    idle(&world, 2).await?;
    let stored = summary(&world, &call.session).await?;
    assert_eq!((stored.get_i64("reprocess")?, i64::from(stored.get_i32("revision")?)), (1, 2));
    assert_eq!(stored.get_array("questions")?.len(), 1, "{stored}");
    assert_eq!(stored.get_document("revised")?.get_i64("revision")?, 2);
    assert_eq!(world.notifications().await?.len(), 1);

    let text = world.processor("reprocess").arguments(["conversation", "corrected"]).run(LONG).await?;
    assert!(text.contains("its summary is revision 2 now"), "{text}");
    idle(&world, 3).await?;
    assert_eq!(revisions(&world).await?, BTreeMap::from([("corrected".to_owned(), vec![2, 3])]));

    // The same request once more, as after a crash of the one who acknowledges: nothing is left to do.
    let again = br#"{"conversationId":"conversation","sessionId":"corrected","publishedSegments":3,"reprocess":2}"#;
    world.publish("transcription.session-ended", again.to_vec()).await?;
    idle(&world, 4).await?;
    assert_eq!(revisions(&world).await?["corrected"], [2, 3]);
    let audit = world.processor("audit").run(LONG).await?;
    assert!(!audit.contains("missing: "), "{audit}");

    // A summary never goes back.
    world.segments().delete_one(doc! { "sessionId": "corrected", "index": 2 }).await?;
    let fewer = command().start().await?;
    assert_eq!(fewer.wait(LONG).await?, Exit::Code(1));
    assert!(fewer.logs().contains("2 segments of conversation:corrected are stored"), "{}", fewer.logs());
    processor.terminate().await?;
    Ok(())
}

/// The processor is killed again and again over sixty requests: each is answered by one revision.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_dies_over_a_request_it_is_answered_once() -> Outcome {
    const CALLS: u64 = 60;
    let world = TestWorld::start().await?;
    let command = world.processor("run").arguments(SHORT).arguments(["--max-in-flight", "7"]);
    let processor = command.start_ready(LONG).await?;
    let mut sessions = vec![];
    for number in 0..CALLS {
        let call = Call::of("conversation", &format!("s{number}"), 2)?;
        world.insert_segments(&call.segments).await?;
        world.publish_session_end(&call.session, 2).await?;
        sessions.push(call.session);
    }
    idle(&world, CALLS).await?;
    processor.kill().await?;
    for session in &sessions {
        correct(&world, session).await?;
        let requested = reprocess::request(&world.jetstream, world.database(), session).await?;
        let again = reprocess::request(&world.jetstream, world.database(), session).await?;
        assert_eq!((requested.before, again.before), (false, true), "asking twice is asking once");
        assert_eq!(requested.stream_sequence, again.stream_sequence);
    }
    for wanted in [1, 20, 40] {
        let processor = command.start_ready(LONG).await?;
        wait_until(format!("{wanted} summaries are new"), LONG, || async {
            let summaries = world.summaries().await.map_err(|error| error.to_string())?;
            let new = summaries.iter().filter(|summary| matches!(summary.get_i64("reprocess"), Ok(1))).count();
            if new >= wanted { Ok(()) } else { Err(new.to_string()) }
        })
        .await?;
        processor.kill().await?;
    }
    let processor = command.start_ready(LONG).await?;
    idle(&world, 2 * CALLS).await?;
    let announced = revisions(&world).await?;
    assert_eq!(announced.len(), sessions.len());
    assert!(announced.values().all(|revisions| *revisions == [2]), "{announced:?}");
    for summary in world.summaries().await? {
        assert_eq!((summary.get_i64("reprocess")?, i64::from(summary.get_i32("revision")?)), (1, 2), "{summary}");
        assert_eq!(summary.get_array("questions")?.len(), 1, "{summary}");
        assert_eq!(summary.get_document("revised")?.get_i64("revision")?, 2);
    }
    assert_eq!(u64::try_from(world.notifications().await?.len())?, CALLS);
    processor.terminate().await?;
    Ok(())
}
