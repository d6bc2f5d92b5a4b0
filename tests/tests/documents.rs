//! The commands and the programs that the README and the operator's manual show, run as they stand, and the links between
//! documents.

use std::{collections::BTreeSet, env, fs, os::unix::fs::symlink, path::PathBuf, time::Duration};

use tempfile::TempDir;
use tokio::process::Command;
use transcript_core::{contract::TRANSCRIPTION_STREAM, ids::Session};
use transcript_tests::{
    cargo::{self, Version},
    clients::{Client, Language},
    process_guard::Exit,
    processor::ProcessorCommand,
    wait::wait_until,
    world::TestWorld,
};

type TestResult = Result<(), Box<dyn std::error::Error>>;

const README: &str = "README.md";
const MANUAL: &str = "shell-tokio/README.md";
const SOON: Duration = Duration::from_secs(60);
/// What a program writes into a document stands between these lines, as wide as it is.
const MADE: (&str, &str) = ("<!-- cargo crash-table --readme: begin -->", "<!-- cargo crash-table --readme: end -->");

/// Commands that build, or that are the run of tests that this one is in.
const OF_CARGO: [&str; 3] = ["cargo demo", "cargo test --workspace", "cargo install --locked --path shell-tokio"];
/// The service, which the test starts itself, so that it can end it.
const SERVICE: &str = "transcript-processor run";
/// Where a reader says where the servers are; the test's are elsewhere.
const SERVERS: &str = "export NATS_URL=";

