//! The proxy before a real nats-server.

use std::time::Duration;

use async_nats::{HeaderMap, jetstream};
use futures::StreamExt;
use tokio::time::{Instant, timeout};
use transcript_tests::{
    proxy::{Direction, Fate, Flow, NatsProxy, NatsTraffic},
    servers::NatsServer,
    wait::wait_until,
};

type TestResult = Result<(), Box<dyn std::error::Error>>;

const SOON: Duration = Duration::from_secs(20);
/// Long beside the milliseconds in which an answer would come.
const A_WHILE: Duration = Duration::from_millis(300);

#[tokio::test]
async fn everything_passes_in_both_directions() -> TestResult {
    let (nats, proxy) = start().await?;
    let behind = async_nats::connect(proxy.url()).await?;
    let direct = nats.client().await?;
    let mut echoes = direct.subscribe("echo").await?;
    tokio::spawn(async move {
        while let Some(message) = echoes.next().await {
            let reply = message.reply.expect("it is a request");
            direct.publish(reply, message.payload).await.expect("the server is there");
        }
    });
    wait_until("the echo answers", SOON, || behind.request("echo", "".into())).await?;
    for size in [0, 1, 4_096, 900_000] {
        let payload = vec![b'\n'; size];
        assert_eq!(timeout(SOON, behind.request("echo", payload.clone().into())).await??.payload, payload);
    }
    Ok(())
}

#[tokio::test]
async fn a_held_message_is_stored_only_once_it_passes() -> TestResult {
    let (nats, proxy) = start().await?;
    let behind = jetstream::new(async_nats::connect(proxy.url()).await?);
    let stream = stream(&nats).await?;
    let holding = proxy.hold(NatsTraffic::to("kept.held"));

    behind.publish("kept.free", "1".into()).await?.await?;
    let held = publish(&behind, "kept.held").await?;
    let frame = timeout(SOON, proxy.held()).await?;
    let message = frame.message().expect("it was held as one");
    assert_eq!((message.subject(), message.header("Nats-Msg-Id")), ("kept.held", Some("id")));
    assert_eq!(message.payload(), b"held");
    assert_eq!(stream.get_info().await?.state.messages, 1);

    drop(holding);
    assert_eq!(timeout(SOON, held).await??.sequence, 2);
    Ok(())
}

#[tokio::test]
async fn a_held_message_is_lost_when_its_connection_is_cut() -> TestResult {
    let (nats, proxy) = start().await?;
    let client = async_nats::connect(proxy.url()).await?;
    let behind = jetstream::new(client.clone());
    let stream = stream(&nats).await?;
    let holding = proxy.hold(NatsTraffic::to("kept.held"));
    let _lost = publish(&behind, "kept.held").await?;
    timeout(SOON, proxy.held()).await?;

    proxy.cut();
    drop(holding);

    // The client comes back by itself, and what it sends then is the first to arrive.
    let stored = wait_until("the client is back", SOON, || async {
        let sent = behind.publish("kept.free", "1".into()).await.map_err(|error| error.to_string())?;
        timeout(A_WHILE, sent).await.map_err(|_| "no answer".to_owned())?.map_err(|error| error.to_string())
    });
    stored.await?;
    let first = stream.get_raw_message(1).await?;
    assert_eq!(first.subject.as_str(), "kept.free");
    assert!(stream.get_last_raw_message_by_subject("kept.held").await.is_err());
    Ok(())
}

#[tokio::test]
async fn a_frozen_direction_goes_on_where_it_stood() -> TestResult {
    let (nats, proxy) = start().await?;
    let behind = jetstream::new(async_nats::connect(proxy.url()).await?);
    let stream = stream(&nats).await?;
    proxy.set(Direction::ToClient, Flow::Freeze);
    let mut answer = Box::pin(behind.publish("kept.free", "1".into()).await?.into_future());
    let stored = wait_until("the message is stored", SOON, || async {
        let messages = stream.get_info().await.map_err(|error| error.to_string())?.state.messages;
        if messages == 1 { Ok(()) } else { Err(format!("{messages} messages")) }
    });
    stored.await?;
    assert!(timeout(A_WHILE, &mut answer).await.is_err(), "the answer waits");
    proxy.set(Direction::ToClient, Flow::Pass);
    assert_eq!(timeout(SOON, answer).await??.sequence, 1);
    Ok(())
}

