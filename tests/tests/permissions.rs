//! The users of `fixtures/nats/permissions`: what each may do, what is refused, and the commands that each runs.

use std::{error::Error, fs, time::Duration};

use mongodb::bson::{self, Document, doc};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};
use transcript_core::contract::{
    CONSUMER, DEAD_LETTER_SUBJECT, SEGMENTS_COLLECTION, SESSION_ENDED_SUBJECT, SUMMARIES_COLLECTION,
    TRANSCRIPTION_STREAM,
};
use transcript_tests::{
    calls::fixture,
    process_guard::Exit,
    processor::ProcessorCommand,
    servers::{Login, Mongod, NatsOptions},
    transcriber::RunningTranscriber,
    wait::wait_until,
    world::{StoreOf, TestWorld},
};
use transcript_transcriber::document::SESSIONS_COLLECTION;

type TestResult = Result<(), Box<dyn Error>>;

const LONG: Duration = Duration::from_secs(60);
const USERS: [&str; 6] = ["processor", "transcriber", "recorder", "subscriber", "operator", "monitor"];

/// A server with the users, their passwords, and one for the harness.
async fn world() -> Result<TestWorld, Box<dyn Error>> {
    let users = fs::read_to_string(fixture("nats/permissions/accounts.conf"))?;
    let harness = users.replacen("users: [", "users: [\n{ user: harness, password: x }", 1);
    let passwords: String =
        USERS.iter().map(|user| format!("{}_PASSWORD: \"of {user}\"\n", user.to_uppercase())).collect();
    let login = Login { user: "harness".to_owned(), password: "x".to_owned() };
    let options = NatsOptions { config: passwords + &harness, login: Some(login), ..NatsOptions::default() };
    Ok(TestWorld::start_as(StoreOf::AllWorlds, options).await?)
}

fn as_user(world: &TestWorld, user: &str, subcommand: &str) -> ProcessorCommand {
    world
        .processor(subcommand)
        .environment("NATS_URL", world.nats.url())
        .environment("NATS_USER", user)
        .environment("NATS_PASSWORD", format!("of {user}"))
        .environment("NATS_INBOX_PREFIX", format!("_INBOX_{user}"))
}

#[tokio::test]
async fn each_user_can_do_its_work() -> TestResult {
    let world = world().await?;
    let setup = as_user(&world, "operator", "setup").start().await?;
    assert_eq!(setup.wait(LONG).await?, Exit::Code(0), "{}", setup.logs());
    assert!(!setup.logs().contains("ERROR"), "what is tried is no error: {}", setup.logs());
    let run =
        as_user(&world, "processor", "run").arguments(["--quiet-period", "100ms", "--revise", "--http", "127.0.0.1:0"]);
    let processor = run.start_ready(LONG).await?;
    let transcriber = as_user(&world, "transcriber", "transcriber").arguments(["--end-after-close", "0s"]);
    let transcriber = RunningTranscriber::start(transcriber).await?;

    let mut ana = transcriber.connect("c", "s", "").await?;
    ana.say("1", "Good morning.").await?;
    assert_eq!(ana.finalize().await?, 1);
    ana.close().await?;
    wait_until("the call is announced", LONG, || async {
        let told = world.notifications().await.map_err(|error| error.to_string())?;
        if told.len() == 1 { Ok(()) } else { Err(processor.logs()) }
    })
    .await?;
    as_user(&world, "recorder", "recording").arguments(["stored", "file=a.webm"]).run(LONG).await?;
    // An end that nobody can read becomes a dead letter.
    world.publish(SESSION_ENDED_SUBJECT, b"no JSON".to_vec()).await?;
    let stream = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?;
    let dead_letter = wait_until("there is a dead letter", LONG, || async {
        let found = stream.get_last_raw_message_by_subject(DEAD_LETTER_SUBJECT).await;
        found.map(|message| message.sequence.to_string()).map_err(|error| format!("{error}: {}", processor.logs()))
    })
    .await?;
    for arguments in [&["dead-letters", "list"][..], &["calls"], &["status"], &["show", "c:s"]] {
        let command = as_user(&world, "monitor", arguments[0]).arguments(&arguments[1..]).start().await?;
        assert_eq!(command.wait(LONG).await?, Exit::Code(0), "{arguments:?}: {}", command.logs());
        assert!(!command.logs().contains("ERROR"), "{arguments:?}: {}", command.logs());
    }
    for arguments in [
        &["dead-letters", "discard", &dead_letter][..],
        &["audit"],
        &["pause", "--for", "1s"],
        &["resume"],
        &["reprocess", "c:s"],
    ] {
        let command = as_user(&world, "operator", arguments[0]).arguments(&arguments[1..]).start().await?;
        assert_eq!(command.wait(LONG).await?, Exit::Code(0), "{arguments:?}: {}{}", command.output(), command.logs());
        assert!(!command.logs().contains("ERROR"), "{arguments:?}: {}", command.logs());
    }
    // A consumer that is gone is made anew by the processor.
    stream.delete_consumer(CONSUMER).await?;
    wait_until("the consumer is there again", LONG, || async {
        world.consumer().await.map(drop).map_err(|error| format!("{error}: {}", processor.logs()))
    })
    .await?;
    assert_eq!(processor.terminate().await?, Exit::Code(0));
    assert!(!processor.logs().contains("may not"), "{}", processor.logs());
    assert_eq!(transcriber.process.terminate().await?, Exit::Code(0));
    assert!(!transcriber.process.logs().contains("may not"), "{}", transcriber.process.logs());
    Ok(())
}

