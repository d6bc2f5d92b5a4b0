//! `dead-letters` on real servers: what it tells of dead letters, and what it does about them.

use std::time::Duration;

use async_nats::{HeaderMap, header::NATS_MESSAGE_ID};
use serde_json::{Value, json};
use transcript_core::{
    contract::{DEAD_LETTER_SUBJECT, REDRIVE_OF_HEADER, SEGMENT_SUBJECT, SESSION_ENDED_SUBJECT, TRANSCRIPTION_STREAM},
    ids::Session,
};
use transcript_tests::{
    by_hand::{self, Mark},
    calls::Call,
    process_guard::Exit,
    processor::Processor,
    wait::wait_until,
    world::TestWorld,
};

type TestResult = Result<(), Box<dyn std::error::Error>>;

const SOON: Duration = Duration::from_secs(60);
const MALFORMED: &[u8] = b"{\"conversationId\":\"c\"}\xff";

async fn world() -> Result<TestWorld, Box<dyn std::error::Error>> {
    let world = TestWorld::start().await?;
    world.processor("setup").run(SOON).await?;
    Ok(world)
}

/// Runs `dead-letters` and gives how it ended, what it printed, and what it logged.
async fn dead_letters(world: &TestWorld, line: &str) -> Result<(Exit, String, String), Box<dyn std::error::Error>> {
    let command = world.processor("dead-letters").arguments(line.split_whitespace()).start().await?;
    Ok((command.wait(SOON).await?, command.output(), command.logs()))
}

async fn told(world: &TestWorld, line: &str) -> Result<(Exit, Value), Box<dyn std::error::Error>> {
    let (exit, output, logs) = dead_letters(world, &format!("{line} --json")).await?;
    Ok((exit, serde_json::from_str(&output).map_err(|error| format!("{error}: {output}{logs}"))?))
}

async fn processor(world: &TestWorld) -> Result<Processor, Box<dyn std::error::Error>> {
    let command = world.processor("run").arguments(["--quiet-period", "50ms", "--ack-wait", "3s"]);
    Ok(command.start_ready(SOON).await?)
}

/// The places and states of all dead letters.
async fn states(world: &TestWorld) -> Result<Vec<(u64, String)>, Box<dyn std::error::Error>> {
    let (_, dead_letters) = told(world, "list").await?;
    let dead_letters = dead_letters.as_array().ok_or("no array")?.iter();
    Ok(dead_letters
        .map(|dead_letter| {
            (dead_letter["sequence"].as_u64().unwrap_or(0), dead_letter["state"].as_str().unwrap_or("none").to_owned())
        })
        .collect())
}

fn ended(session: &Session) -> Vec<u8> {
    let Session { conversation_id, session_id } = session;
    json!({ "conversationId": conversation_id, "sessionId": session_id, "publishedSegments": 1 })
        .to_string()
        .into_bytes()
}

/// A call of one segment whose end was given up; the place of its dead letter.
async fn given_up(world: &TestWorld, session_id: &str) -> Result<(Session, u64), Box<dyn std::error::Error>> {
    let call = Call::of("room", session_id, 1)?;
    world.insert_segments(&call.segments).await?;
    let end = world.publish(SESSION_ENDED_SUBJECT, ended(&call.session)).await?;
    by_hand::acknowledge(world, 1).await?;
    let dead_letter =
        by_hand::dead_letter(world, end, "handed over 5 times without an end", ended(&call.session)).await?;
    Ok((call.session, dead_letter))
}

async fn end_count(world: &TestWorld) -> Result<usize, Box<dyn std::error::Error>> {
    use futures::TryStreamExt;
    let stream = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?;
    let counts: Vec<(String, usize)> = stream.info_with_subjects(SESSION_ENDED_SUBJECT).await?.try_collect().await?;
    Ok(counts.into_iter().map(|(_, count)| count).sum())
}