#[tokio::test]
async fn an_answer_can_be_lost_although_the_message_was_stored() -> TestResult {
    let (nats, proxy) = start().await?;
    let behind = jetstream::new(async_nats::connect(proxy.url()).await?);
    let stream = stream(&nats).await?;
    let began = Instant::now();
    let publish_traffic = NatsTraffic::to("kept.free");
    let lost = proxy.discard(publish_traffic.clone().answer());
    let first = behind.publish("kept.free", "1".into()).await?;
    timeout(SOON, proxy.seen(&publish_traffic.clone().answer(), Fate::Discarded, began)).await?;
    assert_eq!(stream.get_info().await?.state.messages, 1);
    drop(lost);
    assert_eq!(behind.publish("kept.free", "2".into()).await?.await?.sequence, 2, "the connection goes on");
    assert_eq!(timeout(A_WHILE, first.into_future()).await.map(|_| ()).map_err(|_| ()), Err(()), "nobody heard");
    assert_eq!(proxy.count(&publish_traffic, Fate::Passed), 2);
    assert_eq!(proxy.count(&publish_traffic.answer(), Fate::Passed), 1);
    Ok(())
}

#[tokio::test]
async fn a_delayed_direction_keeps_its_order_and_its_pace() -> TestResult {
    let (nats, proxy) = start().await?;
    let behind = jetstream::new(async_nats::connect(proxy.url()).await?);
    let stream = stream(&nats).await?;
    proxy.set(Direction::ToServer, Flow::Delay(A_WHILE));
    let began = Instant::now();
    let mut answers = Vec::new();
    for number in 0..20 {
        answers.push(behind.publish("kept.free", format!("{number}").into()).await?);
    }
    for (place, answer) in (1..).zip(answers) {
        assert_eq!(answer.await?.sequence, place);
    }
    let took = began.elapsed();
    assert!(took >= A_WHILE && took < 10 * A_WHILE, "all twenty were late together, by {took:?}");
    assert_eq!(stream.get_raw_message(20).await?.payload, "19");
    Ok(())
}

#[tokio::test]
async fn open_connections_can_go_silent_while_new_ones_work() -> TestResult {
    let (nats, proxy) = start().await?;
    let silent = jetstream::new(async_nats::connect(proxy.url()).await?);
    let stream = stream(&nats).await?;
    silent.publish("kept.free", "1".into()).await?.await?;
    proxy.silence();
    let mut unheard = Box::pin(silent.publish("kept.free", "2".into()).await?.into_future());
    let other = jetstream::new(async_nats::connect(proxy.url()).await?);
    assert_eq!(other.publish("kept.free", "3".into()).await?.await?.sequence, 2);
    assert!(timeout(A_WHILE, &mut unheard).await.is_err());
    assert_eq!((proxy.open_connections(), stream.get_info().await?.state.messages), (2, 2));
    proxy.end_silence();
    assert_eq!(timeout(SOON, unheard).await??.sequence, 3);
    Ok(())
}

async fn start() -> Result<(NatsServer, NatsProxy), Box<dyn std::error::Error>> {
    let nats = NatsServer::start().await?;
    let proxy = NatsProxy::start(nats.process().address()).await?;
    Ok((nats, proxy))
}

async fn stream(nats: &NatsServer) -> Result<jetstream::stream::Stream, Box<dyn std::error::Error>> {
    let config = jetstream::stream::Config {
        name: "KEPT".to_owned(),
        subjects: vec!["kept.>".to_owned()],
        ..Default::default()
    };
    Ok(jetstream::new(nats.client().await?).create_stream(config).await?)
}

async fn publish(
    jetstream: &jetstream::Context,
    subject: &'static str,
) -> Result<jetstream::context::PublishAckFuture, Box<dyn std::error::Error>> {
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", "id");
    Ok(jetstream.publish_with_headers(subject, headers, "held".into()).await?)
}
