//! `audit` on real servers: what it tells of streams and stores that were built by hand, and what it repairs.

use std::{cell::Cell, collections::BTreeMap, ops::Range, time::Duration};

use async_nats::{
    HeaderMap,
    header::NATS_MESSAGE_ID,
    jetstream::consumer::{DeliverPolicy, pull},
};
use futures::{StreamExt, TryStreamExt};
use mongodb::bson::{Document, doc};
use serde_json::{Value, json};
use tokio::time::Instant;
use transcript_core::{
    WallTime,
    contract::{
        Announcement, CONSUMER, DEAD_LETTER_SUBJECT, PROCESSED_SUBJECT, REDRIVE_OF_HEADER, SEGMENT_SUBJECT,
        SESSION_ENDED_SUBJECT, SUMMARIES_COLLECTION, TRANSCRIPTION_STREAM,
    },
    ids::Session,
};
use transcript_processor::operate::audit::{self, Audit, Incomplete, Options, Progress, Remedy, SESSIONS_A_PASS};
use transcript_tests::{
    by_hand::{self, Mark},
    calls::Call,
    process_guard::Exit,
    processor::Processor,
    wait::wait_until,
    world::TestWorld,
};

type TestResult = Result<(), Box<dyn std::error::Error>>;
type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

const SOON: Duration = Duration::from_secs(90);
const TELL: Options =
    Options { since: None, remedy: Remedy::Tell, sessions_a_pass: SESSIONS_A_PASS, incomplete: Incomplete::Some };

async fn world() -> Fallible<TestWorld> {
    let world = TestWorld::start().await?;
    world.processor("setup").run(SOON).await?;
    Ok(world)
}

fn session(session_id: &str) -> Session {
    Session::new("room", session_id).expect("the ids are valid")
}

/// Runs `audit` and gives how it ended, what it printed, and what it logged.
async fn audit(world: &TestWorld, line: &str) -> Fallible<(Exit, String, String)> {
    let command = world.processor("audit").arguments(line.split_whitespace()).start().await?;
    Ok((command.wait(SOON).await?, command.output(), command.logs()))
}

async fn told(world: &TestWorld, line: &str) -> Fallible<(Exit, Value)> {
    let (exit, output, logs) = audit(world, &format!("{line} --json")).await?;
    Ok((exit, serde_json::from_str(&output).map_err(|error| format!("{error}: {output}{logs}"))?))
}

async fn by_library(world: &TestWorld, options: Options) -> Fallible<Audit> {
    Ok(audit::audit(&world.jetstream, world.database(), options, &Progress::hidden()).await?)
}

async fn processor(world: &TestWorld) -> Fallible<Processor> {
    let command = world.processor("run").arguments(["--quiet-period", "50ms", "--ack-wait", "3s"]);
    Ok(command.start_ready(SOON).await?)
}

async fn one_to_one(world: &TestWorld) -> Fallible<Value> {
    Ok(wait_until("the audit is clean and nothing is under way", SOON, || async {
        match told(world, "").await {
            Ok((Exit::Code(0), told)) if told["underWay"] == 0 => Ok(told),
            other => Err(format!("{other:?}")),
        }
    })
    .await?)
}

/// The problems of an audit: how many there are, and the keys.
fn problems(told: &Value) -> BTreeMap<&'static str, Vec<String>> {
    let names = ["missing", "neverAnnounced", "announcedAgain", "stale", "deadLetters", "wrongMark", "notKept"].map(
        |problem| {
            let named = told[problem]["named"].as_array().map(Vec::as_slice).unwrap_or_default();
            let keys: Vec<_> = named.iter().map(|name| name["key"].as_str().unwrap_or("none").to_owned()).collect();
            assert_eq!(told[problem]["total"], keys.len(), "{problem}: {told}");
            (problem, keys)
        },
    );
    names.into_iter().filter(|(_, keys)| !keys.is_empty()).collect()
}

