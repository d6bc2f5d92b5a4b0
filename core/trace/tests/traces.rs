//! Traces replay, are cut, go on in other files, and say what is missing.

mod world;

use std::{collections::BTreeSet, time::Duration};

use proptest::prelude::*;
use transcript_core::{FailureKind, Input, Payload, Processor, Report, Settings, Time, ids::JobId};
use transcript_trace::{
    Content, Line, ReadError, Reader, Recorder, Said,
    cut::{Wanted, cut},
    replay::{Difference, Problem, Replayed, replay},
};
use world::{Call, RecordedInput, TracedWorld, call, core, header, ms, play, record, segment, session, words};

fn settings() -> Settings {
    Settings { page_size: 2, ..Settings::default() }
}

fn replayed(trace: &[u8]) -> Result<Replayed, Problem> {
    replay(Reader::new(trace), |header| Processor::new(header.settings.clone()))
}

fn difference(trace: &[u8]) -> Difference {
    match replayed(trace).expect_err("the trace is not what the core does") {
        Problem::Difference(difference) => *difference,
        other @ (Problem::Read(_) | Problem::Settings { .. } | Problem::TranscriberSettings { .. }) => {
            panic!("{other}")
        }
    }
}

fn read(trace: &[u8]) -> Vec<Line> {
    Reader::new(trace).collect::<Result<_, _>>().expect("the trace is whole")
}

fn text(trace: &[u8]) -> &str {
    std::str::from_utf8(trace).expect("traces are UTF-8")
}

/// What the trace says about one job.
fn about(trace: &[u8], jobs: &BTreeSet<u64>) -> Vec<Said> {
    let number = |job: JobId| job.to_string().parse::<u64>().expect("jobs are numbered");
    let concerns = |said: &Said| match said {
        Said::Out(transcript_core::Output::Perform { id, .. }) => jobs.contains(&number(id.job)),
        Said::In(Input::Reported { effect, .. }) => jobs.contains(&number(effect.job)),
        Said::In(_) | Said::Out(_) | Said::LeftOut(_) | Said::Note(_) => false,
    };
    let entries = read(trace).into_iter().filter_map(|line| match line {
        Line::Entry(entry) => Some(entry.said),
        Line::Header(_) | Line::TranscriberHeader(_) | Line::TranscriberEntry(_) => None,
    });
    entries.filter(concerns).collect()
}

#[test]
fn a_call_replays_with_and_without_its_words() {
    let told = play(&settings(), &[call("s", ms(10))]);
    for content in [Content::Redacted, Content::Kept] {
        let trace = record(content, &settings(), &told);
        let replayed = replayed(&trace).expect("it replays");
        assert_eq!((replayed.parts, replayed.jobs), (1, 1));
        assert!(replayed.outputs >= 10, "{replayed}");
        assert_eq!(text(&trace).contains("everybody"), content == Content::Kept);
        assert_eq!(text(&trace).contains("Björn"), content == Content::Kept);
    }
}

#[test]
fn a_changed_output_is_found_and_named() {
    let told = play(&settings(), &[call("s", ms(10))]);
    let trace = record(Content::Redacted, &settings(), &told);
    let changed = text(&trace).replacen("\"complete\":true", "\"complete\":false", 1);
    let difference = difference(changed.as_bytes());
    insta::assert_snapshot!(difference);
}

#[test]
fn a_missing_output_is_found_where_the_next_input_comes() {
    let told = play(&settings(), &[call("s", ms(10))]);
    let trace = record(Content::Redacted, &settings(), &told);
    let mut lines: Vec<String> = text(&trace).lines().map(str::to_owned).collect();
    let gone = lines.iter().position(|line| line.contains("\"publish\"")).expect("it publishes");
    lines.remove(gone);
    for line in &mut lines[gone..] {
        let (n, rest) = line[5..].split_once(',').expect("an entry begins with its number");
        *line = format!("{{\"n\":{},{rest}", n.parse::<u64>().expect("it is a number") - 1);
    }
    let difference = difference((lines.join("\n") + "\n").as_bytes());
    assert_eq!(difference.trace, "says nothing more");
    assert_eq!(difference.core, "asks 1.7: publish c:s");
}

