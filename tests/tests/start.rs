//! What `setup` and `run` find out before they begin, on real servers: collections in which no summary can be stored, users
//! who may not do what is needed, JetStream domains, and what others have set.

use std::{net::TcpListener, time::Duration};

use async_nats::jetstream::{self, response::Response};
use futures::StreamExt;
use mongodb::bson::{Document, doc};
use serde_json::{Value, json};
use transcript_core::contract::{CONSUMER, SEGMENTS_COLLECTION, SUMMARIES_COLLECTION};
use transcript_tests::{
    calls::Call,
    process_guard::Exit,
    processor::{Processor, ProcessorCommand},
    servers::{Login, NatsOptions, NatsServer},
    wait::wait_until,
    world::{StoreOf, TestWorld},
};

type TestResult = Result<(), Box<dyn std::error::Error>>;
type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

const SOON: Duration = Duration::from_secs(60);

/// The command ends with code 1, and its last line begins like this.
async fn refused(command: ProcessorCommand, expected: &str) -> TestResult {
    let command = command.start().await?;
    assert_eq!(command.wait(SOON).await?, Exit::Code(1), "{expected}: {}", command.logs());
    let logs = command.logs();
    assert!(logs.lines().last().unwrap_or_default().starts_with(expected), "{expected}: {logs}");
    Ok(())
}

/// `run` gets ready; its log until then.
async fn ready(command: ProcessorCommand) -> Fallible<String> {
    let run = command.start().await?;
    let logs = wait_until("the processor is ready", SOON, || async {
        match (run.logs(), run.exit()) {
            (logs, None) if logs.contains("ready name=") => Ok(logs),
            (logs, exit) => Err(format!("{exit:?}: {logs}")),
        }
    });
    Ok(logs.await?)
}

async fn streams(js: &jetstream::Context) -> Fallible<Value> {
    match js.request::<_, _, Response<Value>>("STREAM.NAMES".to_owned(), &json!({})).await? {
        Response::Ok(names) => Ok(names["streams"].clone()),
        Response::Err { error } => Err(error.into()),
    }
}

#[tokio::test]
async fn collections_that_cannot_hold_summaries_are_refused_before_anything_is_changed() -> TestResult {
    let create = |options: Document| {
        let mut command = doc! { "create": SUMMARIES_COLLECTION };
        command.extend(options);
        command
    };
    let index = |keys: Document| {
        doc! { "createIndexes": SUMMARIES_COLLECTION, "indexes": [{ "name": "theirs", "key": keys, "unique": true }] }
    };
    let cases = [
        (create(doc! { "viewOn": "others", "pipeline": [] }), "the collection transcriptsummaries is a view, and"),
        (
            create(doc! { "timeseries": { "timeField": "updatedAt" } }),
            "the collection transcriptsummaries is a timeseries, and",
        ),
        (create(doc! { "capped": true, "size": 4096 }), "the collection transcriptsummaries is capped, and"),
        (
            create(doc! { "collation": { "locale": "en", "strength": 1 } }),
            "the collection transcriptsummaries has the collation en, and ids that differ would count as equal",
        ),
        (
            doc! { "create": SEGMENTS_COLLECTION, "viewOn": "others", "pipeline": [] },
            "the collection transcriptsegments is a view, and",
        ),
        (index(doc! { "sessionId": 1 }), "the index theirs { \"sessionId\": 1 } on transcriptsummaries is unique, and"),
    ];
    for (command, reason) in cases {
        let world = TestWorld::start().await?;
        world.database().run_command(command).await?;
        for subcommand in ["setup", "run"] {
            refused(world.processor(subcommand), &format!("error: {reason}")).await?;
        }
        assert_eq!(streams(&world.jetstream).await?, Value::Null, "nothing was made");
    }
    Ok(())
}