/// Publishes the end of a call and, where told so, stores segments, as many as it announces.
async fn ends(world: &TestWorld, session_id: &str, segments: u32) -> Fallible<u64> {
    let call = Call::of("room", session_id, segments)?;
    world.insert_segments(&call.segments).await?;
    Ok(world.publish_session_end(&call.session, u64::from(segments)).await?)
}

async fn announce(world: &TestWorld, session_id: &str, how: Announcement, id: &str) -> Fallible<u64> {
    by_hand::announce(world, &session(session_id), how, id).await
}

/// One session of every kind, each named after it.
async fn one_of_each(world: &TestWorld) -> TestResult {
    let processed = [
        "good",
        "marked",
        "told",
        "missing",
        "unmarked",
        "again",
        "stale",
        "given-up",
        "settled",
        "redriven",
        "lost-after-telling",
    ];
    let mut ended = BTreeMap::new();
    for name in processed {
        ended.insert(name, ends(world, name, 2).await?);
    }
    ended.insert("redriven again", ends_again(world, "redriven").await?);
    world.publish(SESSION_ENDED_SUBJECT, b"{}".to_vec()).await?;
    by_hand::acknowledge(world, processed.len() + 2).await?;
    let summaries = [
        ("good", 2, Mark::There),
        ("marked", 2, Mark::There),
        ("told", 2, Mark::Missing),
        ("unmarked", 2, Mark::Missing),
        ("again", 2, Mark::There),
        ("stale", 1, Mark::There),
        ("settled", 2, Mark::There),
        ("orphan", 2, Mark::Missing),
        ("old", 2, Mark::There),
    ];
    let summaries = summaries.map(|(name, segments, mark)| by_hand::summary(&session(name), segments, mark));
    by_hand::store(world, summaries.to_vec()).await?;
    for name in ["good", "told", "stale", "lost-after-telling", "lost-for-good"] {
        announce(world, name, Announcement::Processed, name).await?;
    }
    announce(world, "again", Announcement::Processed, "again").await?;
    announce(world, "again", Announcement::ProcessedOnce, "again once").await?;
    for name in ["given-up", "settled", "redriven"] {
        by_hand::dead_letter(world, ended[name], "no reason", ended_payload(name)).await?;
    }
    by_hand::dead_letter(world, 999, "no reason", b"nobody".to_vec()).await?;
    // From here on the consumer has not acknowledged.
    for name in ["in-hand", "in-hand-unmarked", "in-hand-stale", "in-hand-good"] {
        ends(world, name, 2).await?;
    }
    by_hand::deliver(world, 4).await?;
    ends(world, "waits", 2).await?;
    by_hand::store(
        world,
        vec![
            by_hand::summary(&session("in-hand-unmarked"), 2, Mark::Missing),
            by_hand::summary(&session("in-hand-stale"), 1, Mark::There),
            by_hand::summary(&session("in-hand-good"), 2, Mark::There),
        ],
    )
    .await
}

fn ended_payload(session_id: &str) -> Vec<u8> {
    json!({ "conversationId": "room", "sessionId": session_id, "publishedSegments": 2 }).to_string().into_bytes()
}

async fn ends_again(world: &TestWorld, session_id: &str) -> Fallible<u64> {
    Ok(world.publish(SESSION_ENDED_SUBJECT, ended_payload(session_id)).await?)
}

fn expected_of_each() -> BTreeMap<&'static str, Vec<String>> {
    let keys = |names: &[&str]| names.iter().map(|name| format!("room:{name}")).collect::<Vec<_>>();
    let mut dead_letters = vec!["none".to_owned()];
    dead_letters.extend(keys(&["given-up"]));
    BTreeMap::from([
        ("missing", keys(&["lost-after-telling", "lost-for-good", "missing", "redriven"])),
        ("neverAnnounced", keys(&["orphan", "unmarked"])),
        ("announcedAgain", keys(&["again"])),
        ("stale", keys(&["stale"])),
        ("deadLetters", dead_letters),
        ("notKept", vec!["none".to_owned()]),
    ])
}