/// A trace that shows a fault, and how far a core with the fault gets with it.
#[test]
fn a_core_with_a_fault_differs_where_the_fault_shows() {
    let away = |calls: &[Call]| {
        let mut world = TracedWorld::new(core(&settings()), calls);
        world.store_away = Some((ms(1_000), ms(30_000)));
        world.run();
        world.told
    };
    let plain = play(&settings(), &[call("s", ms(10))]);
    let outage = away(&[call("s", ms(10))]);
    let other = |settings: &Settings, what: &str| match what {
        "one count is enough" => Settings { settle_rounds: 1, ..settings.clone() },
        "slower heartbeats" => Settings { ack_wait: settings.ack_wait * 2, ..settings.clone() },
        "longer pauses" => Settings { retry_base: settings.retry_base * 8, ..settings.clone() },
        other => panic!("no such core: {other}"),
    };
    let shown: Vec<String> =
        [("one count is enough", &plain), ("slower heartbeats", &outage), ("longer pauses", &outage)]
            .into_iter()
            .map(|(what, told)| {
                let trace = record(Content::Redacted, &settings(), told);
                replayed(&trace).expect("the same core replays it");
                match replay(Reader::new(&*trace), |header| Processor::new(other(&header.settings, what))) {
                    Err(Problem::Difference(difference)) => format!("{what}: {difference}\n"),
                    other => panic!("{what}: it does not show: {other:?}"),
                }
            })
            .collect();
    insta::assert_snapshot!(shown.join("\n"));
}

#[test]
fn what_was_lost_is_counted_and_what_comes_after_replays() {
    let calls: Vec<Call> = (0..4).map(|n| call(&format!("s{n}"), ms(10 + 1_500 * n))).collect();
    let told = play(&settings(), &calls);
    let until = |millis: u64| told.partition_point(|(at, _, _)| *at < ms(millis));
    let (kept, lost, after) = (&told[..until(1_000)], &told[until(1_000)..until(2_000)], &told[until(2_000)..]);
    let mut recorder =
        Recorder::new(vec![], header(Content::Redacted, &settings()), core(&settings())).expect("a vector");
    let tell = |recorder: &mut Recorder<Vec<u8>>, told: &[RecordedInput]| {
        for (at, job, input) in told {
            recorder.record(*at, *job, input.clone()).expect("a vector takes everything");
        }
    };
    tell(&mut recorder, kept);
    assert!(recorder.in_flight() > 0);
    recorder.lost(after[0].0, lost.len() as u64, "the queue was full").expect("a vector takes everything");
    assert_eq!(recorder.in_flight(), 0);
    tell(&mut recorder, after);
    let trace = std::mem::take(recorder.get_mut());
    let replayed = replayed(&trace).expect("it replays");
    assert_eq!(replayed.left_out, lost.len() as u64);
    let begins = |told: &[RecordedInput]| {
        told.iter().filter(|(_, _, input)| matches!(input, Input::Delivered(_))).count() as u64
    };
    assert_eq!(replayed.jobs, begins(kept) + begins(after));
    assert!(begins(after) > 0, "a job begins after the gap");
    assert_eq!(recorder.mismatches(), 0);
}

