//! The README and the manual: every command in them runs, every link leads somewhere, and no line is too long to read.

use std::{
    fs,
    os::unix::fs::symlink,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use clap::Arg;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use transcript_core::ids::Session;
use transcript_processor::cli::definition;
use transcript_tests::{
    by_hand,
    calls::Call,
    cargo::{self, Version},
    wait::wait_until,
    world::TestWorld,
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(90);
const PROGRAM: &str = "transcript-processor ";
const README: &str = "README.md";
const MANUAL: &str = "shell-tokio/README.md";
/// What a line has at most, in characters.
const COLUMNS: usize = 120;

fn read(document: &str) -> String {
    fs::read_to_string(cargo::workspace().join(document)).expect("the document is there")
}

/// The lines of all blocks of a language.
fn blocks(document: &str, language: &str) -> Vec<String> {
    let begin = format!("```{language}");
    let mut lines = vec![];
    let mut is_inside = false;
    for line in document.lines() {
        match line {
            line if line == begin => is_inside = true,
            "```" => is_inside = false,
            line if is_inside => lines.push(line.to_owned()),
            _ => {}
        }
    }
    lines
}

/// The commands of a document's blocks, and those of the program within its text, in their order, without comments.
fn commands(document: &str) -> Vec<String> {
    let in_blocks = blocks(document, "sh");
    let in_blocks = in_blocks.iter().map(|line| line.split(" #").next().unwrap_or_default().trim());
    let text = document.lines().filter(|line| line.starts_with('|'));
    let in_tables = text.flat_map(|line| line.split('`').skip(1).step_by(2)).filter(|code| code.starts_with(PROGRAM));
    let all = in_blocks.chain(in_tables).filter(|line| !line.is_empty() && !line.starts_with('#'));
    all.map(str::to_owned).collect()
}

#[test]
fn no_line_is_too_long() {
    let too_long = |document: &str, is_asked: &dyn Fn(&str) -> bool| {
        let text = read(document);
        let long = text.lines().filter(|line| line.chars().count() > COLUMNS && is_asked(line));
        assert_eq!(long.collect::<Vec<_>>(), [] as [&str; 0], "{document}");
    };
    too_long(README, &|_| true);
    // A row of a table is one line.
    too_long(MANUAL, &|line| !line.starts_with('|'));
}

/// What a heading is called in a link.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[test]
fn every_link_leads_somewhere() {
    for document in [README, MANUAL] {
        let text = read(document);
        let here = cargo::workspace().join(document);
        let links = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link);
        let mut count = 0;
        for link in links.filter(|link| !link.starts_with("http")) {
            count += 1;
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target =
                if path.is_empty() { here.clone() } else { here.parent().expect("it is in a directory").join(path) };
            assert!(target.exists(), "{document}: {link}");
            let is_heading = |line: &str| line.starts_with('#') && anchor(line) == heading;
            let has_heading = || fs::read_to_string(&target).is_ok_and(|text| text.lines().any(is_heading));
            assert!(heading.is_empty() || has_heading(), "{document}: {link}");
        }
        assert!(count > 5, "the links of {document} were found");
    }
}

/// The processor of a document, in a directory of its own, on the world's servers.
struct Reader<'a> {
    world: &'a TestWorld,
    program: PathBuf,
    directory: tempfile::TempDir,
    running: Option<KilledAtTheEnd>,
}

struct KilledAtTheEnd(Child);