#[tokio::test]
async fn an_empty_stream_is_one_to_one_and_no_stream_is_an_error() -> TestResult {
    let world = TestWorld::start().await?;
    let (exit, _, logs) = audit(&world, "").await?;
    assert_eq!(exit, Exit::Code(1));
    assert!(
        logs.contains("error: there is no stream TRANSCRIPTION: create it with `transcript-processor setup`"),
        "{logs}"
    );

    world.processor("setup").run(SOON).await?;
    for line in ["", "--since 1h", "--repair"] {
        let (exit, output, logs) = audit(&world, line).await?;
        assert_eq!(exit, Exit::Code(0), "{logs}");
        assert!(output.ends_with("one to one\n"), "{output}");
        assert!(!logs.contains('\r') && !output.contains("not one to one"), "{logs}{output}");
    }
    // Messages that are none of its business, behind which nothing comes.
    world.publish(SEGMENT_SUBJECT, b"{}".to_vec()).await?;
    world.publish("transcript.revised", b"{}".to_vec()).await?;
    let started = Instant::now();
    assert_eq!(by_library(&world, TELL).await?.ended, 0);
    assert!(started.elapsed() < Duration::from_secs(2), "it does not wait for what never comes");
    Ok(())
}

#[tokio::test]
async fn each_kind_of_session_is_told_apart() -> TestResult {
    let world = world().await?;
    one_of_each(&world).await?;
    let (exit, told) = told(&world, "").await?;
    assert_eq!(exit, Exit::Code(1));
    assert_eq!(problems(&told), expected_of_each());
    assert_eq!(told["oneToOne"], false);
    let counts = ["ended", "summarised", "announced", "underWay", "terminated", "unreadable", "passes"];
    assert_eq!(counts.map(|count| told[count].as_u64().unwrap_or(99)), [16, 11, 10, 4, 1, 1, 1], "{told}");
    assert_eq!(told["asking"], "nobody");
    assert_eq!(told["stale"]["named"][0], json!({ "key": "room:stale", "end": 7, "counted": 1, "stored": 2 }));
    assert_eq!(told["announcedAgain"]["named"][0], json!({ "key": "room:again", "end": 6, "notifications": 2 }));
    assert_eq!(told["missing"]["named"][2], json!({ "key": "room:missing", "end": 4 }));
    assert_eq!(told["missing"]["named"][3], json!({ "key": "room:redriven", "end": 12 }));
    assert_eq!(told["repair"], Value::Null);

    let (exit, output, logs) = audit(&world, "").await?;
    assert_eq!(exit, Exit::Code(1));
    assert!(output.ends_with("\nnot one to one\n") && !logs.contains("error:"), "{output}{logs}");
    assert!(output.contains("missing                    4\n    room:lost-after-telling, ended at 11\n"), "{output}");
    assert!(output.contains("no processor was asking for messages"), "{output}");
    assert!(output.lines().all(|line| line.len() <= 100), "{output}");
    Ok(())
}