#[test]
fn a_trace_goes_on_in_another_file() {
    let calls: Vec<Call> = (0..3).map(|n| call(&format!("s{n}"), ms(10 + 1_500 * n))).collect();
    let told = play(&settings(), &calls);
    let (before, after) = told.split_at(told.partition_point(|(at, _, _)| *at < ms(2_000)));
    let mut recorder =
        Recorder::new(vec![], header(Content::Redacted, &settings()), core(&settings())).expect("a vector");
    let tell = |recorder: &mut Recorder<Vec<u8>>, told: &[RecordedInput]| {
        for (at, job, input) in told {
            recorder.record(*at, *job, input.clone()).expect("a vector takes everything");
        }
    };
    tell(&mut recorder, before);
    assert!(recorder.in_flight() > 0);
    let first = recorder.go_on(vec![], "a-1.jsonl").expect("a vector takes everything");
    tell(&mut recorder, after);
    let second = std::mem::take(recorder.get_mut());

    let both = replayed(&[first.clone(), second.clone()].concat()).expect("together they replay");
    assert_eq!((both.parts, both.jobs, both.partial.len()), (2, 3, 0));
    let whole = record(Content::Redacted, &settings(), &told);
    let other = text(&whole).replacen("\"processor\":\"a\"", "\"processor\":\"b\"", 1);
    let mixed = [&first, other.as_bytes(), &second].concat();
    let mixed = replayed(&mixed).expect("they replay also where another processor's trace stands between them");
    assert_eq!((mixed.parts, mixed.jobs, mixed.partial.len()), (3, 6, 0));
    replayed(&first).expect("the first alone does");
    let alone = replayed(&second).expect("the second alone does, from its first new job on");
    assert_eq!(alone.partial, ["a-1.jsonl"]);
    assert!(alone.jobs > 0 && alone.jobs < 3, "{alone}");
    assert!(alone.outputs > 0 && alone.outputs < both.outputs, "{alone}");

    let changed = text(&second).replacen("\"published\"", "\"publishes\"", 1);
    assert!(matches!(replayed(changed.as_bytes()), Err(Problem::Read(ReadError::Malformed { .. }))));
}

#[test]
fn one_session_is_cut_out_and_replays() {
    let calls: Vec<Call> = (0..20).map(|n| call(&format!("s{n}"), ms(10 + 130 * n))).collect();
    let told = play(&settings(), &calls);
    for content in [Content::Redacted, Content::Kept] {
        let trace = record(content, &settings(), &told);
        for n in [0, 7, 19] {
            let wanted = Wanted { session_id: format!("s{n}"), conversation_id: Some("c".into()) };
            let mut piece = vec![];
            let report = cut(Reader::new(&*trace), &wanted, &mut piece).expect("it can be cut");
            assert_eq!((report.parts, report.jobs, report.mismatches), (1, 1, 0));
            let replayed = replayed(&piece).expect("the piece replays");
            assert_eq!(replayed.jobs, 1);
            let jobs = BTreeSet::from([n + 1]);
            assert_eq!(about(&piece, &jobs), about(&trace, &jobs), "it says the same about the session");
            let others =
                (0..20).filter(|other| *other != n).find(|other| text(&piece).contains(&format!("\"s{other}\"")));
            assert_eq!(others, None, "and nothing about another one");
            assert!(piece.len() < trace.len() / 10);
        }
    }
    let nobody = Wanted { session_id: "s".into(), conversation_id: None };
    let mut piece = vec![];
    let trace = record(Content::Redacted, &settings(), &told);
    let report = cut(Reader::new(&*trace), &nobody, &mut piece).expect("it can be looked for");
    assert_eq!((report.jobs, piece.len()), (0, 0));
}

#[test]
fn what_is_no_whole_trace_is_told_as_such() {
    let trace = record(Content::Redacted, &settings(), &play(&settings(), &[call("s", ms(10))]));
    let lines: Vec<&str> = text(&trace).split_inclusive('\n').collect();
    let without = |gone: usize| [&lines[..gone], &lines[gone + 1..]].concat().concat();
    let swapped = {
        let mut lines = lines.clone();
        lines.swap(4, 5);
        lines.concat()
    };
    let cases = [
        ("empty", String::new()),
        ("no trace", "hello\n".to_owned()),
        ("a segment", "{\"sessionId\":\"s\",\"text\":\"t\"}\n".to_owned()),
        ("headless", lines[1..].concat()),
        (
            "newer",
            text(&trace).replacen("\"transcriptTrace\":2", "\"transcriptTrace\":7", 1).replacen(
                "transcript-processor 0.1.0",
                "transcript-processor 9.0.0",
                1,
            ),
        ),
        ("a line missing", without(5)),
        ("two in another order", swapped),
        ("garbage", [lines[..3].concat(), "}{\n".into()].concat()),
        ("an unknown input", text(&trace).replacen("\"woken\"", "\"shaken\"", 1)),
        ("settings that cannot work", text(&trace).replacen("\"settleRounds\":5", "\"settleRounds\":0", 1)),
        ("not UTF-8", String::new()),
    ];
    let told: Vec<String> = cases
        .into_iter()
        .map(|(name, trace)| {
            let trace = if name == "not UTF-8" { b"\xff\xfe\n".to_vec() } else { trace.into_bytes() };
            format!("{name}: {}", replayed(&trace).expect_err(name))
        })
        .collect();
    insta::assert_snapshot!(told.join("\n"));
}

