//! Traces that the real binary records on real servers: they replay, whatever became of the process, and hold no word.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use transcript_tests::{
    calls::{Call, fixture},
    process_guard::Exit,
    processor::ProcessorCommand,
    wait::wait_until,
    world::TestWorld,
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(90);
const CALLS: [&str; 3] = ["olive-oil", "festival-lineup", "nobody-spoke"];

/// Waits until so many calls are announced and every message is acknowledged.
async fn all_done(world: &TestWorld, notifications: usize) -> Outcome {
    wait_until(format!("{notifications} calls are announced and acknowledged"), LONG, || async {
        let consumer = world.consumer().await.map_err(|error| error.to_string())?;
        let announced = world.notifications().await.map_err(|error| error.to_string())?.len();
        let left = (consumer.num_pending, consumer.num_ack_pending);
        if announced >= notifications && left == (0, 0) { Ok(()) } else { Err(format!("{announced}, left {left:?}")) }
    })
    .await?;
    Ok(())
}

/// Runs a command that reads traces, which reaches no server; gives its exit, and what it wrote to stdout and stderr.
async fn reads(command: &str, paths: &[&Path], arguments: &[&str]) -> Result<(Exit, String, String), ProcessorError> {
    let nowhere = ProcessorCommand::new(command)
        .environment("NATS_URL", "nats://127.0.0.1:1")
        .environment("MONGODB_URI", "mongodb://127.0.0.1:1");
    let process = nowhere.arguments(paths).arguments(arguments).start().await?;
    let exit = process.wait(LONG).await?;
    Ok((exit, process.output(), process.logs()))
}

type ProcessorError = Box<dyn std::error::Error>;

/// Asserts that it replays, and gives what is said about that.
async fn replays(paths: &[&Path]) -> Result<String, ProcessorError> {
    let (exit, output, log) = reads("replay", paths, &[]).await?;
    assert_eq!(exit, Exit::Code(0), "{paths:?}: {output}{log}");
    assert!(output.starts_with("replays: "), "{output}");
    Ok(output)
}

