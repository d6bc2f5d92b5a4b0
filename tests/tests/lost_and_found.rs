//! What must hold past five attempts and past the duplicate window: nothing lost, nothing announced twice.

use std::{collections::BTreeMap, time::Duration};

use async_nats::jetstream::message::StreamMessage;
use futures::{StreamExt, TryStreamExt, stream};
use mongodb::bson::Document;
use serde_json::Value;
use tokio::sync::mpsc;
use transcript_core::{
    Bug, Processor,
    contract::{
        ATTEMPTS_HEADER, DEAD_LETTER_SUBJECT, PROCESSED_SUBJECT, REASON_HEADER, REVISED_SUBJECT, SESSION_ENDED_SUBJECT,
        STREAM_SEQUENCE_HEADER, TRANSCRIPTION_STREAM,
    },
};
use transcript_processor::{
    cli::{Cli, Command, RunArgs},
    operate::setup::Request,
    service::driver::Signal,
    service::run::{self, Control},
};
use transcript_publishing::Publisher;
use transcript_tests::{
    by_hand,
    calls::Call,
    process_guard::Exit,
    restarted_processor::RestartedProcessor,
    wait::wait_until,
    world::{App, TestWorld},
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Long beside everything awaited here, also on a busy machine.
const LONG: Duration = Duration::from_secs(120);
/// Short times, for tests that are not about them.
const SHORT: [&str; 2] = ["--quiet-period=100ms", "--ack-wait=2s"];

fn calls(name: &str, number: u32) -> Result<Vec<Call>, Box<dyn std::error::Error>> {
    Ok((0..number).map(|n| Call::of("conversation", &format!("{name} {n}"), 2)).collect::<Result<_, _>>()?)
}

async fn end(app: &App, calls: &[Call]) -> Outcome {
    let segments = stream::iter(calls.to_vec()).map(|call| {
        let app = app.clone();
        async move { app.insert_segments(&call.segments).await.map(|()| call) }
    });
    let ends = segments.buffered(64).and_then(|call| {
        let app = app.clone();
        async move { app.publish_session_end(&call.session, 2).await }
    });
    ends.try_collect::<Vec<_>>().await?;
    Ok(())
}

async fn publish_ends(app: &App, calls: &[Call]) -> Outcome {
    let ends = stream::iter(calls.to_vec()).map(|call| {
        let app = app.clone();
        async move { app.publish_session_end(&call.session, 2).await }
    });
    ends.buffered(64).try_collect::<Vec<_>>().await?;
    Ok(())
}

/// Waits until the consumer has nothing left to hand over and nothing handed over.
async fn idle(world: &TestWorld) -> Outcome {
    wait_until("nothing is pending", LONG, || async {
        let consumer = world.consumer().await.map_err(|error| error.to_string())?;
        let open = (consumer.num_pending, consumer.num_ack_pending);
        if open == (0, 0) { Ok(()) } else { Err(format!("{open:?}")) }
    })
    .await?;
    Ok(())
}

/// How many messages each subject of the stream holds.
async fn subjects(world: &TestWorld) -> Result<BTreeMap<String, usize>, Box<dyn std::error::Error>> {
    let stream = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?;
    let subjects = stream.info_with_subjects(">").await?;
    Ok(subjects.try_collect::<Vec<_>>().await?.into_iter().collect())
}

async fn held(world: &TestWorld, subject: &str) -> Result<usize, Box<dyn std::error::Error>> {
    Ok(subjects(world).await?.get(subject).copied().unwrap_or(0))
}

async fn dead_letter(world: &TestWorld) -> Result<StreamMessage, Box<dyn std::error::Error>> {
    let stream = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?;
    Ok(wait_until("there is a dead letter", LONG, || stream.get_last_raw_message_by_subject(DEAD_LETTER_SUBJECT))
        .await?)
}

fn header<'a>(message: &'a StreamMessage, name: &str) -> &'a str {
    message.headers.get(name).map_or("", |value| value.as_str())
}

