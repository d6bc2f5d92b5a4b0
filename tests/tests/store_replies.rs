//! What MongoDB says of a write or a read decides about exactly what it says it about, and none of its words get any further.

use std::time::Duration;

use mongodb::{
    Client, IndexModel,
    bson::{Bson, Document, doc},
    options::IndexOptions,
};
use tokio::time::Instant;
use transcript_core::{contract::SUMMARIES_COLLECTION, ids::Session};
use transcript_tests::{calls::Call, processor::Processor, wait::wait_until, world::TestWorld};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(120);
/// Short times, for tests that are not about them.
const SHORT: [&str; 4] = ["--quiet-period", "100ms", "--ack-wait", "3s"];
/// A word that only the servers' own texts hold.
const WORD: &str = "confidential";

async fn announced(world: &TestWorld, processor: &Processor, calls: usize) -> Outcome {
    wait_until(format!("{calls} calls are announced"), LONG, || async {
        let announced = world.notifications().await.map_err(|error| error.to_string())?.len();
        if announced >= calls { Ok(()) } else { Err(format!("{announced}: {}", processor.logs())) }
    })
    .await?;
    Ok(())
}

async fn end(world: &TestWorld, call: &Call) -> Outcome {
    world.insert_segments(&call.segments).await?;
    world.publish_session_end(&call.session, u64::try_from(call.segments.len())?).await?;
    Ok(())
}

/// The processor's next commands fail as `data` says.
async fn fail_commands(world: &TestWorld, times: i32, data: Document) -> Outcome {
    set_fail_point(world, doc! { "times": times }.into(), data).await
}

async fn set_fail_point(world: &TestWorld, mode: Bson, mut data: Document) -> Outcome {
    data.insert("appName", "transcript-processor");
    let client = Client::with_uri_str(world.mongodb_uri()).await?;
    let command = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
    client.database("admin").run_command(command).await?;
    Ok(())
}

/// How many lines of the log say that something cannot be done.
fn complaints(processor: &Processor) -> usize {
    processor.logs().lines().filter(|line| line.contains("MongoDB cannot be used")).count()
}

/// mongod cuts the key in its message at 150 bytes, which is inside a character for one of the two calls. The reply cannot be
/// read as text then.
#[tokio::test(flavor = "multi_thread")]
async fn a_unique_index_of_somebody_else_refuses_its_calls_and_no_others() -> Outcome {
    let world = TestWorld::start().await?;
    // A start would refuse the index: somebody makes it afterwards.
    let processor = world.processor("run").arguments(SHORT).start_ready(LONG).await?;
    let summaries = world.database().collection::<Document>(SUMMARIES_COLLECTION);
    let unique = IndexOptions::builder().unique(true).name("by conversation".to_owned()).build();
    summaries.create_index(IndexModel::builder().keys(doc! { "conversationId": 1 }).options(unique).build()).await?;
    for (number, conversation) in ["é".repeat(120), format!("e{}", "é".repeat(120))].iter().enumerate() {
        for session in 0..2 {
            end(&world, &Call::of(conversation, &format!("taken {number} {session}"), 2)?).await?;
        }
    }
    for number in 0..47 {
        end(&world, &Call::of(&format!("conversation {number}"), &format!("session {number}"), 2)?).await?;
    }
    announced(&world, &processor, 49).await?;
    processor.logged("DuplicateKey (11000) on index by conversation", LONG).await?;
    let logs = processor.logs();
    assert!(!logs.contains("could not be read back"), "{logs}");
    let told: Vec<&str> = logs.lines().filter(|line| line.contains("DuplicateKey")).collect();
    assert!(told.iter().all(|line| !line.contains("dup key") && !line.contains("éé")), "{told:?}");
    assert!(complaints(&processor) <= 6, "said once, and again at a low rate: {logs}");
    assert_eq!(world.summaries().await?.len(), 49);
    Ok(())
}

/// The codes by which a server refuses a document say nothing about a document where a read meets them.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_is_refused_costs_no_call() -> Outcome {
    let world = TestWorld::start_with_own_mongod().await?;
    let processor = world.processor("run").arguments(SHORT).start_ready(LONG).await?;
    let mut calls = 0;
    for code in [2, 9, 14, 10_334] {
        fail_commands(&world, 4, doc! { "errorCode": code, "failCommands": ["aggregate", "find"] }).await?;
        for number in 0..10 {
            end(&world, &Call::of("c", &format!("{code} {number}"), 3)?).await?;
        }
        calls += 10;
        announced(&world, &processor, calls).await?;
    }
    assert!(!processor.logs().contains("dead letter"), "{}", processor.logs());
    Ok(())
}

