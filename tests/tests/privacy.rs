//! No word of a call and no secret is in a log, a trace without content, an error, a dead letter or a command line, whatever
//! goes wrong.

use std::{fs, path::Path, time::Duration};

use mongodb::bson::doc;
use transcript_core::{
    contract::{DEAD_LETTER_SUBJECT, SUMMARIES_COLLECTION, TRANSCRIPTION_STREAM},
    ids::Session,
};
use transcript_publishing::SegmentMessage;
use transcript_tests::{
    process_guard::Exit,
    processor::{Processor, ProcessorCommand},
    servers::{Login, Mongod, NatsOptions},
    wait::wait_until,
    world::TestWorld,
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(90);
/// Who spoke, and what was said; none of it is in anything else.
const SPEAKER: &str = "Zebulonia Quimby";
const WORDS: [&str; 3] = ["xylophonic", "marzipanesque", "quokkaward"];
const NATS_PASSWORD: &str = "sesame-nats-Zq9x7";
const MONGODB_PASSWORD: &str = "sesame-mongodb-Zq9x7";

/// What was found in a place where a word or a secret must not be.
#[derive(Debug, Default)]
struct Search {
    places: usize,
    found: Vec<String>,
}

impl Search {
    fn look(&mut self, place: &str, text: &str) {
        self.places += 1;
        let secrets = [SPEAKER, NATS_PASSWORD, MONGODB_PASSWORD, "Zebulonia", "Zq9x7"];
        for secret in secrets.iter().chain(&WORDS) {
            if let Some(at) = text.find(secret) {
                let line = text[..at].matches('\n').count();
                let context = text.lines().nth(line).unwrap_or_default().chars().take(2_000).collect::<String>();
                self.found.push(format!("{secret:?} is in {place}, line {}: {context}", line + 1));
            }
        }
    }

    fn look_in_directory(&mut self, directory: &Path) -> Outcome {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            self.look(&path.display().to_string(), &String::from_utf8_lossy(&fs::read(&path)?));
        }
        Ok(())
    }

    /// The command line and the environment's names that everybody on the machine can read.
    fn look_at_process(&mut self, processor: &Processor) -> Outcome {
        let line = fs::read(format!("/proc/{}/cmdline", processor.pid()))?;
        self.look("a command line", &String::from_utf8_lossy(&line));
        Ok(())
    }

    /// Runs a command to its end, whatever that is, and looks at all that it says.
    async fn look_at_command(&mut self, name: &str, command: &ProcessorCommand) -> Outcome {
        let processor = command.start().await?;
        processor.wait(LONG).await?;
        self.look(&format!("the log of {name}"), &processor.logs());
        self.look(&format!("the output of {name}"), &processor.output());
        Ok(())
    }
}

fn segments(session: &Session) -> Vec<SegmentMessage> {
    let segment = |(index, word): (u64, &&str)| SegmentMessage {
        session: session.clone(),
        index,
        speaker: Some(SPEAKER.to_owned()),
        text: format!("{word} they said"),
        start_ms: None,
        end_ms: None,
    };
    (0..).zip(&WORDS).map(segment).collect()
}

async fn call_ends(world: &TestWorld, name: &str) -> Result<Session, Box<dyn std::error::Error>> {
    let session = Session::new("conversation", name)?;
    world.insert_segments(&segments(&session)).await?;
    world.publish_session_end(&session, 3).await?;
    Ok(session)
}

async fn announced(world: &TestWorld, number: usize) -> Outcome {
    wait_until(format!("{number} calls are announced"), LONG, || async {
        match world.notifications().await {
            Ok(announced) if announced.len() >= number => Ok(()),
            Ok(announced) => Err(format!("{} are", announced.len())),
            Err(error) => Err(error.to_string()),
        }
    })
    .await?;
    Ok(())
}

fn nats_options() -> NatsOptions {
    let login = Login { user: "ann".to_owned(), password: NATS_PASSWORD.to_owned() };
    let config = format!("authorization {{ user: ann, password: {NATS_PASSWORD:?} }}\n");
    NatsOptions { config, login: Some(login), authority: None }
}