fn files(directory: &Path) -> Result<Vec<PathBuf>, std::io::Error> {
    let mut files = fs::read_dir(directory)?.map(|file| file.map(|file| file.path())).collect::<Result<Vec<_>, _>>()?;
    files.sort();
    Ok(files)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_recorded_replays_file_by_file_and_call_by_call() -> Outcome {
    let world = TestWorld::start().await?;
    let directory = tempfile::tempdir()?;
    let traces = directory.path().join("made/by itself");
    let command = world.processor("run").environment("TRANSCRIPT_RECORD", &traces).arguments([
        "--record-max-age=1s",
        "--quiet-period=1s",
        "--ack-wait=900ms",
        "--name=one / \u{442}\u{432}\u{43e}",
    ]);
    let processor = command.start_ready(LONG).await?;
    assert!(processor.logs().contains("the words of the calls are left out"), "{}", processor.logs());
    for name in CALLS {
        let late = if name == "festival-lineup" { ["--late=5", "--late-by=1500ms"].as_slice() } else { &[] };
        world
            .processor("play")
            .argument(fixture(&format!("transcripts/{name}.ndjson")))
            .arguments(late)
            .run(LONG)
            .await?;
    }
    all_done(&world, 3).await?;
    assert_eq!(processor.terminate().await?, Exit::Code(0));

    let files = files(&traces)?;
    assert!(files.len() > 1, "it was rotated: {files:?}");
    let said = replays(&[&traces]).await?;
    assert!(said.contains(" 3 jobs, ") && said.contains(&format!(" {} parts", files.len())), "{said}");
    assert!(!said.contains("not given"), "{said}");
    for file in &files {
        replays(&[file]).await?;
    }
    let (exit, list, _) = reads("trace", &[&traces], &[]).await?;
    assert_eq!((exit, list.lines().count()), (Exit::Code(0), 3 * files.len()), "{list}");
    let (exit, stats, _) = reads("trace", &[&traces], &["--stats"]).await?;
    assert_eq!(exit, Exit::Code(0));
    let late = stats.lines().find(|line| line.starts_with("late segments")).unwrap_or_default();
    assert_eq!(late.split_whitespace().skip(2).collect::<Vec<_>>(), ["3", "0", "0", "5", "5", "5"], "{stats}");

    let cut = directory.path().join("cut.jsonl");
    let cut_to = cut.to_string_lossy();
    let (exit, said, _) = reads("trace", &[&traces], &["--session=evening-call", "-o", &cut_to]).await?;
    assert_eq!(exit, Exit::Code(0), "{said}");
    assert!(replays(&[&cut]).await?.contains(" 1 job, "));
    assert!(!fs::read_to_string(&cut)?.contains("olive-oil"));
    let (exit, trace, _) =
        reads("trace", &[&traces], &["--session=evening-call", "--conversation=festival-lineup"]).await?;
    assert_eq!((exit, trace), (Exit::Code(0), fs::read_to_string(&cut)?));
    let (exit, output, log) =
        reads("trace", &[&traces], &["--session=evening-call", "--conversation=olive-oil"]).await?;
    assert_eq!((exit, output.as_str()), (Exit::Code(1), ""));
    assert!(log.contains("no job of session \"evening-call\" of conversation \"olive-oil\""), "{log}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_processor_leaves_whole_lines() -> Outcome {
    let world = TestWorld::start().await?;
    let traces = tempfile::tempdir()?;
    let run = world.processor("run").arguments(["--quiet-period=200ms", "--ack-wait=1s", "--record"]);
    let run = run.argument(traces.path());
    let calls = (0..60).map(|n| Call::of("c", &format!("s{n}"), 20)).collect::<Result<Vec<_>, _>>()?;
    for call in &calls {
        world.insert_segments(&call.segments).await?;
    }
    let mut announced = 0;
    for life in 0..3 {
        let processor = run.start_ready(LONG).await?;
        for call in &calls[life * 20..][..20] {
            world.publish_session_end(&call.session, 20).await?;
        }
        wait_until("another call is announced", LONG, || async {
            let now = world.notifications().await.map_err(|error| error.to_string())?.len();
            if now > announced { Ok(()) } else { Err(format!("{now} are")) }
        })
        .await?;
        processor.kill().await?;
        announced = world.notifications().await?.len();
        // Given alone, in each order, and after every life.
        assert_eq!(files(traces.path())?.len(), life + 1);
        replays(&[traces.path()]).await?;
    }
    let processor = run.start_ready(LONG).await?;
    all_done(&world, calls.len()).await?;
    processor.terminate().await?;
    let said = replays(&[traces.path()]).await?;
    assert!(said.contains(" 4 parts"), "{said}");
    let (_, stats, _) = reads("trace", &[traces.path()], &["--stats"]).await?;
    let acknowledged = stats.lines().find(|line| line.trim().starts_with("acknowledged")).unwrap_or_default();
    // A kill loses what was confirmed in its last moment.
    assert!(acknowledged.split_whitespace().nth(1).ok_or("none")?.parse::<usize>()? > 30, "{stats}");

    // What a kill in the middle of a write leaves.
    let last = files(traces.path())?.pop().expect("there are four");
    let whole = fs::read(&last)?;
    fs::write(&last, &whole[..whole.len() - 9])?;
    let (exit, said, log) = reads("replay", &[traces.path()], &[]).await?;
    assert_eq!(exit, Exit::Code(0), "{log}");
    assert!(said.starts_with("replays: ") && log.contains("is cut off after"), "{said}{log}");
    Ok(())
}

/// The words of three letters or more; what JSON escapes are no letters.
fn words(text: &str) -> BTreeSet<String> {
    let text = ["\\n", "\\r", "\\t"].iter().fold(text.to_owned(), |text, escape| text.replace(escape, " "));
    let letters = |word: &&str| word.chars().filter(|c| c.is_alphabetic()).count() >= 3;
    text.split(|c: char| !c.is_alphanumeric()).filter(letters).map(str::to_lowercase).collect()
}

/// The words in the trace of these calls.
async fn recorded(calls: &[PathBuf], arguments: &[&str]) -> Result<BTreeSet<String>, ProcessorError> {
    let world = TestWorld::start().await?;
    let traces = tempfile::tempdir()?;
    let run = world.processor("run").arguments(["--quiet-period=100ms", "--name=p", "--record"]);
    let processor = run.argument(traces.path()).arguments(arguments).start_ready(LONG).await?;
    world.processor("play").arguments(calls).run(LONG).await?;
    all_done(&world, calls.len()).await?;
    processor.terminate().await?;
    assert!(replays(&[traces.path()]).await?.contains(&format!(" {} jobs, ", calls.len())));
    let texts = files(traces.path())?.iter().map(fs::read_to_string).collect::<Result<Vec<_>, _>>()?;
    Ok(words(&texts.concat()))
}

#[tokio::test(flavor = "multi_thread")]
async fn words_are_recorded_only_where_that_is_asked_for() -> Outcome {
    let calls = CALLS.map(|name| fixture(&format!("transcripts/{name}.ndjson")));
    let mut spoken = BTreeSet::new();
    let wordless = tempfile::tempdir()?;
    let mut without = vec![];
    for file in &calls {
        let mut call = Call::read(file)?;
        let copy = wordless.path().join(file.file_name().expect("it is a file"));
        if call.segments.is_empty() {
            fs::copy(file, &copy)?;
        } else {
            for segment in &mut call.segments {
                spoken.extend(words(&segment.text));
                spoken.extend(words(segment.speaker.as_deref().unwrap_or_default()));
                (segment.text, segment.speaker) = ("1?".to_owned(), Some("1".to_owned()));
            }
            let lines = call.segments.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
            fs::write(&copy, lines.join("\n"))?;
        }
        without.push(copy);
    }
    assert!(spoken.len() > 200, "{spoken:?}");
    let vocabulary = recorded(&without, &[]).await?;
    let redacted = recorded(&calls, &[]).await?;
    let there: Vec<&String> = redacted.intersection(&spoken).filter(|word| !vocabulary.contains(*word)).collect();
    assert_eq!(there, Vec::<&String>::new());
    let kept = recorded(&calls, &["--record-content"]).await?;
    assert_eq!(spoken.difference(&kept).collect::<Vec<_>>(), Vec::<&String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_recorded_or_read_is_said() -> Outcome {
    let world = TestWorld::start().await?;
    let directory = tempfile::tempdir()?;
    let path = |name: &str| directory.path().join(name);
    fs::write(path("file"), "")?;
    let refused = world.processor("run").argument("--record").argument(path("file")).start().await?;
    assert_eq!(refused.wait(LONG).await?, Exit::Code(1));
    let said = format!("cannot record to {} (--record): ", path("file").display());
    assert!(refused.logs().contains(&said), "{}", refused.logs());

    fs::create_dir(path("nothing in it"))?;
    fs::write(path("newer"), "{\"transcriptTrace\":3,\"program\":\"transcript-processor 7.1\"}\n")?;
    fs::write(path("other"), "{\"a\":1}\n")?;
    let cases = [
        ("file", "the trace is empty"),
        ("not there", "cannot read"),
        ("nothing in it", "there is no trace (*.jsonl) in"),
        ("newer", "written by transcript-processor 7.1, which can read it"),
        ("other", "is not the first line of a trace"),
    ];
    for (name, message) in cases {
        for (command, arguments) in [("replay", [].as_slice()), ("trace", &[]), ("trace", &["--stats"])] {
            let (exit, output, log) = reads(command, &[&path(name)], arguments).await?;
            assert_eq!((exit, output.as_str()), (Exit::Code(2), ""), "{command} {name}: {log}");
            assert!(log.contains(message) && log.contains(name), "{command} {name}: {log}");
        }
    }
    Ok(())
}