#[test]
fn a_trace_that_is_cut_off_anywhere_replays_as_far_as_it_goes() {
    let trace = record(Content::Redacted, &settings(), &play(&settings(), &[call("s", ms(10)), call("t", ms(20))]));
    let header = text(&trace).find('\n').expect("it has lines") + 1;
    for end in (header..trace.len()).step_by(97) {
        let replayed = replayed(&trace[..end]).unwrap_or_else(|problem| panic!("cut off at {end}: {problem}"));
        assert_eq!(replayed.cut_off.is_some(), trace[end - 1] != b'\n', "cut off at {end}");
    }
    assert!(matches!(replayed(&trace[..header - 1]), Err(Problem::Read(ReadError::CutOff { line: 1, .. }))));
}

/// The calls in `fixtures/transcripts`, and in the directories that `TRANSCRIPT_TESTS_TRANSCRIPTS` names.
fn transcripts() -> Vec<Call> {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/transcripts").to_owned();
    let more = std::env::var("TRANSCRIPT_TESTS_TRANSCRIPTS").unwrap_or_default();
    let directories = std::iter::once(own).chain(more.split(':').filter(|path| !path.is_empty()).map(str::to_owned));
    let files = directories.flat_map(|path| std::fs::read_dir(&path).unwrap_or_else(|error| panic!("{path}: {error}")));
    let paths = files.map(|file| file.expect("the directory can be read").path());
    let calls = paths.filter(|path| path.extension().is_some_and(|ending| ending == "ndjson"));
    calls.map(|path| transcript(&std::fs::read_to_string(path).expect("the file can be read"))).collect()
}

fn transcript(text: &str) -> Call {
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    let name = lines[0]["sessionId"].as_str().expect("a session has an id");
    let said = lines.iter().filter(|line| line["text"].is_string());
    let segments: Vec<_> = said
        .map(|line| {
            let one = segment(
                name,
                line["index"].as_i64().expect("a number"),
                line["speaker"].as_str().unwrap_or(""),
                line["text"].as_str().expect("a text"),
            );
            (Time::ZERO, one)
        })
        .collect();
    Call { session: session(name), published: segments.len() as u64, ends_at: ms(10), segments }
}

#[test]
fn no_word_of_a_real_call_is_in_its_trace() {
    let settings = Settings::default();
    let calls = transcripts();
    assert!(calls.len() > 2);
    for call in calls {
        let told = play(&settings, std::slice::from_ref(&call));
        let trace = record(Content::Redacted, &settings, &told);
        replayed(&trace).expect("it replays");
        let mut wordless = call.clone();
        for (_, segment) in &mut wordless.segments {
            (segment.text, segment.speaker) = ("1?".to_owned(), Some("1".to_owned()));
        }
        let vocabulary = words(text(&record(Content::Redacted, &settings, &play(&settings, &[wordless]))));
        let spoken: BTreeSet<String> = call
            .segments
            .iter()
            .flat_map(|(_, segment)| [segment.text.as_str(), segment.speaker.as_deref().unwrap_or("")])
            .flat_map(words)
            .collect();
        let there: Vec<String> =
            words(text(&trace)).intersection(&spoken).filter(|word| !vocabulary.contains(*word)).cloned().collect();
        assert_eq!(there, Vec::<String>::new(), "{}", call.session.session_id);
        let kept = words(text(&record(Content::Kept, &settings, &told)));
        assert!(kept.is_superset(&spoken), "with its content all words are there");
    }
}