#[tokio::test]
async fn dead_letters_are_listed_and_shown_with_what_became_of_them() -> TestResult {
    let world = world().await?;
    assert_eq!(dead_letters(&world, "list").await?.1, "no dead letters\n");
    assert_eq!(told(&world, "list").await?, (Exit::Code(0), json!([])));
    assert_eq!(dead_letters(&world, "redrive --all").await?.1, "no open dead letters\n");

    let (_, open) = given_up(&world, "open").await?;
    let (settled, settled_dead_letter) = given_up(&world, "settled").await?;
    let (unmarked, unmarked_dead_letter) = given_up(&world, "unmarked").await?;
    by_hand::store(
        &world,
        vec![by_hand::summary(&settled, 1, Mark::There), by_hand::summary(&unmarked, 1, Mark::Missing)],
    )
    .await?;
    let malformed = by_hand::dead_letter(&world, 999, "a\u{1b}[31mb", MALFORMED.to_vec()).await?;

    let (exit, list, _) = dead_letters(&world, "list").await?;
    assert_eq!(exit, Exit::Code(0));
    let lines: Vec<_> = list.lines().collect();
    assert_eq!(
        lines.first(),
        Some(
            &"SEQ  WHEN (UTC)        TRIES  STATE    CONVERSATION  SESSION   REASON                              PROCESSOR"
        )
    );
    assert_eq!(
        lines.get(1),
        Some(
            &"2    2026-11-29 19:27  5      open     room          open      handed over 5 times without an end  host/12"
        )
    );
    assert!(lines.last().is_some_and(|line| line.contains("-             -         a")), "{list}");
    assert!(!list.contains('\u{1b}'), "{list}");
    let (_, json) = told(&world, "list").await?;
    assert_eq!(
        json[0],
        json!({
            "sequence": open, "at": 1_795_980_423_000_i64, "conversationId": "room", "sessionId": "open", "attempts": 5,
            "reason": "handed over 5 times without an end", "processor": "host/12", "streamSequence": 1, "state": "open",
        })
    );
    assert_eq!(
        states(&world).await?,
        [(open, "open"), (settled_dead_letter, "settled"), (unmarked_dead_letter, "open"), (malformed, "open")]
            .map(|(place, state)| (place, state.to_owned()))
    );

    let (_, page, _) = dead_letters(&world, &format!("show {open}")).await?;
    assert!(page.contains("Session        open\n") && page.contains("\"sessionId\":\"open\""), "{page}");
    let (_, page, _) = dead_letters(&world, &format!("show {malformed}")).await?;
    assert!(page.ends_with("{\\\"conversationId\\\":\\\"c\\\"}\\xff\n"), "{page}");
    let (_, whole) = told(&world, &format!("show {open}")).await?;
    assert_eq!(
        (&whole["state"], &whole["payload"]),
        (&json!("open"), &json!(String::from_utf8(ended(&Session::new("room", "open")?))?))
    );
    Ok(())
}