/// Every attempt dies with its process; the next one that runs hears of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_process_dies_at_every_attempt_becomes_a_dead_letter() -> Outcome {
    let world = TestWorld::start().await?;
    // It waits for late segments until it is killed.
    let command = world.processor("run").arguments(["--quiet-period=1h", "--ack-wait=500ms"]);
    let mut processor = RestartedProcessor::new(command);
    let call = Call::of("conversation", "poisoned", 2)?;
    processor.start().await?;
    processor.ready(LONG).await?;
    let payload = br#"{"conversationId":"conversation","sessionId":"poisoned","publishedSegments":2,"extra":[1, 2]}"#;
    world.insert_segments(&call.segments).await?;
    let sequence = world.publish(SESSION_ENDED_SUBJECT, payload.to_vec()).await?;
    for attempt in 1..=5_u64 {
        wait_until(format!("attempt {attempt}"), LONG, || async {
            let delivered = world.consumer().await.map_err(|error| error.to_string())?.delivered.consumer_sequence;
            if delivered >= attempt { Ok(()) } else { Err(delivered.to_string()) }
        })
        .await?;
        processor.kill().await?;
        if attempt < 5 {
            processor.start().await?;
        }
    }
    // How long it looks for a summary that another processor may yet announce goes by its own quiet period.
    let last = world.processor("run").arguments(["--quiet-period=200ms", "--ack-wait=500ms"]).start_ready(LONG).await?;
    let dead_letter = dead_letter(&world).await?;
    assert_eq!(&dead_letter.payload[..], payload, "byte for byte");
    assert_eq!(header(&dead_letter, STREAM_SEQUENCE_HEADER), sequence.to_string());
    assert_eq!(header(&dead_letter, ATTEMPTS_HEADER), "5");
    assert_eq!(
        header(&dead_letter, REASON_HEADER),
        "handed over 5 times, and each time its process died or was cut off"
    );
    assert_eq!(world.summaries().await?.len(), 0);
    last.terminate().await?;
    assert_eq!(audited(&world, &[]).await?.0, Exit::Code(1), "a dead letter is open");

    let mended = world.processor("run").arguments(SHORT).start_ready(LONG).await?;
    for times in ["first", "second"] {
        world.processor("dead-letters").arguments(["redrive", "--all"]).run(LONG).await?;
        idle(&world).await?;
        assert_eq!(world.notifications().await?.len(), 1, "after the {times} redrive");
    }
    assert_eq!(held(&world, SESSION_ENDED_SUBJECT).await?, 2, "the second redrive did nothing");
    assert_eq!(audited(&world, &[]).await?, (Exit::Code(0), vec![]));
    mended.terminate().await?;
    Ok(())
}

/// Nobody listened when JetStream said it: only the audit can find the call.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_given_up_unheard_is_found_by_the_audit_and_repaired() -> Outcome {
    let world = TestWorld::start().await?;
    let all = calls("call", 3)?;
    let mut processor =
        RestartedProcessor::new(world.processor("run").arguments(["--quiet-period=1h", "--ack-wait=500ms"]));
    processor.start().await?;
    processor.ready(LONG).await?;
    end(&world.app(), &all).await?;
    for attempt in 1..=5_u64 {
        wait_until(format!("attempt {attempt} of each"), LONG, || async {
            let delivered = world.consumer().await.map_err(|error| error.to_string())?.delivered.consumer_sequence;
            if delivered >= 3 * attempt { Ok(()) } else { Err(delivered.to_string()) }
        })
        .await?;
        if attempt < 5 {
            processor.start().await?;
        }
    }
    processor.kill().await?;
    // A pull makes JetStream give them up; nobody has subscribed to its advisories.
    let pull = "$JS.API.CONSUMER.MSG.NEXT.TRANSCRIPTION.transcript-processor";
    wait_until("they are given up", LONG, || async {
        let asked = world.client.request(pull, r#"{"batch":1,"no_wait":true}"#.into()).await;
        let open = world.consumer().await.map_err(|error| error.to_string())?.num_ack_pending;
        if open == 0 { Ok(()) } else { Err(format!("{open} are pending, {asked:?}")) }
    })
    .await?;
    let mended = world.processor("run").arguments(SHORT).start_ready(LONG).await?;
    idle(&world).await?;
    assert_eq!((world.summaries().await?.len(), held(&world, DEAD_LETTER_SUBJECT).await?), (0, 0));
    let keys: Vec<String> = all.iter().map(|call| call.session.key().to_string()).collect();
    assert_eq!(audited(&world, &["--repair"]).await?, (Exit::Code(1), keys));
    idle(&world).await?;
    assert_eq!((world.summaries().await?.len(), world.notifications().await?.len()), (3, 3));
    assert_eq!(audited(&world, &[]).await?, (Exit::Code(0), vec![]));
    mended.terminate().await?;
    Ok(())
}