#[tokio::test]
async fn what_may_refuse_or_remove_summaries_is_warned_of() -> TestResult {
    let world = TestWorld::start().await?;
    let validator = doc! { "create": SUMMARIES_COLLECTION, "validator": { "words": { "$gt": 3 } } };
    world.database().run_command(validator).await?;
    let expires = doc! { "name": "ttl", "key": { "updatedAt": 1 }, "expireAfterSeconds": 60 };
    let together = doc! { "name": "both", "key": { "conversationId": 1, "sessionId": 1 }, "unique": true };
    let indexes = doc! { "createIndexes": SUMMARIES_COLLECTION, "indexes": [expires, together] };
    world.database().run_command(indexes).await?;
    let setup = world.processor("setup").start().await?;
    assert_eq!(setup.wait(SOON).await?, Exit::Code(0), "{}", setup.logs());
    let logs = setup.logs();
    assert!(logs.contains("transcriptsummaries has a validator: a summary that it refuses cannot be stored"), "{logs}");
    assert!(logs.contains("index ttl on transcriptsummaries removes documents after 60 s"), "{logs}");
    Ok(())
}

#[tokio::test]
async fn a_user_of_mongodb_who_may_not_write_is_refused() -> TestResult {
    let world = TestWorld::start().await?;
    let roles = [
        ("reader", doc! { "role": "read", "db": world.database().name() }),
        ("writer", doc! { "role": "readWrite", "db": world.database().name() }),
        ("stranger", doc! { "role": "readWrite", "db": "elsewhere" }),
    ];
    for (user, role) in roles {
        world.database().run_command(doc! { "createUser": user, "pwd": "x", "roles": [role] }).await?;
    }
    let as_user = |subcommand: &str, user: &str| {
        let uri = world.mongodb_uri().replace("mongodb://", &format!("mongodb://{user}:x@"));
        let uri = format!("{uri}&authSource={}", world.database().name());
        world.processor(subcommand).environment("MONGODB_URI", uri)
    };
    for subcommand in ["setup", "run"] {
        let lacks = "insert, update on transcriptsummaries (no summary could be stored)";
        let database = world.database().name();
        let reader =
            format!("error: this user of MongoDB may not do what is needed in the database {database}: {lacks}");
        refused(as_user(subcommand, "reader"), &reader).await?;
        refused(as_user(subcommand, "stranger"), "error: this user of MongoDB may not do what is needed").await?;
    }
    assert_eq!(streams(&world.jetstream).await?, Value::Null, "nothing was made");
    ready(as_user("run", "writer")).await?;
    world.database().run_command(doc! { "dropAllUsersFromDatabase": 1 }).await?;
    Ok(())
}

/// A world whose NATS server knows an administrator, and `bob` with these permissions.
async fn world_of_bob(permissions: &str) -> Fallible<TestWorld> {
    let config = format!(
        "authorization {{ users: [
            {{ user: ann, password: x }},
            {{ user: bob, password: x, permissions: {{ {permissions} }} }}
        ] }}"
    );
    let login = Login { user: "ann".to_owned(), password: "x".to_owned() };
    let options = NatsOptions { config, login: Some(login), ..NatsOptions::default() };
    Ok(TestWorld::start_as(StoreOf::AllWorlds, options).await?)
}

fn as_user(world: &TestWorld, subcommand: &str, user: &str) -> ProcessorCommand {
    let url = world.nats.url().replace("nats://", &format!("nats://{user}:x@"));
    world.processor(subcommand).environment("NATS_URL", url)
}

#[tokio::test]
async fn permissions_of_nats_that_are_missing_are_named() -> TestResult {
    let all = "\"$JS.API.>\", \"$JS.ACK.>\", \"transcript.>\", \"transcription.>\"";
    let cases = [
        (
            "publish: { deny: \"$JS.ACK.>\" }".to_owned(),
            "publish to $JS.ACK.TRANSCRIPTION.transcript-processor.1.1.1.1.1 (no call could be acknowledged",
        ),
        (
            "publish: { deny: \"transcript.processed\" }".to_owned(),
            "publish to transcript.processed (no call could be announced)",
        ),
        (
            "subscribe: { allow: [\"_INBOX.>\"] }".to_owned(),
            "subscribe to $JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.TRANSCRIPTION.transcript-processor (calls that used up",
        ),
        (
            format!(
                "publish: {{ allow: [{}] }}",
                all.replace("\"transcription.>\"", "\"transcription.session-ended\"")
            ),
            "publish to transcription.dead-letter (a call that cannot be processed could not be kept)",
        ),
        ("publish: { deny: \"$JS.API.>\" }".to_owned(), "publish to $JS.API.STREAM.INFO.TRANSCRIPTION (the streams"),
        ("subscribe: { deny: \"_INBOX.>\" }".to_owned(), "subscribe to _INBOX."),
    ];
    for (permissions, lack) in cases {
        let world = world_of_bob(&permissions).await?;
        as_user(&world, "setup", "ann").run(SOON).await?;
        let run = as_user(&world, "run", "bob").start().await?;
        assert_eq!(run.wait(SOON).await?, Exit::Code(1), "{permissions}: {}", run.logs());
        let logs = run.logs();
        let last = logs.lines().last().unwrap_or_default();
        assert!(last.starts_with("error: this user of NATS may not ") && last.contains(lack), "{permissions}: {logs}");
    }
    Ok(())
}

