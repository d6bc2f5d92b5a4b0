//! What the transcriber refuses, and how it bounds what it does not refuse: tokens, origins, frames, slow clients.

use std::{error::Error, fs, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::hmac;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_tungstenite::tungstenite::{
    Message,
    protocol::frame::{
        Frame,
        coding::{Data, OpCode},
    },
};
use transcript_tests::{
    processor::ProcessorCommand,
    transcriber::{Client, RunningTranscriber, TranscriberError, exchange},
    world::TestWorld,
};

type Outcome = Result<(), Box<dyn Error>>;

const LONG: Duration = Duration::from_secs(60);
const SECRET: &str = "a-secret-of-thirty-two-bytes-or-more";
const FAR: u64 = 4_000_000_000;

/// A world, a transcriber without NATS, and the directory of its files.
async fn started(
    arguments: impl FnOnce(&TempDir) -> Vec<String>,
) -> Result<(TestWorld, RunningTranscriber, TempDir), Box<dyn Error>> {
    let world = TestWorld::start().await?;
    let files = TempDir::new()?;
    let command = ProcessorCommand::new("transcriber")
        .environment("MONGODB_URI", world.mongodb_uri())
        .environment("MONGODB_DATABASE", world.database().name())
        .arguments(arguments(&files));
    let transcriber = RunningTranscriber::start(command).await?;
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
    let exit = process.wait(LONG).await?;
    assert_eq!(exit.to_string(), "exit code 2", "{}", process.logs());
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
    let upgrade = "GET /v1/conversations/c/sessions/s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                   Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(upgrade.as_bytes()).await?;
    // A text frame of two bytes, without the mask that every frame of a client has.
    stream.write_all(&[0x81, 0x02, b'{', b'}']).await?;
    let mut answer = Vec::new();
    timeout(LONG, stream.read_to_end(&mut answer)).await??;
    let position = answer.windows(2).position(|bytes| bytes == 1002_u16.to_be_bytes());
    assert!(position.is_some(), "{:?}", String::from_utf8_lossy(&answer));
    let mut slow = TcpStream::connect(transcriber.address).await?;
    slow.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nX-Endless: ").await?;
    let mut rest = Vec::new();
    let closed = timeout(LONG, slow.read_to_end(&mut rest)).await?;
    assert!(closed.is_ok() || rest.is_empty(), "{closed:?}");
    // A header that is too large.
    let large = format!("GET / HTTP/1.1\r\nHost: x\r\nX-Large: {}\r\n\r\n", "x".repeat(64 << 10));
    let answer = exchange(transcriber.address, large.as_bytes()).await;
    assert!(answer.as_ref().map_or(true, |answer| answer.contains(" 431 ")), "{answer:?}");
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
    for session in ["s", "other", "more"] {
        let mut client = transcriber.connect("c", session, "").await?;
        if session == "other" {
            client.until("ready").await?;
            std::mem::forget(client);
            continue;
        }
        let error = client.until("error").await?.pop().unwrap_or_default();
        assert!(error["reason"].is_string(), "{error}");
        let closed = client.closed().await?;
        assert!([1008, 1013].contains(&closed.code), "{closed:?}");
    }
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
    let upgrade = "GET /v1/conversations/c/sessions/s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                   Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    silent.write_all(upgrade.as_bytes()).await?;
    let mut answer = Vec::new();
    let closed = async { timeout(LONG, silent.read_to_end(&mut answer)).await };
    tokio::select! {
        closed = closed => { closed??; }
        frame = alive.until("saved") => return Err(format!("{frame:?}").into()),
    }
    alive.say("1", "Still here.").await?;
    assert_eq!(alive.finalize().await?, 1);
    Ok(())
}