#[tokio::test]
async fn each_command_of_the_documents_works() -> TestResult {
    let world = TestWorld::start().await?;
    let place = Place::new().await?;
    let setup = world.processor("setup").run(SOON).await?;
    assert!(setup.contains("stream TRANSCRIPTION: created"), "{setup}");
    let service = place.at(world.processor("run")).argument("--record").argument(place.path("traces")).start().await?;

    let mut seen = BTreeSet::new();
    for command in commands(README)? {
        let known = OF_CARGO.contains(&&*command) || command.starts_with(SERVERS) || command == SERVICE;
        if !known {
            place.run(&world, &command).await?;
        }
        seen.insert(command);
    }
    for command in OF_CARGO.into_iter().chain([SERVICE]) {
        assert!(seen.contains(command), "the README does not show {command:?} any more");
    }
    service.ask_to_end()?;
    assert_eq!(service.wait(SOON).await?, Exit::Code(0), "{}", service.logs());

    let of_manual = commands(MANUAL)?;
    assert!(of_manual.len() >= 10, "the manual's commands are found: {of_manual:?}");
    for command in of_manual {
        place.run(&world, &command).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_python_of_the_readme_publishes_a_call_and_reads_that_it_is_processed() -> TestResult {
    programs_of_the_readme(Language::Python, "```python").await
}

#[tokio::test]
async fn the_javascript_of_the_readme_publishes_a_call_and_reads_that_it_is_processed() -> TestResult {
    programs_of_the_readme(Language::Node, "```js").await
}

#[tokio::test]
async fn the_go_of_the_readme_publishes_a_call_and_reads_that_it_is_processed() -> TestResult {
    programs_of_the_readme(Language::Go, "```go").await
}

async fn programs_of_the_readme(language: Language, fence: &str) -> TestResult {
    let programs = blocks(README, fence)?;
    let [publish, read] = programs.as_slice() else {
        return Err(format!("the README shows other programs: {programs:?}").into());
    };
    let clients = [publish, read].map(|program| Client::of_program(language, program));
    let [Ok(publish), Ok(read)] = clients else {
        eprintln!("skipped: a program in {language:?} cannot run here: {clients:?}");
        return Ok(());
    };
    let world = TestWorld::start().await?;
    world.processor("setup").run(SOON).await?;
    let processor = world.processor("run").arguments(["--quiet-period", "100ms"]).start().await?;
    publish.run_in(world.environment()).await?;
    let told = read.run_in(world.environment()).await?.to_lowercase();
    let session = format!("{language:?}").to_lowercase();
    assert_eq!(told, format!("room-7:{session} 2 true\n"));
    let key = Session::new("room-7", &session)?.key();
    let summary = world.summary(&key).await?.ok_or("the summary is stored before the notification")?;
    assert_eq!((summary.get_i64("segments")?, summary.get_bool("complete")?), (2, true), "{summary}");
    let consumer = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?.consumer_info("my-app").await?;
    assert_eq!((consumer.num_pending, consumer.num_ack_pending), (0, 0), "what was read is acknowledged");
    assert_eq!(processor.terminate().await?, Exit::Code(0));
    Ok(())
}

#[test]
fn links_lead_somewhere() -> TestResult {
    let documents = [README, MANUAL, "core/README.md", "shell-tokio/CHANGELOG.md", "shell-tokio/formats/README.md"];
    for document in documents {
        let path = cargo::workspace().join(document);
        for (number, target) in links(&fs::read_to_string(&path)?) {
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let file = if file.is_empty() { path.clone() } else { path.parent().expect("a folder").join(file) };
            assert!(file.exists(), "{document}:{number}: there is no {}", file.display());
            if !anchor.is_empty() && file.extension().is_some_and(|extension| extension == "md") {
                let anchors = anchors(&fs::read_to_string(&file)?);
                assert!(anchors.contains(anchor), "{document}:{number}: no heading gives #{anchor}: {anchors:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn no_line_is_longer_than_120_columns() -> TestResult {
    for document in [README, MANUAL] {
        let mut is_made = false;
        for (number, line) in (1..).zip(fs::read_to_string(cargo::workspace().join(document))?.lines()) {
            is_made = (is_made || line == MADE.0) && line != MADE.1;
            // A row of a table is one line, however much it says; the README's are short all the same.
            let is_row = document == MANUAL && line.starts_with("| ");
            assert!(is_made || is_row || line.chars().count() <= 120, "{document}:{number}: {line}");
        }
        assert!(!is_made, "{document}: what a program writes has an end");
    }
    Ok(())
}

/// Where a reader stands: a directory with the fixtures in it, and the binaries on the path.
struct Place {
    directory: TempDir,
    search_path: String,
}

impl Place {
    async fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let directory = tempfile::tempdir()?;
        symlink(cargo::workspace().join("fixtures"), directory.path().join("fixtures"))?;
        let simulator = cargo::simulator().await?.ok_or("there is a simulator")?;
        let folders: BTreeSet<PathBuf> = [cargo::processor(Version::Product).await?, simulator]
            .iter()
            .filter_map(|binary| Some(binary.parent()?.to_owned()))
            .collect();
        let given = env::var_os("PATH").unwrap_or_default();
        let search_path = env::join_paths(folders.into_iter().chain(env::split_paths(&given)))?;
        Ok(Self { directory, search_path: search_path.to_string_lossy().into_owned() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The service with a short quiet period, so that the documents' calls are done soon.
    fn at(&self, service: ProcessorCommand) -> ProcessorCommand {
        service.environment("TRANSCRIPT_QUIET_PERIOD", "200ms")
    }

    /// Runs it until it succeeds: a summary that is shown may not be there yet.
    async fn run(&self, world: &TestWorld, command: &str) -> TestResult {
        let look = || async {
            let mut shell = Command::new("bash");
            let shell = shell.args(["-c", command]).current_dir(self.directory.path()).env("PATH", &self.search_path);
            let output = shell.envs(world.environment()).output().await.map_err(|error| error.to_string())?;
            let said = [output.stdout, output.stderr].concat();
            if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&said).into_owned()) }
        };
        if command.starts_with("transcript-processor show") {
            wait_until(format!("`{command}` succeeds"), SOON, look).await?;
        } else {
            look().await.map_err(|said| format!("`{command}` fails: {said}"))?;
        }
        Ok(())
    }
}

/// The lines of a document's blocks of shell commands, without their comments.
fn commands(document: &str) -> Result<Vec<String>, std::io::Error> {
    let blocks = blocks(document, "```sh")?;
    let commands = blocks.iter().flat_map(|block| block.lines()).map(|line| match line.split_once(" # ") {
        Some((command, _)) => command.trim().to_owned(),
        None => line.trim().to_owned(),
    });
    Ok(commands.filter(|command| !command.is_empty()).collect())
}

/// The blocks of a document that begin with this line.
fn blocks(document: &str, fence: &str) -> Result<Vec<String>, std::io::Error> {
    let text = fs::read_to_string(cargo::workspace().join(document))?;
    let mut blocks: Vec<String> = vec![];
    let mut inside = false;
    for line in text.lines() {
        if line.starts_with("```") {
            inside = line == fence;
            blocks.extend(inside.then(String::new));
        } else if let (true, Some(block)) = (inside, blocks.last_mut()) {
            block.push_str(line);
            block.push('\n');
        }
    }
    Ok(blocks)
}

/// The targets of links to other files and places, with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let targets = |line: &str| {
        line.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())).collect::<Vec<_>>()
    };
    let all = (1..).zip(text.lines()).flat_map(|(number, line)| targets(line).into_iter().map(move |it| (number, it)));
    all.filter(|(_, target)| !target.contains("://")).collect()
}

/// The anchors that headings have where the documents are shown: lower case, words joined by `-`, other marks left out.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let kept = heading.trim_start_matches('#').trim().to_lowercase();
        kept.chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect()
    };
    headings.map(anchor).collect()
}
