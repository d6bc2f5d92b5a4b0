//! `play` and `show` on real servers, and the publishing library.

use std::{path::PathBuf, time::Duration};

use mongodb::bson::doc;
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use transcript_core::{WallTime, ids::Session};
use transcript_publishing::{PublishError, Published, Publisher, SegmentMessage, SessionEnded};
use transcript_tests::{process_guard::Exit, wait::wait_until, world::TestWorld};

type TestResult = Result<(), Box<dyn std::error::Error>>;

const SOON: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_transcript_is_saved_published_and_ended() -> TestResult {
    let world = TestWorld::start().await?;
    world.processor("setup").run(SOON).await?;
    let files = Files::new()?;
    let lines = [segment("s", 0), segment("other", 0), segment("s", 1), announcement("silent", 0)];
    let file = files.write("calls.ndjson", &lines.join("\n"))?;
    for sequence in [6, 9] {
        assert_eq!(
            world.processor("play").argument(&file).run(SOON).await?,
            "c s saved=2 published=2 announced=2 late=0 lost=0\n\
             c other saved=1 published=1 announced=1 late=0 lost=0\n\
             c silent saved=0 published=0 announced=0 late=0 lost=0\n"
        );
        // Played again, only the three ends are new: segments are known again by their ids.
        assert_eq!(last_sequence(&world).await?, sequence);
        assert_eq!(world.segments().count_documents(doc! {}).await?, 3);
    }
    let stored = world.segments().find_one(doc! { "_id": "s:1" }).await?.ok_or("the segment is stored")?;
    let expected = doc! {
        "_id": "s:1", "conversationId": "c", "sessionId": "s", "index": 1_i64, "speaker": "A", "text": "word 1?",
        "startMs": 1000_i64, "endMs": 1500_i64,
    };
    assert_eq!(stored, expected);

    let stream = world.jetstream.get_stream("TRANSCRIPTION").await?;
    let first = stream.get_raw_message(1).await?;
    assert_eq!(first.subject.as_str(), "transcription.segment");
    assert_eq!(first.headers.get("Nats-Msg-Id").map(|id| id.as_str()), Some("s:0"));
    let end = stream.get_raw_message(4).await?;
    assert_eq!(end.subject.as_str(), "transcription.session-ended");
    assert_eq!(
        serde_json::from_slice::<Value>(&end.payload)?,
        json!({ "conversationId": "c", "sessionId": "s", "publishedSegments": 2 })
    );
    Ok(())
}