#[tokio::test]
async fn what_is_no_dead_letter_is_named() -> TestResult {
    let world = world().await?;
    let (_, dead_letter) = given_up(&world, "s").await?;
    let (exit, _, logs) = dead_letters(&world, "show 1").await?;
    assert_eq!(exit, Exit::Code(1));
    assert!(logs.contains("error: message 1 is no dead letter but a transcription.session-ended"), "{logs}");
    let (exit, _, logs) = dead_letters(&world, "show 99").await?;
    assert_eq!(exit, Exit::Code(1));
    assert!(logs.contains("error: there is no message 99 in TRANSCRIPTION: `dead-letters list` names"), "{logs}");

    for command in ["redrive", "discard"] {
        let (exit, told) = told(&world, &format!("{command} 1 99")).await?;
        assert_eq!(exit, Exit::Code(1), "{command}");
        assert_eq!(
            told,
            json!([
                { "sequence": 1, "outcome": "notADeadLetter", "subject": "transcription.session-ended" },
                { "sequence": 99, "outcome": "absent" },
            ])
        );
    }
    let (exit, output, _) = dead_letters(&world, &format!("discard 1 {dead_letter}")).await?;
    assert_eq!(exit, Exit::Code(1), "one of them failed");
    assert_eq!(
        output,
        format!("1 is no dead letter but a transcription.session-ended: left as it is\n{dead_letter} discarded\n")
    );
    assert_eq!(states(&world).await?, []);
    let (exit, _) = told(&world, &format!("discard {dead_letter}")).await?;
    assert_eq!(exit, Exit::Code(1), "it is gone");
    assert_eq!(end_count(&world).await?, 1, "ends stay");
    let audit = world.processor("audit").argument("--json").start().await?;
    assert_eq!(audit.wait(SOON).await?, Exit::Code(0), "{}", audit.output());
    let found: Value = serde_json::from_str(&audit.output())?;
    assert_eq!((&found["ended"], &found["discarded"], &found["oneToOne"]), (&json!(1), &json!(1), &json!(true)));
    let stream = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?;
    assert!(stream.get_raw_message(dead_letter).await.is_err());
    Ok(())
}

