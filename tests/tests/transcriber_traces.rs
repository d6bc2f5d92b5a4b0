//! What a transcriber records replays, holds no word, and is drawn together with what the processor recorded.

use std::{error::Error, fs, time::Duration};

use serde_json::{Value, json};
use tempfile::TempDir;
use transcript_tests::{
    process_guard::Exit, processor::ProcessorCommand, transcriber::RunningTranscriber, wait::wait_until,
    world::TestWorld,
};

type Outcome = Result<(), Box<dyn Error>>;

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_recorded_transcriber_replays_and_its_calls_are_drawn_to_the_notification() -> Outcome {
    let world = TestWorld::start().await?;
    world.processor("setup").run(LONG).await?;
    let directory = TempDir::new()?;
    let record = |command: ProcessorCommand| command.argument("--record").argument(directory.path());
    let processor = record(world.processor("run").arguments(["--quiet-period", "100ms", "--name", "p"]));
    let processor = processor.start_ready(LONG).await?;
    let command = world.processor("transcriber").arguments(["--end-after-close", "100ms"]);
    let transcriber = RunningTranscriber::start(record(command.clone()).arguments(["--name", "t1"])).await?;
    let mut ana = transcriber.connect("c", "s", "?client=client-1").await?;
    let mut tom = transcriber.connect("c", "s", "").await?;
    for number in 0..5 {
        ana.say(&number.to_string(), "Grüezi mitenand.").await?;
        tom.send(&json!({ "speaker": "Björn", "text": "Who is there?" })).await?;
    }
    assert_eq!((ana.finalize().await?, tom.finalize().await?), (5, 5));
    ana.close().await?;
    tom.close().await?;
    wait_until("the call is announced", LONG, || async {
        match world.notifications().await {
            Ok(all) if all.len() == 1 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    // Another one stays connected: that a kill leaves whole lines too.
    let mut left = transcriber.connect("c", "left", "").await?;
    left.say("1", "Good-bye.").await?;
    left.finalize().await?;
    let killed = RunningTranscriber::start(record(command.clone()).arguments(["--name", "t2"])).await?;
    let mut other = killed.connect("c", "other", "").await?;
    other.say("1", "Good-bye.").await?;
    other.finalize().await?;
    killed.process.kill().await?;
    assert_eq!(transcriber.process.terminate().await?, Exit::Code(0), "{}", transcriber.process.logs());
    assert_eq!(processor.terminate().await?, Exit::Code(0));

    let traces = |subcommand: &str| ProcessorCommand::new(subcommand).argument(directory.path());
    let replayed: Value = serde_json::from_str(&traces("replay").argument("--json").run(LONG).await?)?;
    assert_eq!((&replayed["replays"], &replayed["replayed"]["parts"]), (&true.into(), &3.into()), "{replayed}");
    assert_eq!(replayed["replayed"]["uncompared"], 0);
    for file in fs::read_dir(directory.path())? {
        let text = fs::read_to_string(file?.path())?;
        for word in ["mitenand", "Björn", "Ana M.", "Good-bye"] {
            assert!(!text.contains(word), "{word} is in a trace without words");
        }
    }
    let listed = traces("trace").run(LONG).await?;
    assert!(listed.contains("transcriber t1, started"), "{listed}");
    let stats: Value = serde_json::from_str(&traces("trace").arguments(["--stats", "--json"]).run(LONG).await?)?;
    // A kill can cost the last few milliseconds of what the killed one recorded.
    let stored = stats["transcribers"]["counts"]["segments stored"].as_u64();
    assert!(stored.is_some_and(|stored| (11..=12).contains(&stored)), "{stats}");

    let drawn = traces("timeline").arguments(["--call", "c:s"]).run(LONG).await?;
    let places = ["opens", "stored", "closes", "session ended", "processed"].map(|word| drawn.find(word));
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}: {drawn}");
    assert!(!drawn.contains("c:other") && !drawn.contains("c:left"), "{drawn}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_that_cannot_be_written_is_refused_at_the_start_and_its_words_are_kept_where_that_is_asked_for()
-> Outcome {
    let world = TestWorld::start().await?;
    world.create_streams().await?;
    let directory = TempDir::new()?;
    let file = directory.path().join("file");
    fs::write(&file, "")?;
    let refused = world.processor("transcriber").argument("--record").argument(&file).start().await?;
    assert_eq!(refused.wait(LONG).await?, Exit::Code(1));
    assert!(refused.logs().contains("cannot record to"), "{}", refused.logs());
    fs::remove_file(&file)?;

    let command = world.processor("transcriber").argument("--record").argument(directory.path());
    let kept = RunningTranscriber::start(command.argument("--record-content")).await?;
    let mut client = kept.connect("c", "s", "").await?;
    client.say("1", "Grüezi mitenand.").await?;
    client.finalize().await?;
    assert_eq!(kept.process.terminate().await?, Exit::Code(0), "{}", kept.process.logs());
    let trace = fs::read_dir(directory.path())?.next().ok_or("there is no trace")??.path();
    assert!(fs::read_to_string(&trace)?.contains("Grüezi mitenand."));
    let replayed = ProcessorCommand::new("replay").argument(&trace).run(LONG).await?;
    assert!(replayed.starts_with("replays: "), "{replayed}");
    Ok(())
}