/// What an audit ends with, and the keys of the calls that it names as missing.
async fn audited(world: &TestWorld, arguments: &[&str]) -> Result<(Exit, Vec<String>), Box<dyn std::error::Error>> {
    let audit = world.processor("audit").arguments(arguments).argument("--json").start().await?;
    let exit = audit.wait(LONG).await?;
    let found: Value = serde_json::from_str(&audit.output())?;
    let missing = found["missing"]["named"].as_array().ok_or_else(|| format!("no names: {found}"))?;
    let mut keys: Vec<String> = missing.iter().filter_map(|name| name["key"].as_str().map(str::to_owned)).collect();
    keys.sort();
    Ok((exit, keys))
}

/// A store that will never take a document is asked once, and the message is kept.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_store_refuses_becomes_a_dead_letter_at_the_first_attempt() -> Outcome {
    let world = TestWorld::start().await?;
    let validator = mongodb::bson::doc! { "sessionId": { "$ne": "refused 1" } };
    world.database().create_collection("transcriptsummaries").validator(validator).await?;
    let processor = world.processor("run").arguments(SHORT).start_ready(LONG).await?;
    end(&world.app(), &calls("refused", 3)?).await?;
    let dead_letter = dead_letter(&world).await?;
    assert_eq!(header(&dead_letter, ATTEMPTS_HEADER), "1");
    assert!(
        header(&dead_letter, REASON_HEADER).contains("121"),
        "DocumentValidationFailure: {:?}",
        dead_letter.headers
    );
    idle(&world).await?;
    assert_eq!((world.notifications().await?.len(), held(&world, DEAD_LETTER_SUBJECT).await?), (2, 1));
    assert_eq!(world.consumer().await?.delivered.consumer_sequence, 3);
    processor.terminate().await?;
    Ok(())
}

fn run_args(arguments: &[&str]) -> Result<RunArgs, Box<dyn std::error::Error>> {
    let arguments = ["transcript-processor", "run"].iter().chain(arguments).map(Into::into);
    let Command::Run(run) = Cli::read(arguments)?.command else { return Err("it is the command `run`".into()) };
    Ok(run.args)
}

/// One call that the summary step cannot take, among a thousand others.
#[tokio::test(flavor = "multi_thread")]
async fn a_summary_step_that_panics_ends_one_call_and_none_beside_it() -> Outcome {
    let world = TestWorld::start().await?;
    let args = run_args(&SHORT)?;
    world.processor("setup").arguments(["--ack-wait=2s"]).run(LONG).await?;
    let request = Request { settings: args.stream.clone(), ..Request::default() };
    let core = Processor::with_bug(run::core_settings(&args, &args.stream.or(request.defaults)), Bug::SummaryPanics)?;
    let (signal, mut signals) = mpsc::unbounded_channel();
    let (client, database) = (world.nats.client().await?, world.database().clone());
    let jetstream = world.jetstream.clone();
    let running = tokio::spawn(async move {
        run::drive(
            client.into(),
            &jetstream,
            &database,
            &args,
            &request,
            core,
            Control { http: None, signals: &mut signals },
        )
        .await
    });
    let mut all = calls("call", 1000)?;
    all[500].segments[1].text = Bug::PANIC.to_owned();
    end(&world.app(), &all).await?;
    idle(&world).await?;
    let dead_letter = dead_letter(&world).await?;
    assert!(header(&dead_letter, REASON_HEADER).starts_with("the summary step panicked"), "{:?}", dead_letter.headers);
    assert!(String::from_utf8_lossy(&dead_letter.payload).contains("call 500"));
    assert_eq!((world.notifications().await?.len(), held(&world, DEAD_LETTER_SUBJECT).await?), (999, 1));
    assert_eq!(world.consumer().await?.delivered.consumer_sequence, 1000, "each was delivered once");
    signal.send(Signal::Drain)?;
    running.await??;
    Ok(())
}