/// What the processor's user of MongoDB may do.
async fn grant(world: &TestWorld, command: &str, role: &str) -> Outcome {
    let roles = vec![doc! { "role": role, "db": world.database().name() }];
    world
        .database()
        .client()
        .database("admin")
        .run_command(doc! { command: "ann", "pwd": MONGODB_PASSWORD, "roles": roles })
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_word_and_no_secret_is_anywhere() -> Outcome {
    let mut search = Search::default();
    let mut world = TestWorld::start_on(Mongod::authorized().await?, nats_options()).await?;
    grant(&world, "createUser", "dbOwner").await?;
    let directory = tempfile::tempdir()?;
    let traces = directory.path().join("traces");
    let mongodb = format!("mongodb://ann:{MONGODB_PASSWORD}@{}/?replicaSet=rs", world.mongod_address());
    let nats = format!("nats://ann:{NATS_PASSWORD}@{}", world.nats.process().address());
    let command = |world: &TestWorld, name: &str| {
        world
            .processor(name)
            .environment("MONGODB_URI", &mongodb)
            .environment("NATS_URL", &nats)
            .arguments(["--log", "trace"])
    };
    let run = command(&world, "run")
        .arguments([
            "--quiet-period",
            "100ms",
            "--ack-wait",
            "3s",
            "--retry-cap",
            "1s",
            "--nak-delay",
            "1s",
            "--record",
        ])
        .argument(&traces)
        .start_ready(LONG)
        .await?;
    search.look_at_process(&run)?;

    // As it should be.
    call_ends(&world, "good").await?;
    announced(&world, 1).await?;

    // A document that MongoDB refuses, and quotes.
    let refusing = doc! { "collMod": SUMMARIES_COLLECTION, "validator": { "sessionId": { "$ne": "refused" } } };
    world.database().run_command(refusing).await?;
    call_ends(&world, "refused").await?;
    run.logged("it becomes a dead letter", LONG).await?;

    // An end that is none, with words in it.
    world.publish("transcription.session-ended", format!(r#"{{"text": "{}"}}"#, WORDS[0]).into_bytes()).await?;
    world.publish("transcription.session-ended", WORDS[1].as_bytes().to_vec()).await?;

    // A user who may no longer write: MongoDB quotes the whole command.
    grant(&world, "updateUser", "read").await?;
    call_ends(&world, "denied").await?;
    run.logged("nauthorized", LONG).await?;
    let file = directory.path().join("bad.ndjson");
    fs::write(&file, format!(r#"{{"conversationId":"c","sessionId":"s","index":"{}","text":"x"}}"#, WORDS[2]))?;
    let good = directory.path().join("good.ndjson");
    let segment =
        serde_json::json!({"conversationId": "c", "sessionId": "s", "index": 0, "speaker": SPEAKER, "text": WORDS[0]});
    fs::write(&good, segment.to_string())?;
    for (name, arguments) in [
        ("setup", vec![]),
        ("play", vec![good.to_str().unwrap_or_default()]),
        ("audit", vec![]),
        ("audit", vec!["--repair", "--json"]),
        ("dead-letters", vec!["list", "--json"]),
        ("dead-letters", vec!["redrive", "--all"]),
        ("play", vec![file.to_str().unwrap_or_default()]),
    ] {
        search.look_at_command(&format!("{name} {arguments:?}"), &command(&world, name).arguments(arguments)).await?;
    }
    let shown = command(&world, "run").environment("MONGODB_URI", format!("mongodb://ann:{MONGODB_PASSWORD}"));
    search.look_at_command("run with a bad connection string", &shown).await?;
    let refused = command(&world, "run").environment("NATS_URL", format!("{nats},other:{NATS_PASSWORD}@a"));
    search.look_at_command("run with bad addresses", &refused).await?;
    let not_a_file = command(&world, "run").arguments(["--nats-nkey", "seed"]).environment("NATS_NKEY", NATS_PASSWORD);
    search.look_at_command("run with a secret in place of a file", &not_a_file).await?;

    // Everything goes on, also after both servers were gone.
    grant(&world, "updateUser", "dbOwner").await?;
    announced(&world, 2).await?;
    world.start_servers_again().await?;
    world.connect_again().await?;
    call_ends(&world, "late").await?;
    announced(&world, 3).await?;
    assert_eq!(run.terminate().await?, Exit::Code(0), "{}", run.logs());

    search.look("the log", &run.logs());
    search.look_in_directory(&traces)?;
    look_at_dead_letters(&mut search, &world).await?;
    assert!(
        search.found.is_empty(),
        "{} in {} places:\n{}",
        search.found.len(),
        search.places,
        search.found.join("\n")
    );
    Ok(())
}

async fn look_at_dead_letters(search: &mut Search, world: &TestWorld) -> Outcome {
    let stream = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?;
    let before = search.places;
    let mut from = 1;
    while let Ok(letter) = stream.get_first_raw_message_by_subject(DEAD_LETTER_SUBJECT, from).await {
        from = letter.sequence + 1;
        search.look(&format!("dead letter {}", letter.sequence), &format!("{:?}", letter.headers));
    }
    assert!(search.places > before, "there is no dead letter to look at");
    Ok(())
}
