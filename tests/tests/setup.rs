//! `setup` on real servers: what it makes, what it changes, what it leaves alone, what it refuses.

use std::time::Duration;

use async_nats::jetstream::{self, response::Response};
use mongodb::bson::doc;
use serde_json::{Map, Value, json};
use transcript_core::contract::{CONSUMER, SEGMENTS_COLLECTION};
use transcript_processor::{
    cli::StreamSettings,
    operate::setup::{self, Request},
};
use transcript_tests::{
    process_guard::Exit,
    servers::{Login, NatsOptions, NatsServer},
    world::TestWorld,
};

type TestResult = Result<(), Box<dyn std::error::Error>>;

const SOON: Duration = Duration::from_secs(30);
const NOTHING: &str = "nothing to change\n";
const DAY: u64 = 86_400_000_000_000;
const HOUR: u64 = 3_600_000_000_000;
/// The indexes of the starts and of the changed segments.
const BY_START: &str = "sessionId_1_onSessionClock_1_startMs_1";
const EDITS: &str = "sessionId_1_edits_1";

#[tokio::test]
async fn a_fresh_world_is_set_up_once() -> TestResult {
    let world = TestWorld::start().await?;
    assert_eq!(
        world.processor("setup").run(SOON).await?,
        "stream TRANSCRIPTION: created\n\
         stream RECORDING: created\n\
         consumer transcript-processor: created\n\
         index { \"sessionId\": 1, \"index\": 1 } on transcriptsegments: created\n\
         index { \"sessionId\": 1, \"onSessionClock\": 1, \"startMs\": 1 } on transcriptsegments: created\n\
         index { \"sessionId\": 1, \"edits\": 1 } on transcriptsegments: created\n\
         index { \"instances.id\": 1 } on transcriptsessions: created\n\
         index { \"sessionId\": 1, \"source\": 1 } on transcriptsegments: created\n"
    );
    assert_eq!(world.processor("setup").run(SOON).await?, NOTHING);

    let stream = config(&world, "STREAM.INFO.TRANSCRIPTION").await?;
    assert_eq!(stream["subjects"], json!(["transcription.>", "transcript.>"]));
    assert_eq!(stream["duplicate_window"], DAY);
    assert_eq!((&stream["retention"], &stream["storage"]), (&json!("limits"), &json!("file")));
    assert_eq!(config(&world, "STREAM.INFO.RECORDING").await?["subjects"], json!(["recording.>"]));
    let consumer = config(&world, &consumer_subject("INFO")).await?;
    assert_eq!(consumer["durable_name"], CONSUMER);
    assert_eq!(consumer["filter_subject"], "transcription.session-ended");
    assert_eq!((&consumer["ack_policy"], &consumer["deliver_policy"]), (&json!("explicit"), &json!("all")));
    assert_eq!(consumer["ack_wait"], 6_000_000_000_u64);
    assert_eq!(consumer["max_deliver"], 5);
    let threshold =
        |config: &Map<String, Value>, name: &str| config["metadata"][format!("io.nats.monitor.{name}")].clone();
    assert_eq!(threshold(&consumer, "outstanding-ack-critical"), "65536");
    assert_eq!((threshold(&consumer, "enabled"), threshold(&stream, "enabled")), ("true".into(), "true".into()));
    assert_eq!(threshold(&stream, "peer-expect"), Value::Null, "it is on one server");
    assert_eq!(consumer.get("deliver_subject"), None);
    assert_eq!(
        world.segments().list_index_names().await?,
        ["_id_", "sessionId_1_index_1", BY_START, EDITS, "sessionId_1_source_1"]
    );
    Ok(())
}

