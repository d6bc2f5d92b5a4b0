//! Connections that fail, change or are not safe: what the processor does, and what it says.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use mongodb::bson::doc;
use serde_json::Value;
use tokio::time::Instant;
use transcript_core::ids::Session;
use transcript_tests::{
    certificates::{Authority, Valid},
    operator::{Operator, User},
    process_guard::Exit,
    processor::ProcessorCommand,
    servers::{Login, Mongod, NatsOptions, NatsServer},
    wait::wait_until,
    world::{StoreOf, TestWorld},
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(90);
const LOCALHOST: &str = "127.0.0.1";
const SHORT: [&str; 6] = ["--quiet-period", "100ms", "--ack-wait", "3s", "--grace", "2s"];
/// What belongs to the parts that these programs are made of.
const INTERNALS: [&str; 7] =
    ["InvalidContentType", "UnknownIssuer", "Topology", "ServerSelection", "RetryState", "IO error", "Kind {"];

async fn one_call_is_done(world: &TestWorld, session: &str) -> Outcome {
    let before = world.notifications().await?.len();
    world.publish_session_end(&Session::new("conversation", session)?, 0).await?;
    wait_until("the call is announced", LONG, || async {
        match world.notifications().await {
            Ok(announced) if announced.len() > before => Ok(()),
            Ok(announced) => Err(format!("{} are announced", announced.len())),
            Err(error) => Err(error.to_string()),
        }
    })
    .await?;
    Ok(())
}

fn with_password(password: &str) -> NatsOptions {
    let login = Login { user: "ann".to_owned(), password: password.to_owned() };
    let config = format!("authorization {{ user: ann, password: {password:?} }}\n");
    NatsOptions { config, login: Some(login), authority: None }
}

/// A listener that acts as a NATS server without TLS, and keeps what clients send to it.
struct PlainListener {
    address: SocketAddr,
    received: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl PlainListener {
    fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind((LOCALHOST, 0))?;
        let (address, received) = (listener.local_addr()?, Arc::new(Mutex::new(vec![])));
        let kept = Arc::clone(&received);
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(mut client) = client else { return };
                let info =
                    r#"INFO {"server_id":"x","version":"2.15.1","proto":1,"headers":true,"max_payload":1048576}"#;
                client.set_read_timeout(Some(Duration::from_secs(2))).ok();
                client.write_all(format!("{info}\r\n").as_bytes()).ok();
                let mut bytes = [0; 4096];
                let read = client.read(&mut bytes).unwrap_or(0);
                kept.lock().expect("nobody panics while it is locked").push(bytes[..read].to_vec());
                client.write_all(b"-ERR 'Unknown Protocol Operation'\r\n").ok();
            }
        });
        Ok(Self { address, received })
    }

    fn received(&self) -> Vec<Vec<u8>> {
        self.received
            .lock()
            .expect("nobody panics while it is locked")
            .iter()
            .filter(|bytes| !bytes.is_empty())
            .cloned()
            .collect()
    }
}

/// Somebody between client and server, who advertises a server of his own, and cuts the connection when told.
struct Between {
    address: SocketAddr,
    cut: Arc<Mutex<(bool, Vec<TcpStream>)>>,
}

impl Between {
    fn start(server: SocketAddr, advertised: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind((LOCALHOST, 0))?;
        let (address, cut) = (listener.local_addr()?, Arc::new(Mutex::new((false, vec![]))));
        let all = Arc::clone(&cut);
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let mut all = all.lock().expect("nobody panics while it is locked");
                if !all.0
                    && let Ok(streams) = between(client, server, advertised)
                {
                    all.1.extend(streams);
                }
            }
        });
        Ok(Self { address, cut })
    }

    fn cut(&self) {
        let mut cut = self.cut.lock().expect("nobody panics while it is locked");
        cut.0 = true;
        for stream in cut.1.drain(..) {
            stream.shutdown(std::net::Shutdown::Both).ok();
        }
    }
}

fn between(mut client: TcpStream, server: SocketAddr, advertised: SocketAddr) -> std::io::Result<[TcpStream; 2]> {
    let mut server = TcpStream::connect(server)?;
    let mut line = vec![];
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        server.read_exact(&mut byte)?;
        line.extend(byte);
    }
    let mut info: Value = serde_json::from_slice(&line[b"INFO ".len()..])?;
    info["connect_urls"] = Value::from(vec![advertised.to_string()]);
    client.write_all(format!("INFO {info}\r\n").as_bytes())?;
    for (mut from, mut to) in [(client.try_clone()?, server.try_clone()?), (server.try_clone()?, client.try_clone()?)] {
        thread::spawn(move || std::io::copy(&mut from, &mut to));
    }
    Ok([client, server])
}