/// The consumer starts over, long after the stream has forgotten the ids of its notifications.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_starts_over_past_the_window_announces_nothing_again() -> Outcome {
    let world = TestWorld::start().await?;
    let arguments = ["--duplicate-window=1s", "--max-in-flight=5000", "--max-ack-pending=5000"];
    let processor = world.processor("run").arguments(SHORT).arguments(arguments).start_ready(LONG).await?;
    let all = calls("call", 2000)?;
    end(&world.app(), &all).await?;
    idle(&world).await?;
    let summaries = world.summaries().await?;
    assert_eq!((world.notifications().await?.len(), summaries.len()), (2000, 2000));
    // The window is over when an id that came after all of them is taken again.
    by_hand::publish_until_forgotten(&world, LONG).await?;
    let answer =
        world.client.request("$JS.API.CONSUMER.RESET.TRANSCRIPTION.transcript-processor", r#"{"seq":1}"#.into());
    let answer = answer.await?;
    assert!(!String::from_utf8_lossy(&answer.payload).contains("error"), "{answer:?}");
    wait_until("all were delivered again", LONG, || async {
        let state = world.consumer().await.map_err(|error| error.to_string())?;
        let done = (state.delivered.consumer_sequence >= 2000, state.num_pending, state.num_ack_pending);
        if done == (true, 0, 0) { Ok(()) } else { Err(format!("{done:?}")) }
    })
    .await?;
    assert_eq!(world.notifications().await?.len(), 2000);
    assert_eq!(world.summaries().await?, summaries, "every summary is as it was");
    processor.terminate().await?;
    Ok(())
}

/// A purge and a restart make the stream forget every id.
#[tokio::test(flavor = "multi_thread")]
async fn ends_that_come_again_after_a_purge_and_a_restart_are_not_announced_again() -> Outcome {
    let mut world = TestWorld::start().await?;
    let processor = world.processor("run").arguments(SHORT).start_ready(LONG).await?;
    let all = calls("call", 300)?;
    end(&world.app(), &all).await?;
    idle(&world).await?;
    assert_eq!(world.notifications().await?.len(), 300);
    let stream = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?;
    stream.purge().await?;
    world.nats.process().terminate().await?;
    world.nats.start_again().await?;
    wait_until("the ends are published again", LONG, || async {
        publish_ends(&world.app(), &all).await.map_err(|error| error.to_string())
    })
    .await?;
    idle(&world).await?;
    assert_eq!(held(&world, PROCESSED_SUBJECT).await?, 0, "nothing was announced again");
    assert_eq!(world.summaries().await?.len(), 300);
    processor.terminate().await?;
    Ok(())
}