/// The validator refuses one call's summary for good: it becomes a dead letter, with the code and its name for a reason.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_is_refused_fails_alone() -> Outcome {
    let world = TestWorld::start().await?;
    let validator = doc! { "conversationId": { "$ne": WORD } };
    world.database().create_collection(SUMMARIES_COLLECTION).validator(validator).await?;
    let processor = world.processor("run").arguments(SHORT).start_ready(LONG).await?;
    for number in 0..30 {
        let conversation = if number == 11 { WORD } else { "c" };
        end(&world, &Call::of(conversation, &format!("session {number}"), 3)?).await?;
    }
    announced(&world, &processor, 29).await?;
    processor.logged("DocumentValidationFailure (121)", LONG).await?;
    let refused = Session::new(WORD, "session 11")?;
    assert_eq!(world.summary(&refused.key()).await?, None);
    Ok(())
}

/// Nobody knows whether the writes will last: they are done again, and the server's text goes nowhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_concern_error_is_a_failure_and_is_named() -> Outcome {
    let world = TestWorld::start_with_own_mongod().await?;
    let processor = world.processor("run").arguments(SHORT).start_ready(LONG).await?;
    let unsure = doc! { "code": 64, "codeName": "WriteConcernFailed", "errmsg": format!("waiting for {WORD}") };
    fail_commands(&world, 6, doc! { "failCommands": ["update"], "writeConcernError": unsure }).await?;
    for number in 0..10 {
        end(&world, &Call::of("c", &format!("session {number}"), 3)?).await?;
    }
    announced(&world, &processor, 10).await?;
    processor.logged("WriteConcernTimeout (64)", LONG).await?;
    let logs = processor.logs();
    assert!(!logs.contains(WORD), "{logs}");
    assert!(logs.contains("MongoDB can be used again to"), "{logs}");
    Ok(())
}

/// Whatever stands in place of the summaries while the processor runs is named within seconds, and not 400 times a minute.
#[tokio::test(flavor = "multi_thread")]
async fn a_view_or_a_time_series_in_place_of_the_summaries_is_named() -> Outcome {
    let instead = [
        (
            "CommandNotSupportedOnView (166)",
            doc! { "create": SUMMARIES_COLLECTION, "viewOn": "others", "pipeline": [] },
        ),
        ("InvalidOptions (72)", doc! { "create": SUMMARIES_COLLECTION, "timeseries": { "timeField": "updatedAt" } }),
    ];
    for (named, create) in instead {
        let world = TestWorld::start().await?;
        let processor = world.processor("run").arguments(SHORT).start_ready(LONG).await?;
        world.database().run_command(create).await?;
        let ended = Instant::now();
        for number in 0..40 {
            end(&world, &Call::of("c", &format!("session {number}"), 3)?).await?;
        }
        processor.logged(named, LONG).await?;
        wait_until("they were tried for some seconds", LONG, || async {
            if ended.elapsed() > Duration::from_secs(8) { Ok(()) } else { Err(processor.logs()) }
        })
        .await?;
        assert!(complaints(&processor) <= 3, "{}", processor.logs());
        assert_eq!(world.notifications().await?.len(), 0, "{named}");
    }
    Ok(())
}

/// A primary that has lost its majority: counts and loads succeed all the time, for new calls too.
#[tokio::test(flavor = "multi_thread")]
async fn no_call_is_given_back_while_the_store_reads_and_does_not_write() -> Outcome {
    const TWO_S: Duration = Duration::from_secs(2);
    let world = TestWorld::start_with_own_mongod().await?;
    // Three deliveries of a call that is given back come to their end within two seconds.
    let retries = ["--retry-timeout", "500ms", "--retry-base", "20ms", "--retry-cap", "50ms", "--nak-delay", "100ms"];
    let command = world.processor("run").arguments(SHORT).arguments(retries).arguments(["--max-deliver", "3"]);
    let processor = command.start_ready(LONG).await?;
    let refuses = doc! { "errorCode": 11_602, "failCommands": ["update"] };
    set_fail_point(&world, "alwaysOn".into(), refuses).await?;
    let begun = Instant::now();
    let mut calls = 0;
    while begun.elapsed() < TWO_S * 2 {
        end(&world, &Call::of("c", &format!("session {calls}"), 3)?).await?;
        calls += 1;
        // The next one comes when this one has been read.
        wait_until("its page is asked for", LONG, || async {
            let consumer = world.consumer().await.map_err(|error| error.to_string())?;
            if consumer.delivered.consumer_sequence >= calls { Ok(()) } else { Err(processor.logs()) }
        })
        .await?;
    }
    assert_eq!(world.consumer().await?.delivered.consumer_sequence, calls, "one was given back: {}", processor.logs());
    set_fail_point(&world, "off".into(), doc! {}).await?;
    announced(&world, &processor, usize::try_from(calls)?).await?;
    assert_eq!(world.consumer().await?.delivered.consumer_sequence, calls);
    assert!(!processor.logs().contains("dead letter"), "{}", processor.logs());
    Ok(())
}