#[tokio::test(flavor = "multi_thread")]
async fn no_advertised_server_gets_a_password_without_tls() -> Outcome {
    let authority = Authority::new();
    let certificate = authority.sign(LOCALHOST, Valid::Now)?;
    let mut options = with_password("first-Zq9x7");
    options.config.push_str(&certificate.nats_config());
    options.authority = Some(authority.certificate());
    let world = TestWorld::start_as(StoreOf::AllWorlds, options).await?;
    let plain = PlainListener::start()?;
    let between = Between::start(world.nats.process().address(), plain.address)?;
    // Only the address says that it is to be TLS: the authority is one of the system's.
    let processor = world
        .processor("run")
        .environment("NATS_URL", format!("tls://ann:first-Zq9x7@{}", between.address))
        .environment("SSL_CERT_FILE", authority.certificate())
        .arguments(SHORT)
        .start_ready(LONG)
        .await?;
    between.cut();
    wait_until("the advertised server is tried", LONG, || async {
        if plain.received().len() >= 2 { Ok(()) } else { Err(processor.logs()) }
    })
    .await?;
    for bytes in plain.received() {
        // A TLS record of a handshake.
        assert_eq!(bytes[0], 0x16, "{}", String::from_utf8_lossy(&bytes));
        assert!(!String::from_utf8_lossy(&bytes).contains("Zq9x7"));
    }
    processor.logged("TLS was required, but the server does not speak TLS there", LONG).await?;
    let connected = processor.logs().matches("NATS connected").count();
    assert_eq!(connected, 1, "{}", processor.logs());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_is_replaced_on_disk_is_used() -> Outcome {
    let mut world = TestWorld::start_as(StoreOf::AllWorlds, with_password("first")).await?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("password");
    fs::write(&file, "first\n")?;
    let processor = world
        .processor("run")
        .arguments(SHORT)
        .arguments(["--nats-user", "ann", "--nats-password-file"])
        .argument(&file)
        .start_ready(LONG)
        .await?;
    world.nats.reconfigure(with_password("second")).await?;
    processor.logged("cannot connect to NATS again: the server refused the login", LONG).await?;
    fs::write(&file, "second")?;
    world.connect_again().await?;
    one_call_is_done(&world, "after").await?;
    assert_eq!(processor.terminate().await?, Exit::Code(0), "{}", processor.logs());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_nkey_that_is_replaced_on_disk_is_used() -> Outcome {
    let [first, second] = [nkeys::KeyPair::new_user(), nkeys::KeyPair::new_user()];
    // The test itself comes in with a password.
    let options = |key: &nkeys::KeyPair| {
        let users = format!("{{ user: ann, password: harness }}, {{ nkey: {} }}", key.public_key());
        let login = Login { user: "ann".to_owned(), password: "harness".to_owned() };
        NatsOptions { config: format!("authorization {{ users: [{users}] }}\n"), login: Some(login), authority: None }
    };
    let mut world = TestWorld::start_as(StoreOf::AllWorlds, options(&first)).await?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("nkey");
    fs::write(&file, first.seed()?)?;
    let processor =
        world.processor("run").arguments(SHORT).argument("--nats-nkey").argument(&file).start_ready(LONG).await?;
    world.nats.reconfigure(options(&second)).await?;
    processor.logged("cannot connect to NATS again: the server refused the login", LONG).await?;
    fs::write(&file, second.seed()?)?;
    one_call_is_done(&world, "after").await?;
    assert_eq!(processor.terminate().await?, Exit::Code(0), "{}", processor.logs());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_jwt_that_is_replaced_on_disk_is_used() -> Outcome {
    let operator = Operator::default();
    let [harness, first, second] = [operator.user()?, operator.user()?, operator.user()?];
    let options = |revoked: &[&User]| {
        Ok::<_, Box<dyn std::error::Error>>(NatsOptions { config: operator.config(revoked)?, ..NatsOptions::default() })
    };
    let nats = NatsServer::start_with_credentials(options(&[])?, &harness.credentials).await?;
    let mut world = TestWorld::on(nats).await?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("user.creds");
    fs::write(&file, &first.credentials)?;
    let processor =
        world.processor("run").arguments(SHORT).argument("--nats-creds").argument(&file).start_ready(LONG).await?;
    one_call_is_done(&world, "before").await?;
    // A server that keeps accounts in memory takes their JWTs when it starts.
    world.nats.reconfigure(options(&[&first])?).await?;
    world.nats.start_again().await?;
    processor.logged("cannot connect to NATS again: the server refused the login", LONG).await?;
    fs::write(&file, &second.credentials)?;
    world.connect_again().await?;
    one_call_is_done(&world, "after").await?;
    assert_eq!(processor.terminate().await?, Exit::Code(0), "{}", processor.logs());
    let seeds =
        [&first, &second].map(|user| user.credentials.lines().find(|line| line.starts_with("SU")).unwrap_or("SU"));
    assert!(!seeds.iter().any(|seed| processor.logs().contains(seed)), "{}", processor.logs());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_nats_goes_on_refusing_ends_the_process() -> Outcome {
    let mut world = TestWorld::start_as(StoreOf::AllWorlds, with_password("first")).await?;
    let processor = world
        .processor("run")
        .arguments(SHORT)
        .arguments(["--nats-user", "ann", "--nats-password", "first", "--login-timeout", "2s"])
        .start_ready(LONG)
        .await?;
    world.nats.reconfigure(with_password("second")).await?;
    assert_eq!(processor.wait(LONG).await?, Exit::Code(1));
    let logs = processor.logs();
    assert!(logs.contains("error: NATS has refused the login for 2s (--login-timeout): "), "{logs}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_mongodb_goes_on_refusing_ends_the_process() -> Outcome {
    let mut world = TestWorld::start_with_own_mongod().await?;
    let admin = world.database().client().database("admin");
    let user = |command: &str, password: &str| doc! { command: "ann", "pwd": password };
    let mut create = user("createUser", "first");
    create.insert("roles", vec!["root"]);
    admin.run_command(create).await?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("password");
    fs::write(&file, "first\n")?;
    let uri = world.mongodb_uri().replacen("://", "://ann@", 1);
    let processor = world
        .processor("run")
        .environment("MONGODB_URI", uri)
        .arguments(SHORT)
        .arguments(["--login-timeout", "2s", "--mongodb-password-file"])
        .argument(&file)
        .start_ready(LONG)
        .await?;
    admin.run_command(user("updateUser", "second")).await?;
    // Its connections are let in already; new ones are not.
    world.mongod().start_again().await?;
    world.publish_session_end(&Session::new("conversation", "session")?, 0).await?;
    assert_eq!(processor.wait(LONG).await?, Exit::Code(1));
    let logs = processor.logs();
    assert!(logs.contains("error: MongoDB has refused the login for 2s (--login-timeout): "), "{logs}");
    Ok(())
}

/// The processor cannot start; it says why in one line, and does not try for as long as `--connect-timeout` says.
async fn refused_at_once(command: ProcessorCommand, sentence: &str) -> Outcome {
    let begun = Instant::now();
    let processor = command.arguments(["--connect-timeout", "1h"]).start().await?;
    let exit = processor.wait(LONG).await?;
    let logs = processor.logs();
    assert!(matches!(exit, Exit::Code(1 | 2)), "{exit}: {logs}");
    assert!(logs.contains(sentence), "{sentence:?} is not in:\n{logs}");
    for internal in INTERNALS {
        assert!(!logs.contains(internal), "{internal:?} is in:\n{logs}");
    }
    let errors = logs.lines().filter(|line| line.starts_with("error: ")).count();
    assert_eq!(errors, 1, "{logs}");
    assert!(begun.elapsed() < LONG, "it tried for {:?}", begun.elapsed());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_tls_to_nats_is_said_at_once() -> Outcome {
    let (authority, other) = (Authority::new(), Authority::new());
    for (host, valid, trusted, sentence) in [
        (LOCALHOST, Valid::Now, &other, "signed by no authority that is trusted"),
        ("elsewhere.example", Valid::Now, &authority, "the server's certificate is for another name"),
        (LOCALHOST, Valid::NoLonger, &authority, "the server's certificate has expired"),
        (LOCALHOST, Valid::NotYet, &authority, "the server's certificate is not valid yet"),
    ] {
        // The harness, which looks whether the server is ready, needs a good certificate: the bad one comes after that.
        let good = authority.sign(LOCALHOST, Valid::Now)?;
        let served = authority.sign("localhost", Valid::Now)?;
        fs::copy(&good.certificate, &served.certificate)?;
        fs::copy(&good.key, &served.key)?;
        let options = NatsOptions {
            config: served.nats_config(),
            authority: Some(authority.certificate()),
            ..NatsOptions::default()
        };
        let world = TestWorld::start_as(StoreOf::AllWorlds, options).await?;
        let bad = authority.sign(host, valid)?;
        fs::copy(&bad.certificate, &served.certificate)?;
        fs::copy(&bad.key, &served.key)?;
        world.nats.read_files_again().await?;
        let run = world.processor("run").argument("--nats-tls-ca").argument(trusted.certificate());
        refused_at_once(run, sentence).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_to_a_server_without_and_a_bad_file_are_said_at_once() -> Outcome {
    let world = TestWorld::start().await?;
    let authority = Authority::new();
    let ca = |run: ProcessorCommand| run.argument("--nats-tls-ca").argument(authority.certificate());
    let sentence = "TLS was required, but the server does not speak TLS there";
    refused_at_once(ca(world.processor("run")), sentence).await?;
    refused_at_once(ca(world.processor("run")).argument("--nats-tls-first"), sentence).await?;
    let tls = format!("tls://{}", world.nats.process().address());
    refused_at_once(ca(world.processor("run")).environment("NATS_URL", tls), sentence).await?;
    let empty = tempfile::NamedTempFile::new()?;
    let run = world.processor("run").argument("--nats-tls-ca").argument(empty.path());
    refused_at_once(run, "holds no certificate in PEM").await?;
    let missing = world.processor("run").arguments(["--nats-nkey", "/etc/no/such/nkey"]);
    refused_at_once(missing, "cannot read --nats-nkey /etc/no/such/nkey: No such file").await?;
    let seed = nkeys::KeyPair::new_user().seed()?;
    let processor = world.processor("run").argument("--nats-nkey").argument(&seed).start().await?;
    assert_eq!(processor.wait(LONG).await?, Exit::Code(1));
    let logs = processor.logs();
    assert!(!logs.contains(&seed) && logs.contains("--nats-nkey [hidden]"), "{logs}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_mongodb_is_said_at_once() -> Outcome {
    let world = TestWorld::start().await?;
    let address = world.mongod_address();
    let with = |uri: String| world.processor("run").environment("MONGODB_URI", uri);
    let refused = "the server refused the login";
    refused_at_once(with(format!("mongodb://ann:secret@{address}")), refused).await?;
    for (uri, sentence) in [
        (format!("mongodb://ann:se%cret@{address}"), "a % is written as %25"),
        (format!("mongodb://{address}/?connectTimeoutMS=soon"), "its option connectTimeoutMS has a value"),
        (format!("mongodb://{address}/?authMechanism=GUESS"), "its authMechanism is unknown"),
        (format!("mongodb://{address}/?conectTimeoutMS=1"), "its option conectTimeoutMS is unknown"),
    ] {
        let processor = with(uri).start().await?;
        assert_eq!(processor.wait(LONG).await?, Exit::Code(2));
        let logs = processor.logs();
        assert!(logs.contains(sentence), "{logs}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_tls_to_mongodb_is_said_at_once() -> Outcome {
    let (authority, other) = (Authority::new(), Authority::new());
    let plain = TestWorld::start().await?;
    let run = |address: SocketAddr, options: &str| {
        plain.processor("run").environment("MONGODB_URI", format!("mongodb://{address}/?replicaSet=rs&{options}"))
    };
    let trusting = |authority: &Authority| format!("tls=true&tlsCAFile={}", authority.certificate().display());
    for (host, trusted, sentence) in [
        (LOCALHOST, &other, "signed by no authority that is trusted"),
        ("elsewhere.example", &authority, "the server's certificate is for another name"),
    ] {
        let mongod = Mongod::with_tls(&authority.sign(host, Valid::Now)?).await?;
        refused_at_once(run(mongod.process().address(), &trusting(trusted)), sentence).await?;
    }
    let missing = run(plain.mongod_address(), "tls=true&tlsCAFile=/no/such/file");
    refused_at_once(missing, "a file that they name cannot be read").await?;

    // Whether it is the wrong server, or will speak TLS once it is up, nobody knows: it is tried for as long as it may be.
    let processor =
        run(plain.mongod_address(), &trusting(&authority)).arguments(["--connect-timeout", "2s"]).start().await?;
    assert_eq!(processor.wait(LONG).await?, Exit::Code(1));
    let logs = processor.logs();
    assert!(
        logs.contains("error: cannot connect to MongoDB") && logs.contains("where it has none, it is left out"),
        "{logs}"
    );
    for internal in INTERNALS {
        assert!(!logs.contains(internal), "{internal:?} is in:\n{logs}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn why_nats_cannot_be_reached_again_is_said_once() -> Outcome {
    let mut world = TestWorld::start().await?;
    let processor = world.processor("run").arguments(SHORT).start_ready(LONG).await?;
    world.nats.process().kill().await?;
    processor.logged("cannot connect to NATS again: nothing listens there", LONG).await?;
    // Until the server is there again, it is tried again and again: the pause before the tenth attempt is half a second.
    world.nats.start_again().await?;
    wait_until("it is connected again", LONG, || async {
        if processor.logs().matches("NATS connected").count() == 2 { Ok(()) } else { Err(processor.logs()) }
    })
    .await?;
    let logs = processor.logs();
    assert_eq!(logs.matches("cannot connect to NATS again").count(), 1, "{logs}");
    for internal in INTERNALS {
        assert!(!logs.contains(internal), "{internal:?} is in:\n{logs}");
    }
    Ok(())
}