/// An outage of MongoDB that is much longer than the retry timeout for one call.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_mongodb_costs_no_attempt() -> Outcome {
    let mut world = TestWorld::start_with_own_mongod().await?;
    let command = world.processor("run").arguments([
        "--quiet-period=5s",
        "--ack-wait=2s",
        "--retry-timeout=2s",
        "--retry-cap=500ms",
        "--request-timeout=1s",
    ]);
    let processor = command.start_ready(LONG).await?;
    end(&world.app(), &calls("call", 500)?).await?;
    world.mongod().process().kill().await?;
    // That nothing happens for so long is what is tested: there is no other condition to wait for.
    tokio::time::sleep(outage()?).await;
    assert_eq!(world.notifications().await?.len(), 0);
    world.mongod().start_again().await?;
    idle(&world).await?;
    assert_eq!((world.notifications().await?.len(), held(&world, DEAD_LETTER_SUBJECT).await?), (500, 0));
    assert_eq!(world.consumer().await?.delivered.consumer_sequence, 500, "each was delivered once");
    processor.terminate().await?;
    Ok(())
}

/// How long MongoDB stays away, in seconds; 90 is what is tried before a release.
fn outage() -> Result<Duration, std::num::ParseIntError> {
    let seconds = std::env::var("TRANSCRIPT_TESTS_OUTAGE_S").map_or(Ok(15), |seconds| seconds.parse())?;
    Ok(Duration::from_secs(seconds))
}

/// Twice as many rollouts as a call has attempts, one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn ten_rollouts_under_load_cost_no_call_its_attempts() -> Outcome {
    let world = TestWorld::start().await?;
    // So long a quiet period that most calls are given back by every rollout.
    let command = world.processor("run").arguments(["--quiet-period=1500ms", "--ack-wait=2s"]);
    let mut processor = RestartedProcessor::new(command);
    processor.start().await?;
    processor.ready(LONG).await?;
    // In each rollout some calls end before it and are in hand, and as many while it goes on.
    for part in calls("call", 400)?.chunks(40) {
        let (before, meanwhile) = part.split_at(20);
        end(&world.app(), before).await?;
        wait_until("all calls are handed over", LONG, || async {
            let pending = world.consumer().await.map_err(|error| error.to_string())?.num_pending;
            if pending == 0 { Ok(()) } else { Err(pending.to_string()) }
        })
        .await?;
        let app = world.app();
        let (ended, exit) = tokio::join!(end(&app, meanwhile), processor.terminate(LONG));
        ended?;
        assert_eq!(exit?, Some(Exit::Code(0)));
        processor.start().await?;
        processor.ready(LONG).await?;
    }
    idle(&world).await?;
    let announced: BTreeMap<_, _> =
        world.notifications().await?.into_iter().map(|told| (told.notification.session, told.sequence)).collect();
    assert_eq!((announced.len(), world.notifications().await?.len()), (400, 400));
    assert_eq!(held(&world, DEAD_LETTER_SUBJECT).await?, 0);
    assert!(held(&world, SESSION_ENDED_SUBJECT).await? > 400, "some were published again");
    assert_eq!(audited(&world, &[]).await?, (Exit::Code(0), vec![]));
    processor.terminate(LONG).await?;
    Ok(())
}

/// The consumer does not hand out as much as all have room for together.
#[tokio::test(flavor = "multi_thread")]
async fn a_processor_warns_where_the_consumer_is_too_small_for_all_of_them() -> Outcome {
    let world = TestWorld::start().await?;
    let command = world.processor("run").arguments(["--max-in-flight=100", "--max-ack-pending=150"]);
    let one = command.start_ready(LONG).await?;
    assert!(!one.logs().contains("other processors"), "{}", one.logs());
    wait_until("it asks for messages", LONG, || async {
        match world.consumer().await.map_err(|error| error.to_string())?.num_waiting {
            0 => Err("not yet"),
            _ => Ok(()),
        }
        .map_err(str::to_owned)
    })
    .await?;
    let two = command.start_ready(LONG).await?;
    let warning = "1 other processors ask for messages: together with this one they have room for 200 calls";
    assert!(two.logs().contains(warning), "{}", two.logs());
    one.terminate().await?;
    two.terminate().await?;
    Ok(())
}