/// Something to do on the server.
#[derive(Debug, Clone, Copy)]
enum Action {
    Publish(&'static str),
    Subscribe(&'static str),
}

use Action::{Publish, Subscribe};

/// Who may do what.
const TABLE: [(Action, &[&str]); 32] = [
    (Publish("transcription.segment"), &["transcriber"]),
    (Publish("transcription.session-ended"), &["processor", "transcriber", "operator"]),
    (Publish("transcription.dead-letter"), &["processor"]),
    (Publish("transcription.discarded"), &["operator"]),
    (Publish("transcript.processed"), &["processor"]),
    (Publish("transcript.processed.c:s"), &["processor"]),
    (Publish("transcript.revised"), &["processor"]),
    (Publish("recording.stored"), &["recorder"]),
    (Publish("$JS.API.CONSUMER.MSG.NEXT.TRANSCRIPTION.transcript-processor"), &["processor"]),
    (Publish("$JS.ACK.TRANSCRIPTION.transcript-processor.1.1.1.1.1"), &["processor"]),
    (Publish("$JS.API.STREAM.MSG.GET.TRANSCRIPTION"), &["processor", "operator", "monitor"]),
    (Publish("$JS.API.STREAM.MSG.GET.RECORDING"), &["operator"]),
    (Publish("$JS.API.CONSUMER.CREATE.TRANSCRIPTION.my-app.transcript.processed"), &["subscriber"]),
    (Publish("$JS.API.CONSUMER.MSG.NEXT.TRANSCRIPTION.my-app"), &["subscriber"]),
    (Publish("$JS.ACK.TRANSCRIPTION.my-app.1.1.1.1.1"), &["subscriber"]),
    (Publish("$JS.API.CONSUMER.CREATE.TRANSCRIPTION.my-app.transcription.segment"), &[]),
    (Publish("$JS.API.CONSUMER.DURABLE.CREATE.TRANSCRIPTION.my-app"), &[]),
    (Publish("$JS.API.STREAM.UPDATE.TRANSCRIPTION"), &["operator"]),
    (Publish("$JS.API.CONSUMER.PAUSE.TRANSCRIPTION.transcript-processor"), &["operator"]),
    (Publish("$JS.API.STREAM.DELETE.TRANSCRIPTION"), &[]),
    (Publish("$JS.API.STREAM.PURGE.TRANSCRIPTION"), &[]),
    (Publish("$JS.API.STREAM.MSG.DELETE.TRANSCRIPTION"), &["operator"]),
    (Publish("transcript-processes"), &["processor", "operator", "monitor"]),
    (Publish("transcript-processes.somebody"), &["operator"]),
    (Subscribe("transcript-processes"), &["processor", "transcriber"]),
    (Publish("$JS.API.CONSUMER.DELETE.TRANSCRIPTION.transcript-processor"), &[]),
    (Publish("$JS.API.STREAM.CREATE.OTHER"), &[]),
    (Subscribe("transcription.>"), &[]),
    (Subscribe("transcript.processed"), &[]),
    (Subscribe("_INBOX.>"), &[]),
    (Subscribe(">"), &[]),
    (Subscribe("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.TRANSCRIPTION.transcript-processor"), &["processor"]),
];

#[tokio::test]
async fn each_user_may_do_what_the_table_says_and_nothing_else() -> TestResult {
    let world = world().await?;
    world.create_streams().await?;
    for user in USERS {
        let mut session = Session::open(&world, user).await?;
        for (action, allowed) in TABLE {
            assert_eq!(session.may(action).await?, allowed.contains(&user), "{user}: {action:?}");
        }
        for owner in USERS {
            let may = session.subscribes(&format!("_INBOX_{owner}.>")).await?;
            assert_eq!(may, owner == user, "{user}: inboxes of {owner}");
        }
    }
    Ok(())
}

/// A bare connection, which hears every refusal.
struct Session {
    stream: BufReader<TcpStream>,
}

impl Session {
    async fn open(world: &TestWorld, user: &str) -> Result<Self, Box<dyn Error>> {
        let mut stream = BufReader::new(TcpStream::connect(world.nats.process().address()).await?);
        let login = json!({ "verbose": false, "headers": true, "user": user, "pass": format!("of {user}") });
        stream.write_all(format!("CONNECT {login}\r\n").as_bytes()).await?;
        let mut session = Self { stream };
        assert_eq!(session.errors("").await?, [] as [String; 0], "the login of {user} is good");
        Ok(session)
    }

    async fn may(&mut self, action: Action) -> Result<bool, Box<dyn Error>> {
        match action {
            Subscribe(subject) => self.subscribes(subject).await,
            Publish(subject) => {
                // The server looks at the subject first, and then refuses the reply subject, which is its own: nothing is done.
                let errors = self.errors(&format!("PUB {subject} _R_.nobody 0\r\n\r\n")).await?;
                match errors.as_slice() {
                    [error] if error.contains(&format!("Publish to \"{subject}\"")) => Ok(false),
                    [error] if error.contains("Reply of \"_R_.nobody\"") => Ok(true),
                    errors => Err(format!("{subject}: {errors:?}").into()),
                }
            }
        }
    }

    async fn subscribes(&mut self, subject: &str) -> Result<bool, Box<dyn Error>> {
        let errors = self.errors(&format!("SUB {subject} 1\r\nUNSUB 1\r\n")).await?;
        match errors.as_slice() {
            [] => Ok(true),
            [error] if error.contains(&format!("Subscription to \"{subject}\"")) => Ok(false),
            errors => Err(format!("{subject}: {errors:?}").into()),
        }
    }

    /// What the server objects to in these bytes.
    async fn errors(&mut self, bytes: &str) -> Result<Vec<String>, Box<dyn Error>> {
        self.stream.write_all(format!("{bytes}PING\r\n").as_bytes()).await?;
        let mut errors = vec![];
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line).await? == 0 {
                return Err(format!("the server has closed the connection: {errors:?}").into());
            }
            if let Some(size) = line.strip_prefix("MSG ").and_then(|line| line.split_whitespace().last()) {
                let mut payload = vec![0; size.parse::<usize>()? + 2];
                self.stream.read_exact(&mut payload).await?;
            }
            if line.starts_with("PONG") {
                return Ok(errors);
            }
            if line.starts_with("-ERR") {
                errors.push(line);
            }
        }
    }
}