#[test]
fn a_refused_payload_keeps_its_reason_and_loses_its_words() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/messages/refused");
    for file in std::fs::read_dir(directory).expect("the fixtures are there") {
        let path = file.expect("the directory can be read").path();
        let payload = std::fs::read(&path).expect("the file can be read");
        let mut told = play(&settings(), &[call("s", ms(10))]);
        let Input::Delivered(delivery) = &mut told[0].2 else { panic!("the end comes first") };
        delivery.payload = Payload(payload);
        let trace = record(Content::Redacted, &settings(), &told[..1]);
        replayed(&trace).unwrap_or_else(|problem| panic!("{}: {problem}", path.display()));
        assert!(text(&trace).contains("\"deadLetter\""), "{}", path.display());
    }
}

#[test]
fn what_is_no_text_keeps_no_letter_in_any_encoding() {
    let encoded: [&[u8]; 4] = [
        &[207, 240, 232, 226, 229, 242, 32, 241, 229, 234],
        &[148, 233, 150, 167, 130, 204],
        &[231, 167, 152, 229, 175, 34],
        &[0x43, 0x04, 0x30, 0x04, 0xFF, 0xFE],
    ];
    for payload in encoded {
        let mut told = play(&settings(), &[call("s", ms(10))]);
        let Input::Delivered(delivery) = &mut told[0].2 else { panic!("the end comes first") };
        delivery.payload = Payload(payload.to_vec());
        let trace = record(Content::Redacted, &settings(), &told[..1]);
        replayed(&trace).expect("it replays");
        for line in read(&trace) {
            let Line::Entry(entry) = line else { continue };
            let Said::In(Input::Delivered(delivery)) = entry.said else { continue };
            let Payload(kept) = delivery.payload;
            assert_eq!(kept.len(), payload.len());
            let tells = |byte: &u8| byte.is_ascii_alphanumeric() && *byte != b'x' || (0x80..0xFF).contains(byte);
            assert!(!kept.iter().any(tells), "{kept:?}");
        }
    }
}

/// Numbers can be somebody's too.
#[test]
fn of_a_refused_payload_only_what_the_contract_names_is_kept() {
    let mut told = play(&settings(), &[call("s", ms(10))]);
    let Input::Delivered(delivery) = &mut told[0].2 else { panic!("the end comes first") };
    let payload = r#"{"conversationId":{"said":"hello"},"sessionId":"s","publishedSegments":-3,"phone":4155550123}"#;
    delivery.payload = Payload(payload.as_bytes().to_vec());
    let trace = record(Content::Redacted, &settings(), &told[..1]);
    let kept = r#"{\"conversationId\":{\"xxxx\":\"xxxxx\"},\"publishedSegments\":-3,\"sessionId\":\"s\",\"xxxxx\":0}"#;
    assert!(text(&trace).contains(kept), "{}", text(&trace));
    assert!(text(&trace).contains("conversationId is not a string"));
}

/// Its processor may run on for weeks.
#[test]
fn a_drain_that_no_job_of_the_session_sees_is_not_cut_out() {
    let mut told = play(&settings(), &[call("s", ms(10)), call("t", ms(20))]);
    told.push((ms(86_400_000), None, Input::Drain));
    let trace = record(Content::Redacted, &settings(), &told);
    let wanted = Wanted { session_id: "s".into(), conversation_id: None };
    let mut piece = vec![];
    assert_eq!(cut(Reader::new(&*trace), &wanted, &mut piece).expect("it can be cut").jobs, 1);
    assert!(text(&trace).contains("\"drain\"") && !text(&piece).contains("\"drain\""));

    let early = told.iter().position(|(at, _, _)| *at > ms(3_000)).expect("it lasts longer");
    told.truncate(early);
    told.push((ms(3_000), None, Input::Drain));
    let trace = record(Content::Redacted, &settings(), &told);
    let mut piece = vec![];
    cut(Reader::new(&*trace), &wanted, &mut piece).expect("it can be cut");
    assert!(text(&piece).contains("\"drain\""), "a job sees this one");
    replayed(&piece).expect("it replays");
}