/// A segment's message id can be a call's key: the stream would take the notification for a repetition of the segment.
#[tokio::test(flavor = "multi_thread")]
async fn a_segment_whose_message_id_is_the_key_does_not_swallow_the_notification() -> Outcome {
    for mode in ["false", "true"] {
        let world = TestWorld::start().await?;
        world.processor("setup").run(LONG).await?;
        let publisher = Publisher::new(world.jetstream.clone());
        let all = [Call::of("1", "1", 3)?, Call::of("lesson", "lesson", 4)?, Call::of("lesson", "2", 1)?];
        for call in &all {
            publisher.segments(&call.segments).await?;
            world.insert_segments(&call.segments).await?;
        }
        let command = world.processor("run").arguments(SHORT).environment("TRANSCRIPT_ANNOUNCE_ONCE", mode);
        let processor = command.start_ready(LONG).await?;
        for call in &all {
            world.publish_session_end(&call.session, u64::try_from(call.segments.len())?).await?;
        }
        idle(&world).await?;
        let held = subjects(&world).await?;
        let told: usize =
            held.iter().filter(|(subject, _)| subject.starts_with(PROCESSED_SUBJECT)).map(|(_, n)| n).sum();
        assert_eq!(told, 3, "{held:?}");
        assert_eq!(audited(&world, &[]).await?, (Exit::Code(0), vec![]));
        processor.terminate().await?;
    }
    Ok(())
}

/// With a single attempt there is none to lose.
#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_loses_no_call_that_has_one_attempt() -> Outcome {
    let world = TestWorld::start().await?;
    let command = world.processor("run").arguments(["--quiet-period=1s", "--ack-wait=2s", "--max-deliver=1"]);
    let mut processor = RestartedProcessor::new(command);
    processor.start().await?;
    processor.ready(LONG).await?;
    end(&world.app(), &calls("call", 20)?).await?;
    for _ in 0..2 {
        assert_eq!(processor.terminate(LONG).await?, Some(Exit::Code(0)));
        processor.start().await?;
        processor.ready(LONG).await?;
    }
    wait_until("all are announced", LONG, || async {
        let announced = world.notifications().await.map_err(|error| error.to_string())?.len();
        if announced == 20 { Ok(()) } else { Err(format!("{announced} are")) }
    })
    .await?;
    idle(&world).await?;
    assert_eq!(audited(&world, &[]).await?, (Exit::Code(0), vec![]));
    processor.terminate(LONG).await?;
    Ok(())
}

/// A MongoDB that hangs keeps neither the calls in hand nor the process.
#[tokio::test(flavor = "multi_thread")]
async fn a_processor_ends_within_its_grace_time_while_mongodb_hangs() -> Outcome {
    let mut world = TestWorld::start_with_own_mongod().await?;
    let arguments = ["--quiet-period=0s", "--ack-wait=2s", "--grace=1s", "--request-timeout=60s"];
    let mut processor = RestartedProcessor::new(world.processor("run").arguments(arguments));
    processor.start().await?;
    processor.ready(LONG).await?;
    let all = calls("call", 20)?;
    world.insert_segments(&all.iter().flat_map(|call| call.segments.clone()).collect::<Vec<_>>()).await?;
    world.mongod().process().freeze().await?;
    publish_ends(&world.app(), &all).await?;
    wait_until("they are in hand", LONG, || async {
        let open = world.consumer().await.map_err(|error| error.to_string())?.num_ack_pending;
        if open == 20 { Ok(()) } else { Err(open.to_string()) }
    })
    .await?;
    assert_eq!(processor.terminate(Duration::from_secs(8)).await?, Some(Exit::Code(0)));
    world.mongod().process().thaw().await?;
    processor.start().await?;
    idle(&world).await?;
    assert_eq!(audited(&world, &[]).await?, (Exit::Code(0), vec![]));
    assert_eq!(world.notifications().await?.len(), 20);
    processor.terminate(LONG).await?;
    Ok(())
}

