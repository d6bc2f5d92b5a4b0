//! The transcriber on real servers: from a call's sockets to one end, one summary and one notification.

use std::{collections::BTreeSet, error::Error, fs, time::Duration};

use futures::{TryStreamExt, future::join_all};
use mongodb::bson::{Document, doc};
use serde_json::{Value, json};
use transcript_core::contract::{SEGMENT_SUBJECT, SESSION_ENDED_SUBJECT, TRANSCRIPTION_STREAM};
use transcript_tests::{
    calls::{Call, fixture},
    process_guard::Exit,
    processor::ProcessorCommand,
    proxy::{MongoProxy, NatsProxy, TcpProxy},
    transcriber::{Client, Closed, RunningTranscriber, without_nats},
    wait::wait_until,
    world::TestWorld,
};
use transcript_transcriber::document::SESSIONS_COLLECTION;

type Outcome = Result<(), Box<dyn Error>>;

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(60);
/// Delays that are short for tests, and long enough to reconnect.
const DELAYS: [&str; 8] =
    ["--end-after-close", "200ms", "--end-after-break", "800ms", "--end-after-silence", "1s", "--end-after-idle", "1s"];

fn transcriber(world: &TestWorld) -> ProcessorCommand {
    world.processor("transcriber").arguments(DELAYS).arguments(["--lease", "1s"])
}

async fn world() -> Result<TestWorld, Box<dyn Error>> {
    let world = TestWorld::start().await?;
    world.create_streams().await?;
    Ok(world)
}

/// Waits until the session has ended so often, and gives what its ends say.
async fn ended(world: &TestWorld, times: usize) -> Result<Vec<Value>, Box<dyn Error>> {
    let ends = wait_until(format!("{times} ends"), LONG, || async {
        match world.payloads(SESSION_ENDED_SUBJECT).await {
            Ok(ends) if ends.len() >= times => Ok(ends),
            Ok(ends) => Err(format!("{ends:?}")),
            Err(error) => Err(error.to_string()),
        }
    });
    let ends = ends.await?;
    assert_eq!(ends.len(), times, "{ends:?}");
    Ok(ends)
}

