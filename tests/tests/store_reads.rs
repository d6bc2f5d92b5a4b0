//! What is read of a call is what was stored: from the primary, once, in its order, and with every text.

use std::time::Duration;

use mongodb::{
    Collection,
    bson::{Bson, Document, RawDocumentBuf, doc, oid::ObjectId},
};
use transcript_core::{contract::SEGMENTS_COLLECTION, ids::Session};
use transcript_tests::{calls::Call, processor::Processor, wait::wait_until, world::TestWorld};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(120);
/// Short times, for tests that are not about them.
const SHORT: [&str; 4] = ["--quiet-period", "100ms", "--ack-wait", "3s"];

async fn summary(
    world: &TestWorld,
    processor: &Processor,
    session: &Session,
) -> Result<Document, Box<dyn std::error::Error>> {
    Ok(wait_until("the summary is stored", LONG, || async {
        let found = world.summary(&session.key()).await.map_err(|error| error.to_string())?;
        found.ok_or_else(|| processor.logs())
    })
    .await?)
}

/// Every read goes to the primary and asks for what a majority has, whatever the connection string says.
#[tokio::test(flavor = "multi_thread")]
async fn the_connection_string_does_not_choose_what_is_read() -> Outcome {
    let world = TestWorld::start_with_own_mongod().await?;
    world.database().run_command(doc! { "profile": 2 }).await?;
    let asked = format!("{}&readPreference=secondaryPreferred&readConcernLevel=local", world.mongodb_uri());
    let run = world.processor("run").arguments(SHORT).arguments(["--revise", "--revise-every", "1s"]);
    let processor = run.arguments(["--mongodb-uri", &asked]).start_ready(LONG).await?;
    let logs = processor.logs();
    assert!(logs.contains("readPreference secondaryPreferred"), "{logs}");
    assert!(logs.contains("readConcernLevel local"), "{logs}");
    for segments in [3, 40] {
        let call = Call::of("c", &format!("of {segments}"), segments)?;
        world.insert_segments(&call.segments).await?;
        world.publish_session_end(&call.session, segments.into()).await?;
        summary(&world, &processor, &call.session).await?;
    }
    let reads: Vec<Document> = {
        use futures::TryStreamExt;
        let name = "transcript-processor";
        let filter = doc! { "appName": name, "op": { "$in": ["query", "command", "getmore"] } };
        world.database().collection("system.profile").find(filter).await?.try_collect().await?
    };
    let reads: Vec<&Document> = reads
        .iter()
        .filter_map(|read| read.get_document("command").ok())
        .filter(|command| command.contains_key("find") || command.contains_key("aggregate"))
        .collect();
    assert!(reads.len() >= 4, "counts, loads, read-backs: {reads:?}");
    for read in reads {
        let level = read.get_document("readConcern").and_then(|concern| concern.get_str("level"));
        assert_eq!(level.ok(), Some("majority"), "{read}");
        // A driver that asks the primary says nothing of a preference, or says so.
        let mode = read.get_document("$readPreference").and_then(|preference| preference.get_str("mode"));
        assert!(matches!(mode.unwrap_or("primary"), "primary" | "primaryPreferred"), "{read}");
    }
    Ok(())
}