/// Who may do what in MongoDB: an action, a collection, and the roles of `fixtures/mongodb/roles.json`.
const IN_MONGODB: [(&str, &str, &[&str]); 10] = [
    ("find", SEGMENTS_COLLECTION, &["Processor", "Transcriber", "Operator", "Monitor"]),
    ("insert", SEGMENTS_COLLECTION, &["Transcriber"]),
    ("delete", SEGMENTS_COLLECTION, &[]),
    ("find", SUMMARIES_COLLECTION, &["Processor", "Operator", "Monitor"]),
    ("insert", SUMMARIES_COLLECTION, &["Processor", "Operator"]),
    ("delete", SUMMARIES_COLLECTION, &[]),
    ("find", SESSIONS_COLLECTION, &["Processor", "Transcriber", "Operator", "Monitor"]),
    ("insert", SESSIONS_COLLECTION, &["Transcriber"]),
    ("delete", SESSIONS_COLLECTION, &[]),
    ("drop", SUMMARIES_COLLECTION, &[]),
];

#[tokio::test]
async fn each_role_of_mongodb_suffices_and_may_nothing_else() -> TestResult {
    let world = TestWorld::start_with(Mongod::authorized().await?).await?;
    let database = world.database();
    let roles = fs::read_to_string(fixture("mongodb/roles.json"))?
        .replace("\"transcripts\"", &json!(database.name()).to_string());
    for role in roles.lines() {
        let role: Document = bson::serialize_to_document(&serde_json::from_str::<Value>(role)?)?;
        let name = role.get_str("createRole")?.to_owned();
        database.run_command(role).await?;
        database.run_command(doc! { "createUser": &name, "pwd": "x", "roles": [&name] }).await?;
    }
    let uri = |role: &str| {
        let known = world.mongodb_uri();
        let servers = known.rsplit_once('@').map_or("", |(_, servers)| servers);
        let servers = servers.split('/').next().unwrap_or_default();
        format!("mongodb://transcript{role}:x@{servers}/?authSource={}", database.name())
    };
    let as_role = |role: &str, subcommand: &str| world.processor(subcommand).environment("MONGODB_URI", uri(role));

    let setup = as_role("Operator", "setup").argument("--revise").start().await?;
    assert_eq!(setup.wait(LONG).await?, Exit::Code(0), "{}", setup.logs());
    let run = as_role("Processor", "run").arguments(["--quiet-period", "100ms", "--revise"]);
    let processor = run.start_ready(LONG).await?;
    let transcriber = as_role("Transcriber", "transcriber").arguments(["--end-after-close", "0s"]);
    let transcriber = RunningTranscriber::start(transcriber).await?;
    let mut ana = transcriber.connect("c", "s", "").await?;
    ana.say("1", "Good morning.").await?;
    assert_eq!(ana.finalize().await?, 1, "{}", transcriber.process.logs());
    ana.close().await?;
    wait_until("the call is announced", LONG, || async {
        let told = world.notifications().await.map_err(|error| error.to_string())?;
        if told.len() == 1 { Ok(()) } else { Err(format!("{}{}", processor.logs(), transcriber.process.logs())) }
    })
    .await?;
    for (role, arguments) in
        [("Monitor", &["calls"][..]), ("Monitor", &["show", "c:s"]), ("Monitor", &["audit"]), ("Operator", &["audit"])]
    {
        let command = as_role(role, arguments[0]).arguments(&arguments[1..]).start().await?;
        assert_eq!(command.wait(LONG).await?, Exit::Code(0), "{role} {arguments:?}: {}", command.logs());
    }
    assert_eq!(processor.terminate().await?, Exit::Code(0));
    assert_eq!(transcriber.process.terminate().await?, Exit::Code(0));

    for role in ["Processor", "Transcriber", "Operator", "Monitor"] {
        let client = mongodb::Client::with_uri_str(uri(role)).await?;
        for (action, collection, allowed) in IN_MONGODB {
            let command = match action {
                "find" => doc! { "find": collection, "limit": 1 },
                "insert" => {
                    doc! { "insert": collection, "documents": [{ "_id": format!("of {role}"), "sessionId": role }] }
                }
                "delete" => doc! { "delete": collection, "deletes": [{ "q": { "_id": "nobody" }, "limit": 1 }] },
                other => doc! { other: collection },
            };
            let done = client.database(database.name()).run_command(command).await;
            let may = !done.as_ref().is_err_and(|error| error.to_string().contains("not authorized"));
            assert_eq!(may, allowed.contains(&role), "{role}: {action} {collection}: {done:?}");
        }
    }
    Ok(())
}
