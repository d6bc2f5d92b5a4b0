//! `play` and `show` on real servers, and the publishing library.

use std::{io::Write, path::PathBuf, process::Stdio, time::Duration};

use mongodb::bson::doc;
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use transcript_core::{WallTime, ids::Session};
use transcript_publishing::{PublishError, Published, Publisher, SegmentMessage, SessionEnded};
use transcript_tests::{
    cargo::{self, Version},
    process_guard::Exit,
    processor::ProcessorCommand,
    wait::wait_until,
    world::TestWorld,
};

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
    let expected = format!("error: {}: line 2: expected index, found none", file.display());
    assert!(playing.logs().contains(&expected), "{}", playing.logs());
    assert_eq!(world.segments().count_documents(doc! {}).await?, 0);
    assert_eq!(last_sequence(&world).await?, 0);
    Ok(())
}

#[tokio::test]
async fn files_of_any_format_are_played_and_converted_alike() -> TestResult {
    const CALL: &str = "WEBVTT\r\n\r\n00:01.000 --> 00:02.000\r\n<v Ann>And if so, what should you\r\n\r\n\
                        00:02.000 --> 00:03.000\r\n<v Ann>include in it?\r\n";
    let world = TestWorld::start().await?;
    world.processor("setup").run(SOON).await?;
    let files = Files::new()?;
    let mut utf16 = vec![0xFF, 0xFE];
    utf16.extend(CALL.encode_utf16().flat_map(u16::to_le_bytes));
    let video = files.write_bytes("video call.vtt", &utf16)?;
    let engine =
        files.write("engine.json", r#"{"segments":[{"start":0.79999995,"end":2,"text":" Hi","speaker":1}]}"#)?;
    let list = files.write("list.json", &format!("[{},\n{}]", segment("s", 0), segment("s", 1)))?;
    let play = world.processor("play").argument(&video).argument(&engine).argument(&list);
    assert_eq!(
        play.run(SOON).await?,
        "video call video call saved=1 published=1 announced=1 late=0 lost=0\n\
         engine engine saved=1 published=1 announced=1 late=0 lost=0\n\
         c s saved=2 published=2 announced=2 late=0 lost=0\n"
    );
    let stored = world.segments().find_one(doc! { "_id": "video call:0" }).await?.ok_or("the sentence is stored")?;
    // A question that is cut into two captions is one segment, and so one question of the summary.
    let expected = doc! {
        "_id": "video call:0", "conversationId": "video call", "sessionId": "video call", "index": 0_i64,
        "speaker": "Ann", "text": "And if so, what should you include in it?", "startMs": 1000_i64, "endMs": 3000_i64,
    };
    assert_eq!(stored, expected);

    let convert = ProcessorCommand::new("convert").argument(&video).argument(&engine);
    let lines: Vec<Value> = convert.run(SOON).await?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let texts: Vec<_> = lines.iter().map(|line| (&line["index"], &line["text"], &line["startMs"])).collect();
    let expected = [
        (&json!(0), &json!("And if so, what should you"), &json!(1000)),
        (&json!(1), &json!("include in it?"), &json!(2000)),
        (&json!(0), &json!(" Hi"), &json!(800)),
    ];
    assert_eq!(texts, expected);
    assert_eq!(lines[2]["speaker"], json!("1"));
    Ok(())
}

#[tokio::test]
async fn what_is_wrong_with_any_file_is_told_before_anything_is_played() -> TestResult {
    let world = TestWorld::start().await?;
    world.processor("setup").run(SOON).await?;
    let files = Files::new()?;
    let good = files.write("good.ndjson", &[segment("s", 0), segment("s", 1)].join("\n"))?;
    let broken = files.write("broken.srt", "1\n00:00:01,000 --> 00:00:02,000\nHi\n\n2\n00:00:0x,000 --> 1\nlost\n")?;
    let large =
        files.write("large.srt", &format!("1\n00:00:01,000 --> 00:00:02,000\n{}\n", "large ".repeat(174_750)))?;
    let limit = 1024 * 1024;
    for (arguments, told) in [
        (vec![good.clone(), "missing.vtt".into()], "cannot read missing.vtt".to_owned()),
        (vec![good.clone(), broken.clone()], format!("{}: line 6: expected times such as", broken.display())),
        (vec![good.clone(), large.clone()], format!("{}: line 2: the segment makes a message of", large.display())),
        (vec![good.clone(), large.clone()], format!("and the stream takes {limit}")),
        (vec![good.clone(), good.clone()], "session \"s\" is in".to_owned()),
        (
            vec![good.clone(), "--late=2".into(), "--lose=2".into()],
            "session \"s\" has 2 segments, too few for --late 2 and --lose 2 together".to_owned(),
        ),
    ] {
        let playing = world.processor("play").arguments(arguments).start().await?;
        assert_eq!(playing.wait(SOON).await?, Exit::Code(1));
        assert!(playing.logs().contains(&told), "{told}: {}", playing.logs());
        assert_eq!(world.segments().count_documents(doc! {}).await?, 0);
        assert_eq!(last_sequence(&world).await?, 0);
    }
    let keeping = world.processor("play").argument(&broken).argument("--keep-going").start().await?;
    assert_eq!(keeping.wait(SOON).await?, Exit::Code(0));
    assert!(keeping.logs().contains("1 place was left out, the first: line 6"), "{}", keeping.logs());
    assert!(keeping.output().contains("saved=1"), "{}", keeping.output());
    Ok(())
}

#[tokio::test]
async fn stdin_is_read_where_a_file_is_called_by_a_dash() -> TestResult {
    let mut converting = std::process::Command::new(cargo::processor(Version::Product).await?)
        .args(["convert", "-", "--session", "s"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    converting.stdin.take().ok_or("stdin is piped")?.write_all(b"1\n00:00:01,000 --> 00:00:02,000\nAnn: Hi\n")?;
    let done = converting.wait_with_output()?;
    let line: Value = serde_json::from_slice(&done.stdout)?;
    let expected = json!({
        "conversationId": "stdin", "sessionId": "s", "index": 0, "speaker": "Ann", "text": "Hi", "startMs": 1000, "endMs": 2000,
    });
    assert_eq!(line, expected);
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
    let ended = SessionEnded { session: Session::new("c", "s")?, published_segments: 0, reprocess: 0 };
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
        self.write_bytes(name, text.as_bytes())
    }

    fn write_bytes(&self, name: &str, bytes: &[u8]) -> std::io::Result<PathBuf> {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes)?;
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
