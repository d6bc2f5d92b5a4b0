//! What the JetStream client does about consumers that others change, servers that are full or away, and processors that come
//! and go, on real servers.

use std::{collections::BTreeSet, time::Duration};

use async_nats::jetstream::{self, consumer::pull};
use serde_json::json;
use transcript_core::{
    contract::{CONSUMER, DEAD_LETTER_SUBJECT, RECORDING_STREAM, SESSION_ENDED_SUBJECT, TRANSCRIPTION_STREAM},
    ids::Session,
};
use transcript_tests::{
    processor::{Processor, ProcessorCommand},
    servers::NatsOptions,
    wait::wait_until,
    world::{StoreOf, TestWorld},
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(120);

async fn started(command: &ProcessorCommand) -> Result<Processor, Box<dyn std::error::Error>> {
    let processor = command.start().await?;
    wait_until("the processor is ready", LONG, || async {
        if processor.logs().contains("ready") { Ok(()) } else { Err(processor.logs()) }
    })
    .await?;
    Ok(processor)
}

fn session(number: usize) -> Session {
    Session::new("conversation", &format!("call-{number}")).expect("ids are valid")
}

/// An end of about `bytes`.
fn end(session: &Session, bytes: usize) -> Vec<u8> {
    let Session { conversation_id, session_id } = session;
    json!({
        "conversationId": conversation_id,
        "sessionId": session_id,
        "publishedSegments": 0,
        "more": "x".repeat(bytes),
    })
    .to_string()
    .into()
}

async fn announced(world: &TestWorld, processor: &Processor, calls: usize) -> Outcome {
    let expected: BTreeSet<Session> = (0..calls).map(session).collect();
    wait_until(format!("{calls} calls are announced"), LONG, || async {
        let all = world.notifications().await.map_err(|error| error.to_string())?;
        let sessions: BTreeSet<Session> = all.iter().map(|it| it.notification.session.clone()).collect();
        let missing = expected.difference(&sessions).count();
        if missing == 0 { Ok(()) } else { Err(format!("{missing} are missing: {}", processor.logs())) }
    })
    .await?;
    assert_eq!(world.notifications().await?.len(), calls, "each call is announced once");
    Ok(())
}

/// Whether there is a dead letter.
async fn has_dead_letters(world: &TestWorld) -> Result<bool, Box<dyn std::error::Error>> {
    let stream = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?;
    Ok(stream.get_last_raw_message_by_subject(DEAD_LETTER_SUBJECT).await.is_ok())
}

async fn consumer_config(world: &TestWorld) -> Result<jetstream::consumer::Config, Box<dyn std::error::Error>> {
    Ok(world.consumer().await?.config)
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_without_their_payload_are_not_terminated() -> Outcome {
    let world = TestWorld::start().await?;
    let processor = started(&world.processor("run").arguments(["--quiet-period", "100ms"])).await?;
    let config = consumer_config(&world).await?;
    let stream = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?;
    let edited = pull::Config {
        durable_name: config.durable_name,
        filter_subject: config.filter_subject,
        ack_wait: config.ack_wait,
        max_deliver: config.max_deliver,
        max_ack_pending: config.max_ack_pending,
        headers_only: true,
        ..Default::default()
    };
    stream.create_consumer(edited).await?;
    for number in 0..50 {
        world.publish(SESSION_ENDED_SUBJECT, end(&session(number), 10)).await?;
    }
    announced(&world, &processor, 50).await?;
    wait_until("the difference is told", LONG, || async {
        if processor.logs().contains("headers_only") { Ok(()) } else { Err(processor.logs()) }
    })
    .await?;
    processor.terminate().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_wait_while_the_account_is_full() -> Outcome {
    let config =
        "accounts { A { jetstream { max_file: 3MB }, users: [ { user: a, password: a } ] } }\nno_auth_user: a\n";
    let options = NatsOptions { config: config.to_owned(), ..NatsOptions::default() };
    let world = TestWorld::start_as(StoreOf::AllWorlds, options).await?;
    let arguments = ["--quiet-period", "100ms", "--ack-wait", "3s", "--retry-timeout", "2s", "--nak-delay", "100ms"];
    world.processor("setup").arguments(["--ack-wait", "3s"]).run(LONG).await?;
    for number in 0..20 {
        world.publish(SESSION_ENDED_SUBJECT, end(&session(number), 10)).await?;
    }
    for size in [100_000, 1_000, 1] {
        while world.publish("recording.fill", vec![b'x'; size]).await.is_ok() {}
    }
    let processor = started(&world.processor("run").arguments(arguments)).await?;
    wait_until("it is told that nothing can be announced", LONG, || async {
        if processor.logs().contains("10002") || processor.logs().contains("10047") {
            Ok(())
        } else {
            Err(processor.logs())
        }
    })
    .await?;
    // Longer than every retry timeout and all deliveries together.
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(world.notifications().await?.len() < 20, "the account is not full");
    assert!(!has_dead_letters(&world).await?, "{}", processor.logs());
    world.jetstream.get_stream(RECORDING_STREAM).await?.purge().await?;
    announced(&world, &processor, 20).await?;
    assert!(!has_dead_letters(&world).await?, "{}", processor.logs());
    processor.terminate().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn large_ends_cost_no_redelivery() -> Outcome {
    let world = TestWorld::start().await?;
    world.create_streams().await?;
    // More than nats-server lets pile up for one client, and one that is larger than a pull request.
    for number in 0..2_500 {
        world.publish(SESSION_ENDED_SUBJECT, end(&session(number), 32 << 10)).await?;
    }
    world.publish(SESSION_ENDED_SUBJECT, end(&session(2_500), 1_000_000)).await?;
    let processor = started(&world.processor("run").arguments(["--quiet-period", "100ms"])).await?;
    announced(&world, &processor, 2_501).await?;
    assert_eq!(world.consumer().await?.num_redelivered, 0);
    let delivered = world.consumer().await?.delivered.consumer_sequence;
    assert_eq!(delivered, 2_501, "each end was delivered once");
    processor.terminate().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_costs_no_attempt_where_there_is_only_one() -> Outcome {
    let world = TestWorld::start().await?;
    let command = || world.processor("run").arguments(["--quiet-period", "100ms", "--max-deliver", "1"]);
    let mut processor = started(&command()).await?;
    for round in 0..4 {
        for number in 0..100 {
            world.publish(SESSION_ENDED_SUBJECT, end(&session(round * 100 + number), 10)).await?;
            if number == 50 {
                processor.ask_to_end()?;
            }
        }
        processor.wait(LONG).await?;
        processor = started(&command()).await?;
    }
    announced(&world, &processor, 400).await?;
    assert!(!has_dead_letters(&world).await?, "{}", processor.logs());
    processor.terminate().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_processor_hears_of_a_message_that_used_up_its_deliveries() -> Outcome {
    let world = TestWorld::start().await?;
    let first = started(&world.processor("run").arguments(["--quiet-period", "100ms"])).await?;
    let second = started(&world.processor("run").arguments(["--quiet-period", "100ms"])).await?;
    first.freeze().await?;
    // What a pull that was open there may have been given comes back after the ack wait.
    let mut places = vec![];
    for number in 0..10 {
        places.push(world.publish("transcription.other", end(&session(number), 10)).await?);
    }
    for place in &places {
        let advisory = json!({ "stream_seq": place, "deliveries": 5 }).to_string();
        let subject = format!("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{TRANSCRIPTION_STREAM}.{CONSUMER}");
        world.client.publish(subject, advisory.into()).await?;
    }
    wait_until("each has become a dead letter", LONG, || async {
        let stream = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await.map_err(|error| error.to_string())?;
        let last = stream.cached_info().state.last_sequence;
        let kept = last - u64::try_from(places.len()).unwrap_or(0);
        if kept >= 10 { Ok(()) } else { Err(format!("{kept}: {}", second.logs())) }
    })
    .await?;
    first.thaw().await?;
    first.terminate().await?;
    second.terminate().await?;
    Ok(())
}
