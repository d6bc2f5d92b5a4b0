//! Signals, and a stderr that nobody reads: the processor ends when it is told to, and works on whatever becomes of its log.

use std::{
    fs, io,
    process::{Child, Command, Stdio},
    time::Duration,
};

use nix::{
    fcntl::{FcntlArg, fcntl},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use transcript_core::{contract::SUMMARIES_COLLECTION, ids::Session};
use transcript_tests::{
    cargo::{self, Version},
    process_guard::Exit,
    processor::ProcessorCommand,
    proxy::{MongoProxy, MongoTraffic},
    wait::wait_until,
    world::TestWorld,
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(90);
const SHORT: [&str; 4] = ["--quiet-period", "100ms", "--ack-wait", "3s"];
/// Nothing listens there.
const NOWHERE: &str = "127.0.0.1:1";

fn send(signal: Signal, pid: u32) -> Outcome {
    Ok(kill(Pid::from_raw(i32::try_from(pid)?), signal)?)
}

/// A processor whose servers are not there.
fn unreachable(subcommand: &str) -> ProcessorCommand {
    ProcessorCommand::new(subcommand)
        .environment("NATS_URL", format!("nats://{NOWHERE}"))
        .environment("MONGODB_URI", format!("mongodb://{NOWHERE}"))
        .arguments(["--connect-timeout", "1h"])
}

/// Waits until the process handles the signals: as process 1 it would otherwise not get them at all.
async fn handles_signals(pid: u32) -> Outcome {
    wait_until("handlers are installed", LONG, || async {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).map_err(|error| error.to_string())?;
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or_default().trim().to_owned();
        let caught = u64::from_str_radix(&mask, 16).map_err(|error| error.to_string())?;
        let all = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];
        if all.iter().all(|signal| caught & (1 << (*signal as i32 - 1)) != 0) { Ok(()) } else { Err(mask) }
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn it_can_be_ended_before_it_has_reached_a_server() -> Outcome {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let run = unreachable("run").start().await?;
        handles_signals(run.pid()).await?;
        send(signal, run.pid())?;
        assert_eq!(run.wait(LONG).await?, Exit::Code(0), "{signal}: {}", run.logs());
        assert!(run.logs().contains("stopped before it had begun"), "{}", run.logs());
        let setup = unreachable("setup").start().await?;
        handles_signals(setup.pid()).await?;
        send(signal, setup.pid())?;
        assert_eq!(setup.wait(LONG).await?, Exit::Code(128 + signal as i32), "{}", setup.logs());
    }
    Ok(())
}

/// Starts the processor as process 1 of a namespace of its own, as in a container. Its pid here, and who waits for it; `None`
/// where this machine gives users no namespaces.
async fn as_process_1(subcommand: &str) -> Result<Option<(u32, KilledAtTheEnd)>, Box<dyn std::error::Error>> {
    const NAMESPACE: [&str; 5] = ["--user", "--map-root-user", "--pid", "--fork", "--kill-child"];
    let is_allowed = Command::new("unshare").args(NAMESPACE).arg("true").stderr(Stdio::null()).status();
    if !is_allowed.is_ok_and(|status| status.success()) {
        return Ok(None);
    }
    let namespace = KilledAtTheEnd(
        Command::new("unshare")
            .args(NAMESPACE)
            .arg(cargo::processor(Version::default()).await?)
            .args([subcommand, "--connect-timeout", "1h"])
            .env("NATS_URL", format!("nats://{NOWHERE}"))
            .env("MONGODB_URI", format!("mongodb://{NOWHERE}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?,
    );
    let parent = namespace.0.id();
    let pid = wait_until("the processor is process 1", LONG, || async {
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        let pid: u32 = children.trim().parse().map_err(|_| format!("the children are {children:?}"))?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).map_err(|error| error.to_string())?;
        let inner = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
        if inner.split_whitespace().last() == Some("1") { Ok(pid) } else { Err(status) }
    })
    .await?;
    Ok(Some((pid, namespace)))
}

#[tokio::test(flavor = "multi_thread")]
async fn as_process_1_of_a_container_it_can_be_ended_before_it_has_reached_a_server() -> Outcome {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        for (subcommand, code) in [("run", 0), ("setup", 128 + signal as i32)] {
            let Some((pid, mut namespace)) = as_process_1(subcommand).await? else {
                eprintln!("not tested: this machine gives users no namespace of processes (unshare --user --pid)");
                return Ok(());
            };
            handles_signals(pid).await?;
            send(signal, pid)?;
            let mut ended = None;
            wait_until("process 1 ends", LONG, || {
                ended = namespace.0.try_wait().ok().flatten();
                let now = ended;
                async move { now.map(|_| ()).ok_or("it runs") }
            })
            .await?;
            assert_eq!(ended.and_then(|status| status.code()), Some(code), "{subcommand}: {signal}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn sighup_drains_and_nohup_prevents_that() -> Outcome {
    let world = TestWorld::start().await?;
    let processor = world.processor("run").arguments(SHORT).start_ready(LONG).await?;
    send(Signal::SIGHUP, processor.pid())?;
    assert_eq!(processor.wait(LONG).await?, Exit::Code(0), "{}", processor.logs());
    assert!(processor.logs().contains("drained"), "{}", processor.logs());

    let log = tempfile::NamedTempFile::new()?;
    let under_nohup = KilledAtTheEnd(
        Command::new("nohup")
            .arg(cargo::processor(Version::default()).await?)
            .args(["run", "--connect-timeout", "1h"])
            .env("NATS_URL", format!("nats://{NOWHERE}"))
            .env("MONGODB_URI", format!("mongodb://{NOWHERE}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.reopen()?)
            .spawn()?,
    );
    wait_until("it tries to connect", LONG, || async {
        let log = fs::read_to_string(log.path()).unwrap_or_default();
        if log.contains("cannot reach MongoDB") { Ok(()) } else { Err(log) }
    })
    .await?;
    send(Signal::SIGHUP, under_nohup.0.id())?;
    send(Signal::SIGTERM, under_nohup.0.id())?;
    wait_until("SIGTERM ends it", LONG, || async {
        let log = fs::read_to_string(log.path()).unwrap_or_default();
        if log.contains("stopped before it had begun") { Ok(()) } else { Err(log) }
    })
    .await?;
    let log = fs::read_to_string(log.path())?;
    assert!(log.contains("signal=\"SIGTERM\"") && !log.contains("SIGHUP"), "{log}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_it_at_once() -> Outcome {
    let world = TestWorld::start().await?;
    let proxy = MongoProxy::start(world.mongod_address()).await?;
    let processor = world
        .processor("run")
        .environment("MONGODB_URI", proxy.uri())
        .arguments(SHORT)
        .arguments(["--grace", "10m"])
        .start_ready(LONG)
        .await?;
    // The start tries whether it may write.
    let _held = proxy.hold(MongoTraffic::command("update", SUMMARIES_COLLECTION));
    world.publish_session_end(&Session::new("conversation", "session")?, 0).await?;
    proxy.held().await;
    send(Signal::SIGTERM, processor.pid())?;
    processor.logged("draining", LONG).await?;
    assert_eq!(processor.exit(), None);
    send(Signal::SIGINT, processor.pid())?;
    assert_eq!(processor.wait(LONG).await?, Exit::Code(1));
    assert!(processor.logs().contains("stopped at once by a second signal"), "{}", processor.logs());
    Ok(())
}

/// A process of the test's own, because its stderr is something else than a file.
struct KilledAtTheEnd(Child);

impl Drop for KilledAtTheEnd {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The processor with the smallest pipe for its stderr, and the end of the pipe that nobody reads.
async fn with_blocked_stderr(world: &TestWorld, arguments: &[&str]) -> io::Result<(KilledAtTheEnd, io::PipeReader)> {
    let (reader, writer) = io::pipe()?;
    fcntl(&writer, FcntlArg::F_SETPIPE_SZ(4096))?;
    let program = cargo::processor(Version::default()).await.map_err(io::Error::other)?;
    let child = Command::new(program)
        .arg("run")
        .args(SHORT)
        .args(["--log", "trace"])
        .args(arguments)
        .env("NATS_URL", world.nats.url())
        .env("MONGODB_URI", world.mongodb_uri())
        .env("MONGODB_DATABASE", world.database().name())
        .stdin(Stdio::null())
        // The same pipe, as in a container: nothing may wait for it either.
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()?;
    Ok((KilledAtTheEnd(child), reader))
}

async fn ended(processor: &mut KilledAtTheEnd) -> Result<Option<i32>, Box<dyn std::error::Error>> {
    let status = wait_until("it ends", LONG, || {
        let status = processor.0.try_wait();
        async { status.map_err(|error| error.to_string())?.ok_or_else(|| "it runs".to_owned()) }
    })
    .await?;
    Ok(status.code())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stderr_that_nobody_reads_stops_neither_calls_nor_signals() -> Outcome {
    const CALLS: usize = 200;
    let world = TestWorld::start().await?;
    let (mut processor, reader) = with_blocked_stderr(&world, &[]).await?;
    wait_until("the streams are there", LONG, || async { world.consumer().await.map(drop) }).await?;
    for call in 0..CALLS {
        world.publish_session_end(&Session::new("conversation", &format!("s{call}"))?, 0).await?;
    }
    wait_until("all calls are announced", LONG, || async {
        match world.notifications().await {
            Ok(announced) if announced.len() == CALLS => Ok(()),
            Ok(announced) => Err(format!("{} are announced", announced.len())),
            Err(error) => Err(error.to_string()),
        }
    })
    .await?;
    let delivered = world.consumer().await?.delivered.consumer_sequence;
    assert_eq!(delivered, u64::try_from(CALLS)?, "no call is delivered twice");
    send(Signal::SIGTERM, processor.0.id())?;
    assert_eq!(ended(&mut processor).await?, Some(0));
    drop(reader);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_it_also_where_nobody_reads_its_stderr() -> Outcome {
    let world = TestWorld::start().await?;
    let proxy = MongoProxy::start(world.mongod_address()).await?;
    let uri = proxy.uri();
    let (mut processor, reader) = with_blocked_stderr(&world, &["--grace", "10m", "--mongodb-uri", &uri]).await?;
    wait_until("the streams are there", LONG, || async { world.consumer().await.map(drop) }).await?;
    // The start tries whether it may write.
    let _held = proxy.hold(MongoTraffic::command("update", SUMMARIES_COLLECTION));
    for call in 0..100 {
        world.publish_session_end(&Session::new("conversation", &format!("s{call}"))?, 0).await?;
    }
    proxy.held().await;
    send(Signal::SIGTERM, processor.0.id())?;
    send(Signal::SIGINT, processor.0.id())?;
    assert_eq!(ended(&mut processor).await?, Some(1));
    drop(reader);
    Ok(())
}
