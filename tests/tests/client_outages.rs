//! What the JetStream client does about consumers that others change, servers that are full or away, and processors that come
//! and go, on real servers.

use std::{fs, time::Duration};

use async_nats::jetstream::{self, consumer::pull};
use futures::StreamExt;
use serde_json::json;
use tokio::time::Instant;
use transcript_core::contract::{
    CONSUMER, PROCESSED_SUBJECT, RECORDING_STREAM, SEGMENTS_COLLECTION, SESSION_ENDED_SUBJECT, TRANSCRIPTION_STREAM,
};
use transcript_tests::{
    numbered::{announced, end, end_of_size},
    processor::Processor,
    proxy::{Direction, Fate, MongoProxy, MongoTraffic, NatsProxy, NatsTraffic},
    raw_nats,
    servers::NatsOptions,
    wait::wait_until,
    world::{StoreOf, TestWorld},
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(120);

async fn consumer_config(world: &TestWorld) -> Result<jetstream::consumer::Config, Box<dyn std::error::Error>> {
    Ok(world.consumer().await?.config)
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_without_their_payload_are_not_terminated() -> Outcome {
    let world = TestWorld::start().await?;
    let processor = world.processor("run").arguments(["--quiet-period", "100ms"]).start_ready(LONG).await?;
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
        world.publish(SESSION_ENDED_SUBJECT, end(number)).await?;
    }
    announced(&world, &processor, 50, LONG).await?;
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
    let retries = ["--retry-timeout", "500ms", "--retry-base", "20ms", "--retry-cap", "50ms", "--nak-delay", "100ms"];
    world.processor("setup").arguments(["--ack-wait", "3s"]).run(LONG).await?;
    for number in 0..20 {
        world.publish(SESSION_ENDED_SUBJECT, end(number)).await?;
    }
    for size in [100_000, 1_000, 1] {
        while world.publish("recording.fill", vec![b'x'; size]).await.is_ok() {}
    }
    let proxy = NatsProxy::start(world.nats.process().address()).await?;
    let command = world.processor("run").environment("NATS_URL", proxy.url());
    let command = command.arguments(["--quiet-period", "100ms", "--ack-wait", "3s"]).arguments(retries);
    let processor = command.start_ready(LONG).await?;
    wait_until("it is told that nothing can be announced", LONG, || async {
        if processor.logs().contains("10002") || processor.logs().contains("10047") {
            Ok(())
        } else {
            Err(processor.logs())
        }
    })
    .await?;
    // With 25 ms between two tries at the least, that is longer than the retry timeouts of all five deliveries.
    let tries = || proxy.count(&NatsTraffic::to(PROCESSED_SUBJECT), Fate::Passed);
    wait_until("each call was tried 150 times", LONG, || async {
        if tries() >= 20 * 150 { Ok(()) } else { Err(tries()) }
    })
    .await?;
    assert_eq!(world.consumer().await?.delivered.consumer_sequence, 20, "no call was given back");
    assert!(world.notifications().await?.len() < 20, "the account is not full");
    assert!(raw_nats::dead_letters(&world).await?.is_empty(), "{}", processor.logs());
    world.jetstream.get_stream(RECORDING_STREAM).await?.purge().await?;
    announced(&world, &processor, 20, LONG).await?;
    assert!(raw_nats::dead_letters(&world).await?.is_empty(), "{}", processor.logs());
    processor.terminate().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn large_ends_cost_no_redelivery() -> Outcome {
    let world = TestWorld::start().await?;
    world.create_streams().await?;
    // More than nats-server lets pile up for one client, and one that is larger than a pull request.
    for number in 0..2_500 {
        world.publish(SESSION_ENDED_SUBJECT, end_of_size(number, 32 << 10)).await?;
    }
    world.publish(SESSION_ENDED_SUBJECT, end_of_size(2_500, 1_000_000)).await?;
    let processor = world.processor("run").arguments(["--quiet-period", "100ms"]).start_ready(LONG).await?;
    announced(&world, &processor, 2_501, LONG).await?;
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
    let mut processor = command().start_ready(LONG).await?;
    for round in 0..4 {
        for number in 0..100 {
            world.publish(SESSION_ENDED_SUBJECT, end(round * 100 + number)).await?;
            if number == 50 {
                processor.ask_to_end()?;
            }
        }
        processor.wait(LONG).await?;
        processor = command().start_ready(LONG).await?;
    }
    announced(&world, &processor, 400, LONG).await?;
    assert!(raw_nats::dead_letters(&world).await?.is_empty(), "{}", processor.logs());
    processor.terminate().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_processor_hears_of_a_message_that_used_up_its_deliveries() -> Outcome {
    let world = TestWorld::start().await?;
    let first = world.processor("run").arguments(["--quiet-period", "100ms"]).start_ready(LONG).await?;
    let second = world.processor("run").arguments(["--quiet-period", "100ms"]).start_ready(LONG).await?;
    first.freeze().await?;
    // What a pull that was open there may have been given comes back after the ack wait.
    let mut places = vec![];
    for number in 0..10 {
        places.push(world.publish("transcription.other", end(number)).await?);
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

/// JetStream counts the deliveries that its restarts cost, and tells every processor that they are used up: also the one that
/// does not have the calls in hand.
#[tokio::test(flavor = "multi_thread")]
async fn restarts_of_nats_cost_no_call_that_a_living_processor_has_in_hand() -> Outcome {
    const CALLS: usize = 20;
    let mut world = TestWorld::start().await?;
    let arguments = ["--quiet-period", "100ms", "--ack-wait", "2s", "--max-deliver", "2"];
    world.processor("setup").arguments(&arguments[2..]).run(LONG).await?;
    // MongoDB is away for the first one, so that its calls stay in hand.
    let proxy = MongoProxy::start(world.mongod_address()).await?;
    let held = proxy.hold(MongoTraffic::command("aggregate", SEGMENTS_COLLECTION));
    let command = world.processor("run").environment("MONGODB_URI", proxy.uri());
    let holder = command.arguments(arguments).start_ready(LONG).await?;
    for number in 0..CALLS {
        world.publish(SESSION_ENDED_SUBJECT, end(number)).await?;
    }
    delivered(&world, CALLS).await?;
    let other = world.processor("run").arguments(arguments).start_ready(LONG).await?;
    let subject = format!("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{TRANSCRIPTION_STREAM}.{CONSUMER}");
    let mut advisories = world.client.subscribe(subject).await?;
    world.client.flush().await?;
    // Each restart hands out all that is not acknowledged, once more; to the same processor, or to the other one.
    for _ in 0..3 {
        holder.freeze().await?;
        other.freeze().await?;
        world.nats.start_again().await?;
        holder.thaw().await?;
        other.thaw().await?;
        if tokio::time::timeout(Duration::from_secs(10), advisories.next()).await.is_ok() {
            break;
        }
    }
    drop(held);
    announced(&world, &holder, CALLS, LONG).await?;
    // What they are told to stop over is looked at for the last time.
    other.terminate().await?;
    holder.terminate().await?;
    assert_eq!(raw_nats::dead_letters(&world).await?, [], "{}", other.logs());
    Ok(())
}

/// Waits until so many deliveries were made.
async fn delivered(world: &TestWorld, deliveries: usize) -> Outcome {
    let expected = u64::try_from(deliveries)?;
    wait_until(format!("{deliveries} were delivered"), LONG, || async {
        let consumer = world.consumer().await.map_err(|error| error.to_string())?;
        if consumer.delivered.consumer_sequence >= expected { Ok(()) } else { Err(format!("{consumer:?}")) }
    })
    .await?;
    Ok(())
}

/// Waits until a processor behind a proxy has so many calls in hand. What the server has counted as delivered may still be on
/// its way, and is lost with the server.
async fn in_hand(proxy: &NatsProxy, calls: usize, within: Duration) -> Outcome {
    wait_until(format!("{calls} calls are in hand"), within, || async {
        let deliveries = proxy.count(&NatsTraffic::Delivery, Fate::Passed);
        if deliveries >= calls { Ok(()) } else { Err(deliveries.to_string()) }
    })
    .await?;
    Ok(())
}

/// Waits until so many calls have a summary.
async fn saved(world: &TestWorld, processor: &Processor, calls: usize, within: Duration) -> Outcome {
    wait_until(format!("{calls} calls are to be announced"), within, || async {
        let saved = world.summaries().await.map_err(|error| error.to_string())?.len();
        if saved == calls { Ok(()) } else { Err(format!("{saved}: {}", processor.logs())) }
    })
    .await?;
    Ok(())
}

/// Waits until the consumer has nothing left to hand over and nothing handed over.
async fn acknowledged(world: &TestWorld, processor: &Processor, within: Duration) -> Outcome {
    wait_until("all are acknowledged", within, || async {
        let consumer = world.consumer().await.map_err(|error| error.to_string())?;
        let left = consumer.num_pending + u64::try_from(consumer.num_ack_pending).unwrap_or(0);
        if left == 0 { Ok(()) } else { Err(format!("{left} are left: {}", processor.logs())) }
    })
    .await?;
    Ok(())
}

/// A server that is killed has written down what it delivered up to 100 ms before. This one has lost all of it: it drops an
/// acknowledgement without a word until it has handed the message over again.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_acknowledged_once_to_a_server_that_has_forgotten_its_delivery() -> Outcome {
    const CALLS: usize = 50;
    let mut world = TestWorld::start().await?;
    world.processor("setup").run(LONG).await?;
    for number in 0..CALLS {
        world.publish(SESSION_ENDED_SUBJECT, end(number)).await?;
    }
    let proxy = NatsProxy::start(world.nats.process().address()).await?;
    let mongo = MongoProxy::start(world.mongod_address()).await?;
    let held = mongo.hold(MongoTraffic::command("aggregate", SEGMENTS_COLLECTION));
    let command = world.processor("run").environment("NATS_URL", proxy.url()).environment("MONGODB_URI", mongo.uri());
    let processor = command.arguments(["--quiet-period", "100ms"]).start_ready(LONG).await?;
    in_hand(&proxy, CALLS, LONG).await?;
    world.nats.process().kill().await?;
    let store = world.nats.process().directory().join("store/jetstream/$G/streams");
    fs::remove_file(store.join(TRANSCRIPTION_STREAM).join("obs").join(CONSUMER).join("o.dat"))?;
    drop(held);
    saved(&world, &processor, CALLS, LONG).await?;
    // Nobody is given anything until all that can be acknowledged would have been.
    let no_pulls = proxy.discard(NatsTraffic::Pull);
    world.nats.start_again().await?;
    wait_until("all are marked", LONG, || async {
        let summaries = world.summaries().await.map_err(|error| error.to_string())?;
        let marked = summaries.iter().filter(|summary| summary.contains_key("notified")).count();
        if marked == CALLS { Ok(()) } else { Err(format!("{marked}: {}", processor.logs())) }
    })
    .await?;
    drop(no_pulls);
    acknowledged(&world, &processor, LONG).await?;
    assert_eq!(proxy.count(&NatsTraffic::Ack, Fate::Passed), CALLS);
    processor.terminate().await?;
    Ok(())
}

/// What a processor holds in memory now, in KiB.
fn resident(processor: &Processor) -> Result<u64, Box<dyn std::error::Error>> {
    let status = fs::read_to_string(format!("/proc/{}/status", processor.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no size")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// How long NATS is away in [`an_outage_of_nats_takes_no_memory_and_ends_with_one_request_for_each_call`], in seconds, and how
/// many calls are in hand: as `900 10000` for a long one.
const OUTAGE: &str = "TRANSCRIPT_TEST_OUTAGE";

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_nats_takes_no_memory_and_ends_with_one_request_for_each_call() -> Outcome {
    let chosen = std::env::var(OUTAGE).unwrap_or_else(|_| "8 1500".to_owned());
    let (seconds, calls) = chosen.split_once(' ').ok_or("two numbers")?;
    let (outage, calls) = (Duration::from_secs(seconds.parse()?), calls.parse::<usize>()?);
    let within = LONG + outage * 2;
    let mut world = TestWorld::start().await?;
    world.processor("setup").run(LONG).await?;
    for number in 0..calls {
        world.publish(SESSION_ENDED_SUBJECT, end(number)).await?;
    }
    let proxy = NatsProxy::start(world.nats.process().address()).await?;
    let mongo = MongoProxy::start(world.mongod_address()).await?;
    let held = mongo.hold(MongoTraffic::command("aggregate", SEGMENTS_COLLECTION));
    let command = world.processor("run").environment("NATS_URL", proxy.url()).environment("MONGODB_URI", mongo.uri());
    // An outage of the test is an outage: a request of the held MongoDB is not to fail for it.
    let processor = command.arguments(["--quiet-period", "100ms"]).start_ready(LONG).await?;
    in_hand(&proxy, calls, within).await?;
    world.nats.process().kill().await?;
    processor.logged("cannot connect to NATS again", LONG).await?;
    drop(held);
    saved(&world, &processor, calls, within).await?;
    let (begun, before) = (Instant::now(), resident(&processor)?);
    let mut most = before;
    while begun.elapsed() < outage {
        most = most.max(resident(&processor)?);
        tokio::time::sleep(outage / 100).await;
    }
    assert!(most <= before + 16 * 1024, "it grew from {before} KiB to {most} KiB");
    world.nats.start_again().await?;
    let back = Instant::now();
    announced(&world, &processor, calls, within).await?;
    acknowledged(&world, &processor, within).await?;
    let sent: Vec<NatsTraffic> = proxy
        .log()
        .into_iter()
        .filter(|line| line.at >= back && line.direction == Direction::ToServer)
        .map(|line| line.traffic)
        .collect();
    for traffic in [NatsTraffic::to(PROCESSED_SUBJECT), NatsTraffic::Ack] {
        let count = sent.iter().filter(|it| **it == traffic).count();
        assert!((calls..=calls + calls / 20).contains(&count), "{count} times {traffic:?} for {calls} calls");
    }
    processor.terminate().await?;
    Ok(())
}