#[tokio::test]
async fn a_user_of_nats_who_may_set_up_only_is_told_what_a_processor_needs() -> TestResult {
    let world = world_of_bob("publish: { allow: [\"$JS.API.>\"] }").await?;
    let setup = as_user(&world, "setup", "bob").start().await?;
    assert_eq!(setup.wait(SOON).await?, Exit::Code(0), "{}", setup.logs());
    let logs = setup.logs();
    let warning = "this user of NATS could not run a processor: it may not publish to $JS.ACK.TRANSCRIPTION";
    assert!(logs.contains(warning), "{logs}");
    Ok(())
}

#[tokio::test]
async fn permissions_that_suffice_are_tried_without_a_message() -> TestResult {
    let permissions = "publish: { allow: [\"$JS.API.>\", \"$JS.ACK.>\", \"transcript.>\", \"transcription.>\"] }";
    let world = world_of_bob(permissions).await?;
    as_user(&world, "setup", "ann").run(SOON).await?;
    let mut heard = world.client.subscribe(">").await?;
    world.client.flush().await?;
    let logs = ready(as_user(&world, "run", "bob")).await?;
    assert!(!logs.contains("ERROR") && !logs.contains("WARN"), "{logs}");
    heard.unsubscribe().await?;
    let mut subjects = vec![];
    while let Some(message) = heard.next().await {
        subjects.push(message.subject.to_string());
    }
    let tried = |subject: &String| subject.starts_with("transcript") || subject.starts_with("$JS.ACK");
    assert!(!subjects.iter().any(tried), "{subjects:?}");
    Ok(())
}

fn free_port() -> Fallible<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A hub and a leaf node, each with a JetStream of its own in a domain of its own, where they are given.
struct HubAndLeaf {
    hub: NatsServer,
    leaf: NatsServer,
    _stores: [tempfile::TempDir; 2],
}

async fn hub_and_leaf(hub_domain: &str, leaf_domain: &str) -> Fallible<HubAndLeaf> {
    let stores = [tempfile::tempdir()?, tempfile::tempdir()?];
    let port = free_port()?;
    let jetstream = |store: &tempfile::TempDir, domain: &str| {
        let domain = if domain.is_empty() { String::new() } else { format!(", domain: {domain}") };
        format!("jetstream {{ store_dir: \"{}\"{domain} }}\n", store.path().display())
    };
    let of_hub = format!("{}leafnodes {{ host: 127.0.0.1, port: {port} }}", jetstream(&stores[0], hub_domain));
    let hub = NatsServer::start_with(NatsOptions { config: of_hub, ..NatsOptions::default() }).await?;
    let remotes = format!("leafnodes {{ remotes: [{{ url: \"nats://127.0.0.1:{port}\" }}] }}");
    let of_leaf = format!("{}{remotes}", jetstream(&stores[1], leaf_domain));
    let leaf = NatsServer::start_with(NatsOptions { config: of_leaf, ..NatsOptions::default() }).await?;
    // Something at the hub that answers the leaf node once they are connected.
    let at_hub = hub.client().await?;
    let mut asked = at_hub.subscribe("hello").await?;
    let answering = tokio::spawn(async move {
        while let Some(message) = asked.next().await {
            if let Some(reply) = message.reply {
                drop(at_hub.publish(reply, "".into()).await);
            }
        }
    });
    let at_leaf = leaf.client().await?;
    wait_until("the leaf node is connected to the hub", SOON, || async {
        at_leaf.request("hello", "".into()).await.map(drop).map_err(|error| error.to_string())
    })
    .await?;
    answering.abort();
    Ok(HubAndLeaf { hub, leaf, _stores: stores })
}