#[tokio::test]
async fn without_a_stream_setup_is_called_for() -> TestResult {
    let world = TestWorld::start().await?;
    for line in ["list", "show 1", "redrive 1", "discard 1"] {
        let (exit, _, logs) = dead_letters(&world, line).await?;
        assert_eq!(exit, Exit::Code(1));
        assert!(
            logs.contains("there is no stream TRANSCRIPTION: create it with `transcript-processor setup`"),
            "{logs}"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redriven_dead_letter_is_settled_once_it_is_processed() -> TestResult {
    let world = world().await?;
    let (session, dead_letter) = given_up(&world, "s").await?;
    let (_, second) = given_up(&world, "second").await?;
    let (exit, output, _) = dead_letters(&world, &format!("redrive {dead_letter}")).await?;
    assert_eq!((exit, output), (Exit::Code(0), format!("{dead_letter} redriven as message {}\n", second + 1)));
    let stream = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?;
    let end = stream.get_raw_message(second + 1).await?;
    let header = |name: &str| end.headers.get(name).map(|value| value.as_str().to_owned());
    assert_eq!(end.subject.as_str(), SESSION_ENDED_SUBJECT);
    assert_eq!(header(REDRIVE_OF_HEADER), Some(dead_letter.to_string()));
    assert_eq!(header(NATS_MESSAGE_ID.as_ref()), Some(format!("redrive-{dead_letter}")));
    assert_eq!(end.payload, ended(&session));
    assert_eq!(states(&world).await?, [(dead_letter, "redriven".to_owned()), (second, "open".to_owned())]);

    let (exit, output, _) = dead_letters(&world, &format!("redrive {dead_letter}")).await?;
    assert_eq!((exit, output), (Exit::Code(0), format!("{dead_letter} redriven before, as message {}\n", second + 1)));
    let (_, all) = told(&world, "redrive --all").await?;
    assert_eq!(all, json!([{ "sequence": second, "outcome": "redriven", "redrivenAs": second + 2 }]));
    assert_eq!(end_count(&world).await?, 4, "two calls, each redriven once");

    let _processor = processor(&world).await?;
    wait_until("both are settled", SOON, || async {
        let states = states(&world).await.map_err(|error| error.to_string())?;
        let settled = states.iter().all(|(_, state)| state == "settled");
        if settled { Ok(()) } else { Err(format!("{states:?}")) }
    })
    .await?;
    assert_eq!(world.notifications().await?.len(), 2);
    let (exit, told) = told(&world, &format!("redrive {dead_letter} {second}")).await?;
    assert_eq!(exit, Exit::Code(0));
    let settled = |sequence| json!({ "sequence": sequence, "outcome": "settled" });
    assert_eq!(told, json!([settled(dead_letter), settled(second)]));
    assert_eq!(end_count(&world).await?, 4);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_still_cannot_be_processed_comes_back_once_as_another_dead_letter() -> TestResult {
    let world = world().await?;
    let end = world.publish(SESSION_ENDED_SUBJECT, MALFORMED.to_vec()).await?;
    by_hand::acknowledge(&world, 1).await?;
    let dead_letter = by_hand::dead_letter(&world, end, "an old reason", MALFORMED.to_vec()).await?;
    let _processor = processor(&world).await?;
    dead_letters(&world, &format!("redrive {dead_letter}")).await?;
    let back = wait_until("it comes back", SOON, || async {
        match states(&world).await.map_err(|error| error.to_string())?.as_slice() {
            [(first, state), (back, new)] if *first == dead_letter && state == "redriven" && new == "open" => Ok(*back),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    let (_, listed) = told(&world, "list").await?;
    assert_eq!(listed[0]["cameBackAs"], back);
    assert_eq!(listed[1]["reason"], "not JSON: line 1, column 23");
    let (exit, output, _) = dead_letters(&world, &format!("redrive {dead_letter}")).await?;
    assert_eq!(exit, Exit::Code(1));
    assert_eq!(output, format!("{dead_letter} was redriven and came back as dead letter {back}: redrive that one\n"));
    assert!(dead_letters(&world, "list").await?.1.contains(&format!("  now {back}  ")));
    let all = wait_until("the consumer has nothing more to do", SOON, || async {
        let consumer = world.consumer().await.map_err(|error| error.to_string())?;
        if (consumer.num_pending, consumer.num_ack_pending) == (0, 0) { Ok(()) } else { Err(format!("{consumer:?}")) }
    });
    all.await?;
    assert_eq!(states(&world).await?.len(), 2, "it comes back once");
    Ok(())
}

#[tokio::test]
async fn a_dead_letter_is_redriven_once_also_beyond_the_duplicate_window() -> TestResult {
    let world = TestWorld::start().await?;
    world.processor("setup").arguments(["--duplicate-window", "100ms"]).run(SOON).await?;
    let (_, dead_letter) = given_up(&world, "s").await?;
    let (_, first) = told(&world, &format!("redrive {dead_letter}")).await?;
    let redriven_as = first[0]["redrivenAs"].clone();
    // What was published after the redrive is forgotten after it.
    let mut headers = HeaderMap::new();
    headers.insert(NATS_MESSAGE_ID, "probe");
    let probe = by_hand::publish(&world, SEGMENT_SUBJECT, headers.clone(), vec![]).await?;
    wait_until("the stream has forgotten the ids", SOON, || async {
        let again = by_hand::publish(&world, SEGMENT_SUBJECT, headers.clone(), vec![]).await;
        if again.map_err(|error| error.to_string())? > probe { Ok(()) } else { Err("it knows them") }
            .map_err(str::to_owned)
    })
    .await?;
    for line in [format!("redrive {dead_letter}"), "redrive --all".to_owned()] {
        let (exit, again) = told(&world, &line).await?;
        assert_eq!(exit, Exit::Code(0));
        let before = json!([{ "sequence": dead_letter, "outcome": "redrivenBefore", "redrivenAs": redriven_as }]);
        assert_eq!(again, if line.ends_with("--all") { json!([]) } else { before });
    }
    assert_eq!(end_count(&world).await?, 2);
    Ok(())
}

#[tokio::test]
async fn dead_letters_of_somebody_else_are_read_as_far_as_they_go() -> TestResult {
    let world = world().await?;
    let dead_letter = world.publish(DEAD_LETTER_SUBJECT, ended(&Session::new("c", "s")?)).await?;
    assert_eq!(states(&world).await?, [(dead_letter, "open".to_owned())]);
    let (_, list, _) = dead_letters(&world, "list").await?;
    assert!(
        list.lines().nth(1).is_some_and(|line| line.contains("  -      open   c             s        -       -")),
        "{list}"
    );
    Ok(())
}