async fn stored(world: &TestWorld) -> Result<Vec<Document>, Box<dyn Error>> {
    Ok(world.segments().find(doc! {}).sort(doc! { "index": 1 }).await?.try_collect().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_through_sockets_has_one_end_one_summary_and_one_notification() -> Outcome {
    let world = TestWorld::start().await?;
    world.processor("setup").run(LONG).await?;
    let processor = world.processor("run").arguments(["--quiet-period", "100ms"]).start().await?;
    let transcriber = RunningTranscriber::start(transcriber(&world)).await?;
    let mut ana = transcriber.connect("c", "s", "").await?;
    let mut tom = transcriber.connect("c", "s", "?speaker=Tom").await?;
    for number in 0..10 {
        ana.say(&format!("u{number}"), "Shall we?").await?;
        ana.send(&json!({ "text": "inter", "final": false })).await?;
        tom.send(&json!({ "text": "Yes." })).await?;
    }
    // The same id replaces the text.
    ana.say("u9", "Shall we begin?").await?;
    assert_eq!(ana.finalize().await?, 11);
    ana.send(&json!({ "type": "CloseStream" })).await?;
    assert_eq!(ana.closed().await?.code, 1000);
    tom.send(&json!({ "type": "KeepAlive" })).await?;
    tom.send(&json!({ "type": "Finalize" })).await?;
    let frames = tom.until("saved").await?;
    assert_eq!(frames.first(), Some(&json!({ "type": "ready" })));
    assert_eq!(frames.last(), Some(&json!({ "type": "saved", "count": 10 })));
    assert_eq!(frames.iter().filter(|frame| frame["type"] == "ack").count(), 10);
    tom.close().await?;
    let ends = ended(&world, 1).await?;
    assert_eq!(ends, [json!({ "conversationId": "c", "sessionId": "s", "publishedSegments": 20 })]);
    let segments = stored(&world).await?;
    assert_eq!(segments.len(), 20);
    assert!(segments.iter().all(|segment| segment.get_str("text").is_ok_and(|text| text != "inter")));
    assert_eq!(segments.iter().filter(|s| s.get_str("text").is_ok_and(|text| text == "Shall we begin?")).count(), 1);
    assert_eq!(segments.iter().filter(|s| s.get_str("speaker").is_ok_and(|name| name == "Tom")).count(), 10);
    let announced = wait_until("the call is announced", LONG, || async {
        match world.notifications().await {
            Ok(all) if all.len() == 1 => Ok(all),
            other => Err(format!("{other:?}")),
        }
    });
    let notification = announced.await?.remove(0).notification;
    assert_eq!((notification.segments, notification.complete), (20, true));
    assert_eq!(world.summaries().await?.len(), 1);
    assert_eq!(world.payloads(SEGMENT_SUBJECT).await?.len(), 21, "each segment, and the text that replaced another");
    assert_eq!(transcriber.process.terminate().await?, Exit::Code(0), "{}", transcriber.process.logs());
    processor.terminate().await?;
    assert_eq!(ended(&world, 1).await?.len(), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_on_two_transcribers_ends_once_both_have_lost_their_last_socket() -> Outcome {
    let world = world().await?;
    let one = RunningTranscriber::start(transcriber(&world)).await?;
    let two = RunningTranscriber::start(transcriber(&world)).await?;
    let mut ana = one.connect("c", "s", "").await?;
    let mut tom = two.connect("c", "s", "").await?;
    for _ in 0..5 {
        ana.send(&json!({ "text": "Here." })).await?;
        tom.send(&json!({ "text": "There." })).await?;
    }
    ana.finalize().await?;
    ana.close().await?;
    let left = wait_until("the first one has left", LONG, || async {
        let sessions = world.database().collection::<Document>(SESSIONS_COLLECTION);
        match sessions.find_one(doc! { "instances": { "$size": 1 } }).await {
            Ok(Some(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    left.await?;
    tom.send(&json!({ "text": "Still here." })).await?;
    tom.finalize().await?;
    assert_eq!(world.payloads(SESSION_ENDED_SUBJECT).await?, Vec::<Value>::new());
    tom.close().await?;
    let ends = ended(&world, 1).await?;
    assert_eq!(ends.first().map(|end| &end["publishedSegments"]), Some(&json!(11)));
    let indexes: Vec<i64> = stored(&world).await?.iter().flat_map(|segment| segment.get_i64("index")).collect();
    assert!(indexes.len() == 11 && indexes.is_sorted_by(|one, next| one < next), "{indexes:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_transcriber_is_succeeded_and_what_it_acknowledged_is_counted() -> Outcome {
    let world = world().await?;
    let first = RunningTranscriber::start(transcriber(&world)).await?;
    let mut ana = first.connect("c", "s", "").await?;
    for number in 0..20 {
        ana.say(&number.to_string(), "So it is.").await?;
    }
    assert_eq!(ana.finalize().await?, 20);
    first.process.kill().await?;
    let second = RunningTranscriber::start(transcriber(&world)).await?;
    let ends = ended(&world, 1).await?;
    assert_eq!(ends.first().map(|end| &end["publishedSegments"]), Some(&json!(20)), "{}", second.process.logs());
    // A client that comes back opens it again: late segments, and another end.
    let mut again = second.connect("c", "s", "").await?;
    again.say("late", "One more thing.").await?;
    again.finalize().await?;
    again.close().await?;
    let ends = ended(&world, 2).await?;
    assert_eq!(ends.last().map(|end| &end["publishedSegments"]), Some(&json!(21)));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn while_nats_is_away_segments_are_stored_and_published_later_with_the_end_behind_them() -> Outcome {
    let mut world = world().await?;
    let transcriber = RunningTranscriber::start(transcriber(&world)).await?;
    let mut ana = transcriber.connect("c", "s", "").await?;
    ana.say("1", "Before.").await?;
    assert_eq!(ana.finalize().await?, 1);
    world.nats.process().kill().await?;
    for number in 2..=40 {
        ana.say(&number.to_string(), "Meanwhile.").await?;
    }
    assert_eq!(ana.finalize().await?, 40, "{}", transcriber.process.logs());
    ana.close().await?;
    world.nats.start_again().await?;
    let ends = ended(&world, 1).await?;
    assert_eq!(ends.first().map(|end| &end["publishedSegments"]), Some(&json!(40)));
    let stream = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?;
    let last = stream.get_raw_message(stream.cached_info().state.last_sequence).await?;
    assert_eq!(last.subject.as_str(), SESSION_ENDED_SUBJECT, "the end comes behind its segments");
    assert_eq!(world.payloads(SEGMENT_SUBJECT).await?.len(), 40);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn while_mongod_is_away_clients_wait_and_what_they_said_is_stored_when_it_is_back() -> Outcome {
    let mut world = TestWorld::start_with_own_mongod().await?;
    world.create_streams().await?;
    let transcriber = RunningTranscriber::start(transcriber(&world).arguments(["--request-timeout", "2s"])).await?;
    let mut ana = transcriber.connect("c", "s", "").await?;
    ana.say("before", "Before.").await?;
    assert_eq!(ana.finalize().await?, 1);
    world.mongod().process().kill().await?;
    for number in 0..20 {
        ana.say(&number.to_string(), "Meanwhile.").await?;
    }
    world.mongod().start_again().await?;
    assert_eq!(ana.finalize().await?, 21, "{}", transcriber.process.logs());
    ana.close().await?;
    let ends = ended(&world, 1).await?;
    assert_eq!(ends.first().map(|end| &end["publishedSegments"]), Some(&json!(21)));
    assert_eq!(stored(&world).await?.len(), 21);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_finals_right_before_the_connection_breaks_are_stored_and_counted() -> Outcome {
    let world = world().await?;
    let transcriber = RunningTranscriber::start(transcriber(&world)).await?;
    let mut ana = transcriber.connect("c", "s", "").await?;
    for number in 0..50 {
        ana.say(&number.to_string(), "Quickly now.").await?;
    }
    // Without a close, without reading, and without a reset, which would drop what is on its way.
    drop(ana);
    let ends = ended(&world, 1).await?;
    assert_eq!(ends.first().map(|end| &end["publishedSegments"]), Some(&json!(50)));
    assert_eq!(stored(&world).await?.len(), 50);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reconnect_goes_on_with_the_session_whichever_close_is_seen_first() -> Outcome {
    let world = world().await?;
    let transcriber = RunningTranscriber::start(transcriber(&world)).await?;
    let old = transcriber.connect("c", "before", "").await?;
    let mut new = transcriber.connect("c", "before", "").await?;
    new.until("ready").await?;
    old.close().await?;
    let broken = transcriber.connect("c", "after", "").await?;
    broken.break_off()?;
    let mut back = transcriber.connect("c", "after", "").await?;
    back.until("ready").await?;
    // A session that nobody comes back to ends after the longer of both delays, and it is the last to lose its socket.
    let mut gone = transcriber.connect("c", "gone", "").await?;
    gone.until("ready").await?;
    gone.break_off()?;
    let ends = ended(&world, 1).await?;
    assert_eq!(ends.first().map(|end| &end["sessionId"]), Some(&json!("gone")), "the other two have sockets");
    for client in [&mut new, &mut back] {
        client.say("1", "Here I am again.").await?;
        assert_eq!(client.finalize().await?, 1);
    }
    new.close().await?;
    back.close().await?;
    let ends = ended(&world, 3).await?;
    assert!(ends.iter().skip(1).all(|end| end["publishedSegments"] == 1), "{ends:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_deliver_and_end_a_session() -> Outcome {
    let world = world().await?;
    let transcriber = RunningTranscriber::start(transcriber(&world)).await?;
    let at = |session: &str, rest: &str| format!("/v1/conversations/c/sessions/{session}{rest}");
    let one = transcriber.post(&at("s", "/segments?client=app"), r#"{"id":"1","text":"One."}"#).await?;
    assert_eq!(one, (200, json!({ "saved": 1, "answers": [{ "type": "ack", "id": "1", "index": 0 }] })));
    let many = r#"[{"id":"1","text":"One!"},{"text":5},{"text":"Two.","final":false},{"id":"2","text":"Two."}]"#;
    let (status, answer) = transcriber.post(&at("s", "/segments?client=app"), many).await?;
    assert_eq!(status, 422, "{answer}");
    assert_eq!(answer["saved"], 2);
    assert_eq!(answer["problems"], json!([{ "position": 1, "reason": "text must be a string" }]));
    assert_eq!(transcriber.post(&at("s", "/segments"), "[").await?.0, 400);
    let jigasi = r#"{"event":"SPEECH","participant":{"name":"Ada"},"transcript":[{"text":"Three."}],"message_id":"m"}"#;
    assert_eq!(transcriber.post(&at("s", "/segments?dialect=jigasi"), jigasi).await?.0, 200);
    let (status, _) = transcriber.post(&at("s", "/end"), "").await?;
    assert_eq!(status, 200);
    let ends = ended(&world, 1).await?;
    assert_eq!(ends, [json!({ "conversationId": "c", "sessionId": "s", "publishedSegments": 3 })]);
    // Nobody asks for the end: it comes after an idle time.
    assert_eq!(transcriber.post(&at("idle", "/segments"), r#"{"text":"One."}"#).await?.0, 200);
    let ends = ended(&world, 2).await?;
    assert_eq!(ends.last().map(|end| &end["sessionId"]), Some(&json!("idle")));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_nats_segments_are_stored_and_acknowledged_and_that_is_said_once() -> Outcome {
    let world = TestWorld::start().await?;
    let transcriber = RunningTranscriber::start(without_nats(&world).arguments(DELAYS)).await?;
    let mut ana = transcriber.connect("c", "s", "").await?;
    ana.say("1", "For nobody.").await?;
    assert_eq!(ana.finalize().await?, 1);
    ana.close().await?;
    let sessions = world.database().collection::<Document>(SESSIONS_COLLECTION);
    let ended = wait_until("the session has ended", LONG, || async {
        match sessions.find_one(doc! { "state": "ended" }).await {
            Ok(Some(session)) => Ok(session),
            other => Err(format!("{other:?}")),
        }
    });
    let session = ended.await?;
    assert_eq!((session.get_i64("saved")?, session.get("published")), (1, None));
    let said = transcriber.process.logs().matches("nothing is published").count();
    assert_eq!(said, 1, "{}", transcriber.process.logs());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_stores_what_came_and_sends_clients_elsewhere() -> Outcome {
    let world = world().await?;
    let first = RunningTranscriber::start(transcriber(&world)).await?;
    let mut ana = first.connect("c", "s", "").await?;
    ana.until("ready").await?;
    for number in 0..20 {
        ana.say(&number.to_string(), "Before the end.").await?;
    }
    ana.finalize().await?;
    first.process.ask_to_end()?;
    let Closed { code, reason } = ana.closed().await?;
    assert_eq!(code, 1012, "{reason}");
    assert_eq!(first.process.wait(LONG).await?, Exit::Code(0), "{}", first.process.logs());
    assert_eq!(stored(&world).await?.len(), 20);
    let second = RunningTranscriber::start(transcriber(&world)).await?;
    let ends = ended(&world, 1).await?;
    assert_eq!(ends.first().map(|end| &end["publishedSegments"]), Some(&json!(20)), "{}", second.process.logs());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn at_a_shutdown_every_client_is_told_to_go_elsewhere() -> Outcome {
    let world = world().await?;
    let transcriber = RunningTranscriber::start(transcriber(&world)).await?;
    let mut clients = vec![];
    for number in 0..300 {
        let mut client = transcriber.connect("c", &format!("s{number}"), "").await?;
        client.until("ready").await?;
        clients.push(client);
    }
    transcriber.process.ask_to_end()?;
    let closed = join_all(clients.iter_mut().map(Client::closed)).await;
    let codes: Result<BTreeSet<u16>, _> = closed.into_iter().map(|closed| closed.map(|closed| closed.code)).collect();
    assert_eq!(codes?, BTreeSet::from([1012]), "{}", transcriber.process.logs());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_transcript_is_played_through_a_transcriber() -> Outcome {
    let world = world().await?;
    let transcriber = RunningTranscriber::start(transcriber(&world)).await?;
    let mut calls = Vec::new();
    let mut play = ProcessorCommand::new("play").arguments(["--via", &format!("ws://{}", transcriber.address)]);
    for file in fs::read_dir(fixture("transcripts"))? {
        let path = file?.path();
        calls.push(Call::read(&path)?);
        play = play.argument(path);
    }
    let said = play.run(LONG).await?;
    let ends = ended(&world, calls.len()).await?;
    for Call { session, segments } in &calls {
        let end = ends.iter().find(|end| end["sessionId"] == *session.session_id).ok_or(&*session.session_id)?;
        assert_eq!(end["publishedSegments"], segments.len(), "{said}");
        let filter = doc! { "sessionId": &*session.session_id };
        let stored: Vec<Document> = world.segments().find(filter).await?.try_collect().await?;
        let text =
            |of: &str| stored.iter().filter(|stored| stored.get_str("text").is_ok_and(|text| text == of)).count();
        assert!(segments.iter().all(|segment| text(&segment.text) > 0), "{}", session.session_id);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_in_which_nobody_speaks_ends_too() -> Outcome {
    let world = world().await?;
    let transcriber = RunningTranscriber::start(transcriber(&world)).await?;
    let mut ana = transcriber.connect("c", "silent", "").await?;
    ana.until("ready").await?;
    ana.close().await?;
    let ends = ended(&world, 1).await?;
    assert_eq!(ends, [json!({ "conversationId": "c", "sessionId": "silent", "publishedSegments": 0 })]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_whose_traffic_is_swallowed_keeps_no_session_open_and_its_client_goes_on_elsewhere() -> Outcome {
    let world = world().await?;
    let transcriber = RunningTranscriber::start(transcriber(&world).arguments(["--silence-timeout", "1s"])).await?;
    let proxy = TcpProxy::start(transcriber.address).await?;
    let query = "?client=ana&epoch=1";
    let mut old = Client::connect(proxy.address(), "c", "s", query, &[]).await?;
    for number in 0..5 {
        old.say(&number.to_string(), "This arrives.").await?;
    }
    assert_eq!(old.finalize().await?, 5);
    proxy.silence();
    for number in 5..8 {
        old.say(&number.to_string(), "This is swallowed.").await?;
    }
    let mut new = Client::connect(proxy.address(), "c", "s", query, &[]).await?;
    for number in 5..8 {
        new.say(&number.to_string(), "This arrives at last.").await?;
    }
    assert_eq!(new.finalize().await?, 3);
    new.close().await?;
    // Neither side of the old socket is ever closed by the network.
    let ends = ended(&world, 1).await?;
    assert_eq!(ends.first().map(|end| &end["publishedSegments"]), Some(&json!(8)), "{}", transcriber.process.logs());
    assert!(stored(&world).await?.iter().all(|segment| !segment.to_string().contains("swallowed")));
    drop(old);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn while_what_goes_to_nats_is_swallowed_segments_are_stored_and_published_later() -> Outcome {
    let world = world().await?;
    let proxy = NatsProxy::start(world.nats.process().address()).await?;
    let command = transcriber(&world).environment("NATS_URL", proxy.url()).arguments(["--request-timeout", "2s"]);
    let transcriber = RunningTranscriber::start(command).await?;
    let mut ana = transcriber.connect("c", "s", "").await?;
    ana.say("before", "Before.").await?;
    assert_eq!(ana.finalize().await?, 1);
    proxy.silence();
    for number in 0..20 {
        ana.say(&number.to_string(), "Meanwhile.").await?;
    }
    assert_eq!(ana.finalize().await?, 21);
    ana.close().await?;
    let ends = ended(&world, 1).await?;
    assert_eq!(ends.first().map(|end| &end["publishedSegments"]), Some(&json!(21)), "{}", transcriber.process.logs());
    assert_eq!(world.payloads(SEGMENT_SUBJECT).await?.len(), 21);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn while_what_goes_to_mongod_is_swallowed_clients_wait_and_nothing_is_lost() -> Outcome {
    let world = world().await?;
    let proxy = MongoProxy::start(world.mongod_address()).await?;
    let command = transcriber(&world).environment("MONGODB_URI", proxy.uri()).arguments(["--request-timeout", "1s"]);
    let transcriber = RunningTranscriber::start(command).await?;
    let mut ana = transcriber.connect("c", "s", "").await?;
    ana.say("before", "Before.").await?;
    assert_eq!(ana.finalize().await?, 1);
    proxy.silence();
    for number in 0..20 {
        ana.say(&number.to_string(), "Meanwhile.").await?;
    }
    assert_eq!(ana.finalize().await?, 21, "{}", transcriber.process.logs());
    ana.close().await?;
    let ends = ended(&world, 1).await?;
    assert_eq!(ends.first().map(|end| &end["publishedSegments"]), Some(&json!(21)));
    assert_eq!(stored(&world).await?.len(), 21);
    Ok(())
}