#[tokio::test]
async fn settings_are_changed_while_messages_stay() -> TestResult {
    let world = TestWorld::start().await?;
    let before = json!({
        "name": "TRANSCRIPTION", "subjects": ["billing.*", "transcription.session-ended"], "retention": "limits",
        "storage": "file", "num_replicas": 1, "duplicate_window": 120_000_000_000_u64, "max_age": 2 * DAY,
        "max_msgs": 5000, "discard": "new", "description": "mine",
    });
    api(&world, "STREAM.CREATE.TRANSCRIPTION", &before).await?;
    for _ in 0..10 {
        world.publish("transcription.session-ended", b"{}".to_vec()).await?;
    }
    let setup = world.processor("setup").arguments(["--duplicate-window", "24h"]).start().await?;
    assert_eq!(setup.wait(SOON).await?, Exit::Code(0));
    assert_eq!(
        setup.output().lines().take(3).collect::<Vec<_>>(),
        [
            "stream TRANSCRIPTION: subjects changed from [\"billing.*\",\"transcription.session-ended\"] to \
             [\"billing.*\",\"transcription.>\",\"transcript.>\"]",
            "stream TRANSCRIPTION: duplicate_window changed from 2m to 1day",
            "stream RECORDING: created",
        ]
    );
    assert!(setup.logs().contains("stream TRANSCRIPTION has max_msgs 5000"), "{}", setup.logs());

    let mut stream = world.jetstream.get_stream("TRANSCRIPTION").await?;
    let info = stream.info().await?;
    assert_eq!(info.state.messages, 10);
    assert_eq!(info.config.duplicate_window, Duration::from_nanos(DAY));
    assert_eq!(info.config.max_age, Duration::from_nanos(2 * DAY));
    assert_eq!((info.config.max_messages, info.config.description.as_deref()), (5000, Some("mine")));
    assert_eq!(world.processor("setup").run(SOON).await?, NOTHING);
    Ok(())
}

#[tokio::test]
async fn a_running_consumer_is_changed_and_keeps_its_place() -> TestResult {
    let world = TestWorld::start().await?;
    world.processor("setup").run(SOON).await?;
    let id = config(&world, &consumer_subject("INFO")).await?["metadata"].clone();
    let created = world.consumer().await?.created;
    assert_eq!(
        world.processor("setup").arguments(["--ack-wait", "1s", "--max-deliver", "7"]).run(SOON).await?,
        "consumer transcript-processor: ack_wait changed from 6s to 1s\n\
         consumer transcript-processor: max_deliver changed from 5 to 7\n"
    );
    let consumer = world.consumer().await?;
    assert_eq!((consumer.config.ack_wait, consumer.config.max_deliver), (Duration::from_secs(1), 7));
    assert_eq!(consumer.created, created, "it is the same consumer");
    assert_eq!(config(&world, &consumer_subject("INFO")).await?["metadata"], id);
    Ok(())
}

#[tokio::test]
async fn settings_that_would_hinder_the_processor_are_removed() -> TestResult {
    let world = TestWorld::start().await?;
    world.create_streams().await?;
    let hindered = json!({
        "durable_name": CONSUMER, "ack_policy": "explicit", "deliver_policy": "all", "max_deliver": 3,
        "backoff": [500_000_000, 1_000_000_000], "filter_subjects": ["transcription.a", "transcription.b"],
        "headers_only": true, "inactive_threshold": 60_000_000_000_u64, "max_batch": 10, "max_expires": 1_000_000_000,
        "max_bytes": 5, "priority_policy": "overflow", "priority_groups": ["a"], "description": "mine", "max_waiting": 77,
    });
    create_consumer(&world, &hindered).await?;
    let changes = world.processor("setup").run(SOON).await?;
    assert!(changes.contains("backoff changed from 500ms, 1s to none\n"), "{changes}");
    let consumer = config(&world, &consumer_subject("INFO")).await?;
    for field in ["backoff", "filter_subjects", "headers_only", "inactive_threshold", "max_batch", "max_bytes"] {
        assert_eq!(consumer.get(field), None, "{field}");
    }
    for field in ["max_expires", "priority_policy", "priority_groups"] {
        assert_eq!(consumer.get(field), None, "{field}");
    }
    assert_eq!((&consumer["description"], &consumer["max_waiting"]), (&json!("mine"), &json!(77)));
    let again = world.processor("setup").run(SOON).await?;
    assert_eq!(
        again,
        format!(
            "consumer {CONSUMER}: max_deliver stays 3, the default is 5: --max-deliver changes it\n\
             consumer {CONSUMER}: max_ack_pending stays 1000, the default is 65536: --max-ack-pending changes it\n{NOTHING}"
        )
    );
    assert_eq!(consumer["ack_wait"], 6_000_000_000_u64, "the backoff had overwritten it");
    Ok(())
}