impl HubAndLeaf {
    fn at(&self, world: &TestWorld, server: &NatsServer, subcommand: &str) -> ProcessorCommand {
        world.processor(subcommand).environment("NATS_URL", server.url())
    }
}

#[tokio::test]
async fn no_second_stream_is_made_in_the_domain_of_a_leaf_node() -> TestResult {
    let world = TestWorld::start().await?;
    let servers = hub_and_leaf("hub", "leaf").await?;
    let HubAndLeaf { hub, leaf, .. } = &servers;
    let at_leaf = jetstream::new(leaf.client().await?);

    // Nobody said which one is meant, and neither has the stream.
    for (server, domain) in [(leaf, "leaf"), (hub, "hub")] {
        let expected = format!("error: there is no stream TRANSCRIPTION in JetStream's domain {domain}, to which");
        refused(servers.at(&world, server, "setup"), &expected).await?;
    }
    let setup = servers.at(&world, leaf, "setup").arguments(["--js-domain", "hub"]).run(SOON).await?;
    assert!(setup.starts_with("stream TRANSCRIPTION: created\n"), "{setup}");
    assert_eq!(streams(&at_leaf).await?, Value::Null);
    let at_hub = jetstream::new(hub.client().await?);
    assert_eq!(streams(&at_hub).await?, json!(["RECORDING", "TRANSCRIPTION"]));
    // At the hub it is found by default; at the leaf node it has to be named.
    assert_eq!(servers.at(&world, hub, "setup").run(SOON).await?, "nothing to change\n");
    for subcommand in ["setup", "run"] {
        let expected = "error: there is no stream TRANSCRIPTION in JetStream's domain leaf, to which";
        refused(servers.at(&world, leaf, subcommand), expected).await?;
    }
    assert_eq!(streams(&at_leaf).await?, Value::Null);

    for arguments in [["--js-domain", "hub"], ["--js-api-prefix", "$JS.hub.API"]] {
        for (subcommand, expected) in [("audit", "one to one\n"), ("setup", "nothing to change\n")] {
            let output = servers.at(&world, leaf, subcommand).arguments(arguments).run(SOON).await?;
            assert!(output.ends_with(expected), "{subcommand}: {output}");
        }
        let list = servers.at(&world, leaf, "dead-letters").arguments(["list"]).arguments(arguments);
        assert_eq!(list.run(SOON).await?, "no dead letters\n");
    }
    let nowhere = servers.at(&world, leaf, "setup").arguments(["--js-domain", "nowhere"]);
    refused(nowhere, "error: no JetStream answers under the name that --js-domain or --js-api-prefix gives").await
}