impl Drop for KilledAtTheEnd {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Reader<'_> {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).current_dir(self.directory.path()).stdin(Stdio::null());
        command.env("NATS_URL", self.world.nats.url()).env("MONGODB_URI", self.world.mongodb_uri());
        command.env("MONGODB_DATABASE", self.world.database().name());
        command
    }

    /// A service that records, in the place of the one before it.
    async fn run(&mut self, arguments: &[&str]) -> Outcome {
        self.stop().await?;
        let log = self.directory.path().join("log");
        let mut command = self.command(arguments);
        command.args(["--record", "traces", "--quiet-period", "100ms"]).stderr(fs::File::create(&log)?);
        self.running = Some(KilledAtTheEnd(command.spawn()?));
        wait_until("the processor is ready", LONG, || async {
            let log = fs::read_to_string(&log).unwrap_or_default();
            if log.contains("ready name=") { Ok(()) } else { Err(log) }
        })
        .await?;
        Ok(())
    }

    async fn stop(&mut self) -> Outcome {
        let Some(mut running) = self.running.take() else { return Ok(()) };
        kill(Pid::from_raw(i32::try_from(running.0.id())?), Signal::SIGTERM)?;
        wait_until("the processor has drained", LONG, || {
            let ended = running.0.try_wait().ok().flatten();
            async move { ended.filter(std::process::ExitStatus::success).map(|_| ()).ok_or(format!("{ended:?}")) }
        })
        .await?;
        Ok(())
    }

    async fn execute(&mut self, line: &str) -> Outcome {
        let line = if line.contains("SEQ") {
            let call = Call::of("room", "given-up", 0)?;
            let end = serde_json::json!({ "conversationId": "room", "sessionId": "given-up", "publishedSegments": 0 });
            self.world.insert_segments(&call.segments).await?;
            let place = by_hand::dead_letter(self.world, 1, "it was given up", end.to_string().into_bytes()).await?;
            line.replace("SEQ", &place.to_string())
        } else {
            line.to_owned()
        };
        let arguments: Vec<&str> = line.split_whitespace().collect();
        match arguments.first() {
            Some(&"run") => self.run(&arguments).await,
            // It is there a little after the call was played.
            Some(&"show") => {
                let shown = || async {
                    let output = self.command(&arguments).output().map_err(|error| error.to_string())?;
                    if output.status.success() { Ok(()) } else { Err(told(&output)) }
                };
                wait_until(line.clone(), LONG, shown).await?;
                Ok(())
            }
            // What is not one to one is found, and that is no failure of the document.
            Some(&"audit") => self.ends(&arguments, &[0, 1]),
            _ => self.ends(&arguments, &[0]),
        }
    }

    fn ends(&self, arguments: &[&str], codes: &[i32]) -> Outcome {
        let output = self.command(arguments).output()?;
        let code = output.status.code();
        assert!(code.is_some_and(|code| codes.contains(&code)), "{arguments:?}: {code:?}: {}", told(&output));
        Ok(())
    }
}

fn told(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn is_variable(name: &str) -> bool {
    fn has(command: &clap::Command, name: &str) -> bool {
        command.get_arguments().filter_map(Arg::get_env).any(|known| known == name)
            || command.get_subcommands().any(|inner| has(inner, name))
    }
    has(&definition(), name)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_runs() -> Outcome {
    let world = TestWorld::start().await?;
    let program = cargo::processor(Version::Product).await?;
    let mut reader = Reader { world: &world, program, directory: tempfile::tempdir()?, running: None };
    symlink(cargo::workspace().join("fixtures"), reader.directory.path().join("fixtures"))?;
    let config = fs::read_to_string(cargo::workspace().join(".cargo/config.toml"))?;
    let mut executed = 0;
    for line in commands(&read(README)).into_iter().chain(commands(&read(MANUAL))) {
        if let Some(line) = line.strip_prefix(PROGRAM) {
            reader.execute(line).await.map_err(|error| format!("{line}: {error}"))?;
            executed += 1;
        } else if let Some(setting) = line.strip_prefix("export ") {
            assert!(setting.split_once('=').is_some_and(|(name, _)| is_variable(name)), "{line}");
        } else if let Some(line) = line.strip_prefix("cargo ") {
            // These take minutes: the gate runs the tests, and each alias is a program of this workspace.
            let alias = line.split_whitespace().next().unwrap_or_default();
            let is_known = ["test --workspace", "install --locked --path shell-tokio"].contains(&line);
            assert!(is_known || config.contains(&format!("\n{alias} = ")), "cargo {line}");
        } else {
            // The simulator's own tests run it.
            assert!(line.starts_with("transcript-sim crash-everywhere "), "{line}");
        }
    }
    assert!(executed > 20, "the commands were found");
    reader.stop().await
}

/// What the program prints, given this script.
fn printed(program: &str, option: &str, script: &str) -> Result<String, Box<dyn std::error::Error>> {
    let output = Command::new(program).args([option, script]).output()?;
    assert!(output.status.success(), "{script}: {}", told(&output));
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn the_key_of_a_call_is_the_same_in_every_language() -> Outcome {
    let calls = [("olive-oil", "2024-11-05"), ("a:b%", "c:"), (" a ", " b "), ("é\u{1f}\n", "🦀\u{7f}")];
    let mut keys = String::new();
    let mut asked = vec![];
    for (conversation, session) in calls {
        keys.push_str(Session::new(conversation, session)?.key().as_str());
        keys.push('\n');
        asked.push(format!("key({}, {})", serde_json::to_string(conversation)?, serde_json::to_string(session)?));
    }
    let readme = read(README);
    let is_there = |program: &str| Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok();
    for (program, option, language, print) in
        [("python3", "-c", "python", "print"), ("node", "-e", "js", "console.log")]
    {
        let code = blocks(&readme, language);
        assert!(!code.is_empty(), "the README has {language}");
        if !is_there(program) {
            eprintln!("not tested: {program} is not there");
            continue;
        }
        let calls: Vec<_> = asked.iter().map(|call| format!("{print}({call})")).collect();
        assert_eq!(printed(program, option, &[code, calls].concat().join("\n"))?, keys, "{language}");
    }
    Ok(())
}