#[tokio::test]
async fn a_stream_that_cannot_be_changed_is_refused_with_both_values() -> TestResult {
    let world = TestWorld::start().await?;
    let subjects = json!(["transcription.>", "transcript.>"]);
    let cases = [
        (json!({ "storage": "memory", "subjects": subjects }), "has storage memory, but file is needed"),
        (json!({ "retention": "workqueue", "subjects": subjects }), "has retention workqueue, but limits is needed"),
        (
            json!({ "max_age": HOUR, "subjects": subjects }),
            "keeps messages for max_age 1h, but a duplicate window of 1day is wanted",
        ),
        (
            json!({ "max_bytes": 1_000_000, "subjects": subjects }),
            "has max_bytes 1000000 and drops its oldest messages when that is reached",
        ),
        (
            json!({ "max_msgs_per_subject": 9, "discard": "new", "subjects": subjects }),
            "has max_msgs_per_subject 9 and drops its oldest messages when that is reached",
        ),
        (json!({ "mirror": { "name": "ORIGIN" } }), "has mirror {\"name\":\"ORIGIN\"}, but none is needed"),
        (json!({ "persist_mode": "async", "subjects": subjects }), "has persist_mode async, but none is needed"),
    ];
    api(&world, "STREAM.CREATE.ORIGIN", &stream_config("ORIGIN", &json!({ "subjects": ["origin"] }))).await?;
    for (settings, reason) in cases {
        let existing = stream_config("TRANSCRIPTION", &settings);
        let created = api(&world, "STREAM.CREATE.TRANSCRIPTION", &existing).await?["config"].clone();
        assert_refused(&world, &format!("error: stream TRANSCRIPTION {reason}")).await?;
        assert_eq!(Value::Object(config(&world, "STREAM.INFO.TRANSCRIPTION").await?), created, "it is as it was");
        api(&world, "STREAM.DELETE.TRANSCRIPTION", &json!({})).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_sealed_stream_is_refused() -> TestResult {
    let world = TestWorld::start().await?;
    let mut sealed = stream_config("TRANSCRIPTION", &json!({ "subjects": ["transcription.>"] }));
    api(&world, "STREAM.CREATE.TRANSCRIPTION", &sealed).await?;
    sealed["sealed"] = json!(true);
    api(&world, "STREAM.UPDATE.TRANSCRIPTION", &sealed).await?;
    assert_refused(&world, "error: stream TRANSCRIPTION has sealed true, but none is needed").await
}

#[tokio::test]
async fn a_consumer_that_cannot_be_changed_is_refused_with_both_values() -> TestResult {
    let world = TestWorld::start().await?;
    world.create_streams().await?;
    let cases = [
        (json!({ "deliver_policy": "new" }), "has deliver_policy new, but all is needed"),
        (json!({ "ack_policy": "none" }), "has ack_policy none, but explicit is needed"),
        (json!({ "deliver_subject": "pushed" }), "has deliver_subject pushed, but none is needed"),
        (json!({ "mem_storage": true }), "has mem_storage true, but none is needed"),
        (json!({ "durable_name": null }), "has durable_name none, but transcript-processor is needed"),
    ];
    for (settings, reason) in cases {
        let mut existing =
            json!({ "name": CONSUMER, "durable_name": CONSUMER, "ack_policy": "explicit", "deliver_policy": "all" });
        merge(&mut existing, &settings);
        create_consumer(&world, &existing).await?;
        assert_refused(&world, &format!("error: consumer {CONSUMER} {reason}")).await?;
        api(&world, &consumer_subject("DELETE"), &json!({})).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_service_does_not_start_where_setup_refuses() -> TestResult {
    let world = TestWorld::start().await?;
    let memory = stream_config("TRANSCRIPTION", &json!({ "storage": "memory", "subjects": ["transcription.>"] }));
    api(&world, "STREAM.CREATE.TRANSCRIPTION", &memory).await?;
    let run = world.processor("run").start().await?;
    assert_eq!(run.wait(SOON).await?, Exit::Code(1));
    let expected = "error: stream TRANSCRIPTION has storage memory, but file is needed";
    assert!(run.logs().contains(expected), "{}", run.logs());
    Ok(())
}

#[tokio::test]
async fn what_the_server_refuses_is_passed_on() -> TestResult {
    let world = TestWorld::start().await?;
    let setup = world.processor("setup").arguments(["--replicas", "3"]).start().await?;
    assert_eq!(setup.wait(SOON).await?, Exit::Code(1));
    let expected = "error: JetStream refused to create stream TRANSCRIPTION: the server cannot keep so many replicas";
    assert!(setup.logs().contains(expected), "{}", setup.logs());

    let other = stream_config("OTHER", &json!({ "subjects": ["transcript.*"] }));
    api(&world, "STREAM.CREATE.OTHER", &other).await?;
    assert_refused(&world, "error: JetStream refused to create stream TRANSCRIPTION: another stream has these subjects")
        .await
}

#[tokio::test]
async fn an_equal_index_under_another_name_is_taken() -> TestResult {
    let world = TestWorld::start().await?;
    let command = doc! {
        "createIndexes": SEGMENTS_COLLECTION,
        "indexes": [{ "name": "by hand", "key": { "sessionId": 1.0, "index": 1_i64 } }],
    };
    world.database().run_command(command).await?;
    assert!(!world.processor("setup").run(SOON).await?.contains(r#""index": 1 }"#));
    assert_eq!(
        world.segments().list_index_names().await?,
        ["_id_", "by hand", BY_START, EDITS, "sessionId_1_source_1"]
    );
    Ok(())
}

#[tokio::test]
async fn many_set_up_at_once_and_all_succeed() -> TestResult {
    for old in [false, true] {
        let world = TestWorld::start().await?;
        if old {
            let existing = stream_config("TRANSCRIPTION", &json!({ "subjects": ["transcription.session-ended"] }));
            api(&world, "STREAM.CREATE.TRANSCRIPTION", &existing).await?;
        }
        all_at_once(&world, &vec![StreamSettings::default(); 20]).await?;
        let report = setup::ensure(&world.jetstream, world.database(), &Request::default()).await?;
        assert_eq!(report.changes, []);
    }
    Ok(())
}

#[tokio::test]
async fn two_versions_with_other_settings_set_up_at_once_and_all_succeed() -> TestResult {
    let world = TestWorld::start().await?;
    let of_version = |n: u64| {
        let window = Duration::from_nanos((22 + n % 2) * HOUR);
        StreamSettings { duplicate_window: Some(window), ack_wait: Some(window / 1000), ..StreamSettings::default() }
    };
    all_at_once(&world, &(0..20).map(of_version).collect::<Vec<_>>()).await?;
    let report = setup::ensure(&world.jetstream, world.database(), &Request::default()).await?;
    assert_eq!(report.changes, []);
    let kept: Vec<_> = report.kept.iter().map(|kept| kept.field).collect();
    assert_eq!(kept, ["duplicate_window", "ack_wait"], "neither version has the default: {report:?}");
    Ok(())
}

#[tokio::test]
async fn an_account_without_jetstream_is_told() -> TestResult {
    let config = r#"
        accounts {
            WITH { jetstream: enabled, users: [{ user: ann, password: x }] }
            WITHOUT { users: [{ user: bob, password: x }] }
        }"#;
    let login = Login { user: "ann".to_owned(), password: "x".to_owned() };
    let nats =
        NatsServer::start_with(NatsOptions { config: config.to_owned(), login: Some(login), authority: None }).await?;
    let world = TestWorld::start().await?;
    let url = nats.url().replace("nats://", "nats://bob:x@");
    let setup = world.processor("setup").environment("NATS_URL", url).start().await?;
    assert_eq!(setup.wait(SOON).await?, Exit::Code(1));
    assert!(setup.logs().contains("JetStream is not enabled there: enable it for this account"), "{}", setup.logs());
    Ok(())
}

#[tokio::test]
async fn a_login_in_the_address_is_used_and_never_shown() -> TestResult {
    let config = "authorization { user: ann, password: \"hunter/2\" }".to_owned();
    let login = Login { user: "ann".to_owned(), password: "hunter/2".to_owned() };
    let nats = NatsServer::start_with(NatsOptions { config, login: Some(login), authority: None }).await?;
    let world = TestWorld::start().await?;
    for (password, code) in [("hunter%2F2", 0), ("hunter-wrong", 1)] {
        let url = nats.url().replace("nats://", &format!("nats://ann:{password}@"));
        let setup = world
            .processor("setup")
            .environment("NATS_URL", url)
            .environment("TRANSCRIPT_LOG", "trace")
            .start()
            .await?;
        assert_eq!(setup.wait(SOON).await?, Exit::Code(code), "{}", setup.logs());
        assert!(!setup.logs().contains("hunter"), "{}", setup.logs());
    }
    Ok(())
}

#[tokio::test]
async fn servers_that_cannot_be_reached_are_named_without_their_passwords() -> TestResult {
    let world = TestWorld::start().await?;
    let cases = [
        (
            "NATS_URL",
            "nats://ann:hunter2@127.0.0.1:1",
            "error: cannot connect to NATS at nats://***@127.0.0.1:1 (--nats-url)",
        ),
        (
            "MONGODB_URI",
            "mongodb://ann:hunter2@127.0.0.1:1/?authSource=x",
            "error: cannot connect to MongoDB at mongodb://***@127.0.0.1:1 (--mongodb-uri)",
        ),
    ];
    for (variable, address, expected) in cases {
        let setup = world
            .processor("setup")
            .environment(variable, address)
            .arguments(["--connect-timeout", "300ms"])
            .start()
            .await?;
        assert_eq!(setup.wait(SOON).await?, Exit::Code(1));
        assert!(setup.logs().contains(expected) && !setup.logs().contains("hunter2"), "{}", setup.logs());
    }
    Ok(())
}

/// Each on a connection of its own, and none begins before all are connected.
async fn all_at_once(world: &TestWorld, settings: &[StreamSettings]) -> TestResult {
    let clients = futures::future::try_join_all(settings.iter().map(|_| world.nats.client())).await?;
    let contexts: Vec<_> = clients.into_iter().map(jetstream::new).collect();
    let setups = contexts.iter().zip(settings).map(|(js, settings)| async {
        let request = Request { settings: settings.clone(), ..Request::default() };
        setup::ensure(js, world.database(), &request).await
    });
    futures::future::try_join_all(setups).await?;
    Ok(())
}

/// `setup`, with a duplicate window asked for, ends with code 1, prints nothing to its output, and this in its last line.
async fn assert_refused(world: &TestWorld, expected: &str) -> TestResult {
    let setup = world.processor("setup").arguments(["--duplicate-window", "24h"]).start().await?;
    assert_eq!(setup.wait(SOON).await?, Exit::Code(1), "{expected}: {}", setup.logs());
    assert_eq!(setup.output(), "");
    let logs = setup.logs();
    assert!(logs.lines().last().unwrap_or_default().starts_with(expected), "{expected}: {logs}");
    Ok(())
}

fn stream_config(name: &str, settings: &Value) -> Value {
    let mut config = json!({ "name": name, "retention": "limits", "storage": "file", "num_replicas": 1 });
    merge(&mut config, settings);
    config
}

fn merge(config: &mut Value, settings: &Value) {
    for (field, value) in settings.as_object().into_iter().flatten() {
        config[field] = value.clone();
    }
}

async fn create_consumer(world: &TestWorld, config: &Value) -> TestResult {
    let body = json!({ "stream_name": "TRANSCRIPTION", "config": config });
    api(world, &consumer_subject("CREATE"), &body).await?;
    Ok(())
}

fn consumer_subject(verb: &str) -> String {
    format!("CONSUMER.{verb}.TRANSCRIPTION.{CONSUMER}")
}

async fn config(
    world: &TestWorld,
    subject: &str,
) -> Result<serde_json::Map<String, Value>, Box<dyn std::error::Error>> {
    let answer = api(world, subject, &json!({})).await?;
    Ok(answer["config"].as_object().ok_or("the answer has a configuration")?.clone())
}

/// A call of JetStream's API, as another client than ours could make it.
async fn api(world: &TestWorld, subject: &str, body: &Value) -> Result<Value, Box<dyn std::error::Error>> {
    match world.jetstream.request(subject.to_owned(), body).await? {
        Response::Ok(answer) => Ok(answer),
        Response::Err { error } => Err(format!("{subject}: {error}").into()),
    }
}