#[tokio::test]
async fn late_and_lost_segments_are_missing_when_the_end_is_published() -> TestResult {
    let world = TestWorld::start().await?;
    world.processor("setup").run(SOON).await?;
    let files = Files::new()?;
    let lines: Vec<_> = (0..10).map(|index| segment("s", index)).collect();
    let file = files.write("call.ndjson", &lines.join("\n"))?;
    let play = world.processor("play").argument(&file);
    let playing = play.arguments(["--late", "3", "--late-by", "2s", "--lose", "2", "--repeat-end"]).start().await?;
    wait_until("both ends are published", SOON, || async {
        match last_sequence(&world).await {
            Ok(12) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    assert_eq!(world.segments().count_documents(doc! {}).await?, 5);
    assert_eq!(playing.wait(SOON).await?, Exit::Code(0));
    assert_eq!(world.segments().count_documents(doc! {}).await?, 8);
    assert_eq!(playing.output(), "c s saved=8 published=10 announced=10 late=3 lost=2\n");
    Ok(())
}

#[tokio::test]
async fn a_file_with_a_bad_line_is_not_played() -> TestResult {
    let world = TestWorld::start().await?;
    world.processor("setup").run(SOON).await?;
    let files = Files::new()?;
    let file = files
        .write("bad.ndjson", &format!("{}\n{{\"conversationId\":\"c\",\"sessionId\":\"s\"}}\n", segment("s", 0)))?;
    let playing = world.processor("play").argument(&file).start().await?;
    assert_eq!(playing.wait(SOON).await?, Exit::Code(1));
    let expected = format!("error: {}:2: neither a segment", file.display());
    assert!(playing.logs().contains(&expected), "{}", playing.logs());
    assert_eq!(world.segments().count_documents(doc! {}).await?, 0);
    assert_eq!(last_sequence(&world).await?, 0);
    Ok(())
}

#[tokio::test]
async fn without_a_stream_setup_is_called_for() -> TestResult {
    let world = TestWorld::start().await?;
    let files = Files::new()?;
    let file = files.write("call.ndjson", &segment("s", 0))?;
    let playing = world.processor("play").argument(&file).start().await?;
    assert_eq!(playing.wait(SOON).await?, Exit::Code(1));
    assert!(playing.logs().contains("create it with `transcript-processor setup`"), "{}", playing.logs());
    assert_eq!(world.segments().count_documents(doc! {}).await?, 0);

    let publisher = Publisher::new(world.jetstream.clone());
    let ended = SessionEnded { session: Session::new("c", "s")?, published_segments: 0 };
    assert!(matches!(publisher.session_ended(&ended).await, Err(PublishError::NoStream(_))));
    Ok(())
}

#[tokio::test]
async fn what_was_played_is_processed_and_shown() -> TestResult {
    let world = TestWorld::start().await?;
    world.processor("setup").run(SOON).await?;
    let files = Files::new()?;
    let file = files.write("call.ndjson", &[segment("s", 0), segment("s", 1)].join("\n"))?;
    let running = world.processor("run").arguments(["--quiet-period", "100ms"]).start().await?;
    world.processor("play").argument(&file).run(SOON).await?;
    let show = world.processor("show").arguments(["c", "s"]);
    let page = wait_until("the summary is shown as announced", SOON, || async {
        match show.run(SOON).await {
            Ok(page) if page.contains("message 4 of TRANSCRIPTION") => Ok(page),
            Ok(page) => Err(page),
            Err(error) => Err(error.to_string()),
        }
    })
    .await?;
    assert!(page.contains("Segments      2 of 2, complete\n"), "{page}");
    assert!(page.contains("\nLongest turns\n  A, 4 words, 0:00:00 to 0:00:01\n    word 0? word 1?\n"), "{page}");
    assert!(page.contains("\nQuestions\n   0:00:00  A  word 0?\n   0:00:01  A  word 1?\n"), "{page}");

    let document: Value = serde_json::from_str(&show.argument("--json").run(SOON).await?)?;
    assert_eq!((&document["_id"], &document["words"]), (&json!("c:s"), &json!(4)));
    assert!(document["updatedAt"]["$date"].is_string(), "{document}");
    assert_eq!(running.terminate().await?, Exit::Code(0));
    assert!(!running.logs().contains("word 1"), "{}", running.logs());

    let missing = world.processor("show").arguments(["c", "nobody"]).start().await?;
    assert_eq!(missing.wait(SOON).await?, Exit::Code(1));
    assert!(missing.logs().contains("there is no summary of session \"nobody\""), "{}", missing.logs());
    Ok(())
}

#[tokio::test]
async fn many_segments_are_published_in_order_and_known_again() -> TestResult {
    let world = TestWorld::start().await?;
    world.create_streams().await?;
    let publisher = Publisher::new(world.jetstream.clone());
    let session = Session::new("c", "s")?;
    let message = |index| SegmentMessage {
        session: session.clone(),
        index,
        speaker: None,
        text: format!("word {index}"),
        start_ms: None,
        end_ms: None,
    };
    let messages: Vec<_> = (0..3000).map(message).collect();
    for duplicate in [false, true] {
        let published = publisher.segments(&messages).await?;
        let expected: Vec<_> = (1..=3000).map(|sequence| Published { sequence, duplicate }).collect();
        assert_eq!(published, expected);
    }
    assert_eq!(publisher.segment(&message(3000)).await?, Published { sequence: 3001, duplicate: false });
    Ok(())
}

#[tokio::test]
async fn a_recordings_event_is_stored_under_its_name() -> TestResult {
    let world = TestWorld::start().await?;
    world.create_streams().await?;
    let publisher = Publisher::new(world.jetstream.clone());
    let data = Map::from_iter([("file".to_owned(), json!("a.webm"))]);
    let published = publisher.recording("track.started", WallTime::from_millis(7), data).await?;
    let stream = world.jetstream.get_stream("RECORDING").await?;
    let stored = stream.get_raw_message(published.sequence).await?;
    assert_eq!(stored.subject.as_str(), "recording.track.started");
    assert_eq!(serde_json::from_slice::<Value>(&stored.payload)?, json!({ "ts": 7, "file": "a.webm" }));
    Ok(())
}

struct Files(TempDir);

impl Files {
    fn new() -> std::io::Result<Self> {
        tempfile::tempdir().map(Self)
    }

    fn write(&self, name: &str, text: &str) -> std::io::Result<PathBuf> {
        let path = self.0.path().join(name);
        std::fs::write(&path, text)?;
        Ok(path)
    }
}

fn segment(session: &str, index: u32) -> String {
    json!({
        "conversationId": "c", "sessionId": session, "index": index, "speaker": "A", "text": format!("word {index}?"),
        "startMs": index * 1000, "endMs": index * 1000 + 500, "unheardOf": [],
    })
    .to_string()
}

fn announcement(session: &str, published_segments: u64) -> String {
    json!({ "conversationId": "c", "sessionId": session, "publishedSegments": published_segments }).to_string()
}

async fn last_sequence(world: &TestWorld) -> Result<u64, String> {
    let stream = world.jetstream.get_stream("TRANSCRIPTION").await.map_err(|e| e.to_string())?;
    Ok(stream.cached_info().state.last_sequence)
}
