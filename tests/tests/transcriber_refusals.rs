//! What the transcriber refuses, and how it bounds what it does not refuse: tokens, origins, frames, slow clients.

use std::{error::Error, fs, time::Duration};

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use mongodb::bson::Document;
use ring::hmac;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{Instant, timeout},
};
use tokio_tungstenite::tungstenite::{
    Message,
    protocol::frame::{
        Frame,
        coding::{Data, OpCode},
    },
};
use transcript_processor::service::clock::Clock;
use transcript_tests::{
    http::{self, HttpAnswer, HttpError},
    process_guard::Exit,
    transcriber::{Client, RunningTranscriber, TranscriberError, without_nats},
    wait::wait_until,
    world::TestWorld,
};

type Outcome = Result<(), Box<dyn Error>>;

const LONG: Duration = Duration::from_secs(60);
const SECRET: &str = "a-secret-of-thirty-two-bytes-or-more";
const FAR: u64 = 4_000_000_000;
/// Opens a WebSocket, for tests that write their frames themselves.
const UPGRADE: &str = "GET /v1/conversations/c/sessions/s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                       Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// A world, a transcriber without NATS, and the directory of its files.
async fn started(
    arguments: impl FnOnce(&TempDir) -> Vec<String>,
) -> Result<(TestWorld, RunningTranscriber, TempDir), Box<dyn Error>> {
    let world = TestWorld::start().await?;
    let files = TempDir::new()?;
    let transcriber = RunningTranscriber::start(without_nats(&world).arguments(arguments(&files))).await?;
    Ok((world, transcriber, files))
}

fn token(key: &str, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let message = format!("{}.{}", part(&json!({ "alg": "HS256" })), part(claims));
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes());
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(hmac::sign(&key, message.as_bytes())))
}