#[tokio::test(flavor = "multi_thread")]
async fn processors_at_a_leaf_node_and_at_the_hub_serve_one_stream() -> TestResult {
    let world = TestWorld::start().await?;
    let servers = hub_and_leaf("hub", "leaf").await?;
    let HubAndLeaf { hub, leaf, .. } = &servers;
    servers.at(&world, hub, "setup").arguments(["--js-domain", "hub"]).run(SOON).await?;
    let mut running = vec![];
    for server in [leaf, hub] {
        let run = servers.at(&world, server, "run").arguments(["--js-domain", "hub", "--quiet-period", "100ms"]);
        running.push(run.start().await?);
    }
    for run in &running {
        wait_until("the processor is ready", SOON, || async {
            if run.logs().contains("ready name=") { Ok(()) } else { Err(run.logs()) }
        })
        .await?;
    }
    let publishers = [jetstream::new(hub.client().await?), jetstream::new(leaf.client().await?)];
    for number in 0..20 {
        let call = Call::of("room", &format!("s-{number}"), 2)?;
        world.insert_segments(&call.segments).await?;
        let end = json!({ "conversationId": "room", "sessionId": format!("s-{number}"), "publishedSegments": 2 });
        let publisher = &publishers[number % 2];
        publisher.publish("transcription.session-ended", end.to_string().into()).await?.await?;
    }
    for server in [hub, leaf] {
        wait_until("every call is announced once", SOON, || async {
            let audit = servers.at(&world, server, "audit").arguments(["--js-domain", "hub", "--json"]);
            let audit = audit.start().await.map_err(|error| error.to_string())?;
            let exit = audit.wait(SOON).await.map_err(|error| error.to_string())?;
            let found: Value = serde_json::from_str(&audit.output()).map_err(|error| error.to_string())?;
            let is_done = found["announced"] == 20 && found["underWay"] == 0 && exit == Exit::Code(0);
            if is_done { Ok(()) } else { Err(found.to_string()) }
        })
        .await?;
    }
    let worked = |run: &Processor| run.logs().matches("summarised and announced").count();
    let (at_leaf, at_hub) = (worked(&running[0]), worked(&running[1]));
    assert!(at_leaf > 0, "the processor at the leaf node took no call, that at the hub {at_hub}");
    let at_leaf = jetstream::new(leaf.client().await?);
    assert_eq!(streams(&at_leaf).await?, Value::Null);
    Ok(())
}

#[tokio::test]
async fn a_stream_that_another_jetstream_has_is_not_made_again() -> TestResult {
    let world = TestWorld::start().await?;
    let servers = hub_and_leaf("", "").await?;
    let HubAndLeaf { hub, leaf, .. } = &servers;
    servers.at(&world, hub, "setup").run(SOON).await?;
    let at_leaf = jetstream::new(leaf.client().await?);
    if streams(&at_leaf).await? != Value::Null {
        // The leaf node's clients are served by the hub's JetStream.
        assert_eq!(servers.at(&world, leaf, "setup").run(SOON).await?, "nothing to change\n");
        return Ok(());
    }
    let expected = "error: there is no stream TRANSCRIPTION in the JetStream of this NATS server, but the stream \
                    TRANSCRIPTION takes its messages";
    for subcommand in ["setup", "run"] {
        refused(servers.at(&world, leaf, subcommand), expected).await?;
    }
    assert_eq!(streams(&at_leaf).await?, Value::Null);
    Ok(())
}

#[tokio::test]
async fn the_advice_for_a_server_without_jetstream_fits_a_leaf_node() -> TestResult {
    let world = TestWorld::start().await?;
    let mut nats = NatsServer::start().await?;
    nats.start_again_without_jetstream().await?;
    let setup = world.processor("setup").environment("NATS_URL", nats.url()).start().await?;
    assert_eq!(setup.wait(SOON).await?, Exit::Code(1));
    let logs = setup.logs();
    assert!(logs.contains("where it is a leaf node, check its link to the hub and give --js-domain"), "{logs}");
    assert!(!logs.contains("-js,"), "{logs}");
    Ok(())
}

#[tokio::test]
async fn what_others_have_set_is_kept_and_told() -> TestResult {
    let world = TestWorld::start().await?;
    let asked = ["--ack-wait", "60s", "--max-deliver", "9", "--duplicate-window", "2m", "--max-ack-pending", "70000"];
    world.processor("setup").arguments(asked).run(SOON).await?;
    let setup = world.processor("setup").start().await?;
    assert_eq!(setup.wait(SOON).await?, Exit::Code(0));
    assert_eq!(
        setup.output(),
        "stream TRANSCRIPTION: duplicate_window stays 2m, the default is 1day: --duplicate-window changes it\n\
         consumer transcript-processor: ack_wait stays 1m, the default is 6s: --ack-wait changes it\n\
         consumer transcript-processor: max_deliver stays 9, the default is 5: --max-deliver changes it\n\
         consumer transcript-processor: max_ack_pending stays 70000, the default is 65536: --max-ack-pending changes it\n\
         nothing to change\n"
    );
    assert!(setup.logs().contains("a call that is processed again later than that may be announced twice"));

    // A processor without settings takes those of the consumer, one with settings changes what it was given.
    let logs = ready(world.processor("run")).await?;
    assert!(logs.contains("duplicate_window=2m replicas=1 ack_wait=1m max_deliver=9 max_ack_pending=70000"), "{logs}");
    assert!(logs.contains("ack_wait stays 1m, the default is 6s"), "{logs}");
    let logs = ready(world.processor("run").environment("TRANSCRIPT_ACK_WAIT", "10s")).await?;
    assert!(logs.contains("set up: consumer transcript-processor: ack_wait changed from 1m to 10s"), "{logs}");
    let consumer = world.consumer().await?.config;
    assert_eq!((consumer.ack_wait, consumer.max_deliver), (Duration::from_secs(10), 9));
    Ok(())
}

