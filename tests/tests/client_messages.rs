//! Messages that try to pass for something else, on real servers: a header block that no client can parse, a status line in a
//! message, and ids that belong to others.

use std::time::Duration;

use async_nats::{HeaderMap, jetstream};
use tokio::time::Instant;
use transcript_client::jetstream::{RAW_HEADERS_HEADER, raw::Which};
use transcript_core::contract::{CONSUMER, PROCESSED_SUBJECT, SESSION_ENDED_SUBJECT, STREAM_SEQUENCE_HEADER};
use transcript_tests::{
    by_hand,
    numbered::{acknowledged, announced, end, session},
    raw_nats,
    world::TestWorld,
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(120);
/// Short times, for tests that are not about them.
const SHORT: [&str; 6] = ["--quiet-period", "100ms", "--ack-wait", "3s", "--max-deliver", "3"];

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_no_client_can_parse_becomes_a_dead_letter_and_costs_the_others_one_redelivery() -> Outcome {
    let world = TestWorld::start().await?;
    // Whatever is delivered a second time and comes to nothing again becomes a dead letter.
    let arguments = ["--ack-wait", "3s", "--max-deliver", "2", "--quiet-period", "100ms"];
    world.processor("setup").arguments(&arguments[..4]).run(LONG).await?;
    let block = b"NATS/1.0\r\nX:\xff\r\n\r\n";
    by_hand::publish_block(&world, SESSION_ENDED_SUBJECT, block, b"{\"bad\":true}").await?;
    for number in 0..50 {
        world.publish(SESSION_ENDED_SUBJECT, end(number)).await?;
    }
    by_hand::publish_block(&world, SESSION_ENDED_SUBJECT, b"NATS/1.0\r\nno colon\r\n\r\n", b"second").await?;
    let processor = world.processor("run").arguments(arguments).start_ready(LONG).await?;
    announced(&world, &processor, 50, LONG).await?;
    acknowledged(&world, &processor, LONG).await?;
    let kept = raw_nats::dead_letters(&world).await?;
    let of: Vec<_> = kept.iter().map(|it| it.header(STREAM_SEQUENCE_HEADER)).collect();
    assert_eq!(of, [Some("1".to_owned()), Some("52".to_owned())]);
    let first = kept.first().expect("there are two");
    assert_eq!(first.payload, b"{\"bad\":true}");
    let original = raw_nats::message(&world, Which::Sequence(1)).await?;
    assert_eq!(original.header_block, block);
    assert_eq!(first.header(RAW_HEADERS_HEADER), Some(original.header_block_in_base64()));
    processor.terminate().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_line_in_a_message_does_not_pass_for_the_servers_word() -> Outcome {
    let world = TestWorld::start().await?;
    world.processor("setup").arguments(SHORT.iter().skip(2)).run(LONG).await?;
    for (place, status) in ["503", "404", "409 Consumer Deleted", "408 Request Timeout"].iter().enumerate() {
        let block = format!("NATS/1.0 {status}\n\n");
        by_hand::publish_block(&world, SESSION_ENDED_SUBJECT, block.as_bytes(), &end(place)).await?;
    }
    for number in 4..54 {
        world.publish(SESSION_ENDED_SUBJECT, end(number)).await?;
    }
    let processor = world.processor("run").arguments(SHORT).start_ready(LONG).await?;
    announced(&world, &processor, 54, LONG).await?;
    assert_eq!(raw_nats::dead_letters(&world).await?, []);
    processor.terminate().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_belongs_to_another_message_does_not_count_as_the_notification() -> Outcome {
    let world = TestWorld::start().await?;
    world.create_streams().await?;
    let js = jetstream::new(world.nats.client().await?);
    let call = session(0);
    // The end itself has the id, and so has something else under the next one.
    for (id, payload) in [(call.key().to_string(), end(0)), (format!("{}%n", call.key()), end(1))] {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", id);
        js.publish_with_headers(SESSION_ENDED_SUBJECT, headers, payload.into()).await?.await?;
    }
    let processor = world.processor("run").arguments(SHORT).start_ready(LONG).await?;
    announced(&world, &processor, 2, LONG).await?;
    // The mark comes behind the notification, and the acknowledgement behind the mark.
    acknowledged(&world, &processor, LONG).await?;
    let summary = world.summary(&call.key()).await?.ok_or("no summary")?;
    let place = summary.get_document("notified")?.get_i64("streamSequence")?;
    let named = raw_nats::message(&world, Which::Sequence(place.unsigned_abs())).await?;
    assert_eq!(named.subject, PROCESSED_SUBJECT, "the mark names the notification");
    assert_eq!(world.consumer().await?.name, CONSUMER);
    processor.terminate().await?;
    Ok(())
}

/// Its first end is at work; the others wait for it, and take no other call's room.
#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_is_published_again_and_again_delays_no_other_call() -> Outcome {
    const REPEATS: usize = 390;
    let world = TestWorld::start().await?;
    world.processor("setup").run(LONG).await?;
    // All of them are there before anything is asked for.
    for _ in 0..REPEATS {
        world.publish(SESSION_ENDED_SUBJECT, end(0)).await?;
    }
    for number in 1..=20 {
        world.publish(SESSION_ENDED_SUBJECT, end(number)).await?;
    }
    let settings = ["--max-in-flight", "100", "--quiet-period", "500ms"];
    let processor = world.processor("run").arguments(settings).start_ready(LONG).await?;
    let begun = Instant::now();
    announced(&world, &processor, 21, LONG).await?;
    // One after the other the repeats alone would take two quiet periods each: more than six minutes.
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    acknowledged(&world, &processor, LONG).await?;
    let delivered = world.consumer().await?.delivered.consumer_sequence;
    assert_eq!(delivered, u64::try_from(REPEATS + 20)?, "each was delivered once");
    let looked_at =
        processor.logs().lines().filter(|line| line.contains("\"done\"") || line.contains(" done ")).count();
    assert!(looked_at <= 21 + REPEATS / 10, "repeats are not processed: {looked_at}");
    processor.terminate().await?;
    Ok(())
}