#[test]
fn no_time_or_number_is_too_large_to_be_told() {
    let trace = record(Content::Redacted, &settings(), &play(&settings(), &[call("s", ms(10))]));
    for (from, to) in [
        ("\"at\":12000,", "\"at\":18446744073709551615,"),
        ("\"startedAt\":1764400000000", "\"startedAt\":253402300800000"),
        ("\"startedAt\":1764400000000", "\"startedAt\":-9223372036854775808"),
        ("\"content\"", "\"continues\":{\"file\":\"b\",\"entries\":18446744073709551615,\"lastJob\":null},\"content\""),
    ] {
        let changed = text(&trace).replacen(from, to, 1);
        assert_ne!(changed, text(&trace), "{from}");
        assert!(matches!(replayed(changed.as_bytes()), Err(Problem::Read(_))), "{to}");
    }
}

fn calls() -> impl Strategy<Value = (Vec<Call>, Option<(u64, u64)>)> {
    let speaker = prop::sample::select(vec!["", "A", "B", "Anna", "Björn", "佐藤", "🦀"]);
    let text = "[a-zA-Zα-ωé;?'\"0-9 .\\n\u{3164}]{0,40}|\\PC{0,20}";
    let segments = prop::collection::vec((speaker, text, 0_u64..9_000), 0..8);
    let one = (0_u64..4_000, segments, 0_u64..9);
    let calls = prop::collection::vec(one, 1..6).prop_map(|calls| {
        let numbered = calls.into_iter().enumerate().map(|(n, (ends_at, segments, published))| {
            let name = format!("s{n}");
            let stored = (0_i64..)
                .zip(segments)
                .map(|(index, (speaker, text, at))| (ms(at), segment(&name, index, speaker, &text)));
            Call { session: session(&name), published, ends_at: ms(ends_at), segments: stored.collect() }
        });
        numbered.collect()
    });
    (calls, prop::option::of((0_u64..8_000, 0_u64..60_000)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn whatever_happens_the_trace_replays_and_every_session_can_be_cut((calls, outage) in calls(), bytes in 0_u64..200) {
        let settings = Settings { max_bytes_in_flight: bytes, ..settings() };
        let mut world = TracedWorld::new(core(&settings), &calls);
        world.store_away = outage.map(|(from, long)| (ms(from), ms(from + long)));
        world.run();
        let trace = record(Content::Kept, &settings, &world.told);
        prop_assert_eq!(replayed(&trace).expect("it replays").jobs, calls.len() as u64);
        for call in &calls {
            let wanted = Wanted { session_id: call.session.session_id.to_string(), conversation_id: None };
            let mut piece = vec![];
            let report = cut(Reader::new(&*trace), &wanted, &mut piece).expect("it can be cut");
            prop_assert_eq!(report.jobs, 1);
            prop_assert_eq!(replayed(&piece).expect("it replays").jobs, 1);
        }
    }

    #[test]
    fn without_their_words_calls_go_the_same_way((calls, outage) in calls()) {
        let mut world = TracedWorld::new(core(&settings()), &calls);
        world.store_away = outage.map(|(from, long)| (ms(from), ms(from + long)));
        world.run();
        let trace = record(Content::Redacted, &settings(), &world.told);
        let replayed = replayed(&trace).expect("it replays");
        prop_assert_eq!(replayed.jobs, calls.len() as u64);
    }
}

/// The count of what failed is in the trace as it was.
#[test]
fn an_outage_is_in_the_trace() {
    let mut world = TracedWorld::new(core(&settings()), &[call("s", ms(10))]);
    world.store_away = Some((ms(1_000), ms(30_000)));
    world.run();
    let failed = |input: &Input| matches!(input, Input::Reported { report: Report::Failed(failure), .. } if failure.kind == FailureKind::Unreachable);
    let failures = world.told.iter().filter(|(_, _, input)| failed(input)).count();
    let trace = record(Content::Redacted, &settings(), &world.told);
    let traced = read(&trace)
        .iter()
        .filter(|line| matches!(line, Line::Entry(entry) if matches!(&entry.said, Said::In(input) if failed(input))))
        .count();
    assert_eq!(traced, failures);
    assert!(failures > 5);
    assert!(world.told.last().expect("something happened").0.since(ms(30_000)) < Duration::from_secs(10));
}