/// Changes the consumer as another client could.
async fn edit_consumer(world: &TestWorld, settings: &Value) -> TestResult {
    let subject = format!("CONSUMER.INFO.TRANSCRIPTION.{CONSUMER}");
    let mut config = api(world, &subject, &json!({})).await?["config"].clone();
    for (field, value) in settings.as_object().into_iter().flatten() {
        config[field] = value.clone();
    }
    if settings["filter_subjects"].is_array() {
        config.as_object_mut().map(|config| config.remove("filter_subject"));
    }
    let body = json!({ "stream_name": "TRANSCRIPTION", "config": config, "action": "update" });
    api(world, &format!("CONSUMER.CREATE.TRANSCRIPTION.{CONSUMER}"), &body).await.map(drop)
}

async fn api(world: &TestWorld, subject: &str, body: &Value) -> Fallible<Value> {
    match world.jetstream.request(subject.to_owned(), body).await? {
        Response::Ok(answer) => Ok(answer),
        Response::Err { error } => Err(format!("{subject}: {error}").into()),
    }
}

#[tokio::test]
async fn every_setting_that_stops_the_pulls_is_repaired() -> TestResult {
    let world = TestWorld::start().await?;
    world.processor("setup").run(SOON).await?;
    let minute = 60_000_000_000_u64;
    let cases = [
        json!({ "max_batch": 1 }),
        json!({ "max_expires": 1_000_000_000 }),
        json!({ "max_bytes": 100 }),
        json!({ "headers_only": true }),
        json!({ "filter_subject": "transcription.segment" }),
        json!({ "filter_subjects": ["transcription.segment", "transcription.session-ended"] }),
        json!({ "priority_policy": "overflow", "priority_groups": ["a"] }),
        json!({ "priority_policy": "prioritized", "priority_groups": ["a"] }),
        json!({ "priority_policy": "pinned_client", "priority_groups": ["a"], "priority_timeout": minute }),
        json!({ "backoff": [minute, minute] }),
    ];
    for edit in cases {
        edit_consumer(&world, &edit).await?;
        let output = world.processor("setup").run(SOON).await.map_err(|error| format!("{edit}: {error}"))?;
        assert!(output.starts_with("consumer transcript-processor: "), "{edit}: {output}");
        assert_eq!(world.processor("setup").run(SOON).await?, "nothing to change\n", "{edit}");
    }
    Ok(())
}

#[tokio::test]
async fn a_pause_is_told_and_ended_where_that_is_asked_for() -> TestResult {
    let world = TestWorld::start().await?;
    world.processor("setup").run(SOON).await?;
    let pause = json!({ "pause_until": "2100-01-01T00:00:00Z" });
    api(&world, &format!("CONSUMER.PAUSE.TRANSCRIPTION.{CONSUMER}"), &pause).await?;
    for subcommand in ["setup", "run"] {
        let command = world.processor(subcommand).start().await?;
        wait_until("the pause is told", SOON, || async {
            let logs = command.logs();
            let told = "is paused until 2100-01-01T00:00:00Z: no call is handed out before; `setup --resume` ends that";
            if logs.contains(told) { Ok(()) } else { Err(logs) }
        })
        .await?;
    }
    assert!(world.consumer().await?.paused, "somebody wanted it");
    let output = world.processor("setup").arguments(["--resume"]).run(SOON).await?;
    assert_eq!(output, "consumer transcript-processor: pause_until changed from 2100-01-01T00:00:00Z to none\n");
    assert!(!world.consumer().await?.paused);
    Ok(())
}
