//! What an operator sees: each fault, caused on real servers, on `/readyz`, in the metrics and in `status`, with its cause and
//! its remedy.

use std::{fs, io, net::SocketAddr, process::Command, time::Duration};

use async_nats::{HeaderMap, jetstream::stream::DiscardPolicy};
use serde_json::Value;
use tokio::{io::AsyncWriteExt, net::TcpStream};
use transcript_core::{
    contract::{
        CONSUMER, DEAD_LETTER_SUBJECT, REASON_HEADER, SESSION_ENDED_SUBJECT, SUMMARIES_COLLECTION, TRANSCRIPTION_STREAM,
    },
    ids::Session,
};
use transcript_processor::monitor::finding::FindingName;
use transcript_tests::{
    calls::{Call, fixture},
    http::{self, HttpAnswer},
    process_guard::Exit,
    processor::{Processor, ProcessorCommand},
    proxy::{Direction, Flow, MongoProxy, MongoTraffic},
    wait::wait_until,
    world::{StoreOf, TestWorld},
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Long beside everything awaited here, also on a busy machine. An idle machine shows each fault within 15 s.
const LONG: Duration = Duration::from_secs(90);
const SHORT: [&str; 4] = ["--quiet-period", "100ms", "--ack-wait", "3s"];
const HTTP: [&str; 2] = ["--http", "127.0.0.1:0"];

/// A processor that is looked at.
struct Watched {
    processor: Processor,
    address: SocketAddr,
}

impl Watched {
    async fn start(world: &TestWorld, arguments: &[&str]) -> Result<Self, Box<dyn std::error::Error>> {
        Self::of(world.processor("run"), arguments).await
    }

    async fn of(run: ProcessorCommand, arguments: &[&str]) -> Result<Self, Box<dyn std::error::Error>> {
        let processor = run.arguments(HTTP).arguments(arguments).start().await?;
        let address = processor.address("listening for HTTP", LONG).await?;
        Ok(Self { processor, address })
    }

    async fn get(&self, path: &str) -> Result<HttpAnswer, String> {
        http::get(self.address, path, "").await.map_err(|error| error.to_string())
    }

    async fn ready(&self) -> Outcome {
        wait_until("the processor is ready", LONG, || async {
            let answer = self.get("/readyz").await?;
            if answer.status == 200 { Ok(()) } else { Err(answer.body) }
        })
        .await?;
        Ok(())
    }

    /// Waits until a finding is told everywhere, with words that name its cause and remedy; gives what `/readyz` says.
    async fn finds(&self, name: &str, status: u16) -> Result<String, Box<dyn std::error::Error>> {
        let told = wait_until(format!("{name} is found"), LONG, || async {
            let answer = self.get("/readyz").await?;
            let line = answer.body.lines().find(|line| line.starts_with(&format!("{name}: ")));
            match line {
                Some(line) if answer.status == status => Ok(line.to_owned()),
                Some(_) | None => Err(format!("{} {}", answer.status, answer.body)),
            }
        })
        .await?;
        assert!(told.contains(&format!("#{name}")), "it names the manual's section: {told}");
        let metrics = self.get("/metrics").await?.body;
        assert!(metrics.contains(&format!("transcript_finding{{name=\"{name}\"}} 1")), "{metrics}");
        let document: Value = serde_json::from_str(&self.get("/status.json").await?.body)?;
        let findings = document["findings"].as_array().cloned().unwrap_or_default();
        let finding = findings.iter().find(|finding| finding["name"] == name).ok_or("it is in the document")?;
        for word in ["cause", "consequence", "remedy", "manual"] {
            assert!(finding[word].as_str().is_some_and(|text| !text.is_empty()), "{finding}");
        }
        Ok(told)
    }

    /// The value of a metric with these labels.
    async fn metric(&self, metric: &str) -> Result<f64, Box<dyn std::error::Error>> {
        let metrics = self.get("/metrics").await?.body;
        let line = metrics.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '));
        Ok(line.ok_or_else(|| format!("no {metric} in {metrics}"))?.parse()?)
    }
}

async fn end(
    world: &TestWorld,
    session: &str,
    segments: u32,
    published: u64,
) -> Result<Session, Box<dyn std::error::Error>> {
    let call = Call::of("conversation", session, segments)?;
    world.insert_segments(&call.segments).await?;
    world.publish_session_end(&call.session, published).await?;
    Ok(call.session)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_calls_come_to_is_counted_and_every_name_is_there() -> Outcome {
    let world = TestWorld::start().await?;
    let watched = Watched::start(&world, &SHORT).await?;
    watched.ready().await?;
    assert_eq!(watched.get("/healthz").await?.status, 200);
    end(&world, "whole", 12, 12).await?;
    end(&world, "lacking", 3, 5).await?;
    wait_until("both calls are counted", LONG, || async {
        let counted = async {
            let outcome = |outcome: &str| format!("transcript_sessions_total{{outcome=\"{outcome}\"}}");
            let complete = watched.metric(&outcome("complete")).await?;
            let incomplete = watched.metric(&outcome("incomplete")).await?;
            let acknowledged = watched.metric("transcript_acknowledged_total").await?;
            Ok::<_, Box<dyn std::error::Error>>((complete, incomplete, acknowledged))
        };
        let counted = counted.await.map_err(|error| error.to_string())?;
        if counted == (1.0, 1.0, 2.0) { Ok(()) } else { Err(format!("{counted:?}")) }
    })
    .await?;
    assert_eq!(watched.metric("transcript_missing_segments_total").await?, 2.0);
    assert_eq!(watched.metric("transcript_notification_seconds_count").await?, 2.0);
    assert!(watched.metric("transcript_notification_seconds_sum").await? > 0.1, "two quiet periods");
    assert_eq!(watched.metric("transcript_settle_rounds_total").await?, 4.0);
    assert_eq!(watched.metric("transcript_mongodb_batch_size_sum{command=\"save\"}").await?, 2.0);
    wait_until("nothing is behind", LONG, || async {
        let behind = watched.metric("transcript_seconds_behind").await.map_err(|error| error.to_string())?;
        if behind == 0.0 { Ok(()) } else { Err(behind.to_string()) }
    })
    .await?;
    let metrics = watched.get("/metrics").await?.body;
    assert!(!metrics.contains("jetstream_consumer_"), "the broker's numbers are not asked for: {metrics}");
    assert!(!metrics.contains("conversation") && !metrics.contains("lacking"), "no id is in a label: {metrics}");
    for file in ["alerts.yml", "dashboard.json", "scaledobject.yaml"] {
        let unknown: Vec<String> = names(&monitoring(file)?).filter(|name| !is_told(&metrics, name)).collect();
        assert_eq!(unknown, Vec::<String>::new(), "{file} asks for metrics that are not there");
    }
    let status = world.processor("status").arguments(["--from", &watched.address.to_string()]).run(LONG).await?;
    assert!(status.contains("1 complete, 1 incomplete, 0 dead letters"), "{status}");
    let json =
        world.processor("status").arguments(["--from", &watched.address.to_string(), "--json"]).run(LONG).await?;
    let document: Value = serde_json::from_str(&json)?;
    assert_eq!(document["process"]["sinceStart"]["incomplete"], 1);
    let of_servers: Value = serde_json::from_str(&world.processor("status").argument("--json").run(LONG).await?)?;
    assert_eq!((&of_servers["findings"], &of_servers["secondsBehind"]), (&Value::Array(vec![]), &Value::from(0.0)));
    let found = watched.get("/session.json?conversation=conversation&session=lacking").await?;
    let found: Value = serde_json::from_str(&found.body)?;
    assert_eq!(
        (&found["segments"], &found["publishedSegments"], &found["complete"]),
        (&3.into(), &5.into(), &false.into())
    );
    assert_eq!(found.get("transcript"), None, "what was said is not shown unless that is asked for");
    assert_eq!(watched.get("/session.json?conversation=c&session=none").await?.status, 404);
    assert_eq!(watched.get("/session.json").await?.status, 400);
    let action = "{\"action\":\"resume\"}";
    let action = format!("POST /action HTTP/1.0\r\nHost: {}\r\nContent-Length: 19\r\n\r\n{action}", watched.address);
    assert_eq!(http::send(watched.address, &action).await?.status, 403, "without a token nothing can be done");
    assert_eq!(watched.get("/session.json?conversation=c&session=").await?.status, 400);
    watched.processor.terminate().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_listed_by_state_and_followed() -> Outcome {
    let world = TestWorld::start().await?;
    let watched = Watched::start(&world, &SHORT).await?;
    watched.ready().await?;
    end(&world, "whole", 2, 2).await?;
    end(&world, "lacking", 1, 2).await?;
    world.publish(SESSION_ENDED_SUBJECT, b"no JSON".to_vec()).await?;
    let calls = |arguments: &'static [&'static str]| world.processor("calls").arguments(arguments.iter().copied());
    wait_until("three calls have come to an end", LONG, || async {
        let listed = calls(&[]).run(LONG).await.map_err(|error| error.to_string())?;
        let is_done = ["complete", "incomplete", "dead-letter"]
            .iter()
            .all(|state| listed.lines().any(|line| line.split_whitespace().nth(1) == Some(state)));
        if is_done { Ok(()) } else { Err(listed) }
    })
    .await?;
    let incomplete = calls(&["--incomplete", "--json"]).run(LONG).await?;
    let incomplete: Value = serde_json::from_str(&incomplete)?;
    assert_eq!((&incomplete["key"], &incomplete["state"]), (&"conversation:lacking".into(), &"incomplete".into()));
    assert_eq!((&incomplete["segments"], &incomplete["publishedSegments"]), (&1.into(), &2.into()));
    let given_up = calls(&["--state", "dead-letter", "--reason", "JSON"]).run(LONG).await?;
    assert!(given_up.contains("message 3"), "{given_up}");
    assert_eq!(calls(&["--conversation", "other"]).run(LONG).await?, "");

    let follows = calls(&["--follow", "--conversation", "conversation"]).start().await?;
    follows.printed("conversation:lacking", LONG).await?;
    end(&world, "later", 3, 3).await?;
    follows.printed("conversation:later", LONG).await?;
    assert_eq!(follows.output().matches("conversation:later").count(), 1, "{}", follows.output());
    Ok(())
}

/// What others wrote is text on the page and nothing else, in a real browser where there is one.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_ids_and_reasons_are_text_on_the_page() -> Outcome {
    let world = TestWorld::start().await?;
    let watched = Watched::start(&world, &["--quiet-period", "1h"]).await?;
    watched.ready().await?;
    let hostile = Session::new("<img src=x onerror=document.title=1>", "a\u{202e}b\u{1b}[2J")?;
    world.publish_session_end(&hostile, 1).await?;
    let mut headers = HeaderMap::new();
    headers.insert(REASON_HEADER, "<script>document.title=2</script>");
    world.jetstream.publish_with_headers(DEAD_LETTER_SUBJECT, headers, "{}".into()).await?.await?;
    watched.finds("dead_letters_open", 200).await?;
    let status = world.processor("status").arguments(["--from", &watched.address.to_string()]).run(LONG).await?;
    assert!(status.contains("<img src=x") && !status.contains(['\u{202e}', '\u{1b}']), "{status}");

    let profile = tempfile::tempdir()?;
    let browser = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=8000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("http://{}/", watched.address))
        .output();
    let page = match browser {
        Ok(output) => String::from_utf8(output.stdout)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            eprintln!("not tested: this machine has no browser (chromium)");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    assert!(page.contains("Ready, with warnings"), "{page}");
    assert!(page.contains("<td>&lt;img src=x onerror=document.title=1&gt;:"), "{page}");
    assert!(page.contains("<td>&lt;script&gt;document.title=2&lt;/script&gt;</td>"), "{page}");
    assert!(page.contains("<title>transcript-processor</title>"), "nothing of it ran: {page}");
    assert!(!page.contains(['\u{202e}', '\u{1b}']), "{page}");
    Ok(())
}

/// What a client does wrong ends with its connection, and others are answered meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_slow_clients_and_forged_tokens_are_refused() -> Outcome {
    let world = TestWorld::start().await?;
    let directory = tempfile::tempdir()?;
    let token = directory.path().join("token");
    fs::write(&token, "s3cret\n")?;
    let token = token.to_str().ok_or("a path is a text")?;
    let watched = Watched::start(&world, &[&SHORT[..], &["--http-token-file", token]].concat()).await?;
    let (address, host) = (watched.address, watched.address.to_string());
    let status = |request: String| async move { http::send(address, &request).await.map(|answer| answer.status) };
    let of_host = |path: &str, lines: &str| format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n{lines}\r\n");

    for path in ["/metrics", "/status.json", "/session.json?conversation=c&session=s"] {
        assert_eq!(status(of_host(path, "")).await?, 401, "{path}");
        assert_eq!(status(of_host(path, "Authorization: Bearer s3cres\r\n")).await?, 401, "{path}");
    }
    assert_eq!(status(of_host("/status.json", "Authorization: Bearer s3cret\r\n")).await?, 200);
    for open in ["/", "/page.js", "/page.css", "/healthz"] {
        assert_eq!(status(of_host(open, "")).await?, 200, "{open}");
    }
    let refused = world.processor("status").arguments(["--from", &host]).start().await?;
    assert_eq!(refused.wait(LONG).await?, Exit::Code(1));
    assert!(refused.logs().contains("--http-token-file"), "{}", refused.logs());
    world.processor("status").arguments(["--from", &host, "--token-file", token]).run(LONG).await?;

    let rebound = "GET /healthz HTTP/1.0\r\nHost: rebound.example.org\r\n\r\n".to_owned();
    assert_eq!(status(rebound).await?, 403);
    assert_eq!(status("GET /healthz HTTP/1.0\r\n\r\n".to_owned()).await?, 403);
    assert_eq!(status(of_host("/nothing", "")).await?, 404);
    let post = format!("POST /status.json HTTP/1.0\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n");
    assert_ne!(status(post).await?, 200, "nothing can be posted there");
    let endless = of_host("/healthz", &format!("X: {}\r\n", "x".repeat(64 << 10)));
    assert!(!matches!(status(endless).await, Ok(200)), "a header that is too large");
    let page = http::get(address, "/", "").await?;
    assert!(page.head.contains("content-security-policy: default-src 'none'"), "{}", page.head);

    // As many clients as there is room for begin a request and never end it.
    let mut slow = vec![];
    for _ in 0..64 {
        let mut client = TcpStream::connect(address).await?;
        client.write_all(b"GET /healthz HTTP/1.1\r\nHost: ").await?;
        slow.push(client);
    }
    wait_until("others are answered again", LONG, || async {
        let answer = watched.get("/healthz").await?;
        if answer.status == 200 { Ok(()) } else { Err(answer.body) }
    })
    .await?;
    drop(slow);
    let logs = watched.processor.logs();
    assert!(!logs.contains("s3cret"), "{logs}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_go_away_are_found_and_their_return_too() -> Outcome {
    let mut world = TestWorld::start_as(StoreOf::ThisWorld, Default::default()).await?;
    let watched = Watched::start(&world, &SHORT).await?;
    watched.ready().await?;
    world.mongod().process().freeze().await?;
    let told = watched.finds("mongodb_unreachable", 503).await?;
    assert!(told.contains("Start mongod"), "{told}");
    let metrics = watched.get("/metrics").await?.body;
    assert!(metrics.contains("transcript_server_up{server=\"mongodb\"} 0"), "{metrics}");
    world.mongod().process().thaw().await?;
    watched.ready().await?;

    world.nats.process().kill().await?;
    let told = watched.finds("nats_unreachable", 503).await?;
    assert!(told.contains("Start nats-server"), "{told}");
    assert_eq!(watched.get("/healthz").await?.status, 200, "the loop runs whatever the servers do");
    let status = world.processor("status").arguments(["--from", &watched.address.to_string()]).start().await?;
    assert_eq!(status.wait(LONG).await?, Exit::Code(1), "something keeps calls from being processed");
    assert!(status.output().contains("NOT READY"), "{}", status.output());
    world.nats.start_again_without_jetstream().await?;
    let told = watched.finds("jetstream_unavailable", 503).await?;
    assert!(told.contains("enable JetStream"), "{told}");
    world.nats.enable_jetstream().await?;
    watched.ready().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mongodb_that_answers_no_writes_and_one_that_is_slow_are_found() -> Outcome {
    let world = TestWorld::start().await?;
    let proxy = MongoProxy::start(world.mongod_address()).await?;
    let run = world.processor("run").environment("MONGODB_URI", proxy.uri());
    let watched = Watched::of(run, &[&SHORT[..], &["--request-timeout", "1s"]].concat()).await?;
    watched.ready().await?;
    let held = proxy.hold(MongoTraffic::command("update", SUMMARIES_COLLECTION));
    end(&world, "unsaved", 2, 2).await?;
    let told = watched.finds("mongodb_cannot_write", 503).await?;
    assert!(told.contains("majority of the replica set"), "{told}");
    let status = world.processor("status").arguments(["--from", &watched.address.to_string()]).start().await?;
    assert_eq!(status.wait(LONG).await?, Exit::Code(1), "something keeps calls from being processed");
    assert!(status.output().contains("No summary can be saved"), "{}", status.output());
    drop(held);
    watched.ready().await?;
    proxy.set(Direction::ToClient, Flow::Delay(Duration::from_millis(1500)));
    let told = watched.finds("mongodb_slow", 200).await?;
    assert!(told.contains("for a ping"), "{told}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_the_stream_and_its_consumer_are_found() -> Outcome {
    let world = TestWorld::start().await?;
    let watched = Watched::start(&world, &[&SHORT[..], &["--metrics-of-the-broker"]].concat()).await?;
    watched.ready().await?;
    let paused = world.processor("pause").arguments(["--for", "1h"]).run(LONG).await?;
    assert!(paused.contains("paused until"), "{paused}");
    let told = watched.finds("consumer_paused", 503).await?;
    assert!(told.contains("transcript-processor resume"), "{told}");
    end(&world, "waits", 2, 2).await?;
    wait_until("a call that waits is behind", LONG, || async {
        let behind = watched.metric("transcript_seconds_behind").await.map_err(|error| error.to_string())?;
        if behind > 0.0 { Ok(()) } else { Err(behind.to_string()) }
    })
    .await?;
    let labels = "{stream_name=\"TRANSCRIPTION\",consumer_name=\"transcript-processor\"}";
    assert_eq!(watched.metric(&format!("jetstream_consumer_num_pending{labels}")).await?, 1.0);
    world.processor("resume").run(LONG).await?;
    watched.ready().await?;

    world.publish(SESSION_ENDED_SUBJECT, b"no JSON".to_vec()).await?;
    let told = watched.finds("dead_letters_open", 200).await?;
    assert!(told.contains("dead-letters list"), "{told}");
    assert_eq!(watched.metric("transcript_dead_letters").await?, 1.0);
    let document: Value = serde_json::from_str(&watched.get("/status.json").await?.body)?;
    assert!(document["deadLetters"]["newest"][0]["reason"].is_string(), "{document}");

    let mut stream = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?;
    let mut config = stream.info().await?.config.clone();
    (config.discard, config.max_messages) = (DiscardPolicy::New, 2);
    world.jetstream.update_stream(&config).await?;
    let told = watched.finds("stream_full", 503).await?;
    assert!(told.contains("max_msgs is 2"), "{told}");
    (config.discard, config.max_messages) = (DiscardPolicy::Old, -1);
    world.jetstream.update_stream(&config).await?;
    watched.ready().await?;
    watched.processor.terminate().await?;

    stream.delete_consumer(CONSUMER).await?;
    let status = world.processor("status").start().await?;
    assert_eq!(status.wait(LONG).await?, Exit::Code(1), "{}", status.output());
    assert!(status.output().contains("there is no consumer transcript-processor"), "{}", status.output());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_at_its_bound_a_trace_without_a_place_and_a_stopped_process_are_found() -> Outcome {
    let world = TestWorld::start().await?;
    let directory = tempfile::tempdir()?;
    let traces = directory.path().join("traces");
    let record = ["--record", traces.to_str().ok_or("a path is a text")?];
    let one = ["--max-in-flight", "1", "--max-ack-pending", "1", "--quiet-period", "1h"];
    let watched = Watched::start(&world, &[&one[..], &record].concat()).await?;
    watched.ready().await?;
    end(&world, "first", 1, 1).await?;
    end(&world, "second", 1, 1).await?;
    let told = watched.finds("consumer_at_its_bound", 200).await?;
    assert!(told.contains("--max-ack-pending"), "{told}");
    assert_eq!(watched.metric("transcript_jobs{phase=\"quiet\"}").await?, 1.0);

    fs::remove_dir_all(&traces)?;
    fs::write(&traces, "in the way")?;
    let told = watched.finds("trace_not_written", 200).await?;
    assert!(told.contains("--record"), "{told}");
    assert!(watched.metric("transcript_trace_left_out_total").await? > 0.0);

    watched.processor.freeze().await?;
    let status = world.processor("status").arguments(["--from", &watched.address.to_string()]).start().await?;
    assert_eq!(status.wait(LONG).await?, Exit::Code(1));
    assert!(status.logs().contains("does not answer: is it stopped"), "{}", status.logs());
    watched.processor.thaw().await?;
    watched.processor.ask_to_end()?;
    watched.processor.wait(LONG).await?;
    Ok(())
}

/// What an operator does on the page, and with `quiet`: with the token, from the page itself, and logged.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_acts_on_the_page_with_the_token_and_nobody_else_does() -> Outcome {
    let world = TestWorld::start().await?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("token");
    fs::write(&file, "s3cret\n")?;
    let file = file.to_str().ok_or("a path is a text")?;
    let own = ["--name", "host.a 7", "--page-content", "--http-token-file", file];
    let watched = Watched::start(&world, &[&SHORT[..], &own].concat()).await?;
    watched.ready().await?;
    let (address, host) = (watched.address, watched.address.to_string());
    let token = "Authorization: Bearer s3cret\r\n";
    let json = "Content-Type: application/json\r\n";
    let post = |headers: String, body: &'static str| {
        let length = body.len();
        let request =
            format!("POST /action HTTP/1.0\r\nHost: {host}\r\nContent-Length: {length}\r\n{headers}\r\n{body}");
        async move { http::send(address, &request).await }
    };
    let act = |body| post(format!("{token}{json}"), body);

    let letter = world.publish(SESSION_ENDED_SUBJECT, b"no JSON".to_vec()).await? + 1;
    wait_until("the dead letter is seen", LONG, || async {
        let status = http::get(address, "/status.json", token).await.map_err(|error| error.to_string())?.body;
        let status: Value = serde_json::from_str(&status).map_err(|error| error.to_string())?;
        if status["deadLetters"]["open"] == 1 { Ok(()) } else { Err(status.to_string()) }
    })
    .await?;
    let discard = r#"{"action":"discard","sequences":[2]}"#;
    assert_eq!(letter, 2);
    for (headers, status) in [
        (json.to_owned(), 401),
        (format!("Authorization: Bearer s3cres\r\n{json}"), 401),
        (format!("{token}Content-Type: text/plain\r\n"), 403),
        (format!("{token}{json}Origin: http://example.org\r\n"), 403),
        (format!("{token}{json}Origin: null\r\n"), 403),
        (format!("{token}{json}Sec-Fetch-Site: cross-site\r\n"), 403),
    ] {
        assert_eq!(post(headers.clone(), discard).await?.status, status, "{headers}");
    }
    for bad in ["", "{}", r#"{"action":"drop"}"#, r#"{"action":"discard","sequences":["x"]}"#] {
        assert_eq!(act(bad).await?.status, 400, "{bad}");
    }
    let endless = format!("POST /action HTTP/1.0\r\nHost: {host}\r\n{token}{json}Content-Length: 9999999\r\n\r\n");
    assert_eq!(http::send(address, &endless).await?.status, 413, "a body that is too large");
    assert_eq!(http::get(address, "/action", token).await?.status, 405);
    assert!(world.payloads("transcription.discarded").await?.is_empty(), "nothing was done");
    let done = act(discard).await?;
    assert_eq!((done.status, serde_json::from_str::<Value>(&done.body)?["good"].clone()), (200, true.into()));
    assert_eq!(act(r#"{"action":"redrive","sequences":[2]}"#).await?.status, 409, "it is gone");

    assert_eq!(act(r#"{"action":"pause","seconds":3600}"#).await?.status, 200);
    assert_eq!(act(r#"{"action":"resume"}"#).await?.status, 200);
    watched.ready().await?;

    assert_eq!(act(r#"{"action":"quiet","name":"nobody"}"#).await?.status, 409);
    assert_eq!(act(r#"{"action":"quiet","name":"host.a 7"}"#).await?.status, 200);
    let listed = world.processor("status").run(LONG).await?;
    assert!(listed.contains("processor host.a 7, version") && listed.contains("QUIET, 0 in hand"), "{listed}");
    wait_until("no pull request is under way", LONG, || async {
        match world.consumer().await.map_err(|error| error.to_string())?.num_waiting {
            0 => Ok(()),
            waiting => Err(format!("{waiting} wait")),
        }
    })
    .await?;
    let session = end(&world, "waits", 2, 2).await?;
    let other = world.processor("run").arguments(SHORT).arguments(["--name", "other"]).start_ready(LONG).await?;
    wait_until("the other one takes the call", LONG, || async {
        let known = world.summary(&session.key()).await.map_err(|error| error.to_string())?;
        let notified = known.is_some_and(|summary| summary.get_document("notified").is_ok());
        if notified { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await?;
    assert!(other.logs().contains("conversation:waits"), "{}", other.logs());
    assert!(!watched.processor.logs().contains("conversation:waits"), "it is quiet");
    other.terminate().await?;
    let session = end(&world, "later", 2, 2).await?;
    let told = world.processor("quiet").arguments(["host.a 7", "--off"]).run(LONG).await?;
    assert!(told.contains("takes calls again"), "{told}");
    wait_until("it takes calls again", LONG, || async {
        let known = world.summary(&session.key()).await.map_err(|error| error.to_string())?;
        known.filter(|summary| summary.get_document("notified").is_ok()).map(drop).ok_or_else(|| "not yet".to_owned())
    })
    .await?;
    let absent = world.processor("quiet").argument("nobody").start().await?;
    assert_eq!(absent.wait(LONG).await?, Exit::Code(1));
    assert!(absent.logs().contains("no process answers to the name"), "{}", absent.logs());

    let found = http::get(address, "/session.json?key=conversation:later", token).await?;
    let found: Value = serde_json::from_str(&found.body)?;
    assert_eq!((&found["segmentsNow"], &found["transcript"][1]["speaker"]), (&2.into(), &"Tom O'Neil".into()));
    assert!(found["summary"].as_str().is_some_and(|text| text.contains("Ana M.")), "{found}");
    let again = r#"{"action":"reprocess","conversationId":"conversation","sessionId":"later"}"#;
    assert_eq!(act(again).await?.status, 200);
    wait_until("it is processed again", LONG, || async {
        let revised = world.payloads("transcript.revised").await.map_err(|error| error.to_string())?;
        if revised.len() == 1 { Ok(()) } else { Err(revised.len().to_string()) }
    })
    .await?;
    let logs = watched.processor.logs();
    for told in ["asked for on the status page", "done on the status page", "peer=127.0.0.1:", "Discard"] {
        assert!(logs.contains(told), "{told} is not in {logs}");
    }
    assert!(!logs.contains("s3cret"), "{logs}");
    Ok(())
}

/// Alert rules name what is there: each finding has an alert, and each alert a section of the manual.
#[test]
fn each_finding_has_an_alert_and_each_alert_its_section_of_the_manual() -> Outcome {
    let (alerts, manual) = (monitoring("alerts.yml")?, fs::read_to_string(fixture("../shell-tokio/README.md"))?);
    let has_section = |anchor: &str| manual.lines().any(|line| line == format!("#### {anchor}"));
    for finding in FindingName::ALL {
        let name = finding.name();
        assert!(alerts.contains(&format!("transcript_finding{{name=\"{name}\"}} == 1")), "no alert for {name}");
        assert!(has_section(name), "no section for {name}");
    }
    let anchors = alerts.lines().filter_map(|line| line.trim().strip_prefix("manual: shell-tokio/README.md#"));
    let without: Vec<&str> = anchors.clone().filter(|anchor| !has_section(anchor)).collect();
    assert_eq!(without, Vec::<&str>::new(), "alerts without a section of the manual");
    assert_eq!(anchors.count(), alerts.matches("- alert: ").count(), "an alert without the manual's section");
    Ok(())
}

/// Each alert fires by its numbers and resolves after them, where Prometheus' own tool is there to say so.
#[test]
fn each_alert_fires_and_resolves() -> Outcome {
    let (alerts, tests) = (monitoring("alerts.yml")?, monitoring("alerts_test.yml")?);
    let alerts = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let untested: Vec<&str> = alerts.filter(|alert| !tests.contains(&format!("alertname=\"{alert}\""))).collect();
    assert_eq!(untested, Vec::<&str>::new(), "alerts without a test");
    let promtool = Command::new("promtool").args(["test", "rules"]).arg(fixture("monitoring/alerts_test.yml")).output();
    match promtool {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            eprintln!("not tested: this machine has no promtool");
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

fn monitoring(file: &str) -> io::Result<String> {
    fs::read_to_string(fixture(&format!("monitoring/{file}")))
}

/// The names of our metrics in a text.
fn names(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("transcript_")).map(str::to_owned)
}

/// Whether a scrape describes a metric, also where it has no sample yet; parts of a histogram are told with it.
fn is_told(metrics: &str, name: &str) -> bool {
    let described = |name: &str| metrics.contains(&format!("# TYPE {name} "));
    let whole = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
    described(name) || whole.is_some_and(described)
}