/// The document with each `#` of its texts replaced by half a character.
fn broken(document: &Document) -> Result<RawDocumentBuf, Box<dyn std::error::Error>> {
    let bytes = RawDocumentBuf::try_from(document)?.into_bytes();
    let bytes = bytes.into_iter().map(|byte| if byte == b'#' { 0xC3 } else { byte }).collect();
    Ok(RawDocumentBuf::from_bytes(bytes)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_that_are_damaged_are_read_as_far_as_they_can_be_and_counted() -> Outcome {
    let world = TestWorld::start().await?;
    let segments: Collection<RawDocumentBuf> = world.database().collection(SEGMENTS_COLLECTION);
    let processor = world.processor("run").arguments(SHORT).arguments(["--page-size", "4"]).start_ready(LONG).await?;
    // As a small call, and page by page.
    for (session, sound) in [("small", 0), ("large", 20)] {
        let texts: [(Bson, Bson); 5] = [
            ("caf# latte".into(), "Ann".into()),
            ("two words".into(), "An#".into()),
            (Bson::Int32(5), "Ann".into()),
            (doc! { "text": "inside" }.into(), "Ann".into()),
            ("a word".into(), Bson::Array(vec![])),
        ];
        for (number, (text, speaker)) in texts.into_iter().enumerate() {
            let index = i64::try_from(number)?;
            let segment = doc! { "_id": format!("{session}:{number}"), "sessionId": session, "index": index, "text": text, "speaker": speaker };
            segments.insert_one(broken(&segment)?).await?;
        }
        for number in 5..5 + sound {
            let segment = doc! { "_id": format!("{session}:{number}"), "sessionId": session, "index": number, "text": "x", "speaker": 7 };
            segments.insert_one(broken(&segment)?).await?;
        }
        let ended = Session::new("c", session)?;
        world.publish_session_end(&ended, u64::try_from(5 + sound)?).await?;
        let stored = summary(&world, &processor, &ended).await?;
        assert_eq!(stored.get_i64("damaged")?, 5, "{stored}");
        assert_eq!(stored.get_i64("segments")?, i64::from(5 + sound));
        assert_eq!(stored.get_i64("words")?, i64::from(2 + 2 + 1 + 2 + sound), "{stored}");
        let speakers: Vec<&str> = stored
            .get_array("speakers")?
            .iter()
            .filter_map(|speaker| speaker.as_document()?.get_str("speaker").ok())
            .collect();
        assert!(speakers.contains(&"An\u{FFFD}"), "{speakers:?}");
        let logs = processor.logs();
        assert!(logs.lines().any(|line| line.contains("WARN") && line.contains(&format!("{session:?}"))), "{logs}");
        assert!(!logs.contains("latte"), "{logs}");
    }
    let sound = Call::of("c", "sound", 3)?;
    world.insert_segments(&sound.segments).await?;
    world.publish_session_end(&sound.session, 3).await?;
    assert!(!summary(&world, &processor, &sound.session).await?.contains_key("damaged"));
    Ok(())
}

/// Each call is stored once for each size of the pages; all of them have the same summary.
#[tokio::test(flavor = "multi_thread")]
async fn the_size_of_the_pages_does_not_change_a_summary() -> Outcome {
    const SIZES: [u32; 4] = [1, 2, 5, 1_000];
    let mut summaries: Vec<Vec<Document>> = vec![];
    for size in SIZES {
        let world = TestWorld::start().await?;
        world.segments().insert_many(odd_calls()).await?;
        let processor = world
            .processor("run")
            .arguments(SHORT)
            .arguments(["--page-size", &size.to_string()])
            .start_ready(LONG)
            .await?;
        let mut of_this_size = vec![];
        for session in ["indexes", "one index", "no index", "ids"] {
            let ended = Session::new("c", session)?;
            world.publish_session_end(&ended, 0).await?;
            let mut stored = summary(&world, &processor, &ended).await?;
            for changes in ["updatedAt", "notified"] {
                stored.remove(changes);
            }
            of_this_size.push(stored);
        }
        processor.terminate().await?;
        summaries.push(of_this_size);
    }
    let (first, others) = summaries.split_first().ok_or("there are sizes")?;
    for (size, other) in SIZES.iter().skip(1).zip(others) {
        assert_eq!(first, other, "pages of 1 and of {size}");
    }
    for stored in first {
        assert_eq!(stored.get_i64("segments")?, 24, "{stored}");
    }
    Ok(())
}

/// Calls whose segments are told apart by one field alone, each with a speaker of its own, so that the summary has their order.
fn odd_calls() -> Vec<Document> {
    const LARGE: i64 = 1 << 53;
    let mut segments = vec![];
    for number in 0..24_i64 {
        // In another order than that of the call.
        let place = (number * 7) % 24;
        let segment = |session: &str, id: Bson| doc! { "_id": id, "sessionId": session, "speaker": format!("speaker {place}"), "text": "x" };
        let id = |session: &str| Bson::from(format!("{session} {place:02}"));
        let mut indexes = segment("indexes", id("indexes"));
        indexes.insert(
            "index",
            match place % 4 {
                0 => Bson::Int64(LARGE + place),
                1 => Bson::Int64(-LARGE - place),
                2 => Bson::Double(0.25 * place as f64),
                _ => Bson::Int32(i32::try_from(place / 5).unwrap_or(0)),
            },
        );
        let mut one_index = segment("one index", id("one index"));
        one_index.insert("index", 3);
        let start = if place % 5 == 0 {
            Bson::Null
        } else {
            Bson::Double(f64::from(i32::try_from(place / 3).unwrap_or(0)) + 0.5)
        };
        one_index.insert("startMs", start);
        let mut no_index = segment("no index", id("no index"));
        no_index.insert("startMs", place / 4);
        let ids = segment(
            "ids",
            match place % 4 {
                0 => Bson::Int64(LARGE + place),
                1 => Bson::ObjectId(ObjectId::from_bytes([u8::try_from(place).unwrap_or(0); 12])),
                2 => Bson::Double(-0.5 * place as f64),
                _ => Bson::from(format!("id {place:02}")),
            },
        );
        segments.extend([indexes, one_index, no_index, ids]);
    }
    segments
}