#[tokio::test]
async fn many_passes_find_what_one_finds() -> TestResult {
    let world = world().await?;
    one_of_each(&world).await?;
    let mut once = by_library(&world, TELL).await?;
    for sessions_a_pass in [5, 1] {
        let mut often = by_library(&world, Options { sessions_a_pass, ..TELL }).await?;
        assert!(often.passes >= 20 / sessions_a_pass as u64, "{}", often.passes);
        for audit in [&mut once, &mut often] {
            for names in [&mut audit.missing, &mut audit.never_announced, &mut audit.dead_letters] {
                names.named.sort_by(|a, b| a.key.cmp(&b.key));
            }
            audit.passes = 1;
        }
        assert_eq!(often, once);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_repaired_is_processed_once_and_what_cannot_be_is_said() -> TestResult {
    let world = world().await?;
    one_of_each(&world).await?;
    let (exit, output, _) = audit(&world, "--repair").await?;
    assert_eq!(exit, Exit::Code(1), "it was not one to one");
    assert!(
        output.contains("redriven                   6\nredriven before            0\nmarks corrected            0\n"),
        "{output}"
    );
    assert!(output.contains("kept                       1\nnot repaired               1\n"), "{output}");
    assert!(output.contains("    room:lost-for-good: its end is no longer in the stream\n"), "{output}");
    assert!(output.contains("audit again when a processor has done what was redriven or ended\n"), "{output}");
    assert!(
        output.contains("what was announced again cannot be taken back;") && output.ends_with("\nnot one to one\n"),
        "{output}"
    );
    let stream = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?;
    let last = stream.cached_info().state.last_sequence;
    let mut ids = vec![];
    for sequence in last - 5..=last {
        let end = stream.get_raw_message(sequence).await?;
        let header = |name: &str| end.headers.get(name).map(|value| value.as_str().to_owned()).unwrap_or_default();
        assert_eq!(end.subject.as_str(), SESSION_ENDED_SUBJECT);
        ids.push((header(NATS_MESSAGE_ID.as_ref()), header(REDRIVE_OF_HEADER)));
    }
    ids.sort();
    let id = |id: &str, of: &str| (id.to_owned(), of.to_owned());
    assert_eq!(
        ids,
        [
            id("redrive-11", "11"),
            id("redrive-12", "12"),
            id("redrive-4", "4"),
            id("redrive-5", "5"),
            id("redrive-7", "7"),
            id("room:orphan%end", "0"),
        ]
    );

    // Nobody has processed them yet: a second repair finds them under way.
    let (_, again) = told(&world, "--repair").await?;
    assert_eq!((&again["repair"]["redriven"], &again["underWay"]), (&json!(0), &json!(10)), "{again}");
    let info = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?;
    assert_eq!(info.cached_info().state.last_sequence, last, "nothing was published twice");

    let _processor = processor(&world).await?;
    let left = wait_until("what was redriven is processed", SOON, || async {
        let (_, left) = told(&world, "").await.map_err(|error| error.to_string())?;
        if left["underWay"] == 0 { Ok(left) } else { Err(left.to_string()) }
    })
    .await?;
    let mut expected = expected_of_each();
    expected.insert("missing", vec!["room:lost-for-good".to_owned()]);
    expected.remove("neverAnnounced");
    expected.remove("stale");
    // The end that can never be processed is a dead letter now.
    expected.remove("notKept");
    expected.insert("deadLetters", ["none", "none", "room:given-up"].map(str::to_owned).to_vec());
    // Its first notification was not the processor's: it had another id.
    expected.insert("announcedAgain", vec!["room:again".to_owned(), "room:lost-after-telling".to_owned()]);
    assert_eq!(problems(&left), expected);
    assert_eq!(world.summary(&session("stale").key()).await?.and_then(|s| s.get_i64("segments").ok()), Some(2));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn repair_makes_it_one_to_one() -> TestResult {
    let world = world().await?;
    for number in 0..30 {
        ends(&world, &format!("missing-{number}"), 2).await?;
        ends(&world, &format!("unmarked-{number}"), 2).await?;
        ends(&world, &format!("stale-{number}"), 2).await?;
    }
    by_hand::acknowledge(&world, 90).await?;
    let summaries = (0..30).flat_map(|number| {
        [
            by_hand::summary(&session(&format!("unmarked-{number}")), 2, Mark::Missing),
            by_hand::summary(&session(&format!("orphan-{number}")), 0, Mark::Missing),
            by_hand::summary(&session(&format!("stale-{number}")), 1, Mark::There),
        ]
    });
    by_hand::store(&world, summaries.collect()).await?;
    let repaired = by_library(&world, Options { remedy: Remedy::Repair, sessions_a_pass: 50, ..TELL }).await?;
    assert_eq!(repaired.repair.map(|repair| (repair.redriven, repair.failed.total)), Some((120, 0)));
    let _processor = processor(&world).await?;
    let told = one_to_one(&world).await?;
    assert_eq!(["ended", "summarised", "announced"].map(|count| told[count].as_u64()), [Some(120); 3]);
    assert_eq!(world.notifications().await?.len(), 90, "the stale were announced already");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_system_gives_no_false_alarm() -> TestResult {
    let world = world().await?;
    let _processor = processor(&world).await?;
    let app = world.app();
    let calls = (0..400).map(|number| Call::of("room", &format!("s-{number}"), 2)).collect::<Result<Vec<_>, _>>()?;
    let publishing = tokio::spawn(async move {
        for call in calls {
            app.insert_segments(&call.segments).await.map_err(|error| error.to_string())?;
            app.publish_session_end(&call.session, 2).await.map_err(|error| error.to_string())?;
        }
        Ok::<(), String>(())
    });
    let mut audits = 0;
    while !publishing.is_finished() || audits == 0 {
        let audit = by_library(&world, TELL).await?;
        assert!(audit.one_to_one, "{audit:?}");
        audits += 1;
    }
    publishing.await??;
    let told = one_to_one(&world).await?;
    assert_eq!((told["ended"].as_u64(), told["announced"].as_u64()), (Some(400), Some(400)), "after {audits} audits");
    Ok(())
}

#[tokio::test]
async fn a_summary_that_came_while_the_stream_was_read_has_its_end_behind_that() -> TestResult {
    let world = world().await?;
    ends(&world, "first", 1).await?;
    by_hand::acknowledge(&world, 1).await?;
    by_hand::store(&world, vec![by_hand::summary(&session("first"), 1, Mark::There)]).await?;
    // Each audit races with a call that ends, is summarised, and never marked: it is under way, whenever it comes.
    for round in 0..40 {
        let name = format!("late-{round}");
        let comes = async {
            ends(&world, &name, 1).await?;
            by_hand::store(&world, vec![by_hand::summary(&session(&name), 1, Mark::Missing)]).await
        };
        let (audit, came) = tokio::join!(by_library(&world, TELL), comes);
        came?;
        let audit = audit?;
        assert!(audit.one_to_one, "{audit:?}");
    }
    Ok(())
}

#[tokio::test]
async fn since_leaves_out_what_is_older() -> TestResult {
    let world = world().await?;
    ends(&world, "old", 1).await?;
    by_hand::store(&world, vec![by_hand::summary(&session("orphan"), 1, Mark::Missing)]).await?;
    let stream = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?;
    let old = i64::try_from(stream.get_raw_message(1).await?.time.unix_timestamp_nanos() / 1_000_000)?;
    // The stream's clock has to move on between the two.
    let new = wait_until("an end is stored later than the first", SOON, || async {
        let place = ends(&world, "new", 0).await.map_err(|error| error.to_string())?;
        let message = stream.get_raw_message(place).await.map_err(|error| error.to_string())?;
        let at = i64::try_from(message.time.unix_timestamp_nanos() / 1_000_000).map_err(|error| error.to_string())?;
        if at > old { Ok(at) } else { Err(at.to_string()) }
    })
    .await?;
    by_hand::acknowledge(&world, usize::try_from(stream.get_info().await?.state.messages)?).await?;
    let keys = |audit: &Audit| -> Vec<_> {
        let names = audit.missing.named.iter().chain(&audit.never_announced.named);
        names.filter_map(|name| name.key.clone()).collect()
    };
    let all = by_library(&world, TELL).await?;
    assert_eq!(keys(&all), ["room:new", "room:old", "room:orphan"]);
    let since = |millis| Options { since: Some(WallTime::from_millis(millis)), ..TELL };
    assert_eq!(keys(&by_library(&world, since(new)).await?), ["room:new"]);
    assert_eq!(keys(&by_library(&world, since(old)).await?), ["room:new", "room:old"]);
    assert!(by_library(&world, since(new + 3_600_000)).await?.one_to_one);
    let (exit, told) = told(&world, "--since 1h").await?;
    assert_eq!((exit, &told["missing"]["total"]), (Exit::Code(1), &json!(2)), "by the command line too");
    let (exit, _, logs) = audit(&world, "--since 2100-01-01T00:00:00Z").await?;
    assert_eq!(exit, Exit::Code(1), "a mistyped year is no all-clear");
    assert!(logs.contains("--since names a moment that is not past"), "{logs}");
    Ok(())
}

#[tokio::test]
async fn removed_messages_are_not_waited_for() -> TestResult {
    let world = world().await?;
    for name in ["a", "b", "c"] {
        ends(&world, name, 0).await?;
    }
    let stream = world.jetstream.get_stream(TRANSCRIPTION_STREAM).await?;
    stream.delete_message(3).await?;
    world.publish(SEGMENT_SUBJECT, vec![]).await?;
    assert_eq!(by_library(&world, TELL).await?.ended, 2);
    stream.purge().await?;
    assert_eq!(by_library(&world, TELL).await?.ended, 0);
    Ok(())
}

#[tokio::test]
async fn what_is_no_message_of_the_contract_is_counted() -> TestResult {
    let world = world().await?;
    world.publish(PROCESSED_SUBJECT, b"hello".to_vec()).await?;
    world
        .publish(
            PROCESSED_SUBJECT,
            b"{\"conversationId\":\"\",\"sessionId\":\"s\",\"segments\":1,\"complete\":true}".to_vec(),
        )
        .await?;
    for payload in [&b"hello"[..], b"[]", b""] {
        world.publish(SESSION_ENDED_SUBJECT, payload.to_vec()).await?;
    }
    by_hand::acknowledge(&world, 3).await?;
    let audit = by_library(&world, TELL).await?;
    assert_eq!((audit.one_to_one, audit.terminated, audit.unreadable, audit.ended), (false, 3, 2, 0));
    assert_eq!(audit.not_kept.total, 3);
    let dead_letter = world.publish(DEAD_LETTER_SUBJECT, b"hello".to_vec()).await?;
    assert_eq!(by_library(&world, TELL).await?.dead_letters.total, 1);
    let mut headers = HeaderMap::new();
    headers.insert(REDRIVE_OF_HEADER, dead_letter.to_string());
    by_hand::publish(&world, SESSION_ENDED_SUBJECT, headers, b"hello".to_vec()).await?;
    let audit = by_library(&world, TELL).await?;
    assert_eq!((audit.dead_letters.total, audit.not_kept.total), (0, 3), "it was redriven");
    assert_eq!((audit.terminated, audit.under_way), (4, 1), "and may still be read");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_thousand_sessions_are_audited() -> TestResult {
    const SESSIONS: usize = 20_000;
    let world = world().await?;
    publish_and_summarise(&world, 0..SESSIONS).await?;
    let mut acknowledged = 0;
    while acknowledged < SESSIONS {
        by_hand::acknowledge(&world, 500).await?;
        acknowledged += 500;
    }
    let started = Instant::now();
    let whole = by_library(&world, TELL).await?;
    let took = started.elapsed();
    eprintln!("{SESSIONS} sessions in {took:.2?}, {:.0} a second", SESSIONS as f64 / took.as_secs_f64());
    let in_parts = by_library(&world, Options { sessions_a_pass: 6_000, ..TELL }).await?;
    let sessions = u64::try_from(SESSIONS)?;
    for audit in [&whole, &in_parts] {
        assert!(audit.one_to_one, "{audit:?}");
        assert_eq!((audit.ended, audit.summarised, audit.announced), (sessions, sessions, sessions));
    }
    assert_eq!((whole.passes, in_parts.passes), (1, 4));
    let lost = numbered(12_345).key();
    remove_summary(&world, lost.as_str()).await?;
    let audit = by_library(&world, Options { sessions_a_pass: 6_000, ..TELL }).await?;
    assert_eq!(audit.missing.named.first().and_then(|name| name.key.as_deref()), Some(lost.as_str()));
    assert_eq!(audit.missing.total, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes; for figures, TRANSCRIPT_PROCESSOR_BIN should name a release build"]
async fn a_million_sessions_are_audited_in_bounded_memory() -> TestResult {
    const SESSIONS: usize = 1_000_000;
    const WITHIN: Duration = Duration::from_secs(600);
    let world = TestWorld::start().await?;
    world.create_streams().await?;
    for from in (0..SESSIONS).step_by(20_000) {
        publish_and_summarise(&world, from..from + 20_000).await?;
    }
    // A consumer that has everything behind it.
    let consumer = pull::Config {
        durable_name: Some(CONSUMER.to_owned()),
        filter_subject: SESSION_ENDED_SUBJECT.to_owned(),
        deliver_policy: DeliverPolicy::New,
        ..pull::Config::default()
    };
    world.jetstream.create_consumer_on_stream(consumer, TRANSCRIPTION_STREAM).await?;
    for lost in [7, 500_000, 999_999] {
        remove_summary(&world, numbered(lost).key().as_str()).await?;
    }
    let peak = Cell::new(0);
    let started = Instant::now();
    let auditing = world.processor("audit").argument("--json").start().await?;
    let peak = wait_until("the audit ends", WITHIN, || async {
        // The kernel's own high-water mark; it is gone with the process.
        let status = std::fs::read_to_string(format!("/proc/{}/status", auditing.pid())).unwrap_or_default();
        peak.set(peak.get().max(high_water(&status).unwrap_or(0)));
        if auditing.exit().is_some() { Ok(peak.get()) } else { Err("it runs") }
    })
    .await?;
    let took = started.elapsed();
    let rate = SESSIONS as f64 / took.as_secs_f64();
    eprintln!("{SESSIONS} sessions in {took:.2?}, {rate:.0} a second, {} MiB at most", peak / 1024);
    assert_eq!(auditing.exit(), Some(Exit::Code(1)));
    let told: Value = serde_json::from_str(&auditing.output())?;
    assert_eq!((&told["ended"], &told["missing"]["total"], &told["passes"]), (&json!(SESSIONS), &json!(3), &json!(2)));
    assert!((1..256 * 1024).contains(&peak), "{peak} KiB");
    Ok(())
}

fn high_water(status: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// A session with ids as long as UUIDs.
fn numbered(number: usize) -> Session {
    let id = |kind: &str| format!("{kind}-0000-4000-8000-{number:012x}");
    Session::new(&id("c0ffee00"), &id("5e551011")).expect("the ids are valid")
}

async fn remove_summary(world: &TestWorld, key: &str) -> TestResult {
    let summaries = world.database().collection::<Document>(SUMMARIES_COLLECTION);
    assert_eq!(summaries.delete_one(doc! { "_id": key }).await?.deleted_count, 1);
    Ok(())
}

/// Calls that ended, are summarised, and are announced.
async fn publish_and_summarise(world: &TestWorld, numbers: Range<usize>) -> TestResult {
    let sessions: Vec<Session> = numbers.map(numbered).collect();
    let (jetstream, all) = (&world.jetstream, &sessions);
    let messages = all.iter().flat_map(|session| {
        let Session { conversation_id, session_id } = session;
        let end = json!({ "conversationId": conversation_id, "sessionId": session_id, "publishedSegments": 1 });
        let told =
            json!({ "conversationId": conversation_id, "sessionId": session_id, "segments": 1, "complete": true });
        [(SESSION_ENDED_SUBJECT, end), (PROCESSED_SUBJECT, told)]
    });
    futures::stream::iter(messages)
        .map(|(subject, payload)| async move { jetstream.publish(subject, payload.to_string().into()).await?.await })
        .buffer_unordered(1000)
        .try_for_each(|_| async { Ok(()) })
        .await?;
    for batch in sessions.chunks(10_000) {
        let summaries = batch.iter().map(|session| by_hand::summary(session, 1, Mark::There));
        by_hand::store(world, summaries.collect()).await?;
    }
    Ok(())
}