/// The status of an upgrade with these headers; 101 where it is not refused.
async fn status(
    at: &RunningTranscriber,
    query: &str,
    headers: &[(&'static str, &str)],
) -> Result<u16, TranscriberError> {
    match Client::connect(at.address, "c", "s", query, headers).await {
        Ok(_) => Ok(101),
        Err(error) => match error.refusal() {
            Some((status, reason)) => {
                assert!(reason.contains("\"reason\""), "{reason}");
                Ok(status)
            }
            None => Err(error),
        },
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_required_where_they_are_set_and_the_reason_is_told() -> Outcome {
    let (_world, transcriber, _files) = started(|files| {
        let file = files.path().join("key");
        fs::write(&file, SECRET).expect("the directory is there");
        vec!["--token-key-file".to_owned(), file.display().to_string()]
    })
    .await?;
    let good = token(SECRET, &json!({ "exp": FAR, "conversationId": "c" }));
    let bearer = |token: &str| format!("Bearer {token}");
    for (claims, expected) in [
        (json!({ "exp": FAR }), 101),
        (json!({ "exp": 1_000 }), 401),
        (json!({}), 401),
        (json!({ "exp": FAR, "sessionId": "another" }), 403),
    ] {
        let header = bearer(&token(SECRET, &claims));
        assert_eq!(status(&transcriber, "", &[("authorization", &header)]).await?, expected, "{claims}");
    }
    let forged = bearer(&token("another-secret-of-thirty-two-bytes", &json!({ "exp": FAR })));
    assert_eq!(status(&transcriber, "", &[("authorization", &forged)]).await?, 401);
    assert_eq!(status(&transcriber, "", &[]).await?, 401);
    assert_eq!(status(&transcriber, &format!("?token={good}"), &[]).await?, 101);
    let protocols = format!("transcript, token.{good}");
    assert_eq!(status(&transcriber, "", &[("sec-websocket-protocol", &protocols)]).await?, 101);
    let (status, refused) = transcriber.post("/v1/conversations/c/sessions/s/segments", "{}").await?;
    assert_eq!((status, &refused["type"]), (401, &json!("error")));
    let log = transcriber.process.logs();
    assert!(!log.contains(&good) && !log.contains(SECRET), "{log}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tokens_only_a_loopback_address_is_listened_on() -> Outcome {
    let world = TestWorld::start().await?;
    let command = world.processor("transcriber").arguments(["--listen", "0.0.0.0:0"]);
    let process = command.start().await?;
    assert_eq!(process.wait(LONG).await?, Exit::Code(2), "{}", process.logs());
    assert!(process.logs().contains("--token-file"), "{}", process.logs());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn web_pages_of_foreign_origins_are_refused() -> Outcome {
    let (_world, transcriber, _files) =
        started(|_| vec!["--allow-origin".to_owned(), "https://app.example".to_owned()]).await?;
    assert!(transcriber.process.logs().contains("no tokens are required"), "{}", transcriber.process.logs());
    for (origin, expected) in [("https://app.example", 101), ("https://evil.example", 403), ("null", 403)] {
        assert_eq!(status(&transcriber, "", &[("origin", origin)]).await?, expected, "{origin}");
    }
    for (query, expected) in [("?dialect=unknown", 400), ("?epoch=1", 400), ("?dialect=recall", 101)] {
        assert_eq!(status(&transcriber, query, &[]).await?, expected, "{query}");
    }
    let long = "x".repeat(300);
    let refused = transcriber.connect(&long, "s", "").await.err().and_then(|error| error.refusal());
    assert!(matches!(refused, Some((400, reason)) if reason.contains("conversationId")));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_frames_are_refused_with_a_code_and_affect_no_other_socket() -> Outcome {
    let (_world, transcriber, _files) = started(|_| vec!["--max-frame".to_owned(), "1KiB".to_owned()]).await?;
    let mut witness = transcriber.connect("c", "s", "").await?;
    let large = Message::text(json!({ "text": "x".repeat(2000) }).to_string());
    let invalid = Message::Frame(Frame::message(vec![0xC3, 0x28], OpCode::Data(Data::Text), true));
    for (message, expected) in [(large, 1009), (Message::binary(vec![1, 2, 3]), 1003), (invalid, 1007)] {
        let mut client = transcriber.connect("c", "s", "").await?;
        client.send_message(message.clone()).await?;
        let closed = client.closed().await?;
        assert_eq!(closed.code, expected, "{closed:?}");
        assert!(!closed.reason.is_empty(), "{closed:?}");
    }
    // Frames that are no JSON, or say nothing that can be read, are told; the connection goes on.
    for text in ["{", "[]", "{}", r#"{"text":null}"#, r#"{"text":"a","startMs":"now"}"#, r#"{"type":"?"}"#] {
        witness.send_message(Message::text(text)).await?;
        let error = witness.until("error").await?.pop().unwrap_or_default();
        assert_eq!(error["retryable"], false, "{error}");
    }
    // A message in two frames is one message.
    let begun = Frame::message(r#"{"id":"f","te"#, OpCode::Data(Data::Text), false);
    let ended = Frame::message(r#"xt":"In two frames."}"#, OpCode::Data(Data::Continue), true);
    witness.send_message(Message::Frame(begun)).await?;
    witness.send_message(Message::Frame(ended)).await?;
    assert_eq!(witness.finalize().await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unmasked_frame_and_a_header_that_never_ends_are_refused() -> Outcome {
    let (_world, transcriber, _files) = started(|_| vec!["--header-timeout".to_owned(), "300ms".to_owned()]).await?;
    let mut stream = TcpStream::connect(transcriber.address).await?;
    stream.write_all(UPGRADE.as_bytes()).await?;
    // A text frame of two bytes, without the mask that every frame of a client has.
    stream.write_all(&[0x81, 0x02, b'{', b'}']).await?;
    let mut answer = Vec::new();
    timeout(LONG, stream.read_to_end(&mut answer)).await??;
    let position = answer.windows(2).position(|bytes| bytes == 1002_u16.to_be_bytes());
    assert!(position.is_some(), "{:?}", String::from_utf8_lossy(&answer));
    let mut slow = TcpStream::connect(transcriber.address).await?;
    slow.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nX-Endless: ").await?;
    let begun = Instant::now();
    let mut rest = Vec::new();
    let closed = timeout(LONG, slow.read_to_end(&mut rest)).await?;
    assert!(closed.is_ok() || rest.is_empty(), "{closed:?}");
    assert!(begun.elapsed() < Duration::from_secs(10), "the default is not what was set: {:?}", begun.elapsed());
    // A header that is too large.
    let large = format!("GET / HTTP/1.1\r\nHost: x\r\nX-Large: {}\r\n\r\n", "x".repeat(64 << 10));
    let answer = http::send(transcriber.address, &large).await;
    // The connection may end before all of it is written.
    assert!(matches!(&answer, Ok(HttpAnswer { status: 431, .. }) | Err(HttpError::Connection(_))), "{answer:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_connections_and_segments_are_told() -> Outcome {
    let limits = ["--max-session-connections", "2", "--max-connections", "3", "--max-segments", "2"];
    let (_world, transcriber, _files) = started(|_| limits.map(str::to_owned).to_vec()).await?;
    let mut one = transcriber.connect("c", "s", "").await?;
    one.until("ready").await?;
    let mut two = transcriber.connect("c", "s", "").await?;
    two.until("ready").await?;
    let refused = async |session| {
        let mut client = transcriber.connect("c", session, "").await?;
        let error = client.until("error").await?.pop().unwrap_or_default();
        assert!(error["reason"].is_string(), "{error}");
        let closed = client.closed().await?;
        assert!([1008, 1013].contains(&closed.code), "{closed:?}");
        Ok::<_, TranscriberError>(())
    };
    refused("s").await?;
    let mut three = transcriber.connect("c", "other", "").await?;
    three.until("ready").await?;
    refused("more").await?;
    for _ in 0..3 {
        one.send(&json!({ "text": "One." })).await?;
    }
    one.send(&json!({ "type": "Finalize" })).await?;
    let frames = one.until("saved").await?;
    let refused: Vec<&Value> = frames.iter().filter(|frame| frame["type"] == "error").collect();
    assert_eq!(refused.len(), 1, "{frames:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_takes_its_place_until_it_is_gone_and_beyond_all_places_none_is_opened() -> Outcome {
    let (_world, transcriber, _files) = started(|_| ["--max-connections", "1"].map(str::to_owned).to_vec()).await?;
    let upgrade = "GET /v1/conversations/c/sessions/s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                   Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    // None of them reads on, so none of them answers the close that it is refused with.
    let mut opening = JoinSet::new();
    for _ in 0..200 {
        let address = transcriber.address;
        opening.spawn(async move {
            let mut stream = TcpStream::connect(address).await?;
            stream.write_all(upgrade.as_bytes()).await?;
            let mut status = [0; 12];
            stream.read_exact(&mut status).await?;
            Ok::<_, std::io::Error>((status, stream))
        });
    }
    let opened = timeout(LONG, opening.join_all()).await?;
    let upgraded =
        opened.iter().flatten().filter(|(status, _)| String::from_utf8_lossy(status).ends_with(" 101")).count();
    // One is served, and 64 more can be told why they are not.
    assert!((1..=65).contains(&upgraded), "{upgraded} sockets are open at the same time");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_is_held_back_and_then_closed() -> Outcome {
    let (world, transcriber, _files) = started(|_| vec!["--max-frame-rate".to_owned(), "100000".to_owned()]).await?;
    let mut client = transcriber.connect("c", "s", "").await?;
    let mut sent = 0_u32;
    // More than the buffers on the way hold, without reading one answer.
    let text = "x".repeat(400);
    let flooded = timeout(LONG, async {
        while client.send(&json!({ "id": format!("{sent:0>200}"), "text": text })).await.is_ok() {
            sent += 1;
        }
    });
    flooded.await?;
    assert!(sent > 100, "{sent}");
    let mut other = transcriber.connect("c", "other", "").await?;
    other.say("1", "Nobody else is affected.").await?;
    assert_eq!(other.finalize().await?, 1);
    drop(world);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_from_which_nothing_is_heard_is_closed() -> Outcome {
    let (_world, transcriber, _files) = started(|_| vec!["--silence-timeout".to_owned(), "1s".to_owned()]).await?;
    // One that answers pings, because it is read, and one that does not.
    let mut alive = transcriber.connect("c", "s", "").await?;
    let mut silent = TcpStream::connect(transcriber.address).await?;
    silent.write_all(UPGRADE.as_bytes()).await?;
    let begun = Instant::now();
    let mut answer = Vec::new();
    let closed = async { timeout(LONG, silent.read_to_end(&mut answer)).await };
    tokio::select! {
        closed = closed => { closed??; }
        frame = alive.until("saved") => return Err(format!("{frame:?}").into()),
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "the default is not what was set: {:?}", begun.elapsed());
    alive.say("1", "Still here.").await?;
    assert_eq!(alive.finalize().await?, 1);
    Ok(())
}

/// The headers with which Recall.ai would sign this body now.
fn signed_by_recall(key: &[u8], body: &str) -> [(&'static str, String); 3] {
    let timestamp = (Clock::start().wall().as_millis() / 1000).to_string();
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), format!("msg_1.{timestamp}.{body}").as_bytes());
    let signature = format!("v1,{}", STANDARD.encode(tag));
    [("webhook-id", "msg_1".to_owned()), ("webhook-timestamp", timestamp), ("webhook-signature", signature)]
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_that_must_sign_are_let_in_by_their_signature_and_by_nothing_else() -> Outcome {
    let (recall, twilio) = ([7; 24], "0123456789abcdef0123456789abcdef");
    let (_world, transcriber, _files) = started(|files| {
        let file = |name: &str, text: &str| {
            let file = files.path().join(name);
            fs::write(&file, text).expect("the directory is there");
            file.display().to_string()
        };
        let tokens = ["--token-file".to_owned(), file("tokens", SECRET)];
        let recall = ["--recall-secret-file".to_owned(), file("recall", &format!("whsec_{}", STANDARD.encode(recall)))];
        let twilio = ["--twilio-token-file".to_owned(), file("twilio", twilio)];
        let url = ["--public-url", "wss://calls.example"].map(str::to_owned);
        [tokens, recall, twilio, url].concat()
    })
    .await?;
    let of_recall = signed_by_recall(&recall, "");
    let headers = of_recall.each_ref().map(|(name, value)| (*name, value.as_str()));
    assert_eq!(status(&transcriber, "?dialect=recall", &headers).await?, 101);
    assert_eq!(status(&transcriber, "?dialect=recall", &headers[..2]).await?, 401);
    assert_eq!(status(&transcriber, "?dialect=deepgram", &headers).await?, 401, "another dialect needs a token");
    assert_eq!(status(&transcriber, &format!("?dialect=recall&token={SECRET}"), &[]).await?, 401, "it is not signed");
    let url = "wss://calls.example/v1/conversations/c/sessions/s?dialect=conversationrelay";
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, twilio.as_bytes());
    let of_twilio = STANDARD.encode(hmac::sign(&key, url.as_bytes()));
    let of_other = STANDARD.encode(hmac::sign(&key, b"wss://calls.example/v1/conversations/c/sessions/t"));
    for (signature, expected) in [(of_twilio, 101), (of_other, 401)] {
        let headers = [("x-twilio-signature", signature.as_str())];
        assert_eq!(status(&transcriber, "?dialect=conversationrelay", &headers).await?, expected);
    }
    let said = json!({ "event": "transcript.data", "data": { "data": { "words": [{ "text": "Hello." }] } } });
    let body = said.to_string();
    let path = "/v1/conversations/c/sessions/s/segments?dialect=recall";
    for (signed, expected) in [(body.as_str(), 200), ("{}", 401)] {
        let headers = signed_by_recall(&recall, signed).map(|(name, value)| format!("{name}: {value}\r\n")).concat();
        let length = body.len();
        let end = format!("Content-Length: {length}\r\nConnection: close\r\n\r\n{body}");
        let request = format!("POST {path} HTTP/1.1\r\nHost: x\r\n{headers}{end}");
        let answer = http::send(transcriber.address, &request).await?;
        assert_eq!(answer.status, expected, "{}", answer.body);
    }
    let log = transcriber.process.logs();
    assert!(!log.contains("whsec_") && !log.contains(twilio), "{log}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn conversation_relay_is_told_errors_and_nothing_else() -> Outcome {
    let (world, transcriber, _files) = started(|_| vec![]).await?;
    let mut client = transcriber.connect("c", "s", "?dialect=conversationrelay").await?;
    client.send(&json!({ "type": "prompt", "voicePrompt": "Hello.", "last": true })).await?;
    let stored = wait_until("the prompt is stored", LONG, || async {
        match world.segments().count_documents(Document::new()).await {
            Ok(1) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    stored.await?;
    client.send(&json!({ "type": "prompt" })).await?;
    let first = client.next().await?;
    assert_eq!(first["type"], "error", "{first}");
    Ok(())
}

/// Requests whose bodies never come to an end take all places there are for bodies; a socket needs none.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_send_their_bodies_slowly_hold_a_bounded_number_of_places() -> Outcome {
    let (_world, transcriber, _files) = started(|_| vec![]).await?;
    let path = "/v1/conversations/c/sessions/s/segments";
    let begun = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{");
    let mut slow = Vec::new();
    // A request of the test holds a place too, for as long as it takes: where one was left for it, that is held as well.
    let refused = loop {
        assert!(slow.len() < 1000, "the number of places has a bound");
        match transcriber.post(path, "{\"text\":\"Hello.\"}").await? {
            (503, answer) => break answer,
            (status, answer) => assert_eq!(status, 200, "{answer}"),
        }
        let mut stream = TcpStream::connect(transcriber.address).await?;
        stream.write_all(begun.as_bytes()).await?;
        slow.push(stream);
    };
    assert_eq!(refused["retryable"], true, "{refused}");
    let mut client = transcriber.connect("c", "s", "").await?;
    client.say("1", "Nobody else is affected.").await?;
    assert_eq!(client.finalize().await?, 1);
    drop(slow);
    let served = wait_until("there is a place again", LONG, || async {
        match transcriber.post(path, "{\"text\":\"Hello.\"}").await {
            Ok((200, _)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    served.await?;
    Ok(())
}
