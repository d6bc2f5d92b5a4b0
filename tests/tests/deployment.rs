//! The ways to run it, `shell-tokio/deploy`: what a service manager is told, and files that name what there is.

use std::{error::Error, fs, io, path::PathBuf, process::Command, time::Duration};

use tokio::{net::UnixDatagram, time::timeout};
use transcript_tests::{
    cargo, process_guard::Exit, processor::ProcessorCommand, transcriber::RunningTranscriber, world::TestWorld,
};

type TestResult = Result<(), Box<dyn Error>>;

const LONG: Duration = Duration::from_secs(60);

fn deploy(file: &str) -> PathBuf {
    cargo::workspace().join("shell-tokio/deploy").join(file)
}

/// What a service manager hears, up to this.
async fn heard(manager: &UnixDatagram, last: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let mut heard = vec![];
    let mut buffer = [0; 1024];
    while heard.last().is_none_or(|it: &String| it != last) {
        let count =
            timeout(LONG, manager.recv(&mut buffer)).await.map_err(|_| format!("no {last} behind {heard:?}"))??;
        heard.push(String::from_utf8_lossy(buffer.get(..count).unwrap_or_default()).trim().to_owned());
    }
    Ok(heard)
}

#[tokio::test]
async fn a_service_manager_hears_that_it_is_ready_that_it_turns_and_that_it_stops() -> TestResult {
    let world = TestWorld::start().await?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("notify");
    let manager = UnixDatagram::bind(&path)?;
    let told = |command: ProcessorCommand| {
        command.environment("NOTIFY_SOCKET", &path).environment("WATCHDOG_USEC", "30000000")
    };

    let processor = told(world.processor("run")).start().await?;
    let mut all = heard(&manager, "WATCHDOG=1").await?;
    processor.ask_to_end()?;
    all.extend(heard(&manager, "STOPPING=1").await?);
    all.dedup();
    assert_eq!(all, ["READY=1", "WATCHDOG=1", "STOPPING=1"], "{}", processor.logs());
    assert_eq!(processor.wait(LONG).await?, Exit::Code(0));

    let transcriber = RunningTranscriber::start(told(world.processor("transcriber"))).await?;
    assert_eq!(heard(&manager, "READY=1").await?, ["READY=1"]);
    assert_eq!(transcriber.process.terminate().await?, Exit::Code(0));
    assert_eq!(heard(&manager, "STOPPING=1").await?, ["STOPPING=1"]);
    Ok(())
}

/// Whether `systemd-analyze` is content; `None` where there is none.
fn systemd_analyze(arguments: &[&str], unit: &PathBuf) -> io::Result<Option<(bool, String)>> {
    match Command::new("systemd-analyze").args(arguments).arg(unit).output() {
        Ok(output) => {
            let said = [output.stdout, output.stderr].concat();
            Ok(Some((output.status.success(), String::from_utf8_lossy(&said).into_owned())))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[test]
fn the_unit_is_exposed_to_little() -> TestResult {
    let directory = tempfile::tempdir()?;
    // The program is not installed where the tests run.
    let unit = directory.path().join("transcript-processor.service");
    let text = fs::read_to_string(deploy("systemd/transcript-processor.service"))?;
    fs::write(&unit, text.replace("/usr/local/bin/transcript-processor", "/bin/true"))?;
    let checks = [&["verify"][..], &["security", "--offline=true", "--threshold=20", "--no-pager"]];
    for arguments in checks {
        match systemd_analyze(arguments, &unit)? {
            Some((is_content, said)) => assert!(is_content, "{arguments:?}: {said}"),
            None => eprintln!("skipped: there is no systemd-analyze"),
        }
    }
    Ok(())
}

#[tokio::test]
async fn every_setting_that_the_files_name_exists() -> TestResult {
    let mut help = String::new();
    for subcommand in ["run", "transcriber"] {
        help += &ProcessorCommand::new(subcommand).argument("--help").run(LONG).await?;
    }
    let mut named = 0;
    for file in [
        "systemd/transcript-processor.service",
        "container/Dockerfile",
        "container/compose.yaml",
        "kubernetes/config.env",
    ] {
        let text = fs::read_to_string(deploy(file))?;
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-'));
        for word in words {
            let is_variable = ["TRANSCRIPT_", "NATS_", "MONGODB_"].iter().any(|prefix| word.starts_with(prefix));
            if is_variable {
                assert!(help.contains(&format!("[env: {word}]")), "{file}: {word}");
                named += 1;
            }
        }
    }
    assert!(named > 15, "settings are found: {named}");
    Ok(())
}

#[tokio::test]
async fn a_process_gets_longer_to_stop_than_it_takes() -> TestResult {
    let help = ProcessorCommand::new("run").argument("--help").run(LONG).await?;
    let (_, of_grace) = help.split_once("--grace <DURATION>").ok_or("run has a grace time")?;
    let seconds = |text: &str, before: &str| -> Option<u64> {
        let (_, rest) = text.split_once(before)?;
        rest.trim_start().split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    let grace = seconds(of_grace, "[default: ").ok_or("it has a default")?;
    let waits = [
        ("systemd/transcript-processor.service", "\nTimeoutStopSec="),
        ("container/compose.yaml", "\n  stop_grace_period:"),
        ("kubernetes/deployment.yaml", "\n      terminationGracePeriodSeconds:"),
    ];
    for (file, before) in waits {
        let wait = seconds(&fs::read_to_string(deploy(file))?, before);
        assert!(wait.is_some_and(|wait| wait > grace), "{file}: {wait:?} s, and it takes up to {grace} s");
    }
    Ok(())
}