/// What comes after the summary: it is replaced, and that is announced once.
#[tokio::test(flavor = "multi_thread")]
async fn segments_after_the_summary_make_a_revision_where_that_is_asked_for() -> Outcome {
    let world = TestWorld::start().await?;
    let command = world.processor("run").arguments(SHORT).arguments(["--revise", "--revise-every=200ms"]);
    let mut call = Call::of("conversation", "slow", 5)?;
    let late = call.segments.split_off(3);
    let (one, two) = (command.start_ready(LONG).await?, command.start_ready(LONG).await?);
    world.insert_segments(&call.segments).await?;
    world.publish_session_end(&call.session, 5).await?;
    idle(&world).await?;
    for (number, segment) in (2..).zip(late) {
        world.insert_segments(&[segment]).await?;
        wait_until(format!("revision {number} is announced"), LONG, || async {
            match held(&world, REVISED_SUBJECT).await.map_err(|error| error.to_string())? {
                told if told == number - 1 => Ok(()),
                told => Err(format!("{told} revisions")),
            }
        })
        .await?;
    }
    let revised = |summary: &Document| summary.get_document("revised").ok()?.get_i64("revision").ok();
    let summary = wait_until("the revision is marked", LONG, || async {
        let summary = world.summary(&call.session.key()).await.map_err(|error| error.to_string())?;
        summary.filter(|summary| revised(summary) == Some(3)).ok_or_else(|| "not yet".to_owned())
    })
    .await?;
    assert_eq!((summary.get_i64("segments")?, summary.get_bool("complete")?), (5, true));
    let stream = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?;
    let told = stream.get_last_raw_message_by_subject(REVISED_SUBJECT).await?;
    assert_eq!(header(&told, "Nats-Msg-Id"), format!("{}%r3", call.session.key()));
    assert_eq!(
        String::from_utf8_lossy(&told.payload),
        r#"{"key":"conversation:slow","conversationId":"conversation","sessionId":"slow","segments":5,"complete":true,"revision":3}"#
    );
    assert_eq!(world.notifications().await?.len(), 1);
    one.terminate().await?;
    two.terminate().await?;
    Ok(())
}

/// A subject of its own is taken once, whatever the window.
#[tokio::test(flavor = "multi_thread")]
async fn announcing_once_knows_no_window() -> Outcome {
    let world = TestWorld::start().await?;
    let arguments = ["--announce-once", "--duplicate-window=100ms"];
    let processor = world.processor("run").arguments(SHORT).arguments(arguments).start_ready(LONG).await?;
    let all = calls("a.b*c", 20)?;
    end(&world.app(), &all).await?;
    idle(&world).await?;
    // As after a death between the notification and its mark.
    let summaries = world.database().collection::<Document>("transcriptsummaries");
    let unmark = mongodb::bson::doc! { "$unset": { "notified": 1 } };
    summaries.update_many(mongodb::bson::doc! {}, unmark).await?;
    by_hand::publish_until_forgotten(&world, LONG).await?;
    publish_ends(&world.app(), &all).await?;
    wait_until("all are processed again", LONG, || async {
        let state = world.consumer().await.map_err(|error| error.to_string())?;
        let done = (state.delivered.consumer_sequence, state.num_pending, state.num_ack_pending);
        if done == (40, 0, 0) { Ok(()) } else { Err(format!("{done:?}")) }
    })
    .await?;
    let told = subjects(&world).await?;
    let own: Vec<_> = told.iter().filter(|(subject, _)| subject.starts_with("transcript.processed.")).collect();
    assert_eq!(own.len(), 20, "{told:?}");
    assert!(own.iter().all(|(_, held)| **held == 1), "{own:?}");
    assert!(told.contains_key("transcript.processed.conversation:a%2Eb%2Ac%200"), "{told:?}");
    for summary in world.summaries().await? {
        let sequence = summary.get_document("notified")?.get_i64("streamSequence")?;
        let stream = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?;
        let message = stream.get_raw_message(u64::try_from(sequence)?).await?;
        assert!(String::from_utf8_lossy(&message.payload).contains(summary.get_str("sessionId")?));
    }
    processor.terminate().await?;
    Ok(())
}
